//! The state of objects in memory: which pages are where, what is under way, how they are used.
//!
//! All of it is hints and bookkeeping: what a cache file holds is decided by its trailers, and
//! forgetting an object costs a look at its file, nothing else.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::flight::ObjectFlights;
use crate::page::{self, PAGE_BYTES};
use crate::pages::PageSet;

const SHARDS: usize = 16;

/// Objects remembered, all shards together. About 1 KiB each for an object of 16 MiB.
const OBJECTS_MAX: usize = 16 * 1024;

/// Cache files kept open.
const FILES_MAX: usize = 1024;

/// A look at a cache file is good for so long; then another process may have added pages.
pub(crate) const LOOKUP_AGE_MAX: Nanos = SECOND;

/// Requests for an object count as one after another within this time.
const REQUESTS_AGE_MAX: Nanos = 600 * SECOND;

/// A file's time of use is written at most so often; what is read again within its first such span
/// is not yet "reused".
pub(crate) const TOUCH_EVERY: Nanos = 60 * SECOND;

/// Permission bit of a cache file that was reused: the owner's execute bit, which means nothing
/// else here.
pub(crate) const REUSED_BIT: u32 = 0o100;

/// An object.
#[derive(Debug)]
pub(crate) struct Object {
    pub id: ObjectId,
    pub state: Mutex<ObjectState>,
    used_lately: AtomicBool,
}

/// See [`Object`].
#[derive(Debug, Default)]
pub(crate) struct ObjectState {
    /// The cache disk that the rest is about.
    disk: usize,
    /// The cache file, if it is open.
    pub file: Option<Arc<File>>,
    /// A page of that file matched its trailer, which names volume, object and page: the file is
    /// this object's, and so are its other pages, because `fill` writes to no file that has others.
    pub is_file_proven: bool,
    is_in_ring: bool,
    /// Pages that seem to be in the cache file.
    pub on_disk: PageSet,
    /// When the cache file was looked for last; none: never.
    pub looked_up: Option<Nanos>,
    /// How often this process wrote to the cache file: what was found by a look during which that
    /// happened is out of date.
    pub writes: u64,
    pub flights: ObjectFlights,
    /// Pages that were requested.
    used: PageSet,
    /// Pages fetched without being requested, and not requested since.
    pub ahead: PageSet,
    /// Requests lately, and when the last one was.
    requests: u32,
    requested: Nanos,
    /// The page after the object's last one, where the size has been read.
    pub end: Option<u32>,
    created: Nanos,
    touched: Nanos,
    is_reused: bool,
    /// The file is older than this process.
    is_inherited: bool,
}

/// What to write down about a cache file's use.
#[derive(Debug)]
pub(crate) struct Touch {
    pub file: Arc<File>,
    pub is_reused: bool,
}

impl ObjectState {
    /// Forgets what is about another cache disk.
    pub fn bind(&mut self, disk: usize) {
        if self.disk != disk {
            self.disk = disk;
            self.forget_file();
        }
    }

    /// The cache file is gone.
    pub fn forget_file(&mut self) {
        (self.file, self.is_file_proven) = (None, false);
        self.on_disk.clear();
        self.looked_up = None;
    }

    /// Takes over a cache file that was there already.
    pub fn attach(&mut self, file: Arc<File>) {
        if let Ok(found) = file.metadata() {
            let modified = found.mtime().saturating_mul(SECOND).saturating_add(found.mtime_nsec());
            (self.created, self.touched, self.is_inherited) = (modified, modified, true);
            self.is_reused = found.mode() & REUSED_BIT != 0;
        }
        (self.file, self.is_file_proven) = (Some(file), false);
    }

    /// Takes over a cache file that was made just now.
    fn attach_new(&mut self, file: Arc<File>, now: Nanos) {
        (self.created, self.touched, self.is_inherited, self.is_reused) = (now, now, false, false);
        self.looked_up = Some(now);
        self.on_disk.clear();
        (self.file, self.is_file_proven) = (Some(file), false);
    }

