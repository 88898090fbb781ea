//! Repairs of what several nodes share: rows that lie at the wrong node, what each node has for
//! itself, and repairs that are cut short.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::several::{Several, placement, table};
use common::*;
use kestrel_admin::finding::{Finding, FindingKind as K, Severity};
use kestrel_admin::repair::RepairError;
use kestrel_admin::rows::{
    CLOCK, DirId, INODES, OBJECTS, SHARES, decode_ceiling, encode_ceiling, encode_xattr, get, put,
};
use kestrel_blockstore::store::BlockStore;
use kestrel_cluster::change::records::TABLE;
use kestrel_cluster::peer_identity::PeerIdentity;
use kestrel_engine::memory::MemoryEngine;
use kestrel_engine::{BatchKind, Engine, EngineError, Layer, Mutation};
use kestrel_meta::locks::TxnId;
use kestrel_meta::txn::TxnKey;
use kestrel_types::entry::Entry;
use kestrel_types::extent::Extent;
use kestrel_types::ids::{Position, ROOT};
use kestrel_types::inode::{Data, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{NodeId, PlacementMap, object_in};

/// Another node than the one that owns a row.
fn elsewhere(key: &Key) -> NodeId {
    table().owner(key.table, key.id, &key.suffix) % common::several::NODES + 1
}

fn errors(found: &[Finding]) -> Vec<K> {
    let mut kinds: Vec<K> = found.iter().map(|finding| finding.kind).collect();
    kinds.retain(|kind| kind.severity() == Severity::Error);
    kinds.sort_unstable();
    kinds
}

/// Repairs, and expects nothing to be left and nothing to be done again.
fn mended(nodes: &Several<'_>) -> u64 {
    let (left, done) = nodes.repair().unwrap();
    assert_eq!(errors(&left), [], "{left:#?}");
    assert_eq!(errors(&nodes.check()), []);
    assert_eq!(nodes.repair().unwrap().1, 0);
    done
}

/// Moves a row to a node that does not own it.
fn stray(nodes: &Several<'_>, key: &Key) {
    let value = nodes.value(key.table, key.id, &key.suffix).expect("the row is there");
    nodes.apply(vec![Mutation { key: key.clone(), value: None }]);
    nodes.apply_at(elsewhere(key), vec![put(key.table, key.id, &key.suffix, value)]);
}

#[test]
fn rows_that_lie_elsewhere_come_home() {
    let volume = Volume::new();
    let sound = Several::of(&volume).content();
    let keys = [
        Key::new(Table::Entry, 0, b""),
        Key::new(Table::Entry, A, b"inline"),
        Key::new(Table::Entry, A, b"b"),
        Key::new(Table::Entry, B, b"big"),
        Key::new(Table::Chunk, BIG, &0u64.to_be_bytes()),
        Key::new(Table::Link, LINKED, b""),
        Key::new(Table::DirId, B, b""),
        Key::new(Table::Subdir, A, &B.to_be_bytes()),
        Key::new(Table::Xattr, INLINE, b"user.x"),
    ];
    for key in &keys {
        let nodes = Several::of(&volume);
        if key.table == Table::Chunk {
            // With the record of its file, as if the node of both were another one.
            stray(&nodes, &keys[3]);
        }
        stray(&nodes, key);
        assert!(errors(&nodes.check()).contains(&K::RowMisplaced), "{key:?}");
        mended(&nodes);
        assert!(nodes.value(key.table, key.id, &key.suffix).is_some(), "{key:?}");
        assert_eq!(nodes.content(), sound, "{key:?}");
    }
    // All at once, and a second copy of each at its owner.
    let nodes = Several::of(&volume);
    keys.iter().for_each(|key| stray(&nodes, key));
    mended(&nodes);
    assert_eq!(nodes.content(), sound);
    for key in &keys {
        let value = nodes.value(key.table, key.id, &key.suffix).unwrap();
        nodes.apply_at(elsewhere(key), vec![put(key.table, key.id, &key.suffix, value)]);
    }
    assert_eq!(errors(&nodes.check()), [K::RowMisplaced; 9]);
    assert_eq!(mended(&nodes), 9);
    assert_eq!(nodes.content(), sound);
}

#[test]
fn what_its_owner_has_another_of_is_kept_apart() {
    let volume = Volume::new();
    let sound = Several::of(&volume).content();
    let nodes = Several::of(&volume);
    let plant = |row: Mutation| nodes.apply_at(elsewhere(&row.key), vec![row]);
    let older = |ino, size: u64, data| inode(ino, Kind::File, size, data);
    let old = || Data::Inline((*b"old").into());
    // An older record of a file; a file that is nowhere else; a record of a chunked file; a
    // directory; a name.
    plant(entry(A, "inline", older(INLINE, 3, old())));
    plant(entry(A, "packed", older(80, 3, old())));
    plant(entry(B, "big", older(BIG, 5, Data::Chunked)));
    plant(entry(A, "b", dir(99)));
    plant(link(A, "h1", PACKED));
    plant(put(Table::Xattr, INLINE, b"user.x", encode_xattr(b"older")));
    plant(put(Table::Sweep, BIG, &0u64.to_be_bytes(), Box::new([])));
    // Chunks: one that differs, and one where the file has none.
    for (number, len) in [(0u64, 10), (2, 20)] {
        let list = encode_list(&[Extent::of_range(0, range(2, 0, len))]);
        plant(put(Table::Chunk, BIG, &number.to_be_bytes(), list));
    }
    // A share of a node that there is not.
    nodes.apply_at(
        1,
        vec![put(Table::DirStat, A, &[3, 0], kestrel_types::stat::DirStat::default().encode())],
    );
    assert_eq!(errors(&nodes.check()), [K::RowMisplaced; 10]);
    mended(&nodes);
    let mut content = nodes.content();
    let kept: Vec<(String, (u64, Option<Data>))> =
        content.extract_if(.., |path, _| path.starts_with("/lost+found")).collect();
    assert_eq!(content, sound, "what everybody has read stays");
    assert_eq!(nodes.value(Table::Xattr, INLINE, b"user.x"), Some(encode_xattr(b"v")));
    let mut files: Vec<_> = kept.iter().map(|(_, file)| file.clone()).collect();
    files.sort_unstable_by_key(|(size, _)| *size);
    let chunk = 64u64 << 20;
    let expected = [
        (0, None),
        (3, Some(old())),
        (3, Some(old())),
        (10, Some(Data::Chunked)),
        (2 * chunk + 20, Some(Data::Chunked)),
    ];
    assert_eq!(files, expected, "{kept:?}");
    assert!(kept.iter().any(|(path, _)| path == "/lost+found/#80"), "{kept:?}");
}

#[test]
fn what_each_node_has_for_itself_is_put_right() {
    let volume = Volume::new();
    let sound = Several::of(&volume).content();
    let nodes = Several::of(&volume);
    let at =
        |node, name: &[u8]| get(&nodes.nodes[&node], Key::new(Table::System, 0, name)).unwrap();
    let gone = |name: &[u8]| Mutation { key: Key::new(Table::System, 0, name), value: None };
    let txn = |number| TxnId { node: 3, epoch: 1, number };
    let record = |key: Key, value: &[u8]| put(key.table, key.id, &key.suffix, value.into());
    // Node 2 has made a file that its counter does not cover, and an object that only the store
    // has.
    let ino = kestrel_types::placement::id_in(500, 2, table().placement.slot_of(C, b"later"));
    nodes.apply(vec![entry(C, "later", inode(ino, Kind::File, 0, Data::None))]);
    volume.store.put(object_in(700, 2), &[std::io::IoSlice::new(b"leaked")]).unwrap();
    nodes.apply_at(2, vec![gone(OBJECTS)]);
    nodes.apply_at(1, vec![gone(CLOCK), gone(SHARES)]);
    nodes.apply_at(
        3,
        vec![
            put(Table::System, 0, b"peer 1", [9].into()),
            put(Table::System, 0, INODES, [7].into()),
        ],
    );
    nodes.apply_at(
        3,
        vec![
            record(TxnKey::Prepared(txn(1)).encode(), &[9]),
            record(TxnKey::Decided(txn(2)).encode(), &[9]),
        ],
    );
    nodes.apply_at(1, vec![put(Table::Txn, 5, b"x", Box::new([]))]);
    let found = errors(&nodes.check());
    let count = |kind| found.iter().filter(|found| **found == kind).count();
    assert_eq!((count(K::SystemWrong), count(K::TxnWrong)), (6, 3), "{found:?}");
    mended(&nodes);
    let ceiling = |node, name: &[u8]| decode_ceiling(&at(node, name).unwrap()).unwrap();
    assert_eq!((ceiling(2, INODES), ceiling(2, OBJECTS), ceiling(1, SHARES)), (501, 701, 16));
    assert!(ceiling(1, CLOCK) >= 1000 && ceiling(3, INODES) >= 16 && at(3, b"peer 1").is_none());
    let mut content = nodes.content();
    assert!(content.remove("/a/b/c/later").is_some());
    assert_eq!(content, sound);

    // A clock that stands behind a row: those of all nodes that do are raised.
    let nodes = Several::of(&volume);
    (1..=3).for_each(|node| {
        nodes.apply_at(node, vec![put(Table::System, 0, CLOCK, encode_ceiling(5))])
    });
    assert_eq!(errors(&nodes.check()), [K::SystemWrong]);
    mended(&nodes);
    for node in 1..=3 {
        let row = get(&nodes.nodes[&node], Key::new(Table::System, 0, CLOCK)).unwrap().unwrap();
        assert_eq!(decode_ceiling(&row), Ok(8));
    }
}

/// A repair carries out a decided transaction first, and leaves an undecided one alone.
#[test]
fn repair_with_open_transactions() {
    let volume = Volume::new();
    let nodes = Several::of(&volume);
    let txn = |number| TxnId { node: 2, epoch: 1, number };
    let prepared = |number, row: Mutation| {
        let locked = kestrel_cluster::LockedRowsId { epoch: 1, number: 1 };
        let prepared =
            kestrel_cluster::Prepared { locked, mutations: vec![row.clone()], below: false };
        let owner = table().owner(row.key.table, row.key.id, &row.key.suffix);
        let key = TxnKey::Prepared(txn(number)).encode();
        nodes.apply_at(
            owner,
            vec![put(key.table, key.id, &key.suffix, kestrel_cluster::encode_prepared(&prepared))],
        );
        (owner, key)
    };
    // The decision of a rename has not reached one node: the file has two names until it does.
    let Entry::Inode(file) =
        Entry::decode(&nodes.value(Table::Entry, A, b"packed").unwrap()).unwrap()
    else {
        panic!()
    };
    let (agreed, record) =
        prepared(1, Mutation { key: Key::new(Table::Entry, A, b"packed"), value: None });
    nodes.apply(vec![entry(A, "new", file)]);
    let decision = TxnKey::Decided(txn(1)).encode();
    let told = kestrel_cluster::encode_decision(&[agreed]);
    nodes.apply_at(2, vec![put(decision.table, decision.id, &decision.suffix, told)]);
    let (other, undecided) =
        prepared(2, Mutation { key: Key::new(Table::Entry, C, b"empty"), value: None });
    assert_eq!(errors(&nodes.check()), []);
    assert_eq!(nodes.repair().unwrap().1, 0);
    assert!(
        get(&nodes.nodes[&agreed], record.clone()).unwrap().is_some(),
        "nothing is touched without need"
    );
    nodes.apply(vec![put(Table::DirId, B, b"", Box::new([]))]);
    mended(&nodes);
    assert!(get(&nodes.nodes[&agreed], record).unwrap().is_none());
    assert!(get(&nodes.nodes[&other], undecided).unwrap().is_some());
    let content = nodes.content();
    assert!(content.contains_key("/a/new") && !content.contains_key("/a/packed"));
    assert!(content.contains_key("/a/b/c/empty"));
}

#[test]
fn what_is_in_motion_is_not_repaired() {
    let volume = Volume::new();
    let newer = PlacementMap { version: 2, ..placement() }.encode();
    for (name, value) in [
        (TABLE.as_bytes(), newer.clone()),
        (b"change", newer),
        (b"strangers", vec![1, 1, 1, 1]),
        (b"loading", vec![1]),
    ] {
        let nodes = Several::of(&volume);
        nodes.apply_at(3, vec![put(Table::System, 0, name, value.into())]);
        let before = nodes.all();
        let refused = nodes.repair().unwrap_err();
        assert!(
            matches!(&refused, RepairError::Refused(why) if why.starts_with("node 3: ")),
            "{refused}"
        );
        assert!(nodes.all() == before);
    }
    // What others have of a node with an old copy as its directory is no damage.
    let nodes = Several::of(&volume);
    nodes.apply_at(
        1,
        vec![
            put(
                Table::System,
                0,
                b"peer 2",
                PeerIdentity { node_uuid: 1, epoch: 9, start: 7, address: None }.encode(),
            ),
            link(A, "gone", 78),
        ],
    );
    let before = nodes.all();
    let refused = nodes.repair().unwrap_err();
    assert!(refused.to_string().starts_with("node 2: its directory is an old copy"), "{refused}");
    assert!(nodes.all() == before);
}

/// An engine of a process that dies after so many commits and syncs, of all nodes together.
struct Dying<'a> {
    engine: &'a MemoryEngine,
    left: Arc<AtomicI64>,
}

