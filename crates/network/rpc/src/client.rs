//! A client's connection to a metadata node, shared by all its threads: a [`Link`] on real sockets.
//!
//! | file | |
//! | --- | --- |
//! | `dial` | making a connection |
//! | `secure` | the handshake of the dialing side, on a blocking socket |
//! | `socket` | a connected socket, in clear or encrypted |
//! | `route` | the addresses where the node may be reached |
//! | `reader` | the thread that connects, reads, and runs completions |
//! | `writer` | writing: one thread writes for all that have something to send (combining) |
//! | `ticker` | the thread that knows the time: deadlines, pings, silence |
//! | `deferred` | when a message that no caller waits for is sent |
//! | `completion` | the receivers of answers |
//! | `reentrancy` | which threads run completions at present |
//! | `admin` | questions of the control protocol: long, rare, with messages before the answer |
//! | `stats` | counters of a connection |
//!
//! **Sending.** The thread that submits a call also writes: it puts the call into the link's output
//! and, if no other thread is writing, writes what is there until nothing is left (combining).
//! Calls submitted from within completions leave with one write for every few of them, so that the
//! node works on it while the rest of what a read brought is completed here.
//!
//! **Receiving.** One thread reads, decodes, and runs the completions of everything that one read
//! brought; another one looks at deadlines and sends pings. Completions run on either, one at a
//! time on each; they may submit more calls, but must not wait.
//!
//! **Outages.** The reading thread reconnects, with exponential backoff and jitter, to the
//! addresses in turn, for ever. Calls wait meanwhile, each until its own deadline. The
//! [`ReclaimSource`] is notified at the beginning and the end.
//!
//! **The reader never blocks in a write.** A node that has answers we did not take stops reading
//! us, so a reader that waits for room to write would wait for itself; nor may a reader wait for
//! room on another connection: the reader there may wait for room on its own. What it cannot write
//! there is left to the other connection's ticker.

mod admin;
mod completion;
mod deferred;
pub(crate) mod dial;
mod reader;
mod reentrancy;
mod route;
pub(crate) mod secure;
pub(crate) mod socket;
mod stats;
mod ticker;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deferred::Deferred;
use kestrel_types::clock::Nanos;
use kestrel_types::request::{Op, Reply, Request};
use kestrel_types::wire::{
    Body, ClientId, LockRequest, Reclaim, ReclaimReply, SessionState, VOLUME_BYTES_MAX, Welcome,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::session::{
    CallDeadline, CallId, DEADLINE_MAX, FinishedCall, Link, LinkConfig, SessionId,
};
use crate::tls::ClientTls;
use crate::token::Token;
use completion::CallCompletion;
use reentrancy::ReentrancyGuard;
use route::Route;
use writer::SocketWriter;

pub use admin::AdminError;
pub use completion::{CallOrBack, CompletionOrBack, Done, LockDone};
pub use reentrancy::ask_for_others;
pub use stats::RemoteStats;

/// After so many completions, the calls that they have submitted are written. With all completions
/// of a read run first, a client with completions that submit calls and its node would take turns,
/// and one of them would always wait; with a few at a time, writing costs more than is won.
const WRITE_EVERY: usize = 32;

/// Time between two questions where a node is that does not answer.
pub const ASK: Duration = Duration::from_millis(250);

/// Where to connect to, and how long to wait.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// Addresses `host:port` of the node, tried in turn.
    pub addresses: Vec<String>,
    /// Name of the volume, 1 to 255 bytes.
    pub volume: String,
    /// For readers of the node's log: host, process, mount point.
    pub who: String,
    /// How long a call waits for its answer, at most [`DEADLINE_MAX`].
    pub deadline: Duration,
    /// Which connections are encrypted, and how the node is recognized.
    pub tls: ClientTls,
    /// The token that is shown to a node that asks for one.
    pub token: Option<Arc<Token>>,
    /// A session of another process, which ended without ending it ([`Remote::leave`]); none: a new
    /// one begins.
    pub session: Option<SessionId>,
}

