use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kestrel_blockstore::error::{Error, Result as StoreResult};
use kestrel_blockstore::named::{ETag, MemoryNamed, NamedObject, NamedStore};
use kestrel_engine::exercise::{ExpectedRows, apply, content, encode, put, remove};
use kestrel_engine::{BatchKind, BeforeSync, Engine, Mutation};
use kestrel_testkit::rng::Rng;
use kestrel_types::key::Table;
use parking_lot::Mutex;

use super::*;
use crate::flusher::FlushLimits;
use crate::{BucketEngine, BucketOptions, recover};

const UUID: Uuid = *b"0123456789abcdef";
const OTHER: Uuid = *b"fedcba9876543210";

fn made(uuid: &Uuid) -> Arc<MemoryNamed> {
    let store = Arc::new(MemoryNamed::default());
    recover::create_in(&*store, uuid, 0, false).unwrap();
    store
}

/// A writer with memtables of 3000 bytes, and few log objects in each.
fn writer(store: &Arc<MemoryNamed>, take_over: bool) -> BucketEngine {
    let options = BucketOptions { memory_bytes: 256 << 10, take_over, ..BucketOptions::default() };
    let limits = FlushLimits { memtable_bytes: 3000, log_objects: 40 };
    let place = (store.clone() as Arc<dyn NamedStore>, Duration::from_millis(40));
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    recover::open_with(place, (UUID, 0), (options, limits), nothing).unwrap()
}

fn follower(store: Arc<dyn NamedStore>) -> Follower {
    Follower::open_on((store.clone(), store), UUID, 0, 256 << 10).unwrap()
}

/// What a store in memory has, for a process that only reads: its reads fail by seed, and nothing
/// may be written.
struct Reader {
    store: Arc<MemoryNamed>,
    failing: Mutex<(Rng, u64)>,
}

impl Reader {
    fn new(store: &Arc<MemoryNamed>, seed: u64, percent: u64) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), failing: Mutex::new((Rng::new(seed), percent)) })
    }

    fn look<T>(&self, call: impl FnOnce() -> StoreResult<T>) -> StoreResult<T> {
        let (rng, percent) = &mut *self.failing.lock();
        if rng.percent(*percent) {
            let why = "a fault of a test".into();
            return Err(Error::Remote { during: "a call", object: None, why });
        }
        call()
    }
}

impl NamedStore for Reader {
    fn create(&self, name: &str, _: Bytes) -> StoreResult<bool> {
        panic!("a follower makes {name}")
    }

    fn replace(&self, name: &str, _: Bytes, _: &str) -> StoreResult<Option<ETag>> {
        panic!("a follower replaces {name}")
    }

    fn read(&self, name: &str) -> StoreResult<Option<NamedObject>> {
        self.look(|| self.store.read(name))
    }

    fn read_range(&self, name: &str, offset: u64, len: u64) -> StoreResult<Bytes> {
        self.look(|| self.store.read_range(name, offset, len))
    }

    fn list(&self, below: &str) -> StoreResult<Vec<(String, u64)>> {
        self.look(|| self.store.list(below))
    }

    fn remove(&self, name: &str) -> StoreResult<()> {
        panic!("a follower removes {name}")
    }

    fn shown(&self) -> &str {
        self.store.shown()
    }
}

/// What a writer's rows were at each of its positions.
#[derive(Default)]
struct History {
    now: ExpectedRows,
    at: BTreeMap<Position, ExpectedRows>,
}

impl History {
    fn commit(&mut self, engine: &BucketEngine, batch: Vec<Mutation>) {
        apply(&mut self.now, &batch);
        let position = engine.commit(BatchKind::Growing, batch).unwrap();
        self.at.insert(position, self.now.clone());
    }

    fn some(&mut self, engine: &BucketEngine, rng: &mut Rng) {
        let batch = (0..1 + rng.below(12)).map(|_| {
            let (id, suffix) = (rng.below(7), rng.below(200).to_be_bytes());
            if rng.percent(25) { remove(id, &suffix) } else { put(id, &suffix, &[7; 60]) }
        });
        let batch: Vec<Mutation> = batch.collect();
        self.commit(engine, batch);
    }

