//! Jobs: namespaces that are being made on versions, and become one when they are published
//! (`docs/format/versions.md`, "Jobs").
//!
//! A job has a record, by which any machine finds it and goes on with it, and rows of its own, as
//! those of a volume in a bucket, above the rows of its inputs. Its record has all that is to be
//! known of what is below, so that nothing that becomes of its inputs' names matters to it.

mod servers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::named::{BelowNamed, NamedObject, NamedStore};
use kestrel_engine::row_cache::Bytes;
use kestrel_engine::{BeforeSync, EngineError};
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::JOBS_MAX;
use kestrel_types::key::Table;
use serde::{Deserialize, Serialize};

pub use self::servers::JobServers;
use super::manifest::{JobBase, VersionInput};
use super::{VersionId, VersionPlace, check_name, damaged, failed, has_identity};
use crate::document::{self, Document};
use crate::health::read_checked;
use crate::recover;
use crate::tree::{Merged, SourceRow, Tree};
use crate::{BucketEngine, BucketOptions, Uuid, url};

/// What every record of a job begins with.
const MAGIC: &str = "kestrelfs-job";

/// Version of the format of records that any program reads.
const FORMAT: u32 = 1;

/// The same of those that have several servers, or are about ranks.
const FORMAT_MORE: u32 = 2;

/// Where the records are.
const JOBS: &str = "job/";

/// Where is noted which job is the log of which rank.
const RANKS: &str = "rank/";

/// The object with the number of the next job, in decimal digits.
const NEXT: &str = "job-next";

/// How long a job waits for a store that does not answer, before what it was asked fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// The node in the names of a job's rows.
const ROWS_NODE: u32 = 0;

/// What a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    magic: String,
    format: u32,
    /// Identity of the volume, 32 hexadecimal digits.
    pub volume: String,
    /// Identity of the job, and of the version that it becomes, 32 hexadecimal digits.
    pub id: String,
    /// The name that the version gets.
    pub name: String,
    /// When it was begun, nanoseconds since 1970.
    pub created: i64,
    /// The user that began it.
    pub user: u32,
    /// The machine and process that began it, for people.
    pub begun_by: String,
    /// What its user named as inputs, the most important one first.
    pub inputs: Vec<VersionInput>,
    /// All that is below, with the number of the job.
    pub base: JobBase,
    /// What this is the log of a rank of; none: it is a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<RankOf>,
    /// The logs of ranks are being merged: no rank joins or ends any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// The servers that share it, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<JobServers>,
    /// CRC-32C, eight hexadecimal digits, of this document with this field empty.
    checksum: String,
}

/// A rank of a job: a process that logs its changes for itself. Its log is a job that becomes a
/// layer of the other one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankOf {
    /// Number of the job.
    pub job: u32,
    /// Identity of the job, 32 hexadecimal digits.
    pub id: String,
    /// The rank.
    pub rank: u32,
    /// The log is changed through a mount, by a metadata node.
    pub mounted: bool,
}

impl Document for JobRecord {
    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

impl JobRecord {
    /// That of a job on `base`.
    pub fn new(
        (volume, id): (&Uuid, &VersionId),
        name: &str,
        inputs: Vec<VersionInput>,
        base: JobBase,
    ) -> Self {
        Self {
            magic: MAGIC.into(),
            format: FORMAT,
            volume: to_hex(volume),
            id: to_hex(id),
            name: name.into(),
            created: 0,
            user: 0,
            begun_by: String::new(),
            inputs,
            base,
            rank: None,
            sealed: false,
            servers: None,
            checksum: String::new(),
        }
    }

    /// The same with several servers.
    #[must_use]
    pub fn with_servers(self, servers: JobServers) -> Self {
        Self { servers: Some(servers), ..self }
    }

    /// Number of the job.
    pub fn number(&self) -> u32 {
        self.base.job
    }

    /// Its identity as bytes.
    pub fn id_bytes(&self) -> VersionId {
        // `decode` lets no other length through, and `new` makes none.
        from_hex(&self.id).and_then(|id| id.try_into().ok()).unwrap_or_default()
    }

    fn encode(&self) -> Vec<u8> {
        document::encode(&Self { format: self.least_format(), ..self.clone() })
    }

    fn least_format(&self) -> u32 {
        match self.servers.is_some() || self.rank.is_some() || self.sealed {
            true => FORMAT_MORE,
            false => FORMAT,
        }
    }

