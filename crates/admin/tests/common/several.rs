//! The fixture, shared by three nodes.

use std::collections::{BTreeMap, HashMap};

use kestrel_admin::check::{Options, check};
use kestrel_admin::cluster_view::{ClusterView, gather};
use kestrel_admin::dump::spread::TargetNodes;
use kestrel_admin::finding::{Finding, Fix};
use kestrel_admin::repair::{RepairError, cluster};
use kestrel_admin::rows::{CLOCK, INODES, OBJECTS, Rows, SHARES, encode_ceiling, put};
use kestrel_blockstore::store::MemoryStore;
use kestrel_cluster::ClusterNode;
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::RootAttr;
use kestrel_meta::owners::MapView;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Data;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{self, Exceptions, NodeId, PlacementMap, SlotMap};

use super::{NOW, Volume};

pub const NODES: u32 = 3;

pub struct Several<'a> {
    pub nodes: BTreeMap<NodeId, MemoryEngine>,
    pub store: &'a MemoryStore,
}

pub fn placement() -> PlacementMap {
    let member = |id| placement::Member { id, address: format!("node-{id}:9440") };
    let map = SlotMap::even((1..=NODES).map(member).collect()).unwrap();
    PlacementMap::new(map, Exceptions::default())
}

/// The placement map.
pub fn table() -> MapView {
    MapView::new(1, placement()).unwrap()
}

/// A file, by its path: what is in it.
pub type Content = BTreeMap<String, (u64, Option<Data>)>;

impl<'a> Several<'a> {
    /// The rows of a volume, each at the node that owns it. Shares are dealt out; numbers of inodes
    /// stay.
    pub fn of(volume: &'a Volume) -> Self {
        let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
        let table = table();
        let node = |id| {
            let engine = MemoryEngine::new(SyncWhen::Asked);
            ClusterNode::format(&engine, root, 1, id, placement()).unwrap();
            let mut rows: Vec<Mutation> = [Table::Entry, Table::DirId]
                .into_iter()
                .flat_map(|table| Rows::new(&engine, table))
                .map(|row| Mutation { key: row.unwrap().0, value: None })
                .collect();
            for (name, value) in [(INODES, 100), (OBJECTS, 50), (CLOCK, 1000), (SHARES, 16)] {
                rows.push(put(Table::System, 0, name, encode_ceiling(value)));
            }
            engine.commit(BatchKind::Growing, rows).unwrap();
            (id, engine)
        };
        let nodes: BTreeMap<NodeId, MemoryEngine> = (1..=NODES).map(node).collect();
        let mut batches: BTreeMap<NodeId, Vec<Mutation>> = BTreeMap::new();
        for (mut key, value) in volume.all() {
            if let (Table::DirStat | Table::ObjStat, [0, worker]) = (key.table, &*key.suffix) {
                let share = (1 + u16::from(*worker) % NODES as u16) << 6 | u16::from(*worker);
                key.suffix = share.to_be_bytes().into();
            }
            let owner = table.owner(key.table, key.id, &key.suffix);
            if key.table != Table::System || *key.suffix == *CLOCK {
                batches.entry(owner).or_default().push(Mutation { key, value: Some(value) });
            }
        }
        for (node, batch) in batches {
            nodes[&node].commit(BatchKind::Growing, batch).unwrap();
        }
        nodes.values().for_each(|engine| engine.sync().unwrap());
        Self { nodes, store: &volume.store }
    }

    /// Changes a row where it belongs.
    pub fn apply(&self, rows: Vec<Mutation>) {
        for row in rows {
            let owner = table().owner(row.key.table, row.key.id, &row.key.suffix);
            self.apply_at(owner, vec![row]);
        }
    }

    /// Changes rows of one node, no matter where they belong.
    pub fn apply_at(&self, node: NodeId, rows: Vec<Mutation>) {
        self.nodes[&node].commit(BatchKind::Growing, rows).unwrap();
        self.nodes[&node].sync().unwrap();
    }

