//! Clones at several members, messages carried by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::{Answer, Creds, Op, RenameFlags, Request, SetAttr, XattrFlags};
use kestrel_types::snapshot::SnapshotId;

use common::errno;
use common::members::{Cluster, at, mknod};
use common::quotas::limits;
use common::snapshots::{create, remove};

/// What a name of a tree must have in common with its copy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    attributes: (Kind, u16, u32, u32, i64),
    size: u64,
    xattr: Option<Vec<u8>>,
    chunks: String,
    /// The first path that leads to the same file, and how many do.
    same_as: (String, u32),
}

type Shapes = BTreeMap<String, Shape>;

/// A tree as operations show it.
struct Reader<'a> {
    cluster: &'a mut Cluster,
    at: Option<SnapshotId>,
    files: BTreeMap<InodeId, (String, u32)>,
}

impl Reader<'_> {
    fn ask(&mut self, op: Op) -> Answer {
        let op = match self.at {
            Some(at) => Op::At(at, Box::new(op)),
            None => op,
        };
        self.cluster.ask(1, op.clone()).unwrap_or_else(|why| panic!("{op:?}: {why:?}"))
    }

    fn inode(&mut self, place: PathRef) -> Inode {
        match self.ask(Op::Lookup(place)) {
            Answer::Entry { inode, .. } => *inode,
            other => panic!("{other:?}"),
        }
    }

    fn names(&mut self, dir: InodeId) -> Vec<Name> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let list = Op::ReadDir { dir, after, limit: 7, check: true };
            let Answer::Entries { entries, end, .. } = self.ask(list) else { panic!() };
            names.extend(entries.into_iter().map(|entry| entry.name));
            if end {
                return names;
            }
            after = names.last().cloned();
        }
    }

    fn visit(&mut self, dir: InodeId, prefix: &str, shapes: &mut Shapes) {
        for name in self.names(dir) {
            let path = format!("{prefix}{}", String::from_utf8_lossy(name.as_bytes()));
            let inode = self.inode(PathRef::new(dir, name.clone()));
            let shape = self.shape(&inode, (dir, name), &path);
            shapes.insert(path.clone(), shape);
            if inode.kind == Kind::Dir {
                self.visit(inode.ino, &format!("{path}/"), shapes);
            }
        }
    }

    fn shape(&mut self, inode: &Inode, seen: (InodeId, Name), path: &str) -> Shape {
        let reference = InodeRef { ino: inode.ino, seen: Some(seen) };
        let op = Op::GetXattr(reference, b"user.x"[..].into());
        let op = match self.at {
            Some(at) => Op::At(at, Box::new(op)),
            None => op,
        };
        let xattr = match self.cluster.ask(1, op) {
            Ok(Answer::Bytes(value)) => Some(value.to_vec()),
            _ => None,
        };
        let chunks = match inode.kind {
            Kind::File => {
                format!("{:?}", self.ask(Op::Chunks { ino: inode.ino, first: 0, last: 9 }))
            }
            _ => String::new(),
        };
        let first = self.files.entry(inode.ino).or_insert((path.into(), 0));
        first.1 += 1;
        Shape {
            attributes: (inode.kind, inode.mode, inode.uid, inode.gid, inode.mtime),
            size: if inode.kind == Kind::Dir { 0 } else { inode.size },
            xattr,
            chunks,
            same_as: first.clone(),
        }
    }
}

trait Clones {
    fn ino(&mut self, path: &str) -> InodeId;
    fn shapes(&mut self, path: &str, at: Option<SnapshotId>) -> Shapes;
    fn clone_of(&mut self, source: &str, at: Option<SnapshotId>, to: &str) -> i32;
}

impl Clones for Cluster {
    fn ino(&mut self, path: &str) -> InodeId {
        self.inode(1, Op::Lookup(at(path))).ino
    }

    fn shapes(&mut self, path: &str, snapshot: Option<SnapshotId>) -> Shapes {
        let mut reader = Reader { cluster: self, at: snapshot, files: BTreeMap::new() };
        let root = if path.is_empty() { ROOT } else { reader.inode(at(path)).ino };
        let mut shapes = Shapes::new();
        reader.visit(root, "", &mut shapes);
        shapes
    }

    fn clone_of(&mut self, source: &str, snapshot: Option<SnapshotId>, to: &str) -> i32 {
        let source = self.ino(source);
        let op = Op::CloneDir { source, at: snapshot, place: at(to) };
        errno(&self.ask(self.leader(), op))
    }
}

