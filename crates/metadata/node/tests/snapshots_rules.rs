//! What operations on snapshots answer: names, holds, owners, full disks, restarts; reads of large
//! directories and of many snapshots; reads and removals beside commits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Fixture, at, config, errno, name, user};
use kestrel_engine::Engine;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::node::{Durability, Node, NodeConfig, Replies};
use kestrel_types::KeyRef;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Answer, Commit, Creds, NewData, Op, OpenFlags, Outcome, RenameFlags, Reply, Request, SetAttr,
};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use parking_lot::Mutex;

fn mkdir(f: &Fixture, base: InodeId, path: &str) -> InodeId {
    f.inode(Op::MkDir(at(base, path), 0o755)).ino
}

fn mknod(base: InodeId, path: &str) -> Op {
    Op::MkNod { place: at(base, path), kind: Kind::File, mode: 0o644, rdev: 0 }
}

fn create(dir: InodeId, of: &str) -> Op {
    Op::SnapshotCreate { dir, name: name(of) }
}

fn remove(dir: InodeId, of: &str) -> Op {
    Op::SnapshotRemove { dir, name: name(of) }
}

fn made(f: &Fixture, dir: InodeId, of: &str) -> SnapshotId {
    match f.call(create(dir, of)) {
        Ok(Answer::Snapshots(made)) => made[0].id,
        other => panic!("{other:?}"),
    }
}

fn list(f: &Fixture, dir: Option<InodeId>, ancestors: bool) -> Vec<SnapshotInfo> {
    match f.call(Op::SnapshotList { dir, ancestors }) {
        Ok(Answer::Snapshots(list)) => list,
        other => panic!("{other:?}"),
    }
}

fn names(f: &Fixture, dir: InodeId, ancestors: bool) -> Vec<String> {
    let text = |info: SnapshotInfo| String::from_utf8(info.name.as_bytes().to_vec()).unwrap();
    list(f, Some(dir), ancestors).into_iter().map(text).collect()
}

fn at_snapshot(snapshot: SnapshotId, op: Op) -> Op {
    Op::At(snapshot, Box::new(op))
}

fn entries(node: &Node, snapshot: SnapshotId, dir: InodeId) -> Result<Vec<String>, Outcome> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let op = Op::ReadDir { dir, after, limit: 1000, check: false };
        let op = at_snapshot(snapshot, op);
        let (some, end) = match node.call(Request { creds: Creds::root(), op })? {
            Answer::Entries { entries, end, .. } => (entries, end),
            other => panic!("{other:?}"),
        };
        after = some.last().map(|entry| entry.name.clone());
        let text = |name: &Name| String::from_utf8(name.as_bytes().to_vec()).unwrap();
        names.extend(some.iter().map(|entry| text(&entry.name)));
        if end {
            return Ok(names);
        }
    }
}

fn tidy(f: &Fixture) {
    while f.node.tidy_history().unwrap() {}
}

fn history_rows(f: &Fixture) -> usize {
    f.check().history
}

/// An answer that says that a snapshot has been removed waits until that is durable: a loss of
/// power before that would bring the snapshot back.
#[test]
fn answers_after_an_unsynced_removal() {
    let commit =
        NodeConfig { durability: Durability::Commit, replies: Replies::Inline, ..config(2) };
    let f = Fixture::with_engine(commit, MemoryEngine::new(SyncWhen::Told));
    let submit = |op: Op| {
        let slot: Arc<Mutex<Option<Reply>>> = Arc::default();
        let filled = slot.clone();
        let done = Box::new(move |reply| *filled.lock() = Some(reply));
        f.node.submit(Request { creds: Creds::root(), op }, done);
        slot
    };
    let made = submit(create(ROOT, "s"));
    assert_eq!(*made.lock(), None);
    f.engine.sync().unwrap();
    let Some(Ok(Answer::Snapshots(made))) = made.lock().take() else { panic!("not made") };
    let removed = submit(remove(ROOT, "s"));
    let (s, t) = (name("s"), name("t"));
    let answers: Vec<_> = [
        Op::SnapshotList { dir: None, ancestors: false },
        Op::SnapshotList { dir: Some(ROOT), ancestors: false },
        at_snapshot(made[0].id, Op::GetAttr(InodeRef::by_id(ROOT))),
        remove(ROOT, "s"),
        Op::SnapshotRename { dir: ROOT, from: s.clone(), to: t.clone() },
        Op::SnapshotHold { dir: ROOT, name: s, tag: t, hold: true },
    ]
    .into_iter()
    .map(|op| (format!("{op:?}"), submit(op)))
    .collect();
    for (op, answer) in &answers {
        assert_eq!(*answer.lock(), None, "{op}");
    }
    f.engine.sync().unwrap();
    assert_eq!(*removed.lock(), Some(Ok(Answer::Done)));
    assert!(answers.iter().all(|(_, answer)| answer.lock().is_some()));
}

