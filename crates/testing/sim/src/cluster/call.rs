//! Clients: one call at a time, to the member that leads it by the placement map that the
//! client has, in its session there if it is numbered, again and again until it is answered.

use std::collections::BTreeMap;

use kestrel_meta::txn::Origin;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::request::{Answer, Op, Outcome, Reply, Request};

use super::host::is_no_answer;
use super::leaving::staying;
use super::objects::LINGERS;
use super::opens::Held;
use super::quotas::is_about_quotas;
use super::{ClusterRun, Event, ZombieEvent};
use crate::client::{Client, Versions};
use crate::event_queue::Scene;
use crate::network::MS;
use crate::workload;

/// What faults have left behind may delay calls so long after they have stopped, and make them
/// fail.
const SETTLES: Nanos = 5 * SECOND;

/// A client.
pub struct Caller {
    /// The map that it has.
    pub client: Client,
    /// Its copy of the placement map.
    pub placement: PlacementMap,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// The inode of its next call, if it has one: the home of a file that does not exist by the
    /// answer that it got.
    pub next: Option<Request>,
    /// That is its next call.
    pub goes_home: bool,
    /// What it has open, and where.
    pub opens: BTreeMap<(NodeId, InodeId), Held>,
    /// Members that have a session of it, and the start that has it.
    pub sessions: BTreeMap<NodeId, u64>,
    /// The start that has, or is getting, its claims of opens: answers of earlier starts do not
    /// reach it any more.
    pub connected: BTreeMap<NodeId, u64>,
    deadline: Nanos,
    /// The member that gives it numbers for objects.
    pub gives: NodeId,
    /// How often, in percent, it does not care that a member has a newer table.
    pub lazy: u64,
}

/// A call under way.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The record in the history.
    record: usize,
    /// Its number, which no other call of any client has.
    number: u64,
    pub request: Request,
    /// The member that gets the call.
    pub at: NodeId,
    /// The start of that member to which it was sent first.
    pub first_sent: u64,
    /// When.
    begun_at: Nanos,
    /// It was misdirected, and is sent again under another number.
    pub misdirected: bool,
}

/// Whether nothing may change anywhere while it is executed.
fn needs_a_stop(op: &Op) -> bool {
    let makes_snapshot =
        matches!(op, Op::SnapshotCreate { .. } | Op::SnapshotChanges { newer: None, .. });
    makes_snapshot || is_about_quotas(op)
}

impl Caller {
    /// Whether a call is under way.
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }
}

impl ClusterRun {
    pub(super) fn new_client(&mut self) -> Caller {
        self.clients_begun += 1;
        let prng = self.prng.split();
        let mut client = Client::new(self.clients_begun, prng, self.queue.now, None);
        client.versions = Versions::of_seed(self.plan.seed);
        // Where quotas come and go there is hardly a moment for clones.
        client.versions.clones &= !self.has_quotas();
        let deadline = self.prng.between(50 * MS, 3 * SECOND);
        // Its objects all have numbers of one node.
        let placement = self.some_map();
        let gives = *self.prng.pick(&staying(&placement)).expect("there are members");
        let lazy = if self.prng.chance(30) { 80 } else { self.prng.below(40) };
        Caller {
            client,
            placement,
            waiting: None,
            next: None,
            goes_home: false,
            opens: BTreeMap::new(),
            sessions: BTreeMap::new(),
            connected: BTreeMap::new(),
            gives,
            lazy,
            deadline,
        }
    }

    pub(super) fn pick_host(&mut self) -> NodeId {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        *self.prng.pick(&nodes).expect("there are nodes")
    }

