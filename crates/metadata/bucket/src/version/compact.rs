//! Compaction: the rows of a version become another version with one run of tables, by any number
//! of workers that share nothing but the store (`docs/format/versions.md`, "Compaction").
//!
//! A *plan* cuts the keys into partitions of about the same size ([`CompactionPlan`]). A worker
//! claims a partition by a conditional put, reads the rows of just that range from all runs, and
//! writes them as tables, so that no row is written twice. The record that a partition is done is
//! made once, whatever number of workers have written its tables. The worker that finds all
//! partitions done publishes the version.
//!
//! Of a version that a job made the rows of all versions below it are read as one. What it is made
//! into has no need of their tables, and names them all the same, as *hollow* layers: their numbers
//! stay in use, and their jobs have the file data.
//!
//! A claim that its worker does not renew is taken over by another worker. Each takeover has a
//! number of its own, which is part of the numbers of its tables: two workers that take each other
//! for dead never write the same object.
//!
//! | module | what it has |
//! | --- | --- |
//! | `plan` | [`CompactionPlan`], and what is recorded of each partition |
//! | `worker` | [`CompactionWorker`]: claims and writes partitions |
//! | `sealed` | JSON objects with a checksum |
//!
//! [`Compaction::begin`] records a plan, [`Compaction::find`] finds one by the name that its
//! version is to have, and [`Compaction::finish`] publishes that version.

mod plan;
mod sealed;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use kestrel_engine::EngineError;
use kestrel_types::crash;

pub use plan::{CompactionPlan, PARTITIONS_MAX};
use plan::{PartitionRecord, Task, object_of};
pub use worker::{CompactionWorker, WorkEnd};

use super::aliases::copy_aliases;
use super::registry::{PLANS, VersionRegistry};
use super::{VersionManifest, VersionReader, WRITER, damaged};
use super::{VersionPlace, failed};
use crate::health::read_checked;
use crate::table::{TableIdentity, TableRecord, is_run};

/// Bytes of a partition if no number of partitions is asked for: less than a table takes, so that
/// each is one table.
const PARTITION_BYTES: u64 = 24 << 20;

/// Threads that read records of partitions.
const READERS: usize = 8;

/// A compaction that is under way.
pub struct Compaction<'a> {
    registry: &'a VersionRegistry,
    plan: CompactionPlan,
}

/// What is compacted, and how.
pub struct CompactionOrder<'a> {
    /// What is compacted.
    pub input: &'a VersionManifest,
    /// The name of the version that is made.
    pub into: &'a str,
    /// Its identity, random. The object of its writer is there, and a tag holds the snapshot.
    pub id: super::VersionId,
    /// When the compaction began, nanoseconds since 1970.
    pub created: i64,
    /// The user that compacts it.
    pub user: u32,
    /// Number of partitions; by default one for so many bytes as a table has.
    pub partitions: Option<usize>,
    /// A worker that was not heard of for so long is taken for dead.
    pub patience: Duration,
}

/// What became of a compaction with all partitions done.
#[derive(Debug)]
pub enum CompactionEnd {
    /// The version is there.
    Published(Box<VersionManifest>),
    /// Another version has its name. What was written is left over.
    Taken,
    /// It has ended already: another worker has published it, or it was cleaned up.
    Over,
}

/// The error of a call to the store.
fn failed_at<'r>(
    registry: &'r VersionRegistry,
) -> impl Fn(kestrel_blockstore::error::Error) -> EngineError + 'r {
    |why| failed(&**registry.place().store(), &why)
}

impl<'a> Compaction<'a> {
    /// The compaction into a version of this name, if one is under way.
    ///
    /// # Errors
    /// `Refused` for a newer format and another volume's; `Corrupt`; the store's.
    pub fn find(registry: &'a VersionRegistry, into: &str) -> Result<Option<Self>, EngineError> {
        let found = read_plan(registry, into)?;
        let Some((plan, _)) = found else { return Ok(None) };
        // What `clean` has removed is no compaction any more.
        let compaction = Self { registry, plan };
        Ok(compaction.is_written()?.then_some(compaction))
    }

    /// Records the plan of a compaction; `None`: another process has begun one into a version of
    /// that name meanwhile.
    ///
    /// # Errors
    /// The store's, and those of reading the input's indexes.
    pub fn begin(
        registry: &'a VersionRegistry,
        order: &CompactionOrder<'_>,
    ) -> Result<Option<Self>, EngineError> {
        let reader = VersionReader::new(registry.place(), order.input, 0)?;
        let usual = reader.table_bytes().div_ceil(PARTITION_BYTES);
        let usual = usize::try_from(usual).unwrap_or(PARTITIONS_MAX);
        let partitions = order.partitions.unwrap_or(usual).clamp(1, PARTITIONS_MAX);
        let plan = CompactionPlan::new(registry.volume(), order, reader.cuts(partitions)?);
        let (store, failed) = (registry.place().store(), failed_at(registry));
        let (name, bytes) = (object_of(order.into), Bytes::from(plan.encode()?));
        let made = match read_plan(registry, order.into)? {
            None => store.create(&name, bytes).map_err(failed)?,
            Some((old, tag)) => {
                if (Self { registry, plan: old }).is_written()? {
                    return Ok(None);
                }
                store.replace(&name, bytes, &tag).map_err(failed)?.is_some()
            }
        };
        crash::point("compact.planned");
        let compaction = Self { registry, plan };
        if made && registry.find(order.into)?.is_some() {
            // Another process has published it meanwhile, and its plan was gone by then.
            compaction.remove_plan()?;
            return Ok(None);
        }
        Ok(made.then_some(compaction))
    }

