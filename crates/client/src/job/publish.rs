//! A job becomes a version: the rows that it has changed are written as tables of the version, and
//! the version gets its name.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_bucket::version::{
    ChangesRecord, JobRecord, VersionFigures, VersionManifest, VersionSource, VersionWriter,
};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::{BeforeSync, Engine, EngineError};
use kestrel_meta::node::Node;
use kestrel_meta::ops::usage;
use kestrel_meta::rows::share_suffix;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::codec::Reader;
use kestrel_types::crash;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{FIRST_OBJECT, InodeId, ObjectId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::policy::XATTR_PREFIX;
use kestrel_types::stat::{DirStat, ObjStat};
use kestrel_types::trash::{KEPT, TRASH};

use super::gather::gather;
use super::{Jobs, count, damaged, engine, node, row_of};
use crate::error::VolumeError;
use crate::fs::tree_removal::REMOVING;
use crate::state_dir::job_dir;
use crate::version::publish::stored;
use crate::volume::job::{is_sealed, seal};
use crate::volume::{Resources, Volume};

/// Longest wait for trees that are being removed, and the pause between two looks.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(600);
const REMOVAL_LOOK: Duration = Duration::from_millis(50);

/// A job that has become a version.
#[derive(Debug)]
pub struct PublishedJob {
    /// The version.
    pub version: VersionManifest,
    /// Rows that differ from those of the inputs.
    pub changed: u64,
}

/// Publishes a job under the name that it was begun with, or another one. No process may have it
/// open; one on another machine is superseded if `resources.take_over` is set.
///
/// # Errors
/// If a process has it open, the name is taken (then the job stays, and can be published under
/// another one), or the store fails: it can be repeated.
pub fn publish(
    jobs: &Jobs,
    record: &JobRecord,
    name: Option<&str>,
    resources: &Resources,
) -> Result<PublishedJob, VolumeError> {
    let name = name.unwrap_or(&record.name);
    kestrel_bucket::version::check_name(name).map_err(VolumeError::Invalid)?;
    if let Some(found) = jobs.versions.of_id(&record.id_bytes()).map_err(engine)? {
        // The process that published it was killed behind that.
        let changed = found.rows;
        end(jobs, record)?;
        if found.name != name {
            return Err(VolumeError::Invalid(format!(
                "job {} has been published as {} already; `kestrel version rename` gives it \
                 another name",
                record.number(),
                found.name
            )));
        }
        return Ok(PublishedJob { version: found, changed });
    }
    if jobs.versions.find(name).map_err(engine)?.is_some() {
        return Err(taken(name, record));
    }
    if let Some(servers) = jobs.jobs.servers(record).map_err(engine)? {
        gather(jobs, record, servers, resources)?;
    }
    let options = BucketOptions {
        memory_bytes: resources.metadata_bytes,
        take_over: resources.take_over,
        upload_every: None,
    };
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let opened = jobs.jobs.open(record, options, nothing.clone()).map_err(engine)?;
    let opened = match is_sealed(&opened).map_err(engine)? {
        true => opened,
        false => {
            drop(opened);
            settle(jobs, record, resources)?;
            let opened = jobs.jobs.open(record, options, nothing).map_err(engine)?;
            seal(&opened).map_err(engine)?;
            opened
        }
    };
    crash::point("job.sealed");
    // What a process that was killed meanwhile has written of the version.
    jobs.versions.remove_tables(&record.id_bytes()).map_err(engine)?;
    let (version, changed) = write(jobs, record, name, &opened)?;
    crash::point("job.written");
    // Fails if another process has taken the job over.
    seal(&opened).map_err(engine)?;
    if !jobs.versions.publish(&version).map_err(engine)? {
        return Err(taken(name, record));
    }
    crash::point("job.named");
    drop(opened);
    end(jobs, record)?;
    Ok(PublishedJob { version, changed })
}

fn taken(name: &str, record: &JobRecord) -> VolumeError {
    VolumeError::Invalid(format!(
        "there is a version {name} already, and a version never changes; the job is kept: publish \
         it under another name with `kestrel job publish {} --as NAME`",
        record.number()
    ))
}

/// A published job is none any more.
pub(super) fn end(jobs: &Jobs, record: &JobRecord) -> Result<(), VolumeError> {
    jobs.jobs.remove_rows(record).map_err(engine)?;
    crash::point("job.rows-removed");
    jobs.jobs.remove(record.number()).map_err(engine)?;
    if let Ok(dir) = job_dir(&record.id) {
        // It is of no use to anybody; another machine may have one as well.
        let _ = std::fs::remove_dir_all(dir);
    }
    Ok(())
}

/// Ends what processes have left unfinished: files without names that were open, trees that are
/// being removed, and the figures.
fn settle(jobs: &Jobs, record: &JobRecord, resources: &Resources) -> Result<(), VolumeError> {
    let dir = jobs.make_dir(record)?;
    let volume = Volume::open_part(&dir, "kestrel job publish", resources)?;
    let rows = volume.engine.clone();
    let mounted = volume.serve(resources, false)?;
    let emptied = wait_for_trash(&*rows, record);
    mounted.fs.shutdown().map_err(node)?;
    emptied
}

/// Waits until trees are gone that are being removed: the file system does that meanwhile.
fn wait_for_trash(rows: &dyn Engine, record: &JobRecord) -> Result<(), VolumeError> {
    let until = Instant::now() + REMOVAL_TIME_MAX;
    let names_in = |name: &[u8]| -> Result<i64, VolumeError> {
        let Some(trash) = child(rows, ROOT, TRASH)? else { return Ok(0) };
        let Some(dir) = child(rows, trash, name)? else { return Ok(0) };
        let mut sum = DirStat::default();
        usage::add_shares(rows, dir, &|_| true, &mut sum).map_err(node)?;
        Ok(sum.children)
    };
    if names_in(KEPT)? > 0 {
        return Err(VolumeError::Invalid(format!(
            "job {}: it keeps removed files, as the policy `trash` of a directory says; empty the \
             trash with `kestrel job run VOLUME --resume {} --keep -- kestrel trash empty .`",
            record.number(),
            record.number()
        )));
    }
    let is_there = |name: &[u8]| match child(rows, ROOT, TRASH)? {
        Some(trash) => Ok::<_, VolumeError>(child(rows, trash, name)?.is_some()),
        None => Ok(false),
    };
    while is_there(REMOVING)? {
        if Instant::now() > until {
            return Err(VolumeError::Io(format!(
                "job {}: removing trees takes more than {} s; publish it again later",
                record.number(),
                REMOVAL_TIME_MAX.as_secs()
            )));
        }
        std::thread::sleep(REMOVAL_LOOK);
    }
    Ok(())
}

/// The number of what has a name in a directory.
fn child(rows: &dyn Engine, dir: InodeId, name: &[u8]) -> Result<Option<InodeId>, VolumeError> {
    let entry = row_of(rows, KeyRef::new(Table::Entry, dir, name))?;
    Ok(entry.and_then(|entry| Entry::peek(&entry).ok()).map(|(number, _)| number))
}

/// A row of a version as it is written.
struct VersionRows<'a> {
    rows: &'a BucketEngine,
    writer: VersionWriter,
    /// Directories with figures that have changed.
    dirs: BTreeSet<InodeId>,
    /// Objects that the job has made.
    objects: BTreeSet<ObjectId>,
    /// Directories of the trash, which are empty and not part of a version, the first one being
    /// `/.trash`.
    trash: Vec<InodeId>,
}

