//! Committed batches become log objects, in order, one at a time.
//!
//! While one object is on its way to the store all batches that come are queued, and become the
//! next one: group commit. If its answer was lost an object is put again until the store says that
//! it is there; another object in its place means that another process has claimed the rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use kestrel_blockstore::named::NamedObject;
use kestrel_engine::EngineError;
use kestrel_engine::elsewhere::queued_bytes;
use kestrel_types::crash;

use crate::flusher::Flusher;
use crate::health::read_checked;
use crate::local::Queued;
use crate::log::{LogRecord, RowChanges, name};
use crate::shared::EngineShared;

/// Bytes of batches that become one object, about.
const OBJECT_BYTES: usize = 8 << 20;
/// The sender waits for callers that have just got an answer for this part of the time that the
/// last object took, and for this time at most.
const LINGER_PART: u32 = 5;
const LINGER_MAX: Duration = Duration::from_millis(5);
/// Pause before an object is put again; for a full store.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_FULL: Duration = Duration::from_millis(500);

/// The thread's state.
pub struct Sender {
    pub shared: Arc<EngineShared>,
    pub flusher: Arc<Flusher>,
    /// Number of the next log object.
    pub next: u64,
    /// What this process puts into each object, which no other process has.
    pub nonce: u64,
}

impl Sender {
    /// Runs until the engine ends, or nothing more can be written.
    pub fn run(mut self) {
        let mut last = (0, Duration::ZERO);
        while let Some(batches) = self.shared.take(OBJECT_BYTES, last) {
            let mutations = batches.iter().map(|batch| batch.mutations.len()).sum();
            let begun = Instant::now();
            if let Err(why) = self.write(batches) {
                self.shared.fail(why);
                break;
            }
            last = (mutations, (begun.elapsed() / LINGER_PART).min(LINGER_MAX));
        }
        self.flusher.stop(&self.shared, self.next, self.shared.row_cache.stored_position());
    }

    fn write(&mut self, batches: Vec<Queued>) -> Result<(), EngineError> {
        let bytes = batches.iter().map(|batch| queued_bytes(&batch.mutations)).sum();
        let Some(position) = batches.last().map(|batch| batch.position) else { return Ok(()) };
        let mut rows = RowChanges::new();
        for mutation in batches.into_iter().flat_map(|batch| batch.mutations) {
            let mut key = Vec::new();
            mutation.key.borrow().encode_into(&mut key);
            rows.insert(key.into(), mutation.value);
        }
        if rows.is_empty() {
            // Objects without rows are fences.
            self.shared.stored(position, bytes);
            return Ok(());
        }
        // Data before metadata.
        (self.shared.before_sync)()?;
        let epoch = self.shared.epoch().0;
        let record = LogRecord { epoch, position, nonce: self.nonce, rows };
        crash::point("bucket.log.before");
        self.put(&record)?;
        crash::point("bucket.log.put");
        self.next += 1;
        self.shared.counters.live_log.fetch_add(1, Ordering::Relaxed);
        self.shared.tree.view().active.apply(record.rows);
        self.shared.stored(position, bytes);
        self.flusher.look(&self.shared, self.next, position);
        Ok(())
    }

    /// Whether the object is this record after all: the store compares what is there with what was
    /// to be made, but an answer may have been damaged on its way.
    fn is_own(&self, name: &str, record: &LogRecord) -> Result<bool, EngineError> {
        let shared = &self.shared;
        let decode = |found: &NamedObject| {
            LogRecord::decode((&shared.uuid, shared.node), self.next, &found.bytes)
        };
        match read_checked(&*shared.store, name, decode)? {
            Some((found, _)) => Ok(found == *record),
            // It was removed after a later process had put it into tables.
            None => Ok(false),
        }
    }

    fn put(&self, record: &LogRecord) -> Result<(), EngineError> {
        let shared = &self.shared;
        let bytes = record.encode((&shared.uuid, shared.node), self.next);
        let name = shared.name(&name(self.next));
        let (mut since, mut told) = (Instant::now(), false);
        loop {
            let created = shared.health.watch(|| shared.store.create(&name, bytes.clone()));
            let done = match created.map_err(|why| shared.failed(&why)) {
                Ok(true) => Ok(true),
                Ok(false) => self.is_own(&name, record),
                Err(why) => Err(why),
            };
            let why = match done {
                Ok(true) => {
                    shared.counters.log_objects.fetch_add(1, Ordering::Relaxed);
                    shared.counters.log_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(false) => return Err(shared.superseded(shared.epoch())),
                Err(why) => why,
            };
            let is_full = why == EngineError::NoSpace;
            if is_full {
                shared.set_full();
                // It answers, so this may go on for as long as it takes; only a caller that closes
                // the engine does not wait.
                if !shared.is_stopping() {
                    since = Instant::now();
                }
            }
            // Behind a local log nothing is lost by waiting.
            let may_give_up = shared.local.is_none() || shared.is_stopping();
            if may_give_up && since.elapsed() > shared.deadline {
                let advice = match shared.local {
                    None => {
                        "changes that were not acknowledged as durable are lost; see to the \
                         store, then end this process and start it again"
                    }
                    Some(_) => {
                        "the changes are kept in the log directory, and the next mount on this \
                         machine uploads them"
                    }
                };
                return Err(EngineError::Io(format!(
                    "metadata in a bucket: nothing could be written to {} for {} s ({why}); \
                     {advice}",
                    shared.store.shown(),
                    shared.deadline.as_secs()
                )));
            }
            if std::mem::replace(&mut told, true) {
                log::debug!("{why}; trying again");
            } else {
                log::warn!("{why}; trying again until it is in");
            }
            let pause = if is_full { PAUSE_FULL } else { PAUSE };
            thread::sleep(pause.min(shared.deadline / 4));
        }
    }
}
