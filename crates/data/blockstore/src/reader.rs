//! Verified reads of stored ranges.
//!
//! | file | |
//! | --- | --- |
//! | `cache` | verified frames in memory: bounded, sharded, resistant to scans |
//! | `flights` | frames on their way from the store, so that no second thread fetches them |
//! | `readahead` | when to read ahead, and how much: a state machine for each open file |
//!
//! A read goes to the store for exactly the frames its window covers and verifies them. Frames of
//! which only a part was wanted are kept in memory ([`cache`]), so that small reads do not verify
//! 64 KiB each.
//!
//! **Local stores** leave caching of whole frames and reading ahead to the kernel.
//!
//! **Stores across a network.** Every frame that had to be waited for is kept, unless the local
//! cache holds it as it is. Read-ahead brings frames into memory, as far as they do not push each
//! other out before they are read. What one thread is fetching no other fetches (`flights`).
//! Readers that can take frames as they are ([`Reader::find`], [`Reader::fetch`]) get them without
//! a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::range::Range;

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::frame::{self, FramePiece, Wait, WindowRead};
use crate::scan;
use crate::store::{BlockStore, Then};

pub mod cache;
mod flights;
pub mod readahead;

pub use cache::{FrameCache, Keeps};
use flights::Flights;
pub use readahead::{ReadAhead, ReadAheadConfig, Window};

/// Settings of a [`Reader`].
#[derive(Debug, Clone, Copy)]
pub struct ReaderConfig {
    /// Bound of the frame cache, bytes.
    pub cache_bytes: usize,
    /// Bound of read-ahead under way, all handles together, bytes. What lies in the cache unread is
    /// bounded besides, by a share of the cache.
    pub prefetch_bytes: u64,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self { cache_bytes: 64 * 1024 * 1024, prefetch_bytes: 128 * 1024 * 1024 }
    }
}

/// Counters, since the reader was made.
#[derive(Debug, Default)]
pub struct ReaderStats {
    /// Reads answered.
    pub reads: AtomicU64,
    /// Logical bytes they returned.
    pub bytes: AtomicU64,
    /// Of these, bytes that were in the frame cache.
    pub cached_bytes: AtomicU64,
    /// Reads that the frame cache answered alone.
    pub cached_reads: AtomicU64,
    /// Reads that would have had to wait.
    pub would_block: AtomicU64,
    /// Frames that did not match their checksum, or objects too short.
    pub corrupt: AtomicU64,
    /// Of those, how many were right when read again.
    pub healed: AtomicU64,
    /// Bytes of read-ahead that no reader has taken yet.
    pub prefetch_bytes: AtomicU64,
    /// Read-ahead refused because too much was under way or unread.
    pub prefetch_refused: AtomicU64,
}

/// Reads stored ranges.
pub struct Reader {
    store: Arc<dyn BlockStore>,
    cache: FrameCache,
    /// Used with stores across a network only.
    flights: Option<Flights>,
    prefetching: Budget,
    stats: ReaderStats,
}

