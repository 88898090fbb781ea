//! What nodes report to the coordinator of their share of the entries.

use kestrel_types::name::Name;
use kestrel_types::placement::{NodeId, PlacementMap};

/// How many entries a node has of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCount {
    /// The name.
    pub name: Name,
    /// Entries of it on this node, in all directories.
    pub entries: u64,
}

/// A node's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// The node that reports.
    pub node: NodeId,
    /// Entries the node owns.
    pub entries: u64,
    /// Its [`names_wanted`] most frequent names, and every name with an exception of which it has
    /// entries: without these it could not be found out when an exception is no longer needed. In
    /// any order, each once.
    pub names: Vec<NameCount>,
}

impl LoadReport {
    /// Whether the names do not add up to more than all entries.
    pub(crate) fn adds_up(&self) -> bool {
        let sum = self.names.iter().try_fold(0u64, |sum, count| sum.checked_add(count.entries));
        sum.is_some_and(|sum| sum <= self.entries)
    }
}

/// Names that a node of a cluster of `nodes` reports: 4 n log₂ n, at least 64. Whatever entries a
/// cluster holds, redirecting the O(n log n) most frequent names leaves the rest balanced (Fan et
/// al., SoCC 2011; FalconFS A.1).
pub fn names_wanted(nodes: usize) -> usize {
    (4 * nodes * nodes.max(2).next_power_of_two().trailing_zeros() as usize).max(64)
}

/// Indexes, among the members of the map, of the nodes that own slots: those that share the load.
pub(crate) fn sharing(placement: &PlacementMap) -> Vec<usize> {
    let slots = placement.map.slots_of_members();
    (0..slots.len()).filter(|member| slots[*member] > 0).collect()
}
