//! The lock manager against a naive model, and its rules one by one.
//!
//! | file | |
//! | --- | --- |
//! | `model` | the naive model: an array of bytes for each owner, a list of waiting calls |
//! | `against_model` | generated calls, to the lock manager and to the model |
//! | `rules` | what the manual pages say, bounds, and many locks |

mod against_model;
mod model;
mod rules;

use kestrel_types::wire::{LockKind, LockMode, LockSpan};

/// A lock of file 1 by owner `owner`.
fn posix(owner: u64, mode: LockMode, start: u64, end: u64) -> LockSpan {
    LockSpan { ino: 1, owner, pid: owner as u32, kind: LockKind::Posix, mode, start, end }
}

fn flock(owner: u64, mode: LockMode) -> LockSpan {
    let (start, end) = (0, kestrel_types::wire::LOCK_END);
    LockSpan { ino: 1, owner, pid: owner as u32, kind: LockKind::Flock, mode, start, end }
}
