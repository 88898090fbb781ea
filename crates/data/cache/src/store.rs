//! A block store with a cache on local disks in front of it.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kestrel_blockstore::object::VolumeId;
use kestrel_blockstore::store::{AppendStore, LocalCache, Page, TieredStore, Usage};
use kestrel_blockstore::{BlockStore, PutOptions, Result};
use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;

use crate::core::Core;
use crate::disk::{Disk, janitor};
use crate::flight::Fetched;
use crate::object::ObjectIndex;
use crate::options::{CacheOptions, DIRS_MAX, FREE_SPACE_RATIO_MAX};
use crate::page;
use crate::read::{AtEnd, Check};
use crate::span::SpanPolicy;
use crate::stats::CacheStats;
use crate::sys;
use crate::whole::WholeCopies;

/// How long dropping a store waits for what is queued for the cache disks.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// Why a cache could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenError(String);

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

/// A store behind a cache. See the crate's header for the contract.
pub struct CachedStore {
    pub(crate) core: Arc<Core>,
}

impl CachedStore {
    /// Puts a cache in front of `store`, which holds objects of `volume`. Starts threads.
    ///
    /// # Errors
    /// If a directory cannot be a cache directory, or a setting is out of bounds.
    pub fn open(
        store: Arc<dyn BlockStore>,
        volume: VolumeId,
        options: CacheOptions,
    ) -> std::result::Result<Self, OpenError> {
        if options.dirs.is_empty() || options.dirs.len() > DIRS_MAX {
            return Err(OpenError(format!(
                "a cache has 1 to {DIRS_MAX} directories, not {}",
                options.dirs.len()
            )));
        }
        if !(0.0..=FREE_SPACE_RATIO_MAX).contains(&options.free_space_ratio) {
            return Err(OpenError(format!(
                "the share of a cache disk that stays free is 0 to {FREE_SPACE_RATIO_MAX}, not {}",
                options.free_space_ratio
            )));
        }
        let stats = Arc::<CacheStats>::default();
        let table = Arc::<ObjectIndex>::default();
        let mut disks: Vec<Arc<Disk>> = Vec::with_capacity(options.dirs.len());
        for (index, dir) in options.dirs.iter().enumerate() {
            let failed = |why: &str| {
                OpenError(format!("opening the cache directory {}: {why}", dir.display()))
            };
            if options.dirs[..index].contains(dir) {
                return Err(failed("it is named twice; name each once"));
            }
            let disk =
                Disk::open(index, dir, volume, &options, &stats).map_err(|why| failed(&why))?;
            disks.push(Arc::new(disk));
        }
        let core = Core {
            store,
            volume,
            table,
            span: Mutex::new(SpanPolicy::new(options.span)),
            stats,
            clock: Arc::clone(&options.clock),
            disks,
            options,
        };
        let store = Self { core: Arc::new(core) };
        for disk in &store.core.disks {
            janitor::start(disk, &store.core.table).map_err(|error| {
                OpenError(format!("starting a thread of the cache: {error}; raise its limit"))
            })?;
        }
        Ok(store)
    }

    /// Waits until what is queued for the cache disks is written; false if that takes longer than
    /// `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        self.core.disks.iter().all(|disk| disk.writes.drain(left()))
    }

    /// Copies of whole files of this volume, in the same directories.
    pub fn whole_copies(&self) -> WholeCopies {
        WholeCopies::new(&self.core)
    }

    /// Compares cached copies with fresh bytes and drops those that differ.
    fn reconcile(&self, id: ObjectId, offset: u64, parts: &[IoSliceMut<'_>]) {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let Some(disk) = self.core.disk_for(id).filter(|_| Core::is_cacheable(offset, len)) else {
            return;
        };
        let object = self.core.table.get(id);
        let pages = page::pages(offset, len);
        {
            let mut state = object.state.lock();
            state.bind(disk.index);
            state.flights.mark_stale(&pages);
        }
        let wanted: Vec<u32> = pages.collect();
        let found = self.core.lookup(&object, disk, &wanted);
        let differs = |page: &u32| {
            let cached = found.iter().find_map(|slots| slots.page(*page));
            cached.is_some_and(|data| !agrees(page::page_at(*page), data, offset, parts))
        };
        let differing: Vec<u32> = wanted.into_iter().filter(differs).collect();
        if differing.is_empty() {
            return;
        }
        self.core.stats.corrupt.add(differing.len() as u64);
        log::warn!("object {id:016x}: the cache holds other bytes than the store: dropped");
        let (core, of) = (Arc::clone(&self.core), Arc::clone(disk));
        let job = move || {
            differing.into_iter().for_each(|page| core.remove_pages(&object, &of, page..page + 1))
        };
        if disk.writes.call(self.core.options.disk_deadline, job).is_none() {
            disk.note_unanswered(crate::disk::Side::Write);
            disk.note_unanswered(crate::disk::Side::Read);
        }
    }
}

