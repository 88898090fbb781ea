//! One run of several metadata nodes that share a volume: members, clients that send each request
//! to its leader, a network that loses, repeats and reorders, and the faults that befall them.
//!
//! | file | |
//! | --- | --- |
//! | `host` | a member's machine: disk and process |
//! | `call` | clients: one call at a time, to the member that leads it |
//! | `sessions` | what a member's machine knows of clients |
//! | `opens` | what clients have open at which member, and how they reclaim it |
//! | `objects` | object numbers of clients, and the garbage collection of the members |
//! | `quotas` | quotas that an operator sets in mid-run, and their limits |
//! | `maps` | placement maps that change in mid-run |
//! | `leaving` | members that leave in mid-run, and nodes that are added and never come |
//! | `away` | a member that is cut off from the others at the end |
//! | `store` | a process's way to a store that other processes can claim |
//! | `zombie` | processes that were presumed dead and go on |
//! | `faults` | the faults of a run |
//! | `finish` | the end of a run: everything comes to rest, and the volume is sound |
//!
//! As in [`crate::world`] everything happens in events on one virtual clock, and a seed determines
//! a run. A client has one call under way; if no answer comes it sends the call again. The calls
//! and answers of clients must have an order in which the model answers the same, and when the
//! faults have stopped everything must come to rest with a sound volume (`finish`).

mod away;
mod call;
mod faults;
mod finish;
mod host;
mod leaving;
mod maps;
mod objects;
mod opens;
mod quotas;
mod sessions;
mod store;
mod zombie;

use std::collections::BTreeMap;

use kestrel_cluster::{Envelope, Message};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::name::Name;
use kestrel_types::placement::{
    Exceptions, Member as MapMember, NodeId, PlacementMap, Rule, SlotMap,
};
use kestrel_types::request::{Reply, Request};
use kestrel_types::wire::ClientId;

use crate::client::Versions;
use crate::event_queue::{EventQueue, Scene};
use crate::feed::FeedScene;
use crate::history::History;
use crate::network::MS;
use crate::prng::Prng;
use crate::run::{Failure, RunPlan, RunStats};
use crate::workload::{Bias, NAMES};
use call::Caller;
use host::Host;
use leaving::Leaving;
use maps::MapChanges;
use objects::Objects;
use quotas::{KeptLimits, is_about_quotas};
use sessions::Claimed;
use zombie::ZombieEvent;

/// How long clients make calls at most, in virtual time.
const TIME_MAX: Nanos = 200 * SECOND;

/// What happens, and where.
pub(crate) enum Event {
    /// A message of this start of another one reaches a member.
    Message(NodeId, u64, Envelope),
    /// Something reaches the process of this start of a member, which was presumed dead.
    Zombie(NodeId, u64, ZombieEvent),
    /// A process that has given up its lease ends.
    End(NodeId, u64),
    /// A call that is not numbered reaches a member: of this client, under this number all the
    /// same.
    Call(NodeId, usize, u64, Request),
    /// One that is does, in a session with this start of the member.
    SessionCall(NodeId, u64, usize, Request, Origin),
    /// A client is about to claim what it had open at a member that has started again.
    Claim(usize, ClientId, NodeId, u64),
    /// Claims reach this start of a member.
    Claims(NodeId, u64, usize, ClientId, Vec<Claimed>),
    /// A client gets the answer that a member has all its claims, and which files it has lost.
    Claimed(usize, ClientId, NodeId, u64, Vec<InodeId>),
    /// A reply of this start of a member, which has this version of the table, reaches a client.
    Reply(NodeId, u64, u64, usize, u64, Reply),
    /// A client looks for something to do.
    Think(usize),
    /// A client has waited long enough for the answer to this call.
    Impatient(usize, u64),
    /// A member's timers, in this start of it.
    Tick(NodeId, u64),
    /// A member's disk has done its work.
    Synced(NodeId, u64),
    /// The messages and answers of a member leave, in this start of it.
    Leave(NodeId, u64),
    Start(NodeId),
    Crash(NodeId),
    /// A process ends after its store has failed, in this start of it.
    Failed(NodeId, u64),
    /// A client tries again if its call was misdirected.
    TryAgain(usize, u64),
    /// A client requests a member's map.
    Learn(usize, ClientId, NodeId),
    /// An operator wants another map.
    Change,
    /// A new member's machine is set up.
    Form(NodeId),
    /// A new node never comes.
    Lose(NodeId),
    /// The coordinator is requested to forget it.
    Forget(NodeId),
    /// A member looks for objects to delete.
    CollectGarbage(NodeId),
    /// A member's process deletes objects, in this start of it.
    Delete(NodeId, u64, Vec<ObjectId>),
    /// No client stores bytes under these numbers any more.
    Done(Vec<ObjectId>),
    Fault,
    /// As Fault, and no other one follows.
    FaultOnce,
    Heal,
}

