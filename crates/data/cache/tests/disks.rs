//! Cache disks that fail, wedge, vanish or are shared: reads stay right and go on, and the disk is
//! used again when it works.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use kestrel_blockstore::BlockStore;
use kestrel_blockstore::store::FailingStore;
use kestrel_blockstore::store::failing::{Fault, Rule, StoreCall};
use kestrel_cache::{CacheOptions, CachedStore, DiskFaults, DiskOp};
use kestrel_types::clock::{Clock, ManualClock, SECOND};
use parking_lot::{Condvar, Mutex};

const LEN: usize = 150_000;

/// Fails or blocks some operations of some directory while the test wants it.
#[derive(Default)]
struct Faults {
    ops: Vec<DiskOp>,
    dir: Option<PathBuf>,
    errno: Option<i32>,
    is_on: Mutex<bool>,
    blocked: AtomicU64,
    changed: Condvar,
}

impl Faults {
    fn set(&self, is_on: bool) {
        *self.is_on.lock() = is_on;
        self.changed.notify_all();
    }
}

impl DiskFaults for Faults {
    fn before(&self, op: DiskOp, dir: &Path) -> io::Result<()> {
        let mut is_on = self.is_on.lock();
        if !*is_on || !self.ops.contains(&op) || self.dir.as_deref().is_some_and(|only| only != dir)
        {
            return Ok(());
        }
        match self.errno {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => {
                self.blocked.fetch_add(1, Ordering::SeqCst);
                while *is_on {
                    self.changed.wait(&mut is_on);
                }
                Ok(())
            }
        }
    }
}

const ALL: [DiskOp; 6] = [
    DiskOp::ReadCached,
    DiskOp::Read,
    DiskOp::Write,
    DiskOp::Evict,
    DiskOp::ProbeRead,
    DiskOp::ProbeWrite,
];

/// Objects 1 to `count` behind a cache.
fn behind(options: CacheOptions, count: u64) -> (Arc<Counting>, CachedStore) {
    let store = Counting::new(Duration::ZERO);
    (1..=count).for_each(|object| put(store.as_ref(), object, LEN));
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options).unwrap();
    (store, cache)
}

fn check_all(cache: &CachedStore, objects: std::ops::RangeInclusive<u64>) {
    objects.for_each(|object| check(cache, object, &content(object, LEN), 0, LEN));
}

/// Reads all objects without a request, sooner or later.
fn comes_back(store: &Counting, cache: &CachedStore, objects: std::ops::RangeInclusive<u64>) {
    eventually("the cache is used again", || {
        check_all(cache, objects.clone());
        let before = store.gets();
        check_all(cache, objects.clone());
        store.gets() == before
    });
}

#[test]
fn a_wedged_disk_does_not_wedge_reads() {
    let dir = tempfile::tempdir().unwrap();
    // What the page cache has is not given: every read of the disk wedges.
    let faults = Arc::new(Faults { ops: ALL[1..].to_vec(), ..Faults::default() });
    let not_cached = Arc::new(Faults {
        ops: vec![DiskOp::ReadCached],
        errno: Some(libc::EAGAIN),
        ..Faults::default()
    });
    not_cached.set(true);
    struct Both(Arc<Faults>, Arc<Faults>);
    impl DiskFaults for Both {
        fn before(&self, op: DiskOp, dir: &Path) -> io::Result<()> {
            self.0.before(op, dir)?;
            self.1.before(op, dir)
        }
    }
    let both = Arc::new(Both(Arc::clone(&faults), not_cached));
    let options = CacheOptions {
        faults: Some(both),
        disk_deadline: Duration::from_millis(200),
        fill_queue_bytes: 1_000_000,
        ..options(dir.path())
    };
    let (store, cache) = behind(options, 40);
    check_all(&cache, 1..=20);
    flush(&cache);
    faults.set(true);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check_all(&cache, 1..=40));
        }
    });
    put(&cache, 100, LEN);
    let local_cache = cache.near().unwrap();
    assert_eq!(local_cache.holds(1, 0, 10), 0);
    let found = stats(&cache);
    assert!(found["cache_disk_errors"] > 0 && found["cache_disk_bypassed"] > 0, "{found:?}");
    faults.set(false);
    comes_back(&store, &cache, 1..=40);
}

