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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// All of them, and the next number.
    pub fn all(&self) -> (Vec<(u64, Arc<T>)>, u64) {
        let of = |shard: &Mutex<FxHashMap<u64, Arc<T>>>| {
            shard.lock().iter().map(|(fh, handle)| (*fh, handle.clone())).collect::<Vec<_>>()
        };
        (self.shards.iter().flat_map(of).collect(), self.next.load(Ordering::Relaxed))
    }

    /// Goes on with handles of another process.
    pub fn take(&self, handles: impl IntoIterator<Item = (u64, Arc<T>)>, next: u64) {
        for (number, handle) in handles {
            self.shard(number).lock().insert(number, handle);
            self.next.fetch_max(number + 1, Ordering::Relaxed);
        }
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// Takes a handle out.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.shard(number).lock().remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles keep their numbers in the process that takes them over, and new ones get others.
    #[test]
    fn handles_taken_over() {
        let (before, after) = (Handles::default(), Handles::default());
        assert!(before.is_empty());
        let first = before.insert(Arc::new('a'));
        let second = before.insert(Arc::new('b'));
        before.remove(second);
        let (all, next) = before.all();
        after.take(all, next);
        assert_eq!(after.get(first).as_deref(), Some(&'a'));
        assert!(after.get(second).is_none() && after.insert(Arc::new('c')) > second);
    }
}
