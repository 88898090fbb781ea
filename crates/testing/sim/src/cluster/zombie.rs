//! Processes that were presumed dead and go on, fully alive, while another one serves in their
//! place: of stores that others can claim.
//!
//! Such a process gets the messages of others to its member, but for those that it is cut off from,
//! and so does its successor. Its clients stay with it until they find the successor, to which they
//! claim what they had. A member that has met a newer start takes nothing of an older one any more,
//! and has that on record (`kestrel-server`'s `server/peer_handshake.rs`). No answer of a zombie
//! may be seen to be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_cluster::peer_identity::PeerIdentity;
use kestrel_cluster::{ClusterNode, Envelope, Requester};
use kestrel_engine::Engine;
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::ObjectId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Reply, Request};

use super::host::{Free, Replied};
use super::sessions::{CallDecision, Shared};
use super::store::{Fate, Way};
use super::{ClusterRun, Event};
use crate::event_queue::Scene;
use crate::network::MS;

/// What reaches a zombie.
pub(crate) enum ZombieEvent {
    /// A message of this start of another member.
    Message(u64, Envelope),
    /// A client's call.
    Call(usize, u64, Request, Option<Origin>),
    Tick,
    Synced,
}

/// The newest starts of others that a process has met.
#[derive(Default)]
pub struct HeardStarts(BTreeMap<NodeId, u64>);

impl HeardStarts {
    /// Whether a process takes something of this start of another one, which is then on record.
    pub fn lets_in(&mut self, member: &ClusterNode, from: NodeId, epoch: u64) -> bool {
        let engine = &**member.node().engine();
        let newest = self.0.get(&from).copied().unwrap_or_else(|| {
            PeerIdentity::read(engine, from)
                .expect("no fault was injected")
                .map_or(0, |newest| newest.epoch)
        });
        if epoch > newest
            && (PeerIdentity { node_uuid: 0, epoch, start: 0, address: None })
                .write(engine, from)
                .is_err()
        {
            return false;
        }
        self.0.insert(from, newest.max(epoch));
        epoch >= newest
    }
}

/// See the module's header.
pub struct Zombie {
    pub member: ClusterNode,
    pub start: u64,
    pub way: Arc<Way>,
    pub fate: Fate,
    pub replies: Replied,
    pub free: Free,
    pub sessions: Shared,
    pub heard_starts: HeardStarts,
    /// The members that it does not reach, nor they it; 0 stands for clients.
    pub cuts: BTreeSet<NodeId>,
    pub stopped_until: Nanos,
    pub sync_planned: bool,
}

impl Zombie {
    fn receive(&mut self, event: ZombieEvent, now: Nanos) {
        match event {
            ZombieEvent::Message(epoch, envelope) => {
                if !self.cuts.contains(&envelope.from)
                    && self.heard_starts.lets_in(&self.member, envelope.from, epoch)
                {
                    self.member.receive(envelope, now);
                }
            }
            ZombieEvent::Call(client_index, number, request, None) => {
                let replies = self.replies.clone();
                let done = move |reply| replies.lock().push((client_index, number, reply));
                self.member.submit(request, Requester::Session(None), Box::new(done), now);
            }
            ZombieEvent::Call(client_index, _, request, Some(origin)) => {
                submit_in_session(
                    &mut self.member,
                    (&self.replies, &self.sessions),
                    (client_index, request, origin),
                    now,
                );
            }
            ZombieEvent::Tick => self.member.tick(now),
            ZombieEvent::Synced => {}
        }
    }
}

/// A client's numbered call arrives at a process.
pub fn submit_in_session(
    member: &mut ClusterNode,
    (replies, sessions): (&Replied, &Shared),
    (client_index, request, origin): (usize, Request, Origin),
    now: Nanos,
) {
    let (replies, sessions) = (replies.clone(), sessions.clone());
    match sessions.lock().decide(origin.client, origin.seq, &request.op) {
        CallDecision::Run => {}
        CallDecision::Answered(reply) => {
            return replies.lock().push((client_index, origin.seq, reply));
        }
        CallDecision::Running => return,
    }
    let op = request.op.clone();
    let done = move |reply: Reply| {
        if sessions.lock().finish(origin.client, origin.seq, &op, &reply) {
            replies.lock().push((client_index, origin.seq, reply));
        }
    };
    member.submit(request, Requester::Session(Some(origin)), Box::new(done), now);
}

impl ClusterRun {
    /// A process goes on though it is presumed dead.
    pub(super) fn haunt(&mut self, node: NodeId) {
        self.stats.zombies += 1;
        let now = self.queue.now;
        let mut others: Vec<NodeId> =
            self.hosts.keys().copied().filter(|other| *other != node).collect();
        others.push(0);
        let cuts = match self.prng.below(3) {
            0 => BTreeSet::new(),
            1 => others.into_iter().collect(),
            _ => others.into_iter().filter(|_| self.prng.chance(50)).collect(),
        };
        let fate = Fate {
            refused: self.prng.chance(50),
            loses_acks: self.prng.chance(50),
            scans: self.prng.chance(50),
        };
        let stopped_until = if self.prng.chance(30) { now + self.prng.span() } else { 0 };
        self.say(|| {
            format!("node {node}: goes on, presumed dead; cut off from {cuts:?}, {fate:?}")
        });
        let Some(start) = self.host(node).haunt_alive(cuts, fate, stopped_until, now) else {
            return;
        };
        self.plan_in(MS, Event::Zombie(node, start, ZombieEvent::Tick));
    }

