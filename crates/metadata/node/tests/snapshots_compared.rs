//! What SnapshotChanges and SnapshotUsage answer beside what `snapshots.rs` compares with copies:
//! errors, permissions, how much is read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Fixture, at, config, name, user};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::range::Range;
use kestrel_types::request::{Answer, Commit, Creds, NewData, Op, OpenFlags};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{CHANGED_FILES_MAX, HistoryCursor, SnapshotChanges};

fn mkdir(f: &Fixture, base: InodeId, path: &str, mode: u32) -> InodeId {
    f.inode(Op::MkDir(at(base, path), mode)).ino
}

fn mknod(f: &Fixture, base: InodeId, path: &str) {
    let place = at(base, path);
    f.call(Op::MkNod { place, kind: Kind::File, mode: 0o644, rdev: 0 }).unwrap();
}

fn made(f: &Fixture, dir: InodeId, of: &str) -> SnapshotId {
    match f.call(Op::SnapshotCreate { dir, name: name(of) }) {
        Ok(Answer::Snapshots(made)) => made[0].id,
        other => panic!("{other:?}"),
    }
}

fn changes(
    (dir, older, newer): (InodeId, SnapshotId, Option<SnapshotId>),
    after: Option<HistoryCursor>,
) -> Op {
    Op::SnapshotChanges { dir, older, newer, files: Vec::new(), limit: 1000, after }
}

fn told(f: &Fixture, op: Op) -> SnapshotChanges {
    match f.call(op) {
        Ok(Answer::SnapshotChanges(told)) => *told,
        other => panic!("{other:?}"),
    }
}

/// Moments in the wrong order, snapshots that are gone, cursors that are none and too many files
/// are refused.
#[test]
fn refused_comparisons() {
    let f = Fixture::new(config(2));
    let (a, b) = (made(&f, ROOT, "a"), made(&f, ROOT, "b"));
    let dir = mkdir(&f, ROOT, "d", 0o755);
    assert_eq!(f.errno(changes((ROOT, a, Some(b)), None)), 0);
    assert_eq!(f.errno(changes((ROOT, b, Some(a)), None)), libc::EINVAL);
    assert_eq!(f.errno(changes((ROOT, a, Some(a)), None)), libc::EINVAL);
    assert_eq!(f.errno(changes((ROOT, a - 1, None), None)), libc::ESTALE);
    assert_eq!(f.errno(changes((ROOT, a, Some(b + 1)), None)), libc::ESTALE);
    assert_eq!(f.errno(changes((dir, a, None), None)), libc::ENOENT);
    for bytes in [&[][..], &[9; 12], &[1; 3]] {
        assert_eq!(f.errno(changes((ROOT, a, None), Some(bytes.into()))), libc::EINVAL);
        let op = Op::SnapshotUsage { snapshot: a, after: Some([0; 3].into()) };
        assert_eq!(f.errno(op), libc::EINVAL);
    }
    let files = vec![7; CHANGED_FILES_MAX + 1];
    let op = |files| Op::SnapshotChanges {
        dir: ROOT,
        older: a,
        newer: None,
        files,
        limit: 1,
        after: None,
    };
    assert_eq!(f.errno(op(files)), libc::EINVAL);
    assert_eq!(f.errno(op(vec![7])), 0);
    assert_eq!(f.errno(Op::SnapshotUsage { snapshot: a - 1, after: None }), libc::ESTALE);
    assert_eq!(f.errno(Op::At(a, Box::new(changes((ROOT, a, None), None)))), libc::EROFS);
    f.call(Op::SnapshotRemove { dir: ROOT, name: name("a") }).unwrap();
    assert_eq!(f.errno(changes((ROOT, a, Some(b)), None)), libc::ESTALE);
    assert_eq!(f.errno(Op::SnapshotUsage { snapshot: a, after: None }), libc::ESTALE);
}

