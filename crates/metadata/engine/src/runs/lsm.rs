//! Sorted runs in an LSM tree (`lsm-tree`, the tree below `fjall`), fed by bulk ingestion.
//!
//! The tree is used without its companion `fjall`, because the engine has a log of its own, and
//! because there one failed background merge (a full disk) makes the whole database refuse work
//! until it is opened again; here it is tried again. Ingestion writes and syncs the tables, then
//! the directory, then the manifest (`lsm-tree` 3.1, `table/writer`, `version/persist.rs`), so it
//! is durable and atomic when it returns.

use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsm_tree::compaction::Leveled;
use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    PinningPolicy,
};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, CompressionType, Config, Guard, IterGuardImpl, SeqNo,
    SequenceNumberCounter,
};
use parking_lot::{Mutex, RwLock};

use super::{Bytes, Changes, Compression, Cursor, EngineError, Runs, Sorted, manifest};
use crate::disk::no_space;
use crate::disk::real::free_bytes;
use crate::small_record::ADVICE;

/// Bits of bloom filter a row: 1 % false positives.
const BLOOM_BITS: f32 = 10.0;

/// The runs of a volume.
pub(crate) struct LsmRuns {
    dir: PathBuf,
    tree: AnyTree,
    sequence: SequenceNumberCounter,
    stop: Arc<Stop>,
    /// Shared by threads that write tables that no manifest names yet, alone by the thread that
    /// removes such tables.
    writing: RwLock<()>,
    /// One copy of the manifest at a time.
    copying: Mutex<()>,
}

/// Rows that a merge moves between looks at free space.
const SPACE_CHECK_ROWS: u32 = 1 << 10;

/// Ends merges, from within: the tree calls a filter for every row, and this one lets every row
/// pass until it is time to stop, or until the merge eats into the space that is kept for changes.
struct Stop {
    stopped: AtomicBool,
    dir: PathBuf,
    free_bytes_min: u64,
}

impl Stop {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn has_space(&self) -> bool {
        free_bytes(&self.dir).is_ok_and(|free| free >= self.free_bytes_min)
    }
}

impl RefUnwindSafe for Stop {}

struct StopFactory(Arc<Stop>);

impl Factory for StopFactory {
    fn name(&self) -> &str {
        "kestrel-stop"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(StopFilter { stop: self.0.clone(), rows: 0 })
    }
}

struct StopFilter {
    stop: Arc<Stop>,
    rows: u32,
}

impl CompactionFilter for StopFilter {
    fn filter_item(&mut self, _: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        if self.stop.is_stopped() {
            return Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into());
        }
        if self.rows.is_multiple_of(SPACE_CHECK_ROWS) && !self.stop.has_space() {
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
        }
        self.rows = self.rows.wrapping_add(1);
        Ok(Verdict::Keep)
    }
}

fn error(what: &str, dir: &Path, why: &lsm_tree::Error) -> EngineError {
    let dir_name = dir.display();
    match why {
        lsm_tree::Error::Io(why) if no_space(why) => EngineError::NoSpace,
        lsm_tree::Error::Io(why) if why.kind() == std::io::ErrorKind::UnexpectedEof => {
            EngineError::Corrupt(format!("{what} {dir_name}: a file is truncated: {why}"))
        }
        lsm_tree::Error::Io(why) if why.kind() == std::io::ErrorKind::NotFound => {
            EngineError::Corrupt(format!("{what} {dir_name}: a file is missing: {why}"))
        }
        // EINVAL: what was read points to a place that no file has.
        lsm_tree::Error::Io(why) if why.kind() == std::io::ErrorKind::InvalidInput => {
            EngineError::Corrupt(format!(
                "{what} {dir_name}: a file points outside of itself: {why}; {ADVICE}"
            ))
        }
        lsm_tree::Error::Io(why) => EngineError::Io(format!("{what} {dir_name}: {why}")),
        lsm_tree::Error::InvalidVersion(version) => EngineError::Refused(format!(
            "{what} {dir_name}: format {version} of the sorted runs is not known to this program; \
             use a newer one"
        )),
        why => EngineError::Corrupt(format!("{what} {dir_name}: {why}; {ADVICE}")),
    }
}

/// Runs `work`, turning a panic of the tree (it asserts things about its files) into an error.
fn guarded<R>(
    what: &str,
    dir: &Path,
    work: impl FnOnce() -> lsm_tree::Result<R>,
) -> Result<R, EngineError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|why| error(what, dir, &why)),
        Err(_) => Err(EngineError::Corrupt(format!(
            "{what} {}: the files contradict each other; {ADVICE}",
            dir.display()
        ))),
    }
}

