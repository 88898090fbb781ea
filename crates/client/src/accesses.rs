//! Reads that the node has not heard of: they are in the answers to this mount at once, and go to
//! the node together, later, with nobody waiting.
//!
//! **How many messages.** A file, directory or symbolic link that was read has one entry, with the
//! time of its last read. It is sent [`SEND_AFTER`] after the first read that the node has not
//! heard of, so there is at most one message for each of them in that time, however often they are
//! read; and before that by fsync, syncfs, a change of the flags, and the end of the mount. With
//! [`AtimeMode::Relatime`] only reads are noted that are due by Linux's rule.
//!
//! **Memory.** At most [`SHARDS`] × 2 × [`READS_MAX`] entries. Where a shard is half full its
//! entries are sent early; what is read while it is full of those that wait for the node is not
//! noted.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, InodeFlags, Kind, is_access_due};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Reply};

/// How long a read may wait until the node hears of it, nanoseconds.
pub const SEND_AFTER: Nanos = 5 * SECOND;

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 64;

/// Entries of a shard that wait to be sent, at most; as many may wait for answers.
const READS_MAX: usize = 256;

/// Most directories and symbolic links of a shard of which the times are known.
const TIMES_MAX: usize = 1024;

/// Which reads change access times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtimeMode {
    /// None: they change only when set.
    #[default]
    None,
    /// The first after a change, and one a day.
    Relatime,
    /// All.
    Strict,
}

impl AtimeMode {
    /// Whether it is what a volume has unless told otherwise.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// As it is written in options and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relatime => "relatime",
            Self::Strict => "strict",
        }
    }
}

/// How a mount keeps access times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessTimes {
    /// Which reads count.
    pub mode: AtimeMode,
    /// Those of directories do not (`nodiratime`).
    pub no_directories: bool,
    /// Nothing is changed, access times neither.
    pub read_only: bool,
}

/// Is on, with [`AtimeMode::Relatime`].
const RELATIVE: u8 = 1;
/// Is on, with [`AtimeMode::Strict`].
const STRICT: u8 = 2;
/// Directories do not count.
const NO_DIRECTORIES: u8 = 4;

/// Goes on once the node has heard of what was read.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Read {
    /// Last read that was not sent.
    at: Option<Nanos>,
    /// When the first of those was noted.
    since: Nanos,
    /// What was sent and has no answer yet.
    sent: Option<Nanos>,
    /// Where it was, if the kernel has forgotten it since.
    place: Option<InodeRef>,
    then: Vec<Then>,
}

impl Read {
    fn last(&self) -> Option<Nanos> {
        self.at.max(self.sent)
    }

    fn take(&mut self, ino: InodeId) -> Option<PendingAccess> {
        if self.sent.is_some() {
            return None;
        }
        self.sent = Some(self.at.take()?);
        Some(PendingAccess { ino, at: self.sent?, place: self.place.take() })
    }
}

/// Times of a directory or symbolic link, as they were told last.
#[derive(Clone, Copy)]
struct Times {
    atime: Nanos,
    /// Newest change.
    changed: Nanos,
    counts: bool,
}

#[derive(Default)]
struct Shard {
    reads: FxHashMap<InodeId, Read>,
    times: FxHashMap<InodeId, Times>,
}

/// A read to tell the node of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PendingAccess {
    pub ino: InodeId,
    pub at: Nanos,
    /// Where it was, if the kernel does not know it any more.
    pub place: Option<InodeRef>,
}

/// What became of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It waits to be sent.
    Waits,
    /// It does too, and these are to be sent now, for want of room.
    Send(Vec<PendingAccess>),
    /// There is no room.
    Lost,
}

/// The reads of a client.
pub(crate) struct Accesses {
    /// 0: none count.
    state: AtomicU8,
    how: Mutex<AccessTimes>,
    shards: Vec<Mutex<Shard>>,
    /// Reads noted.
    pub noted: AtomicU64,
    /// Messages about them.
    pub sent: AtomicU64,
}

impl Default for Accesses {
    fn default() -> Self {
        Self {
            state: AtomicU8::new(0),
            how: Mutex::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            noted: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }
}

impl Accesses {
    fn shard(&self, ino: InodeId) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Whether any read counts.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }

    /// Whether only those count that are due.
    pub fn is_relative(&self) -> bool {
        self.state.load(Ordering::Relaxed) & RELATIVE != 0
    }

    /// How access times are kept.
    pub fn how(&self) -> AccessTimes {
        *self.how.lock()
    }

    /// From now on they are kept so.
    pub fn set(&self, how: AccessTimes) {
        let mode = match how.mode {
            _ if how.read_only => 0,
            AtimeMode::None => 0,
            AtimeMode::Relatime => RELATIVE,
            AtimeMode::Strict => STRICT,
        };
        let state = if mode != 0 && how.no_directories { mode | NO_DIRECTORIES } else { mode };
        let mut now = self.how.lock();
        *now = how;
        self.state.store(state, Ordering::Relaxed);
    }

