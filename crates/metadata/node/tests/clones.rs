//! Random operations, snapshots and clones at a node, and at another one the same with copies of
//! the whole tree instead of clones: what requests tell is the same. With restarts, and with
//! snapshots removed in any order. The raw rows are checked while clones lack names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use proptest::prelude::*;

use common::{Fixture, at, config, errno, name};
use kestrel_engine::Engine;
use kestrel_meta::node::NodeConfig;
use kestrel_types::clock::SECOND;
use kestrel_types::extent::{Extent, Source};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Answer, Commit, NewData, Op, OpenFlags, RenameFlags, SetAttr, SetTime, XattrFlags,
};
use kestrel_types::snapshot::SnapshotId;

/// What requests tell of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    inode: Inode,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    chunks: Vec<(u64, Vec<Extent>)>,
}

/// A tree, by path; the root of it is the empty path.
type Tree = BTreeMap<String, Told>;

/// What must be the same of a name and of its copy.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    attributes: (Kind, u16, u32, u64, i64),
    data: Data,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    chunks: Vec<(u64, Vec<Extent>)>,
    /// The first path that leads to the same file.
    same_as: String,
}

type Raw = (u8, u8, u8, u8);

const NAMES: [&str; 6] = ["a", "ab", "b", "c", "\u{1}", "z"];

fn shapes(tree: &Tree, root: &str) -> BTreeMap<String, Shape> {
    let mut first: BTreeMap<InodeId, String> = BTreeMap::new();
    let mut shapes = BTreeMap::new();
    let prefix = format!("{root}/");
    for (path, told) in tree {
        let Some(path) = path.strip_prefix(&prefix).or((path == root).then_some("")) else {
            continue;
        };
        let inode = &told.inode;
        let size = if inode.kind == Kind::Dir { 0 } else { inode.size };
        let data = if inode.kind == Kind::Dir { Data::None } else { inode.data.clone() };
        let same_as = first.entry(inode.ino).or_insert_with(|| path.to_owned()).clone();
        let shape = Shape {
            attributes: (inode.kind, inode.mode, inode.rdev, size, inode.mtime),
            data,
            xattrs: told.xattrs.clone(),
            chunks: told.chunks.clone(),
            same_as,
        };
        shapes.insert(path.to_owned(), shape);
    }
    shapes
}

/// Panics unless two trees are the same, with the first path that is not.
fn same(told: &Tree, expected: &Tree, what: &str) {
    let (told, expected) = (shapes(told, ""), shapes(expected, ""));
    for path in told.keys().chain(expected.keys()) {
        assert_eq!(told.get(path), expected.get(path), "{what}: {path:?}");
    }
}

/// One of the two nodes.
struct Side(Option<Fixture>);

impl Side {
    fn new() -> Self {
        Self(Some(Fixture::new(NodeConfig { scan_rows: 2, ..config(3) })))
    }

    fn f(&self) -> &Fixture {
        self.0.as_ref().unwrap()
    }

    fn ask(&self, snapshot: Option<SnapshotId>, op: Op) -> Result<Answer, i32> {
        let op = match snapshot {
            None => op,
            Some(snapshot) => Op::At(snapshot, Box::new(op)),
        };
        self.f().call(op).map_err(|why| errno(&Err(why)))
    }

    fn place(path: &str) -> PathRef {
        at(ROOT, path.trim_matches('/'))
    }

    /// What a path leads to, and by which reference.
    fn lookup(&self, snapshot: Option<SnapshotId>, path: &str) -> Option<(InodeRef, Inode)> {
        if path.is_empty() {
            let root = InodeRef::by_id(ROOT);
            return match self.ask(snapshot, Op::GetAttr(root.clone())) {
                Ok(Answer::Inode(inode)) => Some((root, *inode)),
                other => panic!("{other:?}"),
            };
        }
        let place = Self::place(path);
        match self.ask(snapshot, Op::Lookup(place.clone())) {
            Ok(Answer::Entry { parent, inode }) => {
                let seen = Some((parent, place.name));
                Some((InodeRef { ino: inode.ino, seen }, *inode))
            }
            Err(libc::ENOENT) => None,
            other => panic!("{path:?}: {other:?}"),
        }
    }