impl LsmRuns {
    /// Opens the runs in `dir`, or makes empty ones. Merges leave `free_bytes_min` of disk alone.
    pub fn open(
        dir: &Path,
        cache_bytes: u64,
        compression: Compression,
        free_bytes_min: u64,
    ) -> Result<Self, EngineError> {
        let stop = Stop { stopped: AtomicBool::new(false), dir: dir.to_path_buf(), free_bytes_min };
        let stop = Arc::new(stop);
        let sequence = SequenceNumberCounter::default();
        let compression = match compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
        };
        let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(BLOOM_BITS));
        let open = || {
            let tree = Config::new(dir, sequence.clone(), SequenceNumberCounter::default())
                .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
                .data_block_compression_policy(CompressionPolicy::all(compression))
                .data_block_size_policy(BlockSizePolicy::all(4096))
                .filter_policy(FilterPolicy::all(bloom))
                // Small pieces of index and filter, so that a cold get reads little and the cache
                // holds what is used.
                .index_block_partitioning_policy(PinningPolicy::all(true))
                .filter_block_partitioning_policy(PinningPolicy::all(true))
                .with_compaction_filter_factory(Some(Arc::new(StopFactory(stop.clone()))))
                .open()?;
            sequence.set(tree.get_highest_seqno().map_or(0, |seqno| seqno + 1));
            Ok(tree)
        };
        manifest::repair(dir)?;
        let tree = guarded("cannot open the sorted runs", dir, open)?;
        manifest::keep_copy(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            tree,
            sequence,
            stop,
            writing: RwLock::new(()),
            copying: Mutex::new(()),
        })
    }

    /// Removes tables numbered from `first` on that a failed ingestion or merge left behind, so
    /// that trying again on a full disk does not fill it further.
    fn remove_orphans(&self, first: u64) {
        let Some(_guard) = self.writing.try_write() else { return };
        let version = self.tree.current_version();
        let present: std::collections::HashSet<u64> =
            version.iter_tables().map(lsm_tree::Table::id).collect();
        let Ok(files) = std::fs::read_dir(self.dir.join("tables")) else { return };
        for file in files.flatten() {
            let id = file.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if id.is_some_and(|id| id >= first && !present.contains(&id)) {
                // What cannot be removed now is removed when the runs are opened next.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }

    /// Names the table in which `key` cannot be read, if the error came from one.
    fn blame(&self, key: &[u8], why: EngineError) -> EngineError {
        let EngineError::Corrupt(text) = why else { return why };
        let from: lsm_tree::UserKey = key.into();
        let damaged = |table: &&lsm_tree::Table| {
            let read =
                || table.range(from.clone()..=from.clone()).try_for_each(|row| row.map(|_| ()));
            !matches!(catch_unwind(AssertUnwindSafe(read)), Ok(Ok(())))
        };
        match self.tree.current_version().iter_tables().find(damaged) {
            Some(table) => {
                EngineError::Corrupt(format!("{} (table {})", text, table.path.display()))
            }
            None => EngineError::Corrupt(text),
        }
    }

    fn write_all(&self, changes: &mut Changes<'_>) -> Result<(), EngineError> {
        let what = "cannot write the sorted runs";
        let _writing = self.writing.read();
        let mut ingestion = guarded(what, &self.dir, || self.tree.ingestion())?;
        changes(&mut |key, value| {
            match value {
                Some(value) => ingestion.write(key, value),
                None => ingestion.write_tombstone(key),
            }
            .map_err(|why| error(what, &self.dir, &why))
        })?;
        guarded(what, &self.dir, || ingestion.finish())?;
        // Before the checkpoint moves: what the copy lacks must still be in the log.
        self.keep_manifest()
    }

    /// Brings the second copy of the manifest up to date.
    fn keep_manifest(&self) -> Result<(), EngineError> {
        let _guard = self.copying.lock();
        manifest::keep_copy(&self.dir)
    }

    /// What changes when a compaction did something.
    fn shape(&self) -> u64 {
        self.tree.current_version().id()
    }
}

struct LsmCursor<'a> {
    dir: &'a Path,
    rows: Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send + 'static>,
}

impl Cursor for LsmCursor<'_> {
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError> {
        guarded("cannot read the sorted runs", self.dir, || {
            self.rows.next().map(Guard::into_inner).transpose()
        })
    }
}

impl Sorted for LsmRuns {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        Box::new(LsmCursor { dir: &self.dir, rows: self.tree.range(from..to, SeqNo::MAX, None) })
    }
}

impl Runs for LsmRuns {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        guarded("cannot read the sorted runs", &self.dir, || self.tree.get(key, SeqNo::MAX))
            .map_err(|why| self.blame(key, why))
    }

    fn ingest(&self, changes: &mut Changes<'_>) -> Result<(), EngineError> {
        let first = self.tree.next_table_id();
        let result = self.write_all(changes);
        if result.is_err() {
            self.remove_orphans(first);
        }
        result
    }

    fn compact(&self) -> Result<bool, EngineError> {
        if self.stop.is_stopped() {
            return Ok(false);
        }
        let (before, first) = (self.shape(), self.tree.next_table_id());
        let result = {
            let _writing = self.writing.read();
            guarded("cannot merge the sorted runs", &self.dir, || {
                // Every read takes the newest version, so older ones may go.
                self.tree.compact(Arc::new(Leveled::default()), self.sequence.get())
            })
        };
        match result {
            Ok(()) => {
                if let Err(why) = self.keep_manifest() {
                    // The merge is done; the next change of the runs tries again.
                    log::warn!("{why}");
                }
                Ok(self.shape() != before)
            }
            Err(_) if self.stop.is_stopped() => Ok(false),
            Err(why) => {
                self.remove_orphans(first);
                Err(why)
            }
        }
    }

    fn stop(&self) {
        self.stop.stopped.store(true, Ordering::Relaxed);
    }

    fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }
}