/// See the module's header.
pub struct ClusterRun {
    plan: RunPlan,
    queue: EventQueue<Event>,
    prng: Prng,
    hosts: BTreeMap<NodeId, Host>,
    placement: PlacementMap,
    clients: Vec<Caller>,
    clients_begun: u64,
    calls_sent: u64,
    objects: Objects,
    /// Clients that send nothing any more.
    dead: Vec<ClientId>,
    /// Clients that each member waits for since its last start.
    awaited: BTreeMap<NodeId, Vec<ClientId>>,
    history: History,
    troubled: bool,
    /// When the faults stopped.
    healed_at: Option<Nanos>,
    /// When a call ended for which nothing may change anywhere.
    stopped_at: Nanos,
    /// Directions that are cut, until when.
    cuts: BTreeMap<(NodeId, NodeId), Nanos>,
    /// Percent of the messages that are lost, and repeated.
    loss: u64,
    /// Typical delay of a message.
    delay: Nanos,
    /// Typical time of a sync.
    disk: Nanos,
    /// For so long at most members take what comes before they say anything, as their threads do
    /// under load; 0: not at all.
    gathering: Nanos,
    /// What clients do more than anything else.
    bias: Bias,
    /// Others can claim the members' stores.
    shared: bool,
    maps: MapChanges,
    leaving: Leaving,
    limits: KeptLimits,
    stats: RunStats,
}

/// A table for so many nodes, with exceptions to some of the names of the workload.
fn placement(nodes: u32, prng: &mut Prng) -> PlacementMap {
    let members = (1..=nodes).map(|id| MapMember { id, address: format!("node-{id}") }).collect();
    let map = SlotMap::even(members).expect("a few members");
    let mut exceptions = Exceptions::default();
    for name in NAMES {
        // Hashes of so few names may all lie on one node.
        let rule = match prng.below(10) {
            0..=6 => Rule::Override(prng.below(1 << 14) as u16),
            7 => Rule::PathWalk,
            _ => continue,
        };
        exceptions
            .set(Name::new(name.as_bytes()).expect("a name"), Some(rule))
            .expect("a few exceptions");
    }
    PlacementMap::new(map, exceptions)
}

impl Scene for ClusterRun {
    type Event = Event;

    fn queue(&self) -> &EventQueue<Event> {
        &self.queue
    }

    fn queue_mut(&mut self) -> &mut EventQueue<Event> {
        &mut self.queue
    }