    pub fn value(&self, table: Table, id: u64, suffix: &[u8]) -> Option<Box<[u8]>> {
        let owner = self::table().owner(table, id, suffix);
        kestrel_admin::rows::get(&self.nodes[&owner], Key::new(table, id, suffix)).unwrap()
    }

    pub fn engines(&self) -> TargetNodes<'_> {
        self.nodes.iter().map(|(node, engine)| (*node, engine as &dyn Engine)).collect()
    }

    pub fn all(&self) -> HashMap<(NodeId, Key), Box<[u8]>> {
        let rows = |(node, engine): (&NodeId, &MemoryEngine)| {
            let node = *node;
            let tables = Table::ALL.into_iter();
            let rows: Vec<_> =
                tables.flat_map(|table| Rows::new(engine, table)).map(Result::unwrap).collect();
            rows.into_iter().map(move |(key, value)| ((node, key), value))
        };
        self.nodes.iter().flat_map(rows).collect()
    }

    fn with_whole<T>(&self, look: impl FnOnce(&ClusterView) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let whole = gather(&self.engines(), &placement(), (dir.path(), 0), &mut |_| ()).unwrap();
        look(&whole)
    }

    pub fn check(&self) -> Vec<Finding> {
        self.with_whole(|whole| {
            let mut found = whole.findings.clone();
            let mut options =
                Options { is_of_several: true, store: Some(self.store), ..Options::default() };
            check(whole.engine(), &mut options, &mut |finding| found.push(finding), &mut |_, _| ())
                .unwrap();
            found
        })
    }

    /// Repairs; what remains, and how many repairs there were.
    pub fn repair(&self) -> Result<(Vec<Finding>, u64), RepairError> {
        self.repair_with(&self.engines())
    }

    /// The same by way of these engines.
    pub fn repair_with(&self, nodes: &TargetNodes<'_>) -> Result<(Vec<Finding>, u64), RepairError> {
        let dir = tempfile::tempdir().unwrap();
        let placement = placement();
        let volume = cluster::ClusterRepair {
            nodes,
            placement: &placement,
            scratch: dir.path(),
            reserve_bytes: 0,
        };
        let mut options = Options { store: Some(self.store), ..Options::default() };
        let mut left = Vec::new();
        let mut did = |_: &Finding, _: &Fix| {};
        let mut keep = |finding| left.push(finding);
        let done = cluster::repair(&volume, &mut options, NOW, &mut did, &mut keep, &mut |_, _| ());
        done.map(|(totals, done)| {
            assert_eq!(totals.findings.values().sum::<u64>(), left.len() as u64);
            (left, done)
        })
    }

    /// All files by their paths. A number that a repair makes up is none of its business.
    pub fn content(&self) -> Content {
        self.with_whole(|whole| {
            let mut content = Content::new();
            let mut todo: Vec<(InodeId, String)> = vec![(ROOT, String::new())];
            while let Some((dir, path)) = todo.pop() {
                let mut below = Vec::new();
                whole
                    .engine()
                    .scan(Table::Entry, dir, None, &mut |name, value, _| {
                        below.push((
                            String::from_utf8_lossy(name).into_owned(),
                            Entry::decode(value).unwrap(),
                        ));
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                for (name, entry) in below {
                    let name = if name.ends_with(".damaged-record") {
                        "damaged-record".into()
                    } else {
                        name
                    };
                    let path = format!("{path}/{name}");
                    match entry {
                        Entry::Inode(inode) if inode.kind == kestrel_types::inode::Kind::Dir => {
                            content.insert(path.clone(), (0, None));
                            todo.push((inode.ino, path));
                        }
                        Entry::Inode(inode) => {
                            drop(content.insert(path, (inode.size, Some(inode.data))))
                        }
                        Entry::Link { ino, .. } => drop(content.insert(path, (ino, None))),
                    }
                }
            }
            content
        })
    }
}
