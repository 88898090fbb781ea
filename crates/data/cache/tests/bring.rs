//! Bytes that a thread of the cache brings from its disk for a reader that does not wait: its
//! callback runs once, in time, even if the disk hangs or fails.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use common::*;
use kestrel_blockstore::BlockStore;
use kestrel_blockstore::store::LocalCache;
use kestrel_cache::{CacheOptions, CachedStore, DiskFaults, DiskOp};
use parking_lot::{Condvar, Mutex};

const LEN: usize = 150_000;

fn near(cache: &CachedStore) -> &dyn LocalCache {
    cache.near().unwrap()
}

/// Requests bytes; none if the cache does not take the request.
fn bring(cache: &CachedStore, object: u64, offset: u64, len: u64) -> Option<Receiver<bool>> {
    let (sender, called) = mpsc::channel();
    near(cache)
        .bring(object, offset, len, Box::new(move |is_here| sender.send(is_here).unwrap()))
        .ok()?;
    Some(called)
}

fn now(cache: &CachedStore, object: u64, offset: usize, len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0xee; len];
    let (head, tail) = out.split_at_mut(len / 3);
    let mut parts = [IoSliceMut::new(head), IoSliceMut::new(tail)];
    cache.try_read_nowait(object, offset as u64, &mut parts).unwrap().map(|()| out)
}

/// Reads of the disk block while it is wedged.
#[derive(Default)]
struct Wedge {
    is_wedged: Mutex<bool>,
    changed: Condvar,
}

impl Wedge {
    fn set(&self, is_wedged: bool) {
        *self.is_wedged.lock() = is_wedged;
        self.changed.notify_all();
    }
}

impl DiskFaults for Wedge {
    fn before(&self, op: DiskOp, _: &Path) -> io::Result<()> {
        let mut is_wedged = self.is_wedged.lock();
        while *is_wedged && op == DiskOp::Read {
            self.changed.wait(&mut is_wedged);
        }
        Ok(())
    }
}

/// Bytes that the disk has are brought into memory, and then read without waiting.
#[test]
fn prefetch_from_disk_to_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    put(store.as_ref(), 1, LEN);
    let whole = content(1, LEN);
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options(dir.path())).unwrap();
    assert!(bring(&cache, 1, 0, LEN as u64).is_none(), "it is not in the cache yet");
    check(&cache, 1, &whole, 0, LEN);
    flush(&cache);
    let gets = store.gets();
    // Windows that begin and end at, before and behind the ends of pages, in the memory of the
    // kernel or not.
    for (offset, len) in
        [(0, LEN), (1, 1), (32_767, 2), (32_768, 32_768), (40_000, 100_000), (149_999, 1)]
    {
        for file in cache_files(dir.path()) {
            let file = std::fs::File::open(file).unwrap();
            file.sync_all().unwrap();
            // SAFETY: a hint about a descriptor that is open.
            let hinted =
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            assert_eq!(hinted, 0);
        }
        // The kernel may give up again what was brought, but not every time.
        eventually("what was brought is read", || {
            let called = bring(&cache, 1, offset as u64, len as u64)
                .expect("the cache knows that it has it");
            assert!(called.recv_timeout(LONG).unwrap());
            now(&cache, 1, offset, len).is_some_and(|out| out == whole[offset..offset + len])
        });
    }
    assert_eq!(store.gets(), gets);
    for (offset, len) in [(0, 0), (u64::MAX, 1), (1 << 40, 5)] {
        assert!(bring(&cache, 1, offset, len).is_none());
    }
}

/// Bytes from a cache file of another object are not believed, on each way to read them.
#[test]
fn cache_file_of_another_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    (1..=2).for_each(|object| put(store.as_ref(), object, LEN));
    let open = || CachedStore::open(Arc::clone(&store) as _, VOLUME, options(dir.path())).unwrap();
    let cache = open();
    (1..=2).for_each(|object| check(&cache, object, &content(object, LEN), 0, LEN));
    flush(&cache);
    drop(cache);
    let files = cache_files(dir.path());
    let other = std::fs::read(&files[1]).unwrap();
    std::fs::File::options().write(true).open(&files[0]).unwrap().write_all_at(&other, 0).unwrap();
    let cache = open();
    for object in 1..=2 {
        let found = now(&cache, object, 70_000, 1000);
        assert!(
            found.is_none_or(|found| found == content(object, LEN)[70_000..71_000]),
            "{object}"
        );
        check(&cache, object, &content(object, LEN), 0, LEN);
    }
}

