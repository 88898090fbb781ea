//! Snapshots of clusters, and what rows were at them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_cluster::Envelope;
use kestrel_engine::Engine;
use kestrel_meta::history::at::SnapshotEngine;
use kestrel_types::clock::SECOND;
use kestrel_types::key::{Key, Table};
use kestrel_types::name::Name;
use kestrel_types::placement::{NodeId, history_share_of};
use kestrel_types::request::{Answer, Creds, Op, Reply, Request};
use kestrel_types::snapshot::{
    SnapshotId, SnapshotInfo, decode_history, decode_history_key, references,
};
use kestrel_types::stat::{DirStat, ObjStat};
use parking_lot::Mutex;

use super::members::Cluster;

/// Tables with rows of the tree; figures of directories are added up.
pub const TREE: [Table; 6] =
    [Table::Entry, Table::DirId, Table::Subdir, Table::Link, Table::Chunk, Table::Xattr];

/// Rows of a tree, and figures of its directories: children, subdirectories, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub rows: BTreeMap<Key, Box<[u8]>>,
    pub dirs: BTreeMap<u64, [i64; 3]>,
}

impl Tree {
    fn take(&mut self, engine: &dyn Engine, own: &dyn Fn(Table, u64, &[u8]) -> bool) {
        for table in TREE {
            let visit = engine.scan_table(table, None, &mut |key, row| {
                if own(key.table, key.id, key.suffix) {
                    let before = self.rows.insert(key.to_owned(), row.into());
                    assert_eq!(before, None, "two members have {key:?}");
                }
                ControlFlow::Continue(())
            });
            visit.unwrap();
        }
    }

    fn take_dirs(&mut self, engine: &dyn Engine, own: &dyn Fn(Table, u64, &[u8]) -> bool) {
        let visit = engine.scan_table(Table::DirStat, None, &mut |key, row| {
            if own(key.table, key.id, key.suffix) {
                let stat = DirStat::decode(row).unwrap();
                let sum = self.dirs.entry(key.id).or_default();
                let part = [stat.children, stat.subdirs, stat.bytes];
                *sum = std::array::from_fn(|i| sum[i] + part[i]);
            }
            ControlFlow::Continue(())
        });
        visit.unwrap();
    }

    /// Names of the entries of a directory.
    pub fn names(&self, dir: u64) -> BTreeSet<String> {
        let entries = self.rows.keys().filter(|key| (key.table, key.id) == (Table::Entry, dir));
        entries.map(|key| String::from_utf8_lossy(&key.suffix).into_owned()).collect()
    }

    fn without_nothing(mut self) -> Self {
        self.dirs.retain(|_, sum| *sum != [0; 3]);
        self
    }
}

pub fn create(dir: u64, name: &str) -> Op {
    Op::SnapshotCreate { dir, name: Name::new(name.as_bytes()).unwrap() }
}

pub fn remove(dir: u64, name: &str) -> Op {
    Op::SnapshotRemove { dir, name: Name::new(name.as_bytes()).unwrap() }
}

/// The snapshot that a reply says was made.
pub fn made(reply: Reply) -> SnapshotInfo {
    match reply {
        Ok(Answer::Snapshots(mut list)) if list.len() == 1 => list.remove(0),
        other => panic!("{other:?}"),
    }
}

impl Cluster {
    pub fn leader(&self) -> NodeId {
        self.placement.snapshot_leader().unwrap().id
    }