    pub(super) fn think(&mut self, client_index: usize) {
        if self.clients[client_index].waits() || self.history.records.len() >= self.plan.calls {
            return;
        }
        let client = &mut self.clients[client_index].client;
        if client.objects.len() > 1 && client.prng.chance(10) {
            let done = client.objects.remove(0);
            self.objects_done(&[done]);
        }
        let caller = &mut self.clients[client_index];
        let next = caller.next.take();
        caller.goes_home = next.is_some();
        let request = next.or_else(|| self.move_out(client_index));
        let request = request.or_else(|| self.quota_action(client_index));
        let bias = self.bias;
        let action = |world: &mut Self| {
            workload::cluster_action(&mut world.clients[client_index].client, bias)
        };
        let request = request.unwrap_or_else(|| action(self));
        self.call(client_index, request);
    }

    /// A client begins a call.
    pub(super) fn call(&mut self, client_index: usize, request: Request) {
        let (held, at) =
            (self.held(client_index, &request.op), self.member_for(client_index, &request.op));
        let record = self.history.begin(client_index, request.clone(), held);
        self.send_to_member(client_index, record, request, at);
    }

    /// It sends the call to a member, under a new number.
    fn send_to_member(&mut self, client_index: usize, record: usize, request: Request, at: NodeId) {
        self.calls_sent += 1;
        let (number, first_sent, begun_at) =
            (self.calls_sent, self.start_for(client_index, at), self.queue.now);
        self.clients[client_index].waiting =
            Some(Waiting { record, number, request, at, first_sent, begun_at, misdirected: false });
        self.send_call(client_index, false);
    }

    fn send_call(&mut self, client_index: usize, retry: bool) {
        let caller = &self.clients[client_index];
        let Some(Waiting { record, number, request, at: node, .. }) = caller.waiting.clone() else {
            return;
        };
        let (client, deadline) = (caller.client.id, caller.deadline);
        self.plan_in(deadline, Event::Impatient(client_index, number));
        let numbered = request.op.is_numbered();
        let zombie = self.start_for(client_index, node);
        if zombie != self.hosts[&node].started() {
            if !self.hosts[&node].zombie.as_ref().is_some_and(|zombie| zombie.cuts.contains(&0)) {
                self.say(|| {
                    format!(
                        "client {client_index} → {node} (zombie): call {record}: {:?}",
                        request.op
                    )
                });
                let origin = numbered.then_some(Origin { client, seq: number, retry });
                let after = self.delay();
                self.plan_in(
                    after,
                    Event::Zombie(
                        node,
                        zombie,
                        ZombieEvent::Call(client_index, number, request, origin),
                    ),
                );
            }
            return;
        }
        let welcome = self.is_welcome(client_index, node);
        if numbered && !welcome {
            return;
        }
        self.say(|| format!("client {client_index} → {node}: call {record}: {:?}", request.op));
        let start = self.hosts[&node].started();
        self.carry(0, node, |world, after| {
            let request = request.clone();
            let call = match numbered {
                true => {
                    let origin = Origin { client, seq: number, retry };
                    Event::SessionCall(node, start, client_index, request, origin)
                }
                false => Event::Call(node, client_index, number, request),
            };
            world.plan_in(after, call);
        });
    }

    /// Whether a client has wanted something since, for which nothing may change anywhere.
    fn were_stopped_since(&self, since: Nanos) -> bool {
        let stops = |caller: &Caller| {
            caller.waiting.as_ref().is_some_and(|waiting| needs_a_stop(&waiting.request.op))
        };
        self.stopped_at >= since || self.clients.iter().any(stops)
    }

