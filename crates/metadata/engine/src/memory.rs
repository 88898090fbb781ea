//! The engine in memory, for tests and simulation: deterministic, no threads, no clock, and on
//! request it loses everything after the last sync or fails.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, PREFIX_LEN, Table};
use parking_lot::Mutex;

use super::durability::Waiters;
use super::taps::Taps;
use super::{
    BATCH_MUTATIONS_MAX, BatchKind, BeforeSync, Claimed, Engine, EngineError, EngineStats, Epoch,
    Fence, Mutation, OnDurable, Row, Tap, TapGuard, VisitRow,
};

/// Rows copied out at a time by scans, so that `visit` runs without the lock.
const SCAN_BATCH: usize = 256;

/// When [`MemoryEngine::on_durable`] gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncWhen {
    /// Waiting for a position syncs at once, on the caller's thread.
    Asked,
    /// Only [`Engine::sync`] syncs; callbacks wait for it.
    Told,
}

/// An ordered map behind a mutex, with the engine's contract and injectable faults.
pub struct MemoryEngine {
    state: Mutex<State>,
    waiters: Waiters,
    taps: Arc<Taps>,
    when: SyncWhen,
    /// [`Engine::is_shared`].
    shared: bool,
    before_sync: Mutex<Option<BeforeSync>>,
}

#[derive(Default)]
struct State {
    rows: BTreeMap<Vec<u8>, Value>,
    appended: Position,
    durable: Position,
    /// What commits since the last sync replaced, oldest first: `crash` puts it back.
    undo: Vec<(Position, Vec<u8>, Option<Value>)>,
    commit_faults: Vec<EngineError>,
    sync_faults: Vec<EngineError>,
    full: bool,
    poisoned: Option<EngineError>,
    /// Of the newest claim; a crash leaves it.
    epoch: Epoch,
    stats: EngineStats,
}

/// Shown a row or the memory of a deletion: key, value, position.
type VisitAny<'a> = dyn FnMut(&[u8], Option<&[u8]>, Position) -> ControlFlow<()> + 'a;

/// A row or the memory of a deletion that is not durable yet.
#[derive(Debug, Clone)]
struct Value {
    bytes: Option<Box<[u8]>>,
    changed_at: Position,
}

impl State {
    fn shown(&self, value: &Value) -> Position {
        if value.changed_at > self.durable { value.changed_at } else { 0 }
    }

    /// Everything up to `target` is durable: it cannot be undone, and deletions need not be
    /// remembered.
    fn settle(&mut self, target: Position) {
        if target <= self.durable {
            return;
        }
        self.durable = target;
        let Self { rows, undo, .. } = self;
        undo.retain(|(changed_at, key, _)| {
            let durable = *changed_at <= target;
            if durable
                && rows.get(key).is_some_and(|now| now.bytes.is_none() && now.changed_at <= target)
            {
                rows.remove(key);
            }
            !durable
        });
    }
}

impl Default for MemoryEngine {
    fn default() -> Self {
        Self::new(SyncWhen::Asked)
    }
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new(when: SyncWhen) -> Self {
        Self {
            state: Mutex::default(),
            waiters: Waiters::default(),
            taps: Arc::default(),
            when,
            shared: false,
            before_sync: Mutex::default(),
        }
    }

    /// One that another process may claim while its holder runs.
    pub fn shared(when: SyncWhen) -> Self {
        Self { shared: true, ..Self::new(when) }
    }

    /// Runs `hook` before every sync; if it fails, the sync fails.
    pub fn set_before_sync(&self, hook: BeforeSync) {
        *self.before_sync.lock() = Some(hook);
    }

    /// Goes back to the last sync, as a power loss would; waiting callbacks get an error and later
    /// ones work again. Faults that were injected are forgotten.
    pub fn crash(&mut self) {
        self.crash_to(0);
    }

