//! The metadata engine in an object store: the rows of a node as objects of a bucket, with nothing
//! else running. Any machine that reaches the bucket can open them, one process at a time.
//!
//! A [`BucketUrl`] names the bucket, [`BucketEngine::create`] makes the rows of a node,
//! [`BucketEngine::open`] claims them. [`holder`] and [`peek`] look without claiming.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kestrel_bucket::{BucketEngine, BucketOptions, BucketUrl};
//! use kestrel_engine::Engine;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = BucketUrl::parse("s3://bucket/photos?region=eu-central-1")?;
//! let (uuid, node) = ([7; 16], 0); // of the volume; of the node that owns the rows
//! BucketEngine::create(&url, uuid, node, false)?;
//! let options = BucketOptions::default();
//! let engine = BucketEngine::open(&url, uuid, node, options, Arc::new(|| Ok(())))?;
//! println!("epoch {}, durable up to {}", engine.epoch(), engine.durable());
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **Commit**: the batch is applied to the rows in memory and queued; it is *not* yet safe from
//!   the death of the process. A caller that must know waits for its position
//!   ([`Engine::on_durable`]).
//! - **Durable** is what the store has acknowledged as an object of the log (`sender`): one PUT for
//!   all batches that came while the one before was on its way.
//!   With a log directory ([`BucketEngine::open_behind`]) it is what a local disk has, and objects
//!   of the log follow later, in order.
//! - **Read**: rows in memory first, then the memtables and tables (`tree`). Once another process
//!   is found to have the rows, nothing is read any more.
//! - **Claim**: the manifest is replaced only by a process that has read the one before, and
//!   carries the epoch; log objects are made only where there is none, so that an earlier process
//!   meets the first one of a later (`log`).
//!
//! Callers of the engine block; four threads write: `sender`, two of `flusher`, `holder`.
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | `url` | [`BucketUrl`]: where the rows are |
//! | `manifest`, `log`, `table` | the formats of objects (`docs/format/bucket.md`) |
//! | `recover` | opening: the claim, and the log that no table has |
//! | `sender` | committed batches become log objects, in order |
//! | `tree` | memtables and tables, as readers see them |
//! | `ingest` | [`RowBuffer`]: rows that become tables at once, past the log |
//! | `merge` | rows of several runs in order, without copies |
//! | `flusher` | memtables become tables; runs of tables are merged |
//! | `shared` | what callers and the threads share |
//! | [`log_dir`], `local`, `local_sync` | batches that are durable here before they are uploaded |
//! | `holder` | the process that has the rows open |
//! | `process` | [`ProcessMark`]: which process wrote an object |
//! | `health` | whether the store answers |
//! | `document` | documents of JSON with their checksum |
//! | `hex`, `wire` | fields of the formats |
//! | `follow` | [`Follower`]: the rows as another process writes them, without a claim |
//! | [`version`] | published versions: trees that never change, and their names |

mod document;
mod flusher;
mod follow;
mod health;
mod hex;
mod holder;
mod ingest;
mod local;
mod local_sync;
mod log;
pub mod log_dir;
mod manifest;
mod merge;
mod process;
mod recover;
mod sender;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod url;
pub mod version;
mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

