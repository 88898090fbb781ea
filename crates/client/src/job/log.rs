//! Client logging: a rank of a job logs what it creates for itself, at the speed of memory
//! (DeltaFS, section 4.3).
//!
//! Nothing is asked of a server, and nobody is waited for: a create is a row in a buffer of this
//! process. Buffers become tables of the rank's own log in the store ([`BucketEngine::ingest`]).
//! When the job is published the logs of its ranks become layers of it ([`super::ranks`]).
//!
//! A log takes new directories, files with their content, and symbolic links. Whatever else a rank
//! does to its namespace it does through a mount of its log.
//!
//! | file | what it has |
//! | --- | --- |
//! | `log/writer.rs` | the thread that writes buffers |

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kestrel_blockstore::packer::{ObjectIds, Packer, PackerConfig};
use kestrel_blockstore::store::{BlockStore, OwnStore};
use kestrel_bucket::version::{JobRecord, NUMBERS_END};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::{BeforeSync, EngineError};
use kestrel_meta::node::Node;
use kestrel_meta::view::{decode_dir_id, encode_dir_id};
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsError;
use kestrel_types::extent::{Extent, ExtentList, Source, chunk_parts};
use kestrel_types::ids::{InodeId, ObjectId, ROOT, objects_of_job};
use kestrel_types::inode::{Data, FILE_SIZE_MAX, Inode, Kind};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::{Name, PATH_MAX};
use kestrel_types::range::Range;

use super::{Jobs, engine, node, row_of};
use crate::error::VolumeError;

mod writer;

use writer::{LogWriter, Pending};

/// Bytes of rows in a buffer from which on it is written.
const BUFFER_BYTES: usize = 64 << 20;

/// Objects that a process may have made without a row that says so, before it was killed: an object
/// is never written again.
const OBJECTS_LOST: u64 = 1 << 20;

/// How long rows wait in a buffer that is not full.
pub const SYNC_EVERY_DEFAULT: Duration = Duration::from_secs(5);

/// How a rank logs.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Rows that were made so long ago are in the store, whether something waits for them or not.
    pub sync_every: Duration,
    /// Takes the log over from another process that has it open, which can write nothing any more.
    pub take_over: bool,
    /// Memory for the rows of directories that are looked up, bytes.
    pub memory_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { sync_every: SYNC_EVERY_DEFAULT, take_over: false, memory_bytes: 64 << 20 }
    }
}

/// Owner and permissions of what is made.
#[derive(Debug, Clone, Copy)]
pub struct LogAttrs {
    /// Permission bits, set-id and sticky bits; the caller has applied its umask.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its content was changed last; none: now.
    pub mtime: Option<Nanos>,
}

/// A directory that something can be made in; of one [`ChangeLog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDir(InodeId);

/// Numbers of objects of a log, in order.
struct LogObjects {
    next: AtomicU64,
    end: ObjectId,
}

impl ObjectIds for LogObjects {
    fn next(&self) -> kestrel_blockstore::Result<ObjectId> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        match object < self.end {
            true => Ok(object),
            false => Err(kestrel_blockstore::Error::Invalid {
                what: "the log has no object numbers left",
            }),
        }
    }
}

/// The log of a rank, open for its process.
pub struct ChangeLog {
    record: JobRecord,
    rows: Arc<BucketEngine>,
    writer: LogWriter,
    packer: Packer,
    /// Numbers below this are those of directories that the job was begun with.
    first: InodeId,
    next: InodeId,
    stamp: u64,
    /// Directories by their path, as they were asked for.
    paths: HashMap<Vec<u8>, LogDir>,
    /// Directories that this log has made, by directory and name.
    made: HashMap<(InodeId, Box<[u8]>), InodeId>,
    /// Directories that these are in.
    parents: HashSet<InodeId>,
    inline_max: usize,
    block_bytes: usize,
}

fn invalid(path: &[u8], why: &str) -> VolumeError {
    VolumeError::Invalid(format!("{}: {why}", String::from_utf8_lossy(path)))
}

fn exists(name: &[u8]) -> VolumeError {
    invalid(name, "there is something of this name already")
}