    fn decode(number: u32, volume: &Uuid, bytes: &[u8]) -> Result<Self, EngineError> {
        let what = format!("job {number}: its record");
        let bad = |why: &str| damaged(&what, why);
        let format = document::head(bytes, &bad)?;
        if format.magic != MAGIC {
            return Err(EngineError::Refused(format!("{what} is not one of KestrelFS")));
        }
        if ![FORMAT, FORMAT_MORE].contains(&format.format) {
            return Err(EngineError::Refused(format!(
                "{what} has format {}, which is not known to this program; use a newer one",
                format.format
            )));
        }
        let found: Self = document::decode(bytes, &bad)?;
        if found.format != found.least_format() {
            return Err(bad("its format and what is in it do not belong together"));
        }
        if found.number() != number {
            return Err(bad("it is that of another job"));
        }
        if found.volume != to_hex(volume) {
            return Err(EngineError::Refused(format!("{what} belongs to another volume")));
        }
        if from_hex(&found.id).is_none_or(|id| id.len() != 16) || check_name(&found.name).is_err() {
            return Err(bad("it has no identity or name"));
        }
        found.base.check().map_err(|why| bad(&why))?;
        Ok(found)
    }
}

/// The jobs of a volume that are neither published nor aborted.
pub struct JobRegistry {
    place: VersionPlace,
    volume: Uuid,
}

fn object_of(number: u32) -> String {
    format!("{JOBS}{number:08x}")
}

/// What the names of objects begin with that say which job is the log of which rank.
fn ranks_of(job: u32) -> String {
    format!("{RANKS}{job:08x}/")
}

fn rank_of(job: u32, rank: u32) -> String {
    format!("{}{rank:08x}", ranks_of(job))
}

impl JobRegistry {
    /// Those of this volume.
    pub fn new(place: VersionPlace, volume: Uuid) -> Self {
        Self { place, volume }
    }

    /// Where they are.
    pub fn place(&self) -> &VersionPlace {
        &self.place
    }

    fn failed(&self, why: &kestrel_blockstore::error::Error) -> EngineError {
        failed(&**self.place.store(), why)
    }

    /// A number that no job had or will have.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn take_number(&self) -> Result<u32, EngineError> {
        let store = self.place.store();
        loop {
            let found = store.read(NEXT).map_err(|why| self.failed(&why))?;
            let number = match &found {
                None => 1,
                Some(found) => std::str::from_utf8(&found.bytes)
                    .ok()
                    .and_then(|digits| digits.parse().ok())
                    .filter(|number| *number > 0)
                    .ok_or_else(|| damaged(NEXT, "it is no number"))?,
            };
            if number > JOBS_MAX {
                return Err(EngineError::Refused(format!(
                    "the volume has had {JOBS_MAX} jobs, and there are no more numbers for one"
                )));
            }
            let next = bytes::Bytes::from((number + 1).to_string());
            // Several processes may write the same next number: a lost answer is not told from
            // another process's put, so the number is taken by a put that others cannot make.
            let is_taken = match found {
                None => store.create(NEXT, next).map_err(|why| self.failed(&why))?,
                Some(found) => {
                    let put = store.replace(NEXT, next, &found.tag);
                    put.map_err(|why| self.failed(&why))?.is_some()
                }
            };
            if is_taken && self.claim(number)? {
                return Ok(number);
            }
        }
    }

    /// Whether this process is the first one that takes a number.
    fn claim(&self, number: u32) -> Result<bool, EngineError> {
        let nonce: [u8; 16] = recover::random_bytes();
        let text = bytes::Bytes::from(to_hex(&nonce));
        let name = format!("{}-number", object_of(number));
        self.place.store().create(&name, text).map_err(|why| self.failed(&why))
    }

    /// Writes the record of a new job, with a number that was taken.
    ///
    /// # Errors
    /// The store's, and `Io` if there is one already.
    pub fn add(&self, record: &JobRecord) -> Result<(), EngineError> {
        let name = object_of(record.number());
        let made = self.place.store().create(&name, record.encode().into());
        match made.map_err(|why| self.failed(&why))? {
            true => Ok(()),
            false => Err(EngineError::Io(format!("there is a job {} already", record.number()))),
        }
    }

