//! Verified frames in memory: bounded, sharded, resistant to scans.
//!
//! 2Q (Johnson, Shasha, 1994): a new frame enters a FIFO of a quarter of the space. Hits there do
//! not move it, because small sequential reads hit a frame many times within a moment. A frame that
//! is wanted again after it fell out of the FIFO (its id is remembered for a while) enters the main
//! part, which evicts by CLOCK. So a scan passes through the FIFO and leaves what is used again and
//! again alone. Frames read ahead pass through it too; the unread ones are counted, so that
//! read-ahead can stop before it pushes its own frames out.
//!
//! Memory of frames that were pushed out serves those that come, a sixteenth of the bound at most:
//! a scan through a full cache takes no new memory, which would have to be cleared and mapped for
//! every frame.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::range::FRAME_BYTES;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::buffer::{Buffer, Buffers};
use crate::frame::{Brought, FrameId, FrameStore};
use crate::store::LocalCache;

const SHARDS: usize = 16;

/// Share of the space that new frames pass through: one in this many bytes.
const FRESH_SHARE: usize = 4;

/// Share of the space that memory to be used again may take beside it: one in this many bytes.
const SPARE_SHARE: usize = 16;

struct Slot {
    bytes: Arc<Buffer>,
    is_main: bool,
    used: bool,
    /// Read ahead, and not read since.
    is_ahead: bool,
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

/// Which frames are worth their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Those of which only a part was wanted.
    Parts,
    /// And those that are read ahead. What was read as a whole lies in the local cache.
    Ahead,
    /// And every one that had to be waited for.
    Waited,
}

impl Keeps {
    /// What is worth keeping of a store, which may have a local cache.
    pub(super) fn beside(is_remote: bool, local_cache: Option<&dyn LocalCache>) -> Self {
        match local_cache {
            _ if !is_remote => Self::Parts,
            Some(local_cache) if local_cache.is_plain() => Self::Ahead,
            _ => Self::Waited,
        }
    }
}

/// A cache of verified frames.
pub struct FrameCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes_max: usize,
    keeps: Keeps,
    /// Bytes read ahead that no reader has read.
    ahead: AtomicU64,
    /// Bytes read ahead that were evicted before a reader read them.
    wasted: AtomicU64,
    /// Memory of frames pushed out.
    buffers: Arc<Buffers>,
}

impl FrameCache {
    /// A cache of at most `bytes_max` bytes of data; 0 caches nothing.
    pub fn new(bytes_max: usize, keeps: Keeps) -> Self {
        Self {
            shards: Default::default(),
            shard_bytes_max: bytes_max / SHARDS,
            keeps: if bytes_max > 0 { keeps } else { Keeps::Parts },
            ahead: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
            buffers: Buffers::new(bytes_max / SPARE_SHARE),
        }
    }

    /// Bytes of data held now.
    pub fn bytes(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock())
            .map(|shard| shard.fresh_bytes + shard.main_bytes)
            .sum()
    }

    /// Bytes read ahead that no reader has read yet.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Bytes read ahead that may be here without pushing each other out.
    pub fn ahead_bytes_max(&self) -> u64 {
        (self.shard_bytes_max * SHARDS / FRESH_SHARE) as u64
    }

    /// Bytes read ahead that were evicted before a reader read them, since the cache was made.
    pub fn wasted_bytes(&self) -> u64 {
        self.wasted.load(Ordering::Relaxed)
    }

    fn shard(&self, id: FrameId) -> &Mutex<Shard> {
        // Consecutive frames and objects spread over the shards (golden-ratio multiplication).
        let mixed = (id.object ^ u64::from(id.offset) << 20 ^ u64::from(id.frame) << 52)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize % SHARDS]
    }
}

impl FrameStore for FrameCache {
    fn find(&self, id: FrameId) -> Option<Arc<Buffer>> {
        let mut shard = self.shard(id).lock();
        let slot = shard.slots.get_mut(&id)?;
        slot.used = true;
        let was_ahead = std::mem::take(&mut slot.is_ahead);
        let bytes = Arc::clone(&slot.bytes);
        drop(shard);
        if was_ahead {
            self.ahead.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        }
        Some(bytes)
    }

    fn holds(&self, id: FrameId) -> bool {
        self.shard(id).lock().slots.contains_key(&id)
    }

    fn keeps(&self) -> Keeps {
        self.keeps
    }

    fn blank(&self, len: usize) -> Buffer {
        // A small frame in a piece of the next larger size would take more than it is counted as.
        if len < FRAME_BYTES as usize / 2 {
            Buffer::from(vec![0; len])
        } else {
            self.buffers.take(len)
        }
    }

