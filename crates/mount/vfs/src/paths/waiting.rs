//! Opens that were made with the lookup of a name, and wait for the OPEN that follows it from the
//! same thread.
//!
//! The kernel may find a reason not to send it. So whatever else comes from that thread gives the
//! open back, and so does a second without news.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kestrel_client::fs::{Caller, Fs, Opened};
use kestrel_types::ids::InodeId;
use kestrel_types::request::OpenFlags;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// How long an open waits for its OPEN. The kernel sends it next; only a thread that is kept from
/// running takes longer.
const WAIT: Duration = Duration::from_secs(1);

/// What waits.
pub enum PreparedOpen {
    /// An open file.
    File(Opened),
    /// A directory that may be read, by its number.
    Directory(InodeId),
}

/// An open and what its OPEN must look like.
pub struct Waiting {
    /// Node that the kernel was told of.
    pub node: u64,
    /// The caller.
    pub caller: Caller,
    /// How it is open.
    pub flags: OpenFlags,
    /// What it is.
    pub found: PreparedOpen,
}

/// All that wait, by thread: a thread has one call at a time.
#[derive(Default)]
pub struct Waits {
    by_thread: Mutex<FxHashMap<u32, (Instant, Waiting)>>,
    count: AtomicUsize,
}

impl Waits {
    /// Whether anything waits.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Lets an open wait. What was there before, a call that never came to its end, is returned.
    pub fn put(&self, waiting: Waiting, now: Instant) -> Option<Waiting> {
        let mut waits = self.by_thread.lock();
        let old = waits.insert(waiting.caller.pid, (now, waiting));
        self.count.store(waits.len(), Ordering::Relaxed);
        old.map(|(_, waiting)| waiting)
    }

    /// What waits for a thread.
    pub fn take(&self, pid: u32) -> Option<Waiting> {
        if !self.any() {
            return None;
        }
        let mut waits = self.by_thread.lock();
        let taken = waits.remove(&pid);
        self.count.store(waits.len(), Ordering::Relaxed);
        taken.map(|(_, waiting)| waiting)
    }

    /// What has waited too long.
    pub fn late(&self, now: Instant) -> Vec<Waiting> {
        let mut waits = self.by_thread.lock();
        let late: Vec<u32> = waits
            .iter()
            .filter(|(_, (since, _))| now.saturating_duration_since(*since) >= WAIT)
            .map(|(pid, _)| *pid)
            .collect();
        let taken =
            late.iter().filter_map(|pid| waits.remove(pid)).map(|(_, waiting)| waiting).collect();
        self.count.store(waits.len(), Ordering::Relaxed);
        taken
    }
}

impl Waiting {
    /// Whether this is what an OPEN or OPENDIR asks for.
    pub fn answers(&self, node: u64, caller: Caller, flags: OpenFlags) -> bool {
        self.node == node && self.caller == caller && self.flags == flags
    }

    /// Gives it back.
    pub fn give_back(self, fs: &Arc<Fs>) {
        if let PreparedOpen::File(opened) = self.found {
            fs.abandon(opened.handle, Box::new(drop));
        }
    }
}
