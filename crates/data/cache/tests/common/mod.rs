//! What the tests share.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::store::{MemoryStore, Page, Usage};
use kestrel_blockstore::{BlockStore, Result};
use kestrel_cache::{CacheOptions, CachedStore};

pub const VOLUME: [u8; 16] = [9; 16];
pub const LONG: Duration = Duration::from_secs(60);

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What an object holds: blocks of 512 bytes that follow from the object, each with its number in
/// front, so that bytes of another object or another block are noticed.
pub fn content(object: u64, len: usize) -> Vec<u8> {
    let mut random = Random(object << 32);
    let mut block = [0; 512];
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    let mut whole = Vec::with_capacity(len + 512);
    for block_number in 0..len.div_ceil(512) as u64 {
        block[..8].copy_from_slice(&Random((object << 32) | block_number).next().to_le_bytes());
        whole.extend_from_slice(&block);
    }
    whole.truncate(len);
    whole
}

/// Counts requests on their way to a store that takes its time.
pub struct Counting {
    pub inner: Arc<dyn BlockStore>,
    pub gets: AtomicU64,
    pub got: AtomicU64,
    pub latency: Duration,
}

impl Counting {
    pub fn new(latency: Duration) -> Arc<Self> {
        Self::over(Arc::new(MemoryStore::put_only()), latency)
    }

    pub fn over(inner: Arc<dyn BlockStore>, latency: Duration) -> Arc<Self> {
        Arc::new(Self { inner, gets: AtomicU64::new(0), got: AtomicU64::new(0), latency })
    }

    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::SeqCst)
    }

    fn count(&self, bytes: usize) {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.got.fetch_add(bytes as u64, Ordering::SeqCst);
        std::thread::sleep(self.latency);
    }
}

impl BlockStore for Counting {
    fn put(&self, object: u64, parts: &[IoSlice<'_>]) -> Result<()> {
        self.inner.put(object, parts)
    }

    fn read(&self, object: u64, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.count(parts.iter().map(|part| part.len()).sum());
        self.inner.read(object, offset, parts)
    }

    fn read_up_to(&self, object: u64, offset: u64, out: &mut [u8]) -> Result<usize> {
        let read = self.inner.read_up_to(object, offset, out)?;
        self.count(read);
        Ok(read)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn size(&self, object: u64) -> Result<u64> {
        self.inner.size(object)
    }

    fn delete(&self, object: u64) -> Result<bool> {
        self.inner.delete(object)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn sync_objects(&self, objects: &[u64]) -> Result<()> {
        self.inner.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        self.inner.list(after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }
}

pub fn put(store: &dyn BlockStore, object: u64, len: usize) {
    store.put(object, &[IoSlice::new(&content(object, len))]).unwrap();
}

/// Reads and compares with what must be there.
pub fn check(store: &dyn BlockStore, object: u64, whole: &[u8], offset: usize, len: usize) {
    let mut out = vec![0xee; len];
    store
        .read(object, offset as u64, &mut [IoSliceMut::new(&mut out)])
        .unwrap_or_else(|error| panic!("{len} bytes at {offset} of {object}: {error}"));
    assert!(out == whole[offset..offset + len], "wrong bytes: {len} at {offset} of {object}");
}

/// Options without other people's file systems having a say.
pub fn options(dir: &Path) -> CacheOptions {
    CacheOptions { free_space_ratio: 0.0, ..CacheOptions::new(vec![dir.to_path_buf()]) }
}

pub fn stats(store: &dyn BlockStore) -> BTreeMap<&'static str, u64> {
    let mut found = BTreeMap::new();
    store.stats(&mut |name, value| {
        found.insert(name, value);
    });
    found
}

pub fn flush(store: &CachedStore) {
    assert!(store.flush(LONG), "the cache disks did not take what was queued");
}

/// Waits for what a thread of the cache will do.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// All cache files below a cache directory.
pub fn cache_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|name| name.len() == 16) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
