use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kestrel_blockstore::error::{Error, Result as StoreResult};
use kestrel_blockstore::named::{ETag, MemoryNamed, NamedObject, NamedStore};
use kestrel_testkit::rng::Rng;
use kestrel_types::key::{KeyRef, Table};

use super::*;
use crate::version::{VersionId, VersionSource, VersionWriter};

const VOLUME: [u8; 16] = [7; 16];
const INPUT: VersionId = [1; 16];

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store as a process has it that is killed at one of its calls: that one has its effect or
/// not, and all later ones fail.
struct Mortal {
    inner: Arc<dyn NamedStore>,
    left: AtomicI64,
    is_effective: bool,
}

impl Mortal {
    fn call<T>(&self, call: impl FnOnce() -> StoreResult<T>) -> StoreResult<T> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 0 {
            return call();
        }
        if left == 0 && self.is_effective {
            let _ = call();
        }
        Err(Error::Remote { during: "a call", object: None, why: "killed by a test".into() })
    }
}

impl NamedStore for Mortal {
    fn create(&self, name: &str, bytes: Bytes) -> StoreResult<bool> {
        self.call(|| self.inner.create(name, bytes))
    }
    fn replace(&self, name: &str, bytes: Bytes, tag: &str) -> StoreResult<Option<ETag>> {
        self.call(|| self.inner.replace(name, bytes, tag))
    }
    fn read(&self, name: &str) -> StoreResult<Option<NamedObject>> {
        self.call(|| self.inner.read(name))
    }
    fn read_range(&self, name: &str, offset: u64, len: u64) -> StoreResult<Bytes> {
        self.call(|| self.inner.read_range(name, offset, len))
    }
    fn list(&self, below: &str) -> StoreResult<Vec<(String, u64)>> {
        self.call(|| self.inner.list(below))
    }
    fn remove(&self, name: &str) -> StoreResult<()> {
        self.call(|| self.inner.remove(name))
    }
    fn shown(&self) -> &str {
        "mortal"
    }
}

struct World {
    store: Arc<MemoryNamed>,
    input: VersionManifest,
    rows: Rows,
}

impl World {
    /// A version of so many runs with random rows, in several tables each if rows are large.
    fn new(rng: &mut Rng, runs: usize, rows_each: u64, value_bytes: u64) -> Self {
        let store = Arc::new(MemoryNamed::default());
        let registry = registry(store.clone());
        let source = VersionSource {
            dir: 1,
            snapshot_dir: 1,
            snapshot: 5,
            snapshot_name: b"s".into(),
            owned: true,
        };
        let mut input = VersionManifest::new("in", &VOLUME, &INPUT, source);
        let mut writer = VersionWriter::begin(registry.place(), INPUT).unwrap();
        let mut rows = Rows::new();
        for _ in 0..runs {
            for _ in 0..rng.range(1, rows_each) {
                let suffix: Vec<u8> = (0..rng.below(9)).map(|_| rng.below(4) as u8).collect();
                let key = KeyRef::new(Table::Entry, rng.below(50), &suffix);
                let value: Vec<u8> =
                    (0..rng.below(value_bytes)).map(|_| rng.next_u64() as u8).collect();
                let mut bytes = Vec::new();
                key.encode_into(&mut bytes);
                if let Entry::Vacant(row) = rows.entry(bytes) {
                    writer.put(key, &value).unwrap();
                    row.insert(value);
                }
            }
            writer.end_run().unwrap();
        }
        input.runs = writer.finish().unwrap();
        input.rows = rows.len() as u64;
        assert!(registry.publish(&input).unwrap());
        Self { store, input, rows }
    }

    fn registry(&self) -> VersionRegistry {
        registry(self.store.clone())
    }

    /// A registry of a process that is killed at its call of this number.
    fn mortal(&self, calls: i64, is_effective: bool) -> VersionRegistry {
        let (inner, left) = (self.store.clone(), AtomicI64::new(calls));
        registry(Arc::new(Mortal { inner, left, is_effective }))
    }

