//! The log: batches in commit order, one write each, made durable together.
//!
//! | file | what it has |
//! | --- | --- |
//! | `log/format.rs` | the bytes of records and segment headers |
//! | `log/segments.rs` | segment files: made ahead of need, and recycled |
//! | `log/recovery.rs` | reading the log back |
//! | `log/flipped.rs` | repair of a record with one flipped bit |
//!
//! Invariants:
//! - Positions of batches are consecutive. A batch is in the log file (so it survives the death of
//!   the process) before any reader sees its rows.
//! - A record is written at the end of the last valid one, in one write, which goes on with zeros
//!   to the end of the page: a page that is overwritten only in part would have to be read from the
//!   disk first (segments are recycled, so it is seldom in memory). If that fails, the place is
//!   cleared, so that the next record goes there and nothing half-written is ever followed by
//!   something valid.
//! - After a failed sync nothing is appended any more: the kernel may have dropped the pages it
//!   could not write, so a later sync that succeeds would prove nothing.

pub(super) mod flipped;
pub(super) mod format;
pub(super) mod recovery;
pub(super) mod segments;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kestrel_types::crash;
use kestrel_types::ids::Position;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::disk::{DiskFile, no_space};
use super::{BeforeSync, EngineError, Epoch};
use format::{ALIGN, Kind, PAYLOAD_MAX, RECORD_HEADER, SEGMENT_HEADER, seal};
use segments::{FREE_IDLE, Segment, Segments};

/// Unit in which the kernel caches files, bytes. Only speed depends on it.
const PAGE: u64 = 4096;
/// Longest wait for a new segment.
const SEGMENT_WAIT: Duration = Duration::from_secs(30);
/// How often free space is looked at.
const SPACE_CHECK: Duration = Duration::from_secs(1);
/// Checks in a row without a new segment after which the log counts as quiet.
const QUIET_CHECKS: u32 = 5;

/// The log.
pub(super) struct Log {
    tail: Mutex<Tail>,
    spare: Mutex<Spare>,
    spare_changed: Condvar,
    flight: Mutex<UnappliedBatch>,
    applied: Condvar,
    /// Disk space is short: growing batches are refused.
    low: AtomicBool,
    /// Free bytes below which space is short.
    reserve_bytes: u64,
    appended_bytes: AtomicU64,
}

/// Where records go.
struct Tail {
    /// Which owner's commits are taken.
    epoch: Epoch,
    position: Position,
    durable: Position,
    segment: Segment,
    offset: u64,
    /// Segments before the current one that may still be needed, oldest first.
    older: VecDeque<Older>,
    /// Files with records that no sync has covered, beside the current one.
    unsynced: Vec<Arc<dyn DiskFile>>,
    poison: Option<EngineError>,
}

/// A segment that is full, or was when the volume was opened.
pub(super) struct Older {
    pub generation: u64,
    pub bytes: u64,
    /// Position of its last batch.
    pub last: Position,
}

/// The next segment, and what makes it.
struct Spare {
    segments: Segments,
    ready: Option<Segment>,
    /// Why the last attempt to make one failed.
    failure: Option<EngineError>,
    stop: bool,
}

impl Spare {
    /// Recycles the segment that is ready. If that fails it is not used, and the next opening takes
    /// it away.
    fn give_up_ready(&mut self) -> Result<(), EngineError> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let retired = self.segments.retire(ready.generation, ready.bytes);
        // Its new name first: with another header it must not be found under the old one.
        let retired = retired.and_then(|()| self.segments.disk.sync_names());
        retired.map_err(|why| failed("recycling", &why))
    }
}

/// Batches in the log with rows that are not all in memory yet.
struct UnappliedBatch {
    appended: Position,
    open: BTreeSet<Position>,
}

/// What a log looks like when it was just recovered.
pub(super) struct Start {
    pub segments: Segments,
    pub older: VecDeque<Older>,
    /// Files that may hold records no sync has covered.
    pub unsynced: Vec<Arc<dyn DiskFile>>,
    /// Generation and size of segments that are not needed once a checkpoint covers them
    /// ([`Log::retire_surplus`]).
    pub surplus: Vec<(u64, u64)>,
    pub position: Position,
    pub durable: Position,
}

fn failed(what: &str, why: &io::Error) -> EngineError {
    if no_space(why) {
        EngineError::NoSpace
    } else {
        EngineError::Io(format!(
            "metadata log: {what} failed: {why}; unmount, check the disk, mount again"
        ))
    }
}