    /// A follower shows one moment, not before `last`; which.
    fn check(&self, (rows, position): (&ExpectedRows, Position), last: Position) -> Position {
        assert!(position >= last, "{position} after {last}");
        let empty = ExpectedRows::new();
        let then = self.at.range(..=position).next_back().map_or(&empty, |(_, rows)| rows);
        assert_eq!(rows, then, "at {position}");
        position
    }
}

/// All rows of the moment that is shown, and its position; of later moments as often as tables of
/// it are gone.
fn shown(follower: &mut Follower) -> (ExpectedRows, Position) {
    for _ in 0..1000 {
        let rows = follower.rows();
        let mut found = ExpectedRows::new();
        let read = rows.scan_table(Table::Entry, None, &mut |key, value| {
            found.insert(encode(key), value.to_vec());
            ControlFlow::Continue(())
        });
        if read.is_ok() {
            return (found, rows.durable());
        }
        let _ = follower.poll();
    }
    panic!("no moment can be read");
}

/// While a writer commits, flushes and merges, a follower (its reads fail now and then) shows
/// moments of it, one after the other, and in the end the last one; so with other writers that take
/// the rows over.
#[test]
fn moments_of_writers() {
    for seed in 0..12 {
        let (store, mut rng) = (made(&UUID), Rng::new(seed));
        let mut history = History::default();
        let mut engine = writer(&store, false);
        let reader = Reader::new(&store, seed, 0);
        let mut follower = follower(reader.clone());
        reader.failing.lock().1 = if seed % 2 == 0 { 0 } else { 3 };
        let mut last = 0;
        for round in 0..150 {
            for _ in 0..rng.below(8) {
                history.some(&engine, &mut rng);
            }
            if rng.percent(60) {
                engine.sync().unwrap();
            }
            match rng.below(20) {
                0 => {
                    // The one before is fenced, and let go of afterwards.
                    engine.sync().unwrap();
                    let next = writer(&store, true);
                    drop(std::mem::replace(&mut engine, next));
                }
                1 => {
                    drop(engine);
                    engine = writer(&store, false);
                }
                _ => {}
            }
            if round % 3 == 0 {
                let _ = follower.poll();
                let (rows, position) = shown(&mut follower);
                last = history.check((&rows, position), last);
            }
        }
        engine.sync().unwrap();
        reader.failing.lock().1 = 0;
        follower.poll().unwrap();
        assert_eq!(shown(&mut follower).0, history.now, "seed {seed}");
        assert_eq!(follower.followed_to().epoch, engine.shared.manifest().epoch);
        // A follower that begins now comes to the same.
        assert_eq!(shown(&mut self::follower(reader)).0, history.now, "seed {seed}");
    }
}

/// A log object that is damaged or missing keeps a follower at the moment before it, and it goes on
/// when the object is back.
#[test]
fn damaged_and_missing_log_objects() {
    let store = made(&UUID);
    let engine = writer(&store, false);
    let mut follower = follower(store.clone());
    let before = engine.epoch().0;
    let mut history = History::default();
    for number in 0..3 {
        history.commit(&engine, vec![put(1, &[number], b"x")]);
        engine.sync().unwrap();
    }
    let next = follower.followed_to().log_next + 1;
    let name = format!("meta/0/{}", name(next));
    let whole = store.read(&name).unwrap().unwrap().bytes;
    store.damage(&name, |mut bytes| {
        bytes[80] ^= 1;
        bytes
    });
    assert!(matches!(follower.poll(), Err(EngineError::Corrupt(_))));
    let at_first = shown(&mut follower);
    assert_eq!(history.check((&at_first.0, at_first.1), 1), 1);
    store.remove(&name).unwrap();
    let why = follower.poll().unwrap_err().to_string();
    assert!(why.contains("has lost an object"), "{why}");
    assert_eq!(shown(&mut follower), at_first);
    assert!(store.create(&name, whole).unwrap());
    follower.poll().unwrap();
    assert_eq!(shown(&mut follower).0, history.now);
    assert_eq!(follower.followed_to().epoch, before);
}

