//! Group commit for data: what many threads store at one moment goes into one object with one write.
//!
//! **Rounds.** A thread that brings data computes its checks, queues it and tries to take a *lane* (an open pack). If it
//! gets one it drains the queue, writes everything with one vectored append and calls back; if all lanes are taken, whoever
//! holds them will see the queue before leaving (flat combining: Hendler, Incze, Shavit, Tzafrir, 2010). So load makes
//! rounds large by itself, a lone store is written at once on its own thread, and there is no timer and no hand-off.
//!
//! **Levels.** [`Level::Process`]: called back as soon as the bytes are in the store's hands (they survive the death of the
//! process; a later [`BlockStore::sync`] makes them durable). [`Level::Disk`]: written in the same way, in a lane of its
//! own, then handed to the finisher thread, which syncs whatever has gathered meanwhile with one sync and calls back:
//! writing of the next round overlaps with the sync of this one.
//!
//! **Stores that cannot append** (object stores): uploader threads drain the queue into one object a round. A second one
//! starts only when the queue holds a good deal more, so that a burst shares objects instead of spreading over threads.
//!
//! **Large payloads** get an object of their own, written on the thread that brings them.
//!
//! **Failures.** A failed append hits the members of its round only. Its pack takes no more appends (bytes behind the
//! failure are unknown), what was in it before stays, and the next round begins a new one. After an I/O error (not for lack
//! of space) the round itself is tried once more in a new pack.
//!
//! **Open objects.** Everyone who may still refer to an object holds a [`Pin`]: the lane while it appends, and each
//! [`Placed`] until its owner has committed (or given up) the reference. [`Packer::is_open`] tells whether there is one;
//! what deletes unreferenced objects must leave pinned ones alone.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::range::{RANGE_BYTES_MAX, Range};
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::frame;
use crate::object::VolumeId;
use crate::payload::Payload;
use crate::store::BlockStore;

mod finish;
mod pack;
mod pins;

use finish::Finisher;
use pack::{Lane, Writer};
pub use pins::Pin;
use pins::Pins;

/// Largest pack, bytes. Also the most bytes in one round.
pub const PACK_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Settings of a [`Packer`].
#[derive(Debug, Clone)]
pub struct PackerConfig {
    /// Identity written into every object.
    pub volume: VolumeId,
    /// A pack that reached this many bytes is sealed; at most [`PACK_BYTES_MAX`].
    pub pack_bytes: u64,
    /// Payloads of this many bytes and more get an object of their own.
    pub own_object_bytes: usize,
    /// Open packs for [`Level::Process`]: how many threads can copy at the same time.
    pub lanes: usize,
    /// Uploader threads for stores that cannot append.
    pub uploads: usize,
    /// Queued bytes that are worth another concurrent upload.
    pub parallel_upload_bytes: u64,
    /// An open pack that took nothing for this long (up to twice) is sealed.
    pub idle: Duration,
}

impl PackerConfig {
    /// The defaults for a volume.
    pub fn new(volume: VolumeId) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            volume,
            pack_bytes: PACK_BYTES_MAX,
            own_object_bytes: 1024 * 1024,
            lanes: cores.min(4),
            uploads: 4,
            parallel_upload_bytes: 4 * 1024 * 1024,
            idle: Duration::from_secs(10),
        }
    }
}

/// How safe bytes must be before their owner is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Safe from the death of this process.
    Process,
    /// Safe from power loss.
    Disk,
}

/// Stored bytes: where they are, and the promise that they stay until somebody refers to them.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Where the bytes are.
    pub range: Range,
    /// Keep until the reference is committed.
    pub pin: Pin,
}

/// Hands out object numbers, each once.
pub trait ObjectIds: Send + Sync {
    /// A number never handed out before.
    ///
    /// # Errors
    /// If none can be had now; what wanted it fails with this error.
    fn next(&self) -> Result<ObjectId>;
}

impl<F: Fn() -> Result<ObjectId> + Send + Sync> ObjectIds for F {
    fn next(&self) -> Result<ObjectId> {
        self()
    }
}

/// Takes the results of a whole round at once, so that they can be committed to metadata as one batch.
pub trait RoundSink: Send + Sync + 'static {
    /// What the caller gave to [`Packer::submit`].
    type Tag: Send + 'static;

    /// Everything of one round (for [`Level::Disk`]: of one sync) that was submitted with a tag. Runs on the thread of some
    /// submitter or of the packer: must not block for long. It may submit more.
    fn round(&self, results: Vec<(Self::Tag, Result<Placed>)>);
}

/// For packers whose users want single callbacks only.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSink;

impl RoundSink for NoSink {
    type Tag = std::convert::Infallible;

    fn round(&self, _results: Vec<(Self::Tag, Result<Placed>)>) {}
}

