//! Dumps of what several nodes share: of one moment, loadable into one node and into several, and
//! back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use kestrel_admin::check::{Options, check};
use kestrel_admin::cluster_view::{ClusterView, ClusterViewBuilder};
use kestrel_admin::cut::CutError;
use kestrel_admin::dump::load::load;
use kestrel_admin::dump::spread::{LOADING, TargetNodes, keep_clear_of, load_into};
use kestrel_admin::dump::{About, DumpError, dump};
use kestrel_admin::recording::Recording;
use kestrel_admin::rows::{CLOCK, DirId, Rows, USAGE, decode_ceiling, encode_usage, get, put};
use kestrel_admin::usage::unfinished_clones;
use kestrel_blockstore::store::BlockStore;
use kestrel_cluster::ClusterNode;
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::{Node, NodeConfig, RootAttr};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Kind};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::placement::{
    self, Exceptions, NodeId, PlacementMap, SlotMap, id_in, maker_of_id, object_in,
};
use kestrel_types::request::{Answer, Creds, Op, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use serde_json::json;
use tempfile::TempDir;

fn placement(nodes: u32) -> PlacementMap {
    let member = |id| placement::Member { id, address: format!("node-{id}:9440") };
    let map = SlotMap::even((1..=nodes).map(member).collect()).unwrap();
    PlacementMap::new(map, Exceptions::default())
}

type Cluster = BTreeMap<NodeId, MemoryEngine>;

fn formed(nodes: u32) -> Cluster {
    let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
    let node = |id| {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        ClusterNode::format(&engine, root, 1, id, placement(nodes)).unwrap();
        (id, engine)
    };
    (1..=nodes).map(node).collect()
}

fn engines(cluster: &Cluster) -> TargetNodes<'_> {
    cluster.iter().map(|(node, engine)| (*node, engine as &dyn Engine)).collect()
}

/// A gathering, and the directory that it is in, which goes after it.
struct Whole(ClusterView, #[allow(dead_code, reason = "it goes away when it is dropped")] TempDir);

impl Whole {
    fn engine(&self) -> &dyn Engine {
        self.0.engine()
    }
}

fn gather_one(cluster: &Cluster) -> Whole {
    let Whole(whole, dir) = gather(cluster);
    Whole(whole.into_one(NOW).unwrap(), dir)
}

fn gather(cluster: &Cluster) -> Whole {
    let dir = tempfile::tempdir().unwrap();
    let mut gathering =
        ClusterViewBuilder::new(dir.path(), 0, &placement(cluster.len() as u32)).unwrap();
    for (node, engine) in cluster {
        let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(engine, table));
        gathering.add(*node, rows.map(|row| row.map_err(CutError::from)), &mut |_| ()).unwrap();
    }
    Whole(gathering.finish().unwrap(), dir)
}

fn dump_of(engine: &dyn Engine) -> Vec<u8> {
    let about = About { volume: json!({"name": "v"}), program: "test".into(), now: NOW };
    let mut out = Vec::new();
    dump(engine, &about, &mut out, tempfile::tempfile().unwrap(), &mut |_| {}).unwrap();
    out
}

fn load_nodes(file: &[u8], cluster: &Cluster) -> Result<(), DumpError> {
    let dir = tempfile::tempdir().unwrap();
    let nodes = engines(cluster);
    let loaded = load_into(
        Cursor::new(file),
        &nodes,
        &placement(cluster.len() as u32),
        (dir.path(), 0),
        &mut |_| {},
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "the scratch directory goes away"
    );
    loaded.map(drop)
}

fn findings(cluster: &Cluster, store: &dyn BlockStore) -> Vec<String> {
    let whole = gather(cluster);
    let mut found: Vec<String> =
        whole.0.findings.iter().map(|finding| format!("{finding:?}")).collect();
    let mut options = Options { is_of_several: true, store: Some(store), ..Options::default() };
    let mut report = |finding| found.push(format!("{finding:?}"));
    check(whole.engine(), &mut options, &mut report, &mut |_, _| ()).unwrap();
    found
}

/// The rows that a dump of any volume of this content has, on one node or several: without shares'
/// numbers and counters.
fn content(volume: &Volume) -> HashMap<Key, Box<[u8]>> {
    let owned = |key: &Key| {
        !matches!(key.table, Table::System | Table::DirStat | Table::ObjStat | Table::Moved)
    };
    volume.all().into_iter().filter(|(key, _)| owned(key)).collect()
}

