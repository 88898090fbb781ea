//! What a run may be, and what it was.

use kestrel_types::clock::Nanos;

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

/// What a run may be.
#[derive(Debug, Clone, Copy)]
pub struct RunPlan {
    /// The seed.
    pub seed: u64,
    /// Most calls of all clients together.
    pub calls: usize,
    /// Say what happens.
    pub trace: bool,
}

/// What a run was.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunStats {
    /// Calls begun.
    pub calls: usize,
    /// Of these, those with an answer that reached no client.
    pub unheard: usize,
    /// Crashes of the node.
    pub crashes: usize,
    /// Sessions that expired.
    pub expired: usize,
    /// Calls sent again.
    pub retries: u64,
    /// Changes of tables that succeeded.
    pub changes: usize,
    /// Members that have left, and nodes that were taken out before they came.
    pub left: usize,
    /// Times that the role of the coordinator moved.
    pub handed: usize,
    /// Calls that their member did not lead.
    pub misdirected: usize,
    /// Leases that nodes have lost.
    pub lapses: u64,
    /// Nodes that were fenced for a change of a directory.
    pub fenced: u64,
    /// Nodes that were presumed dead and went on.
    pub ghosts: usize,
    /// Their commits that the engine refused.
    pub refused: u64,
    /// Nodes that went on fully alive while another process served in their place.
    pub zombies: usize,
    /// Stores that gave no answer any more.
    pub stores_failed: usize,
    /// Virtual time, nanoseconds.
    pub time: Nanos,
    /// The order of the calls was not decided.
    pub undecided: bool,
}
