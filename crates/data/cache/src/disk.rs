//! One cache directory: its files, its threads, and whether it may be used.
//!
//! | file | |
//! | --- | --- |
//! | `janitor` | the thread of each cache directory that makes room and tries a failed disk again |
//! | `marker` | `kestrel-cache.json`: marks a directory as a cache directory of a format |
//! | `scan` | looking through a cache directory, and making room in it |
//! | `whole` | names of the whole copies in a cache directory |
//!
//! **What blocks.** Everything that may have to wait for the disk runs on the disk's own threads
//! ([`crate::workers`]), and the reader waits for the result for a bounded time, or has a callback
//! run on that thread, or late on the thread of [`crate::completion`]: the callback must not wait.
//! On a reader's thread there are only calls that do not wait: reads of the page cache
//! (`RWF_NOWAIT`) and opening what the kernel has in its caches (`RESOLVE_CACHED`). So a disk that
//! wedges costs the readers of the moment one deadline, and those after them nothing.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::Budget;
use kestrel_blockstore::object::VolumeId;
use kestrel_blockstore::store::key;
use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::ids::ObjectId;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::breaker::Breaker;
use crate::completion::ReadCompletions;
use crate::faults::{DiskFaults, DiskOp};
use crate::options::CacheOptions;
use crate::page;
use crate::stats::CacheStats;
use crate::sys;
use crate::workers::Workers;

pub(crate) mod janitor;
pub(crate) mod marker;
pub(crate) mod scan;
mod whole;

/// Threads for reads: what is not in the page cache needs the disk, and disks like many requests at
/// a time.
const READ_THREADS: usize = 16;
const READS_WAITING_MAX: usize = 1024;

/// Threads for writes. They mostly copy to the page cache; more than one or two keep up with many
/// readers on a busy machine.
const WRITE_THREADS: usize = 4;
const WRITES_WAITING_MAX: usize = 4096;

/// What is written must not take longer than this on average, or the disk is too slow to be of use.
const SLOW_WRITE: Duration = Duration::from_secs(2);

/// Tries to make a file; its directories vanish as soon as they are made.
const CREATE_TRIES: u32 = 4;

/// Reading or writing: each has its own record, because a full or read-only disk still serves
/// reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

struct Service {
    breaker: Mutex<Breaker>,
    /// The breaker's state, for callers that only read it.
    is_in: AtomicBool,
}

/// What the janitor is requested to do.
#[derive(Default)]
struct JanitorRequests {
    scan: bool,
    closed: bool,
}

/// A cache directory.
pub(crate) struct Disk {
    /// Its place among the mount's.
    pub index: usize,
    path: PathBuf,
    /// Part of what decides which objects it gets.
    salt: u64,
    volume: String,
    root: RwLock<Arc<File>>,
    pub reads: Workers,
    pub writes: Workers,
    /// Callbacks of reads that no thread waits for.
    pub completions: Arc<ReadCompletions>,
    /// Bytes that wait to be written: its share of the bound, so that one that wedges leaves the
    /// others theirs.
    pub waiting: Budget,
    reading: Service,
    writing: Service,
    faults: Option<Arc<dyn DiskFaults>>,
    clock: Arc<dyn Clock>,
    stats: Arc<CacheStats>,
    bytes_max: u64,
    free_space_ratio: f64,
    /// Bytes of disk in use: found by the last sweep, and written since.
    used: AtomicU64,
    written: AtomicU64,
    /// Bytes that the next sweep is to make room for, beyond what is over.
    wanted: AtomicU64,
    requests: Mutex<JanitorRequests>,
    requested: Condvar,
}