fn fresh(store: kestrel_blockstore::store::MemoryStore) -> Volume {
    Volume { engine: MemoryEngine::new(SyncWhen::Asked), store }
}

#[test]
fn a_dump_of_one_node_goes_to_several_and_back() {
    let volume = Volume::new();
    let file = dump_of(&volume.engine);
    for nodes in [1, 2, 3, 5] {
        let cluster = formed(nodes);
        load_nodes(&file, &cluster).unwrap();
        keep_clear_of(&engines(&cluster), &volume.store).unwrap();
        assert_eq!(findings(&cluster, &volume.store), Vec::<String>::new());
        assert!(
            nodes == 1
                || cluster.values().all(|engine| Rows::new(engine, Table::Entry).count() < 9)
        );
        let back = fresh(common::Volume::new().store);
        let whole = gather_one(&cluster);
        load(Cursor::new(dump_of(whole.engine())), &back.engine, &mut |_| {}).unwrap();
        assert!(content(&back) == content(&volume));
        assert_eq!(back.kinds(), [], "{nodes} nodes");
    }
}

/// A file with a name at another node than its home has a row at its home that leads from its
/// number to the name.
#[test]
fn rows_for_names_away_from_the_home() {
    let file = dump_of(&Volume::new().engine);
    let cluster = formed(3);
    load_nodes(&file, &cluster).unwrap();
    let table = placement(3);
    let mut away = 0;
    for (parent, name, ino) in
        [(A, "inline", INLINE), (A, "packed", PACKED), (B, "big", BIG), (C, "empty", EMPTY)]
    {
        let home = table.home_of(ino).id;
        let row = get(&cluster[&home], Key::new(Table::Moved, ino, b"")).unwrap();
        let is_away = table.owner_of(parent, name.as_bytes()).id != home;
        let expected = DirId { parent, name: name.as_bytes().into() };
        assert_eq!(
            row.map(|row| DirId::decode(&row).unwrap()),
            is_away.then_some(expected),
            "{name}"
        );
        away += usize::from(is_away);
    }
    assert!(away > 0);
}

#[test]
fn counters_go_on_above_everything_whoever_made_it() {
    let volume = Volume::new();
    let (ino, object) = (id_in(70_000_000, 2, 77), object_in(5 << 20, 3));
    volume.apply(vec![
        entry(
            C,
            "far",
            inode(ino, Kind::File, 10, Data::Packed { range: range(object, 0, 10), visible: 10 }),
        ),
        obj_stat(object, 0, 10),
        dir_stat(C, 2, 1, 0, 10),
    ]);
    assert_eq!(maker_of_id(ino).1, 2);
    let cluster = formed(3);
    let ceiling = |node: NodeId, name: &[u8]| {
        decode_ceiling(&get(&cluster[&node], Key::new(Table::System, 0, name)).unwrap().unwrap())
            .unwrap()
    };
    let before = ceiling(1, b"inodes");
    load_nodes(&dump_of(&volume.engine), &cluster).unwrap();
    assert_eq!((ceiling(1, b"inodes"), ceiling(2, b"inodes")), (before, 70_000_001));
    assert_eq!(ceiling(3, b"objects"), (5 << 20) + 1);
    assert!((1..=3).all(|node| ceiling(node, CLOCK) >= 1000));
    let whole = gather_one(&cluster);
    let back = fresh(Volume::new().store);
    load(Cursor::new(dump_of(whole.engine())), &back.engine, &mut |_| {}).unwrap();
    let counter =
        |name: &[u8]| decode_ceiling(&back.value(Table::System, 0, name).unwrap()).unwrap();
    assert_eq!((counter(b"inodes"), counter(b"objects")), (ino + 1, object + 1));
}

