//! Verified reads of stored ranges.
//!
//! A read goes to the store for exactly the frames its window covers, verifies them and leaves caching of whole frames to
//! the kernel. What the process caches itself ([`cache`]) are frames of which only a part was wanted, so that small reads
//! do not verify 64 KiB each, and frames read ahead from stores that have no cache of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::range::Range;

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::frame::{self, Wait};
use crate::scan;
use crate::store::BlockStore;

pub mod cache;
pub mod readahead;

pub use cache::FrameCache;
pub use readahead::{ReadAhead, ReadAheadConfig, Window};

/// Bytes that [`Reader::prefetch`] reads at a time.
const PIECE_BYTES: u32 = 1024 * 1024;

/// Settings of a [`Reader`].
#[derive(Debug, Clone, Copy)]
pub struct ReaderConfig {
    /// Bound of the frame cache, bytes.
    pub cache_bytes: usize,
    /// Bound of read-ahead under way, all handles together, bytes.
    pub prefetch_bytes: u64,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self { cache_bytes: 64 * 1024 * 1024, prefetch_bytes: 32 * 1024 * 1024 }
    }
}

/// Counters, since the reader was made.
#[derive(Debug, Default)]
pub struct ReaderStats {
    /// Reads answered.
    pub reads: AtomicU64,
    /// Logical bytes they returned.
    pub bytes: AtomicU64,
    /// Reads that would have had to wait.
    pub would_block: AtomicU64,
    /// Frames that did not match their checksum, or objects too short.
    pub corrupt: AtomicU64,
    /// Of those, how many were right when read again.
    pub healed: AtomicU64,
    /// Read-ahead refused because too much was under way.
    pub prefetch_refused: AtomicU64,
}

/// Reads stored ranges.
pub struct Reader {
    store: Arc<dyn BlockStore>,
    cache: FrameCache,
    prefetching: Budget,
    stats: ReaderStats,
}

impl Reader {
    /// A reader of `store`.
    pub fn new(store: Arc<dyn BlockStore>, config: ReaderConfig) -> Self {
        Self {
            store,
            cache: FrameCache::new(config.cache_bytes),
            prefetching: Budget::new(config.prefetch_bytes),
            stats: ReaderStats::default(),
        }
    }

    /// Its counters.
    pub fn stats(&self) -> &ReaderStats {
        &self.stats
    }

    /// Its frame cache.
    pub fn cache(&self) -> &FrameCache {
        &self.cache
    }

    /// Fills `out` with bytes `skip..` of the range. Waits for the store.
    ///
    /// # Errors
    /// `Corrupt` names the object and the frame's place in it; a damaged frame is read again, past all caches, before that
    /// is believed (a transfer or a cached copy may be bad, not what is stored). On any error `out` holds no unverified byte.
    pub fn read(&self, range: Range, skip: u32, out: &mut [u8]) -> Result<()> {
        let mut done = self.read_once(range, skip, out, Wait::Yes);
        if matches!(done, Err(Error::Corrupt { .. })) {
            self.stats.corrupt.fetch_add(1, Ordering::Relaxed);
            done = self.read_once(range, skip, out, Wait::Fresh);
            if done.is_ok() {
                self.stats.healed.fetch_add(1, Ordering::Relaxed);
            }
        }
        done.map(drop)
    }

    /// Like [`Reader::read`] if that needs no waiting. False: it does, `out` is unspecified but for holding no unverified
    /// byte. Damage is for [`Reader::read`] to judge, so it counts as having to wait too.
    pub fn try_read(&self, range: Range, skip: u32, out: &mut [u8]) -> Result<bool> {
        match self.read_once(range, skip, out, Wait::No) {
            Ok(true) => Ok(true),
            Ok(false) | Err(Error::Corrupt { .. }) => {
                self.stats.would_block.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn read_once(&self, range: Range, skip: u32, out: &mut [u8], wait: Wait) -> Result<bool> {
        let done = frame::read_window(self.store.as_ref(), Some(&self.cache), range, skip, out, wait);
        if let Ok(true) = done {
            self.stats.reads.fetch_add(1, Ordering::Relaxed);
            self.stats.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        }
        done
    }

    /// Reads the whole range from the store, past all caches but the kernel's, and verifies it.
    pub fn verify(&self, range: Range) -> Result<()> {
        scan::verify_range(self.store.as_ref(), range)?.map_or(Ok(()), Err)
    }

    /// Brings bytes `skip .. skip + len` of the range near, for reads to come. May block: run it on a
    /// [`crate::pool::Pool`]. Does nothing if too much read-ahead is under way, and errors are left to the read itself.
    pub fn prefetch(&self, range: Range, skip: u32, len: u32) {
        let len = len.min(range.len.saturating_sub(skip));
        if len == 0 || frame::check_window(&range, skip, len as usize).is_err() {
            return;
        }
        let Some(_grant) = self.prefetching.try_acquire(u64::from(len)) else {
            self.stats.prefetch_refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (at, stored) = frame::stored_window(&range, skip, len);
        if self.store.prefetch(range.object, at, stored) {
            return;
        }
        // The store has no cache of its own: read frames into ours.
        self.cache.expect_whole_frames();
        let mut buffer = vec![0; len.min(PIECE_BYTES) as usize];
        for ahead in (skip..skip + len).step_by(PIECE_BYTES as usize) {
            let len = (skip + len - ahead).min(PIECE_BYTES) as usize;
            if frame::load_window(self.store.as_ref(), &self.cache, range, ahead, &mut buffer[..len]).is_err()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