    /// Does what a process does from the beginning to the end; the version, if it is published.
    fn compact(
        &self,
        registry: &VersionRegistry,
        (id, partitions): (u8, usize),
    ) -> Result<Option<VersionManifest>, EngineError> {
        if let Some(found) = registry.find("out")? {
            Compaction::tidy(registry, &found)?;
            return Ok(Some(found));
        }
        let begun = match Compaction::find(registry, "out")? {
            Some(found) => Some(found),
            None => {
                VersionWriter::begin(registry.place(), [id; 16])?;
                Compaction::begin(registry, &self.order(id, partitions))?
            }
        };
        let Some(compaction) = begun else { return Ok(None) };
        let mut worker =
            CompactionWorker::new(&compaction, &self.input, &format!("worker-{id}")).unwrap();
        match worker.run()? {
            WorkEnd::Over => Ok(None),
            WorkEnd::Done => match compaction.finish(&self.input)? {
                CompactionEnd::Published(made) => Ok(Some(*made)),
                CompactionEnd::Taken | CompactionEnd::Over => Ok(None),
            },
        }
    }

    fn order(&self, id: u8, partitions: usize) -> CompactionOrder<'_> {
        CompactionOrder {
            input: &self.input,
            into: "out",
            id: [id; 16],
            created: 9,
            user: 3,
            partitions: Some(partitions),
            patience: Duration::ZERO,
        }
    }

    /// Numbers of the tables of partitions that are recorded as done.
    fn done(&self) -> Vec<u64> {
        let registry = self.registry();
        let Some(compaction) = Compaction::find(&registry, "out").unwrap() else {
            return Vec::new();
        };
        let records = (0..compaction.plan.partitions())
            .filter_map(|partition| compaction.record(partition).unwrap());
        records.flat_map(|record| record.tables).map(|table| table.id).collect()
    }

    /// Fails unless the version has the rows of the input in one run, and its plan is gone.
    fn check(&self, made: &VersionManifest) {
        let registry = self.registry();
        let found = registry.find("out").unwrap().map(|found| found.encode());
        assert_eq!(found, Some(made.encode()));
        assert!(made.runs.len() <= 1 && made.rows == self.rows.len() as u64);
        assert_eq!((&made.source, made.figures), (&self.input.source, self.input.figures));
        assert_eq!(made.inputs().iter().map(|one| &one.name[..]).collect::<Vec<_>>(), ["in"]);
        assert!(rows_of(&registry, made) == self.rows);
        assert!(rows_of(&registry, &self.input) == self.rows);
        assert!(self.store.list(PLANS).unwrap().is_empty());
    }

    /// Fails unless it also has no objects beside those that it needs.
    fn check_objects(&self, made: &VersionManifest) {
        self.check(made);
        let prefix = VersionPlace::prefix_of(&made.id_bytes());
        let objects = self.store.list(&prefix).unwrap();
        assert_eq!(objects.len(), made.tables() + 1, "{objects:?}");
    }
}

fn registry(store: Arc<dyn NamedStore>) -> VersionRegistry {
    VersionRegistry::new(VersionPlace::new(store), VOLUME)
}

/// Rows as a reader of single rows finds them.
fn rows_of(registry: &VersionRegistry, version: &VersionManifest) -> Rows {
    let reader = VersionReader::new(registry.place(), version, 1 << 20).unwrap();
    let mut rows = reader.rows(&[], &[u8::MAX; 2]);
    let mut found = Rows::new();
    while let Some((key, value)) = rows.next_row().unwrap() {
        found.insert(key.to_vec(), value.to_vec());
    }
    found
}

/// Versions of any number of runs become one run with the same rows, in any number of partitions.
#[test]
fn rows_of_compacted_versions() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (runs, rows) = (rng.range(1, 9) as usize, *rng.pick(&[3, 40, 3000]));
        let world = World::new(&mut rng, runs, rows, 60);
        let partitions = rng.range(1, 12) as usize;
        let made = world.compact(&world.registry(), (2, partitions)).unwrap().unwrap();
        assert!(made.tables() <= partitions, "seed {seed}");
        world.check_objects(&made);
    }
}

/// Rows of any range are shown as a reader of single rows finds them.
#[test]
fn visits_of_ranges() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let runs = rng.range(1, 9) as usize;
        let world = World::new(&mut rng, runs, 2000, 100);
        let registry = world.registry();
        let reader = VersionReader::new(registry.place(), &world.input, 1 << 20).unwrap();
        for _ in 0..20 {
            let mut end = || match rng.below(3) {
                0 => vec![rng.below(3) as u8],
                1 => vec![u8::MAX; 2],
                _ => world
                    .rows
                    .keys()
                    .nth(rng.below(world.rows.len() as u64) as usize)
                    .unwrap()
                    .clone(),
            };
            let (from, to) = (end(), end());
            let mut found = Vec::new();
            let visited = reader.visit((&from, &to), &mut |key: &[u8], value: &[u8]| {
                found.push((key.to_vec(), value.to_vec()));
                Ok(())
            });
            visited.unwrap();
            let right = world.rows.iter().filter(|(key, _)| **key >= from && **key < to);
            let right: Vec<_> = right.map(|(key, value)| (key.clone(), value.clone())).collect();
            assert!(found == right, "seed {seed}: {from:?} {to:?}");
        }
    }
}