    /// The rows as they are.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        for (id, member) in &self.members {
            let table = member.node().cluster().unwrap().table();
            let own = |table_of: Table, id: u64, suffix: &[u8]| table.owns(table_of, id, suffix);
            let engine = &*self.engines[id];
            tree.take(engine, &own);
            tree.take_dirs(engine, &own);
        }
        tree.without_nothing()
    }

    /// The rows as they were at a snapshot.
    pub fn tree_at(&self, snapshot: SnapshotId) -> Tree {
        let mut tree = Tree::default();
        for (id, member) in &self.members {
            let table = member.node().cluster().unwrap().table();
            if table.is_idle() || table.has_left() {
                continue;
            }
            let own = |table_of: Table, id: u64, suffix: &[u8]| table.owns(table_of, id, suffix);
            let known = member.node().core().snapshots.clone();
            let below: Arc<dyn Engine> = self.engines[id].clone();
            let engine = SnapshotEngine::new(below, known, snapshot);
            tree.take(&engine, &own);
            // Shares of a directory that a member has are one here, whatever number they bear.
            tree.take_dirs(&engine, &|_, _, _| true);
        }
        tree.without_nothing()
    }

    /// Numbers and marks of the snapshots that each member has a record of: removed, being made.
    pub fn records(&self) -> BTreeMap<NodeId, Vec<(SnapshotId, bool, bool)>> {
        let of = |info: &SnapshotInfo| (info.id, info.removing, info.cutting);
        let members = self.members.iter().map(|(id, member)| {
            let list = member.node().core().snapshots.list();
            (*id, list.iter().map(|known| of(&known.info)).collect())
        });
        members.collect()
    }

    /// Rows of table `history` of all members.
    pub fn history_rows(&self) -> usize {
        let mut count = 0;
        for engine in self.engines.values() {
            let visit = engine.scan_table(Table::History, None, &mut |_, _| {
                count += 1;
                ControlFlow::Continue(())
            });
            visit.unwrap();
        }
        count
    }

    /// That the shares of history say what rows of table `history` refer to, at each member.
    pub fn check_history_shares(&self) {
        for (id, engine) in &self.engines {
            let mut expected: BTreeMap<u64, i64> = BTreeMap::new();
            let visit = engine.scan_table(Table::History, None, &mut |key, value| {
                let (of, _) = decode_history_key(key).unwrap();
                for released in
                    decode_history(value).unwrap().iter().flat_map(|old| references(of.table, old))
                {
                    *expected.entry(released.range.object).or_default() +=
                        i64::from(released.bytes);
                }
                ControlFlow::Continue(())
            });
            visit.unwrap();
            expected.retain(|_, bytes| *bytes != 0);
            let (mut found, share) = (BTreeMap::new(), history_share_of(*id).to_be_bytes());
            let visit = engine.scan_table(Table::ObjStat, None, &mut |key, row| {
                if key.suffix == share {
                    found.insert(key.id, ObjStat::decode(row).unwrap().referenced);
                }
                ControlFlow::Continue(())
            });
            visit.unwrap();
            assert_eq!(found, expected, "node {id}");
        }
    }

    /// One step: what is under way, and a moment.
    pub fn pass(&mut self) {
        self.carry(|_, _| false);
        self.tick(SECOND / 100);
    }

    /// Until no member has anything to do.
    pub fn come_to_rest(&mut self) {
        for _ in 0..20_000 {
            self.pass();
            if self.members.values().all(kestrel_cluster::ClusterNode::is_idle) {
                return;
            }
        }
        panic!("a member does not come to rest: {:?}", self.records());
    }

    /// Begins to make a snapshot.
    pub fn begin_snapshot(&mut self, dir: u64, name: &str) -> Arc<Mutex<Option<Reply>>> {
        let request = Request { creds: Creds::root(), op: create(dir, name) };
        self.submit(self.leader(), request, None)
    }

    pub fn snapshot(&mut self, dir: u64, name: &str) -> SnapshotInfo {
        made(self.ask(self.leader(), create(dir, name)))
    }

    /// Carries messages in this order, as long as there are any; `change` may lose or alter them.
    pub fn carry_changed(&mut self, mut change: impl FnMut(NodeId, &mut Envelope) -> bool) {
        loop {
            self.collect();
            let Some((to, mut envelope)) = self.under_way.pop_front() else { return };
            if change(to, &mut envelope)
                && let Some(member) = self.members.get_mut(&to)
            {
                member.receive(envelope, self.now);
            }
        }
    }
}