/// The counters of a loaded cluster begin above what nodes that are not there have made, so that a
/// node that is added makes nothing twice.
#[test]
fn counters_above_numbers_of_missing_nodes() {
    let volume = Volume::new();
    let (ino, object) = (id_in(3_000, 4, 77), object_in(9_000, 5));
    volume.apply(vec![
        entry(
            C,
            "far",
            inode(ino, Kind::File, 10, Data::Packed { range: range(object, 0, 10), visible: 10 }),
        ),
        obj_stat(object, 0, 10),
        dir_stat(C, 2, 1, 0, 10),
    ]);
    let file = dump_of(&volume.engine);
    let cluster = formed(3);
    // The node that announced another one has sent it already where to begin.
    let expect = Key::new(Table::System, 0, b"expect 4");
    let announced = Mutation { key: expect.clone(), value: Some(b"node-4:9440"[..].into()) };
    cluster[&1].commit(BatchKind::Growing, vec![announced]).unwrap();
    let why = load_nodes(&file, &cluster).unwrap_err().to_string();
    assert!(why.contains("node 4 was announced"), "{why}");
    cluster[&1].commit(BatchKind::Freeing, vec![Mutation { key: expect, value: None }]).unwrap();
    load_nodes(&file, &cluster).unwrap();
    let ceiling = |node: NodeId, name: &[u8]| {
        decode_ceiling(&get(&cluster[&node], Key::new(Table::System, 0, name)).unwrap().unwrap())
            .unwrap()
    };
    // At every node: each may be the coordinator some day, and the counters of an added node begin
    // from the coordinator's.
    for node in [1, 2, 3] {
        assert_eq!((ceiling(node, b"inodes"), ceiling(node, b"objects")), (3_001, 9_001), "{node}");
    }
    // What the store has counts as well.
    volume.store.put(object_in(20_000, 6), &[std::io::IoSlice::new(b"x")]).unwrap();
    keep_clear_of(&engines(&cluster), &volume.store).unwrap();
    assert!([1, 2, 3].into_iter().all(|node| ceiling(node, b"objects") == 20_001));
    // A counter that is lost is repaired to the same.
    for name in [&b"inodes"[..], b"objects"] {
        let key = Key::new(Table::System, 0, name);
        cluster[&1].commit(BatchKind::Freeing, vec![Mutation { key, value: None }]).unwrap();
    }
    let found = format!("{:?}", gather(&cluster).0.findings);
    assert!(found.contains("set to 3001") && found.contains("set to 9001"), "{found}");
}

/// Loading refuses a cluster that holds files, and takes one that was loaded in part.
#[test]
fn load_into_full_and_half_loaded_clusters() {
    let file = dump_of(&Volume::new().engine);
    let cluster = formed(3);
    let figures = put(Table::System, 0, USAGE, encode_usage([0, 0, 0]));
    cluster[&2].commit(BatchKind::Growing, vec![figures]).unwrap();
    let half = &file[..file.len() / 2];
    assert!(matches!(load_nodes(half, &cluster), Err(DumpError::Corrupt(..))));
    assert_eq!(
        findings(&cluster, &Volume::new().store).len(),
        1,
        "objects that nothing refers to: nothing has been done"
    );
    load_nodes(&file, &cluster).unwrap();
    assert_eq!(get(&cluster[&2], Key::new(Table::System, 0, USAGE)).unwrap(), None);
    assert!(matches!(load_nodes(&file, &cluster), Err(DumpError::NotEmpty)));
    let root = Key::new(Table::Entry, 0, b"");
    let owner = &cluster[&placement(3).owner_of(0, b"").id];
    owner.commit(BatchKind::Freeing, vec![Mutation { key: root, value: None }]).unwrap();
    assert!(
        matches!(load_nodes(&file, &cluster), Err(DumpError::NotEmpty)),
        "a root that is lost is no reason"
    );
    for engine in cluster.values() {
        engine
            .commit(BatchKind::Growing, vec![put(Table::System, 0, LOADING, [1].into())])
            .unwrap();
    }
    load_nodes(&file, &cluster).unwrap();
    assert_eq!(findings(&cluster, &Volume::new().store), Vec::<String>::new());
    let two: Cluster = formed(3).into_iter().take(2).collect();
    let dir = tempfile::tempdir().unwrap();
    let refused =
        load_into(Cursor::new(&file), &engines(&two), &placement(3), (dir.path(), 0), &mut |_| {});
    assert!(matches!(refused, Err(DumpError::Mismatch(_))));
}

