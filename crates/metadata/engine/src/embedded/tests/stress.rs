//! Several threads at once, with flushes and evictions in between: every key is a register that
//! must be linearizable.

use kestrel_testkit::stop::StopOnDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// Keys, spread over a few groups.
const KEYS: u64 = 400;

fn key(number: u64) -> (u64, [u8; 8]) {
    (number % 7, number.to_be_bytes())
}

/// Each key has one writer, which counts up in its value (deleting every fifth time). A reader must
/// see at least what was acknowledged before it began, and at most what was begun before it was
/// answered.
#[test]
fn readers_see_no_stale_row_and_miss_none() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        EmbeddedOptions { memory_bytes: 192 << 10, log_bytes_max: 512 << 10, ..small_options() };
    let engine = EmbeddedEngine::open(dir.path(), UUID, options, no_hook(), &mut |_| true).unwrap();
    let begun: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let value = |version: u64| {
        let mut value = vec![version as u8; 100 + version as usize % 50];
        value[..8].copy_from_slice(&version.to_be_bytes());
        value
    };
    let version_of = |number: u64, found: Option<&[u8]>, low: u64, high: u64| match found {
        Some(bytes) => {
            let version = u64::from_be_bytes(bytes[..8].try_into().unwrap());
            assert!(
                (low..=high).contains(&version),
                "key {number}: {version}, expected {low}..={high}"
            );
            assert_ne!(version % 5, 0);
        }
        None => assert!(
            (low..=high).any(|version| version % 5 == 0),
            "key {number} missing, {low}..={high}"
        ),
    };
    std::thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        for writer in 0..2u64 {
            let (engine, begun, acknowledged, stop) = (&engine, &begun, &acknowledged, &stop);
            scope.spawn(move || {
                let mut random = super::crash::Random(writer + 11);
                while !stop.load(Ordering::Relaxed) {
                    let numbers: std::collections::BTreeSet<u64> = (0..1 + random.below(6))
                        .map(|_| random.below(KEYS / 2) * 2 + writer)
                        .collect();
                    let batch = numbers
                        .iter()
                        .map(|number| {
                            let version =
                                begun[*number as usize].fetch_add(1, Ordering::SeqCst) + 1;
                            let (id, name) = key(*number);
                            if version.is_multiple_of(5) {
                                remove(id, &name)
                            } else {
                                put(id, &name, &value(version))
                            }
                        })
                        .collect();
                    commit(engine, batch);
                    for number in numbers {
                        let now = begun[number as usize].load(Ordering::SeqCst);
                        acknowledged[number as usize].store(now, Ordering::SeqCst);
                    }
                }
            });
        }
        for reader in 0..2u64 {
            let (engine, begun, acknowledged, stop) = (&engine, &begun, &acknowledged, &stop);
            scope.spawn(move || {
                let mut random = super::crash::Random(reader + 101);
                while !stop.load(Ordering::Relaxed) {
                    let numbers: Vec<u64> =
                        (0..1 + random.below(40)).map(|_| random.below(KEYS)).collect();
                    let names: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
                    let keys: Vec<_> = names
                        .iter()
                        .map(|(id, name)| KeyRef::new(Table::Entry, *id, name))
                        .collect();
                    let load = |counters: &[AtomicU64], number: u64| {
                        counters[number as usize].load(Ordering::SeqCst)
                    };
                    let low: Vec<u64> =
                        numbers.iter().map(|number| load(acknowledged, *number)).collect();
                    engine
                        .get_many(&keys, &mut |index, row| {
                            let number = numbers[index];
                            version_of(number, row.value, low[index], load(begun, number));
                        })
                        .unwrap();
                    let group = random.below(7);
                    let low: Vec<u64> =
                        (0..KEYS).map(|number| load(acknowledged, number)).collect();
                    let mut shown = BTreeMap::new();
                    let mut show = |suffix: &[u8], value: &[u8]| {
                        let number = u64::from_be_bytes(suffix.try_into().unwrap());
                        assert!(shown.insert(number, value.to_vec()).is_none());
                        ControlFlow::Continue(())
                    };
                    if random.below(4) == 0 {
                        let from = KeyRef::new(Table::Entry, group, b"");
                        engine
                            .scan_table(Table::Entry, Some(from), &mut |key, value| {
                                if key.id == group {
                                    show(key.suffix, value)
                                } else {
                                    ControlFlow::Break(())
                                }
                            })
                            .unwrap();
                    } else {
                        engine
                            .scan(Table::Entry, group, None, &mut |suffix, value, _| {
                                show(suffix, value)
                            })
                            .unwrap();
                    }
                    for number in (0..KEYS).filter(|number| number % 7 == group) {
                        let found = shown.get(&number).map(Vec::as_slice);
                        version_of(number, found, low[number as usize], load(begun, number));
                    }
                }
            });
        }
        let engine = &engine;
        scope.spawn(move || {
            let _stopper = stopper;
            let mut hand = 0;
            let mut round = 0;
            let until = Instant::now() + Duration::from_secs(8);
            while Instant::now() < until {
                round += 1;
                if round % 8 == 0 {
                    engine.flush().unwrap();
                }
                engine.shared.rows.evict(0, 2, &mut hand);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    });
    let stats = engine.stats();
    assert!(stats.flushes > 3 && stats.run_reads > 100, "{stats:?}");
    let expected = content(&engine);
    engine.close().unwrap();
    let again =
        EmbeddedEngine::open(dir.path(), UUID, small_options(), no_hook(), &mut |_| true).unwrap();
    assert_eq!(content(&again), expected);
}

/// A dump is a scan and the batches of a tap: together they give the state at the moment the tap
/// ends.
#[test]
fn a_scan_and_a_tap_make_a_consistent_copy() {
    let (disk, runs) = (SimDisk::new(None), ModelRuns::default());
    let engine = open_sim(&disk, &runs, small_options()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        for writer in 0..2u64 {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let mut random = super::crash::Random(writer + 1);
                while !stop.load(Ordering::Relaxed) {
                    let (id, name) = key(random.below(KEYS));
                    let change = if random.below(3) == 0 {
                        remove(id, &name)
                    } else {
                        put(id, &name, &random.next().to_be_bytes())
                    };
                    commit(engine, vec![change]);
                }
            });
        }
        for _ in 0..30 {
            let tapped = Arc::new(parking_lot::Mutex::new(Vec::new()));
            let batches = tapped.clone();
            let guard = engine.tap(Box::new(move |batch| batches.lock().extend_from_slice(batch)));
            let mut copy = content(&engine);
            // A batch reaches the tap before memory: all that the tap has is to be in memory before
            // it is compared.
            let now = std::mem::take(&mut *tapped.lock());
            engine.shared.log.wait_applied();
            apply(&mut copy, &now);
            let mut expected = content(&engine);
            drop(guard);
            let later = std::mem::take(&mut *tapped.lock());
            apply(&mut copy, &later);
            apply(&mut expected, &later);
            assert_eq!(copy, expected);
        }
        drop(stopper);
    });
}
