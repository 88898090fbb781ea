//! A part of the replica's places: hash of `(parent, name)` → where the dentry is.

use hashbrown::HashTable;

use super::shard::Slot;

/// A slot of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DentryIndex(u32);

/// Bits that tell the shard.
const SHARD_BITS: u32 = 6;

/// Most slots that a shard may have.
pub(super) const SLOTS_MAX: usize = 1 << (u32::BITS - SHARD_BITS);

impl DentryIndex {
    pub fn new(shard: usize, slot: Slot) -> Self {
        debug_assert!(shard < 1 << SHARD_BITS && (slot as usize) < SLOTS_MAX);
        Self((slot << SHARD_BITS) | shard as u32)
    }

    pub fn shard(self) -> usize {
        (self.0 & ((1 << SHARD_BITS) - 1)) as usize
    }

    pub fn slot(self) -> Slot {
        self.0 >> SHARD_BITS
    }
}

/// See the module's header. Of a hash only a part is kept, so the caller has to say what is there.
#[derive(Default)]
pub(super) struct Names {
    /// Tags and where.
    places: HashTable<(u32, DentryIndex)>,
}

/// What is kept of a hash. Its highest bits chose the table.
fn tag(hash: u64) -> u32 {
    hash as u32
}

fn table_hash(tag: u32) -> u64 {
    u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Names {
    /// The first answer of `confirm` to what may be it.
    #[inline]
    pub fn find<T>(&self, hash: u64, confirm: impl Fn(DentryIndex) -> Option<T>) -> Option<T> {
        let tag = tag(hash);
        let mut found = None;
        self.places.find(table_hash(tag), |place| {
            found = if place.0 == tag { confirm(place.1) } else { None };
            found.is_some()
        });
        found
    }

    /// Takes a place in; one that `is_same` leads there from now on instead.
    pub fn insert(&mut self, hash: u64, at: DentryIndex, is_same: impl Fn(DentryIndex) -> bool) {
        let tag = tag(hash);
        if let Some(place) =
            self.places.find_mut(table_hash(tag), |place| place.0 == tag && is_same(place.1))
        {
            place.1 = at;
        } else {
            self.places.insert_unique(table_hash(tag), (tag, at), |place| table_hash(place.0));
        }
    }

    /// Forgets a place that leads there.
    pub fn remove(&mut self, hash: u64, at: DentryIndex) {
        let tag = tag(hash);
        if let Ok(entry) = self.places.find_entry(table_hash(tag), |place| *place == (tag, at)) {
            entry.remove();
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }
}
