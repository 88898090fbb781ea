//! Moves rows from memory to the sorted runs, and clean rows out of memory.
//!
//! A flush is fuzzy: commits go on. Let C be a position that is durable and below which all batches
//! are in memory.
//! 0. The checkpoint records that the log is durable up to C.
//! 1. Every row with its last change at or below C is copied and ingested. Rows changed later are
//!    left out, although an older change of theirs may lie below C and be in no run: therefore
//! 2. the log is synced once more, so that changes that replaced those are durable,
//! 3. and only then the checkpoint moves to C: a recovery starts from the runs and applies
//!    everything above C.
//!
//! Applying a batch twice is harmless, because rows are put and deleted whole. Nothing above the
//! durable position gets into the runs, because otherwise a power loss could keep a later change
//! and lose an earlier one.
//!
//! After 1, rows are clean if their last change still lies at or below C.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kestrel_types::crash;
use kestrel_types::ids::Position;
use kestrel_types::key::PREFIX_LEN;
use parking_lot::{Condvar, Mutex};

use super::super::rows::{Copied, GroupKey};
use super::{BatchKind, EngineError, Shared};
use crate::checkpoint::{self, Checkpoint};

/// Log that a clean close may leave, bytes: about a second of reading.
pub(super) const CLOSE_LOG_MAX: u64 = 128 << 20;
/// How often the flusher looks whether there is work.
const POLL: Duration = Duration::from_millis(50);
/// Wait after a failure before trying again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait after merges that failed.
const MERGE_RETRY_MAX: Duration = Duration::from_secs(60);
/// Longest that a commit waits for memory.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Without commits for this long, a log of more than [`IDLE_LOG_MAX`] is flushed.
const IDLE: Duration = Duration::from_secs(5);
/// Log that an idle volume keeps.
const IDLE_LOG_MAX: u64 = 128 << 20;

/// Passes requests to the thread, and its results to others.
#[derive(Default)]
pub(super) struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
    /// One flush at a time.
    running: Mutex<()>,
    /// One merge at a time.
    merging: Mutex<()>,
    compact: Mutex<Compact>,
    compact_changed: Condvar,
    evict_stop: Mutex<bool>,
    evict_changed: Condvar,
    /// Position of the last checkpoint.
    checkpoint: AtomicU64,
}

#[derive(Default)]
struct State {
    stop: bool,
    /// A writer waits for memory.
    wanted: bool,
    /// Flushes that ended, well or not.
    ended: u64,
    failure: Option<EngineError>,
}

#[derive(Default)]
struct Compact {
    wanted: bool,
    stop: bool,
}

impl Flusher {
    /// Ends the threads.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
        self.compact.lock().stop = true;
        self.compact_changed.notify_all();
        *self.evict_stop.lock() = true;
        self.evict_changed.notify_all();
    }

    /// Notes where the checkpoint stands when the engine opens.
    pub fn start(&self, checkpoint: u64) {
        self.checkpoint.store(checkpoint, Ordering::Relaxed);
        self.compact.lock().wanted = true;
    }
}