/// What holds the state that the session stands for: open files, locks, objects. Called on the
/// reading thread, but for [`ReclaimSource::oldest_open_object`] and [`ReclaimSource::overdue`];
/// must not wait for the node.
pub trait ReclaimSource: Send + Sync {
    /// The node answers, before anything else is sent to it. An error (it is not the volume that
    /// was mounted) closes the connection; it is tried again.
    fn welcomed(&self, welcome: &Welcome) -> Result<(), String>;

    /// The node has lost the session: what is held of it, in parts. All answers of earlier
    /// connections have been delivered.
    fn reclaim(&self, lost: SessionState) -> Vec<Reclaim>;

    /// The node's answer to the reclaim, part by part; the session goes on.
    fn reclaimed(&self, replies: Vec<ReclaimReply>, lost: SessionState);

    /// Objects below this number that this client allocated are referenced or abandoned; `u64::MAX`
    /// if it has none open.
    fn oldest_open_object(&self) -> u64;

    /// The node may have ended the session by now: nothing that was sent within the last lease has
    /// been answered. Called again and again while that is so, on the ticker thread.
    fn overdue(&self) {}

    /// The node does not answer: once an outage, when the first attempt to come back has failed.
    fn outage(&self, why: &str);

    /// The outage is over.
    fn restored(&self, after: Duration);

    /// The node has mentioned a version of the placement map that is newer than all it
    /// mentioned before.
    fn newer_table(&self, _version: u64) {}
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    /// What failed, why, and what to do.
    text: String,
    /// Why alone, for a table.
    pub why: String,
    /// Nobody took a connection at any address: the server may come later.
    pub is_absent: bool,
    /// The server that answers serves no volume of this name.
    pub is_unknown: bool,
}

impl ConnectError {
    fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { why: text.clone(), text, is_absent: false, is_unknown: false }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConnectError {}

#[derive(Debug, Default)]
struct Traffic {
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    messages: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// What came of the first attempts to connect.
enum Start {
    Waiting {
        /// What came of the last attempts: by address, and under none where no address took a
        /// connection.
        tried: BTreeMap<Option<String>, String>,
        /// Some address has taken a connection.
        reached: bool,
    },
    /// No thread waits for the first connection.
    NotAwaited,
    Serving(Box<Welcome>),
    Hopeless {
        why: String,
        /// The server does not have the volume.
        is_unknown: bool,
    },
}

/// Why no node serves this client: the reason that each address gave that answered.
fn reasons_of(tried: &BTreeMap<Option<String>, String>) -> Option<String> {
    let reasons: Vec<_> =
        tried.iter().filter_map(|(at, why)| Some(format!("{}: {why}", at.as_ref()?))).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// How long was waited, for people.
fn for_so_long(waited: Duration) -> String {
    format!("for {:.0} s", waited.as_secs_f64().max(1.0))
}

/// Longest time, beyond that for the first contact, in which a first attempt is let come to its
/// end: a server that does not refuse a connection may be slow to take it.
const FIRST_ATTEMPT_MAX: Duration = dial::CONNECT_MAX;

/// From the first connection to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Connections are made and used.
    Open,
    /// No more connections are made.
    Closing,
    /// The reading thread has ended.
    Ended,
}

struct Shared {
    config: RemoteConfig,
    route: Mutex<Route>,
    holder: Arc<dyn ReclaimSource>,
    origin: Instant,
    /// When the threads of the connection last looked at the clock.
    noted: AtomicI64,
    link: Mutex<Link<CallCompletion>>,
    writer: SocketWriter,
    admin: admin::PendingQuestions,
    traffic: Traffic,
    start: Mutex<Start>,
    started: Condvar,
    /// Why the node does not let this client in, for longer than a moment.
    refusal: Mutex<Option<String>>,
    life: Mutex<Life>,
    changed: Condvar,
    deferred: Deferred,
}

/// A client's connection to a metadata node. Dropping it closes the session without waiting.
pub struct Remote {
    shared: Arc<Shared>,
}

impl Remote {
    /// Connects; waits until the node serves this client, refuses it, or the deadline has passed.
    ///
    /// # Errors
    /// With the reason, and what to do.
    pub fn connect(
        config: RemoteConfig,
        holder: Arc<dyn ReclaimSource>,
    ) -> Result<(Arc<Self>, Welcome), ConnectError> {
        let contact = config.deadline;
        Self::connect_asking(config, holder, contact, &mut |_| ())
    }

