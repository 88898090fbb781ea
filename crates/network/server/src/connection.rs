//! One connection of a client, and the way of a batch through it.
//!
//! 1. With the session's lock held every message is looked at: does it belong to the session, has
//!    its call been executed, may the client make the request. What is decided then is noted in the
//!    session at once.
//! 2. Without it the node gets what is to be executed, as one batch, and what was gathered
//!    meanwhile is sent.
//!
//! The handshake before that is in `connection/handshake.rs`: the Hello, and the proof of a client
//! with a token or of a node.
//!
//! A client that breaks the protocol gets a refusal and loses the connection, not its session.
//! Another node's connection has no session: its messages go to the cluster node.

mod handshake;

use std::sync::Arc;
use std::vec::Drain;

use kestrel_meta::txn::Origin;
use kestrel_rpc::handler::Outbox;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::op_kind;
use kestrel_types::request::{Creds, Op, Outcome, Request, Subject};
use kestrel_types::security::Security;
use kestrel_types::token::TokenId;
use kestrel_types::wire::{
    Answered, Body, Call, Checksum, Hello, LockRequest, PeerHello, Reclaim, ToServer, WireError,
};

use crate::admin::AdminRequester;
use crate::audit::{self, REFUSALS_MAX};
use crate::authz::{SessionEffect, session_effect};
use crate::grant::{Authorized, Grant, UnverifiedInode};
use crate::server::{AcceptedPeer, Batch, NO_CURATOR, Outside, Server, Submitted};
use crate::session::window::{CallDecision, Waiter};
use crate::session::{Claims, Phase, Session, State};

const SECOND_HELLO: FsError = FsError::new(libc::EPROTO, "a connection begins with one Hello");
const UNPROVED: FsError = FsError::new(
    libc::EPROTO,
    "a client proves that it has its token before it says anything else",
);
const NO_NODE: FsError = FsError::new(libc::EPROTO, "a client is no node of the cluster");
const TOO_EARLY: FsError =
    FsError::new(libc::EPROTO, "a client says what it holds before it asks for anything else");
const BEYOND: FsError =
    FsError::new(libc::EPROTO, "more numbered calls are unanswered than the window allows");
const NEVER_CHANGES: FsError =
    FsError::new(libc::EROFS, "a published version is served here, and a version never changes");
const MISNUMBERED: FsError =
    FsError::new(libc::EPROTO, "calls that change something are numbered, and no others");

/// A request that fails with `EBADF` and changes nothing, unless its number has a recorded answer.
const RECALL: Request =
    Request { creds: Creds { uid: 0, gid: 0, groups: None }, op: Op::Release(0) };

/// Where a connection stands.
enum Stage {
    /// No message has come.
    Silent,
    /// The client has to prove what its Hello claims, in answer to this challenge.
    Proving(Box<Hello>, [u8; 32]),
    /// It serves this session, as its connection with this number.
    Serving(Arc<Session>, u64),
    /// A peer claims to be a node of the cluster, and is to prove it, by this random number.
    Challenged(Box<PeerHello>, [u8; 16]),
    /// It is another node's.
    Peer(AcceptedPeer),
    /// Nothing more is taken from it.
    Over,
}

/// A connection of a client, or of another node.
pub struct Connection {
    server: Arc<Server>,
    outbox: Arc<dyn Outbox>,
    security: Security,
    /// The effect of the operation on the session.
    checksum: Checksum,
    peer: Arc<str>,
    /// The client's name as its Hello has it, and the token that it names.
    who: Arc<str>,
    token: Option<TokenId>,
    stage: Stage,
}

/// What is left to do with a batch when the session's lock has been let go.
#[derive(Default)]
struct Work {
    /// For the node, and beside each what its answer is for.
    requests: Vec<(Request, Option<Origin>)>,
    submitted: Vec<Submitted>,
    questions: Vec<(u64, Box<[u8]>)>,
    /// Calls that name inodes of which it has to be found out whether the session may use them.
    unverified: Vec<(Vec<UnverifiedInode>, UnverifiedCall)>,
    /// What was not allowed, and why, as far as it goes to the log.
    refused: Vec<(&'static str, FsError)>,
    /// Calls, whatever their operation.
    calls: u64,
    claims: bool,
    bye: bool,
}

/// A call that waits until its inodes are verified.
enum UnverifiedCall {
    Request(Box<Request>, Option<Origin>, Submitted),
    Lock(u64, LockRequest),
}

impl Work {
    fn refused(&mut self, what: &'static str, why: &FsError) {
        if self.refused.len() < REFUSALS_MAX as usize + 1 {
            self.refused.push((what, why.clone()));
        }
    }
}

impl Server {
    /// A connection that has said nothing yet. `peer` is for people.
    pub fn connect(
        self: &Arc<Self>,
        outbox: Arc<dyn Outbox>,
        security: Security,
        peer: &str,
    ) -> Connection {
        Connection::new(self.clone(), outbox, security, peer.into())
    }
}

impl Connection {
    fn new(
        server: Arc<Server>,
        outbox: Arc<dyn Outbox>,
        security: Security,
        peer: Arc<str>,
    ) -> Self {
        let checksum = security.checksum();
        let (who, token) = ("".into(), None);
        Self { server, outbox, security, checksum, peer, who, token, stage: Stage::Silent }
    }

