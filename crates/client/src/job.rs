//! Jobs: namespaces of their own on published versions, which become versions themselves
//! (`docs/operations/jobs.md`).
//!
//! A job begins with the trees of its inputs, as one. What it changes are rows of its own in the
//! store, above those of the inputs, and objects of its own. Until it is published nobody else sees
//! them. Publishing costs what was changed, however large the inputs are.
//!
//! [`Jobs::begin`] makes a job and its directory on this machine, [`Jobs::resume`] makes that
//! directory on another one. The directory is opened as any volume's is
//! ([`crate::volume::Volume`]), to mount or serve it. [`publish()`] and [`Jobs::abort`] end it.
//!
//! | file | what it has |
//! | --- | --- |
//! | `job/servers.rs` | jobs that several servers share |
//! | `job/gather.rs` | the rows of several servers become those of one |
//! | `job/log.rs` | [`ChangeLog`]: a rank logs what it makes |
//! | `job/ranks.rs` | how ranks join, finish and are merged |
//! | `job/publish.rs` | a job becomes a version |
//! | `job/rows.rs` | its rows as tables of that |
//! | `job/settle.rs` | what is ended before |

use std::fs;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kestrel_blockstore::store::{BlockStore, list_all};
use kestrel_bucket::version::{
    Conflict, JobRegistry, MergedInputs, SettledRow, VersionId, VersionInput, VersionManifest,
    VersionRegistry, merge, write_aliases,
};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::{BatchKind, BeforeSync, Engine, EngineError, Mutation};
use kestrel_meta::node::Node;
use kestrel_meta::ops::usage;
use kestrel_meta::view::decode_dir_id;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{ObjectId, ROOT, job_of_object, objects_of_job};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::request::Usage;

use crate::descriptor::{Descriptor, FILE_NAME, random};
use crate::error::VolumeError;
use crate::state_dir::job_dir;
use crate::storage::{Storage, StoreOptions};
use crate::version::VolumePlace;
use crate::volume::VolumeLock;

mod gather;
mod log;
mod publish;
mod ranks;
mod rows;
mod servers;
mod settle;

pub use self::log::{ChangeLog, LogAttrs, LogDir, LogOptions, SYNC_EVERY_DEFAULT};
pub use self::publish::{PublishedJob, publish};
pub use self::ranks::{MergedRanks, RANKS_MAX, Rank};
pub use self::servers::{JobServer, SERVERS_MAX, server_dir};
pub use kestrel_bucket::version::JobRecord;

/// What a job begins with.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Names of the versions, the most important one first.
    pub inputs: Vec<String>,
    /// The name that the job's version gets.
    pub name: String,
    /// The user that begins it, and owns the root of a job without inputs.
    pub user: u32,
    /// That user's group.
    pub group: u32,
    /// The machine and process that begins it, for people.
    pub begun_by: String,
    /// The addresses of its servers, `host:port`, if they are several: they are numbered from 1 on.
    pub servers: Vec<String>,
}

/// A job on this machine.
#[derive(Debug)]
pub struct BegunJob {
    /// What it is.
    pub record: JobRecord,
    /// Its directory; of a job with several servers that of the directories of those that this
    /// machine serves.
    pub dir: PathBuf,
    /// What its inputs say differently, as far as they are told one by one.
    pub conflicts: Vec<JobConflict>,
    /// How many of these there are.
    pub conflict_count: u64,
}

/// A name that two inputs of a job say different things of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConflict {
    /// Its path from the root, as bytes.
    pub path: Vec<u8>,
    /// The version that the job has it of.
    pub kept: String,
    /// The other one.
    pub hidden: String,
}

/// The number of a job, and its record or why that cannot be read.
pub type ListedJob = (u32, Result<JobRecord, EngineError>);

/// The jobs of a volume.
pub struct Jobs {
    descriptor: Descriptor,
    storage: Storage,
    versions: VersionRegistry,
    jobs: JobRegistry,
}

fn engine(why: EngineError) -> VolumeError {
    VolumeError::engine(why)
}

fn node(why: kestrel_types::error::FsError) -> VolumeError {
    VolumeError::Io(why.to_string())
}