impl ChangeLog {
    /// Opens the log of a rank, which has joined by [`Jobs::join`].
    ///
    /// # Errors
    /// If the rank has finished, another process has its log open, or the store fails.
    pub fn open(jobs: &Jobs, record: &JobRecord, options: LogOptions) -> Result<Self, VolumeError> {
        let own = objects_of_job(record.number());
        let store: Arc<dyn BlockStore> =
            Arc::new(OwnStore::new(jobs.storage.store.clone(), own.clone()));
        let synced = store.clone();
        let before_sync: BeforeSync = Arc::new(move || {
            synced.sync().map_err(|why| EngineError::Io(format!("syncing file data: {why}")))
        });
        let opened = BucketOptions {
            memory_bytes: options.memory_bytes,
            take_over: options.take_over,
            upload_every: None,
            merges: false,
        };
        let rows = Arc::new(jobs.open_log(record, opened, before_sync)?);
        let (stamp, next, objects) = Node::counters_at_rest(&*rows).map_err(node)?;
        let objects = LogObjects { next: AtomicU64::new(objects + OBJECTS_LOST), end: own.end };
        let objects = Arc::new(objects);
        let settings = &jobs.descriptor.settings;
        let config = PackerConfig::new(jobs.descriptor.uuid_bytes());
        let failed = |why: kestrel_blockstore::Error| VolumeError::Io(why.to_string());
        let packer = Packer::new(store, objects.clone(), config).map_err(failed)?;
        let writer = LogWriter::start(rows.clone(), options.sync_every, move || {
            objects.next.load(Ordering::Relaxed)
        })?;
        let mut log = Self {
            record: record.clone(),
            first: record.base.first_number(),
            next,
            stamp: stamp.max(SystemClock.now().cast_unsigned()),
            paths: HashMap::from([(Vec::new(), LogDir(ROOT))]),
            made: HashMap::new(),
            parents: HashSet::new(),
            inline_max: settings.inline_max as usize,
            block_bytes: settings.block_bytes as usize,
            rows,
            writer,
            packer,
        };
        log.find_made()?;
        Ok(log)
    }

    /// Finds the directories that an earlier process of the rank has made.
    fn find_made(&mut self) -> Result<(), VolumeError> {
        let (first, made, parents) = (self.first, &mut self.made, &mut self.parents);
        let own = self.rows.visit_table(Table::DirId, |key, value| {
            let KeyRef { id, .. } =
                KeyRef::decode(key).unwrap_or(KeyRef::new(Table::DirId, 0, b""));
            let Some(place) = value.filter(|_| id >= first) else { return Ok(()) };
            let (parent, name) = decode_dir_id(place).map_err(|why| {
                EngineError::Corrupt(format!("a directory of the log: {why}; abort the job"))
            })?;
            made.insert((parent, name.into()), id);
            parents.insert(parent);
            Ok(())
        });
        own.map_err(engine)
    }

    /// The job that this is the log of a rank of, as the rank's own record.
    pub fn record(&self) -> &JobRecord {
        &self.record
    }

    /// The directory of a path from the root; those that are missing are made, with these
    /// attributes.
    ///
    /// # Errors
    /// If the path is not one, or leads through what is no directory; the store's.
    pub fn make_dirs(&mut self, path: &[u8], attrs: LogAttrs) -> Result<LogDir, VolumeError> {
        if let Some(found) = self.paths.get(path) {
            return Ok(*found);
        }
        if path.len() > PATH_MAX {
            return Err(invalid(path, "a path has at most 4095 bytes"));
        }
        let mut dir = LogDir(ROOT);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            Name::check(name).map_err(|why| invalid(path, &why.to_string()))?;
            dir = match self.subdir(dir, name).map_err(|why| match why {
                VolumeError::Invalid(why) => invalid(path, &why),
                other => other,
            })? {
                Some(found) => found,
                None => self.add_dir(dir, name, attrs)?,
            };
        }
        self.paths.insert(path.to_vec(), dir);
        Ok(dir)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// If something has the name; the store's.
    pub fn make_dir(
        &mut self,
        dir: LogDir,
        name: &[u8],
        attrs: LogAttrs,
    ) -> Result<LogDir, VolumeError> {
        Name::check(name).map_err(|why| invalid(name, &why.to_string()))?;
        if self.subdir(dir, name)?.is_some() {
            return Err(exists(name));
        }
        self.add_dir(dir, name, attrs)
    }

    /// A directory in another one.
    ///
    /// # Errors
    /// If there is none of this name; the store's.
    pub fn dir_in(&self, dir: LogDir, name: &[u8]) -> Result<LogDir, VolumeError> {
        self.subdir(dir, name)?.ok_or_else(|| invalid(name, "there is no such directory"))
    }

