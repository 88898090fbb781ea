//! A file that is open at this client: what the node last said of it, and what has been written
//! since.
//!
//! All handles of an inode share one [`OpenFile`], so every process of this client sees every write
//! at once. Three layers make up the content, the newer hiding the older: **committed** (the
//! inode's layout), **in flight** (pieces being stored or stored but not committed), **buffer**
//! (written, not yet on the way).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kestrel_blockstore::packer::StoredRange;
use kestrel_blockstore::{Grant, PutOptions};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::perm::{GROUP_EXEC, SET_GID, SET_UID, in_group, without_set_ids};
use kestrel_types::request::Creds;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::caller::{Caller, Done};
use crate::extent_cache::ExtentCache;
use crate::groups::supplementary_groups;
use crate::write_buffer::WriteBuffer;

/// A piece that left the buffer: immutable, on its way to the block store or there.
pub(crate) struct WrittenPiece {
    /// First byte within the file.
    pub offset: u64,
    /// Its bytes, kept until the commit is acknowledged so that reads need not wait for the store.
    pub bytes: Arc<Vec<u8>>,
    /// Where it was stored; `None` until then. Holding it keeps the object from being reaped.
    pub placed: Option<StoredRange>,
    /// Whether somebody is storing it.
    pub storing: bool,
    /// Share of the client's budget for unstored bytes.
    pub grant: Option<Grant>,
    /// It repeats the file's inline bytes as of this `data_change`.
    pub inline_of: Option<u64>,
}

impl WrittenPiece {
    /// First byte after it, within the file.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Two pieces, of the bytes before and from file offset `at` on, which lies within. Neither is
    /// stored.
    fn split(self, at: u64) -> [Self; 2] {
        let (before, after) = self.bytes.split_at((at - self.offset) as usize);
        let [before, after] = [before, after].map(|bytes| Arc::new(bytes.to_vec()));
        let unstored = |offset, bytes, grant| Self {
            offset,
            bytes,
            placed: None,
            storing: false,
            grant,
            inline_of: self.inline_of,
        };
        [unstored(self.offset, before, self.grant), unstored(at, after, None)]
    }
}

/// The changing part of an [`OpenFile`].
pub(crate) struct FileState {
    /// As last acknowledged by the node.
    pub inode: Inode,
    /// How its bytes are stored, as the policy of its directory said when it was last opened for
    /// writing.
    pub put_options: PutOptions,
    /// Present size, with what was written.
    pub size: u64,
    /// The largest size that the kernel may take it for; what it was told before the first open is
    /// not known.
    pub told_size: u64,
    /// When it was last written, if that is not committed.
    pub mtime: Option<Nanos>,
    /// A write that is not committed must drop set-id bits: the writer, of several the one that may
    /// keep least. Its groups are known if they matter.
    pub kill_suid: Option<Creds>,
    /// Written, not on the way.
    pub buffer: WriteBuffer,
    /// Budget held by the buffer.
    pub grants: Vec<Grant>,
    /// On the way, oldest first.
    pub inflight: Vec<WrittenPiece>,
    /// Known chunk lists, valid for `inode.data_change`.
    pub chunks: ExtentCache,
    /// Small writes committed since the chunk lists were last looked at for compaction.
    pub patches_since_compaction: u32,
    /// A compaction is running.
    pub compacting: bool,
    /// A flush is running.
    pub flushing: bool,
    /// What it is doing.
    pub flush: Option<Flush>,
    /// Its commit is at the node.
    pub committing: bool,
    /// Where the bytes begin that were appended (`O_APPEND`) and are not committed: the end of the
    /// file then, as far as it was known here. See [`FileState::place_appended`].
    pub append_from: Option<u64>,
    /// Others append, too: appended bytes have been moved since the file was opened here.
    pub shared_end: bool,
    /// What was appended last may be part of a write: the number of the handle through which it
    /// came, and when.
    pub unfinished: Option<(u64, Nanos)>,
    /// Appended bytes have been moved, and the kernel has not heard of it.
    pub moved: bool,
    /// Commits of one content of which the node has not said whether it has executed them. It has
    /// executed one at most: that changed the content.
    pub unanswered: Vec<Unanswered>,
    /// Callers that wait until what was written before now is committed.
    pub waiters: Vec<Done<()>>,
    /// When the oldest uncommitted write happened.
    pub dirty_since: Option<Nanos>,
    /// A write that could not be stored in the background, for the next flush or fsync to report.
    pub error: Option<FsError>,
    /// When a quota refused the last commit, and the error.
    pub over_quota: Option<(Nanos, FsError)>,
    /// Handles.
    pub opens: u32,
    /// Those of them that are programs being run.
    pub executing: u32,
    /// Those of them that are for reading or running.
    pub readers: u32,
    /// Those of them that are for writing.
    pub writers: u32,
    /// There has been such a handle since [`FileHandle::may_be_cached`] was asked last.
    ///
    /// [`FileHandle::may_be_cached`]: crate::fs::FileHandle::may_be_cached
    pub was_read: bool,
}

