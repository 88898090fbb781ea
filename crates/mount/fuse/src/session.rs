//! Sessions: a mounted file system being served.
//!
//! | file | |
//! | --- | --- |
//! | `start` | the start of a session: agreement with the kernel, transport, threads |

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::abi::{InHeader, Opcode};
use crate::config::{Config, Negotiated};
use crate::error::{Error, Result};
use crate::mount::{Mount, Unmounter};
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{Dialect, Malformed, Operation, Request};
use crate::transport::{End, Intake, ReplyChannel, RequestSink};

mod start;

/// A file system: answers requests.
///
/// All methods are called from several threads at once.
pub trait FileSystem: Send + Sync + 'static {
    /// The mount is there and INIT is settled; requests follow. An error (errno) undoes the mount.
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> std::result::Result<(), i32> {
        let _ = (negotiated, notifier);
        Ok(())
    }

    /// Answers one request, now or later: `reply` may go to another thread, `request` borrows the
    /// receive buffer and may not. The serving thread takes no further request before this returns,
    /// so long waits belong elsewhere, or into [`block_in_place`](crate::block_in_place). Over
    /// io_uring an answer that the serving thread gives leaves when it returns from here, or waits
    /// in `block_in_place`; answers of other threads leave at once. A panic is caught, and answers
    /// EIO.
    fn handle(&self, request: Request<'_>, reply: Reply);

    /// The connection has ended and no further request will come; replies still out are of no use
    /// any more. Called once, from one of the serving threads. Files that were open need not have
    /// been released: the kernel does not wait for that when it unmounts.
    fn destroy(&self) {}
}

impl<F: FileSystem> FileSystem for Arc<F> {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> std::result::Result<(), i32> {
        (**self).init(negotiated, notifier)
    }
    fn handle(&self, request: Request<'_>, reply: Reply) {
        (**self).handle(request, reply);
    }
    fn destroy(&self) {
        (**self).destroy();
    }
}

/// A mounted file system and the threads that serve it.
///
/// It ends when the file system is unmounted, by any process; [`join`](Session::join) waits for
/// that. Dropping a session that has not ended unmounts by force.
pub struct Session {
    threads: Vec<JoinHandle<io::Result<End>>>,
    workers: usize,
    negotiated: Negotiated,
    notifier: Notifier,
    unmounter: Unmounter,
    transport: &'static str,
    transport_why: String,
    counters: Arc<Counters>,
    /// Descriptors of the connection, if it is served over the device.
    descriptors: Vec<Arc<OwnedFd>>,
    intake: Option<Intake>,
    /// The mount goes with the session.
    unmounts: bool,
}

/// Things that should not happen, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Requests that made no sense.
    pub malformed: u64,
    /// Requests of unknown operations, answered ENOSYS.
    pub unknown: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Replies that the kernel refused.
    pub refused: u64,
}

#[derive(Default)]
struct Counters {
    malformed: AtomicU64,
    unknown: AtomicU64,
    panics: AtomicU64,
    refused: Arc<AtomicU64>,
}

impl Session {
    /// Agrees with the kernel on how to talk, and starts serving. When this returns, the mount
    /// works. On an error the mount is gone. Threads do not survive a fork: go to the background
    /// before.
    pub fn start<F: FileSystem>(mount: Mount, fs: F, config: &Config) -> Result<Session> {
        start::start(mount, fs, config)
    }

    /// What INIT settled.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Name of the transport in use: "device" or "io_uring".
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Why it is that one, in a few words.
    pub fn transport_why(&self) -> &str {
        &self.transport_why
    }

    /// Sends notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Ends the session from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Number of threads that serve at a time.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The descriptors of the connection, of a session with [`Config::hands_over`]. The kernel ends
    /// what was read from a descriptor when the last process closes it, and the connection with
    /// the last descriptor.
    pub fn descriptors(&self) -> &[Arc<OwnedFd>] {
        &self.descriptors
    }

    /// What stops requests, of a session with [`Config::hands_over`].
    pub fn intake(&self) -> Option<Intake> {
        self.intake.clone()
    }

    /// Things that should not happen, counted.
    pub fn stats(&self) -> SessionStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SessionStats {
            malformed: get(&self.counters.malformed),
            unknown: get(&self.counters.unknown),
            panics: get(&self.counters.panics),
            refused: get(&self.counters.refused),
        }
    }

    /// Whether the connection has ended and all threads with it.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| thread.is_finished())
    }

    /// Waits until the file system is unmounted and [`FileSystem::destroy`] has returned.
    pub fn join(mut self) -> Result<End> {
        let mut outcome = Ok(End::Unmounted);
        for thread in std::mem::take(&mut self.threads) {
            match thread.join() {
                Ok(Ok(End::Unmounted)) => {}
                Ok(Ok(End::Aborted)) => outcome = outcome.map(|_| End::Aborted),
                Ok(Err(error)) => outcome = Err(Error::new("reading /dev/fuse failed", error)),
                Err(_) => {
                    outcome =
                        Err(Error::plain("a serving thread ended", "panic outside of a handler"))
                }
            }
        }
        if !matches!(outcome, Ok(End::Unmounted)) {
            // The mount point of a dead connection answers ENOTCONN until it is taken away.
            let _ = self.unmounter.detach();
        }
        outcome
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over() && self.unmounts {
            // Threads are not waited for: a handler may hang.
            let _ = self.unmounter.force();
        }
    }
}

/// The session's part that serving threads share.
struct Core<F> {
    fs: F,
    dialect: Dialect,
    counters: Arc<Counters>,
    /// Threads that have not left.
    serving: AtomicUsize,
}

impl<F: FileSystem> Core<F> {
    /// `count` threads have ended, or never began; the last one ends the session.
    fn leave(&self, count: usize) {
        if self.serving.fetch_sub(count, Ordering::AcqRel) == count
            && catch_unwind(AssertUnwindSafe(|| self.fs.destroy())).is_err()
        {
            self.counters.panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn deliver(
        &self,
        parsed: std::result::Result<Request<'_>, Malformed>,
        slot: u64,
        channel: &Arc<dyn ReplyChannel>,
    ) {
        match parsed {
            Ok(request) => {
                let reply = Reply::new(channel.clone(), request.unique, slot, request.opcode);
                if let Operation::Destroy = request.op {
                    return reply.empty();
                }
                if catch_unwind(AssertUnwindSafe(|| self.fs.handle(request, reply))).is_err() {
                    self.counters.panics.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(Malformed::UnknownOpcode { unique, .. }) => {
                self.counters.unknown.fetch_add(1, Ordering::Relaxed);
                // The opcode of the token only matters for mute operations.
                Reply::new(channel.clone(), unique, slot, Opcode::Destroy).error(libc::ENOSYS);
            }
            Err(Malformed::Arguments { unique, opcode }) => {
                self.counters.malformed.fetch_add(1, Ordering::Relaxed);
                Reply::new(channel.clone(), unique, slot, opcode).error(libc::EIO);
            }
            Err(Malformed::Header) => {
                self.counters.malformed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl<F: FileSystem> RequestSink for Core<F> {
    #[inline]
    fn message(&self, message: &[u8], slot: u64, channel: &Arc<dyn ReplyChannel>) {
        self.deliver(Request::parse(message, &self.dialect), slot, channel);
    }

    #[inline]
    fn message_split(
        &self,
        header: &InHeader,
        fixed: &[u8],
        payload: &[u8],
        slot: u64,
        channel: &Arc<dyn ReplyChannel>,
    ) {
        self.deliver(
            Request::parse_split(header, fixed, Some(payload), &self.dialect),
            slot,
            channel,
        );
    }
}
