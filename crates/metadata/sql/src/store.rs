//! A store that counts what is read of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kestrel_blockstore::error::Result;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};

/// What queries have read so far.
#[derive(Debug, Default)]
pub struct ReadCounters {
    /// Rows of tables of versions.
    pub rows: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// What queries have read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Rows of tables of versions.
    pub rows: u64,
    /// Requests to the store.
    pub requests: u64,
    /// Bytes that they brought.
    pub bytes: u64,
}

impl ReadCounters {
    /// Counts rows.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    fn add_request(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn stats(&self) -> ReadStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadStats { rows: of(&self.rows), requests: of(&self.requests), bytes: of(&self.bytes) }
    }
}

/// See the module's header. Queries only read.
pub struct CountedStore {
    /// What is counted of.
    pub store: Arc<dyn NamedStore>,
    /// Where it is counted.
    pub counters: Arc<ReadCounters>,
}

impl NamedStore for CountedStore {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.store.create(name, bytes)
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        self.store.replace(name, bytes, tag)
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        let found = self.store.read(name)?;
        self.counters.add_request(found.as_ref().map_or(0, |found| found.bytes.len()));
        Ok(found)
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        let found = self.store.read_range(name, offset, len)?;
        self.counters.add_request(found.len());
        Ok(found)
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        let found = self.store.list(below)?;
        self.counters.add_request(0);
        Ok(found)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.store.remove(name)
    }

    fn shown(&self) -> &str {
        self.store.shown()
    }
}