/// The cache neither serves nor keeps wrong bytes that came from the store and are on their way to
/// the disk, or half written, when a fresh read finds them out.
#[test]
fn wrong_bytes_on_their_way_to_the_disk() {
    let cases = [
        (DiskOp::Write, true),
        (DiskOp::Write, false),
        (DiskOp::Written, true),
        (DiskOp::Written, false),
    ];
    for (blocked, is_read_meanwhile) in cases {
        let dir = tempfile::tempdir().unwrap();
        let faults = Arc::new(Faults { ops: vec![blocked], ..Faults::default() });
        let options =
            CacheOptions { faults: Some(Arc::clone(&faults) as _), ..options(dir.path()) };
        let memory = Counting::new(Duration::ZERO);
        put(memory.as_ref(), 1, LEN);
        let whole = content(1, LEN);
        let store = Arc::new(FailingStore::new(memory, 5));
        let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options.clone()).unwrap();
        faults.set(true);
        store.add(Rule::once(StoreCall::Read, 0, Fault::WrongByte));
        let mut out = vec![0; LEN];
        cache.read(1, 0, &mut [io::IoSliceMut::new(&mut out)]).unwrap();
        assert!(out != whole, "the fault was not injected");
        eventually("it is being written", || faults.blocked.load(Ordering::SeqCst) > 0);
        let mut fresh = vec![0; LEN];
        cache.read_fresh(1, 0, &mut [io::IoSliceMut::new(&mut fresh)]).unwrap();
        assert!(fresh == whole);
        if is_read_meanwhile {
            check(&cache, 1, &whole, 0, LEN);
        }
        faults.set(false);
        flush(&cache);
        check(&cache, 1, &whole, 0, LEN);
        flush(&cache);
        let next = CachedStore::open(Arc::clone(&store) as _, VOLUME, options).unwrap();
        check(&next, 1, &whole, 0, LEN);
    }
}

/// Has the kernel forget what it holds of the cache's files, as far as it does that (not in memory
/// file systems).
fn drop_pages(dir: &Path) {
    for path in cache_files(dir) {
        let file = std::fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: takes no pointers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// Pages that the kernel has dropped are read from the disk and checked.
#[test]
fn checked_reads_from_the_disk_itself() {
    // Not below /tmp, which may be memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (store, cache) = behind(options(dir.path()), 3);
    check_all(&cache, 1..=3);
    flush(&cache);
    let (gets, hits) = (store.gets(), stats(&cache)["cache_disk_hits"]);
    drop_pages(dir.path());
    check_all(&cache, 1..=3);
    assert_eq!((store.gets(), stats(&cache)["cache_disk_hits"]), (gets, hits + 3));

    for path in cache_files(dir.path()) {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 1000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 1000).unwrap();
    }
    drop_pages(dir.path());
    check_all(&cache, 1..=3);
    assert_eq!((store.gets(), stats(&cache)["cache_disk_corrupt"]), (gets + 3, 3));
}

#[test]
fn a_failing_disk_is_bypassed_and_used_again() {
    for ops in [
        vec![DiskOp::ReadCached, DiskOp::Read, DiskOp::ProbeRead],
        vec![DiskOp::Write, DiskOp::ProbeWrite],
        ALL.to_vec(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let faults = Arc::new(Faults { ops, errno: Some(libc::EIO), ..Faults::default() });
        let options =
            CacheOptions { faults: Some(Arc::clone(&faults) as _), ..options(dir.path()) };
        let (store, cache) = behind(options, 30);
        check_all(&cache, 1..=10);
        flush(&cache);
        faults.set(true);
        for _ in 0..2 {
            check_all(&cache, 1..=30);
            put(&cache, 100 + store.gets(), LEN);
            flush(&cache);
        }
        assert!(stats(&cache)["cache_disk_errors"] >= 3);
        faults.set(false);
        comes_back(&store, &cache, 1..=30);
    }
}

/// One broken disk of several leaves the others working.
#[test]
fn one_broken_disk_of_several() {
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..3).map(|i| dir.path().join(format!("disk{i}"))).collect();
    let faults = Arc::new(Faults {
        ops: ALL.to_vec(),
        dir: Some(dirs[1].clone()),
        errno: Some(libc::EIO),
        ..Faults::default()
    });
    let options = CacheOptions {
        dirs: dirs.clone(),
        faults: Some(Arc::clone(&faults) as _),
        ..options(dir.path())
    };
    let (store, cache) = behind(options.clone(), 60);
    check_all(&cache, 1..=60);
    flush(&cache);
    let files: Vec<usize> = dirs.iter().map(|dir| cache_files(dir).len()).collect();
    assert!(files.iter().all(|files| *files >= 8), "{files:?}");
    // In another order they hold the same objects.
    let turned = CacheOptions { dirs: dirs.iter().rev().cloned().collect(), ..options };
    let other = CachedStore::open(Arc::clone(&store) as _, VOLUME, turned).unwrap();
    let before = store.gets();
    check_all(&other, 1..=60);
    assert_eq!(store.gets(), before);
    drop(other);
    faults.set(true);
    for _ in 0..2 {
        check_all(&cache, 1..=60);
        flush(&cache);
    }
    // The broken one's objects are in the others now.
    let before = store.gets();
    check_all(&cache, 1..=60);
    assert_eq!(store.gets(), before, "{:?}", stats(&cache));
    faults.set(false);
    comes_back(&store, &cache, 1..=60);
}

/// A cache directory that vanishes is not made again, and a new one in its place is used.
#[test]
fn vanished_cache_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let (store, cache) = behind(options(&path), 20);
    check_all(&cache, 1..=10);
    flush(&cache);
    // Again and again: a thread of the cache may make a file or a directory in between.
    eventually("the directory is removed", || {
        let removed = std::fs::remove_dir_all(&path);
        removed.is_ok() || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    });
    check_all(&cache, 1..=20);
    flush(&cache);
    check_all(&cache, 1..=20);
    flush(&cache);
    assert!(!path.exists());
    // A new disk is mounted there and another mount makes it a cache directory.
    let other = CachedStore::open(Arc::clone(&store) as _, [1; 16], options(&path)).unwrap();
    comes_back(&store, &cache, 1..=20);
    drop(other);
}

