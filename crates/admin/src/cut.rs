//! A consistent copy of the metadata of a volume in use, for what must see one moment of it: the
//! check.
//!
//! Made as a dump is ([`crate::dump`]): a tap spools every batch committed from before the scan on,
//! the rows that the scan finds are copied, and the spooled changes are applied over them in order.
//! Every change is a whole row and every batch is in the spool whole, so the copy is the volume's
//! state at the moment the tap ended. Writers are never stopped.
//!
//! The copy is an embedded engine in a scratch directory: memory is bounded by `MEMORY_BYTES` for a
//! volume of any size, disk space by that of the volume's metadata. The directory goes away with
//! the cut.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::{BatchKind, BeforeSync, Engine, EngineError, Mutation};
use kestrel_types::key::Table;

use crate::dump::spool::{self, Spool, Visit};
use crate::dump::{DumpError, SPOOL_BYTES_MAX, is_passing};
use crate::rows::{Row, Rows};

/// Memory for the copy's rows.
const MEMORY_BYTES: u64 = 128 << 20;

/// The copy's log; rows are in sorted runs when it is full.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Rows and bytes of values copied in one batch.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;

/// Beginning of the names of scratch directories.
const PREFIX: &str = "cut.";

/// Why a cut could not be made.
#[derive(Debug)]
pub enum CutError {
    /// The volume's engine failed.
    Engine(EngineError),
    /// The rows that another process was to send did not come.
    Rows(String),
    /// The copy could not be written.
    Copy(PathBuf, String),
    /// Too much changed meanwhile.
    TooBusy,
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutError::Engine(error) => write!(f, "reading the metadata: {error}"),
            CutError::Rows(why) => write!(f, "reading the metadata: {why}"),
            CutError::Copy(dir, why) => write!(
                f,
                "copying the metadata to {}: {why}; the copy needs as much room as the volume's \
                 metadata, or check the \
                 volume when it is not mounted",
                dir.display()
            ),
            CutError::TooBusy => f.write_str(
                "more than 64 GiB of changes while the metadata was copied; repeat it at a quieter \
                 time",
            ),
        }
    }
}

impl std::error::Error for CutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

impl From<EngineError> for CutError {
    fn from(error: EngineError) -> Self {
        CutError::Engine(error)
    }
}

/// The copy. Dropped in this order: the directory is not used any more when it goes.
pub struct Cut {
    rows: EmbeddedEngine,
    _dir: Scratch,
}

