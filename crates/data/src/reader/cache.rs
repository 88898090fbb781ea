//! Verified frames in memory: bounded, sharded, resistant to scans.
//!
//! 2Q (Johnson, Shasha, 1994): a new frame enters a FIFO of a quarter of the space. Hits there do not move it, because
//! small sequential reads hit a frame many times within a moment. A frame that is wanted again after it fell out of the
//! FIFO (its id is remembered for a while) enters the main part, which evicts by CLOCK. So a scan passes through the FIFO
//! and leaves what is used again and again alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_types::range::FRAME_BYTES;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::frame::{FrameId, FrameStore};

const SHARDS: usize = 16;

/// Share of the space that new frames pass through: one in this many bytes.
const FRESH_SHARE: usize = 4;

struct Slot {
    bytes: Arc<Vec<u8>>,
    is_main: bool,
    used: bool,
}

#[derive(Default)]
struct Shard {
    slots: FxHashMap<FrameId, Slot>,
    fresh: VecDeque<FrameId>,
    main: VecDeque<FrameId>,
    fresh_bytes: usize,
    main_bytes: usize,
    /// Ids that fell out of `fresh`, oldest first.
    ghosts: VecDeque<FrameId>,
    is_ghost: FxHashSet<FrameId>,
}

/// A cache of verified frames.
pub struct FrameCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes_max: usize,
    has_whole_frames: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl FrameCache {
    /// A cache of at most `bytes_max` bytes of data; 0 caches nothing.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            shards: Default::default(),
            shard_bytes_max: bytes_max / SHARDS,
            has_whole_frames: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Bytes of data held now.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock()).map(|shard| shard.fresh_bytes + shard.main_bytes).sum()
    }

    /// Lookups that found a frame, and those that did not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    /// From now on whole frames are put in as well, so reads of whole frames have to look.
    pub(crate) fn expect_whole_frames(&self) {
        self.has_whole_frames.store(true, Ordering::Relaxed);
    }

    fn shard(&self, id: FrameId) -> &Mutex<Shard> {
        // Consecutive frames and objects spread over the shards (golden-ratio multiplication).
        let mixed = (id.object ^ u64::from(id.offset) << 20 ^ u64::from(id.frame) << 52)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize % SHARDS]
    }
}

impl FrameStore for FrameCache {
    fn copy(&self, id: FrameId, skip: usize, out: &mut [u8]) -> bool {
        let mut shard = self.shard(id).lock();
        let found = shard.slots.get_mut(&id).map(|slot| {
            slot.used = true;
            Arc::clone(&slot.bytes)
        });
        drop(shard);
        let copied = found.as_ref().and_then(|bytes| bytes.get(skip..skip + out.len())).map(|part| {
            out.copy_from_slice(part);
        });
        let counter = if copied.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        copied.is_some()
    }

    fn has_whole_frames(&self) -> bool {
        self.has_whole_frames.load(Ordering::Relaxed)
    }

    fn insert(&self, id: FrameId, bytes: Vec<u8>) {
        if bytes.len() > self.shard_bytes_max {
            return;
        }
        let evicted = self.shard(id).lock().insert(id, bytes, self.shard_bytes_max);
        // Memory is given back outside the lock.
        drop(evicted);
    }
}

impl Shard {
    fn insert(&mut self, id: FrameId, bytes: Vec<u8>, bytes_max: usize) -> Vec<Slot> {
        if self.slots.contains_key(&id) {
            return Vec::new();
        }
        let is_main = self.is_ghost.remove(&id);
        if is_main {
            self.main.push_back(id);
            self.main_bytes += bytes.len();
        } else {
            self.fresh.push_back(id);
            self.fresh_bytes += bytes.len();
        }
        self.slots.insert(id, Slot { bytes: Arc::new(bytes), is_main, used: false });
        let mut evicted = Vec::new();
        while self.fresh_bytes + self.main_bytes > bytes_max {
            // The FIFO yields first while it has more than its share, or when there is nothing else.
            let gone = if self.fresh_bytes > bytes_max / FRESH_SHARE || self.main.is_empty() {
                self.evict_fresh(bytes_max)
            } else {
                self.evict_main()
            };
            evicted.extend(gone);
        }
        evicted
    }

    fn evict_fresh(&mut self, bytes_max: usize) -> Option<Slot> {
        let id = self.fresh.pop_front()?;
        let slot = self.slots.remove(&id)?;
        self.fresh_bytes -= slot.bytes.len();
        // As many ids are remembered as frames fit into the whole shard.
        let ghosts_max = (bytes_max / FRAME_BYTES as usize).max(16);
        if self.is_ghost.insert(id) {
            self.ghosts.push_back(id);
        }
        while self.ghosts.len() > ghosts_max {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.is_ghost.remove(&oldest);
            }
        }
        Some(slot)
    }

    fn evict_main(&mut self) -> Option<Slot> {
        loop {
            let id = self.main.pop_front()?;
            let slot = self.slots.get_mut(&id)?;
            if std::mem::take(&mut slot.used) {
                self.main.push_back(id);
                continue;
            }
            self.main_bytes -= slot.bytes.len();
            debug_assert!(slot.is_main);
            return self.slots.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(object: u64, frame: u32) -> FrameId {
        FrameId { object, offset: 80, frame }
    }

    fn touch(cache: &FrameCache, id: FrameId) -> bool {
        let mut out = [0; 4];
        if cache.copy(id, 8, &mut out) {
            assert_eq!(out, [id.object as u8; 4]);
            return true;
        }
        cache.insert(id, vec![id.object as u8; 4096]);
        false
    }

    #[test]
    fn bounded_and_correct_under_contention() {
        let cache = FrameCache::new(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..20_000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        touch(cache, id(1 + (random >> 33) % 50, (random >> 50) as u32 % 20));
                        assert!(cache.shard_bytes_max * SHARDS <= 1 << 20);
                    }
                });
            }
        });
        assert!(cache.bytes() <= 1 << 20 && cache.bytes() > 1 << 19, "{}", cache.bytes());
        for shard in &cache.shards {
            let shard = shard.lock();
            assert_eq!(shard.slots.len(), shard.fresh.len() + shard.main.len());
            assert!(shard.ghosts.len() <= 16 + 1);
        }
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used_again_and_again() {
        let cache = FrameCache::new(SHARDS * 64 * 4096);
        let hot: Vec<FrameId> = (0..200).map(|frame| id(1, frame)).collect();
        let mut object = 2;
        // Mixed with other reads, hot frames fall out of the FIFO, come back and settle.
        for _ in 0..30 {
            for id in &hot {
                touch(&cache, *id);
            }
            for frame in 0..300 {
                touch(&cache, id(object, frame));
            }
            object += 1;
        }
        for frame in 0..20_000 {
            touch(&cache, id(object, frame));
        }
        let kept = hot.iter().filter(|id| touch(&cache, **id)).count();
        assert!(kept > 150, "{kept} of 200 kept");
    }

    #[test]
    fn zero_bytes_cache_nothing() {
        let cache = FrameCache::new(0);
        assert!(!touch(&cache, id(1, 1)) && !touch(&cache, id(1, 1)));
        assert_eq!(cache.bytes(), 0);
    }
}
