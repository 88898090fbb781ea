//! Hash index of the rows of a shard: extendible hashing, so that growth never stalls.
//!
//! Rows hang in small segments of fixed size; a full segment splits alone, which costs
//! microseconds. A directory of segment numbers, indexed by the hash's top bits, finds the segment;
//! it doubles by copying 4 bytes a segment. (Fagin, Nievergelt, Pippenger, Strong: Extendible
//! hashing, TODS 1979.)

use kestrel_types::key::KeyRef;

use super::hash::Hasher;
use super::row::{RowPtr, prefetch};

/// Slots of a segment.
const SLOTS: usize = 256;
/// Rows in a segment before it splits: short probes matter more than the last tenth of memory.
const ROWS_MAX: usize = 208;
/// A slot is a row's address in the low 48 bits and 16 bits of its hash above; of these, the low 8
/// are its home slot.
const ADDRESS: u64 = (1 << 48) - 1;

struct Segment {
    /// Top bits of the hash that all rows of the segment share.
    depth: u32,
    rows: usize,
    slots: [u64; SLOTS],
}

/// The index.
pub(super) struct Index {
    depth: u32,
    directory: Vec<u32>,
    // Boxed, so that growing the vector moves 8 bytes a segment, not 2 KiB.
    #[allow(clippy::vec_box, reason = "see above")]
    segments: Vec<Box<Segment>>,
}

fn tag(hash: u64) -> u64 {
    hash << 48
}

fn home(slot: u64) -> usize {
    (slot >> 48) as usize % SLOTS
}

fn row(slot: u64) -> RowPtr {
    // SAFETY: slots hold addresses of rows that are in the index, hence alive.
    unsafe { RowPtr::at(slot & ADDRESS) }
}

impl Segment {
    fn new(depth: u32) -> Box<Self> {
        Box::new(Self { depth, rows: 0, slots: [0; SLOTS] })
    }

    fn find(&self, hash: u64, key: KeyRef<'_>) -> Option<usize> {
        let mut at = home(tag(hash));
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot & !ADDRESS == tag(hash) && row(slot).key() == key {
                return Some(at);
            }
            at = (at + 1) % SLOTS;
        }
    }

    fn insert(&mut self, slot: u64) {
        let mut at = home(slot);
        while self.slots[at] != 0 {
            at = (at + 1) % SLOTS;
        }
        self.slots[at] = slot;
        self.rows += 1;
    }

    /// Empties a slot and moves later rows of the same run back, so that probes need no markers
    /// (Knuth 6.4 R).
    fn remove(&mut self, mut hole: usize) {
        self.rows -= 1;
        let mut at = hole;
        loop {
            self.slots[hole] = 0;
            loop {
                at = (at + 1) % SLOTS;
                let slot = self.slots[at];
                if slot == 0 {
                    return;
                }
                // Distance from home to where it is, and to the hole: it may move only if that is
                // no step forward.
                if (at + SLOTS - home(slot)) % SLOTS >= (at + SLOTS - hole) % SLOTS {
                    break;
                }
            }
            self.slots[hole] = self.slots[at];
            hole = at;
        }
    }
}

impl Index {
    /// An empty index.
    pub fn new() -> Self {
        Self { depth: 0, directory: vec![0], segments: vec![Segment::new(0)] }
    }

    fn segment_of(&self, hash: u64) -> usize {
        let slot = if self.depth == 0 { 0 } else { hash >> (64 - self.depth) };
        self.directory[slot as usize] as usize
    }

    /// Loads what `find` will touch: the segment's slots.
    pub fn prefetch(&self, hash: u64) {
        let segment = &self.segments[self.segment_of(hash)];
        let home = home(tag(hash));
        prefetch(std::ptr::from_ref(&segment.slots[home]).cast());
    }

    /// Loads the row that `find` will probably return.
    pub fn prefetch_row(&self, hash: u64) {
        let segment = &self.segments[self.segment_of(hash)];
        let mut at = home(tag(hash));
        while segment.slots[at] != 0 {
            if segment.slots[at] & !ADDRESS == tag(hash) {
                row(segment.slots[at]).prefetch();
                return;
            }
            at = (at + 1) % SLOTS;
        }
    }

