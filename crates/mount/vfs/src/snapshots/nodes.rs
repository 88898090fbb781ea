//! Nodes of snapshots that the kernel knows, and the inode numbers that it shows.
//!
//! **Node ids** have bit 62 set and bit 63 not: no inode number and no path node does. A node id is
//! derived from snapshot, way in and inode number, so it is the same each time; if another node has
//! it, the next one is taken. One inode that is reached by `.snap` of two directories has a node
//! for each: the kernel keeps one place for a directory.
//!
//! **Inode numbers** that `stat(2)` shows have bit 63 set, so none is that of a live file. Those of
//! one snapshot are its inode numbers moved by a distance that is derived from the snapshot, and
//! are therefore all different; distances of snapshots that a mount shows are at least
//! [`NUMBERS_APART`] apart.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use kestrel_client::fs::Fs;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Set in node ids of snapshots, where bit 63 is not.
const SNAPSHOT_NODE: u64 = 1 << 62;

/// The two bits that tell kinds of node ids apart.
const KIND_BITS: u64 = 3 << 62;

/// Set in inode numbers that are shown of snapshots.
const SHOWN: u64 = 1 << 63;

/// Inode numbers below this one are shown as different ones in all snapshots.
pub const NUMBERS_APART: u64 = 1 << 40;

/// Odd, with its bits spread: the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Shards, so that threads do not meet; a power of two.
const SHARDS: usize = 16;

/// Whether a node id is that of a node of a snapshot.
#[inline]
pub fn is_snapshot(node: u64) -> bool {
    node & KIND_BITS == SNAPSHOT_NODE
}

/// Whether an inode number, as `stat(2)` shows it, is that of something in a snapshot.
pub fn is_shown_of_snapshot(ino: u64) -> bool {
    ino & SHOWN != 0
}

/// A snapshot that the kernel knows something of.
pub struct View {
    /// The snapshot.
    pub at: SnapshotId,
    live: Arc<Fs>,
    /// Made when something is looked up: of many snapshots only the root is looked at.
    fs: OnceLock<Arc<Fs>>,
    /// What is added to inode numbers.
    distance: u64,
}

impl View {
    pub fn new(at: SnapshotId, live: &Arc<Fs>, distance: u64) -> Self {
        Self { at, live: live.clone(), fs: OnceLock::new(), distance }
    }

    /// The volume as it was.
    pub fn fs(&self) -> &Arc<Fs> {
        self.fs.get_or_init(|| self.live.at(self.at, ROOT))
    }

    /// The number that `stat(2)` shows of an inode.
    pub fn shown(&self, ino: InodeId) -> u64 {
        shown(self.distance, ino)
    }
}

/// The number that `stat(2)` shows of an inode of a snapshot with this distance; `.snap` itself has
/// the distance 0 and its directory's number.
pub fn shown(distance: u64, ino: InodeId) -> u64 {
    SHOWN | distance.wrapping_add(ino)
}

/// An inode of a snapshot, and how it is reached.
#[derive(Clone)]
pub struct SnapshotInode {
    pub view: Arc<View>,
    /// The directory that has the `.snap` by which the snapshot was entered.
    pub root: InodeId,
    pub ino: InodeId,
    /// Everybody may search it and all directories from the root to it.
    pub is_public: bool,
}

/// What a node stands for.
#[derive(Clone)]
pub enum SnapshotNode {
    /// The directory `.snap` in this directory.
    Dir(InodeId),
    /// Something in a snapshot.
    Inode(SnapshotInode),
}

impl SnapshotNode {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dir(dir), Self::Dir(other)) => dir == other,
            (Self::Inode(inode), Self::Inode(other)) => {
                (inode.view.at, inode.root, inode.ino) == (other.view.at, other.root, other.ino)
            }
            _ => false,
        }
    }

    /// The number that is tried first.
    fn number(&self) -> u64 {
        match self {
            Self::Dir(dir) => *dir,
            Self::Inode(SnapshotInode { view, root, ino, .. }) => {
                let way = view.at.wrapping_mul(SPREAD).wrapping_add(*root);
                way.wrapping_mul(SPREAD).wrapping_add(*ino)
            }
        }
    }
}

struct KnownNode {
    node: SnapshotNode,
    /// As often as the kernel learned of it and has not forgotten.
    lookups: u64,
}

/// The nodes of snapshots that the kernel knows.
pub struct SnapshotNodes {
    shards: Vec<Mutex<FxHashMap<u64, KnownNode>>>,
}