impl Dying<'_> {
    fn step(&self) -> Result<(), EngineError> {
        match self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            true => Ok(()),
            false => Err(EngineError::Io("the process is dead".into())),
        }
    }
}

impl Layer for Dying<'_> {
    fn below(&self) -> &dyn Engine {
        self.engine
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.step()?;
        self.engine.commit(kind, mutations)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.step()?;
        self.engine.sync()
    }
}

/// Damage of which the repair changes rows of several nodes.
fn plant(nodes: &Several<'_>) {
    let delete =
        |table, id, suffix: &[u8]| Mutation { key: Key::new(table, id, suffix), value: None };
    let chunk = |ino: u64| encode_list(&[Extent::of_range(0, range(2, 0, ino as u32))]);
    let Entry::Inode(big) = Entry::decode(&nodes.value(Table::Entry, B, b"big").unwrap()).unwrap()
    else {
        panic!()
    };
    nodes.apply(vec![
        // A chunked file with a name that cannot be, a directory with one, and chunks of no file.
        delete(Table::Entry, B, b"big"),
        entry(B, "x/y", big),
        delete(Table::Entry, B, b"c"),
        entry(B, "c/c", dir(C)),
        put(Table::DirId, C, &[], DirId { parent: B, name: b"c/c".as_slice().into() }.encode()),
        put(Table::Chunk, 66, &0u64.to_be_bytes(), chunk(66)),
        put(Table::Entry, A, b"packed", Box::new([77; 9])),
        delete(Table::Link, LINKED, b""),
        link(C, "gone", 78),
        entry(C, "twin", inode(INLINE, Kind::File, 4, Data::Inline((*b"twin").into()))),
        put(Table::DirId, A, &[], Box::new([])),
        delete(Table::Subdir, ROOT, &A.to_be_bytes()),
    ]);
    for (parent, name, inode) in [
        (A, "inline", inode(91, Kind::File, 4, Data::Inline((*b"lost").into()))),
        (C, "away", inode(92, Kind::File, 6, Data::Inline((*b"astray").into()))),
    ] {
        let row = entry(parent, name, inode);
        nodes.apply_at(elsewhere(&row.key), vec![row]);
    }
}

