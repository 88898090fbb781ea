//! Sorted runs: where rows are that do not fit in memory. Written only in bulk, by flushes, never
//! row by row.
//!
//! | file | what it has |
//! | --- | --- |
//! | `runs/lsm.rs` | runs in an LSM tree (`lsm-tree`) |
//! | `runs/manifest.rs` | a second copy of the tree's manifest |
//! | `runs/salvage.rs` | rows out of damaged runs |
//! | `runs/model.rs` | runs in memory, for crash tests |

pub(super) mod lsm;
mod manifest;
#[cfg(test)]
pub(super) mod model;
pub(super) mod salvage;

use super::EngineError;

/// Compression of blocks in the sorted runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    None,
    /// LZ4.
    Lz4,
}

/// A sorted stream of rows, for one ingestion. Keys ascend strictly; `None` deletes.
pub(super) type Changes<'a> = dyn FnMut(
        &mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError>
    + 'a;

/// A cursor over rows in key order. It shows a row as it was when the cursor was opened, or later.
pub trait Cursor {
    /// The next row: key and value.
    ///
    /// # Errors
    /// Those of the store.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError>;
}

/// Bytes that a store below memory lets a reader borrow.
pub type Bytes = lsm_tree::Slice;

/// Rows below those in memory, in the order of their encoded keys.
pub trait Sorted: Send + Sync {
    /// Rows from `from` (inclusive) up to `to` (exclusive).
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_>;
}

/// Sorted runs.
///
/// Reads see whole ingestions or nothing of them.
pub(super) trait Runs: Sorted {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Adds what `changes` yields, all or nothing. It is durable when this returns. An error leaves
    /// the runs as they were.
    fn ingest(&self, changes: &mut Changes<'_>) -> Result<(), EngineError>;

    /// Does one piece of background merging. False if there was nothing to do.
    fn compact(&self) -> Result<bool, EngineError>;

    /// Makes a running `compact` end soon, and later ones do nothing.
    fn stop(&self);

    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;
}