    fn tree(&self, snapshot: Option<SnapshotId>) -> Tree {
        let mut tree = Tree::new();
        let mut left = vec![String::new()];
        while let Some(path) = left.pop() {
            let (reference, inode) = self.lookup(snapshot, &path).unwrap();
            if inode.kind == Kind::Dir {
                let mut after = None;
                loop {
                    let op = Op::ReadDir { dir: inode.ino, after, limit: 2, check: true };
                    let Ok(Answer::Entries { entries, end, .. }) = self.ask(snapshot, op) else {
                        panic!("{path:?} is not listed")
                    };
                    after = entries.last().map(|entry| entry.name.clone());
                    left.extend(entries.iter().map(|entry| {
                        let name = String::from_utf8_lossy(entry.name.as_bytes());
                        format!("{path}/{name}")
                    }));
                    if end {
                        break;
                    }
                }
            }
            tree.insert(path, self.told(snapshot, reference, inode));
        }
        tree
    }

    fn told(&self, snapshot: Option<SnapshotId>, reference: InodeRef, inode: Inode) -> Told {
        let mut xattrs = BTreeMap::new();
        let list = self.ask(snapshot, Op::ListXattr(reference.clone()));
        let Ok(Answer::Bytes(names)) = list else { panic!("{list:?}") };
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let op = Op::GetXattr(reference.clone(), name.into());
            let Ok(Answer::Bytes(value)) = self.ask(snapshot, op) else { panic!("{name:?}") };
            xattrs.insert(name.to_vec(), value.to_vec());
        }
        let mut chunks = Vec::new();
        if inode.data == Data::Chunked {
            let op = Op::Chunks { ino: inode.ino, first: 0, last: 100 };
            let told = self.ask(snapshot, op);
            let Ok(Answer::Chunks { chunks: told, .. }) = told else { panic!("{told:?}") };
            chunks = told;
            chunks.retain(|(chunk, _)| chunk * CHUNK_BYTES < inode.size);
            for (_, extents) in &mut chunks {
                extents.retain(|extent| extent.source != Source::Hole);
            }
            chunks.retain(|(_, extents)| !extents.is_empty());
        }
        Told { inode, xattrs, chunks }
    }

    fn commit(&self, path: &str, data: NewData, size: u64) -> i32 {
        let (inode, found) = self.lookup(None, path).unwrap();
        let (base, mtime) = (found.data_change, 5 * SECOND);
        let commit = Commit { inode, base, data, size: Some(size), mtime, kill_suid: false };
        errno(&self.f().call(Op::Commit(commit)))
    }

    fn set(&self, path: &str, set: SetAttr) -> i32 {
        let (inode, _) = self.lookup(None, path).unwrap();
        errno(&self.f().call(Op::SetAttr(inode, set)))
    }

    /// Copies what is below `from` in a tree to a path.
    fn copy(&self, tree: &Tree, from: &str, to: &str) {
        let mut first: BTreeMap<InodeId, String> = BTreeMap::new();
        let prefix = format!("{from}/");
        let below: Vec<(String, &Told)> = tree
            .iter()
            .filter_map(|(path, told)| match path == from {
                true => Some((to.to_owned(), told)),
                false => path.strip_prefix(&prefix).map(|rest| (format!("{to}/{rest}"), told)),
            })
            .collect();
        for (path, told) in &below {
            let (place, inode) = (Self::place(path), &told.inode);
            let known = first.get(&inode.ino).cloned();
            let op = match (inode.kind, known) {
                (_, Some(known)) => {
                    let (file, _) = self.lookup(None, &known).unwrap();
                    self.f().call(Op::Link(file, place)).unwrap();
                    continue;
                }
                (Kind::Dir, _) => Op::MkDir(place, 0o755),
                (Kind::Symlink, _) => match &inode.data {
                    Data::Inline(target) => Op::Symlink(place, target.clone()),
                    other => panic!("{other:?}"),
                },
                (kind, _) => Op::MkNod { place, kind, mode: 0o644, rdev: inode.rdev },
            };
            first.insert(inode.ino, path.clone());
            self.f().call(op).unwrap();
            self.copy_content(path, told);
            for (name, value) in &told.xattrs {
                let (of, _) = self.lookup(None, path).unwrap();
                let (name, value) = (name.as_slice().into(), value.as_slice().into());
                self.f().call(Op::SetXattr(of, name, value, XattrFlags::default())).unwrap();
            }
        }
        for (path, told) in below.iter().rev() {
            let mode = Some(told.inode.mode);
            let mtime = Some(SetTime::At(told.inode.mtime));
            assert_eq!(self.set(path, SetAttr { mode, mtime, ..SetAttr::default() }), 0);
        }
    }

    fn copy_content(&self, path: &str, told: &Told) {
        let inode = &told.inode;
        if inode.kind != Kind::File {
            return;
        }
        match &inode.data {
            Data::None => {}
            Data::Inline(bytes) => {
                assert_eq!(self.commit(path, NewData::Inline(bytes.clone()), bytes.len() as u64), 0)
            }
            Data::Packed { range, .. } => {
                assert_eq!(self.commit(path, NewData::Packed(*range), u64::from(range.len)), 0);
            }
            Data::Chunked => {
                let extents = told.chunks.iter();
                let patches: Vec<(u64, Extent)> = extents
                    .flat_map(|(chunk, extents)| extents.iter().map(|extent| (*chunk, *extent)))
                    .collect();
                // A file with nothing but holes has content all the same.
                assert_eq!(self.commit(path, NewData::Patches(patches), inode.size), 0);
            }
        }
        let size = Some(inode.size);
        assert_eq!(self.set(path, SetAttr { size, ..SetAttr::default() }), 0);
    }
}

