//! A worker of a compaction: it claims partitions, and writes the rows of each as tables.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kestrel_engine::EngineError;
use kestrel_types::crash;
use xxhash_rust::xxh3::xxh3_64;

use super::plan::{Claim, PartitionRecord, Task, table_number};
use super::{Compaction, beat, failed_at, sealed};
use crate::health::read_checked;
use crate::table::{TABLE_BYTES, TableIdentity, TableRecord, TableWriter};
use crate::version::VersionPlace;
use crate::version::reader::{StoredRows, VersionSink};
use crate::version::{NODE, VersionManifest, VersionReader, damaged};

/// How often a worker is heard of while others have this much patience.
const BEATS_IN_PATIENCE: u32 = 6;

/// How often a worker says that the version is being written, for `clean`.
const WRITER_BEAT: Duration = Duration::from_secs(60);

/// Time between two looks at what others are doing, at first and at most.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// Rows between two looks at the clock.
const CLOCK_ROWS: u64 = 1 << 12;

/// Bytes of blocks that had to be read once more, which alone are cached.
const CACHE_BYTES: u64 = 1 << 20;

/// A worker. Its name is its own among all processes.
pub struct CompactionWorker<'a> {
    compaction: &'a Compaction<'a>,
    reader: VersionReader,
    name: String,
    /// Partitions that it has written.
    written: usize,
    /// Where it looks for the next one: neighbours share indexes.
    next: usize,
    /// When it has last said that the version is being written, and how often.
    beaten: Option<Instant>,
    beats: u64,
}

/// Why a worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkEnd {
    /// All partitions are done.
    Done,
    /// Another worker has ended the compaction, or it was cleaned up.
    Over,
}

/// A partition that this worker has.
pub struct Claimed {
    partition: usize,
    claim: Claim,
    tag: String,
    /// When the claim was last renewed.
    beaten: Instant,
}

/// The tables of a partition while they are written.
struct PartitionWriter<'w, 'a> {
    worker: &'w mut CompactionWorker<'a>,
    claimed: Claimed,
    table: Option<TableWriter>,
    /// Of the table that is being written, or the next one.
    identity: TableIdentity,
    record: PartitionRecord,
    is_lost: bool,
}

/// Ends a visit of rows: the partition was taken over by another worker.
fn lost() -> EngineError {
    EngineError::Io("another worker has taken the partition over".into())
}

impl<'a> CompactionWorker<'a> {
    /// A worker of this name. Nothing is read yet.
    ///
    /// # Errors
    /// As for [`VersionReader::new`].
    pub fn new(
        compaction: &'a Compaction<'a>,
        input: &VersionManifest,
        name: &str,
    ) -> Result<Self, EngineError> {
        let partitions = compaction.plan.partitions() as u64;
        let next = xxh3_64(name.as_bytes()) % partitions;
        Ok(Self {
            compaction,
            reader: VersionReader::new(compaction.registry.place(), input, CACHE_BYTES)?,
            name: name.into(),
            written: 0,
            // Below the number of partitions.
            next: next as usize,
            beaten: None,
            beats: 0,
        })
    }

    /// Partitions that it has written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Writes partitions until all are done, its own and those of workers that are taken for dead.
    ///
    /// # Errors
    /// The store's; `Corrupt`; `Io` if the compaction was cleaned up, or the input deleted.
    pub fn run(&mut self) -> Result<WorkEnd, EngineError> {
        let longest = LOOK_EVERY_MAX.min(self.compaction.plan.patience() / BEATS_IN_PATIENCE);
        let mut wait = LOOK_EVERY_MIN;
        loop {
            let tasks = self.compaction.tasks()?;
            if tasks.iter().all(|task| *task == Task::Done) {
                return Ok(WorkEnd::Done);
            }
            self.say_written()?;
            match self.claim(&tasks)? {
                // The plan goes before claims and records do: of a compaction that has ended a
                // partition may seem to be free.
                Some(claimed) if !self.compaction.is_planned()? => {
                    let name = self.compaction.plan.claim(claimed.partition);
                    let removed = self.compaction.registry.place().store().remove(&name);
                    removed.map_err(failed_at(self.compaction.registry))?;
                    return Ok(WorkEnd::Over);
                }
                Some(claimed) => {
                    self.write(claimed)?;
                    wait = LOOK_EVERY_MIN;
                }
                None => {
                    wait = wait.min(longest);
                    thread::sleep(wait);
                    wait *= 2;
                }
            }
        }
    }

