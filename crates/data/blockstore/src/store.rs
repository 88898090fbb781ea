//! The block store: where objects live.
//!
//! | file | |
//! | --- | --- |
//! | `key` | names of objects in a store |
//! | `local` | [`LocalStore`]: objects as files below a directory |
//! | `tiered_dirs` | a directory with a second one as its archive |
//! | `memory` | objects in memory, for tests |
//! | `coded` | compression and encryption of objects, above any block store |
//! | `failing` | a store that fails on purpose, for tests |
//!
//! **Contract.** Objects are named by number, written once and never changed: a whole object by
//! [`BlockStore::put`], or piece by piece through an [`Appender`] where the store can append. Bytes
//! that a call reported as written are visible to every later read of this process at once, and
//! durable after a [`BlockStore::sync`] that began after the call returned. After a failed write or
//! a crash an object may be left behind with any contents; nothing may refer to it, and garbage
//! collection removes it by listing.
//!
//! **Calls block.** They run on the caller's thread and return when the store has answered or its
//! own deadline has passed. The local directory answers from the kernel; the S3 implementation
//! (part 3, over the crate `object_store`) lets its caller drive the sockets of its request, and
//! bounds each request by a deadline. It does not offer [`AppendStore`], its `sync` has nothing to
//! do (an acknowledged PUT is durable), and its `try_read_nowait` always answers "would block". So
//! callers that must not block use `try_read_nowait` first and a [`crate::pool::Pool`] after it.

use std::io::{IoSlice, IoSliceMut};

use bytes::Bytes;
use kestrel_types::clock::Nanos;
use kestrel_types::compression::Compression;
use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;

use crate::error::Result;

pub mod coded;
pub mod failing;
pub mod key;
pub mod local;
pub mod memory;
pub mod own;
pub mod tiered_dirs;

pub use coded::CodedStore;
pub use failing::FailingStore;
pub use local::LocalStore;
pub use memory::MemoryStore;
pub use own::OwnStore;
pub use tiered_dirs::TieredDirs;

/// Most objects in one page of a listing.
pub const LIST_PAGE_MAX: usize = 10_000;

/// A place that keeps objects. See the module's header for the contract.
pub trait BlockStore: Send + Sync {
    /// Writes a whole object, the concatenation of `parts`.
    ///
    /// # Errors
    /// `Exists` if there is one of this number: it is left alone.
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()>;