/// Names that a snapshot may not have, directories that are none, and users that do not own them.
#[test]
fn refused_creations() {
    let f = Fixture::new(config(2));
    let dir = mkdir(&f, ROOT, "d");
    let file = f.inode(mknod(ROOT, "f")).ino;
    f.call(Op::Link(InodeRef { ino: file, seen: Some((ROOT, name("f"))) }, at(ROOT, "g"))).unwrap();
    for bad in ["_a", "a@b", "@"] {
        assert_eq!(f.errno(create(dir, bad)), libc::EINVAL, "{bad}");
    }
    assert_eq!(f.errno(create(file, "a")), libc::ENOTDIR);
    assert_eq!(f.errno(create(4711, "a")), libc::ENOENT);
    let other = user(1000, 100, &[]);
    assert_eq!(f.errno_as(&other, create(dir, "a")), libc::EPERM);
    made(&f, dir, "a");
    assert_eq!(f.errno(create(dir, "a")), libc::EEXIST);
    for op in [
        remove(dir, "a"),
        Op::SnapshotRename { dir, from: name("a"), to: name("b") },
        Op::SnapshotHold { dir, name: name("a"), tag: name("t"), hold: true },
        Op::SnapshotList { dir: None, ancestors: false },
    ] {
        assert_eq!(f.errno_as(&other, op), libc::EPERM);
    }
    assert_eq!(f.errno(remove(dir, "x")), libc::ENOENT);
    let own = f.inode(Op::MkDir(at(ROOT, "own"), 0o700)).ino;
    let set = SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() };
    f.call(Op::SetAttr(InodeRef::by_id(own), set)).unwrap();
    assert_eq!(f.errno_as(&other, create(own, "mine")), 0);
    assert_eq!(f.errno_as(&other, remove(own, "mine")), 0);
}

/// A name is free again once its snapshot is removed or renamed; a held one stays.
#[test]
fn renamed_held_and_removed() {
    let mut f = Fixture::new(config(2));
    let dir = mkdir(&f, ROOT, "d");
    let first = made(&f, dir, "a");
    let rename = |from: &str, to: &str| Op::SnapshotRename { dir, from: name(from), to: name(to) };
    made(&f, dir, "b");
    assert_eq!(f.errno(rename("a", "b")), libc::EEXIST);
    assert_eq!(f.errno(rename("a", "a")), 0);
    assert_eq!(f.errno(rename("a", "_c")), libc::EINVAL);
    assert_eq!(f.errno(rename("a", "c")), 0);
    assert_eq!(names(&f, dir, false), ["c", "b"]);
    let hold = |tag: &str, hold| Op::SnapshotHold { dir, name: name("c"), tag: name(tag), hold };
    assert_eq!(f.errno(hold("t", true)), 0);
    assert_eq!(f.errno(hold("s", true)), 0);
    assert_eq!(f.errno(hold("t", true)), libc::EEXIST);
    assert_eq!(f.errno(hold("x", false)), libc::ENOENT);
    f = f.crash(false);
    assert_eq!(list(&f, Some(dir), false)[0].holds, [name("s"), name("t")]);
    assert_eq!(f.errno(remove(dir, "c")), libc::EBUSY);
    assert_eq!(f.errno(hold("s", false)), 0);
    assert_eq!(f.errno(hold("t", false)), 0);
    assert_eq!(f.errno(remove(dir, "c")), 0);
    assert_eq!(f.errno(at_snapshot(first, Op::GetAttr(InodeRef::by_id(dir)))), libc::ESTALE);
    assert!(list(&f, None, false).iter().any(|info| info.removing));
    made(&f, dir, "c");
    f = f.crash(false);
    tidy(&f);
    assert_eq!(names(&f, dir, false), ["b", "c"]);
    assert!(list(&f, None, false).iter().all(|info| !info.removing));
    // At most so many tags.
    for tag in 0..64 {
        assert_eq!(f.errno(hold(&format!("{tag}"), true)), 0);
    }
    assert_eq!(f.errno(hold("more", true)), libc::ENOSPC);
}