    /// Something reaches a zombie, if it is there.
    pub(super) fn zombie_event(&mut self, node: NodeId, start: u64, event: ZombieEvent) {
        let now = self.queue.now;
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let engine = host.engine().clone();
        let Some(zombie) = host.zombie.as_mut().filter(|zombie| zombie.start == start) else {
            return;
        };
        if zombie.stopped_until > now {
            let until = zombie.stopped_until;
            return self.plan_at(until, Event::Zombie(node, start, event));
        }
        match &event {
            ZombieEvent::Tick => {
                let after = self.prng.between(20 * MS, 60 * MS);
                self.plan_in(after, Event::Zombie(node, start, ZombieEvent::Tick));
            }
            ZombieEvent::Synced if !zombie.way.has_parted() => {
                engine.sync().expect("no fault was injected")
            }
            _ => {}
        }
        let Some(zombie) = self.host(node).zombie.as_mut() else { return };
        zombie.sync_planned &= !matches!(event, ZombieEvent::Synced);
        zombie.receive(event, now);
        let wants_sync = !zombie.sync_planned
            && !zombie.way.has_parted()
            && engine.appended() > engine.durable();
        zombie.sync_planned |= wants_sync;
        let (epoch, table) = (zombie.member.epoch(), zombie.member.placement().version);
        let (cuts, outbox) = (zombie.cuts.clone(), zombie.member.take_outbox());
        let replies = std::mem::take(&mut *zombie.replies.lock());
        let free = std::mem::take(&mut *zombie.free.lock());
        if wants_sync {
            let after = self.prng.between(self.disk / 2, self.disk * 2);
            self.plan_in(after, Event::Zombie(node, start, ZombieEvent::Synced));
        }
        for (to, envelope) in outbox.into_iter().filter(|(to, _)| !cuts.contains(to)) {
            self.say(|| format!("{node} (zombie) → {to}: {:?}", envelope.message));
            let after = self.delay();
            self.plan_in(after, Event::Message(to, epoch, envelope));
        }
        for (client, number, reply) in replies.into_iter().filter(|_| !cuts.contains(&0)) {
            let after = self.delay();
            self.plan_in(after, Event::Reply(node, start, table, client, number, reply));
        }
        for (_, objects) in free.into_iter().filter(|(_, objects)| !objects.is_empty()) {
            let after = self.prng.between(MS, SECOND);
            self.plan_in(after, Event::Delete(node, start, objects));
        }
    }

    /// The start of a member that a client's calls reach: the one in which it has its session, as
    /// long as it has not found another.
    pub(super) fn start_for(&self, client_index: usize, node: NodeId) -> u64 {
        let (host, caller) = (&self.hosts[&node], &self.clients[client_index]);
        let stays = |start: u64| {
            caller.sessions.get(&node) == Some(&start)
                && caller.connected.get(&node).is_none_or(|connected| *connected <= start)
        };
        let zombie = host.zombie.as_ref().map(|zombie| zombie.start).filter(|start| stays(*start));
        zombie.unwrap_or_else(|| host.started())
    }

    /// A zombie's process deletes objects.
    pub(super) fn zombie_deletes(
        &mut self,
        node: NodeId,
        start: u64,
        objects: &[ObjectId],
    ) -> bool {
        let now = self.queue.now;
        let zombie = self.host(node).zombie.as_mut().filter(|zombie| zombie.start == start);
        let Some(zombie) = zombie else { return false };
        zombie.member.reaped(objects, Box::new(|_| ()), now);
        true
    }

    /// A zombie's process looks for objects to delete.
    pub(super) fn zombie_collects(&mut self, node: NodeId) {
        let (now, wall) = (self.queue.now, kestrel_types::clock::Clock::now(&*self.queue.clock));
        let Some(zombie) = &mut self.host(node).zombie else { return };
        let (free, start) = (zombie.free.clone(), zombie.start);
        let done = move |objects| {
            if let Ok(objects) = objects {
                free.lock().push((start, objects));
            }
        };
        zombie.member.condemn(wall, 100, Box::new(done), now);
    }

    /// A process ends cleanly, and announces it.
    pub(super) fn end(&mut self, node: NodeId, start: u64) {
        if !self.hosts[&node].is_up(start) || self.hosts[&node].has_failed() {
            return;
        }
        self.say(|| format!("node {node}: ends, and says so"));
        let now = self.queue.now;
        self.host(node).say_released();
        self.leave(node);
        self.host(node).kill(None, now);
        let after = self.prng.between(0, 300 * MS);
        self.plan_in(after, Event::Start(node));
    }
}
