//! Kills a process that uses the embedded engine, at every named point and at random instants, and
//! checks that every acknowledged batch is there, and nothing but a prefix of what was committed.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::crash;
use kestrel_types::crash::POINTS;
use kestrel_types::key::{Key, KeyRef, Table};

/// Names the volume to the child.
const DIR: &str = "KESTREL_ENGINE_KILL_DIR";
/// Keys that batches go round.
const KEYS: u64 = 500;

fn open(dir: &Path) -> EmbeddedEngine {
    let options = EmbeddedOptions {
        memory_bytes: 128 << 10,
        sync_interval: Some(Duration::from_millis(20)),
        segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        reserve_bytes: 0,
        ..EmbeddedOptions::default()
    };
    EmbeddedEngine::open(dir, [5; 16], options, Arc::new(|| Ok(())), &mut |_| true).unwrap()
}

fn key(number: u64) -> Key {
    Key::new(Table::Entry, number % 5, &(number % KEYS).to_be_bytes())
}

/// Batch `number` writes its number to one key and to the counter, and deletes another key.
fn batch(number: u64) -> Vec<Mutation> {
    let mut value = vec![number as u8; 40 + number as usize % 200];
    value[..8].copy_from_slice(&number.to_be_bytes());
    vec![
        Mutation { key: key(number), value: Some(value.into()) },
        Mutation { key: key(number + KEYS / 2), value: None },
        Mutation {
            key: Key::new(Table::System, 0, b"last"),
            value: Some(number.to_be_bytes().into()),
        },
    ]
}

fn last(engine: &EmbeddedEngine) -> u64 {
    let mut last = 0;
    engine
        .get_many(&[KeyRef::new(Table::System, 0, b"last")], &mut |_, row| {
            last = row.value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()));
        })
        .unwrap();
    last
}

/// What the volume must hold after batch `last`.
fn check(engine: &EmbeddedEngine, last: u64) {
    let mut rows = 0;
    engine
        .scan_table(Table::Entry, None, &mut |found, value| {
            let number = u64::from_be_bytes(value[..8].try_into().unwrap());
            assert!(
                number <= last && number + KEYS > last,
                "{number} is not of the last round before {last}"
            );
            assert_eq!(found, key(number).borrow());
            rows += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    // The newest half of the keys is there, the older half deleted.
    assert_eq!(rows, last.min(KEYS / 2));
}

/// Not a test by itself: what the child runs.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    crash::arm_from_environment().unwrap();
    let engine = open(Path::new(&dir));
    let first = last(&engine) + 1;
    for number in first..first + 20_000 {
        engine.commit(BatchKind::Growing, batch(number)).unwrap();
        println!("acknowledged {number}");
        if number % 64 == 0 {
            engine.sync().unwrap();
        }
        if number % 300 == 0 {
            engine.flush().unwrap();
        }
    }
}

fn start(dir: &Path, point: Option<String>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    if let Some(point) = point {
        command.env("KESTREL_CRASH_AT", point);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Lets a child run until it dies, killed after `kill_after` acknowledgements at the latest.
fn cycle(dir: &Path, point: Option<String>, kill_after: u64) {
    let name = format!("{point:?} {kill_after}");
    let mut child = start(dir, point);
    let output = BufReader::new(child.stdout.take().unwrap());
    let (mut acknowledged, mut count) = (0, 0);
    for line in output.lines().map_while(Result::ok) {
        if let Some(number) =
            line.rsplit_once("acknowledged ").map(|(_, number)| number.parse().unwrap())
        {
            acknowledged = number;
            count += 1;
            if count == kill_after {
                child.kill().unwrap();
            }
        }
    }
    assert!(!child.wait().unwrap().success(), "{name}: the child ended by itself");
    let engine = open(dir);
    let last = last(&engine);
    assert!(last >= acknowledged, "{name}: {acknowledged} was acknowledged, {last} is there");
    check(&engine, last);
}

#[test]
fn killed_at_every_point() {
    let dir = tempfile::tempdir().unwrap();
    for round in [1, 3] {
        for point in POINTS.iter().filter(|point| point.starts_with("engine.")) {
            let count = if point.starts_with("engine.log") { 400 * round } else { round };
            cycle(dir.path(), Some(format!("{point}:{count}")), 10_000);
        }
    }
}

#[test]
fn killed_at_random_instants() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..40 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        cycle(dir.path(), None, 1 + (state >> 33) % 1500);
    }
}
