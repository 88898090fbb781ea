//! Group commit for data: what many threads store at one moment goes into one object with one
//! write.
//!
//! | file | |
//! | --- | --- |
//! | `append` | rounds of a store that appends: pack streams, and the thread that seals idle ones |
//! | `upload` | rounds of a store that does not append: uploader threads, one object a round |
//! | `gather` | when an upload of small payloads begins: a decision, without I/O or a clock |
//! | `queue` | payloads that wait to be written |
//! | `pack` | writing a round: into the open pack, or as an object of its own |
//! | `pins` | [`Pin`]: objects that must not be deleted although nothing refers to them yet |
//!
//! **Stores that append** (local directories). A thread that brings data computes its checks,
//! queues it and tries to take a *pack stream* (an open pack). If it gets one it drains the queue,
//! writes everything with one vectored append and calls back; if all pack streams are taken, the
//! threads that hold them will see the queue before leaving (flat combining: Hendler, Incze,
//! Shavit, Tzafrir, 2010). So load makes rounds large by itself, a lone store is written at once on
//! its own thread, and there is no timer and no hand-off. Large payloads get an object of their
//! own, written on the thread that brings them.
//!
//! **Stores that do not** (object stores). Uploader threads put one object a round (`upload`).
//! While an upload of small payloads is under way the next round gathers; a lone store is uploaded
//! at once. Large payloads are uploads of their own, as many at a time as the settings allow.
//!
//! **Options.** Payloads that are to be compressed otherwise than the store does by itself, or kept
//! in another tier ([`Packer::store_with`]), share no object with others. They are uploaded, also
//! to a store that appends: nothing can be appended to a compressed object. The threads for that
//! are started when the first such payload comes.
//!
//! **What is promised.** A callback with success means that the bytes survive the death of the
//! process; a later [`BlockStore::sync`] makes them durable (which an acknowledged upload is at
//! once).
//!
//! **Failures.** A failed write hits the members of its round only. A pack takes no more after a
//! failed append (bytes behind the failure are unknown), what was in it before stays, and the next
//! round begins a new one. After an I/O error of a disk (not for lack of space) the round itself is
//! tried once more in a new object; a remote store has tried again already.
//!
//! **Open objects.** Everything that may still refer to an object holds a [`Pin`]: the pack stream
//! while it appends, and each [`StoredRange`] until its owner has committed (or given up) the
//! reference. [`Packer::is_open`] answers whether there is one; garbage collection must leave
//! pinned objects alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::range::{RANGE_BYTES_MAX, Range};
use kestrel_types::tier::Tier;
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::frame;
use crate::object::VolumeId;
use crate::payload::Payload;
use crate::store::{BlockStore, PutOptions};

mod append;
mod gather;
mod pack;
mod pins;
mod queue;
mod upload;

use append::PackStreams;
use pack::PackWriter;
pub use pins::Pin;
use pins::Pins;
use queue::Submission;
use upload::Uploads;

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
    /// Open packs of a store that appends: how many threads can copy at the same time.
    pub streams: usize,
    /// Uploads under way at a time, to a store that does not append; at least 1.
    pub uploads: usize,
    /// Small payloads that are worth another upload beside those under way, bytes.
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
            streams: cores.min(4),
            uploads: 20,
            parallel_upload_bytes: 8 * 1024 * 1024,
            idle: Duration::from_secs(10),
        }
    }
}

/// Stored bytes: where they are, and the pin that keeps them until something refers to them.
#[derive(Debug, Clone)]
pub struct StoredRange {
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

    /// The turn of what [`ObjectIds::next`] will return is not below this: numbers are taken one
    /// turn after the other. 0 if [`Packer::oldest_open`] is never called.
    fn floor(&self) -> u64 {
        0
    }

    /// Whether an object may be deleted although it is open here: nothing more is to be written to
    /// it.
    fn is_lost(&self, _object: ObjectId) -> bool {
        false
    }
}