/// Whether `data`, the bytes of an object from `at` on, are the same as `parts`, those from
/// `offset` on, where both have some.
fn agrees(at: u64, data: &[u8], offset: u64, parts: &[IoSliceMut<'_>]) -> bool {
    let mut position = offset;
    parts.iter().all(|part| {
        let (from, until) =
            (position.max(at), (position + part.len() as u64).min(at + data.len() as u64));
        let begin = position;
        position += part.len() as u64;
        from >= until
            || data[(from - at) as usize..(until - at) as usize]
                == part[(from - begin) as usize..(until - begin) as usize]
    })
}

impl Drop for CachedStore {
    fn drop(&mut self) {
        self.flush(CLOSE_DEADLINE);
        self.core.disks.iter().for_each(|disk| disk.close());
    }
}

impl BlockStore for CachedStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        self.core.store.put(object, parts)?;
        self.core.write_through(object, parts);
        Ok(())
    }

    fn put_shared(&self, object: ObjectId, parts: &[Bytes]) -> Result<()> {
        self.put_with(object, parts, PutOptions::default())
    }

    fn put_with(&self, object: ObjectId, parts: &[Bytes], options: PutOptions) -> Result<()> {
        self.core.store.put_with(object, parts, options)?;
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        self.core.write_through(object, &slices);
        Ok(())
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        self.core.store.appends()
    }

    fn tiers(&self) -> Option<&dyn TieredStore> {
        self.core.store.tiers()
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.core.read(object, offset, parts, AtEnd::Fail).map(drop)
    }

    fn read_up_to(&self, object: ObjectId, offset: u64, out: &mut [u8]) -> Result<usize> {
        let read = self.core.read(object, offset, &mut [IoSliceMut::new(out)], AtEnd::Stop)?;
        Ok(read as usize)
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if Core::is_cacheable(offset, len)
            && let Some(disk) = self.core.disk_for(object)
            && self.core.read_warm(
                &self.core.table.get(object),
                disk,
                offset,
                len,
                parts,
                Check::Caller,
            )
        {
            return Ok(Some(()));
        }
        self.core.store.try_read_nowait(object, offset, parts)
    }

    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        let Some(disk) = self.core.disk_for(object).filter(|_| Core::is_cacheable(offset, len))
        else {
            return self.core.store.prefetch(object, offset, len);
        };
        let pages = page::pages(offset, len);
        let object = self.core.table.get(object);
        let state = object.state.lock();
        let Some(file) = state.file.clone().filter(|_| state.on_disk.contains_all(pages.clone()))
        else {
            drop(state);
            return self.core.store.prefetch(object.id, offset, len);
        };
        drop(state);
        let job =
            move || sys::will_need(&file, page::slot_at(pages.start)..page::slot_at(pages.end));
        disk.reads.submit(Box::new(job))
    }

    fn read_fresh(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        self.core.store.read_fresh(object, offset, parts)?;
        self.reconcile(object, offset, parts);
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.core.store.is_remote()
    }

    fn near(&self) -> Option<&dyn LocalCache> {
        Some(self)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.core.stats.report(report);
        report("cache_disk_bytes", self.core.used_bytes());
        self.core.store.stats(report);
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        self.core.store.size(object)
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        let was_there = self.core.store.delete(object)?;
        self.core.forget(object);
        Ok(was_there)
    }

    fn delete_each(&self, objects: &[ObjectId]) -> Vec<Result<()>> {
        let deleted = self.core.store.delete_each(objects);
        objects.iter().for_each(|&object| self.core.forget(object));
        deleted
    }

    fn sync(&self) -> Result<()> {
        self.core.store.sync()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.core.store.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.core.store.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.core.store.usage()
    }
}

impl Core {
    /// Caches an object that the store has just acknowledged, if there is room to wait in.
    pub(crate) fn write_through(self: &Arc<Self>, id: ObjectId, parts: &[IoSlice<'_>]) {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let Some(disk) = self.disk_for(id).filter(|_| Self::is_cacheable(0, len)) else { return };
        let Some(grant) = disk.waiting.try_acquire(len) else {
            self.stats.dropped_writes.add(1);
            return;
        };
        let mut bytes = Vec::with_capacity(len as usize);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let fetched = Arc::new(Fetched { requested: page::pages(0, len), bytes });
        let object = self.table.get(id);
        let mut state = object.state.lock();
        state.bind(disk.index);
        state.end = self.store.appends().is_none().then_some(fetched.pages().end);
        let flight = state.flights.take(fetched.pages());
        state.flights.finish(&flight, Ok(Arc::clone(&fetched)));
        drop(state);
        self.keep_granted(&object, disk, &flight, &fetched, grant);
    }

    /// Removes an object's files from all disks, some time soon.
    pub(crate) fn forget(self: &Arc<Self>, id: ObjectId) {
        if let Some(object) = self.table.find(id) {
            object.state.lock().forget_file();
        }
        for disk in &self.disks {
            let of = Arc::clone(disk);
            // What is left behind is evicted when its turn comes; nothing refers to it.
            let _ = disk.writes.submit(Box::new(move || drop(of.remove_file(id))));
        }
    }
}