impl Log {
    /// Starts appending, in a new segment.
    ///
    /// The caller writes a checkpoint that names it and then gives `surplus` to
    /// [`Log::retire_surplus`].
    pub fn start(start: Start, reserve_bytes: u64) -> Result<Self, EngineError> {
        let mut segments = start.segments;
        // A full disk must not keep a volume from being opened, for only what is in it can make
        // room: the first segment is small, and a free file of any size will do.
        let segment = segments.prepare(0).map_err(|why| failed("making a segment", &why))?;
        Ok(Self {
            tail: Mutex::new(Tail {
                epoch: segments.epoch,
                position: start.position,
                durable: start.durable,
                segment,
                offset: SEGMENT_HEADER as u64,
                older: start.older,
                unsynced: start.unsynced,
                poison: None,
            }),
            spare: Mutex::new(Spare { segments, ready: None, failure: None, stop: false }),
            spare_changed: Condvar::new(),
            flight: Mutex::new(UnappliedBatch { appended: start.position, open: BTreeSet::new() }),
            applied: Condvar::new(),
            low: AtomicBool::new(false),
            reserve_bytes,
            appended_bytes: AtomicU64::new(0),
        })
    }

    /// Room for a record's header; the payload goes behind it.
    pub fn begin(record: &mut Vec<u8>) {
        record.clear();
        record.resize(RECORD_HEADER, 0);
    }

    /// Appends a batch. `in_order` runs before the next batch can be appended. The caller must call
    /// [`Log::applied`] when its rows are in memory.
    pub fn append(
        &self,
        epoch: Epoch,
        growing: bool,
        record: &mut Vec<u8>,
        in_order: impl FnOnce(),
    ) -> Result<Position, EngineError> {
        let payload_len = record.len() - RECORD_HEADER;
        if payload_len > PAYLOAD_MAX {
            return Err(EngineError::Io(format!(
                "metadata log: a batch of {payload_len} bytes is too large"
            )));
        }
        let payload_crc = crc32c::crc32c(&record[RECORD_HEADER..]);
        record.resize(record.len().next_multiple_of(ALIGN), 0);
        crash::point("engine.log.before-append");
        let mut tail = self.tail.lock();
        if let Some(why) = &tail.poison {
            return Err(why.clone());
        }
        if epoch != tail.epoch {
            return Err(EngineError::Fenced { held: epoch, current: tail.epoch });
        }
        if growing && self.low.load(Ordering::Relaxed) {
            return Err(EngineError::NoSpace);
        }
        if tail.offset + record.len() as u64 > tail.segment.bytes {
            self.next_segment(&mut tail, record.len() as u64)?;
        }
        let position = tail.position + 1;
        seal(
            record,
            payload_len,
            payload_crc,
            Kind::Batch,
            (tail.segment.generation, position, tail.durable),
        );
        let record_bytes = record.len() as u64;
        Self::write(&mut tail, record)?;
        tail.position = position;
        {
            let mut flight = self.flight.lock();
            flight.appended = position;
            flight.open.insert(position);
        }
        in_order();
        drop(tail);
        self.appended_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        crash::point("engine.log.appended");
        Ok(position)
    }

    /// Writes a record at the end of the log; `record` is longer afterwards, by zeros.
    fn write(tail: &mut Tail, record: &mut Vec<u8>) -> Result<(), EngineError> {
        let end = tail.offset + record.len() as u64;
        let padded = end.next_multiple_of(PAGE).min(tail.segment.bytes) - tail.offset;
        record.resize(padded as usize, 0);
        let Err(why) = tail.segment.file.write_at(record, tail.offset) else {
            tail.offset = end;
            return Ok(());
        };
        let error = failed("appending", &why);
        // Part of it may be there. It must not be taken for a record, now or after something
        // shorter was written over it.
        record.fill(0);
        let cleared = tail.segment.file.write_at(record, tail.offset).is_ok();
        if !cleared || error != EngineError::NoSpace {
            tail.poison = Some(error.clone());
        }
        Err(error)
    }

