//! FUSE over io_uring (Linux 6.14): requests and replies without a `read` and a `write` for each.
//!
//! | file | |
//! | --- | --- |
//! | `ring` | an io_uring, straight from the system calls |
//! | `queues` | the kernel's queues of some processors, served through one io_uring |
//! | `entries` | memory of the entries of a ring: a header and a payload buffer each |
//! | `cpus` | processors as the kernel counts them, and whether io_uring is allowed |
//!
//! # How it works
//!
//! The kernel keeps a queue of requests for every processor that the machine may ever have, and a
//! request goes to the queue of the processor its caller runs on. The transport gives each queue
//! some *entries* (`entries`): buffers that the kernel fills with a request, which it announces by
//! the completion of a command in an io_uring (`ring`). The reply goes into the same buffer, and a
//! command *commits* it and takes the entry back for the next request. One system call does both,
//! and when requests wait already, no thread sleeps or wakes in between. FORGET, INTERRUPT and
//! notifications still travel over `/dev/fuse`, which a thread of its own reads; it also learns how
//! the connection ends.
//!
//! # Threads
//!
//! As many rings as there are serving threads by [`Config::workers`](crate::Config::workers), but
//! not more than queues, which are dealt out to them (`queues`). A ring has one *worker slot* (see
//! [`block_in_place`](crate::block_in_place)): the thread in it serves the ring, and a handler that
//! has to wait leaves the slot to a spare thread, which goes on with the same ring. Replies may
//! come from any thread at any time.
//!
//! The kernel copies a request in the thread that last committed the entry. Were that put off until
//! that thread wants it (IORING_SETUP_DEFER_TASKRUN, which is a little faster), requests would lie
//! in the entries of a thread with a waiting handler, and not even an abort of the connection would
//! free their callers. So this transport does without: a thread that sleeps in a handler is woken
//! by the kernel for the moment that the copying takes (its system call then goes on, or returns
//! EINTR where that is allowed), and the thread that has the slot gets the request. Only a thread
//! that waits uninterruptibly, for a local disk, delays the requests of the entries it committed
//! last.
//!
//! The thread that has a ring's slot runs on the ring's processors only, where the callers of its
//! requests are: the waking of another processor, twice for each request, costs more than all else
//! here (two to three times the rate with one caller; a virtual machine of 2 processors). A handler
//! that gives its slot away may run anywhere again, and a handler that starts threads has to do
//! that first: they inherit the processors.
//!
//! # Memory
//!
//! [`Config::ring_entries`](crate::Config::ring_entries) for each queue at the start, and at most
//! [`ENTRIES_MORE`] of a session beyond these, for queues with entries that the file system holds.
//! Each has address space for the largest request, and takes memory as far as a request or reply
//! ever reached: a getattr half a kilobyte, a READ what was read. The kernel uses the entry that
//! came back last, so the total follows the number of requests that are under way at once.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Condvar, Mutex};

use crate::config::Config;
use crate::transport::device::{Device, DeviceConfig, clone_device};
use crate::transport::worker_slots::{WorkerSlot, WorkerSlots};
use crate::transport::{End, ReplyChannel, RequestSink, Transport};

mod cpus;
mod entries;
mod queues;
mod ring;

use cpus::CpuSet;
use queues::{Left, Queues};

pub(crate) use cpus::why_not_offered;

/// Most entries of a session beyond those it starts with: so many requests more can be under way.
pub const ENTRIES_MORE: usize = 1024;

/// Bounds of [`Config::ring_entries`](crate::Config::ring_entries).
pub const RING_ENTRIES_MAX: usize = 256;

/// Rings and a device for the rest.
pub(crate) struct Uring {
    rings: Vec<Arc<Queues>>,
    slots: Arc<WorkerSlots>,
    /// FORGET and INTERRUPT, and the end. Set when the kernel has taken the first entries.
    device: Device,
    spare: usize,
    start: Start,
}

/// Rings for a connection before the answer to its INIT. Once INIT is answered, with the flag, the
/// kernel holds all requests back until every queue has an entry; so what may fail is done before.
pub(crate) struct Prepared {
    rings: Vec<Arc<Queues>>,
    failed: Arc<AtomicU64>,
}