/// The directories of the trash, if there is one.
fn trash_of(rows: &dyn Engine) -> Result<Vec<InodeId>, VolumeError> {
    let Some(trash) = child(rows, ROOT, TRASH)? else { return Ok(Vec::new()) };
    let mut dirs = vec![trash];
    for name in [KEPT, REMOVING] {
        dirs.extend(child(rows, trash, name)?);
    }
    Ok(dirs)
}

fn write(
    jobs: &Jobs,
    record: &JobRecord,
    name: &str,
    rows: &BucketEngine,
) -> Result<(VersionManifest, u64), VolumeError> {
    let (clock, inodes, figures) = Node::rows_at_rest(rows).map_err(node)?;
    let mut figures = figures
        .ok_or_else(|| VolumeError::Io("the job has no figures; publish it again".into()))?;
    if !record.base.is_chain() {
        // A server that was killed has added up the figures of all directories, also of those that
        // no path leads to.
        figures = count(rows)?;
    }
    let writer = VersionWriter::begin(jobs.versions.place(), record.id_bytes());
    let mut out = VersionRows {
        rows,
        writer: writer.map_err(engine)?,
        dirs: BTreeSet::new(),
        objects: BTreeSet::new(),
        trash: trash_of(rows)?,
    };
    figures[1] -= out.trash.len() as i64;
    rows.visit_changes(|key, value| out.row(key, value)).map_err(engine)?;
    out.shares()?;
    out.objects().map_err(engine)?;
    let changed = out.writer.rows();
    let root = row_of(rows, KeyRef::new(Table::Entry, 0, b""))?;
    let Some(Ok(Entry::Inode(root))) = root.as_deref().map(Entry::decode) else {
        return Err(VolumeError::Io("the root of the job is damaged".into()));
    };
    // Its row of table `dirid` and the root are among these.
    let numbers = (inodes, FIRST_OBJECT);
    for row in Node::rows_of_tree(stored(root, ROOT), Some(figures), clock, numbers) {
        let value = row.value.as_deref().unwrap_or_default();
        out.writer.put(row.key.borrow(), value).map_err(engine)?;
    }
    let source = VersionSource {
        dir: ROOT,
        snapshot_dir: ROOT,
        snapshot: clock,
        snapshot_name: Vec::new(),
        owned: false,
    };
    let (volume, id) = (jobs.versions.volume(), record.id_bytes());
    let version = VersionManifest::new(name, volume, &id, source);
    let changes = ChangesRecord { base: record.base.clone(), end: inodes };
    let made = version.with_inputs(record.inputs.clone());
    let mut made =
        made.and_then(|made| made.with_changes(changes)).map_err(VolumeError::Invalid)?;
    let count = |figure: i64| u64::try_from(figure).unwrap_or(0);
    let [files, directories, bytes] = figures.map(count);
    made.figures = VersionFigures { files, directories: directories + 1, bytes };
    made.created = SystemClock.now();
    made.user = record.user;
    made.rows = out.writer.rows();
    made.runs = out.writer.finish().map_err(engine)?;
    Ok((made, changed))
}

