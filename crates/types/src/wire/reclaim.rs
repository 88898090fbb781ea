//! What a client tells a node that has lost its session, so that open files and locks go on.

use super::basic::{self, WireWriter, list};
use super::lock::{LockSpan, SPAN_BYTES_MIN, put_span, span};
use crate::codec::{DecodeError, Reader};
use crate::error::{FsError, FsResult};
use crate::ids::{InodeId, ObjectId};
use crate::name::InodeRef;

/// Most opens, most locks and most object ranges in one [`Reclaim`]; a client with more sends
/// several.
pub const RECLAIM_ITEMS_MAX: usize = 8192;

/// A file that the client has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimOpen {
    /// The file, with the place where the client last saw it.
    pub file: InodeRef,
    /// How many opens, above zero.
    pub count: u32,
    /// A file made without a name that may still be given one.
    pub linkable: bool,
}

/// What a client holds. All its Reclaims count together; other calls come after the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// Open files.
    pub opens: Vec<ReclaimOpen>,
    /// Locks held.
    pub locks: Vec<LockSpan>,
    /// Object numbers it was given and may still use, as (first, count).
    pub objects: Vec<(ObjectId, u32)>,
    /// As in Ping.
    pub oldest_open_object: ObjectId,
    /// Nothing more follows.
    pub last: bool,
}

/// What could not be given back to the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Files that no longer exist: `ESTALE` on use. At most [`RECLAIM_ITEMS_MAX`].
    pub lost_opens: Vec<InodeId>,
    /// Positions, in the [`Reclaim::locks`] that this answers, of locks that could not be had back.
    /// At most [`RECLAIM_ITEMS_MAX`].
    pub lost_locks: Vec<u32>,
}

/// Result of a [`Reclaim`].
pub type ReclaimReply = FsResult<Reclaimed>;

// First byte of an answer.
const FAILED: u8 = 0;
const DONE: u8 = 1;

pub(super) fn put_reclaim(reclaim: &Reclaim, w: &mut WireWriter<'_>) {
    w.u8(u8::from(reclaim.last));
    w.varint(reclaim.oldest_open_object);
    put_items(&reclaim.opens, w, |w, open| {
        w.inode_ref(&open.file);
        w.varint(u64::from(open.count));
        w.u8(u8::from(open.linkable));
    });
    put_items(&reclaim.locks, w, |w, lock| put_span(lock, w));
    put_items(&reclaim.objects, w, |w, (first, count)| {
        w.varint(*first);
        w.varint(u64::from(*count));
    });
}

pub(super) fn reclaim(r: &mut Reader<'_>) -> Result<Reclaim, DecodeError> {
    let (last, oldest_open_object) = (basic::boolean(r)?, r.varint()?);
    Ok(Reclaim {
        opens: list(r, RECLAIM_ITEMS_MAX, 4, open)?,
        locks: list(r, RECLAIM_ITEMS_MAX, SPAN_BYTES_MIN, span)?,
        objects: list(r, RECLAIM_ITEMS_MAX, 2, |r| Ok((r.varint()?, r.varint32()?)))?,
        oldest_open_object,
        last,
    })
}

fn open(r: &mut Reader<'_>) -> Result<ReclaimOpen, DecodeError> {
    let open = ReclaimOpen {
        file: basic::inode_ref(r)?,
        count: r.varint32()?,
        linkable: basic::boolean(r)?,
    };
    if open.count == 0 { Err(DecodeError("a file opened zero times")) } else { Ok(open) }
}

pub(super) fn put_reply(reply: &ReclaimReply, w: &mut WireWriter<'_>) {
    match reply {
        Err(FsError { errno, reason }) => {
            w.u8(FAILED);
            w.error(*errno, reason);
        }
        Ok(Reclaimed { lost_opens, lost_locks }) => {
            w.u8(DONE);
            put_items(lost_opens, w, |w, ino| w.varint(*ino));
            put_items(lost_locks, w, |w, index| w.varint(u64::from(*index)));
        }
    }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Result<ReclaimReply, DecodeError> {
    Ok(match r.u8()? {
        FAILED => Err(basic::error(r)?),
        DONE => Ok(Reclaimed {
            lost_opens: list(r, RECLAIM_ITEMS_MAX, 1, |r| r.varint())?,
            lost_locks: list(r, RECLAIM_ITEMS_MAX, 1, |r| r.varint32())?,
        }),
        _ => return Err(DecodeError("unknown answer to a reclaim")),
    })
}

fn put_items<T>(items: &[T], w: &mut WireWriter<'_>, put: impl FnMut(&mut WireWriter<'_>, &T)) {
    w.limit(items.len(), RECLAIM_ITEMS_MAX, "the number of items of a reclaim");
    w.list(items, put);
}
