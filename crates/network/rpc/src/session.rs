//! A client's session with a metadata node, without sockets, threads, clocks and randomness:
//! messages and the time go in, bytes, completions and events come out. [`crate::client`] drives it
//! with a real connection, the simulator with a virtual one.
//!
//! | file | |
//! | --- | --- |
//! | `calls` | the calls of a client that have no answer yet |
//! | `numbers` | sequence numbers of calls: which are given out, which have their answer |
//! | `connection` | the connection comes and goes: answers, retries |
//! | `greeting` | Hello and Welcome, the challenge of a client with a token |
//! | `reclaim` | what the client holds is claimed again after the node has lost the session |
//! | `sending` | what goes out, and when: the window, the bounds, the order after an outage |
//! | `time` | time passes: deadlines, pings, silence |
//!
//! **Exactly once.** Calls that change something carry numbers 1, 2, 3 and so on, given when they
//! are first sent, at most [`WINDOW`] of them unanswered. After a reconnect everything unanswered
//! is sent again, marked as a retry, in its old order; the node finds by the number whether it was
//! carried out. Each call carries the number up to which the client needs no answers any more.
//!
//! **Every call ends.** Within its [`CallDeadline`] each call gets its answer or a failure. A
//! failure says whether the call was sent: if it was, it may or may not have been carried out. It
//! is not sent again then, so numbers have gaps, with one exception: what adds an open or a lock to
//! the session, or takes a lock away, is pursued until the answer has come, and what was added is
//! taken back, as long as the session lives.
//!
//! **After an outage** the node's Welcome carries what became of the session. If the node has lost
//! it, the driver is asked for what it holds ([`LinkEvent::ReclaimWanted`]), and nothing else is
//! sent before that has been answered. A reclaim is repeated if its answer was lost.
//!
//! **Order.** Calls are sent in the order they were submitted. Completions come in the order of the
//! answers; nothing is to be concluded from it. A caller that wants B after A submits B when A has
//! been answered.
//!
//! **Bounds.** [`CALLS_MAX`] calls without answer, [`IN_FLIGHT_MAX`] of them sent and
//! [`LOCK_WAITS_MAX`] more that wait for locks; encoding stops while [`OUTPUT_BYTES_MAX`] wait to
//! be written.

mod calls;
mod connection;
mod greeting;
mod numbers;
mod reclaim;
mod sending;
mod time;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::ObjectId;
use kestrel_types::request::{Creds, Op, Outcome, Request};
use kestrel_types::security::Security;
use kestrel_types::wire::{
    Answered, Body, Call, ClientId, Hello, ReclaimReply, Refused, SessionState, ToServer,
    WHO_BYTES_MAX, Welcome,
};

pub use calls::CallId;
use calls::{CallOwner, Calls, Pending, Sent};
pub use kestrel_types::wire::WINDOW;
use numbers::Numbers;
pub use time::ConnectionHealth;

use crate::token::Token;

/// Most calls without answer, sent or not; further ones fail with `EAGAIN`. A power of two.
pub const CALLS_MAX: usize = 65_536;

/// Most calls sent and not answered, but for those that wait for locks. Below what a node takes
/// from one connection ([`crate::server::ListenerConfig::calls_max`]), so that it never stops
/// reading what would end the waits.
pub const IN_FLIGHT_MAX: usize = 8192;

/// Most calls that wait for locks; further ones fail with `ENOLCK`.
pub const LOCK_WAITS_MAX: usize = 8192;

/// While more bytes than this wait to be written, no call is encoded.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Longest time to wait for the answer to a Hello, nanoseconds.
pub const GREETING_MAX: Nanos = 5 * SECOND;

/// Longest deadline that a call should have, nanoseconds: well below the 30 minutes for which nodes
/// keep the answers of a client that has vanished.
pub const DEADLINE_MAX: Nanos = 15 * 60 * SECOND;

/// The client and its limits.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Name of the volume, 1 to 255 bytes.
    pub volume: String,
    /// The client's random name.
    pub client: ClientId,
    /// For readers of the node's log: host, process, mount point. Cut at [`WHO_BYTES_MAX`].
    pub who: String,
    /// What messages call the node: its address.
    pub server: String,
    /// The token that the client shows to a server that asks for one.
    pub token: Option<Arc<Token>>,
}

/// A session that another process began, and that goes on here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId {
    /// The client.
    pub client: ClientId,
    /// Connections so far.
    pub incarnation: u64,
    /// Every call with a number up to this one is done with.
    pub calls: u64,
}

/// How long a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallDeadline {
    /// Until this time; then it fails with `EIO`.
    Until(Nanos),
    /// As long as the node answers; it fails with `EIO` when there was no session for this long.
    /// For waiting locks.
    Outage(Nanos),
    /// Until it is answered. For calls that no caller waits for and that have to be right in the
    /// end (releases).
    Always,
    /// Until this time, and not beyond the end of the connection: it is never sent twice. For
    /// administration.
    Connection(Nanos),
}