/// A flush that is running.
pub(crate) struct Flush {
    /// Pieces of the layer in flight that belong to it.
    pub upto: usize,
    /// Bytes in the file after it.
    pub size: u64,
    /// The `data_change` of the content it changes.
    pub base: u64,
    pub mtime: i64,
    pub kill_suid: Option<Creds>,
    pub conflicts: u32,
    pub waiters: Vec<Done<()>>,
}

/// The kernel's pages of a file are another content's, or it takes the file for shorter or longer
/// than it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outdated {
    /// First byte that may be another one.
    pub from: u64,
    /// The content that the kernel has when it has heard of this, for [`Fs::kernel_has`]; 0: none
    /// that is known.
    ///
    /// [`Fs::kernel_has`]: crate::fs::Fs::kernel_has
    pub content: u64,
    /// Bytes in the file now; `None`: not known.
    pub size: Option<u64>,
    /// The kernel may take it for longer than that.
    pub is_shorter: bool,
}

impl Outdated {
    /// All that the kernel has.
    pub const UNKNOWN: Self = Self { from: 0, content: 0, size: None, is_shorter: false };
}

/// A commit that failed and may have been executed all the same: the connection, and with a lost
/// session what the node answered, may have been lost before the answer came.
#[derive(PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// The `data_change` of the content that it changes.
    pub base: u64,
    /// Pieces in flight, from the oldest on, that it commits.
    pub upto: usize,
    /// Size of the file after it, bytes.
    pub size: u64,
    /// Its mtime. No two writes have the same nanosecond, so it tells this commit from others.
    pub mtime: Nanos,
}

impl FileState {
    /// Whether anything is not committed.
    pub fn is_dirty(&self) -> bool {
        self.mtime.is_some() || !self.buffer.is_empty() || !self.inflight.is_empty()
    }

    /// Whether the file ends with appended bytes that are not committed, and before `offset`.
    pub fn ends_with_appended(&self, offset: u64) -> bool {
        self.append_from.is_some() && offset > self.size
    }

    /// Whether a commit that is still to come may take an attribute away.
    pub fn has_unsettled_attributes(&self) -> bool {
        self.inode.xattrs && self.is_dirty()
    }

    /// Whether a question for the file's capabilities is answered with none, without a question to
    /// the node. The kernel asks before it lets a program write. Another client may have given the
    /// file some since it was opened here; a commit of what is written here takes those away, too.
    pub fn is_written_plain(&self) -> bool {
        self.writers > 0 && !self.inode.xattrs
    }

    /// Forgets everything that is not committed. Not while a flush runs.
    pub fn discard(&mut self) {
        self.buffer.take();
        self.grants.clear();
        self.inflight.clear();
        (self.mtime, self.kill_suid, self.dirty_since, self.error) = (None, None, None, None);
        (self.append_from, self.over_quota) = (None, None);
        self.unanswered.clear();
        self.size = self.inode.size;
    }

    /// Brings attributes that the node gave up to date with what is known and has been written
    /// here. The times are those of the writes: the commit will not change them again.
    pub fn show(&self, inode: &mut Inode) {
        if self.inode.change > inode.change {
            // A commit of ours came after the node had given its answer.
            inode.clone_from(&self.inode);
        }
        let Some(mtime) = self.mtime else { return };
        inode.size = self.size;
        inode.mtime = mtime;
        inode.ctime = inode.ctime.max(mtime);
        if let Some(writer) = &self.kill_suid {
            // Without his groups he counts as none of the file's, as at the node.
            inode.mode = without_set_ids(writer, inode.mode, inode.gid)
                .unwrap_or(inode.mode & !(SET_UID | SET_GID));
        }
    }

    /// Notes a write, not committed yet, that drops set-id bits because `writer` is not privileged.
    pub fn written_by(&mut self, writer: Caller) {
        let decides =
            self.inode.mode & (SET_GID | GROUP_EXEC) == SET_GID && writer.gid != self.inode.gid;
        let groups: Arc<[u32]> =
            if decides { supplementary_groups(writer.pid) } else { Arc::new([]) };
        let writer = Creds { uid: writer.uid, gid: writer.gid, groups: Some(groups) };
        let stranger = |creds: &Creds| !in_group(creds, self.inode.gid).unwrap_or(false);
        if !self.kill_suid.as_ref().is_some_and(stranger) {
            self.kill_suid = Some(writer);
        }
    }

