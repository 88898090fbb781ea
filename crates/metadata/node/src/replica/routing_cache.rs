//! Guesses where paths lead, for routing: which worker a request belongs to is a question of the
//! last directory of its path, and a thread that routes holds no worker's state. A wrong guess
//! costs a hop.
//!
//! A table without locks (R. Hyatt and T. Mann, "A lock-less transposition table implementation for
//! parallel search chess engines", 2002): each place holds a number and, beside it, the number
//! XORed with the hash of its path. Halves of two writes do not fit each other and are no guess.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::ids::InodeId;

/// Places of the table: 64 KiB.
const PLACES: usize = 4096;

#[derive(Default)]
struct CachedRoute {
    ino: AtomicU64,
    check: AtomicU64,
}

/// See the module's header.
pub struct RoutingCache {
    places: Box<[CachedRoute]>,
}

impl Default for RoutingCache {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| CachedRoute::default()).collect() }
    }
}

impl RoutingCache {
    /// Where the path with this hash led. Relaxed: any value that fits its check was a guess for
    /// this hash.
    #[inline]
    pub fn get(&self, hash: u64) -> Option<InodeId> {
        let guess = &self.places[hash as usize % PLACES];
        let ino = guess.ino.load(Ordering::Relaxed);
        (ino != 0 && guess.check.load(Ordering::Relaxed) ^ ino == hash).then_some(ino)
    }

    /// The path with this hash leads there.
    pub fn set(&self, hash: u64, ino: InodeId) {
        let guess = &self.places[hash as usize % PLACES];
        guess.ino.store(ino, Ordering::Relaxed);
        guess.check.store(hash ^ ino, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_guesses_count() {
        let guesses = RoutingCache::default();
        assert_eq!(guesses.get(5), None);
        guesses.set(5, 77);
        assert_eq!(guesses.get(5), Some(77));
        assert_eq!(guesses.get(5 + PLACES as u64), None);
        guesses.set(5 + PLACES as u64, 78);
        assert_eq!((guesses.get(5), guesses.get(5 + PLACES as u64)), (None, Some(78)));
        guesses.places[5].ino.store(79, Ordering::Relaxed);
        assert_eq!(guesses.get(5 + PLACES as u64), None, "half of another write");
    }
}
