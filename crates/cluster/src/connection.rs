//! One connection of a client, and the way of a batch through it.
//!
//! 1. With the session's lock held every message is looked at: does it belong to the session, has its call been executed, may
//!    the client ask for it. What is decided then is noted in the session at once.
//! 2. Without it the node gets what is to be executed, as one batch, and what was gathered meanwhile is sent.
//!
//! A client that breaks the protocol is told so and loses the connection, not its session. Another node's connection has no
//! session: what it brings goes to the member.

use std::sync::Arc;

use kestrel_meta::txn::Origin;
use kestrel_net::handler::Outbox;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::request::{Creds, Op, Outcome, Request};
use kestrel_types::wire::{Answered, Body, Call, Checksum, ToServer, WireError};

use crate::admin::Asker;
use crate::admit::{Effect, admit};
use crate::server::{Batch, Guest, Server, Submitted};
use crate::session::window::{Admission, Waiter};
use crate::session::{Claims, Line, Phase, Session, State};

const SECOND_HELLO: FsError = FsError::new(libc::EPROTO, "a connection begins with one Hello");
const NO_NODE: FsError = FsError::new(libc::EPROTO, "a client is no node of the cluster");
const TOO_EARLY: FsError =
    FsError::new(libc::EPROTO, "a client says what it holds before it asks for anything else");
const BEYOND: FsError =
    FsError::new(libc::EPROTO, "more numbered calls are unanswered than the window allows");
const MISNUMBERED: FsError =
    FsError::new(libc::EPROTO, "calls that change something are numbered, and no others");

/// A request that fails with `EBADF` and changes nothing, unless its number has a recorded answer.
const RECALL: Request = Request { creds: Creds { uid: 0, gid: 0, groups: None }, op: Op::Release(0) };

/// Where a connection stands.
enum Stage {
    /// Nothing has been said.
    Silent,
    /// It serves this session, as its connection with this number.
    Serving(Arc<Session>, u64),
    /// It is another node's.
    Peer(Guest),
    /// Nothing more is taken from it.
    Over,
}

/// A connection of a client, or of another node.
pub struct Connection {
    server: Arc<Server>,
    outbox: Arc<dyn Outbox>,
    checksum: Checksum,
    peer: Arc<str>,
    stage: Stage,
}

/// What is left to do with a batch when the session's lock has been let go.
#[derive(Default)]
struct Work {
    /// For the node, and beside each what its answer is for.
    requests: Vec<(Request, Option<Origin>)>,
    submitted: Vec<Submitted>,
    questions: Vec<(u64, Box<[u8]>)>,
    claims: bool,
    bye: bool,
}

impl Connection {
    pub(crate) fn new(
        server: Arc<Server>,
        outbox: Arc<dyn Outbox>,
        checksum: Checksum,
        peer: Arc<str>,
    ) -> Self {
        Self { server, outbox, checksum, peer, stage: Stage::Silent }
    }

    /// Takes a batch of messages, in the order in which they came. One thread at a time.
    pub fn receive(&mut self, batch: &mut Vec<ToServer>, now: Nanos) {
        let mut messages = batch.drain(..);
        if let Stage::Silent = self.stage {
            match messages.next() {
                None => return,
                Some(ToServer::Hello(hello)) => {
                    let line = Line {
                        outbox: self.outbox.clone(),
                        checksum: self.checksum,
                        peer: self.peer.clone(),
                    };
                    let incarnation = hello.incarnation;
                    match self.server.greet(hello, line, now) {
                        Ok(session) => self.stage = Stage::Serving(session, incarnation),
                        Err(why) => return self.break_off(why),
                    }
                }
                Some(ToServer::PeerHello(hello)) => {
                    match self.server.greet_peer(&hello, &self.outbox, &self.peer) {
                        Ok(guest) => self.stage = Stage::Peer(guest),
                        Err(why) => return self.break_off(why),
                    }
                }
                Some(_) => return self.break_off(SECOND_HELLO),
            }
        }
        if let Stage::Peer(guest) = self.stage {
            if let Err(why) = self.server.hear_peer(guest, messages) {
                self.break_off(why);
            }
            return;
        }
        let Stage::Serving(session, incarnation) = &self.stage else { return };
        let (session, incarnation) = (session.clone(), *incarnation);
        if messages.len() == 0 {
            return;
        }
        let shared = &self.server.shared;
        shared.counts.batches.add(1);
        let answers =
            Batch::new(&self.server, session.clone(), incarnation, self.outbox.clone(), self.checksum);
        let mut work = Work {
            requests: Vec::with_capacity(messages.len()),
            submitted: Vec::with_capacity(messages.len()),
            ..Work::default()
        };
        let mut broken = None;
        {
            let mut state = session.state.lock();
            if !state.is_current(incarnation) {
                shared.counts.stale_messages.add(messages.len() as u64);
                return;
            }
            session.hear(now);
            state.denied = None;
            for message in &mut messages {
                if let Err(why) = self.take(message, &session, &mut state, &answers, &mut work) {
                    broken = Some(why);
                    break;
                }
                if work.bye {
                    break;
                }
            }
        }
        self.carry_out(work, &session, incarnation, &answers, now);
        if let Some(why) = broken {
            self.break_off(why);
        }
    }