/// The end of a call.
#[derive(Debug)]
pub struct FinishedCall<D> {
    /// The call.
    pub id: CallId,
    /// What the driver gave with it.
    pub done: D,
    /// The answer, or why there is none.
    pub result: FsResult<Answered>,
    /// The request, if the answer is that another node leads it.
    pub misdirected: Option<Request>,
}

/// What the driver should know.
#[derive(Debug)]
pub enum LinkEvent {
    /// The node answered the Hello: call [`Link::accept`] if it is the one that is meant, else
    /// close the connection.
    Welcomed(Welcome),
    /// The node does not serve this client; the connection is of no use any more.
    Refused(Refused),
    /// The session is lost at the node: call [`Link::reclaim`]. All answers of earlier connections
    /// are among the completions.
    ReclaimWanted {
        /// How: the worst that happened since the last reclaim that was answered. Locks can be
        /// reclaimed only after Restarted.
        lost: SessionState,
    },
    /// The node has answered the reclaim; the session goes on.
    Reclaimed {
        /// How the session was lost: Restarted, Expired, or New (the node has no record of this
        /// client).
        lost: SessionState,
        /// Its answers, in the order of the parts.
        replies: Vec<ReclaimReply>,
    },
    /// Calls are served (again).
    Serving,
    /// The node has mentioned a newer placement map than before.
    MapVersion {
        /// Its version.
        version: u64,
    },
    /// A message that precedes the answer to an admin call.
    AdminEvent {
        /// The call.
        id: CallId,
        /// JSON text.
        json: Box<[u8]>,
    },
}

/// The node did not keep to the protocol, or refuses this client. The connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Calls submitted.
    pub calls: u64,
    /// Calls sent, retries not counted.
    pub sent: u64,
    /// Calls sent again after a reconnect.
    pub retries: u64,
    /// Calls that ended without an answer.
    pub failed: u64,
    /// Times that a connection was welcomed.
    pub welcomes: u64,
    /// Sessions that the node had lost.
    pub reclaims: u64,
    /// Calls sent and not answered, at present.
    pub in_flight: usize,
    /// Calls not sent yet, at present.
    pub waiting: usize,
}

/// Where the session stands.
#[derive(Debug)]
enum Stage {
    /// No connection.
    Down,
    /// Hello is sent, and then what it has promised to prove.
    Greeting { since: Nanos, hello: Option<Box<Hello>> },
    /// It was answered; the driver has not accepted the node.
    Welcomed { since: Nanos, greeted: Nanos, session: SessionState, map_version: u64 },
    /// The node has lost the session and takes nothing but the reclaim.
    Reclaiming { parts: Option<Parts> },
    /// Calls are served.
    Up,
    /// The driver has ended it.
    Ended,
}

/// The parts of a reclaim that was sent.
#[derive(Debug)]
struct Parts {
    ids: Vec<CallId>,
    replies: Vec<Option<ReclaimReply>>,
}

/// A client's session. `D` is what the driver wants back when a call ends.
#[derive(Debug)]
pub struct Link<D> {
    config: LinkConfig,
    /// What the present connection, or the last one, runs over.
    security: Security,
    stage: Stage,
    /// Connections so far.
    incarnation: u64,
    /// A node has welcomed this client.
    established: bool,
    /// The session was lost, and its reclaim is not answered.
    lost: Option<SessionState>,
    calls: Calls<D>,
    /// Calls to send, in order; those that have ended meanwhile are skipped.
    queue: VecDeque<CallId>,
    /// How many calls at the front of the queue are retries. Nothing else is sent to a node that
    /// has lost the session before these are, so that the node can tell when it has them all: a
    /// Ping follows.
    retrying: usize,
    /// That Ping is due.
    announce: bool,
    /// Waits to be cancelled after the retries.
    cancels: Vec<CallId>,
    oldest_open_object: ObjectId,
    numbers: Numbers,
    orders: u64,
    /// Calls sent and not answered that do not wait for locks, and that do.
    in_flight: [usize; 2],
    output: Vec<u8>,
    /// So many bytes of the output may wait for others to go with.
    deferred: usize,
    completions: Vec<FinishedCall<D>>,
    events: VecDeque<LinkEvent>,
    /// There has been no session since; none while there is one.
    silent_since: Option<Nanos>,
    last_received: Nanos,
    pinged: Nanos,
    /// When the Pings of the present connection were sent that have no answer, oldest first: one in
    /// a third of the lease.
    pings: VecDeque<Nanos>,
    /// When the last message was sent that the node must have received, because it has answered it:
    /// a Hello or a Ping.
    proven: Nanos,
    /// The last tick.
    looked: Nanos,
    lease: Nanos,
    /// No call's deadline ends before this.
    earliest: Nanos,
    map_version: u64,
    stats: LinkStats,
}