struct World {
    /// With clones.
    lazy: Side,
    /// With copies.
    eager: Side,
    /// Live snapshots of the lazy node: name, path of the directory, and the whole tree of the
    /// eager one.
    snapshots: BTreeMap<SnapshotId, (String, InodeId, Tree)>,
    objects: u64,
    made: u32,
}

impl World {
    fn new() -> Self {
        let (lazy, eager) = (Side::new(), Side::new());
        Self { lazy, eager, snapshots: BTreeMap::new(), objects: 5, made: 0 }
    }

    /// A path of the eager node.
    fn pick(&self, number: u8, dir: bool) -> Option<String> {
        let tree = self.eager.tree(None);
        let mut all: Vec<String> = tree
            .into_iter()
            .filter(|(_, told)| (told.inode.kind == Kind::Dir) == dir)
            .map(|(path, _)| path)
            .collect();
        if all.is_empty() { None } else { Some(all.swap_remove(usize::from(number) % all.len())) }
    }

    fn new_path(&self, dir: u8, entry: u8) -> String {
        let dir = self.pick(dir, true).unwrap();
        format!("{dir}/{}", NAMES[usize::from(entry) % NAMES.len()])
    }

    fn both(&self, what: &str, run: impl Fn(&Side) -> i32) -> i32 {
        let (lazy, eager) = (run(&self.lazy), run(&self.eager));
        assert_eq!(lazy, eager, "{what}");
        lazy
    }

    fn same(&self, op: impl Fn() -> Op) -> i32 {
        let what = format!("{:?}", op());
        self.both(&what, |side| errno(&side.f().call(op())))
    }

    fn range(&mut self, len: u32) -> Range {
        self.objects += 1;
        Range { object: 5 + self.objects % 7, offset: self.objects as u32 * 64, len }
    }

    fn content(&mut self, (_, b, c, d): Raw) {
        let Some(path) = self.pick(b, false) else { return };
        let (_, inode) = self.eager.lookup(None, &path).unwrap();
        if inode.kind != Kind::File {
            return;
        }
        let (data, size) = match c % 6 {
            0 => (NewData::Inline([d; 9].into()), 9),
            1 | 2 => {
                let range = self.range(100 + u32::from(d));
                (NewData::Packed(range), u64::from(range.len))
            }
            3 | 4 => {
                let chunk = u64::from(d % 7);
                let range = self.range(500);
                let pos = u32::from(d) * 100;
                let end = chunk * CHUNK_BYTES + u64::from(pos + 500);
                let patches = vec![(chunk, Extent::of_range(pos, range))];
                (NewData::Patches(patches), end.max(inode.size))
            }
            _ => {
                let size = Some(match d % 4 {
                    0 => 0,
                    1 => CHUNK_BYTES + 7,
                    _ => inode.size / 2,
                });
                self.both("size", |side| side.set(&path, SetAttr { size, ..SetAttr::default() }));
                return;
            }
        };
        self.both("commit", |side| side.commit(&path, data.clone(), size));
    }