/// Snapshots of a directory that is renamed, moved below others and removed.
#[test]
fn moved_and_removed_directories() {
    let f = Fixture::new(config(3));
    let (a, b) = (mkdir(&f, ROOT, "a"), mkdir(&f, ROOT, "b"));
    let d = mkdir(&f, a, "d");
    f.call(mknod(d, "x")).unwrap();
    made(&f, ROOT, "root");
    let of_a = made(&f, a, "of-a");
    let of_d = made(&f, d, "of-d");
    made(&f, b, "of-b");
    assert_eq!(names(&f, d, true), ["root", "of-a", "of-d"]);
    assert_eq!(names(&f, d, false), ["of-d"]);
    f.call(Op::Rename(at(a, "d"), at(b, "e"), RenameFlags::default())).unwrap();
    // It was not below b then, and is not below a now.
    assert_eq!(names(&f, d, true), ["root", "of-d"]);
    let parent = |snapshot| match f.call(at_snapshot(snapshot, Op::Parent(d))).unwrap() {
        Answer::Inode(inode) => inode.ino,
        other => panic!("{other:?}"),
    };
    assert_eq!((parent(of_a), parent(of_d)), (a, a));
    f.call(Op::Unlink(at(d, "x"))).unwrap();
    f.call(Op::RmDir(at(b, "e"), None)).unwrap();
    assert_eq!(f.errno(Op::SnapshotList { dir: Some(d), ancestors: false }), libc::ENOENT);
    assert_eq!(entries(&f.node, of_d, d).unwrap(), ["x"]);
    assert_eq!(f.errno_as(&user(5, 5, &[]), remove(d, "of-d")), libc::EPERM);
    assert_eq!(f.errno(remove(d, "of-d")), 0);
    tidy(&f);
    f.check();
    assert_eq!(entries(&f.node, of_a, d).unwrap(), ["x"]);
}

/// Rows of a clone without a stamp, of subdirectories and of files with several names, are not part
/// of a snapshot that is older. A request for them by number there fails as for any unknown number.
#[test]
fn clones_at_older_snapshots() {
    let f = Fixture::new(config(3));
    let source = mkdir(&f, ROOT, "source");
    mkdir(&f, source, "sub");
    let file = f.inode(mknod(source, "a")).ino;
    let seen = InodeRef { ino: file, seen: Some((source, name("a"))) };
    f.inode(Op::Link(seen, at(source, "b")));
    let older = made(&f, ROOT, "older");
    let clone = f.inode(Op::CloneDir { source, at: None, place: at(ROOT, "clone") }).ino;
    let sub = f.inode(Op::Lookup(at(clone, "sub"))).ino;
    let copy = f.inode(Op::Lookup(at(clone, "a"))).ino;
    assert_ne!(copy, file);
    let seen = InodeRef { ino: copy, seen: Some((clone, name("a"))) };
    for tidied in [false, true] {
        assert_eq!(names(&f, sub, true), [] as [&str; 0]);
        assert_eq!(f.errno(at_snapshot(older, Op::GetAttr(seen.clone()))), libc::ESTALE);
        assert_eq!(f.errno(at_snapshot(older, Op::Lookup(at(sub, "c")))), libc::ENOENT);
        let list = Op::ReadDir { dir: sub, after: None, limit: 10, check: true };
        assert_eq!(f.errno(at_snapshot(older, list)), libc::ENOENT);
        let dir = InodeRef { ino: sub, seen: None };
        let open = Op::Open(dir.clone(), OpenFlags { read: true, ..OpenFlags::default() });
        assert_eq!(f.errno(at_snapshot(older, open)), libc::ESTALE);
        assert_eq!(f.errno(at_snapshot(older, Op::GetAttr(dir))), libc::ESTALE);
        while !tidied && f.node.tidy_clones().unwrap() {}
    }
}