    /// Says that the version is being written, now and then.
    fn say_written(&mut self) -> Result<(), EngineError> {
        if self.beaten.is_none_or(|beaten| beaten.elapsed() >= WRITER_BEAT) {
            let text = format!("{} of {}", self.beats, self.name);
            beat(self.compaction.registry, &self.compaction.plan.id(), &text)?;
            self.beaten = Some(Instant::now());
            self.beats += 1;
        }
        Ok(())
    }

    /// A partition that is free, else one of a worker that is taken for dead.
    pub(super) fn claim(&mut self, tasks: &[Task]) -> Result<Option<Claimed>, EngineError> {
        let all = (self.next..tasks.len()).chain(0..self.next);
        let of = |state: Task| all.clone().filter(move |partition| tasks[*partition] == state);
        for partition in of(Task::Free) {
            let claim = Claim { worker: self.name.clone(), attempt: 0, beats: 0 };
            let store = self.compaction.registry.place().store();
            let name = self.compaction.plan.claim(partition);
            let made = store.create(&name, Bytes::from(sealed::seal(&claim)?));
            if made.map_err(failed_at(self.compaction.registry))? {
                let found = self.read_claim(partition)?;
                let own = found.filter(|(found, ..)| found.worker == self.name);
                return Ok(own.map(|(claim, tag, _)| self.claimed(partition, claim, tag)));
            }
        }
        for partition in of(Task::Claimed) {
            if let Some(claimed) = self.take_over(partition)? {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    fn claimed(&mut self, partition: usize, claim: Claim, tag: String) -> Claimed {
        crash::point("compact.claimed");
        self.next = partition;
        Claimed { partition, claim, tag, beaten: Instant::now() }
    }

    /// A claim, the tag of its object, and how long its worker has not been heard of.
    fn read_claim(&self, partition: usize) -> Result<Option<(Claim, String, i64)>, EngineError> {
        let name = self.compaction.plan.claim(partition);
        let decode = |found: &kestrel_blockstore::named::NamedObject| {
            sealed::open::<Claim>(&name, &found.bytes)
        };
        let found = read_checked(&**self.compaction.registry.place().store(), &name, decode)?;
        Ok(found.map(|(claim, object)| (claim, object.tag, object.age)))
    }

    /// Takes a partition over from a worker that is taken for dead.
    fn take_over(&mut self, partition: usize) -> Result<Option<Claimed>, EngineError> {
        let Some((old, tag, age)) = self.read_claim(partition)? else { return Ok(None) };
        let patience = self.compaction.plan.patience().as_nanos();
        if u128::try_from(age).unwrap_or(0) < patience {
            return Ok(None);
        }
        let claim = Claim { worker: self.name.clone(), attempt: old.attempt + 1, beats: 0 };
        let put = self.compaction.registry.place().store().replace(
            &self.compaction.plan.claim(partition),
            Bytes::from(sealed::seal(&claim)?),
            &tag,
        );
        let tag = put.map_err(failed_at(self.compaction.registry))?;
        Ok(tag.map(|tag| self.claimed(partition, claim, tag)))
    }

    /// Writes a partition.
    pub(super) fn write(&mut self, claimed: Claimed) -> Result<(), EngineError> {
        let (partition, plan) = (claimed.partition, &self.compaction.plan);
        let range = plan.range(partition);
        let mut writer = PartitionWriter {
            worker: self,
            claimed,
            table: None,
            identity: TableIdentity { uuid: plan.id(), node: NODE, id: 0 },
            record: PartitionRecord { rows: 0, tables: Vec::new() },
            is_lost: false,
        };
        let done = writer.rows(range).and_then(|()| writer.finish());
        let (is_lost, tables) = (writer.is_lost, std::mem::take(&mut writer.record.tables));
        match done {
            Ok(true) => {
                self.written += 1;
                Ok(())
            }
            Err(why) if !is_lost => Err(why),
            // Another worker has the partition, and tables of its own.
            Ok(false) | Err(_) => self.remove(&tables),
        }
    }

    fn remove(&self, tables: &[TableRecord]) -> Result<(), EngineError> {
        let id = self.compaction.plan.id();
        for table in tables {
            let identity = TableIdentity { uuid: id, node: NODE, id: table.id };
            let name = VersionPlace::part_of(&id, &identity.name());
            let removed = self.compaction.registry.place().store().remove(&name);
            removed.map_err(failed_at(self.compaction.registry))?;
        }
        Ok(())
    }
}

impl VersionSink for PartitionWriter<'_, '_> {
    fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let table = self.table.get_or_insert_with(|| TableWriter::new(self.identity));
        table.add(key, Some(value));
        let is_full = table.bytes() >= TABLE_BYTES;
        self.record.rows += 1;
        if is_full {
            self.end_table()?;
        }
        if is_full || self.record.rows.is_multiple_of(CLOCK_ROWS) {
            self.beat()?;
        }
        Ok(())
    }

    fn block(&mut self, rows: StoredRows<'_>) -> Result<(), EngineError> {
        let table = self.table.get_or_insert_with(|| TableWriter::new(self.identity));
        table.add_block(rows.block, rows.stored);
        let is_full = table.bytes() >= TABLE_BYTES;
        self.record.rows += rows.block.rows() as u64;
        if is_full {
            self.end_table()?;
        }
        self.beat()
    }
}

impl PartitionWriter<'_, '_> {
    fn rows(&mut self, range: (&[u8], &[u8])) -> Result<(), EngineError> {
        self.identity = self.next_table()?;
        // The reader is not changed, and `self` is.
        let reader = self.worker.reader.clone();
        reader.visit(range, self)
    }

    /// The identity of the next table.
    fn next_table(&self) -> Result<TableIdentity, EngineError> {
        let (partition, attempt) = (self.claimed.partition, self.claimed.claim.attempt);
        let id = table_number(partition, attempt, self.record.tables.len() as u64)?;
        Ok(TableIdentity { id, ..self.identity })
    }

    fn end_table(&mut self) -> Result<(), EngineError> {
        let Some(table) = self.table.take() else { return Ok(()) };
        let (bytes, record) = table.finish();
        let name = VersionPlace::part_of(&self.identity.uuid, &self.identity.name());
        let registry = self.worker.compaction.registry;
        let made = registry.place().store().create(&name, bytes.into());
        match made.map_err(failed_at(registry))? {
            true => self.record.tables.push(record),
            false => return Err(damaged(&name, "it was not read back as it was written")),
        }
        self.identity = self.next_table()?;
        Ok(())
    }

    /// Renews the claim, now and then.
    fn beat(&mut self) -> Result<(), EngineError> {
        let compaction = self.worker.compaction;
        let every = compaction.plan.patience() / BEATS_IN_PATIENCE;
        if self.claimed.beaten.elapsed() < every {
            return Ok(());
        }
        self.claimed.claim.beats += 1;
        let name = compaction.plan.claim(self.claimed.partition);
        let bytes = Bytes::from(sealed::seal(&self.claimed.claim)?);
        let put = compaction.registry.place().store().replace(&name, bytes, &self.claimed.tag);
        match put.map_err(failed_at(compaction.registry))? {
            Some(tag) => self.claimed.tag = tag,
            None => {
                self.is_lost = true;
                return Err(lost());
            }
        }
        self.claimed.beaten = Instant::now();
        self.worker.say_written()
    }

    /// Records that the partition is done; `false`: another worker has recorded it, or the
    /// compaction has ended.
    fn finish(&mut self) -> Result<bool, EngineError> {
        self.end_table()?;
        crash::point("compact.written");
        let compaction = self.worker.compaction;
        if !compaction.is_planned()? {
            return Ok(false);
        }
        let name = compaction.plan.done(self.claimed.partition);
        let made = compaction.registry.place().store();
        let made = made.create(&name, Bytes::from(sealed::seal(&self.record)?));
        let is_own = made.map_err(failed_at(compaction.registry))?;
        crash::point("compact.recorded");
        Ok(is_own)
    }
}
