//! Memtables become tables, and runs of tables are merged.
//!
//! **Flush**: the tables are written first, then the manifest names them and moves the beginning of
//! the log, then readers see them instead of the memtable, and then the log objects go. A process
//! that ends in between leaves objects that no manifest names; the next one removes them.
//!
//! **Merging**, by a thread of its own, is size-tiered: as many of the newest runs become one as
//! are not much smaller than those before them together. A row is written again about as often as
//! the volume has doubled; a read looks at a few runs, and the bloom filters keep it from most of
//! them. When all runs become one, deleted rows go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use kestrel_engine::EngineError;
use kestrel_types::crash;
use kestrel_types::ids::Position;
use parking_lot::{Condvar, Mutex};

use crate::log::{self, number_of};
use crate::manifest::Manifest;
use crate::shared::EngineShared;
use crate::table::{TABLE_BYTES, TableIdentity, TableRecord, TableWriter};
use crate::tree::{MemTable, Run, Table};

/// Log objects that are not in tables, at most about: a recovery reads them all.
const LOG_OBJECTS_MAX: u64 = 1000;
/// The same that a process leaves when it ends as it was told to.
const CLOSE_LOG_MAX: u64 = 64;
/// Rows that are merged between two looks whether the engine ends.
const STOP_CHECK_ROWS: u64 = 4096;
/// Runs that stay.
const RUNS_MIN: usize = 4;
/// A run is merged with newer ones that together have at least this part of its bytes.
const TIER: u64 = 3;
/// Objects for which one more thread is worth it, and most threads that remove objects.
const REMOVALS_EACH: usize = 8;
const REMOVALS_MAX: usize = 16;
/// How often there is a look whether there is something to merge, or an object to be removed.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after something failed.
const RETRY: Duration = Duration::from_secs(1);

/// When memtables are frozen.
#[derive(Debug, Clone, Copy)]
pub struct FlushLimits {
    /// Bytes of a memtable.
    pub memtable_bytes: usize,
    /// Log objects in it.
    pub log_objects: u64,
}

impl FlushLimits {
    /// For memtables of so many bytes.
    pub fn new(memtable_bytes: usize) -> Self {
        Self { memtable_bytes, log_objects: LOG_OBJECTS_MAX }
    }
}

/// A memtable that is to become tables.
#[derive(Clone)]
struct Frozen {
    memtable: Arc<MemTable>,
    /// The first log object that is not in it.
    log_first: u64,
    position: Position,
}

#[derive(Default)]
struct State {
    /// Until its tables are in the manifest: readers look at one such memtable.
    frozen: Option<Frozen>,
    stopping: bool,
}

/// Passes memtables to the thread.
pub struct Flusher {
    limits: FlushLimits,
    state: Mutex<State>,
    changed: Condvar,
    /// Number of the next table of this process.
    next_table: Mutex<u32>,
    /// One run at a time is added, to the manifest and to what readers see.
    adding: Mutex<()>,
    /// Runs are merged.
    merges: bool,
}