    /// A directory in another one, if the name is not free.
    fn subdir(&self, dir: LogDir, name: &[u8]) -> Result<Option<LogDir>, VolumeError> {
        if let Some(made) = self.made.get(&(dir.0, Box::from(name))) {
            return Ok(Some(LogDir(*made)));
        }
        match self.entry_below(dir, name)? {
            Some((number, Kind::Dir)) => Ok(Some(LogDir(number))),
            Some(_) => Err(invalid(name, "not a directory")),
            None => Ok(None),
        }
    }

    /// What the job was begun with by a name, or an earlier process of this rank has put there.
    fn entry_below(
        &self,
        dir: LogDir,
        name: &[u8],
    ) -> Result<Option<(InodeId, Kind)>, VolumeError> {
        if dir.0 >= self.first {
            return Ok(None);
        }
        let found = row_of(&*self.rows, KeyRef::new(Table::Entry, dir.0, name))?;
        let bad = |why| VolumeError::Io(format!("an entry of an input: {why}"));
        found.as_deref().map(Entry::peek).transpose().map_err(bad)
    }

    fn add_dir(
        &mut self,
        dir: LogDir,
        name: &[u8],
        attrs: LogAttrs,
    ) -> Result<LogDir, VolumeError> {
        let inode = self.inode(Kind::Dir, attrs)?;
        let number = inode.ino;
        self.made.insert((dir.0, name.into()), number);
        self.parents.insert(dir.0);
        let mut entry = Vec::new();
        inode.encode_into(&mut entry);
        self.writer.add_together(&[
            (KeyRef::new(Table::Entry, dir.0, name), &entry),
            (KeyRef::new(Table::DirId, number, b""), &encode_dir_id(dir.0, name)),
            (KeyRef::new(Table::Subdir, dir.0, &number.to_be_bytes()), &[]),
        ])?;
        Ok(LogDir(number))
    }

    fn inode(&mut self, kind: Kind, attrs: LogAttrs) -> Result<Inode, VolumeError> {
        if self.next >= NUMBERS_END {
            return Err(VolumeError::Io("the log has no inode numbers left".into()));
        }
        let number = self.next;
        self.next += 1;
        self.writer.set_next(self.next);
        let now = SystemClock.now();
        Ok(Inode {
            mode: attrs.mode & 0o7777,
            uid: attrs.uid,
            gid: attrs.gid,
            mtime: attrs.mtime.unwrap_or(now),
            ..Inode::new(number, kind, now, self.stamp)
        })
    }

    /// Fails if a new name is not free, as far as is known at once: what the job was begun with,
    /// and directories of this log. Of two files that a log makes by one name the later one counts.
    fn check_free(&self, dir: LogDir, name: &[u8]) -> Result<(), VolumeError> {
        Name::check(name).map_err(|why| invalid(name, &why.to_string()))?;
        let is_made =
            self.parents.contains(&dir.0) && self.made.contains_key(&(dir.0, Box::from(name)));
        match is_made || self.entry_below(dir, name)?.is_some() {
            true => Err(exists(name)),
            false => Ok(()),
        }
    }

    /// Makes a file with this content.
    ///
    /// # Errors
    /// If the name is not free or none, or the log could not be written before.
    pub fn create(
        &mut self,
        dir: LogDir,
        name: &[u8],
        attrs: LogAttrs,
        content: &[u8],
    ) -> Result<InodeId, VolumeError> {
        self.create_from(dir, name, attrs, &mut &content[..])
    }