    /// Notes that `pages` were written to the cache file, which was empty before if it `was_empty`.
    /// Several threads may write one object's pages at a time, and all of them may have found it
    /// so.
    ///
    /// # Errors
    /// If the file cannot be compared with the one in memory; nothing is noted.
    pub fn wrote(
        &mut self,
        file: Arc<File>,
        was_empty: bool,
        pages: &[u32],
        now: Nanos,
    ) -> io::Result<()> {
        match &self.file {
            Some(current) if is_same(current, &file)? => {}
            _ if was_empty => self.attach_new(file, now),
            // It was evicted, and made again by another process.
            Some(_) => {
                self.forget_file();
                self.attach(file);
            }
            None => self.attach(file),
        }
        self.writes += 1;
        pages.iter().for_each(|page| self.on_disk.insert(*page));
        Ok(())
    }

    /// Notes that there was no cache file at `now`, when `writes` was that.
    pub fn looked_in_vain(&mut self, writes: u64, now: Nanos) {
        if self.writes == writes {
            self.forget_file();
            self.looked_up = Some(now);
        }
    }

    /// Notes which parts of a cache file `file_len` bytes long had data at `now`, when `writes` was
    /// that.
    ///
    /// # Errors
    /// If the file cannot be compared with the one in memory; nothing is noted.
    pub fn looked_at(
        &mut self,
        file: Arc<File>,
        (data, file_len): (&[Range<u64>], u64),
        writes: u64,
        now: Nanos,
    ) -> io::Result<()> {
        let is_current = self.writes == writes;
        match &self.file {
            Some(current) if is_same(current, &file)? => {}
            // The one that was written to meanwhile took its place.
            Some(_) if !is_current => return Ok(()),
            _ => self.attach(file),
        }
        if is_current {
            self.on_disk.clear();
        }
        self.looked_up = Some(now);
        page::pages_of_data(data, file_len).for_each(|page| self.on_disk.insert(page));
        Ok(())
    }

    /// Whether the cache file was read recently enough to believe that a page is not there.
    pub fn is_lookup_recent(&self, now: Nanos) -> bool {
        self.looked_up.is_some_and(|looked_up| (0..LOOKUP_AGE_MAX).contains(&(now - looked_up)))
    }

    /// Requests lately; counts one more.
    pub fn count_request(&mut self, now: Nanos) -> u32 {
        if now - self.requested > REQUESTS_AGE_MAX {
            self.requests = 0;
        }
        self.requested = now;
        self.requests = self.requests.saturating_add(1);
        self.requests - 1
    }

    /// Notes that pages were requested: bytes of them that had been fetched ahead, and what to
    /// write down.
    pub fn use_pages(&mut self, pages: Range<u32>, now: Nanos) -> (u64, Option<Touch>) {
        let mut ahead_bytes = 0;
        let mut is_reused = self.is_inherited;
        for page in pages {
            if self.ahead.remove(page) {
                ahead_bytes += PAGE_BYTES;
            }
            if self.used.contains(page) {
                is_reused = true;
            } else {
                self.used.insert(page);
            }
        }
        if now - self.touched < TOUCH_EVERY {
            return (ahead_bytes, None);
        }
        let Some(file) = self.file.clone() else { return (ahead_bytes, None) };
        self.touched = now;
        let is_new = is_reused && !self.is_reused && now - self.created >= TOUCH_EVERY;
        self.is_reused |= is_new;
        (ahead_bytes, Some(Touch { file, is_reused: is_new }))
    }
}

/// Whether two descriptors are of one file.
pub(crate) fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[derive(Default)]
struct Shard {
    objects: FxHashMap<ObjectId, Arc<Object>>,
    ring: VecDeque<ObjectId>,
}

/// The objects, a bounded number of them (CLOCK), and the bound on open files.
#[derive(Default)]
pub(crate) struct ObjectIndex {
    shards: [Mutex<Shard>; SHARDS],
    /// Objects with an open file, oldest first.
    files: Mutex<VecDeque<Weak<Object>>>,
}