impl Flusher {
    /// With nothing to do. `merges`: runs are merged.
    pub fn new(limits: FlushLimits, merges: bool) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { limits, state, changed, next_table: Mutex::new(0), adding: Mutex::new(()), merges }
    }

    /// The sender has stored something; `next` is the number of the next log object. Freezes the
    /// memtable if it is large enough; waits while one that is twice as large cannot be frozen.
    pub fn look(&self, shared: &EngineShared, next: u64, position: Position) {
        let until = Instant::now() + shared.deadline;
        let mut state = self.state.lock();
        loop {
            let bytes = shared.tree.view().active.bytes();
            let objects = shared.counters.live_log.load(Ordering::Relaxed);
            let is_due = bytes >= self.limits.memtable_bytes || objects >= self.limits.log_objects;
            if !is_due || bytes == 0 || shared.has_failed() {
                return;
            }
            if state.frozen.is_none() {
                return self.freeze(&mut state, shared, (next, position));
            }
            // Rows that no table takes fill memory, so commits become slower. What has been logged
            // is not lost.
            let is_urgent = bytes >= 2 * self.limits.memtable_bytes;
            if !is_urgent || self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    fn freeze(&self, state: &mut State, shared: &EngineShared, at: (u64, Position)) {
        let memtable = shared.tree.view().active.clone();
        shared.tree.change(|view| {
            view.frozen = vec![memtable.clone()];
            view.active = Arc::default();
        });
        shared.counters.live_log.store(0, Ordering::Relaxed);
        state.frozen = Some(Frozen { memtable, log_first: at.0, position: at.1 });
        self.changed.notify_all();
    }

    /// The sender has stored everything: a log that takes long to read becomes tables. The threads
    /// end when they have done what they are at.
    pub fn stop(&self, shared: &EngineShared, next: u64, position: Position) {
        let mut state = self.state.lock();
        let objects = shared.counters.live_log.load(Ordering::Relaxed);
        let is_long = objects > self.limits.log_objects.min(CLOSE_LOG_MAX);
        if is_long && state.frozen.is_none() && shared.tree.view().active.bytes() > 0 {
            self.freeze(&mut state, shared, (next, position));
        }
        state.stopping = true;
        self.changed.notify_all();
    }

    /// Flushes until the engine ends. `opened`: the manifest from before anything was merged.
    pub fn run(&self, shared: &EngineShared, opened: &Manifest) {
        if let Err(why) = remove_leftovers(shared, opened) {
            ::log::warn!("objects of metadata that nothing refers to were not removed: {why}");
        }
        loop {
            let (frozen, stopping) = {
                let mut state = self.state.lock();
                while state.frozen.is_none() && !state.stopping {
                    self.changed.wait(&mut state);
                }
                (state.frozen.clone(), state.stopping)
            };
            let Some(frozen) = frozen.filter(|_| !shared.has_failed()) else {
                self.changed.notify_all();
                return;
            };
            let done = self.flush(shared, &frozen);
            match &done {
                Ok(()) => self.state.lock().frozen = None,
                Err(why) => self.note(shared, why),
            }
            self.changed.notify_all();
            if done.is_err() {
                if stopping {
                    return;
                }
                self.rest(shared);
            }
        }
    }

    /// Merges runs until the engine ends.
    pub fn run_merges(&self, shared: &EngineShared) {
        while !self.is_stopping() && !shared.has_failed() {
            match self.merge(shared) {
                Ok(true) => {}
                Ok(false) => self.wait(),
                Err(why) => {
                    self.note(shared, &why);
                    self.rest(shared);
                }
            }
            remove_all(shared, shared.tree.take_removed());
        }
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Waits until there may be something to merge.
    fn wait(&self) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Waits a moment, or until the engine ends.
    fn rest(&self, shared: &EngineShared) {
        let until = Instant::now() + RETRY.min(shared.deadline / 4);
        let mut state = self.state.lock();
        while !state.stopping && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    fn note(&self, shared: &EngineShared, why: &EngineError) {
        if let EngineError::Fenced { .. } | EngineError::Refused(_) = why {
            return shared.fail(why.clone());
        }
        ::log::warn!("tables of metadata were not written: {why}; tried again");
    }

    fn identity(&self, shared: &EngineShared) -> TableIdentity {
        let mut next = self.next_table.lock();
        let number = u64::from(*next);
        *next += 1;
        let id = shared.epoch().0 << 32 | number;
        TableIdentity { uuid: shared.uuid, node: shared.node, id }
    }

    fn flush(&self, shared: &EngineShared, frozen: &Frozen) -> Result<(), EngineError> {
        let mut writer = RunWriter::new(self, shared);
        frozen.memtable.visit(|key, value| writer.add(key, value))?;
        let run = writer.finish()?;
        crash::point("bucket.flush.tables");
        let log_first = shared.manifest().log_first;
        let records: Vec<TableRecord> = run.iter().map(|table| table.record.clone()).collect();
        let adding = self.adding.lock();
        let manifest = shared.publish(|manifest| {
            manifest.runs.insert(0, records);
            (manifest.log_first, manifest.position) = (frozen.log_first, frozen.position);
        })?;
        crash::point("bucket.flush.manifest");
        shared.tree.change(|view| {
            view.runs.insert(0, Arc::new(run));
            view.frozen.clear();
        });
        drop(adding);
        shared.counters.flushes.fetch_add(1, Ordering::Relaxed);
        let numbers = (log_first..manifest.log_first).filter(|it| !manifest.fences.contains(it));
        remove_all(shared, numbers.map(log::name).collect());
        Ok(())
    }

    /// Writes rows, which must be in order, as the newest run.
    ///
    /// # Errors
    /// As for [`EngineShared::publish`]: then it may be there or not.
    pub fn add_run<'r>(
        &self,
        shared: &EngineShared,
        rows: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    ) -> Result<(), EngineError> {
        let mut writer = RunWriter::new(self, shared);
        for (key, value) in rows {
            writer.add(key, Some(value))?;
        }
        let run = writer.finish()?;
        crash::point("bucket.ingest.tables");
        let records: Vec<TableRecord> = run.iter().map(|table| table.record.clone()).collect();
        let _adding = self.adding.lock();
        shared.publish(|manifest| manifest.runs.insert(0, records))?;
        crash::point("bucket.ingest.manifest");
        shared.tree.change(|view| view.runs.insert(0, Arc::new(run)));
        Ok(())
    }

    /// Merges some runs. Whether there was something to merge.
    fn merge(&self, shared: &EngineShared) -> Result<bool, EngineError> {
        let view = shared.tree.view();
        let Some(count) = plan(&view.runs).filter(|_| self.merges) else { return Ok(false) };
        let merged = &view.runs[..count];
        // A row that is stored as deleted hides one of the layers below.
        let is_whole = count == view.runs.len() && view.layers.is_empty();
        let mut writer = RunWriter::new(self, shared);
        let mut rows = shared.tree.merged_runs(merged);
        while let Some((key, value)) = rows.next_row()? {
            if value.is_some() || !is_whole {
                writer.add(&key, value.as_deref())?;
            }
            if writer.rows.is_multiple_of(STOP_CHECK_ROWS) && self.is_stopping() {
                return Ok(false);
            }
        }
        drop(rows);
        let run = writer.finish()?;
        crash::point("bucket.merge.tables");
        let records: Vec<TableRecord> = run.iter().map(|table| table.record.clone()).collect();
        // None if nothing but deleted rows was merged.
        let records = Some(records).filter(|records| !records.is_empty());
        let own: Vec<Vec<u64>> = merged.iter().map(|run| ids_of(run)).collect();
        // Newer runs may have come meanwhile. An earlier merge may have been made after all,
        // although its answer was lost; then these are not there any more.
        let mut found = false;
        shared.publish(|manifest| {
            let ids = manifest.runs.iter().map(|run| run.iter().map(|table| table.id).collect());
            if let Some(at) = place_of(&own, &ids.collect::<Vec<_>>()) {
                drop(manifest.runs.splice(at..at + count, records));
                found = true;
            }
        })?;
        if !found {
            run.iter().for_each(|table| table.retire());
            return Ok(true);
        }
        crash::point("bucket.merge.manifest");
        let run = Some(Arc::new(run)).filter(|run| !run.is_empty());
        shared.tree.change(|view| {
            let ids: Vec<Vec<u64>> = view.runs.iter().map(|run| ids_of(run)).collect();
            if let Some(at) = place_of(&own, &ids) {
                drop(view.runs.splice(at..at + count, run));
            }
        });
        merged.iter().flat_map(|run| run.iter()).for_each(|table| table.retire());
        Ok(true)
    }
}

fn ids_of(run: &Run) -> Vec<u64> {
    run.iter().map(|table| table.record.id).collect()
}

/// Where these runs are among others.
fn place_of(own: &[Vec<u64>], runs: &[Vec<u64>]) -> Option<usize> {
    runs.windows(own.len()).position(|window| window == own)
}

/// How many of the newest runs are to become one.
fn plan(runs: &[Arc<Run>]) -> Option<usize> {
    let bytes = |run: &Run| run.iter().map(|table| table.record.bytes).sum::<u64>();
    let sizes: Vec<u64> = runs.iter().map(|run| bytes(run)).collect();
    merged(&sizes)
}

/// The same for runs of these sizes, the newest first.
fn merged(sizes: &[u64]) -> Option<usize> {
    if sizes.len() <= RUNS_MIN {
        return None;
    }
    let (mut count, mut sum) = (1, sizes[0]);
    while let Some(size) = sizes.get(count).filter(|size| **size <= sum.saturating_mul(TIER)) {
        (count, sum) = (count + 1, sum.saturating_add(*size));
    }
    // Older runs that are much larger stay, unless there are too many of them.
    Some(count.max(sizes.len() - RUNS_MIN + 1))
}

/// Writes rows as tables of a run.
struct RunWriter<'a> {
    flusher: &'a Flusher,
    shared: &'a EngineShared,
    writer: Option<TableWriter>,
    run: Run,
    rows: u64,
}

impl<'a> RunWriter<'a> {
    fn new(flusher: &'a Flusher, shared: &'a EngineShared) -> Self {
        Self { flusher, shared, writer: None, run: Run::new(), rows: 0 }
    }

    fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        let (flusher, shared) = (self.flusher, self.shared);
        let writer = self.writer.get_or_insert_with(|| TableWriter::new(flusher.identity(shared)));
        writer.add(key, value);
        self.rows += 1;
        if writer.bytes() >= TABLE_BYTES { self.end_table() } else { Ok(()) }
    }

    fn end_table(&mut self) -> Result<(), EngineError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let (bytes, record) = writer.finish();
        let table = self.shared.tree.table(record);
        let name = self.shared.name(&table.name());
        // Until a manifest names it, it goes with this value.
        table.retire();
        // A table may take long on its way, which does not mean that the store is silent.
        let created = self.shared.store.create(&name, bytes.into());
        if !created.map_err(|why| self.shared.failed(&why))? {
            // No other process uses the number. The answer was damaged, or what was written: tables
            // with other numbers are written.
            return Err(EngineError::Io(format!(
                "metadata in a bucket: {name}: it was not read back as it was written"
            )));
        }
        self.run.push(table);
        Ok(())
    }

    /// The run, which the manifest is to name.
    fn finish(mut self) -> Result<Run, EngineError> {
        self.end_table()?;
        self.run.iter().for_each(|table: &Arc<Table>| table.keep());
        Ok(std::mem::take(&mut self.run))
    }
}

