//! The ordered store below the metadata core: a trait with few methods, [`Engine`], and the engines
//! behind it.
//!
//! Rows are bytes under a [`Key`] of a table. A batch of [`Mutation`]s is applied as a whole, gets
//! the next position of the log, and becomes durable later. Nothing above this trait depends on
//! which engine serves it.
//!
//! - [`EmbeddedEngine`] keeps rows in a directory: a log, rows in memory, sorted runs.
//! - [`MemoryEngine`] keeps them in memory, for tests and simulation, and can lose what is not
//!   synced.
//! - The crates `kestrel-postgres` and `kestrel-etcd` keep them in a database.
//!
//! ```
//! use std::sync::Arc;
//!
//! use kestrel_engine::{BatchKind, Engine, EngineError, MemoryEngine, Mutation};
//! use kestrel_types::{Key, Table};
//!
//! # fn main() -> Result<(), EngineError> {
//! let engine = Arc::new(MemoryEngine::default()).claim()?; // older handles commit no more
//!
//! let key = Key::new(Table::System, 0, b"greeting");
//! let row = Mutation { key: key.clone(), value: Some(Box::from(*b"hello")) };
//! let position = engine.commit(BatchKind::Growing, vec![row])?; // reads see it from now on
//! engine.sync()?; // power loss does not take it any more
//! assert!(engine.durable() >= position);
//!
//! engine.get_many(&[key.borrow()], &mut |_, row| {
//!     assert_eq!(row.value, Some(&b"hello"[..]));
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`embedded`] | the engine on a local disk |
//! | `log`, `disk` | its log; the few file operations that the log needs |
//! | [`local_log`] | the same log for an engine with its rows elsewhere |
//! | `checkpoint`, `fence` | where reading the log begins; the epoch of the files |
//! | `small_record` | the layout of records of 64 bytes, which are kept twice |
//! | `rows`, `scan` | rows in memory; scans that merge them with those below |
//! | `runs` | sorted runs on disk |
//! | [`memory`] | the engine in memory |
//! | [`row_cache`], [`elsewhere`] | what engines with rows in a database have in common |
//! | `claimed` | [`Claimed`] and [`Fence`]: handles of one epoch |
//! | `layer`, [`cancellable`] | [`Layer`]: engines over engines; scans that can be stopped |
//! | `durability`, `taps` | callbacks for durable positions; copies of committed batches |
//! | `latency_hint` | [`LatencyHint`]: threads that must not wait long |
//! | `exercise` | generated sequences of operations, for tests of engines (feature `exercise`) |
//!
//! # Invariants
//!
//! - A batch is visible as a whole to every read that starts after its commit, and survives the
//!   death of the process (in a database: once its position is durable).
//! - A position that was reported durable is never lost. After a failed sync every later commit
//!   fails too, until the store is opened again ([`EngineError::Io`]).
//! - Once a store was claimed, commits through older handles change nothing ([`Engine::claim`]).

pub mod cancellable;
mod checkpoint;
mod claimed;
mod disk;
mod durability;
pub mod elsewhere;
pub mod embedded;
#[cfg(any(test, feature = "exercise"))]
pub mod exercise;
mod fence;
mod latency_hint;
mod layer;
pub mod local_log;
mod log;
pub mod memory;
pub mod row_cache;
mod rows;
mod runs;
mod scan;
mod small_record;
mod taps;

pub use claimed::{Claimed, Fence};
pub use embedded::{EmbeddedEngine, EmbeddedOptions};
pub use latency_hint::LatencyHint;
pub use layer::Layer;
pub use memory::MemoryEngine;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kestrel_types::ids::Position;
use kestrel_types::key::{Key, KeyRef, Table};

/// Most mutations in one batch.
pub const BATCH_MUTATIONS_MAX: usize = 1 << 20;

/// One change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// The row.
    pub key: Key,
    /// Its new value, or `None` to delete it.
    pub value: Option<Box<[u8]>>,
}

/// What kind of work a batch is, for the decision whether it may use the disk space kept in
/// reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    /// Refused with [`EngineError::NoSpace`] when disk space runs out.
    Growing,
    /// Frees space (unlink, truncate, reap): may use the reserve, so that a full disk can be
    /// emptied.
    Freeing,
}