/// Eviction keeps the bound, and evicts pages of another process's files too.
#[test]
fn eviction_beside_another_process() {
    let dir = tempfile::tempdir().unwrap();
    const BOUND: u64 = 6_000_000;
    let options = CacheOptions { bytes: BOUND, ..options(dir.path()) };
    let (store, cache) = behind(options.clone(), 200);
    let other = CachedStore::open(Arc::clone(&store) as _, VOLUME, options).unwrap();
    for _ in 0..2 {
        check_all(&cache, 1..=200);
        check_all(&other, 100..=200);
        flush(&cache);
        flush(&other);
    }
    let used = || {
        use std::os::unix::fs::MetadataExt;
        let files = cache_files(dir.path());
        files.iter().flat_map(std::fs::metadata).map(|found| found.blocks() * 512).sum::<u64>()
    };
    eventually("the bound is kept", || {
        check_all(&cache, 1..=200);
        flush(&cache);
        // Each writes an eighth at most between two looks at what all have written.
        used() <= BOUND + BOUND / 3
            && stats(&cache)["cache_disk_evicted_bytes"] + stats(&other)["cache_disk_evicted_bytes"]
                > BOUND
    });
    check_all(&cache, 1..=200);
}

/// Files of an idle volume are evicted before those of a volume in use.
#[test]
fn eviction_of_idle_volumes_first() {
    let dir = tempfile::tempdir().unwrap();
    const BOUND: u64 = 4_000_000;
    let options = CacheOptions { bytes: BOUND, ..options(dir.path()) };
    let store = Counting::new(Duration::ZERO);
    (1..=60).for_each(|object| put(store.as_ref(), object, LEN));
    let open =
        |volume| CachedStore::open(Arc::clone(&store) as _, volume, options.clone()).unwrap();
    let (yesterday, today) = (open([1; 16]), open([2; 16]));
    check_all(&yesterday, 1..=20);
    flush(&yesterday);
    let count =
        |volume: u8| cache_files(&dir.path().join(format!("{volume:02x}").repeat(16))).len();
    assert_eq!((count(1), count(2)), (20, 0));
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in cache_files(dir.path()) {
        std::fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }
    for _ in 0..3 {
        check_all(&today, 21..=44);
        flush(&today);
    }
    eventually("yesterday's files go", || {
        check_all(&today, 21..=44);
        flush(&today);
        count(2) >= 23 && count(1) <= 3
    });
}

/// A cache directory that was copied from elsewhere serves nothing wrong.
#[test]
fn cache_directory_copied_from_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cache) = behind(options(dir.path()), 10);
    check_all(&cache, 1..=10);
    flush(&cache);
    drop(cache);
    // The files of this volume under the name of another volume, which has other bytes in its
    // objects.
    let (from, to) = (dir.path().join("09".repeat(16)), dir.path().join("0a".repeat(16)));
    std::fs::rename(from, to).unwrap();
    let other = Counting::new(Duration::ZERO);
    let bytes = |object| content(object + 1000, LEN);
    for object in 1..=10 {
        other.put(object, &[io::IoSlice::new(&bytes(object))]).unwrap();
    }
    let cache = CachedStore::open(Arc::clone(&other) as _, [10; 16], options(dir.path())).unwrap();
    for _ in 0..2 {
        (1..=10).for_each(|object| check(&cache, object, &bytes(object), 0, LEN));
        flush(&cache);
    }
    assert_eq!(other.gets(), 10);
    assert!(stats(&cache)["cache_disk_corrupt"] >= 10);
    drop(store);
}

