//! An engine with long scans that a caller watches: to stop them, or to slow them down.

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};

use crate::{Engine, EngineError, Layer, VisitRow};

/// Passes everything on, and checks before every scan whether to go on. `kestrel_admin::rows::Rows`
/// scans page by page, so a walk of a table through it is checked every few thousand rows.
pub struct CancellableScan<'a> {
    engine: &'a dyn Engine,
    go_on: &'a (dyn Fn() -> Result<(), EngineError> + Sync),
}

impl<'a> CancellableScan<'a> {
    /// `go_on` may sleep; its error ends the walk.
    pub fn new(
        engine: &'a dyn Engine,
        go_on: &'a (dyn Fn() -> Result<(), EngineError> + Sync),
    ) -> Self {
        Self { engine, go_on }
    }
}

impl Layer for CancellableScan<'_> {
    fn below(&self) -> &dyn Engine {
        self.engine
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
}