impl Prepared {
    /// Makes the rings, each with a descriptor of its own: one file's count of users would be
    /// contended. `failed` counts replies that the kernel refuses.
    pub(crate) fn new(
        device: &OwnedFd,
        config: &Config,
        failed: Arc<AtomicU64>,
    ) -> io::Result<Prepared> {
        let queues = cpus::possible()?;
        let (rings, payload_bytes) = (config.threads().0.clamp(1, queues), config.payload_bytes());
        let depth = config.ring_entries.clamp(1, RING_ENTRIES_MAX);
        let entries = (depth, config.ring_entries_more.min(ENTRIES_MORE) / rings);
        let rings = (0..rings).map(|first| {
            let cpus = (first..queues).step_by(rings).map(|cpu| cpu as u16);
            let device = clone_device(device.as_raw_fd())?;
            Queues::new(device, cpus, entries, payload_bytes, failed.clone()).map(Arc::new)
        });
        let rings = rings.collect::<io::Result<_>>().map_err(explain)?;
        Ok(Prepared { rings, failed })
    }

    /// The transport, after INIT, with which `max_write` was settled.
    pub(crate) fn with(self, fd: Arc<OwnedFd>, spare: usize, max_write: u32) -> io::Result<Uring> {
        let config =
            DeviceConfig { threads: (1, 0), clone_fd: false, max_write, hands_over: false };
        let device = Device::new(fd, Vec::new(), &config, self.failed)?;
        let (slots, start) = (WorkerSlots::new(self.rings.len()), Start::new(self.rings.len()));
        Ok(Uring { rings: self.rings, slots, device, spare, start })
    }
}

/// The advice for errors that are not the machine's.
fn explain(error: io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use io_uring (sysctl kernel.io_uring_disabled, or the \
             container's rules)"
        }
        Some(libc::ENOSYS) => "the kernel has no io_uring, or the container's rules forbid it",
        Some(libc::EINVAL) => "the kernel's io_uring is too old; Linux 6.14 is needed",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {hint}"))
}

impl Uring {
    /// How many there are: so many threads serve at a time.
    pub(crate) fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Waits until the kernel has an entry for every queue and so uses them, or has refused one;
    /// then the threads have left, and the kernel goes on with the device.
    pub(crate) fn wait_for_start(&self) -> io::Result<()> {
        self.start.wait()
    }

    /// The connection has ended, or never began.
    fn close(&self, end: End) {
        self.slots.close(end);
        self.rings.iter().for_each(|ring| ring.wake());
    }

    /// One of the threads for rings.
    fn serve_rings(&self, sink: &dyn RequestSink) -> io::Result<End> {
        let everywhere = CpuSet::of_thread();
        let worker = WorkerSlot::with_leaving(self.slots.clone(), move || {
            everywhere.iter().for_each(CpuSet::bind_thread);
        });
        let mut names = queues::names();
        loop {
            if let Some(end) = worker.end() {
                return Ok(end);
            }
            let slot = match worker.acquire() {
                Ok(slot) => slot,
                Err(end) => return Ok(end),
            };
            let ring = &self.rings[slot];
            if let Err(error) = ring.register() {
                self.start.failed(error);
                self.close(End::Aborted);
                continue;
            }
            self.start.registered(slot);
            let channel: Arc<dyn ReplyChannel> = ring.clone();
            if let Left::Failed(error) = ring.serve(&worker, &channel, &mut names, sink) {
                self.close(End::Aborted);
                return Err(error);
            }
        }
    }
}

impl Transport for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn threads(&self) -> usize {
        1 + self.rings.len() + self.spare
    }

    fn serve(&self, thread: usize, sink: &dyn RequestSink) -> io::Result<End> {
        if thread < self.rings.len() + self.spare {
            return self.serve_rings(sink);
        }
        if self.start.wait().is_err() {
            return Ok(End::Aborted);
        }
        let end = self.device.serve(0, sink);
        self.close(*end.as_ref().unwrap_or(&End::Aborted));
        end
    }

    fn give_up(&self) {
        self.start.failed(io::Error::other("the session did not start"));
        self.close(End::Aborted);
    }
}

/// Which rings the kernel has taken.
struct Start {
    state: Mutex<StartState>,
    changed: Condvar,
}

struct StartState {
    /// By ring.
    registered: Vec<bool>,
    /// Why it will not come to that.
    failure: Option<(io::ErrorKind, String)>,
}

impl Start {
    fn new(rings: usize) -> Start {
        let state = StartState { registered: vec![false; rings], failure: None };
        Start { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn registered(&self, ring: usize) {
        self.state.lock().registered[ring] = true;
        self.changed.notify_all();
    }

    fn failed(&self, error: io::Error) {
        self.state.lock().failure.get_or_insert_with(|| (error.kind(), error.to_string()));
        self.changed.notify_all();
    }

    fn wait(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            if let Some((kind, text)) = &state.failure {
                return Err(io::Error::new(*kind, text.clone()));
            }
            if state.registered.iter().all(|registered| *registered) {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }
}