    /// The node takes none from this client; whether it had not said so before.
    pub fn refused(&self) -> bool {
        self.state.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether a read at `now` of something with these times counts.
    pub fn counts(&self, inode: &Inode, (mtime, ctime): (Nanos, Nanos), now: Nanos) -> bool {
        has_time(inode.flags)
            && now > inode.atime
            && (!self.is_relative() || is_access_due(inode.atime, mtime, ctime, now))
    }

    /// Whether a read at `now` of this directory or symbolic link counts. If nothing is known of
    /// it, the node has to decide.
    pub fn node_counts(&self, ino: InodeId, is_dir: bool, now: Nanos) -> bool {
        if is_dir && self.state.load(Ordering::Relaxed) & NO_DIRECTORIES != 0 {
            return false;
        }
        let mut shard = self.shard(ino).lock();
        let unknown = Times { atime: Nanos::MIN, changed: Nanos::MIN, counts: true };
        let mut times = shard.times.get(&ino).copied().unwrap_or(unknown);
        let is_due =
            !self.is_relative() || is_access_due(times.atime, times.changed, times.changed, now);
        let counts = times.counts && now > times.atime && is_due;
        if counts {
            times.atime = now;
            shard.learn(ino, times);
        }
        counts
    }

    /// Notes a read that counts.
    pub fn note(&self, ino: InodeId, at: Nanos) -> Noted {
        let mut shard = self.shard(ino).lock();
        let shard = &mut *shard;
        let mut full = Vec::new();
        if shard.reads.len() >= READS_MAX && !shard.reads.contains_key(&ino) {
            // As many again may wait for answers.
            if shard.reads.len() >= 2 * READS_MAX {
                return Noted::Lost;
            }
            full = shard.reads.iter_mut().filter_map(|(ino, read)| read.take(*ino)).collect();
        }
        let read = shard.reads.entry(ino).or_default();
        if read.at.is_none() {
            read.since = at;
        }
        read.at = read.at.max(Some(at));
        self.noted.fetch_add(1, Ordering::Relaxed);
        if full.is_empty() { Noted::Waits } else { Noted::Send(full) }
    }

    /// What is to be sent at `now`: what was read [`SEND_AFTER`] ago, or all.
    pub fn due(&self, now: Nanos, all: bool) -> Vec<PendingAccess> {
        let mut due = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let waited = |read: &Read| {
                all || now.saturating_sub(read.since) >= SEND_AFTER || now < read.since
            };
            let reads = shard.reads.iter_mut().filter(|(_, read)| waited(read));
            due.extend(reads.filter_map(|(ino, read)| read.take(*ino)));
        }
        due
    }

    /// What is to be sent of one inode.
    pub fn unsent(&self, ino: InodeId) -> Option<PendingAccess> {
        self.shard(ino).lock().reads.get_mut(&ino)?.take(ino)
    }

    /// Inodes with reads that the node has not answered.
    pub fn all(&self) -> Vec<InodeId> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().reads.keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Forgets what was read of an inode and not sent.
    pub fn forget(&self, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        shard.times.remove(&ino);
        let Some(read) = shard.reads.get_mut(&ino) else { return };
        read.at = None;
        if read.sent.is_none() {
            shard.reads.remove(&ino);
        }
    }

    /// Runs `then` once nothing of an inode is on its way.
    pub fn settled(&self, ino: InodeId, then: Then) {
        let mut shard = self.shard(ino).lock();
        if let Some(read) = shard.reads.get_mut(&ino).filter(|read| read.sent.is_some()) {
            return read.then.push(then);
        }
        drop(shard);
        then();
    }

    /// The node has answered. The callers that waited for that go on.
    pub fn answered(&self, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let Some(read) = shard.reads.get_mut(&ino) else { return };
        read.sent = None;
        let then = std::mem::take(&mut read.then);
        if read.at.is_none() {
            shard.reads.remove(&ino);
        }
        drop(shard);
        then.into_iter().for_each(|then| then());
    }

    /// The kernel may forget an inode, which is found by this from then on.
    pub fn keep_place(&self, ino: InodeId, place: impl FnOnce() -> InodeRef) {
        if let Some(read) = self.shard(ino).lock().reads.get_mut(&ino) {
            read.place = Some(place());
        }
    }

    /// Shows reads that the node has not heard of in attributes.
    pub fn show(&self, inode: &mut Inode) {
        let mut shard = self.shard(inode.ino).lock();
        if let Some(last) = shard.reads.get(&inode.ino).and_then(Read::last) {
            inode.atime = inode.atime.max(last);
        }
        if matches!(inode.kind, Kind::Dir | Kind::Symlink) {
            let changed = inode.mtime.max(inode.ctime);
            shard.learn(
                inode.ino,
                Times { atime: inode.atime, changed, counts: has_time(inode.flags) },
            );
        }
    }

    /// The same in an answer.
    pub fn show_in(&self, reply: &mut Reply) {
        if let Ok(
            Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. },
        ) = reply
        {
            self.show(inode);
        }
    }
}

impl Shard {
    fn learn(&mut self, ino: InodeId, times: Times) {
        if self.times.len() >= TIMES_MAX && !self.times.contains_key(&ino) {
            self.times.clear();
        }
        self.times.insert(ino, times);
    }
}

fn has_time(flags: InodeFlags) -> bool {
    !flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::NO_ATIME))
}

#[cfg(test)]
mod tests;