    /// The job of a number, if it is there.
    ///
    /// # Errors
    /// The store's, `Corrupt`, and `Refused` for a newer format and another volume's.
    pub fn find(&self, number: u32) -> Result<Option<JobRecord>, EngineError> {
        let decode = |found: &NamedObject| JobRecord::decode(number, &self.volume, &found.bytes);
        let found = read_checked(&**self.place.store(), &object_of(number), decode)?;
        Ok(found.map(|(record, _)| record))
    }

    /// Replaces the record of a job, unless it has changed: false then.
    ///
    /// # Errors
    /// The store's, and those of a record that cannot be read.
    pub fn replace(&self, before: &JobRecord, after: &JobRecord) -> Result<bool, EngineError> {
        let (number, name) = (before.number(), object_of(before.number()));
        loop {
            let decode =
                |found: &NamedObject| JobRecord::decode(number, &self.volume, &found.bytes);
            let found = read_checked(&**self.place.store(), &name, decode)?;
            match found {
                Some((found, object)) if found.encode() == before.encode() => {
                    let put = self.place.store().replace(&name, after.encode().into(), &object.tag);
                    if put.map_err(|why| self.failed(&why))?.is_some() {
                        return Ok(true);
                    }
                    // The answer of an earlier put may be lost.
                }
                Some((found, _)) => return Ok(found.encode() == after.encode()),
                None => return Ok(false),
            }
        }
    }

    /// Gives the log of a rank to the job of this number, unless it has one: the number of that
    /// which has it.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn claim_rank(&self, job: u32, rank: u32, log: u32) -> Result<u32, EngineError> {
        let (store, name) = (self.place.store(), rank_of(job, rank));
        let text = bytes::Bytes::from(log.to_string());
        if store.create(&name, text).map_err(|why| self.failed(&why))? {
            return Ok(log);
        }
        let found = self.rank_log(job, rank)?;
        found.ok_or_else(|| EngineError::Io(format!("job {job} has ended meanwhile")))
    }

    /// The number of the job that is the log of a rank, if it has one.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn rank_log(&self, job: u32, rank: u32) -> Result<Option<u32>, EngineError> {
        let name = rank_of(job, rank);
        let decode = |found: &NamedObject| {
            let digits = std::str::from_utf8(&found.bytes).ok();
            let number = digits.and_then(|digits| digits.parse().ok());
            number.ok_or_else(|| damaged(&name, "it is no number"))
        };
        let found = read_checked(&**self.place.store(), &name, decode)?;
        Ok(found.map(|(number, _)| number))
    }

    /// Ranks of a job that have logs, in order, and the numbers of these.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn ranks(&self, job: u32) -> Result<Vec<(u32, u32)>, EngineError> {
        let below = ranks_of(job);
        let found = self.place.store().list(&below).map_err(|why| self.failed(&why))?;
        let mut ranks = Vec::new();
        for (name, _) in found {
            let digits = name.strip_prefix(&below).unwrap_or_default();
            let Ok(rank) = u32::from_str_radix(digits, 16) else { continue };
            if let Some(log) = self.rank_log(job, rank)? {
                ranks.push((rank, log));
            }
        }
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// Forgets that a rank has a log.
    ///
    /// # Errors
    /// The store's.
    pub fn forget_rank(&self, job: u32, rank: u32) -> Result<(), EngineError> {
        self.place.store().remove(&rank_of(job, rank)).map_err(|why| self.failed(&why))
    }

    /// Whether a record, which may be damaged or newer, has an identity in it.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn has_identity(&self, number: u32, id: &str) -> Result<bool, EngineError> {
        let found = self.place.store().read(&object_of(number)).map_err(|why| self.failed(&why))?;
        Ok(found.is_some_and(|found| has_identity(&found.bytes, id)))
    }

    /// Numbers of all jobs, in order.
    ///
    /// # Errors
    /// The store's.
    pub fn numbers(&self) -> Result<Vec<u32>, EngineError> {
        let found = self.place.store().list(JOBS).map_err(|why| self.failed(&why))?;
        let number = |(name, _): (String, u64)| {
            let digits = name.strip_prefix(JOBS)?;
            let number = u32::from_str_radix(digits, 16).ok()?;
            (object_of(number) == name).then_some(number)
        };
        let mut numbers: Vec<u32> = found.into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Forgets a job. Its rows and objects are for the caller to remove.
    ///
    /// # Errors
    /// The store's.
    pub fn remove(&self, number: u32) -> Result<(), EngineError> {
        for name in [object_of(number), format!("{}-number", object_of(number))] {
            self.place.store().remove(&name).map_err(|why| self.failed(&why))?;
        }
        Ok(())
    }

    /// Forgets all jobs, and the number of the next one.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn remove_all(&self) -> Result<(), EngineError> {
        let store = self.place.store();
        for below in [RANKS, JOBS] {
            for (name, _) in store.list(below).map_err(|why| self.failed(&why))? {
                store.remove(&name).map_err(|why| self.failed(&why))?;
            }
        }
        store.remove(NEXT).map_err(|why| self.failed(&why))
    }

    /// Where the rows of a job are.
    fn rows_of(&self, record: &JobRecord) -> Arc<dyn NamedStore> {
        self.rows_at(&record.id_bytes())
    }

    fn rows_at(&self, job: &VersionId) -> Arc<dyn NamedStore> {
        let prefix = VersionPlace::prefix_of(job);
        Arc::new(BelowNamed::new(self.place.store().clone(), prefix))
    }

    /// The process that has a job open, in words, if there is one.
    ///
    /// # Errors
    /// The store's.
    pub fn holder(&self, record: &JobRecord) -> Result<Option<String>, EngineError> {
        recover::holder_in(&*self.rows_of(record), ROWS_NODE)
    }

    /// Makes the rows of a new job, which has none.
    ///
    /// # Errors
    /// The store's.
    pub fn create_rows(&self, record: &JobRecord) -> Result<(), EngineError> {
        recover::create_in(&*self.rows_of(record), &record.id_bytes(), ROWS_NODE, false)
    }

    /// Removes the rows of a job, without what its version has.
    ///
    /// # Errors
    /// The store's.
    pub fn remove_rows(&self, job: &VersionId) -> Result<(), EngineError> {
        self.remove_rows_below(job, url::ROOT)
    }

    fn remove_rows_below(&self, job: &VersionId, below: &str) -> Result<(), EngineError> {
        let rows = self.rows_at(job);
        for (name, _) in rows.list(below).map_err(|why| self.failed(&why))? {
            rows.remove(&name).map_err(|why| self.failed(&why))?;
        }
        Ok(())
    }

    /// Opens the rows of a job above those of its inputs, and claims them. `before_sync` as for
    /// [`BucketEngine::open`].
    ///
    /// # Errors
    /// As for [`BucketEngine::open`], and those of the versions below.
    pub fn open(
        &self,
        record: &JobRecord,
        options: BucketOptions,
        before_sync: BeforeSync,
    ) -> Result<BucketEngine, EngineError> {
        self.open_server(record, (ROWS_NODE, None), options, before_sync)
    }
}