/// Who is told.
enum Done<T> {
    Tag(T),
    Call(Box<dyn FnOnce(Result<Placed>) + Send>),
}

/// Something to store.
struct Submission<T> {
    payload: Payload,
    /// [`frame::data_checks`] of the payload.
    checks: Vec<u32>,
    inode: InodeId,
    level: Level,
    done: Done<T>,
}

/// Submissions that wait, and their bytes.
struct Queue<T> {
    waiting: VecDeque<Submission<T>>,
    bytes: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<T> Queue<T> {
    fn push(&mut self, submission: Submission<T>) {
        self.bytes += submission.payload.len() as u64;
        self.waiting.push_back(submission);
    }

    /// The next round: at least one submission if there is any, then as many as stay within `bytes_max`.
    fn take(&mut self, bytes_max: u64) -> Vec<Submission<T>> {
        let mut bytes = 0;
        let mut count = 0;
        for submission in &self.waiting {
            bytes += submission.payload.len() as u64;
            if count > 0 && bytes > bytes_max {
                bytes -= submission.payload.len() as u64;
                break;
            }
            count += 1;
        }
        self.bytes -= bytes;
        self.waiting.drain(..count).collect()
    }
}

/// Counters, since the packer was made.
#[derive(Debug, Default)]
pub struct PackerStats {
    /// Rounds written.
    pub rounds: AtomicU64,
    /// Members of those rounds.
    pub members: AtomicU64,
    /// Logical bytes stored, objects of their own included.
    pub bytes: AtomicU64,
    /// Objects begun.
    pub objects: AtomicU64,
    /// Syncs made for [`Level::Disk`].
    pub syncs: AtomicU64,
    /// Failed writes and syncs.
    pub failures: AtomicU64,
}

/// Packs what many threads store. Dropping it closes it.
pub struct Packer<S: RoundSink = NoSink> {
    shared: Arc<Shared<S>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<S: RoundSink> {
    config: PackerConfig,
    writer: Writer,
    sink: S,
    /// Waiting for a lane of [`Level::Process`].
    process_queue: Mutex<Queue<S::Tag>>,
    process_lanes: Vec<Mutex<Lane>>,
    /// Waiting for the lane of [`Level::Disk`].
    disk_queue: Mutex<Queue<S::Tag>>,
    disk_lane: Mutex<Lane>,
    finisher: Finisher<S::Tag>,
    /// Whether the packer is closed. Held for reading while something is taken in, so that closing waits for it.
    closed: RwLock<bool>,
}

impl<S: RoundSink> Packer<S> {
    /// A packer that writes to `store`.
    ///
    /// # Errors
    /// `Io` if the system refuses a thread.
    pub fn new(
        store: Arc<dyn BlockStore>,
        ids: Arc<dyn ObjectIds>,
        sink: S,
        config: PackerConfig,
    ) -> Result<Self> {
        let config = PackerConfig {
            pack_bytes: config.pack_bytes.clamp(1, PACK_BYTES_MAX),
            own_object_bytes: config.own_object_bytes.min(PACK_BYTES_MAX as usize),
            ..config
        };
        let appends = store.appends().is_some();
        let shared = Arc::new(Shared {
            process_lanes: std::iter::repeat_with(Mutex::default).take(config.lanes.max(1)).collect(),
            writer: Writer::new(store, ids, &config),
            sink,
            process_queue: Mutex::default(),
            disk_queue: Mutex::default(),
            disk_lane: Mutex::default(),
            finisher: Finisher::default(),
            closed: RwLock::new(false),
            config,
        });
        let packer = Self { shared, threads: Mutex::default() };
        if appends {
            packer.start("kestrel-packer", Shared::finish_rounds)?;
        } else {
            for _ in 0..packer.shared.config.uploads.max(1) {
                packer.start("kestrel-upload", Shared::upload)?;
            }
        }
        Ok(packer)
    }

    fn start(&self, name: &str, run: fn(&Shared<S>)) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || run(&shared))
            .map_err(|source| Error::from_io("starting a thread", None, source))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Stores `data` for `inode` (recorded for recovery, nothing else) and calls `done` once, on this or another thread.
    ///
    /// Never waits for other stores: the queue is bounded by the [`crate::Budget`] that callers hold for their payloads. (It
    /// must not wait: callbacks store too, also while their thread is getting an object number with a lane in its hands.)
    pub fn store(
        &self,
        data: impl Into<Payload>,
        inode: InodeId,
        level: Level,
        done: Box<dyn FnOnce(Result<Placed>) + Send>,
    ) {
        self.shared.accept(data.into(), inode, level, Done::Call(done));
    }