impl ObjectIndex {
    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[usize::from(kestrel_blockstore::store::key::prefix(id)) % SHARDS]
    }

    /// The object, if it is remembered.
    pub fn find(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.shard(id).lock().objects.get(&id).cloned()
    }

    /// The object. Forgets another that is not in use if there are too many.
    pub fn get(&self, id: ObjectId) -> Arc<Object> {
        let mut forgotten = None;
        let mut shard = self.shard(id).lock();
        if let Some(object) = shard.objects.get(&id) {
            object.used_lately.store(true, Ordering::Relaxed);
            return Arc::clone(object);
        }
        for _ in 0..shard.ring.len() {
            if shard.objects.len() < OBJECTS_MAX / SHARDS {
                break;
            }
            let Some(oldest) = shard.ring.pop_front() else { break };
            let is_free = shard.objects.get(&oldest).is_none_or(|object| {
                !object.used_lately.swap(false, Ordering::Relaxed) && Arc::strong_count(object) == 1
            });
            if is_free {
                forgotten = shard.objects.remove(&oldest);
            } else {
                shard.ring.push_back(oldest);
            }
        }
        let object =
            Arc::new(Object { id, state: Mutex::default(), used_lately: AtomicBool::new(false) });
        shard.ring.push_back(id);
        shard.objects.insert(id, Arc::clone(&object));
        drop(shard);
        // A file may be closed here, outside the lock.
        drop(forgotten);
        object
    }

    /// Notes that an object has an open file, and closes another's if there are too many.
    pub fn opened(&self, object: &Arc<Object>) {
        let is_new = !std::mem::replace(&mut object.state.lock().is_in_ring, true);
        let mut victims = Vec::new();
        let mut files = self.files.lock();
        if is_new {
            files.push_back(Arc::downgrade(object));
        }
        let mut chances = files.len();
        while files.len() > FILES_MAX && chances > 0 {
            chances -= 1;
            match files.pop_front().as_ref().and_then(Weak::upgrade) {
                Some(other) if other.used_lately.swap(false, Ordering::Relaxed) => {
                    files.push_back(Arc::downgrade(&other));
                }
                Some(other) => victims.push(other),
                None => {}
            }
        }
        drop(files);
        for victim in victims {
            let mut state = victim.state.lock();
            state.is_in_ring = false;
            let file = state.file.take();
            drop(state);
            drop(file);
        }
    }

    /// Closes all files: the process ran out of descriptors.
    pub fn close_files(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        for object in files.iter().filter_map(Weak::upgrade) {
            let mut state = object.state.lock();
            state.is_in_ring = false;
            let file = state.file.take();
            drop(state);
            drop(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_in_use() {
        let table = ObjectIndex::default();
        let kept = table.get(1);
        kept.state.lock().end = Some(5);
        for id in 2..3 * OBJECTS_MAX as u64 {
            table.get(id);
        }
        let held: usize = table.shards.iter().map(|shard| shard.lock().objects.len()).sum();
        assert!(held <= OBJECTS_MAX, "{held}");
        assert!(Arc::ptr_eq(&kept, &table.get(1)));
        assert!(table.find(2).is_none());
    }

    #[test]
    fn open_files_are_bounded() {
        let table = ObjectIndex::default();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let objects: Vec<_> = (1..=2 * FILES_MAX as u64).map(|id| table.get(id)).collect();
        for object in &objects {
            object.state.lock().attach_new(Arc::clone(&file), 0);
            table.opened(object);
        }
        let open = objects.iter().filter(|object| object.state.lock().file.is_some()).count();
        assert!(open <= FILES_MAX, "{open}");
        table.close_files();
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn data_of_the_file_says_which_pages_may_be_there() {
        let mut state = ObjectState::default();
        let slot = page::SLOT_BYTES;
        // Slots 0 and 1 with the block behind them, then a short last page in slot 9: its data, and
        // its trailer.
        let blocks =
            [0..2 * slot + 4000, 9 * slot - 100..9 * slot + 3000, 10 * slot - 50..10 * slot];
        let file = Arc::new(tempfile::tempfile().unwrap());
        state.looked_at(file, (&blocks, 10 * slot), 0, 7).unwrap();
        assert_eq!(pages_of(&state), [0, 1, 9]);
        assert!(
            state.is_lookup_recent(7)
                && !state.is_lookup_recent(7 + LOOKUP_AGE_MAX)
                && !state.is_lookup_recent(6)
        );
    }

    fn pages_of(state: &ObjectState) -> Vec<u32> {
        (0..20).filter(|page| state.on_disk.contains(*page)).collect()
    }

    /// Writers of one file at the same time keep each other's pages.
    #[test]
    fn concurrent_writes_to_one_cache_file() {
        let mut state = ObjectState::default();
        let file = Arc::new(tempfile::tempfile().unwrap());
        // Both found the file empty.
        state.wrote(Arc::clone(&file), true, &[0, 1], 5).unwrap();
        state.wrote(Arc::new(file.try_clone().unwrap()), true, &[7], 6).unwrap();
        assert_eq!(pages_of(&state), [0, 1, 7]);
        // Evicted, and made again: by another process, by this one.
        state.wrote(Arc::new(tempfile::tempfile().unwrap()), false, &[3], 7).unwrap();
        assert_eq!(pages_of(&state), [3]);
        state.wrote(Arc::new(tempfile::tempfile().unwrap()), true, &[4], 8).unwrap();
        assert_eq!(pages_of(&state), [4]);
    }

    /// A lookup does not take back what was written meanwhile.
    #[test]
    fn lookup_beside_a_write() {
        let slot = page::SLOT_BYTES;
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut state = ObjectState::default();
        let writes = state.writes;
        state.wrote(Arc::clone(&file), true, &[2], 5).unwrap();
        state.looked_in_vain(writes, 6);
        assert_eq!(pages_of(&state), [2]);
        // Another process has put page 0 there.
        let first = 0..slot;
        state
            .looked_at(Arc::clone(&file), (std::slice::from_ref(&first), 3 * slot), writes, 6)
            .unwrap();
        assert_eq!(pages_of(&state), [0, 2]);
        // An old file, which was replaced while it was looked at.
        let old = Arc::new(tempfile::tempfile().unwrap());
        state.looked_at(old, (&[], 0), writes, 7).unwrap();
        assert_eq!(pages_of(&state), [0, 2]);
        assert!(is_same(state.file.as_ref().unwrap(), &file).unwrap());
        // Nothing was written since.
        state.looked_at(file, (std::slice::from_ref(&first), 3 * slot), state.writes, 8).unwrap();
        assert_eq!(pages_of(&state), [0]);
        state.looked_in_vain(state.writes, 9);
        assert_eq!(pages_of(&state), [0; 0]);
    }

    /// Use is recorded once a minute, and a reuse only after the first use.
    #[test]
    fn recording_of_use_and_reuse() {
        let mut state = ObjectState::default();
        let file = Arc::new(tempfile::tempfile().unwrap());
        state.attach_new(file, 1000 * SECOND);
        state.ahead.insert(3);
        assert_eq!(state.use_pages(2..4, 1001 * SECOND).0, PAGE_BYTES);
        assert_eq!(state.use_pages(2..4, 1002 * SECOND).0, 0);
        assert!(state.use_pages(2..4, 1059 * SECOND).1.is_none());
        let touch = |touch: (u64, Option<Touch>)| touch.1.map(|touch| touch.is_reused);
        assert_eq!(touch(state.use_pages(8..9, 1060 * SECOND)), Some(false));
        assert_eq!(touch(state.use_pages(2..4, 1061 * SECOND)), None);
        assert_eq!(touch(state.use_pages(2..4, 1120 * SECOND)), Some(true));
        assert_eq!(touch(state.use_pages(2..4, 1180 * SECOND)), Some(false));
    }

    #[test]
    fn requests_are_forgotten_after_a_while() {
        let mut state = ObjectState::default();
        assert_eq!([0, 1, 2].map(|at| state.count_request(1_000_000 * SECOND + at)), [0, 1, 2]);
        assert_eq!(state.count_request(1_001_000 * SECOND), 0);
    }
}
