//! Publishing: the tree of a directory at a snapshot, read through the volume's metadata and
//! written as the rows of a version.
//!
//! Numbers of inodes stay what they are, but for the directory's own: it becomes the root. Policies
//! stay behind, for they are about a tree that changes. A file's names outside of the tree are not
//! among those that it is shown to have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use kestrel_bucket::version::{
    VersionFigures, VersionId, VersionInput, VersionManifest, VersionWriter,
};
use kestrel_bucket::version::{VersionRegistry, VersionSource};
use kestrel_engine::EngineError;
use kestrel_meta::node::Node;
use kestrel_meta::ops::xattr;
use kestrel_meta::rows::share_suffix;
use kestrel_meta::view::encode_dir_id;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::{FIRST_OBJECT, InodeId, ROOT};
use kestrel_types::inode::{Data, Inode, Kind, chunk_of};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::{InodeRef, Name};
use kestrel_types::policy::{Policy, XATTR_PREFIX};
use kestrel_types::request::{Answer, Creds, DirEntry, Op, READDIR_ENTRIES_MAX};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::stat::DirStat;
use parking_lot::{Condvar, Mutex};

use crate::error::VolumeError;
use crate::fs::{Fs, into_inode, plain, unanswered, unexpected};

/// Chunks asked for at a time, at most what [`Op::Chunks`] takes.
const WINDOW_CHUNKS: u64 = 4096;

/// What is to be published, and as what.
pub struct Publication {
    /// Name of the version.
    pub name: String,
    /// Its identity, random.
    pub id: VersionId,
    /// The directory, and the snapshot at which it is read.
    pub source: VersionSource,
    /// Versions that it was made from.
    pub inputs: Vec<VersionInput>,
    /// The user that publishes it.
    pub user: u32,
}

/// Why a tree was not published.
#[derive(Debug)]
pub enum PublishError {
    /// A version of this name is there.
    Taken,
    /// The store failed when the version got its name: it may have it, now or later.
    Unsettled(VolumeError),
    /// Something failed.
    Failed(VolumeError),
}

impl From<EngineError> for PublishError {
    fn from(why: EngineError) -> Self {
        Self::Failed(VolumeError::engine(why))
    }
}

impl From<FsError> for PublishError {
    fn from(why: FsError) -> Self {
        Self::Failed(VolumeError::Io(format!("reading the tree: {why}")))
    }
}

/// Names that are read together.
const PAGE_ENTRIES: usize = 1024;
const _: () = assert!(PAGE_ENTRIES <= READDIR_ENTRIES_MAX);

/// Most threads that read.
const READERS_MAX: usize = 8;

/// Pages that are read ahead of what is written.
const PAGES_AHEAD: usize = 16;

/// A directory that is to be read: its number in the volume, and in the version.
#[derive(Clone, Copy)]
struct Pending {
    ino: InodeId,
    number: InodeId,
}

/// Reads a tree at a snapshot.
struct TreeReader<'a> {
    fs: &'a Arc<Fs>,
    at: SnapshotId,
    creds: Creds,
}

/// Directories that are to be read, and how many are being read.
#[derive(Default)]
struct DirQueue {
    state: Mutex<(Vec<Pending>, usize)>,
    changed: Condvar,
}

impl DirQueue {
    fn add(&self, dirs: impl Iterator<Item = Pending>) {
        let mut state = self.state.lock();
        let before = state.0.len();
        state.0.extend(dirs);
        if state.0.len() > before {
            self.changed.notify_all();
        }
    }

    /// The next one; waits while others may come. `None`: none is left.
    fn take(&self) -> Option<Pending> {
        let mut state = self.state.lock();
        loop {
            if let Some(dir) = state.0.pop() {
                state.1 += 1;
                return Some(dir);
            }
            if state.1 == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// One has been read.
    fn done(&self) {
        self.state.lock().1 -= 1;
        self.changed.notify_all();
    }

    /// Forgets those that are left.
    fn stop(&self) {
        self.state.lock().0.clear();
    }
}

/// Threads that read: a node in this process executes a request on the thread that sends it.
fn readers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, READERS_MAX)
}

