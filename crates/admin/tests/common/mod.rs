//! A small volume with one of everything, written row by row, on the memory engine.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod driver;
pub mod several;

use std::collections::HashMap;
use std::io::IoSlice;

use kestrel_admin::check::{self, Options, Totals};
use kestrel_admin::finding::{Finding, FindingKind, Fix};
use kestrel_admin::repair::repair;
use kestrel_admin::rows::{DirId, INODES, OBJECTS, encode_ceiling, encode_xattr, put};
use kestrel_blockstore::store::{BlockStore, MemoryStore};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::entry::Entry;
use kestrel_types::extent::{Extent, ExtentList};
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::policy::Policy;
use kestrel_types::range::Range;
use kestrel_types::stat::{DirStat, ObjStat};

pub const NOW: i64 = 1_700_000_000_000_000_000;

pub const A: InodeId = 16;
pub const B: InodeId = 17;
pub const C: InodeId = 18;
pub const INLINE: InodeId = 20;
pub const PACKED: InodeId = 21;
pub const BIG: InodeId = 22;
pub const LINKED: InodeId = 23;
pub const SYMLINK: InodeId = 24;
pub const EMPTY: InodeId = 25;

/// A volume:
///
/// ```text
/// /a/            16
/// /a/b/          17
/// /a/b/c/        18   with /a/b/c/empty (25)
/// /a/inline      20   with an extended attribute
/// /a/packed      21   object 1
/// /a/b/big       22   chunked: objects 1 and 2 and a hole between
/// /a/h1, /h2     23   two names, packed in object 3
/// /link          24   symbolic link
/// ```
pub struct Volume {
    pub engine: MemoryEngine,
    pub store: MemoryStore,
}

pub fn inode(ino: InodeId, kind: Kind, size: u64, data: Data) -> Inode {
    Inode {
        ino,
        kind,
        mode: 0o644,
        uid: 1,
        gid: 1,
        nlink: 1,
        rdev: 0,
        size,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        btime: NOW,
        change: 7,
        data_change: 7,
        xattrs: false,
        flags: InodeFlags::default(),
        acls: None,
        data,
        effective: Policy::default(),
    }
}

pub fn dir(ino: InodeId) -> Inode {
    inode(ino, Kind::Dir, 0, Data::None)
}

pub fn range(object: ObjectId, offset: u32, len: u32) -> Range {
    Range { object, offset, len }
}

pub fn encode_inode(inode: &Inode) -> Box<[u8]> {
    let mut out = Vec::new();
    inode.encode_into(&mut out);
    out.into()
}

pub fn encode_list(extents: &[Extent]) -> Box<[u8]> {
    let mut list = ExtentList::new();
    for extent in extents {
        list.overlay(*extent).unwrap();
    }
    let mut out = Vec::new();
    list.encode_into(&mut out);
    out.into()
}

pub fn entry(parent: InodeId, name: &str, inode: Inode) -> Mutation {
    put(Table::Entry, parent, name.as_bytes(), Entry::Inode(inode).encode())
}

pub fn link(parent: InodeId, name: &str, ino: InodeId) -> Mutation {
    put(Table::Entry, parent, name.as_bytes(), Entry::Link { ino, kind: Kind::File }.encode())
}

pub fn dir_rows(parent: InodeId, name: &str, ino: InodeId) -> Vec<Mutation> {
    let place = DirId { parent, name: name.as_bytes().into() };
    vec![
        entry(parent, name, dir(ino)),
        put(Table::DirId, ino, &[], place.encode()),
        put(Table::Subdir, parent, &ino.to_be_bytes(), Box::new([])),
    ]
}

pub fn dir_stat(dir: InodeId, worker: u8, children: i64, subdirs: i64, bytes: i64) -> Mutation {
    let stat = DirStat { children, subdirs, bytes, mtime: NOW, change: 9 };
    put(Table::DirStat, dir, &[0, worker], stat.encode())
}

pub fn obj_stat(object: ObjectId, worker: u8, referenced: i64) -> Mutation {
    put(Table::ObjStat, object, &[0, worker], ObjStat { referenced }.encode())
}

/// The extents of [`BIG`]: object 2 from byte 0, and 40 bytes of object 1 from byte 150,000.
pub fn big_extents() -> [Extent; 2] {
    let mut second = Extent::of_range(150_000, range(1, 100, 50));
    second.len = 40;
    [Extent::of_range(0, range(2, 0, 100_000)), second]
}

