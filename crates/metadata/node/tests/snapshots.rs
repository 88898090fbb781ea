//! Random operations and snapshots, compared with a model that copies the whole tree at each
//! snapshot; with restarts, and with snapshots removed in any order. After each sequence the raw
//! rows are checked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use proptest::prelude::*;

use common::{Fixture, at, config, name};
use kestrel_meta::node::NodeConfig;
use kestrel_types::clock::SECOND;
use kestrel_types::extent::{CHUNK_BYTES, Extent};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::range::Range;
use kestrel_types::request::{
    Accessed, Answer, Commit, NewData, Op, OpenFlags, RenameFlags, SetAttr, Usage, XattrFlags,
};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use kestrel_types::snapshot_changes::DirMoment;

/// Everything that requests tell of one name: its inode, extended attributes and extents.
type Told = (Inode, BTreeMap<Vec<u8>, Vec<u8>>, Vec<(u64, Vec<Extent>)>);

/// What requests tell of a whole tree, by path, and of its figures.
type Tree = (BTreeMap<String, Told>, Usage);

/// What is told of changes: of a directory both moments, and of its names what has them.
type Changed = BTreeMap<InodeId, (DirMoment, DirMoment, BTreeMap<Vec<u8>, Pair>)>;
type Pair = (Option<Box<Inode>>, Option<Box<Inode>>);

/// Paths of directories by number.
fn dirs(tree: &BTreeMap<String, Told>) -> BTreeMap<InodeId, String> {
    let dirs = tree.iter().filter(|(_, (inode, ..))| inode.kind == Kind::Dir);
    dirs.map(|(path, (inode, ..))| (inode.ino, path.clone())).collect()
}

/// Names in the directory at a path, which ends in a slash.
fn names(tree: &BTreeMap<String, Told>, path: &str) -> BTreeMap<Vec<u8>, Inode> {
    let below = tree.range(path.to_owned()..).skip(1);
    below
        .map_while(|(below, told)| Some((below.strip_prefix(path)?.strip_suffix('/')?, told)))
        .filter(|(name, _)| !name.contains('/'))
        .map(|(name, (inode, ..))| (name.as_bytes().to_vec(), inode.clone()))
        .collect()
}

/// What two moments of an inode are compared by here.
fn plain(inode: &Inode) -> Inode {
    Inode { atime: 0, change: 0, data: Data::None, effective: Default::default(), ..inode.clone() }
}

/// The same without what the figures of a directory say, which comes with the directory itself.
fn flat_of(inode: &Inode) -> Inode {
    let plain = plain(inode);
    match plain.kind {
        Kind::Dir => Inode { mtime: 0, ctime: 0, size: 0, nlink: 0, ..plain },
        _ => plain,
    }
}

fn flattened(names: BTreeMap<Vec<u8>, Inode>) -> BTreeMap<Vec<u8>, Inode> {
    names.into_iter().map(|(name, inode)| (name, flat_of(&inode))).collect()
}

type Raw = (u8, u8, u8, u8);

fn raws(len: usize) -> impl Strategy<Value = Vec<Raw>> {
    prop::collection::vec(any::<Raw>(), 1..len)
}

struct World {
    fixture: Option<Fixture>,
    /// Live snapshots, each with a copy of the tree.
    copies: BTreeMap<SnapshotId, (SnapshotInfo, Tree)>,
    objects: u64,
    made: u32,
}

const NAMES: [&str; 6] = ["a", "ab", "b", "c", "\u{1}", "z"];

fn flat(inode: &Inode) -> InodeRef {
    InodeRef::by_id(inode.ino)
}

impl World {
    fn new() -> Self {
        let config = NodeConfig { scan_rows: 2, ..config(3) };
        Self { fixture: Some(Fixture::new(config)), copies: BTreeMap::new(), objects: 5, made: 0 }
    }

    fn f(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }

