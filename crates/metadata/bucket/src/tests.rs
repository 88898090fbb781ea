//! Tests of the whole engine on a store in memory.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tests/process.rs` | a store as one process sees it: it fails, hangs, and ends |
//! | `tests/behind.rs` | engines with a log directory |
//! | `tests/damage.rs` | objects that were changed behind the engine's back |
//! | `tests/ingest.rs` | rows that become tables at once |

mod behind;
mod damage;
mod ingest;
mod process;

use std::sync::mpsc;
use std::time::Instant;

use kestrel_blockstore::named::{LocalNamed, MemoryNamed, NamedStore};
use kestrel_engine::exercise::{
    EngineOp, ExpectedRows, apply, check, commit, content, op, put, remove,
};
use kestrel_testkit::rng::Rng;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::flusher::FlushLimits;
use process::Process;

const UUID: Uuid = *b"0123456789abcdef";

fn no_hook() -> BeforeSync {
    Arc::new(|| Ok(()))
}

/// Memtables of so many bytes.
fn limits(memtable_bytes: usize) -> FlushLimits {
    FlushLimits { memtable_bytes, log_objects: 40 }
}

fn open_on(store: Arc<dyn NamedStore>, take_over: bool) -> Result<BucketEngine, EngineError> {
    let options = BucketOptions { memory_bytes: 256 << 10, take_over, ..BucketOptions::default() };
    let place = (store, Duration::from_millis(40));
    recover::open_with(place, (UUID, 0), (options, limits(3000)), no_hook())
}

fn made() -> Arc<MemoryNamed> {
    let store = Arc::new(MemoryNamed::default());
    recover::create_in(&*store, &UUID, 0, false).unwrap();
    store
}

fn expect_err<T>(result: Result<T, EngineError>) -> EngineError {
    match result {
        Ok(_) => panic!("must fail"),
        Err(why) => why,
    }
}

