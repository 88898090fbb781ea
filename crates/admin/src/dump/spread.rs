//! Loading a dump into a volume that several nodes share: each row goes to the node that owns it.
//!
//! The dump is loaded into a scratch directory first, where its changes are carried out and its
//! rows counted, and spread from there. Inode and object numbers stay: an inode's home is the slot
//! in its low bits, no matter which node made it up, and counters go on above all that is in use. A
//! node that is added later may get the number of one that made some of them: it begins to count
//! where the coordinator has come to (`kestrel_cluster`), which any node may be some day, so the
//! counters of all begin above what all made that are not there. A file with a name that belongs to
//! another node than its number is one that was renamed, as far as the nodes can tell, so it gets
//! the row of table `moved` with its directory and name.
//!
//! | file | what it has |
//! | --- | --- |
//! | `spread/quotas.rs` | rows of quotas |
//! | `spread/versions.rs` | rows of versions, and of change feeds |
//!
//! The root directory's entry comes last: without it what has been loaded in part is not taken for
//! a volume, and the load can be repeated.

mod quotas;
mod versions;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_cluster::change::records::ChangeRecords;
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_meta::owners::MapView;
use kestrel_meta::tokens;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{ObjectId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{
    NodeId, PlacementMap, WORKERS_MAX, history_share_of, maker_of_object,
};
use kestrel_types::stat::{DirStat, ObjStat};

use super::load::{Header, load};
use super::{Counts, DumpError};
use crate::check::CheckError;
use crate::cut::{self, CutError};
use crate::info::InfoError;
use crate::merge::history::add_up_history;
use crate::merge::{Highest, add_up};
use crate::rows::{
    CLOCK, DirId, INODES, OBJECTS, Row, Rows, USAGE, decode_ceiling, delete, encode_ceiling, get,
    put,
};
use crate::usage::clones_with_records;

/// Changes committed together.
const BATCH: usize = 4096;

/// Tables with rows that are the same on one node and on several, and only lie elsewhere.
const OWNED: [Table; 8] = [
    Table::Entry,
    Table::DirId,
    Table::Subdir,
    Table::Link,
    Table::Chunk,
    Table::Xattr,
    Table::Sweep,
    Table::Clone,
];

/// Record of a node, in table `system`, while it is loaded into.
pub const LOADING: &[u8] = b"loading";

/// The nodes of a cluster, all of them and none in use.
pub type TargetNodes<'a> = BTreeMap<NodeId, &'a dyn Engine>;

/// Loads a dump into the volume of these nodes, which holds no files. Needs room for a copy of the
/// metadata in a scratch directory below `parent`, which goes away; `reserve_bytes` stay free
/// there.
///
/// # Errors
/// As for [`load`]; if not all nodes of the table are there. What was loaded then is no volume, and
/// the load can be repeated.
pub fn load_into(
    input: impl BufRead,
    nodes: &TargetNodes<'_>,
    placement: &PlacementMap,
    scratch: (&Path, u64),
    progress: &mut dyn FnMut(u64),
) -> Result<(Header, Counts), DumpError> {
    let mut spread = Spread::new(nodes, placement)?;
    spread.refuse_files()?;
    let (parent, reserve_bytes) = scratch;
    let failed = |why: CutError| DumpError::Mismatch(why.to_string());
    // However this ends, the rows are let go before their directory goes.
    let made = cut::empty(parent, reserve_bytes).map_err(failed)?;
    let _scratch = made.1;
    let rows = made.0;
    let done = load(input, &rows, progress)?;
    match clones_with_records(&rows).map_err(damaged)? {
        0 => {}
        count => return Err(DumpError::UnfinishedClones(count)),
    }
    add_up_history(&rows).map_err(damaged)?;
    spread.clear()?;
    spread.fill(&rows, progress)?;
    Ok(done)
}

/// Makes sure that no node hands out an object number that the store already uses, one that is
/// added later neither.
///
/// # Errors
/// If the store cannot be listed or an engine fails.
pub fn keep_clear_of(nodes: &TargetNodes<'_>, store: &dyn BlockStore) -> Result<(), CheckError> {
    let mut highest: BTreeMap<NodeId, u64> = BTreeMap::new();
    for page in list_all(store) {
        for info in page?.objects {
            let (counter, maker) = maker_of_object(info.object);
            let highest = highest.entry(maker).or_default();
            *highest = counter.max(*highest);
        }
    }
    for (node, engine) in nodes {
        if let Some(counter) = highest.get(node) {
            raise(*engine, OBJECTS, counter.saturating_add(1))?;
            engine.sync()?;
        }
    }
    let absent =
        highest.iter().filter(|(maker, _)| is_absent(nodes, **maker)).map(|(_, counter)| *counter);
    if let Some(counter) = absent.max() {
        for engine in nodes.values() {
            raise(*engine, OBJECTS, counter.saturating_add(1))?;
            engine.sync()?;
        }
    }
    Ok(())
}

/// Whether a node may be added that makes numbers as this maker did. No node has number 0.
fn is_absent(nodes: &TargetNodes<'_>, maker: NodeId) -> bool {
    maker != 0 && !nodes.contains_key(&maker)
}

/// Makes a counter of a node stand at `least` or higher.
fn raise(engine: &dyn Engine, name: &[u8], least: u64) -> Result<(), EngineError> {
    let stands =
        get(engine, Key::new(Table::System, 0, name))?.and_then(|row| decode_ceiling(&row).ok());
    if stands.unwrap_or(0) >= least {
        return Ok(());
    }
    engine
        .commit(BatchKind::Growing, vec![put(Table::System, 0, name, encode_ceiling(least))])
        .map(drop)
}

struct Spread<'a> {
    nodes: &'a TargetNodes<'a>,
    /// The placement map, as one of them sees it.
    view: MapView,
    members: Vec<NodeId>,
    batches: BTreeMap<NodeId, Vec<Mutation>>,
}