    /// As [`MemoryEngine::crash`], but batches up to `position` had reached the disk though no sync
    /// was requested.
    pub fn crash_to(&mut self, position: Position) {
        let state = self.state.get_mut();
        while let Some((_, key, old)) = state.undo.pop_if(|(changed_at, ..)| *changed_at > position)
        {
            match old {
                Some(value) => state.rows.insert(key, value),
                None => state.rows.remove(&key),
            };
        }
        let left = position.clamp(state.durable, state.appended);
        state.settle(left);
        state.appended = left;
        state.commit_faults.clear();
        state.sync_faults.clear();
        state.full = false;
        state.poisoned = None;
        let durable = state.durable;
        self.waiters.fail(EngineError::Io("metadata engine: crashed".into()));
        self.waiters = Waiters::default();
        self.waiters.advance(durable);
    }

    /// The next commit fails with `why`, changing nothing. Several calls queue up.
    pub fn fail_commit(&self, why: EngineError) {
        self.state.lock().commit_faults.push(why);
    }

    /// Drops the faults of commits that have not happened yet.
    pub fn clear_commit_faults(&self) {
        self.state.lock().commit_faults.clear();
    }

    /// The next sync fails with `why`; the engine then refuses commits until `crash`. Several calls
    /// queue up.
    pub fn fail_sync(&self, why: EngineError) {
        self.state.lock().sync_faults.push(why);
    }

    /// While set, growing batches get [`EngineError::NoSpace`].
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Newest committed position, durable or not.
    pub fn appended(&self) -> Position {
        self.state.lock().appended
    }

    fn visit_range(&self, from: Bound<Vec<u8>>, to: &[u8], visit: &mut VisitAny<'_>) {
        let mut from = from;
        loop {
            let batch: Vec<_> = {
                let state = self.state.lock();
                state
                    .rows
                    .range::<Vec<u8>, _>((from.as_ref(), Bound::Unbounded))
                    .take_while(|(key, _)| key.as_slice() < to)
                    .take(SCAN_BATCH)
                    .map(|(key, value)| (key.clone(), value.bytes.clone(), state.shown(value)))
                    .collect()
            };
            for (key, value, changed_at) in &batch {
                if visit(key, value.as_deref(), *changed_at).is_break() {
                    return;
                }
            }
            match batch.into_iter().next_back() {
                Some((key, ..)) => from = Bound::Excluded(key),
                None => return,
            }
        }
    }
}

fn encode(key: KeyRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_LEN + key.suffix.len());
    key.encode_into(&mut out);
    out
}

/// The first key bytes after every key of `(table, id)`.
fn end_of(table: Table, id: u64) -> Vec<u8> {
    match id.checked_add(1) {
        Some(next) => encode(KeyRef::new(table, next, b"")),
        None => vec![table as u8 + 1],
    }
}