impl Default for SnapshotNodes {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl SnapshotNodes {
    fn shard(&self, id: u64) -> &Mutex<FxHashMap<u64, KnownNode>> {
        &self.shards[id as usize % SHARDS]
    }

    /// The node id of what the kernel is about to learn of.
    pub fn enter(&self, node: SnapshotNode) -> u64 {
        let mut number = node.number();
        loop {
            let id = SNAPSHOT_NODE | number & !KIND_BITS;
            let mut shard = self.shard(id).lock();
            match shard.get_mut(&id) {
                None => {
                    shard.insert(id, KnownNode { node, lookups: 1 });
                    return id;
                }
                Some(known) if known.node.is(&node) => {
                    known.lookups += 1;
                    return id;
                }
                Some(_) => number = number.wrapping_add(1),
            }
        }
    }

    /// What a node stands for, if the kernel knows it.
    pub fn get(&self, id: u64) -> Option<SnapshotNode> {
        self.shard(id).lock().get(&id).map(|known| known.node.clone())
    }

    /// The kernel forgot `count` lookups of a node; what it stood for.
    pub fn forget(&self, id: u64, count: u64) -> Option<SnapshotNode> {
        let mut shard = self.shard(id).lock();
        let known = shard.get_mut(&id)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return Some(known.node.clone());
        }
        shard.remove(&id).map(|known| known.node)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// The distances of the snapshots that a mount has shown.
pub struct Distances {
    of: FxHashMap<SnapshotId, u64>,
    taken: BTreeSet<u64>,
}

impl Default for Distances {
    fn default() -> Self {
        // That of `.snap`.
        Self { of: FxHashMap::default(), taken: BTreeSet::from([0]) }
    }
}

impl Distances {
    /// The distance of a snapshot.
    pub fn of(&mut self, at: SnapshotId) -> u64 {
        if let Some(distance) = self.of.get(&at) {
            return *distance;
        }
        let mut distance = at;
        loop {
            distance = distance.wrapping_mul(SPREAD).wrapping_add(1);
            let place = distance & !SHOWN;
            let near = place.saturating_sub(NUMBERS_APART)..=place.saturating_add(NUMBERS_APART);
            if place < SHOWN - NUMBERS_APART && self.taken.range(near).next().is_none() {
                self.of.insert(at, place);
                self.taken.insert(place);
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `.snap` directories have nodes of their own, which last as long as the kernel knows them.
    #[test]
    fn nodes_live_until_they_are_forgotten() {
        let nodes = SnapshotNodes::default();
        let id = nodes.enter(SnapshotNode::Dir(20));
        assert!(is_snapshot(id) && !is_snapshot(20) && !is_snapshot(1 << 63 | 20));
        assert!(!is_snapshot(3 << 62 | 20));
        assert_eq!(nodes.enter(SnapshotNode::Dir(20)), id);
        assert_ne!(nodes.enter(SnapshotNode::Dir(21)), id);
        assert!(matches!(nodes.forget(id, 1), Some(SnapshotNode::Dir(20))));
        assert!(matches!(nodes.get(id), Some(SnapshotNode::Dir(20))));
        nodes.forget(id, 1);
        assert!(nodes.get(id).is_none());
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.enter(SnapshotNode::Dir(20)), id, "the same each time");
    }

    /// A node id that another node has is not given out twice.
    #[test]
    fn nodes_with_one_first_number() {
        let nodes = SnapshotNodes::default();
        let id = nodes.enter(SnapshotNode::Dir(20));
        // Its first number differs in the bits that tell kinds apart.
        let other = nodes.enter(SnapshotNode::Dir(1 << 62 | 20));
        assert_ne!(other, id);
        assert!(matches!(nodes.get(other), Some(SnapshotNode::Dir(dir)) if dir == 1 << 62 | 20));
    }

    /// Numbers of many snapshots, of `.snap` and of live files are all different.
    #[test]
    fn shown_numbers_are_apart() {
        let mut distances = Distances::default();
        let begin = 1_700_000_000_000_000_000;
        let all: Vec<u64> = (0..5000).map(|at| distances.of(begin + at * 1000)).collect();
        let mut sorted = all.clone();
        sorted.push(0);
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            assert!(pair[1] - pair[0] > NUMBERS_APART);
        }
        assert_eq!(distances.of(begin), all[0], "the same each time");
        assert!(all.iter().all(|distance| shown(*distance, NUMBERS_APART - 1) & SHOWN != 0));
    }
}