    fn happen(&mut self, event: Event) {
        let node = match &event {
            Event::Message(node, ..)
            | Event::Call(node, ..)
            | Event::SessionCall(node, ..)
            | Event::Claims(node, ..)
            | Event::Tick(node, _)
            | Event::Leave(node, _) => Some(*node),
            _ => None,
        };
        if let Some(until) = node.and_then(|node| self.hosts[&node].stopped(self.queue.now)) {
            return self.plan_at(until, event);
        }
        let now = self.queue.now;
        match event {
            Event::Message(node, epoch, envelope) => {
                self.note_needed();
                // The sender does not choose which process it reaches: perhaps both, one after the
                // other.
                if let Some(zombie) = self.hosts[&node].zombie.as_ref().map(|zombie| zombie.start) {
                    let event = ZombieEvent::Message(epoch, envelope.clone());
                    self.plan_at(now, Event::Zombie(node, zombie, event));
                }
                self.host(node).receive(envelope, epoch, now);
                self.after(node);
            }
            Event::Zombie(node, start, event) => self.zombie_event(node, start, event),
            Event::End(node, start) => self.end(node, start),
            Event::Call(node, client, number, request) => {
                // The answer came by a later connection, which has ended the one that this is in.
                let is_over = is_about_quotas(&request.op) && !self.waits_for(client, number);
                if !is_over {
                    self.host(node).submit(client, number, request, now);
                    self.after(node);
                }
            }
            Event::SessionCall(node, start, client, request, origin) => {
                if self.hosts[&node].is_up(start) {
                    self.host(node).submit_in_session(client, request, origin, now);
                    self.after(node);
                }
            }
            Event::Claim(client_index, client, node, start) => {
                self.claim(client_index, client, node, start)
            }
            Event::Claims(node, start, client_index, client, claims) => {
                self.claims(node, start, client_index, client, &claims);
            }
            Event::Claimed(client_index, client, node, start, lost) => {
                self.claimed(client_index, client, node, start, &lost);
            }
            Event::Reply(node, start, table, client, number, reply) => {
                self.reply((node, start, table), client, number, reply);
            }
            Event::TryAgain(client, number) => self.try_again(client, number),
            Event::Learn(client_index, client, node) => self.learn_map(client_index, client, node),
            Event::Change => self.want_change(),
            Event::Form(node) => self.form(node),
            Event::Lose(node) => self.lose(node),
            Event::Forget(node) => self.forget(node),
            Event::Think(client) => self.think(client),
            Event::Impatient(client, number) => self.impatient(client, number),
            Event::Tick(node, start) => {
                if self.hosts[&node].is_up(start) {
                    self.tick_sessions(node);
                    self.note_needed();
                    self.host(node).tick(now);
                    self.after(node);
                    self.check_limits();
                    let after = self.prng.between(20 * MS, 60 * MS);
                    self.plan_in(after, Event::Tick(node, start));
                }
            }
            Event::Synced(node, start) => {
                if self.hosts[&node].is_up(start) {
                    self.host(node).sync(now);
                    self.after(node);
                }
            }
            Event::Leave(node, start) => {
                if self.hosts[&node].is_up(start) {
                    self.leave(node);
                }
            }
            Event::Start(node) => self.start(node),
            Event::Crash(node) => self.crash(node),
            Event::Failed(node, start) => self.end_failed(node, start),
            Event::CollectGarbage(node) => self.collect_garbage(node),
            Event::Delete(node, start, objects) => self.delete(node, start, &objects),
            Event::Done(objects) => self.objects_done(&objects),
            Event::Fault => self.inject_fault(),
            Event::FaultOnce => self.fault(),
            Event::Heal => self.heal(),
        }
    }
}

impl ClusterRun {
    /// The world of a seed, before anything has happened.
    pub fn new(plan: RunPlan, nodes: u32) -> Self {
        let mut prng = Prng::new(plan.seed ^ u64::from(nodes) << 56);
        let queue = EventQueue::new(plan.trace);
        let clock = queue.clock.clone();
        let mut placement = placement(nodes, &mut prng);
        if prng.chance(30) {
            // A member more, which only coordinates, or waits to.
            let id = nodes + 1;
            let member = MapMember { id, address: format!("node-{id}") };
            placement = placement.with_member(member, true).expect("a member more");
            placement.coordinator = *prng.pick(&[1, id, id]).expect("not empty");
        }
        let nodes = placement.map.members().len() as u32;
        let workers = (1 + prng.below(3) as usize, *prng.pick(&[2, 2, 6, 24]).expect("not empty"));
        let seed = prng.bits();
        let (objects, shared) = (Objects::default(), prng.chance(50));
        let (used, leaving) = (objects.used.clone(), Leaving::default());
        let known = || (used.clone(), leaving.needed.clone());
        let host = |id| {
            (
                id,
                Host::new(
                    (id, false),
                    placement.clone(),
                    clock.clone(),
                    workers,
                    seed,
                    known(),
                    shared,
                ),
            )
        };
        let hosts = (1..=nodes).map(host).collect();
        let mut world = Self {
            plan,
            queue,
            hosts,
            placement,
            clients: Vec::new(),
            clients_begun: 0,
            calls_sent: 0,
            objects,
            dead: Vec::new(),
            awaited: BTreeMap::new(),
            history: History::default(),
            troubled: true,
            healed_at: None,
            stopped_at: 0,
            cuts: BTreeMap::new(),
            loss: if prng.chance(50) { prng.below(10) } else { 0 },
            delay: MS / 10 * prng.between(1, 60),
            disk: MS / 10 * prng.between(1, 50),
            gathering: if prng.chance(50) { MS / 10 * prng.between(1, 100) } else { 0 },
            bias: Bias { moves: prng.chance(25), looks: prng.chance(25) },
            shared,
            maps: MapChanges::new(prng.chance(80), (seed, workers)),
            leaving,
            limits: KeptLimits::default(),
            stats: RunStats::default(),
            prng,
        };
        for node in 1..=nodes {
            world.start(node);
            world.plan_in(SECOND, Event::CollectGarbage(node));
        }
        for client_index in 0..2 + world.prng.below(3) as usize {
            let client = world.new_client();
            world.clients.push(client);
            if client_index == 0 && Versions::of_seed(plan.seed).feed {
                world.record_changes();
            }
            world.plan_in(MS * client_index as i64, Event::Think(client_index));
        }
        let first = world.prng.between(MS, 2 * SECOND);
        world.plan_in(first, Event::Fault);
        if world.maps.on {
            let first = world.prng.between(0, 3 * SECOND);
            world.plan_in(first, Event::Change);
        }
        world
    }