impl Engine for MemoryEngine {
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        Claimed::begin(self)
    }

    /// That of an engine which no process has claimed: tests that look below a node's handle must
    /// not change anything there.
    fn epoch(&self) -> Epoch {
        Epoch(0)
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        state.stats.memory_hits += keys.len() as u64;
        for (index, key) in keys.iter().enumerate() {
            let row = match state.rows.get(&encode(*key)) {
                Some(value) => {
                    Row { value: value.bytes.as_deref(), changed_at: state.shown(value) }
                }
                None => Row { value: None, changed_at: 0 },
            };
            visit(index, row);
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
        let from = match after {
            Some(suffix) => Bound::Excluded(encode(KeyRef::new(table, id, suffix))),
            None => Bound::Included(encode(KeyRef::new(table, id, b""))),
        };
        let mut deleted = 0;
        self.visit_range(from, &end_of(table, id), &mut |key, value, changed_at| match value {
            Some(value) => visit(&key[PREFIX_LEN..], value, changed_at),
            None => {
                deleted = deleted.max(changed_at);
                ControlFlow::Continue(())
            }
        });
        Ok(deleted)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let from = from.unwrap_or(KeyRef::new(table, 0, b""));
        self.visit_range(
            Bound::Included(encode(from)),
            &[table as u8 + 1],
            &mut |key, value, _| match (value, KeyRef::decode(key)) {
                (Some(value), Some(key)) => visit(key, value),
                _ => ControlFlow::Continue(()),
            },
        );
        Ok(())
    }

    fn hint_new(&self, _: Table, _: u64) {}

    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        self.commit_in(self.epoch(), kind, mutations)
    }

    fn durable(&self) -> Position {
        self.waiters.durable()
    }

    fn on_durable(&self, position: Position, done: OnDurable) {
        if self.waiters.wait(position, done) && self.when == SyncWhen::Asked {
            // A failure reaches the callback through the waiters.
            let _ = self.sync();
        }
    }

    fn sync(&self) -> Result<(), EngineError> {
        // As in the embedded engine: note the position, then write the data it may refer to, then
        // make it durable.
        let target = self.state.lock().appended;
        let hook = self.before_sync.lock().clone();
        let hooked = hook.map_or(Ok(()), |hook| hook());
        let mut state = self.state.lock();
        if let Some(why) = &state.poisoned {
            return Err(why.clone());
        }
        let fault =
            if state.sync_faults.is_empty() { None } else { Some(state.sync_faults.remove(0)) };
        if let Some(why) = hooked.err().or(fault) {
            state.poisoned = Some(why.clone());
            drop(state);
            self.waiters.fail(why.clone());
            return Err(why);
        }
        state.stats.syncs += 1;
        // Batches committed while the hook ran stay undoable.
        state.settle(target);
        drop(state);
        self.waiters.advance(target);
        Ok(())
    }

    fn tap(&self, tap: Tap) -> TapGuard {
        let (number, taps) = (self.taps.add(tap), self.taps.clone());
        TapGuard(Box::new(move || taps.remove(number)))
    }

    fn stats(&self) -> EngineStats {
        let state = self.state.lock();
        EngineStats { rows_in_memory: state.rows.len() as u64, ..state.stats }
    }
}

impl Fence for MemoryEngine {
    fn begin_epoch(&self) -> Result<Epoch, EngineError> {
        let mut state = self.state.lock();
        state.epoch.0 += 1;
        Ok(state.epoch)
    }

