//! Snapshots of a volume that several nodes share.

use kestrel_types::placement::NodeId;
use kestrel_types::snapshot::SnapshotId;

use super::ClusterNode;
use super::message::snapshots::SnapshotMessage;

impl ClusterNode {
    /// The newest snapshot that this member keeps rows for, or 0.
    pub(super) fn newest_cut(&self) -> SnapshotId {
        self.node.core().snapshots.newest().unwrap_or(0)
    }

    /// Whether this member was cut for a snapshot, or there is none.
    pub(super) fn was_cut(&self, snapshot: SnapshotId) -> bool {
        snapshot == 0 || self.node.core().snapshots.has_record(snapshot)
    }

    pub(super) fn heard_of_snapshots(&mut self, _from: NodeId, _message: SnapshotMessage) {}
}
