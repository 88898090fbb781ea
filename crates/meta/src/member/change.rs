//! Tables that change: what every member does.

use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::{NodeId, Placement};

use super::Member;

/// Hears how a change of the table ended.
pub type Changed = Box<dyn FnOnce(FsResult<()>) + Send>;

/// Hears the number of a node to come.
pub type Expected = Box<dyn FnOnce(FsResult<NodeId>) + Send>;

/// Of files for which the given function holds: how many have locks, or calls that wait for locks, at this node. It must not block.
pub type LockGuard = dyn Fn(&dyn Fn(InodeId) -> bool) -> usize + Send + Sync;

/// Hears of tables: one that is the node's from now on, and a next one that has new nodes, before it is anybody's. It must not block.
pub type TableListener = dyn Fn(&Placement) + Send + Sync;

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
pub struct ChangeFigures {
    /// Version of the present table.
    pub table: u64,
    /// How far a change is here.
    pub phase: Phase,
    /// It leads a change.
    pub leads: bool,
    /// Rows sent to other members since the start.
    pub rows_sent: u64,
    /// Rows taken from other members since the start.
    pub rows_taken: u64,
    /// Rows that are not the member's are being deleted.
    pub purging: bool,
    /// Such rows deleted since the start.
    pub rows_purged: u64,
}

impl Member {
    /// Makes `next` the table of the cluster. Only at the coordinator, the member with the lowest number; `next` has the version after the
    /// present one, all present members, and no slots of new ones. `done` hears how it ended.
    pub fn change(&mut self, next: Placement, done: Changed, now: Nanos) {
        let _ = (next, now);
        done(Err(FsError::new(libc::ENOTSUP, "metadata: tables do not change yet")));
    }

    /// Reserves a number, durably, for a node to come. Only at the coordinator.
    pub fn expect(&mut self, address: String, done: Expected, now: Nanos) {
        let _ = (address, now);
        done(Err(FsError::new(libc::ENOTSUP, "metadata: tables do not change yet")));
    }

    /// Nodes that are expected and not in the table: their numbers and addresses.
    pub fn expected(&self) -> Vec<(NodeId, String)> {
        Vec::new()
    }

    /// The present table.
    pub fn placement(&self) -> Placement {
        self.table.placement.clone()
    }

    /// What there is to say of changes.
    pub fn change_figures(&self) -> ChangeFigures {
        ChangeFigures { table: self.table.placement.version, ..ChangeFigures::default() }
    }

    /// Has `guard` asked before files go to another node.
    pub fn set_lock_guard(&mut self, guard: Box<LockGuard>) {
        self.lock_guard = Some(guard);
    }

    /// Has `told` hear of tables.
    pub fn set_table_listener(&mut self, told: Box<TableListener>) {
        self.table_listener = Some(told);
    }
}
