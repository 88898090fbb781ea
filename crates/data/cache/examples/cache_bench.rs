//! What a hit costs and how many requests an epoch needs. `cache_bench DIR [--json]`; DIR is on the
//! disk to measure, a few hundred MiB are written below it and removed again.
//!
//! CPU time is that of the reading thread, from the kernel's page cache, against `pread` of the
//! same ranges of plain files in the same run.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_blockstore::store::{MemoryStore, Page, Usage};
use kestrel_blockstore::{BlockStore, Result};
use kestrel_cache::{CacheOptions, CachedStore};

const OBJECTS: u64 = 16;
const OBJECT_BYTES: u64 = 16 * 1024 * 1024;

/// A file of 100 KiB as it is stored: two frames, each with its check, and the member's header
/// before them.
const FILE_BYTES: u64 = 102_400 + 8;
const FILE_STRIDE: u64 = FILE_BYTES + 32;

struct Remote {
    inner: MemoryStore,
    latency: Duration,
    gets: AtomicU64,
    got: AtomicU64,
}

impl BlockStore for Remote {
    fn put(&self, object: u64, parts: &[IoSlice<'_>]) -> Result<()> {
        self.inner.put(object, parts)
    }

    fn read(&self, object: u64, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.got.fetch_add(parts.iter().map(|part| part.len() as u64).sum(), Ordering::Relaxed);
        std::thread::sleep(self.latency);
        self.inner.read(object, offset, parts)
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

/// CPU time of this thread.
fn cpu() -> Duration {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `now` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn shuffled<T>(mut items: Vec<T>) -> Vec<T> {
    let mut state = 7_u64;
    for i in (1..items.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(i, (state >> 33) as usize % (i + 1));
    }
    items
}

/// Ranges of a kind of read: object, offset, bytes.
fn ranges(stride: u64, len: u64) -> Vec<(u64, u64, u64)> {
    let of_object = |object| {
        (0..(OBJECT_BYTES - 48 - len) / stride).map(move |i| (object, 48 + i * stride, len))
    };
    shuffled((1..=OBJECTS).flat_map(of_object).collect())
}

/// µs of CPU for each 64 KiB requested; the best of three rounds after one to warm up.
fn measure(ranges: &[(u64, u64, u64)], mut read: impl FnMut(u64, u64, &mut [u8])) -> f64 {
    let mut out = vec![0; 4 * 1024 * 1024];
    let bytes: u64 = ranges.iter().map(|(_, _, len)| len).sum();
    let round = |_| {
        let begun = cpu();
        for (object, offset, len) in ranges {
            read(*object, *offset, &mut out[..*len as usize]);
        }
        (cpu() - begun).as_secs_f64() * 1e6 / (bytes as f64 / 65_536.0)
    };
    (0..4).map(round).skip(1).fold(f64::INFINITY, f64::min)
}

fn hits(dir: &Path) -> Vec<(&'static str, f64, f64)> {
    let store = Arc::new(Remote {
        inner: MemoryStore::put_only(),
        latency: Duration::ZERO,
        gets: AtomicU64::new(0),
        got: AtomicU64::new(0),
    });
    let whole: Vec<u8> = (0..OBJECT_BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    let plain = dir.join("plain");
    std::fs::create_dir_all(&plain).unwrap();
    for object in 1..=OBJECTS {
        store.put(object, &[IoSlice::new(&whole)]).unwrap();
        std::fs::write(plain.join(object.to_string()), &whole).unwrap();
    }
    let files: Vec<File> =
        (1..=OBJECTS).map(|i| File::open(plain.join(i.to_string())).unwrap()).collect();
    let options =
        CacheOptions { free_space_ratio: 0.0, ..CacheOptions::new(vec![dir.join("hits")]) };
    let cache = CachedStore::open(Arc::clone(&store) as _, [1; 16], options).unwrap();
    (1..=OBJECTS).for_each(|object| cache.near().unwrap().fill(object, 0, OBJECT_BYTES).unwrap());
    let kinds = [
        ("a frame of 64 KiB", 65_540, 65_540),
        ("a file of 100 KiB", FILE_STRIDE, FILE_BYTES),
        ("1 MiB", 1 << 20, 1 << 20),
        ("4 MiB", 4 << 20, 4 << 20),
    ];
    let filled = store.gets.load(Ordering::Relaxed);
    let measured = kinds.map(|(name, stride, len)| {
        let ranges = ranges(stride, len);
        let plain = measure(&ranges, |object, offset, out| {
            files[object as usize - 1].read_exact_at(out, offset).unwrap();
        });
        let cached = measure(&ranges, |object, offset, out| {
            cache.read(object, offset, &mut [IoSliceMut::new(out)]).unwrap();
        });
        (name, plain, cached)
    });
    assert_eq!(store.gets.load(Ordering::Relaxed), filled, "a read missed");
    measured.to_vec()
}

/// Requests for each file, MiB fetched for each MiB requested, and files/s, of two epochs with 64
/// threads.
fn epochs(dir: &Path, latency: Duration) -> Vec<(f64, f64, f64)> {
    let store = Arc::new(Remote {
        inner: MemoryStore::put_only(),
        latency,
        gets: AtomicU64::new(0),
        got: AtomicU64::new(0),
    });
    let whole = vec![5; OBJECT_BYTES as usize];
    (1..=OBJECTS).for_each(|object| store.put(object, &[IoSlice::new(&whole)]).unwrap());
    let options =
        CacheOptions { free_space_ratio: 0.0, ..CacheOptions::new(vec![dir.join("epochs")]) };
    let cache = CachedStore::open(Arc::clone(&store) as _, [1; 16], options).unwrap();
    let files = ranges(FILE_STRIDE, FILE_BYTES);
    let epoch = |_| {
        store.gets.store(0, Ordering::Relaxed);
        store.got.store(0, Ordering::Relaxed);
        let next = AtomicU64::new(0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    let mut out = vec![0; FILE_BYTES as usize];
                    while let Some((object, offset, _)) =
                        files.get(next.fetch_add(1, Ordering::Relaxed) as usize)
                    {
                        cache.read(*object, *offset, &mut [IoSliceMut::new(&mut out)]).unwrap();
                    }
                });
            }
        });
        let count = files.len() as f64;
        let rate = count / begun.elapsed().as_secs_f64();
        cache.flush(Duration::from_secs(60));
        let got = store.got.load(Ordering::Relaxed) as f64 / (count * FILE_BYTES as f64);
        (store.gets.load(Ordering::Relaxed) as f64 / count, got, rate)
    };
    (0..2).map(epoch).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = arguments.first().filter(|argument| !argument.starts_with('-')) else {
        eprintln!("usage: cache_bench DIR [--json]");
        std::process::exit(2);
    };
    let dir = Path::new(dir).join(format!("cache-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let is_json = arguments.iter().any(|argument| argument == "--json");
    for (name, plain, cached) in hits(&dir) {
        if is_json {
            println!("{{\"hit\":\"{name}\",\"pread_us\":{plain:.2},\"cached_us\":{cached:.2}}}");
        } else {
            println!(
                "hit, {name:18} pread {plain:6.2} µs, cached {cached:6.2} µs of CPU per 64 KiB, \
                 {:.2} times",
                cached / plain
            );
        }
    }
    for latency in [0, 5, 20, 50] {
        let _ = std::fs::remove_dir_all(dir.join("epochs"));
        for (epoch, (gets, got, rate)) in
            epochs(&dir, Duration::from_millis(latency)).into_iter().enumerate()
        {
            if is_json {
                println!(
                    "{{\"latency_ms\":{latency},\"epoch\":{epoch},\"gets_per_file\":{gets:.4},\
                     \"fetched\":{got:.3},\"files_per_s\":{rate:.0}}}"
                );
            } else {
                println!(
                    "epoch {epoch} at {latency:2} ms: {gets:.3} requests a file, {got:.2} bytes \
                     fetched for each asked for, {rate:.0} files/s"
                );
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
