//! Rows in memory over a store that has all the others: what an engine needs beside its own way to
//! make batches durable.
//!
//! A batch is applied here when it is committed, and stays at least until the store below has it
//! ([`RowCache::stored`]); so what memory does not have, a later read of the store finds. Rows that
//! the store has are kept as long as there is room.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::Mutex;

use super::durability::Waiters;
use super::rows::{MemoryRows, Miss};
pub use super::runs::{Bytes, Cursor, Sorted};
use super::scan::Scans;
use super::taps::Taps;
use super::{EngineError, EngineStats, Mutation, OnDurable, Row, Tap, TapGuard, VisitRow};

/// The store below.
pub trait RowStore: Sorted {
    /// Reads the rows of these encoded keys, calling `visit(index, value)` for each that exists, in
    /// any order.
    ///
    /// # Errors
    /// Those of the store.
    fn get_many(
        &self,
        keys: &[Vec<u8>],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError>;
}

/// Where an eviction goes on.
#[derive(Default)]
struct Hand {
    shard: usize,
    /// Newest position with rows that are marked as the store's.
    cleaned: Position,
}

/// See the module's header.
pub struct RowCache {
    rows: MemoryRows,
    waiters: Waiters,
    taps: Arc<Taps>,
    hand: Mutex<Hand>,
    row_bytes: usize,
    /// Newest position that the store below has.
    stored: AtomicU64,
}

impl RowCache {
    /// No rows, all up to `position` being in the store below. Rows that this has are bounded by
    /// `row_bytes`, and by what is not settled.
    pub fn new(position: Position, row_bytes: usize) -> Self {
        let waiters = Waiters::default();
        waiters.advance(position);
        let hand = Mutex::new(Hand { shard: 0, cleaned: position });
        let (rows, stored) = (MemoryRows::new(), AtomicU64::new(position));
        Self { rows, waiters, taps: Arc::default(), hand, row_bytes, stored }
    }

    /// The batch at `position` is committed: shows it to taps, then to readers. One call at a time,
    /// in the order of positions.
    pub fn apply(&self, position: Position, mutations: &[Mutation]) {
        self.taps.send(mutations);
        self.rows.apply(position, mutations.len(), |index| {
            let mutation = &mutations[index];
            (mutation.key.borrow(), mutation.value.as_deref())
        });
    }

    /// Batches up to `position` are durable, and the store below may not have them yet.
    pub fn logged(&self, position: Position) {
        self.waiters.advance(position);
    }

    /// The store below has all batches up to `position`, durably.
    pub fn stored(&self, position: Position) {
        self.waiters.advance(position);
        self.stored.fetch_max(position, Ordering::AcqRel);
        let half_full =
            self.rows.dirty() > self.row_bytes / 4 || self.rows.bytes() > self.row_bytes / 16 * 15;
        if half_full {
            self.shrink(position);
        }
    }

    /// Nothing more will ever be settled.
    pub fn failed(&self, why: EngineError) {
        self.waiters.fail(why);
    }

    /// Lets go of what the store has, as far as memory is short.
    fn shrink(&self, stored: Position) {
        let mut hand = self.hand.lock();
        if stored > hand.cleaned {
            let groups = self.rows.take_dirty();
            for group in &groups {
                self.rows.clean(*group, stored);
            }
            hand.cleaned = stored;
        }
        if self.rows.bytes() > self.row_bytes / 16 * 15 {
            self.rows.evict(self.row_bytes / 8 * 7, 2, &mut hand.shard);
        }
    }

    /// Marks all that the store has as such, and lets go of it: for tests of reads that go to the
    /// store.
    pub fn forget(&self) {
        let stored = self.stored.load(Ordering::Acquire);
        for group in self.rows.take_dirty() {
            self.rows.clean(group, stored);
        }
        self.rows.evict(0, 2, &mut 0);
    }

    /// [`super::Engine::get_many`]. The number of rows that were looked for below.
    ///
    /// # Errors
    /// Those of the store below.
    pub fn get_many(
        &self,
        below: &dyn RowStore,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<usize, EngineError> {
        // Before the rows: a row that becomes durable meanwhile is reported as not durable, which
        // is only slower.
        let durable = self.waiters.durable();
        let mut misses: Vec<Miss> = Vec::new();
        self.rows.get_many(keys, durable, visit, &mut misses);
        if misses.is_empty() {
            return Ok(0);
        }
        let encoded: Vec<Vec<u8>> = misses
            .iter()
            .map(|miss| {
                let mut key = Vec::new();
                keys[miss.index].encode_into(&mut key);
                key
            })
            .collect();
        let mut found = vec![false; misses.len()];
        let keep = self.rows.bytes() < self.row_bytes;
        below.get_many(&encoded, &mut |at, value| {
            let miss = misses[at];
            found[at] = true;
            visit(miss.index, Row { value: Some(value), changed_at: 0 });
            if keep {
                self.rows.cache(miss, keys[miss.index], value);
            }
        })?;
        for (miss, _) in misses.iter().zip(found).filter(|(_, found)| !found) {
            visit(miss.index, Row { value: None, changed_at: 0 });
        }
        Ok(misses.len())
    }

    fn scans<'a>(&'a self, below: &'a dyn RowStore) -> Scans<'a> {
        let Self { rows, waiters, row_bytes, .. } = self;
        Scans { rows, below, waiters, row_bytes: *row_bytes }
    }

    /// [`super::Engine::scan`].
    ///
    /// # Errors
    /// Those of the store below.
    pub fn scan(
        &self,
        below: &dyn RowStore,
        (table, id): (Table, u64),
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        self.scans(below).scan((table, id), after, visit)
    }

    /// [`super::Engine::scan_table`].
    ///
    /// # Errors
    /// Those of the store below.
    pub fn scan_table(
        &self,
        below: &dyn RowStore,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.scans(below).scan_table(table, from, visit)
    }

    /// [`super::Engine::hint_new`].
    pub fn hint_new(&self, table: Table, id: u64) {
        self.rows.hint_new((table, id));
    }

    /// [`super::Engine::durable`].
    pub fn durable(&self) -> Position {
        self.waiters.durable()
    }

    /// Newest position that the store below has.
    pub fn stored_position(&self) -> Position {
        self.stored.load(Ordering::Acquire)
    }

    /// [`super::Engine::on_durable`].
    pub fn on_durable(&self, position: Position, done: OnDurable) {
        self.waiters.wait(position, done);
    }

    /// Waits until the batch at `position` is settled.
    ///
    /// # Errors
    /// Why it never will be.
    pub fn wait(&self, position: Position) -> Result<(), EngineError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |result| {
            // The receiver waits below, so this cannot fail.
            let _ = sender.send(result);
        };
        self.waiters.wait(position, Box::new(done));
        receiver.recv().unwrap_or_else(|_| Err(EngineError::Io("metadata engine: closed".into())))
    }

    /// [`super::Engine::tap`]; no batch may be applied meanwhile.
    pub fn tap(&self, tap: Tap) -> TapGuard {
        let (number, taps) = (self.taps.add(tap), self.taps.clone());
        TapGuard(Box::new(move || taps.remove(number)))
    }

    /// What is in memory.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            rows_in_memory: self.rows.len() as u64,
            memory_bytes: self.rows.bytes() as u64,
            dirty_bytes: self.rows.dirty() as u64,
            ..EngineStats::default()
        }
    }
}