    /// How long a message is under way; each has its own time, so they overtake each other.
    fn delay(&mut self) -> Nanos {
        let slow = if self.prng.chance(2) { 50 } else { 1 };
        self.prng.between(self.delay / 10, self.delay * 2) * slow
    }

    /// Runs to the end, and answers what it was.
    pub fn run(mut self) -> Result<RunStats, Failure> {
        let heal = self.prng.between(10, 40) * SECOND;
        self.plan_at(heal, Event::Heal);
        self.run_until(TIME_MAX, |world| {
            !world.troubled && world.history.records.len() >= world.plan.calls
        });
        self.finish();
        self.stats.lapses = self.hosts.values().map(|host| host.leases().lapses).sum();
        self.stats.refused = self.hosts.values().map(Host::refused).sum();
        self.stats.fenced = self.hosts.values().map(|host| host.leases().fenced).sum();
        match self.queue.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.stats),
        }
    }

    fn host(&mut self, node: NodeId) -> &mut Host {
        self.hosts.get_mut(&node).expect("one of the nodes")
    }

    /// The messages of a member go on their way, at once or with those of the next moments; what it
    /// has written waits for the disk.
    fn after(&mut self, node: NodeId) {
        if self.gathering == 0 {
            self.leave(node);
        } else if let Some(start) = self.host(node).wants_to_speak() {
            let after = self.prng.between(0, self.gathering);
            self.plan_in(after, Event::Leave(node, start));
        }
        let host = &mut self.hosts.get_mut(&node).expect("one of the nodes");
        if let Some(start) = host.wants_sync() {
            let slow = if self.prng.chance(2) { 500 } else { 1 };
            let after = self.prng.between(self.disk / 2, self.disk * 2) * slow;
            self.plan_in(after, Event::Synced(node, start));
        }
    }

    /// The messages of a member leave.
    fn leave(&mut self, node: NodeId) {
        let epoch = self.hosts[&node].epoch();
        for (to, envelope) in self.host(node).take_outbox() {
            self.say(|| format!("{node} → {to}: {:?}", envelope.message));
            if matches!(envelope.message, Message::Change(_)) {
                self.fault_in_change(node, to);
            }
            self.carry(node, to, |world, after| {
                world.plan_in(after, Event::Message(to, epoch, envelope.clone()));
            });
        }
        self.take_map_results();
        self.take_forgotten();
        let start = self.hosts[&node].started();
        let table = self.hosts[&node].placement().map_or(0, |table| table.version);
        for (client, number, reply) in self.host(node).take_replies() {
            self.carry(node, 0, |world, after| {
                world.plan_in(
                    after,
                    Event::Reply(node, start, table, client, number, reply.clone()),
                );
            });
        }
        self.plan_deletions(node);
    }

    /// Carries a message between two members; 0 stands for clients.
    fn carry(&mut self, from: NodeId, to: NodeId, put: impl Fn(&mut Self, Nanos)) {
        if self.cuts.get(&(from, to)).is_some_and(|until| *until > self.queue.now) {
            return;
        }
        if self.troubled && self.prng.chance(self.loss) {
            return;
        }
        let twice = self.troubled && self.prng.chance(self.loss);
        for _ in 0..=u8::from(twice) {
            let after = self.delay();
            put(self, after);
        }
    }
}