impl<F: Fn() -> Result<ObjectId> + Send + Sync> ObjectIds for F {
    fn next(&self) -> Result<ObjectId> {
        self()
    }
}

/// The callback.
type Done = Box<dyn FnOnce(Result<StoredRange>) + Send>;

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
    /// Failed writes.
    pub failures: AtomicU64,
}

/// Packs what many threads store. Dropping it closes it.
pub struct Packer {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The uploader threads run.
    uploads: AtomicBool,
}

struct Shared {
    config: PackerConfig,
    writer: PackWriter,
    /// Open packs, if the store appends.
    streams: Option<PackStreams>,
    /// What is put as whole objects: everything, if the store does not append.
    uploads: Uploads,
    /// Whether the packer is closed. Held for reading while something is taken in, so that closing
    /// waits for it.
    closed: RwLock<bool>,
}

impl Packer {
    /// A packer that writes to `store`.
    ///
    /// # Errors
    /// `Io` if the system refuses a thread.
    pub fn new(
        store: Arc<dyn BlockStore>,
        ids: Arc<dyn ObjectIds>,
        config: PackerConfig,
    ) -> Result<Self> {
        let config = PackerConfig {
            pack_bytes: config.pack_bytes.clamp(1, PACK_BYTES_MAX),
            own_object_bytes: config.own_object_bytes.min(PACK_BYTES_MAX as usize),
            uploads: config.uploads.max(1),
            ..config
        };
        let streams = store.appends().map(|_| PackStreams::new(config.streams));
        let uploads = Uploads::new(&config);
        let writer = PackWriter::new(store, ids, &config);
        let closed = RwLock::new(false);
        let shared = Arc::new(Shared { writer, streams, uploads, closed, config });
        let (threads, uploads) = (Mutex::default(), AtomicBool::new(false));
        let packer = Self { shared, threads, uploads };
        match packer.shared.streams {
            Some(_) => {
                let shared = packer.shared.clone();
                let seal = move || {
                    if let Some(streams) = &shared.streams {
                        streams.seal_idle(shared.config.idle);
                    }
                };
                start("kestrel-packer", seal, &mut packer.threads.lock())?;
            }
            None => packer.start_uploads()?,
        }
        Ok(packer)
    }