/// The rows that a job has changed, in order.
pub struct JobChanges<'a>(Merged<&'a Tree>);

impl JobChanges<'_> {
    /// The next one; without a value: it is deleted.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn next_row(&mut self) -> Result<Option<SourceRow>, EngineError> {
        self.0.next_row()
    }
}

impl BucketEngine {
    /// The rows that a job has changed. What is not durable yet is not among them.
    pub fn changes(&self) -> JobChanges<'_> {
        self.changes_in((&[], &[u8::MAX; 2]))
    }

    fn changes_in(&self, range: (&[u8], &[u8])) -> JobChanges<'_> {
        let tree: &Tree = &self.shared.tree;
        JobChanges(Merged::over_own(&tree, &tree.view(), range))
    }

    /// Shows the rows that a job has changed, in order; without a value: it has deleted the row.
    /// What is not durable yet is not among them.
    ///
    /// # Errors
    /// Those of `visit`, the store's and `Corrupt`.
    pub fn visit_changes(
        &self,
        visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.visit_own((&[], &[u8::MAX; 2]), visit)
    }

    /// The same of one table.
    ///
    /// # Errors
    /// As for [`BucketEngine::visit_changes`].
    pub fn visit_table(
        &self,
        table: Table,
        visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.visit_own((&[table as u8], &[table as u8 + 1]), visit)
    }

    fn visit_own(
        &self,
        (from, to): (&[u8], &[u8]),
        mut visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut rows = self.changes_in((from, to));
        while let Some((key, value)) = rows.next_row()? {
            visit(&key, value.as_deref())?;
        }
        Ok(())
    }

    /// What the versions below a job have for a key.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn row_below(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        for layer in &*self.shared.tree.view().layers {
            if let Some(found) = layer.get(key)? {
                return Ok(found);
            }
        }
        Ok(None)
    }
}
