//! Calls to the nodes of a volume: each is sent to the node that leads it, and what its answer
//! means is taken in before the caller gets it.
//!
//! Which node is asked: [`super::routes`]; which answers lead to another attempt:
//! [`super::pending`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_rpc::client::CallOrBack;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::request::{Answer, Done, Op, Reply, Request};
use kestrel_types::wire::LockReply;
use parking_lot::Mutex;

use super::durable::names_bytes_in;
use super::nodes::{NodeConnections, NodeSet};
use super::opens::{OpenEffect, ReleasedOpen};
use super::pending::{INTERRUPTED, Next, PendingCall, PendingLock, RedirectedCall, RequestRoute};
use super::reclaimable::Reclaimable;
use super::redirects::{CLOSED, Redirects};
use super::routes::SecondTry;
use crate::answering::answering;

/// Why new bytes are not committed.
const BYTES_LOST: &str = "the data was stored while this client was cut off, for longer than its lease, from the metadata node that \
    keeps such data from being deleted; it is not committed: write it again";

/// What calls and their answers need.
pub(super) struct RemoteShared {
    pub nodes: Arc<NodeConnections>,
    pub redirects: Redirects,
    pub reclaimable: Arc<Reclaimable>,
    pub counters: [WorkerCounters; 1],
}

impl RemoteShared {
    /// Ends the requests that wait for nodes and name new bytes which may be deleted.
    pub fn fail_lost(&self) {
        for link in &self.nodes.known().links {
            link.remote.fail_waiting(|op| self.names_lost(op), BYTES_LOST);
        }
    }

    fn names_lost(&self, op: &Op) -> bool {
        let numbers = &self.reclaimable.numbers;
        numbers.losses() > 0 && names_bytes_in(op, |object| numbers.is_lost(object))
    }

    /// Sends requests that only read to the nodes that lead them, those of one node with one write.
    pub fn send_reads(self: &Arc<Self>, reads: Vec<(Request, PendingCall)>) {
        let nodes = self.nodes.known();
        let mut calls: Vec<Vec<CallOrBack>> = nodes.links.iter().map(|_| Vec::new()).collect();
        for (request, asked) in reads {
            let used = nodes.begin_use(&request.op, &self.reclaimable.opens);
            let at = nodes.leader(&request.op, used.map(|row| row.node));
            let second_try = nodes.second_try(&request, at);
            let route = RequestRoute { effect: OpenEffect::of(&request.op), used, second_try };
            calls[at].push(self.call_to(&nodes, at, request, route, asked));
        }
        for (link, calls) in nodes.links.iter().zip(calls).filter(|(_, calls)| !calls.is_empty()) {
            link.remote.submit_many_or_back(calls);
        }
    }

    /// Sends a request to the node that leads it.
    pub fn send(self: &Arc<Self>, request: Request, asked: PendingCall) {
        let losses = self.reclaimable.numbers.losses();
        if self.names_lost(&request.op) {
            return self.answer(asked, Err(FsError::new(libc::EIO, BYTES_LOST).into()));
        }
        if let Op::Release(ino) = request.op {
            return self.give_back(ino, request, asked);
        }
        let nodes = self.nodes.known();
        let used = nodes.begin_use(&request.op, &self.reclaimable.opens);
        let at = nodes.leader(&request.op, used.map(|row| row.node));
        let second_try = nodes.second_try(&request, at);
        let route = RequestRoute { effect: OpenEffect::of(&request.op), used, second_try };
        self.send_to(&nodes, at, request, route, asked);
        if self.reclaimable.numbers.losses() != losses {
            // It may wait since after the others were ended.
            self.fail_lost();
        }
    }

    /// Has every node make durable what it has acknowledged; the caller hears when all have, or
    /// that one has failed.
    pub fn sync_all(self: &Arc<Self>, request: &Request, done: Done) {
        let nodes = self.nodes.known();
        let left = Arc::new(Mutex::new((nodes.links.len(), Some(done))));
        for at in 0..nodes.links.len() {
            let left = left.clone();
            let one = move |reply: Reply| {
                let mut state = left.lock();
                state.0 -= 1;
                let ends = state.0 == 0 || reply.is_err();
                let done = if ends { state.1.take() } else { None };
                drop(state);
                if let Some(done) = done {
                    done(reply);
                }
            };
            let asked = PendingCall::new(&request.op, Box::new(one));
            let route = RequestRoute::of(OpenEffect::None);
            self.send_to(&nodes, at, request.clone(), route, asked);
        }
    }

    /// Sends a release to a node that counts an open, unless its node has lost it.
    fn give_back(self: &Arc<Self>, ino: InodeId, request: Request, asked: PendingCall) {
        let nodes = self.nodes.known();
        match self.reclaimable.opens.leave(ino) {
            ReleasedOpen::Back(given) => {
                let at = nodes.index_of(given.node);
                self.send_to(
                    &nodes,
                    at,
                    request,
                    RequestRoute::of(OpenEffect::Releases(given)),
                    asked,
                );
            }
            ReleasedOpen::Lost => self.answer(asked, Ok(Answer::Done)),
            ReleasedOpen::Unknown => {
                self.send_to(
                    &nodes,
                    nodes.home_of(ino),
                    request,
                    RequestRoute::of(OpenEffect::None),
                    asked,
                );
            }
        }
    }

