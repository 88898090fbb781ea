//! Kills a process that makes and removes snapshots, at every named point of theirs and at random
//! instants, and checks that every acknowledged snapshot is there and is what it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::embedded::{call, open};
use common::{at, check, name};
use kestrel_engine::Engine;
use kestrel_meta::node::Node;
use kestrel_types::crash::{self, POINTS};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

/// Names the volume to the child.
const DIR: &str = "KESTREL_SNAPSHOT_KILL_DIR";
/// Files that there are after each round.
const FILES: u64 = 3;
/// Snapshots that stay.
const SNAPSHOTS: u64 = 4;

fn list(node: &Node) -> Vec<SnapshotInfo> {
    match call(node, Op::SnapshotList { dir: None, ancestors: false }) {
        Ok(Answer::Snapshots(mut list)) => {
            list.retain(|info| !info.removing);
            list
        }
        other => panic!("{other:?}"),
    }
}

/// The number in a name.
fn number(name: &[u8]) -> u64 {
    std::str::from_utf8(&name[1..]).unwrap().parse().unwrap()
}

/// Numbers of the files in the root, now or at a snapshot.
fn files(node: &Node, snapshot: Option<SnapshotId>) -> Vec<u64> {
    let op = Op::ReadDir { dir: ROOT, after: None, limit: 1000, check: false };
    let op = match snapshot {
        None => op,
        Some(snapshot) => Op::At(snapshot, Box::new(op)),
    };
    match call(node, op) {
        Ok(Answer::Entries { entries, .. }) => {
            let mut files: Vec<u64> =
                entries.iter().map(|entry| number(entry.name.as_bytes())).collect();
            files.sort_unstable();
            files
        }
        other => panic!("{other:?}"),
    }
}

/// The files after this round.
fn expected(round: u64) -> Vec<u64> {
    (round.saturating_sub(FILES - 1).max(1)..=round).collect()
}

/// Not a test by itself: what the child runs.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    crash::arm_from_environment().unwrap();
    let (_engine, node) = open(Path::new(&dir));
    let of = |kind: char, number: u64| name(&format!("{kind}{number}"));
    let newest = list(&node).iter().map(|info| number(info.name.as_bytes())).max();
    // What the last round had begun is done again.
    for round in newest.unwrap_or(0) + 1.. {
        let file = Op::MkNod {
            place: at(ROOT, &format!("f{round}")),
            kind: Kind::File,
            mode: 0o644,
            rdev: 0,
        };
        let _there = call(&node, file);
        for old in files(&node, None).into_iter().filter(|old| old + FILES <= round) {
            call(&node, Op::Unlink(at(ROOT, &format!("f{old}")))).unwrap();
        }
        call(&node, Op::SnapshotCreate { dir: ROOT, name: of('s', round) }).unwrap();
        println!("acknowledged {round}");
        for info in list(&node) {
            if number(info.name.as_bytes()) + SNAPSHOTS <= round {
                call(&node, Op::SnapshotRemove { dir: ROOT, name: info.name }).unwrap();
            }
        }
        if round % 2 == 0 {
            while node.tidy_history().unwrap() {}
        }
    }
}

/// Lets a child run until it dies, killed after `kill_after` snapshots at the latest.
fn cycle(dir: &Path, point: Option<String>, kill_after: u64) {
    let name = format!("{point:?} {kill_after}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    if let Some(point) = point {
        command.env("KESTREL_CRASH_AT", point);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (mut acknowledged, mut count) = (0u64, 0);
    for line in output.lines().map_while(Result::ok) {
        if let Some((_, round)) = line.rsplit_once("acknowledged ") {
            (acknowledged, count) = (round.parse().unwrap(), count + 1);
            if count == kill_after {
                child.kill().unwrap();
            }
        }
    }
    assert!(!child.wait().unwrap().success(), "{name}: the child ended by itself");
    let (engine, node) = open(dir);
    let there: Vec<u64> = list(&node).iter().map(|info| number(info.name.as_bytes())).collect();
    for round in acknowledged.saturating_sub(SNAPSHOTS - 1).max(1)..=acknowledged {
        assert!(there.contains(&round), "{name}: {round} is lost, {there:?} are there");
    }
    for info in list(&node) {
        let then = files(&node, Some(info.id));
        assert_eq!(then, expected(number(info.name.as_bytes())), "{name}: {info:?}");
    }
    check::check(&*engine, &|_| false);
    while node.tidy_history().unwrap() {}
    check::check(&*engine, &|_| false);
    node.close().unwrap();
    engine.sync().unwrap();
}

/// Each point is reached, the first time and later.
#[test]
fn killed_at_every_point() {
    let dir = tempfile::tempdir().unwrap();
    let mut points = 0;
    for count in [1, 2, 7] {
        for point in POINTS.iter().filter(|point| point.starts_with("snapshot.")) {
            cycle(dir.path(), Some(format!("{point}:{count}")), 1000);
            points += 1;
        }
    }
    assert_eq!(points, 18);
}

/// At any instant.
#[test]
fn killed_at_random_instants() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..15 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        cycle(dir.path(), None, 1 + (state >> 33) % 60);
    }
}
