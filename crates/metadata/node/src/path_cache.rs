//! Paths that a worker has walked lately, and where they led: a path that many requests share is
//! walked once, not once a request (`docs/design/metadata.md`, section 3, step 2).
//!
//! A table of a fixed number of places, indexed by a hash of the path; the last walk that came to a
//! place stays there. What is kept is the end of a walk that the namespace replica alone decided,
//! with search permission on every directory of it for the user that asked.
//!
//! **Coherence.** A walk is good as long as the replica has been told to forget no directory
//! ([`Replica::forgotten`]): a directory's record, place and existence change only in batches that
//! hold every worker's state and have it forgotten before they let go. A thread that looks here
//! holds a worker's state, so it sees the count of the last such batch. Eviction from the replica
//! changes nothing. Operations of a batch that has changed directories itself do not look here.
//!
//! [`Replica::forgotten`]: crate::replica::Replica::forgotten

use std::sync::Arc;

use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::PathRef;
use kestrel_types::placement::hash_entry;
use kestrel_types::policy::Policy;
use kestrel_types::request::Creds;
use rustc_hash::FxHashMap;

use crate::feeds::FeedPlace;
use crate::perm::Dentry;

/// Places of the table; a power of two.
const PLACES: usize = 2048;

/// Longest path that is kept, bytes, so that a worker's table has at most about 1.5 MiB.
const PATH_BYTES_MAX: usize = 512;

/// Most effective policies that are kept, so that they take less than 256 KiB.
const POLICIES_MAX: usize = 4096;

/// Most directories of which the nearest quotas are kept, so that they take less than 256 KiB.
const QUOTAS_MAX: usize = 4096;

/// Most directories of which the feeds are kept, and longest path of one, bytes: about 1 MiB.
const FEEDS_MAX: usize = 1024;
const FEED_PATH_BYTES_MAX: usize = 512;

/// Hash of the directories of a place.
#[inline]
pub fn hash_dirs(place: &PathRef) -> u64 {
    hash_entry(place.base, place.dirs.as_bytes())
}

struct CachedPath {
    hash: u64,
    /// [`Replica::forgotten`](crate::replica::Replica::forgotten) when it was walked.
    forgotten: u64,
    base: InodeId,
    uid: u32,
    gid: u32,
    groups: Option<Arc<[u32]>>,
    /// Of the directories below `base`, as [`Dirs::as_bytes`](kestrel_types::name::Dirs::as_bytes)
    /// gives them.
    names: Vec<u8>,
    dir: Dentry,
    changed_at: Position,
}

/// See the module's header.
#[derive(Default)]
pub struct PathCache {
    places: Vec<Option<CachedPath>>,
    /// Effective policies of directories, and the newest positions of changes that decided them.
    policies: FxHashMap<InodeId, (Policy, Position)>,
    /// [`Replica::forgotten`](crate::replica::Replica::forgotten) when these were found.
    policies_forgotten: u64,
    /// The nearest directories with quotas.
    quotas: FxHashMap<InodeId, Option<InodeId>>,
    /// [`Replica::forgotten`](crate::replica::Replica::forgotten), and the version of the table of
    /// quotas, when these were found.
    quotas_at: (u64, u64),
    /// The feeds of names in directories.
    feeds: FxHashMap<InodeId, Arc<[FeedPlace]>>,
    /// [`Replica::forgotten`](crate::replica::Replica::forgotten) when these were found.
    feeds_forgotten: u64,
}

impl PathCache {
    /// The directory that `place` lies in, and the newest position of a change that decided it.
    #[inline]
    pub fn find(
        &self,
        forgotten: u64,
        creds: &Creds,
        place: &PathRef,
    ) -> Option<(Dentry, Position)> {
        let hash = hash_dirs(place);
        let walk = self.places.get(hash as usize % PLACES)?.as_ref()?;
        let same = walk.hash == hash
            && walk.forgotten == forgotten
            && walk.base == place.base
            && (walk.uid, walk.gid) == (creds.uid, creds.gid)
            && walk.groups == creds.groups
            && *walk.names == *place.dirs.as_bytes();
        same.then(|| (walk.dir.clone(), walk.changed_at))
    }

    /// The effective policy of a directory, if it was found since a directory was forgotten last.
    #[inline]
    pub fn policy(&self, forgotten: u64, dir: InodeId) -> Option<(Policy, Position)> {
        let current = self.policies_forgotten == forgotten;
        self.policies.get(&dir).filter(|_| current).copied()
    }

    /// Keeps the effective policy of a directory.
    pub fn keep_policy(&mut self, forgotten: u64, dir: InodeId, found: (Policy, Position)) {
        if self.policies_forgotten != forgotten || self.policies.len() >= POLICIES_MAX {
            self.policies.clear();
            self.policies_forgotten = forgotten;
        }
        self.policies.insert(dir, found);
    }