    /// Answers to calls of a session.
    fn batch(
        &self,
        session: &Arc<Session>,
        incarnation: u64,
        grant: Option<Arc<Grant>>,
    ) -> Arc<Batch> {
        let (session, outbox) = (session.clone(), self.outbox.clone());
        Batch::new(&self.server, session, (incarnation, grant), outbox, self.checksum)
    }

    fn audit(&self, event: audit::AuditEvent, what: &str, why: &FsError) {
        let (who, from, result) = (&*self.who, &*self.peer, &*why.reason);
        let entry = audit::AuditEntry { event, who, from, token: self.token, what, result };
        self.server.audit().tell(self.server.clock.now(), entry);
    }

    /// Carries out calls that name unverified inodes, when these are verified.
    fn resolve(
        &self,
        unverified: Vec<(Vec<UnverifiedInode>, UnverifiedCall)>,
        session: &Arc<Session>,
        incarnation: u64,
        grant: &Arc<Grant>,
    ) {
        let Some(root) = grant.root() else { return };
        for (unverified, call) in unverified {
            let answers = self.batch(session, incarnation, Some(grant.clone()));
            answers.submitted();
            let (server, waiting) = (self.server.clone(), session.clone());
            let (peer, who, token) = (self.peer.clone(), self.who.clone(), self.token);
            let checked = move |outside: Outside| {
                let refused = outside.into_iter().next().map(|(ino, why)| {
                    server.shared.counts.calls_refused.add(1);
                    let (event, what) = (audit::AuditEvent::Operation, format!("inode {ino}"));
                    let (who, from, what, result) = (&*who, &*peer, &*what, &*why.reason);
                    let entry = audit::AuditEntry { event, who, from, token, what, result };
                    server.audit().tell(server.clock.now(), entry);
                    why
                });
                match (call, refused) {
                    (UnverifiedCall::Request(request, origin, submitted), None) => {
                        answers.expect(vec![submitted]);
                        server.backend.submit_batch(vec![(*request, origin)], &answers);
                    }
                    // As in `take_op`: it may have been carried out when the node id was good.
                    (UnverifiedCall::Request(_, Some(origin), submitted), Some(_))
                        if origin.retry =>
                    {
                        answers.expect(vec![Submitted { refused: true, ..submitted }]);
                        server.backend.submit_batch(vec![(RECALL, Some(origin))], &answers);
                    }
                    (UnverifiedCall::Request(_, _, submitted), Some(why)) => {
                        answers.reply(&submitted, Err(Outcome::Failed(why)));
                    }
                    (UnverifiedCall::Lock(id, request), None) => {
                        let state = waiting.state.lock();
                        if state.is_current(incarnation)
                            && let Some(reply) =
                                server.shared.lock_service.lock().serve(state.holder, id, &request)
                        {
                            answers.answer(id, Answered::Lock(reply));
                        }
                    }
                    (UnverifiedCall::Lock(id, _), Some(why)) => {
                        answers.answer(id, Answered::Lock(Err(why)))
                    }
                }
            };
            self.server.check_subtree(session, root, unverified, Box::new(checked));
        }
    }

    /// Takes a batch of messages, in the order in which they came. One thread at a time.
    pub fn receive(&mut self, batch: &mut Vec<ToServer>, now: Nanos) {
        let mut messages = batch.drain(..);
        if let Err(why) = self.shake_hands(&mut messages, now) {
            return self.break_off(why);
        }
        match &self.stage {
            Stage::Serving(session, incarnation) => {
                let (session, incarnation) = (session.clone(), *incarnation);
                self.serve(&session, incarnation, messages, now);
            }
            Stage::Peer(peer) => {
                if let Err(why) = self.server.receive_from_peer(*peer, messages) {
                    self.break_off(why);
                }
            }
            Stage::Silent | Stage::Proving(..) | Stage::Challenged(..) | Stage::Over => {}
        }
    }

