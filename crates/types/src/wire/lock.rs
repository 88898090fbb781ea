//! Locks as clients ask for them: POSIX byte ranges and BSD locks.
//!
//! A lock belongs to (session, `owner`); the session is the connection's. Locks of the two kinds do
//! not see each other. All requests are idempotent, so they need no sequence number.

use super::basic::{self, WireWriter};
use crate::codec::{DecodeError, Reader};
use crate::error::{FsError, FsResult};
use crate::ids::InodeId;

/// Last byte of a lock that reaches to the end of the file, however long it grows (Linux
/// `OFFSET_MAX`).
pub const LOCK_END: u64 = i64::MAX as u64;

/// The family a lock belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockKind {
    /// `fcntl` record locks: byte ranges, released when the owner closes any descriptor of the
    /// file.
    Posix = 1,
    /// `flock`: whole files (`0 ..=` [`LOCK_END`]), belongs to the open file.
    Flock = 2,
}

/// What a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockMode {
    /// Shared: excludes writers.
    Read = 1,
    /// Exclusive.
    Write = 2,
}

/// A lock that is held or wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockSpan {
    /// The file.
    pub ino: InodeId,
    /// The kernel's lock owner, unique within the client.
    pub owner: u64,
    /// Process, for a caller that asks what is in the way; 0 if unknown.
    pub pid: u32,
    /// Family.
    pub kind: LockKind,
    /// What it excludes.
    pub mode: LockMode,
    /// First byte.
    pub start: u64,
    /// Last byte, `start ..=` [`LOCK_END`].
    pub end: u64,
}

/// A request about locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRequest {
    /// Takes a lock, replacing what the owner holds of the range. Answer: [`LockAnswer::Done`].
    /// Failures: `EAGAIN` if another owner is in the way and `wait` is off, `EDEADLK`, `EINTR`
    /// after a Cancel, `ENOLCK` above the limits of the node.
    Set {
        /// The lock.
        lock: LockSpan,
        /// Wait until it can be had (`F_SETLKW`).
        wait: bool,
    },
    /// Gives back what the owner holds of a range. Answer: [`LockAnswer::Done`], also if it held
    /// nothing.
    Unlock {
        /// The file.
        ino: InodeId,
        /// The owner.
        owner: u64,
        /// Family.
        kind: LockKind,
        /// First byte.
        start: u64,
        /// Last byte, `start ..=` [`LOCK_END`].
        end: u64,
    },
    /// Tells what is in the way of a lock (`F_GETLK`). Answer: [`LockAnswer::Free`] or
    /// [`LockAnswer::Held`].
    Get(LockSpan),
    /// A descriptor of the owner is closed (FLUSH, RELEASE): gives back all its locks of this
    /// family on a file. What waits goes on waiting: another thread of the owner may. Answer: Done.
    ReleaseOwner {
        /// The file.
        ino: InodeId,
        /// The owner.
        owner: u64,
        /// Family.
        kind: LockKind,
    },
}

/// An answer about locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAnswer {
    /// It is done.
    Done,
    /// The lock could be had.
    Free,
    /// This one is in the way. `owner` means nothing outside its client; `pid` is 0 if it belongs
    /// to another client.
    Held(LockSpan),
}

/// Result of a request about locks.
pub type LockReply = FsResult<LockAnswer>;

impl LockSpan {
    /// Whether its range makes sense; decoding refuses one that does not.
    ///
    /// # Errors
    /// `EINVAL`: the range is empty or beyond [`LOCK_END`], or part of a file in a lock of `flock`.
    pub fn check(&self) -> FsResult<()> {
        check_range(self.kind, self.start, self.end)
    }
}

impl LockRequest {
    /// The file it is about.
    pub fn ino(&self) -> InodeId {
        match self {
            LockRequest::Set { lock, .. } | LockRequest::Get(lock) => lock.ino,
            LockRequest::Unlock { ino, .. } | LockRequest::ReleaseOwner { ino, .. } => *ino,
        }
    }

    /// Whether its range makes sense; decoding refuses one that does not.
    ///
    /// # Errors
    /// As [`LockSpan::check`].
    pub fn check(&self) -> FsResult<()> {
        match self {
            LockRequest::Set { lock, .. } | LockRequest::Get(lock) => lock.check(),
            LockRequest::Unlock { kind, start, end, .. } => check_range(*kind, *start, *end),
            LockRequest::ReleaseOwner { .. } => Ok(()),
        }
    }
}

