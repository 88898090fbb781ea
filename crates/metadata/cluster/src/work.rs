//! Requests that a member leads, and how far each is ([`crate::serve`] takes them on).
//!
//! | file | what it has |
//! | --- | --- |
//! | `work/clone_work.rs` | a part of a clone that is given to it |
//! | `work/snapshot_read.rs` | how far a request is that reads at a snapshot, or lists snapshots |
//! | `work/transaction.rs` | how far a request is that has become a transaction |

pub(super) mod clone_work;
pub(super) mod snapshot_read;
pub(super) mod transaction;

use std::collections::BTreeSet;

use kestrel_meta::session::Claim;
use kestrel_meta::stop::Want;
use kestrel_types::clock::Nanos;
use kestrel_types::clone::CloneId;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Done, Request};

use super::Requester;
use clone_work::CloneWork;
use snapshot_read::{SnapshotListing, SnapshotRead};
use transaction::LeaderTxn;

/// The receiver of a reply.
pub(super) enum Back {
    Here(Done),
    /// This member itself, which deletes this file without a name.
    Deletion(InodeId),
    /// This member itself, which has this directory of a clone get its names.
    Names(InodeId),
    /// This member itself, which ends the clone's copy of this file with several names.
    ClonedFile(CloneId, InodeId),
    /// The process of another member asks. With the number of the request there.
    Forwarded(NodeId, u64),
}

/// How far a request is.
pub(super) enum Stage {
    /// The node serves it, or waits for the log.
    Alone,
    /// It waits until locks are given up.
    Parked,
    /// It waits for a dentry.
    Fetching,
    /// It waits for a lease.
    Unleased,
    /// It waits for what other members' shares of a directory come to.
    Gathering,
    /// It is tried again then: as a transaction, or alone.
    Resting { until: Nanos, leads: bool },
    /// It is a transaction.
    Leading(LeaderTxn),
    /// It reads at a snapshot, and waits for rows of other members.
    ReadingAt(SnapshotRead),
    /// It lists snapshots, and waits for what other members say of directories then.
    ListingSnapshots(SnapshotListing),
    /// It was sent to the member that leads snapshots.
    Forwarded { sent: Nanos },
    /// It waits for what all members say; the poll has its own deadline.
    Polling,
    /// It waits for a larger part of a quota.
    AwaitingQuota,
    /// It waits for the names of a directory of a clone.
    AwaitingNames,
    /// It makes a snapshot or changes quotas, after others, or when members have all records.
    AwaitingCut,
    /// Its snapshot is being made, or its change; that has its own deadline.
    Cutting,
    /// It has ended; the reply waits for the log.
    Ending,
}

/// A request that this member leads.
pub(super) struct Work {
    pub request: Request,
    pub asker: Requester,
    /// It is no request but claims opens of before a restart; the request is an Open of the file.
    pub claim: Option<Claim>,
    pub back: Back,
    pub until: Nanos,
    pub stage: Stage,
    pub tries: u32,
    /// How often locks had been given up when the node tried it last.
    pub unlocks: u64,
    /// Parts of its path that were no directories.
    pub no_dirs: BTreeSet<Want>,
    /// Rounds in which it has asked for rows of a snapshot: an answer to an earlier one, which may
    /// be by an earlier placement map, does not count.
    pub rounds: u32,
    /// What the number of a new inode is made of: the same in every run of a transaction.
    pub counter: Option<u64>,
    /// It is no request but gives a clone something that it lacks; the request is a CloneStep.
    pub clone_work: Option<Box<CloneWork>>,
}