    /// Takes in an inode from the node unless a newer one is known. What was written here and is
    /// not committed goes on counting for the size; what was appended comes to the end of the file
    /// as it is now, unless a flush runs, which sees to that itself.
    pub fn refresh(&mut self, inode: Inode) {
        if inode.change >= self.inode.change {
            if inode.data_change != self.inode.data_change {
                self.chunks.clear();
            }
            self.inode = inode;
        }
        self.settle_unanswered();
        if self.flush.is_none() {
            self.place_appended();
        }
        self.know_size();
    }

    /// Finds out what became of unanswered commits once the file has another content than the one
    /// they change. If one of them has made it, its pieces are committed, and what it appended must
    /// not be appended once more. Not while a commit is under way: its answer tells the same.
    fn settle_unanswered(&mut self) {
        let (content, size, mtime) = (self.inode.data_change, self.inode.size, self.inode.mtime);
        if self.committing || self.unanswered.first().is_none_or(|commit| commit.base == content) {
            return;
        }
        let is_it = |commit: &Unanswered| (commit.size, commit.mtime) == (size, mtime);
        let executed = std::mem::take(&mut self.unanswered).into_iter().filter(is_it);
        // Of several that would look the same, what only some of them commit is written again.
        let Some(upto) = executed.map(|commit| commit.upto).min() else { return };
        self.inflight.drain(..upto.min(self.inflight.len()));
        if let Some(flush) = &mut self.flush {
            flush.upto = flush.upto.saturating_sub(upto);
        }
        self.appended_upto(size);
    }

    /// Everything that was appended before `end`, in bytes, is committed.
    pub fn appended_upto(&mut self, end: u64) {
        let left = self.reach() > end;
        self.append_from = self.append_from.filter(|_| left).map(|from| from.max(end));
    }

    /// Takes bytes that come before all that are in flight into the flush that runs.
    pub fn push_oldest(&mut self, piece: WrittenPiece) {
        self.inflight.insert(0, piece);
        self.resize_flush(0, 1);
    }

    /// The size with what was written here. While a flush keeps what was appended where it is, the
    /// file ends there too, so that what is appended next follows and moves along.
    fn know_size(&mut self) {
        self.size = match (self.mtime, self.append_from) {
            (None, _) => self.inode.size,
            (Some(_), Some(from)) if self.flush.is_some() => from.max(self.reach()),
            (Some(_), _) => self.inode.size.max(self.reach()),
        };
        self.told_size = self.told_size.max(self.size);
    }

    /// What the kernel has to hear of a content that is another one than it has.
    pub fn outdated(&mut self, content: u64) -> Outdated {
        let told = std::mem::replace(&mut self.told_size, self.size);
        Outdated { from: 0, content, size: Some(self.size), is_shorter: told > self.size }
    }

    /// First byte after the last one that was written and is not committed; 0 if there is none.
    pub fn reach(&self) -> u64 {
        self.inflight.iter().map(WrittenPiece::end).fold(self.buffer.end(), u64::max)
    }

    /// Moves what was appended to the end of the file as the node knows it and as plain writes here
    /// will make it, if another client has changed that end; and forgets pieces that repeat inline
    /// bytes of another content. Not while a commit is under way: it may have been what changed the
    /// end. Answers whether a piece is not stored any more.
    ///
    /// Plain writes behind the first appended byte move with it: their writer found there what was
    /// appended here.
    pub fn place_appended(&mut self) -> bool {
        let content = self.inode.data_change;
        let outdated = |piece: &WrittenPiece| piece.inline_of.is_some_and(|of| of != content);
        if let Some(at) = self.inflight.iter().position(outdated) {
            self.inflight.remove(at);
            self.resize_flush(at, -1);
        }
        let Some(from) = self.append_from else { return false };
        let inflight = self.inflight.iter().map(|piece| (piece.offset, piece.end()));
        let buffered =
            self.buffer.pieces().map(|(start, bytes)| (start, start + bytes.len() as u64));
        let before = inflight
            .chain(buffered)
            .filter(|(start, _)| *start < from)
            .map(|(_, end)| end.min(from));
        let to = before.fold(self.inode.size, u64::max);
        if to == from {
            return false;
        }
        let mut split = false;
        for (at, mut piece) in std::mem::take(&mut self.inflight).into_iter().enumerate() {
            if piece.offset >= from {
                piece.offset = piece.offset - from + to;
                self.inflight.push(piece);
            } else if piece.end() <= from {
                self.inflight.push(piece);
            } else {
                let [before, mut after] = piece.split(from);
                after.offset = to;
                self.inflight.extend([before, after]);
                self.resize_flush(at, 1);
                split = true;
            }
        }
        self.buffer.shift(from, to);
        (self.append_from, self.moved, self.shared_end) = (Some(to), true, true);
        self.know_size();
        split
    }

