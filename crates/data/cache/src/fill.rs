//! Writing pages to a cache disk, on the disk's threads. No reader waits for it.
//!
//! A crash at any moment leaves pages with trailers that do not agree with their data: they count
//! as absent. Two processes that write the same page write the same bytes.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_blockstore::Grant;
use kestrel_types::crash;

use crate::core::Core;
use crate::disk::{Disk, Side};
use crate::faults::DiskOp;
use crate::flight::{Fetched, Flight, Kept};
use crate::object::Object;
use crate::page::{self, PAGE_BYTES, SLOT_BYTES};
use crate::pages::runs;
use crate::sys;

/// A disk that finishes no write for so long while many wait does not answer.
const STALLED_AFTER: Duration = Duration::from_secs(10);

impl Core {
    /// Queues what a flight brought for the cache disk, if there is room to wait in. Until it is
    /// written, the flight keeps its entry and serves readers of its pages.
    pub fn keep(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        flight: &Arc<Flight>,
        fetched: &Arc<Fetched>,
    ) {
        if let Some(grant) = disk.waiting.try_acquire(fetched.bytes.len() as u64) {
            return self.keep_granted(object, disk, flight, fetched, grant);
        }
        if disk.writes.is_stalled(STALLED_AFTER) {
            disk.note_unanswered(Side::Write);
        }
        self.drop_unwritten(object, flight);
    }

    /// Like [`Core::keep`] with room to wait in.
    pub fn keep_granted(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        flight: &Arc<Flight>,
        fetched: &Arc<Fetched>,
        grant: Grant,
    ) {
        let (core, of) = (Arc::clone(self), Arc::clone(disk));
        let (target, pages) = ((Arc::clone(object), Arc::clone(flight)), Arc::clone(fetched));
        let job = move || {
            let (object, flight) = target;
            let written = of.is_in_service(Side::Write) && !flight.is_stale() && {
                let begun = Instant::now();
                let written = core.write(&object, &of, &pages);
                of.note(Side::Write, begun, &written);
                written.unwrap_or(false)
            };
            if !written {
                core.drop_unwritten(&object, &flight);
            } else {
                if flight.is_stale() {
                    // The reader that found out may have looked at the file before this was
                    // written.
                    core.remove_pages(&object, &of, pages.pages());
                }
                object.state.lock().flights.leave(&flight);
                flight.kept(Kept::Written);
            }
            drop(grant);
        };
        if !disk.is_in_service(Side::Write) || !disk.writes.submit(Box::new(job)) {
            self.drop_unwritten(object, flight);
        }
    }

    fn drop_unwritten(&self, object: &Object, flight: &Arc<Flight>) {
        self.stats.dropped_writes.add(1);
        object.state.lock().flights.leave(flight);
        flight.kept(Kept::Dropped);
    }

    /// Writes those of the pages that are not on the disk yet. False: there is no room.
    fn write(&self, object: &Arc<Object>, disk: &Disk, fetched: &Fetched) -> io::Result<bool> {
        disk.before(DiskOp::Write)?;
        let pages: Vec<u32> = {
            let state = object.state.lock();
            fetched
                .pages()
                .filter(|page| !state.on_disk.contains(*page) || fetched.is_short(*page))
                .collect()
        };
        let bytes = pages.len() as u64 * SLOT_BYTES;
        if pages.is_empty() {
            return Ok(true);
        }
        if !disk.has_room(bytes)? {
            return Ok(false);
        }
        let file = Arc::new(match disk.create_file(object.id) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.table.close_files();
                disk.create_file(object.id)?
            }
            other => other?,
        });
        let was_empty = file.metadata()?.len() == 0;
        crash::point("cache.fill.before-write");
        let owner = self.owner(object.id);
        for run in runs(pages.iter().copied(), 0) {
            let trailers: Vec<_> = run
                .clone()
                .map(|page| owner.trailer(page, fetched.page(page).unwrap_or_default()))
                .collect();
            let mut slots = Vec::with_capacity(2 * run.len());
            let mut from = run.start;
            for (page, trailer) in run.clone().zip(&trailers) {
                slots.push(IoSlice::new(fetched.page(page).unwrap_or_default()));
                if fetched.is_short(page) {
                    // Its trailer stands where that of a whole page does, with a hole before it.
                    sys::write_all_at(&file, &slots, page::slot_at(from))?;
                    slots.clear();
                    let at = page::slot_at(page) + PAGE_BYTES;
                    sys::write_all_at(&file, &[IoSlice::new(trailer)], at)?;
                    from = page + 1;
                } else {
                    slots.push(IoSlice::new(trailer));
                }
            }
            sys::write_all_at(&file, &slots, page::slot_at(from))?;
        }
        disk.before(DiskOp::Written)?;
        crash::point("cache.fill.written");
        self.stats.fill_bytes.add(pages.len() as u64 * PAGE_BYTES);
        disk.note_written(bytes);
        let mut state = object.state.lock();
        state.bind(disk.index);
        state.wrote(file, was_empty, &pages, self.now())?;
        drop(state);
        self.table.opened(object);
        Ok(true)
    }

    /// Removes pages from a cache file; on one of the disk's threads.
    pub fn remove_pages(&self, object: &Object, disk: &Disk, pages: std::ops::Range<u32>) {
        for page in pages {
            object.state.lock().on_disk.remove(page);
            let begun = Instant::now();
            let removed = disk.remove_page(object.id, page);
            if removed.is_err() {
                disk.note(Side::Write, begun, &removed);
            }
        }
    }
}