impl Jobs {
    /// Those of the volume that `url` names: a path, or a URL. No process that has the volume open
    /// is asked; a server is asked what the volume is.
    ///
    /// # Errors
    /// If there is no such volume, its store cannot be reached or has no conditional puts.
    pub fn of(url: &str, options: &StoreOptions) -> Result<Self, VolumeError> {
        let VolumePlace { descriptor, storage } = VolumePlace::of(url, options)?;
        let versions = storage.versions_to_publish()?;
        let jobs = JobRegistry::new(versions.place().clone(), *versions.volume());
        Ok(Self { descriptor, storage, versions, jobs })
    }

    /// All jobs that are there; of those with records that cannot be read, why. Logs of ranks are
    /// not among them.
    ///
    /// # Errors
    /// The store's.
    pub fn list(&self) -> Result<Vec<ListedJob>, VolumeError> {
        let mut found = self.list_all()?;
        found.retain(|(_, record)| !record.as_ref().is_ok_and(|record| record.rank.is_some()));
        Ok(found)
    }

    fn list_all(&self) -> Result<Vec<ListedJob>, VolumeError> {
        let mut found = Vec::new();
        for number in self.jobs.numbers().map_err(engine)? {
            if let Some(record) = self.jobs.find(number).transpose() {
                found.push((number, record));
            }
        }
        Ok(found)
    }

    /// The job of a number, or of the name that its version gets.
    ///
    /// # Errors
    /// If there is none, or several have the name; the store's.
    pub fn find(&self, job: &str) -> Result<JobRecord, VolumeError> {
        if let Ok(number) = job.parse::<u32>()
            && let Some(record) = self.jobs.find(number).map_err(engine)?
        {
            return Ok(record);
        }
        let found = self.list()?.into_iter().filter_map(|(_, record)| record.ok());
        let mut found: Vec<JobRecord> = found.filter(|record| record.name == job).collect();
        match (found.pop(), found.last()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(VolumeError::Invalid(format!(
                "job {job}: jobs {} and {} have this name; give the number",
                other.number(),
                one.number()
            ))),
            (None, _) => Err(VolumeError::Invalid(format!(
                "job {job}: there is no such job; `kestrel job list` shows those that there are"
            ))),
        }
    }

    /// Whether there is a version of a name.
    ///
    /// # Errors
    /// The store's, and those of a version that cannot be read.
    pub fn is_published(&self, name: &str) -> Result<bool, VolumeError> {
        Ok(self.versions.find(name).map_err(engine)?.is_some())
    }

    /// Bytes a second that the volume's store takes from this machine: some objects of the job are
    /// put at the same time, synced and removed.
    ///
    /// # Errors
    /// The store's.
    pub fn store_rate(&self, job: &JobRecord) -> Result<f64, VolumeError> {
        let store = &*self.storage.store;
        let failed = |why: kestrel_blockstore::Error| VolumeError::Io(why.to_string());
        // Numbers that the job comes to last.
        let end = objects_of_job(job.number()).end;
        let objects: Vec<ObjectId> = (1..=PROBES).map(|at| end - at).collect();
        let bytes: Vec<u8> = (0..PROBE_BYTES as u64).map(|at| ((at * at) >> 7) as u8).collect();
        let begun = Instant::now();
        let put = |object: &ObjectId| store.put(*object, &[IoSlice::new(&bytes)]);
        let done = std::thread::scope(|scope| {
            let puts: Vec<_> = objects.iter().map(|it| scope.spawn(move || put(it))).collect();
            // A thread that panicked has printed that.
            puts.into_iter().try_for_each(|put| put.join().unwrap_or(Ok(())))
        });
        let done = done.and_then(|()| store.sync());
        let seconds = begun.elapsed().as_secs_f64();
        for deleted in store.delete_each(&objects) {
            deleted.map_err(failed)?;
        }
        done.map_err(failed)?;
        Ok((PROBES as usize * PROBE_BYTES) as f64 / seconds.max(1e-6))
    }

    /// Forgets a job with a record that cannot be read. What it has made is left over then, for
    /// `kestrel version clean`.
    ///
    /// # Errors
    /// If the record can be read, or is not there; the store's.
    pub fn forget_damaged(&self, number: u32) -> Result<(), VolumeError> {
        match self.jobs.find(number) {
            Err(EngineError::Corrupt(_)) => self.jobs.remove(number).map_err(engine),
            Err(why) => Err(engine(why)),
            Ok(_) => Err(VolumeError::Invalid(format!("job {number} is not damaged"))),
        }
    }

