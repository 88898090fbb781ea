//! The metadata of several nodes put together, and checked as a whole.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kestrel_admin::check::{Options, Totals, check};
use kestrel_admin::cluster_view::ClusterViewBuilder;
use kestrel_admin::cut::CutError;
use kestrel_admin::finding::{Finding, FindingKind};
use kestrel_admin::rows::{Rows, delete, encode_ceiling, put};
use kestrel_cluster::ClusterNode;
use kestrel_cluster::change::records::TABLE;
use kestrel_cluster::peer_identity::PeerIdentity;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::RootAttr;
use kestrel_types::ids::ROOT;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{self, Exceptions, NodeId, PlacementMap, SlotMap};

fn placement() -> PlacementMap {
    let member = |id| placement::Member { id, address: format!("node-{id}:9440") };
    let map = SlotMap::even(vec![member(1), member(2), member(3)]).unwrap();
    PlacementMap::new(map, Exceptions::default())
}

/// The nodes of a new volume.
fn nodes() -> Vec<(NodeId, MemoryEngine)> {
    let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
    let node = |id| {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        ClusterNode::format(&engine, root, 1, id, placement()).unwrap();
        (id, engine)
    };
    (1..=3).map(node).collect()
}

fn change(engine: &MemoryEngine, change: Mutation) {
    engine.commit(BatchKind::Growing, vec![change]).unwrap();
}

/// The findings of a check of the whole.
fn checked(nodes: &[(NodeId, MemoryEngine)]) -> (Totals, Vec<Finding>) {
    let dir = tempfile::tempdir().unwrap();
    let mut gathering = ClusterViewBuilder::new(dir.path(), 0, &placement()).unwrap();
    for (node, engine) in nodes {
        let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(engine, table));
        gathering.add(*node, rows.map(|row| row.map_err(CutError::from)), &mut |_| ()).unwrap();
    }
    let whole = gathering.finish().unwrap();
    let mut found = whole.findings.clone();
    let mut options = Options { is_of_several: true, ..Options::default() };
    let totals =
        check(whole.engine(), &mut options, &mut |finding| found.push(finding), &mut |_, _| ())
            .unwrap();
    drop(whole);
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "the scratch directory goes away"
    );
    (totals, found)
}

fn kinds(nodes: &[(NodeId, MemoryEngine)]) -> Vec<FindingKind> {
    checked(nodes).1.iter().map(|finding| finding.kind).collect()
}

/// The owner of the root's entry.
fn owner_of_root() -> usize {
    placement().owner_of(0, b"").id as usize - 1
}

#[test]
fn a_table_that_changes_meanwhile_makes_no_whole() {
    let nodes = nodes();
    for (newer, whole) in [(false, true), (true, false)] {
        let version = 1 + u64::from(newer);
        let table = put(
            Table::System,
            0,
            TABLE.as_bytes(),
            PlacementMap { version, ..placement() }.encode().into(),
        );
        nodes[1].1.commit(BatchKind::Growing, vec![table]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut gathering = ClusterViewBuilder::new(dir.path(), 0, &placement()).unwrap();
        for (node, engine) in &nodes {
            let rows = Table::ALL.into_iter().flat_map(|table| Rows::new(engine, table));
            gathering.add(*node, rows.map(|row| row.map_err(CutError::from)), &mut |_| ()).unwrap();
        }
        let finished = gathering.finish().map(drop).map_err(|why| why.to_string());
        assert!(
            if whole {
                finished.is_ok()
            } else {
                finished.clone().unwrap_err().contains("repeat it")
            },
            "{finished:?}"
        );
    }
}

#[test]
fn a_new_volume_is_whole() {
    let (totals, found) = checked(&nodes());
    assert_eq!((found, totals.dirs, totals.files), (vec![], 1, 0));
}

/// The check finds a row at a node that does not own it, and does not count that row as present.
#[test]
fn misplaced_row_found_and_not_counted() {
    let nodes = nodes();
    let owner = owner_of_root();
    let other = (owner + 1) % 3;
    let root = Key::new(Table::Entry, 0, b"");
    let mut row = None;
    nodes[owner]
        .1
        .get_many(&[root.borrow()], &mut |_, found| row = found.value.map(<[u8]>::to_vec))
        .unwrap();
    change(&nodes[other].1, Mutation { key: root.clone(), value: row.map(Into::into) });
    assert_eq!(kinds(&nodes), [FindingKind::RowMisplaced]);
    change(&nodes[owner].1, delete(&root));
    let kinds = kinds(&nodes);
    assert!(
        kinds.contains(&FindingKind::RootMissing) && kinds.contains(&FindingKind::RowMisplaced),
        "{kinds:?}"
    );
}

/// The check finds a node's directory that was started less often than the other nodes have on
/// record.
#[test]
fn node_directory_with_too_few_starts() {
    let nodes = nodes();
    let known =
        |node_uuid, epoch| PeerIdentity { node_uuid, epoch, start: 7, address: None }.encode();
    change(&nodes[1].1, put(Table::System, 0, b"epoch", encode_ceiling(3)));
    change(&nodes[0].1, put(Table::System, 0, b"peer 2", known(1, 3)));
    assert_eq!(kinds(&nodes), []);
    change(&nodes[0].1, put(Table::System, 0, b"peer 2", known(1, 4)));
    let found = checked(&nodes).1;
    assert!(found.len() == 1 && found[0].detail.contains("started 3 times"), "{found:?}");
    change(&nodes[0].1, put(Table::System, 0, b"peer 1", known(1, 1)));
    change(&nodes[2].1, put(Table::System, 0, b"peer 2", vec![9].into()));
    assert_eq!(kinds(&nodes), [FindingKind::SystemWrong; 3]);
}

/// The check finds shares of counters that no worker reads, and judges the counters of each node by
/// themselves.
#[test]
fn misplaced_counter_shares_and_node_counters() {
    let nodes = nodes();
    let share = |node: u16, worker: u16| (node << 6 | worker).to_be_bytes();
    let stat = kestrel_types::stat::DirStat::default();
    // Node 1 has one worker.
    change(&nodes[0].1, put(Table::DirStat, ROOT, &share(1, 0), stat.encode()));
    assert_eq!(kinds(&nodes), []);
    change(&nodes[0].1, put(Table::DirStat, ROOT, &share(1, 1), stat.encode()));
    change(&nodes[0].1, put(Table::DirStat, ROOT, &share(2, 0), stat.encode()));
    assert_eq!(kinds(&nodes), [FindingKind::RowMisplaced; 2]);
    change(&nodes[0].1, delete(&Key::new(Table::DirStat, ROOT, &share(1, 1))));
    change(&nodes[0].1, delete(&Key::new(Table::DirStat, ROOT, &share(2, 0))));
    change(&nodes[1].1, put(Table::System, 0, b"inodes", encode_ceiling(0)));
    change(&nodes[2].1, delete(&Key::new(Table::System, 0, b"clock")));
    assert_eq!(kinds(&nodes), [FindingKind::SystemWrong; 2]);
}
