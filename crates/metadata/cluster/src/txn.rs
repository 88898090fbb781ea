//! Transactions over several nodes: two-phase commit between a leader and its participants.
//!
//! | file | what it has |
//! | --- | --- |
//! | `txn/leader.rs` | borrows rows until the operation needs no more |
//! | `txn/participant.rs` | rows that are locked for transactions of a leader |
//! | `txn/commit.rs` | the end of a transaction: invalidation, prepare, decision |
//! | `txn/records.rs` | rows of table `txn` that say what was agreed to and decided |

pub(super) mod commit;
pub(super) mod leader;
pub(super) mod participant;
pub(super) mod records;