/// A tree with names, files and links of all members.
fn tree(cluster: &mut Cluster) {
    for dir in ["a1", "a1/b1", "a1/b2", "a1/b3", "a1/b2/c1", "a1/b2/c3", "x2"] {
        cluster.inode(1, Op::MkDir(at(dir), 0o750));
    }
    let files = ["a1/f1", "a1/f2", "a1/f3", "a1/b1/f2", "a1/b2/f3", "a1/b2/c3/f1", "x2/f1"];
    for (number, file) in (1..).zip(files) {
        cluster.inode(1, mknod(file));
        assert_eq!(cluster.write(file, 100 * number), 0);
    }
    for (from, to) in [("a1/f1", "a1/b3/l2"), ("a1/f1", "x2/l3"), ("a1/b2/f3", "a1/b2/l1")] {
        let (dir, name) = from.rsplit_once('/').unwrap();
        let name = Name::new(name.as_bytes()).unwrap();
        let file = InodeRef { ino: cluster.ino(from), seen: Some((cluster.ino(dir), name)) };
        assert_eq!(cluster.errno(Op::Link(file, at(to))), 0);
    }
    // A file that is found by number at another member than by its name.
    let rename = Op::Rename(at("a1/f2"), at("a1/b1/g3"), RenameFlags::default());
    assert_eq!(cluster.errno(rename), 0);
    for path in ["a1/b2", "a1/b1/g3"] {
        let file = InodeRef::by_id(cluster.ino(path));
        let (name, value) = (b"user.x"[..].into(), path.as_bytes().into());
        assert_eq!(cluster.errno(Op::SetXattr(file, name, value, XattrFlags::default())), 0);
    }
}

/// A clone of the present has what its source had, whatever becomes of that, and its names come
/// into being at all members. Nothing is left of it but its rows when it is finished.
#[test]
fn clone_of_the_present() {
    let mut cluster = Cluster::new(3);
    tree(&mut cluster);
    let mut expected = cluster.shapes("a1", None);
    assert_eq!(cluster.clone_of("a1", None, "y3"), 0);
    assert_eq!(cluster.write("a1/f3", 5000), 0);
    assert_eq!(cluster.errno(Op::Unlink(at("a1/b1/g3"))), 0);
    assert_eq!(cluster.errno(mknod("a1/b2/c1/new2")), 0);
    assert_eq!(cluster.shapes("y3", None), expected);
    assert_eq!(cluster.write("y3/f3", 7000), 0);
    assert_eq!(cluster.errno(mknod("y3/b2/c1/new3")), 0);
    assert_ne!(cluster.shapes("a1", None), expected);
    expected = cluster.shapes("y3", None);
    cluster.come_to_rest();
    assert_eq!(cluster.shapes("y3", None), expected);
    assert_eq!(cluster.records().values().filter(|records| !records.is_empty()).count(), 0);
    assert_eq!(cluster.history_rows(), 0);
    cluster.check_history_shares();
    // The file that had a name outside has two here.
    assert_eq!(cluster.inode(1, Op::Lookup(at("y3/f1"))).nlink, 2);
}

/// A clone of a snapshot, and one of that, without anybody looking before both are finished; the
/// snapshot goes when no clone needs it.
#[test]
fn clones_of_clones() {
    let mut cluster = Cluster::new(3);
    tree(&mut cluster);
    let expected = cluster.shapes("a1", None);
    let a1 = cluster.ino("a1");
    let snapshot = cluster.snapshot(a1, "s").id;
    assert_eq!(cluster.errno(Op::Unlink(at("a1/f3"))), 0);
    assert_eq!(cluster.clone_of("a1", Some(snapshot), "y3"), 0);
    assert_eq!(cluster.clone_of("y3", None, "z1"), 0);
    assert_eq!(cluster.clone_of("a1", Some(snapshot), "a1/in2"), 0);
    let leader = cluster.leader();
    assert_eq!(errno(&cluster.ask(leader, remove(a1, "s"))), 0);
    assert_eq!(cluster.clone_of("a1", Some(snapshot), "w1"), libc::ESTALE);
    cluster.come_to_rest();
    for clone in ["y3", "z1", "a1/in2"] {
        assert_eq!(cluster.shapes(clone, None), expected, "{clone}");
    }
    assert_eq!(cluster.records().values().filter(|records| !records.is_empty()).count(), 0);
    cluster.check_history_shares();
}

/// Snapshots that are made while a clone lacks names show all of it; those from before show
/// nothing of it.
#[test]
fn snapshots_of_a_clone() {
    let mut cluster = Cluster::new(3);
    tree(&mut cluster);
    let expected = cluster.shapes("a1", None);
    let before = cluster.snapshot(ROOT, "before").id;
    let there = cluster.shapes("", Some(before));
    assert_eq!(cluster.clone_of("a1", None, "y3"), 0);
    let during = cluster.snapshot(ROOT, "during").id;
    assert_eq!(cluster.write("y3/b2/f3", 9000), 0);
    assert_eq!(cluster.errno(Op::Unlink(at("y3/b2/l1"))), 0);
    assert_eq!(cluster.shapes("y3", Some(during)), expected);
    cluster.come_to_rest();
    assert_eq!(cluster.shapes("y3", Some(during)), expected);
    assert_eq!(cluster.shapes("", Some(before)), there);
    cluster.check_history_shares();
}