    /// Sends a request to this node, and takes in what its answer means before the caller gets it.
    pub fn send_to(
        self: &Arc<Self>,
        nodes: &NodeSet,
        at: usize,
        request: Request,
        route: RequestRoute,
        asked: PendingCall,
    ) {
        let call = self.call_to(nodes, at, request, route, asked);
        nodes.links[at].remote.submit_or_back(call.request, call.left, call.done);
    }

    /// What [`RemoteShared::send_to`] sends.
    fn call_to(
        self: &Arc<Self>,
        nodes: &NodeSet,
        at: usize,
        request: Request,
        route: RequestRoute,
        asked: PendingCall,
    ) -> CallOrBack {
        let RequestRoute { effect, used, second_try } = route;
        let (shared, version) = (self.clone(), nodes.version());
        let link = &nodes.links[at];
        let node = link.node;
        let numbers = &self.reclaimable.numbers;
        let generation =
            matches!(request.op, Op::AllocObjects(_)).then(|| numbers.generation(node));
        // The time that is left is counted from the first node that was asked.
        let left = (asked.redirected > 0).then(|| self.time_left(asked.since));
        let answered = move |reply: Reply, request: Option<Request>| {
            if let Some(row) = &used {
                shared.reclaimable.opens.end_use(row);
            }
            // An open is given back where it is counted.
            let redirect = request.filter(|_| !matches!(effect, OpenEffect::Releases(_)));
            let next = PendingCall::retry((&reply).into(), redirect, second_try);
            if let Next::Redirect { call, table } = next {
                if let Some(table) = table {
                    shared.redirects.heard_of(node, table);
                }
                return shared.led_elsewhere(RedirectedCall::Op(call, asked.redirects()), version);
            }
            if let (Some(generation), Ok(Answer::Objects { first, count })) = (generation, &reply) {
                shared.reclaimable.numbers.gave(node, generation, (*first, *count));
            }
            shared.reclaimable.opens.answered(node, effect, &reply);
            match next {
                Next::SecondTry(SecondTry { ino, request }) => answering(|| {
                    let nodes = shared.nodes.known();
                    let (home, route) = (nodes.home_of(ino), RequestRoute::of(effect));
                    shared.send_to(&nodes, home, request, route, asked);
                }),
                _ => shared.answer(asked, reply),
            }
        };
        CallOrBack { request, left, done: Box::new(answered) }
    }

    /// What is left of the time that a call may wait.
    pub fn time_left(&self, since: Instant) -> Duration {
        self.nodes.deadline().saturating_sub(since.elapsed())
    }

    /// Goes on with what a node does not lead, which was asked by a table of this version.
    fn led_elsewhere(self: &Arc<Self>, redirected_call: RedirectedCall, version: u64) {
        if self.nodes.known().version() > version {
            // There is a newer one meanwhile.
            answering(|| self.go_on(redirected_call));
        } else if let Some(redirected_call) = self.redirects.park(redirected_call, version) {
            answering(|| self.end(redirected_call, CLOSED));
        }
    }

    /// Asks the home of a file about a lock.
    pub fn ask_lock(self: &Arc<Self>, asked: PendingLock) {
        let nodes = self.nodes.known();
        let link = nodes.links[nodes.home_of(asked.request.ino())].clone();
        let (shared, version) = (self.clone(), nodes.version());
        let (request, place, attempt) = (asked.request, asked.place.clone(), asked.redirected);
        if !place.lock().is_wanted() {
            return asked.end(Err(INTERRUPTED));
        }
        let answered = move |reply: LockReply| {
            // Locks are always asked for at the home of the file: there is no second try.
            match PendingCall::retry((&reply).into(), Some(()), None::<()>) {
                Next::Redirect { .. } => {
                    shared.led_elsewhere(RedirectedCall::Lock(asked.redirects()), version);
                }
                _ => asked.end(reply),
            }
        };
        let call = link.remote.lock(request, Box::new(answered));
        let cancelled = place.lock().asked(attempt, link, call);
        if let Some((link, call)) = cancelled {
            link.remote.cancel(call);
        }
    }

    /// Asks the node that leads it by the present table.
    pub fn go_on(self: &Arc<Self>, call: RedirectedCall) {
        match call {
            RedirectedCall::Op(request, asked) => self.send(request, asked),
            RedirectedCall::Lock(asked) => self.ask_lock(asked),
        }
    }

    /// Answers it with an error.
    pub fn end(&self, call: RedirectedCall, why: FsError) {
        match call {
            RedirectedCall::Op(_, asked) => self.answer(asked, Err(why.into())),
            RedirectedCall::Lock(asked) => asked.end(Err(why)),
        }
    }

    /// Gives the caller the answer, and counts it.
    pub fn answer(&self, asked: PendingCall, reply: Reply) {
        asked.end(&self.counters[0], reply);
    }
}
