//! A volume's complete metadata as one file: JSON Lines, checksummed, readable by other programs
//! (`docs/format/dump.md`).
//!
//! | file | what it has |
//! | --- | --- |
//! | `dump/load.rs` | loads a dump into a volume of one node |
//! | `dump/spread.rs` | loads a dump into a volume that several nodes share |
//! | `dump/backup.rs` | dumps in the block store: list, write, read, prune |
//! | `dump/record.rs` | lines with checksums |
//! | `dump/value.rs` | rows as JSON |
//! | `dump/spool.rs` | batches that are committed during the scan |
//!
//! A dump of a volume in use is consistent: a tap copies every batch committed from before the scan
//! on to a spool file, the rows found by the scan come first, and the spooled changes follow.
//! Replayed over the rows in order they give the state at the moment the tap ended, since every
//! change is a whole row.

pub mod backup;
pub mod load;
mod record;
pub(crate) mod spool;
pub mod spread;
mod value;

use std::fmt;
use std::fs::File;
use std::io::{self, Write};

use kestrel_engine::{Engine, EngineError};
use kestrel_types::clock::Nanos;
use kestrel_types::key::Table;
use serde_json::{Value, json};

use crate::rows::{LEASE, Rows, USAGE};
use record::LineWriter;
use spool::Spool;

/// Newest version of the format that this program reads, and the one it writes.
pub const VERSION: u64 = 1;

/// Name of the format in the first line.
pub const FORMAT: &str = "kestrel-dump";

/// Most bytes of changes spooled during a dump: a volume that changes more in that time is too busy
/// for this disk.
pub(crate) const SPOOL_BYTES_MAX: u64 = 64 << 30;

/// What a dump holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows.
    pub rows: u64,
    /// Changes made while the rows were read.
    pub changes: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Why a dump could not be written or loaded.
#[derive(Debug)]
pub enum DumpError {
    /// The engine failed.
    Engine(EngineError),
    /// The file could not be written or read.
    Io(io::Error),
    /// The file is not a dump, damaged, or truncated; with the line where it was noticed.
    Corrupt(u64, String),
    /// The file was written by a newer program.
    Newer(u64),
    /// The volume to load into is not empty.
    NotEmpty,
    /// What was loaded is not what was read.
    Mismatch(String),
    /// Too much changed meanwhile.
    TooBusy,
    /// So many clones of the dump are not complete, by records that an earlier version wrote, and
    /// it is to be loaded into several nodes.
    UnfinishedClones(usize),
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Engine(error) => write!(f, "metadata engine: {error}"),
            DumpError::Io(error) => write!(f, "{error}"),
            DumpError::Corrupt(line, why) => {
                write!(f, "line {line}: {why}; use another copy of the dump")
            }
            DumpError::Newer(version) => {
                write!(
                    f,
                    "the dump has format version {version}, this program reads {VERSION}; use a \
                     newer kestrel"
                )
            }
            DumpError::NotEmpty => f.write_str("the volume holds files; load into a new one"),
            DumpError::Mismatch(why) => {
                write!(f, "verification failed: {why}; do not use this volume")
            }
            DumpError::TooBusy => f.write_str(
                "more than 64 GiB of changes during the dump; repeat it at a quieter time",
            ),
            DumpError::UnfinishedClones(count) => write!(
                f,
                "{count} clones were not complete when an earlier version of kestrel wrote this, \
                 which several nodes cannot read: load the dump into one node, mount that until \
                 `kestrel du` says nothing of clones, and dump it again"
            ),
        }
    }
}

impl std::error::Error for DumpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => Some(error),
            // It prints as its cause does.
            Self::Io(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

impl From<EngineError> for DumpError {
    fn from(error: EngineError) -> Self {
        DumpError::Engine(error)
    }
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        DumpError::Io(error)
    }
}

/// What the first line has of the volume.
#[derive(Debug, Clone)]
pub struct About {
    /// The volume's descriptor; loading the dump gives it back.
    pub volume: Value,
    /// Program that writes the dump.
    pub program: String,
    /// When.
    pub now: Nanos,
}

/// Writes a dump. `spool` is an empty file, open for reading and writing, that no other process
/// uses. The caller makes `out` durable.
///
/// # Errors
/// If the engine or one of the files fails; the dump is then incomplete, and `load` refuses it.
pub fn dump(
    engine: &dyn Engine,
    about: &About,
    out: &mut dyn Write,
    spool: File,
    progress: &mut dyn FnMut(u64),
) -> Result<Counts, DumpError> {
    let mut writer = LineWriter::new(out);
    writer.line(
        "header",
        &json!({
            "format": FORMAT, "version": VERSION, "program": about.program, "written": about.now,
            "volume": about.volume,
        }),
    )?;
    let spool = Spool::new(spool, SPOOL_BYTES_MAX);
    let tap = engine.tap(spool.tap());
    let mut counts = Counts::default();
    for table in Table::ALL {
        for row in Rows::new(engine, table) {
            let (key, value) = row?;
            if is_left_out(&key) {
                continue;
            }
            writer.line("row", &value::row(&key, &value))?;
            counts.rows += 1;
            if counts.rows.is_multiple_of(4096) {
                progress(counts.rows);
            }
        }
    }
    drop(tap);
    spool.finish(&mut |key, value| {
        if is_left_out(&key) {
            return Ok(());
        }
        counts.changes += 1;
        let change = match value {
            Some(bytes) => value::row(&key, &bytes),
            None => value::deleted(&key),
        };
        writer.line("change", &change)
    })?;
    writer.end(&mut counts)?;
    Ok(counts)
}

/// Rows that are no part of a dump: besides the passing ones what a node keeps for its clients
/// across a network. A volume made of the dump has none, and an answer given by the volume that was
/// dumped means nothing in this one.
fn is_left_out(key: &kestrel_types::key::Key) -> bool {
    is_passing(key)
        || matches!(key.table, Table::Moved | Table::Txn)
        || (key.table == Table::System && *key.suffix == *LEASE)
}

/// Rows that say something about one stop of the volume, not about what it holds.
pub(crate) fn is_passing(key: &kestrel_types::key::Key) -> bool {
    key.table == Table::System && *key.suffix == *USAGE
}
