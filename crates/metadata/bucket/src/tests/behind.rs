//! Engines with a log directory: what they acknowledge is on this machine, and the bucket follows.

use std::path::Path;

use super::*;
use crate::log_dir::{NOTE_NAME, remembered};
use crate::recover::FoundLog;

const LATE: Duration = Duration::from_secs(3600);

fn log_options(dir: &Path, every: Duration, discard: bool) -> LogDirOptions {
    LogDirOptions { dir: dir.join("x"), upload_every: every, discard, note: dir.join(NOTE_NAME) }
}

fn open_behind(
    store: Arc<dyn NamedStore>,
    options: LogDirOptions,
    take_over: bool,
) -> Result<BucketEngine, EngineError> {
    let found = FoundLog::look(options, (UUID, 0), &mut |_| true)?;
    let options = BucketOptions { memory_bytes: 256 << 10, take_over, ..BucketOptions::default() };
    let place = (store, Duration::from_millis(40));
    let options = (options, limits(3000));
    recover::open_logged(place, (UUID, 0), options, no_hook(), Some(found))
}

/// What a machine without the log finds in the bucket.
fn in_bucket(store: &Arc<MemoryNamed>) -> ExpectedRows {
    // A copy, which this leaves alone.
    let copy = Arc::new(MemoryNamed::default());
    for (name, _) in store.list("").unwrap() {
        if let Some(found) = store.read(&name).unwrap() {
            copy.create(&name, found.bytes).unwrap();
        }
    }
    content(&open_on(copy, true).unwrap())
}