    /// The row of `key`.
    pub fn find(&self, hash: u64, key: KeyRef<'_>) -> Option<RowPtr> {
        let segment = &self.segments[self.segment_of(hash)];
        segment.find(hash, key).map(|at| row(segment.slots[at]))
    }

    /// Adds a row with a key that is not in the index.
    pub fn insert(&mut self, hash: u64, new: RowPtr, hasher: &Hasher) {
        assert!(new.address() & !ADDRESS == 0, "user addresses have 48 bits");
        while self.segments[self.segment_of(hash)].rows >= ROWS_MAX {
            self.split(hash, hasher);
        }
        let segment = self.segment_of(hash);
        self.segments[segment].insert(tag(hash) | new.address());
    }

    /// Lets `key` find another row.
    pub fn replace(&mut self, hash: u64, old: RowPtr, new: RowPtr) {
        let segment = self.segment_of(hash);
        if let Some(at) = self.segments[segment].find(hash, old.key()) {
            self.segments[segment].slots[at] = tag(hash) | new.address();
        }
    }

    /// Takes a row out.
    pub fn remove(&mut self, hash: u64, key: KeyRef<'_>) -> Option<RowPtr> {
        let segment = self.segment_of(hash);
        let segment = &mut self.segments[segment];
        let at = segment.find(hash, key)?;
        let found = row(segment.slots[at]);
        segment.remove(at);
        Some(found)
    }

    fn split(&mut self, hash: u64, hasher: &Hasher) {
        let full = self.segment_of(hash);
        let depth = self.segments[full].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth += 1;
        }
        let bit = 1 << (63 - depth);
        let old = std::mem::replace(&mut self.segments[full], Segment::new(depth + 1));
        let mut new = Segment::new(depth + 1);
        for slot in old.slots.into_iter().filter(|slot| *slot != 0) {
            let side = if hasher.key(row(slot).key()) & bit == 0 {
                &mut self.segments[full]
            } else {
                &mut new
            };
            side.insert(slot);
        }
        // The directory entries of the old segment are one run; its upper half now leads to the new
        // one.
        let number = self.segments.len() as u32;
        self.segments.push(new);
        let shared = self.depth - depth;
        let first = if depth == 0 { 0 } else { (hash >> (64 - depth)) << shared } as usize;
        let half = 1usize << (shared - 1);
        self.directory[first + half..first + 2 * half].fill(number);
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::key::Table;

    use super::*;

    #[test]
    fn finds_exactly_what_was_inserted_and_not_removed() {
        let hasher = Hasher::with_seeds(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321);
        let mut index = Index::new();
        let names: Vec<[u8; 4]> = (0..20_000u32).map(u32::to_be_bytes).collect();
        let key = |name: &'static [u8]| KeyRef::new(Table::Entry, 5, name);
        let names: &'static [[u8; 4]] = names.leak();
        for name in names {
            let row = RowPtr::new(key(name), Some(name), 1, false);
            index.insert(hasher.key(key(name)), row, &hasher);
        }
        for (number, name) in names.iter().enumerate() {
            if number % 3 == 0 {
                let row = index.remove(hasher.key(key(name)), key(name)).unwrap();
                // SAFETY: just removed.
                unsafe { row.free() };
            }
        }
        for (number, name) in names.iter().enumerate() {
            let found = index.find(hasher.key(key(name)), key(name));
            assert_eq!(found.is_some(), number % 3 != 0);
            if let Some(row) = found {
                assert_eq!(row.value(), Some(name.as_slice()));
            }
        }
        for name in names {
            if let Some(row) = index.remove(hasher.key(key(name)), key(name)) {
                // SAFETY: just removed.
                unsafe { row.free() };
            }
        }
        assert!(
            index.segments.iter().all(|segment| segment.rows == 0 && segment.slots == [0; SLOTS])
        );
    }
}
