//! The namespace replica: a cache of dentries, never authoritative, bounded in memory, filled lazily.
//!
//! Two tables: directory id → dentry (with its name), and hash of `(parent, name)` → directory id. A hit in the second counts
//! only if the first confirms it, so hash collisions and evictions are harmless.
//!
//! **Coherence.** A change to a directory that paths depend on (rmdir, chmod, chown, rename) runs with every worker's
//! role held and takes the dentry out before it lets them go. Whoever fills or reads the replica for an operation holds
//! a role. So no operation can see a dentry older than the last change, and no lock is held across an operation. One of
//! several nodes may be left out of a change when it has no lease ([`crate::lease`]): what is here counts only while it has one. Reads
//! without a role (routing, listings) get an answer that was right a moment ago.

mod guesses;

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::Place;
use kestrel_types::placement::{hash_entry, hash_inode, place_of};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::perm::{Dentry, Guard};
use crate::walks::hash_dirs;
use guesses::Guesses;

const SHARDS: usize = 64;

/// What one dentry is reckoned to cost besides the bytes of its name: its slots in both tables and its allocation.
pub const DENTRY_BYTES: usize = 136;

#[derive(Debug)]
struct Cached {
    parent: InodeId,
    name: Box<[u8]>,
    uid: u32,
    gid: u32,
    mode: u16,
    /// Log position of the change that made it what it is, as far as it may not be durable.
    changed_at: Position,
}

#[derive(Default)]
struct Shard {
    dirs: FxHashMap<InodeId, Cached>,
    bytes: usize,
}

/// The replica.
pub struct Replica {
    dirs: Box<[RwLock<Shard>]>,
    names: Box<[RwLock<FxHashMap<u64, InodeId>>]>,
    shard_bytes_max: usize,
    /// Directories that it was told to forget so far.
    forgotten: AtomicU64,
    guesses: Guesses,
}