    fn insert(&self, id: FrameId, bytes: Arc<Buffer>, what: Brought) {
        let len = bytes.len();
        if len > self.shard_bytes_max {
            return;
        }
        let is_ahead = what == Brought::Ahead;
        let slot = Slot { bytes, is_main: false, used: false, is_ahead };
        let Some(evicted) = self.shard(id).lock().insert(id, slot, self.shard_bytes_max) else {
            return;
        };
        if is_ahead {
            self.ahead.fetch_add(len as u64, Ordering::Relaxed);
        }
        let unread: usize =
            evicted.iter().filter(|slot| slot.is_ahead).map(|slot| slot.bytes.len()).sum();
        if unread > 0 {
            self.ahead.fetch_sub(unread as u64, Ordering::Relaxed);
            self.wasted.fetch_add(unread as u64, Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// Takes a frame in and returns what it pushed out; none if the frame was here already.
    fn insert(&mut self, id: FrameId, mut slot: Slot, bytes_max: usize) -> Option<Vec<Slot>> {
        if self.slots.contains_key(&id) {
            return None;
        }
        slot.is_main = self.is_ghost.remove(&id);
        if slot.is_main {
            self.main.push_back(id);
            self.main_bytes += slot.bytes.len();
        } else {
            self.fresh.push_back(id);
            self.fresh_bytes += slot.bytes.len();
        }
        self.slots.insert(id, slot);
        let mut evicted = Vec::new();
        while self.fresh_bytes + self.main_bytes > bytes_max {
            // The FIFO yields first while it has more than its share, or when there is nothing
            // else.
            let gone = if self.fresh_bytes > bytes_max / FRESH_SHARE || self.main.is_empty() {
                self.evict_fresh(bytes_max)
            } else {
                self.evict_main()
            };
            evicted.extend(gone);
        }
        Some(evicted)
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
        if let Some(found) = cache.find(id) {
            assert_eq!(found[8..12], [id.object as u8; 4]);
            return true;
        }
        cache.insert(id, Arc::new(Buffer::from(vec![id.object as u8; 4096])), Brought::Read);
        false
    }

    #[test]
    fn bounded_and_correct_under_contention() {
        let cache = FrameCache::new(1 << 20, Keeps::Waited);
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

    /// A scan does not evict what is used again and again.
    #[test]
    fn scan_resistance_of_the_cache() {
        let cache = FrameCache::new(SHARDS * 64 * 4096, Keeps::Waited);
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

    /// Frames that were read ahead are accounted for until they are read or evicted.
    #[test]
    fn accounting_of_read_ahead_frames() {
        let cache = FrameCache::new(SHARDS * 4 * 4096, Keeps::Waited);
        for frame in 0..8 {
            for _ in 0..2 {
                cache.insert(id(1, frame), Arc::new(Buffer::from(vec![1; 4096])), Brought::Ahead);
            }
        }
        assert_eq!(cache.ahead_bytes(), 8 * 4096);
        assert!(touch(&cache, id(1, 0)) && touch(&cache, id(1, 0)) && cache.holds(id(1, 7)));
        assert_eq!((cache.ahead_bytes(), cache.wasted_bytes()), (7 * 4096, 0));
        for frame in 0..10_000 {
            touch(&cache, id(2, frame));
        }
        assert_eq!((cache.ahead_bytes(), cache.wasted_bytes()), (0, 7 * 4096));
    }

    /// The memory of an evicted frame is used again, unless a reader still holds it.
    #[test]
    fn memory_reuse_after_eviction() {
        let full = FRAME_BYTES as usize;
        let cache = FrameCache::new(SHARDS * 2 * full, Keeps::Waited);
        let bring = |frame| {
            let mut memory = cache.blank(full);
            memory.fill(7);
            cache.insert(id(1, frame), Arc::new(memory), Brought::Read);
        };
        bring(0);
        let held = cache.find(id(1, 0)).unwrap();
        (1..1000).for_each(bring);
        assert!(!cache.holds(id(1, 0)) && held.len() == full);
        let again: Vec<_> = (0..4).map(|_| cache.blank(full)).collect();
        assert!(again.iter().any(|memory| memory[0] == 7), "what was pushed out");
        assert!(again.iter().all(|memory| memory.as_ptr() != held.as_ptr()));
        assert_eq!(cache.blank(100).len(), 100);
        assert_eq!(cache.blank(full - 1).len(), full - 1);
    }

    #[test]
    fn zero_bytes_cache_nothing() {
        let cache = FrameCache::new(0, Keeps::Waited);
        assert!(!touch(&cache, id(1, 1)) && !touch(&cache, id(1, 1)));
        assert_eq!(cache.bytes(), 0);
    }
}
