//! The rows of all nodes as one engine to read from, as they are while they are read: for what
//! looks at a few of them.

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_admin::rows::Row as OwnedRow;
use kestrel_engine::{
    BatchKind, Engine, EngineError, EngineStats, Epoch, Mutation, OnDurable, Row, Tap, TapGuard,
    VisitRow,
};
use kestrel_meta::owners::MapView;
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;

use super::ClusterNodes;
use super::rows::Pages;

/// See the module's header.
pub struct NodesEngine<'a> {
    nodes: &'a dyn ClusterNodes,
    table: MapView,
}

fn failed(why: String) -> EngineError {
    EngineError::Io(why)
}

impl<'a> NodesEngine<'a> {
    /// An engine over these nodes.
    ///
    /// # Errors
    /// If their table makes no cluster.
    pub fn new(nodes: &'a dyn ClusterNodes) -> Result<Self, String> {
        let placement = nodes.placement().clone();
        let first = placement.map.members().first().map_or(0, |member| member.id);
        let table = MapView::new(first, placement).map_err(|why| why.reason.to_string())?;
        Ok(Self { nodes, table })
    }

    /// The nodes that may have rows of a table, or of one id of it.
    fn owners(&self, table: Table, id: Option<u64>) -> Vec<NodeId> {
        match (table, id) {
            (
                Table::DirId
                | Table::Link
                | Table::Chunk
                | Table::Xattr
                | Table::Moved
                | Table::Sweep,
                Some(id),
            ) => {
                vec![self.table.home_of(id)]
            }
            _ => self.table.nodes().collect(),
        }
    }

    /// Rows of several nodes in the order of their keys.
    fn merged(
        &self,
        table: Table,
        from: Option<&Key>,
        id: Option<u64>,
        visit: &mut dyn FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let owners = self.owners(table, id);
        let pages = |node: &NodeId| Pages::of(self.nodes, *node, table, from, id);
        let mut sources: Vec<Pages<'_>> = owners.iter().map(pages).collect();
        let of_one_node = matches!(table, Table::System | Table::Txn | Table::Reap);
        let next = |source: &mut Pages<'_>| source.next().transpose().map_err(failed);
        let mut heads: Vec<Option<OwnedRow>> =
            sources.iter_mut().map(next).collect::<Result<_, _>>()?;
        loop {
            let first = heads
                .iter()
                .enumerate()
                .filter_map(|(at, head)| Some((&head.as_ref()?.0, at)))
                .min();
            let Some(at) = first.map(|(_, at)| at) else { return Ok(()) };
            let Some((key, value)) = std::mem::replace(&mut heads[at], next(&mut sources[at])?)
            else {
                return Ok(());
            };
            // A node may have rows on their way to it, or from it, while the table changes.
            let counts = of_one_node || self.table.owner(table, key.id, &key.suffix) == owners[at];
            if counts && visit(&key, &value).is_break() {
                return Ok(());
            }
        }
    }
}

impl Engine for NodesEngine<'_> {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Err(EngineError::Refused("rows of several nodes are only read here".into()))
    }

    fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        for (at, key) in keys.iter().enumerate() {
            let owner = self.table.owner(key.table, key.id, key.suffix);
            let key = KeyRef::to_owned(*key);
            let row = Pages::one(self.nodes, owner, &key).next();
            let row = row.transpose().map_err(failed)?.filter(|(found, _)| *found == key);
            visit(at, Row { value: row.as_ref().map(|(_, value)| &**value), changed_at: 0 });
        }
        Ok(())
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        let from = Key::new(table, id, after.unwrap_or_default());
        self.merged(table, Some(&from), Some(id), &mut |key, value| {
            if after.is_some_and(|after| &*key.suffix <= after) {
                return ControlFlow::Continue(());
            }
            visit(&key.suffix, value, 0)
        })?;
        Ok(0)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let from = from.map(KeyRef::to_owned);
        self.merged(table, from.as_ref(), None, &mut |key, value| visit(key.borrow(), value))
    }

    fn hint_new(&self, _table: Table, _id: u64) {}

    fn commit(&self, _kind: BatchKind, _mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        Err(EngineError::Refused("rows of several nodes are only read here".into()))
    }

    fn durable(&self) -> Position {
        0
    }

    fn on_durable(&self, _position: Position, done: OnDurable) {
        done(Ok(()));
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn tap(&self, _tap: Tap) -> TapGuard {
        TapGuard::new(Box::new(|| ()))
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
