//! Sums of directories' shares that the nodes of a cluster tell each other under leases, as batches
//! see them. `kestrel_cluster::sums` says how the sums come and go, and why an answer
//! from them is linearizable.
//!
//! A node has two tables. [`KnownSums`] has what other nodes said of their shares: a directory is
//! shown from it and the node's own rows, without a message. [`LeasedShares`] has the directories
//! with shares that the node told others: a batch must not change such a share before the leases
//! are revoked. Both change only with every worker's state of the node held, so a batch sees the
//! same ones from beginning to end.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::stat::DirStat;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::lease::NEVER;

/// Most directories that either table has.
pub const DIRS_MAX: usize = 1 << 16;

/// What other nodes said of their shares of directories.
pub struct KnownSums {
    /// The leases end then, if nobody renews them.
    until: AtomicI64,
    /// How many other nodes have shares.
    others: AtomicUsize,
    /// By directory, what each of them said.
    dirs: RwLock<FxHashMap<InodeId, Vec<(NodeId, DirStat)>>>,
}

impl Default for KnownSums {
    fn default() -> Self {
        Self { until: AtomicI64::new(NEVER), others: AtomicUsize::new(0), dirs: RwLock::default() }
    }
}

impl KnownSums {
    /// Whether other nodes have shares.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.others.load(Ordering::Relaxed) > 0
    }

    /// Whether the leases hold at this time.
    pub fn is_held(&self, now: Nanos) -> bool {
        now < self.until.load(Ordering::Acquire)
    }

    /// The sum of all other nodes' shares of a directory, if each of them has said what its shares
    /// come to. It counts only if the leases hold afterwards ([`KnownSums::is_held`]).
    pub fn get(&self, dir: InodeId) -> Option<DirStat> {
        let dirs = self.dirs.read();
        let parts =
            dirs.get(&dir).filter(|parts| parts.len() == self.others.load(Ordering::Relaxed))?;
        let mut sum = DirStat::default();
        for (_, part) in parts {
            sum.merge(part);
        }
        Some(sum)
    }

    /// Those of the nodes that have said nothing of a directory.
    pub fn missing(&self, dir: InodeId, nodes: &[NodeId]) -> Vec<NodeId> {
        let dirs = self.dirs.read();
        let known = dirs.get(&dir).map_or(&[][..], Vec::as_slice);
        nodes.iter().copied().filter(|node| known.iter().all(|(other, _)| other != node)).collect()
    }

    /// So many other nodes have shares from now on; nothing is known of them.
    pub fn reset(&self, others: usize) {
        self.dirs.write().clear();
        self.others.store(others, Ordering::Relaxed);
        self.set_until(NEVER);
    }

    /// They count until then.
    pub fn set_until(&self, until: Nanos) {
        self.until.store(until, Ordering::Release);
    }

    /// What a node has said of its shares of a directory.
    pub fn put(&self, dir: InodeId, node: NodeId, sum: DirStat) {
        let mut dirs = self.dirs.write();
        if dirs.len() >= DIRS_MAX && !dirs.contains_key(&dir) {
            // It is a cache: the member that told a sum only has it forgotten once more
            // when the share changes.
            dirs.clear();
        }
        let parts = dirs.entry(dir).or_default();
        parts.retain(|(other, _)| *other != node);
        parts.push((node, sum));
    }

    /// What a node said of a directory does not count any more.
    pub fn forget(&self, dir: InodeId, node: NodeId) {
        let mut dirs = self.dirs.write();
        if let Some(parts) = dirs.get_mut(&dir) {
            parts.retain(|(other, _)| *other != node);
        }
    }

    /// Nothing that was said of a directory counts any more.
    pub fn forget_dir(&self, dir: InodeId) {
        self.dirs.write().remove(&dir);
    }

    /// Nothing that a node said counts any more.
    pub fn forget_node(&self, node: NodeId) {
        for parts in self.dirs.write().values_mut() {
            parts.retain(|(other, _)| *other != node);
        }
    }
}

/// The nodes that were told what the shares of a directory come to: each, and its oldest start that
/// was.
pub type Holders = Vec<(NodeId, u64)>;