    /// Takes messages of a client that has been let in.
    fn serve(
        &mut self,
        session: &Arc<Session>,
        incarnation: u64,
        mut messages: Drain<'_, ToServer>,
        now: Nanos,
    ) {
        if messages.len() == 0 {
            return;
        }
        let shared = &self.server.shared;
        shared.counts.batches.add(1);
        let mut work = Work {
            requests: Vec::with_capacity(messages.len()),
            submitted: Vec::with_capacity(messages.len()),
            ..Work::default()
        };
        let mut broken = None;
        let answers = {
            let mut state = session.state.lock();
            if !state.is_current(incarnation) {
                shared.counts.stale_messages.add(messages.len() as u64);
                return;
            }
            session.note_message(now);
            let answers = self.batch(session, incarnation, state.grant.clone());
            if let Some(grant) = state.grant.clone() {
                // However long ago the server had time to look.
                grant.refresh(self.server.clock.now());
            }
            state.denied = None;
            for message in &mut messages {
                if let Err(why) = self.take(message, session, &mut state, &answers, &mut work) {
                    broken = Some(why);
                    break;
                }
                if work.bye {
                    break;
                }
            }
            answers
        };
        shared.counts.calls.add(work.calls);
        self.carry_out(work, session, incarnation, &answers, now);
        if let Some(why) = broken {
            self.break_off(why);
        }
    }

