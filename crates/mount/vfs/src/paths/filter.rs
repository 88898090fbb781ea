//! A small memory of names, that forgets.
//!
//! It only decides which of two ways is taken that both lead to the right answer. So it may say
//! "no" to what it was told and then lost to another name, and even "yes" to a name that shares its
//! hash with another.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::name::Name;
use rustc_hash::FxBuildHasher;

/// Names it remembers at most; a power of two. Eight bytes each.
const SLOTS: usize = 1 << 16;

/// Names, by their directory's node.
pub struct Filter(Box<[AtomicU64]>);

impl Default for Filter {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Filter {
    fn slot(&self, dir: u64, name: &Name) -> (&AtomicU64, u64) {
        let mut hasher = FxBuildHasher.build_hasher();
        dir.hash(&mut hasher);
        name.hash(&mut hasher);
        // Zero is the empty slot.
        let hash = hasher.finish() | 1;
        (&self.0[(hash >> 1) as usize % SLOTS], hash)
    }

    /// Remembers a name.
    pub fn add(&self, dir: u64, name: &Name) {
        let (slot, hash) = self.slot(dir, name);
        slot.store(hash, Ordering::Relaxed);
    }

    /// Forgets a name.
    pub fn remove(&self, dir: u64, name: &Name) {
        let (slot, hash) = self.slot(dir, name);
        // Another name that has the slot keeps it; if one comes just now, it is forgotten, as
        // happens.
        if slot.load(Ordering::Relaxed) == hash {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a name is remembered.
    pub fn has(&self, dir: u64, name: &Name) -> bool {
        let (slot, hash) = self.slot(dir, name);
        slot.load(Ordering::Relaxed) == hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_by_directory() {
        let filter = Filter::default();
        let name = Name::new(b"name").expect("a name");
        assert!(!filter.has(1, &name));
        filter.add(1, &name);
        assert!(filter.has(1, &name) && !filter.has(2, &name));
        filter.remove(2, &name);
        assert!(filter.has(1, &name));
        filter.remove(1, &name);
        assert!(!filter.has(1, &name));
    }
}
