//! Random reads, puts, evictions, restarts and damage of cache files, in one process and in
//! several, over stores that fail: never a wrong byte.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::OpenOptions;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use kestrel_blockstore::store::failing::{Fault, Rule, StoreCall};
use kestrel_blockstore::store::{FailingStore, MemoryStore};
use kestrel_blockstore::{BlockStore, Error};
use kestrel_cache::{CacheOptions, CachedStore};

/// Sizes around pages and spans.
const SIZES: [usize; 8] = [1, 700, 32_768, 32_769, 65_536, 200_001, 1_048_576, 3_000_000];

fn fill(store: &dyn BlockStore, objects: u64) -> Vec<Vec<u8>> {
    let whole = |object: u64| content(object, SIZES[object as usize % SIZES.len()]);
    (1..=objects)
        .map(|object| {
            put(store, object, SIZES[object as usize % SIZES.len()]);
            whole(object)
        })
        .collect()
}

/// Damages a cache file in some way.
fn damage(dir: &Path, random: &mut Random) {
    let files = cache_files(dir);
    if files.is_empty() {
        return;
    }
    let pick = |random: &mut Random| &files[random.below(files.len() as u64) as usize];
    let path = pick(random);
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return };
    let len = file.metadata().unwrap().len().max(1);
    match random.below(6) {
        0 | 1 => {
            let at = random.below(len);
            let mut byte = [0];
            if file.read_at(&mut byte, at).unwrap() == 1 {
                file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
            }
        }
        2 => file.set_len(random.below(len)).unwrap(),
        3 => {
            // Another object's bytes under this name.
            let other = std::fs::read(pick(random)).unwrap_or_default();
            file.write_all_at(&other, 0).unwrap();
        }
        4 => {
            // A slot of another place.
            let mut slot = vec![0; kestrel_cache::page::SLOT_BYTES as usize];
            if file.read_exact_at(&mut slot, 0).is_ok() {
                file.write_all_at(&slot, kestrel_cache::page::SLOT_BYTES * random.below(5))
                    .unwrap();
            }
        }
        _ => drop(std::fs::remove_file(path)),
    }
}

fn open(store: &Arc<dyn BlockStore>, options: &CacheOptions) -> CachedStore {
    CachedStore::open(Arc::clone(store), VOLUME, options.clone()).unwrap()
}

/// One step of a reader; true if it read something.
fn step(cache: &CachedStore, wholes: &[Vec<u8>], random: &mut Random) -> bool {
    let object = 1 + random.below(wholes.len() as u64);
    let whole = &wholes[object as usize - 1];
    let offset = random.below(whole.len() as u64) as usize;
    let len = 1 + random.below((whole.len() - offset).min(300_000) as u64) as usize;
    let mut out = vec![0xee; len];
    match random.below(12) {
        0 => {
            let local_cache = cache.near().unwrap();
            local_cache.evict(object);
            false
        }
        1 => {
            let local_cache = cache.near().unwrap();
            if local_cache.fill(object, offset as u64, len as u64).is_ok() {
                assert!(local_cache.holds(object, offset as u64, len as u64) <= len as u64);
            }
            false
        }
        2 => {
            let cut = len / 3;
            let (head, tail) = out.split_at_mut(cut);
            let mut parts =
                [IoSliceMut::new(head), IoSliceMut::new(&mut []), IoSliceMut::new(tail)];
            let read = cache.try_read_nowait(object, offset as u64, &mut parts).unwrap_or(None);
            let is_right = out == whole[offset..offset + len];
            // A reader that does not wait verifies what it reads, and reads what is wrong in the
            // other way.
            read.is_some() && (is_right || read_waiting(cache, object, offset, &mut out, whole))
        }
        3 => {
            let mut out = vec![0xee; len + 100_000];
            let Ok(read) = cache.read_up_to(object, offset as u64, &mut out) else { return false };
            assert_eq!(read, out.len().min(whole.len() - offset), "{len} at {offset} of {object}");
            assert!(
                out[..read] == whole[offset..offset + read],
                "up to the end: wrong bytes of {object}"
            );
            true
        }
        4 => {
            if cache.read_fresh(object, offset as u64, &mut [IoSliceMut::new(&mut out)]).is_err() {
                return false;
            }
            assert!(out == whole[offset..offset + len], "fresh: wrong bytes of {object}");
            true
        }
        _ => read_waiting(cache, object, offset, &mut out, whole),
    }
}

/// Fills `out`, which must be right then; false if the store failed.
fn read_waiting(
    cache: &CachedStore,
    object: u64,
    offset: usize,
    out: &mut [u8],
    whole: &[u8],
) -> bool {
    let len = out.len();
    let (head, tail) = out.split_at_mut(len / 2);
    let mut parts = [IoSliceMut::new(head), IoSliceMut::new(tail)];
    match cache.read(object, offset as u64, &mut parts) {
        Ok(()) => assert!(
            out == &whole[offset..offset + len],
            "wrong bytes: {len} at {offset} of {object}"
        ),
        Err(Error::Io { .. }) => return false,
        Err(error) => panic!("{len} at {offset} of {object}: {error}"),
    }
    true
}

