//! What members tell of the changes between two snapshots, and between a snapshot and now, beside
//! the rows of all of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;

use kestrel_meta::view::decode_dir_id;
use kestrel_types::clock::SECOND;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, Op, RenameFlags, Request, SetAttr};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{CHANGED_FILES_MAX, COMPARED_KEPT, ChangedDir, DirMoment};

use common::errno;
use common::members::{Cluster, at, mknod};
use common::snapshots::{Tree, create, remove};

/// What counts of an inode: its row's attributes without times of access.
type Flat = (InodeId, Kind, u16, u32, u64, i64);

type Names = BTreeMap<Vec<u8>, Flat>;

/// What was told of a directory: it at both moments, and its names.
type Told = (DirMoment, DirMoment, BTreeMap<Vec<u8>, (Option<Flat>, Option<Flat>)>);

fn flat(inode: &Inode) -> Flat {
    (inode.ino, inode.kind, inode.mode, inode.nlink, inode.size, inode.mtime)
}

/// A tree at a moment, by its rows.
struct Moment(Tree);

impl Moment {
    fn names(&self, dir: InodeId) -> Names {
        let mut names = Names::new();
        for (key, row) in &self.0.rows {
            if (key.table, key.id) != (Table::Entry, dir) {
                continue;
            }
            let inode = match Entry::decode(row).unwrap() {
                Entry::Inode(inode) => inode,
                Entry::Link { ino, .. } => {
                    let row = &self.0.rows[&Key::new(Table::Link, ino, b"")];
                    Inode::decode(&mut Reader::new(row)).unwrap()
                }
            };
            names.insert(key.suffix.to_vec(), flat(&inode));
        }
        names
    }

    /// The directory above one, and its name there.
    fn place(&self, dir: InodeId) -> Option<(InodeId, &[u8])> {
        let row = self.0.rows.get(&Key::new(Table::DirId, dir, b""))?;
        Some(decode_dir_id(row).unwrap())
    }

    /// The path of a directory, if the tree has it.
    fn path(&self, dir: InodeId) -> Option<String> {
        if dir == ROOT {
            return Some(String::new());
        }
        let (parent, name) = self.place(dir)?;
        let (above, name) = (self.path(parent)?, String::from_utf8_lossy(name));
        Some(if above.is_empty() { name.into() } else { format!("{above}/{name}") })
    }

    fn dirs(&self) -> Vec<InodeId> {
        let dirs = self.0.rows.keys().filter(|key| key.table == Table::DirId);
        dirs.map(|key| key.id).chain([ROOT]).collect()
    }
}

/// All that is told, page by page, and of files with several names by their numbers; and the newer
/// moment, which is a snapshot that was made for the question, if none is given.
fn told(
    cluster: &mut Cluster,
    older: SnapshotId,
    mut newer: Option<SnapshotId>,
) -> (SnapshotId, BTreeMap<InodeId, Told>) {
    let mut found: BTreeMap<InodeId, Told> = BTreeMap::new();
    let (mut files, mut looked_for): (Vec<InodeId>, Vec<InodeId>) = Default::default();
    let (mut after, mut pages) = (None, 0);
    let leader = cluster.leader();
    loop {
        let files_now: Vec<InodeId> = looked_for.clone();
        let op = Op::SnapshotChanges { dir: ROOT, older, newer, files: files_now, limit: 1, after };
        let page = match cluster.ask(leader, op) {
            Ok(Answer::SnapshotChanges(page)) => *page,
            other => panic!("{other:?}"),
        };
        pages += 1;
        assert!(newer.is_none() || page.newer == newer);
        newer = page.newer;
        for ChangedDir { dir, older, newer, names } in page.dirs {
            let known = found.entry(dir).or_insert_with(|| (older, newer, BTreeMap::new()));
            for name in names {
                let pair = (name.older.as_deref().map(flat), name.newer.as_deref().map(flat));
                known.2.insert(name.name.as_bytes().to_vec(), pair);
            }
        }
        files.extend(page.files);
        after = page.next;
        if after.is_none() && looked_for.is_empty() && !files.is_empty() {
            looked_for = std::mem::take(&mut files);
        } else if after.is_none() {
            assert!(pages < 10_000);
            return (newer.expect("of now a snapshot was made"), found);
        }
    }
}