/// Counts the holders of a store: each holder has a higher one than those before it, and a holder
/// that was replaced is recognized by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A row as a read sees it.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The value, or `None` if the row does not exist.
    pub value: Option<&'a [u8]>,
    /// Log position of the row's last change if that may not be durable yet, else 0. A reader must
    /// not let a client see the row in mode `commit` before this position is durable (also when the
    /// row was deleted).
    pub changed_at: Position,
}

/// Called when a position is durable, or when the log failed and it never will be.
pub type OnDurable = Box<dyn FnOnce(Result<(), EngineError>) + Send>;

/// Shown a row by a scan: its suffix, its value, and where it changed last if that may not be
/// durable, else 0.
pub type VisitRow<'a> = dyn FnMut(&[u8], &[u8], Position) -> ControlFlow<()> + 'a;

/// Shown every committed batch, in commit order.
pub type Tap = Box<dyn FnMut(&[Mutation]) + Send>;

/// Called before each sync of the log, to make durable what the batches to be synced refer to (data
/// before metadata). If it fails, the sync fails.
pub type BeforeSync = Arc<dyn Fn() -> Result<(), EngineError> + Send + Sync>;

/// An ordered key-value store with atomic batches and a durability barrier, in the hands of one
/// holder.
///
/// Every commit carries the holder's [`Epoch`], which comes with the handle so that no caller can
/// forget it. A process that claims the store gets a handle of a higher one; from then on commits
/// through older handles are refused.
pub trait Engine: Send + Sync {
    /// Begins a new epoch, durably, and gives a handle that has it. Commits through any other
    /// handle, of this process or another, get [`EngineError::Fenced`] from then on and change
    /// nothing; what they committed before, the new handle's reads see.
    ///
    /// # Errors
    /// `Fenced` if another process has taken the store over, `Refused` for an engine that has no
    /// holders, `NoSpace` and `Io`.
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError>;

    /// The epoch of this handle's commits.
    fn epoch(&self) -> Epoch;

    /// Whether another process may claim the store while one that holds it still runs and does not
    /// know: it lies where others reach it. A holder of such a store answers nothing without a
    /// lease (`kestrel_cluster::lease`).
    fn is_shared(&self) -> bool {
        false
    }

    /// How long the store has not answered; zero for one that does, or that always does.
    fn silence(&self) -> Duration {
        Duration::ZERO
    }

    /// How often a store that takes nothing, being full, has confirmed that it is still the newest
    /// handle's of this process: durably, as by a commit. The next confirmation is made when the
    /// one before has been counted.
    fn confirmations(&self) -> u64 {
        0
    }

    /// Reads the rows of `keys`, calling `visit(index, row)` once for each, in any order. Values
    /// are borrowed for the call, during which locks are held: `visit` must not call the engine.
    /// Each row is as of one instant within the call, not all of the same one: a batch committed
    /// meanwhile may be seen in part.
    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError>;

    /// Visits the rows of `(table, id)` with a suffix above `after` (or all, if `None`) in
    /// ascending order, until `visit(suffix, value, changed_at)` breaks. Sees every batch committed
    /// before the call; batches committed during it may be seen in part. Also reports the newest
    /// `changed_at` among rows *deleted* in the range, as the return value.
    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError>;

    /// Visits all rows of a table in key order from `from` on (inclusive), across ids, until
    /// `visit` breaks. Same consistency as [`Engine::scan`]. Bounded memory at any size of the
    /// table.
    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError>;

    /// Notes that no row of `(table, id)` exists (a new directory), so that reads of absent rows
    /// and scans need not look on disk. A hint, given before the first row of `(table, id)` is
    /// committed.
    fn hint_new(&self, table: Table, id: u64);

    /// Applies all mutations atomically: visible to every read that starts afterwards, written to
    /// the log (so it survives the death of the process), not necessarily synced. Later mutations
    /// of the same key in one batch win.
    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError>;

    /// Newest durable position.
    fn durable(&self) -> Position;