    /// The answer to a request, now or at a snapshot.
    fn ask(&self, snapshot: Option<SnapshotId>, op: Op) -> Result<Answer, i32> {
        let op = match snapshot {
            None => op,
            Some(snapshot) => Op::At(snapshot, Box::new(op)),
        };
        self.f().call(op).map_err(|why| common::errno(&Err(why)))
    }

    fn tree(&self, snapshot: Option<SnapshotId>) -> Tree {
        let mut tree = BTreeMap::new();
        let root = match self.ask(snapshot, Op::GetAttr(InodeRef::by_id(ROOT))).unwrap() {
            Answer::Inode(inode) => *inode,
            other => panic!("{other:?}"),
        };
        self.walk(snapshot, "/", (InodeRef::by_id(ROOT), root), &mut tree);
        match self.ask(snapshot, Op::TreeUsage(ROOT)).unwrap() {
            Answer::Usage(usage) => (tree, usage),
            other => panic!("{other:?}"),
        }
    }

    fn walk(
        &self,
        snapshot: Option<SnapshotId>,
        path: &str,
        (reference, inode): (InodeRef, Inode),
        tree: &mut BTreeMap<String, Told>,
    ) {
        if inode.kind == Kind::Dir {
            let mut after = None;
            loop {
                let op = Op::ReadDir { dir: inode.ino, after, limit: 2, check: true };
                let (entries, end) = match self.ask(snapshot, op).unwrap() {
                    Answer::Entries { entries, end, .. } => (entries, end),
                    other => panic!("{other:?}"),
                };
                after = entries.last().map(|entry| entry.name.clone());
                for entry in entries {
                    let place = PathRef::new(inode.ino, entry.name.clone());
                    let child = match self.ask(snapshot, Op::Lookup(place)) {
                        Ok(Answer::Entry { inode: child, parent }) if parent == inode.ino => *child,
                        other => panic!("{path}: {entry:?}: {other:?}"),
                    };
                    assert_eq!((child.ino, child.kind), (entry.ino, entry.kind));
                    let text = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
                    let seen = Some((inode.ino, entry.name));
                    let child = (InodeRef { ino: child.ino, seen }, child);
                    self.walk(snapshot, &format!("{path}{text}/"), child, tree);
                }
                if end {
                    break;
                }
            }
        }
        let mut xattrs = BTreeMap::new();
        if let Answer::Bytes(names) = self.ask(snapshot, Op::ListXattr(reference.clone())).unwrap()
        {
            for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                let op = Op::GetXattr(reference.clone(), name.into());
                let Ok(Answer::Bytes(value)) = self.ask(snapshot, op) else { panic!("{name:?}") };
                xattrs.insert(name.to_vec(), value.to_vec());
            }
        }
        let shown = self.ask(snapshot, Op::GetAttr(reference.clone()));
        assert_eq!(shown, Ok(Answer::Inode(Box::new(inode.clone()))), "{path}");
        if snapshot.is_some() && inode.kind == Kind::File {
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let opened = self.ask(snapshot, Op::Open(reference, flags));
            let told =
                Answer::Opened { inode: Box::new(inode.clone()), created: false, parent: None };
            assert_eq!(opened, Ok(told));
        }
        let mut chunks = Vec::new();
        if inode.data == Data::Chunked {
            let op = Op::Chunks { ino: inode.ino, first: 0, last: 100 };
            let Answer::Chunks { chunks: told, .. } = self.ask(snapshot, op).unwrap() else {
                panic!("no chunks")
            };
            // Rows beyond the end are being deleted; readers do not look there.
            chunks = told;
            chunks.retain(|(chunk, _)| chunk * u64::from(CHUNK_BYTES) < inode.size);
        }
        tree.insert(path.to_owned(), (inode, xattrs, chunks));
    }

    /// Something that there is: its path, and its inode.
    fn pick(&self, number: u8, dir: bool) -> Option<(String, Inode)> {
        let (tree, _) = self.tree(None);
        let mut all: Vec<(String, Inode)> = tree
            .into_iter()
            .filter(|(_, (inode, ..))| (inode.kind == Kind::Dir) == dir)
            .map(|(path, (inode, ..))| (path, inode))
            .collect();
        if all.is_empty() { None } else { Some(all.swap_remove(usize::from(number) % all.len())) }
    }

    fn place(&self, dir: u8, entry: u8) -> PathRef {
        let (_, dir) = self.pick(dir, true).unwrap();
        at(dir.ino, NAMES[usize::from(entry) % NAMES.len()])
    }

    fn of(&self, path: &str) -> PathRef {
        at(ROOT, path.trim_matches('/'))
    }

    fn range(&mut self, len: u32) -> Range {
        self.objects += 1;
        // Some objects are shared.
        Range { object: 5 + self.objects % 7, offset: self.objects as u32 * 64, len }
    }

    fn commit(&mut self, file: &(String, Inode), data: NewData, size: Option<u64>) {
        let place = self.of(&file.0);
        let inode = InodeRef { ino: file.1.ino, seen: Some((self.parent(&file.0), place.name)) };
        let (base, mtime) = (file.1.data_change, self.f().node.stamp() as i64 % 1000);
        let commit = Commit { inode, base, data, size, mtime, kill_suid: false };
        let _any = self.f().call(Op::Commit(commit));
    }

    fn parent(&self, path: &str) -> InodeId {
        let (tree, _) = self.tree(None);
        let above = path.trim_end_matches('/').rsplit_once('/').unwrap().0;
        tree[&format!("{above}/")].0.ino
    }

    fn seen(&self, file: &(String, Inode)) -> InodeRef {
        let place = self.of(&file.0);
        InodeRef { ino: file.1.ino, seen: Some((self.parent(&file.0), place.name)) }
    }

    fn content(&mut self, (_, b, c, d): Raw) {
        let Some(file) = self.pick(b, false).filter(|(_, inode)| inode.kind == Kind::File) else {
            return;
        };
        match c % 6 {
            0 => self.commit(&file, NewData::Inline([d; 9].into()), Some(9)),
            1 | 2 => {
                let range = self.range(100 + u32::from(d));
                self.commit(&file, NewData::Packed(range), Some(u64::from(range.len)));
            }
            3 | 4 => {
                let chunk = u64::from(d % 5);
                let range = self.range(500);
                let pos = u32::from(d) * 100;
                let end = chunk * u64::from(CHUNK_BYTES) + u64::from(pos + 500);
                let patches = vec![(chunk, Extent::of_range(pos, range))];
                self.commit(&file, NewData::Patches(patches), Some(end.max(file.1.size)));
            }
            _ => {
                let size = match d % 4 {
                    0 => 0,
                    1 => u64::from(CHUNK_BYTES) + 7,
                    _ => file.1.size / 2,
                };
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let inode = self.seen(&file);
                let _any = self.f().call(Op::SetAttr(inode, set));
            }
        }
    }

    fn step(&mut self, raw: Raw) {
        let (a, b, c, d) = raw;
        self.f().clock.advance(SECOND / 3);
        let f = self.f();
        match a % 24 {
            0..=2 => {
                let op =
                    Op::MkNod { place: self.place(b, c), kind: Kind::File, mode: 0o644, rdev: 0 };
                let _any = f.call(op);
            }
            3 | 4 => drop(f.call(Op::MkDir(self.place(b, c), 0o755))),
            5..=8 => self.content(raw),
            9 | 10 => {
                let from = self.pick(b, d % 2 == 0).unwrap_or_else(|| self.pick(0, true).unwrap());
                let flags = RenameFlags { exchange: d % 5 == 0, ..RenameFlags::default() };
                if from.1.ino != ROOT {
                    let op = Op::Rename(self.of(&from.0), self.place(c, d), flags);
                    let _any = f.call(op);
                }
            }
            11 => {
                if let Some(file) = self.pick(b, false) {
                    let _any = f.call(Op::Link(self.seen(&file), self.place(c, d)));
                }
            }
            12 | 13 => {
                if let Some(file) = self.pick(b, false) {
                    let flags = OpenFlags { read: true, ..OpenFlags::default() };
                    // Some go while they are open.
                    let open = d % 3 == 0 && f.call(Op::Open(self.seen(&file), flags)).is_ok();
                    f.call(Op::Unlink(self.of(&file.0))).unwrap();
                    if open {
                        f.call(Op::Release(file.1.ino)).unwrap();
                    }
                }
            }
            14 => {
                let dir = self.pick(b, true).unwrap();
                if dir.1.ino != ROOT {
                    let _any = f.call(Op::RmDir(self.of(&dir.0), None));
                }
            }
            15 => {
                let some = self.pick(b, c % 2 == 0).unwrap_or_else(|| self.pick(0, true).unwrap());
                let of = if some.1.ino == ROOT { flat(&some.1) } else { self.seen(&some) };
                let key = Box::from([b"user.a", b"user.b"][usize::from(c / 2 % 2)].as_slice());
                let _any = match d % 2 {
                    0 => f.call(Op::SetXattr(of, key, [d; 4].into(), XattrFlags::default())),
                    _ => f.call(Op::RemoveXattr(of, key)),
                };
            }
            16 => {
                let set = SetAttr { mode: Some(u16::from(d) | 0o500), ..SetAttr::default() };
                let some = self.pick(b, c % 2 == 0).unwrap_or_else(|| self.pick(0, true).unwrap());
                let of = if some.1.ino == ROOT { flat(&some.1) } else { self.seen(&some) };
                let _any = f.call(Op::SetAttr(of, set));
            }
            17 => {
                let dir = self.pick(b, true).unwrap();
                let at = kestrel_types::clock::Clock::now(&*f.clock);
                let _any = f.call(Op::Accessed(flat(&dir.1), Accessed { at, relative: false }));
            }
            18 => drop(f.call(Op::Symlink(self.place(b, c), b"target".as_slice().into()))),
            19 | 20 => self.snapshot(b),
            21 => self.remove(b),
            22 => drop(f.node.tidy_history().unwrap()),
            _ if c % 3 == 0 => {
                let power_loss = d % 2 == 0 && self.synced();
                let fixture = self.fixture.take().unwrap();
                self.fixture = Some(fixture.crash(power_loss));
            }
            _ => self.verify(),
        }
    }

    /// Nothing is to be lost by a power loss, so that the copies stay true.
    fn synced(&self) -> bool {
        use kestrel_engine::Engine;
        self.f().engine.sync().is_ok()
    }

    fn snapshot(&mut self, which: u8) {
        let (_, dir) = self.pick(which, true).unwrap();
        self.made += 1;
        let op = Op::SnapshotCreate { dir: dir.ino, name: name(&format!("s{}", self.made)) };
        match self.f().call(op).unwrap() {
            Answer::Snapshots(made) => {
                let info = made.into_iter().next().unwrap();
                assert_eq!(info.dir, dir.ino);
                let tree = self.tree(None);
                self.copies.insert(info.id, (info, tree));
            }
            other => panic!("{other:?}"),
        }
    }

    fn remove(&mut self, which: u8) {
        let ids: Vec<SnapshotId> = self.copies.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[usize::from(which) % ids.len()];
        let (info, _) = self.copies.remove(&id).unwrap();
        let op = Op::SnapshotRemove { dir: info.dir, name: info.name };
        self.f().call(op).unwrap();
        assert_eq!(self.ask(Some(id), Op::GetAttr(InodeRef::by_id(ROOT))), Err(libc::ESTALE));
    }

    fn verify(&self) {
        self.f().check();
        let now = self.tree(None).0;
        for (older, (_, (was, _))) in &self.copies {
            for (newer, (_, (is, _))) in self.copies.range(older + 1..) {
                self.check_changes((*older, was), (Some(*newer), is));
            }
            self.check_changes((*older, was), (None, &now));
        }
        for (id, (info, copy)) in &self.copies {
            let then = self.tree(Some(*id));
            assert!(then == *copy, "{info:?}: expected {copy:#?}, got {then:#?}");
        }
        let listed = self.f().call(Op::SnapshotList { dir: None, ancestors: false });
        let Ok(Answer::Snapshots(mut listed)) = listed else { panic!("{listed:?}") };
        listed.retain(|info| !info.removing);
        let expected: Vec<SnapshotInfo> =
            self.copies.values().map(|(info, _)| info.clone()).collect();
        assert_eq!(listed, expected);
    }

    fn changes(&self, (older, newer): (SnapshotId, Option<SnapshotId>), root: InodeId) -> Changed {
        let (mut found, mut files) = (Changed::new(), Vec::new());
        let (mut after, mut looked_for) = (None, Vec::new());
        loop {
            let files_now: Vec<InodeId> = looked_for.clone();
            let op = Op::SnapshotChanges {
                dir: root,
                older,
                newer,
                files: files_now,
                limit: 1 + (older % 3) as usize,
                after,
            };
            let told = match self.f().call(op) {
                Ok(Answer::SnapshotChanges(told)) => *told,
                other => panic!("{other:?}"),
            };
            for one in told.dirs {
                let known = found
                    .entry(one.dir)
                    .or_insert_with(|| (one.older.clone(), one.newer.clone(), BTreeMap::new()));
                assert_eq!((&known.0, &known.1), (&one.older, &one.newer));
                for pair in one.names {
                    let pair = (pair.name.as_bytes().to_vec(), (pair.older, pair.newer));
                    if let Some(before) = known.2.insert(pair.0.clone(), pair.1.clone()) {
                        assert_eq!(before, pair.1);
                    }
                }
            }
            files.extend(told.files);
            after = told.next;
            if after.is_none() && (looked_for.is_empty() && !files.is_empty()) {
                looked_for = std::mem::take(&mut files);
            } else if after.is_none() {
                return found;
            }
        }
    }

    /// Whether what is told of two moments of the whole tree, and of each directory of it, is true
    /// and has all that differs.
    fn check_changes(
        &self,
        (older, was): (SnapshotId, &BTreeMap<String, Told>),
        (newer, is): (Option<SnapshotId>, &BTreeMap<String, Told>),
    ) {
        let (old_dirs, new_dirs) = (dirs(was), dirs(is));
        for root in old_dirs.keys().filter(|dir| new_dirs.contains_key(*dir)) {
            let (old_root, new_root) = (&old_dirs[root], &new_dirs[root]);
            let found = self.changes((older, newer), *root);
            for (dir, old_path) in &old_dirs {
                let Some(new_path) = new_dirs.get(dir) else {
                    assert!(!found.contains_key(dir));
                    continue;
                };
                let below = old_path.strip_prefix(old_root).zip(new_path.strip_prefix(new_root));
                let told = found.get(dir);
                let Some((old_below, new_below)) = below else {
                    assert!(told.is_none(), "{dir} is not in the tree of {root}");
                    continue;
                };
                let (mut olds, mut news) = (names(was, old_path), names(is, new_path));
                let differs = |a: &Inode, b: &Inode| plain(a) != plain(b);
                if let Some((then, now, pairs)) = told {
                    assert_eq!(
                        String::from_utf8_lossy(&then.path),
                        old_below.trim_end_matches('/')
                    );
                    assert_eq!(String::from_utf8_lossy(&now.path), new_below.trim_end_matches('/'));
                    assert_eq!(plain(&then.inode), plain(&was[old_path].0), "{old_path}");
                    assert_eq!(plain(&now.inode), plain(&is[new_path].0), "{new_path}");
                    for (name, (old, new)) in pairs {
                        let same = |told: &Option<Box<Inode>>, there: Option<Inode>| {
                            let (told, there) =
                                (told.as_deref().map(flat_of), there.as_ref().map(flat_of));
                            assert_eq!(told, there, "{old_path} {new_path} {name:?}");
                        };
                        same(old, olds.remove(name));
                        same(new, news.remove(name));
                    }
                } else {
                    assert!(dir != root);
                    assert!(!differs(&was[old_path].0, &is[new_path].0), "{old_path} {new_path}");
                    let name = |path: &str| {
                        path.trim_end_matches('/').rsplit('/').next().map(str::to_owned)
                    };
                    assert_eq!(name(old_path), name(new_path), "moves are told");
                }
                // The rest has not changed.
                let (olds, news) = (flattened(olds), flattened(news));
                assert_eq!(olds, news, "{old_path} {new_path} of {root}");
            }
        }
    }

    fn tidy(&self) {
        while self.f().node.tidy_history().unwrap() {}
    }

    /// History rows that removing a snapshot would take, as the node tells.
    fn usage(&self, snapshot: SnapshotId) -> (u64, u64) {
        let (mut rows, mut bytes, mut after) = (0, 0, None);
        loop {
            match self.f().call(Op::SnapshotUsage { snapshot, after }) {
                Ok(Answer::SnapshotUsage(usage)) => {
                    (rows, bytes, after) = (rows + usage.rows, bytes + usage.bytes, usage.next);
                }
                other => panic!("{other:?}"),
            }
            if after.is_none() {
                return (rows, bytes);
            }
        }
    }

    /// Bytes that history refers to.
    fn referenced(&self) -> i64 {
        use kestrel_engine::Engine;
        let (share, mut sum) = (kestrel_types::snapshot::HISTORY_SHARE.to_be_bytes(), 0);
        let scanned =
            self.f().engine.scan_table(kestrel_types::Table::ObjStat, None, &mut |key, row| {
                if key.suffix == share {
                    sum += kestrel_types::stat::ObjStat::decode(row).unwrap().referenced;
                }
                std::ops::ControlFlow::Continue(())
            });
        scanned.unwrap();
        sum
    }

    /// Removes a snapshot: as many rows go as were told, and not fewer references.
    fn remove_as_told(&mut self, which: u8) {
        let ids: Vec<SnapshotId> = self.copies.keys().copied().collect();
        let (rows, bytes) = self.usage(ids[usize::from(which) % ids.len()]);
        let (before, referenced) = (self.f().check().history, self.referenced());
        self.remove(which);
        self.tidy();
        assert_eq!(before as u64 - self.f().check().history as u64, rows);
        assert!(referenced - self.referenced() >= bytes as i64);
    }

    fn finish(mut self, order: &[u8]) {
        self.verify();
        for which in order.iter().cycle() {
            if self.copies.is_empty() {
                break;
            }
            if which % 2 == 0 {
                self.tidy();
                self.remove_as_told(*which);
            } else {
                self.remove(*which);
            }
            self.verify();
        }
        self.tidy();
        while self.f().node.sweep().unwrap() {}
        let found = self.f().check();
        assert_eq!(found.history, 0);
        let listed = self.f().call(Op::SnapshotList { dir: None, ancestors: false });
        assert_eq!(listed, Ok(Answer::Snapshots(Vec::new())));
        use kestrel_engine::Engine;
        let share = kestrel_types::snapshot::HISTORY_SHARE.to_be_bytes();
        let none = |key: kestrel_types::KeyRef<'_>| assert_ne!(key.suffix, share);
        self.f()
            .engine
            .scan_table(kestrel_types::Table::ObjStat, None, &mut |key, _| {
                none(key);
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, failure_persistence: None,
        ..ProptestConfig::default() })]

    /// Each snapshot is the tree of when it was made, whatever happens later.
    #[test]
    fn snapshots_like_copies(raws in raws(120), order in prop::collection::vec(any::<u8>(), 1..6)) {
        let mut world = World::new();
        for raw in raws {
            world.step(raw);
        }
        world.finish(&order);
    }
}
