//! Locks that other clients see: GETLK, SETLK and SETLKW of the kernel, and the signals that end a
//! wait.
//!
//! **Signals.** The kernel tells of a signal once (INTERRUPT), maybe before the thread that has the
//! request came to ask for the lock, maybe after it was answered. So what could not be matched is
//! kept for a while: a request that comes to wait looks there first. A wait that is cancelled is
//! answered by the server, with the lock if that was faster, else `EINTR`, which the kernel turns
//! into a restart or an error as the signal's handler wants it.
//!
//! **Pages and size.** The holder of a lock relies on what others wrote before they gave it up. If
//! the content has changed, the kernel's pages of the file are dropped first, and the kernel is
//! told the present size, which it neither asks for before it decides where a write with `O_APPEND`
//! goes nor before it serves a map. If it takes the file for longer than that, it is made to ask
//! ([`kernel_size`]). All of this may have to wait for requests that only other threads answer, so
//! a thread of its own does it; a lock that is granted meanwhile waits for that. The same goes for
//! files that lose their locks with a session: their handles fail from then on, which programs
//! would not notice for as long as the kernel answers from its pages.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

use kestrel_client::fs::{FileHandle, Fs, LockWait, LockedRange, Outdated};
use kestrel_fuse::{self as fuse, Notifier, Reply};
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::wire::{LOCK_END, LockKind, LockMode, LockSpan};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::core::Core;
use crate::kernel_size;

/// Signals kept that belong to no known wait. Nearly all are for requests that were answered at
/// that moment.
const EARLY_MAX: usize = 1024;

/// A file of which the kernel's pages and size are outdated, and what goes on when that is mended.
/// Without an `outdated` it is being mended already.
struct Mending {
    ino: InodeId,
    outdated: Option<Outdated>,
    go_on: Box<dyn FnOnce() + Send>,
}

/// Waits for locks, by the kernel's number of the request.
#[derive(Default)]
struct Waits {
    waits: FxHashMap<u64, LockWait>,
    /// Requests that got a signal and were not found, the oldest first.
    early: VecDeque<u64>,
}

/// What locks need beside the file system.
#[derive(Default)]
pub struct Locking {
    waits: Mutex<Waits>,
    /// To the thread that drops pages.
    outdated: OnceLock<Mutex<Sender<Mending>>>,
    /// What that thread has to do for each file.
    mending: Arc<Mutex<FxHashMap<InodeId, u32>>>,
    /// Where the file system is mounted.
    dir: OnceLock<PathBuf>,
    /// The thread that drops pages, by the kernel's number.
    thread: Arc<AtomicU32>,
}

impl Locking {
    /// Says where the file system is going to be mounted. Once, before it is.
    pub fn mounted_at(&self, dir: &Path) {
        let _ = self.dir.set(std::path::absolute(dir).unwrap_or_else(|_| dir.into()));
    }

    /// Starts the thread that drops pages. It ends when this is dropped.
    pub fn start(self: &Arc<Self>, fs: &Fs, notifier: Notifier) {
        let (send, outdated) = mpsc::channel::<Mending>();
        let mending = self.mending.clone();
        let dir = self.dir.get().cloned().unwrap_or_default();
        let thread = self.thread.clone();
        let run = move || {
            // SAFETY: the call has no arguments and does not fail.
            thread.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
            for Mending { ino, outdated, go_on } in outdated {
                if let Some(outdated) = outdated {
                    mend(&notifier, &dir, ino, outdated);
                }
                let mut mending = mending.lock();
                if let Some(left) = mending.get_mut(&ino) {
                    *left -= 1;
                    if *left == 0 {
                        mending.remove(&ino);
                    }
                }
                drop(mending);
                go_on();
            }
        };
        match std::thread::Builder::new().name("kestrel-pages".into()).spawn(run) {
            Ok(_) => drop(self.outdated.set(Mutex::new(send))),
            Err(error) => {
                log::warn!("cannot start the thread that drops cached pages for locks: {error}")
            }
        }
        let pages = Arc::downgrade(self);
        fs.when_outdated(Box::new(move |ino, outdated, go_on| match pages.upgrade() {
            Some(pages) => pages.mend(ino, Some(outdated), go_on),
            None => go_on(),
        }));
    }

    /// Whether a request is one of the thread that drops pages itself. It opens the root to find a
    /// file by its number below it, and needs no permission for that.
    pub fn is_own(&self, pid: u32) -> bool {
        self.thread.load(Ordering::Relaxed) == pid
    }

