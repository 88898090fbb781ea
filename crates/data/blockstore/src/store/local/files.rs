//! Open object files and their bounded cache.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_types::ids::ObjectId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::dirty::SyncPoint;
use crate::store::key;

const SHARDS: usize = 16;

/// An object's open file.
pub(super) struct ObjectFile {
    pub object: ObjectId,
    pub file: File,
    /// How far its contents are durable.
    pub synced: SyncPoint,
}

impl ObjectFile {
    pub fn new(object: ObjectId, file: File) -> Self {
        Self { object, file, synced: SyncPoint::clean() }
    }
}

/// Path of an object's file below the store's directory.
pub(super) fn name(object: ObjectId) -> CString {
    c_string(format!("{:02x}/{object:016x}", key::prefix(object)))
}

/// Path of a prefix directory below the store's directory.
pub(super) fn dir_name(prefix: u8) -> CString {
    c_string(format!("{prefix:02x}"))
}

fn c_string(text: String) -> CString {
    CString::new(text).unwrap_or_else(|_| unreachable!("hex digits and a slash hold no NUL"))
}

struct Slot {
    file: Arc<ObjectFile>,
    used: AtomicBool,
}

/// One shard: CLOCK (second chance), which is close enough to LRU and needs no write to the list on
/// a hit.
#[derive(Default)]
struct Shard {
    slots: FxHashMap<ObjectId, Slot>,
    ring: VecDeque<ObjectId>,
}

/// Open files by object, at most `limit` of them (a file in use lives on until its user is done).
pub(super) struct FileCache {
    shards: [Mutex<Shard>; SHARDS],
    per_shard_max: usize,
}

impl FileCache {
    pub fn new(limit: usize) -> Self {
        Self { shards: Default::default(), per_shard_max: (limit / SHARDS).max(1) }
    }

    fn shard(&self, object: ObjectId) -> &Mutex<Shard> {
        &self.shards[usize::from(key::prefix(object)) % SHARDS]
    }

    pub fn get(&self, object: ObjectId) -> Option<Arc<ObjectFile>> {
        let shard = self.shard(object).lock();
        let slot = shard.slots.get(&object)?;
        slot.used.store(true, Ordering::Relaxed);
        Some(Arc::clone(&slot.file))
    }

    /// Adds a file. If two threads opened the same one, the first stays.
    pub fn insert(&self, file: &Arc<ObjectFile>) {
        let mut evicted = Vec::new();
        let mut shard = self.shard(file.object).lock();
        if shard.slots.contains_key(&file.object) {
            return;
        }
        while shard.slots.len() >= self.per_shard_max {
            let Some(object) = shard.ring.pop_front() else { break };
            match shard.slots.get(&object) {
                Some(slot) if slot.used.swap(false, Ordering::Relaxed) => {
                    shard.ring.push_back(object)
                }
                _ => evicted.extend(shard.slots.remove(&object)),
            }
        }
        shard.ring.push_back(file.object);
        shard
            .slots
            .insert(file.object, Slot { file: Arc::clone(file), used: AtomicBool::new(false) });
        // Files are closed outside the lock.
        drop(shard);
        drop(evicted);
    }

    pub fn remove(&self, object: ObjectId) {
        let mut shard = self.shard(object).lock();
        if shard.slots.remove(&object).is_some() {
            shard.ring.retain(|other| *other != object);
        }
    }

    /// Closes everything not in use: the process ran out of descriptors.
    pub fn clear(&self) {
        for shard in &self.shards {
            let taken = std::mem::take(&mut *shard.lock());
            drop(taken);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }
}