impl Shared {
    /// Waits while there is no memory for more dirty rows, or too much log for a recovery.
    pub(super) fn wait_for_room(&self, kind: BatchKind) -> Result<(), EngineError> {
        if self.has_room() {
            return Ok(());
        }
        let until = Instant::now() + ROOM_WAIT;
        let mut state = self.flusher.state.lock();
        while !self.has_room() {
            match &state.failure {
                // What frees space must get through; its rows are few.
                Some(_) if kind == BatchKind::Freeing => return Ok(()),
                Some(why) => return Err(why.clone()),
                None => {}
            }
            state.wanted = true;
            self.flusher.changed.notify_all();
            if state.stop || self.flusher.changed.wait_until(&mut state, until).timed_out() {
                return Err(EngineError::Io(
                    "metadata engine: no memory for more changes: writing them to disk is too \
                     slow; try again"
                        .into(),
                ));
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.rows.dirty() <= self.options.dirty_max()
    }

    fn wants_flush(&self, idle: bool) -> bool {
        let log = self.log.live_bytes();
        self.rows.dirty() >= self.options.dirty_flush()
            || log >= self.options.log_bytes_max
            || (idle && log >= IDLE_LOG_MAX.min(self.options.log_bytes_max))
    }

    /// The flusher thread.
    pub(super) fn run_flusher(&self) {
        let mut quiet = (self.log.appended(), Instant::now());
        let mut retry_at: Option<Instant> = None;
        loop {
            {
                let mut state = self.flusher.state.lock();
                if !state.stop && !state.wanted {
                    self.flusher.changed.wait_for(&mut state, POLL);
                }
                if state.stop {
                    return;
                }
                state.wanted = false;
            }
            let appended = self.log.appended();
            if appended != quiet.0 {
                quiet = (appended, Instant::now());
            }
            let may = retry_at.is_none_or(|at| Instant::now() >= at);
            if may && self.wants_flush(quiet.1.elapsed() >= IDLE) {
                retry_at = self.flush().is_err().then(|| Instant::now() + RETRY);
            }
        }
    }

    /// The thread that evicts clean rows, apart from the flusher because memory must stay bounded
    /// while that is busy.
    pub(super) fn run_evictor(&self) {
        let limit = self.options.row_bytes();
        let mut hand = 0;
        let mut wait = POLL;
        loop {
            {
                let mut stop = self.flusher.evict_stop.lock();
                if !*stop {
                    self.flusher.evict_changed.wait_for(&mut stop, wait);
                }
                if *stop {
                    return;
                }
            }
            wait = POLL;
            if self.rows.bytes() > limit / 16 * 15 {
                self.rows.evict(limit / 8 * 7, 2, &mut hand);
                if self.rows.bytes() > limit / 16 * 15 {
                    // The rest is dirty: looking again only helps after a flush.
                    wait = RETRY;
                }
            }
        }
    }

    /// Copies dirty rows to the sorted runs and moves the checkpoint.
    pub(super) fn flush(&self) -> Result<(), EngineError> {
        let _guard = self.flusher.running.lock();
        let result = self.flush_once();
        let mut state = self.flusher.state.lock();
        state.ended += 1;
        state.failure = result.as_ref().err().cloned();
        drop(state);
        self.flusher.changed.notify_all();
        if result.is_ok() {
            self.flusher.compact.lock().wanted = true;
            self.flusher.compact_changed.notify_all();
        }
        result
    }

    fn flush_once(&self) -> Result<(), EngineError> {
        self.sync()?;
        let upto = self.log.in_memory().min(self.waiters.durable());
        if upto <= self.flusher.checkpoint.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Records durably that the log is durable up to C, so that no recovery cuts it below what
        // the runs will have.
        let before = self.flusher.checkpoint.load(Ordering::Relaxed);
        self.write_checkpoint(before, upto)?;
        let groups = self.rows.take_dirty();
        crash::point("engine.flush.before-ingest");
        if let Err(why) = self.ingest(&groups, upto) {
            self.rows.relist(&groups);
            return Err(why);
        }
        crash::point("engine.flush.ingested");
        for group in &groups {
            self.rows.clean(*group, upto);
        }
        self.sync()?;
        let generation = self.write_checkpoint(upto, upto)?;
        self.flusher.checkpoint.store(upto, Ordering::Relaxed);
        crash::point("engine.flush.checkpointed");
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.log.retire(generation)
    }

    /// Returns the generation of the oldest segment that is still needed.
    fn write_checkpoint(&self, position: Position, durable: Position) -> Result<u64, EngineError> {
        self.fence.check(&*self.disk, &self.uuid)?;
        let generation = self.log.generation_after(position);
        checkpoint::write(&*self.disk, &self.uuid, Checkpoint { position, generation, durable })
            .map_err(|why| crate::disk::io_error("writing the checkpoint", &why))?;
        Ok(generation)
    }

    fn ingest(&self, groups: &[GroupKey], upto: u64) -> Result<(), EngineError> {
        let mut copied = Copied::default();
        let mut encoded = Vec::with_capacity(PREFIX_LEN + 64);
        self.runs.ingest(&mut |write| {
            for group in groups {
                let mut after: Option<Box<[u8]>> = None;
                loop {
                    copied.clear();
                    after = self.rows.copy_dirty(*group, after.as_deref(), upto, &mut copied);
                    for (key, value, _) in copied.iter() {
                        encoded.clear();
                        key.encode_into(&mut encoded);
                        write(&encoded, value)?;
                    }
                    if after.is_none() {
                        break;
                    }
                }
            }
            Ok(())
        })
    }

    /// Does one piece of merging. False if there was nothing to do.
    pub(super) fn compact(&self) -> Result<bool, EngineError> {
        let _guard = self.flusher.merging.lock();
        self.runs.compact()
    }

    /// The thread that merges runs.
    pub(super) fn run_compactor(&self) {
        let mut pause = RETRY;
        loop {
            {
                let mut compact = self.flusher.compact.lock();
                while !compact.stop && !compact.wanted {
                    self.flusher.compact_changed.wait(&mut compact);
                }
                if compact.stop {
                    return;
                }
                compact.wanted = false;
            }
            loop {
                match self.compact() {
                    Ok(true) => {}
                    Ok(false) => {
                        pause = RETRY;
                        break;
                    }
                    Err(why) => {
                        log::warn!(
                            "the sorted runs were not merged: {why}; tried again in {pause:.0?}"
                        );
                        // Nothing is lost; reads get slower. Trying costs as much as merging, so
                        // ever more seldom.
                        let until = Instant::now() + pause;
                        pause = (pause * 2).min(MERGE_RETRY_MAX);
                        let mut compact = self.flusher.compact.lock();
                        while !compact.stop
                            && !self
                                .flusher
                                .compact_changed
                                .wait_until(&mut compact, until)
                                .timed_out()
                        {}
                        compact.wanted = true;
                        break;
                    }
                }
            }
        }
    }
}
