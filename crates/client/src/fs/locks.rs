//! Locks that all clients of a volume see: `fcntl(2)` and `flock(2)` on a volume that a server
//! serves.
//!
//! The server decides; see `kestrel_server::locks` for the semantics. Here locks are tied to
//! handles and processes, and to the content they protect, as NFS does it: a holder that gives up a
//! lock has what it wrote committed first, and the next holder sees what others committed before.
//! So programs that lock what they share (SQLite, mbox) work across machines, although content is
//! otherwise only brought up to date when a file is opened.
//!
//! An embedded volume has no such locks: its only client is this kernel, which keeps them itself.

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::request::Op;
use kestrel_types::wire::{LockAnswer, LockKind, LockMode, LockReply, LockRequest, LockSpan};
use parking_lot::Mutex;

use super::{Caller, Done, FileHandle, Fs, Outdated, into_inode};
use crate::metadata::LockCall;

/// A request for a lock, which can be cancelled while it waits.
#[derive(Debug, Clone, Default)]
pub struct LockWait(Arc<Mutex<LockWaitState>>);

/// How far it has come.
#[derive(Debug, Default)]
enum LockWaitState {
    /// The server has not been asked.
    #[default]
    NotYet,
    /// By this call.
    By(LockCall),
    /// It is not wanted any more.
    Cancelled,
}

/// Has the kernel hear of it, then goes on.
pub type TellOutdated = dyn Fn(InodeId, Outdated, Box<dyn FnOnce() + Send>) + Send + Sync;

/// A range of a file, of one owner's locks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedRange {
    /// The owner.
    pub owner: u64,
    /// Kind.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

impl Fs {
    /// Whether there are locks that all clients of the volume see. If not, locks are the kernel's
    /// business.
    pub fn has_locks(&self) -> bool {
        self.metadata.locks().is_some()
    }

    /// The lock that is in the way of this one, if any (`F_GETLK`).
    pub fn test_lock(&self, handle: &FileHandle, span: LockSpan, done: Done<Option<LockSpan>>) {
        if let Err(error) = self.check_locks(handle) {
            return done(Err(error));
        }
        self.ask_lock(
            LockRequest::Get(span),
            Box::new(move |reply| {
                done(reply.and_then(|answer| match answer {
                    LockAnswer::Free => Ok(None),
                    LockAnswer::Held(span) => Ok(Some(span)),
                    LockAnswer::Done => Err(unexpected()),
                }));
            }),
        );
    }

    /// Takes a lock. `done` gets what the kernel has to hear before the lock's holder goes on: none
    /// if its pages and size of the file are those of the present content.
    ///
    /// With `wait` the answer comes when nobody else holds the lock any more, or
    /// [`Fs::cancel_lock`] has ended that.
    pub fn set_lock(
        self: &Arc<Self>,
        handle: &FileHandle,
        span: LockSpan,
        wait: Option<LockWait>,
        done: Done<Option<Outdated>>,
    ) {
        if let Err(error) = self.check_locks(handle) {
            return done(Err(error));
        }
        self.heard_of(handle);
        let (fs, number) = (self.clone(), handle.number);
        let weaker = span.mode == LockMode::Read
            && self.locks.excludes(span.ino, span.owner, span.kind, (span.start, span.end));
        let ask = move |flushed: FsResult<()>| match flushed {
            Ok(()) => {
                fs.locks.begin(&span, number);
                fs.ask_for(span, wait, done);
            }
            Err(error) => done(Err(error)),
        };
        // A downgrade lets readers in: they must find what was written under the exclusive lock.
        match weaker {
            true => self.flush_ino(span.ino, Box::new(ask)),
            false => ask(Ok(())),
        }
    }

    fn ask_for(
        self: &Arc<Self>,
        span: LockSpan,
        wait: Option<LockWait>,
        done: Done<Option<Outdated>>,
    ) {
        let fs = self.clone();
        let call = self.ask_lock(
            LockRequest::Set { lock: span, wait: wait.is_some() },
            Box::new(move |reply| match reply {
                Ok(_) => {
                    fs.locks.granted(&span);
                    fs.look_again(span.ino, done);
                }
                Err(error) => {
                    fs.locks.refused(&span, is_certain(error.errno));
                    done(Err(error));
                }
            }),
        );
        let (Some(waiting), Some(call)) = (wait, call) else { return };
        let mut asked = waiting.0.lock();
        match *asked {
            LockWaitState::Cancelled => {
                drop(asked);
                call.cancel();
            }
            LockWaitState::NotYet | LockWaitState::By(_) => *asked = LockWaitState::By(call),
        }
    }

