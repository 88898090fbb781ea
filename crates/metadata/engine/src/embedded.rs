//! The embedded durable engine: a log, rows in memory, sorted runs on disk.
//!
//! | file | what it has |
//! | --- | --- |
//! | `embedded/open.rs` | a new engine, or the recovery of one |
//! | `embedded/sync.rs` | the thread that syncs the log |
//! | `embedded/flush.rs` | dirty rows to the runs, clean rows out of memory |
//! | `embedded/salvage.rs` | recovery of what is intact in damaged files |
//! | `embedded/tests.rs` | tests of the whole engine |
//!
//! - **Commit**: the batch is appended to the log (`log`), then applied to the rows in
//!   memory (`rows`). Several threads may do both at once: rows remember the position of
//!   their last change, so the order in which batches reach memory does not matter.
//! - **Read**: memory first, then the runs (`runs`). A row leaves memory only after the
//!   runs have it, so what memory does not have the runs, looked at later, do.
//! - **Sync**: one thread, for all callers that wait (`sync`); data before metadata, by a hook.
//! - **Flush**: one thread (`flush`) copies dirty rows to the runs, moves the checkpoint and
//!   recycles the log. Another evicts clean rows when memory is short, a third merges runs.

mod flush;
mod open;
pub mod salvage;
mod sync;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, PREFIX_LEN, SUFFIX_MAX, Table};

use super::disk::Disk;
use super::durability::Waiters;
use super::fence::Fenced;
use super::log::Log;
use super::log::format::put_mutation;
pub use super::log::recovery::Verify;
use super::rows::{MemoryRows, Miss};
pub use super::runs::Compression;
use super::runs::Runs;
use super::scan::Scans;
pub use super::small_record::Uuid;
use super::taps::Taps;
use super::{
    BATCH_MUTATIONS_MAX, BatchKind, BeforeSync, Claimed, Engine, EngineError, EngineStats, Epoch,
    Fence, Mutation, OnDurable, Row, Tap, TapGuard, VisitRow,
};
use flush::Flusher;
use sync::Syncer;

/// Whether a path below the engine's directory is that of a file, or of a directory, that it makes
/// there.
pub fn is_own_file(path: &Path, is_dir: bool) -> bool {
    let Some(text) = path.to_str() else { return false };
    match text.split_once('/') {
        None if is_dir => matches!(text, "log" | "runs"),
        None => text == "lock",
        // Names of the sorted runs are their library's.
        Some(("runs", _)) => true,
        Some(("log", name)) => {
            // Segments, those to be recycled, and small records with their copies and unfinished
            // ones.
            let begins = ["free-", "checkpoint", "epoch"].iter().any(|own| name.starts_with(own));
            !is_dir && (begins || name.ends_with(".log") || name.ends_with(".tmp"))
        }
        Some(_) => false,
    }
}

/// Most bytes of a value.
pub const VALUE_MAX: usize = 16 << 20;

/// Least memory, bytes.
const MEMORY_BYTES_MIN: u64 = 64 << 10;
/// Sizes of a log segment, bytes.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Settings of an embedded engine. They may change from one open to the next.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Memory for rows and for blocks of the runs, bytes. Batches in flight come on top.
    pub memory_bytes: u64,
    /// Syncs at least this often if anything was committed; `None`: only on request.
    pub sync_interval: Option<Duration>,
    /// Size of a log segment of a volume that changes little, bytes.
    pub first_segment_bytes: u64,
    /// Size of one of a busy volume, bytes.
    pub segment_bytes: u64,
    /// Log that may pile up before rows are flushed to the runs, bytes. Bounds the time of a
    /// recovery.
    pub log_bytes_max: u64,
    /// Free disk space below which batches that grow the volume are refused, bytes.
    pub reserve_bytes: u64,
    /// Compression of the runs.
    pub compression: Compression,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            sync_interval: Some(Duration::from_secs(1)),
            first_segment_bytes: 256 << 10,
            segment_bytes: 32 << 20,
            log_bytes_max: 512 << 20,
            reserve_bytes: 192 << 20,
            compression: Compression::Lz4,
        }
    }
}

