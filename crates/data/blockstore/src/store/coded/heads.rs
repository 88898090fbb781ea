//! Heads of objects in memory, so that an object's head is read once and not with every read.

use std::collections::VecDeque;
use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::head::Head;

const SHARDS: usize = 16;

/// Memory for heads, bytes. A pack of 16 MiB has 3 to 4 KiB of head here, so that this is enough
/// for some 128 GiB of data that is read at random; beyond that some reads take one request more.
pub(super) const HEADS_BYTES_MAX: usize = 32 << 20;

/// Memory for an object's entry beside its head, bytes.
const SLOT_BYTES: usize = 64;

/// What was read of an object.
#[derive(Clone)]
pub(super) enum ObjectCoding {
    /// It is not coded.
    Plain,
    /// It is coded.
    Coded(Arc<Head>),
}

impl ObjectCoding {
    fn memory(&self) -> usize {
        SLOT_BYTES
            + match self {
                Self::Plain => 0,
                Self::Coded(head) => head.memory(),
            }
    }
}

struct Slot {
    coding: ObjectCoding,
    used: bool,
}

#[derive(Default)]
struct Shard {
    slots: FxHashMap<ObjectId, Slot>,
    /// Evicted by CLOCK: from the front, unless used since it was last there.
    clock: VecDeque<ObjectId>,
    bytes: usize,
}

/// Heads by object, bounded.
pub(super) struct Heads {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes_max: usize,
}

impl Heads {
    pub fn new(bytes_max: usize) -> Self {
        Self { shards: Default::default(), shard_bytes_max: bytes_max / SHARDS }
    }

    fn shard(&self, object: ObjectId) -> &Mutex<Shard> {
        // Consecutive numbers go to different shards.
        &self.shards[object as usize % SHARDS]
    }

    pub fn get(&self, object: ObjectId) -> Option<ObjectCoding> {
        let mut shard = self.shard(object).lock();
        let slot = shard.slots.get_mut(&object)?;
        slot.used = true;
        Some(slot.coding.clone())
    }

    /// Remembers it in place of the entry before.
    pub fn insert(&self, object: ObjectId, coding: ObjectCoding) {
        let bytes = coding.memory();
        if bytes > self.shard_bytes_max {
            return;
        }
        let mut shard = self.shard(object).lock();
        let shard = &mut *shard;
        shard.bytes += bytes;
        match shard.slots.insert(object, Slot { coding, used: false }) {
            Some(before) => shard.bytes -= before.coding.memory(),
            None => shard.clock.push_back(object),
        }
        while shard.bytes > self.shard_bytes_max {
            let Some(oldest) = shard.clock.pop_front() else { break };
            match shard.slots.get_mut(&oldest) {
                Some(slot) if slot.used => {
                    slot.used = false;
                    shard.clock.push_back(oldest);
                }
                _ => shard.remove(oldest),
            }
        }
    }

    /// Forgets an object, which is being deleted.
    pub fn forget(&self, object: ObjectId) {
        let mut shard = self.shard(object).lock();
        shard.remove(object);
        // Its number stays in the clock unless that would let the clock grow without bound.
        if shard.clock.len() > 2 * shard.slots.len() + 64 {
            let shard = &mut *shard;
            shard.clock.retain(|object| shard.slots.contains_key(object));
        }
    }
}

impl Shard {
    fn remove(&mut self, object: ObjectId) {
        if let Some(slot) = self.slots.remove(&object) {
            self.bytes -= slot.coding.memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let heads = Heads::new(SHARDS * 10 * SLOT_BYTES);
        for object in 0..100_000u64 {
            heads.insert(object, ObjectCoding::Plain);
            assert!(heads.get(7).is_some() || object < 7, "{object}");
            if object % 3 == 0 {
                heads.forget(object);
            }
        }
        for shard in &heads.shards {
            let shard = shard.lock();
            assert!(
                shard.bytes <= heads.shard_bytes_max
                    && shard.bytes == shard.slots.len() * SLOT_BYTES
            );
            assert!(shard.clock.len() <= 2 * shard.slots.len() + 64);
        }
        heads.forget(7);
        assert!(heads.get(7).is_none());
    }
}
