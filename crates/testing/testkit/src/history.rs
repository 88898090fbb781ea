//! Linearizability of what several real clients did at once.
//!
//! | file | |
//! | --- | --- |
//! | `plan` | which calls a thread makes: the same for the same seed, on few names |
//! | `run` | threads that make the planned calls and record them |
//! | `tree` | the sequential file system that answers are compared with |
//! | `linear` | the search for an order of calls that explains all answers (Lowe's algorithm) |
//! | `registers` | close-to-open: what a read of an overwritten file may see |
//! | `appends` | logs to which several clients append without locks |
//! | `counter` | a number in a file, counted up under a lock |
//!
//! Threads over one or more mounts of one volume make calls on a small, hot set of names ([`plan`],
//! [`run`]) and record when each call began, when it returned and what it said. The history is
//! linearizable if every call can be given a moment between the two at which it happened wholly, so
//! that all the answers are those of a sequential file system ([`tree`]); [`linear`] decides that
//! exactly. Content of files is overwritten too, under the weaker promise of close-to-open
//! ([`registers`]), appended to without locks ([`appends`]), and counted up under locks
//! ([`counter`]).
//!
//! What Linux does around a file system is allowed for, and only that:
//! - A path is walked one name at a time, so "create a/x" is no atomic call anywhere. Here
//!   directories are opened first, as a call of its own, and names are used relative to what was
//!   opened: a call that a file system can make atomic.
//! - `rename` that fails has looked at its two names one after the other: see [`tree`].
//! - `ESTALE` for a name that changed while the kernel walked it means "again", as it does for NFS:
//!   the call is repeated within the same interval (and counted).
//! - `EIO`, `ETIMEDOUT`, `ENOTCONN` and the like say that nobody knows whether the call happened:
//!   it may have, at any time after it began, or never.

pub mod appends;
pub mod counter;
pub mod linear;
pub mod plan;
pub mod registers;
pub mod run;
pub mod tree;

/// One call of one thread, as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedCall<C, A> {
    /// The thread. It makes one call at a time.
    pub thread: usize,
    /// What it called.
    pub call: C,
    /// What the call said; `None` if that does not tell whether it happened.
    pub answer: Option<A>,
    /// When it began, nanoseconds of a monotonic clock.
    pub begin: u64,
    /// When it returned, not before `begin`.
    pub end: u64,
}
