//! Batches of handles that were closed in the middle of a listing, for handles that go on there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_types::ids::InodeId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Batch, DirStream, INDEX_BITS, Link};

/// Most directories that are kept, and most hashes of all of them: 16 MiB.
const DIRS_MAX: usize = 1024;
const HASHES_MAX: usize = 1 << 22;

/// What is kept of a directory.
#[derive(Debug, Default)]
struct KeptDir {
    batches: BTreeMap<u64, Batch>,
    /// The number of the next batch of any handle.
    numbers: Arc<AtomicU64>,
    hashes: usize,
    /// When it was last used.
    used: u64,
}

#[derive(Debug, Default)]
struct Kept {
    dirs: FxHashMap<InodeId, KeptDir>,
    hashes: usize,
    clock: u64,
    /// Numbers of batches that were forgotten are below.
    floor: u64,
}

/// Batches of directories that handles left in the middle. A cookie of a batch that is forgotten
/// leads nowhere: its number is not given out again.
#[derive(Debug, Default)]
pub struct KeptPositions {
    any: AtomicBool,
    kept: Mutex<Kept>,
}

impl KeptPositions {
    /// Prepares a stream that has listed nothing yet: its batches get numbers that no batch of
    /// another handle has which may be asked for.
    pub fn begin(&self, dir: InodeId, stream: &mut DirStream) {
        if !self.any.load(Ordering::Relaxed) || stream.stays || !stream.batches.is_empty() {
            return;
        }
        let kept = self.kept.lock();
        stream.numbers = match kept.dirs.get(&dir) {
            Some(dir) => dir.numbers.clone(),
            None => Arc::new(AtomicU64::new(kept.floor)),
        };
    }

    /// Numbers of batches that are kept, or were, are below; 0 if there are none.
    pub fn floor(&self) -> u64 {
        let kept = self.kept.lock();
        let numbers = kept.dirs.values().map(|dir| dir.numbers.load(Ordering::Relaxed));
        numbers.max().unwrap_or(0).max(kept.floor)
    }

    /// Goes on where another process was: what it kept is forgotten.
    pub fn begin_at(&self, floor: u64) {
        let mut kept = self.kept.lock();
        kept.floor = kept.floor.max(floor);
        self.any.fetch_or(floor > 0, Ordering::Relaxed);
    }

    /// Gives a stream what is kept of its directory, if a cookie leads somewhere then; whether it
    /// does.
    pub fn resume(&self, dir: InodeId, cookie: u64, stream: &mut DirStream) -> bool {
        let mut kept = self.kept.lock();
        kept.clock += 1;
        let now = kept.clock;
        let Some(dir) = kept.dirs.get_mut(&dir) else { return false };
        let number = (cookie >> INDEX_BITS).checked_sub(1);
        if !number.is_some_and(|number| dir.batches.contains_key(&number)) {
            return false;
        }
        dir.used = now;
        stream.numbers = dir.numbers.clone();
        stream.resumed = true;
        // What followed a batch in another handle's pass is not as it is now.
        stream.pass = stream.pass.max(1);
        for (number, batch) in &dir.batches {
            let next = batch.next.map(|link| Link { pass: 0, ..link });
            stream.batches.entry(*number).or_insert_with(|| Batch { next, ..batch.clone() });
        }
        stream.retained = stream.batches.values().map(|batch| batch.hashes.len()).sum();
        true
    }

    /// Keeps the batches of a handle that is closed, if another one may go on where it stopped.
    pub fn keep(&self, dir: InodeId, stream: &DirStream) {
        if stream.batches.is_empty() || stream.stays || (stream.ended && !stream.resumed) {
            return;
        }
        let mut kept = self.kept.lock();
        kept.clock += 1;
        let Kept { dirs, hashes, clock, .. } = &mut *kept;
        let dir = dirs
            .entry(dir)
            .or_insert_with(|| KeptDir { numbers: stream.numbers.clone(), ..KeptDir::default() });
        dir.used = *clock;
        dir.numbers.fetch_max(stream.numbers.load(Ordering::Relaxed), Ordering::Relaxed);
        let before = dir.hashes;
        for (number, batch) in &stream.batches {
            match dir.batches.entry(*number) {
                Entry::Vacant(place) => {
                    dir.hashes += batch.hashes.len();
                    place.insert(batch.clone());
                }
                // Two handles that were opened before anything was kept have numbered their batches
                // alike: their cookies lead nowhere, rather than to another entry.
                Entry::Occupied(place) if !place.get().is_same(batch) => {
                    dir.hashes -= place.remove().hashes.len();
                }
                Entry::Occupied(_) => {}
            }
        }
        *hashes = *hashes - before + dir.hashes;
        while kept.dirs.len() > DIRS_MAX || kept.hashes > HASHES_MAX {
            kept.forget_oldest();
        }
        self.any.store(true, Ordering::Relaxed);
    }
}

impl Batch {
    /// Whether cookies in both lead to the same entries.
    fn is_same(&self, other: &Self) -> bool {
        self.after == other.after && self.last == other.last && self.hashes == other.hashes
    }
}

impl Kept {
    fn forget_oldest(&mut self) {
        let oldest = self.dirs.iter().min_by_key(|(_, dir)| dir.used).map(|(ino, _)| *ino);
        let Some(gone) = oldest.and_then(|ino| self.dirs.remove(&ino)) else { return };
        self.hashes -= gone.hashes;
        self.floor = self.floor.max(gone.numbers.load(Ordering::Relaxed));
    }
}
