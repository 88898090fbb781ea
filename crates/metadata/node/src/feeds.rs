//! Change feeds in a node's memory: whether there are any, and which changes are under way.
//!
//! Workers commit their batches in any order, but a reader goes on after a timestamp. So a page of
//! a feed ends where no batch with an earlier timestamp is still to come
//! ([`Feeds::complete_to`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;

/// What a cluster answers.
pub const SEVERAL_NODES: FsError = FsError::new(
    libc::EOPNOTSUPP,
    "change feeds of a volume that several nodes share are not there yet: one node has to serve it",
);

/// The place of a directory in a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPlace {
    /// The directory that has the feed.
    pub feed: InodeId,
    /// The path from there, which ends in `/`; empty for that directory.
    pub path: Box<[u8]>,
}

impl FeedPlace {
    /// Of a directory, by the names between the directory of the feed and it, the last one first.
    pub fn new(feed: InodeId, names: &[Box<[u8]>]) -> Self {
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.extend_from_slice(name);
            path.push(b'/');
        }
        Self { feed, path: path.into() }
    }

    /// The path of a name in the directory.
    pub fn path_of(&self, name: &[u8]) -> Box<[u8]> {
        [&*self.path, name].concat().into()
    }
}

/// No batch is under way.
const IDLE: u64 = u64::MAX;

/// See the module's header.
pub struct Feeds {
    in_use: AtomicBool,
    /// By worker, the exclusive one last: its batch has a timestamp above this.
    under_way: Box<[AtomicU64]>,
}

/// A batch is under way until this is dropped.
pub struct BatchUnderWay<'a>(&'a AtomicU64);

impl Drop for BatchUnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

impl Feeds {
    /// Of a node with so many workers.
    pub fn new(workers: usize, in_use: bool) -> Self {
        let under_way = (0..=workers).map(|_| AtomicU64::new(IDLE)).collect();
        Self { in_use: AtomicBool::new(in_use), under_way }
    }

    /// Whether a directory of the volume has, or had, a feed.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// A directory gets a feed.
    pub fn set_in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// A worker's batch begins: `last` gives the newest timestamp that there is, and the batch gets
    /// a later one.
    #[inline]
    pub fn begin(&self, worker: usize, last: impl Fn() -> u64) -> BatchUnderWay<'_> {
        let slot = &self.under_way[worker];
        // Before the batch gets its timestamp: a reader that knows of a later one looks here after
        // that.
        slot.store(last(), Ordering::SeqCst);
        BatchUnderWay(slot)
    }

    /// The timestamp up to which every batch has ended, `last` at most: what was the newest before
    /// the call.
    pub fn complete_to(&self, last: u64) -> u64 {
        let slots = self.under_way.iter().map(|slot| slot.load(Ordering::SeqCst));
        slots.fold(last, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page ends before the batches that are under way.
    #[test]
    fn complete_before_batches_under_way() {
        let feeds = Feeds::new(2, true);
        assert_eq!(feeds.complete_to(10), 10);
        let first = feeds.begin(0, || 10);
        let second = feeds.begin(2, || 11);
        assert_eq!(feeds.complete_to(12), 10);
        drop(first);
        assert_eq!(feeds.complete_to(12), 11);
        drop(second);
        assert_eq!(feeds.complete_to(12), 12);
    }
}