impl Reader {
    /// A reader of `store`.
    pub fn new(store: Arc<dyn BlockStore>, config: ReaderConfig) -> Self {
        let is_remote = store.is_remote();
        let keeps = Keeps::beside(is_remote, store.near());
        Self {
            store,
            cache: FrameCache::new(config.cache_bytes, keeps),
            // Without a cache there is nothing that one reader could leave to another.
            flights: (is_remote && config.cache_bytes > 0).then(Flights::default),
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
    /// `Corrupt` names the object and the frame's place in it; a damaged frame is read again, past
    /// all caches, before that is believed (a transfer or a cached copy may be bad, not what is
    /// stored). On any error `out` holds no unverified byte.
    pub fn read(&self, range: Range, skip: u32, out: &mut [u8]) -> Result<()> {
        let mut done = self.read_alone(range, skip, out);
        if matches!(done, Err(Error::Corrupt { .. })) {
            self.stats.corrupt.fetch_add(1, Ordering::Relaxed);
            done = self.read_once(range, skip, out, Wait::Fresh);
            if done.is_ok() {
                self.stats.healed.fetch_add(1, Ordering::Relaxed);
            }
        }
        done.map(drop)
    }

    /// Whether frames can be had as they are in memory: [`Reader::find`], [`Reader::fetch`].
    pub fn shares(&self) -> bool {
        self.flights.is_some()
    }

    /// Bytes `skip .. skip + len` of the range, if all of them are in memory.
    pub fn find(&self, range: Range, skip: u32, len: u32) -> Option<Vec<FramePiece>> {
        if len == 0 || !self.shares() || frame::check_window(&range, skip, len as usize).is_err() {
            return None;
        }
        let found = frame::find_pieces(&self.cache, range, skip, len)?;
        self.count(u64::from(len), u64::from(len));
        Some(found)
    }

    /// Bytes `skip .. skip + len` of the range, brought into memory where they are not there. Waits
    /// for the store.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    pub fn fetch(&self, range: Range, skip: u32, len: u32) -> Result<Vec<FramePiece>> {
        frame::check_window(&range, skip, len as usize)?;
        if let Some(flights) = self.flights.as_ref().filter(|_| len > 0) {
            let flight = flights.begin(range, frame::frames_of(skip, len))?;
            let fetched = frame::fetch_pieces(self.store.as_ref(), &self.cache, range, skip, len);
            flight.finish(&fetched);
            match fetched {
                // For the reading of damaged data, which goes past all caches.
                Err(Error::Corrupt { .. }) => {}
                fetched => {
                    self.count(u64::from(len), 0);
                    return fetched;
                }
            }
        }
        let mut out = vec![0; len as usize];
        self.read(range, skip, &mut out)?;
        Ok(vec![FramePiece::new(Arc::new(out.into()), 0..len as usize)])
    }

    /// Reads frames that no other reader is fetching; if one is, waits and finds them in the cache.
    fn read_alone(&self, range: Range, skip: u32, out: &mut [u8]) -> Result<bool> {
        frame::check_window(&range, skip, out.len())?;
        let Some(flights) = self.flights.as_ref().filter(|_| !out.is_empty()) else {
            return self.read_once(range, skip, out, Wait::Yes);
        };
        let flight = flights.begin(range, frame::frames_of(skip, out.len() as u32))?;
        let done = self.read_once(range, skip, out, Wait::Yes);
        flight.finish(&done);
        done
    }

    /// Like [`Reader::read`] if that needs no waiting. False: it does, and `out` holds anything.
    /// Damage is left to [`Reader::read`], so it counts as having to wait too.
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

    /// Has bytes `skip .. skip + len` of the range brought into memory by the store's cache, for
    /// [`Reader::try_read`]; [`crate::store::LocalCache::bring`].
    ///
    /// # Errors
    /// Gives `then` back uncalled: there is no such cache, or it cannot tell that it holds them.
    pub fn bring(
        &self,
        range: Range,
        skip: u32,
        len: u32,
        then: Then,
    ) -> std::result::Result<(), Then> {
        let is_valid = len > 0 && frame::check_window(&range, skip, len as usize).is_ok();
        match self.store.near().filter(|_| is_valid) {
            Some(local_cache) => {
                let (at, stored) = frame::stored_window(&range, skip, len);
                local_cache.bring(range.object, at, stored, then)
            }
            None => Err(then),
        }
    }

    fn read_once(&self, range: Range, skip: u32, out: &mut [u8], wait: Wait) -> Result<bool> {
        let done =
            frame::read_window(self.store.as_ref(), Some(&self.cache), range, skip, out, wait)?;
        let WindowRead::Whole { cached } = done else { return Ok(false) };
        self.count(out.len() as u64, cached);
        Ok(true)
    }

    /// Counts an answered read, `cached` bytes of which were in memory.
    fn count(&self, len: u64, cached: u64) {
        let stats = &self.stats;
        stats.reads.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(len, Ordering::Relaxed);
        if cached > 0 {
            stats.cached_bytes.fetch_add(cached, Ordering::Relaxed);
            stats.cached_reads.fetch_add(u64::from(cached == len), Ordering::Relaxed);
        }
    }

    /// Reads the whole range from the store, past all caches but the kernel's, and verifies it.
    pub fn verify(&self, range: Range) -> Result<()> {
        scan::verify_range(self.store.as_ref(), range)?.map_or(Ok(()), Err)
    }

    /// Brings bytes `skip .. skip + len` of the range into the caches, for reads to come. May
    /// block: run it on a [`crate::pool::Pool`]. Does nothing if too much read-ahead is under way
    /// or unread; errors are left to the read itself.
    pub fn prefetch(&self, range: Range, skip: u32, len: u32) {
        let len = len.min(range.len.saturating_sub(skip));
        if len == 0 || frame::check_window(&range, skip, len as usize).is_err() {
            return;
        }
        let unread = self.cache.ahead_bytes() + self.prefetching.used();
        let grant = self.prefetching.try_acquire(u64::from(len));
        let would_push_out = unread > 0 && unread + u64::from(len) > self.cache.ahead_bytes_max();
        if grant.is_none() || (self.flights.is_some() && would_push_out) {
            self.stats.prefetch_refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.stats.prefetch_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
        let (at, stored) = frame::stored_window(&range, skip, len);
        if self.store.prefetch(range.object, at, stored) {
            return;
        }
        // The store has no cache of its own: read frames into ours.
        let frames = frame::frames_of(skip, len);
        let Some(flights) = &self.flights else { return };
        if let Ok(flight) = flights.begin(range, frames) {
            flight.finish(&frame::load_frames(self.store.as_ref(), &self.cache, range, frames));
        }
    }
}

#[cfg(test)]
mod tests;
