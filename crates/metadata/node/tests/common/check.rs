//! Every invariant of a volume, checked over its raw rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_meta::ids::decode_counter;
use kestrel_meta::txn::{TxnKey, WINDOW, decode_answer, decode_session};
use kestrel_meta::view::decode_dir_id;
use kestrel_types::clone::{CloneRow, ClonedLink, PendingDir};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::snapshot::{SnapshotInfo, decode_history, decode_history_key, references};
use kestrel_types::stat::{DirStat, ObjStat};

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub files: i64,
    pub dirs: i64,
    pub bytes: i64,
    pub orphans: usize,
    /// Rows of chunks that were cut off and are still there.
    pub swept: usize,
    pub objects: BTreeMap<u64, i64>,
    /// Rows of table `history`.
    pub history: usize,
    /// Directories of clones that lack names.
    pub based: usize,
    /// Files of which table `moved` tells where they went.
    pub moved: BTreeSet<u64>,
}

type Rows = BTreeMap<(u64, Vec<u8>), Vec<u8>>;

fn table(engine: &dyn Engine, table: Table) -> Rows {
    let mut rows = Rows::new();
    engine
        .scan_table(table, None, &mut |key, value| {
            assert_eq!(key.table, table);
            rows.insert((key.id, key.suffix.to_vec()), value.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

/// What clones that are not finished still need.
#[derive(Default)]
struct Clones {
    /// By directory that lacks names.
    pending: BTreeMap<u64, u64>,
    /// New files of which a part of the extents has been copied.
    partial: BTreeSet<u64>,
    /// By new file: names that have not come into being.
    missing: BTreeMap<u64, u32>,
}

fn clones(engine: &dyn Engine, system: &Rows) -> Clones {
    let infos: BTreeSet<u64> = system
        .iter()
        .filter_map(|((_, suffix), row)| SnapshotInfo::decode(suffix, row))
        .flat_map(|info| info.unwrap().clones)
        .map(|clone| clone.id)
        .collect();
    let mut clones = Clones::default();
    for ((clone, suffix), row) in table(engine, Table::Clone) {
        assert!(infos.contains(&clone), "a row of clone {clone}, which has no record");
        match CloneRow::of(&suffix).expect("a key of table clone") {
            CloneRow::Pending(dir) => {
                clones.pending.insert(dir, clone);
                clones.partial.extend(PendingDir::decode(&row).unwrap().file.map(|file| file.ino));
            }
            CloneRow::Link(_) => {
                let link = ClonedLink::decode(&row).unwrap();
                clones.missing.insert(link.ino, link.total - link.names);
            }
        }
    }
    clones
}

/// Panics unless everything holds. `may_be_orphan` says which files without a name are open.
pub fn check(engine: &dyn Engine, may_be_orphan: &dyn Fn(u64) -> bool) -> Found {
    let system = table(engine, Table::System);
    let ceiling = |name: &str| decode_counter(&system[&(0, name.as_bytes().to_vec())]).unwrap();
    let clones = clones(engine, &system);
    let mut bases: BTreeMap<u64, u64> = BTreeMap::new();
    let mut inodes: BTreeMap<u64, Inode> = BTreeMap::new();
    let mut dirs: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
    let mut links: BTreeMap<u64, (u32, Kind)> = BTreeMap::new();
    let mut stats: BTreeMap<u64, DirStat> = BTreeMap::new();
    let mut found = Found::default();
    let entries = table(engine, Table::Entry);
    for ((parent, name), row) in &entries {
        let stat = stats.entry(*parent).or_default();
        stat.children += 1;
        match Entry::decode(row).unwrap() {
            Entry::Inode(inode) => {
                if inode.kind == Kind::Dir {
                    stat.subdirs += 1;
                    dirs.insert(inode.ino, (*parent, name.clone()));
                    let base = inode.policy().unwrap().base;
                    bases.extend(base.map(|base| (inode.ino, base.get())));
                } else {
                    stat.bytes = stat.bytes.wrapping_add(inode.size as i64);
                    assert_eq!(inode.nlink, 1, "{inode:?}");
                }
                assert_eq!(inodes.insert(inode.ino, inode.clone()), None, "twice: {inode:?}");
            }
            Entry::Link { ino, kind } => {
                let link = links.entry(ino).or_insert((0, kind));
                link.0 += 1;
                assert_eq!(link.1, kind);
            }
        }
    }
    assert_eq!(bases, clones.pending, "directories that lack names");
    found.based = bases.len();
    assert!(entries.contains_key(&(0, Vec::new())), "no root");
    stats.remove(&0);
    // The tree: every parent is a directory, and every directory leads to the root.
    for (parent, _) in entries.keys().filter(|(parent, _)| *parent != 0) {
        assert!(dirs.contains_key(parent), "entry in directory {parent}, which does not exist");
    }
    for dir in dirs.keys() {
        let (mut at, mut seen) = (*dir, BTreeSet::new());
        while at != ROOT {
            assert!(seen.insert(at), "cycle at {at}");
            at = dirs[&at].0;
        }
    }
    let places: BTreeMap<u64, (u64, Vec<u8>)> = table(engine, Table::DirId)
        .into_iter()
        .map(|((ino, suffix), row)| {
            assert!(suffix.is_empty());
            let (parent, name) = decode_dir_id(&row).unwrap();
            (ino, (parent, name.to_vec()))
        })
        .collect();
    assert_eq!(places, dirs, "dirid rows");
    let subdirs: BTreeSet<(u64, u64)> = table(engine, Table::Subdir)
        .into_keys()
        .map(|(parent, child)| (parent, number(&child)))
        .collect();
    let expected: BTreeSet<(u64, u64)> = dirs
        .iter()
        .filter(|(ino, _)| **ino != ROOT)
        .map(|(ino, (parent, _))| (*parent, *ino))
        .collect();
    assert_eq!(subdirs, expected, "subdir rows");
    // Shares.
    let mut sums: BTreeMap<u64, DirStat> = BTreeMap::new();
    for ((dir, _), row) in table(engine, Table::DirStat) {
        assert!(dirs.contains_key(&dir), "share of directory {dir}, which does not exist");
        sums.entry(dir).or_default().merge(&DirStat::decode(&row).unwrap());
    }
    for dir in dirs.keys() {
        let (sum, real) = (
            sums.get(dir).copied().unwrap_or_default(),
            stats.get(dir).copied().unwrap_or_default(),
        );
        let of = |stat: &DirStat| (stat.children, stat.subdirs, stat.bytes);
        match bases.contains_key(dir) {
            true => assert!(sum.children >= real.children, "shares of directory {dir}"),
            false => assert_eq!(of(&sum), of(&real), "shares of directory {dir}"),
        }
        found.files += sum.children - sum.subdirs;
        found.dirs += sum.subdirs;
        found.bytes = found.bytes.wrapping_add(sum.bytes);
    }
    // Hard links.
    let mut linked = BTreeSet::new();
    for ((ino, suffix), row) in table(engine, Table::Link) {
        assert!(suffix.is_empty());
        let inode = Inode::decode(&mut Reader::new(&row)).unwrap();
        assert_eq!(inode.ino, ino);
        let (names, kind) = links.get(&ino).copied().unwrap_or((0, inode.kind));
        let missing = clones.missing.get(&ino).copied().unwrap_or(0);
        assert_eq!((inode.nlink, inode.kind), (names + missing, kind), "names of {ino}");
        if inode.nlink == 0 {
            assert!(may_be_orphan(ino), "file {ino} has no name and nobody has it open");
            found.orphans += 1;
        }
        found.bytes = found.bytes.wrapping_add(inode.size as i64);
        linked.insert(ino);
        assert!(inodes.insert(ino, inode).is_none(), "inode {ino} has two records");
    }
    for ino in links.keys() {
        assert!(linked.contains(ino), "a name refers to {ino}, which is not there");
    }
    check_content(engine, &inodes, &clones, &mut found);
    for ((ino, suffix), row) in table(engine, Table::Moved) {
        assert!(suffix.is_empty());
        let (parent, name) = decode_dir_id(&row).unwrap();
        if parent == 0 {
            assert_eq!(
                inodes.get(&ino).map(|inode| inode.nlink),
                Some(0),
                "{ino} may not be given a name"
            );
            continue;
        }
        let entry = entries.get(&(parent, name.to_vec())).map(|row| Entry::decode(row).unwrap());
        assert!(
            matches!(entry, Some(Entry::Inode(inode)) if inode.ino == ino),
            "{ino} is not where it moved to"
        );
        found.moved.insert(ino);
    }
    for ((id, suffix), row) in table(engine, Table::Txn) {
        match TxnKey::decode(id, &suffix).expect("a key of table txn") {
            TxnKey::Prepared(txn) | TxnKey::Decided(txn) => panic!("{txn:?} has not ended"),
            TxnKey::Session(client) => {
                assert_eq!(decode_session(client, &row).unwrap().client, client)
            }
            TxnKey::Answer(client, slot) => {
                let (seq, reply) = decode_answer(&row).unwrap();
                assert!(
                    reply.is_ok() && seq % WINDOW == u64::from(slot),
                    "answer {seq} to {client}: {reply:?}"
                );
            }
        }
    }
    for inode in inodes.values() {
        assert!(inode.ino < ceiling("inodes"), "{inode:?}");
        assert!(
            inode.change < ceiling("clock") && inode.data_change < ceiling("clock"),
            "{inode:?}"
        );
    }
    found
}

fn check_content(
    engine: &dyn Engine,
    inodes: &BTreeMap<u64, Inode>,
    clones: &Clones,
    found: &mut Found,
) {
    let mut objects: BTreeMap<u64, i64> = BTreeMap::new();
    for inode in inodes.values() {
        match &inode.data {
            Data::Packed { range, visible } => {
                *objects.entry(range.object).or_default() += i64::from(range.len);
                assert!(u64::from(*visible) <= inode.size, "{inode:?}");
            }
            Data::Inline(_) if inode.kind == Kind::Dir => assert!(inode.policy().is_ok()),
            Data::Inline(bytes) => assert!(bytes.len() as u64 <= inode.size, "{inode:?}"),
            Data::None | Data::Chunked => {}
        }
    }
    let sweeps: BTreeMap<u64, u64> =
        table(engine, Table::Sweep).into_keys().map(|(ino, first)| (ino, number(&first))).collect();
    for ((ino, chunk), row) in table(engine, Table::Chunk) {
        let is_swept = sweeps.get(&ino).is_some_and(|first| number(&chunk) >= *first);
        if is_swept || clones.partial.contains(&ino) {
            found.swept += usize::from(is_swept);
            for item in ExtentList::decode(&mut Reader::new(&row)).unwrap().references() {
                *objects.entry(item.range.object).or_default() += i64::from(item.bytes);
            }
            continue;
        }
        let inode =
            inodes.get(&ino).unwrap_or_else(|| panic!("chunk of {ino}, which does not exist"));
        assert_eq!(inode.data, Data::Chunked, "chunk of {inode:?}");
        let list = ExtentList::decode(&mut Reader::new(&row)).unwrap();
        assert!(!list.is_empty(), "empty chunk row of {ino}");
        assert!(
            number(&chunk) * CHUNK_BYTES + u64::from(list.end()) <= inode.size,
            "{inode:?} {list:?}"
        );
        for item in list.references() {
            *objects.entry(item.range.object).or_default() += i64::from(item.bytes);
        }
    }
    for ((id, suffix), row) in table(engine, Table::History) {
        let (of, _) = decode_history_key(KeyRef::new(Table::History, id, &suffix)).unwrap();
        for item in
            decode_history(&row).unwrap().into_iter().flat_map(|old| references(of.table, old))
        {
            *objects.entry(item.range.object).or_default() += i64::from(item.bytes);
        }
        found.history += 1;
    }
    for ((ino, _), _) in table(engine, Table::Xattr) {
        let is_known = inodes.get(&ino).is_some_and(|inode| inode.xattrs);
        assert!(is_known || clones.partial.contains(&ino), "extended attribute of {ino}");
    }
    let mut sums: BTreeMap<u64, i64> = BTreeMap::new();
    for ((object, _), row) in table(engine, Table::ObjStat) {
        *sums.entry(object).or_default() += ObjStat::decode(&row).unwrap().referenced;
    }
    let reap: BTreeSet<u64> =
        table(engine, Table::Reap).into_keys().map(|(_, object)| number(&object)).collect();
    for (object, sum) in &sums {
        assert_eq!(
            *sum,
            objects.get(object).copied().unwrap_or(0),
            "references of object {object}"
        );
        assert!(
            *sum != 0 || reap.contains(object),
            "object {object} has no references and will never be reaped"
        );
    }
    for object in objects.keys() {
        assert!(sums.contains_key(object), "object {object} has no shares");
    }
    found.objects = objects;
}