impl Disk {
    /// Opens a cache directory for a volume.
    ///
    /// # Errors
    /// Why it cannot be one, and what to do.
    pub fn open(
        index: usize,
        path: &Path,
        volume: VolumeId,
        options: &CacheOptions,
        stats: &Arc<CacheStats>,
    ) -> Result<Self, String> {
        let root = marker::open(path)?;
        if let Ok((size, free)) = sys::room(&root)
            && free < (size as f64 * options.free_space_ratio) as u64
        {
            log::warn!(
                "cache directory {}: less than {:.0} % of its disk is free, which is to stay free: \
                 nothing will be cached \
                 until there is room",
                path.display(),
                options.free_space_ratio * 100.0
            );
        }
        let now = options.clock.now();
        let service = |slow: Duration| Service {
            breaker: Mutex::new(Breaker::new(slow.as_nanos() as Nanos, now)),
            is_in: AtomicBool::new(true),
        };
        Ok(Self {
            index,
            path: path.to_path_buf(),
            salt: u64::from(crc32c::crc32c(path.as_os_str().as_encoded_bytes())) << 32,
            volume: volume_name(volume),
            root: RwLock::new(Arc::new(root)),
            reads: Workers::new(format!("kestrel-cache-r{index}"), READ_THREADS, READS_WAITING_MAX),
            writes: Workers::new(
                format!("kestrel-cache-w{index}"),
                WRITE_THREADS,
                WRITES_WAITING_MAX,
            ),
            completions: Arc::default(),
            waiting: Budget::new(options.fill_queue_bytes / options.dirs.len() as u64),
            reading: service(options.disk_deadline / 2),
            writing: service(SLOW_WRITE),
            faults: options.faults.clone(),
            clock: Arc::clone(&options.clock),
            stats: Arc::clone(stats),
            bytes_max: options.bytes,
            free_space_ratio: options.free_space_ratio,
            used: AtomicU64::new(0),
            written: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            requests: Mutex::default(),
            requested: Condvar::new(),
        })
    }

