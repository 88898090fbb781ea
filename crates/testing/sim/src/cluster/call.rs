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
use super::{ClusterRun, Event, ZombieEvent};
use crate::client::Client;
use crate::event_queue::Scene;
use crate::network::MS;
use crate::workload;

/// What faults have left behind may delay calls so long after they have stopped, and make them
/// fail.
const SETTLES: Nanos = 5 * SECOND;

/// A client.
pub struct Caller {
    /// What it knows.
    pub client: Client,
    /// Its copy of the placement map.
    pub placement: PlacementMap,
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
    /// The start that it has told, or is telling, what it had open: what earlier ones say it does
    /// not hear any more.
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
    /// The member that is asked.
    pub at: NodeId,
    /// The start of that member to which it was sent first.
    pub first_sent: u64,
    /// When.
    asked_at: Nanos,
    /// It was misdirected, and is asked again under another number.
    pub misdirected: bool,
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
        let dice = self.dice.split();
        let client = Client::new(self.clients_begun, dice, self.agenda.now, None);
        let deadline = self.dice.between(50 * MS, 3 * SECOND);
        // Its objects all have numbers of one node.
        let placement = self.some_table();
        let gives = *self.dice.pick(&staying(&placement)).expect("there are members");
        let lazy = if self.dice.chance(30) { 80 } else { self.dice.below(40) };
        Caller {
            client,
            placement,
            waiting: None,
            next: None,
            asks_home: false,
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
        let request = next.or_else(|| self.move_out(place));
        let bias = self.bias;
        let wish =
            |world: &mut Self| workload::wish_of_several(&mut world.clients[place].client, bias);
        let request = request.unwrap_or_else(|| wish(self));
        self.call(place, request);
    }

    /// A client asks something.
    pub(super) fn call(&mut self, place: usize, request: Request) {
        let (held, at) = (self.held(place, &request.op), self.member_for(place, &request.op));
        let record = self.history.ask(place, request.clone(), held);
        self.ask_at(place, record, request, at);
    }

    /// It asks a member, under a new number.
    fn ask_at(&mut self, place: usize, record: usize, request: Request, at: NodeId) {
        self.calls_sent += 1;
        let (number, first_sent, asked_at) =
            (self.calls_sent, self.start_for(place, at), self.agenda.now);
        self.clients[place].waiting =
            Some(Waiting { record, number, request, at, first_sent, asked_at, misdirected: false });
        self.send_call(place, false);
    }

    fn send_call(&mut self, place: usize, retry: bool) {
        let caller = &self.clients[place];
        let Some(Waiting { record, number, request, at: node, .. }) = caller.waiting.clone() else {
            return;
        };
        let (client, deadline) = (caller.client.id, caller.deadline);
        self.plan_in(deadline, Event::Impatient(place, number));
        let numbered = request.op.is_numbered();
        let zombie = self.start_for(place, node);
        if zombie != self.hosts[&node].started() {
            if !self.hosts[&node].zombie.as_ref().is_some_and(|zombie| zombie.cuts.contains(&0)) {
                self.say(|| {
                    format!("client {place} → {node} (zombie): call {record}: {:?}", request.op)
                });
                let origin = numbered.then_some(Origin { client, seq: number, retry });
                let after = self.delay();
                self.plan_in(
                    after,
                    Event::Zombie(node, zombie, ZombieEvent::Call(place, number, request, origin)),
                );
            }
            return;
        }
        let welcome = self.is_welcome(place, node);
        if numbered && !welcome {
            return;
        }
        self.say(|| format!("client {place} → {node}: call {record}: {:?}", request.op));
        let start = self.hosts[&node].started();
        self.carry(0, node, |world, after| {
            let request = request.clone();
            let call = match numbered {
                true => {
                    let origin = Origin { client, seq: number, retry };
                    Event::SessionCall(node, start, place, request, origin)
                }
                false => Event::Call(node, place, number, request),
            };
            world.plan_in(after, call);
        });
    }

    /// A call was misdirected: it goes to the member that leads it by the table that the client has
    /// by now.
    pub(super) fn ask_again(&mut self, place: usize, number: u64) {
        let waiting = self.clients[place].waiting.clone();
        let Some(Waiting { record, request, .. }) =
            waiting.filter(|waiting| waiting.number == number)
        else {
            return;
        };
        let at = self.member_for(place, &request.op);
        self.ask_at(place, record, request, at);
    }

    pub(super) fn reply(
        &mut self,
        (node, start, table): (NodeId, u64, u64),
        place: usize,
        number: u64,
        reply: Reply,
    ) {
        self.hear_of_version(place, node, table);
        let caller = &mut self.clients[place];
        let over = caller.connected.get(&node).is_some_and(|connected| *connected > start);
        let waits =
            |waiting: &mut Waiting| waiting.number == number && !waiting.misdirected && !over;
        let Some(waiting) = caller.waiting.take_if(waits) else { return };
        let (record, request) = (waiting.record, &waiting.request);
        self.say(|| format!("client {place}: call {record}: {reply:?}"));
        if let Err(Outcome::Misdirected { .. }) = &reply {
            self.tally.misdirected += 1;
            self.clients[place].waiting = Some(Waiting { misdirected: true, ..waiting });
            let after = self.dice.between(5 * MS, 100 * MS);
            return self.plan_in(after, Event::AskAgain(place, number));
        }
        if is_no_answer(&reply) {
            // The store of another node failed, which had a part in it: the caller hears so, and
            // the call did nothing.
            return self.plan_in(MS, Event::Think(place));
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
            && self.mended.is_some_and(|mended| mended + SETTLES <= waiting.asked_at)
        {
            return self.fail(format!("call {record}, {:?}, fails in peace: {why}", request.op));
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
        if waits.is_none_or(|waiting| waiting.number != number || waiting.misdirected) {
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
        // A member that is not there any more answers nothing.
        let at = self.clients[place].waiting.as_ref().map_or(0, |waiting| waiting.at);
        if self.hosts.get(&at).is_none_or(|host| host.lost) {
            let (client, from) = (self.clients[place].client.id, self.coordinator());
            self.learn_table(place, client, from);
            self.plan_in(SECOND, Event::Impatient(place, number));
            return self.ask_again(place, number);
        }
        self.tally.retries += 1;
        self.send_call(place, true);
    }
}