/// Nothing changes in a snapshot, and what is opened there is not counted.
#[test]
fn changes_in_a_snapshot() {
    let f = Fixture::new(config(2));
    let file = f.inode(mknod(ROOT, "f")).ino;
    let snapshot = made(&f, ROOT, "s");
    let seen = InodeRef { ino: file, seen: Some((ROOT, name("f"))) };
    let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let changes = [
        mknod(ROOT, "g"),
        Op::MkDir(at(ROOT, "d"), 0o755),
        Op::Unlink(at(ROOT, "f")),
        Op::Rename(at(ROOT, "f"), at(ROOT, "g"), RenameFlags::default()),
        Op::SetAttr(seen.clone(), SetAttr::default()),
        Op::Open(seen.clone(), write),
        Op::OpenAt(at(ROOT, "f"), OpenFlags { truncate: true, ..OpenFlags::default() }),
        Op::Access(seen.clone(), libc::W_OK as u32),
        Op::Release(file),
        Op::AllocObjects(1),
        Op::Sync,
        create(ROOT, "t"),
        Op::SnapshotList { dir: None, ancestors: false },
        at_snapshot(snapshot, Op::Usage),
    ];
    for op in changes {
        assert_eq!(f.errno(at_snapshot(snapshot, op.clone())), libc::EROFS, "{op:?}");
    }
    let read = OpenFlags { read: true, ..OpenFlags::default() };
    for op in [Op::Open(seen, read), Op::OpenAt(at(ROOT, "f"), read)] {
        assert_eq!(f.errno(at_snapshot(snapshot, op)), 0);
    }
    assert_eq!(f.node.stats().open_files, 0);
    assert_eq!(f.errno(at_snapshot(snapshot + 1, Op::Usage)), libc::ESTALE);
    let other = user(1000, 100, &[]);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    f.call(Op::SetAttr(InodeRef { ino: file, seen: Some((ROOT, name("f"))) }, set)).unwrap();
    // Its permissions are those of then.
    assert_eq!(f.errno_as(&other, Op::OpenAt(at(ROOT, "f"), read)), libc::EACCES);
    assert_eq!(f.errno_as(&other, at_snapshot(snapshot, Op::OpenAt(at(ROOT, "f"), read))), 0);
}

/// A full disk refuses snapshots, and lets them go.
#[test]
fn full_disk() {
    let f = Fixture::new(config(2));
    f.call(mknod(ROOT, "f")).unwrap();
    let snapshot = made(&f, ROOT, "s");
    f.call(Op::Unlink(at(ROOT, "f"))).unwrap();
    f.engine.set_full(true);
    assert_eq!(f.errno(create(ROOT, "t")), libc::ENOSPC);
    assert_eq!(entries(&f.node, snapshot, ROOT).unwrap(), ["f"]);
    assert_eq!(f.errno(remove(ROOT, "s")), 0);
    tidy(&f);
    f.engine.set_full(false);
    assert_eq!((history_rows(&f), list(&f, None, false).len()), (0, 0));
}

