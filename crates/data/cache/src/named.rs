//! Objects with names, read in parts through the cache: tables of rows, which never change.
//!
//! **Contract.** Names that the caller gives a number to are those of objects that are written
//! once. Their ranges are kept on the cache's disks, under these numbers, when they are read and
//! when they are made; everything else goes to the store. What is kept is what the store has, so
//! data encrypted there is encrypted here too.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_blockstore::object::VolumeId;
use kestrel_blockstore::store::{Page, Usage};
use kestrel_blockstore::{BlockStore, Error, Result};
use kestrel_types::ids::ObjectId;

use crate::options::CacheOptions;
use crate::store::{CachedStore, OpenError};

/// Most bytes of a range that is cached: a damaged table may tell of more than there are.
const RANGE_BYTES_MAX: u64 = 64 << 20;

/// A store of named objects with a cache for some of them. See the module's header.
pub struct CachedNamed {
    inner: Arc<dyn NamedStore>,
    cache: CachedStore,
    names: NumberedNames,
}

/// Which names are cached.
#[derive(Debug, Clone)]
pub struct NumberedNames {
    /// What they begin with; 16 lower-case hexadecimal digits follow, a number below `u64::MAX`.
    pub prefix: String,
}

impl NumberedNames {
    /// The number of an object in the cache, which are from 1 on.
    fn number_of(&self, name: &str) -> Option<ObjectId> {
        let digits = name.strip_prefix(&self.prefix)?;
        let number = u64::from_str_radix(digits, 16).ok()?.checked_add(1)?;
        (self.name_of(number) == name).then_some(number)
    }

    fn name_of(&self, number: ObjectId) -> String {
        format!("{}{:016x}", self.prefix, number - 1)
    }
}

/// The named objects as the cache reads them.
struct NumberedRanges {
    inner: Arc<dyn NamedStore>,
    names: NumberedNames,
}

/// Nobody calls what would fail so: the cache reads ranges, and [`CachedNamed`] nothing else.
fn only_ranges<T>() -> Result<T> {
    Err(Error::Invalid { what: "named objects are read in ranges only" })
}