    fn names(&mut self, (a, b, c, d): Raw) {
        match a % 8 {
            0 | 1 => {
                let place = Side::place(&self.new_path(b, c));
                self.same(|| Op::MkNod {
                    place: place.clone(),
                    kind: Kind::File,
                    mode: 0o644,
                    rdev: 0,
                });
            }
            2 => {
                let place = Side::place(&self.new_path(b, c));
                self.same(|| Op::MkDir(place.clone(), 0o755));
            }
            3 => {
                let place = Side::place(&self.new_path(b, c));
                self.same(|| Op::Symlink(place.clone(), b"target".as_slice().into()));
            }
            4 => {
                let from = self.pick(b, d % 2 == 0).unwrap_or_default();
                let to = self.new_path(c, d);
                let flags = RenameFlags { exchange: d % 5 == 0, ..RenameFlags::default() };
                if !from.is_empty() {
                    let (from, to) = (Side::place(&from), Side::place(&to));
                    self.same(|| Op::Rename(from.clone(), to.clone(), flags));
                }
            }
            5 => {
                if let Some(file) = self.pick(b, false) {
                    let to = Side::place(&self.new_path(c, d));
                    self.both("link", |side| {
                        let (file, _) = side.lookup(None, &file).unwrap();
                        errno(&side.f().call(Op::Link(file, to.clone())))
                    });
                }
            }
            6 => {
                if let Some(file) = self.pick(b, false) {
                    self.unlink(&file, d % 3 == 0);
                }
            }
            _ => {
                let dir = self.pick(b, true).unwrap();
                if !dir.is_empty() {
                    self.same(|| Op::RmDir(Side::place(&dir), None));
                }
            }
        }
    }

    /// Some go while they are open.
    fn unlink(&self, file: &str, open: bool) {
        self.both("unlink", |side| {
            let (reference, inode) = side.lookup(None, file).unwrap();
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let open = open && side.f().call(Op::Open(reference, flags)).is_ok();
            let gone = errno(&side.f().call(Op::Unlink(Side::place(file))));
            if open {
                side.f().call(Op::Release(inode.ino)).unwrap();
            }
            gone
        });
    }

    fn attributes(&mut self, (a, b, c, d): Raw) {
        let path = self.pick(b, c % 2 == 0).unwrap_or_default();
        match a % 3 {
            0 => {
                let key = [b"user.a", b"user.b"][usize::from(c / 2 % 2)].as_slice();
                self.both("xattr", |side| {
                    let (of, _) = side.lookup(None, &path).unwrap();
                    let op = match d % 3 {
                        0 => Op::RemoveXattr(of, key.into()),
                        _ => Op::SetXattr(of, key.into(), [d; 4].into(), XattrFlags::default()),
                    };
                    errno(&side.f().call(op))
                });
            }
            1 => {
                let mode = Some(u16::from(d) | 0o500);
                self.both("mode", |side| side.set(&path, SetAttr { mode, ..SetAttr::default() }));
            }
            _ => {
                let dir = self.pick(b, true).unwrap();
                let (key, value) = (b"kestrel.consistency".as_slice(), b"close-to-open".as_slice());
                self.both("policy", |side| {
                    let (of, _) = side.lookup(None, &dir).unwrap();
                    let op = match d % 3 {
                        0 => Op::RemoveXattr(of, key.into()),
                        _ => Op::SetXattr(of, key.into(), value.into(), XattrFlags::default()),
                    };
                    errno(&side.f().call(op))
                });
            }
        }
    }

    fn step(&mut self, raw: Raw) {
        let (a, b, c, d) = raw;
        for side in [&self.lazy, &self.eager] {
            side.f().clock.advance(SECOND / 3);
        }
        match a % 16 {
            0..=4 => self.names((b, c, d, (a / 16) ^ c)),
            5..=7 => self.content(raw),
            8 => self.attributes((b, c, d, (a / 16) ^ c)),
            9 | 10 => self.clone_dir(raw),
            11 => self.snapshot(b),
            12 => self.remove(b),
            13 => {
                self.lazy.f().node.tidy_history().unwrap();
                self.lazy.f().node.tidy_clones().unwrap();
            }
            14 if c % 2 == 0 => {
                let synced = self.lazy.f().engine.sync().is_ok();
                let fixture = self.lazy.0.take().unwrap();
                self.lazy.0 = Some(fixture.crash(d % 2 == 0 && synced));
            }
            14 => self.figures(b),
            _ => self.verify(c, d),
        }
        self.lazy.f().check();
    }

    /// A clone here, and a copy there.
    fn clone_dir(&mut self, (_, b, c, d): Raw) {
        let mut to = self.new_path(c, d);
        if self.eager.lookup(None, &to).is_some() {
            self.made += 1;
            to = format!("{to}{}", self.made);
        }
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        let snapshot = ids.get(usize::from(b) % (ids.len() + 2)).copied();
        let tree = match snapshot {
            Some(snapshot) => self.snapshots[&snapshot].2.clone(),
            None => self.eager.tree(None),
        };
        let dirs: Vec<&String> = tree
            .iter()
            .filter(|(_, told)| told.inode.kind == Kind::Dir)
            .map(|(path, _)| path)
            .collect();
        let from = dirs[usize::from(b / 3) % dirs.len()].clone();
        let (source, _) = self.lazy.lookup(snapshot, &from).unwrap();
        let (place, source) = (Side::place(&to), source.ino);
        let made = self.lazy.f().call(Op::CloneDir { source, at: snapshot, place });
        if snapshot.is_none() && format!("{to}/").starts_with(&format!("{from}/")) {
            assert_eq!(errno(&made), libc::EINVAL);
            return;
        }
        // Too large trees make the test slow.
        made.unwrap();
        self.eager.copy(&tree, &from, &to);
    }

