//! Rows as they were at a snapshot: what members ask each other for ([`crate::snapshot_reads`]).

use kestrel_meta::rows::{Missing, Span};
use kestrel_types::ids::InodeId;
use kestrel_types::key::Key;
use kestrel_types::snapshot::SnapshotId;

use super::SpanRow;

/// Which question of which request an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadId {
    /// Number of the request at the member that leads it.
    pub number: u64,
    /// Counts what the request asks all members.
    pub round: u32,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotReadMessage {
    /// Asks for rows. They do not change, so nothing is locked.
    Rows {
        /// The question.
        id: ReadId,
        /// Version of the sender's table.
        table: u64,
        /// As they were then.
        snapshot: SnapshotId,
        /// Which rows.
        rows: Missing,
    },
    /// Answers.
    GotRows {
        /// As asked.
        id: ReadId,
        /// Single rows.
        rows: Vec<(Key, Option<Box<[u8]>>)>,
        /// Ranges.
        spans: Vec<(Span, Vec<SpanRow>)>,
    },
    /// Asks which directory was above each of these, at each of the snapshots beside it.
    Parents {
        /// The question.
        id: ReadId,
        /// Version of the sender's table.
        table: u64,
        /// Directories.
        dirs: Vec<(InodeId, Vec<SnapshotId>)>,
    },
    /// Answers, in the same order; 0 where there was none, or the snapshot is gone.
    GotParents {
        /// As asked.
        id: ReadId,
        /// The directories above.
        dirs: Vec<Vec<InodeId>>,
    },
    /// There is no such snapshot.
    Gone(ReadId),
    /// The member has another table: ask again.
    Busy(ReadId),
    /// The rows are too many bytes for a message.
    TooLarge(ReadId),
}