    /// The process that has a job open, in words, if there is one.
    ///
    /// # Errors
    /// The store's.
    pub fn holder(&self, record: &JobRecord) -> Result<Option<String>, VolumeError> {
        let servers = self.servers(record)?;
        if servers.is_empty() {
            return self.jobs.server_holder(record, 0).map_err(engine);
        }
        let mut open = servers.iter().filter_map(|server| server.open_by.as_deref());
        let Some(first) = open.next() else { return Ok(None) };
        let others = open.count();
        let count = servers.len();
        Ok(Some(format!("{} of {count} servers, one by {first}", others + 1)))
    }

    /// Begins a job, and makes its directory.
    ///
    /// # Errors
    /// If an input is not there or they do not go together, the name is taken, or the store fails.
    pub fn begin(&self, new: &NewJob) -> Result<BegunJob, VolumeError> {
        kestrel_bucket::version::check_name(&new.name).map_err(VolumeError::Invalid)?;
        if self.versions.find(&new.name).map_err(engine)?.is_some() {
            return Err(VolumeError::Invalid(format!(
                "there is a version {} already, and a version never changes; choose another name",
                new.name
            )));
        }
        let inputs = self.inputs(&new.inputs)?;
        servers::check_addresses(&new.servers)?;
        let mut merged = merge(self.versions.place(), &inputs).map_err(engine)?;
        let id: VersionId = random()?;
        merged.base.job = self.jobs.take_number().map_err(engine)?;
        let input = |version: &VersionManifest| VersionInput {
            id: version.id.clone(),
            name: version.name.clone(),
        };
        let (named, base) = (inputs.iter().map(input).collect(), merged.base.clone());
        let first = base.first_number();
        let mut record = JobRecord::new((self.versions.volume(), &id), &new.name, named, base);
        if !new.servers.is_empty() {
            record = record.with_servers(servers::new_servers(&new.servers, first)?);
        }
        record.created = SystemClock.now();
        record.user = new.user;
        record.begun_by.clone_from(&new.begun_by);
        // First: what has a record is nothing that was left over.
        self.jobs.add(&record).map_err(engine)?;
        let made = self.make(&record, &merged, &inputs, new);
        let made = made.and_then(|conflicts| {
            if let Some(servers) = &record.servers {
                servers::spread(self, &record, servers)?;
            }
            Ok((conflicts, self.make_dir(&record)?))
        });
        match made {
            Ok((conflicts, dir)) => {
                Ok(BegunJob { record, dir, conflicts, conflict_count: merged.conflict_count })
            }
            Err(why) => {
                // What cannot be removed now is a job that can be aborted.
                let _ = self.remove(&record);
                Err(why)
            }
        }
    }

    fn inputs(&self, names: &[String]) -> Result<Vec<VersionManifest>, VolumeError> {
        let find = |name: &String| {
            let found = self.versions.find(name).map_err(engine)?;
            found.ok_or_else(|| {
                VolumeError::Invalid(format!(
                    "input {name}: there is no version of this name; `kestrel version list` shows \
                     those that there are"
                ))
            })
        };
        names.iter().map(find).collect()
    }

    /// Makes the rows of a new job. What its inputs say differently.
    fn make(
        &self,
        record: &JobRecord,
        merged: &MergedInputs,
        inputs: &[VersionManifest],
        new: &NewJob,
    ) -> Result<Vec<JobConflict>, VolumeError> {
        write_aliases(self.versions.place(), &record.id_bytes(), &merged.aliases)
            .map_err(engine)?;
        self.jobs.create_rows(record).map_err(engine)?;
        let nothing: BeforeSync = Arc::new(|| Ok(()));
        let opened = self.jobs.open(record, BucketOptions::default(), nothing).map_err(engine)?;
        let numbers = (record.base.first_number(), objects_of_job(record.number()).start);
        let root = root_of(&opened, record, new.group)?;
        let stamp = inputs.iter().map(|input| input.source.snapshot).max().unwrap_or(1);
        for rows in merged.rows.chunks(BATCH_ROWS) {
            let row = |(key, value): &SettledRow| {
                let key = KeyRef::decode(key)?.to_owned();
                Some(Mutation { key, value: value.as_deref().map(Into::into) })
            };
            let batch = rows.iter().filter_map(row).collect();
            opened.commit(BatchKind::Growing, batch).map_err(engine)?;
        }
        let figures = match top_of(merged, inputs) {
            None if inputs.is_empty() => [0; 3],
            Some(top) if merged.base.is_settled() => figures(top),
            _ => count(&opened)?,
        };
        let rows = Node::rows_of_tree(root, Some(figures), stamp, numbers);
        opened.commit(BatchKind::Growing, rows).map_err(engine)?;
        opened.settle().map_err(engine)?;
        let conflict = |conflict: &Conflict| {
            let path = path_of(&opened, conflict.dir, &conflict.name)?;
            let (kept, hidden) = (conflict.kept.clone(), conflict.hidden.clone());
            Ok(JobConflict { path, kept, hidden })
        };
        merged.conflicts.iter().map(conflict).collect()
    }

