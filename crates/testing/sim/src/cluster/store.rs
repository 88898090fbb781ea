//! A process's way to a store that others can claim: as it is while the store is its own, and as it
//! is when another process has claimed that.
//!
//! The rows a process has in memory stay as they were, even if its successor writes. What it
//! commits then is refused at once, or goes to memory and never gets through, as with a database
//! that answers later; and what it had committed before may be in without an acknowledgement.

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{
    BatchKind, Engine, EngineError, Epoch, Layer, Mutation, OnDurable, Row, VisitRow,
};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::Mutex;

/// Positions of what never gets through are above those of what may.
const NEVER_IN: Position = 1 << 40;

/// What becomes of a process when another one claims its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fate {
    /// What it commits from then on is refused; if not, it is taken and never gets through.
    pub refused: bool,
    /// Commits from before are never acknowledged.
    pub loses_acks: bool,
    /// It reads ranges from the store, as it does what it has not in memory.
    pub scans: bool,
}

/// What the handle of a process and the world share.
#[derive(Default)]
pub struct Way {
    parted: Mutex<Option<(Fate, Arc<MemoryEngine>)>>,
}

impl Way {
    fn old(&self) -> Option<(Fate, Arc<MemoryEngine>)> {
        self.parted.lock().clone()
    }

    /// Another process is about to claim the store.
    pub fn part(&self, store: &MemoryEngine, fate: Fate) {
        let old = MemoryEngine::new(SyncWhen::Told);
        for table in Table::ALL {
            let mut rows = Vec::new();
            let visited = store.scan_table(table, None, &mut |key, value| {
                rows.push(Mutation { key: key.to_owned(), value: Some(value.into()) });
                ControlFlow::Continue(())
            });
            visited.expect("no fault was injected");
            old.commit(BatchKind::Growing, rows).expect("no fault was injected");
        }
        old.sync().expect("no fault was injected");
        *self.parted.lock() = Some((fate, Arc::new(old)));
        // A waiting caller gets the result, or does not.
        store.sync().expect("no fault was injected");
    }

    /// Whether another process has the store.
    pub fn has_parted(&self) -> bool {
        self.parted.lock().is_some()
    }
}

/// The store, to be claimed by a process.
pub struct Store {
    pub engine: Arc<MemoryEngine>,
    pub way: Arc<Way>,
}

impl Layer for Store {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        let claimed = Engine::claim(self.engine.clone())?;
        Ok(Arc::new(Handle { claimed, way: self.way.clone() }))
    }
}

/// A process's handle.
struct Handle {
    claimed: Arc<dyn Engine>,
    way: Arc<Way>,
}

impl Layer for Handle {
    fn below(&self) -> &dyn Engine {
        &*self.claimed
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        let Some((_, old)) = self.way.old() else { return self.claimed.get_many(keys, visit) };
        old.get_many(keys, &mut |index, row| {
            visit(index, Row { changed_at: above(row.changed_at), ..row })
        })
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        match self.way.old() {
            // What it has committed since is in its memory, and lies above what it reads.
            Some((fate, old)) if !fate.scans || old.appended() > old.durable() => old
                .scan(table, id, after, &mut |suffix, value, changed_at| {
                    visit(suffix, value, above(changed_at))
                })
                .map(above),
            _ => self.claimed.scan(table, id, after, visit),
        }
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        match self.way.old() {
            Some((_, old)) => old.scan_table(table, from, visit),
            None => self.claimed.scan_table(table, from, visit),
        }
    }

    fn epoch(&self) -> Epoch {
        self.claimed.epoch()
    }

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        match self.way.old() {
            Some((Fate { refused: false, .. }, old)) => old.commit(kind, mutations).map(above),
            _ => self.claimed.commit(kind, mutations),
        }
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        if position >= NEVER_IN {
            return;
        }
        let way = self.way.clone();
        let report = Box::new(move |result| {
            let loses_acks = way.old().is_some_and(|(fate, _)| fate.loses_acks);
            if !loses_acks {
                done(result);
            }
        });
        self.claimed.on_durable(position, report);
    }
}

/// The position of something that never gets through; 0 of what has.
fn above(position: Position) -> Position {
    if position == 0 { 0 } else { position + NEVER_IN }
}