impl EmbeddedOptions {
    /// The same, with settings that make no sense replaced by the nearest that do.
    fn sensible(mut self) -> Self {
        self.memory_bytes = self.memory_bytes.max(MEMORY_BYTES_MIN);
        self.segment_bytes =
            self.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(4096);
        self.first_segment_bytes = self
            .first_segment_bytes
            .clamp(SEGMENT_BYTES_MIN, self.segment_bytes)
            .next_multiple_of(4096);
        self.log_bytes_max = self.log_bytes_max.max(2 * self.segment_bytes);
        self
    }

    /// Part of memory that blocks of the runs may use.
    fn cache_bytes(&self) -> u64 {
        self.memory_bytes / 8
    }

    /// Part of memory that rows may use.
    fn row_bytes(&self) -> usize {
        usize::try_from(self.memory_bytes - self.cache_bytes()).unwrap_or(usize::MAX)
    }

    /// Free disk space that merging runs must not touch: more than what makes growth be refused.
    fn merge_reserve(&self) -> u64 {
        self.reserve_bytes + self.reserve_bytes / 4
    }

    /// Dirty rows above this are flushed.
    fn dirty_flush(&self) -> usize {
        self.row_bytes() / 8 * 3
    }

    /// Above this commits wait.
    fn dirty_max(&self) -> usize {
        self.row_bytes() / 4 * 3
    }
}

/// The engine.
pub struct EmbeddedEngine {
    shared: Arc<Shared>,
    /// That of the opening.
    epoch: Epoch,
    threads: Vec<JoinHandle<()>>,
}

/// What the engine's threads share.
struct Shared {
    options: EmbeddedOptions,
    uuid: Uuid,
    disk: Arc<dyn Disk>,
    rows: MemoryRows,
    log: Log,
    fence: Arc<Fenced>,
    runs: Box<dyn Runs>,
    waiters: Waiters,
    taps: Arc<Taps>,
    before_sync: BeforeSync,
    syncer: Syncer,
    flusher: Flusher,
    counters: Counters,
    /// Keeps other processes out while it lives.
    _lock: Option<File>,
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    mutations: AtomicU64,
    syncs: AtomicU64,
    memory_hits: AtomicU64,
    run_reads: AtomicU64,
    flushes: AtomicU64,
}

