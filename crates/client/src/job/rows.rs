//! The rows that a job has changed, or a rank has logged, as tables of a version.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use kestrel_bucket::BucketEngine;
use kestrel_bucket::version::{
    ChangesRecord, JobRecord, VersionFigures, VersionManifest, VersionSource, VersionWriter,
};
use kestrel_engine::{Engine, EngineError};
use kestrel_meta::node::Node;
use kestrel_meta::ops::usage;
use kestrel_meta::rows::share_suffix;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::{ExtentList, Source};
use kestrel_types::ids::{FIRST_OBJECT, InodeId, ObjectId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::policy::XATTR_PREFIX;
use kestrel_types::stat::{DirStat, ObjStat};
use kestrel_types::trash::{KEPT, TRASH};

use super::settle::child;
use super::{Jobs, count, damaged, engine, node, row_of};
use crate::error::VolumeError;
use crate::fs::tree_removal::REMOVING;
use crate::version::publish::stored;

/// Whether the figures of directories and objects are among the rows of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// A node has counted while it served the job.
    ByNode,
    /// They are counted when the rows are written.
    Now,
}

/// Figures of rows that were logged.
#[derive(Default)]
struct Counts {
    dirs: BTreeMap<InodeId, DirStat>,
    objects: BTreeMap<ObjectId, i64>,
}

/// The rows of a version as they are written.
struct VersionRows<'a> {
    rows: &'a BucketEngine,
    writer: VersionWriter,
    /// Directories with figures that have changed.
    dirs: BTreeSet<InodeId>,
    /// Objects that the job has made.
    objects: BTreeSet<ObjectId>,
    /// What a log has, which has counted nothing itself.
    counts: Option<Counts>,
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

/// Writes what a job has changed as tables of a version of this name. How many rows differ from
/// those of the inputs.
pub(super) fn write(
    jobs: &Jobs,
    record: &JobRecord,
    name: &str,
    rows: &BucketEngine,
    counted: Counted,
) -> Result<(VersionManifest, u64), VolumeError> {
    let (clock, inodes, figures) = Node::rows_at_rest(rows).map_err(node)?;
    let mut figures = figures
        .ok_or_else(|| VolumeError::Io("the job has no figures; publish it again".into()))?;
    if counted == Counted::ByNode && !record.base.is_chain() {
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
        counts: (counted == Counted::Now).then(Counts::default),
        trash: trash_of(rows)?,
    };
    figures[1] -= out.trash.len() as i64;
    rows.visit_changes(|key, value| match out.counts {
        Some(_) => out.logged_row(key, value),
        None => out.row(key, value),
    })
    .map_err(engine)?;
    if let Some(counts) = out.counts.take() {
        let sum = counts.dirs.values().fold(DirStat::default(), |mut sum, dir| {
            sum.merge(dir);
            sum
        });
        figures = [sum.children - sum.subdirs, sum.subdirs, sum.bytes];
        out.counted(counts)?;
    }
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
    /// One row of a log, which is stored as it is.
    fn logged_row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        let KeyRef { table, id, .. } = KeyRef::decode(key).ok_or_else(|| damaged("its key"))?;
        let (Some(value), Some(counts)) = (value, &mut self.counts) else {
            return Err(damaged("it is deleted"));
        };
        match table {
            Table::Entry if id == 0 => return Ok(()),
            Table::DirId if id == ROOT => return Ok(()),
            Table::Entry => {
                let Ok(Entry::Inode(inode)) = Entry::decode(value) else {
                    return Err(damaged("an entry"));
                };
                let dir = counts.dirs.entry(id).or_default();
                dir.children += 1;
                if inode.kind == Kind::Dir {
                    dir.subdirs += 1;
                } else {
                    dir.bytes = dir.bytes.saturating_add(inode.size.cast_signed());
                }
                dir.mtime = dir.mtime.max(inode.btime);
                dir.change = dir.change.max(inode.change);
                if let Data::Packed { range, visible } = inode.data {
                    *counts.objects.entry(range.object).or_default() += i64::from(visible);
                }
            }
            Table::Chunk => {
                let extents =
                    ExtentList::decode(&mut Reader::new(value)).map_err(|why| damaged(why.0))?;
                for extent in extents.extents() {
                    if let Source::Stored { range, .. } = extent.source {
                        *counts.objects.entry(range.object).or_default() += i64::from(extent.len);
                    }
                }
            }
            Table::DirId | Table::Subdir => {}
            _ => return Ok(()),
        }
        self.writer.put_next(key, Some(value))
    }

    /// Writes what was counted in a log.
    fn counted(&mut self, counts: Counts) -> Result<(), VolumeError> {
        for (dir, mut sum) in counts.dirs {
            // Of a directory that the job was begun with.
            usage::add_shares(self.rows, dir, &|_| true, &mut sum).map_err(node)?;
            let (suffix, value) = (share_suffix(0), sum.encode());
            let key = KeyRef::new(Table::DirStat, dir, &suffix);
            self.writer.put(key, &value).map_err(engine)?;
        }
        let mut objects = counts.objects.into_iter();
        objects.try_for_each(|(object, sum)| self.object(object, sum)).map_err(engine)
    }

    /// One row that the job has changed.
    fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        let KeyRef { table, id, suffix } = KeyRef::decode(key).ok_or_else(|| damaged("its key"))?;
        if self.is_trash(table, id, suffix) {
            return self.put_next(key, None);
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
                self.put_next(key, value.as_deref())
            }
            Table::Link => {
                let inode = value.map(|value| Inode::decode(&mut Reader::new(value)));
                let inode = inode.transpose().map_err(|why| damaged(why.0))?;
                // One without names was open when its process was killed.
                let value = value.filter(|_| inode.is_some_and(|inode| inode.nlink > 0));
                self.put_next(key, value)
            }
            Table::Xattr => {
                let stays = !suffix.starts_with(XATTR_PREFIX) && !suffix.starts_with(b"system.");
                self.put_next(key, value.filter(|_| stays))
            }
            Table::DirId | Table::Subdir | Table::Chunk => self.put_next(key, value),
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
        match self.says_nothing(key, value)? {
            true => Ok(()),
            false => self.writer.put_encoded(key, value),
        }
    }

    /// The same of rows in the order of their keys.
    fn put_next(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), EngineError> {
        match self.says_nothing(key, value)? {
            true => Ok(()),
            false => self.writer.put_next(key, value),
        }
    }

    /// Whether a row is deleted that is not there below.
    fn says_nothing(&self, key: &[u8], value: Option<&[u8]>) -> Result<bool, EngineError> {
        Ok(value.is_none() && self.rows.row_below(key)?.is_none())
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
                self.object(object, sum)?;
            }
        }
        Ok(())
    }

    /// Writes how many bytes of an object are referred to.
    fn object(&mut self, object: ObjectId, referenced: i64) -> Result<(), EngineError> {
        let value = ObjStat { referenced }.encode();
        self.writer.put(KeyRef::new(Table::ObjStat, object, &share_suffix(0)), &value)
    }
}
