//! Sorted runs: where rows are that do not fit in memory. Written only in bulk, by flushes, never row by row.

pub(super) mod lsm;
#[cfg(test)]
pub(super) mod model;

use super::EngineError;

/// A sorted stream of rows, for one ingestion. Keys ascend strictly; `None` deletes.
pub(super) type Changes<'a> = dyn FnMut(&mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>) -> Result<(), EngineError>
    + 'a;

/// A cursor over rows in key order, on the state the runs had when it was opened.
pub(super) trait Cursor {
    /// The next row.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, EngineError>;
}

/// Bytes that a run lends.
pub(super) type Bytes = lsm_tree::Slice;

/// Sorted runs.
///
/// Reads see whole ingestions or nothing of them.
pub(super) trait Runs: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// Rows from `from` (inclusive) up to `to` (exclusive).
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_>;

    /// Adds what `changes` yields, all or nothing. It is durable when this returns. An error leaves the runs as they were.
    fn ingest(&self, changes: &mut Changes<'_>) -> Result<(), EngineError>;

    /// Does one piece of background merging. False if there was nothing to do.
    fn compact(&self) -> Result<bool, EngineError>;

    /// Makes a running `compact` end soon, and later ones do nothing.
    fn stop(&self);

    /// Bytes on disk.
    fn disk_bytes(&self) -> u64;
}
