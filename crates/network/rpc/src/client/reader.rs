//! The thread that connects, reads, and runs completions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::wire::{self, Frames, ToClient, Welcome};

use super::completion::CallCompletion;
use super::dial::NotDialed;
use super::reentrancy::ReentrancyGuard;
use super::socket::Socket;
use super::{Life, Shared, Start, count, dial};
use crate::backoff::{Backoff, PAUSE_MAX};
use crate::session::{FinishedCall, LinkEvent};

/// A connection that served for less time than this counts as a failed attempt: whatever ended it
/// may do so again.
const LASTING: Duration = Duration::from_secs(1);

/// Longest pause while no node answers, or a node has no lease yet: a server that was started again
/// waits for its clients no longer than their lease.
const PAUSE_AWAY_MAX: Nanos = SECOND / 2;

/// Time between two looks, while it connects, whether it should connect elsewhere.
const DIAL_POLL: Duration = Duration::from_millis(20);

/// An outage of the node, as this client sees it.
#[derive(Default)]
struct Outage {
    /// Served before, and not since.
    since: Option<Instant>,
    /// The source of what is reclaimed ([`ReclaimSource`]) was told of it.
    reported: bool,
}

/// Until the connection is closed: connects, serves, and again.
pub(super) fn run(shared: &Shared) {
    ReentrancyGuard::of(shared).take();
    connect(shared);
    *shared.life.lock() = Life::Ended;
    shared.changed.notify_all();
}

fn connect(shared: &Shared) {
    let [s0, s1, s2, s3, s4, s5, s6, s7, ..] = dial::random();
    let mut backoff = Backoff::new(u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]));
    // Calls may wait for the first connection as for any other.
    let since = matches!(*shared.start.lock(), Start::NotAwaited).then(Instant::now);
    let mut reader = Reader {
        shared,
        outage: Outage { since, reported: false },
        served: false,
        shut_out: false,
    };
    while !shared.is_closing() {
        (reader.served, reader.shut_out) = (false, false);
        let begun = Instant::now();
        let ((addresses, first), moves) = {
            let route = shared.route.lock();
            (route.plan(), route.moves())
        };
        let (at, why) = match dial(shared, &addresses, first, moves) {
            None => {
                backoff.served();
                continue;
            }
            Some(Ok((socket, index))) => {
                let name = &addresses[index];
                shared.route.lock().turn_to(name);
                let why = reader.serve(Arc::new(socket), moves);
                (Some(name.clone()), why)
            }
            Some(Err(failed)) => {
                if failed.hopeless {
                    reader.hopeless(failed.why.clone(), false);
                }
                if failed.reached {
                    reader.reached();
                }
                (None, failed.why)
            }
        };
        if shared.is_closing() {
            break;
        }
        if reader.served {
            log::info!(
                "net: connection to the metadata server {} lost: {why}",
                at.as_deref().unwrap_or_default()
            );
            reader.outage.since = Some(Instant::now());
            if begun.elapsed() >= LASTING {
                // It may have been the connection only: try again at once.
                backoff.served();
                continue;
            }
        } else {
            reader.failed(at, why);
        }
        let longest = if reader.shut_out { PAUSE_MAX } else { PAUSE_AWAY_MAX };
        let now = shared.now();
        let pause = (backoff.failed(now) - now).max(0);
        // Drawn from the upper half, as longer ones are.
        let pause = if pause > longest { longest / 2 + pause % (longest / 2) } else { pause };
        let pause = Duration::from_nanos(pause.cast_unsigned());
        shared.route.lock().turn();
        let mut life = shared.life.lock();
        if shared.is_elsewhere(moves) {
            backoff.served();
        } else if *life == Life::Open {
            shared.changed.wait_for(&mut life, pause);
        }
    }
}

