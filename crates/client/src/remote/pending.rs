//! Calls without an answer, and the decision which answers lead to another attempt.
//!
//! [`PendingCall::retry`] is that decision, for requests and for locks. It knows nothing of
//! connections: a caller says which attempts are possible, and does what it is told.
//!
//! | answer | to which call | what follows |
//! | --- | --- | --- |
//! | misdirected | a lock; a request that came back with the answer | [`Next::Redirect`], 1 |
//! | misdirected | a release of an open that a node counts | [`Next::Answer`], 2 |
//! | stale | a request by a file's name, at a node that is not its home | [`Next::SecondTry`], 3 |
//! | stale | any other one, a second try among them | [`Next::Answer`] |
//! | conflicting | a commit, a compaction | [`Next::Answer`], 4 |
//! | anything else | any | [`Next::Answer`] |
//!
//! 1. Misdirected is [`Outcome::Misdirected`], for locks [`LOCK_MISDIRECTED`]. The node that leads
//!    the call by a newer placement map is asked, as often as necessary in the time that the call
//!    may take ([`super::redirects`]).
//! 2. An open is given back at the node that counts it, and a node that has left the cluster counts
//!    none.
//! 3. Stale is `ESTALE`. The home is asked by number, once ([`super::routes`]).
//! 4. Conflicting is [`Outcome::Conflict`]. The file system merges what it has with the present
//!    inode and sends a new request (`fs/flush.rs`, `fs/space.rs`), or leaves the file for later
//!    (`fs/compact.rs`, `fs/repack.rs`).
//!
//! A misdirected, stale or conflicting call has changed nothing at the node. A lost connection is
//! no answer: the session sends its calls again under the same numbers.

use std::sync::Arc;
use std::time::Instant;

use kestrel_rpc::session::CallId;
use kestrel_types::error::FsError;
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::op_kind;
use kestrel_types::request::{Done, Op, Outcome, Reply, Request};
use kestrel_types::wire::{LOCK_MISDIRECTED, LockReply, LockRequest};
use parking_lot::Mutex;

use super::nodes::NodeLink;
use super::opens::{OpenEffect, OpenRow};
use super::routes::SecondTry;
use crate::answering::answering;

pub(super) const INTERRUPTED: FsError =
    FsError::new(libc::EINTR, "waiting for the lock was given up");

/// A request that wants an answer, and since when. The request itself is at the connection.
pub(super) struct PendingCall {
    kind: usize,
    pub since: Instant,
    /// How often the wrong node was asked so far.
    pub redirected: u32,
    done: Done,
}

impl PendingCall {
    pub fn new(op: &Op, done: Done) -> Self {
        Self { kind: op_kind::kind(op), since: Instant::now(), redirected: 0, done }
    }

    /// Decides what follows an answer, by the table of this module. `redirect` is the call for the
    /// node that leads it, `second_try` the call for the home of its file; none where there is no
    /// such attempt.
    pub fn retry<R, S>(
        answer: AnswerKind,
        redirect: Option<R>,
        second_try: Option<S>,
    ) -> Next<R, S> {
        match (answer, redirect, second_try) {
            (AnswerKind::Misdirected { table }, Some(call), _) => Next::Redirect { call, table },
            (AnswerKind::Stale, _, Some(call)) => Next::SecondTry(call),
            (
                AnswerKind::Misdirected { .. }
                | AnswerKind::Stale
                | AnswerKind::Conflict
                | AnswerKind::Final,
                ..,
            ) => Next::Answer,
        }
    }

    /// One more node did not lead it.
    pub fn redirects(self) -> Self {
        Self { redirected: self.redirected + 1, ..self }
    }

    /// Counts it, and gives the caller the answer.
    pub fn end(self, counters: &WorkerCounters, reply: Reply) {
        let Self { kind, since, done, .. } = self;
        counters.reply_shared(kind, reply.is_err(), since.elapsed());
        answering(|| done(reply));
    }
}

/// What an answer means for another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// Another node leads the call.
    Misdirected {
        /// Version of the placement map of the node that says so, if it tells.
        table: Option<u64>,
    },
    /// The node knows no such file.
    Stale,
    /// The content has changed meanwhile.
    Conflict,
    /// The call has succeeded, or has failed for another reason.
    Final,
}

impl From<&Reply> for AnswerKind {
    fn from(reply: &Reply) -> Self {
        match reply {
            Err(Outcome::Misdirected { table }) => Self::Misdirected { table: Some(*table) },
            Err(Outcome::Failed(error)) if error.errno == libc::ESTALE => Self::Stale,
            Err(Outcome::Conflict(_)) => Self::Conflict,
            _ => Self::Final,
        }
    }
}

impl From<&LockReply> for AnswerKind {
    fn from(reply: &LockReply) -> Self {
        match reply {
            Err(error) if error.errno == LOCK_MISDIRECTED => Self::Misdirected { table: None },
            Err(error) if error.errno == libc::ESTALE => Self::Stale,
            _ => Self::Final,
        }
    }
}

/// What follows an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next<R, S> {
    /// The node that leads the call by a newer placement map is asked.
    Redirect {
        /// What is asked.
        call: R,
        /// Version of the placement map of the node that was asked, if it told.
        table: Option<u64>,
    },
    /// The home of the file is asked, once.
    SecondTry(S),
    /// The caller gets the answer.
    Answer,
}

