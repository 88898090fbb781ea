//! Looking for pages on a cache disk, on the disk's threads: the reader waits for a bounded time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use kestrel_blockstore::store::Then;

use crate::core::Core;
use crate::disk::{Disk, Side};
use crate::faults::DiskOp;
use crate::object::Object;
use crate::page::{self, PAGE_BYTES, PageSlot};
use crate::pages::runs;
use crate::slots::Slots;
use crate::sys;

/// Most pages that are read with one call: 4 MiB.
const LOOKUP_PAGES_MAX: usize = (4 * 1024 * 1024 / PAGE_BYTES) as usize;

/// Most reads that wait for a disk's threads on behalf of readers that do not. More take their turn
/// elsewhere, where the time is not counted yet: a disk that is well must not look dead because
/// many want something of it at once.
const PROMISED_MAX: usize = 48;

impl Core {
    /// Reads those of `wanted` (in order) that are on the disk. What is not there, or not as it
    /// should be, is not among what is returned; neither is anything of a disk that fails or does
    /// not answer in time.
    pub fn lookup(
        self: &Arc<Self>,
        object: &Arc<Object>,
        disk: &Arc<Disk>,
        wanted: &[u32],
    ) -> Vec<Slots> {
        if wanted.is_empty() || !disk.is_in_service(Side::Read) {
            return Vec::new();
        }
        let (core, object, of) = (Arc::clone(self), Arc::clone(object), Arc::clone(disk));
        let wanted = wanted.to_vec();
        let job = move || {
            let begun = Instant::now();
            let looked_up = core.lookup_here(&object, &of, &wanted);
            of.note(Side::Read, begun, &looked_up);
            looked_up.unwrap_or_default()
        };
        disk.reads.call(self.options.disk_deadline, job).unwrap_or_else(|| {
            disk.note_unanswered(Side::Read);
            Vec::new()
        })
    }

    /// Has the kernel bring pages that are recorded as being on the disk into its page cache, from
    /// where [`Core::read_warm`] then reads them to where they are wanted. Whether they came; none
    /// if they are not recorded.
    pub fn bring(&self, object: &Object, disk: &Arc<Disk>, pages: &Range<u32>) -> Option<bool> {
        let file = cached_file(object, disk, pages)?;
        let bytes = page::slot_at(pages.start)..page::slot_at(pages.end);
        let (sender, called) = mpsc::sync_channel(1);
        // No other thread receives.
        let then = Box::new(move |is_here| sender.send(is_here).unwrap_or(()));
        if self.completion(disk, file, bytes, then).is_err() {
            disk.note_unanswered(Side::Read);
            return Some(false);
        }
        Some(called.recv().unwrap_or(false))
    }

    /// Like [`Core::bring`], for `len` bytes from `offset` on and a caller that verifies them
    /// itself; instead of waiting, `then` is called with whether they came.
    ///
    /// # Errors
    /// Gives `then` back, if they are not recorded as being there or too many reads wait for the
    /// disk.
    pub fn bring_then(
        &self,
        object: &Object,
        disk: &Arc<Disk>,
        (offset, len): (u64, u64),
        then: Then,
    ) -> Result<(), Then> {
        if disk.reads.waiting() >= PROMISED_MAX {
            return Err(then);
        }
        match cached_file(object, disk, &page::pages(offset, len)) {
            Some(file) => self.completion(disk, file, page::stored_span(offset, len), then),
            None => Err(then),
        }
    }

    fn completion(
        &self,
        disk: &Arc<Disk>,
        file: Arc<File>,
        bytes: Range<u64>,
        then: Then,
    ) -> Result<(), Then> {
        let completion = disk.completions.make(Instant::now() + self.options.disk_deadline, then);
        let (of, given) = (Arc::clone(disk), Arc::clone(&completion));
        let job = move || {
            if given.is_open() {
                let begun = Instant::now();
                let brought = of.before(DiskOp::Read).and_then(|()| sys::bring(&file, bytes));
                of.note(Side::Read, begun, &brought);
                given.keep(brought.is_ok());
            }
        };
        if disk.reads.submit(Box::new(job)) {
            return Ok(());
        }
        completion.take().map_or(Ok(()), Err)
    }

    /// Like [`Core::lookup`], on this thread.
    fn lookup_here(
        &self,
        object: &Arc<Object>,
        disk: &Disk,
        wanted: &[u32],
    ) -> io::Result<Vec<Slots>> {
        disk.before(DiskOp::Read)?;
        self.open(object, disk, wanted)?;
        let (file, there) = {
            let state = object.state.lock();
            let there: Vec<u32> =
                wanted.iter().copied().filter(|page| state.on_disk.contains(*page)).collect();
            (state.file.clone(), there)
        };
        let Some(file) = file else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for run in runs(there, 0) {
            for from in run.clone().step_by(LOOKUP_PAGES_MAX) {
                let batch = from..run.end.min(from + LOOKUP_PAGES_MAX as u32);
                let slots = Slots::read(&file, &self.owner(object.id), batch)?;
                self.drop_unfit(object, disk, &slots);
                found.push(slots);
            }
        }
        Ok(found)
    }

    /// Sees to it that the object's file is open if there is one, and that its state in memory is
    /// good enough to look for the pages `wanted`.
    pub fn open(&self, object: &Arc<Object>, disk: &Disk, wanted: &[u32]) -> io::Result<()> {
        let now = self.now();
        let state = object.state.lock();
        let is_recent = state.file.is_some()
            && (state.is_lookup_recent(now)
                || wanted.iter().all(|page| state.on_disk.contains(*page)));
        let writes = state.writes;
        drop(state);
        if is_recent {
            return Ok(());
        }
        // By name, also if it is open: it may have been evicted and made again.
        let opened = self.with_descriptors(|| disk.open_file(object.id))?;
        let Some(file) = opened.map(Arc::new) else {
            object.state.lock().looked_in_vain(writes, now);
            return Ok(());
        };
        let (data, len) = (sys::data_ranges(&file)?, file.metadata()?.len());
        object.state.lock().looked_at(file, (&data, len), writes, now)?;
        self.table.opened(object);
        Ok(())
    }

    /// Forgets pages that are not there after all, and removes those that are damaged.
    fn drop_unfit(&self, object: &Object, disk: &Disk, slots: &Slots) {
        for (page, slot) in slots.found().filter(|(_, slot)| !matches!(slot, PageSlot::Page(_))) {
            let mut state = object.state.lock();
            state.on_disk.remove(page);
            if slot != PageSlot::Damaged {
                continue;
            }
            let is_proven = state.is_file_proven;
            drop(state);
            let begun = Instant::now();
            // Perhaps all of it is another object's, or another volume's: once a page of ours is in
            // it, that would be taken for ours, too.
            let removed = if is_proven {
                self.stats.corrupt.add(1);
                log::warn!(
                    "object {:016x}: page {page} of its cache file is damaged: dropped",
                    object.id
                );
                disk.remove_page(object.id, page)
            } else {
                self.drop_file(object, disk)
            };
            if removed.is_err() {
                disk.note(Side::Write, begun, &removed);
            }
            if !is_proven {
                return;
            }
        }
    }
}

/// The open cache file of an object on this disk that is recorded as holding `pages`, if the disk
/// may be read from.
fn cached_file(object: &Object, disk: &Disk, pages: &Range<u32>) -> Option<Arc<File>> {
    let mut state = object.state.lock();
    state.bind(disk.index);
    let file = state.file.clone().filter(|_| state.on_disk.contains_all(pages.clone()));
    drop(state);
    file.filter(|_| disk.is_in_service(Side::Read))
}
