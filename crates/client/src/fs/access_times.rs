//! Access times: which reads count, and telling the node of them. Nobody waits for that:
//! [`crate::accesses`].
//!
//! A time that is set hides reads of before, so it is set when no read is on its way. What stops
//! access times being kept (`chattr +i`) comes when the node has heard of the reads before.

use std::sync::Arc;
use std::sync::mpsc;

use kestrel_types::ids::InodeId;
use kestrel_types::request::{Accessed, Op, Outcome, Reply, Request};

use super::{Caller, FileHandle, Fs, creds};
pub use crate::accesses::{AccessTimes, AtimeMode};
use crate::accesses::{Noted, PendingAccess, Then};

impl Fs {
    /// How access times are kept from now on. By default they are not.
    pub fn set_access_times(self: &Arc<Self>, how: AccessTimes) {
        self.accesses.set(how);
        if !self.accesses.is_on() {
            // Those were read before.
            self.send_accesses(true);
        }
    }

    /// How the volume's mounts keep them unless told otherwise.
    pub fn atime_default(&self) -> AtimeMode {
        self.config.atime
    }

    /// How access times are kept.
    pub fn access_times(&self) -> AccessTimes {
        self.accesses.how()
    }

    /// Whether any read changes an access time.
    #[inline]
    pub fn keeps_access_times(&self) -> bool {
        self.accesses.is_on()
    }

    /// Reads noted since the start, and messages about them.
    pub fn access_stats(&self) -> (u64, u64) {
        let get = |counter: &std::sync::atomic::AtomicU64| {
            counter.load(std::sync::atomic::Ordering::Relaxed)
        };
        (get(&self.accesses.noted), get(&self.accesses.sent))
    }

    /// A file was read through a handle; whether its access time has changed by that.
    #[inline]
    pub fn file_accessed(self: &Arc<Self>, handle: &FileHandle) -> bool {
        self.accesses.is_on() && !handle.keeps_access_time() && self.note_file(handle)
    }

    fn note_file(self: &Arc<Self>, handle: &FileHandle) -> bool {
        let now = self.clock.now();
        {
            let mut state = handle.file.lock();
            let mtime = state.mtime.unwrap_or(state.inode.mtime);
            let ctime = state.inode.ctime.max(mtime);
            if !self.accesses.counts(&state.inode, (mtime, ctime), now) {
                return false;
            }
            state.inode.atime = now;
        }
        self.note_access(handle.ino(), now);
        true
    }

    /// A directory was listed.
    #[inline]
    pub fn directory_accessed(self: &Arc<Self>, ino: InodeId) {
        if self.accesses.is_on() {
            self.note_node(ino, true);
        }
    }

    /// A symbolic link was read.
    #[inline]
    pub fn link_accessed(self: &Arc<Self>, ino: InodeId) {
        if self.accesses.is_on() {
            self.note_node(ino, false);
        }
    }

    fn note_node(self: &Arc<Self>, ino: InodeId, is_dir: bool) {
        let now = self.clock.now();
        if self.accesses.node_counts(ino, is_dir, now) {
            self.note_access(ino, now);
        }
    }

    fn note_access(self: &Arc<Self>, ino: InodeId, now: i64) {
        // A mount that was begun read-only has no thread that sends.
        self.writes();
        match self.accesses.note(ino, now) {
            Noted::Waits => {}
            Noted::Send(early) => early.into_iter().for_each(|unsent| self.send_access(unsent)),
            Noted::Lost => {
                log::debug!("inode {ino}: too many reads wait for the node; this one is not told")
            }
        }
    }

    /// Tells the node of reads: of those that have waited long enough, or of all.
    pub(super) fn send_accesses(self: &Arc<Self>, all: bool) {
        let due = self.accesses.due(self.clock.now(), all);
        due.into_iter().for_each(|unsent| self.send_access(unsent));
    }

    /// Tells the node of the last read of an inode, if it has not heard of it.
    pub(super) fn send_access_of(self: &Arc<Self>, ino: InodeId) {
        if self.accesses.is_on()
            && let Some(unsent) = self.accesses.unsent(ino)
        {
            self.send_access(unsent);
        }
    }

    /// The same; runs `then` when it has heard.
    pub(super) fn when_access_is_told(self: &Arc<Self>, ino: InodeId, then: Then) {
        self.send_access_of(ino);
        self.accesses.settled(ino, then);
    }

    /// An access time is about to be set: what was read before does not count any more.
    pub(super) fn when_access_is_forgotten(&self, ino: InodeId, then: Then) {
        self.accesses.forget(ino);
        self.accesses.settled(ino, then);
    }

    /// Tells the node of all reads, and waits.
    pub(super) fn finish_accesses(self: &Arc<Self>) {
        // The second time for what was read beside a message.
        for _ in 0..2 {
            self.send_accesses(true);
            let (told, telling) = mpsc::channel::<()>();
            for ino in self.accesses.all() {
                let told = told.clone();
                self.accesses.settled(ino, Box::new(move || drop(told)));
            }
            drop(told);
            // Ends when all have been answered; each is by its deadline.
            let _ = telling.recv();
        }
    }

    fn send_access(self: &Arc<Self>, unsent: PendingAccess) {
        let PendingAccess { ino, at, place } = unsent;
        let known = self.known.reference(ino);
        let inode = place.filter(|_| known.seen.is_none()).unwrap_or(known);
        let op = Op::Accessed(inode, Accessed { at, relative: self.accesses.is_relative() });
        Self::count(&self.accesses.sent, 1);
        let fs = self.clone();
        let told = move |reply: Reply| {
            fs.access_told(ino, &reply);
            fs.accesses.answered(ino);
        };
        self.submit(Request { creds: creds(Caller::ROOT), op }, Box::new(told));
    }

    fn access_told(&self, ino: InodeId, reply: &Reply) {
        let Err(outcome) = reply else { return };
        match outcome {
            Outcome::Failed(why) if why.errno == libc::EROFS => {
                if self.accesses.refused() {
                    log::info!("access times are not kept: {why}");
                }
            }
            // It was removed, or the node does not answer: nobody is told of that.
            Outcome::Failed(why) => log::debug!("inode {ino}: access time not stored: {why}"),
            other => log::debug!("inode {ino}: access time not stored: {other:?}"),
        }
    }
}