/// What files hold, at whichever node: what must never become less.
fn held(nodes: &Several<'_>) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    for (_, (size, data)) in nodes.content() {
        if let Some(data) = data {
            *held.entry(format!("{size} {data:?}")).or_default() += 1;
        }
    }
    held
}

/// A repair finishes what an earlier repair began, at each point at which the earlier one may be
/// cut short.
#[test]
fn repair_after_interrupted_repair() {
    let volume = Volume::new();
    let whole = Several::of(&volume);
    plant(&whole);
    mended(&whole);
    let expected = held(&whole);
    let chunks = |nodes: &Several<'_>| {
        nodes
            .all()
            .into_iter()
            .filter(|((_, key), _)| key.table == Table::Chunk)
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
    };
    // What was not synced: it is there, or gone, or gone at one node only.
    let losses: [&[NodeId]; 5] = [&[], &[1, 2, 3], &[1], &[2], &[3]];
    for (steps, lost) in (0..).zip(losses.into_iter().cycle()) {
        let mut nodes = Several::of(&volume);
        plant(&nodes);
        let left = Arc::new(AtomicI64::new(steps));
        let dying: BTreeMap<NodeId, Dying<'_>> = nodes
            .nodes
            .iter()
            .map(|(node, engine)| (*node, Dying { engine, left: left.clone() }))
            .collect();
        let engines = dying.iter().map(|(node, engine)| (*node, engine as &dyn Engine)).collect();
        let ended = nodes.repair_with(&engines).is_ok();
        drop(engines);
        drop(dying);
        for (node, engine) in &mut nodes.nodes {
            let all = engine.appended();
            engine.crash_to(if lost.contains(node) { 0 } else { all });
        }
        let (left, _) = nodes.repair().unwrap_or_else(|why| panic!("{steps} {lost:?}: {why}"));
        assert_eq!(errors(&left), [], "{steps} {lost:?}: {left:#?}");
        let found = held(&nodes);
        for (file, count) in &expected {
            assert!(
                found.get(file).is_some_and(|found| found >= count),
                "{steps} {lost:?}: {file}: {found:#?}"
            );
        }
        assert!(chunks(&nodes).len() >= chunks(&whole).len(), "{steps} {lost:?}");
        if ended {
            assert!(steps > 60, "{steps} steps");
            return;
        }
    }
}