    /// Ends a wait for a lock: it is answered `EINTR`, unless it has been granted.
    pub fn cancel_lock(&self, waiting: &LockWait) {
        let before = std::mem::replace(&mut *waiting.0.lock(), LockWaitState::Cancelled);
        if let LockWaitState::By(call) = before {
            call.cancel();
        }
    }

    /// Gives up a range. What was written before is committed first; an error of that is the
    /// result, but the range is given up all the same.
    pub fn unlock(self: &Arc<Self>, handle: &FileHandle, range: LockedRange, done: Done<()>) {
        let LockedRange { owner, kind, start, end } = range;
        let (fs, ino, lost) = (self.clone(), handle.ino(), self.check_locks(handle));
        self.finished(handle);
        if !self.locks.may_hold(ino, owner, kind) {
            return done(lost);
        }
        let unlock = move |flushed: FsResult<()>| {
            let table = fs.clone();
            fs.ask_lock(
                LockRequest::Unlock { ino, owner, kind, start, end },
                Box::new(move |reply| {
                    if reply.is_ok() {
                        table.locks.unlocked(ino, owner, kind, (start, end));
                    }
                    done(reply.map(|_| ()).and(flushed).and(lost));
                }),
            );
        };
        self.flush_ino(ino, Box::new(unlock));
    }

    /// What close(2) does: commits what was written, and gives up all byte-range locks of the
    /// closing process in the file.
    pub fn flush_of_owner(self: &Arc<Self>, handle: &FileHandle, owner: u64, done: Done<()>) {
        let (fs, ino) = (self.clone(), handle.ino());
        self.flush(
            handle,
            Box::new(move |flushed| {
                fs.release_locks(ino, vec![(LockKind::Posix, owner)], flushed, done)
            }),
        );
    }

    /// Closes a handle as [`Fs::release`] does, and gives up the locks that belong to it: the BSD
    /// lock of `flock_owner`, and locks of the open file description.
    pub fn release_of_owner(
        self: &Arc<Self>,
        handle: Arc<FileHandle>,
        flock_owner: Option<u64>,
        done: Done<()>,
    ) {
        let ino = handle.ino();
        self.finished(&handle);
        let mut owners = self.locks.handle_gone(ino, handle.number);
        owners.extend(flock_owner.map(|owner| (LockKind::Flock, owner)));
        owners.dedup();
        if owners.is_empty() {
            return self.release(handle, done);
        }
        let fs = self.clone();
        self.flush_ino(
            ino,
            Box::new(move |flushed| {
                let again = fs.clone();
                let close = move |_| again.release(handle, done);
                fs.release_locks(ino, owners, flushed, Box::new(close));
            }),
        );
    }

    /// Gives up all locks of some owners in a file, one owner after the other, whatever comes of
    /// each.
    fn release_locks(
        self: &Arc<Self>,
        ino: InodeId,
        mut owners: Vec<(LockKind, u64)>,
        result: FsResult<()>,
        done: Done<()>,
    ) {
        let (kind, owner) = loop {
            match owners.pop() {
                Some((kind, owner)) if self.locks.may_hold(ino, owner, kind) => {
                    break (kind, owner);
                }
                Some(_) => {}
                None => return done(result),
            }
        };
        let fs = self.clone();
        self.ask_lock(
            LockRequest::ReleaseOwner { ino, owner, kind },
            Box::new(move |reply| {
                // The request is sent until it is answered, even if nobody waits for that any more.
                fs.locks.released(ino, owner, kind);
                fs.release_locks(ino, owners, result.and(reply.map(|_| ())), done);
            }),
        );
    }

    /// Brings what is known of an open file's content up to date. Answers what of it the kernel has
    /// to hear.
    fn look_again(self: &Arc<Self>, ino: InodeId, done: Done<Option<Outdated>>) {
        let fs = self.clone();
        self.ask(Caller::ROOT, Op::GetAttr(self.known.reference(ino)), move |answer| {
            let Ok(inode) = answer.and_then(into_inode) else {
                // The lock is held all the same. A read finds out what is the matter.
                return done(Ok(Some(Outdated::UNKNOWN)));
            };
            let change = inode.data_change;
            let mut same = fs.known.is_told_all(ino, change);
            let Some(file) = fs.files.get(ino) else {
                let (size, is_shorter) = (Some(inode.size), true);
                let outdated = Outdated { from: 0, content: change, size, is_shorter };
                return done(Ok((!same).then_some(outdated)));
            };
            file.lock().refresh(inode);
            let placed = move || {
                let mut state = file.lock();
                same &= !std::mem::take(&mut state.moved);
                let outdated = (!same).then(|| state.outdated(change));
                drop(state);
                done(Ok(outdated));
            };
            fs.when_placed(ino, Box::new(placed));
        });
    }

