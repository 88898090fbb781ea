//! The rows of one moment, as an engine that nothing can be committed to.

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::row_cache::{Cursor, RowCache, RowStore, Sorted};
use kestrel_engine::{
    BatchKind, Engine, EngineError, EngineStats, Epoch, Mutation, OnDurable, Row, Tap, TapGuard,
    VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};

use crate::tree::{Tree, View};

/// The rows of a node at one moment: a prefix of what its writer has committed. They stay what they
/// are. Tables of a moment that is long past may be gone from the store; then reads fail.
pub struct FollowedRows {
    below: Below,
    row_cache: RowCache,
    epoch: u64,
}

/// Log and tables at the moment.
struct Below {
    tree: Arc<Tree>,
    view: View,
}

impl Sorted for Below {
    fn range(&self, from: &[u8], to: &[u8]) -> Box<dyn Cursor + '_> {
        self.tree.range_in(&self.view, (from, to))
    }
}

impl RowStore for Below {
    fn get_many(
        &self,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        self.tree.get_many_in(&self.view, keys, visit)
    }
}

impl FollowedRows {
    pub(super) fn new(
        tree: Arc<Tree>,
        view: View,
        (position, epoch): (Position, u64),
        row_bytes: usize,
    ) -> Self {
        let row_cache = RowCache::new(position, row_bytes);
        Self { below: Below { tree, view }, row_cache, epoch }
    }

    fn refused() -> EngineError {
        EngineError::Refused(
            "metadata in a bucket: this process follows another one, which writes: make changes \
             there, or mount the volume without --read-only"
                .into(),
        )
    }
}

impl Engine for FollowedRows {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Err(Self::refused())
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.row_cache.get_many(&self.below, keys, visit).map(drop)
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.row_cache.scan(&self.below, (table, id), after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.row_cache.scan_table(&self.below, table, from, visit)
    }

    fn hint_new(&self, _table: Table, _id: u64) {}

    fn commit(&self, _kind: BatchKind, _mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        Err(Self::refused())
    }

    fn durable(&self) -> Position {
        self.row_cache.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        self.row_cache.on_durable(position, done);
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        self.row_cache.tap(tap)
    }

    fn stats(&self) -> EngineStats {
        let View { frozen, runs, .. } = &self.below.view;
        let log: u64 = frozen.iter().map(|layer| layer.bytes() as u64).sum();
        let tables = runs.iter().flat_map(|run| run.iter());
        let memory = self.row_cache.stats();
        EngineStats {
            memory_bytes: memory.memory_bytes + log,
            run_disk_bytes: tables.map(|table| table.record.bytes).sum(),
            ..memory
        }
    }
}
