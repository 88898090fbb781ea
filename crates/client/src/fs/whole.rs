//! Whole copies of files in the disk cache, for the kernel to read by itself (`docs/cache.md`).
//!
//! **Which files.** Those asked for ([`Fs::make_whole`]) and, if that is wanted, those of at least
//! [`WHOLE_BYTES_MIN`] of which a handle was given as many bytes as the file has and the last of
//! them: a program that reads a file to its end may well come again. One thread of low priority
//! makes and checks copies, one after another; what does not fit its queue is forgotten.
//!
//! **Which content.** A copy is of one `data_change`. It is read like any file, verified, and kept
//! only if the node says afterwards that the content is still the same and nothing was written here
//! meanwhile.
//!
//! **Copies that the kernel reads from** follow the changes made here: the mount changes their
//! bytes, and this module keeps which `data_change` they correspond to ([`Fs::follow_whole`]). A
//! content that came in another way (another client) is none of theirs, and the next open finds
//! that out.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use kestrel_blockstore::ReadAhead;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::request::{Answer, Op, OpenFlags};

use super::handles::Progress;
use super::{Caller, FileHandle, Fs, unexpected, wait};

pub use kestrel_cache::{WholeCopies, WholeCopy, WholeId};

/// Smallest file of which a copy is made, bytes: below, an open costs more than the reads that
/// follow it.
pub const WHOLE_BYTES_MIN: u64 = 1 << 20;

/// Bytes read at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Copies that wait to be made or checked.
const QUEUE_MAX: usize = 256;

/// Contents that are known to have no copy, or to be waiting for one; beyond that they are looked
/// for again.
const ASKED_MAX: usize = 64 * 1024;

/// How nice the thread is.
const NICE: libc::c_int = 19;

/// What became of a wish for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeMade {
    /// There is one now, of so many bytes.
    Made(u64),
    /// There was one already.
    Was(u64),
    /// Not a regular file, or too small to gain anything.
    Unfit,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct WholeCounters {
    /// Copies made, and their bytes.
    pub made: AtomicU64,
    /// See `made`.
    pub made_bytes: AtomicU64,
    /// Copies that could not be made or checked.
    pub failed: AtomicU64,
}

/// What the thread does.
enum Job {
    Make(InodeId),
    Check(WholeId),
}

/// Copies in use by a client.
struct Work {
    copies: WholeCopies,
    automatic: bool,
    jobs: SyncSender<Job>,
    /// What is in the queue or was found to have no copy.
    asked: Mutex<FxHashSet<WholeId>>,
    making: Mutex<FxHashSet<InodeId>>,
    closed: AtomicBool,
}

/// The client's part of whole copies; idle until [`Fs::start_whole`].
#[derive(Default)]
pub(super) struct Whole {
    work: OnceLock<Work>,
    counters: WholeCounters,
    /// Of the copies that the kernel reads from, the `data_change` that they correspond to; 0:
    /// unknown.
    followed: Mutex<FxHashMap<InodeId, u64>>,
    /// Entries of `followed`.
    following: AtomicUsize,
}

impl Whole {
    /// Notes that a change of ours led from the content `from` (unknown: `None`) to `to`. Answers
    /// may arrive in another order than the changes were made: an older one leads to nothing.
    pub fn moved(&self, ino: InodeId, from: Option<u64>, to: u64) {
        if self.following.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(change) = self.followed.lock().get_mut(&ino)
            && *change != 0
            && from.is_none_or(|from| from == *change)
        {
            *change = to.max(*change);
        }
    }

    /// Notes that the copy may have what the volume never gets.
    pub fn lost(&self, ino: InodeId) {
        if let Some(change) = self.followed.lock().get_mut(&ino) {
            *change = 0;
        }
    }

    /// No more copies are made.
    pub fn close(&self) {
        if let Some(work) = self.work.get() {
            work.closed.store(true, Ordering::Relaxed);
        }
    }
}

impl Work {
    fn submit(&self, job: Job) {
        // A full queue: the copy would come late, and there will be another occasion.
        let _ = self.jobs.try_send(job);
    }

    /// True the first time.
    fn ask_for(&self, id: WholeId) -> bool {
        let mut asked = self.asked.lock();
        if asked.len() >= ASKED_MAX {
            asked.clear();
        }
        asked.insert(id)
    }
}

