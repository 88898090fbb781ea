//! Writing pages to a cache disk, on the disk's threads. No reader waits for it.
//!
//! A crash at any moment leaves pages with trailers that do not agree with their data: they count
//! as absent. Two processes that write the same page write the same bytes.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_blockstore::Grant;
use kestrel_types::crash;

use crate::core::Core;
use crate::disk::{Disk, Side};
use crate::faults::DiskOp;
use crate::flight::{Fetched, Flight, Kept};
use crate::object::{Object, is_same};
use crate::page::{self, PAGE_BYTES, PageSlot, SLOT_BYTES};
use crate::pages::runs;
use crate::slots::Slots;
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

    /// Writes those of the pages that are not on the disk yet. False: there is no room. A file that
    /// holds something else than pages of this object is replaced: by a page written into it, all
    /// of it would be taken for the object's.
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
        let create = || {
            let file = self.with_descriptors(|| disk.create_file(object.id))?;
            let is_empty = file.metadata()?.len() == 0;
            io::Result::Ok((Arc::new(file), is_empty))
        };
        let (mut file, mut was_empty) = create()?;
        if !was_empty && !self.is_own_file(object, &file)? {
            self.drop_file(object, disk)?;
            (file, was_empty) = create()?;
        }
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

    /// Whether what is in a cache file is the object's, as far as its first page with a trailer
    /// tells. It may be another volume's: directories were exchanged, or copied from elsewhere.
    fn is_own_file(&self, object: &Object, file: &File) -> io::Result<bool> {
        {
            let state = object.state.lock();
            if let Some(known) = state.file.as_ref().filter(|_| state.is_file_proven)
                && is_same(known, file)?
            {
                return Ok(true);
            }
        }
        let (data, len) = (sys::data_ranges(file)?, file.metadata()?.len());
        for page in page::pages_of_data(&data, len) {
            let slots = Slots::read(file, &self.owner(object.id), page..page + 1)?;
            // A page that another thread is writing has no trailer yet.
            match slots.found().next() {
                Some((_, PageSlot::Page(_))) => return Ok(true),
                Some((_, PageSlot::Damaged)) => return Ok(false),
                Some((_, PageSlot::Empty)) | None => {}
            }
        }
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
