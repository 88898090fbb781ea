//! Packing under load, faults and crashes, over stores that append and stores that do not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use kestrel_types::compression::Compression;

use super::*;
use crate::error::ErrorKind;
use crate::reader::{Reader, ReaderConfig};
use crate::scan::scan;
use crate::store::failing::{Fault, Rule, StoreCall};
use crate::store::local::LocalConfig;
use crate::store::{CodedStore, FailingStore, LocalStore, MemoryStore, list_all};

const VOLUME: VolumeId = [9; 16];

fn ids() -> Arc<dyn ObjectIds> {
    let next = AtomicU64::new(1);
    Arc::new(move || Ok(next.fetch_add(1, Ordering::SeqCst)))
}

fn packer(store: Arc<dyn BlockStore>) -> Packer {
    Packer::new(store, ids(), PackerConfig::new(VOLUME)).unwrap()
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn store_wait(packer: &Packer, data: Vec<u8>, inode: u64) -> Result<StoredRange> {
    let (sender, receiver) = mpsc::channel();
    packer.store(data, inode, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

fn read_all(store: &Arc<dyn BlockStore>, range: Range) -> Result<Vec<u8>> {
    let mut out = vec![0; range.len as usize];
    Reader::new(Arc::clone(store), ReaderConfig::default()).read(range, 0, &mut out)?;
    Ok(out)
}

fn stores() -> Vec<(&'static str, Arc<dyn BlockStore>, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalStore::open(dir.path(), LocalConfig::default()).unwrap();
    vec![
        ("memory", Arc::new(MemoryStore::new()), None),
        ("put-only", Arc::new(MemoryStore::put_only()), None),
        ("local", Arc::new(local), Some(dir)),
    ]
}

#[test]
fn a_lone_store_runs_on_the_callers_thread() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let packer = packer(store.clone());
    let (sender, receiver) = mpsc::channel();
    let here = std::thread::current().id();
    let done = move |result: Result<StoredRange>| {
        sender.send((std::thread::current().id(), result)).unwrap()
    };
    packer.store(bytes_of(1, 100), 42, Box::new(done));
    let (thread, stored) = receiver.try_recv().unwrap();
    assert_eq!(thread, here);
    let stored = stored.unwrap();
    assert_eq!(
        stored.range.offset as usize,
        crate::object::HEADER_BYTES + crate::object::MEMBER_BYTES
    );
    assert_eq!(read_all(&store, stored.range).unwrap(), bytes_of(1, 100));
}

#[test]
fn many_threads_and_sizes() {
    for (name, store, _dir) in stores() {
        let packer = packer(store.clone());
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (packer, store) = (&packer, &store);
                scope.spawn(move || {
                    for i in 0..30 {
                        let seed = thread * 1000 + i;
                        let len =
                            [1, 100, 5000, 65_536, 70_000, 300_000, 1_200_000][(seed % 7) as usize];
                        let stored = store_wait(packer, bytes_of(seed, len), seed + 1).unwrap();
                        assert!(packer.is_open(stored.range.object));
                        assert_eq!(
                            read_all(store, stored.range).unwrap(),
                            bytes_of(seed, len),
                            "{name}"
                        );
                    }
                });
            }
        });
        packer.close();
        assert_eq!(packer.stats().members.load(Ordering::Relaxed), 240);
        let mut members = 0;
        for info in list_all(store.as_ref()).flat_map(|page| page.unwrap().objects) {
            assert!(!packer.is_open(info.object), "{name}");
            assert!(info.size < PACK_BYTES_MAX + 100_000);
            let contents = scan(store.as_ref(), info.object, true).unwrap();
            assert_eq!((contents.header.volume, contents.tail_bytes), (VOLUME, 0));
            assert!(
                contents.members.iter().all(|member| member.damage.is_none() && member.inode != 0)
            );
            members += contents.members.len();
        }
        assert_eq!(members, 240, "{name}: every object tells what it holds");
    }
}

/// How many objects 64 threads with ten files each need, in a store with uploads of `ms`
/// milliseconds.
fn objects_of_64_threads(ms: u64, len: usize) -> u64 {
    let store = Arc::new(FailingStore::new(Arc::new(MemoryStore::put_only()), 1));
    store.add(Rule::always(StoreCall::Put, Fault::Slow(Duration::from_millis(ms))));
    let packer = packer(store);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let packer = &packer;
            scope.spawn(move || {
                for i in 0..10 {
                    store_wait(packer, bytes_of(i, len), thread + 1).unwrap();
                }
            });
        }
    });
    packer.stats().objects.load(Ordering::Relaxed)
}