    fn next_segment(
        &self,
        tail: &mut MutexGuard<'_, Tail>,
        record_bytes: u64,
    ) -> Result<(), EngineError> {
        let mut spare = self.spare.lock();
        let needed = (SEGMENT_HEADER as u64 + record_bytes).next_multiple_of(SEGMENT_HEADER as u64);
        let segment = loop {
            match &spare.ready {
                Some(ready) if ready.bytes >= needed => {}
                None if needed <= spare.segments.sizes.next() => {}
                _ => {
                    // Larger than the next one: one of its own. The one that was ready is older
                    // than it, so it cannot follow.
                    spare.give_up_ready()?;
                    spare.segments.sizes.grow(needed);
                    break spare
                        .segments
                        .prepare(needed)
                        .map_err(|why| failed("making a segment", &why))?;
                }
            }
            if let Some(ready) = spare.ready.take() {
                spare.segments.sizes.grow(needed);
                break ready;
            }
            if let Some(why) = spare.failure.take() {
                // The keeper tries again; a later caller may have more luck.
                self.spare_changed.notify_all();
                return Err(why);
            }
            if spare.stop || self.spare_changed.wait_for(&mut spare, SEGMENT_WAIT).timed_out() {
                return Err(EngineError::Io("metadata log: no new segment in time".into()));
            }
        };
        drop(spare);
        self.spare_changed.notify_all();
        let old = std::mem::replace(&mut tail.segment, segment);
        tail.offset = SEGMENT_HEADER as u64;
        let last = tail.position;
        tail.older.push_back(Older { generation: old.generation, bytes: old.bytes, last });
        tail.unsynced.push(old.file);
        Ok(())
    }

    /// The rows of the batch at `position` are in memory.
    pub fn applied(&self, position: Position) {
        let mut flight = self.flight.lock();
        flight.open.remove(&position);
        drop(flight);
        self.applied.notify_all();
    }

    /// Newest position appended.
    pub fn appended(&self) -> Position {
        self.flight.lock().appended
    }

    /// The newest position up to which the rows of all batches are in memory.
    pub fn in_memory(&self) -> Position {
        let flight = self.flight.lock();
        flight.open.first().map_or(flight.appended, |first| first - 1)
    }

    /// Waits until the rows of every batch appended before the call are in memory. Commits do that
    /// without waiting for anything, so this is short.
    pub fn wait_applied(&self) {
        let mut flight = self.flight.lock();
        let target = flight.appended;
        while flight.open.first().is_some_and(|first| *first <= target) {
            self.applied.wait(&mut flight);
        }
    }

    /// Takes commits of the epoch that `begin` makes from now on, and of no other.
    pub fn begin_epoch(
        &self,
        begin: impl FnOnce() -> Result<Epoch, EngineError>,
    ) -> Result<Epoch, EngineError> {
        let mut tail = self.tail.lock();
        if let Some(why) = &tail.poison {
            return Err(why.clone());
        }
        tail.epoch = begin()?;
        Ok(tail.epoch)
    }

    /// Makes every batch appended so far durable, after `before` made durable what they refer to,
    /// and if `held` agrees afterwards that no other process has taken the log over. Returns the
    /// position. Called by one thread at a time.
    pub fn sync(
        &self,
        before: &BeforeSync,
        held: &dyn Fn() -> Result<(), EngineError>,
    ) -> Result<Position, EngineError> {
        let (target, files) = {
            let mut tail = self.tail.lock();
            if let Some(why) = &tail.poison {
                return Err(why.clone());
            }
            if tail.position == tail.durable {
                return Ok(tail.durable);
            }
            let mut files = std::mem::take(&mut tail.unsynced);
            files.push(tail.segment.file.clone());
            (tail.position, files)
        };
        crash::point("engine.sync.before");
        let synced = before().and_then(|()| {
            files.iter().try_for_each(|file| file.sync().map_err(|why| failed("syncing", &why)))
        });
        let synced = synced.and_then(|()| held());
        crash::point("engine.sync.after");
        let mut tail = self.tail.lock();
        if let Err(why) = synced {
            // Not even "no space" is harmless here: what the kernel could not write is lost to
            // later syncs.
            let why = match why {
                EngineError::NoSpace => EngineError::Io(
                    "metadata log: syncing failed: no space left on the disk".into(),
                ),
                EngineError::Fenced { .. } => why,
                why => EngineError::Io(why.to_string()),
            };
            tail.poison.get_or_insert(why.clone());
            return Err(why);
        }
        tail.durable = target;
        // The next batch will say it too; the marker is for when there is none.
        if tail.position == target && tail.poison.is_none() {
            let mut marker = vec![0; RECORD_HEADER];
            let crc = crc32c::crc32c(&[]);
            seal(&mut marker, 0, crc, Kind::Marker, (tail.segment.generation, target, target));
            if tail.offset + marker.len() as u64 <= tail.segment.bytes {
                // If it cannot be written, recovery verifies a few batches more; with a poisoned
                // log the next commit fails.
                let _ = Self::write(&mut tail, &mut marker);
            }
        }
        Ok(target)
    }

