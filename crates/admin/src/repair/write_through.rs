//! The rows of several nodes put together, as an engine that also sends its changes to the nodes
//! that own the rows.
//!
//! A change of rows of one node is one batch of that node's log, and carried out or not. One of
//! several nodes first writes everywhere and then deletes, with all logs synced in between:
//! whatever part a crash leaves of it, what was to be deleted is there until what takes its place
//! is durable, and the next check finds what is there twice.
//!
//! Before the first change come two things. The nodes' figures of a clean stop go, as they would
//! not be those of what is repaired. And changes that a node had agreed to are carried out if their
//! transaction was decided, as they are in the whole: later they would undo repairs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_cluster::{Prepared, decode_prepared};
use kestrel_engine::{BatchKind, Engine, EngineError, Layer, Mutation};
use kestrel_meta::locks::TxnId;
use kestrel_meta::owners::MapView;
use kestrel_meta::txn::{RECORDS_ID, TxnKey};
use kestrel_types::ids::{FIRST_INODE, InodeId, Position};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{COUNTERS_MAX, NodeId, id_in};
use kestrel_types::snapshot::RECORD_PREFIX;

use crate::dump::spread::TargetNodes;
use crate::rows::{CLOCK, INODES, Rows, USAGE, decode_ceiling, delete, encode_ceiling, get, put};

/// See the module's header.
pub struct WriteThrough<'a> {
    whole: &'a dyn Engine,
    nodes: &'a TargetNodes<'a>,
    view: MapView,
    begun: AtomicBool,
}

fn refused(why: impl Into<String>) -> EngineError {
    EngineError::Refused(why.into())
}

impl<'a> WriteThrough<'a> {
    /// The rows of all nodes, put together in `whole`, and the nodes.
    pub fn new(whole: &'a dyn Engine, nodes: &'a TargetNodes<'a>, view: MapView) -> Self {
        Self { whole, nodes, view, begun: AtomicBool::new(false) }
    }

    /// The placement map.
    pub fn view(&self) -> &MapView {
        &self.view
    }

    /// The rows of one node.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn node(&self, node: NodeId) -> Result<&'a dyn Engine, EngineError> {
        let found = self.nodes.get(&node).copied();
        found.ok_or_else(|| refused(format!("a row belongs to node {node}, which there is not")))
    }

    /// Does what comes before the first change.
    ///
    /// # Errors
    /// Those of the engines.
    pub fn begin(&self) -> Result<(), EngineError> {
        if self.begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        for engine in self.nodes.values() {
            engine.commit(BatchKind::Freeing, vec![delete(&Key::new(Table::System, 0, USAGE))])?;
            for (txn, prepared) in prepared(*engine)? {
                let leader = self.nodes.get(&txn.node);
                let decided = leader.map(|leader| get(*leader, TxnKey::Decided(txn).encode()));
                if decided.transpose()?.flatten().is_some() {
                    let mut rows = prepared.mutations;
                    rows.push(delete(&TxnKey::Prepared(txn).encode()));
                    engine.commit(BatchKind::Freeing, rows)?;
                }
            }
        }
        Engine::sync(self)?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// An inode number that was never used, for something of this name: one of the node that owns
    /// the name.
    ///
    /// # Errors
    /// If the node has no more, and those of its engine.
    pub fn new_number(&self, parent: InodeId, name: &[u8]) -> Result<InodeId, EngineError> {
        self.begin()?;
        let owner = self.view.owner_of_entry(parent, name);
        let engine = self.node(owner)?;
        let stored = get(engine, Key::new(Table::System, 0, INODES))?;
        let counter = stored.and_then(|bytes| decode_ceiling(&bytes).ok()).unwrap_or(FIRST_INODE);
        if counter >= COUNTERS_MAX - 1 {
            return Err(refused(format!("node {owner} has used up its inode numbers")));
        }
        let raised = put(Table::System, 0, INODES, encode_ceiling(counter + 1));
        engine.commit(BatchKind::Freeing, vec![raised])?;
        // Rows with this number go to logs of others too.
        engine.sync()?;
        Ok(id_in(counter, owner, self.view.placement.slot_of(parent, name)))
    }

    /// The nodes that a change concerns: the one that owns the row, or all if the key alone does
    /// not decide it.
    fn takers(&self, change: &Mutation) -> Result<Vec<NodeId>, EngineError> {
        let Key { table, id, suffix } = &change.key;
        match table {
            Table::System if **suffix == *CLOCK => self.behind(change),
            // Every node that serves has them.
            Table::System if suffix.starts_with(RECORD_PREFIX) => Ok(self.view.serving().collect()),
            Table::System if **suffix != *USAGE => {
                Err(refused("a repair of a record that each node has for itself"))
            }
            Table::DirStat | Table::ObjStat if suffix.len() == 2 => {
                Ok(vec![self.view.owner(*table, *id, suffix)])
            }
            Table::System | Table::Txn | Table::Reap | Table::DirStat | Table::ObjStat => {
                Ok(self.nodes.keys().copied().collect())
            }
            _ => Ok(vec![self.view.owner(*table, *id, suffix)]),
        }
    }

    /// The nodes with clocks that stand below the value that this record gets.
    fn behind(&self, change: &Mutation) -> Result<Vec<NodeId>, EngineError> {
        let ceiling = |row: Option<&[u8]>| row.and_then(|row| decode_ceiling(row).ok());
        let Some(least) = ceiling(change.value.as_deref()) else {
            return Err(refused("a repair of clocks without a time"));
        };
        let mut behind = Vec::new();
        for (node, engine) in self.nodes {
            let stands = get(*engine, change.key.clone())?;
            if ceiling(stands.as_deref()).is_none_or(|stands| stands < least) {
                behind.push(*node);
            }
        }
        Ok(behind)
    }
}

/// What a node has agreed to change.
fn prepared(engine: &dyn Engine) -> Result<Vec<(TxnId, Prepared)>, EngineError> {
    let mut found = Vec::new();
    for row in Rows::from(engine, Table::Txn, RECORDS_ID, &[]) {
        let (key, value) = row?;
        if let Some(TxnKey::Prepared(txn)) = TxnKey::decode(key.id, &key.suffix)
            && let Ok(prepared) = decode_prepared(&value)
        {
            found.push((txn, prepared));
        }
    }
    Ok(found)
}

impl Layer for WriteThrough<'_> {
    fn below(&self) -> &dyn Engine {
        self.whole
    }

    fn hint_new(&self, _table: Table, _id: u64) {}

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.begin()?;
        // The last change of a row counts.
        let last: BTreeMap<&Key, &Mutation> =
            mutations.iter().map(|mutation| (&mutation.key, mutation)).collect();
        let mut batches: BTreeMap<NodeId, Vec<Mutation>> = BTreeMap::new();
        for mutation in last.into_values() {
            for node in self.takers(mutation)? {
                // Nothing is changed if there is no such node.
                self.node(node)?;
                batches.entry(node).or_default().push(mutation.clone());
            }
        }
        if batches.len() > 1 {
            for (node, batch) in &mut batches {
                let writes: Vec<Mutation> =
                    batch.extract_if(.., |mutation| mutation.value.is_some()).collect();
                if !writes.is_empty() {
                    self.node(*node)?.commit(kind, writes)?;
                }
            }
            batches.retain(|_, deletes| !deletes.is_empty());
            if !batches.is_empty() {
                Engine::sync(self)?;
            }
        }
        for (node, batch) in batches {
            self.node(node)?.commit(kind, batch)?;
        }
        self.whole.commit(kind, mutations)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.nodes.values().try_for_each(|engine| engine.sync())
    }
}