impl<D> Link<D> {
    /// A session that has no connection yet.
    pub fn new(config: LinkConfig, now: Nanos) -> Self {
        let LinkConfig { mut who, volume, client, server, token } = config;
        while who.len() > WHO_BYTES_MAX {
            who.pop();
        }
        Self {
            config: LinkConfig { who, volume, client, server, token },
            security: Security::Plain,
            stage: Stage::Down,
            incarnation: 0,
            established: false,
            lost: None,
            calls: Calls::new(),
            queue: VecDeque::new(),
            retrying: 0,
            announce: false,
            cancels: Vec::new(),
            oldest_open_object: 0,
            numbers: Numbers::new(),
            orders: 0,
            in_flight: [0; 2],
            output: Vec::new(),
            deferred: 0,
            completions: Vec::new(),
            events: VecDeque::new(),
            silent_since: Some(now),
            last_received: now,
            pinged: now,
            pings: VecDeque::new(),
            proven: now,
            looked: now,
            lease: Nanos::MAX,
            earliest: Nanos::MAX,
            map_version: 0,
            stats: LinkStats::default(),
        }
    }

    /// Goes on with a session that another process began; before the first connection.
    pub fn resume(&mut self, session: &SessionId) {
        self.config.client = session.client;
        self.incarnation = session.incarnation;
        self.established = true;
        self.numbers = Numbers::after(session.calls);
    }

    /// The session as it stands; for another process to go on with when no call is under way.
    pub fn session(&self) -> SessionId {
        let Self { config, incarnation, numbers, .. } = self;
        SessionId { client: config.client, incarnation: *incarnation, calls: numbers.acked() }
    }

    /// Ends the work of this client with the session, which stays for another process: calls
    /// without answer fail.
    pub fn leave(&mut self) {
        self.stage = Stage::Ended;
        self.fail_all(|_| true, libc::ESHUTDOWN, "another process goes on with the session");
        self.queue.clear();
    }

    /// Submits a request. The call is sent as soon as there is a session and room, or ends with its
    /// deadline.
    pub fn submit(&mut self, body: Body, deadline: CallDeadline, done: D) -> CallId {
        self.stats.calls += 1;
        let id = self.enqueue(body, deadline, CallOwner::Requester(done));
        if let Some(error) = self.unwelcome(id) {
            self.end(id, Err(error));
        } else {
            self.pump();
        }
        id
    }

    /// Ends the waiting of a call: it fails with `EINTR`, unless it is answered before.
    pub fn cancel(&mut self, id: CallId) {
        let Some(pending) = self.calls.get_mut(id) else { return };
        pending.cancelled = true;
        match pending.sent {
            Sent::Never => {
                self.end(id, Err(FsError::new(libc::EINTR, "interrupted before it was sent")))
            }
            // After a reconnect the call is repeated, for its answer may be that it was granted;
            // then comes the Cancel.
            Sent::Before => {}
            Sent::Now => self.say_cancel(id),
        }
    }

    /// Ends the session: the node gets a Bye, if there is a connection, and calls without answer
    /// fail.
    pub fn bye(&mut self) {
        if matches!(self.stage, Stage::Up | Stage::Reclaiming { .. }) {
            self.say(&ToServer::Bye);
        }
        self.stage = Stage::Ended;
        self.fail_all(|_| true, libc::ESHUTDOWN, "the session has been closed");
        self.queue.clear();
    }

    /// Moves the bytes to be written, whole frames, to the end of `into`.
    pub fn take_output(&mut self, into: &mut Vec<u8>) {
        self.deferred = 0;
        if into.is_empty() {
            std::mem::swap(&mut self.output, into);
        } else {
            into.append(&mut self.output);
        }
        self.pump();
    }

    /// Whether there is something to write now.
    pub fn has_output(&self) -> bool {
        self.output.len() > self.deferred
    }

    /// Whether there is something to write that may wait for others to go with.
    pub fn has_deferred(&self) -> bool {
        self.deferred > 0
    }

    /// As [`Link::submit`], for a call that no caller waits for: it makes no output to write now.
    pub fn submit_deferred(&mut self, body: Body, deadline: CallDeadline, done: D) -> CallId {
        let is_prompt = self.has_output();
        let id = self.submit(body, deadline, done);
        if !is_prompt {
            self.deferred = self.output.len();
        }
        id
    }

    /// Moves the calls that have ended to the end of `into`.
    pub fn take_completions(&mut self, into: &mut Vec<FinishedCall<D>>) {
        if into.is_empty() {
            std::mem::swap(&mut self.completions, into);
        } else {
            into.append(&mut self.completions);
        }
    }