thread_local! {
    /// Where a thread encodes its batches.
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of a thread's buffer that are kept between batches.
const RECORD_KEPT: usize = 1 << 20;

impl EmbeddedEngine {
    /// Opens the engine in `dir`, or makes a new one there. `before_sync` runs before each sync of
    /// the log; `verify` decides at recovery about batches that are not certain to have been
    /// covered by a sync, oldest first: the first one that it rejects ends the log.
    ///
    /// # Errors
    /// `Refused` for a newer format, another volume's files, or a directory that is in use;
    /// `Corrupt` for damaged files, which are not touched; `NoSpace` and `Io` from the disk.
    pub fn open(
        dir: &Path,
        uuid: Uuid,
        options: EmbeddedOptions,
        before_sync: BeforeSync,
        verify: &mut Verify<'_>,
    ) -> Result<Self, EngineError> {
        open::open(dir, uuid, options.sensible(), before_sync, verify)
    }

    /// [`Engine::settle`], then ends all threads.
    ///
    /// # Errors
    /// As `settle`.
    pub fn close(mut self) -> Result<(), EngineError> {
        let result = self.settle();
        self.stop();
        result
    }

    /// Copies all dirty rows to the sorted runs now.
    ///
    /// # Errors
    /// As commits have them; nothing is lost.
    pub fn flush(&self) -> Result<(), EngineError> {
        self.shared.flush()
    }

    /// Merges sorted runs until there is nothing to merge.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Corrupt`; nothing is lost.
    pub fn compact(&self) -> Result<(), EngineError> {
        while self.shared.compact()? {}
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.runs.stop();
        self.shared.flusher.stop();
        self.shared.syncer.stop();
        self.shared.log.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed that; the log has what it was working on.
            let _ = thread.join();
        }
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn commit(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: &[Mutation],
    ) -> Result<Position, EngineError> {
        let fits = |mutation: &Mutation| {
            mutation.key.suffix.len() <= SUFFIX_MAX
                && mutation.value.as_ref().is_none_or(|value| value.len() <= VALUE_MAX)
        };
        if mutations.len() > BATCH_MUTATIONS_MAX || !mutations.iter().all(fits) {
            return Err(EngineError::Io(
                "metadata engine: a batch, key or value is above its limit".into(),
            ));
        }
        self.wait_for_room(kind)?;
        let position = RECORD.with_borrow_mut(|record| {
            Log::begin(record);
            for mutation in mutations {
                put_mutation(record, mutation.key.borrow(), mutation.value.as_deref());
            }
            let growing = kind == BatchKind::Growing;
            let position = self.log.append(epoch, growing, record, || self.taps.send(mutations));
            if record.capacity() > RECORD_KEPT {
                *record = Vec::new();
            }
            position
        })?;
        self.rows.apply(position, mutations.len(), |index| {
            let mutation = &mutations[index];
            (mutation.key.borrow(), mutation.value.as_deref())
        });
        self.log.applied(position);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.counters.mutations.fetch_add(mutations.len() as u64, Ordering::Relaxed);
        Ok(position)
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        // Before the rows: a row that becomes durable meanwhile is reported as not durable, which
        // is only slower.
        let durable = self.waiters.durable();
        let mut misses: Vec<Miss> = Vec::new();
        self.rows.get_many(keys, durable, visit, &mut misses);
        self.counters.memory_hits.fetch_add((keys.len() - misses.len()) as u64, Ordering::Relaxed);
        if misses.is_empty() {
            return Ok(());
        }
        self.counters.run_reads.fetch_add(misses.len() as u64, Ordering::Relaxed);
        let mut encoded = Vec::with_capacity(PREFIX_LEN + 64);
        for miss in misses {
            let key = keys[miss.index];
            encoded.clear();
            key.encode_into(&mut encoded);
            let value = self.runs.get(&encoded)?;
            visit(miss.index, Row { value: value.as_deref(), changed_at: 0 });
            if let Some(value) = value
                && self.rows.bytes() < self.options.row_bytes()
            {
                self.rows.cache(miss, key, &value);
            }
        }
        Ok(())
    }

    fn scans(&self) -> Scans<'_> {
        let Self { rows, runs, waiters, options, .. } = self;
        Scans { rows, below: &**runs, waiters, row_bytes: options.row_bytes() }
    }

    fn stats(&self) -> EngineStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineStats {
            commits: load(&self.counters.commits),
            mutations: load(&self.counters.mutations),
            log_bytes: self.log.appended_bytes(),
            syncs: load(&self.counters.syncs),
            memory_hits: load(&self.counters.memory_hits),
            run_reads: load(&self.counters.run_reads),
            rows_in_memory: self.rows.len() as u64,
            memory_bytes: self.rows.bytes() as u64,
            dirty_bytes: self.rows.dirty() as u64,
            log_disk_bytes: self.log.disk_bytes(),
            run_disk_bytes: self.runs.disk_bytes(),
            flushes: load(&self.counters.flushes),
            ..EngineStats::default()
        }
    }
}

impl Fence for EmbeddedEngine {
    fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        self.shared
            .log
            .begin_epoch(|| self.shared.fence.begin(&*self.shared.disk, &self.shared.uuid))
    }

    fn commit_in(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        self.shared.commit(epoch, kind, &mutations)
    }
}

impl Engine for EmbeddedEngine {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Claimed::begin(self)
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.shared.get_many(keys, visit)
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.shared.scans().scan((table, id), after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.shared.scans().scan_table(table, from, visit)
    }

    fn hint_new(&self, table: Table, id: u64) {
        self.shared.rows.hint_new((table, id));
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.commit_in(self.epoch, kind, mutations)
    }

    fn durable(&self) -> Position {
        self.shared.waiters.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        if self.shared.waiters.wait(position, done) {
            // Never for more than there is: the syncer would try for ever.
            self.shared.syncer.request(position.min(self.shared.log.appended()));
        }
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.sync()
    }

    /// Flushes if reading the log again would take long. If that fails it is no error: the log has
    /// it all.
    fn settle(&self) -> Result<(), EngineError> {
        self.shared.sync()?;
        if self.shared.log.live_bytes() > flush::CLOSE_LOG_MAX {
            let _ = self.shared.flush();
        }
        Ok(())
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        let number = self.shared.taps.add(tap);
        // What was committed before, and so is not in the tap, must be visible to the scan that
        // follows.
        self.shared.log.wait_applied();
        let taps = self.shared.taps.clone();
        TapGuard(Box::new(move || taps.remove(number)))
    }

    fn stats(&self) -> EngineStats {
        self.shared.stats()
    }
}