    /// Starts the uploader threads, unless they run.
    fn start_uploads(&self) -> Result<()> {
        if self.uploads.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut threads = self.threads.lock();
        if !self.uploads.load(Ordering::Acquire) {
            for _ in 0..self.shared.config.uploads {
                let shared = self.shared.clone();
                let work = move || shared.uploads.work(&shared.writer);
                start("kestrel-upload", work, &mut threads)?;
            }
            self.uploads.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Stores `data` for `inode` (recorded for recovery, nothing else) and calls `done` once, on
    /// this or another thread.
    ///
    /// Never waits for other stores: the queue is bounded by the [`crate::Budget`] that callers
    /// hold for their payloads. (It must not wait: callbacks store too, also while their thread is
    /// getting an object number with a pack stream in its hands.)
    pub fn store(
        &self,
        data: impl Into<Payload>,
        inode: InodeId,
        done: Box<dyn FnOnce(Result<StoredRange>) + Send>,
    ) {
        self.store_with(data, inode, PutOptions::default(), done);
    }

    /// Like [`Packer::store`], in an object that is put with these options.
    pub fn store_with(
        &self,
        data: impl Into<Payload>,
        inode: InodeId,
        options: PutOptions,
        done: Box<dyn FnOnce(Result<StoredRange>) + Send>,
    ) {
        let options = self.beside(options);
        if options != PutOptions::default()
            && let Err(why) = self.start_uploads()
        {
            return done(Err(why));
        }
        self.shared.accept(data.into(), inode, options, done);
    }

    /// Whether [`Packer::store_with`] may wait for the store on the thread that calls it.
    pub fn waits(&self, options: PutOptions) -> bool {
        self.shared.streams.is_some() && self.beside(options) == PutOptions::default()
    }

    /// What of the options is not what the store does anyway, or cannot do.
    fn beside(&self, PutOptions { compression, tier }: PutOptions) -> PutOptions {
        let store = &self.shared.writer.store;
        let own = compression.and_then(|_| store.compression());
        let compression = own.and_then(|own| compression.filter(|asked| *asked != own));
        let tier = tier.filter(|tier| *tier != Tier::Standard && store.tiers().is_some());
        PutOptions { compression, tier }
    }

    /// Whether a reference may still come to bytes of this object that nothing refers to yet.
    pub fn is_open(&self, object: ObjectId) -> bool {
        self.shared.writer.pins.is_pinned(object)
    }

    /// Objects that had their turn before this one are not open and will not be any more. `turn`
    /// answers that of an object; if it has none, that of what is taken later.
    pub fn oldest_open(&self, turn: impl Fn(ObjectId) -> u64) -> u64 {
        // In this order: a number that was taken before the first look is announced or pinned at
        // the second.
        let floor = self.shared.writer.ids.floor();
        self.shared.writer.pins.oldest(turn).map_or(floor, |oldest| oldest.min(floor))
    }

    /// Its counters.
    pub fn stats(&self) -> &PackerStats {
        &self.shared.writer.stats
    }

    /// Seals all open packs: the next round begins new ones.
    pub fn seal_all(&self) {
        if let Some(streams) = &self.shared.streams {
            streams.seal_all();
        }
    }

    /// Takes nothing more, finishes what was taken, seals and joins its threads. Not to be called
    /// from a callback.
    pub fn close(&self) {
        *self.shared.closed.write() = true;
        if let Some(streams) = &self.shared.streams {
            streams.close();
        }
        self.shared.uploads.close();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.thread().id() != std::thread::current().id() {
                // Callbacks' panics are caught; the hook has printed them.
                let _ = thread.join();
            }
        }
        self.seal_all();
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn accept(&self, payload: Payload, inode: InodeId, options: PutOptions, done: Done) {
        if payload.is_empty() || payload.len() > RANGE_BYTES_MAX as usize {
            return done(Err(Error::Invalid { what: "stored data must have 1 byte to 16 MiB" }));
        }
        // Recursive: a callback that runs below may store more.
        let closed = self.closed.read_recursive();
        if *closed {
            return done(Err(Error::Closed { during: "storing data" }));
        }
        let checks = frame::data_checks(&payload);
        let submission = Submission { payload, checks, inode, options, done };
        match &self.streams {
            Some(streams) if options == PutOptions::default() => {
                if submission.payload.len() < self.config.own_object_bytes {
                    return streams.combine(&self.writer, self.config.pack_bytes, submission);
                }
                let round = vec![submission];
                let results = self.writer.write_object(&round);
                complete(round, results);
            }
            _ => self.uploads.add(submission, self.config.own_object_bytes),
        }
    }
}

/// Starts a thread and has it joined with the others.
fn start(
    name: &str,
    work: impl FnOnce() + Send + 'static,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_string()).spawn(work);
    threads.push(thread.map_err(|source| Error::from_io("starting a thread", None, source))?);
    Ok(())
}

/// Runs every callback of a round. The thread runs callbacks of others too, so one that panics (the
/// hook prints it) must hit neither the next one nor this thread.
fn complete(round: Vec<Submission>, results: Result<Vec<StoredRange>>) {
    let call = |done: Done, result| drop(catch_unwind(AssertUnwindSafe(|| done(result))));
    match results {
        Ok(stored) => {
            round.into_iter().zip(stored).for_each(|(member, range)| call(member.done, Ok(range)))
        }
        Err(error) => round.into_iter().for_each(|member| call(member.done, Err(error.clone()))),
    }
}

#[cfg(test)]
mod tests;