impl VersionRows<'_> {
    /// One row that the job has changed.
    fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        let KeyRef { table, id, suffix } = KeyRef::decode(key).ok_or_else(|| damaged("its key"))?;
        if self.is_trash(table, id, suffix) {
            return self.put(key, None);
        }
        match table {
            Table::Entry if id == 0 => Ok(()),
            Table::DirId if id == ROOT => Ok(()),
            Table::Entry => {
                let value = value.map(|value| {
                    Ok(match Entry::decode(value)? {
                        Entry::Inode(inode) => {
                            let number = inode.ino;
                            Entry::Inode(stored(inode, number)).encode()
                        }
                        link @ Entry::Link { .. } => link.encode(),
                    })
                });
                let value = value.transpose();
                let value =
                    value.map_err(|why: kestrel_types::codec::DecodeError| damaged(why.0))?;
                self.put(key, value.as_deref())
            }
            Table::Link => {
                let inode = value.map(|value| Inode::decode(&mut Reader::new(value)));
                let inode = inode.transpose().map_err(|why| damaged(why.0))?;
                // One without names was open when its process was killed.
                let value = value.filter(|_| inode.is_some_and(|inode| inode.nlink > 0));
                self.put(key, value)
            }
            Table::Xattr => {
                let stays = !suffix.starts_with(XATTR_PREFIX) && !suffix.starts_with(b"system.");
                self.put(key, value.filter(|_| stays))
            }
            Table::DirId | Table::Subdir | Table::Chunk => self.put(key, value),
            Table::DirStat => {
                self.dirs.insert(id);
                Ok(())
            }
            Table::ObjStat => {
                self.objects.insert(id);
                Ok(())
            }
            Table::Clone if value.is_some() => Err(EngineError::Refused(
                "a clone in the job is not finished; mount the job until it is".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Whether a row is one of the trash.
    fn is_trash(&self, table: Table, id: InodeId, suffix: &[u8]) -> bool {
        let Some(first) = self.trash.first() else { return false };
        match table {
            Table::Entry if id == ROOT => suffix == TRASH,
            Table::Subdir if id == ROOT => suffix == first.to_be_bytes(),
            Table::Entry | Table::Subdir | Table::DirId | Table::DirStat | Table::Xattr => {
                self.trash.contains(&id)
            }
            _ => false,
        }
    }

    /// Writes a row; that one is deleted only if there is one below.
    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        if value.is_none() && self.rows.row_below(key)?.is_none() {
            return Ok(());
        }
        self.writer.put_encoded(key, value)
    }

    /// Writes the figures of directories: one share has all of them.
    fn shares(&mut self) -> Result<(), VolumeError> {
        for dir in std::mem::take(&mut self.dirs) {
            let mut sum = DirStat::default();
            usage::add_shares(self.rows, dir, &|_| true, &mut sum).map_err(node)?;
            if dir == ROOT && !self.trash.is_empty() {
                (sum.children, sum.subdirs) = (sum.children - 1, sum.subdirs - 1);
            }
            let is_there = row_of(self.rows, KeyRef::new(Table::DirId, dir, b""))?.is_some();
            let mut key = Vec::new();
            KeyRef::new(Table::DirStat, dir, &share_suffix(0)).encode_into(&mut key);
            self.put(&key, is_there.then(|| sum.encode()).as_deref()).map_err(engine)?;
        }
        Ok(())
    }

    /// Writes which objects the job has made, and how many bytes of them are referred to.
    fn objects(&mut self) -> Result<(), EngineError> {
        for object in std::mem::take(&mut self.objects) {
            let (mut sum, mut why) = (0, None);
            self.rows.scan(Table::ObjStat, object, None, &mut |_, share, _| {
                match ObjStat::decode(share) {
                    Ok(share) => sum += share.referenced,
                    Err(error) => why = Some(error),
                }
                ControlFlow::Continue(())
            })?;
            if let Some(why) = why {
                return Err(damaged(why.0));
            }
            if sum > 0 {
                let value = ObjStat { referenced: sum }.encode();
                self.writer.put(KeyRef::new(Table::ObjStat, object, &share_suffix(0)), &value)?;
            }
        }
        Ok(())
    }
}