#[test]
fn threads_that_store_together_share_uploads() {
    let objects = objects_of_64_threads(20, 10_000);
    assert!(objects <= 30, "{objects} objects for 640 files by 64 threads");
}

/// Large payloads are uploaded in parallel, and leave a thread for small ones.
#[test]
fn parallel_uploads_of_large_payloads() {
    let store = Arc::new(FailingStore::new(Arc::new(MemoryStore::put_only()), 1));
    store.add(Rule::always(StoreCall::Put, Fault::Slow(Duration::from_secs(1))));
    let config = PackerConfig { uploads: 4, ..PackerConfig::new(VOLUME) };
    let packer = Packer::new(store, ids(), config).unwrap();
    let (sender, receiver) = mpsc::channel();
    // Made first: all must be queued before the first upload ends.
    let (large, small) = (bytes_of(1, 1 << 20), bytes_of(1, 100));
    for number in 0..6 {
        let sender = sender.clone();
        let done = move |stored: Result<StoredRange>| {
            sender.send((number, stored.unwrap().range.object)).unwrap()
        };
        packer.store(large.clone(), 1, Box::new(done));
    }
    let done =
        move |stored: Result<StoredRange>| sender.send((9, stored.unwrap().range.object)).unwrap();
    packer.store(small, 1, Box::new(done));
    let answers: Vec<(u64, u64)> = receiver.iter().take(7).collect();
    assert!(
        answers[..4].iter().any(|(number, _)| *number == 9),
        "not behind the large ones: {answers:?}"
    );
    let mut objects: Vec<u64> = answers.iter().map(|(_, object)| *object).collect();
    objects.sort_unstable();
    objects.dedup();
    assert_eq!(objects.len(), 7);
}

#[test]
fn bytes_stored_before_a_sync_survive_power_loss() {
    let store = Arc::new(MemoryStore::new());
    let packer = packer(store.clone());
    let safe: Vec<StoredRange> = (0..30)
        .map(|seed| {
            store_wait(&packer, bytes_of(seed, 20_000 + seed as usize * 50_000), 1).unwrap()
        })
        .collect();
    store.sync().unwrap();
    let unsafe_one = store_wait(&packer, bytes_of(99, 500), 1).unwrap();
    store.crash();
    let store: Arc<dyn BlockStore> = store;
    for (seed, stored) in safe.iter().enumerate() {
        assert_eq!(
            read_all(&store, stored.range).unwrap(),
            bytes_of(seed as u64, stored.range.len as usize)
        );
    }
    assert!(read_all(&store, unsafe_one.range).is_err());
}

#[test]
fn a_failed_append_hits_its_round_only() {
    for errno in [libc::ENOSPC, libc::EIO] {
        let inner = Arc::new(MemoryStore::new());
        let store = Arc::new(FailingStore::new(inner, 5));
        let packer = packer(store.clone());
        let before = store_wait(&packer, bytes_of(1, 9000), 1).unwrap();
        store.add(Rule::once(StoreCall::Append, 0, Fault::Torn(errno)));
        let hit = store_wait(&packer, bytes_of(2, 9000), 2);
        if errno == libc::ENOSPC {
            assert_eq!(hit.unwrap_err().kind(), ErrorKind::NoSpace);
        } else {
            assert_ne!(hit.unwrap().range.object, before.range.object, "tried again in a new pack");
        }
        let after = store_wait(&packer, bytes_of(3, 9000), 3).unwrap();
        assert_ne!(after.range.object, before.range.object);
        let store: Arc<dyn BlockStore> = store;
        assert_eq!(read_all(&store, before.range).unwrap(), bytes_of(1, 9000));
        assert_eq!(read_all(&store, after.range).unwrap(), bytes_of(3, 9000));
        let torn = scan(store.as_ref(), before.range.object, true).unwrap();
        assert_eq!(torn.members.len(), 1);
        assert!(torn.tail_bytes > 0);
    }
}

/// When the store is full, packing fails without leaving objects, and works again once there is
/// room.
#[test]
fn packer_with_a_full_store() {
    let store = Arc::new(FailingStore::new(Arc::new(MemoryStore::new()), 5));
    let packer = packer(store.clone());
    store.add(Rule::always(StoreCall::Append, Fault::Errno(libc::ENOSPC)));
    store.add(Rule::always(StoreCall::Put, Fault::Errno(libc::ENOSPC)));
    for len in [100, 2_000_000] {
        let failed = store_wait(&packer, bytes_of(1, len), 1).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace);
    }
    assert_eq!(list_all(store.as_ref()).map(|page| page.unwrap().objects.len()).sum::<usize>(), 0);
    store.heal();
    assert!(store_wait(&packer, bytes_of(1, 100), 1).is_ok());
}