/// Gathering adds up the shares of all nodes, and schedules an object that nothing refers to once.
#[test]
fn gathered_shares_and_pending_deletes() {
    let cluster = formed(2);
    let share = |node: u16| (node << 6).to_be_bytes();
    let stat = |referenced| kestrel_types::stat::ObjStat { referenced }.encode();
    for (node, referenced) in [(1_u16, 50), (2, -50)] {
        let rows = vec![
            put(Table::ObjStat, 7, &share(node), stat(referenced)),
            put(Table::Reap, 5, &7u64.to_be_bytes(), Box::default()),
        ];
        cluster[&u32::from(node)].commit(BatchKind::Growing, rows).unwrap();
    }
    let whole = gather_one(&cluster);
    let rows = |table| Rows::new(whole.engine(), table).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(rows(Table::ObjStat), [(Key::new(Table::ObjStat, 7, &[0, 0]), stat(0))]);
    let reap = Key::new(Table::Reap, (NOW / 1_000_000_000) as u64, &7u64.to_be_bytes());
    assert_eq!(rows(Table::Reap), [(reap, Box::default())]);
}

/// Commits rows of `node` from `from` on until `until` is true, each with a number of all nodes
/// together.
fn busy(engine: &EmbeddedEngine, node: u64, count: &AtomicU64, until: &(dyn Fn() -> bool + Sync)) {
    while !until() {
        let number = count.fetch_add(1, Ordering::SeqCst);
        let row = put(Table::Sweep, number, &node.to_be_bytes(), Box::default());
        engine.commit(BatchKind::Growing, vec![row]).unwrap();
    }
}

/// What a recording has recorded.
fn recorded(recording: &Recording, bytes: u64) -> usize {
    let mut read = Vec::new();
    while (read.len() as u64) < bytes {
        read.extend(recording.read(read.len() as u64, 1000).unwrap());
    }
    assert_eq!(read.len() as u64, bytes);
    // Of each row: length and bytes of its key, whether it has a value, length of that.
    let (mut input, mut rows) = (Cursor::new(read), 0);
    let mut len = [0; 8];
    while input.read_exact(&mut len).is_ok() {
        input.set_position(input.position() + u64::from_be_bytes(len) + 1 + 8);
        rows += 1;
    }
    rows
}

/// While all nodes are held none of them commits, and the recordings end at that moment.
#[test]
fn recordings_end_at_the_hold_of_all_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let open = |node| {
        let (options, nothing) = (EmbeddedOptions::default(), Arc::new(|| Ok(())));
        EmbeddedEngine::open(
            &dir.path().join(format!("{node}")),
            [0; 16],
            options,
            nothing,
            &mut |_| true,
        )
        .unwrap()
    };
    let engines: Vec<Arc<EmbeddedEngine>> = (0..3).map(|node| Arc::new(open(node))).collect();
    let begin = |engine: &Arc<EmbeddedEngine>| {
        Recording::begin(engine.clone(), tempfile::tempfile().unwrap(), 1 << 30).unwrap()
    };
    let recordings: Vec<Recording> = engines.iter().map(begin).collect();
    let count = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for (node, engine) in engines.iter().enumerate() {
            let count = &count;
            scope.spawn(move || busy(engine, node as u64, count, &|| Instant::now() > end));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(recordings[0].end().is_err(), "it was not held");
        for recording in &recordings {
            recording.hold(Duration::from_millis(20), Duration::from_millis(1500)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        let held: Vec<usize> =
            engines.iter().map(|engine| Rows::new(&**engine, Table::Sweep).count()).collect();
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        let ended: Vec<u64> = recordings.iter().map(|recording| recording.end().unwrap()).collect();
        for ((recording, bytes), held) in recordings.iter().zip(ended).zip(held) {
            assert_eq!(recorded(recording, bytes), held);
        }
        assert!(
            begun.elapsed() < Duration::from_millis(900),
            "the end of a recording ends its hold"
        );
        let now = count.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        assert!(count.load(Ordering::SeqCst) > now, "they go on");
    });
}

/// A hold ends by itself, and a recording that becomes too long ends with an error.
#[test]
fn hold_timeout_and_recording_limit() {
    let engine = Arc::new(MemoryEngine::new(SyncWhen::Asked));
    let recording = Recording::begin(engine.clone(), tempfile::tempfile().unwrap(), 40).unwrap();
    let commit = |id| {
        let begun = Instant::now();
        engine
            .commit(BatchKind::Growing, vec![put(Table::Sweep, id, b"", Box::default())])
            .unwrap();
        begun.elapsed()
    };
    recording.hold(Duration::ZERO, Duration::from_millis(200)).unwrap();
    assert!(commit(1) >= Duration::from_millis(150));
    assert!(commit(2) < Duration::from_millis(150));
    assert!(commit(3) < Duration::from_millis(150));
    assert!(recording.end().unwrap_err().contains("room"));
    drop(recording);
    commit(4);
}