/// A cache directory with a file of another volume's object 1 where this volume's is to be, and the
/// bytes that this volume's has.
fn foreign_file(dir: &Path, is_first_page_absent: bool) -> (CachedStore, Vec<u8>) {
    let (store, other) = (Counting::new(Duration::ZERO), Counting::new(Duration::ZERO));
    put(store.as_ref(), 1, LEN);
    let bytes = content(1001, LEN);
    other.put(1, &[io::IoSlice::new(&bytes)]).unwrap();
    let cache = CachedStore::open(store as _, VOLUME, options(dir)).unwrap();
    let from = if is_first_page_absent { 65_536 } else { 0 };
    check(&cache, 1, &content(1, LEN), from, LEN - from);
    flush(&cache);
    drop(cache);
    std::fs::rename(dir.join("09".repeat(16)), dir.join("0a".repeat(16))).unwrap();
    (CachedStore::open(other as _, [10; 16], options(dir)).unwrap(), bytes)
}

/// What can be read of object 1 without waiting is right.
fn check_now(cache: &CachedStore, bytes: &[u8], from: usize) {
    let found = now(cache, 1, from, 1000);
    assert!(found.is_none_or(|found| found == bytes[from..from + 1000]));
}

/// A page of this volume's in a cache file proves nothing about pages that were there before: those
/// of another volume's object go when the first of them is found.
#[test]
fn mended_page_of_a_foreign_file() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, bytes) = foreign_file(dir.path(), false);
    for _ in 0..2 {
        check(&cache, 1, &bytes, 0, 1000);
        flush(&cache);
    }
    check_now(&cache, &bytes, 70_000);
    check(&cache, 1, &bytes, 0, LEN);
}

/// The same if the page that is read first was absent: the file goes before that is written to it.
#[test]
fn absent_page_of_a_foreign_file() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, bytes) = foreign_file(dir.path(), true);
    check(&cache, 1, &bytes, 0, 1000);
    flush(&cache);
    for _ in 0..2 {
        check_now(&cache, &bytes, 0);
        check_now(&cache, &bytes, 70_000);
    }
    check(&cache, 1, &bytes, 0, LEN);
}

/// Each call to a wedged disk is completed in time, and all of them at the end.
#[test]
fn completions_with_a_wedged_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    put(store.as_ref(), 1, LEN);
    let wedge = Arc::<Wedge>::default();
    let options = CacheOptions {
        faults: Some(Arc::clone(&wedge) as _),
        disk_deadline: Duration::from_millis(100),
        ..options(dir.path())
    };
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options.clone()).unwrap();
    check(&cache, 1, &content(1, LEN), 0, LEN);
    flush(&cache);
    wedge.set(true);
    let all: Vec<_> = (0..40).filter_map(|page| bring(&cache, 1, page * 1000, 1000)).collect();
    assert!(!all.is_empty());
    for called in &all {
        assert!(!called.recv_timeout(LONG).unwrap());
    }
    // Now the disk counts as out of service: no call is to wait for it at all.
    eventually("the disk is out of service", || bring(&cache, 1, 0, 1000).is_none());
    check(&cache, 1, &content(1, LEN), 0, LEN);
    wedge.set(false);
    eventually("the disk is used again", || {
        check(&cache, 1, &content(1, LEN), 0, LEN);
        bring(&cache, 1, 0, 1000).is_some_and(|called| called.recv_timeout(LONG).unwrap())
    });
    // If a callback had run twice, its channel would have something left.
    assert!(all.iter().all(|called| called.try_recv().is_err()));
    // A cache that is given up runs the callbacks that are left.
    drop(cache);
    let long = CacheOptions { disk_deadline: LONG, ..options };
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, long).unwrap();
    check(&cache, 1, &content(1, LEN), 0, LEN);
    wedge.set(true);
    let last = bring(&cache, 1, 0, 1000).expect("the disk is in service");
    drop(cache);
    assert!(!last.recv_timeout(LONG).unwrap());
    wedge.set(false);
}