    /// Like [`BlockStore::put`], of buffers that the store may hold on to until it has answered:
    /// one across a network sends them as they lie, without a copy.
    fn put_shared(&self, object: ObjectId, parts: &[Bytes]) -> Result<()> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.put(object, &slices)
    }

    /// Like [`BlockStore::put_shared`], as these options say. A store that does not compress stores
    /// the object as it comes, one that has no such tier stores it where all are.
    fn put_with(&self, object: ObjectId, parts: &[Bytes], _options: PutOptions) -> Result<()> {
        self.put_shared(object, parts)
    }

    /// How [`BlockStore::put`] compresses; none: the store does not compress.
    fn compression(&self) -> Option<Compression> {
        None
    }

    /// Tells the store that objects may be compressed, though its volume's settings say nothing of
    /// that: somebody put one by [`BlockStore::put_with`].
    fn expect_compressed(&self) {}

    /// The store's ability to keep objects in tiers, if it has it.
    fn tiers(&self) -> Option<&dyn TieredStore> {
        None
    }

    /// The store's ability to append to objects, if it has it.
    fn appends(&self) -> Option<&dyn AppendStore> {
        None
    }

    /// Fills `parts` with the object's bytes from `offset` on.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the object ends before `parts` are full. The contents of `parts`
    /// are then unspecified.
    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()>;

    /// Fills `out` with the object's bytes from `offset` on, as far as the object goes; bytes
    /// filled. Fewer than there is room for only where the object ends, 0 from there on. For
    /// readers that do not have its size. This default requests the size first; stores where that
    /// costs a request override it and need one in all.
    ///
    /// # Errors
    /// `NotFound`.
    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        let there = self.size(object)?.saturating_sub(offset);
        let len = usize::try_from(there).map_or(out.len(), |there| there.min(out.len()));
        if len > 0 {
            self.read(object, offset, &mut [IoSliceMut::new(&mut out[..len])])?;
        }
        Ok(len)
    }

    /// Like [`BlockStore::read`] if that needs no waiting; `None` if it would block, `parts` being
    /// then unspecified. The caller verifies what it gets: a cache on the way may leave that to it.
    fn try_read_nowait(
        &self,
        _object: ObjectId,
        _offset: u64,
        _parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        Ok(None)
    }

    /// Begins to bring bytes into the store's own cache, if it has one (the kernel's page cache).
    /// False if it has none, so that the caller may read ahead into memory instead. May block for a
    /// short time.
    fn prefetch(&self, _object: ObjectId, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Like [`BlockStore::read`], but from where the truth is: past every cache between; their
    /// copies of these bytes are replaced or dropped. For bytes that did not match their checksum,
    /// and for checking what is really stored.
    ///
    /// # Errors
    /// As for [`BlockStore::read`].
    fn read_fresh(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        self.read(object, offset, parts)
    }

    /// Whether a read or write may cost a request over a network. Callers then keep what they read
    /// in memory, read ahead themselves and gather more bytes before they put them.
    fn is_remote(&self) -> bool {
        false
    }

    /// The store's persistent cache near the compute, if it has one.
    fn near(&self) -> Option<&dyn LocalCache> {
        None
    }

    /// Reports every counter of this store and of those below it: name (documented in
    /// `docs/metrics.md`) and value since the store was opened, or present value for what can go
    /// down.
    fn stats(&self, _report: &mut dyn FnMut(&'static str, u64)) {}

    /// Bytes of the object.
    fn size(&self, object: ObjectId) -> Result<u64>;

    /// Removes the object; false if there was none. Not covered by [`BlockStore::sync`]: after
    /// power loss the object may be back, and garbage collection finds it.
    fn delete(&self, object: ObjectId) -> Result<bool>;

    /// Removes objects, several at a time where that helps; one answer for each, in order. One that
    /// was not there counts as removed: so a remote store needs one request for each, while
    /// [`BlockStore::delete`] must look for the object first.
    fn delete_each(&self, objects: &[ObjectId]) -> Vec<Result<()>> {
        objects.iter().map(|object| self.delete(*object).map(drop)).collect()
    }

    /// Returns when everything written before the call is durable, names included. Costs two loads
    /// when nothing is unsynced; concurrent callers share the work.
    ///
    /// # Errors
    /// The failure of any object, to every caller, and `SyncLost` from then on until the store is
    /// opened again: after a failed fsync the kernel may drop the dirty pages, so a later success
    /// would prove nothing.
    fn sync(&self) -> Result<()>;

    /// Like [`BlockStore::sync`] for some objects only.
    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()>;

    /// One page of the listing, in key order, of at most `limit` (up to [`LIST_PAGE_MAX`]) objects
    /// after the key `after`. Objects written or deleted meanwhile may be missing or present; all
    /// others are present. Never returns part of a page as if it were the whole: deleting by
    /// listings relies on it.
    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page>;

    /// Room in the store.
    fn usage(&self) -> Result<Usage>;
}

/// How an object is put, where that is not as all are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PutOptions {
    /// How it is compressed; none: as [`BlockStore::compression`] says.
    pub compression: Option<Compression>,
    /// Where it is kept; none: where objects go by themselves.
    pub tier: Option<Tier>,
}

/// How soon an archive makes an object readable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestoreSpeed {
    /// Minutes, for the highest price.
    Expedited,
    /// Hours.
    #[default]
    Standard,
    /// Half a day or more, for the lowest price.
    Bulk,
}

/// Where an object is kept, and whether it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierState {
    /// The tier; none: one that has no name here.
    pub tier: Option<Tier>,
    /// Of an object in an archive.
    pub restore: RestoreState,
    /// Bytes as stored; none if the store does not say.
    pub size: Option<u64>,
}

/// How far an archive is with making an object readable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestoreState {
    /// It was not asked.
    #[default]
    None,
    /// It is at it.
    UnderWay,
    /// It can be read, for a while.
    Restored,
}

impl TierState {
    /// Whether it can be read now.
    pub fn is_readable(&self) -> bool {
        !self.tier.is_some_and(Tier::is_archive) || self.restore == RestoreState::Restored
    }
}

/// A store that keeps objects in tiers.
pub trait TieredStore: Send + Sync {
    /// Checks that the store has a tier, by putting an object there and deleting it.
    ///
    /// # Errors
    /// `NoTier` if it has not; that of the put.
    fn check_tier(&self, tier: Tier) -> Result<()>;

    /// Where an object is.
    ///
    /// # Errors
    /// `NotFound`.
    fn tier_of(&self, object: ObjectId) -> Result<TierState>;