/// A directory that goes away.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Cut {
    /// Copies the metadata of `engine` as it is at one moment during the call, to a scratch
    /// directory below `parent`. Fails before less than `reserve_bytes` are free there: the volume
    /// must not run out of room because of its check.
    ///
    /// # Errors
    /// See [`CutError`]; nothing is left behind.
    pub fn take(
        engine: &dyn Engine,
        parent: &Path,
        reserve_bytes: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, CutError> {
        let copying = Copying::new(parent, reserve_bytes)?;
        let dir = &copying.scratch.0;
        let copy = |why: &dyn fmt::Display| CutError::Copy(dir.clone(), why.to_string());
        let spool_path = dir.join("spool");
        let spool = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&spool_path);
        let spool = Spool::new(spool.map_err(|why| copy(&why))?, SPOOL_BYTES_MAX);

        let tap = engine.tap(spool.tap());
        let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(engine, table));
        copying.add(rows, progress)?;
        drop(tap);
        copying.apply(|change| spool.finish(change), |why| copy(why))?;
        let _ = fs::remove_file(&spool_path);
        Ok(copying.finish())
    }

    /// The copied metadata. It does not change.
    pub fn engine(&self) -> &dyn Engine {
        &self.rows
    }

    /// Removes what a process that was killed left below `parent`, the directory of a volume that
    /// this process has locked: no other process makes cuts there, or has directories with such
    /// names.
    pub fn remove_stale(parent: &Path) {
        let Ok(entries) = fs::read_dir(parent) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A copy that is being made: of rows first, and then of what changed while they were read.
pub struct Copying {
    rows: EmbeddedEngine,
    scratch: Scratch,
}

impl Copying {
    /// Begins one in a scratch directory below `parent`; `reserve_bytes` stay free there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(parent: &Path, reserve_bytes: u64) -> Result<Self, CutError> {
        let (rows, scratch) = empty(parent, reserve_bytes)?;
        Ok(Self { rows, scratch })
    }

    /// Copies rows, which come table by table in the order of [`Table::ALL`].
    ///
    /// # Errors
    /// Those of the rows, and if the copy cannot be written.
    pub fn add<E>(
        &self,
        rows: impl Iterator<Item = Result<Row, E>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CutError>
    where
        CutError: From<E>,
    {
        let mut batch = Batch::new(&self.rows);
        let mut done = 0;
        for row in rows {
            let (key, value) = row?;
            if !is_passing(&key) {
                batch.add(Mutation { key, value: Some(value) }).map_err(|why| self.failed(&why))?;
            }
            done += 1;
            if done % BATCH_ROWS as u64 == 0 {
                progress(done);
            }
        }
        batch.send().map_err(|why| self.failed(&why))
    }

    /// Applies what was recorded while the rows were read ([`crate::recording`]).
    ///
    /// # Errors
    /// If it cannot be read, and if the copy cannot be written.
    pub fn follow(&self, mut recorded: impl Read) -> Result<(), CutError> {
        self.apply(
            |change| spool::read(&mut recorded, change),
            |why| CutError::Rows(why.to_string()),
        )
    }

    /// The copy is whole.
    pub fn finish(self) -> Cut {
        Cut { rows: self.rows, _dir: self.scratch }
    }

    /// Applies the changes that `read` shows; `unread` is the meaning of a failure.
    fn apply(
        &self,
        read: impl FnOnce(Visit<'_>) -> Result<(), DumpError>,
        unread: impl FnOnce(&DumpError) -> CutError,
    ) -> Result<(), CutError> {
        let mut batch = Batch::new(&self.rows);
        let mut failed = None;
        let applied = read(&mut |key, value| {
            if is_passing(&key) {
                return Ok(());
            }
            let change = Mutation { key, value: value.map(Vec::into_boxed_slice) };
            batch.add(change).map_err(|why| {
                failed = Some(why);
                DumpError::from(io::Error::other("the copy could not be written"))
            })
        });
        match (failed, applied) {
            (Some(why), _) => return Err(self.failed(&why)),
            (None, Err(DumpError::TooBusy)) => return Err(CutError::TooBusy),
            (None, Err(why)) => return Err(unread(&why)),
            (None, Ok(())) => {}
        }
        batch.send().map_err(|why| self.failed(&why))
    }

    fn failed(&self, why: &dyn fmt::Display) -> CutError {
        CutError::Copy(self.scratch.0.clone(), why.to_string())
    }
}

/// An engine without rows in a scratch directory below `parent`; it leaves `reserve_bytes` free
/// there.
pub(crate) fn empty(
    parent: &Path,
    reserve_bytes: u64,
) -> Result<(EmbeddedEngine, Scratch), CutError> {
    // Others may make theirs in the same directory, with the same number in another container.
    let unlike = RandomState::new().hash_one(std::process::id());
    let dir = parent.join(format!("{PREFIX}{}-{unlike:016x}", std::process::id()));
    let copy = |why: &dyn fmt::Display| CutError::Copy(dir.clone(), why.to_string());
    fs::DirBuilder::new().mode(0o700).create(&dir).map_err(|why| copy(&why))?;
    let scratch = Scratch(dir.clone());
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let options = EmbeddedOptions {
        memory_bytes: MEMORY_BYTES,
        sync_interval: None,
        segment_bytes: LOG_BYTES_MAX / 8,
        log_bytes_max: LOG_BYTES_MAX,
        reserve_bytes,
        ..EmbeddedOptions::default()
    };
    let rows = EmbeddedEngine::open(&dir.join("rows"), [0; 16], options, nothing, &mut |_| true);
    Ok((rows.map_err(|why| copy(&why))?, scratch))
}

/// Changes gathered for one commit.
pub(crate) struct Batch<'a> {
    rows: &'a EmbeddedEngine,
    changes: Vec<Mutation>,
    bytes: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(rows: &'a EmbeddedEngine) -> Self {
        Self { rows, changes: Vec::new(), bytes: 0 }
    }

    pub(crate) fn add(&mut self, change: Mutation) -> Result<(), EngineError> {
        self.bytes += change.value.as_ref().map_or(0, |value| value.len());
        self.changes.push(change);
        if self.changes.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
            self.send()
        } else {
            Ok(())
        }
    }

    pub(crate) fn send(&mut self) -> Result<(), EngineError> {
        self.bytes = 0;
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            Ok(())
        } else {
            self.rows.commit(BatchKind::Growing, changes).map(drop)
        }
    }
}
