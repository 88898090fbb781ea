//! What members say to each other about sums of shares.

use kestrel_types::ids::InodeId;
use kestrel_types::stat::DirStat;

use super::SpanRow;

/// What is asked for besides a sum.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Also {
    /// Nothing.
    Nothing,
    /// Entries of the directory.
    Names {
        /// From the first one after this name on.
        after: Option<Box<[u8]>>,
        /// At most so many.
        most: u64,
    },
}

/// Entries of a directory that a member owns, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Name, and an entry that says no more than number and type.
    pub rows: Vec<SpanRow>,
    /// It has no more.
    pub end: bool,
}

/// What members say to each other about sums of shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SumMessage {
    /// Asks for the sum of the receiver's shares of a directory, under a lease.
    Ask {
        /// The sender's number.
        number: u64,
        /// Version of its table.
        table: u64,
        /// Which of its starts it is.
        epoch: u64,
        /// The directory.
        dir: InodeId,
        /// What else.
        also: Also,
    },
    /// The sum.
    Sum {
        /// As asked.
        number: u64,
        /// Which of its starts the sender is.
        epoch: u64,
        /// As asked.
        dir: InodeId,
        /// The sum.
        sum: DirStat,
        /// Names, if they were asked for.
        names: Option<Names>,
    },
    /// There is no lease on it at present.
    Refused {
        /// As asked.
        number: u64,
        /// As asked.
        dir: InodeId,
        /// Nor will there be for so long, nanoseconds.
        pause: u64,
    },
    /// The sums of these directories are about to change: forget them. No directories: forget all
    /// that the sender, or an earlier start of it, has said.
    Revoke {
        /// The sender's number.
        number: u64,
        /// Which of its starts it is.
        epoch: u64,
        /// The oldest start of the receiver that may rely on them.
        holder: u64,
        /// Which.
        dirs: Vec<InodeId>,
    },
    /// They are forgotten.
    Revoked {
        /// As told.
        number: u64,
    },
}