/// Directories with shares that other nodes were told.
#[derive(Default)]
pub struct LeasedShares {
    /// How many there are; one more while all are taken for leased.
    any: AtomicUsize,
    state: RwLock<Leased>,
}

#[derive(Default)]
struct Leased {
    /// What an earlier start of the node has told nobody knows any more: any directory may be among
    /// it.
    all: bool,
    dirs: FxHashMap<InodeId, Holders>,
}

impl LeasedShares {
    /// Whether the shares of a directory must not change before leases are revoked.
    #[inline]
    pub fn bars(&self, dir: InodeId) -> bool {
        if self.any.load(Ordering::Acquire) == 0 {
            return false;
        }
        let state = self.state.read();
        state.all || state.dirs.contains_key(&dir)
    }

    /// How many directories are leased.
    pub fn count(&self) -> usize {
        self.state.read().dirs.len()
    }

    /// The nodes that were told of a directory.
    pub fn holders(&self, dir: InodeId) -> Holders {
        self.state.read().dirs.get(&dir).cloned().unwrap_or_default()
    }

    /// The nodes that were told of any.
    pub fn all_holders(&self) -> Holders {
        let mut all = Holders::new();
        for (node, epoch) in self.state.read().dirs.values().flatten() {
            add(&mut all, *node, *epoch);
        }
        all
    }

    /// A start of a node is about to be told of a directory.
    pub fn grant(&self, dir: InodeId, node: NodeId, epoch: u64) {
        self.change(|state| add(state.dirs.entry(dir).or_default(), node, epoch));
    }

    /// Nobody relies on a directory's shares any more.
    pub fn end(&self, dir: InodeId) {
        self.change(|state| {
            state.dirs.remove(&dir);
        });
    }

    /// Nobody relies on any; or any directory may be leased from now on.
    pub fn end_all(&self, all: bool) {
        self.change(|state| *state = Leased { all, dirs: FxHashMap::default() });
    }

    fn change(&self, change: impl FnOnce(&mut Leased)) {
        let mut state = self.state.write();
        change(&mut state);
        self.any.store(state.dirs.len() + usize::from(state.all), Ordering::Release);
    }
}

fn add(holders: &mut Holders, node: NodeId, epoch: u64) {
    match holders.iter_mut().find(|(holder, _)| *holder == node) {
        Some((_, oldest)) => *oldest = epoch.min(*oldest),
        None => holders.push((node, epoch)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(children: i64) -> DirStat {
        DirStat { children, ..DirStat::default() }
    }

    /// A sum is known when every node has said its part, and is not when one of them takes it back.
    #[test]
    fn known_sums_are_complete_or_absent() {
        let known = KnownSums::default();
        known.reset(2);
        known.put(7, 1, sum(3));
        assert_eq!((known.get(7), known.missing(7, &[1, 3])), (None, vec![3]));
        known.put(7, 3, sum(4));
        known.put(7, 3, sum(5));
        assert_eq!(known.get(7), Some(sum(8)));
        known.forget(7, 1);
        assert_eq!((known.get(7), known.missing(7, &[1, 3])), (None, vec![1]));
        known.put(7, 1, sum(1));
        known.set_until(9);
        assert!(known.get(7).is_some() && known.is_held(8) && !known.is_held(9));
        known.forget_node(3);
        assert_eq!(known.missing(7, &[1, 3]), [3]);
        known.reset(1);
        assert!(!known.is_held(8) && known.missing(7, &[1]) == [1]);
    }

    /// A share is barred while somebody may have been told of it; of a node's starts the oldest
    /// counts.
    #[test]
    fn leased_shares_bar_changes() {
        let leased = LeasedShares::default();
        assert!(!leased.bars(7));
        leased.grant(7, 2, 5);
        leased.grant(7, 2, 6);
        leased.grant(8, 3, 1);
        assert!(leased.bars(7) && !leased.bars(9));
        assert_eq!((leased.holders(7), leased.count()), (vec![(2, 5)], 2));
        leased.end(7);
        assert!(!leased.bars(7) && leased.bars(8));
        leased.end_all(true);
        assert!(leased.bars(9));
        leased.end_all(false);
        assert!(!leased.bars(8) && !leased.bars(9));
    }
}
