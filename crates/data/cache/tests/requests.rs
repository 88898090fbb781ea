//! How many requests reads cost.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use kestrel_blockstore::BlockStore;
use kestrel_cache::CachedStore;

const MIB: usize = 1024 * 1024;

fn open(store: &Arc<Counting>, dir: &std::path::Path) -> CachedStore {
    CachedStore::open(Arc::clone(store) as _, VOLUME, options(dir)).unwrap()
}

/// What was read or put before needs no request, also after a restart.
#[test]
fn hits_after_read_put_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    let wholes = [content(1, 300_000), content(2, 300_000)];
    put(store.as_ref(), 1, 300_000);
    let cache = open(&store, dir.path());
    put(&cache, 2, 300_000);
    assert!(cache.put(2, &[]).is_err(), "objects are written once");
    check(&cache, 1, &wholes[0], 0, 300_000);
    assert_eq!(store.gets(), 1);
    for _ in 0..2 {
        check(&cache, 1, &wholes[0], 1000, 200_000);
        check(&cache, 2, &wholes[1], 0, 300_000);
        flush(&cache);
    }
    drop(cache);
    let cache = open(&store, dir.path());
    check(&cache, 1, &wholes[0], 299_000, 1000);
    check(&cache, 2, &wholes[1], 5, 299_995);
    let mut out = vec![0; 400_000];
    assert_eq!(cache.read_up_to(2, 100_000, &mut out).unwrap(), 200_000);
    assert_eq!(store.gets(), 1);
    let found = stats(&cache);
    assert_eq!((found["cache_disk_hits"], found["cache_disk_misses"]), (3, 0), "{found:?}");
    // Without waiting, too: the kernel has it all.
    let mut out = vec![0; 1000];
    let mut parts = [IoSliceMut::new(&mut out)];
    assert!(cache.try_read_nowait(2, 70_000, &mut parts).unwrap().is_some());
    assert!(out == wholes[1][70_000..71_000]);
    assert!(cache.delete(2).unwrap());
    flush(&cache);
    assert_eq!(cache_files(dir.path()).len(), 1);
}

#[test]
fn shared_request_for_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::from_millis(100));
    put(store.as_ref(), 1, MIB);
    let whole = content(1, MIB);
    let cache = open(&store, dir.path());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| check(&cache, 1, &whole, 100_000, 50_000));
        }
    });
    assert_eq!(store.gets(), 1);
    assert!(stats(&cache)["store_coalesced_reads"] > 0);
}

#[test]
fn shared_requests_for_near_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::from_millis(50));
    put(store.as_ref(), 1, 8 * MIB);
    let whole = content(1, 8 * MIB);
    let cache = open(&store, dir.path());
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (cache, whole) = (&cache, &whole);
            scope.spawn(move || check(cache, 1, whole, thread * 131_072, 131_072));
        }
    });
    assert!(store.gets() <= 16, "{} requests for 64 reads", store.gets());
}

/// Random reads of a large object fetch what they request.
#[test]
fn requests_for_random_reads() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    for object in 1..=64 {
        put(store.as_ref(), object, 4 * MIB);
    }
    let cache = open(&store, dir.path());
    let mut random = Random(3);
    let (mut requested, mut out) = (0, vec![0; 65_540]);
    for object in 1..=64 {
        let offset = random.below(4 * MIB as u64 - 65_540);
        cache.read(object, offset, &mut [IoSliceMut::new(&mut out)]).unwrap();
        requested += 65_540;
    }
    let got = store.got.load(std::sync::atomic::Ordering::SeqCst);
    assert!(got < requested * 2, "{got} bytes fetched for {requested}");
}

/// An epoch over packs needs few requests, and the next epoch none.
#[test]
fn requests_for_epochs_over_packs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    const FILE: usize = 102_408;
    let files = |pack: u64| (0..40).map(move |file| (pack, file * FILE));
    let mut order: Vec<(u64, usize)> = (1..=8).flat_map(files).collect();
    let wholes: Vec<Vec<u8>> = (1..=8).map(|pack| content(pack, 40 * FILE)).collect();
    (1..=8).for_each(|pack| put(store.as_ref(), pack, 40 * FILE));
    let mut random = Random(8);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let cache = open(&store, dir.path());
    for epoch in 0..2 {
        for (pack, offset) in &order {
            check(&cache, *pack, &wholes[*pack as usize - 1], *offset, FILE);
        }
        flush(&cache);
        assert!(store.gets() < 320 / 3, "{} requests for 320 files in epoch {epoch}", store.gets());
        if epoch == 0 {
            store.gets.store(0, std::sync::atomic::Ordering::SeqCst);
        } else {
            assert_eq!(store.gets(), 0);
        }
    }
    let found = stats(&cache);
    assert!(found["cache_span_used_bytes"] > 0 && found["cache_span_bytes"] > 0, "{found:?}");
}

#[test]
fn filling_ahead_and_evicting() {
    let dir = tempfile::tempdir().unwrap();
    let store = Counting::new(Duration::ZERO);
    put(store.as_ref(), 1, 9 * MIB + 5);
    let whole = content(1, 9 * MIB + 5);
    let cache = open(&store, dir.path());
    let local_cache = cache.near().unwrap();
    let len = whole.len() as u64;
    assert_eq!(local_cache.holds(1, 0, len), 0);
    check(&cache, 1, &whole, 5 * MIB, 1000);
    local_cache.fill(1, 0, len).unwrap();
    assert_eq!(local_cache.holds(1, 0, len), len);
    assert_eq!(local_cache.holds(1, 5, 1000), 1000);
    let gets = store.gets();
    local_cache.fill(1, 0, len).unwrap();
    check(&cache, 1, &whole, 0, whole.len());
    assert_eq!(store.gets(), gets);
    assert!(gets <= 6, "{gets} requests");
    let other = open(&store, dir.path());
    assert_eq!(other.near().unwrap().holds(1, 0, len), len);
    assert!(local_cache.evict(1) >= len);
    assert_eq!(local_cache.holds(1, 0, len), 0);
    assert_eq!(other.near().unwrap().holds(1, 0, len), len, "its look is a second old at most");
    check(&other, 1, &whole, 0, whole.len());
    assert!(local_cache.fill(77, 0, 10).is_err());
}
