//! A log on a local disk for an engine with its rows elsewhere: batches are durable here first, and
//! are brought there later, in order.
//!
//! It is the log of the embedded engine (`log`: checksums, torn tails, files made ahead of need),
//! and its *checkpoint* is how far the batches have been brought. [`LocalLog::open`] shows the
//! batches behind that; [`LocalLog::append`] and [`LocalLog::sync`] add to them, and
//! [`LocalLog::retire`] moves the checkpoint.
//!
//! Callers append in order, one at a time. A batch of position P is in the log before `append`
//! returns P, and survives a power cut when `sync` has returned P or more.

use std::io;
use std::path::Path;
use std::sync::Arc;

use kestrel_types::ids::Position;

use super::checkpoint::{self, Checkpoint};
use super::disk::real::RealDisk;
use super::disk::{Disk, io_error};
use super::embedded::{Uuid, Verify};
use super::fence::Fenced;
use super::log::format::{Change, put_mutation, to_owned};
use super::log::recovery::{RecoveryContext, recover};
use super::log::segments::{Segments, Sizes};
use super::log::{Log, Start};
use super::{BatchKind, BeforeSync, EngineError, Epoch, Mutation};

/// Sizes of the files: of a log with little in it, and of a busy one.
const FIRST_SEGMENT_BYTES: u64 = 256 << 10;
const SEGMENT_BYTES: u64 = 32 << 20;

/// A batch of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedBatch {
    /// Where it is in the order of all batches.
    pub position: Position,
    /// What it changes.
    pub mutations: Vec<Mutation>,
}

/// See the module's header.
pub struct LocalLog {
    log: Log,
    disk: Arc<dyn Disk>,
    uuid: Uuid,
    fence: Arc<Fenced>,
    epoch: Epoch,
}

impl LocalLog {
    /// Whether there is a log in a directory.
    ///
    /// # Errors
    /// `Corrupt`, `Refused` for that of another volume, `Io`.
    pub fn is_in(dir: &Path, uuid: &Uuid) -> Result<bool, EngineError> {
        if !dir.exists() {
            return Ok(false);
        }
        let disk = RealDisk::open(dir).map_err(|why| io_error("opening its log", &why))?;
        Ok(checkpoint::read(&disk, uuid)?.is_some())
    }

    /// Makes a log for the batches behind `base`. Files of an earlier one in the directory go.
    ///
    /// # Errors
    /// `NoSpace` and `Io`.
    pub fn create(
        dir: &Path,
        uuid: Uuid,
        base: Position,
        reserve_bytes: u64,
    ) -> Result<Self, EngineError> {
        let disk = RealDisk::open(dir).map_err(|why| io_error("making its log", &why))?;
        Self::create_on(Arc::new(disk), uuid, base, reserve_bytes)
    }

    fn create_on(
        disk: Arc<dyn Disk>,
        uuid: Uuid,
        base: Position,
        reserve_bytes: u64,
    ) -> Result<Self, EngineError> {
        let fail = |why: io::Error| io_error("making its log", &why);
        // The checkpoint last: files without one are what is left of a log that was being removed.
        checkpoint::remove(&*disk).map_err(fail)?;
        disk.sync_names().map_err(fail)?;
        for name in disk.list().map_err(fail)? {
            disk.remove(&name).map_err(fail)?;
        }
        disk.sync_names().map_err(fail)?;
        let fence = Arc::new(Fenced::open(&*disk, &uuid, Epoch(0))?);
        let segments = Segments {
            disk: disk.clone(),
            uuid,
            epoch: fence.held(),
            base,
            fence,
            sizes: Sizes::new(FIRST_SEGMENT_BYTES, SEGMENT_BYTES),
            next_generation: 1,
            free: Vec::new(),
        };
        let start = Start {
            segments,
            older: std::collections::VecDeque::new(),
            unsynced: Vec::new(),
            surplus: Vec::new(),
            position: base,
            durable: base,
        };
        Self::start(disk, uuid, start, base, reserve_bytes)
    }