/// What a request means here, beside what is asked.
pub(super) struct RequestRoute {
    pub effect: OpenEffect,
    /// The opens that it relies on.
    pub used: Option<OpenRow>,
    pub second_try: Option<SecondTry>,
}

impl RequestRoute {
    pub fn of(effect: OpenEffect) -> Self {
        Self { effect, used: None, second_try: None }
    }
}

/// Something that the wrong node was asked.
pub(super) enum RedirectedCall {
    /// A request.
    Op(Request, PendingCall),
    /// A request for a lock.
    Lock(PendingLock),
}

impl RedirectedCall {
    pub fn since(&self) -> Instant {
        match self {
            Self::Op(_, asked) => asked.since,
            Self::Lock(asked) => asked.since,
        }
    }

    pub fn redirected(&self) -> u32 {
        match self {
            Self::Op(_, asked) => asked.redirected,
            Self::Lock(asked) => asked.redirected,
        }
    }
}

/// A call that wants a lock.
pub(super) struct PendingLock {
    pub request: LockRequest,
    /// When it was redirected first; before that, when it was asked.
    pub since: Instant,
    /// How often the wrong node was asked so far.
    pub redirected: u32,
    pub place: Arc<Mutex<LockCallState>>,
    done: Box<dyn FnOnce(LockReply) + Send>,
}

impl PendingLock {
    pub fn new(
        request: LockRequest,
        done: Box<dyn FnOnce(LockReply) + Send>,
    ) -> (Self, Arc<Mutex<LockCallState>>) {
        let place = Arc::<Mutex<LockCallState>>::default();
        (Self { request, since: Instant::now(), redirected: 0, place: place.clone(), done }, place)
    }

    /// One more node did not lead it. A lock may be waited for as long as somebody holds it, which
    /// is not waiting for nodes.
    pub fn redirects(self) -> Self {
        let since = if self.redirected == 0 { Instant::now() } else { self.since };
        Self { since, redirected: self.redirected + 1, ..self }
    }

    pub fn end(self, reply: LockReply) {
        answering(|| (self.done)(reply));
    }
}

/// Where a lock is asked for at present.
#[derive(Default)]
pub(super) struct LockCallState {
    /// Which attempt `call` is.
    attempt: u32,
    call: Option<(Arc<NodeLink>, CallId)>,
    cancelled: bool,
}

impl LockCallState {
    pub fn is_wanted(&self) -> bool {
        !self.cancelled
    }

    /// An attempt was sent; a later one may have been meanwhile. The call to cancel, if it was
    /// cancelled before.
    pub fn asked(
        &mut self,
        attempt: u32,
        link: Arc<NodeLink>,
        call: CallId,
    ) -> Option<(Arc<NodeLink>, CallId)> {
        if self.cancelled {
            return Some((link, call));
        }
        if self.call.is_none() || attempt > self.attempt {
            (self.attempt, self.call) = (attempt, Some((link, call)));
        }
        None
    }

    /// Nobody wants it any more. The call to cancel.
    pub fn cancel(&mut self) -> Option<(Arc<NodeLink>, CallId)> {
        self.cancelled = true;
        self.call.take()
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::inode::{Inode, Kind};
    use kestrel_types::request::Answer;

    use super::*;

    fn next(answer: AnswerKind, redirect: bool, second_try: bool) -> Next<char, char> {
        PendingCall::retry(answer, redirect.then_some('r'), second_try.then_some('s'))
    }

    /// The whole table: each kind of answer, with and without each possible attempt.
    #[test]
    fn the_table_of_retries() {
        let misdirected = AnswerKind::Misdirected { table: Some(7) };
        let redirect = Next::Redirect { call: 'r', table: Some(7) };
        let second_try = Next::SecondTry('s');
        let both = [(false, false), (false, true), (true, false), (true, true)];
        let table = [
            (misdirected, [Next::Answer, Next::Answer, redirect, redirect]),
            (AnswerKind::Stale, [Next::Answer, second_try, Next::Answer, second_try]),
            (AnswerKind::Conflict, [Next::Answer; 4]),
            (AnswerKind::Final, [Next::Answer; 4]),
        ];
        for (answer, expected) in table {
            let got = both.map(|(redirect, second_try)| next(answer, redirect, second_try));
            assert_eq!(got, expected, "{answer:?}");
        }
    }

    /// Replies to requests and to locks, by what they mean for another attempt.
    #[test]
    fn the_kinds_of_answers() {
        let failed = |errno| FsError::new(errno, "");
        let reply = |reply: Reply| AnswerKind::from(&reply);
        let conflict = Outcome::Conflict(Box::new(Inode::new(8, Kind::File, 0, 0)));
        assert_eq!(
            reply(Err(Outcome::Misdirected { table: 7 })),
            AnswerKind::Misdirected { table: Some(7) }
        );
        assert_eq!(reply(Err(failed(libc::ESTALE).into())), AnswerKind::Stale);
        assert_eq!(reply(Err(conflict)), AnswerKind::Conflict);
        assert_eq!(reply(Err(failed(libc::ENOENT).into())), AnswerKind::Final);
        assert_eq!(reply(Ok(Answer::Done)), AnswerKind::Final);
        let lock = |errno| AnswerKind::from(&LockReply::Err(failed(errno)));
        assert_eq!(lock(LOCK_MISDIRECTED), AnswerKind::Misdirected { table: None });
        assert_eq!(lock(libc::ESTALE), AnswerKind::Stale);
        assert_eq!(lock(libc::EAGAIN), AnswerKind::Final);
    }
}