/// Names of a directory, in order.
struct Page {
    dir: Pending,
    entries: Vec<(DirEntry, Inode)>,
    /// No names of the directory follow.
    end: bool,
}

/// A tree on its way into a version.
struct TreeWriter<'a> {
    reader: &'a TreeReader<'a>,
    writer: VersionWriter,
    /// Files with several names: as they are, and how many of their names were found.
    links: BTreeMap<InodeId, (Inode, u32)>,
    figures: VersionFigures,
    highest: InodeId,
    /// Shares of directories with names still to be written.
    sums: HashMap<InodeId, DirStat>,
}

/// Writes a version of a tree by a writer that has begun, and gives it its name. The snapshot must
/// stay as long as the version does: it keeps the file data. `progress` is told how much has been
/// read.
///
/// # Errors
/// If the name is taken, the tree cannot be read or the store does not take the version. What was
/// written is for the caller to remove, unless it is not settled whether the version has its name.
pub fn publish(
    fs: &Arc<Fs>,
    registry: &VersionRegistry,
    (writer, what): (VersionWriter, Publication),
    progress: &mut dyn FnMut(&VersionFigures),
) -> Result<VersionManifest, PublishError> {
    let manifest = write(fs, registry.volume(), (writer, &what), progress)?;
    match registry.publish(&manifest) {
        Ok(true) => Ok(manifest),
        Ok(false) => Err(PublishError::Taken),
        Err(why) => Err(PublishError::Unsettled(VolumeError::engine(why))),
    }
}

fn write(
    fs: &Arc<Fs>,
    volume: &[u8; 16],
    (writer, what): (VersionWriter, &Publication),
    progress: &mut dyn FnMut(&VersionFigures),
) -> Result<VersionManifest, PublishError> {
    let manifest = VersionManifest::new(&what.name, volume, &what.id, what.source.clone());
    let manifest = manifest.with_inputs(what.inputs.clone());
    let mut manifest = manifest.map_err(|why| PublishError::Failed(VolumeError::Invalid(why)))?;
    let reader = TreeReader { fs, at: what.source.snapshot, creds: Creds::root() };
    let mut walk = TreeWriter {
        reader: &reader,
        writer,
        links: BTreeMap::new(),
        figures: VersionFigures::default(),
        highest: ROOT,
        sums: HashMap::new(),
    };
    walk.tree(what.source.dir, progress)?;
    manifest.created = SystemClock.now();
    manifest.user = what.user;
    manifest.figures = walk.figures;
    manifest.rows = walk.writer.rows();
    manifest.runs = walk.writer.finish()?;
    Ok(manifest)
}

impl TreeReader<'_> {
    fn ask_many(&self, ops: Vec<Op>) -> Vec<FsResult<Answer>> {
        let ops = ops.into_iter().map(|op| Op::At(self.at, Box::new(op))).collect();
        self.fs.replies(&self.creds, ops).into_iter().map(plain).collect()
    }

    fn ask(&self, op: Op) -> FsResult<Answer> {
        self.ask_many(vec![op]).pop().unwrap_or_else(|| Err(unanswered()))
    }

    /// Reads directories that are left, and sends their names, until none is left or nobody takes
    /// them.
    fn read(&self, left: &DirQueue, pages: &SyncSender<FsResult<Page>>) {
        while let Some(dir) = left.take() {
            if !self.read_dir(dir, left, pages) {
                left.stop();
            }
            left.done();
        }
    }

    /// The names of one directory; `false`: nobody takes more, or reading failed.
    fn read_dir(&self, dir: Pending, left: &DirQueue, pages: &SyncSender<FsResult<Page>>) -> bool {
        let mut after = None;
        loop {
            let page = self.page(dir, after.take());
            if let Ok(page) = &page {
                let dirs = page.entries.iter().filter(|(entry, _)| entry.kind == Kind::Dir);
                left.add(dirs.map(|(dir, _)| Pending { ino: dir.ino, number: dir.ino }));
            }
            let next = page.as_ref().ok().filter(|page| !page.end);
            after = next.and_then(|page| page.entries.last()).map(|(last, _)| last.name.clone());
            let failed = page.is_err();
            if pages.send(page).is_err() || failed {
                return false;
            }
            if after.is_none() {
                return true;
            }
        }
    }

    fn page(&self, dir: Pending, after: Option<Name>) -> FsResult<Page> {
        let page = Op::ReadDir { dir: dir.ino, after, limit: PAGE_ENTRIES, check: false };
        let (entries, end) = match self.ask(page)? {
            Answer::Entries { entries, end, .. } => (entries, end),
            other => return Err(unexpected(&other)),
        };
        let seen = |entry: &DirEntry| {
            let seen = Some((dir.ino, entry.name.clone()));
            Op::GetAttr(InodeRef { ino: entry.ino, seen })
        };
        let inodes = self.ask_many(entries.iter().map(seen).collect());
        let end = end || entries.is_empty();
        let joined = entries.into_iter().zip(inodes);
        let entries = joined.map(|(entry, inode)| Ok((entry, inode.and_then(into_inode)?)));
        Ok(Page { dir, entries: entries.collect::<FsResult<_>>()?, end })
    }
}

