//! Rows that become a run of tables at once, past the log and the memtable: what a client that logs
//! its own changes writes ("bulk insertion", DeltaFS, section 4.3; RocksDB calls it ingestion).
//!
//! A row costs what sorting it and writing it once costs. In return nothing may be asked of it
//! before it is there: rows wait in a [`RowBuffer`] that no reader sees, and of rows with one key
//! the last one counts.

use std::cmp::Ordering;

use kestrel_engine::EngineError;
use kestrel_types::key::{KeyRef, PREFIX_LEN};

use crate::BucketEngine;

/// Bytes of a key behind its prefix that are compared without looking at the key.
const HEAD_BYTES: usize = 16;

/// Rows in the order in which they were made, for [`BucketEngine::ingest`].
#[derive(Debug, Default)]
pub struct RowBuffer {
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    rows: Vec<BufferedRow>,
}

/// Where a row is, and the beginning of its key.
#[derive(Debug, Clone, Copy)]
struct BufferedRow {
    prefix: u128,
    head: u128,
    at: u32,
    key_len: u32,
    value_len: u32,
}

impl RowBuffer {
    /// Most bytes of a buffer: places in it have 32 bits.
    pub const BYTES_MAX: usize = 1 << 30;

    /// Adds a row, the value being what `encode` appends. False: the buffer has no room for it, and
    /// is as it was.
    pub fn push(&mut self, key: KeyRef<'_>, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let at = self.bytes.len();
        key.encode_into(&mut self.bytes);
        let value_at = self.bytes.len();
        encode(&mut self.bytes);
        if self.bytes.len() > Self::BYTES_MAX {
            self.bytes.truncate(at);
            return false;
        }
        let mut head = [0; HEAD_BYTES];
        let len = key.suffix.len().min(HEAD_BYTES);
        head[..len].copy_from_slice(&key.suffix[..len]);
        self.rows.push(BufferedRow {
            prefix: u128::from(key.table as u8) << 64 | u128::from(key.id),
            head: u128::from_be_bytes(head),
            // All three are bounded by the length of the buffer.
            at: at as u32,
            key_len: (value_at - at) as u32,
            value_len: (self.bytes.len() - value_at) as u32,
        });
        true
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes that the rows take in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.rows.len() * size_of::<BufferedRow>()
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    fn key(&self, row: BufferedRow) -> &[u8] {
        &self.bytes[row.at as usize..][..row.key_len as usize]
    }

    fn value(&self, row: BufferedRow) -> &[u8] {
        &self.bytes[(row.at + row.key_len) as usize..][..row.value_len as usize]
    }

    /// Puts the rows in order of their keys; of those with one key the last one stays. How many
    /// went.
    fn sort(&mut self) -> u64 {
        let mut rows = std::mem::take(&mut self.rows);
        let order = |one: &BufferedRow, other: &BufferedRow| -> Ordering {
            (one.prefix, one.head).cmp(&(other.prefix, other.head)).then_with(|| {
                // Names that are equal up to here, or end with zeros in it.
                let rest = |row: &BufferedRow| &self.key(*row)[PREFIX_LEN..];
                rest(one).cmp(rest(other))
            })
        };
        // Stable, and fast where rows are in order already.
        rows.sort_by(order);
        let before = rows.len();
        let mut kept = 0;
        for at in 0..rows.len() {
            let is_last = rows.get(at + 1).is_none_or(|next| order(&rows[at], next).is_ne());
            if is_last {
                rows[kept] = rows[at];
                kept += 1;
            }
        }
        rows.truncate(kept);
        self.rows = rows;
        (before - kept) as u64
    }

    /// The rows; they must be sorted.
    fn sorted(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|row| (self.key(*row), self.value(*row)))
    }

    /// Whether there is a row of a key; they must be sorted.
    fn has(&self, key: &[u8]) -> bool {
        self.rows.binary_search_by(|row| self.key(*row).cmp(key)).is_ok()
    }
}

impl BucketEngine {
    /// Writes rows as a run of tables above all others, and empties the buffer. They are durable,
    /// and readers see them, when it returns. Rows of the buffer with a key of an earlier row of it
    /// took that one's place; so many is what is returned.
    ///
    /// Rows of these keys must not be committed meanwhile.
    ///
    /// # Errors
    /// `Fenced` if another process has claimed the rows; `Io` if a batch that no table has yet has
    /// a row of one of the keys; the store's. The buffer is as it was then, and may be ingested
    /// again.
    pub fn ingest(&self, rows: &mut RowBuffer) -> Result<u64, EngineError> {
        self.shared.readable()?;
        if rows.is_empty() {
            return Ok(0);
        }
        let replaced = rows.sort();
        kestrel_engine::Engine::sync(self)?;
        let view = self.shared.tree.view();
        for memtable in view.frozen.iter().chain([&view.active]) {
            memtable.visit(|key, _| match rows.has(key) {
                // It would hide the new one.
                true => Err(EngineError::Io("a row was committed and ingested".into())),
                false => Ok(()),
            })?;
        }
        (self.shared.before_sync)()?;
        self.flusher.add_run(&self.shared, rows.sorted())?;
        // Rows of these keys may be known as missing.
        self.shared.row_cache.forget();
        rows.clear();
        Ok(replaced)
    }
}