    /// Drops the kernel's pages of a file and tells it the size, then goes on, on another thread.
    /// If nothing is outdated it goes on when earlier calls for the file have, at once if they all
    /// have.
    fn mend(&self, ino: InodeId, outdated: Option<Outdated>, go_on: Box<dyn FnOnce() + Send>) {
        let mut mending = self.mending.lock();
        let Some(send) = self.outdated.get() else {
            // Without the thread the pages stay until the file is opened again.
            drop(mending);
            return go_on();
        };
        if outdated.is_none() && !mending.contains_key(&ino) {
            drop(mending);
            return go_on();
        }
        *mending.entry(ino).or_default() += 1;
        // Under the lock, so that no thread believes in a count before its message is in the queue.
        let unsent = send.lock().send(Mending { ino, outdated, go_on }).err();
        drop(mending);
        if let Some(unsent) = unsent {
            (unsent.0.go_on)();
        }
    }

    /// Goes on when the kernel has heard all that it was to hear of a file.
    pub fn when_heard(&self, ino: InodeId, go_on: Box<dyn FnOnce() + Send>) {
        self.mend(ino, None, go_on);
    }

    /// What lies in a file from `from` on is not what the kernel has there: the file ends at `size`
    /// now. Goes on, maybe on another thread, when it has heard of that.
    pub fn appended(
        &self,
        ino: InodeId,
        (from, size): (u64, u64),
        go_on: Box<dyn FnOnce() + Send>,
    ) {
        let outdated = Outdated { from, content: 0, size: Some(size), is_shorter: false };
        self.mend(ino, Some(outdated), go_on);
    }

    /// A request is going to wait; false if it got a signal already.
    fn begin(&self, unique: u64, waiting: &LockWait) -> bool {
        let mut waits = self.waits.lock();
        if waits.early.contains(&unique) {
            return false;
        }
        waits.waits.insert(unique, waiting.clone());
        true
    }

    fn end(&self, unique: u64) {
        self.waits.lock().waits.remove(&unique);
    }

    /// Whether the kernel hears of something at this moment.
    pub fn is_mending(&self) -> bool {
        !self.mending.lock().is_empty()
    }

    /// Ends all waits for locks.
    pub fn cancel_all(&self, fs: &Fs) {
        let waits: Vec<LockWait> = self.waits.lock().waits.values().cloned().collect();
        waits.iter().for_each(|wait| fs.cancel_lock(wait));
    }

    /// The caller of a request got a signal.
    pub fn interrupted(&self, fs: &Fs, unique: u64) {
        let mut waits = self.waits.lock();
        let Some(waiting) = waits.waits.get(&unique).cloned() else {
            if waits.early.len() >= EARLY_MAX {
                waits.early.pop_front();
            }
            return waits.early.push_back(unique);
        };
        drop(waits);
        fs.cancel_lock(&waiting);
    }
}

impl Core {
    /// Answers GETLK.
    pub(crate) fn get_lock(&self, file: &FileHandle, lock: fuse::Lock, reply: Reply) {
        let Some(span) = span(file.ino(), &lock) else { return reply.error(libc::EINVAL) };
        let answer = move |reply: Reply, held: Option<LockSpan>| {
            let (start, end, kind, pid) = match held {
                Some(held) => (held.start, held.end, kernel_kind(held.mode), held.pid),
                None => (lock.start, lock.end, libc::F_UNLCK, 0),
            };
            reply.lock(&fuse::Lock { start, end, kind: kind as u32, pid, ..lock });
        };
        self.fs.test_lock(file, span, self.patient(lock.pid, reply, answer));
    }