impl TreeWriter<'_> {
    fn tree(
        &mut self,
        top: InodeId,
        progress: &mut dyn FnMut(&VersionFigures),
    ) -> Result<(), PublishError> {
        let reader = self.reader;
        let root = reader.ask(Op::GetAttr(InodeRef::by_id(top))).and_then(into_inode)?;
        if root.kind != Kind::Dir {
            return Err(FsError::new(libc::ENOTDIR, "only directories are published").into());
        }
        self.attributes(&root, ROOT, None)?;
        let (send, pages) = std::sync::mpsc::sync_channel(PAGES_AHEAD);
        let left = DirQueue::default();
        left.add(std::iter::once(Pending { ino: top, number: ROOT }));
        std::thread::scope(|scope| {
            for _ in 0..readers() {
                let (send, left) = (send.clone(), &left);
                scope.spawn(move || reader.read(left, &send));
            }
            drop(send);
            // Owned here, so that readers end if writing fails.
            for page in pages {
                self.page(page?)?;
                progress(&self.figures);
            }
            Ok::<(), PublishError>(())
        })?;
        let links = std::mem::take(&mut self.links);
        for (ino, (inode, names)) in links {
            self.figures.bytes += inode.size;
            let mut out = Vec::with_capacity(64);
            Inode { nlink: names, ..inode }.encode_into(&mut out);
            self.writer.put(KeyRef::new(Table::Link, ino, b""), &out)?;
        }
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let VersionFigures { files, directories, bytes } = self.figures;
        let figures = [whole(files), whole(directories.saturating_sub(1)), whole(bytes)];
        let numbers = (self.highest + 1, FIRST_OBJECT);
        let rows = Node::rows_of_tree(stored(root, ROOT), Some(figures), reader.at, numbers);
        for row in rows {
            self.writer.put(row.key.borrow(), row.value.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Names of a directory; behind the last ones its share.
    fn page(&mut self, page: Page) -> Result<(), PublishError> {
        let dir = page.dir;
        for (entry, inode) in page.entries {
            self.entry(dir, &entry.name, inode)?;
        }
        if page.end {
            self.figures.directories += 1;
            let sum = self.sums.remove(&dir.number).unwrap_or_default().encode();
            let share = share_suffix(0);
            self.writer.put(KeyRef::new(Table::DirStat, dir.number, &share), &sum)?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: Pending, name: &Name, inode: Inode) -> Result<(), PublishError> {
        let ino = inode.ino;
        self.highest = self.highest.max(ino);
        let sum = self.sums.entry(dir.number).or_default();
        sum.children += 1;
        match inode.kind {
            Kind::Dir => sum.subdirs += 1,
            _ if inode.nlink > 1 => {}
            _ => sum.bytes += inode.size.cast_signed(),
        }
        let row = match inode.kind {
            Kind::Dir => {
                let place = encode_dir_id(dir.number, name.as_bytes());
                self.writer.put(KeyRef::new(Table::DirId, ino, b""), &place)?;
                let child = ino.to_be_bytes();
                self.writer.put(KeyRef::new(Table::Subdir, dir.number, &child), b"")?;
                self.attributes(&inode, ino, None)?;
                Entry::Inode(stored(inode, ino))
            }
            kind if inode.nlink > 1 => {
                self.figures.files += 1;
                if let Some((_, names)) = self.links.get_mut(&ino) {
                    *names += 1;
                } else {
                    self.content(&inode)?;
                    self.attributes(&inode, ino, Some((dir.ino, name)))?;
                    self.links.insert(ino, (stored(inode, ino), 1));
                }
                Entry::Link { ino, kind }
            }
            _ => {
                self.figures.files += 1;
                self.figures.bytes += inode.size;
                self.content(&inode)?;
                self.attributes(&inode, ino, Some((dir.ino, name)))?;
                Entry::Inode(stored(inode, ino))
            }
        };
        let key = KeyRef::new(Table::Entry, dir.number, name.as_bytes());
        self.writer.put(key, &row.encode())?;
        Ok(())
    }

    /// The extents of a file that has them in rows of their own.
    fn content(&mut self, inode: &Inode) -> Result<(), PublishError> {
        if inode.data != Data::Chunked {
            return Ok(());
        }
        let last = chunk_of(inode.size.saturating_sub(1));
        let mut next = Some(0);
        while let Some(first) = next.filter(|first| *first <= last) {
            let window = last.min(first.saturating_add(WINDOW_CHUNKS - 1));
            let op = Op::Chunks { ino: inode.ino, first, last: window };
            let (chunks, end) = match self.reader.ask(op)? {
                Answer::Chunks { chunks, end } => (chunks, end),
                other => return Err(unexpected(&other).into()),
            };
            let told = chunks.last().filter(|_| !end).map_or(window, |(chunk, _)| *chunk);
            next = told.checked_add(1);
            for (chunk, extents) in chunks {
                let list = ExtentList::from_extents(&extents).map_err(|why| {
                    let why = format!("inode {}, chunk {chunk}: {why}", inode.ino);
                    PublishError::Failed(VolumeError::Io(why))
                })?;
                let mut out = Vec::new();
                list.encode_into(&mut out);
                let key = chunk.to_be_bytes();
                self.writer.put(KeyRef::new(Table::Chunk, inode.ino, &key), &out)?;
            }
        }
        Ok(())
    }

    /// Extended attributes of an inode, which gets this number. ACLs are part of the inode, and
    /// policies stay behind.
    fn attributes(
        &mut self,
        inode: &Inode,
        number: InodeId,
        seen: Option<(InodeId, &Name)>,
    ) -> Result<(), PublishError> {
        if !inode.xattrs {
            return Ok(());
        }
        let seen = seen.map(|(dir, name)| (dir, name.clone()));
        let of = InodeRef { ino: inode.ino, seen };
        let names = match self.reader.ask(Op::ListXattr(of.clone()))? {
            Answer::Bytes(names) => names,
            other => return Err(unexpected(&other).into()),
        };
        let is_row = |name: &&[u8]| {
            !name.is_empty() && !name.starts_with(b"system.") && !name.starts_with(XATTR_PREFIX)
        };
        let names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(is_row).collect();
        let get = |name: &&[u8]| Op::GetXattr(of.clone(), (*name).into());
        let values = self.reader.ask_many(names.iter().map(get).collect());
        for (name, value) in names.into_iter().zip(values) {
            let value = match value? {
                Answer::Bytes(value) => value,
                other => return Err(unexpected(&other).into()),
            };
            let key = KeyRef::new(Table::Xattr, number, name);
            self.writer.put(key, &xattr::encode(&value))?;
        }
        Ok(())
    }
}

/// An inode as a row has it, from what an answer says of it.
pub(crate) fn stored(inode: Inode, number: InodeId) -> Inode {
    let mut stored = Inode { ino: number, effective: Policy::default(), ..inode };
    if stored.kind == Kind::Dir {
        // Figures come from the shares, and the record is of policies.
        (stored.nlink, stored.size, stored.data) = (1, 0, Data::None);
    }
    stored
}