/// Waits until the bucket has everything: a call gives up after 40 ms, and a disk may be slower.
fn uploaded(engine: &BucketEngine) {
    until("it is uploaded", || engine.upload(Position::MAX).is_ok());
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir.join("x")).unwrap();
    let mut names: Vec<String> =
        names.map(|name| name.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Changes are durable before the store has them, are there after a kill, and are uploaded then; a
/// clean end leaves nothing behind.
#[test]
fn commits_before_their_upload() {
    let (store, dir) = (made(), tempfile::tempdir().unwrap());
    let process = Process::new(store.clone());
    let options = log_options(dir.path(), LATE, false);
    let engine = open_behind(process.clone(), options.clone(), false).unwrap();
    let mut expected = ExpectedRows::new();
    for number in 0..50u32 {
        let batch = vec![put(1, &number.to_be_bytes(), b"kept")];
        apply(&mut expected, &batch);
        commit(&engine, batch);
        engine.sync().unwrap();
    }
    assert!(in_bucket(&store).is_empty(), "nothing was uploaded");
    let stats = engine.stats();
    assert!(stats.uploads_behind && stats.backlog_bytes > 50 * 64, "{stats:?}");
    process.kill();
    drop(engine);
    assert_eq!(remembered(&options.note, None).unwrap().unwrap(), options.dir);
    let engine = open_behind(store.clone(), options.clone(), true).unwrap();
    assert_eq!(content(&engine), expected);
    uploaded(&engine);
    assert_eq!(in_bucket(&store), expected);
    assert_eq!((engine.stats().backlog_bytes, engine.stats().backlog_age_ms), (0, 0));
    commit(&engine, vec![remove(1, &7u32.to_be_bytes())]);
    drop(engine);
    assert_eq!(names(dir.path()), ["kestrel-log.lock"]);
    assert_eq!(remembered(&options.note, None), Ok(None));
    assert_eq!(in_bucket(&store).len(), 49);
}

/// Batches are uploaded when they are old enough, when there are many, and when that is wanted, and
/// many of them with one PUT.
#[test]
fn times_of_uploads() {
    let (store, dir) = (made(), tempfile::tempdir().unwrap());
    let options = log_options(dir.path(), Duration::from_millis(50), false);
    let engine = open_behind(store.clone(), options, false).unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    until("it is uploaded", || in_bucket(&store).len() == 1);
    drop(engine);
    let options = log_options(dir.path(), LATE, false);
    let engine = open_behind(store.clone(), options, false).unwrap();
    let before = store.list("meta/0/log/").unwrap().len();
    for number in 0..1000u32 {
        commit(&engine, vec![put(2, &number.to_be_bytes(), &[1; 20])]);
    }
    engine.sync().unwrap();
    uploaded(&engine);
    assert!(store.list("meta/0/log/").unwrap().len() <= before + 2);
    assert_eq!(in_bucket(&store).len(), 1001);
    for number in 0..6u32 {
        commit(&engine, vec![put(3, &number.to_be_bytes(), &vec![1; 1 << 20])]);
    }
    until("many bytes are uploaded", || in_bucket(&store).len() > 1001);
}

/// Processes that end at any moment, also while they open the rows, on a store that loses requests
/// and answers: what was durable is there, and the bucket has a moment of the past.
#[test]
fn kills_by_seeds() {
    for seed in 0..8 {
        let (store, mut rng) = (made(), Rng::new(seed));
        let dir = tempfile::tempdir().unwrap();
        let mut history: Vec<ExpectedRows> = vec![ExpectedRows::new()];
        let mut durable = 0;
        for _ in 0..14 {
            let process = Process::new(store.clone());
            process.fail(rng.next_u64(), 20);
            let ends_while_opening = rng.percent(40);
            if ends_while_opening {
                process.kill_after(rng.range(1, 12));
            }
            let every = Duration::from_millis(rng.below(20));
            let options = log_options(dir.path(), every, false);
            let opened = open_behind(process.clone(), options, true);
            let Some(engine) = opened.ok().filter(|_| !ends_while_opening) else {
                process.kill();
                continue;
            };
            let found = content(&engine);
            process.kill_after(rng.range(1, 60));
            let at = history.iter().rposition(|state| *state == found);
            let at = at.unwrap_or_else(|| panic!("seed {seed}: rows of no moment"));
            assert!(at >= durable, "seed {seed}: {at} of {durable} that were durable");
            history.truncate(at + 1);
            for _ in 0..rng.range(1, 60) {
                let batch = random_batch(&mut rng);
                let mut next = history.last().unwrap().clone();
                apply(&mut next, &batch);
                if engine.commit(BatchKind::Growing, batch).is_err() {
                    break;
                }
                history.push(next);
                if rng.percent(60) && engine.sync().is_ok() {
                    durable = history.len() - 1;
                }
                if rng.percent(3) {
                    let _ = engine.upload(Position::MAX);
                }
            }
            process.kill();
            drop(engine);
            assert!(history.contains(&in_bucket(&store)), "seed {seed}: the bucket");
        }
        let engine = open_behind(store, log_options(dir.path(), LATE, false), true).unwrap();
        assert!(history[durable..].contains(&content(&engine)), "seed {seed}");
    }
}

/// After another machine took the volume over, a process acknowledges nothing once it has noticed,
/// its batches are not mixed in, and they are kept.
#[test]
fn takeover_by_another_machine() {
    for seed in 0..8 {
        let (store, dir, mut rng) = (made(), tempfile::tempdir().unwrap(), Rng::new(seed));
        let options = log_options(dir.path(), LATE, false);
        let engine = open_behind(store.clone(), options.clone(), false).unwrap();
        commit(&engine, vec![put(1, b"a", b"uploaded")]);
        uploaded(&engine);
        let lost = rng.below(4);
        for number in 0..lost {
            commit(&engine, vec![put(1, &[number as u8], b"lost")]);
            engine.sync().unwrap();
        }
        let second = open_on(store.clone(), true).unwrap();
        assert_eq!(content(&second).len(), 1);
        for number in 0..rng.below(100) as u8 {
            commit(&second, vec![put(2, &[number], b"later")]);
            second.sync().unwrap();
        }
        let expected = content(&second);
        let late = rng.percent(50);
        if late {
            commit(&engine, vec![put(1, b"late", b"never")]);
        }
        if lost > 0 || late {
            until("it has lost the rows", || {
                matches!(engine.upload(Position::MAX), Err(EngineError::Fenced { .. }))
            });
            assert!(engine.commit(BatchKind::Growing, vec![put(1, b"b", b"never")]).is_err());
            assert!(engine.sync().is_err(), "nothing is acknowledged any more");
        }
        drop(engine);
        drop(second);
        if lost > 0 || late {
            let why = expect_err(open_behind(store.clone(), options.clone(), true)).to_string();
            let count = lost + u64::from(late);
            assert!(why.contains(&format!("{count} batches")), "{why}");
            assert!(why.contains("--discard-log"), "{why}");
            let again = expect_err(open_behind(store.clone(), options.clone(), true));
            assert!(again.to_string().contains(&format!("{count} batches")), "{again}");
        }
        let options = log_options(dir.path(), LATE, lost > 0 || late);
        let engine = open_behind(store.clone(), options, false).unwrap();
        assert_eq!(content(&engine), expected);
        let aside = names(dir.path()).iter().any(|name| name == "kestrel-log.aside-1");
        assert_eq!(aside, lost > 0 || late);
    }
}

/// A store that does not answer holds nothing up until the backlog is full; then commits wait.
#[test]
fn store_that_does_not_answer() {
    let (store, dir) = (made(), tempfile::tempdir().unwrap());
    let process = Process::new(store.clone());
    let options = log_options(dir.path(), Duration::ZERO, false);
    let engine = open_behind(process.clone(), options, false).unwrap();
    process.fail(1, 100);
    for number in 0..70u32 {
        commit(&engine, vec![put(1, &number.to_be_bytes(), &vec![1; 1 << 20])]);
        engine.sync().unwrap();
        if engine.stats().backlog_bytes > 64 << 20 {
            break;
        }
    }
    let why = expect_err(engine.commit(BatchKind::Growing, vec![put(1, b"more", b"1")]));
    assert!(why.to_string().contains("too many changes wait"), "{why}");
    let why = expect_err(engine.settle());
    assert!(why.to_string().contains("the next mount on this machine uploads them"), "{why}");
    process.fail(1, 0);
    until("commits go on", || {
        engine.commit(BatchKind::Growing, vec![put(1, b"more", b"1")]).is_ok()
    });
    until("it is settled", || engine.settle().is_ok());
    assert_eq!(in_bucket(&store), content(&engine));
}

/// A damaged log is an error that names the file, and can be set aside.
#[test]
fn damaged_log() {
    let (store, dir) = (made(), tempfile::tempdir().unwrap());
    let process = Process::new(store.clone());
    let options = log_options(dir.path(), LATE, false);
    let engine = open_behind(process.clone(), options.clone(), false).unwrap();
    for number in 0..5u8 {
        commit(&engine, vec![put(1, &[number], &[1; 100])]);
        engine.sync().unwrap();
    }
    process.kill();
    drop(engine);
    let log = options.dir.join("kestrel-log/log");
    let files = std::fs::read_dir(&log).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|it| it == "log")).collect();
    files.sort();
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[4096 + 100] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    let why = expect_err(open_behind(store.clone(), options.clone(), true));
    let name = files[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(matches!(&why, EngineError::Corrupt(text) if text.contains(&name)), "{why}");
    assert!(why.to_string().contains("--discard-log"), "{why}");
    let engine = open_behind(store, log_options(dir.path(), LATE, true), true).unwrap();
    assert!(content(&engine).is_empty());
    assert!(names(dir.path()).contains(&"kestrel-log.aside-1".into()));
}