pub fn rows() -> Vec<Mutation> {
    let mut inline = inode(INLINE, Kind::File, 5, Data::Inline((*b"hello").into()));
    inline.xattrs = true;
    inline.flags = InodeFlags::NO_DUMP;
    let mut linked =
        inode(LINKED, Kind::File, 30, Data::Packed { range: range(3, 0, 30), visible: 30 });
    linked.nlink = 2;
    let mut rows = vec![
        entry(0, "", dir(ROOT)),
        put(Table::System, 0, INODES, encode_ceiling(100)),
        put(Table::System, 0, OBJECTS, encode_ceiling(50)),
        put(Table::System, 0, b"clock", encode_ceiling(1000)),
        put(Table::System, 0, b"shares", encode_ceiling(4)),
        put(Table::DirId, ROOT, &[], DirId { parent: 0, name: Box::new([]) }.encode()),
        entry(A, "inline", inline),
        put(Table::Xattr, INLINE, b"user.x", encode_xattr(b"v")),
        entry(
            A,
            "packed",
            inode(PACKED, Kind::File, 90, Data::Packed { range: range(1, 0, 90), visible: 80 }),
        ),
        entry(B, "big", inode(BIG, Kind::File, 200_000, Data::Chunked)),
        put(Table::Chunk, BIG, &0u64.to_be_bytes(), encode_list(&big_extents())),
        link(A, "h1", LINKED),
        link(ROOT, "h2", LINKED),
        put(Table::Link, LINKED, &[], encode_inode(&linked)),
        entry(ROOT, "link", inode(SYMLINK, Kind::Symlink, 3, Data::Inline((*b"a/b").into()))),
        entry(C, "empty", inode(EMPTY, Kind::File, 0, Data::None)),
        dir_stat(ROOT, 0, 2, 1, 3),
        dir_stat(ROOT, 1, 1, 0, 0),
        dir_stat(A, 0, 5, 2, 95),
        dir_stat(A, 3, -1, -1, 0),
        dir_stat(B, 1, 2, 1, 200_000),
        dir_stat(C, 1, 1, 0, 0),
        obj_stat(1, 0, 200),
        obj_stat(1, 1, -70),
        obj_stat(2, 0, 100_000),
        obj_stat(3, 1, 30),
    ];
    rows.extend(dir_rows(ROOT, "a", A));
    rows.extend(dir_rows(A, "b", B));
    rows.extend(dir_rows(B, "c", C));
    rows
}

impl Volume {
    pub fn new() -> Self {
        let volume = Self { engine: MemoryEngine::new(SyncWhen::Asked), store: MemoryStore::new() };
        volume.apply(rows());
        for (object, len) in [(1, 154), (2, 100_008), (3, 34)] {
            volume.store.put(object, &[IoSlice::new(&vec![7; len])]).unwrap();
        }
        volume
    }

    pub fn apply(&self, rows: Vec<Mutation>) {
        self.engine.commit(BatchKind::Growing, rows).unwrap();
    }

    pub fn delete(&self, table: Table, id: u64, suffix: &[u8]) {
        self.apply(vec![Mutation { key: Key::new(table, id, suffix), value: None }]);
    }

    pub fn value(&self, table: Table, id: u64, suffix: &[u8]) -> Option<Box<[u8]>> {
        kestrel_admin::rows::get(&self.engine, Key::new(table, id, suffix)).unwrap()
    }

    pub fn check(&self) -> (Vec<Finding>, Totals) {
        self.check_with(&mut Options { store: Some(&self.store), ..Options::default() })
    }

    pub fn check_with(&self, options: &mut Options<'_>) -> (Vec<Finding>, Totals) {
        let mut findings = Vec::new();
        let totals = check::check(
            &self.engine,
            options,
            &mut |finding| findings.push(finding),
            &mut |_, _| {},
        )
        .unwrap();
        (findings, totals)
    }

    /// Kinds of the findings, sorted.
    pub fn kinds(&self) -> Vec<FindingKind> {
        let mut kinds: Vec<FindingKind> =
            self.check().0.iter().map(|finding| finding.kind).collect();
        kinds.sort_unstable();
        kinds
    }

    /// Repairs; returns what remains.
    pub fn repair(&self) -> (Vec<Finding>, u64) {
        let mut options = Options { store: Some(&self.store), ..Options::default() };
        let (mut left, mut did) = (Vec::new(), Vec::new());
        let mut note = |finding: &Finding, fix: &Fix| {
            did.push(format!(
                "{} {}: {}: {}",
                finding.kind.name(),
                finding.path,
                finding.detail,
                fix.says
            ));
        };
        let mut keep = |finding| left.push(finding);
        let done = repair(&self.engine, &mut options, NOW, &mut note, &mut keep, &mut |_, _| {});
        let (totals, done) = done.unwrap_or_else(|why| {
            panic!("{why}; the last repairs: {:#?}", &did[did.len().saturating_sub(8)..]);
        });
        assert_eq!(totals.findings.values().sum::<u64>(), left.len() as u64);
        (left, done)
    }

    /// All rows, for comparison.
    pub fn all(&self) -> HashMap<Key, Box<[u8]>> {
        let tables = Table::ALL.into_iter();
        tables
            .flat_map(|table| {
                kestrel_admin::rows::Rows::new(&self.engine, table).map(|row| row.unwrap())
            })
            .collect()
    }
}

/// xorshift64*: numbers that a seed repeats.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
