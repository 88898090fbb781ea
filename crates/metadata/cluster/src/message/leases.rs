//! What members say to each other about leases.

use kestrel_meta::locks::TxnId;
use kestrel_types::placement::NodeId;

/// What members say to each other about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseMessage {
    /// Asks for a lease.
    Ask {
        /// The sender's number.
        number: u64,
        /// Which of his starts he is.
        epoch: u64,
        /// No earlier start of his can be running, or get a lease.
        exclusive: bool,
    },
    /// This start of the sender has no lease any more, and will have none.
    Release {
        /// Which.
        epoch: u64,
    },
    /// Granted.
    Granted {
        /// As asked.
        number: u64,
        /// The sender keeps its promise about sums as well ([`crate::sums`]).
        sums: bool,
    },
    /// Asks to grant a member nothing.
    Fence {
        /// For this transaction.
        txn: TxnId,
        /// Counts the rounds of such questions.
        round: u32,
        /// The member.
        node: NodeId,
    },
    /// Nothing is granted to it, and what was has run out.
    Fenced {
        /// As asked.
        txn: TxnId,
        /// As asked.
        round: u32,
        /// As asked.
        node: NodeId,
        /// Since when.
        hold: HoldId,
    },
}

/// A time in which a member has granted another one nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldId {
    /// Start of the member that holds.
    pub epoch: u64,
    /// Its number since.
    pub number: u64,
}