impl<'a> Spread<'a> {
    fn new(nodes: &'a TargetNodes<'a>, placement: &PlacementMap) -> Result<Self, DumpError> {
        let members: Vec<NodeId> = placement.map.members().iter().map(|member| member.id).collect();
        let refused = |why: &str| DumpError::Mismatch(why.to_string());
        if !members.iter().eq(nodes.keys()) {
            return Err(refused("not all nodes of the volume are there"));
        }
        let first = placement.serving().next().map(|member| member.id);
        let first = first.ok_or_else(|| refused("the volume has no nodes"))?;
        let view = MapView::new(first, placement.clone()).map_err(|why| refused(&why.reason))?;
        Ok(Self { nodes, view, members, batches: BTreeMap::new() })
    }

    fn engine(&self, node: NodeId) -> Result<&'a dyn Engine, DumpError> {
        let found = self.nodes.get(&node).copied();
        found.ok_or_else(|| {
            DumpError::Mismatch(format!("a row belongs to node {node}, which there is not"))
        })
    }

    /// The node that has the root's entry, and its key.
    fn root(&self) -> (NodeId, Key) {
        (self.view.owner(Table::Entry, 0, b""), Key::new(Table::Entry, 0, b""))
    }

    /// A volume to load into has a root directory and nothing in it, or was not loaded to the end:
    /// it has no root, and all nodes have a record of that.
    fn refuse_files(&self) -> Result<(), DumpError> {
        for engine in self.nodes.values() {
            let records =
                ChangeRecords::read(*engine).map_err(|why| DumpError::Mismatch(why.to_string()))?;
            if let Some(node) = records.expected.keys().next() {
                // Its token has where its counters begin.
                return Err(DumpError::Mismatch(format!(
                    "node {node} was announced and has not joined; before a dump is loaded let it \
                     join, or take it out with \
                     `kestrel cluster remove-node`"
                )));
            }
        }
        let (owner, root) = self.root();
        let mut loading = get(self.engine(owner)?, root)?.is_none();
        for engine in self.nodes.values() {
            loading &= get(*engine, Key::new(Table::System, 0, LOADING))?.is_some();
        }
        if loading {
            return Ok(());
        }
        for engine in self.nodes.values() {
            for row in Rows::new(*engine, Table::Entry) {
                if row?.0.id >= ROOT {
                    return Err(DumpError::NotEmpty);
                }
            }
            if Rows::new(*engine, Table::Link).next().transpose()?.is_some() {
                return Err(DumpError::NotEmpty);
            }
        }
        Ok(())
    }

    /// Takes away what forming the cluster wrote, but for each node's records of itself and the
    /// others.
    fn clear(&mut self) -> Result<(), DumpError> {
        let (owner, root) = self.root();
        for engine in self.nodes.values() {
            engine.commit(BatchKind::Growing, vec![put(Table::System, 0, LOADING, [1].into())])?;
            engine.sync()?;
        }
        let engine = self.engine(owner)?;
        engine.commit(BatchKind::Freeing, vec![delete(&root)])?;
        engine.sync()?;
        for (node, engine) in self.nodes {
            for table in Table::ALL {
                for row in Rows::new(*engine, table) {
                    let (key, _) = row?;
                    // Figures of a clean stop are not those of what is loaded.
                    if table != Table::System || *key.suffix == *USAGE {
                        self.send(*node, delete(&key))?;
                    }
                }
            }
        }
        self.flush()
    }

    fn fill(&mut self, from: &dyn Engine, progress: &mut dyn FnMut(u64)) -> Result<(), DumpError> {
        let mut highest = Highest::default();
        let (owner, root) = self.root();
        let (mut last, mut sent) = (None, 0);
        for table in OWNED {
            let mut rows = 0;
            for row in Rows::new(from, table) {
                let (key, value) = row?;
                highest.add(&key, &value);
                (rows, sent) = (rows + 1, sent + 1);
                if sent % BATCH as u64 == 0 {
                    progress(sent);
                }
                if key == root {
                    last = Some(value);
                    continue;
                }
                if let Some((home, moved)) = self.moved(&key, &value) {
                    self.send(home, moved)?;
                }
                let to = self.view.owner(table, key.id, &key.suffix);
                self.send(to, Mutation { key, value: Some(value) })?;
            }
            self.flush()?;
            self.count(table, rows - u64::from(table == Table::Entry && last.is_some()))?;
        }
        let referenced = self.history(from, &mut highest)?;
        self.shares(from, &referenced, &mut highest)?;
        self.snapshots(from)?;
        self.feeds(from)?;
        self.quotas(from)?;
        for row in Rows::new(from, Table::Reap) {
            let (key, value) = row?;
            if let Ok(object) = <[u8; 8]>::try_from(&*key.suffix).map(u64::from_be_bytes) {
                self.send(self.account_node(object), Mutation { key, value: Some(value) })?;
            }
        }
        // Every node has all of them.
        for row in Rows::new(from, Table::System) {
            let (key, value) = row?;
            if tokens::is_one(&key.suffix) {
                for node in self.nodes.keys().copied().collect::<Vec<_>>() {
                    self.send(node, Mutation { key: key.clone(), value: Some(value.clone()) })?;
                }
            }
        }
        self.flush()?;
        self.counters(from, &highest)?;
        for engine in self.nodes.values() {
            engine.sync()?;
        }
        let Some(value) = last else { return Ok(()) };
        let engine = self.engine(owner)?;
        engine.commit(BatchKind::Growing, vec![Mutation { key: root, value: Some(value) }])?;
        engine.sync()?;
        for engine in self.nodes.values() {
            engine
                .commit(BatchKind::Freeing, vec![delete(&Key::new(Table::System, 0, LOADING))])?;
            engine.sync()?;
        }
        Ok(())
    }

    /// The row with the directory and name of a file, if its name belongs to another node than its
    /// number, and the row's owner.
    fn moved(&self, key: &Key, value: &[u8]) -> Option<(NodeId, Mutation)> {
        if key.table != Table::Entry {
            return None;
        }
        let Ok(Entry::Inode(inode)) = Entry::decode(value) else { return None };
        let home = self.view.home_of(inode.ino);
        if inode.kind == Kind::Dir || home == self.view.owner(Table::Entry, key.id, &key.suffix) {
            return None;
        }
        let dir_id = DirId { parent: key.id, name: key.suffix.clone() };
        Some((home, put(Table::Moved, inode.ino, &[], dir_id.encode())))
    }

    /// The node that has the rows of an object.
    fn account_node(&self, object: ObjectId) -> NodeId {
        self.members[usize::try_from(object % self.members.len() as u64).unwrap_or(0)]
    }

    /// Shares, added up, are one node's: those of a directory where it is at home. What history
    /// refers to (`referenced`) is counted where the history is.
    fn shares(
        &mut self,
        from: &dyn Engine,
        referenced: &BTreeMap<(ObjectId, NodeId), i64>,
        highest: &mut Highest,
    ) -> Result<(), DumpError> {
        let mut sent = Vec::new();
        add_up(from, Table::DirStat, &mut |dir, rows: &[Row]| {
            let mut total = DirStat::default();
            for (_, value) in rows {
                total.merge(&DirStat::decode(value)?);
            }
            let node = self.view.home_of(dir);
            sent.push((node, put(Table::DirStat, dir, &first_share(node), total.encode())));
            self.send_all(&mut sent)
        })
        .map_err(damaged)?;
        add_up(from, Table::ObjStat, &mut |object, rows: &[Row]| {
            let mut total = ObjStat::default();
            for (_, value) in rows {
                total.referenced =
                    total.referenced.saturating_add(ObjStat::decode(value)?.referenced);
            }
            highest.object(object);
            for ((_, node), bytes) in referenced.range((object, 0)..=(object, NodeId::MAX)) {
                total.referenced = total.referenced.saturating_sub(*bytes);
                let (share, history) =
                    (history_share_of(*node).to_be_bytes(), ObjStat { referenced: *bytes });
                sent.push((*node, put(Table::ObjStat, object, &share, history.encode())));
            }
            let node = self.account_node(object);
            sent.push((node, put(Table::ObjStat, object, &first_share(node), total.encode())));
            self.send_all(&mut sent)
        })
        .map_err(damaged)
    }

    /// Every node counts on above what it has made up, whichever volume it did that for, and above
    /// what nodes made up that are not there.
    fn counters(&self, from: &dyn Engine, highest: &Highest) -> Result<(), DumpError> {
        let clock =
            get(from, Key::new(Table::System, 0, CLOCK))?.and_then(|row| decode_ceiling(&row).ok());
        for (node, engine) in self.nodes {
            if let Some([inodes, objects]) = highest.counters.get(node) {
                raise(*engine, INODES, inodes.saturating_add(1))?;
                raise(*engine, OBJECTS, objects.saturating_add(1))?;
            }
            raise(*engine, CLOCK, clock.unwrap_or(0))?;
        }
        let absent = highest.counters.iter().filter(|(maker, _)| is_absent(self.nodes, **maker));
        let absent =
            absent.map(|(_, counters)| *counters).reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        if let Some([inodes, objects]) = absent {
            for engine in self.nodes.values() {
                raise(*engine, INODES, inodes.saturating_add(1))?;
                raise(*engine, OBJECTS, objects.saturating_add(1))?;
            }
        }
        Ok(())
    }

    /// As many rows lie at the nodes as were sent.
    fn count(&self, table: Table, expected: u64) -> Result<(), DumpError> {
        let mut found = 0;
        for engine in self.nodes.values() {
            for row in Rows::new(*engine, table) {
                row?;
                found += 1;
            }
        }
        if found == expected {
            return Ok(());
        }
        Err(DumpError::Mismatch(format!(
            "table {table:?} has {found} rows at all nodes, the dump {expected}"
        )))
    }

    fn send_all(&mut self, changes: &mut Vec<(NodeId, Mutation)>) -> Result<(), InfoError> {
        for (node, change) in changes.drain(..) {
            self.add(node, change)?;
        }
        Ok(())
    }

    fn send(&mut self, node: NodeId, change: Mutation) -> Result<(), DumpError> {
        self.engine(node)?;
        Ok(self.add(node, change)?)
    }

    /// For a node that there is.
    fn add(&mut self, node: NodeId, change: Mutation) -> Result<(), EngineError> {
        let batch = self.batches.entry(node).or_default();
        batch.push(change);
        if batch.len() < BATCH {
            return Ok(());
        }
        let batch = std::mem::take(batch);
        self.nodes
            .get(&node)
            .map_or(Ok(()), |engine| engine.commit(BatchKind::Growing, batch).map(drop))
    }

    fn flush(&mut self) -> Result<(), DumpError> {
        for (node, batch) in std::mem::take(&mut self.batches) {
            if !batch.is_empty() {
                self.engine(node)?.commit(BatchKind::Growing, batch)?;
            }
        }
        Ok(())
    }
}

fn damaged(why: InfoError) -> DumpError {
    match why {
        InfoError::Engine(why) => DumpError::Engine(why),
        why => DumpError::Mismatch(why.to_string()),
    }
}

/// A node's first share.
fn first_share(node: NodeId) -> [u8; 2] {
    u16::try_from(node as usize * WORKERS_MAX).unwrap_or(0).to_be_bytes()
}