    /// Has the store copy an object from where [`TieredStore::tier_of`] found it to another tier,
    /// in its own place: until the copy is whole the object stays where it is. Its bytes pass
    /// through nobody's hands but the store's.
    ///
    /// # Errors
    /// `NotFound`; `Archived` if it has to be restored before; `InUse` while a process appends to
    /// it; `NoTier`.
    fn move_to(&self, object: ObjectId, from: &TierState, tier: Tier) -> Result<()>;

    /// Asks an archive to make an object readable for so many days; how far it is.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it is in no archive.
    fn restore(&self, object: ObjectId, days: u32, speed: RestoreSpeed) -> Result<RestoreState>;
}

/// A callback, run once, on any thread, with whether the requested bytes are here.
pub type Then = Box<dyn FnOnce(bool) + Send>;

/// A persistent cache in front of a store, as `kestrel warmup` and readers that do not wait see it.
/// Offsets and lengths are bytes of objects, as in [`BlockStore::read`].
pub trait LocalCache: Send + Sync {
    /// Brings `len` bytes from `offset` on into the cache; returns once they are there. What is
    /// there already is not read again.
    ///
    /// # Errors
    /// The store's, or that the cache cannot take them (full of what is used more, disk failed, out
    /// of service).
    fn fill(&self, object: ObjectId, offset: u64, len: u64) -> Result<()>;

    /// How many of these bytes are in the cache; no request to the store.
    fn holds(&self, object: ObjectId, offset: u64, len: u64) -> u64;

    /// Drops what is cached of an object; bytes freed.
    fn evict(&self, object: ObjectId) -> u64;

    /// Has bytes brought into memory from where [`BlockStore::try_read_nowait`] reads them, and
    /// calls `then` with true when they are there, within a bounded time, on a thread that may wait
    /// for the cache; with false if the caller has to read in another way. Like a hit of the
    /// kernel's page cache this is a promise about a moment: they may be gone again.
    ///
    /// # Errors
    /// Gives `then` back uncalled: the cache cannot tell at once that it holds them, or has too
    /// much to do.
    fn bring(
        &self,
        _object: ObjectId,
        _offset: u64,
        _len: u64,
        then: Then,
    ) -> std::result::Result<(), Then> {
        Err(then)
    }

    /// Whether what it holds is read as cheaply as from memory: as it is, with nothing to be
    /// decoded.
    fn is_plain(&self) -> bool {
        true
    }
}

/// A store that can append. Local directories can; object stores cannot.
pub trait AppendStore: Send + Sync {
    /// Creates an empty object to append to.
    fn create(&self, object: ObjectId) -> Result<Box<dyn Appender>>;
}

/// An object that still grows. Dropping it seals it.
pub trait Appender: Send {
    /// Bytes appended so far.
    fn len(&self) -> u64;

    /// Whether nothing has been appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the concatenation of `parts` and returns the byte where it begins. After a failure
    /// the object keeps what was appended before, may carry garbage behind it, and must not be
    /// appended to again.
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<u64>;
}

/// One page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Objects, by key.
    pub objects: Vec<ObjectInfo>,
    /// Keys found in the store that no object of ours has: reported, never deleted.
    pub unknown: Vec<String>,
    /// Where the next page begins (`after`); none after the last page.
    pub next: Option<String>,
}

/// What a listing contains about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its number.
    pub object: ObjectId,
    /// Bytes as stored: an object that is coded ([`coded`]) has another count of bytes than
    /// [`BlockStore::size`] and ranges have.
    pub size: u64,
    /// When it was last written to, by the store's clock.
    pub modified: Nanos,
}

/// Room in a store, bytes. `None`: unlimited or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Size of the store.
    pub capacity: Option<u64>,
    /// What can still be written.
    pub free: Option<u64>,
    /// Bytes this store wrote less those it deleted since it was opened. What it holds in all is
    /// the sum of a listing.
    pub written: i64,
}

/// All objects of a store, page by page. Stops at the first error, which it yields.
pub fn list_all(store: &dyn BlockStore) -> impl Iterator<Item = Result<Page>> {
    let mut after = Some(None::<String>);
    std::iter::from_fn(move || {
        let page = store.list(after.take()?.as_deref(), LIST_PAGE_MAX);
        if let Ok(Page { next: Some(next), .. }) = &page {
            after = Some(Some(next.clone()));
        }
        Some(page)
    })
}

/// Bytes in `parts` together.
pub(crate) fn total_len<T: std::ops::Deref<Target = [u8]>>(parts: &[T]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