/// Damage to the cache files never makes a read return a wrong byte.
#[test]
fn no_wrong_byte_with_damaged_cache_files() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::put_only());
        let options = CacheOptions { bytes: 6_000_000, ..options(dir.path()) };
        let mut cache = open(&store, &options);
        let wholes = fill(&cache, 24);
        let mut reads = 0;
        for i in 0..600 {
            if i % 3 == 0 {
                damage(dir.path(), &mut random);
            }
            if i % 97 == 0 {
                drop(cache);
                cache = open(&store, &options);
            }
            if i % 11 == 0 {
                flush(&cache);
            }
            reads += u64::from(step(&cache, &wholes, &mut random));
        }
        let found = stats(&cache);
        assert!(reads > 300 && found["cache_disk_bypassed"] == 0, "{reads} {found:?}");
    }
}

/// Several caches on one directory, with threads and a failing store, return only right bytes.
#[test]
fn caches_sharing_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let memory: Arc<dyn BlockStore> = Arc::new(MemoryStore::put_only());
    let wholes = fill(memory.as_ref(), 24);
    let failing = Arc::new(FailingStore::new(Arc::clone(&memory), 5));
    failing.add(Rule { per_mille: 50, ..Rule::always(StoreCall::Read, Fault::Errno(libc::EIO)) });
    failing.add(Rule {
        per_mille: 50,
        ..Rule::always(StoreCall::Read, Fault::Slow(Duration::from_millis(2)))
    });
    let store: Arc<dyn BlockStore> = failing;
    let options = CacheOptions { bytes: 5_000_000, ..options(dir.path()) };
    let caches = [open(&store, &options), open(&store, &options)];
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (cache, wholes) = (&caches[thread % 2], &wholes);
            scope.spawn(move || {
                let mut random = Random(thread as u64 + 77);
                (0..250).for_each(|_| _ = step(cache, wholes, &mut random));
            });
        }
        scope.spawn(|| {
            let mut random = Random(1);
            for _ in 0..60 {
                damage(dir.path(), &mut random);
                std::thread::sleep(Duration::from_millis(3));
            }
        });
    });
    caches.iter().for_each(flush);
}

/// A transfer that brought wrong bytes is found by the reader's own check; the fresh read must win
/// over what is on its way to the cache disk and what is there already.
#[test]
fn wrong_bytes_from_the_store_do_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    let memory: Arc<dyn BlockStore> = Arc::new(MemoryStore::put_only());
    let len = 500_000;
    put(memory.as_ref(), 1, len);
    let whole = content(1, len);
    let failing = Arc::new(FailingStore::new(memory, 5));
    let store: Arc<dyn BlockStore> = Arc::clone(&failing) as _;
    let cache = open(&store, &options(dir.path()));
    for wait in [false, true] {
        failing.add(Rule::once(StoreCall::Read, 0, Fault::WrongByte));
        let mut out = vec![0; len];
        cache.read(1, 0, &mut [IoSliceMut::new(&mut out)]).unwrap();
        assert!(out != whole, "the fault was not injected");
        if wait {
            flush(&cache);
        }
        let mut fresh = vec![0; len];
        cache.read_fresh(1, 0, &mut [IoSliceMut::new(&mut fresh)]).unwrap();
        assert!(fresh == whole);
        check(&cache, 1, &whole, 0, len);
        flush(&cache);
        check(&cache, 1, &whole, 0, len);
        // Also for the next process.
        check(&open(&store, &options(dir.path())), 1, &whole, 0, len);
        cache.near().unwrap().evict(1);
    }
}

/// An object that is shorter than its metadata has is an error from the store, not from the cache's
/// memory of it.
#[test]
fn an_object_cut_short_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(MemoryStore::put_only());
    put(memory.as_ref(), 1, 100_000);
    let whole = content(1, 100_000);
    memory.tamper(1, |bytes| bytes.truncate(50_000));
    let store: Arc<dyn BlockStore> = Arc::clone(&memory) as _;
    let cache = open(&store, &options(dir.path()));
    for _ in 0..2 {
        let mut out = vec![0; 60_000];
        let read = cache.read(1, 0, &mut [IoSliceMut::new(&mut out)]);
        assert!(matches!(read, Err(Error::Corrupt { object: 1, .. })), "{read:?}");
        check(&cache, 1, &whole, 0, 50_000);
        flush(&cache);
    }
    memory.tamper(1, |bytes| *bytes = content(1, 100_000));
    check(&cache, 1, &whole, 0, 100_000);
    let mut out = [0; 10];
    assert!(matches!(
        cache.read(2, 0, &mut [IoSliceMut::new(&mut out)]),
        Err(Error::NotFound { object: 2 })
    ));
    assert!(cache.read(1, 1 << 40, &mut [IoSliceMut::new(&mut out)]).is_err());
}