#[test]
fn random_faults_never_lie() {
    for seed in 1..=2 {
        println!("seed {seed}");
        let store = Arc::new(FailingStore::new(Arc::new(MemoryStore::new()), seed));
        for (call, fault) in [
            (StoreCall::Append, Fault::Torn(libc::EIO)),
            (StoreCall::Append, Fault::Errno(libc::ENOSPC)),
            (StoreCall::Put, Fault::Errno(libc::EIO)),
            (StoreCall::Create, Fault::Errno(libc::EIO)),
            (StoreCall::Read, Fault::WrongByte),
        ] {
            store.add(Rule { per_mille: 150, ..Rule::always(call, fault) });
        }
        let packer = packer(store.clone());
        let kept: Mutex<Vec<(u64, Range)>> = Mutex::default();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (packer, kept) = (&packer, &kept);
                scope.spawn(move || {
                    for i in 0..60 {
                        let id = thread * 100 + i;
                        let len = if id % 11 == 0 { 1_100_000 } else { 3000 };
                        if let Ok(stored) = store_wait(packer, bytes_of(id, len), id) {
                            kept.lock().push((id, stored.range));
                        }
                    }
                });
            }
        });
        store.heal();
        let kept = kept.into_inner();
        assert!(kept.len() > 200, "{}", kept.len());
        let store: Arc<dyn BlockStore> = store;
        for (id, range) in kept {
            assert_eq!(read_all(&store, range).unwrap(), bytes_of(id, range.len as usize));
        }
    }
}

#[test]
fn numbers_of_existing_objects_are_passed_over() {
    for store in [MemoryStore::new(), MemoryStore::put_only()] {
        let store = Arc::new(store);
        for object in 1..20 {
            store.put(object, &[std::io::IoSlice::new(b"from another time")]).unwrap();
        }
        let packer = packer(store.clone());
        assert_eq!(store_wait(&packer, bytes_of(1, 10), 1).unwrap().range.object, 20);
        assert_eq!(store.bytes(5).unwrap(), b"from another time");
    }
}

fn all_sealed(packer: &Packer) -> bool {
    packer.shared.streams.as_ref().is_some_and(PackStreams::all_sealed)
}

/// Packs grow over rounds, are sealed when they are full or idle, and are pinned while they are
/// needed.
#[test]
fn growth_sealing_and_pins_of_packs() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let config = PackerConfig {
        pack_bytes: 100_000,
        streams: 1,
        idle: Duration::from_millis(20),
        ..PackerConfig::new(VOLUME)
    };
    let packer = Packer::new(store, ids(), config).unwrap();
    let objects: Vec<ObjectId> = (0..9)
        .map(|seed| store_wait(&packer, bytes_of(seed, 30_000), 1).unwrap().range.object)
        .collect();
    assert_eq!(objects, [1, 1, 1, 2, 2, 2, 3, 3, 3]);
    assert!(!packer.is_open(1) && !packer.is_open(2) && packer.is_open(3));
    let stored = store_wait(&packer, bytes_of(1, 100), 1).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while !all_sealed(&packer) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(packer.is_open(stored.range.object), "sealed, but its owner has not committed yet");
    let object = stored.range.object;
    let copy = stored.pin.clone();
    drop(stored);
    assert!(packer.is_open(object));
    drop(copy);
    assert!(!packer.is_open(object));
}

/// The oldest open object is the oldest pinned one, or the next number if none is pinned.
#[test]
fn oldest_open_object() {
    struct Ids(AtomicU64);
    impl ObjectIds for Ids {
        fn next(&self) -> Result<ObjectId> {
            Ok(self.0.fetch_add(1, Ordering::Relaxed))
        }
        fn floor(&self) -> ObjectId {
            self.0.load(Ordering::Relaxed)
        }
    }
    let config = PackerConfig { pack_bytes: 1, ..PackerConfig::new(VOLUME) };
    let packer =
        Packer::new(Arc::new(MemoryStore::new()), Arc::new(Ids(7.into())), config).unwrap();
    assert_eq!(
        packer.oldest_open(|object| object),
        7,
        "nothing is open: all that will be has a number from 7 on"
    );
    let stored: Vec<StoredRange> =
        (0..3).map(|seed| store_wait(&packer, bytes_of(seed, 10), 1).unwrap()).collect();
    assert_eq!(stored[2].range.object, 9);
    let mut stored = stored.into_iter();
    for oldest in [7, 8, 9] {
        assert_eq!(packer.oldest_open(|object| object), oldest);
        drop(stored.next());
    }
    assert_eq!(packer.oldest_open(|object| object), 10);
}