/// A user is told of changes in directories that the user may list, at both moments, and gets
/// `EACCES` where a directory with changes, or one above it in the tree, may not be listed.
#[test]
fn changes_for_other_users() {
    let f = Fixture::new(config(2));
    let (open, private) = (mkdir(&f, ROOT, "open", 0o755), mkdir(&f, ROOT, "private", 0o700));
    let below = mkdir(&f, private, "below", 0o755);
    let a = made(&f, ROOT, "a");
    mknod(&f, open, "new");
    let other = user(1000, 1000, &[]);
    let errno = |creds: &Creds, dir| f.errno_as(creds, changes((dir, a, None), None));
    assert_eq!(errno(&other, ROOT), 0);
    mknod(&f, below, "new");
    assert_eq!(errno(&other, ROOT), libc::EACCES);
    assert_eq!(errno(&other, private), libc::EACCES);
    assert_eq!((errno(&other, below), errno(&other, open)), (0, 0));
    assert_eq!(errno(&Creds::root(), ROOT), 0);
    // Listing alone shows no attributes.
    let mode = |mode| {
        let set = kestrel_types::request::SetAttr { mode: Some(mode), ..Default::default() };
        let inode = kestrel_types::name::InodeRef::by_id(private);
        f.call(Op::SetAttr(inode, set)).unwrap();
        errno(&other, ROOT)
    };
    assert_eq!(mode(0o755), libc::EACCES, "it was private then");
    let b = made(&f, ROOT, "b");
    mknod(&f, below, "newer");
    assert_eq!(f.errno_as(&other, changes((ROOT, b, None), None)), 0);
    assert_eq!(mode(0o744), libc::EACCES);
    let c = made(&f, ROOT, "c");
    assert_eq!(f.errno_as(&other, changes((ROOT, b, Some(c)), None)), libc::EACCES);
}

/// Directories in which no name came or went are not read for new names, and others are.
#[test]
fn directories_without_new_names() {
    let f = Fixture::new(config(2));
    let (kept, grown) = (mkdir(&f, ROOT, "kept", 0o755), mkdir(&f, ROOT, "grown", 0o755));
    for number in 0..50 {
        mknod(&f, kept, &format!("f{number}"));
        mknod(&f, grown, &format!("f{number}"));
    }
    let a = made(&f, ROOT, "a");
    let file = f.inode(Op::Lookup(at(kept, "f7")));
    let inode = kestrel_types::name::InodeRef { ino: file.ino, seen: Some((kept, name("f7"))) };
    let data = NewData::Inline([1; 5].into());
    let (base, mtime) = (file.data_change, 1);
    let commit = Commit { inode, base, data, size: Some(5), mtime, kill_suid: false };
    f.call(Op::Commit(commit)).unwrap();
    mknod(&f, grown, "one");
    mknod(&f, grown, "two");
    f.call(Op::Unlink(at(grown, "f3"))).unwrap();
    let found = told(&f, changes((ROOT, a, None), None));
    assert_eq!((found.next, found.files.len()), (None, 0));
    let names = |dir: InodeId| -> Vec<String> {
        let of_dir = found.dirs.iter().filter(|one| one.dir == dir);
        let names = of_dir.flat_map(|one| &one.names);
        names.map(|one| String::from_utf8(one.name.as_bytes().to_vec()).unwrap()).collect()
    };
    assert_eq!(
        (names(kept), names(grown)),
        (vec!["f7".into()], vec!["f3".into(), "one".into(), "two".into()])
    );
}

/// Bytes count that only the snapshot has; those that the present file has, too, do not.
#[test]
fn bytes_of_a_snapshot() {
    let f = Fixture::new(config(2));
    let store = |path: &str, object: u64, len: u32| {
        mknod(&f, ROOT, path);
        let file = f.inode(Op::Lookup(at(ROOT, path)));
        let inode = kestrel_types::name::InodeRef { ino: file.ino, seen: Some((ROOT, name(path))) };
        let data = NewData::Packed(Range { object, offset: 0, len });
        let (base, size) = (file.data_change, Some(u64::from(len)));
        let commit = Commit { inode, base, data, size, mtime: 1, kill_suid: false };
        f.call(Op::Commit(commit)).unwrap();
    };
    store("gone", 5, 1000);
    store("touched", 6, 500);
    let usage = |snapshot| match f.call(Op::SnapshotUsage { snapshot, after: None }) {
        Ok(Answer::SnapshotUsage(usage)) => (usage.bytes, usage.next),
        other => panic!("{other:?}"),
    };
    let a = made(&f, ROOT, "a");
    assert_eq!(usage(a), (0, None));
    f.call(Op::Unlink(at(ROOT, "gone"))).unwrap();
    let touched = f.inode(Op::Lookup(at(ROOT, "touched")));
    let inode =
        kestrel_types::name::InodeRef { ino: touched.ino, seen: Some((ROOT, name("touched"))) };
    let set = kestrel_types::request::SetAttr { mode: Some(0o600), ..Default::default() };
    f.call(Op::SetAttr(inode, set)).unwrap();
    assert_eq!(usage(a), (1000, None));
    // What an older snapshot needs stays.
    let b = made(&f, ROOT, "b");
    let open = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    f.call(Op::OpenAt(at(ROOT, "touched"), open)).unwrap();
    assert_eq!(usage(b), (0, None));
    assert_eq!(usage(a), (1000, None));
    f.call(Op::SnapshotRemove { dir: ROOT, name: name("a") }).unwrap();
    assert_eq!(usage(b), (500, None));
}