    /// The same with what a reader has.
    ///
    /// # Errors
    /// As for [`ChangeLog::create`], and those of the reader.
    pub fn create_from(
        &mut self,
        dir: LogDir,
        name: &[u8],
        attrs: LogAttrs,
        content: &mut dyn Read,
    ) -> Result<InodeId, VolumeError> {
        self.check_free(dir, name)?;
        let mut inode = self.inode(Kind::File, attrs)?;
        let number = inode.ino;
        let read = |why: io::Error| invalid(name, &format!("reading its content: {why}"));
        let mut block = Vec::new();
        content.take(self.inline_max as u64 + 1).read_to_end(&mut block).map_err(read)?;
        if block.len() <= self.inline_max {
            inode.size = block.len() as u64;
            if !block.is_empty() {
                inode.data = Data::Inline(block.into_boxed_slice());
            }
            self.writer.add_row(KeyRef::new(Table::Entry, dir.0, name), |out| {
                inode.encode_into(out);
            })?;
            return Ok(number);
        }
        let pending = self.writer.expect(dir.0, name);
        let stored = (|| loop {
            let room = (self.block_bytes - block.len()) as u64;
            content.take(room).read_to_end(&mut block).map_err(read)?;
            let len = block.len();
            if len == 0 {
                return Ok(());
            }
            if inode.size + len as u64 > FILE_SIZE_MAX {
                return Err(invalid(name, "it is larger than a file can be"));
            }
            inode.size += len as u64;
            self.store(std::mem::take(&mut block), &pending, number)?;
            if len < self.block_bytes {
                return Ok(());
            }
        })();
        match stored {
            Ok(()) => self.writer.end(&pending, inode)?,
            Err(why) => {
                self.writer.give_up(&pending);
                return Err(why);
            }
        }
        Ok(number)
    }

    /// Stores the next bytes of a file.
    fn store(
        &self,
        block: Vec<u8>,
        pending: &Arc<Pending>,
        number: InodeId,
    ) -> Result<(), VolumeError> {
        let part = self.writer.begin_part(pending, block.len())?;
        let (pending, shared) = (pending.clone(), self.writer.shared());
        self.packer.store(
            block,
            number,
            Box::new(move |stored| {
                let range = stored.map(|stored| stored.range).map_err(|why| why.to_string());
                shared.part_is_stored(&pending, part, range);
            }),
        );
        Ok(())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As for [`ChangeLog::create`], and if the target is no path.
    pub fn symlink(
        &mut self,
        dir: LogDir,
        name: &[u8],
        attrs: LogAttrs,
        target: &[u8],
    ) -> Result<InodeId, VolumeError> {
        if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
            return Err(invalid(name, "the target of a symbolic link is a path"));
        }
        self.check_free(dir, name)?;
        let mut inode = self.inode(Kind::Symlink, LogAttrs { mode: 0o777, ..attrs })?;
        (inode.size, inode.data) = (target.len() as u64, Data::Inline(target.into()));
        let key = KeyRef::new(Table::Entry, dir.0, name);
        self.writer.add_row(key, |out| inode.encode_into(out))?;
        Ok(inode.ino)
    }

    /// Returns when all that was made is in the store, content first.
    ///
    /// # Errors
    /// The store's, and `Fenced` if another process has taken the log over.
    pub fn sync(&self) -> Result<(), VolumeError> {
        self.writer.sync()
    }

    /// Files that took the place of others that the log had made by the same name, as far as is
    /// known.
    pub fn replaced(&self) -> u64 {
        self.writer.replaced()
    }

    /// Syncs, and lets go of the log: another process of the rank may open it.
    ///
    /// # Errors
    /// As for [`ChangeLog::sync`].
    pub fn close(mut self) -> Result<(), VolumeError> {
        let synced = self.sync();
        self.packer.close();
        let stopped = self.writer.stop();
        synced.and(stopped)
    }
}

/// The rows of a file's content that is stored in these ranges, one behind the other.
fn layout(parts: &[Range]) -> Result<(Data, Vec<(u64, ExtentList)>), FsError> {
    if let [range] = parts {
        return Ok((Data::Packed { range: *range, visible: range.len }, Vec::new()));
    }
    let mut chunks: Vec<(u64, Vec<Extent>)> = Vec::new();
    let mut offset = 0;
    for range in parts {
        for part in chunk_parts(offset, u64::from(range.len)) {
            let source = Source::Stored { range: *range, skip: part.done as u32 };
            let extent = Extent { pos: part.pos, len: part.len, source };
            match chunks.last_mut().filter(|(chunk, _)| *chunk == part.chunk) {
                Some((_, extents)) => extents.push(extent),
                None => chunks.push((part.chunk, vec![extent])),
            }
        }
        offset += u64::from(range.len);
    }
    let list = |(chunk, extents): (u64, Vec<Extent>)| {
        let list = ExtentList::from_extents(&extents);
        Ok((chunk, list.map_err(|why| FsError::because(libc::EIO, why.to_string()))?))
    };
    Ok((Data::Chunked, chunks.into_iter().map(list).collect::<Result<_, FsError>>()?))
}