    /// Connects like [`Remote::connect`], but while no address takes a connection it waits for
    /// `contact` only (and a little longer for a first attempt that neither succeeds nor fails).
    /// While it waits it calls `meanwhile` every [`ASK`], which may pass it the node's present
    /// address ([`Remote::redirect`]).
    ///
    /// # Errors
    /// As [`Remote::connect`].
    pub fn connect_asking(
        config: RemoteConfig,
        holder: Arc<dyn ReclaimSource>,
        contact: Duration,
        meanwhile: &mut dyn FnMut(&Self),
    ) -> Result<(Arc<Self>, Welcome), ConnectError> {
        let remote =
            Self::start(config, holder, Start::Waiting { tried: BTreeMap::new(), reached: false })?;
        let shared = &remote.shared;
        let server = shared.config.addresses.join(",");
        let failed = |text: String, why: String, is_absent| {
            let volume = &shared.config.volume;
            let text = format!("cannot use volume {volume} of {server}: {text}");
            Err(ConnectError { text, why, is_absent, is_unknown: false })
        };
        let mut start = shared.start.lock();
        loop {
            let waited = shared.origin.elapsed();
            let left = match &*start {
                Start::Serving(welcome) => {
                    let welcome = Welcome::clone(welcome);
                    drop(start);
                    return Ok((remote, welcome));
                }
                Start::Hopeless { why, is_unknown } => {
                    let (why, is_unknown) = (why.clone(), *is_unknown);
                    drop(start);
                    remote.close();
                    return failed(why.clone(), why, false)
                        .map_err(|error| ConnectError { is_unknown, ..error });
                }
                Start::Waiting { tried, reached } => {
                    // The caller's time for the contact may be longer than a call's deadline.
                    let most = shared.config.deadline.max(contact);
                    let wait = match (reached, tried.is_empty()) {
                        (true, _) => most,
                        (false, true) => contact.saturating_add(FIRST_ATTEMPT_MAX).min(most),
                        (false, false) => contact,
                    };
                    wait.saturating_sub(waited)
                }
                Start::NotAwaited => shared.config.deadline.saturating_sub(waited),
            };
            if left.is_zero() {
                let (reasons, is_absent) = match &*start {
                    Start::Waiting { tried, reached } => {
                        (reasons_of(tried).ok_or_else(|| tried.get(&None).cloned()), !reached)
                    }
                    _ => (Err(None), false),
                };
                drop(start);
                // There is no session to end, and a thread that connects takes its time.
                shared.close(Duration::ZERO);
                let waited = for_so_long(waited);
                return match reasons {
                    Ok(reasons) => failed(format!("{reasons}; {waited}"), reasons, is_absent),
                    Err(why) => {
                        let why = why.unwrap_or_else(|| format!("{server}: no answer"));
                        let advice = "check the address and that `kestrel serve` runs there, or \
                                      wait for it: --wait TIME";
                        failed(format!("{why}, {waited}; {advice}"), why, is_absent)
                    }
                };
            }
            if shared.started.wait_for(&mut start, left.min(ASK)).timed_out() {
                MutexGuard::unlocked(&mut start, || meanwhile(&remote));
            }
        }
    }

    /// Why no node has served this client so far, while the first connection is waited for; none
    /// before an attempt has failed.
    pub fn in_vain(&self) -> Option<String> {
        match &*self.shared.start.lock() {
            Start::Waiting { tried, .. } => reasons_of(tried).or_else(|| tried.get(&None).cloned()),
            _ => None,
        }
    }

    /// Begins to connect, for ever, and does not wait: until the node serves this client, calls
    /// wait as in any outage.
    ///
    /// # Errors
    /// If the settings make no sense, or a thread does not start.
    pub fn begin(
        config: RemoteConfig,
        holder: Arc<dyn ReclaimSource>,
    ) -> Result<Arc<Self>, ConnectError> {
        Self::start(config, holder, Start::NotAwaited)
    }