    /// Calls `done` once `position` is durable: at once on this thread if it already is, else from
    /// the syncer thread, for all waiting callbacks after one sync (group commit). `done` must not
    /// commit or sync: the thread that calls it is the one that syncs.
    fn on_durable(&self, position: Position, done: OnDurable);

    /// Makes everything committed so far durable. Blocks.
    fn sync(&self) -> Result<(), EngineError>;

    /// Waits until other machines that read the store see everything up to `position`, or
    /// everything committed so far for [`Position::MAX`]. Only an engine that acknowledges batches
    /// before they are in the store that others reach has something to wait for; of all others
    /// what is durable is there.
    ///
    /// # Errors
    /// If they are not there in time, or never will be.
    fn upload(&self, _position: Position) -> Result<(), EngineError> {
        Ok(())
    }

    /// Makes everything durable, for a clean end: a sharer of the engine calls this before the last
    /// reference goes away. May do more, so that opening takes less time.
    ///
    /// # Errors
    /// If something committed could not be made durable.
    fn settle(&self) -> Result<(), EngineError> {
        self.sync()
    }

    /// Starts copying every batch committed from now on to `tap`, in commit order, until the guard
    /// is dropped; used with a full scan for consistent dumps of a volume in use (scan, then replay
    /// the tap's batches over it). `tap` runs inside commits and must not call the engine.
    fn tap(&self, tap: Tap) -> TapGuard;

    /// Counters for `kestrel stats`.
    fn stats(&self) -> EngineStats;
}

/// Ends a [`Engine::tap`] when dropped.
pub struct TapGuard(pub(crate) Box<dyn FnOnce() + Send>);

/// What an engine has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Batches committed.
    pub commits: u64,
    /// Mutations committed.
    pub mutations: u64,
    /// Log bytes appended.
    pub log_bytes: u64,
    /// Log syncs.
    pub syncs: u64,
    /// Reads answered from memory.
    pub memory_hits: u64,
    /// Reads that went to the sorted runs.
    pub run_reads: u64,
    /// Rows in memory.
    pub rows_in_memory: u64,
    /// Bytes of rows in memory, with their overhead.
    pub memory_bytes: u64,
    /// Of these, bytes not yet in sorted runs.
    pub dirty_bytes: u64,
    /// Bytes of the log on disk.
    pub log_disk_bytes: u64,
    /// Bytes of the sorted runs on disk.
    pub run_disk_bytes: u64,
    /// Flushes from memory to sorted runs.
    pub flushes: u64,
    /// Bytes of batches that are durable on this machine only, and have yet to be uploaded.
    pub backlog_bytes: u64,
    /// Age of the oldest of them, milliseconds.
    pub backlog_age_ms: u64,
    /// Whether the engine has a log on this machine in front of a store elsewhere.
    pub uploads_behind: bool,
}

/// Why an engine could not execute a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The disk is full; nothing was changed.
    NoSpace,
    /// The disk failed; after a failed sync every later commit fails too, until the volume is
    /// opened again.
    Io(String),
    /// Stored bytes are damaged; the text names the file.
    Corrupt(String),
    /// Another process has the volume open, or the format is newer than this program; the text has
    /// which.
    Refused(String),
    /// Another handle claimed the store after this one did; nothing was changed, and nothing ever
    /// will be through this handle.
    Fenced {
        /// The handle's epoch.
        held: Epoch,
        /// The store's.
        current: Epoch,
    },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::NoSpace => f.write_str(
                "metadata: no space left on the disk of the volume; delete something or grow it",
            ),
            EngineError::Io(why) | EngineError::Corrupt(why) | EngineError::Refused(why) => {
                f.write_str(why)
            }
            EngineError::Fenced { held, current } => write!(
                f,
                "metadata: another process has taken this metadata over (epoch {current}, this one \
                 has {held}); nothing was \
                 changed; end this process, and see that only one runs on it"
            ),
        }
    }
}

impl std::error::Error for EngineError {}

impl TapGuard {
    /// For engines outside of this crate: `end` ends the tap.
    pub fn new(end: Box<dyn FnOnce() + Send>) -> Self {
        Self(end)
    }
}

impl Drop for TapGuard {
    fn drop(&mut self) {
        let end = std::mem::replace(&mut self.0, Box::new(|| ()));
        end();
    }
}
