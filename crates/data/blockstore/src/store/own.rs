//! A store of which only some objects are the caller's to delete.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kestrel_types::ids::ObjectId;

use super::coded::Compression;
use super::{AppendStore, BlockStore, LocalCache, Page, PutOptions, TieredStore, Usage};
use crate::error::Result;

/// A store of objects of which a caller may delete those of its own numbers. It reads all others:
/// they belong to what it was made on. A deletion of one of them does nothing.
pub struct OwnStore {
    store: Arc<dyn BlockStore>,
    own: Range<ObjectId>,
}

impl OwnStore {
    /// Objects with numbers in `own` are the caller's.
    pub fn new(store: Arc<dyn BlockStore>, own: Range<ObjectId>) -> Self {
        Self { store, own }
    }
}

impl BlockStore for OwnStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        self.store.put(object, parts)
    }

    fn put_shared(&self, object: ObjectId, parts: &[Bytes]) -> Result<()> {
        self.store.put_shared(object, parts)
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        self.store.put_with(object, parts, options)
    }

    fn compression(&self) -> Option<Compression> {
        self.store.compression()
    }

    fn expect_compressed(&self) {
        self.store.expect_compressed();
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        // Moving an object would move it for what it belongs to as well.
        None
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        self.store.appends()
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.store.read(object, offset, parts)
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.store.read_up_to(object, offset, out)
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        self.store.try_read_nowait(object, offset, parts)
    }

    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        self.store.prefetch(object, offset, len)
    }

    fn read_fresh(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        self.store.read_fresh(object, offset, parts)
    }

    fn is_remote(&self) -> bool {
        self.store.is_remote()
    }

    fn near(&self) -> Option<&dyn LocalCache> {
        self.store.near()
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.store.stats(report);
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.store.size(object)
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        if self.own.contains(&object) { self.store.delete(object) } else { Ok(false) }
    }

    fn delete_each(&self, objects: &[ObjectId]) -> Vec<Result<()>> {
        let own: Vec<ObjectId> =
            objects.iter().copied().filter(|object| self.own.contains(object)).collect();
        let mut deleted = self.store.delete_each(&own).into_iter();
        let answer = |object: &ObjectId| match self.own.contains(object) {
            true => deleted.next().unwrap_or(Ok(())),
            false => Ok(()),
        };
        objects.iter().map(answer).collect()
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.store.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.store.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.store.usage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Objects of others are read, and stay whatever is deleted.
    #[test]
    fn objects_of_others() {
        let below: Arc<dyn BlockStore> = Arc::new(MemoryStore::default());
        let store = OwnStore::new(below.clone(), 100..200);
        for object in [5, 100, 150, 200] {
            below.put(object, &[IoSlice::new(b"kept")]).unwrap();
        }
        assert!(!store.delete(5).unwrap() && store.delete(100).unwrap());
        let deleted = store.delete_each(&[5, 150, 200]);
        assert!(deleted.len() == 3 && deleted.iter().all(Result::is_ok));
        for (object, is_there) in [(5, true), (100, false), (150, false), (200, true)] {
            assert_eq!(store.size(object).is_ok(), is_there, "{object}");
        }
    }
}