    /// The nearest directory with a quota, if it was found since a directory was forgotten and a
    /// quota made or removed last.
    #[inline]
    pub fn quota(&self, forgotten: u64, version: u64, dir: InodeId) -> Option<Option<InodeId>> {
        let current = self.quotas_at == (forgotten, version);
        self.quotas.get(&dir).filter(|_| current).copied()
    }

    /// Keeps the nearest directory with a quota.
    pub fn keep_quota(
        &mut self,
        forgotten: u64,
        version: u64,
        dir: InodeId,
        under: Option<InodeId>,
    ) {
        if self.quotas_at != (forgotten, version) || self.quotas.len() >= QUOTAS_MAX {
            self.quotas.clear();
            self.quotas_at = (forgotten, version);
        }
        self.quotas.insert(dir, under);
    }

    /// The feeds of names in a directory, if they were found since a directory was forgotten last.
    #[inline]
    pub fn feeds(&self, forgotten: u64, dir: InodeId) -> Option<Arc<[FeedPlace]>> {
        let current = self.feeds_forgotten == forgotten;
        self.feeds.get(&dir).filter(|_| current).cloned()
    }

    /// Keeps the feeds of names in a directory.
    pub fn keep_feeds(&mut self, forgotten: u64, dir: InodeId, found: Arc<[FeedPlace]>) {
        if found.iter().any(|place| place.path.len() > FEED_PATH_BYTES_MAX) {
            return;
        }
        if self.feeds_forgotten != forgotten || self.feeds.len() >= FEEDS_MAX {
            self.feeds.clear();
            self.feeds_forgotten = forgotten;
        }
        self.feeds.insert(dir, found);
    }

    /// Keeps the end of a walk.
    pub fn keep(
        &mut self,
        forgotten: u64,
        creds: &Creds,
        place: &PathRef,
        (dir, changed_at): (Dentry, Position),
    ) {
        if place.dirs.as_bytes().len() > PATH_BYTES_MAX {
            return;
        }
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        let hash = hash_dirs(place);
        let kept = &mut self.places[hash as usize % PLACES];
        let mut names = kept.take().map_or_else(Vec::new, |walk| walk.names);
        names.clear();
        names.extend_from_slice(place.dirs.as_bytes());
        let (uid, gid, groups) = (creds.uid, creds.gid, creds.groups.clone());
        *kept = Some(CachedPath {
            hash,
            forgotten,
            base: place.base,
            uid,
            gid,
            groups,
            names,
            dir,
            changed_at,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use kestrel_types::policy::PolicyRecord;

    use super::*;
    use crate::perm::Guard;

    fn place(path: &str) -> PathRef {
        PathRef::from_path(1, path.as_bytes()).unwrap()
    }

    fn dir(ino: InodeId) -> Dentry {
        let guard = Guard { mode: 0o755, uid: 0, gid: 0, dir: true, acls: None };
        Dentry { ino, parent: 1, guard, policy: PolicyRecord::default() }
    }

    /// The path cache finds a path for the caller that walked it, until something is forgotten.
    #[test]
    fn path_cache_by_caller() {
        let mut walks = PathCache::default();
        let root = Creds::root();
        assert!(walks.find(0, &root, &place("a/b/f")).is_none());
        walks.keep(0, &root, &place("a/b/f"), (dir(7), 3));
        assert_eq!(walks.find(0, &root, &place("a/b/other")), Some((dir(7), 3)));
        for other in ["a/f", "a/b/c/f", "ab/f", "a/c/f", "f"] {
            assert!(walks.find(0, &root, &place(other)).is_none(), "{other}");
        }
        assert!(walks.find(0, &root, &PathRef { base: 2, ..place("a/b/f") }).is_none());
        assert!(walks.find(1, &root, &place("a/b/f")).is_none(), "something was forgotten");
        let user =
            |uid, groups: Option<&[u32]>| Creds { uid, gid: 5, groups: groups.map(Into::into) };
        walks.keep(1, &user(5, Some(&[8])), &place("a/b/f"), (dir(9), 4));
        assert_eq!(walks.find(1, &user(5, Some(&[8])), &place("a/b/f")), Some((dir(9), 4)));
        for other in [root, user(6, Some(&[8])), user(5, Some(&[])), user(5, None)] {
            assert!(walks.find(1, &other, &place("a/b/f")).is_none(), "{other:?}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut walks = PathCache::default();
        let long = vec![b'x'; 255];
        for number in 0..3 * PLACES {
            let path = format!("{number}/{}/f", String::from_utf8_lossy(&long));
            walks.keep(0, &Creds::root(), &place(&path), (dir(7), 0));
        }
        assert_eq!(walks.places.len(), PLACES);
        let too_long = place(&format!("{0}/{0}/{0}/f", String::from_utf8_lossy(&long)));
        walks.keep(0, &Creds::root(), &too_long, (dir(7), 0));
        assert!(walks.find(0, &Creds::root(), &too_long).is_none());
    }
}