/// An object that is lost is found out later, too: when nothing came right behind it.
#[test]
fn lost_object_that_is_waited_for() {
    let store = made(&UUID);
    let engine = writer(&store, false);
    let mut follower = follower(store.clone());
    let (mut history, mut rng) = (History::default(), Rng::new(6));
    follower.found_before = 0;
    for _ in 0..2 {
        history.some(&engine, &mut rng);
        engine.sync().unwrap();
    }
    store.remove(&format!("meta/0/{}", name(follower.followed_to().log_next))).unwrap();
    follower.poll().unwrap();
    follower.looked_for_lost = None;
    for _ in 0..2 {
        let why = follower.poll().unwrap_err().to_string();
        assert!(why.contains("has lost an object"), "{why}");
    }
}

/// A volume that was formatted anew, rows that are gone, and an older state of the bucket are told
/// apart from the volume that is followed.
#[test]
fn buckets_that_are_not_the_volume() {
    let store = made(&UUID);
    let engine = writer(&store, false);
    let (mut history, mut rng) = (History::default(), Rng::new(7));
    history.some(&engine, &mut rng);
    engine.sync().unwrap();
    let manifest = "meta/0/manifest";
    let older = store.read(manifest).unwrap().unwrap().bytes;
    engine.shared.publish(|_| ()).unwrap();
    let mut follower = follower(store.clone());
    let newer = store.read(manifest).unwrap().unwrap().bytes;
    let other = Manifest::new(&OTHER, 0).encode();
    let future = String::from_utf8(newer.to_vec()).unwrap().replace("format\":1", "format\":9");
    for (bytes, expected) in [
        (other, "belongs to node 0 of the volume"),
        (older.to_vec(), "an older state of the bucket"),
        (future.into_bytes(), "use a newer one"),
    ] {
        store.damage(manifest, |_| bytes);
        let why = follower.poll().unwrap_err();
        assert!(matches!(&why, EngineError::Refused(text) if text.contains(expected)), "{why}");
    }
    store.remove(manifest).unwrap();
    let why = follower.poll().unwrap_err();
    assert!(why.to_string().contains("has no metadata"), "{why}");
    store.create(manifest, newer).unwrap();
    follower.poll().unwrap();
    assert_eq!(shown(&mut follower).0, history.now);
    let store: Arc<dyn NamedStore> = store;
    assert!(Follower::open_on((store.clone(), store), OTHER, 0, 1 << 20).is_err());
}

/// What a moment shows stays as it is while the follower goes on, and nothing can be committed.
#[test]
fn moments_do_not_change() {
    let store = made(&UUID);
    let engine = writer(&store, false);
    let (mut history, mut rng) = (History::default(), Rng::new(8));
    history.some(&engine, &mut rng);
    engine.sync().unwrap();
    let mut follower = follower(store);
    let (rows, then) = (follower.rows(), history.now.clone());
    history.some(&engine, &mut rng);
    engine.sync().unwrap();
    follower.poll().unwrap();
    assert_eq!(content(&*rows), then);
    assert_eq!(content(&*follower.rows()), history.now);
    let refused = rows.commit(BatchKind::Freeing, vec![put(1, b"x", b"y")]);
    assert!(matches!(refused, Err(EngineError::Refused(_))));
    assert!(rows.clone().claim().is_err());
    let same = follower.rows();
    follower.poll().unwrap();
    assert!(Arc::ptr_eq(&same, &follower.rows()));
}

/// Layers are merged, so that there are few, and go when tables have all of them.
#[test]
fn layers_of_the_log() {
    let mut log = LiveLog::default();
    let row = |number: u64| RowChanges::from([(number.to_be_bytes().into(), Some([1; 8].into()))]);
    for number in 0..1000 {
        log.add(number, row(number));
    }
    assert!(log.layers().len() <= 12, "{}", log.layers().len());
    log.drop_before(999);
    assert!(!log.layers().is_empty());
    log.drop_before(1000);
    assert!(log.layers().is_empty());
}