#[test]
fn bad_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    let open = |options| {
        CachedStore::open(Arc::clone(&store) as _, VOLUME, options)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    assert!(open(CacheOptions::new(Vec::new())).contains("1 to 64"));
    assert!(
        open(CacheOptions { free_space_ratio: 1.5, ..options(dir.path()) }).contains("0 to 0.9")
    );
    assert!(
        open(CacheOptions { free_space_ratio: f64::NAN, ..options(dir.path()) })
            .contains("0 to 0.9")
    );
    let twice =
        CacheOptions { dirs: vec![dir.path().into(), dir.path().into()], ..options(dir.path()) };
    assert!(open(twice).contains("twice"));
    std::fs::write(dir.path().join("thesis.txt"), "x").unwrap();
    let message = open(options(&dir.path().join("thesis.txt")));
    assert!(message.contains("thesis.txt") && message.contains("name a directory"), "{message}");
    std::fs::create_dir(dir.path().join("used")).unwrap();
    std::fs::write(dir.path().join("used/thesis.txt"), "x").unwrap();
    assert!(open(options(&dir.path().join("used"))).contains("name an empty one"));
}

/// A file that was read again after its first minute says so by its mode and time.
#[test]
fn reuse_written_down_for_eviction() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    const START: i64 = 2_000_000_000;
    let clock = Arc::new(ManualClock::new(START * SECOND));
    let options = CacheOptions { clock: Arc::clone(&clock) as _, ..options(dir.path()) };
    let (_, cache) = behind(options, 2);
    check_all(&cache, 1..=2);
    flush(&cache);
    // Within the first minute it is one use, however often.
    check_all(&cache, 1..=2);
    let modes = || {
        let files = cache_files(dir.path()).into_iter();
        let found = files.map(|path| std::fs::metadata(path).unwrap());
        let mut found: Vec<(u32, i64)> =
            found.map(|found| (found.mode() & 0o777, found.mtime())).collect();
        found.sort_unstable();
        found
    };
    // On a busy machine a read may pass by a disk that is late, the reads above among them. Each
    // attempt is a minute later: use is noted once a minute, and a late disk is left alone a while.
    eventually("the reuse is written down", || {
        clock.advance(61 * SECOND);
        check_all(&cache, 1..=1);
        flush(&cache);
        modes().iter().any(|(mode, _)| *mode != 0o600)
    });
    let found = modes();
    assert_eq!(found.iter().map(|(mode, _)| *mode).collect::<Vec<_>>(), [0o600, 0o700]);
    assert_eq!(found[1].1 * SECOND, clock.now());
}

/// The cache removes its leftovers, and leaves files with foreign names alone.
#[test]
fn leftover_and_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let (store, cache) = behind(options(dir.path()), 1);
    drop(cache);
    let below = |name: &str| dir.path().join(name);
    let volume = "ab".repeat(16);
    for name in [
        format!("{volume}/00"),
        format!("{volume}/56"),
        "wb".to_string(),
        format!("{}/56", "cd".repeat(16)),
    ] {
        std::fs::create_dir_all(below(&name)).unwrap();
    }
    // Object 1 belongs where it is, nothing else does.
    let ours = format!("{volume}/56/0000000000000001");
    let others = [
        format!("{volume}/00/0000000000000001"),
        format!("{volume}/56/0000000000000001.tmp"),
        format!("{volume}/notes"),
        "wb/0000000000000002".to_string(),
    ];
    for name in others.iter().chain([&ours]) {
        std::fs::write(below(name), "").unwrap();
    }
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let empty = "cd".repeat(16);
    for name in [&ours, &format!("{empty}/56"), &empty] {
        std::fs::File::open(below(name)).unwrap().set_modified(long_ago).unwrap();
    }
    let cache = CachedStore::open(Arc::clone(&store) as _, VOLUME, options(dir.path())).unwrap();
    eventually("an empty file and an empty directory go", || {
        !below(&ours).exists() && !below(&format!("{empty}/56")).exists()
    });
    check_all(&cache, 1..=1);
    assert!(others.iter().all(|name| below(name).exists()));
}
