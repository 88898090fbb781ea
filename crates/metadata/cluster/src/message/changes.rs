//! What members say of changes of the table: to each other, and to people.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_engine::Mutation;
use kestrel_types::error::FsError;
use kestrel_types::placement::{NodeId, PlacementMap};

/// A try to change the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// Start of the coordinator, counted on from those of earlier coordinators.
    pub epoch: u64,
    /// Counts his attempts since.
    pub number: u64,
}

/// A node to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Where it is reached, 1 to 255 bytes.
    pub address: String,
    /// It is to serve no clients.
    pub idle: bool,
}

/// What a coordinator alone knows, for the one that follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Charge {
    /// Epochs of attempts were up to this one.
    pub era: u64,
    /// Nodes up to this one may have been forgotten.
    pub last_node: NodeId,
    /// Nodes to come.
    pub expected: BTreeMap<NodeId, Announced>,
}

/// What members say to each other about changes of the table: the coordinator and each of them,
/// sources and destinations.
#[derive(Debug, Clone, PartialEq)]
pub enum ChangeMessage {
    /// A node that is not in the table yet asks to be taken in.
    Join,
    /// An attempt begins; the next table. Answered by Clean.
    Begin {
        /// Which.
        attempt: Attempt,
        /// What the table shall be.
        next: Arc<PlacementMap>,
    },
    /// There are no strangers.
    Clean(Attempt),
    /// Rows that leave are to be copied. Answered by Ready.
    Copy(Attempt),
    /// Rows for their next owner.
    Rows {
        /// Of this attempt.
        attempt: Attempt,
        /// Which copying of the source's: another one after a restart.
        stream: u64,
        /// Counts its messages to this destination, from 1.
        number: u64,
        /// The rows, as they are or deleted.
        rows: Vec<Mutation>,
    },
    /// They are durable.
    GotRows {
        /// As it came.
        attempt: Attempt,
        /// As it came.
        stream: u64,
        /// As it came.
        number: u64,
    },
    /// Little is left to copy.
    Ready(Attempt),
    /// Rows that leave are to be kept from everybody. Answered by Frozen.
    Freeze(Attempt),
    /// They are, durably, and their next owners have all of them.
    Frozen(Attempt),
    /// The attempt cannot go on.
    Declined {
        /// Which.
        attempt: Attempt,
        /// Why.
        why: FsError,
    },
    /// The attempt has failed.
    Abort(Attempt),
    /// This is decided to be the table.
    Adopt(Arc<PlacementMap>),
    /// This is decided to be the table, and by it the member is the coordinator: it is to see to it
    /// that all adopt it.
    Entrust {
        /// The table.
        next: Arc<PlacementMap>,
        /// What it has to know.
        charge: Charge,
    },
    /// A table of this version, or a later one, is the member's.
    Adopted(u64),
    /// The member waits: how is it with this attempt?
    Ask(Attempt),
}

/// How far a change of the table is at a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// None is under way.
    #[default]
    None,
    /// Rows that are not the member's are being deleted before it begins.
    Cleaning,
    /// Rows are copied to their next owners.
    Copying,
    /// What is left to copy is, while nobody has it.
    Freezing,
    /// It waits for the coordinator's decision.
    Frozen,
}

impl Phase {
    /// In a word, for people.
    pub fn word(self) -> &'static str {
        match self {
            Phase::None => "none",
            Phase::Cleaning => "cleaning",
            Phase::Copying => "copying",
            Phase::Freezing => "freezing",
            Phase::Frozen => "frozen",
        }
    }
}

/// What a member has to say of changes of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeStats {
    /// Version of the present table.
    pub table: u64,
    /// How far a change is here.
    pub phase: Phase,
    /// It leads a change.
    pub leads: bool,
    /// It waits to be taken into the cluster.
    pub joining: bool,
    /// Rows sent to other members since the start.
    pub rows_sent: u64,
    /// Rows taken from other members since the start.
    pub rows_taken: u64,
    /// Rows that are not the member's are being deleted.
    pub purging: bool,
    /// Such rows deleted since the start.
    pub rows_purged: u64,
}