    /// Whether a client has no answer to this call.
    pub(super) fn waits_for(&self, client_index: usize, number: u64) -> bool {
        let waiting = self.clients[client_index].waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.number == number)
    }

    /// A call was misdirected: it goes to the member that leads it by the table that the client has
    /// by now.
    pub(super) fn try_again(&mut self, client_index: usize, number: u64) {
        let waiting = self.clients[client_index].waiting.clone();
        let Some(Waiting { record, request, .. }) =
            waiting.filter(|waiting| waiting.number == number)
        else {
            return;
        };
        let at = self.member_for(client_index, &request.op);
        self.send_to_member(client_index, record, request, at);
    }

    pub(super) fn reply(
        &mut self,
        (node, start, table): (NodeId, u64, u64),
        client_index: usize,
        number: u64,
        reply: Reply,
    ) {
        self.note_version(client_index, node, table);
        let caller = &mut self.clients[client_index];
        let over = caller.connected.get(&node).is_some_and(|connected| *connected > start);
        let waits =
            |waiting: &mut Waiting| waiting.number == number && !waiting.misdirected && !over;
        let Some(waiting) = caller.waiting.take_if(waits) else { return };
        let (record, request) = (waiting.record, &waiting.request);
        if needs_a_stop(&request.op) {
            self.stopped_at = self.queue.now;
        }
        self.say(|| format!("client {client_index}: call {record}: {reply:?}"));
        if let Err(Outcome::Misdirected { .. }) = &reply {
            self.stats.misdirected += 1;
            self.clients[client_index].waiting = Some(Waiting { misdirected: true, ..waiting });
            let after = self.prng.between(5 * MS, 100 * MS);
            return self.plan_in(after, Event::TryAgain(client_index, number));
        }
        if is_no_answer(&reply) {
            // The store of another node failed, which had a part in it: the caller gets that error,
            // and the call did nothing.
            return self.plan_in(MS, Event::Think(client_index));
        }
        if let Err(Outcome::Failed(why)) = &reply
            && [libc::EIO, libc::ENOTSUP].contains(&why.errno)
            // Inline content cannot be cloned, and symbolic links have no flags.
            && !(matches!(request.op, Op::Clone { .. } | Op::SetFlags(..))
                && why.errno == libc::EOPNOTSUPP)
        {
            return self.fail(format!("call {record}, {:?}: {why}", request.op));
        }
        if let Err(Outcome::Failed(why)) = &reply
            && why.errno == libc::ETIMEDOUT
            && self.healed_at.is_some_and(|healed_at| healed_at + SETTLES <= waiting.begun_at)
            // No snapshot is made while the map changes, which slow disks may take their time for,
            // nor a quota; and these wait for each other, as what changes something does for them.
            && !(needs_a_stop(&request.op) && (self.has_quotas() || !self.maps_rest()))
            && !(self.has_quotas() && self.were_stopped_since(waiting.begun_at))
        {
            return self.fail(format!("call {record}, {:?}, fails in peace: {why}", request.op));
        }
        if let Ok(Answer::Objects { first, count }) = &reply {
            self.objects_given(*first..*first + u64::from(*count));
        }
        self.look_at_check(&request.op, &reply);
        self.clients[client_index].client.learn(record, &request.op, &reply);
        self.note_opens(client_index, &waiting, &reply);
        self.history.finish(record, reply);
        let after = self.prng.between(0, 20 * MS);
        self.plan_in(after, Event::Think(client_index));
    }

    pub(super) fn impatient(&mut self, client_index: usize, number: u64) {
        let waits = self.clients[client_index].waiting.as_ref();
        if waits.is_none_or(|waiting| waiting.number != number || waiting.misdirected) {
            return;
        }
        if self.troubled && self.prng.chance(3) {
            self.say(|| format!("client {client_index}: dies"));
            let objects = self.clients[client_index].client.objects.clone();
            self.plan_in(LINGERS, Event::Done(objects));
            self.bury(client_index);
            let mut caller = self.new_client();
            // It may have had a look around before.
            caller.client.seen_inodes.clone_from(&self.clients[client_index].client.seen_inodes);
            self.clients[client_index] = caller;
            return self.plan_in(MS, Event::Think(client_index));
        }
        // A member that is not there any more answers nothing.
        let at = self.clients[client_index].waiting.as_ref().map_or(0, |waiting| waiting.at);
        if self.hosts.get(&at).is_none_or(|host| host.lost) {
            let (client, from) = (self.clients[client_index].client.id, self.coordinator());
            self.learn_map(client_index, client, from);
            self.plan_in(SECOND, Event::Impatient(client_index, number));
            return self.try_again(client_index, number);
        }
        self.stats.retries += 1;
        self.send_call(client_index, true);
    }
}
