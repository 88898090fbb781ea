//! Clients: one call at a time, to any member, again and again until it is answered.

use std::collections::BTreeMap;

use kestrel_meta::txn::Origin;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Outcome, Reply, Request, Subject};

use super::objects::LINGERS;
use super::opens::Held;
use super::{Event, Several};
use crate::agenda::Scene;
use crate::client::Client;
use crate::network::MS;
use crate::workload;

/// A client.
pub struct Caller {
    /// What it knows.
    pub client: Client,
    /// Number of its last call.
    seq: u64,
    /// Who leads that, if any member could: the one that it goes to.
    leader: NodeId,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// What it asks next, if it knows: the home of a file that it has been told does not exist.
    pub next: Option<Request>,
    /// That is what it asks.
    pub asks_home: bool,
    /// What it has open, and where.
    pub opens: BTreeMap<(NodeId, InodeId), Held>,
    /// Members that have a session of it: the start that knows all of it.
    pub sessions: BTreeMap<NodeId, u64>,
    /// The start that it has told, or is telling, what it had open: what earlier ones say it does not hear any more.
    pub connected: BTreeMap<NodeId, u64>,
    patience: Nanos,
    /// The member that gives it numbers for objects.
    gives: NodeId,
}

/// A call under way.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The record in the history.
    record: usize,
    pub request: Request,
    /// The member whose session it is part of.
    pub at: Option<NodeId>,
    /// The start of that member to which it was sent first.
    pub first_sent: u64,
}

impl Caller {
    /// Whether a call is under way.
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }
}

impl Several {
    pub(super) fn new_client(&mut self) -> Caller {
        self.clients_begun += 1;
        let dice = self.dice.split();
        let client = Client::new(self.clients_begun, dice, self.agenda.now);
        let patience = self.dice.between(50 * MS, 3 * SECOND);
        // Its objects all have numbers of one node.
        let gives = self.pick_node();
        Caller {
            client,
            seq: 0,
            waiting: None,
            leader: gives,
            next: None,
            asks_home: false,
            opens: BTreeMap::new(),
            sessions: BTreeMap::new(),
            connected: BTreeMap::new(),
            gives,
            patience,
        }
    }

    fn pick_node(&mut self) -> NodeId {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        *self.dice.pick(&nodes).expect("there are nodes")
    }

    pub(super) fn think(&mut self, place: usize) {
        if self.clients[place].waits() || self.history.records.len() >= self.plan.calls {
            return;
        }
        let client = &mut self.clients[place].client;
        if client.objects.len() > 1 && client.dice.chance(10) {
            let done = client.objects.remove(0);
            self.objects_done(&[done]);
        }
        let caller = &mut self.clients[place];
        let next = caller.next.take();
        caller.asks_home = next.is_some();
        let request = next.unwrap_or_else(|| workload::wish_of_several(&mut caller.client, self.moves));
        self.call(place, request);
    }

    /// A client asks something.
    pub(super) fn call(&mut self, place: usize, request: Request) {
        let (held, at) = (self.held(place, &request.op), self.member_for(place, &request.op));
        let record = self.history.ask(place, request.clone(), held);
        let first_sent = at.map_or(0, |node| self.hosts[&node].started());
        let leader = match request.op {
            Op::AllocObjects(_) => self.clients[place].gives,
            _ => self.pick_node(),
        };
        let caller = &mut self.clients[place];
        caller.seq += 1;
        caller.leader = leader;
        caller.waiting = Some(Waiting { record, request, at, first_sent });
        self.send_call(place, false);
    }

    fn send_call(&mut self, place: usize, retry: bool) {
        let any = self.pick_node();
        let caller = &self.clients[place];
        let Some(Waiting { record, request, at, .. }) = caller.waiting.clone() else { return };
        // What any member could lead is led by the one that gets it: its copies go there as well.
        let held = matches!(request.op.subject(), Subject::Held(_) | Subject::Open(_) | Subject::Volume);
        let node = if held { caller.leader } else { any };
        let (seq, patience) = (caller.seq, caller.patience);
        let numbered = request.op.is_numbered();
        let origin = numbered.then_some(Origin { client: caller.client.id, seq, retry });
        if let (Some(node), Some(origin)) = (at, origin) {
            self.plan_in(patience, Event::Impatient(place, record as u64));
            if self.is_welcome(place, node) {
                let start = self.hosts[&node].started();
                self.say(|| format!("client {place} → {node}: call {record}, in session: {:?}", request.op));
                self.carry(0, node, |world, after| {
                    let request = request.clone();
                    let call = Event::SessionCall(node, start, place, record as u64, request, origin);
                    world.plan_in(after, call);
                });
            }
            return;
        }
        self.say(|| format!("client {place} → {node}: call {record}: {:?}", request.op));
        self.carry(0, node, |world, after| {
            let request = request.clone();
            world.plan_in(after, Event::Call(node, place, record as u64, request, origin));
        });
        self.plan_in(patience, Event::Impatient(place, record as u64));
    }

    pub(super) fn reply(&mut self, (node, start): (NodeId, u64), place: usize, number: u64, reply: Reply) {
        let caller = &mut self.clients[place];
        let over = caller.connected.get(&node).is_some_and(|connected| *connected > start);
        let waits =
            |waiting: &mut Waiting| waiting.record as u64 == number && (waiting.at.is_none() || !over);
        let Some(waiting) = caller.waiting.take_if(waits) else { return };
        let (record, request) = (waiting.record, &waiting.request);
        self.say(|| format!("client {place}: call {record}: {reply:?}"));
        if let Err(Outcome::Failed(why)) = &reply
            && [libc::EIO, libc::ENOTSUP].contains(&why.errno)
            // Inline content cannot be cloned.
            && !(matches!(request.op, Op::Clone { .. }) && why.errno == libc::EOPNOTSUPP)
        {
            return self.fail(format!("call {record}, {:?}: {why}", request.op));
        }
        if let Ok(Answer::Objects { first, count }) = &reply {
            self.objects_given(*first..*first + u64::from(*count));
        }
        self.clients[place].client.learn(record, &request.op, &reply);
        self.note_opens(place, &waiting, &reply);
        self.history.hear(record, reply);
        let after = self.dice.between(0, 20 * MS);
        self.plan_in(after, Event::Think(place));
    }

    pub(super) fn impatient(&mut self, place: usize, number: u64) {
        let waits = self.clients[place].waiting.as_ref();
        if waits.is_none_or(|waiting| waiting.record as u64 != number) {
            return;
        }
        if self.troubled && self.dice.chance(3) {
            self.say(|| format!("client {place}: dies"));
            let objects = self.clients[place].client.objects.clone();
            self.plan_in(LINGERS, Event::Done(objects));
            self.bury(place);
            let mut caller = self.new_client();
            // It may have had a look around before.
            caller.client.known.clone_from(&self.clients[place].client.known);
            self.clients[place] = caller;
            return self.plan_in(MS, Event::Think(place));
        }
        self.tally.retries += 1;
        self.send_call(place, true);
    }
}
