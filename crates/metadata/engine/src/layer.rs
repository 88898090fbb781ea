//! Engines over other engines.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};

use super::{
    BatchKind, Engine, EngineError, EngineStats, Epoch, Mutation, OnDurable, Row, Tap, TapGuard,
    VisitRow,
};

/// An engine over another one, which does all that it does not do itself: methods are those of
/// [`Engine`], each passed on unless it is written anew.
pub trait Layer: Send + Sync {
    /// The engine below.
    fn below(&self) -> &dyn Engine;

    /// [`Engine::claim`]. Not passed on, as the handle would be one of the engine below.
    ///
    /// # Errors
    /// As there; `Refused` unless it is written anew.
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Err(EngineError::Refused(
            "metadata engine: a view of another engine cannot be claimed".into(),
        ))
    }

    /// [`Engine::epoch`].
    fn epoch(&self) -> Epoch {
        self.below().epoch()
    }

    /// [`Engine::is_shared`].
    fn is_shared(&self) -> bool {
        self.below().is_shared()
    }

    /// [`Engine::silence`].
    fn silence(&self) -> Duration {
        self.below().silence()
    }

    /// [`Engine::confirmations`].
    fn confirmations(&self) -> u64 {
        self.below().confirmations()
    }

    /// [`Engine::get_many`].
    ///
    /// # Errors
    /// As there.
    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.below().get_many(keys, visit)
    }

    /// [`Engine::scan`].
    ///
    /// # Errors
    /// As there.
    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.below().scan(table, id, after, visit)
    }

    /// [`Engine::scan_table`].
    ///
    /// # Errors
    /// As there.
    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.below().scan_table(table, from, visit)
    }

    /// [`Engine::hint_new`].
    fn hint_new(&self, table: Table, id: u64) {
        self.below().hint_new(table, id);
    }

    /// [`Engine::commit`].
    ///
    /// # Errors
    /// As there.
    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.below().commit(kind, mutations)
    }

    /// [`Engine::sync`].
    ///
    /// # Errors
    /// As there.
    fn sync(&self) -> Result<(), EngineError> {
        self.below().sync()
    }

    /// [`Engine::on_durable`].
    fn on_durable(&self, position: Position, done: OnDurable) {
        self.below().on_durable(position, done);
    }
}

impl<L: Layer> Engine for L {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Layer::claim(self)
    }

    fn epoch(&self) -> Epoch {
        Layer::epoch(self)
    }

    fn is_shared(&self) -> bool {
        Layer::is_shared(self)
    }

    fn silence(&self) -> Duration {
        Layer::silence(self)
    }

    fn confirmations(&self) -> u64 {
        Layer::confirmations(self)
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        Layer::get_many(self, keys, visit)
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        Layer::scan(self, table, id, after, visit)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        Layer::scan_table(self, table, from, visit)
    }

    fn hint_new(&self, table: Table, id: u64) {
        Layer::hint_new(self, table, id);
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        Layer::commit(self, kind, mutations)
    }

    fn durable(&self) -> Position {
        self.below().durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        Layer::on_durable(self, position, done);
    }

    fn sync(&self) -> Result<(), EngineError> {
        Layer::sync(self)
    }

    fn upload(&self, position: Position) -> Result<(), EngineError> {
        self.below().upload(position)
    }

    fn settle(&self) -> Result<(), EngineError> {
        Layer::sync(self)?;
        self.below().settle()
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        self.below().tap(tap)
    }

    fn stats(&self) -> EngineStats {
        self.below().stats()
    }
}
