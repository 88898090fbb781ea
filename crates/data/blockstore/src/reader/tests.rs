//! The reader over stores that fail, with and without caches of their own.

use std::io::IoSlice;

use kestrel_types::ids::ObjectId;

use super::*;
use crate::error::ErrorKind;
use crate::payload::Payload;
use crate::store::failing::{Fault, Rule, StoreCall};
use crate::store::{FailingStore, LocalCache, MemoryStore};

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn stored(inner: MemoryStore, len: usize) -> (Arc<FailingStore>, Range, Vec<u8>) {
    let bytes = pattern(len);
    let payload = Payload::from(bytes.clone());
    let mut gather = frame::Gather::default();
    gather.frames(&payload, &frame::data_checks(&payload), 3, 0);
    inner.put(3, &gather.slices()).unwrap();
    let store = Arc::new(FailingStore::new(Arc::new(inner), 1));
    (store, Range { object: 3, offset: 0, len: len as u32 }, bytes)
}

#[test]
fn wrong_bytes_are_read_again_and_never_returned() {
    for fault in [Fault::WrongByte, Fault::Zeros, Fault::Short] {
        let (store, range, bytes) = stored(MemoryStore::new(), 200_000);
        let reader = Reader::new(store.clone(), ReaderConfig::default());
        let mut out = vec![0; 200_000];
        store.add(Rule::once(StoreCall::Read, 0, fault));
        reader.read(range, 0, &mut out).unwrap();
        assert_eq!(out, bytes);
        assert_eq!(reader.stats().healed.load(Ordering::Relaxed), 1);
        store.add(Rule::always(StoreCall::Read, fault));
        assert_eq!(reader.read(range, 0, &mut out).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(out.iter().all(|byte| *byte == 0));
        assert!(!reader.try_read(range, 0, &mut out).unwrap());
        assert_eq!(reader.verify(range).unwrap_err().kind(), ErrorKind::Corrupt);
        store.heal();
        assert!(reader.try_read(range, 7, &mut out[..100]).unwrap());
        assert_eq!(out[..100], bytes[7..107]);
        reader.verify(range).unwrap();
    }
}

#[test]
fn store_errors_pass_through() {
    let (store, range, _) = stored(MemoryStore::new(), 1000);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    store.add(Rule::always(StoreCall::Read, Fault::Errno(libc::EIO)));
    let mut out = vec![0; 1000];
    assert_eq!(reader.read(range, 0, &mut out).unwrap_err().kind(), ErrorKind::Io);
    assert!(reader.try_read(range, 0, &mut out).is_err());
    assert_eq!(reader.verify(range).unwrap_err().kind(), ErrorKind::Io);
    assert!(matches!(reader.read(range, 999, &mut out[..2]), Err(Error::Invalid { .. })));
}

#[test]
fn small_reads_verify_a_frame_once() {
    let (store, range, bytes) = stored(MemoryStore::new(), 200_000);
    store.add(Rule::always(StoreCall::Read, Fault::Slow(std::time::Duration::ZERO)));
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    let mut out = vec![0; 1000];
    for skip in (0..200_000).step_by(1000) {
        assert!(reader.try_read(range, skip, &mut out).unwrap());
        assert_eq!(out, bytes[skip as usize..skip as usize + 1000]);
    }
    assert_eq!(store.injected(), 4, "four frames, each read from the store once");
}

/// Read-ahead serves later reads of a store that always blocks.
#[test]
fn read_ahead_with_a_blocking_store() {
    let (store, range, bytes) = stored(MemoryStore::put_only(), 3_000_000);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    let mut out = vec![0; 131_072];
    assert!(!reader.try_read(range, 0, &mut out).unwrap());
    reader.prefetch(range, 100_000, 2_000_000);
    for skip in (131_072..1_900_000).step_by(131_072) {
        assert!(reader.try_read(range, skip, &mut out).unwrap(), "at {skip}");
        assert_eq!(out, bytes[skip as usize..skip as usize + 131_072]);
    }
    assert!(!reader.try_read(range, 2_500_000, &mut out).unwrap());
    // Too much at once, beyond the end, of a missing object: refused or ignored.
    let small =
        Reader::new(store, ReaderConfig { prefetch_bytes: 1000, ..ReaderConfig::default() });
    small.prefetch(range, 0, u32::MAX);
    small.prefetch(range, u32::MAX, 10);
    small.prefetch(Range { object: 99, ..range }, 0, 10);
    assert!(!small.try_read(Range { object: 99, ..range }, 0, &mut out[..10]).unwrap());
}

/// A store across a network that counts its reads, each of which takes a while.
fn remote(len: usize) -> (Arc<FailingStore>, Range, Vec<u8>) {
    let (store, range, bytes) = stored(MemoryStore::put_only(), len);
    store.add(Rule::always(StoreCall::Read, Fault::Slow(std::time::Duration::from_millis(5))));
    (store, range, bytes)
}

#[test]
fn what_was_waited_for_is_kept_in_memory() {
    let (store, range, bytes) = remote(300_000);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    let mut out = vec![0; 300_000];
    reader.read(range, 0, &mut out).unwrap();
    let first = store.injected();
    out.fill(0);
    assert!(reader.try_read(range, 0, &mut out).unwrap());
    assert_eq!((out, store.injected()), (bytes, first));
    let stats = reader.stats();
    assert_eq!(stats.cached_bytes.load(Ordering::Relaxed), 300_000);
    assert_eq!(stats.cached_reads.load(Ordering::Relaxed), 1);
}

/// A local cache, which holds everything as it is or would have to decode it.
struct FakeLocalCache {
    is_plain: bool,
}

impl LocalCache for FakeLocalCache {
    fn fill(&self, _: ObjectId, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn holds(&self, _: ObjectId, _: u64, len: u64) -> u64 {
        len
    }

    fn evict(&self, _: ObjectId) -> u64 {
        0
    }

    fn is_plain(&self) -> bool {
        self.is_plain
    }
}

/// The reader does not keep a second copy of bytes that a local cache holds as they are.
#[test]
fn no_second_copy_of_locally_cached_bytes() {
    assert_eq!(
        [true, false].map(|is_remote| Keeps::beside(is_remote, None)),
        [Keeps::Waited, Keeps::Parts]
    );
    for is_plain in [true, false] {
        let keeps = Keeps::beside(true, Some(&FakeLocalCache { is_plain }));
        let (store, range, bytes) = remote(300_000);
        let config = ReaderConfig::default();
        let cache = FrameCache::new(config.cache_bytes, keeps);
        let reader = Reader { cache, ..Reader::new(store, config) };
        let mut out = vec![0; 300_000];
        reader.read(range, 0, &mut out).unwrap();
        assert_eq!((&out, reader.cache().bytes() > 0), (&bytes, !is_plain));
        assert_eq!(reader.try_read(range, 0, &mut out).unwrap(), !is_plain);
        // Parts of frames are, and what is read ahead.
        reader.read(range, 10, &mut out[..100]).unwrap();
        assert!(reader.try_read(range, 200, &mut out[..100]).unwrap());
        reader.prefetch(range, 65_536, 200_000);
        assert!(reader.try_read(range, 65_536, &mut out[..131_072]).unwrap());
        assert_eq!(out[..131_072], bytes[65_536..196_608]);
    }
}

#[test]
fn frames_are_handed_out_as_they_lie_in_memory() {
    let (store, range, bytes) = remote(300_000);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    assert!(reader.shares() && reader.find(range, 0, 10).is_none());
    for (skip, len) in
        [(0, 300_000), (0, 1), (65_535, 2), (70_000, 200_000), (299_999, 1), (131_072, 65_536)]
    {
        let wanted = &bytes[skip as usize..(skip + len) as usize];
        let fetched = reader.fetch(range, skip, len).unwrap();
        assert_eq!(fetched.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>(), wanted);
        let found = reader.find(range, skip, len).unwrap();
        let addresses = |pieces: &[FramePiece]| {
            pieces.iter().map(|piece| (piece.as_ptr(), piece.len())).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&found), addresses(&fetched), "no copies");
    }
    assert_eq!(store.injected(), 1, "one request for all");
    assert!(reader.fetch(range, 299_999, 2).is_err() && reader.find(range, 299_999, 2).is_none());
    assert!(reader.fetch(Range { object: 99, ..range }, 0, 10).is_err());
    // A piece that a reader holds stays what it is, even if the cache drops it.
    let held = reader.fetch(range, 0, 65_536).unwrap();
    let (other, more, _) = remote(1 << 20);
    let small =
        Reader::new(other, ReaderConfig { cache_bytes: 1 << 21, ..ReaderConfig::default() });
    let kept = small.fetch(more, 0, 65_536).unwrap();
    let before = kept[0].to_vec();
    for _ in 0..20 {
        (0..16).for_each(|frame| drop(small.fetch(more, frame * 65_536, 65_536).unwrap()));
    }
    assert_eq!((kept[0].to_vec(), held[0].to_vec()), (before, bytes[..65_536].to_vec()));
}

/// Damage on the way is healed by a second fetch, and damaged bytes are never returned.
#[test]
fn damage_in_transit_healed_by_refetch() {
    let (store, range, bytes) = stored(MemoryStore::put_only(), 200_000);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    store.add(Rule::once(StoreCall::Read, 0, Fault::WrongByte));
    let whole = |pieces: Vec<FramePiece>| {
        pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>()
    };
    assert_eq!(whole(reader.fetch(range, 1000, 150_000).unwrap()), bytes[1000..151_000]);
    let broken = Reader::new(store.clone(), ReaderConfig::default());
    store.add(Rule::always(StoreCall::Read, Fault::WrongByte));
    assert!(matches!(broken.fetch(range, 0, 100), Err(Error::Corrupt { .. })));
    assert!(broken.find(range, 0, 100).is_none());
}

/// Readers of the same frames share one request, and read-ahead does not repeat it.
#[test]
fn shared_request_for_the_same_frames() {
    let (store, range, bytes) = remote(1 << 20);
    let reader = Reader::new(store.clone(), ReaderConfig::default());
    std::thread::scope(|scope| {
        for thread in 0..16u32 {
            let (reader, bytes) = (&reader, &bytes);
            scope.spawn(move || {
                if thread % 4 == 0 {
                    return reader.prefetch(range, 0, 1 << 20);
                }
                let mut out = vec![0; 200_000];
                reader.read(range, thread * 1000, &mut out).unwrap();
                assert_eq!(out, bytes[thread as usize * 1000..][..200_000]);
            });
        }
    });
    // All frames at once, or some of them first and then the others on both sides.
    assert!(store.injected() <= 4, "{} requests", store.injected());
}

/// Read-ahead stops before it evicts its own frames.
#[test]
fn read_ahead_within_the_cache() {
    let (store, range, _) = stored(MemoryStore::put_only(), 8 << 20);
    let config = ReaderConfig { cache_bytes: 4 << 20, ..ReaderConfig::default() };
    let reader = Reader::new(store, config);
    for skip in (0..8 << 20).step_by(256 << 10) {
        reader.prefetch(range, skip, 256 << 10);
    }
    assert_eq!(reader.cache().ahead_bytes(), 1 << 20, "a quarter of the cache");
    assert_eq!(reader.cache().wasted_bytes(), 0);
    assert_eq!(reader.stats().prefetch_refused.load(Ordering::Relaxed), 28);
    let mut out = vec![0; 512 << 10];
    assert!(reader.try_read(range, 0, &mut out).unwrap());
    reader.prefetch(range, 4 << 20, 256 << 10);
    assert_eq!(reader.cache().ahead_bytes(), (1 << 20) - (256 << 10));
}

#[test]
fn stored_windows_are_whole_frames() {
    let range = Range { object: 1, offset: 80, len: 200_000 };
    assert_eq!(frame::stored_window(&range, 0, 1), (80, 65_540));
    assert_eq!(frame::stored_window(&range, 65_535, 2), (80, 2 * 65_540));
    assert_eq!(
        frame::stored_window(&range, 199_999, 1),
        (80 + 3 * 65_540, 200_000 - 3 * 65_536 + 4)
    );
    assert_eq!(frame::stored_window(&range, 0, 200_000), (80, u64::from(range.stored_len())));
}

#[test]
fn appended_bytes_behind_a_range_do_not_matter() {
    let inner = MemoryStore::new();
    let (_, range, bytes) = stored(MemoryStore::new(), 5000);
    let payload = Payload::from(bytes.clone());
    let mut gather = frame::Gather::default();
    gather.frames(&payload, &frame::data_checks(&payload), 3, 0);
    let mut parts = gather.slices();
    parts.push(IoSlice::new(b"garbage of a later, failed append"));
    inner.put(3, &parts).unwrap();
    let reader =
        Reader::new(Arc::new(inner), ReaderConfig { cache_bytes: 0, ..ReaderConfig::default() });
    let mut out = vec![0; 5000];
    reader.read(range, 0, &mut out).unwrap();
    assert_eq!(out, bytes);
}