/// Waits for something.
fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whatever is done with an engine, it has the rows that a map has, also when it is opened again.
fn agrees_with_a_map(store: Arc<dyn NamedStore>, ops: &[EngineOp]) {
    let mut expected = ExpectedRows::new();
    let mut engine = open_on(store.clone(), false).unwrap();
    for op in ops {
        check(&engine, &mut expected, op);
        match op {
            EngineOp::Flush => engine.sync().unwrap(),
            EngineOp::Evict | EngineOp::Compact => engine.forget(),
            EngineOp::Close | EngineOp::Kill => {
                engine.settle().unwrap();
                drop(engine);
                engine = open_on(store.clone(), false).unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(content(&engine), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn same_rows_as_a_map(ops in vec(op(), 1..120)) {
        agrees_with_a_map(made(), &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    /// A directory serves as a bucket, too.
    #[test]
    fn same_rows_as_a_map_in_a_directory(ops in vec(op(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(LocalNamed::open(dir.path()).unwrap());
        recover::create_in(&*store, &UUID, 0, false).unwrap();
        agrees_with_a_map(store, &ops);
    }
}

/// Rows that were flushed and merged are all there when the rows are opened again, and objects that
/// nothing refers to are gone.
#[test]
fn rows_after_flushes_and_merges() {
    let store = made();
    let mut expected = ExpectedRows::new();
    for _ in 0..3 {
        let engine = open_on(store.clone(), false).unwrap();
        assert_eq!(content(&engine), expected);
        for round in 0..150u32 {
            let batch: Vec<Mutation> = (0..20u32)
                .map(|number| {
                    put(u64::from(number % 7), &(round * 9 + number).to_be_bytes(), &[7; 90])
                })
                .chain([remove(1, &(round * 5).to_be_bytes())])
                .collect();
            apply(&mut expected, &batch);
            commit(&engine, batch);
            if round % 10 == 0 {
                engine.sync().unwrap();
            }
        }
        engine.sync().unwrap();
        until("runs are merged", || engine.shared.tree.view().runs.len() <= 4);
        assert!(engine.stats().flushes > 4, "{:?}", engine.stats());
        engine.forget();
        assert_eq!(content(&engine), expected);
    }
    let engine = open_on(store.clone(), false).unwrap();
    until("leftovers are gone", || {
        let manifest = engine.shared.manifest();
        let tables = store.list("meta/0/table/").unwrap().len();
        let named = manifest.runs.iter().flatten().count();
        tables == named && manifest.fences.is_empty()
    });
}

/// Rows in hundreds of blocks are all found, one by one, many at once and by scans; a scan fetches
/// many blocks with one request.
#[test]
fn tables_of_many_blocks() {
    let (store, mut rng) = (made(), Rng::new(3));
    let options =
        BucketOptions { memory_bytes: 512 << 10, take_over: false, ..BucketOptions::default() };
    let place = (store.clone() as Arc<dyn NamedStore>, Duration::from_secs(10));
    let limits = FlushLimits { memtable_bytes: 2 << 20, log_objects: 1000 };
    let engine = recover::open_with(place, (UUID, 0), (options, limits), no_hook()).unwrap();
    let mut expected = ExpectedRows::new();
    for number in 0..4000u32 {
        let mut value = vec![0; 2000];
        kestrel_testkit::rng::fill(rng.next_u64(), &mut value);
        let batch = vec![put(u64::from(number % 50), &number.to_be_bytes(), &value)];
        apply(&mut expected, &batch);
        commit(&engine, batch);
    }
    engine.sync().unwrap();
    // A memtable becomes a table when something is stored.
    let last = vec![put(99, b"last", b"")];
    apply(&mut expected, &last);
    until("most rows are in tables", || {
        commit(&engine, last.clone());
        engine.sync().is_ok() && engine.stats().flushes >= 2
    });
    engine.forget();
    let before = store.calls("read");
    assert_eq!(content(&engine), expected);
    let requests = store.calls("read") - before;
    assert!(requests < 60, "{requests} requests for 8 MB");
    for _ in 0..20 {
        engine.forget();
        let keys: Vec<Vec<u8>> = (0..40)
            .map(|_| expected.keys().nth(rng.below(4000) as usize).unwrap().clone())
            .collect();
        let refs: Vec<KeyRef<'_>> = keys.iter().map(|key| KeyRef::decode(key).unwrap()).collect();
        let mut seen = 0;
        let mut visit = |index: usize, row: Row<'_>| {
            assert_eq!(row.value, expected.get(&keys[index]).map(Vec::as_slice));
            seen += 1;
        };
        engine.get_many(&refs, &mut visit).unwrap();
        assert_eq!(seen, keys.len());
    }
}

/// Batches that come while an object is on its way become one object.
#[test]
fn group_commit() {
    let store = made();
    let process = Process::new(store.clone());
    process.slow(Duration::from_millis(5));
    let engine = open_on(process, false).unwrap();
    let before = store.calls("create");
    let (sender, receiver) = mpsc::channel();
    for number in 0..2000u32 {
        let position = commit(&engine, vec![put(1, &number.to_be_bytes(), b"row")]);
        let sender = sender.clone();
        engine.on_durable(position, Box::new(move |done| sender.send(done).unwrap()));
    }
    for _ in 0..2000 {
        receiver.recv().unwrap().unwrap();
    }
    let objects = store.calls("create") - before;
    assert!(objects < 200, "{objects} objects for 2000 batches");
}

/// A second process that opens the rows is refused and told which has them; one that takes them
/// over fences the first, which reports nothing as durable any more.
#[test]
fn second_opener_and_takeover() {
    let store = made();
    let first = Arc::new(open_on(store.clone(), false).unwrap());
    let holder = first.clone().claim().unwrap();
    commit(&*holder, vec![put(1, b"a", b"1")]);
    holder.sync().unwrap();
    let why = expect_err(open_on(store.clone(), false));
    assert!(
        matches!(&why, EngineError::Refused(text) if text.contains("--take-over")
            && text.contains("kestrel node 0, process")),
        "{why}"
    );
    let second = open_on(store.clone(), true).unwrap();
    assert!(second.epoch() > holder.epoch());
    commit(&second, vec![put(1, b"b", b"2")]);
    second.sync().unwrap();
    commit(&*holder, vec![put(1, b"a", b"stale")]);
    let why = expect_err(holder.sync());
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    assert!(expect_err(first.get_many(&[], &mut |_, _| {})).to_string().contains("taken"));
    let mut expected = ExpectedRows::new();
    apply(&mut expected, &[put(1, b"a", b"1"), put(1, b"b", b"2")]);
    assert_eq!(content(&second), expected);
    drop((holder, first, second));
    assert_eq!(content(&open_on(store, false).unwrap()), expected);
}

/// A process that was stopped while it wrote, and goes on when another one has taken its rows over
/// and removed all log objects of that time, does not write and reports nothing as durable.
#[test]
fn stopped_process_that_goes_on() {
    for stopped_before_its_put in [true, false] {
        let store = made();
        let process = Process::new(store.clone());
        let first = open_on(process.clone(), false).unwrap();
        for number in 0..5u32 {
            commit(&first, vec![put(1, &number.to_be_bytes(), b"kept")]);
            first.sync().unwrap();
        }
        process.stop(stopped_before_its_put);
        let position = commit(&first, vec![put(2, b"late", b"perhaps")]);
        until("it is stopped", || process.is_stopped());
        let second = open_on(store.clone(), true).unwrap();
        let taken = content(&second);
        assert_eq!(taken.len(), if stopped_before_its_put { 5 } else { 6 });
        for number in 0..400u32 {
            commit(&second, vec![put(3, &number.to_be_bytes(), &[1; 50])]);
            second.sync().unwrap();
        }
        until("log objects are gone", || {
            store.list("meta/0/log/").unwrap().len() < 100 && second.stats().flushes > 0
        });
        process.go_on();
        // What it had put before it was stopped it may acknowledge: the other one has it.
        let done = first.shared.row_cache.wait(position);
        assert_eq!(done.is_ok(), !stopped_before_its_put, "{done:?}");
        let _ = first.commit(BatchKind::Growing, vec![put(2, b"later", b"never")]);
        let why = expect_err(first.sync());
        assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
        drop(first);
        let expected = content(&second);
        assert!(!expected.keys().any(|key| key.ends_with(b"later")));
        drop(second);
        assert_eq!(content(&open_on(store, false).unwrap()), expected);
    }
}

/// Processes that end at any moment, on a store that loses requests and answers: what was reported
/// Some changes of rows of four directories.
fn random_batch(rng: &mut Rng) -> Vec<Mutation> {
    let count = rng.range(1, 12);
    let mutation = |_| {
        let (id, name) = (rng.below(4), [rng.below(200) as u8]);
        match rng.percent(80) {
            true => put(id, &name, &rng.next_u64().to_be_bytes().repeat(9)),
            false => remove(id, &name),
        }
    };
    (0..count).map(mutation).collect()
}

/// as durable is there, batches are whole, and none is there without those before it.
#[test]
fn kills_on_a_store_that_fails() {
    for seed in 0..12 {
        let (store, mut rng) = (made(), Rng::new(seed));
        let mut history: Vec<ExpectedRows> = vec![ExpectedRows::new()];
        for _ in 0..12 {
            let process = Process::new(store.clone());
            process.fail(rng.next_u64(), 20);
            let Ok(engine) = open_on(process.clone(), true) else {
                process.kill();
                continue;
            };
            let found = content(&engine);
            let at = history.iter().rposition(|state| *state == found);
            let at = at.unwrap_or_else(|| panic!("seed {seed}: rows of no moment"));
            history = vec![history.swap_remove(at)];
            process.kill_after(rng.range(1, 120));
            for _ in 0..rng.range(1, 60) {
                let batch = random_batch(&mut rng);
                let mut next = history.last().unwrap().clone();
                apply(&mut next, &batch);
                if engine.commit(BatchKind::Growing, batch).is_err() {
                    break;
                }
                history.push(next);
                if rng.percent(60) && engine.sync().is_ok() {
                    history.drain(..history.len() - 1);
                }
            }
            process.kill();
            drop(engine);
        }
        let engine = open_on(store.clone(), true).unwrap();
        assert!(history.contains(&content(&engine)), "seed {seed}");
    }
}

/// A full store takes nothing that grows, confirms that the rows are this process's, and loses
/// nothing: what frees space waits until there is some.
#[test]
fn full_store() {
    let store = made();
    let process = Process::new(store.clone());
    let engine = open_on(process.clone(), false).unwrap();
    commit(&engine, vec![put(1, b"a", b"1"), put(1, b"b", b"1")]);
    engine.sync().unwrap();
    assert_eq!(engine.confirmations(), 0);
    process.fill(true);
    let waiting = commit(&engine, vec![put(1, b"c", b"1")]);
    until("it is full", || {
        let grown = engine.commit(BatchKind::Growing, vec![put(1, b"d", b"1")]);
        grown == Err(EngineError::NoSpace)
    });
    until("it is confirmed", || engine.confirmations() >= 3);
    engine.commit(BatchKind::Freeing, vec![remove(1, b"b")]).unwrap();
    assert!(engine.durable() < waiting);
    process.fill(false);
    engine.sync().unwrap();
    commit(&engine, vec![put(1, b"e", b"1")]);
    engine.sync().unwrap();
    let expected = content(&engine);
    assert!(expected.keys().any(|key| key.ends_with(b"c")));
    assert!(!expected.keys().any(|key| key.ends_with(b"b")));
    drop(engine);
    assert_eq!(content(&open_on(store, false).unwrap()), expected);
}

/// Of several processes that open the rows at once at most one has them in the end.
#[test]
fn openers_at_once() {
    for _ in 0..20 {
        let store = made();
        let engines: Vec<_> = std::thread::scope(|scope| {
            let open = || {
                let store = store.clone();
                scope.spawn(move || open_on(store, false))
            };
            let opening: Vec<_> = (0..4).map(|_| open()).collect();
            opening.into_iter().map(|opened| opened.join().unwrap()).collect()
        });
        let usable = engines.iter().flatten().filter(|engine| {
            let committed = engine.commit(BatchKind::Growing, vec![put(1, b"a", b"1")]);
            committed.is_ok() && engine.sync().is_ok()
        });
        assert!(usable.count() <= 1);
    }
}

/// Rows of another volume or node, and a prefix without rows, are refused.
#[test]
fn rows_of_others() {
    let store = made();
    let why = expect_err(recover::create_in(&*store, b"another volume..", 0, false));
    assert!(why.to_string().contains("belongs to node 0 of the volume"), "{why}");
    recover::create_in(&*store, &UUID, 0, false).unwrap();
    let options = BucketOptions::default();
    let open = |uuid: &Uuid, node| {
        let place = (store.clone() as Arc<dyn NamedStore>, Duration::from_secs(1));
        recover::open(place, (*uuid, node), options, no_hook())
    };
    let why = expect_err(open(b"another volume..", 0));
    assert!(why.to_string().contains("another bucket or prefix is meant"), "{why}");
    let why = expect_err(open(&UUID, 1));
    assert!(why.to_string().contains("no metadata of node 1"), "{why}");
}

/// What other machines ask without a claim: the process that has the rows, and a row.
#[test]
fn looks_without_a_claim() {
    let dir = tempfile::tempdir().unwrap();
    let url = BucketUrl::parse(&format!("file://{}", dir.path().display())).unwrap();
    assert_eq!(holder(&url, 3).unwrap(), None);
    let why = BucketEngine::create(&url, UUID, 3, true).unwrap_err();
    assert!(why.to_string().contains("no metadata of the volume"), "{why}");
    BucketEngine::create(&url, UUID, 3, false).unwrap();
    let why = BucketEngine::create(&url, *b"another volume..", 4, false).unwrap_err();
    assert!(why.to_string().contains("belongs to node 3 of the volume"), "{why}");
    let open = || BucketEngine::open(&url, UUID, 3, BucketOptions::default(), no_hook()).unwrap();
    let engine = open();
    let holder_name = holder(&url, 3).unwrap().unwrap();
    assert!(holder_name.contains(&format!("process {}", std::process::id())), "{holder_name}");
    let Mutation { key, .. } = put(1, b"a", b"1");
    assert_eq!(peek(&url, 3, key.borrow()).unwrap(), None);
    commit(&engine, vec![put(1, b"a", b"1")]);
    engine.sync().unwrap();
    assert_eq!(peek(&url, 3, key.borrow()).unwrap().as_deref(), Some(&b"1"[..]));
    let why = BucketEngine::remove(&url, UUID).unwrap_err();
    assert!(why.to_string().contains("has the volume open"), "{why}");
    drop(engine);
    assert_eq!(holder(&url, 3).unwrap(), None);
    let engine = open();
    assert_eq!(engine.durable(), 1);
    drop(engine);
    BucketEngine::remove(&url, *b"another volume..").unwrap();
    assert!(peek(&url, 3, key.borrow()).unwrap().is_some(), "it was not this volume's");
    BucketEngine::remove(&url, UUID).unwrap();
    assert!(peek(&url, 3, key.borrow()).unwrap_err().contains("no metadata"));
}
