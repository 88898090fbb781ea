//! The rows of a version, as an engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_engine::row_cache::RowCache;
use kestrel_engine::{
    BatchKind, Engine, EngineError, EngineStats, Epoch, Mutation, OnDurable, Row, Tap, TapGuard,
    VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::Mutex;

use super::{VersionManifest, VersionPlace, named, tree_of};
use crate::log::RowChanges;
use crate::tree::{Loaded, Tree};

/// Reads a version from the store. Any number of processes may, beside whatever process has the
/// volume open.
///
/// Tables never change. What a node commits about itself while it serves the version (ceilings of
/// counters) stays in the memory of this process and ends with it.
pub struct VersionEngine {
    tree: Tree,
    row_cache: RowCache,
    /// Of the last commit.
    position: Mutex<Position>,
    name: String,
    /// When an error was last told in the log.
    told: Mutex<Option<Instant>>,
}

/// Time between two errors in the log.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl VersionEngine {
    /// Reads nothing yet. Rows and blocks of tables take `memory_bytes`, about.
    ///
    /// # Errors
    /// Those of the versions below, of a version that a job made.
    pub fn new(
        place: &VersionPlace,
        manifest: &VersionManifest,
        memory_bytes: u64,
    ) -> Result<Self, EngineError> {
        let half = memory_bytes / 2;
        let rows = usize::try_from(half).unwrap_or(usize::MAX);
        Ok(Self {
            tree: tree_of(place, manifest, half)?,
            row_cache: RowCache::new(0, rows),
            position: Mutex::new(0),
            name: manifest.name.clone(),
            told: Mutex::new(None),
        })
    }

    /// Reads the tables into memory, as far as there is room, so that what is asked later costs no
    /// request to the store.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn load(&self) -> Result<Loaded, EngineError> {
        self.tree.load().map_err(|why| named(&self.name, why))
    }

    /// Tells an error in the log, for a mount shows only its number.
    fn tell<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        result.map_err(|why| named(&self.name, why)).inspect_err(|why| {
            let mut told = self.told.lock();
            if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                *told = Some(Instant::now());
                log::error!("{why}");
            }
        })
    }
}

impl Engine for VersionEngine {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        // Nobody writes: there is no earlier holder to keep out.
        Ok(self)
    }

    fn epoch(&self) -> Epoch {
        Epoch(1)
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        self.tell(self.row_cache.get_many(&self.tree, keys, visit).map(drop))
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.tell(self.row_cache.scan(&self.tree, (table, id), after, visit))
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.tell(self.row_cache.scan_table(&self.tree, table, from, visit))
    }

    fn hint_new(&self, table: Table, id: u64) {
        self.row_cache.hint_new(table, id);
    }

    fn commit(&self, _kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        let mut position = self.position.lock();
        *position += 1;
        let mut changes = RowChanges::default();
        for Mutation { key, value } in &mutations {
            let mut bytes = Vec::new();
            key.borrow().encode_into(&mut bytes);
            changes.insert(bytes.into(), value.clone());
        }
        self.tree.view().active.apply(changes);
        self.row_cache.apply(*position, &mutations);
        self.row_cache.stored(*position);
        Ok(*position)
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
        let _position = self.position.lock();
        self.row_cache.tap(tap)
    }

    fn stats(&self) -> EngineStats {
        self.row_cache.stats()
    }
}