fn check_range(kind: LockKind, start: u64, end: u64) -> FsResult<()> {
    if start > end || end > LOCK_END {
        return Err(FsError::new(
            libc::EINVAL,
            "the range of a lock is empty or beyond the largest offset",
        ));
    }
    if kind == LockKind::Flock && (start, end) != (0, LOCK_END) {
        return Err(FsError::new(libc::EINVAL, "flock locks whole files only"));
    }
    Ok(())
}

// First byte of a request.
const SET: u8 = 1;
const UNLOCK: u8 = 2;
const GET: u8 = 3;
const RELEASE_OWNER: u8 = 4;

// First byte of an answer.
const FAILED: u8 = 0;
const DONE: u8 = 1;
const FREE: u8 = 2;
const HELD: u8 = 3;

/// Bytes of an encoded lock at least.
pub(super) const SPAN_BYTES_MIN: usize = 14;

pub(super) fn put_span(lock: &LockSpan, w: &mut WireWriter<'_>) {
    w.varint(lock.ino);
    w.fixed(lock.owner.to_be_bytes());
    w.varint(u64::from(lock.pid));
    w.u8(lock.kind as u8);
    w.u8(lock.mode as u8);
    w.varint(lock.start);
    w.varint(lock.end);
}

pub(super) fn span(r: &mut Reader<'_>) -> Result<LockSpan, DecodeError> {
    let lock = LockSpan {
        ino: r.varint()?,
        owner: r.u64()?,
        pid: r.varint32()?,
        kind: kind(r)?,
        mode: match r.u8()? {
            1 => LockMode::Read,
            2 => LockMode::Write,
            _ => return Err(DecodeError("unknown mode of a lock")),
        },
        start: r.varint()?,
        end: r.varint()?,
    };
    lock.check().map_err(|_| BAD_RANGE)?;
    Ok(lock)
}

const BAD_RANGE: DecodeError = DecodeError("range of a lock out of bounds");

fn kind(r: &mut Reader<'_>) -> Result<LockKind, DecodeError> {
    match r.u8()? {
        1 => Ok(LockKind::Posix),
        2 => Ok(LockKind::Flock),
        _ => Err(DecodeError("unknown kind of lock")),
    }
}

fn put_owner(tag: u8, ino: InodeId, owner: u64, kind: LockKind, w: &mut WireWriter<'_>) {
    w.u8(tag);
    w.varint(ino);
    w.fixed(owner.to_be_bytes());
    w.u8(kind as u8);
}

pub(super) fn put_request(request: &LockRequest, w: &mut WireWriter<'_>) {
    match request {
        LockRequest::Set { lock, wait } => {
            w.u8(SET);
            put_span(lock, w);
            w.u8(u8::from(*wait));
        }
        LockRequest::Unlock { ino, owner, kind, start, end } => {
            put_owner(UNLOCK, *ino, *owner, *kind, w);
            w.varint(*start);
            w.varint(*end);
        }
        LockRequest::Get(lock) => {
            w.u8(GET);
            put_span(lock, w);
        }
        LockRequest::ReleaseOwner { ino, owner, kind } => {
            put_owner(RELEASE_OWNER, *ino, *owner, *kind, w)
        }
    }
}

pub(super) fn request(r: &mut Reader<'_>) -> Result<LockRequest, DecodeError> {
    let request = match r.u8()? {
        SET => LockRequest::Set { lock: span(r)?, wait: basic::boolean(r)? },
        UNLOCK => LockRequest::Unlock {
            ino: r.varint()?,
            owner: r.u64()?,
            kind: kind(r)?,
            start: r.varint()?,
            end: r.varint()?,
        },
        GET => LockRequest::Get(span(r)?),
        RELEASE_OWNER => {
            LockRequest::ReleaseOwner { ino: r.varint()?, owner: r.u64()?, kind: kind(r)? }
        }
        _ => return Err(DecodeError("unknown lock request")),
    };
    request.check().map_err(|_| BAD_RANGE)?;
    Ok(request)
}

pub(super) fn put_reply(reply: &LockReply, w: &mut WireWriter<'_>) {
    match reply {
        Err(error) => {
            w.u8(FAILED);
            w.error(error.errno, &error.reason);
        }
        Ok(LockAnswer::Done) => w.u8(DONE),
        Ok(LockAnswer::Free) => w.u8(FREE),
        Ok(LockAnswer::Held(lock)) => {
            w.u8(HELD);
            put_span(lock, w);
        }
    }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Result<LockReply, DecodeError> {
    Ok(match r.u8()? {
        FAILED => Err(basic::error(r)?),
        DONE => Ok(LockAnswer::Done),
        FREE => Ok(LockAnswer::Free),
        HELD => Ok(LockAnswer::Held(span(r)?)),
        _ => return Err(DecodeError("unknown lock answer")),
    })
}