    fn commit_in(
        &self,
        epoch: Epoch,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        assert!(mutations.len() <= BATCH_MUTATIONS_MAX, "batch above its limit");
        let mut state = self.state.lock();
        if epoch != state.epoch {
            return Err(EngineError::Fenced { held: epoch, current: state.epoch });
        }
        if let Some(why) = &state.poisoned {
            return Err(why.clone());
        }
        if !state.commit_faults.is_empty() {
            return Err(state.commit_faults.remove(0));
        }
        if state.full && kind == BatchKind::Growing {
            return Err(EngineError::NoSpace);
        }
        state.appended += 1;
        let changed_at = state.appended;
        state.stats.commits += 1;
        state.stats.mutations += mutations.len() as u64;
        self.taps.send(&mutations);
        for Mutation { key, value } in mutations {
            let key = encode(key.borrow());
            let old = state.rows.insert(key.clone(), Value { bytes: value, changed_at });
            state.undo.push((changed_at, key, old));
        }
        Ok(changed_at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use kestrel_types::key::Key;

    use super::*;

    fn put(name: &[u8], value: &[u8]) -> Vec<Mutation> {
        vec![Mutation { key: Key::new(Table::Entry, 7, name), value: Some(value.into()) }]
    }

    fn remove(name: &[u8]) -> Vec<Mutation> {
        vec![Mutation { key: Key::new(Table::Entry, 7, name), value: None }]
    }

    fn names(engine: &MemoryEngine) -> (Vec<Vec<u8>>, Position) {
        let mut names = Vec::new();
        let deleted = engine
            .scan(Table::Entry, 7, None, &mut |suffix, _, _| {
                names.push(suffix.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        (names, deleted)
    }

    #[test]
    fn a_crash_loses_what_was_not_synced_and_nothing_else() {
        let mut engine = MemoryEngine::new(SyncWhen::Told);
        engine.commit(BatchKind::Growing, put(b"a", b"1")).unwrap();
        engine.commit(BatchKind::Growing, put(b"b", b"1")).unwrap();
        engine.sync().unwrap();
        engine.commit(BatchKind::Growing, put(b"a", b"2")).unwrap();
        let last = engine.commit(BatchKind::Freeing, remove(b"b")).unwrap();
        assert_eq!(names(&engine), (vec![b"a".to_vec()], last));
        engine.crash();
        assert_eq!(names(&engine), (vec![b"a".to_vec(), b"b".to_vec()], 0));
        engine
            .get_many(&[KeyRef::new(Table::Entry, 7, b"a")], &mut |_, row| {
                assert_eq!((row.value, row.changed_at), (Some(b"1".as_slice()), 0));
            })
            .unwrap();
    }

    #[test]
    fn a_crash_may_leave_any_prefix() {
        for (left, expected) in
            [(0, &[][..]), (1, &[b"a"]), (2, &[b"a", b"b"]), (3, &[b"b"]), (9, &[b"b"])]
        {
            let mut engine = MemoryEngine::new(SyncWhen::Told);
            engine.commit(BatchKind::Growing, put(b"a", b"1")).unwrap();
            engine.commit(BatchKind::Growing, put(b"b", b"1")).unwrap();
            engine.commit(BatchKind::Freeing, remove(b"a")).unwrap();
            engine.crash_to(left);
            assert_eq!(
                names(&engine),
                (expected.iter().map(|name| name.to_vec()).collect(), 0),
                "{left}"
            );
            assert_eq!((engine.appended(), engine.durable()), (left.min(3), left.min(3)));
            engine.crash();
            assert_eq!(names(&engine).0.len(), expected.len(), "what a crash left is durable");
        }
    }

    #[test]
    fn callbacks_wait_for_their_position() {
        let engine = MemoryEngine::new(SyncWhen::Told);
        let seen = Arc::new(AtomicU64::new(0));
        let first = engine.commit(BatchKind::Growing, put(b"a", b"1")).unwrap();
        for _ in 0..2 {
            let seen = seen.clone();
            engine.on_durable(
                first,
                Box::new(move |result| {
                    assert_eq!(result, Ok(()));
                    seen.fetch_add(1, Ordering::SeqCst);
                }),
            );
        }
        assert_eq!((seen.load(Ordering::SeqCst), engine.durable()), (0, 0));
        engine.sync().unwrap();
        assert_eq!((seen.load(Ordering::SeqCst), engine.durable()), (2, first));
    }

    /// After a failed sync the engine commits nothing; a full disk makes it refuse growth only.
    #[test]
    fn failed_sync_and_full_disk() {
        let engine = MemoryEngine::default();
        engine.set_full(true);
        assert_eq!(engine.commit(BatchKind::Growing, put(b"a", b"1")), Err(EngineError::NoSpace));
        engine.commit(BatchKind::Freeing, put(b"a", b"1")).unwrap();
        engine.set_full(false);
        let why = EngineError::Io("broken".into());
        engine.fail_sync(why.clone());
        assert_eq!(engine.sync(), Err(why.clone()));
        assert_eq!(engine.commit(BatchKind::Growing, put(b"b", b"1")), Err(why));
    }

    #[test]
    fn a_tap_sees_batches_until_it_is_dropped() {
        let engine = MemoryEngine::default();
        let seen = Arc::new(AtomicU64::new(0));
        let count = seen.clone();
        let guard = engine.tap(Box::new(move |batch| {
            count.fetch_add(batch.len() as u64, Ordering::SeqCst);
        }));
        engine.commit(BatchKind::Growing, put(b"a", b"1")).unwrap();
        drop(guard);
        engine.commit(BatchKind::Growing, put(b"b", b"1")).unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }
}
