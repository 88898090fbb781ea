//! Snapshots of the model: trees of then, made heard or unheard.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kestrel_model::Model;
use kestrel_types::error::FsError;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Reply};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

fn path(text: &str) -> PathRef {
    PathRef::from_path(1, text.as_bytes()).unwrap()
}

fn entry(ino: u64) -> Reply {
    let inode = Inode { mode: 0o755, nlink: 2, size: 4096, ..Inode::new(ino, Kind::Dir, 0, 5) };
    Ok(Answer::Entry { parent: 1, inode: Box::new(inode) })
}

fn info(id: SnapshotId, name: &str) -> SnapshotInfo {
    SnapshotInfo {
        id,
        dir: 1,
        name: Name::new(name.as_bytes()).unwrap(),
        created: 5,
        removing: false,
        cutting: false,
        hidden: false,
        holds: Vec::new(),
        clones: Vec::new(),
    }
}

fn create(name: &str) -> Op {
    Op::SnapshotCreate { dir: 1, name: Name::new(name.as_bytes()).unwrap() }
}

fn at(id: SnapshotId, op: Op) -> Op {
    Op::At(id, Box::new(op))
}

fn failed(errno: i32) -> Reply {
    Err(FsError::new(errno, "").into())
}

/// What was removed after a snapshot is there at the snapshot, under its number alone.
#[test]
fn removed_after_snapshot() {
    let (mut model, root) = (Model::without_times(), Creds::root());
    model.judge(&root, &Op::MkDir(path("a"), 0o755), &entry(20)).unwrap();
    model.judge(&root, &create("s"), &Ok(Answer::Snapshots(vec![info(7, "s")]))).unwrap();
    model.assume(&root, &Op::RmDir(path("a"), None));
    let lookup = Op::Lookup(path("a"));
    model.judge(&root, &lookup, &failed(libc::ENOENT)).unwrap();
    model.judge(&root, &at(7, lookup.clone()), &entry(20)).unwrap();
    for (op, reply) in [
        (at(7, lookup.clone()), failed(libc::ENOENT)),
        (at(7, lookup.clone()), entry(21)),
        (at(8, lookup.clone()), entry(20)),
        (at(7, Op::MkDir(path("b"), 0o755)), entry(22)),
    ] {
        model.clone().judge(&root, &op, &reply).unwrap_err();
    }
    model.judge(&root, &at(8, lookup), &failed(libc::ESTALE)).unwrap();
    model.judge(&root, &at(7, Op::Unlink(path("a"))), &failed(libc::EROFS)).unwrap();
}

/// A snapshot that was made unheard gets its number from the first listing, and what was made
/// unheard before it gets one number in both trees.
#[test]
fn unheard_snapshot() {
    let (mut model, root) = (Model::without_times(), Creds::root());
    model.assume(&root, &Op::MkDir(path("a"), 0o755));
    model.assume(&root, &create("s"));
    let list = Op::SnapshotList { dir: None, ancestors: false };
    model.clone().judge(&root, &list, &Ok(Answer::Snapshots(Vec::new()))).unwrap_err();
    model.judge(&root, &list, &Ok(Answer::Snapshots(vec![info(7, "s")]))).unwrap();
    model.clone().judge(&root, &list, &Ok(Answer::Snapshots(vec![info(9, "s")]))).unwrap_err();
    model.judge(&root, &at(7, Op::Lookup(path("a"))), &entry(20)).unwrap();
    let get = Op::GetAttr(InodeRef::by_id(20));
    let Ok(Answer::Entry { inode, .. }) = entry(20) else { unreachable!() };
    model.judge(&root, &get, &Ok(Answer::Inode(inode))).unwrap();
    // Later ones have higher numbers.
    let made = |id| Ok(Answer::Snapshots(vec![info(id, "t")]));
    model.clone().judge(&root, &create("t"), &made(6)).unwrap_err();
    model.judge(&root, &create("t"), &made(8)).unwrap();
}