/// Members that stop at any moment lose nothing of a clone, and it is finished afterwards.
#[test]
fn crashes_while_names_come_into_being() {
    for (number, after) in (0..60).map(|number| (number, 1 + number * 2)) {
        let mut cluster = Cluster::new(3);
        tree(&mut cluster);
        let expected = cluster.shapes("a1", None);
        assert_eq!(cluster.clone_of("a1", None, "y3"), 0);
        let left = std::cell::Cell::new(after);
        let lookup = Request { creds: Creds::root(), op: Op::Lookup(at("y3/b2/c3/f1")) };
        let _slot = cluster.submit(1, lookup, None);
        for _ in 0..5 {
            let stopped = cluster.carry(|_, _| {
                left.set(left.get() - 1);
                left.get() == 0
            });
            if stopped.is_some() {
                break;
            }
            cluster.tick(kestrel_types::clock::SECOND / 20);
        }
        cluster.crash(1 + number % 3);
        cluster.restart(1 + number % 3);
        assert_eq!(cluster.shapes("y3", None), expected, "after {after}");
        cluster.come_to_rest();
        assert_eq!(cluster.shapes("y3", None), expected, "after {after}");
        assert!(cluster.records().values().all(Vec::is_empty), "after {after}");
        cluster.check_history_shares();
    }
}

/// Figures of a tree with directories that lack names are those of its source.
#[test]
fn figures_of_a_clone() {
    let mut cluster = Cluster::new(3);
    tree(&mut cluster);
    let usage = |cluster: &mut Cluster, path: &str| {
        let dir = cluster.ino(path);
        match cluster.ask(1, Op::TreeUsage(dir)) {
            Ok(Answer::Usage(usage)) => (usage.files, usage.dirs, usage.bytes),
            other => panic!("{other:?}"),
        }
    };
    let expected = usage(&mut cluster, "a1");
    assert_eq!(cluster.clone_of("a1", None, "y3"), 0);
    let during = cluster.snapshot(ROOT, "during").id;
    let root = usage(&mut cluster, "x2");
    assert_eq!(usage(&mut cluster, "y3"), expected);
    cluster.come_to_rest();
    assert_eq!(usage(&mut cluster, "y3"), expected);
    assert_eq!(usage(&mut cluster, "x2"), root);
    let y3 = cluster.ino("y3");
    let at = Op::At(during, Box::new(Op::TreeUsage(y3)));
    let Ok(Answer::Usage(then)) = cluster.ask(1, at) else { panic!("no figures") };
    assert_eq!((then.files, then.dirs, then.bytes), expected);
}

/// What cannot be cloned, and where to.
#[test]
fn refused_clones() {
    let mut cluster = Cluster::new(3);
    tree(&mut cluster);
    assert_eq!(cluster.clone_of("a1", None, "x2"), libc::EEXIST);
    assert_eq!(cluster.clone_of("a1", None, "a1/b2/in1"), libc::EINVAL);
    assert_eq!(cluster.clone_of("a1/f1", None, "n1"), libc::ENOTDIR);
    assert_eq!(cluster.clone_of("a1/f3", None, "n1"), libc::ENOENT);
    assert_eq!(cluster.clone_of("a1", None, "nowhere/n1"), libc::ENOENT);
    assert_eq!(cluster.clone_of("a1", Some(77), "n1"), libc::ESTALE);
    let source = cluster.ino("a1");
    let op = Op::CloneDir { source, at: None, place: at("n1") };
    let request = Request { creds: Creds { uid: 1000, gid: 100, ..Creds::root() }, op };
    let slot = cluster.submit(cluster.leader(), request, None);
    assert_eq!(errno(&cluster.wait_for(&slot)), libc::EPERM);
    let quota = cluster.dir_quota("x2", limits(1 << 20, None));
    assert_eq!(cluster.clone_of("a1", None, "x2/n1"), libc::EOPNOTSUPP);
    assert_eq!(cluster.clone_of("a1", None, "n1"), 0);
    let user = QuotaSubject::User(1000);
    let refused = cluster.ask(1, Op::QuotaSet(user, Box::new(limits(None, 10))));
    assert_eq!(errno(&refused), libc::EBUSY);
    cluster.come_to_rest();
    cluster.set_quota(user, limits(None, 10));
    assert_eq!(cluster.clone_of("a1", None, "n2"), libc::EOPNOTSUPP);
    assert_eq!(errno(&cluster.ask(1, Op::QuotaRemove(user))), 0);
    assert_eq!(errno(&cluster.ask(1, Op::QuotaRemove(quota))), 0);
    assert_eq!(cluster.clone_of("a1", None, "n2"), 0);
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let n2 = InodeRef::by_id(cluster.ino("n2"));
    assert_eq!(cluster.errno(Op::SetAttr(n2, mode)), 0);
    assert_eq!(cluster.errno(Op::RmDir(at("n2"), None)), libc::ENOTEMPTY);
    let made = cluster.begin_snapshot(ROOT, "s");
    assert_eq!(errno(&cluster.wait_for(&made)), 0);
    assert_eq!(errno(&cluster.ask(1, create(ROOT, "s"))), libc::EEXIST);
    cluster.come_to_rest();
}