    /// Looks at one message, with the session's lock held.
    fn take(
        &self,
        message: ToServer,
        session: &Arc<Session>,
        state: &mut State,
        answers: &Arc<Batch>,
        work: &mut Work,
    ) -> Result<(), FsError> {
        match message {
            ToServer::Hello(_) | ToServer::PeerHello(_) => return Err(SECOND_HELLO),
            ToServer::Peer(_) => return Err(NO_NODE),
            ToServer::Ping { oldest_open_object } => {
                settle(state);
                self.server.shared.objects.lock().raise(state.holder, oldest_open_object);
                answers.send_pong();
            }
            ToServer::Cancel { id } => {
                if let Some(reply) = self.server.shared.desk.lock().cancel(state.holder, id) {
                    answers.answer(id, Answered::Lock(reply));
                }
            }
            ToServer::Bye => work.bye = true,
            ToServer::Call(call) => {
                let counts = &self.server.shared.counts;
                counts.calls.add(1);
                counts.retries.add(u64::from(call.retry));
                state.window.ack(call.acked);
                if let Body::Reclaim(reclaim) = call.body {
                    state.claims.parked.push_back((call.id, reclaim));
                    work.claims = true;
                    return Ok(());
                }
                if state.phase != Phase::Live {
                    return Err(TOO_EARLY);
                }
                if !call.retry {
                    settle(state);
                }
                return self.take_call(call, session, state, answers, work);
            }
        }
        Ok(())
    }

    fn take_call(
        &self,
        call: Call,
        session: &Arc<Session>,
        state: &mut State,
        answers: &Arc<Batch>,
        work: &mut Work,
    ) -> Result<(), FsError> {
        if (call.seq != 0) != call.body.is_numbered() {
            return Err(MISNUMBERED);
        }
        let Call { id, seq, retry, body, .. } = call;
        match body {
            Body::Op(request) => {
                return self.take_op((id, seq, retry), request, session, state, answers, work);
            }
            Body::Lock(request) => {
                let mut desk = self.server.shared.desk.lock();
                if let Some(reply) = desk.serve(state.holder, id, &request) {
                    answers.answer(id, Answered::Lock(reply));
                }
            }
            Body::Admin(question) => work.questions.push((id, question)),
            // Taken before.
            Body::Reclaim(_) => {}
        }
        Ok(())
    }

    fn take_op(
        &self,
        (id, seq, retry): (u64, u64, bool),
        mut request: Request,
        session: &Arc<Session>,
        state: &mut State,
        answers: &Arc<Batch>,
        work: &mut Work,
    ) -> Result<(), FsError> {
        let counts = &self.server.shared.counts;
        if seq != 0 {
            match state.window.admit(seq, Waiter { id, incarnation: state.incarnation }, retry) {
                Admission::Run => {}
                Admission::Answered(reply) => {
                    let reply = reply.clone();
                    counts.retries_answered.add(1);
                    answers.answer(id, Answered::Op(reply));
                    return Ok(());
                }
                Admission::Running => {
                    counts.retries_running.add(1);
                    return Ok(());
                }
                Admission::Stale => return Ok(()),
                Admission::Beyond => return Err(BEYOND),
            }
        }
        let admitted = admit(&request, &mut state.opens, self.server.shared.config.opens_max);
        let effect = match admitted {
            Ok(effect) => effect,
            // It may have been carried out when the session still allowed it: then that answer is the answer.
            Err(_) if retry && seq != 0 => {
                request = RECALL;
                Effect::None
            }
            Err(why) => {
                counts.calls_refused.add(1);
                let reply = Err(Outcome::Failed(why));
                answers.answer(id, Answered::Op(reply.clone()));
                if seq != 0 {
                    state.window.finish(seq, reply, true);
                }
                return Ok(());
            }
        };
        counts.retries_submitted.add(u64::from(retry));
        let origin = (seq != 0).then_some(Origin { client: session.client, seq, retry });
        work.requests.push((request, origin));
        work.submitted.push(Submitted { id, seq, effect });
        Ok(())
    }

    /// Does what a batch has come to, with no lock held.
    fn carry_out(
        &mut self,
        work: Work,
        session: &Arc<Session>,
        incarnation: u64,
        answers: &Arc<Batch>,
        now: Nanos,
    ) {
        let server = &self.server;
        if !work.requests.is_empty() {
            answers.expect(work.submitted);
            server.backend.submit_batch(work.requests, answers);
        }
        answers.submitted();
        if work.claims {
            server.go_on_reclaiming(session);
        }
        for (id, question) in work.questions {
            let asker = Asker {
                outbox: self.outbox.clone(),
                checksum: self.checksum,
                session: session.clone(),
                incarnation,
                id,
                table: server.backend.table(),
            };
            server.admin.submit(question, asker);
        }
        if work.bye {
            server.end(session, now);
            self.stage = Stage::Over;
        }
    }

    /// Bytes came that are no message: tells the client. The transport closes.
    pub fn refuse(&mut self, error: &WireError) {
        let errno = if let WireError::Version(_) = error { libc::EPROTONOSUPPORT } else { libc::EPROTO };
        self.break_off(FsError::because(errno, error.to_string()));
    }

    /// Tells the client why nothing more is taken from it.
    fn break_off(&mut self, why: FsError) {
        log::warn!("{}: connection refused: {why}", self.peer);
        self.server.shared.refuse(&*self.outbox, self.checksum, why);
        self.closed();
    }

    /// Nothing more comes or goes. The session lives on until its lease ends.
    pub fn closed(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Serving(session, incarnation) => {
                let mut state = session.state.lock();
                if state.is_current(incarnation) {
                    state.line = None;
                    self.server.shared.desk.lock().disconnect(state.holder);
                }
            }
            Stage::Peer(guest) => self.server.peer_left(guest),
            Stage::Silent | Stage::Over => {}
        }
    }
}

/// Something came that is neither claim nor retry: if everything has been reclaimed, all retries have come before it.
fn settle(state: &mut State) {
    if state.phase == Phase::Live && !state.settled {
        state.settled = true;
        state.claims = Claims::default();
    }
}