/// A snapshot that was answered survives a power loss, also in mode `fsync`; one that was not is
/// seen by nobody.
#[test]
fn snapshots_and_power_loss() {
    let f = Fixture::new(config(2));
    f.call(mknod(ROOT, "f")).unwrap();
    let snapshot = made(&f, ROOT, "s");
    f.call(Op::Unlink(at(ROOT, "f"))).unwrap();
    let f = f.crash(true);
    assert_eq!(entries(&f.node, snapshot, ROOT).unwrap(), ["f"]);

    let f = Fixture::with_engine(config(2), MemoryEngine::new(SyncWhen::Told));
    let submit = || {
        let (send, answer) = std::sync::mpsc::channel();
        let request = Request { creds: Creds::root(), op: create(ROOT, "s") };
        f.node.submit(request, Box::new(move |reply| send.send(errno(&reply)).unwrap()));
        answer
    };
    let (first, second) = (submit(), submit());
    assert!(first.try_recv().is_err() && list(&f, None, false).is_empty());
    // The refusal would be wrong if the snapshot went with the power.
    assert!(second.try_recv().is_err());
    f.engine.sync().unwrap();
    assert_eq!((first.recv().unwrap(), second.recv().unwrap()), (0, libc::EEXIST));
    assert_eq!(list(&f, None, false).len(), 1);
}

/// Directories with more rows and more history than one step of a scan reads.
#[test]
fn large_directories() {
    let f = Fixture::new(config(4));
    let dir = mkdir(&f, ROOT, "d");
    let all: Vec<String> = (0..3000).map(|number| format!("f{number:05}")).collect();
    for file in &all[..2000] {
        f.call(mknod(dir, file)).unwrap();
    }
    let first = made(&f, ROOT, "first");
    for file in &all[500..1500] {
        f.call(Op::Unlink(at(dir, file))).unwrap();
    }
    let second = made(&f, ROOT, "second");
    for file in &all[2000..] {
        f.call(mknod(dir, file)).unwrap();
    }
    for file in all[..500].iter().chain(&all[1500..]) {
        f.call(Op::Unlink(at(dir, file))).unwrap();
    }
    let expected = |f: &Fixture| {
        assert_eq!(entries(&f.node, first, dir).unwrap(), all[..2000]);
        let kept: Vec<String> = all[..500].iter().chain(&all[1500..2000]).cloned().collect();
        if f.errno(at_snapshot(second, Op::Usage)) == 0 {
            assert_eq!(entries(&f.node, second, dir).unwrap(), kept);
        }
    };
    expected(&f);
    f.call(Op::RmDir(at(ROOT, "d"), None)).unwrap();
    expected(&f);
    let locate = Op::Locate { files: vec![dir], after: None };
    assert!(matches!(
        f.call(at_snapshot(first, locate)),
        Ok(Answer::Located { found, .. }) if found.len() == 1
    ));
    // In several steps.
    assert_eq!(f.errno(remove(ROOT, "second")), 0);
    assert!(f.node.tidy_history().unwrap());
    expected(&f);
    let f = f.crash(false);
    expected(&f);
    tidy(&f);
    expected(&f);
    f.check();
    assert_eq!(f.errno(remove(ROOT, "first")), 0);
    tidy(&f);
    assert_eq!(history_rows(&f), 0);
}

/// More snapshots than history rows are looked up for one by one.
#[test]
fn many_snapshots() {
    let f = Fixture::new(config(2));
    let dir = mkdir(&f, ROOT, "d");
    let snapshots: Vec<SnapshotId> = (0..40)
        .map(|number| {
            f.call(mknod(dir, &format!("f{number}"))).unwrap();
            if number % 3 == 0 {
                f.call(Op::Unlink(at(dir, &format!("f{}", number / 2)))).ok();
            }
            made(&f, dir, &format!("s{number}"))
        })
        .collect();
    let then: Vec<Vec<String>> =
        snapshots.iter().map(|snapshot| entries(&f.node, *snapshot, dir).unwrap()).collect();
    for number in 0..40 {
        f.call(Op::Unlink(at(dir, &format!("f{number}")))).ok();
    }
    let f = f.crash(false);
    for number in (0..40).filter(|number| number % 4 != 1) {
        assert_eq!(f.errno(remove(dir, &format!("s{number}"))), 0);
        if number % 8 == 0 {
            tidy(&f);
        }
        let left = snapshots.iter().zip(&then).enumerate();
        for (_, (snapshot, then)) in left.filter(|(at, _)| at % 4 == 1 || *at > number) {
            assert_eq!(entries(&f.node, *snapshot, dir).unwrap(), *then);
        }
    }
    f.check();
}

