//! What members say to each other about quotas: the member that leads them, which is that of
//! snapshots, and every member that serves ([`crate::quotas`]).

use kestrel_meta::quotas::QuotaPair;
use kestrel_types::ids::InodeId;
use kestrel_types::quota::{QuotaRecord, QuotaSubject};

use super::snapshots::SnapshotOrder;

/// A member's question for a larger part of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaAsk {
    /// The sender's number.
    pub number: u64,
    /// The set of quotas that the sender has.
    pub set: SnapshotOrder,
    /// The quota.
    pub of: QuotaSubject,
    /// Files (0) or bytes (1).
    pub what: u8,
    /// What the sender has counted.
    pub used: i64,
    /// The growth of that which a request waits for.
    pub growth: i64,
    /// The limit does not count.
    pub free: bool,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaMessage {
    /// The leader of quotas begins, or the placement map is another one. The receiver takes over a
    /// newer set of quotas, and gives back all that it has not used of its parts. Answered by
    /// Synced.
    Sync {
        /// Place of the message.
        order: SnapshotOrder,
        /// The set of quotas that the leader has.
        set: SnapshotOrder,
        /// The leader knows that there is no newer one.
        certain: bool,
        /// The quotas.
        records: Vec<QuotaRecord>,
    },
    /// The sender has the leader's set, or a newer one.
    Synced {
        /// As told.
        order: SnapshotOrder,
        /// Its newer set.
        newer: Option<(SnapshotOrder, Vec<QuotaRecord>)>,
        /// What it has counted: these are its parts now.
        parts: Vec<(QuotaSubject, QuotaPair)>,
    },
    /// The volume has these quotas from now on, and nothing has changed since Stop. The receiver
    /// stays stopped until it hears Resume. Answered by
    /// [`super::snapshots::SnapshotMessage::Made`] or Declined.
    Set {
        /// As told by Stop.
        order: SnapshotOrder,
        /// The start of the receiver that has stopped.
        start: u64,
        /// The quotas.
        records: Vec<QuotaRecord>,
        /// Files of the receiver that other quotas count from now on.
        homes: Vec<(InodeId, Option<InodeId>)>,
    },
    /// A part is too small. Answered by Granted or Denied.
    Ask(QuotaAsk),
    /// The receiver may count up to this, unless it has given back its part since.
    Granted {
        /// As asked.
        number: u64,
        /// The last time that parts were given back before this.
        after: SnapshotOrder,
        /// The part.
        to: i64,
    },
    /// The quota is used up.
    Denied {
        /// As asked.
        number: u64,
        /// It is above its soft limit for too long.
        soft: bool,
    },
    /// The receiver gives back what it has not used of its parts of these quotas. Answered by
    /// Returned.
    Recall {
        /// Place of the message.
        order: SnapshotOrder,
        /// The quotas.
        of: Vec<QuotaSubject>,
    },
    /// It has: these are its parts now.
    Returned {
        /// As told.
        order: SnapshotOrder,
        /// The parts.
        parts: Vec<(QuotaSubject, QuotaPair)>,
    },
}
