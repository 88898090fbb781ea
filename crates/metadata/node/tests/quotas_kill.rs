//! Kills a process that fills, empties, sets and removes quotas, at every named point of theirs and
//! of commits: what counts is what there is, and no limit is exceeded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::embedded::{call, open};
use common::{at, check, name};
use kestrel_meta::node::Node;
use kestrel_types::crash::{self, POINTS};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::quota::{QuotaInfo, QuotaLimits, QuotaSubject};
use kestrel_types::request::{Answer, Commit, NewData, Op, RenameFlags};

/// Names the volume to the child.
const DIR: &str = "KESTREL_QUOTA_KILL_DIR";
/// Limits of the outer directory.
const FILES: u64 = 12;
const BYTES: u64 = 500;

fn lookup(node: &Node, path: &str) -> Option<Inode> {
    match call(node, Op::Lookup(at(ROOT, path))) {
        Ok(Answer::Entry { inode, .. }) => Some(*inode),
        _ => None,
    }
}

fn set(node: &Node, path: &str, limits: QuotaLimits) {
    let of = QuotaSubject::Dir(lookup(node, path).unwrap().ino);
    call(node, Op::QuotaSet(of, Box::new(limits))).unwrap();
}

/// One round of changes; what a limit refuses is refused.
fn round(node: &Node, round: u64) {
    let file = |number: u64| format!("a/b/f{}", number % 20);
    let op = Op::MkNod { place: at(ROOT, &file(round)), kind: Kind::File, mode: 0o644, rdev: 0 };
    let _refused = call(node, op);
    if let Some(inode) = lookup(node, &file(round * 7)) {
        let last = format!("f{}", round * 7 % 20);
        let seen = Some((lookup(node, "a/b").unwrap().ino, name(&last)));
        let commit = Commit {
            inode: InodeRef { ino: inode.ino, seen },
            base: inode.data_change,
            data: NewData::Unchanged,
            size: Some(round * 37 % 200),
            mtime: 1,
            kill_suid: false,
        };
        let _refused = call(node, Op::Commit(commit));
    }
    let (from, to) = (at(ROOT, &file(round * 3)), at(ROOT, &format!("out{}", round % 3)));
    let _missing = match round % 4 {
        0 => call(node, Op::Unlink(at(ROOT, &file(round * 5)))),
        1 => call(node, Op::Rename(from, to, RenameFlags::default())),
        2 => call(node, Op::Rename(to, from, RenameFlags::default())),
        _ => Ok(Answer::Done),
    };
    if round % 8 == 5 {
        set(node, "a/b", QuotaLimits { files: Some(10), ..QuotaLimits::default() });
    }
    if round % 8 == 7 {
        let of = QuotaSubject::Dir(lookup(node, "a/b").unwrap().ino);
        let _none = call(node, Op::QuotaRemove(of));
    }
}

/// Not a test by itself: what the child runs.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    crash::arm_from_environment().unwrap();
    let (_engine, node) = open(Path::new(&dir));
    for path in ["a", "a/b"] {
        let _there = call(&node, Op::MkDir(at(ROOT, path), 0o755));
    }
    let limits = QuotaLimits { files: Some(FILES), bytes: Some(BYTES), ..QuotaLimits::default() };
    set(&node, "a", limits);
    let root = QuotaSubject::User(0);
    call(&node, Op::QuotaSet(root, Box::default())).unwrap();
    (1..4000).for_each(|number| round(&node, number));
}

fn cycle(dir: &Path, point: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(DIR, dir);
    command.env("KESTREL_CRASH_AT", point).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(!command.status().unwrap().success(), "{point} is not reached");
    let (engine, node) = open(dir);
    check::check(&*engine, &|_| false);
    let quotas: Vec<QuotaInfo> = match call(&node, Op::QuotaCheck { repair: false }) {
        Ok(Answer::Quotas(quotas)) => quotas,
        other => panic!("{other:?}"),
    };
    for info in &quotas {
        assert_eq!(info.counted, Some(info.used), "{point}: {info:?}");
        if info.limits.files == Some(FILES) {
            assert!(info.used.files <= FILES as i64 && info.used.bytes <= BYTES as i64, "{info:?}");
        }
    }
    node.close().unwrap();
}

/// Each point is reached, the first time and later.
#[test]
fn killed_at_every_point() {
    let dir = tempfile::tempdir().unwrap();
    let of_quotas = POINTS.iter().filter(|point| point.starts_with("quota."));
    let points: Vec<&str> =
        of_quotas.copied().chain(["node.commit.before", "node.commit.after"]).collect();
    assert_eq!(points.len(), 4);
    for point in points {
        for count in [3, 20, 41] {
            cycle(dir.path(), &format!("{point}:{count}"));
        }
    }
}