    /// The flush that runs, and unanswered commits, have so many pieces more or less if the one at
    /// `at` belongs to them.
    fn resize_flush(&mut self, at: usize, by: isize) {
        let unanswered = self.unanswered.iter_mut().map(|commit| &mut commit.upto);
        let flush = self.flush.as_mut().map(|flush| &mut flush.upto);
        for upto in unanswered.chain(flush).filter(|upto| at < **upto) {
            *upto = upto.saturating_add_signed(by);
        }
    }
}

/// A file that is open.
pub(crate) struct OpenFile {
    pub ino: InodeId,
    /// The kernel may have pages of it that were read since it was opened here.
    pub paged: AtomicBool,
    state: Mutex<FileState>,
}

impl OpenFile {
    pub fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock()
    }
}

/// Shards of the table of open files; a power of two.
const SHARDS: usize = 64;

/// The open files of a client, by inode.
pub(crate) struct OpenFiles {
    shards: Vec<Mutex<FxHashMap<InodeId, Arc<OpenFile>>>>,
    slot_bytes: u32,
}

impl OpenFiles {
    pub fn new(slot_bytes: u32) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), slot_bytes }
    }

    fn shard(&self, ino: InodeId) -> &Mutex<FxHashMap<InodeId, Arc<OpenFile>>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The file, if it is open.
    pub fn get(&self, ino: InodeId) -> Option<Arc<OpenFile>> {
        self.shard(ino).lock().get(&ino).cloned()
    }

    /// Adds a handle to the file the node just opened.
    pub fn attach(&self, inode: Inode) -> Arc<OpenFile> {
        let mut shard = self.shard(inode.ino).lock();
        if let Some(file) = shard.get(&inode.ino) {
            let file = file.clone();
            let mut state = file.lock();
            state.opens += 1;
            // Answers may arrive out of order; the commit timestamp says which is newer.
            state.refresh(inode);
            drop(state);
            return file;
        }
        let state = FileState {
            size: inode.size,
            told_size: u64::MAX,
            mtime: None,
            kill_suid: None,
            buffer: WriteBuffer::new(self.slot_bytes),
            grants: Vec::new(),
            inflight: Vec::new(),
            chunks: ExtentCache::default(),
            patches_since_compaction: 0,
            compacting: false,
            flushing: false,
            flush: None,
            committing: false,
            append_from: None,
            unanswered: Vec::new(),
            shared_end: false,
            unfinished: None,
            moved: false,
            waiters: Vec::new(),
            dirty_since: None,
            error: None,
            over_quota: None,
            opens: 1,
            executing: 0,
            readers: 0,
            writers: 0,
            was_read: false,
            put_options: PutOptions::default(),
            inode,
        };
        let file = Arc::new(OpenFile {
            ino: state.inode.ino,
            paged: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        shard.insert(file.ino, file.clone());
        file
    }

    /// Takes a handle away; the file leaves the table with its last one. Tells whether this was it.
    pub fn detach(&self, file: &Arc<OpenFile>) -> bool {
        let mut shard = self.shard(file.ino).lock();
        let mut state = file.lock();
        state.opens = state.opens.saturating_sub(1);
        let last = state.opens == 0;
        drop(state);
        if last {
            shard.remove(&file.ino);
        }
        last
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// As [`OpenFiles::overlay`]. A file that is open with nothing uncommitted takes in what the
    /// node said of it: another client may have changed it, and a reader that sees its new size
    /// goes on reading.
    pub fn learn(&self, inode: &mut Inode) {
        let Some(file) = self.get(inode.ino) else { return };
        let mut state = file.lock();
        if inode.change > state.inode.change && !state.is_dirty() && !state.flushing {
            state.refresh(inode.clone());
        }
        state.show(inode);
        state.told_size = state.told_size.max(inode.size);
    }

    /// Shows in attributes what has been written here but is not committed, exactly as its commit
    /// will.
    pub fn overlay(&self, inode: &mut Inode) {
        if let Some(file) = self.get(inode.ino) {
            let mut state = file.lock();
            state.show(inode);
            state.told_size = state.told_size.max(inode.size);
        }
    }
}

/// The error for a handle that is not open.
pub(crate) fn bad_handle() -> FsError {
    FsError::new(libc::EBADF, "the file handle is not open")
}

/// Passes an error of the data plane on as the errno an application should see.
pub(crate) fn data_error(error: &kestrel_blockstore::Error) -> FsError {
    use kestrel_blockstore::ErrorKind;
    let errno = match error.kind() {
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Deadline => libc::ETIMEDOUT,
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Archived | ErrorKind::Io => libc::EIO,
    };
    FsError::because(errno, error.to_string())
}

/// Completes all waiters with the same result.
pub(crate) fn finish_all(waiters: Vec<Done<()>>, result: &FsResult<()>) {
    for done in waiters {
        done(result.clone());
    }
}
