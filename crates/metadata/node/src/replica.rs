//! The namespace replica: a cache of dentries, never authoritative, bounded in memory, filled
//! lazily.
//!
//! | file | what it has |
//! | --- | --- |
//! | `replica/shard.rs` | a part of the dentries, by directory id |
//! | `replica/names.rs` | a part of the table from `(parent, name)` to a dentry |
//! | `replica/routing_cache.rs` | guesses where paths lead, for routing without a worker's state |
//!
//! Two tables: directory id → dentry (with its name), and hash of `(parent, name)` → where the
//! dentry is. A hit in the second counts only if the first confirms it, so hash collisions and
//! evictions are harmless. A directory takes less than 90 bytes in both if its name has no more
//! than 21 (`crates/metadata/node/examples/replica_bench`).
//!
//! Both are split into parts of different sizes, the last one twice the first (`part_of`). Hash
//! tables double, and parts of one size would all do it at about the same number of directories:
//! right after it half of them would be empty, and everybody would wait at once. So some have
//! always just doubled and some are nearly full.
//!
//! **Coherence.** A change to a directory that paths depend on (rmdir, chmod, chown, rename) runs
//! with every worker's state held and takes the dentry out before it lets them go. A thread that
//! fills or reads the replica for an operation holds a worker's state. So no operation can see a
//! dentry older than the last change, and no lock is held across an operation. One of several nodes
//! may be left out of a change when it has no lease ([`crate::lease`]): what is here counts only
//! while it has one. Reads without a worker's state (routing, listings) get an answer that was
//! right a moment ago.

mod names;
mod routing_cache;
mod shard;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::name::PathRef;
use kestrel_types::placement::{hash_entry, hash_inode};
use parking_lot::RwLock;

use crate::path_cache::hash_dirs;
use crate::perm::Dentry;
use names::{DentryIndex, Names, SLOTS_MAX};
use routing_cache::RoutingCache;
pub use shard::DENTRY_BYTES;
use shard::Shard;

const SHARDS: usize = 64;

/// A hash's highest bits choose its part.
const CHOOSING_BITS: u32 = 10;

/// Values of the choosing bits below part `part`. Parts grow linearly: the sum of `1 + i / SHARDS`
/// over those before it, of what it is over all.
const fn share_before(part: usize) -> usize {
    ((part * (2 * SHARDS + part)) << CHOOSING_BITS) / (3 * SHARDS * SHARDS)
}

/// Part by choosing bits.
const PARTS: [u8; 1 << CHOOSING_BITS] = {
    let mut parts = [0; 1 << CHOOSING_BITS];
    let mut part = 0;
    while part < SHARDS {
        let mut at = share_before(part);
        while at < share_before(part + 1) {
            parts[at] = part as u8;
            at += 1;
        }
        part += 1;
    }
    parts
};

/// The part of a table that has what has this hash.
#[inline]
fn part_of(hash: u64) -> usize {
    usize::from(PARTS[(hash >> (u64::BITS - CHOOSING_BITS)) as usize])
}

/// The replica.
pub struct Replica {
    dirs: Box<[RwLock<Shard>]>,
    names: Box<[RwLock<Names>]>,
    bytes_max: usize,
    /// Directories that it was told to forget so far.
    forgotten: AtomicU64,
    guesses: RoutingCache,
    /// A [`PolicyUse`].
    policy_use: AtomicU8,
}

/// Whether directories of the volume have policies, by what the root's record says. Known as long
/// as the root has not changed, whether or not its dentry is still here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PolicyUse {
    /// The root's record has not been read.
    Unknown = 0,
    /// None has one.
    None = 1,
    /// Some may have one.
    Some = 2,
}

