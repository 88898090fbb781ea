//! The objects below a prefix of another store.

use std::sync::Arc;

use bytes::Bytes;

use super::{ETag, NamedObject, NamedStore};
use crate::error::Result;

/// A part of a store: objects with names that begin with a prefix, which ends in a slash, by the
/// rest of their names.
pub struct BelowNamed {
    store: Arc<dyn NamedStore>,
    prefix: String,
    shown: String,
}

impl BelowNamed {
    /// What is below this prefix.
    pub fn new(store: Arc<dyn NamedStore>, prefix: String) -> Self {
        let shown = format!("{}/{}", store.shown(), prefix.trim_end_matches('/'));
        Self { store, prefix, shown }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl NamedStore for BelowNamed {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        self.store.create(&self.name(name), bytes)
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        self.store.replace(&self.name(name), bytes, tag)
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        self.store.read(&self.name(name))
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.store.read_range(&self.name(name), offset, len)
    }

    fn read_range_fresh(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        self.store.read_range_fresh(&self.name(name), offset, len)
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        let found = self.store.list(&self.name(below))?;
        let own = |(name, size): (String, u64)| {
            name.strip_prefix(&self.prefix).map(|name| (name.to_string(), size))
        };
        Ok(found.into_iter().filter_map(own).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.store.remove(&self.name(name))
    }

    fn shown(&self) -> &str {
        &self.shown
    }
}
