//! Why an operation stops before it has an answer: an error, rows that are not here, or another
//! worker or node that it needs.

use kestrel_engine::EngineError;
use kestrel_types::codec::DecodeError;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::Outcome;
use kestrel_types::snapshot::SnapshotId;

use crate::history::at::GONE;

/// A directory that the replica lacks and another node knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Want {
    /// What has this name in this directory.
    Name(InodeId, Box<[u8]>),
    /// The one with this number.
    Id(InodeId),
}

/// The growth of a node's part of a quota that a change needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaWant {
    /// The quota.
    pub of: QuotaSubject,
    /// Files (0) or bytes (1).
    pub what: u8,
    /// By so much the part has to be above what the node has counted; above nought.
    pub more: i64,
    /// The limit does not count: the superuser gives files away.
    pub free: bool,
}

/// Where a request that names an inode is looked for; changes when it has to go to another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Where the request says.
    AsAsked,
    /// At this name, where it was renamed to.
    Name(InodeId, Box<[u8]>),
    /// By number, in table `link`.
    Number,
}

/// Why an operation did not come to an answer.
#[derive(Debug)]
pub enum Stop {
    /// Rows are wanted: fetch and run again.
    Need,
    /// It changes what only exclusive batches may: run it there.
    Exclusive,
    /// It belongs to another worker.
    Forward(usize, Route),
    /// Rows of this file must be deleted first, from this chunk on: run it after that.
    Unswept(InodeId, u64),
    /// It needs rows of other nodes: run it as a transaction of several.
    Away,
    /// It needs a row that is lent: run it when that has come back.
    Locked,
    /// Its path leads through this directory: run it when the replica has it.
    Dentry(Want),
    /// Its path led through the replica, and the node has no lease: run it when it has.
    Unleased,
    /// It shows this directory: run it when the node knows what other nodes' shares come to.
    Sum(InodeId),
    /// It changes a share of this directory that other nodes were told of: run it when they do not
    /// rely on that any more.
    Leased(InodeId),
    /// It changes something, and nothing changes at present because a snapshot is being made: run
    /// it when that is over.
    Stopped,
    /// It makes a snapshot of several nodes, and nothing is in the way of that.
    Cut,
    /// It needs a larger part of a quota than the node has: run it when it has.
    QuotaPart(QuotaWant),
    /// It shows these quotas, of which each of several nodes has counted a part.
    Quotas(Vec<QuotaSubject>),
    /// It needs the names of this directory, which belongs to a clone and has not all of them: run
    /// it when it has ([`crate::node`], clones).
    Based(InodeId),
    /// It clones this directory as it was at a snapshot: run it when that has been read.
    CloneSource(InodeId, SnapshotId),
    /// It failed.
    Fail(FsError),
    /// It ended otherwise.
    Out(Box<Outcome>),
}

impl Stop {
    /// How a request ends that asked for no row: the rest of the reasons to stop cannot come up
    /// then.
    pub fn without_rows(self) -> Outcome {
        match self {
            Stop::Fail(error) => Outcome::Failed(error),
            Stop::Out(outcome) => *outcome,
            Stop::Need
            | Stop::Exclusive
            | Stop::Forward(..)
            | Stop::Unswept(..)
            | Stop::Away
            | Stop::Locked
            | Stop::Dentry(_)
            | Stop::Sum(_)
            | Stop::Leased(_)
            | Stop::Stopped
            | Stop::Cut
            | Stop::QuotaPart(_)
            | Stop::Quotas(_)
            | Stop::Based(_)
            | Stop::CloneSource(..)
            | Stop::Unleased => Outcome::Failed(FsError::new(
                libc::EIO,
                "metadata: a check stopped without a reason",
            )),
        }
    }
}

impl From<FsError> for Stop {
    fn from(why: FsError) -> Self {
        Self::Fail(why)
    }
}

/// Result of an operation or a part of one.
pub type Run<T> = Result<T, Stop>;

/// An error with a fixed reason.
pub const fn fail(errno: i32, reason: &'static str) -> Stop {
    Stop::Fail(FsError::new(errno, reason))
}

/// A row that cannot be read as what it should be.
pub(crate) fn damaged(what: &str, why: &DecodeError) -> Stop {
    Stop::Fail(FsError::because(
        libc::EIO,
        format!("metadata: damaged row: {what}: {why}; run kestrel fsck"),
    ))
}

/// How an engine's error looks to a client.
pub fn engine_error(error: EngineError) -> FsError {
    match error {
        EngineError::NoSpace => FsError::because(libc::ENOSPC, error.to_string()),
        EngineError::Refused(why) if why == GONE => FsError::new(libc::ESTALE, GONE),
        other => FsError::because(libc::EIO, other.to_string()),
    }
}