    /// All locks held of the files that a server keeps locks of, to be claimed from it: it has
    /// restarted.
    pub fn locks_to_reclaim(&self, is_kept: &dyn Fn(InodeId) -> bool) -> Vec<LockSpan> {
        self.locks.all(is_kept)
    }

    /// The server could not give back the locks of these files: their open handles fail with `EIO`
    /// from now on.
    pub fn locks_reclaimed(&self, lost: &[InodeId]) {
        self.tell_lost(&self.locks.lost(lost));
    }

    /// All locks of the files that a server keeps locks of were lost with the session. As
    /// [`Fs::locks_reclaimed`] for each of which any was held.
    pub fn locks_lost(&self, is_kept: &dyn Fn(InodeId) -> bool) {
        self.tell_lost(&self.locks.lost_all(is_kept));
    }

    /// Others may have the locks of the files that a server keeps locks of: it was not heard of for
    /// too long. As [`Fs::locks_lost`], but what the server may still hold is given up when it is
    /// closed. Answers how many files it concerns.
    pub fn locks_suspect(&self, is_kept: &dyn Fn(InodeId) -> bool) -> usize {
        let lost = self.locks.suspect_all(is_kept);
        self.tell_lost(&lost);
        lost.len()
    }

    /// Has `tell` called with each file of which what is cached elsewhere must not be used any
    /// more: it has lost locks, or what was appended to it has come to lie elsewhere. Called once.
    /// `tell` must not wait.
    pub fn when_outdated(&self, tell: Box<TellOutdated>) {
        let _ = self.outdated.set(tell);
    }

    /// Tells of a file, then goes on.
    pub(super) fn tell_outdated(
        &self,
        ino: InodeId,
        outdated: Outdated,
        go_on: Box<dyn FnOnce() + Send>,
    ) {
        match self.outdated.get() {
            Some(tell) => tell(ino, outdated, go_on),
            None => go_on(),
        }
    }

    /// The kernel has dropped pages of a file and heard its size, which was this content's or a
    /// later one's: opens may keep what it has read since.
    pub fn kernel_has(&self, ino: InodeId, content: u64) {
        self.known.told_all(ino, content);
    }

    fn tell_lost(&self, inos: &[InodeId]) {
        inos.iter().for_each(|ino| self.tell_outdated(*ino, Outdated::UNKNOWN, Box::new(|| {})));
    }

    /// Fails if locks of the file were lost after the handle was opened: its user believes to be
    /// alone.
    pub(super) fn check_locks(&self, handle: &FileHandle) -> FsResult<()> {
        match self.locks.lost_since(handle.ino(), handle.losses) {
            true => Err(FsError::new(
                libc::EIO,
                "locks of this file were lost while the client was cut off from its server; open \
                 it anew",
            )),
            false => Ok(()),
        }
    }

    fn ask_lock(
        &self,
        request: LockRequest,
        done: Box<dyn FnOnce(LockReply) + Send>,
    ) -> Option<LockCall> {
        let listed = self.listed.clone();
        let done: Box<dyn FnOnce(LockReply) + Send> = Box::new(move |reply| {
            // A process that gets a lock sees what others did before.
            listed.forget_all();
            done(reply);
        });
        match self.metadata.locks() {
            Some(server) => Some(server.lock(request, done)),
            None => {
                done(Err(FsError::new(
                    libc::ENOSYS,
                    "locks of this volume are kept by the kernel",
                )));
                None
            }
        }
    }
}

/// Whether a refusal with this error says that the lock was not granted. Any other may be that of a
/// call that lost its answer.
fn is_certain(errno: i32) -> bool {
    matches!(
        errno,
        libc::EAGAIN | libc::EDEADLK | libc::EINTR | libc::EINVAL | libc::ENOLCK | libc::ENOSYS
    )
}

fn unexpected() -> FsError {
    FsError::new(libc::EIO, "the metadata server gave an answer of the wrong type")
}
