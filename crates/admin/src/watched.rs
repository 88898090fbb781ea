//! An engine whose long scans somebody watches: to stop them, or to slow them down.

use kestrel_meta::engine::{
    BatchKind, Engine, EngineError, EngineStats, Mutation, OnDurable, Row, Tap, TapGuard, VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};

/// Passes everything on, and asks before every scan whether to go on. [`crate::rows::Rows`] scans page by page, so whoever
/// walks a table through it is asked every few thousand rows.
pub struct Watched<'a> {
    engine: &'a dyn Engine,
    go_on: &'a (dyn Fn() -> Result<(), EngineError> + Sync),
}

impl<'a> Watched<'a> {
    /// `go_on` may sleep; its error ends the walk.
    pub fn new(engine: &'a dyn Engine, go_on: &'a (dyn Fn() -> Result<(), EngineError> + Sync)) -> Self {
        Self { engine, go_on }
    }
}

impl Engine for Watched<'_> {
    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.engine.get_many(keys, visit)
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        (self.go_on)()?;
        self.engine.scan(table, id, after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> std::ops::ControlFlow<()>,
    ) -> Result<(), EngineError> {
        (self.go_on)()?;
        self.engine.scan_table(table, from, visit)
    }

    fn hint_new(&self, table: Table, id: u64) {
        self.engine.hint_new(table, id);
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.engine.commit(kind, mutations)
    }

    fn durable(&self) -> Position {
        self.engine.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        self.engine.on_durable(position, done);
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.engine.sync()
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        self.engine.tap(tap)
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
