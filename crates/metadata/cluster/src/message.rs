//! What members of a cluster say to each other. Values; the carrier may lose, repeat and reorder
//! them.
//!
//! | file | what it has |
//! | --- | --- |
//! | `message/changes.rs` | changes of the placement map |
//! | `message/clones.rs` | directories of clones that lack names |
//! | `message/leases.rs` | leases |
//! | `message/polls.rs` | questions to all members, and their answers |
//! | `message/quotas.rs` | quotas |
//! | `message/snapshot_reads.rs` | rows as they were at a snapshot |
//! | `message/snapshots.rs` | snapshots |
//! | `message/sums.rs` | sums of shares |

pub(crate) mod changes;
pub(crate) mod clones;
pub(crate) mod leases;
pub(crate) mod polls;
pub(crate) mod quotas;
pub(crate) mod snapshot_reads;
pub(crate) mod snapshots;
pub(crate) mod sums;

use std::sync::Arc;

use kestrel_engine::Mutation;
use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::rows::{Missing, Span};
use kestrel_meta::stop::Want;
use kestrel_types::acl::Acls;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::key::Key;
use kestrel_types::placement::NodeId;
use kestrel_types::policy::PolicyRecord;
use kestrel_types::request::{Reply, Request};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::token::{TokenId, TokenRecord};

use super::addresses::NodeAddress;
use changes::ChangeMessage;
use clones::CloneMessage;
use leases::LeaseMessage;
use polls::{PollAnswer, PollQuestion};
use quotas::QuotaMessage;
use snapshot_reads::SnapshotReadMessage;
use snapshots::SnapshotMessage;
use sums::SumMessage;

/// A message on its way, and the newest timestamp of its sender.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The sender.
    pub from: NodeId,
    /// Newest timestamp of the sender: those of the receiver will be above it.
    pub stamp: u64,
    /// What it says.
    pub message: Message,
}

/// Rows locked for a transaction: which start of the participant, and which of its locked rows. A
/// set of locked rows that was given up and begun again is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedRowsId {
    /// Start of the participant.
    pub epoch: u64,
    /// Counts its locked rows since.
    pub number: u64,
}

/// What became of a question for a dentry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// A directory.
    Dir {
        /// Number.
        ino: InodeId,
        /// Permission bits.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// What it says of policies.
        policy: PolicyRecord,
        /// Its ACLs.
        acls: Option<Arc<Acls>>,
    },
    /// Where a directory with this number is: its owner knows more.
    At(InodeId, Box<[u8]>),
    /// It is no directory, or nothing.
    None,
    /// It is being changed, or the member that was asked has another table: ask again.
    Busy,
}

/// Whether a participant agrees to a transaction's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// What it lent is still locked, and what is to be changed there is on record.
    Yes,
    /// The locked rows do not exist any more: begin again.
    No,
    /// It cannot.
    Failed(FsError),
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Asks for a dentry.
    Fetch {
        /// The sender's number.
        number: u64,
        /// Version of his table.
        table: u64,
        /// Which.
        want: Want,
    },
    /// Answers.
    Fetched(u64, Fetched),
    /// Asks for rows, locked.
    Borrow {
        /// For what.
        txn: TxnId,
        /// Counts what the transaction asks of all its participants.
        round: u32,
        /// Version of the leader's table.
        table: u64,
        /// How to lock.
        mode: RowLockMode,
        /// Which rows.
        rows: Missing,
    },
    /// The rows.
    Lent {
        /// For what.
        txn: TxnId,
        /// As asked.
        round: u32,
        /// The locked rows that they belong to.
        locked: LockedRowsId,
        /// Single rows.
        rows: Vec<(Key, Option<Box<[u8]>>)>,
        /// Ranges.
        spans: Vec<(Span, Vec<SpanRow>)>,
    },
    /// Others have locked some of the rows, or the member that was asked has another table.
    Refused(TxnId, u32),
    /// Directories change: forget their dentries. All that the sender had to say of that at one
    /// moment, by transaction.
    Invalidate(Vec<(TxnId, Vec<InodeId>)>),
    /// Nothing that runs or will run sees the old dentries of these transactions.
    Invalidated(Vec<TxnId>),
    /// The transaction is about to end. A member that lent rows that do not change gives up its
    /// locks and is done; the others put the changes on record.
    Prepare {
        /// Which.
        txn: TxnId,
        /// The locked rows it relies on.
        locked: LockedRowsId,
        /// Changes of the participant's rows.
        mutations: Vec<Mutation>,
        /// They are no changes of the volume: nothing is kept for snapshots.
        below: bool,
    },
    /// Answers.
    Voted(TxnId, Vote),
    /// How it ended: with its changes, or without any. A member that has no record of this
    /// snapshot, the newest one that the leader keeps rows for (0: none), has not been cut for it
    /// yet, and makes no changes that were decided after the leader was.
    Decide(TxnId, bool, SnapshotId),
    /// The changes are made and durable.
    Decided(TxnId),
    /// What became of it? Answered by Decide or Alive.
    Ask(TxnId),
    /// It goes on.
    Alive(TxnId),
    /// A question to all members. A member that has another table than the sender does not answer.
    Poll {
        /// The sender's number.
        number: u64,
        /// Version of his table.
        table: u64,
        /// What he wants to know.
        question: PollQuestion,
    },
    /// Answers.
    Polled {
        /// As asked.
        number: u64,
        /// What the member says.
        answer: PollAnswer,
    },
    /// The table changes.
    Change(ChangeMessage),
    /// The members that resolve paths.
    Lease(LeaseMessage),
    /// What shares of directories come to.
    Sum(SumMessage),
    /// A request of the sender's own process, which the receiver leads. Answered by Forwarded, once
    /// or more.
    Forward {
        /// Its number at the sender.
        number: u64,
        /// Version of the sender's table.
        table: u64,
        /// The request.
        request: Box<Request>,
    },
    /// The answer to it.
    Forwarded {
        /// As told.
        number: u64,
        /// The answer. Misdirected: the sender does not lead it, or has another table.
        reply: Reply,
    },
    /// Rows as they were at a snapshot.
    SnapshotRead(SnapshotReadMessage),
    /// Snapshots.
    Snapshot(SnapshotMessage),
    /// Directories of clones that lack names.
    Clone(CloneMessage),
    /// Quotas.
    Quota(QuotaMessage),
    /// Which tokens there are. The matter of the nodes' servers: members say nothing of it and hear
    /// nothing.
    Tokens(TokensMessage),
    /// Where nodes are. The host's matter: members say nothing of it and hear nothing.
    Addresses(Vec<NodeAddress>),
}

/// What servers tell each other of the records of tokens they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokensMessage {
    /// A hash of all of them.
    Digest([u8; 32]),
    /// Some of them.
    Records(Vec<TokenRecord>),
    /// These are of no use any more, and are forgotten by every member that knows that they are
    /// not.
    Prune(Vec<TokenId>),
}

/// Suffix and value of a row.
pub type SpanRow = (Box<[u8]>, Box<[u8]>);
