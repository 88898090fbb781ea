//! How far a transaction is at its leader ([`crate::txn`] takes it on).

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::Mutation;
use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::node::Ended;
use kestrel_meta::rows::{Missing, Span, TxnRows};
use kestrel_types::clock::Nanos;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;

use crate::fence::Fence;
use crate::message::LockedRowsId;

/// A participant, as the leader sees him.
#[derive(Default)]
pub(crate) struct Participant {
    pub locked: Option<LockedRowsId>,
    /// What he was asked for and has not answered.
    pub asked: Option<(u32, Missing)>,
}

/// How far a transaction is.
pub(crate) enum TxnPhase {
    /// It borrows rows, or waits for a dentry.
    Borrowing,
    /// It waits for these members to forget the directories it changes, or to be fenced.
    Invalidating(BTreeMap<NodeId, Fence>, Box<Ended>),
    /// It waits for these participants to agree; what each is to change.
    Preparing(BTreeSet<NodeId>, BTreeMap<NodeId, Vec<Mutation>>, Box<Ended>),
    /// It is decided, and waits for the log. The participants that have something to change; the
    /// answer.
    Decided(Vec<NodeId>, Box<Ended>),
}

/// One attempt of a transaction.
pub(crate) struct LeaderTxn {
    pub txn: TxnId,
    pub mode: RowLockMode,
    pub lent: TxnRows,
    pub round: u32,
    pub participants: BTreeMap<NodeId, Participant>,
    pub phase: TxnPhase,
    /// When it asked the first participant, or was about to.
    pub begun: Nanos,
    /// When somebody was asked last.
    pub sent: Nanos,
    /// The set of quotas when it began, before it read a row of another member.
    pub quotas: u64,
    /// Since it was run, directories were forgotten that policies may depend on.
    pub doubtful: bool,
}

impl LeaderTxn {
    pub fn is_decided(&self) -> bool {
        matches!(self.phase, TxnPhase::Decided(..))
    }

    pub fn sent(&self) -> Nanos {
        self.sent
    }

    /// Whether a row was lent.
    pub fn has(&self, key: &Key) -> bool {
        // Whatever part of a range was lent, all of it is locked.
        let locked = |span: &Span| (span.table, span.id) == (key.table, key.id);
        self.lent.rows.contains_key(key)
            || matches!(key.table, Table::Xattr | Table::Chunk | Table::Sweep)
                && self.lent.spans.keys().any(locked)
    }
}