pub use kestrel_engine::embedded::Uuid;
use kestrel_engine::embedded::Verify;
use kestrel_engine::{
    BatchKind, BeforeSync, Claimed, Engine, EngineError, EngineStats, Epoch, Fence, Mutation,
    OnDurable, Row, Tap, TapGuard, VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::Mutex;

use flusher::Flusher;
pub use follow::{FollowedRows, FollowedTo, Follower};
use holder::Stopper;
pub use ingest::RowBuffer;
use log_dir::LogDirOptions;
pub use process::ProcessMark;
use recover::FoundLog;
use shared::EngineShared;
pub use url::{BucketUrl, LiveTables, TableLayer};

/// Settings of an engine in a bucket.
#[derive(Debug, Clone, Copy)]
pub struct BucketOptions {
    /// Memory for rows and for blocks of tables, bytes. Batches in flight come on top.
    pub memory_bytes: u64,
    /// Takes the place of another process that has the rows open, instead of being refused.
    pub take_over: bool,
    /// How long batches may wait for more before they are uploaded, unless a caller waits for them;
    /// none: they are uploaded at once. Of a log directory, which has its own time, it is ignored.
    pub upload_every: Option<Duration>,
    /// Runs of tables are merged in the background. Not of rows that are written once, are hardly
    /// read, and are all read in the end.
    pub merges: bool,
}

impl Default for BucketOptions {
    fn default() -> Self {
        Self { memory_bytes: 512 << 20, take_over: false, upload_every: None, merges: true }
    }
}

/// The engine, on the rows of one node.
pub struct BucketEngine {
    shared: Arc<EngineShared>,
    /// That of the opening.
    epoch: Epoch,
    /// One claim at a time.
    claim: Mutex<()>,
    stopper: Arc<Stopper>,
    flusher: Arc<Flusher>,
    threads: Option<Threads>,
}

struct Threads {
    /// Of an engine with a log directory: what syncs the log, and what keeps its files ready.
    local: Vec<JoinHandle<()>>,
    sender: JoinHandle<()>,
    flusher: JoinHandle<()>,
    merger: JoinHandle<()>,
    holder: JoinHandle<()>,
}

/// The process that has the rows of a node open, in words, if there is one.
///
/// # Errors
/// Why the store does not say, in words.
pub fn holder(url: &BucketUrl, node: u32) -> Result<Option<String>, String> {
    recover::holder_of(url, node).map_err(|why| why.to_string())
}

/// A row of a node as it stands in the bucket, without claiming the rows.
///
/// # Errors
/// Why the store does not say, in words.
pub fn peek(url: &BucketUrl, node: u32, key: KeyRef<'_>) -> Result<Option<Box<[u8]>>, String> {
    let mut bytes = Vec::new();
    key.encode_into(&mut bytes);
    recover::peek(url, node, &bytes).map_err(|why| why.to_string())
}

impl BucketEngine {
    /// Makes the rows of a node, which has none, if they are not there. `joins`: those of other
    /// nodes of the volume are there.
    ///
    /// # Errors
    /// `Refused` if the prefix has those of another volume, its format is newer, or the store has
    /// no conditional puts; the store's.
    pub fn create(url: &BucketUrl, uuid: Uuid, node: u32, joins: bool) -> Result<(), EngineError> {
        recover::create(url, &uuid, node, joins)
    }

    /// Removes the rows of all nodes of a volume. Nothing happens if those below the prefix are not
    /// this volume's.
    ///
    /// # Errors
    /// The store's, `Refused` if a process has rows open.
    pub fn remove(url: &BucketUrl, uuid: Uuid) -> Result<(), EngineError> {
        recover::remove(url, &uuid)
    }

    /// Opens the rows of a node and claims them. `before_sync` runs before each log object is made,
    /// to make durable what its rows refer to.
    ///
    /// # Errors
    /// `Refused` for another volume's rows, a newer format, rows that are not there or that another
    /// process has open; `Corrupt`; the store's.
    pub fn open(
        url: &BucketUrl,
        uuid: Uuid,
        node: u32,
        options: BucketOptions,
        before_sync: BeforeSync,
    ) -> Result<Self, EngineError> {
        let store = url.open_rows(&uuid, node)?;
        recover::open((store, url.deadline()), (uuid, node), options, before_sync)
    }

    /// The same with a log directory: batches are durable when they are there, and are uploaded
    /// later, in order. `verify` as for [`LocalLog::open`].
    ///
    /// # Errors
    /// As for [`BucketEngine::open`]; `Refused` for a log that does not fit the volume any more, or
    /// a directory that is not suitable.
    ///
    /// [`LocalLog::open`]: kestrel_engine::local_log::LocalLog::open
    pub fn open_behind(
        url: &BucketUrl,
        (uuid, node): (Uuid, u32),
        (options, log_dir): (BucketOptions, LogDirOptions),
        before_sync: BeforeSync,
        verify: &mut Verify<'_>,
    ) -> Result<Self, EngineError> {
        let found = FoundLog::look(log_dir, (uuid, node), verify)?;
        let place = (url.open_rows(&uuid, node)?, url.deadline());
        let options = (options, recover::limits_of(options));
        recover::open_logged(place, (uuid, node), options, before_sync, Some(found))
    }

    /// Lets go of all rows in memory that the bucket has, so that they are read from there.
    #[cfg(test)]
    fn forget(&self) {
        self.shared.row_cache.forget();
    }
}

impl Drop for BucketEngine {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else { return };
        // The sender ends when what was committed is in the bucket, or cannot be brought there
        // within the deadline. A thread that panicked has printed that.
        self.shared.stop();
        let mut local_threads = threads.local.into_iter();
        let _ = local_threads.next().map(JoinHandle::join);
        let _ = threads.sender.join();
        let _ = threads.flusher.join();
        let _ = threads.merger.join();
        if !self.shared.has_failed()
            && let Err(why) = self.shared.publish(|manifest| manifest.closed = true)
        {
            ::log::warn!("that this process has ended was not noted: {why}");
        }
        if let Some(local) = &self.shared.local {
            local.log.stop();
            local_threads.for_each(|thread| drop(thread.join()));
            if !self.shared.has_failed()
                && let Err(why) = local.dir.lock().end()
            {
                ::log::warn!("{why}");
            }
        }
        self.stopper.stop();
        let _ = threads.holder.join();
    }
}

impl Fence for BucketEngine {
    fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        let _guard = self.claim.lock();
        self.shared.begin_epoch()
    }

    fn commit_in(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        self.shared.commit(epoch, kind, mutations)
    }
}

impl Engine for BucketEngine {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Claimed::begin(self)
    }

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn silence(&self) -> Duration {
        self.shared.health.silence()
    }

    fn confirmations(&self) -> u64 {
        self.shared.confirmations()
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        let missed = self.shared.row_cache.get_many(&self.shared.tree, keys, visit)?;
        let counters = &self.shared.counters;
        counters.hits.fetch_add((keys.len() - missed) as u64, Ordering::Relaxed);
        counters.reads.fetch_add(missed as u64, Ordering::Relaxed);
        Ok(())
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.scan(&self.shared.tree, (table, id), after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> std::ops::ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.shared.readable()?;
        self.shared.row_cache.scan_table(&self.shared.tree, table, from, visit)
    }

    fn hint_new(&self, table: Table, id: u64) {
        self.shared.row_cache.hint_new(table, id);
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.commit_in(self.epoch, kind, mutations)
    }

    fn durable(&self) -> Position {
        self.shared.row_cache.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        self.shared.want(position);
        self.shared.row_cache.on_durable(position, done);
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.acknowledges()?;
        let position = self.shared.appended();
        self.shared.want(position);
        self.shared.row_cache.wait(position)
    }

    fn upload(&self, position: Position) -> Result<(), EngineError> {
        self.shared.upload(position)
    }

    fn settle(&self) -> Result<(), EngineError> {
        self.sync()?;
        self.upload(Position::MAX)
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        self.shared.tap(tap)
    }

    fn stats(&self) -> EngineStats {
        self.shared.stats()
    }
}