impl Replica {
    /// An empty replica that holds about `bytes_max` bytes at most.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            dirs: (0..SHARDS).map(|_| RwLock::default()).collect(),
            names: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_bytes_max: (bytes_max / SHARDS).max(4 * DENTRY_BYTES),
            forgotten: AtomicU64::new(0),
            guesses: Guesses::default(),
        }
    }

    fn shard(&self, ino: InodeId) -> &RwLock<Shard> {
        &self.dirs[place_of(hash_inode(ino), SHARDS)]
    }

    /// A directory by number.
    #[inline]
    pub fn get(&self, ino: InodeId) -> Option<(Dentry, Position)> {
        let shard = self.shard(ino).read();
        let cached = shard.dirs.get(&ino)?;
        Some((dentry(ino, cached), cached.changed_at))
    }

    /// Parent and name of a directory.
    pub fn place(&self, ino: InodeId) -> Option<(InodeId, Box<[u8]>)> {
        let shard = self.shard(ino).read();
        let cached = shard.dirs.get(&ino)?;
        Some((cached.parent, cached.name.clone()))
    }

    /// Number of a directory by place.
    pub fn find(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        self.find_dir(parent, name).map(|(dir, _)| dir.ino)
    }

    /// A directory by place.
    #[inline]
    pub fn find_dir(&self, parent: InodeId, name: &[u8]) -> Option<(Dentry, Position)> {
        let hash = hash_entry(parent, name);
        let ino = *self.names[place_of(hash, SHARDS)].read().get(&hash)?;
        let shard = self.shard(ino).read();
        let cached = shard.dirs.get(&ino)?;
        (cached.parent == parent && *cached.name == *name).then(|| (dentry(ino, cached), cached.changed_at))
    }

    /// How many directories it was told to forget, cached or not: what was found here for a path stays true until there are more.
    /// Exact for whoever holds a role, since directories change and are forgotten with all of them held.
    #[inline]
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// The directory in which a place probably lies, as far as is known. For routing; no role is needed.
    #[inline]
    pub fn guess(&self, place: &Place) -> InodeId {
        if place.dirs.is_empty() {
            return place.base;
        }
        // What was guessed before something was forgotten has another hash.
        let hash = hash_dirs(place).wrapping_add(self.forgotten().wrapping_mul(0x9e37_79b9_7f4a_7c15));
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

    /// Takes a directory in. The caller holds a role.
    pub fn insert(&self, dir: Dentry, name: &[u8], changed_at: Position) {
        let Guard { mode, uid, gid, .. } = dir.guard;
        let cached = Cached { parent: dir.parent, name: name.into(), uid, gid, mode, changed_at };
        let cost = DENTRY_BYTES + name.len();
        let mut dropped = Vec::new();
        {
            let mut shard = self.shard(dir.ino).write();
            if shard.bytes + cost > self.shard_bytes_max {
                // Evicts a quarter, in the table's order: as good as random, and no bookkeeping on the hot path.
                let keep_bytes = self.shard_bytes_max / 4 * 3;
                let mut bytes = shard.bytes;
                shard.dirs.retain(|_, old| {
                    let keep = bytes <= keep_bytes;
                    if !keep {
                        bytes -= DENTRY_BYTES + old.name.len();
                        dropped.push(hash_entry(old.parent, &old.name));
                    }
                    keep
                });
                shard.bytes = bytes;
            }
            shard.bytes += cost;
            if let Some(old) = shard.dirs.insert(dir.ino, cached) {
                shard.bytes -= DENTRY_BYTES + old.name.len();
                if old.parent != dir.parent || *old.name != *name {
                    dropped.push(hash_entry(old.parent, &old.name));
                }
            }
        }
        for hash in dropped {
            self.names[place_of(hash, SHARDS)].write().remove(&hash);
        }
        let hash = hash_entry(dir.parent, name);
        self.names[place_of(hash, SHARDS)].write().insert(hash, dir.ino);
    }

    /// Forgets a directory. The caller holds every role if it changed.
    pub fn remove(&self, ino: InodeId) {
        // Also of one that is not cached any more: it may have been when a path was walked.
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shard(ino).write();
        let Some(old) = shard.dirs.remove(&ino) else { return };
        shard.bytes -= DENTRY_BYTES + old.name.len();
        drop(shard);
        let hash = hash_entry(old.parent, &old.name);
        let mut names = self.names[place_of(hash, SHARDS)].write();
        if names.get(&hash) == Some(&ino) {
            names.remove(&hash);
        }
    }

    /// Forgets everything. The caller holds every role.
    pub fn clear(&self) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        for shard in &self.dirs {
            *shard.write() = Shard::default();
        }
        for names in &self.names {
            *names.write() = FxHashMap::default();
        }
    }

    /// Directories cached.
    pub fn len(&self) -> usize {
        self.dirs.iter().map(|shard| shard.read().dirs.len()).sum()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn dentry(ino: InodeId, cached: &Cached) -> Dentry {
    let guard = Guard { mode: cached.mode, uid: cached.uid, gid: cached.gid, dir: true };
    Dentry { ino, parent: cached.parent, guard }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    fn dir(ino: InodeId, parent: InodeId) -> Dentry {
        Dentry { ino, parent, guard: Guard { mode: 0o755, uid: 1, gid: 2, dir: true } }
    }

    #[test]
    fn finds_by_number_and_by_place_until_removed() {
        let replica = Replica::new(1 << 20);
        replica.insert(dir(16, 1), b"a", 7);
        assert_eq!(replica.get(16), Some((dir(16, 1), 7)));
        assert_eq!(replica.find(1, b"a"), Some(16));
        assert_eq!(replica.find(1, b"b"), None);
        let guess = || replica.guess(&Place::from_path(1, b"a/f").unwrap());
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
        assert!(replica.names.iter().all(|names| names.read().is_empty()));
    }

    #[test]
    fn memory_is_bounded() {
        let replica = Replica::new(1 << 20);
        for ino in 16..200_000 {
            replica.insert(dir(ino, 1), ino.to_string().as_bytes(), 0);
        }
        let bytes: usize = replica.dirs.iter().map(|shard| shard.read().bytes).sum();
        assert!(bytes <= 1 << 20 && bytes > 1 << 19, "{bytes}");
        let names: usize = replica.names.iter().map(|names| names.read().len()).sum();
        assert_eq!(names, replica.len());
        for ino in 16..200_000 {
            replica.remove(ino);
        }
        assert!(replica.dirs.iter().all(|shard| shard.read().bytes == 0));
    }
}
