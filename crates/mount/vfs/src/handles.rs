//! The numbers by which the kernel names open files and directories.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 32;

/// Open handles of one kind. Numbers start at 1 and are not reused.
pub struct Handles<T> {
    next: AtomicU64,
    shards: Vec<Mutex<FxHashMap<u64, Arc<T>>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl<T> Handles<T> {
    fn shard(&self, number: u64) -> &Mutex<FxHashMap<u64, Arc<T>>> {
        &self.shards[number as usize % SHARDS]
    }

    /// Gives a handle a number.
    pub fn insert(&self, handle: Arc<T>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).lock().insert(number, handle);
        number
    }

    /// The handle with this number.
    pub fn get(&self, number: u64) -> Option<Arc<T>> {
        self.shard(number).lock().get(&number).cloned()
    }

    /// Takes a handle out.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.shard(number).lock().remove(&number)
    }
}