    /// Its rank for an object: the disk in service with the highest one gets it (rendezvous
    /// hashing; Thaler, Ravishankar, 1998), so a disk that leaves or comes back moves only its own
    /// objects.
    pub fn rank(&self, object: ObjectId) -> u64 {
        // The finalizer of SplitMix64.
        let mut x = object ^ self.salt;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn service(&self, side: Side) -> &Service {
        match side {
            Side::Read => &self.reading,
            Side::Write => &self.writing,
        }
    }

    /// Whether it may be used.
    pub fn is_in_service(&self, side: Side) -> bool {
        self.service(side).is_in.load(Ordering::Relaxed)
    }

    /// Notes how a call went that was begun at `begun`.
    pub fn note<T>(&self, side: Side, begun: Instant, result: &io::Result<T>) {
        let took = begun.elapsed().as_nanos() as Nanos;
        match result {
            Ok(_) => self.record(side, "it is too slow", |breaker, now| breaker.worked(took, now)),
            Err(error) => {
                self.stats.errors.add(1);
                if error.kind() == io::ErrorKind::StorageFull {
                    self.request_scan();
                }
                self.record(side, &error.to_string(), |breaker, now| breaker.failed(now));
            }
        }
    }

    /// Notes that a call was given up.
    pub fn note_unanswered(&self, side: Side) {
        self.stats.errors.add(1);
        self.record(side, "it does not answer", |breaker, now| breaker.unanswered(now));
    }

    fn record(&self, side: Side, why: &str, change: impl FnOnce(&mut Breaker, Nanos)) {
        let now = self.clock.now();
        let service = self.service(side);
        let mut breaker = service.breaker.lock();
        change(&mut breaker, now);
        let is_in = breaker.is_in_service();
        let was_in = service.is_in.swap(is_in, Ordering::Relaxed);
        drop(breaker);
        if was_in && !is_in {
            let what = if side == Side::Read { "reads" } else { "writes" };
            log::warn!(
                "cache directory {}: out of service for {what}: {why}; reads go on from the store, \
                 it is tried again",
                self.path.display()
            );
            self.requested.notify_all();
        } else if !was_in && is_in {
            log::info!("cache directory {}: in service again", self.path.display());
        }
    }

    /// Fails or blocks if a test wants it.
    pub fn before(&self, op: DiskOp) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.before(op, &self.path))
    }

    /// Path of an object's cache file below the directory.
    fn name(&self, object: ObjectId) -> CString {
        c_string(scan::name(&self.volume, object))
    }

    fn root(&self) -> Arc<File> {
        Arc::clone(&self.root.read())
    }

    /// Opens an object's cache file for reading; none if there is none.
    pub fn open_file(&self, object: ObjectId) -> io::Result<Option<File>> {
        found(sys::open_at(self.root().as_fd(), &self.name(object)))
    }

    /// Opens an object's cache file if that needs no waiting. None: there is none, or it does.
    pub fn open_file_cached(&self, object: ObjectId) -> Option<File> {
        sys::open_at_cached(self.root().as_fd(), &self.name(object)).ok()
    }

    /// Opens an object's cache file for writing, and makes it and its directories where they are
    /// missing.
    pub fn create_file(&self, object: ObjectId) -> io::Result<File> {
        let (root, name) = (self.root(), self.name(object));
        for _ in 0..CREATE_TRIES {
            match sys::create_at(root.as_fd(), &name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_dirs(&root, object)?
                }
                other => return other,
            }
        }
        sys::create_at(root.as_fd(), &name)
    }

    /// Makes the directories of an object's cache file. A sweep may remove them again while they
    /// are empty.
    fn make_dirs(&self, root: &File, object: ObjectId) -> io::Result<()> {
        let prefix = format!("{}/{:02x}", self.volume, key::prefix(object));
        for dir in [self.volume.clone(), prefix] {
            match sys::mkdir_at(root.as_fd(), &c_string(dir)) {
                // The one above is gone again; if the whole directory is, creating the file fails.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes a page of a cache file a hole.
    pub fn remove_page(&self, object: ObjectId, page: u32) -> io::Result<()> {
        self.before(DiskOp::Write)?;
        match found(sys::open_rw_at(self.root().as_fd(), &self.name(object)))? {
            Some(file) => sys::punch(&file, page::slot_at(page)..page::slot_at(page + 1)),
            None => Ok(()),
        }
    }

    /// Removes an object's cache file; bytes of disk freed.
    pub fn remove_file(&self, object: ObjectId) -> io::Result<u64> {
        let (root, name) = (self.root(), self.name(object));
        let Some(file) = found(sys::open_at(root.as_fd(), &name))? else { return Ok(0) };
        let bytes = scan::disk_bytes(&file.metadata()?);
        scan::cut(&self.path.join(name.to_string_lossy().as_ref()))?;
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used.saturating_sub(bytes))
            })
            .ok();
        Ok(bytes)
    }

    /// Bytes of disk in use, as far as this process can tell.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes that bytes were written.
    pub fn note_written(&self, bytes: u64) {
        let written = self.written.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.bytes_max || written > self.scan_every() {
            self.request_scan();
        }
    }

    /// Bytes that this process may write before it looks at the whole directory again, because
    /// others write too.
    fn scan_every(&self) -> u64 {
        (self.bytes_max / 50).max((4 * 1024 * 1024).min(self.bytes_max / 8))
    }

    /// Whether `bytes` more may be written now. Requests a scan if room gets short.
    pub fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let (size, free) = sys::room(&self.root())?;
        let reserve = (size as f64 * self.free_space_ratio) as u64;
        let used = self.used_bytes();
        if free < reserve + bytes || used + bytes > self.bytes_max {
            self.request_scan();
        }
        // What is reserved is eaten into while the sweep makes room, but not for long.
        Ok(free >= reserve / 2 + bytes && used + bytes <= self.bytes_max + self.bytes_max / 16)
    }

    fn request_scan(&self) {
        let mut requests = self.requests.lock();
        if !std::mem::replace(&mut requests.scan, true) {
            self.requested.notify_all();
        }
    }

    /// Ends its keeper and the thread that watches over its promises.
    pub fn close(&self) {
        self.completions.close();
        self.requests.lock().closed = true;
        self.requested.notify_all();
    }
}

/// The directory of a volume's cache files.
fn volume_name(volume: VolumeId) -> String {
    volume.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Absence is no error.
fn found(result: io::Result<File>) -> io::Result<Option<File>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_else(|_| unreachable!("hex digits and slashes hold no NUL"))
}