    fn snapshot(&mut self, which: u8) {
        let path = self.pick(which, true).unwrap();
        let (_, dir) = self.lazy.lookup(None, &path).unwrap();
        self.made += 1;
        let named = format!("s{}", self.made);
        let op = Op::SnapshotCreate { dir: dir.ino, name: name(&named) };
        match self.lazy.f().call(op).unwrap() {
            Answer::Snapshots(made) => {
                let tree = self.eager.tree(None);
                self.snapshots.insert(made[0].id, (named, dir.ino, tree));
            }
            other => panic!("{other:?}"),
        }
    }

    fn remove(&mut self, which: u8) {
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[usize::from(which) % ids.len()];
        let (named, dir, _) = self.snapshots.remove(&id).unwrap();
        let op = Op::SnapshotRemove { dir, name: name(&named) };
        self.lazy.f().call(op).unwrap();
        let root = Op::GetAttr(InodeRef::by_id(ROOT));
        assert_eq!(self.lazy.ask(Some(id), root), Err(libc::ESTALE));
    }

    /// Figures of trees, in which directories lack names.
    fn figures(&self, which: u8) {
        let path = self.pick(which, true).unwrap();
        let of = |side: &Side| {
            let (_, dir) = side.lookup(None, &path).unwrap();
            match side.ask(None, Op::TreeUsage(dir.ino)) {
                Ok(Answer::Usage(usage)) => (usage.files, usage.dirs),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(of(&self.lazy), of(&self.eager), "{path:?}");
    }

    /// What requests tell, of a part of the tree now or at a snapshot.
    fn verify(&self, which: u8, at: u8) {
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        let snapshot = ids.get(usize::from(at) % (ids.len() + 1)).copied();
        let expected = match snapshot {
            Some(snapshot) => self.snapshots[&snapshot].2.clone(),
            None => self.eager.tree(None),
        };
        if which.is_multiple_of(3) {
            let told = self.lazy.tree(snapshot);
            same(&told, &expected, &format!("at {snapshot:?}"));
            return;
        }
        // Just one name: the others stay as they are.
        let (path, wanted) = expected.iter().nth(usize::from(which) % expected.len()).unwrap();
        let (reference, inode) = self.lazy.lookup(snapshot, path).unwrap();
        let told = self.lazy.told(snapshot, reference, inode);
        let one = |told: &Told| Tree::from([(path.clone(), told.clone())]);
        assert_eq!(shapes(&one(&told), path), shapes(&one(wanted), path));
    }

    fn finish(mut self) {
        let f = self.lazy.f();
        while f.node.tidy_clones().unwrap() {}
        assert_eq!(f.check().based, 0);
        let none = f.engine.scan_table(Table::Clone, None, &mut |key, _| panic!("{key:?}"));
        none.unwrap();
        let (now, expected) = (self.lazy.tree(None), self.eager.tree(None));
        same(&now, &expected, "now");
        for (path, told) in &expected {
            let nlink = told.inode.nlink;
            assert_eq!(now[path].inode.nlink, nlink, "names of {path:?}");
        }
        for (id, (_, _, tree)) in &self.snapshots {
            same(&self.lazy.tree(Some(*id)), tree, "at a snapshot");
        }
        while !self.snapshots.is_empty() {
            self.remove(0);
        }
        let f = self.lazy.f();
        while f.node.tidy_history().unwrap() {}
        for side in [&self.lazy, &self.eager] {
            while side.f().node.sweep().unwrap() {}
        }
        let (lazy, eager) = (f.check(), self.eager.f().check());
        assert_eq!(lazy.history, 0);
        let referred = |found: common::check::Found| {
            let mut objects = found.objects;
            objects.retain(|_, bytes| *bytes != 0);
            (found.files, found.dirs, objects)
        };
        assert_eq!(referred(lazy), referred(eager));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000,
        failure_persistence: None, ..ProptestConfig::default() })]

    /// A clone is like a copy, whatever happens to it and to its source.
    #[test]
    fn clones_like_copies(raws in prop::collection::vec(any::<Raw>(), 1..60)) {
        let mut world = World::new();
        for raw in raws {
            world.step(raw);
        }
        world.finish();
    }
}
