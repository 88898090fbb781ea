//! The cache as `kestrel warmup`, `kestrel info` and readers that do not wait see it.

use std::sync::Arc;
use std::time::Instant;

use kestrel_blockstore::store::{LocalCache, Then};
use kestrel_blockstore::{Error, Result};
use kestrel_types::ids::ObjectId;

use crate::core::{Core, DEADLINE};
use crate::disk::Disk;
use crate::flight::{Flight, Kept};
use crate::object::Object;
use crate::page::{self, OBJECT_BYTES_MAX, PAGE_BYTES};
use crate::store::CachedStore;

/// Most bytes that one request is for while filling.
const FILL_BYTES: u64 = 4 * 1024 * 1024;

/// How long filling waits for memory and for the disk, each time.
const FILL_DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

/// How long an eviction waits for what was queued for the disk before it. On a disk that is busy
/// for longer the object may come back, as it does when it is read.
const EVICT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(1);

fn cannot_take(object: ObjectId, why: &str) -> Error {
    Error::Remote { during: "filling the cache", object: Some(object), why: why.into() }
}

/// The part of `offset .. offset + len` that can be cached.
fn cacheable(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset.min(OBJECT_BYTES_MAX)..offset.saturating_add(len).min(OBJECT_BYTES_MAX)
}

impl LocalCache for CachedStore {
    fn fill(&self, object: ObjectId, offset: u64, len: u64) -> Result<()> {
        let bytes = cacheable(offset, len);
        let mut from = bytes.start;
        while from < bytes.end {
            // Pieces end where pages do, so that no page is requested twice.
            let until = ((from + FILL_BYTES) / PAGE_BYTES * PAGE_BYTES).min(bytes.end);
            self.core.fill(object, from, until - from)?;
            from = until;
        }
        Ok(())
    }

    fn holds(&self, object: ObjectId, offset: u64, len: u64) -> u64 {
        let bytes = cacheable(offset, len);
        let Some(disk) = self.core.disk_for(object).filter(|_| !bytes.is_empty()) else { return 0 };
        let object = self.core.table.get(object);
        object.state.lock().bind(disk.index);
        let pages = page::pages(bytes.start, bytes.end - bytes.start);
        self.core.refresh(&object, disk, &pages.clone().collect::<Vec<_>>());
        let state = object.state.lock();
        let held = |page| {
            let at = page::page_at(page);
            (at + PAGE_BYTES).min(bytes.end) - at.max(bytes.start)
        };
        pages.filter(|page| state.on_disk.contains(*page)).map(held).sum()
    }

    fn evict(&self, object: ObjectId) -> u64 {
        self.core.evict(object)
    }

    fn bring(
        &self,
        object: ObjectId,
        offset: u64,
        len: u64,
        then: Then,
    ) -> std::result::Result<(), Then> {
        match (Core::is_cacheable(offset, len), self.core.disk_for(object)) {
            (true, Some(disk)) => {
                let object = self.core.table.get(object);
                self.core.bring_then(&object, disk, (offset, len), then)
            }
            _ => Err(then),
        }
    }
}

impl Core {
    /// Brings pages that are not on the disk there, and waits for it.
    fn fill(self: &Arc<Self>, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let Some(disk) = self.disk_for(id).cloned() else {
            return Err(cannot_take(id, "no cache directory is in service; see the log for why"));
        };
        let object = self.table.get(id);
        object.state.lock().bind(disk.index);
        let pages: Vec<u32> = page::pages(offset, len).collect();
        self.refresh(&object, &disk, &pages);
        let until = Instant::now() + FILL_DEADLINE;
        loop {
            let (missing, pending) = self.absent(&object, &pages);
            let grant = disk.waiting.acquire(missing.len() as u64 * PAGE_BYTES, Some(until))?;
            let flights = self.fetch_for_disk(&object, &disk, &missing, grant)?;
            if flights.iter().any(|flight| flight.wait_kept(until) != Some(Kept::Written)) {
                let why = "its disk has no room, failed or is too slow; give the cache more room, \
                           or see the log";
                return Err(cannot_take(id, why));
            }
            if pending.is_empty() {
                return Ok(());
            }
            // What others brought may not have been kept: look again, and bring it then.
            for flight in pending {
                flight.wait()?;
                flight.wait_kept(until);
            }
        }
    }

    /// Of these pages those that are not on the disk and not on their way, and the flights of those
    /// that are.
    fn absent(&self, object: &Object, pages: &[u32]) -> (Vec<u32>, Vec<Arc<Flight>>) {
        let (mut missing, mut pending) = (Vec::new(), Vec::new());
        let state = object.state.lock();
        for page in pages.iter().copied().filter(|page| !state.on_disk.contains(*page)) {
            match state.flights.of(page) {
                // What lies behind the object's end is there as much as it can be.
                Some(flight)
                    if flight.finished().is_none_or(|fetched| fetched.page_len(page) > 0) =>
                {
                    pending.push(Arc::clone(flight));
                }
                Some(_) => {}
                None if state.end.is_some_and(|end| page >= end) => {}
                None => missing.push(page),
            }
        }
        (missing, pending)
    }

    /// Sees to it that the state of an object's cache file is recent.
    fn refresh(self: &Arc<Self>, object: &Arc<Object>, disk: &Arc<Disk>, pages: &[u32]) {
        let (core, of, target) = (Arc::clone(self), Arc::clone(disk), Arc::clone(object));
        let pages = pages.to_vec();
        let job = move || {
            let begun = Instant::now();
            let opened = of
                .before(crate::faults::DiskOp::Read)
                .and_then(|()| core.open(&target, &of, &pages));
            of.note(crate::disk::Side::Read, begun, &opened);
        };
        if disk.reads.call(self.options.disk_deadline, job).is_none() {
            disk.note_unanswered(crate::disk::Side::Read);
        }
    }

    /// Removes an object's files from all disks; bytes of disk freed.
    pub fn evict(self: &Arc<Self>, id: ObjectId) -> u64 {
        if let Some(object) = self.table.find(id) {
            object.state.lock().forget_file();
        }
        let jobs = self.disks.iter().map(|disk| {
            // What was queued to be written before must not come after the removal.
            disk.writes.drain(EVICT_DEADLINE);
            let of = Arc::clone(disk);
            disk.writes.call(DEADLINE, move || of.remove_file(id).unwrap_or(0)).unwrap_or(0)
        });
        jobs.sum()
    }
}