    /// Makes the directory of a job on this machine, if it is not there. With several servers each
    /// has a directory in it.
    fn make_dir(&self, record: &JobRecord) -> Result<PathBuf, VolumeError> {
        let dir = job_dir(&record.id)?;
        if dir.join(FILE_NAME).exists() {
            return Ok(dir);
        }
        fs::create_dir_all(&dir).map_err(|why| VolumeError::io("create", &dir, why))?;
        if self.jobs.servers(record).map_err(engine)?.is_some() {
            return Ok(dir);
        }
        let storage = self.storage.url(&self.descriptor.settings)?;
        let descriptor = self.descriptor.of_job(record.number(), &storage)?;
        descriptor.write(&dir)?;
        Ok(dir)
    }

    /// Makes the directory of a job that was begun elsewhere.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn resume(&self, record: JobRecord) -> Result<BegunJob, VolumeError> {
        let dir = self.make_dir(&record)?;
        Ok(BegunJob { record, dir, conflicts: Vec::new(), conflict_count: 0 })
    }

    /// Ends a job; what it has made is removed. A process that has it open is superseded if
    /// `take_over` is set, else it is in the way.
    ///
    /// # Errors
    /// If a process has it open; the store's. It can be repeated.
    pub fn abort(&self, record: &JobRecord, take_over: bool) -> Result<u64, VolumeError> {
        self.check_job(record)?;
        let dir = job_dir(&record.id)?;
        let mut locks = Vec::new();
        let own = servers::directories(record)?;
        for dir in own.iter().chain([&dir]).filter(|dir| dir.exists()) {
            locks.push(VolumeLock::take(dir, "kestrel job abort")?);
        }
        self.supersede(record, take_over)?;
        let removed = self.remove(record)?;
        let _ = fs::remove_dir_all(&dir);
        Ok(removed)
    }

    /// Has every process that has the job open find out that it has it no more.
    fn supersede(&self, record: &JobRecord, take_over: bool) -> Result<(), VolumeError> {
        let options = BucketOptions { take_over, ..BucketOptions::default() };
        for server in servers::all_with_rows(record)? {
            match self.jobs.open_server(record, server.clone(), options, Arc::new(|| Ok(()))) {
                Ok(opened) => drop(opened),
                // It was cut off before it had rows, or these were gathered.
                Err(EngineError::Refused(_))
                    if self.jobs.server_holder(record, server.0).is_ok_and(|it| it.is_none()) => {}
                Err(why) => return Err(engine(why)),
            }
        }
        Ok(())
    }

    /// Removes all of a job, unless it has been published. Its objects are found by their numbers.
    fn remove(&self, record: &JobRecord) -> Result<u64, VolumeError> {
        let id = record.id_bytes();
        // First: a process that publishes it at this moment gives it no name any more.
        self.versions.stop_writer(&id).map_err(engine)?;
        if let Some(found) = self.versions.of_id(&id).map_err(engine)? {
            publish::end(self, record)?;
            return Err(VolumeError::Invalid(format!(
                "job {} has been published as {}, and is none any more; nothing was removed",
                record.number(),
                found.name
            )));
        }
        let ranks = self.remove_ranks(record)?;
        let own = |object: ObjectId| {
            let job = job_of_object(object);
            job.is_some_and(|job| job == record.number() || ranks.contains(&job))
        };
        let removed = remove_objects(&*self.storage.store, &own)?;
        self.versions.remove_data(&id).map_err(engine)?;
        self.jobs.remove(record.number()).map_err(engine)?;
        Ok(removed)
    }
}