/// Payloads that cannot be stored, and calls after the close, are answered with errors.
#[test]
fn errors_of_impossible_payloads() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let packer = packer(store);
    assert!(matches!(store_wait(&packer, vec![], 1), Err(Error::Invalid { .. })));
    let too_large = vec![0; RANGE_BYTES_MAX as usize + 1];
    assert!(matches!(store_wait(&packer, too_large, 1), Err(Error::Invalid { .. })));
    packer.close();
    assert!(matches!(store_wait(&packer, vec![1], 1), Err(Error::Closed { .. })));
}

#[test]
fn callbacks_may_store_more_and_may_panic() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let packer = Arc::new(packer(store));
    let (sender, receiver) = mpsc::channel();
    let again = Arc::clone(&packer);
    let done = move |first: Result<StoredRange>| {
        first.unwrap();
        again.store(vec![2], 1, Box::new(move |second| sender.send(second).unwrap()));
    };
    packer.store(vec![1], 1, Box::new(done));
    assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap().is_ok());
    let panics = |_| std::panic::resume_unwind(Box::new("on purpose"));
    packer.store(vec![3], 1, Box::new(panics));
    assert!(store_wait(&packer, vec![4], 1).is_ok());
}

/// A panic of the store fails the round and nothing else. A defect of the store must fail the
/// callers that wait for it, and no others: neither hang them nor end the thread that others need.
#[test]
fn panic_of_the_store() {
    let made: [(fn() -> MemoryStore, StoreCall); 2] =
        [(MemoryStore::new, StoreCall::Append), (MemoryStore::put_only, StoreCall::Put)];
    for (make, call) in made {
        for len in [100, 2_000_000] {
            // Large payloads are put as they are, in stores of both kinds.
            let call = if len > 1 << 20 { StoreCall::Put } else { call };
            let store = Arc::new(FailingStore::new(Arc::new(make()), 1));
            // More than there are threads.
            store.add(Rule { times: 8, ..Rule::always(call, Fault::Panic) });
            let config = PackerConfig { uploads: 2, streams: 1, ..PackerConfig::new(VOLUME) };
            let packer = Packer::new(store.clone(), ids(), config).unwrap();
            for number in 0..8 {
                let error = store_wait(&packer, bytes_of(number, len), 1).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            }
            let stored = store_wait(&packer, bytes_of(9, len), 1).unwrap();
            let shared: Arc<dyn BlockStore> = store;
            assert_eq!(read_all(&shared, stored.range).unwrap(), bytes_of(9, len));
        }
    }
}

/// Getting a number may run other callbacks on the same thread (a metadata node inside the process
/// does), and those store.
#[test]
fn storing_while_a_number_is_being_got_does_not_hang() {
    type Weak = std::sync::Weak<Packer>;
    let slot: Arc<Mutex<(Weak, u64)>> = Arc::default();
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&slot);
    let ids = move || {
        let (packer, number) = {
            let mut slot = inner.lock();
            slot.1 += 1;
            (slot.0.upgrade(), slot.1)
        };
        if let Some(packer) = packer.filter(|_| number == 1) {
            for _ in 0..20 {
                let sender = sender.clone();
                let done = move |stored: Result<StoredRange>| sender.send(stored.is_ok()).unwrap();
                packer.store(vec![1; 900_000], 2, Box::new(done));
            }
        }
        Ok(number)
    };
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let config = PackerConfig { streams: 1, ..PackerConfig::new(VOLUME) };
    let packer = Arc::new(Packer::new(store, Arc::new(ids), config).unwrap());
    slot.lock().0 = Arc::downgrade(&packer);
    assert!(store_wait(&packer, vec![1; 100], 1).is_ok());
    for _ in 0..20 {
        assert!(receiver.recv_timeout(Duration::from_secs(20)).unwrap());
    }
}