    fn start(
        config: RemoteConfig,
        holder: Arc<dyn ReclaimSource>,
        start: Start,
    ) -> Result<Arc<Self>, ConnectError> {
        if config.addresses.is_empty() || !(1..=VOLUME_BYTES_MAX).contains(&config.volume.len()) {
            return Err(ConnectError::new(
                "no connection: a URL names at least one host and a volume of 1 to 255 bytes: \
                 kestrel://host:port/volume",
            ));
        }
        let client = ClientId(dial::random());
        let link = LinkConfig {
            volume: config.volume.clone(),
            client,
            who: config.who.clone(),
            server: config.addresses.join(","),
            token: config.token.clone(),
        };
        let mut link = Link::new(link, 0);
        if let Some(session) = &config.session {
            link.resume(session);
        }
        let shared = Arc::new(Shared {
            route: Mutex::new(Route::new(config.addresses.clone())),
            holder,
            origin: Instant::now(),
            noted: AtomicI64::new(0),
            link: Mutex::new(link),
            writer: SocketWriter::default(),
            admin: admin::PendingQuestions::default(),
            traffic: Traffic::default(),
            start: Mutex::new(start),
            started: Condvar::new(),
            refusal: Mutex::default(),
            life: Mutex::new(Life::Open),
            changed: Condvar::new(),
            deferred: Deferred::default(),
            config,
        });
        let remote = Arc::new(Self { shared: shared.clone() });
        remote.spawn("kestrel-net-read", reader::run)?;
        remote.spawn("kestrel-net-tick", ticker::run)?;
        Ok(remote)
    }