/// Partitions have about the same size, unless one block has more.
#[test]
fn sizes_of_partitions() {
    let world = World::new(&mut Rng::new(1), 5, 60_000, 300);
    let registry = world.registry();
    let made = world.compact(&registry, (2, 4)).unwrap().unwrap();
    assert_eq!(made.tables(), 4);
    let mean = made.table_bytes() / 4;
    for table in &made.runs[0] {
        assert!(table.bytes.abs_diff(mean) < mean / 5, "{} of {mean}", table.bytes);
    }
}

/// A process is killed at each of its calls to the store in turn, before the call has its effect or
/// after it. The next one goes on with what is recorded, and the result is the same.
#[test]
fn workers_killed_at_any_call() {
    for calls in 0.. {
        for is_effective in [false, true] {
            let world = World::new(&mut Rng::new(3), 3, 400, 60);
            let first = world.compact(&world.mortal(calls, is_effective), (2, 4));
            let done = world.done();
            let made = world.compact(&world.registry(), (3, 4)).unwrap().unwrap();
            world.check_objects(&made);
            // No partition that was done is done again.
            let is_there = |table: &u64| made.runs[0].iter().any(|one| one.id == *table);
            assert!(done.iter().all(is_there), "call {calls}: {done:?}");
            // What came to nothing is left over, and nothing else is.
            let left = world.registry().leftovers(Duration::ZERO).unwrap();
            assert!(left.iter().all(|id| *id == [2; 16] && made.id_bytes() != *id));
            if first.is_ok() {
                assert!(calls > 40, "{calls} calls");
                return;
            }
        }
    }
}

/// Several processes at once that are killed at random calls, until one comes through.
#[test]
fn workers_killed_side_by_side() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let runs = rng.range(1, 6) as usize;
        let world = World::new(&mut rng, runs, 300, 60);
        let partitions = rng.range(1, 20) as usize;
        let lives: Vec<Vec<(i64, bool)>> = (0..4)
            .map(|_| (0..6).map(|_| (rng.below(60) as i64, rng.below(2) == 0)).collect())
            .collect();
        thread::scope(|scope| {
            for (worker, lives) in (10u8..).step_by(10).zip(&lives) {
                let world = &world;
                scope.spawn(move || {
                    for (life, (calls, is_effective)) in (0u8..).zip(lives) {
                        let registry = world.mortal(*calls, *is_effective);
                        let _ = world.compact(&registry, (worker + life, partitions));
                    }
                });
            }
        });
        let made = world.compact(&world.registry(), (99, partitions)).unwrap().unwrap();
        // A process may have begun another compaction when the version was about to get its name.
        let registry = world.registry();
        for left in registry.leftovers(Duration::ZERO).unwrap() {
            registry.remove_data(&left).unwrap();
        }
        remove_old_plans(&registry).unwrap();
        // One that was taken for dead may have written a table after that, and died.
        world.check(&made);
    }
}

/// A worker that was taken for dead and is not writes nothing that counts, and nothing that stays.
#[test]
fn worker_taken_for_dead() {
    let world = World::new(&mut Rng::new(2), 3, 400, 60);
    let registry = world.registry();
    VersionWriter::begin(registry.place(), [2; 16]).unwrap();
    let compaction = Compaction::begin(&registry, &world.order(2, 1)).unwrap().unwrap();
    let mut late = CompactionWorker::new(&compaction, &world.input, "late").unwrap();
    let tasks = compaction.tasks().unwrap();
    let claimed = late.claim(&tasks).unwrap().unwrap();
    let mut quick = CompactionWorker::new(&compaction, &world.input, "quick").unwrap();
    assert_eq!(quick.run().unwrap(), WorkEnd::Done);
    late.write(claimed).unwrap();
    assert_eq!((late.written(), quick.written()), (0, 1));
    assert_eq!(late.run().unwrap(), WorkEnd::Done);
    let CompactionEnd::Published(made) = compaction.finish(&world.input).unwrap() else { panic!() };
    world.check_objects(&made);
    assert_eq!(late.run().unwrap(), WorkEnd::Over);
    assert!(matches!(compaction.finish(&world.input).unwrap(), CompactionEnd::Over));
    world.check_objects(&made);
}