impl Replica {
    /// An empty replica that holds about `bytes_max` bytes at most.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            dirs: (0..SHARDS).map(|_| RwLock::default()).collect(),
            names: (0..SHARDS).map(|_| RwLock::default()).collect(),
            bytes_max,
            forgotten: AtomicU64::new(0),
            guesses: RoutingCache::default(),
            policy_use: AtomicU8::new(PolicyUse::Unknown as u8),
        }
    }

    fn shard(&self, ino: InodeId) -> &RwLock<Shard> {
        &self.dirs[part_of(hash_inode(ino))]
    }

    /// Most bytes that a part may be reckoned to take.
    fn part_bytes_max(&self, part: usize) -> usize {
        let share = share_before(part + 1) - share_before(part);
        ((self.bytes_max >> CHOOSING_BITS) * share)
            .clamp(4 * DENTRY_BYTES, SLOTS_MAX * DENTRY_BYTES)
    }

    /// A directory by number.
    #[inline]
    pub fn get(&self, ino: InodeId) -> Option<(Dentry, Position)> {
        self.shard(ino).read().get(ino)
    }

    /// Parent and name of a directory.
    pub fn place(&self, ino: InodeId) -> Option<(InodeId, Box<[u8]>)> {
        let shard = self.shard(ino).read();
        shard.place(ino).map(|(parent, name)| (parent, name.into()))
    }

    /// Number of a directory by place.
    pub fn find(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        self.find_number(parent, name, hash_entry(parent, name))
    }

    /// A directory by place.
    #[inline]
    pub fn find_dir(&self, parent: InodeId, name: &[u8]) -> Option<(Dentry, Position)> {
        let hash = hash_entry(parent, name);
        self.names[part_of(hash)].read().find(hash, |at| self.at(at, parent, name))
    }

    /// The number of a directory by place, with the [`hash_entry`] of both.
    #[inline]
    pub fn find_number(&self, parent: InodeId, name: &[u8], hash: u64) -> Option<InodeId> {
        self.names[part_of(hash)].read().find(hash, |at: DentryIndex| {
            self.dirs[at.shard()].read().number_at(at.slot(), parent, name)
        })
    }

    /// The directory there, if it is the one at this place. Of the two tables that of names is
    /// locked first, if both are.
    #[inline]
    fn at(&self, at: DentryIndex, parent: InodeId, name: &[u8]) -> Option<(Dentry, Position)> {
        self.dirs[at.shard()].read().at(at.slot(), parent, name)
    }

    /// How many directories it was told to forget, cached or not: what was found here for a path
    /// stays true until there are more. Exact for a thread that holds a worker's state, since
    /// directories change and are forgotten with all of them held. Without a worker's state: what
    /// was found here after one look at the count was true then, if a look after it finds the same.
    /// (A directory is counted when it is gone from here.)
    #[inline]
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Whether directories have policies. As true as a dentry that is found here.
    #[inline]
    pub fn policy_use(&self) -> PolicyUse {
        match self.policy_use.load(Ordering::Acquire) {
            1 => PolicyUse::None,
            2 => PolicyUse::Some,
            _ => PolicyUse::Unknown,
        }
    }

    fn set_policy_use(&self, policy_use: PolicyUse) {
        self.policy_use.store(policy_use as u8, Ordering::Release);
    }

    /// The directory in which a place probably lies, as far as is known. For routing; no worker's
    /// state is needed.
    #[inline]
    pub fn guess(&self, place: &PathRef) -> InodeId {
        if place.dirs.is_empty() {
            return place.base;
        }
        // What was guessed before something was forgotten has another hash.
        let hash =
            hash_dirs(place).wrapping_add(self.forgotten().wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if let Some(dir) = self.guesses.get(hash) {
            return dir;
        }
        let mut dir = place.base;
        for name in &place.dirs {
            match self.find(dir, name) {
                Some(child) => dir = child,
                // The worker will resolve it and forward the request.
                None => return dir,
            }
        }
        self.guesses.set(hash, dir);
        dir
    }

    /// Takes a directory in. The caller holds a worker's state.
    pub fn insert(&self, dir: Dentry, name: &[u8], changed_at: Position) {
        if dir.ino == ROOT {
            let in_use = dir.policy.in_use;
            self.set_policy_use(if in_use { PolicyUse::Some } else { PolicyUse::None });
        }
        let (number, parent) = (part_of(hash_inode(dir.ino)), dir.parent);
        let mut dropped = Vec::new();
        let slot = self.dirs[number].write().insert(
            dir,
            name,
            changed_at,
            self.part_bytes_max(number),
            &mut |slot, parent, name| {
                dropped.push((hash_entry(parent, name), DentryIndex::new(number, slot)))
            },
        );
        self.drop_names(dropped);
        let hash = hash_entry(parent, name);
        let is_same = |other| self.at(other, parent, name).is_some();
        let at = DentryIndex::new(number, slot);
        self.names[part_of(hash)].write().insert(hash, at, is_same);
        if self.at(at, parent, name).is_none() {
            // Somebody has evicted it in between, and found no name to drop.
            self.drop_names(vec![(hash, at)]);
        }
    }

    fn drop_names(&self, dropped: Vec<(u64, DentryIndex)>) {
        for (hash, at) in dropped {
            self.names[part_of(hash)].write().remove(hash, at);
        }
    }

    /// Forgets a directory. The caller holds every worker's state if it changed.
    pub fn remove(&self, ino: InodeId) {
        let number = part_of(hash_inode(ino));
        let mut dropped = Vec::new();
        self.dirs[number].write().remove(ino, &mut |slot, parent, name| {
            dropped.push((hash_entry(parent, name), DentryIndex::new(number, slot)));
        });
        self.drop_names(dropped);
        if ino == ROOT {
            self.set_policy_use(PolicyUse::Unknown);
        }
        // Counted also for a directory that is not cached any more: it may have been when a path
        // was walked.
        self.forgotten.fetch_add(1, Ordering::Release);
    }

    /// Forgets everything. The caller holds every worker's state.
    pub fn clear(&self) {
        for shard in &self.dirs {
            *shard.write() = Shard::default();
        }
        for names in &self.names {
            *names.write() = Names::default();
        }
        self.set_policy_use(PolicyUse::Unknown);
        self.forgotten.fetch_add(1, Ordering::Release);
    }

    /// Directories cached.
    pub fn len(&self) -> usize {
        self.dirs.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use kestrel_types::policy::PolicyRecord;

    use crate::perm::Guard;

    use super::*;

    fn dir(ino: InodeId, parent: InodeId) -> Dentry {
        let guard = Guard { mode: 0o755, uid: 1, gid: 2, dir: true, acls: None };
        Dentry { ino, parent, guard, policy: PolicyRecord::default() }
    }

    #[test]
    fn finds_by_number_and_by_place_until_removed() {
        let replica = Replica::new(1 << 20);
        replica.insert(dir(16, 1), b"a", 7);
        assert_eq!(replica.get(16), Some((dir(16, 1), 7)));
        assert_eq!(replica.find(1, b"a"), Some(16));
        assert_eq!(replica.find(1, b"b"), None);
        let guess = || replica.guess(&PathRef::from_path(1, b"a/f").unwrap());
        assert_eq!((guess(), guess()), (16, 16));
        replica.remove(99);
        assert_eq!((guess(), replica.forgotten()), (16, 1));
        // Renamed: the old place must not lead there any more.
        replica.insert(dir(16, 2), b"b", 0);
        assert_eq!(replica.find(1, b"a"), None);
        assert_eq!(replica.find(2, b"b"), Some(16));
        // The old place was given to another directory before the first one is forgotten.
        replica.insert(dir(17, 2), b"b", 0);
        replica.remove(16);
        assert_eq!(replica.find(2, b"b"), Some(17));
        replica.remove(17);
        assert!(replica.is_empty() && replica.find(2, b"b").is_none());
        assert!(replica.names.iter().all(|names| names.read().len() == 0));
    }

    #[test]
    fn parts_have_different_sizes_and_cover_all_hashes() {
        let sizes: Vec<usize> =
            (0..SHARDS).map(|part| share_before(part + 1) - share_before(part)).collect();
        assert_eq!(
            (sizes.iter().sum::<usize>(), sizes[0], sizes[SHARDS - 1]),
            (1 << CHOOSING_BITS, 10, 22)
        );
        assert!(sizes.iter().all(|size| (10..=22).contains(size)));
        assert_eq!((part_of(0), part_of(u64::MAX)), (0, SHARDS - 1));
        assert!(PARTS.is_sorted());
    }

    #[test]
    fn memory_is_bounded() {
        let replica = Replica::new(1 << 20);
        for ino in 16..200_000 {
            replica.insert(dir(ino, 1), ino.to_string().as_bytes(), 0);
        }
        let bytes: usize = replica.dirs.iter().map(|shard| shard.read().bytes()).sum();
        assert!(bytes <= 1 << 20 && bytes > 1 << 19, "{bytes}");
        let names: usize = replica.names.iter().map(|names| names.read().len()).sum();
        assert_eq!(names, replica.len());
        for ino in 16..200_000 {
            replica.remove(ino);
        }
        assert!(replica.dirs.iter().all(|shard| shard.read().bytes() == 0));
    }
}
