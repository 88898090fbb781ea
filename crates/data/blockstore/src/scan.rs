//! Reading an object by itself, without metadata: what is in it, and whether it is intact.

use std::io::IoSliceMut;

use kestrel_types::codec::DecodeError;
use kestrel_types::ids::{InodeId, ObjectId};
use kestrel_types::range::{RANGE_BYTES_MAX, Range};

use crate::error::{Error, Result};
use crate::frame::{self, Wait};
use crate::object::{HEADER_BYTES, MEMBER_BYTES, MemberHeader, ObjectHeader};
use crate::store::BlockStore;

/// Bytes verified at a time.
const PIECE_BYTES: u32 = 1024 * 1024;

/// A member found in an object.
#[derive(Debug, Clone)]
pub struct Member {
    /// The file it was written for.
    pub inode: InodeId,
    /// Where its frames are.
    pub range: Range,
    /// Why its frames are damaged, if they are (only checked if the caller wants it).
    pub damage: Option<Error>,
}

/// What an object holds.
#[derive(Debug, Clone)]
pub struct Contents {
    /// Its header.
    pub header: ObjectHeader,
    /// Its members, in order.
    pub members: Vec<Member>,
    /// Bytes behind the last whole member: an append that was cut off. Nothing refers to them.
    pub tail_bytes: u64,
}

/// Lists an object's members; with `verify` reads and checks their frames too.
///
/// # Errors
/// `NotFound`; `Corrupt` if the header is damaged, of another object or of a newer format; failures
/// of the store.
pub fn scan(store: &dyn BlockStore, object: ObjectId, verify: bool) -> Result<Contents> {
    let size = store.size(object)?;
    let corrupt = |what: DecodeError| Error::Corrupt { object, offset: 0, what: what.0 };
    let header =
        ObjectHeader::decode(&read_array::<HEADER_BYTES>(store, object, 0)?).map_err(corrupt)?;
    if header.object != object {
        return Err(corrupt(DecodeError("the header names another object")));
    }
    let mut members = Vec::new();
    let mut at = HEADER_BYTES as u64;
    while let Some(member) = member_at(store, object, at, size)? {
        at = u64::from(member.range.offset) + u64::from(member.range.stored_len());
        let damage = if verify { verify_range(store, member.range)? } else { None };
        members.push(Member { damage, ..member });
    }
    Ok(Contents { header, members, tail_bytes: size.saturating_sub(at) })
}

/// The member with its header at byte `at`, if there is a whole one.
fn member_at(
    store: &dyn BlockStore,
    object: ObjectId,
    at: u64,
    size: u64,
) -> Result<Option<Member>> {
    let frames_at = at + MEMBER_BYTES as u64;
    let (Ok(header_at), Ok(offset)) = (u32::try_from(at), u32::try_from(frames_at)) else {
        return Ok(None);
    };
    if frames_at > size {
        return Ok(None);
    }
    let bytes = read_array::<MEMBER_BYTES>(store, object, at)?;
    let Ok(header) = MemberHeader::decode(&bytes, object, header_at) else { return Ok(None) };
    let range = Range { object, offset, len: header.len };
    if range.len == 0
        || range.len > RANGE_BYTES_MAX
        || frames_at + u64::from(range.stored_len()) > size
    {
        return Ok(None);
    }
    Ok(Some(Member { inode: header.inode, range, damage: None }))
}

fn read_array<const N: usize>(
    store: &dyn BlockStore,
    object: ObjectId,
    offset: u64,
) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    store.read(object, offset, &mut [IoSliceMut::new(&mut bytes)])?;
    Ok(bytes)
}

/// Reads a range and checks its frames: the damage, if any.
///
/// # Errors
/// Failures of the store that say nothing about the stored bytes.
pub fn verify_range(store: &dyn BlockStore, range: Range) -> Result<Option<Error>> {
    frame::check_window(&range, 0, range.len as usize)?;
    let mut buffer = vec![0; range.len.min(PIECE_BYTES) as usize];
    for skip in (0..range.len).step_by(PIECE_BYTES as usize) {
        let len = (range.len - skip).min(PIECE_BYTES) as usize;
        match frame::read_window(store, None, range, skip, &mut buffer[..len], Wait::Fresh) {
            Ok(_) => {}
            Err(damage @ Error::Corrupt { .. }) => return Ok(Some(damage)),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
