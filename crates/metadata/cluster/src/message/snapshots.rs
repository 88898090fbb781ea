//! What members say to each other about snapshots: the member that leads snapshots
//! ([`kestrel_types::placement::PlacementMap::snapshot_leader`]) and every member that serves
//! ([`crate::snapshots`]).

use kestrel_types::error::FsError;
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

/// The place of what the leader of snapshots says among all that it ever says. A member passes over
/// what was said before something that it has heeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotOrder {
    /// Version of the leader's placement map.
    pub table: u64,
    /// The leader's number: starts of it included, they ascend.
    pub number: u64,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotMessage {
    /// A cut begins: the receiver is to change nothing. Answered by Stopped or Declined.
    Stop(SnapshotOrder),
    /// The sender changes nothing, and what it has decided is applied everywhere.
    Stopped {
        /// As told.
        order: SnapshotOrder,
        /// Its newest timestamp.
        stamp: u64,
        /// Which start of it this is: one that starts again has not been stopped all the while.
        start: u64,
    },
    /// The cut: the receiver keeps rows for this snapshot, and goes on. Answered by Made or
    /// Declined.
    Make {
        /// As told by Stop.
        order: SnapshotOrder,
        /// The snapshot.
        info: SnapshotInfo,
    },
    /// The record of the snapshot is durable at the sender.
    Made(SnapshotOrder),
    /// The sender cannot take part in this cut.
    Declined {
        /// As told.
        order: SnapshotOrder,
        /// Why.
        why: FsError,
    },
    /// The cut has failed: the receiver goes on.
    Resume(SnapshotOrder),
    /// Records of snapshots are to be as follows. Answered by Kept.
    Keep {
        /// Place of the message.
        order: SnapshotOrder,
        /// These as they are here.
        records: Vec<SnapshotInfo>,
        /// These deleted: no member has history of them.
        dropped: Vec<SnapshotId>,
    },
    /// They are, durably.
    Kept {
        /// As told.
        order: SnapshotOrder,
        /// Of the records that are kept those that are in removal and that the sender has no
        /// history of any more.
        cleared: Vec<SnapshotId>,
    },
}