    /// Answers SETLK, and with `wait` SETLKW: takes a lock or gives it up.
    pub(crate) fn set_lock(
        &self,
        file: &Arc<FileHandle>,
        lock: fuse::Lock,
        wait: bool,
        (pid, unique): (u32, u64),
        mut reply: Reply,
    ) {
        let Some(locking) = &self.locking else { return reply.error(libc::ENOSYS) };
        let range =
            LockedRange { owner: lock.owner, kind: kind(&lock), start: lock.start, end: lock.end };
        if lock.kind == libc::F_UNLCK as u32 {
            return self.fs.unlock(
                file,
                range,
                self.patient(pid, reply, |reply, ()| reply.empty()),
            );
        }
        let Some(span) = span(file.ino(), &lock) else { return reply.error(libc::EINVAL) };
        let waiting = wait.then(LockWait::default);
        if let Some(waiting) = &waiting
            && !locking.begin(unique, waiting)
        {
            return reply.error(libc::EINTR);
        }
        if wait {
            reply.set_aside();
        }
        let pages = locking.clone();
        let heard = self.fs.clone();
        let answer = move |reply: Reply, outdated: Option<Outdated>| {
            let go_on = move || {
                if let Some(outdated) = outdated {
                    heard.kernel_has(span.ino, outdated.content);
                }
                reply.empty();
            };
            pages.mend(span.ino, outdated, Box::new(go_on));
        };
        // A process that was killed does not hold what it was granted afterwards.
        let (fs, handle) = (self.fs.clone(), file.clone());
        let undo = move |_| fs.unlock(&handle, range, Box::new(drop));
        let done = self.patient_or_undo(pid, reply, answer, undo);
        let waits = waiting.is_some().then(|| locking.clone());
        let ended = Box::new(move |result: FsResult<Option<Outdated>>| {
            if let Some(waits) = waits {
                waits.end(unique);
            }
            done(result);
        });
        self.fs.set_lock(file, span, waiting, ended);
    }
}

/// Drops what the kernel has of another content, and makes it take the file for as long as it is.
fn mend(notifier: &Notifier, dir: &Path, ino: InodeId, outdated: Outdated) {
    let mut dropped = notifier.invalidate_inode(ino, outdated.from as i64, 0);
    if let Some(size) = outdated.size {
        dropped = dropped.and(notifier.extend_inode(ino, size));
        // Where it was told the size it keeps a page without content, around which it would read.
        dropped = dropped.and(notifier.invalidate_inode(ino, size.saturating_sub(1) as i64, 1));
    }
    if let Err(error) = dropped {
        log::warn!("inode {ino}: the kernel does not drop its cached pages: {error}");
    }
    if let (Some(size), true) = (outdated.size, outdated.is_shorter)
        && let Err(error) = kernel_size::shorten(dir, ino, size)
    {
        // It hears of it by a read that ends early, as a rule.
        log::debug!("inode {ino}: the kernel is not made to ask for the size: {error}");
    }
}

fn kind(lock: &fuse::Lock) -> LockKind {
    if lock.flock { LockKind::Flock } else { LockKind::Posix }
}

fn kernel_kind(mode: LockMode) -> libc::c_int {
    match mode {
        LockMode::Read => libc::F_RDLCK,
        LockMode::Write => libc::F_WRLCK,
    }
}

/// What a lock of the kernel asks for; `None` if that is no lock.
fn span(ino: InodeId, lock: &fuse::Lock) -> Option<LockSpan> {
    let modes = [LockMode::Read, LockMode::Write];
    let mode = modes.into_iter().find(|mode| kernel_kind(*mode) as u32 == lock.kind)?;
    let (kind, end) = (kind(lock), lock.end.min(LOCK_END));
    let fits = lock.start <= end;
    fits.then_some(LockSpan {
        ino,
        owner: lock.owner,
        pid: lock.pid,
        kind,
        mode,
        start: lock.start,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_not_lost_whenever_it_comes() {
        let locking = Locking::default();
        let waiting = LockWait::default();
        assert!(locking.begin(2, &waiting));
        locking.end(2);
        // Before the request came to wait.
        for unique in 10..10 + EARLY_MAX as u64 + 1 {
            locking.waits.lock().early.push_back(unique);
        }
        assert!(!locking.begin(20, &waiting) && locking.begin(8, &waiting));
    }

    #[test]
    fn ranges_of_the_kernel_are_ours() {
        let lock = fuse::Lock {
            fh: 1,
            owner: 7,
            start: 0,
            end: i64::MAX as u64,
            kind: libc::F_WRLCK as u32,
            pid: 3,
            flock: true,
        };
        let span = |lock: fuse::Lock| super::span(5, &lock);
        let all = span(lock).expect("a lock");
        assert_eq!(
            (all.kind, all.mode, all.start, all.end),
            (LockKind::Flock, LockMode::Write, 0, LOCK_END)
        );
        assert_eq!(span(fuse::Lock { kind: 77, ..lock }), None);
        assert_eq!(span(fuse::Lock { start: u64::MAX, ..lock }), None);
    }
}
