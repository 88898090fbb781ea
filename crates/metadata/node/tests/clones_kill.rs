//! Kills a process that makes, finishes and changes clones, at every named point of theirs, and
//! checks that every acknowledged clone is whole.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::embedded::{call, open};
use common::{at, check};
use kestrel_engine::Engine;
use kestrel_meta::node::Node;
use kestrel_types::crash::{self, POINTS};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Op};

/// Names the volume to the child.
const DIR: &str = "KESTREL_CLONE_KILL_DIR";
/// Files of each of the two directories of the source.
const FILES: u64 = 3;
/// Clones that stay.
const CLONES: u64 = 3;

fn lookup(node: &Node, path: &str) -> Option<Inode> {
    match call(node, Op::Lookup(at(ROOT, path))) {
        Ok(Answer::Entry { inode, .. }) => Some(*inode),
        _ => None,
    }
}

fn names(node: &Node, path: &str) -> Vec<String> {
    let dir = if path.is_empty() { ROOT } else { lookup(node, path).unwrap().ino };
    match call(node, Op::ReadDir { dir, after: None, limit: 1000, check: false }) {
        Ok(Answer::Entries { entries, .. }) => entries
            .iter()
            .map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into_owned())
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// The source, if it is not there yet: two directories with files, one of which has a second name
/// in the other directory and a third one outside.
fn make_source(node: &Node) {
    let file = |path: &str| {
        let op = Op::MkNod { place: at(ROOT, path), kind: Kind::File, mode: 0o644, rdev: 0 };
        let _there = call(node, op);
    };
    for dir in ["src", "src/d", "src/d/e"] {
        let _there = call(node, Op::MkDir(at(ROOT, dir), 0o755));
    }
    for number in 0..FILES {
        file(&format!("src/d/f{number}"));
        file(&format!("src/d/e/f{number}"));
    }
    let linked = InodeRef::by_id(lookup(node, "src/d/f0").unwrap().ino);
    for place in ["src/d/e/link", "outside"] {
        let seen = Some((lookup(node, "src/d").unwrap().ino, common::name("f0")));
        let _there = call(node, Op::Link(InodeRef { seen, ..linked.clone() }, at(ROOT, place)));
    }
}

fn clones(node: &Node) -> Vec<u64> {
    let names = names(node, "");
    let number = |name: &String| name.strip_prefix('c')?.parse().ok();
    let mut clones: Vec<u64> = names.iter().filter_map(number).collect();
    clones.sort_unstable();
    clones
}

/// Every name of a clone is there.
fn is_whole(node: &Node, clone: u64) {
    let files: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
    let mut above = files.clone();
    above.insert(0, "e".into());
    assert_eq!(names(node, &format!("c{clone}/d")), above);
    let mut below = files;
    below.push("link".into());
    assert_eq!(names(node, &format!("c{clone}/d/e")), below);
    let of = |path: &str| lookup(node, &format!("c{clone}/d/{path}")).unwrap().ino;
    assert_eq!(of("f0"), of("e/link"));
}

fn remove(node: &Node, clone: u64) {
    let dir = format!("c{clone}");
    for path in ["d/e", "d"] {
        let path = format!("{dir}/{path}");
        if lookup(node, &path).is_none() {
            continue;
        }
        for name in names(node, &path) {
            let _dir = call(node, Op::Unlink(at(ROOT, &format!("{path}/{name}"))));
        }
        let _full = call(node, Op::RmDir(at(ROOT, &path), None));
    }
    call(node, Op::RmDir(at(ROOT, &dir), None)).unwrap();
}

/// Not a test by itself: what the child runs.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    crash::arm_from_environment().unwrap();
    let (_engine, node) = open(Path::new(&dir));
    make_source(&node);
    let newest = clones(&node).last().copied();
    for round in newest.unwrap_or(0) + 1.. {
        let source = lookup(&node, "src").unwrap().ino;
        let place = at(ROOT, &format!("c{round}"));
        call(&node, Op::CloneDir { source, at: None, place }).unwrap();
        println!("acknowledged {round}");
        match round % 3 {
            0 => while node.tidy_clones().unwrap() {},
            1 => is_whole(&node, round),
            _ => {}
        }
        for old in clones(&node).into_iter().filter(|old| old + CLONES <= round) {
            remove(&node, old);
        }
        while round % 2 == 0 && node.tidy_history().unwrap() {}
    }
}

fn cycle(dir: &Path, point: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    command.env("KESTREL_CRASH_AT", point);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut acknowledged = 0u64;
    for line in output.lines().map_while(Result::ok) {
        if let Some((_, round)) = line.rsplit_once("acknowledged ") {
            acknowledged = round.parse().unwrap();
            if acknowledged == 500 {
                child.kill().unwrap();
                panic!("{point} is not reached");
            }
        }
    }
    assert!(!child.wait().unwrap().success(), "{point}: the child ended by itself");
    let (engine, node) = open(dir);
    check::check(&*engine, &|_| false);
    let there = clones(&node);
    assert!(acknowledged == 0 || there.contains(&acknowledged), "{point}: {there:?}");
    for clone in there.iter().filter(|clone| *clone + CLONES > acknowledged) {
        is_whole(&node, *clone);
    }
    check::check(&*engine, &|_| false);
    while node.tidy_clones().unwrap() {}
    while node.tidy_history().unwrap() {}
    let found = check::check(&*engine, &|_| false);
    assert_eq!((found.based, found.history), (0, 0), "{point}");
    node.close().unwrap();
    engine.sync().unwrap();
}

/// Each point is reached, the first time and later.
#[test]
fn killed_at_every_point() {
    let dir = tempfile::tempdir().unwrap();
    let mut points = 0;
    for count in [1, 4] {
        for point in POINTS.iter().filter(|point| point.starts_with("clone.")) {
            cycle(dir.path(), &format!("{point}:{count}"));
            points += 1;
        }
    }
    assert_eq!(points, 20);
}