/// Stores payloads, each compressed as the policy of its directory says; where each is.
fn store_each(
    packer: &Packer,
    payloads: Vec<(Option<Compression>, Vec<u8>)>,
) -> Vec<(Option<Compression>, Vec<u8>, StoredRange)> {
    let (sender, receiver) = mpsc::channel();
    for (number, (compression, data)) in payloads.iter().enumerate() {
        let sender = sender.clone();
        let done = move |result: Result<StoredRange>| {
            sender.send((number, result.unwrap())).unwrap();
        };
        let options = PutOptions { compression: *compression, tier: None };
        packer.store_with(data.clone(), 7, options, Box::new(done));
    }
    drop(sender);
    let mut stored: Vec<_> = receiver.iter().collect();
    stored.sort_unstable_by_key(|(number, _)| *number);
    let with_range = |((compression, data), (_, range))| (compression, data, range);
    payloads.into_iter().zip(stored).map(with_range).collect()
}

/// What is compressed in different ways shares no object, whether the store appends or not, and a
/// reader that knows nothing of that reads all of it.
#[test]
fn one_object_for_each_compression() {
    let ways = [None, Some(Compression::None), Some(Compression::Lz4), Some(Compression::Zstd(3))];
    for (name, inner, _dir) in stores() {
        let packer = packer(Arc::new(CodedStore::of_plain(inner.clone(), VOLUME)));
        let payloads = (0..240).map(|i| {
            let len = [100, 5000, 70_000, 1_100_000][i / 60];
            (ways[i % 4], (0..len).map(|byte| ((byte / 50 + i) % 7) as u8).collect())
        });
        let stored = store_each(&packer, payloads.collect());
        packer.close();
        let reading: Arc<dyn BlockStore> = Arc::new(CodedStore::of_plain(inner.clone(), VOLUME));
        let mut known = std::collections::BTreeMap::new();
        for (compression, data, StoredRange { range, .. }) in &stored {
            assert_eq!(read_all(&reading, *range).unwrap(), *data, "{name}");
            // What the volume does anyway is no way of its own.
            let way = compression.filter(|way| *way != Compression::None);
            assert_eq!(*known.entry(range.object).or_insert(way), way, "{name}");
        }
        for (object, way) in known {
            let (plain, listed) = (reading.size(object).unwrap(), inner.size(object).unwrap());
            assert_eq!(listed != plain, way.is_some(), "{name}: {listed} of {plain} bytes");
        }
    }
}

/// A store that does not compress gets everything as it comes, and no thread for uploads.
#[test]
fn compression_of_a_plain_store() {
    let store: Arc<dyn BlockStore> = Arc::new(MemoryStore::new());
    let packer = packer(store.clone());
    assert!(packer.waits(PutOptions { compression: Some(Compression::Lz4), tier: None }));
    let data = vec![(Some(Compression::Lz4), vec![1; 5000]), (None, vec![2; 5000])];
    let stored = store_each(&packer, data);
    assert_eq!(packer.threads.lock().len(), 1);
    assert_eq!(stored[0].2.range.object, stored[1].2.range.object);
    assert_eq!(read_all(&store, stored[0].2.range).unwrap(), vec![1; 5000]);
}

/// What goes to different tiers shares no object, and is in its tier; a store without tiers takes
/// all of it as it comes.
#[test]
fn one_object_for_each_tier() {
    let tiers = [None, Some(Tier::Standard), Some(Tier::GlacierIr), Some(Tier::Archive)];
    let store = Arc::new(MemoryStore::with_tiers());
    let coded: Arc<dyn BlockStore> = Arc::new(CodedStore::of_plain(store.clone(), VOLUME));
    let plain: Arc<dyn BlockStore> = Arc::new(MemoryStore::put_only());
    for store in [&coded, &plain] {
        let packer = packer(store.clone());
        let (sender, receiver) = mpsc::channel();
        for number in 0..200 {
            let (sender, tier) = (sender.clone(), tiers[number % 4]);
            let done = move |stored: Result<StoredRange>| {
                sender.send((tier, stored.unwrap())).unwrap();
            };
            let compression = (number % 3 == 0).then_some(Compression::Lz4);
            let data = bytes_of(number as u64, 100 + number * 50);
            packer.store_with(data, 7, PutOptions { compression, tier }, Box::new(done));
        }
        drop(sender);
        for (tier, stored) in receiver.iter() {
            let Some(tiers) = store.tiers() else { continue };
            let wanted = tier.unwrap_or(Tier::Standard);
            assert_eq!(tiers.tier_of(stored.range.object).unwrap().tier, Some(wanted));
        }
    }
}