impl BlockStore for NumberedRanges {
    fn put(&self, _object: ObjectId, _parts: &[IoSlice<'_>]) -> Result<()> {
        only_ranges()
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let name = self.names.name_of(object);
        let bytes = self.inner.read_range(&name, offset, wanted as u64)?;
        if bytes.len() < wanted {
            return Err(Error::Corrupt { object, offset, what: "it ends too early" });
        }
        let mut rest = &bytes[..];
        for part in parts {
            let (these, left) = rest.split_at(part.len());
            part.copy_from_slice(these);
            rest = left;
        }
        Ok(())
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        let bytes = self.inner.read_range(&self.names.name_of(object), offset, out.len() as u64)?;
        let len = bytes.len().min(out.len());
        out[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn size(&self, _object: ObjectId) -> Result<u64> {
        only_ranges()
    }

    fn delete(&self, _object: ObjectId) -> Result<bool> {
        only_ranges()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn sync_objects(&self, _objects: &[ObjectId]) -> Result<()> {
        Ok(())
    }

    fn list(&self, _after: Option<&str>, _limit: usize) -> Result<Page> {
        only_ranges()
    }

    fn usage(&self) -> Result<Usage> {
        only_ranges()
    }
}

impl CachedNamed {
    /// Caches ranges of the objects with these names in `inner`. `owner` tells them in the cache
    /// from the objects of volumes and of other owners. Starts threads.
    ///
    /// # Errors
    /// As for [`CachedStore::open`].
    pub fn open(
        inner: Arc<dyn NamedStore>,
        owner: VolumeId,
        names: NumberedNames,
        options: CacheOptions,
    ) -> std::result::Result<Self, OpenError> {
        let ranges = NumberedRanges { inner: inner.clone(), names: names.clone() };
        let cache = CachedStore::open(Arc::new(ranges), owner, options)?;
        Ok(Self { inner, cache, names })
    }
}

impl NamedStore for CachedNamed {
    fn create(&self, name: &str, bytes: Bytes) -> Result<bool> {
        let Some(number) = self.names.number_of(name) else {
            return self.inner.create(name, bytes);
        };
        let is_made = self.inner.create(name, bytes.clone())?;
        if is_made {
            self.cache.core.write_through(number, &[IoSlice::new(&bytes)]);
        }
        Ok(is_made)
    }

    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> Result<Option<ETag>> {
        self.inner.replace(name, bytes, tag)
    }

    fn read(&self, name: &str) -> Result<Option<NamedObject>> {
        self.inner.read(name)
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        let number = self.names.number_of(name).filter(|_| len <= RANGE_BYTES_MAX);
        let Some(number) = number else { return self.inner.read_range(name, offset, len) };
        // Below the bound.
        let mut bytes = vec![0; len as usize];
        let read = self.cache.read_up_to(number, offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes.into())
    }

    fn read_range_fresh(&self, name: &str, offset: u64, len: u64) -> Result<Bytes> {
        let bytes = self.inner.read_range_fresh(name, offset, len)?;
        let Some(number) = self.names.number_of(name) else { return Ok(bytes) };
        // What the cache has of it is compared with another reading, and dropped if it differs.
        let mut again = vec![0; bytes.len()];
        self.cache.read_fresh(number, offset, &mut [IoSliceMut::new(&mut again)])?;
        Ok(again.into())
    }

    fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        self.inner.list(below)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)?;
        if let Some(number) = self.names.number_of(name) {
            self.cache.core.forget(number);
        }
        Ok(())
    }

    fn shown(&self) -> &str {
        self.inner.shown()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kestrel_blockstore::named::MemoryNamed;

    use super::*;

    fn bytes(len: usize) -> Bytes {
        (0..len).map(|at| (at * 31 / 7) as u8).collect::<Vec<u8>>().into()
    }

    fn opened(inner: &Arc<MemoryNamed>, dir: &std::path::Path, owner: u8) -> CachedNamed {
        let mut options = CacheOptions::new(vec![dir.into()]);
        options.free_space_ratio = 0.0;
        let names = NumberedNames { prefix: "data/ab/table/".into() };
        CachedNamed::open(inner.clone(), [owner; 16], names, options).unwrap()
    }

    /// Ranges of tables come from the disk the second time, also in another process, and those of
    /// other objects and other owners from the store.
    #[test]
    fn ranges_from_the_disk() {
        let place = tempfile::tempdir().unwrap();
        let inner = Arc::<MemoryNamed>::default();
        let table = "data/ab/table/0000000000000000";
        assert!(inner.create(table, bytes(300_000)).unwrap());
        assert!(inner.create("name/61", bytes(100)).unwrap());
        let reads = || inner.calls("read");
        let store = opened(&inner, place.path(), 1);
        assert_eq!(
            store.read_range(table, 290_000, 20_000).unwrap(),
            bytes(300_000).slice(290_000..)
        );
        assert_eq!(store.read_range(table, 5, 70_000).unwrap(), bytes(300_000).slice(5..70_005));
        assert!(store.cache.flush(Duration::from_secs(30)));
        drop(store);
        let (store, before) = (opened(&inner, place.path(), 1), reads());
        assert_eq!(store.read_range(table, 5, 70_000).unwrap(), bytes(300_000).slice(5..70_005));
        assert_eq!(reads(), before);
        assert_eq!(store.read_range("name/61", 5, 10).unwrap(), bytes(100).slice(5..15));
        assert_eq!(store.read("name/61").unwrap().unwrap().bytes, bytes(100));
        assert_eq!(reads(), before + 2);
        let other = opened(&inner, place.path(), 2);
        assert_eq!(other.read_range(table, 5, 10).unwrap(), bytes(100).slice(5..15));
        assert_eq!(reads(), before + 3);
    }

    /// What is made through the cache is read from the disk, and gone from it when it is removed.
    #[test]
    fn objects_made_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let inner = Arc::<MemoryNamed>::default();
        let table = "data/ab/table/0000000000000003";
        let store = opened(&inner, place.path(), 1);
        assert!(store.create(table, bytes(200_000)).unwrap());
        assert!(!store.create(table, bytes(10)).unwrap());
        assert!(store.cache.flush(Duration::from_secs(30)));
        let before = inner.calls("read");
        assert_eq!(
            store.read_range(table, 99_999, 70_000).unwrap(),
            bytes(200_000).slice(99_999..169_999)
        );
        assert_eq!(inner.calls("read"), before);
        store.remove(table).unwrap();
        // The disk's queue removes it.
        assert!(store.cache.flush(Duration::from_secs(30)));
        assert!(store.read_range(table, 5, 10).is_err());
    }

    /// Bytes that came damaged are read anew, and no longer cached then.
    #[test]
    fn damage_that_was_cached() {
        let place = tempfile::tempdir().unwrap();
        let inner = Arc::<MemoryNamed>::default();
        let table = "data/ab/table/0000000000000007";
        assert!(inner.create(table, bytes(100_000)).unwrap());
        inner.damage(table, |mut bytes| {
            bytes[50_000] ^= 1;
            bytes
        });
        let store = opened(&inner, place.path(), 1);
        assert_ne!(store.read_range(table, 0, 100_000).unwrap(), bytes(100_000));
        assert!(store.cache.flush(Duration::from_secs(30)));
        inner.damage(table, |_| bytes(100_000).to_vec());
        assert_eq!(store.read_range_fresh(table, 0, 100_000).unwrap(), bytes(100_000));
        assert_eq!(store.read_range(table, 0, 100_000).unwrap(), bytes(100_000));
    }

    #[test]
    fn names_with_numbers() {
        let names = NumberedNames { prefix: "t/".into() };
        assert_eq!(names.number_of("t/000000000000000a"), Some(11));
        for other in ["t/a", "t/000000000000000A", "u/000000000000000a", "t/ffffffffffffffff"] {
            assert_eq!(names.number_of(other), None, "{other}");
        }
    }
}