    fn spawn(self: &Arc<Self>, name: &str, run: fn(&Shared)) -> Result<(), ConnectError> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&shared));
        // Threads end when the connection is closed, and are not waited for longer than that takes.
        thread.map(drop).map_err(|error| {
            ConnectError::new(format!(
                "no connection: starting a thread failed: {error}; raise the limit of threads"
            ))
        })
    }

    /// Sends a request; `done` gets the reply, `EIO` at the deadline. Never waits for the node.
    /// Releases have no deadline: no caller waits for them, but the node's count has to be right in
    /// the end. They go with the next message, or after `deferred::DEFERRED_MAX`; so do reads for
    /// access times.
    pub fn submit(&self, request: Request, done: Done) {
        let deadline = self.shared.deadline_of(&request.op);
        self.shared.submit(request, deadline, CallCompletion::Op(done));
    }

    /// As [`Remote::submit`], for callers that try another node if this one does not lead the
    /// request. `left` is how long the reply may take, if that is not the usual time.
    pub fn submit_or_back(&self, request: Request, left: Option<Duration>, done: CompletionOrBack) {
        let deadline = match left {
            Some(left) if !matches!(request.op, Op::Release(_)) => self.shared.deadline_in(left),
            _ => self.shared.deadline_of(&request.op),
        };
        self.shared.submit(request, deadline, CallCompletion::OpOrBack(done));
    }

    /// As [`Remote::submit_or_back`] for several requests that no server has to number; they are
    /// sent with one write.
    pub fn submit_many_or_back(&self, calls: Vec<CallOrBack>) {
        let deadline = |call: &CallOrBack| match call.left {
            Some(left) => self.shared.deadline_in(left),
            None => self.shared.deadline_of(&call.request.op),
        };
        self.shared.with_link(|link| {
            for call in calls {
                let deadline = deadline(&call);
                let done = CallCompletion::OpOrBack(call.done);
                link.submit(Body::Op(call.request), deadline, done);
            }
        });
    }

    /// Sends several requests with one write.
    pub fn submit_many(&self, requests: Vec<(Request, Done)>) {
        self.shared.with_link(|link| {
            for (request, done) in requests {
                let deadline = self.shared.deadline_of(&request.op);
                link.submit(Body::Op(request), deadline, CallCompletion::Op(done));
            }
        });
    }

    /// Sends a request and waits for the reply. Not from within completions.
    pub fn call(&self, request: Request) -> Reply {
        completion::wait(|done| self.submit(request, done))
    }

    /// Sends a request about locks. One that waits has no deadline while the node answers.
    pub fn lock(&self, request: LockRequest, done: LockDone) -> CallId {
        let deadline = if matches!(request, LockRequest::Set { wait: true, .. }) {
            CallDeadline::Outage(self.shared.deadline())
        } else {
            CallDeadline::Until(self.shared.now().saturating_add(self.shared.deadline()))
        };
        self.shared.with_link(|link| {
            link.submit(Body::Lock(request), deadline, CallCompletion::Lock(done))
        })
    }

    /// Ends the waiting of a call (`EINTR`), unless it is answered before.
    pub fn cancel(&self, id: CallId) {
        self.shared.with_link(|link| link.cancel(id));
    }

    /// Ends with `EIO` the requests that `wanted` picks and that wait for a connection, be it that
    /// they were sent on an earlier one.
    pub fn fail_waiting(&self, wanted: impl Fn(&Op) -> bool, reason: &'static str) {
        let wanted = |body: &Body| matches!(body, Body::Op(request) if wanted(&request.op));
        self.shared.with_link(|link| link.fail_waiting(wanted, reason));
    }

    /// The address of the present connection, or of the last one or the next attempt if there is
    /// none.
    pub fn address(&self) -> String {
        self.shared.route.lock().present().to_string()
    }

    /// From the next connection on the node is looked for at the present address and, if there is
    /// nothing, at this one.
    pub fn settle(&self, other: &str) {
        self.shared.route.lock().settle(other);
    }

    /// The node is at this address by now, and nowhere else: it is connected to there at once. A
    /// connection to another address is given up.
    pub fn redirect(&self, address: &str) {
        let (is_other, moves) = {
            let mut route = self.shared.route.lock();
            (route.redirect(address), route.moves())
        };
        // A thread that is about to wait has looked with this held.
        drop(self.shared.life.lock());
        self.shared.changed.notify_all();
        if is_other {
            self.shared.writer.cut_before(moves);
        }
    }

    /// Time since the last message of the node; none while it seems well: connected, and answering
    /// pings.
    pub fn missing(&self) -> Option<Duration> {
        let now = self.shared.now();
        let since = self.shared.link.lock().missing_since(now)?;
        Some(Duration::from_nanos((now - since).max(0).cast_unsigned()))
    }

    /// Whether calls are served at present.
    pub fn is_up(&self) -> bool {
        self.shared.link.lock().is_up()
    }

    /// Newest version of the placement map that the node mentioned.
    pub fn table(&self) -> u64 {
        self.shared.link.lock().map_version()
    }

    /// Why the node does not let this client in, if it gave a lasting reason at the last attempt.
    pub fn refusal(&self) -> Option<String> {
        self.shared.refusal.lock().clone()
    }

    /// Counters.
    pub fn stats(&self) -> RemoteStats {
        let (stats, silent_since) = {
            let link = self.shared.link.lock();
            (link.stats(), link.silent_since())
        };
        let now = self.shared.now();
        let traffic = &self.shared.traffic;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RemoteStats {
            calls: stats.calls,
            sent: stats.sent,
            retries: stats.retries,
            failed: stats.failed,
            reconnects: stats.welcomes.saturating_sub(1),
            reclaims: stats.reclaims,
            bytes_sent: of(&traffic.bytes_sent),
            bytes_received: of(&traffic.bytes_received),
            messages: of(&traffic.messages),
            writes: of(&traffic.writes),
            reads: of(&traffic.reads),
            in_flight: stats.in_flight,
            waiting: stats.waiting,
            outage: silent_since
                .map(|since| Duration::from_nanos((now - since).max(0).cast_unsigned())),
        }
    }

    /// The session as it stands ([`Link::session`]).
    pub fn session(&self) -> SessionId {
        self.shared.link.lock().session()
    }

    /// Ends the work of this client and leaves its session to another process. Waits for the
    /// answers to all calls, up to `limit`; false if there are still some, which fail. Further
    /// calls fail. Not from within completions.
    pub fn leave(&self, limit: Duration) -> bool {
        let is_quiet = self.shared.drain(limit);
        self.shared.end(Link::leave);
        is_quiet
    }

    /// Ends the session: waits up to two seconds for open calls, sends Bye, fails the calls that
    /// are left. Further calls fail. Not from within completions.
    pub fn close(&self) {
        self.shared.close(Duration::from_secs(2));
        let mut life = self.shared.life.lock();
        if *life == Life::Closing {
            // Longer than the node is waited for; only a thread that is connecting at this moment
            // takes longer, and ends by itself.
            self.shared.changed.wait_for(&mut life, Duration::from_secs(3));
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.close(Duration::ZERO);
    }
}

