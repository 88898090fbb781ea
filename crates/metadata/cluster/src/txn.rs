//! Transactions over several nodes: two-phase commit between a leader and its participants.

pub(super) mod commit;
pub(super) mod leader;
pub(super) mod participant;
pub(super) mod records;