/// Everything that is told of a tree at a snapshot, by path.
fn tree_at(node: &Node, snapshot: SnapshotId) -> BTreeMap<String, String> {
    let ask = |op: Op| {
        let op = Op::At(snapshot, Box::new(op));
        node.call(Request { creds: Creds::root(), op }).unwrap()
    };
    let (mut told, mut todo) = (BTreeMap::new(), vec![(String::new(), ROOT)]);
    while let Some((path, dir)) = todo.pop() {
        let figures = ask(Op::TreeUsage(dir));
        told.insert(
            path.clone(),
            format!("{:?} {figures:?}", ask(Op::GetAttr(InodeRef::by_id(dir)))),
        );
        let list = Op::ReadDir { dir, after: None, limit: 1000, check: false };
        let Answer::Entries { entries, .. } = ask(list) else { panic!("{path}") };
        for entry in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(entry.name.as_bytes()));
            if entry.kind == Kind::Dir {
                todo.push((path, entry.ino));
                continue;
            }
            let file = ask(Op::Lookup(PathRef::new(dir, entry.name)));
            let chunks = ask(Op::Chunks { ino: entry.ino, first: 0, last: 99 });
            told.insert(path, format!("{file:?} {chunks:?}"));
        }
    }
    told
}

/// What was told, without the numbers of inodes: names of clones get any when they are looked at.
fn without_numbers(told: &str) -> String {
    let mut parts = told.split_inclusive("ino: ").flat_map(|part| part.split_inclusive("parent: "));
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.trim_start_matches(|byte: char| byte.is_ascii_digit()))
}

fn snapshots(node: &Node) -> Vec<SnapshotInfo> {
    let op = Op::SnapshotList { dir: None, ancestors: false };
    match node.call(Request { creds: Creds::root(), op }) {
        Ok(Answer::Snapshots(list)) => list,
        other => panic!("{other:?}"),
    }
}

/// A dump with snapshots goes to several nodes and back: each snapshot reads as before, and what
/// its history refers to is counted where the history is.
#[test]
fn snapshots_to_several_nodes_and_back() {
    let (mut compared, mut unfinished) = (0, 0);
    for seed in 0..6 {
        let mut driver = common::driver::Driver::new(seed);
        for _ in 0..400 {
            driver.step();
        }
        // Clones that are not finished go with it.
        while seed % 2 == 0 && driver.node.tidy_clones().unwrap() {}
        let unfinished_here = unfinished_clones(&*driver.engine).unwrap();
        unfinished += unfinished_here;
        let list = snapshots(&driver.node);
        let file = dump_of(&*driver.engine);
        let cluster = formed(3);
        load_nodes(&file, &cluster).unwrap();
        let whole = gather(&cluster);
        let mut found: Vec<String> =
            whole.0.findings.iter().map(|finding| format!("{finding:?}")).collect();
        let mut options = Options { is_of_several: true, ..Options::default() };
        let mut report = |finding: kestrel_admin::finding::Finding| {
            if finding.kind.severity() == kestrel_admin::finding::Severity::Error {
                found.push(format!("{finding:?}"));
            }
        };
        check(whole.engine(), &mut options, &mut report, &mut |_, _| ()).unwrap();
        assert_eq!(found, Vec::<String>::new(), "seed {seed}");
        let history =
            cluster.values().filter(|engine| Rows::new(*engine, Table::History).next().is_some());
        assert!(list.is_empty() || history.count() > 1, "history has its owners");
        let back = Arc::new(MemoryEngine::new(SyncWhen::Asked));
        let whole = gather_one(&cluster);
        load(Cursor::new(dump_of(whole.engine())), &*back, &mut |_| {}).unwrap();
        let node = Node::open(back, driver.clock.clone(), NodeConfig::default()).unwrap();
        assert_eq!(snapshots(&node), list, "seed {seed}");
        for info in list.iter().filter(|info| !info.removing) {
            let trees = [&node, &driver.node].map(|node| tree_at(node, info.id));
            let [back, before] = trees.map(|tree| match unfinished_here {
                0 => tree,
                _ => tree.into_iter().map(|(path, told)| (path, without_numbers(&told))).collect(),
            });
            assert_eq!(back, before, "seed {seed}");
            compared += 1;
        }
        while node.tidy_history().unwrap() {}
    }
    assert!(compared > 3 && unfinished > 0, "{compared} snapshots, {unfinished} clones");
}