/// Whether what is told is true, and has all that differs.
fn check(cluster: &mut Cluster, older: SnapshotId, newer: Option<SnapshotId>) -> usize {
    cluster.come_to_rest();
    let now = newer.is_none().then(|| cluster.tree());
    let (newer, found) = told(cluster, older, newer);
    let (was, is) = (Moment(cluster.tree_at(older)), Moment(cluster.tree_at(newer)));
    assert!(now.is_none_or(|now| now == is.0), "the snapshot is the present");
    for dir in was.dirs() {
        let paths = was.path(dir).zip(is.path(dir));
        let Some((old_path, new_path)) = paths else {
            assert!(!found.contains_key(&dir), "{dir} is not in both trees");
            continue;
        };
        let (mut olds, mut news) = (was.names(dir), is.names(dir));
        match found.get(&dir) {
            Some((then, now, names)) => {
                assert_eq!(String::from_utf8_lossy(&then.path), old_path);
                assert_eq!(String::from_utf8_lossy(&now.path), new_path);
                for (name, (old, new)) in names {
                    assert_eq!(*old, olds.remove(name), "{old_path} {name:?}");
                    assert_eq!(*new, news.remove(name), "{new_path} {name:?}");
                }
            }
            None => assert_eq!(was.place(dir), is.place(dir), "moves are told"),
        }
        assert_eq!(olds, news, "{old_path} {new_path}: the rest has not changed");
    }
    found.values().map(|(_, _, names)| names.len()).sum()
}

struct Prng(u64);

impl Prng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        let parts: Vec<_> = (0..depth).map(|_| ["a", "b", "c"][self.below(3) as usize]).collect();
        parts.join("/")
    }
}

/// Something random, which may fail.
fn act(cluster: &mut Cluster, prng: &mut Prng) {
    let (path, other, node) = (prng.path(), prng.path(), 1 + prng.below(3) as u32);
    let op = match prng.below(10) {
        0..=2 => Op::MkDir(at(&path), 0o755),
        3 | 4 => mknod(&path),
        5 => Op::Unlink(at(&path)),
        6 => Op::RmDir(at(&path), None),
        7 => Op::Rename(at(&path), at(&other), RenameFlags::default()),
        kind => match cluster.ask(node, Op::Lookup(at(&path))) {
            Ok(Answer::Entry { parent, inode }) => {
                let name = at(&path).name;
                let file = InodeRef { ino: inode.ino, seen: Some((parent, name)) };
                match kind {
                    8 => Op::Link(file, at(&other)),
                    _ => {
                        let mode = Some(0o600 + prng.below(64) as u16);
                        Op::SetAttr(file, SetAttr { mode, ..SetAttr::default() })
                    }
                }
            }
            _ => return,
        },
    };
    let _ = cluster.ask(node, op);
}

/// Random changes of a small tree, and snapshots: what members tell between any two of them is true
/// and has all that differs.
#[test]
fn changes_between_snapshots() {
    for seed in 0..12 {
        let (mut cluster, mut prng) = (Cluster::new(3), Prng(seed));
        let mut snapshots = Vec::new();
        for number in 0..4 {
            for _ in 0..40 {
                act(&mut cluster, &mut prng);
            }
            snapshots.push(cluster.snapshot(ROOT, &format!("s{number}")).id);
        }
        for (index, older) in snapshots.iter().enumerate() {
            for newer in &snapshots[index + 1..] {
                check(&mut cluster, *older, Some(*newer));
            }
            check(&mut cluster, *older, None);
        }
    }
}

/// A directory with more changes than a page has: names that have gone, are new, or have changed.
#[test]
fn changes_of_many_names() {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, Op::MkDir(at("big"), 0o755));
    for number in 0..400 {
        cluster.inode(1 + number % 3, mknod(&format!("big/f{number}")));
    }
    let older = cluster.snapshot(ROOT, "older").id;
    for number in 0..150 {
        assert_eq!(errno(&cluster.ask(1, Op::Unlink(at(&format!("big/f{number}"))))), 0);
        cluster.inode(2, mknod(&format!("big/g{number}")));
    }
    let newer = cluster.snapshot(ROOT, "newer").id;
    cluster.inode(1, mknod("big/later"));
    assert_eq!(check(&mut cluster, older, Some(newer)), 300);
    assert_eq!(check(&mut cluster, older, None), 301);
}

/// New names in more directories than members are asked about at once.
#[test]
fn new_names_in_many_directories() {
    let mut cluster = Cluster::new(3);
    for number in 0..70 {
        cluster.inode(1, Op::MkDir(at(&format!("d{number}")), 0o755));
    }
    let older = cluster.snapshot(ROOT, "older").id;
    for number in 0..70 {
        cluster.inode(1 + number % 3, mknod(&format!("d{number}/new")));
    }
    let newer = cluster.snapshot(ROOT, "newer").id;
    // The root tells of its directories, which have other times now.
    assert!(check(&mut cluster, older, Some(newer)) >= 70);
}