/// The directory of a job on this machine, which may not be there.
///
/// # Errors
/// If nothing says where state directories lie.
pub fn dir_of(record: &JobRecord) -> Result<PathBuf, VolumeError> {
    job_dir(&record.id)
}

/// Objects, and bytes of each, by which a store is measured.
const PROBES: u64 = 4;
const PROBE_BYTES: usize = 16 << 20;

/// Most directories above a name that is told.
const PATH_DEPTH_MAX: usize = 1000;

fn damaged(what: &str) -> EngineError {
    EngineError::Corrupt(format!("a row of the job: {what}; abort the job, and do it again"))
}

/// Most rows of one batch.
const BATCH_ROWS: usize = 4096;

/// The input that is made on all others.
fn top_of<'v>(merged: &MergedInputs, inputs: &'v [VersionManifest]) -> Option<&'v VersionManifest> {
    let top = merged.base.layers.first()?;
    inputs.iter().find(|input| input.id == top.id)
}

/// The root of the inputs of a job; without inputs a new one, of the job's user and this group.
fn root_of(rows: &BucketEngine, record: &JobRecord, group: u32) -> Result<Inode, VolumeError> {
    let root = row_of(rows, KeyRef::new(Table::Entry, 0, b""))?;
    match root.as_deref().map(Entry::decode) {
        Some(Ok(Entry::Inode(root))) => Ok(root),
        None => Ok(Inode {
            mode: 0o755,
            uid: record.user,
            gid: group,
            ..Inode::new(ROOT, Kind::Dir, record.created, 1)
        }),
        Some(_) => Err(VolumeError::Io("the root of an input is damaged".into())),
    }
}

/// Files, directories below the root and bytes.
fn figures(version: &VersionManifest) -> [i64; 3] {
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let figures = version.figures;
    [whole(figures.files), whole(figures.directories.saturating_sub(1)), whole(figures.bytes)]
}

/// The same of a tree of several versions, by the figures of its directories: names that lead to
/// nothing any more are not among them.
fn count(rows: &BucketEngine) -> Result<[i64; 3], VolumeError> {
    let Usage { files, dirs, bytes } = usage::tree(rows, ROOT).map_err(node)?;
    // Files with several names belong to no directory.
    let links = usage::link_bytes(rows, &|_| true).map_err(engine)?;
    Ok([files.cast_signed(), dirs.cast_signed(), bytes.cast_signed().saturating_add(links)])
}

/// A row of a job or below it.
fn row_of(rows: &dyn Engine, key: KeyRef<'_>) -> Result<Option<Vec<u8>>, VolumeError> {
    let mut found = None;
    rows.get_many(&[key], &mut |_, row| found = row.value.map(<[u8]>::to_vec)).map_err(engine)?;
    Ok(found)
}

/// The path of a name in a directory, as far as it leads up.
fn path_of(rows: &BucketEngine, dir: u64, name: &[u8]) -> Result<Vec<u8>, VolumeError> {
    let (mut path, mut dir) = (name.to_vec(), dir);
    for _ in 0..PATH_DEPTH_MAX {
        let place = row_of(rows, KeyRef::new(Table::DirId, dir, b""))?;
        let place = place.as_deref().and_then(|place| decode_dir_id(place).ok());
        let Some((parent, own)) = place.filter(|(parent, _)| *parent != 0) else { break };
        path = [own, &path].join(&b'/');
        dir = parent;
    }
    Ok(path)
}

/// Removes all objects that are to go, and counts them. Looks through all there are.
///
/// # Errors
/// The store's.
pub fn remove_objects(
    store: &dyn BlockStore,
    is_to_go: &dyn Fn(ObjectId) -> bool,
) -> Result<u64, VolumeError> {
    let failed = |why: kestrel_blockstore::Error| VolumeError::Io(why.to_string());
    let mut removed = 0;
    for page in list_all(store) {
        let page = page.map_err(failed)?;
        let gone: Vec<ObjectId> =
            page.objects.iter().map(|info| info.object).filter(|it| is_to_go(*it)).collect();
        for deleted in store.delete_each(&gone) {
            deleted.map_err(failed)?;
            removed += 1;
        }
    }
    Ok(removed)
}