    /// Opens the log in a directory, and shows the batches behind its checkpoint. `verify` decides
    /// about batches that are not certain to have been synced, oldest first: the first one that it
    /// rejects ends the log.
    ///
    /// # Errors
    /// `Corrupt` for a log that is damaged before its end: nothing is changed; `Refused` for that
    /// of another volume; `NoSpace` and `Io`.
    pub fn open(
        dir: &Path,
        uuid: Uuid,
        reserve_bytes: u64,
        verify: &mut Verify<'_>,
    ) -> Result<(Self, Vec<LoggedBatch>), EngineError> {
        let disk = RealDisk::open(dir).map_err(|why| io_error("opening its log", &why))?;
        Self::open_on(Arc::new(disk), uuid, reserve_bytes, verify)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        uuid: Uuid,
        reserve_bytes: u64,
        verify: &mut Verify<'_>,
    ) -> Result<(Self, Vec<LoggedBatch>), EngineError> {
        let checkpoint = checkpoint::read(&*disk, &uuid)?.ok_or_else(|| {
            EngineError::Corrupt(format!("checkpoint {} is missing", disk.describe("checkpoint")))
        })?;
        let mut batches = Vec::new();
        let mut apply = |position: Position, changes: &[Change<'_>]| {
            batches.push(LoggedBatch { position, mutations: to_owned(changes) });
        };
        let sizes = Sizes::new(FIRST_SEGMENT_BYTES, SEGMENT_BYTES);
        let context = RecoveryContext { disk: disk.clone(), uuid, sizes };
        let start = recover(context, checkpoint, verify, &mut apply)?;
        let log = Self::start(disk, uuid, start, checkpoint.position, reserve_bytes)?;
        Ok((log, batches))
    }

    fn start(
        disk: Arc<dyn Disk>,
        uuid: Uuid,
        mut start: Start,
        brought: Position,
        reserve_bytes: u64,
    ) -> Result<Self, EngineError> {
        let surplus = std::mem::take(&mut start.surplus);
        let (fence, durable) = (start.segments.fence.clone(), start.durable);
        let epoch = fence.held();
        let log = Log::start(start, reserve_bytes)?;
        let this = Self { log, disk, uuid, fence, epoch };
        this.note(brought, durable)?;
        this.log.retire_surplus(&surplus)?;
        Ok(this)
    }

    fn note(&self, position: Position, durable: Position) -> Result<(), EngineError> {
        let generation = self.log.generation_after(position);
        let checkpoint = Checkpoint { position, generation, durable: durable.max(position) };
        checkpoint::write(&*self.disk, &self.uuid, checkpoint)
            .map_err(|why| io_error("writing the checkpoint of its log", &why))
    }

    /// Appends a batch; its position is one above that of the batch before.
    ///
    /// # Errors
    /// `NoSpace`, of a growing batch also if the disk is nearly full: nothing was changed. `Io`:
    /// the log takes nothing more if a write or a sync has failed.
    pub fn append(&self, kind: BatchKind, mutations: &[Mutation]) -> Result<Position, EngineError> {
        let mut record = Vec::new();
        Log::begin(&mut record);
        for mutation in mutations {
            put_mutation(&mut record, mutation.key.borrow(), mutation.value.as_deref());
        }
        let growing = kind == BatchKind::Growing;
        let position = self.log.append(self.epoch, growing, &mut record, || ())?;
        self.log.applied(position);
        Ok(position)
    }

    /// Makes everything appended so far durable, after `before` has made durable what the batches
    /// refer to. The position of the last one. One call at a time.
    ///
    /// # Errors
    /// `Io`, and `Fenced` if another process has opened the log.
    pub fn sync(&self, before: &BeforeSync) -> Result<Position, EngineError> {
        self.log.sync(before, &|| self.fence.check(&*self.disk, &self.uuid))
    }

    /// Batches up to `position`, which is durable here, have been brought to where they go: their
    /// files are used again.
    ///
    /// # Errors
    /// `NoSpace` and `Io`: nothing is lost, and opening it shows batches that were brought.
    pub fn retire(&self, position: Position) -> Result<(), EngineError> {
        self.note(position, position)?;
        self.log.retire(self.log.generation_after(position))
    }

    /// Newest position.
    pub fn position(&self) -> Position {
        self.log.appended()
    }

    /// Keeps a file ready and an eye on free space until [`LocalLog::stop`]. For a thread of its
    /// own.
    pub fn keep(&self) {
        self.log.keep();
    }

    /// Ends [`LocalLog::keep`].
    pub fn stop(&self) {
        self.log.stop();
    }

    /// Bytes of all its files.
    pub fn disk_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }

    /// Bytes appended since it was opened.
    pub fn appended_bytes(&self) -> u64 {
        self.log.appended_bytes()
    }
}

