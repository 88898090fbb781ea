//! The lock manager against a naive model, and its rules one by one.

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