impl Shared {
    /// Nanoseconds since this client started.
    fn now(&self) -> Nanos {
        Nanos::try_from(self.origin.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// The time, also for calls submitted within the completions that follow: calls may come by the
    /// thousand.
    fn note_time(&self) -> Nanos {
        let now = self.now();
        self.noted.store(now, Ordering::Relaxed);
        now
    }

    fn deadline(&self) -> Nanos {
        Nanos::try_from(self.config.deadline.as_nanos()).unwrap_or(Nanos::MAX).min(DEADLINE_MAX)
    }

    fn deadline_of(&self, op: &Op) -> CallDeadline {
        match op {
            Op::Release(_) => CallDeadline::Always,
            _ => {
                let now = if ReentrancyGuard::of(self).is_on() {
                    self.noted.load(Ordering::Relaxed)
                } else {
                    self.now()
                };
                CallDeadline::Until(now.saturating_add(self.deadline()))
            }
        }
    }

    fn deadline_in(&self, left: Duration) -> CallDeadline {
        let left = Nanos::try_from(left.as_nanos()).unwrap_or(Nanos::MAX).min(DEADLINE_MAX);
        CallDeadline::Until(self.now().saturating_add(left))
    }

    fn submit(&self, request: Request, deadline: CallDeadline, completion: CallCompletion) {
        if !matches!(request.op, Op::Release(_) | Op::Accessed(..)) {
            self.with_link(|link| link.submit(Body::Op(request), deadline, completion));
            return;
        }
        let is_deferred = self.with_link(|link| {
            link.submit_deferred(Body::Op(request), deadline, completion);
            link.has_deferred()
        });
        if is_deferred && self.deferred.begin(self.now()) {
            self.wake_ticker();
        }
    }

    /// Does something with the link, and what follows from it: writes, runs completions.
    fn with_link<T>(&self, act: impl FnOnce(&mut Link<CallCompletion>) -> T) -> T {
        let mut ended = Vec::new();
        let (answer, output) = {
            let mut link = self.link.lock();
            let answer = act(&mut link);
            if link.has_completions() {
                link.take_completions(&mut ended);
            }
            (answer, link.has_output())
        };
        if output {
            self.writer.offer();
            let guard = ReentrancyGuard::of(self);
            if guard.is_elsewhere() {
                self.write_in_passing();
            } else if !guard.is_on() {
                self.write_all();
            }
        }
        self.complete(&mut ended);
        answer
    }

    /// Runs completions. The calls that the last of them submit are left to be written.
    fn complete(&self, ended: &mut Vec<FinishedCall<CallCompletion>>) {
        for (number, FinishedCall { id, done, result, misdirected }) in ended.drain(..).enumerate()
        {
            if number > 0 && number.is_multiple_of(WRITE_EVERY) {
                self.write_some();
            }
            match done {
                CallCompletion::Admin => self.admin.end(id, result),
                completion => completion.give(result, misdirected),
            }
        }
    }

    /// Whether the node has moved since `moves` moves were counted.
    fn is_elsewhere(&self, moves: u64) -> bool {
        self.route.lock().moves() != moves
    }

    fn is_closing(&self) -> bool {
        *self.life.lock() != Life::Open
    }

    fn close(&self, deadline: Duration) {
        self.drain(deadline);
        self.end(Link::bye);
    }

    /// Waits until no call is without answer, for so long at most, and while the node is there.
    fn drain(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        self.writer.offer();
        self.write_some();
        loop {
            let (stats, is_up) = {
                let link = self.link.lock();
                (link.stats(), link.is_up())
            };
            let is_quiet = stats.in_flight == 0 && stats.waiting == 0;
            if is_quiet || !is_up || Instant::now() >= end {
                return is_quiet;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the link in one way or another, and with it the threads.
    fn end(&self, how: impl FnOnce(&mut Link<CallCompletion>)) {
        self.with_link(how);
        self.write_some();
        {
            let mut life = self.life.lock();
            if *life == Life::Open {
                *life = Life::Closing;
            }
        }
        self.changed.notify_all();
        self.writer.finish();
    }
}
