//! Clients: one call at a time, to any member, again and again until it is answered.

use kestrel_meta::txn::Origin;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Outcome, Reply, Request, Subject};

use super::objects::LINGERS;
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
    /// What it waits for: the record in the history, the call.
    waiting: Option<(usize, Request)>,
    /// Who leads that, if any member could: the one that it goes to.
    leader: NodeId,
    patience: Nanos,
    /// The member that gives it numbers for objects.
    gives: NodeId,
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
        Caller { client, seq: 0, waiting: None, leader: gives, gives, patience }
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
        let request = workload::wish_of_several(&mut self.clients[place].client, self.moves);
        self.call(place, request);
    }

    /// A client asks something.
    pub(super) fn call(&mut self, place: usize, request: Request) {
        let record = self.history.ask(place, request.clone(), None);
        let leader = match request.op {
            Op::AllocObjects(_) => self.clients[place].gives,
            _ => self.pick_node(),
        };
        let caller = &mut self.clients[place];
        caller.seq += 1;
        caller.leader = leader;
        caller.waiting = Some((record, request));
        self.send_call(place, false);
    }

    fn send_call(&mut self, place: usize, retry: bool) {
        let any = self.pick_node();
        let caller = &self.clients[place];
        let Some((record, request)) = caller.waiting.clone() else { return };
        // What any member could lead is led by the one that gets it: its copies go there as well.
        let held = matches!(request.op.subject(), Subject::Held(_) | Subject::Open(_) | Subject::Volume);
        let node = if held { caller.leader } else { any };
        let (seq, patience) = (caller.seq, caller.patience);
        let numbered = request.op.is_numbered();
        let origin = numbered.then_some(Origin { client: caller.client.id, seq, retry });
        self.say(|| format!("client {place} → {node}: call {record}: {:?}", request.op));
        self.carry(0, node, |world, after| {
            let request = request.clone();
            world.plan_in(after, Event::Call(node, place, record as u64, request, origin));
        });
        self.plan_in(patience, Event::Impatient(place, record as u64));
    }

    pub(super) fn reply(&mut self, place: usize, number: u64, reply: Reply) {
        let caller = &mut self.clients[place];
        let Some((record, request)) = caller.waiting.take_if(|(record, _)| *record as u64 == number) else {
            return;
        };
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
        self.history.hear(record, reply);
        let after = self.dice.between(0, 20 * MS);
        self.plan_in(after, Event::Think(place));
    }

    pub(super) fn impatient(&mut self, place: usize, number: u64) {
        let waits = self.clients[place].waiting.as_ref();
        if waits.is_none_or(|(record, _)| *record as u64 != number) {
            return;
        }
        if self.troubled && self.dice.chance(3) {
            self.say(|| format!("client {place}: dies"));
            let objects = self.clients[place].client.objects.clone();
            self.plan_in(LINGERS, Event::Done(objects));
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