    /// Generation of the oldest segment that a recovery needs that starts above `position`.
    pub fn generation_after(&self, position: Position) -> u64 {
        let tail = self.tail.lock();
        tail.older
            .iter()
            .find(|older| older.last > position)
            .map_or(tail.segment.generation, |older| older.generation)
    }

    /// Recycles segments older than `generation`: by the checkpoint they will not be read.
    pub fn retire(&self, generation: u64) -> Result<(), EngineError> {
        let retired: Vec<(u64, u64)> = {
            let mut tail = self.tail.lock();
            let count = tail.older.iter().take_while(|older| older.generation < generation).count();
            tail.older.drain(..count).map(|older| (older.generation, older.bytes)).collect()
        };
        self.retire_surplus(&retired)
    }

    /// Recycles segments that are not part of the log any more.
    pub fn retire_surplus(&self, surplus: &[(u64, u64)]) -> Result<(), EngineError> {
        if surplus.is_empty() {
            return Ok(());
        }
        let mut spare = self.spare.lock();
        for (generation, bytes) in surplus {
            spare.segments.retire(*generation, *bytes).map_err(|why| failed("recycling", &why))?;
        }
        spare.segments.disk.sync_names().map_err(|why| failed("recycling", &why))?;
        drop(spare);
        self.spare_changed.notify_all();
        Ok(())
    }

    /// Keeps a segment ready and an eye on free space, until [`Log::stop`]. For a thread of its
    /// own.
    pub fn keep(&self) {
        let mut spare = self.spare.lock();
        let mut quiet = 0;
        while !spare.stop {
            if spare.ready.is_none() && spare.failure.is_none() {
                let mut made = spare.segments.prepare(0);
                // A small one is better than none.
                while made.as_ref().is_err_and(no_space) && spare.segments.sizes.shrink() {
                    made = spare.segments.prepare(0);
                }
                match made {
                    Ok(segment) => spare.ready = Some(segment),
                    Err(why) => spare.failure = Some(failed("making a segment", &why)),
                }
                self.spare_changed.notify_all();
            }
            let free = spare.segments.disk.free_bytes().unwrap_or(0);
            let low = spare.failure.is_some() || free < self.reserve_bytes;
            if !self.low.swap(low, Ordering::Relaxed) && low && spare.failure.is_none() {
                // What deletions need is taken while it is there.
                spare.segments.sizes.grow_fully();
                let sizes = spare.segments.sizes;
                if spare.ready.as_ref().is_some_and(|ready| ready.bytes < sizes.next()) {
                    // If that fails, the next append makes one.
                    let _ = spare.give_up_ready();
                    continue;
                }
            }
            let timed_out = self.spare_changed.wait_for(&mut spare, SPACE_CHECK).timed_out();
            quiet = if timed_out { quiet + 1 } else { 0 };
            if timed_out {
                spare.failure = None;
            }
            if quiet > 0 && quiet % QUIET_CHECKS == 0 {
                // A step at a time, so that a volume that changes now and then does not begin anew
                // each time.
                if !low {
                    spare.segments.sizes.shrink();
                }
                let sizes = spare.segments.sizes;
                // What cannot be removed now is removed later, or used.
                if spare.ready.as_ref().is_some_and(|ready| sizes.is_excess(ready.bytes)) {
                    let _ = spare.give_up_ready();
                }
                let _ = spare.segments.trim(FREE_IDLE);
            }
        }
    }

    /// Ends [`Log::keep`].
    pub fn stop(&self) {
        self.spare.lock().stop = true;
        self.spare_changed.notify_all();
    }

    /// Bytes that a recovery would have to read.
    pub fn live_bytes(&self) -> u64 {
        let tail = self.tail.lock();
        tail.older.iter().map(|older| older.bytes).sum::<u64>() + tail.offset
            - SEGMENT_HEADER as u64
    }

    /// Bytes of all files of the log.
    pub fn disk_bytes(&self) -> u64 {
        let (older, current) = {
            let tail = self.tail.lock();
            (tail.older.iter().map(|older| older.bytes).sum::<u64>(), tail.segment.bytes)
        };
        let spare = self.spare.lock();
        let ready = spare.ready.as_ref().map_or(0, |ready| ready.bytes);
        older + current + ready + spare.segments.free.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Bytes appended since the volume was opened.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }
}