    /// Looks at one message, with the session's lock held.
    // This and the next two are called from one place: a request ends up in the work without being
    // moved from one to the other.
    #[inline(always)]
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
            ToServer::Peer(_) | ToServer::PeerProof(_) => return Err(NO_NODE),
            ToServer::Proof(_) => return Err(UNPROVED),
            ToServer::Ping { oldest_open_object } => {
                note_retries_in(state);
                self.server.shared.objects.lock().raise(state.holder, oldest_open_object);
                // The answer lets the client rely on its locks for another lease. Each answers the
                // oldest Ping that has none, so without one the connection has to end.
                if !self.server.backend.may_answer() {
                    return Err(self.server.why_mute());
                }
                answers.send_pong();
            }
            ToServer::Cancel { id } => {
                if let Some(reply) = self.server.shared.lock_service.lock().cancel(state.holder, id)
                {
                    answers.answer(id, Answered::Lock(reply));
                }
            }
            ToServer::Bye => work.bye = true,
            ToServer::Call(call) => {
                work.calls += 1;
                if call.retry {
                    self.server.shared.counts.retries.add(1);
                }
                state.window.ack(call.acked);
                if let Body::Reclaim(reclaim) = call.body {
                    take_reclaim(call.id, reclaim, state, work);
                    return Ok(());
                }
                if state.phase != Phase::Live {
                    return Err(TOO_EARLY);
                }
                if !call.retry {
                    note_retries_in(state);
                }
                return self.take_call(call, session, state, answers, work);
            }
        }
        Ok(())
    }

    #[inline(always)]
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
                let unverified = match state.grant.clone() {
                    None => Ok(None),
                    Some(grant) => grant.authorize_lock(
                        &request,
                        &mut state.given,
                        &state.opens,
                        &self.server.backend,
                    ),
                };
                match unverified {
                    Ok(None) => {
                        let mut lock_service = self.server.shared.lock_service.lock();
                        if let Some(reply) = lock_service.serve(state.holder, id, &request) {
                            answers.answer(id, Answered::Lock(reply));
                        }
                    }
                    Ok(Some(unverified)) => {
                        work.unverified.push((vec![unverified], UnverifiedCall::Lock(id, request)))
                    }
                    Err(why) => {
                        work.refused("lock", &why);
                        answers.answer(id, Answered::Lock(Err(why)));
                    }
                }
            }
            Body::Admin(question) => work.questions.push((id, question)),
            // Taken before.
            Body::Reclaim(_) => {}
        }
        Ok(())
    }

    #[inline(always)]
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
            match state.window.decide(seq, Waiter { id, incarnation: state.incarnation }, retry) {
                CallDecision::Run => {}
                CallDecision::Answered(reply) => {
                    let reply = reply.clone();
                    counts.retries_answered.add(1);
                    answers.answer(id, Answered::Op(reply));
                    return Ok(());
                }
                CallDecision::Running => {
                    counts.retries_running.add(1);
                    return Ok(());
                }
                CallDecision::Stale => return Ok(()),
                CallDecision::Beyond => return Err(BEYOND),
            }
        }
        let authorized = match state.grant.clone() {
            _ if self.server.shared.config.immutable && request.op.is_change() => {
                Err(NEVER_CHANGES)
            }
            None => Ok(Authorized::default()),
            Some(grant) => {
                let tree = &self.server.backend;
                grant.authorize(&mut request, &mut state.given, &state.opens, tree).inspect_err(
                    |why| {
                        work.refused(op_kind::KINDS[op_kind::kind(&request.op)], why);
                    },
                )
            }
        };
        let refused = authorized.is_err();
        let admitted = authorized.and_then(|authorized| {
            let effect =
                session_effect(&request, &mut state.opens, self.server.shared.config.opens_max)?;
            Ok((authorized, effect))
        });
        let (authorized, effect) = match admitted {
            Ok(admitted) => admitted,
            // It may have been carried out when the session still allowed it: then that answer is
            // the answer.
            Err(_) if retry && seq != 0 => {
                request = RECALL;
                (Authorized::default(), SessionEffect::None)
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
        if retry {
            counts.retries_submitted.add(1);
        }
        let origin = (seq != 0).then_some(Origin { client: session.client, seq, retry });
        let lists = match request.op {
            Op::ReadDir { dir, .. } | Op::ReadDirPlus { dir, .. } => Some(dir),
            _ => None,
        };
        let confined = state.grant.as_ref().is_some_and(|grant| grant.root().is_some());
        let named = match request.op.subject() {
            Subject::Path(place) if confined => Some(place.name.clone()),
            _ => None,
        };
        let submitted = Submitted {
            id,
            seq,
            effect,
            lists,
            named,
            at_snapshot: matches!(request.op, Op::At(..)),
            listed: authorized.listed,
            refused,
        };
        if !authorized.unverified.is_empty() {
            work.unverified.push((
                authorized.unverified,
                UnverifiedCall::Request(Box::new(request), origin, submitted),
            ));
            return Ok(());
        }
        work.requests.push((request, origin));
        work.submitted.push(submitted);
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
        if let Some(grant) = answers.grant().filter(|_| !work.unverified.is_empty()) {
            self.resolve(work.unverified, session, incarnation, grant);
        }
        for (what, why) in work.refused {
            self.audit(audit::AuditEvent::Operation, what, &why);
        }
        let server = &self.server;
        if work.claims {
            server.go_on_reclaiming(session);
        }
        for (id, question) in work.questions {
            let asker = AdminRequester {
                outbox: self.outbox.clone(),
                checksum: self.checksum,
                session: session.clone(),
                peer: self.peer.clone(),
                grant: answers.grant().cloned(),
                incarnation,
                id,
                map_version: server.backend.map_version(),
            };
            server.admin.submit(question, asker);
        }
        if work.bye {
            // What it gives up another client would get. A node that may answer lets its session
            // expire.
            if server.backend.may_answer() {
                server.end(session, now);
                self.stage = Stage::Over;
            } else {
                self.closed();
            }
        }
    }

    /// Bytes came that are no message: sends the client the reason. The transport closes.
    pub fn refuse(&mut self, error: &WireError) {
        let errno =
            if let WireError::Version(_) = error { libc::EPROTONOSUPPORT } else { libc::EPROTO };
        self.break_off(FsError::because(errno, error.to_string()));
    }

    /// Sends the client the reason why nothing more is taken from it.
    fn break_off(&mut self, why: FsError) {
        self.server.log_refused(&self.peer, &why);
        // Others pass: the same client is let in a moment later.
        let lasts =
            matches!(why.errno, libc::EACCES | libc::ENOENT | libc::EPROTO | libc::EPROTONOSUPPORT)
                && why != NO_CURATOR;
        if lasts && matches!(self.stage, Stage::Silent | Stage::Proving(..)) {
            self.audit(audit::AuditEvent::Handshake, "connect", &why);
        }
        self.server.shared.refuse(&*self.outbox, self.checksum, why);
        self.closed();
    }

    /// Nothing more comes or goes. The session lives on until its lease ends.
    pub fn closed(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Serving(session, incarnation) => {
                let mut state = session.state.lock();
                if state.is_current(incarnation) {
                    state.conn = None;
                    self.server.shared.lock_service.lock().disconnect(state.holder);
                }
            }
            Stage::Peer(peer) => self.server.peer_left(peer),
            Stage::Silent | Stage::Proving(..) | Stage::Challenged(..) | Stage::Over => {}
        }
    }
}

/// A part of what the client held in a lost session: the server works on it, after those that came
/// before it, when the session's lock has been let go.
fn take_reclaim(id: u64, reclaim: Reclaim, state: &mut State, work: &mut Work) {
    state.claims.parked.push_back((id, reclaim));
    work.claims = true;
}

/// Something came that is neither claim nor retry: if everything has been reclaimed, all retries
/// have come before it.
fn note_retries_in(state: &mut State) {
    if state.phase == Phase::Live && !state.retries_in {
        state.retries_in = true;
        state.claims = Claims::default();
    }
}