    /// The next thing to know.
    pub fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// Newest version of the placement map that the node mentioned.
    pub fn map_version(&self) -> u64 {
        self.map_version
    }

    /// Since when there has been no session; none while there is one.
    pub fn silent_since(&self) -> Option<Nanos> {
        self.silent_since
    }

    /// Whether calls are served at present.
    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }

    /// Whether the node may have ended the session by now: the last message that it must have
    /// received was sent a lease ago, or longer.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        self.established && !matches!(self.stage, Stage::Ended) && now >= self.overdue_from()
    }

    fn overdue_from(&self) -> Nanos {
        self.proven.saturating_add(self.lease)
    }

    /// Ends the calls that are not sent on the present connection and that `wanted` picks: they
    /// fail with `EIO`. What becomes of those that were sent on an earlier one is unknown.
    pub fn fail_waiting(&mut self, wanted: impl Fn(&Body) -> bool, reason: &'static str) {
        self.fail_all(
            |pending| pending.sent != Sent::Now && wanted(&pending.call.body),
            libc::EIO,
            reason,
        );
    }

    /// Whether calls have ended and wait for [`Link::take_completions`].
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Counters.
    pub fn stats(&self) -> LinkStats {
        let in_flight = self.in_flight.iter().sum();
        LinkStats { in_flight, waiting: self.calls.len().saturating_sub(in_flight), ..self.stats }
    }

    /// The node has this version of the placement map.
    fn mention(&mut self, version: u64) {
        if version > self.map_version {
            self.map_version = version;
            self.events.push_back(LinkEvent::MapVersion { version });
        }
    }

    fn enqueue(&mut self, body: Body, deadline: CallDeadline, owner: CallOwner<D>) -> CallId {
        self.orders += 1;
        let order = self.orders;
        let id = self.calls.insert(|id| Pending {
            call: Call { id, seq: 0, acked: 0, retry: false, body },
            owner,
            deadline,
            order,
            sent: Sent::Never,
            cancelled: false,
        });
        if let CallDeadline::Until(time) | CallDeadline::Connection(time) = deadline {
            self.earliest = self.earliest.min(time);
        } else if let (CallDeadline::Outage(longest), Some(since)) = (deadline, self.silent_since) {
            self.earliest = self.earliest.min(since.saturating_add(longest));
        }
        if self.queue.len() >= 2 * CALLS_MAX && self.retrying == 0 {
            // Calls that ended before they were sent, while nothing could be sent.
            let calls = &mut self.calls;
            self.queue.retain(|id| calls.get_mut(*id).is_some());
        }
        self.queue.push_back(id);
        id
    }

    /// Why a new call cannot even wait.
    fn unwelcome(&mut self, id: CallId) -> Option<FsError> {
        if matches!(self.stage, Stage::Ended) {
            return Some(FsError::new(libc::ESHUTDOWN, "the session has been closed"));
        }
        if self.calls.len() >= CALLS_MAX {
            return Some(FsError::new(
                libc::EAGAIN,
                "65536 calls wait for the metadata server: slow down",
            ));
        }
        let waits = self.calls.get_mut(id).is_some_and(|pending| pending.waits());
        (waits && self.in_flight[1] >= LOCK_WAITS_MAX)
            .then(|| FsError::new(libc::ENOLCK, "8192 calls of this client wait for locks already"))
    }

    /// Removes a call and gives its owner the result.
    fn end(&mut self, id: CallId, result: FsResult<Answered>) {
        let Some(pending) = self.calls.remove(id) else { return };
        if pending.sent != Sent::Never && !matches!(pending.owner, CallOwner::Reclaim) {
            self.in_flight[usize::from(pending.waits())] -= 1;
        }
        if pending.call.seq != 0 {
            self.numbers.finish(pending.call.seq);
        }
        if let CallOwner::Requester(done) = pending.owner {
            self.stats.failed += u64::from(result.is_err());
            let misdirected = match (pending.call.body, &result) {
                (Body::Op(request), Ok(Answered::Op(Err(Outcome::Misdirected { .. })))) => {
                    Some(request)
                }
                _ => None,
            };
            self.completions.push(FinishedCall { id, done, result, misdirected });
        }
    }

    fn fail_all(
        &mut self,
        wanted: impl FnMut(&Pending<D>) -> bool,
        errno: i32,
        reason: &'static str,
    ) {
        for id in self.calls.ids(wanted) {
            self.end(id, Err(FsError::new(errno, reason)));
        }
    }
}

/// A request that the link itself makes, to undo a call that its caller has given up.
fn undo(op: Op) -> Body {
    Body::Op(Request { creds: Creds::root(), op })
}