/// A compaction that was cleaned up ends with an error that says so, its plan goes, and another one
/// into the same name begins anew. A name that was taken meanwhile stays what it is.
#[test]
fn compactions_that_come_to_nothing() {
    let world = World::new(&mut Rng::new(4), 3, 400, 60);
    let registry = world.registry();
    VersionWriter::begin(registry.place(), [2; 16]).unwrap();
    let compaction = Compaction::begin(&registry, &world.order(2, 3)).unwrap().unwrap();
    // Of two that begin at once one is recorded.
    assert!(Compaction::begin(&registry, &world.order(3, 3)).unwrap().is_none());
    let mut worker = CompactionWorker::new(&compaction, &world.input, "a").unwrap();
    let tasks = compaction.tasks().unwrap();
    let claimed = worker.claim(&tasks).unwrap().unwrap();
    remove_old_plans(&registry).unwrap();
    assert_eq!(registry.leftovers(Duration::ZERO).unwrap(), [[2; 16]]);
    registry.remove_data(&[2; 16]).unwrap();
    worker.write(claimed).unwrap();
    assert!(matches!(worker.run(), Err(EngineError::Io(why)) if why.contains("cleaned up")));
    assert!(Compaction::find(&registry, "out").unwrap().is_none());
    assert_eq!(world.store.list(PLANS).unwrap().len(), 1);
    remove_old_plans(&registry).unwrap();
    assert!(world.store.list(PLANS).unwrap().is_empty());
    assert!(worker.run().is_err());
    // Another one, of which the name is taken.
    VersionWriter::begin(registry.place(), [4; 16]).unwrap();
    let compaction = Compaction::begin(&registry, &world.order(4, 3)).unwrap().unwrap();
    let mut worker = CompactionWorker::new(&compaction, &world.input, "b").unwrap();
    assert_eq!(worker.run().unwrap(), WorkEnd::Done);
    assert!(registry.rename(&world.input, "out").unwrap());
    assert!(matches!(compaction.finish(&world.input).unwrap(), CompactionEnd::Taken));
    assert_eq!(registry.find("out").unwrap().unwrap().id, world.input.id);
    let left: Vec<VersionId> = registry.leftovers(Duration::ZERO).unwrap();
    assert_eq!(left, [[2; 16], [4; 16]]);
}

/// Every flipped bit of a plan, claim or record is found; records that contradict the input publish
/// nothing.
#[test]
fn damaged_records() {
    let world = World::new(&mut Rng::new(6), 3, 400, 60);
    let registry = world.registry();
    VersionWriter::begin(registry.place(), [2; 16]).unwrap();
    let compaction = Compaction::begin(&registry, &world.order(2, 3)).unwrap().unwrap();
    let good = compaction.plan.encode().unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(CompactionPlan::decode("out", &VOLUME, &bad).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(CompactionPlan::decode("out", &VOLUME, &good[..len]).is_err());
    }
    assert!(matches!(CompactionPlan::decode("b", &VOLUME, &good), Err(EngineError::Corrupt(_))));
    let other = CompactionPlan::decode("out", &[8; 16], &good);
    assert!(matches!(other, Err(EngineError::Refused(_))));
    CompactionWorker::new(&compaction, &world.input, "a").unwrap().run().unwrap();
    let record = compaction.plan.done(1);
    let kept = world.store.read(&record).unwrap().unwrap().bytes;
    let set = |bytes: &[u8]| world.store.damage(&record, |_| bytes.to_vec());
    set(b"nothing");
    assert!(matches!(compaction.finish(&world.input), Err(EngineError::Corrupt(_))));
    set(&sealed::seal(&PartitionRecord { rows: 0, tables: Vec::new() }).unwrap());
    let finished = compaction.finish(&world.input);
    assert!(matches!(&finished, Err(EngineError::Corrupt(why)) if why.contains("rows")));
    set(&kept);
    let CompactionEnd::Published(made) = compaction.finish(&world.input).unwrap() else { panic!() };
    world.check_objects(&made);
}