    /// What is done.
    pub fn plan(&self) -> &CompactionPlan {
        &self.plan
    }

    /// Numbers of partitions that are done and of all.
    ///
    /// # Errors
    /// The store's.
    pub fn progress(&self) -> Result<(usize, usize), EngineError> {
        let tasks = self.tasks()?;
        let done = tasks.iter().filter(|task| **task == Task::Done).count();
        Ok((done, tasks.len()))
    }

    /// Whether the object is there by which `clean` knows that a version is being written.
    fn is_written(&self) -> Result<bool, EngineError> {
        let store = self.registry.place().store();
        let writer = VersionPlace::part_of(&self.plan.id(), WRITER);
        Ok(store.read(&writer).map_err(failed_at(self.registry))?.is_some())
    }

    /// Whether the compaction has not ended.
    ///
    /// # Errors
    /// The store's, and those of a damaged plan.
    pub fn is_planned(&self) -> Result<bool, EngineError> {
        let found = read_plan(self.registry, self.plan.target())?;
        Ok(found.is_some_and(|(plan, _)| plan.id() == self.plan.id()))
    }

    /// What is recorded of each partition.
    fn tasks(&self) -> Result<Vec<Task>, EngineError> {
        let store = self.registry.place().store();
        let found = store.list(&self.plan.tasks()).map_err(failed_at(self.registry))?;
        let mut tasks = vec![Task::Free; self.plan.partitions()];
        for (name, _) in found {
            if let Some((partition, task)) = self.plan.task_of(&name)
                && let Some(place) = tasks.get_mut(partition)
            {
                *place = (*place).max(task);
            }
        }
        Ok(tasks)
    }

    /// Publishes the version, if all partitions are done: one process after the other may try.
    ///
    /// # Errors
    /// The store's; `Corrupt` if records of partitions are damaged, or contradict the input.
    pub fn finish(&self, input: &VersionManifest) -> Result<CompactionEnd, EngineError> {
        let Some(records) = self.records()? else { return Ok(CompactionEnd::Over) };
        let manifest = self.manifest(input, records)?;
        self.remove_strays(&manifest)?;
        let aliases = input.changes().map_or(0, |changes| changes.base.aliases);
        copy_aliases(self.registry.place(), &input.id_bytes(), &self.plan.id(), aliases)?;
        if !self.registry.publish(&manifest)? {
            // What was written is left over then. It is not removed here: if the version was
            // published by another worker and renamed since, it is the version's.
            self.remove_plan()?;
            return Ok(CompactionEnd::Taken);
        }
        crash::point("compact.named");
        Self::tidy(self.registry, &manifest)?;
        Ok(CompactionEnd::Published(Box::new(manifest)))
    }

    /// Removes what was recorded of a compaction of which the version is there.
    ///
    /// # Errors
    /// The store's, and those of a damaged plan.
    pub fn tidy(registry: &VersionRegistry, version: &VersionManifest) -> Result<(), EngineError> {
        let (id, store) = (version.id_bytes(), registry.place().store());
        // In this order: a worker that finds a partition free finds no plan.
        if read_plan(registry, &version.name)?.is_some_and(|(plan, _)| plan.id() == id) {
            store.remove(&object_of(&version.name)).map_err(failed_at(registry))?;
        }
        for (name, _) in store.list(&plan::tasks_of(&id)).map_err(failed_at(registry))? {
            store.remove(&name).map_err(failed_at(registry))?;
        }
        Ok(())
    }

    fn remove_plan(&self) -> Result<(), EngineError> {
        let removed = self.registry.place().store().remove(&object_of(self.plan.target()));
        removed.map_err(failed_at(self.registry))
    }

    /// The version that the records of all partitions make.
    fn manifest(
        &self,
        input: &VersionManifest,
        records: Vec<PartitionRecord>,
    ) -> Result<VersionManifest, EngineError> {
        let plan = &self.plan;
        let bad = |why: &str| damaged(&format!("compaction into version {}", plan.target()), why);
        let id = plan.id();
        let source = input.source.clone();
        let made = VersionManifest::new(plan.target(), self.registry.volume(), &id, source);
        let made = made.with_inputs(vec![plan.input().clone()]);
        let made = made.and_then(|made| match input.hollow() {
            Some(changes) => made.with_changes(changes),
            None => Ok(made),
        });
        let mut made = made.map_err(EngineError::Refused)?;
        (made.created, made.user, made.figures) = (plan.created(), plan.user(), input.figures);
        made.rows = records.iter().map(|record| record.rows).sum();
        let run: Vec<TableRecord> = records.into_iter().flat_map(|record| record.tables).collect();
        if !is_run(&run) || run.iter().map(|table| table.rows).sum::<u64>() != made.rows {
            return Err(bad("the records of its partitions contradict each other"));
        }
        if VersionReader::rows_of(input).is_some_and(|rows| rows != made.rows) {
            return Err(bad(&format!("it has {} rows, and its input {}", made.rows, input.rows)));
        }
        made.runs = if run.is_empty() { Vec::new() } else { vec![run] };
        Ok(made)
    }