    /// Like [`Packer::store`], telling the packer's [`RoundSink`], together with all others of the round.
    pub fn submit(&self, data: impl Into<Payload>, inode: InodeId, level: Level, tag: S::Tag) {
        self.shared.accept(data.into(), inode, level, Done::Tag(tag));
    }

    /// Whether somebody may still come to refer to bytes of this object that nothing refers to yet.
    pub fn is_open(&self, object: ObjectId) -> bool {
        self.shared.writer.pins.is_pinned(object)
    }

    /// Its counters.
    pub fn stats(&self) -> &PackerStats {
        &self.shared.writer.stats
    }

    /// Its sink.
    pub fn sink(&self) -> &S {
        &self.shared.sink
    }

    /// Seals all open packs: the next round begins new ones.
    pub fn seal_all(&self) {
        for lane in self.shared.lanes() {
            lane.lock().seal();
        }
    }

    /// Takes nothing more, finishes what was taken, seals and joins its threads. Not to be called from a callback.
    pub fn close(&self) {
        *self.shared.closed.write() = true;
        self.shared.finisher.close();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.thread().id() != std::thread::current().id() {
                // Callbacks' panics are caught; the hook has printed them.
                let _ = thread.join();
            }
        }
        self.seal_all();
    }
}

impl<S: RoundSink> Drop for Packer<S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<S: RoundSink> Shared<S> {
    fn lanes(&self) -> impl Iterator<Item = &Mutex<Lane>> {
        self.process_lanes.iter().chain([&self.disk_lane])
    }

    fn accept(&self, payload: Payload, inode: InodeId, level: Level, done: Done<S::Tag>) {
        if payload.is_empty() || payload.len() > RANGE_BYTES_MAX as usize {
            let what = "stored data must have 1 byte to 16 MiB";
            return self.tell(vec![(done, Err(Error::Invalid { what }))]);
        }
        // Recursive: a callback that runs below may store more.
        let closed = self.closed.read_recursive();
        if *closed {
            return self.tell(vec![(done, Err(Error::Closed { during: "storing data" }))]);
        }
        let checks = frame::data_checks(&payload);
        let submission = Submission { payload, checks, inode, level, done };
        if !self.writer.appends() {
            self.queue_upload(submission);
        } else if submission.payload.len() >= self.config.own_object_bytes {
            let round = vec![submission];
            let results = self.writer.write_object(&round);
            self.written(round, results);
        } else {
            self.combine(submission);
        }
    }

    /// Queues, then serves the queue as long as a lane is free and there is something in it. Whoever fails to get a lane
    /// queued before its holder's last look at the queue, which comes after the holder let the lane go: nothing is left.
    fn combine(&self, submission: Submission<S::Tag>) {
        let (queue, lanes) = match submission.level {
            Level::Process => (&self.process_queue, &self.process_lanes[..]),
            Level::Disk => (&self.disk_queue, std::slice::from_ref(&self.disk_lane)),
        };
        queue.lock().push(submission);
        while let Some(mut lane) = lanes.iter().find_map(Mutex::try_lock) {
            let round = queue.lock().take(self.config.pack_bytes);
            if round.is_empty() {
                return;
            }
            let begins = lane.is_sealed();
            let results = self.writer.write_round(&mut lane, &round);
            drop(lane);
            if begins {
                self.finisher.pack_begun();
            }
            self.written(round, results);
            if queue.lock().waiting.is_empty() {
                return;
            }
        }
    }

    /// What happens to a round after its write.
    fn written(&self, round: Vec<Submission<S::Tag>>, results: Result<Vec<Placed>>) {
        let mut told = Vec::with_capacity(round.len());
        match results {
            Ok(places) => {
                let mut unsynced = Vec::new();
                for (submission, placed) in round.into_iter().zip(places) {
                    match submission.level {
                        Level::Process => told.push((submission.done, Ok(placed))),
                        Level::Disk => unsynced.push((submission.done, placed)),
                    }
                }
                self.finisher.add(unsynced);
            }
            Err(error) => {
                told.extend(round.into_iter().map(|submission| (submission.done, Err(error.clone()))));
            }
        }
        self.tell(told);
    }

    /// Calls back: everything with a tag together, the rest one by one. Whoever runs this tells others than himself too, so
    /// a callback that panics (the hook prints it) must hit neither the next one nor this thread.
    fn tell(&self, results: Vec<(Done<S::Tag>, Result<Placed>)>) {
        let mut tagged = Vec::new();
        for (done, result) in results {
            match done {
                Done::Tag(tag) => tagged.push((tag, result)),
                Done::Call(call) => drop(catch_unwind(AssertUnwindSafe(|| call(result)))),
            }
        }
        if !tagged.is_empty() {
            let _ = catch_unwind(AssertUnwindSafe(|| self.sink.round(tagged)));
        }
    }
}

#[cfg(test)]
mod tests;