/// A volume with snapshots has another version of a record that every program reads: one that does
/// not know snapshots refuses it. Without snapshots it is as it was.
#[test]
fn older_programs() {
    let f = Fixture::new(config(2));
    let version = |f: &Fixture| {
        let mut version = 0;
        let key = KeyRef::new(Table::System, 0, b"shares");
        f.engine.get_many(&[key], &mut |_, row| version = row.value.unwrap()[0]).unwrap();
        version
    };
    assert_eq!(version(&f), 1);
    made(&f, ROOT, "s");
    assert_eq!(version(&f), 2);
    // With more workers the record is written anew.
    let Fixture { engine, clock, node, .. } = f;
    drop(node);
    let node = Node::open(engine.clone(), clock.clone(), config(5)).unwrap();
    let f = Fixture { engine, clock, node, config: config(5) };
    assert_eq!(version(&f), 2);
    assert_eq!(f.errno(remove(ROOT, "s")), 0);
    assert_eq!(version(&f), 2);
    tidy(&f);
    assert_eq!(version(&f), 1);
}

/// What a snapshot alone refers to is kept, and reaped when the snapshot has gone.
#[test]
fn objects_of_snapshots() {
    let f = Fixture::new(config(2));
    let file = f.inode(mknod(ROOT, "f"));
    let commit = |object, base| {
        let inode = InodeRef { ino: file.ino, seen: Some((ROOT, name("f"))) };
        let data = NewData::Packed(Range { object, offset: 64, len: 1000 });
        Op::Commit(Commit { inode, base, data, size: Some(1000), mtime: 1, kill_suid: false })
    };
    let committed = f.inode(commit(7, file.data_change));
    made(&f, ROOT, "s");
    f.call(commit(8, committed.data_change)).unwrap();
    let due = |f: &Fixture| f.node.due_objects(i64::MAX, 100, &|_| false).unwrap();
    assert_eq!(due(&f), [] as [u64; 0]);
    f.check();
    assert_eq!(f.errno(remove(ROOT, "s")), 0);
    tidy(&f);
    assert_eq!(due(&f), [7]);
    f.node.forget_object(7).unwrap();
    assert_eq!(f.check().objects.keys().copied().collect::<Vec<_>>(), [8]);
}

/// Reads of a snapshot beside commits, and beside its removal: what was, or that it is gone.
#[test]
fn reads_beside_commits_and_removal() {
    let f = Fixture::new(config(4));
    let dir = mkdir(&f, ROOT, "d");
    let all: Vec<String> = (0..60).map(|number| format!("f{number:02}")).collect();
    all.iter().for_each(|file| drop(f.call(mknod(dir, file)).unwrap()));
    let (stop, node) = (AtomicBool::new(false), &f.node);
    let ends = |op: Op| node.call(Request { creds: Creds::root(), op });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for file in &all {
                    let _any = ends(Op::Unlink(at(dir, file)));
                    let _any = ends(mknod(dir, file));
                }
                node.tidy_history().unwrap();
            }
        });
        for round in 0..25 {
            let of = format!("s{round}");
            let Ok(Answer::Snapshots(made)) = ends(create(dir, &of)) else { panic!("no snapshot") };
            let snapshot = made[0].id;
            let then = entries(node, snapshot, dir).unwrap();
            // At most one of the files is missing at any moment.
            assert!(then.len() + 1 >= all.len(), "{then:?}");
            for _ in 0..10 {
                assert_eq!(entries(node, snapshot, dir).unwrap(), then);
            }
            scope.spawn(move || {
                loop {
                    match entries(node, snapshot, dir) {
                        Ok(now) => assert_eq!(now, then),
                        Err(Outcome::Failed(FsError { errno: libc::ESTALE, .. })) => return,
                        Err(other) => panic!("{other:?}"),
                    }
                }
            });
            ends(remove(dir, &of)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    tidy(&f);
    assert_eq!(history_rows(&f), 0);
}