#[cfg(test)]
mod tests {
    use kestrel_testkit::rng::Rng;
    use kestrel_types::key::{Key, Table};

    use super::*;
    use crate::disk::sim::{Fate, SimDisk};

    const UUID: Uuid = [7; 16];

    struct Chance(Rng, u64);

    impl Fate for Chance {
        fn names(&mut self, changes: usize) -> usize {
            self.0.below(changes as u64 + 1) as usize
        }

        fn sector(&mut self) -> bool {
            self.0.percent(self.1)
        }
    }

    fn batch(number: u64, bytes: usize) -> Vec<Mutation> {
        let key = Key::new(Table::Entry, number, b"name");
        vec![Mutation { key, value: Some(vec![number as u8; bytes].into()) }]
    }

    fn no_hook() -> BeforeSync {
        Arc::new(|| Ok(()))
    }

    /// After a power cut at any moment the log has all that was synced and nothing that was not
    /// appended, in order; batches that were brought away may be shown again.
    #[test]
    fn power_cuts_by_seeds() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut disk = SimDisk::new(None);
            let base = rng.below(1000);
            drop(LocalLog::create_on(Arc::new(disk.clone()), UUID, base, 0).unwrap());
            let (mut brought, mut synced, mut appended) = (base, base, base);
            for _ in 0..6 {
                let opened = LocalLog::open_on(Arc::new(disk.clone()), UUID, 0, &mut |_| true);
                if let Ok((log, batches)) = opened {
                    let found: Vec<Position> = batches.iter().map(|one| one.position).collect();
                    let first = found.first().copied().unwrap_or(log.position() + 1);
                    assert!(first <= brought + 1, "seed {seed}: {first} after {brought}");
                    assert!(found.is_sorted_by(|a, b| a + 1 == *b), "seed {seed}: {found:?}");
                    assert!(log.position() >= synced, "seed {seed}: something was lost");
                    assert!(log.position() <= appended, "seed {seed}: something was invented");
                    for one in &batches {
                        let bytes = one.mutations[0].value.as_ref().unwrap().len();
                        assert_eq!(one.mutations, batch(one.position, bytes), "seed {seed}");
                    }
                    appended = log.position();
                    disk.power_off_after(rng.below(60));
                    for _ in 0..rng.below(80) {
                        match rng.below(4) {
                            0 => synced = log.sync(&no_hook()).unwrap_or(synced),
                            1 if synced > brought => {
                                let upto = rng.range(brought, synced + 1);
                                let _ = log.retire(upto);
                                brought = upto;
                            }
                            _ => {
                                let bytes = [10, 700, 2900][rng.below(3) as usize];
                                appended += 1;
                                let done = log.append(BatchKind::Growing, &batch(appended, bytes));
                                if done.is_err() {
                                    break;
                                }
                            }
                        }
                    }
                    log.stop();
                }
                let percent = rng.below(101);
                disk = disk.after_power_loss(&mut Chance(Rng::new(rng.next_u64()), percent));
            }
        }
    }

    /// What was synced and is damaged before the end of the log is an error that names the file; a
    /// torn end is cut.
    #[test]
    fn damage_before_and_at_the_end() {
        let disk = SimDisk::new(None);
        let log = LocalLog::create_on(Arc::new(disk.clone()), UUID, 5, 0).unwrap();
        for number in 6..10 {
            log.append(BatchKind::Growing, &batch(number, 100)).unwrap();
        }
        assert_eq!(log.sync(&no_hook()), Ok(9));
        log.append(BatchKind::Growing, &batch(10, 100)).unwrap();
        let name = disk.list().unwrap().into_iter().find(|name| name.ends_with(".log")).unwrap();
        let open = |at: usize| {
            let disk = disk.after_kill();
            disk.damage(&name, |bytes| bytes[at] ^= 1);
            LocalLog::open_on(Arc::new(disk), UUID, 0, &mut |_| true).map(|(log, _)| log.position())
        };
        // Five batches of 152 bytes each, and the mark of the sync before the last.
        assert!(matches!(open(4096 + 200), Err(EngineError::Corrupt(why)) if why.contains(&name)));
        assert_eq!(open(4096 + 4 * 152 + 32 + 60), Ok(9));
        let other = LocalLog::open_on(Arc::new(disk.after_kill()), [8; 16], 0, &mut |_| true);
        assert!(matches!(other.map(drop), Err(EngineError::Refused(_))));
    }
}