impl Fs {
    /// Uses whole copies from now on; `automatic` makes them of files that were read to their end.
    /// Starts a thread.
    ///
    /// # Errors
    /// If the thread cannot be started, or this was called before.
    pub fn start_whole(
        self: &Arc<Self>,
        copies: WholeCopies,
        automatic: bool,
    ) -> Result<(), String> {
        let (jobs, todo) = sync_channel(QUEUE_MAX);
        let work = Work {
            copies,
            automatic,
            jobs,
            asked: Mutex::default(),
            making: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        self.whole.work.set(work).map_err(|_| "whole copies are in use already".to_string())?;
        let fs = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("kestrel-whole".into());
        thread
            .spawn(move || run(&fs, &todo))
            .map(drop)
            .map_err(|why| format!("starting a thread: {why}"))
    }

    /// The whole copies that this client uses.
    pub fn whole_copies(&self) -> Option<&WholeCopies> {
        self.whole.work.get().map(|work| &work.copies)
    }

    /// Counters since the start.
    pub fn whole_counters(&self) -> &WholeCounters {
        &self.whole.counters
    }

    /// Notes that a handle was asked for bytes, before it is given them.
    pub(super) fn note_read(&self, handle: &FileHandle, offset: u64, len: usize) {
        let Some(work) = self.whole.work.get().filter(|work| work.automatic) else { return };
        if handle.progress.told.load(Ordering::Relaxed) {
            return;
        }
        let size = handle.file.lock().size;
        let end = offset.saturating_add(len as u64).min(size);
        let given = end.saturating_sub(offset);
        let bytes = handle.progress.bytes.fetch_add(given, Ordering::Relaxed) + given;
        if size < WHOLE_BYTES_MIN || bytes < size || end < size || size > work.copies.bytes_max() {
            return;
        }
        if !handle.progress.told.swap(true, Ordering::Relaxed)
            && work.making.lock().insert(handle.ino())
        {
            work.submit(Job::Make(handle.ino()));
        }
    }

    /// The copy of a file that was just opened, if there is one that was checked and nobody else
    /// uses. One that was not checked will be, for a later open.
    pub fn find_whole(&self, inode: &Inode) -> Option<WholeCopy> {
        let work = self.whole.work.get()?;
        if inode.kind != Kind::File || inode.size < WHOLE_BYTES_MIN || self.is_written(inode.ino) {
            return None;
        }
        let id = WholeId { ino: inode.ino, change: inode.data_change, size: inode.size };
        let found = work.copies.find(&id);
        if found.is_none() && work.ask_for(id) {
            work.submit(Job::Check(id));
        }
        found
    }

    /// Whether something was written to a file that is not committed.
    pub fn is_written(&self, ino: InodeId) -> bool {
        self.files.get(ino).is_some_and(|file| file.lock().is_dirty())
    }

    /// The kernel reads from a copy of this content from now on; what changes it here is told.
    pub fn follow_whole(&self, ino: InodeId, data_change: u64) {
        let mut followed = self.whole.followed.lock();
        followed.insert(ino, data_change);
        self.whole.following.store(followed.len(), Ordering::Release);
    }

    /// The kernel reads from no copy any more. What it has in its page cache may be of any time.
    pub fn unfollow_whole(&self, ino: InodeId) {
        let mut followed = self.whole.followed.lock();
        followed.remove(&ino);
        self.whole.following.store(followed.len(), Ordering::Release);
        drop(followed);
        self.known.cached_as(ino, 0);
    }

    /// Whether the copy that the kernel reads from is of this content, or of a later one: an answer
    /// of the node may be older than that to a change of ours.
    pub fn is_whole_of(&self, ino: InodeId, data_change: u64) -> bool {
        self.whole.followed.lock().get(&ino).is_some_and(|followed| *followed >= data_change)
    }

    /// Goes on when the answer to the commit of a file that is under way has been taken in; at once
    /// if none is.
    pub fn when_committed(&self, ino: InodeId, go_on: Box<dyn FnOnce() + Send>) {
        if let Some(file) = self.files.get(ino) {
            let mut state = file.lock();
            if state.flushing {
                return state.waiters.push(Box::new(move |_| go_on()));
            }
        }
        go_on();
    }

    /// Makes a whole copy of a file unless there is a good one. Takes as long as reading it takes;
    /// `go_on` is asked in between.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without a cache directory that can hold it, `EAGAIN` if the file is being
    /// changed, `EINTR` if it was not to go on, and those of reading and of the cache's disk.
    pub fn make_whole(
        self: &Arc<Self>,
        ino: InodeId,
        go_on: &dyn Fn() -> bool,
    ) -> FsResult<WholeMade> {
        let Some(work) = self.whole.work.get() else {
            return Err(FsError::new(
                libc::EOPNOTSUPP,
                "this mount uses no whole copies; see its status for why",
            ));
        };
        let handle = self.open_unseen(ino, false)?;
        let made = self.copy_whole(&work.copies, &handle, go_on);
        let released = wait(|done| self.release(handle, done));
        match &made {
            Ok(WholeMade::Made(bytes)) => {
                Self::count(&self.whole.counters.made, 1);
                Self::count(&self.whole.counters.made_bytes, *bytes);
            }
            Ok(_) => {}
            Err(_) => Self::count(&self.whole.counters.failed, 1),
        }
        made.and_then(|made| released.map(|()| made))
    }

    /// Opens a file for reading, and writing, without the kernel's knowing. Waits.
    ///
    /// # Errors
    /// Those of an open.
    pub fn open_unseen(self: &Arc<Self>, ino: InodeId, write: bool) -> FsResult<Arc<FileHandle>> {
        let flags = OpenFlags { read: true, write, ..OpenFlags::default() };
        let op = Op::Open(self.known.reference(ino), flags);
        let inode = match wait(|done| self.ask(Caller::ROOT, op, done))? {
            Answer::Opened { inode, .. } => *inode,
            other => return Err(unexpected(&other)),
        };
        let file = self.files.attach(inode);
        let mut state = file.lock();
        state.readers += 1;
        state.writers += u32::from(write);
        drop(state);
        let handle = FileHandle {
            file,
            read: true,
            write,
            exec: false,
            readahead: Mutex::new(ReadAhead::new(self.config.readahead)),
            locks: false,
            number: self.next_handle.fetch_add(1, Ordering::Relaxed),
            losses: self.locks.losses(),
            drops_pages: AtomicBool::new(false),
            progress: Progress::silent(),
            uncached: AtomicBool::new(false),
            keeps_access_time: AtomicBool::new(true),
        };
        Ok(Arc::new(handle))
    }

    fn copy_whole(
        self: &Arc<Self>,
        copies: &WholeCopies,
        handle: &Arc<FileHandle>,
        go_on: &dyn Fn() -> bool,
    ) -> FsResult<WholeMade> {
        let ino = handle.ino();
        let inode = wait(|done| self.getattr(Caller::ROOT, ino, done))?;
        if inode.kind != Kind::File || inode.size < WHOLE_BYTES_MIN {
            return Ok(WholeMade::Unfit);
        }
        let id = WholeId { ino, change: inode.data_change, size: inode.size };
        if copies.check(&id, go_on).map_err(disk_error)? {
            return Ok(WholeMade::Was(id.size));
        }
        let changing =
            || FsError::new(libc::EAGAIN, "the file is being changed; ask again when it is not");
        if self.is_written(ino) {
            return Err(changing());
        }
        let mut writer = copies.create(id).map_err(disk_error)?;
        let mut offset = 0;
        while offset < id.size {
            if !go_on() {
                return Err(FsError::new(libc::EINTR, "making a whole copy was ended"));
            }
            let piece = wait(|done| self.read(handle, offset, PIECE_BYTES, done))?;
            let len = (piece.len() as u64).min(id.size - offset) as usize;
            if len == 0 {
                return Err(changing());
            }
            writer.append(&piece[..len]).map_err(disk_error)?;
            offset += len as u64;
        }
        let after = wait(|done| self.getattr(Caller::ROOT, ino, done))?;
        if (after.data_change, after.size) != (id.change, id.size) || self.is_written(ino) {
            return Err(changing());
        }
        writer.finish().map_err(disk_error)?;
        match copies.check(&id, go_on).map_err(disk_error)? {
            true => Ok(WholeMade::Made(id.size)),
            false => Err(FsError::new(
                libc::EIO,
                "the cache disk does not give back what was written to it",
            )),
        }
    }
}

fn disk_error(error: std::io::Error) -> FsError {
    let errno = match error.kind() {
        std::io::ErrorKind::StorageFull => libc::ENOSPC,
        std::io::ErrorKind::Interrupted => libc::EINTR,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    };
    FsError::because(errno, format!("whole copy in the cache: {error}"))
}

/// The thread that makes and checks copies.
fn run(fs: &Weak<Fs>, todo: &Receiver<Job>) {
    // SAFETY: takes no pointers. A wish: if it fails the thread is as important as others.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    while let Ok(job) = todo.recv() {
        let Some(fs) = fs.upgrade() else { return };
        let Some(work) = fs.whole.work.get() else { return };
        let go_on = || !work.closed.load(Ordering::Relaxed);
        if !go_on() {
            return;
        }
        match job {
            Job::Make(ino) => {
                if let Err(error) = fs.make_whole(ino, &go_on) {
                    log::debug!("inode {ino}: no whole copy: {error}");
                }
                work.making.lock().remove(&ino);
            }
            Job::Check(id) => {
                if let Err(error) = work.copies.check(&id, &go_on) {
                    Fs::count(&fs.whole.counters.failed, 1);
                    log::debug!("inode {}: its whole copy cannot be read: {error}", id.ino);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a copy follows moves on with our own changes, in whatever order their answers arrive,
    /// and with none that is based on another client's; what is unknown stays so.
    #[test]
    fn answers_in_any_order() {
        let whole = Whole::default();
        let followed = || whole.followed.lock().get(&7).copied();
        let follow = |change| {
            whole.followed.lock().insert(7, change);
            whole.following.store(1, Ordering::Release);
        };
        whole.moved(7, None, 3);
        assert_eq!(followed(), None);
        follow(10);
        whole.moved(7, Some(10), 20);
        assert_eq!(followed(), Some(20));
        whole.moved(7, None, 15);
        assert_eq!(followed(), Some(20), "an older answer");
        whole.moved(7, Some(25), 30);
        assert_eq!(followed(), Some(20), "another client's change lies between");
        whole.moved(7, None, 40);
        whole.lost(7);
        whole.moved(7, None, 50);
        assert_eq!(followed(), Some(0));
    }
}