    /// The records of all partitions; `None`: one is missing.
    fn records(&self) -> Result<Option<Vec<PartitionRecord>>, EngineError> {
        let (count, next) = (self.plan.partitions(), AtomicUsize::new(0));
        let read = || -> Result<Vec<(usize, PartitionRecord)>, EngineError> {
            let mut found = Vec::new();
            loop {
                let partition = next.fetch_add(1, Ordering::Relaxed);
                if partition >= count {
                    return Ok(found);
                }
                let Some(record) = self.record(partition)? else { return Ok(found) };
                found.push((partition, record));
            }
        };
        let parts: Vec<_> = thread::scope(|scope| {
            let threads = count.min(READERS);
            let reading: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            let done = reading.into_iter().map(|thread| {
                let why = || EngineError::Io("reading records: a thread panicked".into());
                thread.join().unwrap_or_else(|_| Err(why()))
            });
            done.collect()
        });
        let mut found: Vec<(usize, PartitionRecord)> = Vec::with_capacity(count);
        for part in parts {
            found.extend(part?);
        }
        found.sort_unstable_by_key(|(partition, _)| *partition);
        let is_whole = found.len() == count;
        Ok(is_whole.then(|| found.into_iter().map(|(_, record)| record).collect()))
    }

    fn record(&self, partition: usize) -> Result<Option<PartitionRecord>, EngineError> {
        let name = self.plan.done(partition);
        let decode = |found: &kestrel_blockstore::named::NamedObject| {
            sealed::open::<PartitionRecord>(&name, &found.bytes)
        };
        let found = read_checked(&**self.registry.place().store(), &name, decode)?;
        Ok(found.map(|(record, _)| record))
    }

    /// Removes tables of workers that were taken for dead.
    fn remove_strays(&self, manifest: &VersionManifest) -> Result<(), EngineError> {
        let id = self.plan.id();
        let of = |table: &TableRecord| {
            let identity = TableIdentity { uuid: id, node: super::NODE, id: table.id };
            VersionPlace::part_of(&id, &identity.name())
        };
        let named: std::collections::HashSet<String> =
            manifest.runs.iter().flatten().map(of).collect();
        let store = self.registry.place().store();
        let tables = format!("{}{}", VersionPlace::prefix_of(&id), crate::table::TABLES);
        for (name, _) in store.list(&tables).map_err(failed_at(self.registry))? {
            if !named.contains(&name) {
                store.remove(&name).map_err(failed_at(self.registry))?;
            }
        }
        Ok(())
    }
}

/// The plan of a compaction into a version of this name, and the tag of its object.
fn read_plan(
    registry: &VersionRegistry,
    into: &str,
) -> Result<Option<(CompactionPlan, String)>, EngineError> {
    let decode = |found: &kestrel_blockstore::named::NamedObject| {
        CompactionPlan::decode(into, registry.volume(), &found.bytes)
    };
    let found = read_checked(&**registry.place().store(), &object_of(into), decode)?;
    Ok(found.map(|(plan, object)| (plan, object.tag)))
}

/// Removes plans of compactions that were cleaned up, and damaged ones.
///
/// # Errors
/// The store's.
pub fn remove_old_plans(registry: &VersionRegistry) -> Result<(), EngineError> {
    let store = registry.place().store();
    for (object, _) in store.list(PLANS).map_err(failed_at(registry))? {
        let Some(into) = plan::into_of(&object) else { continue };
        let is_old = match Compaction::find(registry, &into) {
            Ok(found) => found.is_none(),
            Err(EngineError::Corrupt(_)) => true,
            Err(EngineError::Refused(_)) => false,
            Err(why) => return Err(why),
        };
        if is_old {
            store.remove(&object).map_err(failed_at(registry))?;
        }
    }
    Ok(())
}

/// The version was removed meanwhile.
fn cleaned_up() -> EngineError {
    EngineError::Io(
        "the compaction was taken for one that has ended, and was cleaned up; begin it again"
            .into(),
    )
}

/// Says that a version is still being written, in the name of a worker.
fn beat(registry: &VersionRegistry, id: &super::VersionId, text: &str) -> Result<(), EngineError> {
    let store = registry.place().store();
    let name = VersionPlace::part_of(id, WRITER);
    let found = store.read(&name).map_err(failed_at(registry))?.ok_or_else(cleaned_up)?;
    let bytes = Bytes::from(text.to_string());
    let put = store.replace(&name, bytes, &found.tag).map_err(failed_at(registry))?;
    // Another worker was faster, or it was removed.
    if put.is_none() && store.read(&name).map_err(failed_at(registry))?.is_none() {
        return Err(cleaned_up());
    }
    Ok(())
}