/// The snapshot for a comparison with the present is one instant, is read by its number, is not
/// listed, outlives its leader's restart, and goes a minute after the last question about it.
#[test]
fn comparison_with_the_present() {
    let mut cluster = Cluster::new(3);
    cluster.inode(1, mknod("f"));
    let older = cluster.snapshot(ROOT, "older").id;
    cluster.inode(2, mknod("g"));
    let (now, _) = told(&mut cluster, older, None);
    cluster.inode(3, mknod("later"));
    assert_eq!(check(&mut cluster, older, Some(now)), 1);
    let leader = cluster.leader();
    let read = |cluster: &mut Cluster, name| {
        errno(&cluster.ask(leader, Op::At(now, Box::new(Op::Lookup(at(name))))))
    };
    assert_eq!(["g", "later"].map(|name| read(&mut cluster, name)), [0, libc::ENOENT]);
    let listed = |cluster: &mut Cluster| {
        let op = Op::SnapshotList { dir: None, ancestors: false };
        match cluster.ask(leader, op) {
            Ok(Answer::Snapshots(found)) => found.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listed(&mut cluster), 1);
    cluster.tick(COMPARED_KEPT - SECOND);
    assert_eq!(check(&mut cluster, older, Some(now)), 1);
    cluster.crash(leader);
    cluster.restart(leader);
    cluster.get_leases();
    cluster.tick(COMPARED_KEPT - SECOND);
    cluster.come_to_rest();
    assert_eq!(check(&mut cluster, older, Some(now)), 1);
    cluster.tick(COMPARED_KEPT + SECOND);
    cluster.come_to_rest();
    assert_eq!(read(&mut cluster, "g"), libc::ESTALE);
    let records = cluster.records();
    assert!(records.values().all(|records| records.len() == 1), "{records:?}");
    assert_eq!(listed(&mut cluster), 1);
}

/// Moments in the wrong order, snapshots that are gone, cursors that are none, and a directory that
/// a user may not list are refused; so is what follows a page that was of the present, and too many
/// comparisons with the present at a time.
#[test]
fn refused_changes() {
    let mut cluster = Cluster::new(3);
    let dir = cluster.inode(1, Op::MkDir(at("private"), 0o700)).ino;
    let a = cluster.snapshot(ROOT, "a").id;
    cluster.inode(1, mknod("private/f"));
    let b = cluster.snapshot(ROOT, "b").id;
    let leader = cluster.leader();
    let op = |older, newer, after| Op::SnapshotChanges {
        dir: ROOT,
        older,
        newer,
        files: Vec::new(),
        limit: 100,
        after,
    };
    assert_eq!(errno(&cluster.ask(leader, op(a, Some(b), None))), 0);
    assert_eq!(errno(&cluster.ask(leader, op(b, Some(a), None))), libc::EINVAL);
    assert_eq!(errno(&cluster.ask(leader, op(a, Some(b), Some([9; 12].into())))), libc::EINVAL);
    assert_eq!(errno(&cluster.ask(leader, op(a, None, Some([9; 12].into())))), libc::ESTALE);
    for _ in 0..64 {
        assert_eq!(errno(&cluster.ask(leader, op(a, None, None))), 0);
    }
    assert_eq!(errno(&cluster.ask(leader, op(a, None, None))), libc::EBUSY);
    let too_many = Op::SnapshotChanges {
        dir: ROOT,
        older: a,
        newer: Some(b),
        files: vec![7; CHANGED_FILES_MAX + 1],
        limit: 100,
        after: None,
    };
    assert_eq!(errno(&cluster.ask(leader, too_many)), libc::EINVAL);
    let creds = Creds { uid: 1000, gid: 1000, ..Creds::root() };
    let mut ask_as = |op| {
        let slot = cluster.submit(leader, Request { creds: creds.clone(), op }, None);
        errno(&cluster.wait_for(&slot))
    };
    assert_eq!(ask_as(op(a, Some(b), None)), libc::EACCES);
    let of_it = Op::SnapshotChanges {
        dir,
        older: a,
        newer: Some(b),
        files: Vec::new(),
        limit: 100,
        after: None,
    };
    assert_eq!(ask_as(of_it), libc::EACCES);
    assert_eq!(errno(&cluster.ask(leader, remove(ROOT, "a"))), 0);
    assert_eq!(errno(&cluster.ask(leader, op(a, Some(b), None))), libc::ESTALE);
    assert_eq!(errno(&cluster.ask(leader, create(ROOT, "c"))), 0);
}