/// Connects, on a thread of its own: a machine that is gone answers nothing for seconds, while
/// another node may already have given the node's new address. None if a new address came, or the
/// connection is being closed.
fn dial(
    shared: &Shared,
    addresses: &[String],
    first: usize,
    moves: u64,
) -> Option<Result<(Socket, usize), NotDialed>> {
    let (done, dialed) = mpsc::channel();
    let (to, tls) = (addresses.to_vec(), shared.config.tls.clone());
    let dials = move || {
        // A caller that does not wait any more has no use for it.
        let _ = done.send(dial::dial(&to, first, &tls));
    };
    if std::thread::Builder::new().name("kestrel-net-dial".into()).spawn(dials).is_err() {
        return Some(dial::dial(addresses, first, &shared.config.tls));
    }
    loop {
        match dialed.recv_timeout(DIAL_POLL) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) if shared.is_closing() || shared.is_elsewhere(moves) => {
                return None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let why = "the thread that connects has failed".into();
                return Some(Err(NotDialed { why, ..NotDialed::default() }));
            }
        }
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    outage: Outage,
    /// Calls were served on the present connection.
    served: bool,
    /// The server refuses this client for longer than a moment.
    shut_out: bool,
}

impl Reader<'_> {
    /// An address has taken a connection.
    fn reached(&self) {
        if let Start::Waiting { reached, .. } = &mut *self.shared.start.lock() {
            *reached = true;
        }
    }

    /// An attempt failed, at this address if it took a connection.
    fn failed(&mut self, at: Option<String>, why: String) {
        if self.outage.since.is_some() && !self.outage.reported {
            self.outage.reported = true;
            let why = at.as_ref().map_or_else(|| why.clone(), |at| format!("{at}: {why}"));
            self.shared.holder.outage(&why);
        }
        if let Start::Waiting { tried, reached } = &mut *self.shared.start.lock() {
            *reached |= at.is_some();
            if at.is_none() {
                // No address takes connections any more.
                tried.clear();
            }
            tried.insert(at, why);
        }
    }

    /// Uses a connection to its end; answers why it ended.
    fn serve(&mut self, socket: Arc<Socket>, moves: u64) -> String {
        let shared = self.shared;
        shared.writer.install(socket.clone(), moves);
        // A thread that redirects this client later finds this connection and cuts it.
        if shared.is_elsewhere(moves) {
            shared.writer.remove();
            return "the node is elsewhere".into();
        }
        shared.link.lock().connected(shared.now(), socket.security().clone());
        shared.writer.offer();
        shared.write_some();
        let why = self.read(&socket);
        shared.writer.remove();
        let mut ended = Vec::new();
        {
            let mut link = shared.link.lock();
            link.disconnected(shared.now());
            link.take_completions(&mut ended);
        }
        shared.complete(&mut ended);
        why
    }

    fn read(&mut self, socket: &Socket) -> String {
        let shared = self.shared;
        let mut frames = Frames::default();
        let mut messages: Vec<ToClient> = Vec::new();
        let mut ended: Vec<FinishedCall<CallCompletion>> = Vec::new();
        loop {
            if shared.writer.is_stuck() {
                // Answers are taken while requests wait for room; see the module's header.
                match socket.wait(true, Duration::from_secs(1)) {
                    Ok(ready) => {
                        if ready.write {
                            shared.write_some();
                        }
                        if !ready.read {
                            continue;
                        }
                    }
                    Err(error) => return error.to_string(),
                }
            }
            match socket.read_some(frames.space()) {
                Ok(0) => return "the other side has closed the connection".into(),
                Ok(read) => {
                    frames.filled(read);
                    count(&shared.traffic.bytes_received, read);
                    count(&shared.traffic.reads, 1);
                }
                Err(error) => return error.to_string(),
            }
            let decoded = decode(&mut frames, &mut messages);
            let received = {
                let mut link = shared.link.lock();
                let received = link.received(shared.note_time(), &mut messages);
                link.take_completions(&mut ended);
                if link.has_output() {
                    shared.writer.offer();
                }
                received
            };
            // What precedes an answer, the answers, and then the session: what the holder reclaims
            // has to include them.
            let events = self.take_events();
            shared.complete(&mut ended);
            if let Err(why) = self.events(events) {
                return why;
            }
            if let Err(why) = decoded.and(received.map_err(|broken| broken.to_string())) {
                return why;
            }
            shared.write_some();
        }
    }

    /// Passes on what precedes answers, and answers what else happened.
    fn take_events(&self) -> VecDeque<LinkEvent> {
        let mut events: VecDeque<LinkEvent> = {
            let mut link = self.shared.link.lock();
            std::iter::from_fn(|| link.next_event()).collect()
        };
        events.retain_mut(|event| {
            if let LinkEvent::AdminEvent { id, json } = event {
                self.shared.admin.event(*id, std::mem::take(json));
                return false;
            }
            true
        });
        events
    }

    /// Does what events ask for, and those that come of it.
    fn events(&mut self, mut events: VecDeque<LinkEvent>) -> Result<(), String> {
        let shared = self.shared;
        loop {
            let event = events.pop_front().or_else(|| shared.link.lock().next_event());
            match event {
                None => return Ok(()),
                Some(LinkEvent::Welcomed(welcome)) => self.welcomed(welcome)?,
                Some(LinkEvent::Serving) => self.serving(),
                Some(LinkEvent::MapVersion { version }) => shared.holder.newer_table(version),
                Some(LinkEvent::ReclaimWanted { lost }) => {
                    let held = shared.holder.reclaim(lost);
                    shared.link.lock().reclaim(held);
                    shared.writer.offer();
                }
                Some(LinkEvent::Reclaimed { lost, replies }) => {
                    shared.holder.reclaimed(replies, lost)
                }
                Some(LinkEvent::AdminEvent { id, json }) => shared.admin.event(id, json),
                Some(LinkEvent::Refused(refused)) => {
                    // Some refusals pass: too many connections, a node that starts or stops.
                    let passing = matches!(
                        refused.errno,
                        libc::EAGAIN | libc::EBUSY | libc::EUSERS | libc::ESHUTDOWN | libc::ESTALE
                    );
                    self.shut_out = matches!(refused.errno, libc::EBUSY | libc::EUSERS);
                    if !passing {
                        *shared.refusal.lock() = Some(refused.reason.clone().into_owned());
                        self.hopeless(refused.reason.into_owned(), refused.errno == libc::ENOENT);
                    }
                }
            }
        }
    }

    fn welcomed(&mut self, welcome: Welcome) -> Result<(), String> {
        let answer = self.shared.holder.welcomed(&welcome);
        match answer {
            Ok(()) => {
                self.shared.link.lock().accept();
                self.shared.writer.offer();
                let mut start = self.shared.start.lock();
                if matches!(*start, Start::Waiting { .. }) {
                    *start = Start::Serving(Box::new(welcome));
                    self.shared.started.notify_all();
                }
                Ok(())
            }
            Err(why) => {
                self.hopeless(why.clone(), false);
                Err(why)
            }
        }
    }

    /// Waiting for a first connection is of no use.
    fn hopeless(&mut self, why: String, is_unknown: bool) {
        self.shut_out = true;
        let mut start = self.shared.start.lock();
        if matches!(*start, Start::Waiting { .. }) {
            *start = Start::Hopeless { why, is_unknown };
            self.shared.started.notify_all();
        }
    }

    fn serving(&mut self) {
        self.served = true;
        *self.shared.refusal.lock() = None;
        let outage = std::mem::take(&mut self.outage);
        if let (Some(since), true) = (outage.since, outage.reported) {
            self.shared.holder.restored(since.elapsed());
        }
    }
}

/// Moves whole messages to `messages`.
fn decode(frames: &mut Frames, messages: &mut Vec<ToClient>) -> Result<(), String> {
    loop {
        let frame = match frames.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(error) => return Err(format!("the metadata server sent {error}")),
        };
        match wire::decode_to_client(frame) {
            Ok(message) => messages.push(message),
            Err(error) => return Err(format!("the metadata server sent {error}")),
        }
    }
}