/// Removes objects, several at a time.
fn remove_all(shared: &EngineShared, names: Vec<String>) {
    let names = Mutex::new(names);
    let remove_some = || {
        while let Some(name) = { names.lock().pop() } {
            remove(shared, &name);
        }
    };
    let threads = names.lock().len().div_ceil(REMOVALS_EACH).min(REMOVALS_MAX);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(remove_some))));
}

fn remove(shared: &EngineShared, name: &str) {
    let name = shared.name(name);
    if let Err(why) = shared.health.watch(|| shared.store.remove(&name)) {
        // The next process that opens the rows finds it.
        ::log::debug!("{name} stays behind in the bucket: {why}");
    }
}

/// Removes what earlier processes left: tables and log objects that the manifest of the opening
/// does not need. What has been merged since then a reader may still need.
fn remove_leftovers(shared: &EngineShared, manifest: &Manifest) -> Result<(), EngineError> {
    let listed = shared.health.watch(|| shared.store.list(&shared.prefix));
    let mut leftovers = Vec::new();
    let known = |id: u64| manifest.runs.iter().flatten().any(|table| table.id == id);
    for (name, _) in listed.map_err(|why| shared.failed(&why))? {
        let Some(own) = name.strip_prefix(&shared.prefix) else { continue };
        let is_leftover = if let Some(number) = number_of(own) {
            number < manifest.log_first && !manifest.fences.contains(&number)
        } else if let Some(id) = own.strip_prefix("table/") {
            // Those of this epoch are being written.
            let id = u64::from_str_radix(id, 16).ok();
            id.is_some_and(|id| id >> 32 < manifest.epoch && !known(id))
        } else {
            false
        };
        if is_leftover {
            leftovers.push(own.to_string());
        }
    }
    remove_all(shared, leftovers);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small runs are merged with each other, and large ones only when there are enough newer ones.
    #[test]
    fn runs_that_are_merged() {
        for (sizes, expected) in [
            (&[][..], None),
            (&[1, 1, 1, 1], None),
            (&[1, 1, 1, 1, 1], Some(5)),
            (&[1, 1, 1, 1, 1000], Some(4)),
            (&[1, 100, 100, 100, 1000], Some(2)),
            (&[1, 10, 100, 1000, 10_000, 100_000], Some(3)),
        ] {
            assert_eq!(merged(sizes), expected, "{sizes:?}");
        }
    }
}
