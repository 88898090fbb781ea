//! Extents: which stored bytes make up a chunk of a large file (`docs/format/objects.md`,
//! "Extents").
//!
//! A chunk is 64 MiB of a file. Its [`ExtentList`] says for every byte where it is stored; what no
//! extent covers is a hole and reads as zeros, and nothing else does. All functions are pure: the
//! metadata core runs them inside its execute step, the client when it plans a read.
//!
//! **Invariants of a list**: extents are stored ones (a hole is a gap, never an element), not
//! empty, sorted by position, free of overlap, within the chunk, and inside the range they point
//! into. Two neighbours that continue each other in position and in the same range are one extent.
//! At most [`EXTENTS_MAX`] elements.
//!
//! **Accounting**: the unit is the *referenced byte*. An extent of `len` bytes references `len`
//! bytes of its object, whatever the length of the range it points into; a byte referenced from two
//! extents counts twice. A list that takes an extent in adds `len`; every operation here returns
//! what it [`Released`]. For any object, bytes added minus bytes released is the sum of `len` over
//! all live extents, and because no extent is empty, that sum is zero exactly when nothing
//! references the object. (A packed file without chunks references the whole range: `range.len`
//! bytes.)

use std::fmt;

use crate::codec::{DecodeError, Reader, put_varint};
use crate::range::{RANGE_BYTES_MAX, Range};

/// Bytes of a file that one list describes.
pub const CHUNK_BYTES: u32 = 64 * 1024 * 1024;

/// Compaction rewrites a chunk in aligned windows of this many bytes.
pub const WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// A window is due for compaction when merging its runs would save this many extents.
pub const WINDOW_JOINS_MAX: usize = 32;

/// Most extents in one list. Compaction keeps lists near 512; this bounds what a row can cost when
/// it lags behind.
pub const EXTENTS_MAX: usize = 65_536;

/// First byte of an encoded list.
const VERSION: u8 = 1;

/// Where the bytes of an extent come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nowhere: zeros.
    Hole,
    /// Bytes `skip ..` of a stored range.
    Stored {
        /// The range that holds them.
        range: Range,
        /// Logical bytes of the range before the first one used.
        skip: u32,
    },
}

/// `len` bytes of a chunk from `pos` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte within the chunk.
    pub pos: u32,
    /// Bytes, at least 1.
    pub len: u32,
    /// Where they come from.
    pub source: Source,
}

impl Extent {
    /// A whole range placed at `pos`.
    pub fn of_range(pos: u32, range: Range) -> Self {
        Self { pos, len: range.len, source: Source::Stored { range, skip: 0 } }
    }

    /// A hole.
    pub fn hole(pos: u32, len: u32) -> Self {
        Self { pos, len, source: Source::Hole }
    }

    /// First byte after it.
    pub fn end(&self) -> u32 {
        self.pos + self.len
    }

    /// The part of it within `from .. to`, which must not be empty.
    fn clip(&self, from: u32, to: u32) -> Self {
        let pos = self.pos.max(from);
        let len = self.end().min(to) - pos;
        let source = match self.source {
            Source::Hole => Source::Hole,
            Source::Stored { range, skip } => {
                Source::Stored { range, skip: skip + (pos - self.pos) }
            }
        };
        Self { pos, len, source }
    }

    /// Whether `next` continues this extent in position and in storage.
    fn continues_in(&self, next: &Extent) -> bool {
        self.end() == next.pos
            && match (self.source, next.source) {
                (
                    Source::Stored { range: a, skip },
                    Source::Stored { range: b, skip: next_skip },
                ) => a == b && skip + self.len == next_skip,
                (Source::Hole, Source::Hole) => true,
                _ => false,
            }
    }

    /// Fails unless it lies within a chunk and within its range.
    pub fn check(&self) -> Result<(), ExtentError> {
        let end = u64::from(self.pos) + u64::from(self.len);
        if self.len == 0 || end > u64::from(CHUNK_BYTES) {
            return Err(ExtentError::OutOfBounds);
        }
        match self.source {
            Source::Hole => Ok(()),
            Source::Stored { range, skip } => {
                let used = u64::from(skip) + u64::from(self.len);
                if range.object == 0 || range.len > RANGE_BYTES_MAX || used > u64::from(range.len) {
                    return Err(ExtentError::OutOfBounds);
                }
                Ok(())
            }
        }
    }
}

/// Referenced bytes that an operation took away from a range's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Released {
    /// The range the removed extent (or part of one) pointed into.
    pub range: Range,
    /// Bytes of it that are no longer referenced from here.
    pub bytes: u32,
}

/// Why a list was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentError {
    /// An extent is empty, leaves its chunk or leaves its range.
    OutOfBounds,
    /// The list would hold more than [`EXTENTS_MAX`] extents: it has to be compacted first.
    Full,
    /// The list no longer says what the caller saw.
    Changed,
}

impl fmt::Display for ExtentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfBounds => "extent out of bounds",
            Self::Full => "too many extents in one chunk",
            Self::Changed => "extents changed meanwhile",
        })
    }
}

impl std::error::Error for ExtentError {}

/// The part of a file's bytes that lies in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPart {
    /// Number of the chunk, of 38 bits.
    pub chunk: u64,
    /// First byte within it.
    pub pos: u32,
    /// Bytes, at least 1.
    pub len: u32,
    /// Bytes of the whole request before this part.
    pub done: u64,
}

/// Splits `len` bytes of a file from `offset` on at chunk boundaries, in order and without gaps.
/// Bytes from 2^64 on do not exist and are left out; a file has none from [`FILE_SIZE_MAX`] on.
///
/// [`FILE_SIZE_MAX`]: crate::inode::FILE_SIZE_MAX
pub fn chunk_parts(offset: u64, len: u64) -> impl Iterator<Item = ChunkPart> {
    let chunk_bytes = u64::from(CHUNK_BYTES);
    let len = len.min(u64::MAX - offset);
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let pos = (at % chunk_bytes) as u32;
        let part_len = (len - done).min(u64::from(CHUNK_BYTES - pos)) as u32;
        if part_len == 0 {
            return None;
        }
        let part = ChunkPart { chunk: at / chunk_bytes, pos, len: part_len, done };
        done += u64::from(part_len);
        Some(part)
    })
}

/// The extents of one chunk. See the module's header for its invariants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtentList(Vec<Extent>);

impl ExtentList {
    /// A chunk that is one hole.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// A list of extents that came from elsewhere, checked; holes among them are gaps.
    ///
    /// # Errors
    /// If one is out of bounds or there are too many.
    pub fn from_extents(extents: &[Extent]) -> Result<Self, ExtentError> {
        let mut list = Self::new();
        for extent in extents {
            list.overlay(*extent)?;
        }
        Ok(list)
    }

    /// The stored extents, by position.
    pub fn extents(&self) -> &[Extent] {
        &self.0
    }

    /// Whether the whole chunk is a hole. Its row can go.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of stored extents.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// First byte after the last stored one.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, Extent::end)
    }

    /// Bytes that are stored, not holes.
    pub fn stored_bytes(&self) -> u64 {
        self.0.iter().map(|extent| u64::from(extent.len)).sum()
    }

    /// What the list references, one item an extent: what removing the chunk releases.
    pub fn references(&self) -> impl Iterator<Item = Released> {
        self.0.iter().filter_map(released)
    }

    /// Indices of the extents that intersect `from .. to`.
    fn span(&self, from: u32, to: u32) -> std::ops::Range<usize> {
        let first = self.0.partition_point(|extent| extent.end() <= from);
        let past = first + self.0[first..].partition_point(|extent| extent.pos < to);
        first..past
    }

    /// Puts `new` above everything that was there; a hole punches. Returns what was released.
    /// Nothing changes on error.
    pub fn overlay(&mut self, new: Extent) -> Result<Vec<Released>, ExtentError> {
        new.check()?;
        let fresh = match new.source {
            Source::Hole => None,
            Source::Stored { .. } => Some(new),
        };
        self.replace_span(new.pos, new.end(), fresh.as_slice())
    }

    /// Makes `pos .. pos + len` a hole. An empty or out-of-chunk part is ignored.
    pub fn punch(&mut self, pos: u32, len: u32) -> Result<Vec<Released>, ExtentError> {
        let end = pos.saturating_add(len).min(CHUNK_BYTES);
        if pos >= end {
            return Ok(Vec::new());
        }
        self.replace_span(pos, end, &[])
    }

    /// Makes everything from `len` on a hole.
    pub fn truncate(&mut self, len: u32) -> Vec<Released> {
        let first = self.0.partition_point(|extent| extent.end() <= len);
        let mut freed = Vec::with_capacity(self.0.len() - first);
        for extent in &self.0[first..] {
            freed.extend(released(&extent.clip(len, u32::MAX)));
        }
        let keep =
            self.0.get(first).filter(|extent| extent.pos < len).map(|extent| extent.clip(0, len));
        self.0.truncate(first);
        self.0.extend(keep);
        freed
    }

    /// Takes over what `pieces` (of another list or this one, from [`ExtentList::slice`]) say about
    /// `len` bytes, placed at `pos`: a clone by reference, holes included. `pieces` must cover
    /// exactly `len` bytes, in order.
    pub fn graft(&mut self, pos: u32, pieces: &[Extent]) -> Result<Vec<Released>, ExtentError> {
        let Some(first) = pieces.first() else { return Ok(Vec::new()) };
        let mut fresh = Vec::with_capacity(pieces.len());
        let mut expected = first.pos;
        let mut at = pos;
        for piece in pieces {
            let moved = Extent { pos: at, ..*piece };
            moved.check()?;
            if piece.pos != expected {
                return Err(ExtentError::OutOfBounds);
            }
            expected = piece.end();
            at = moved.end();
            if piece.source != Source::Hole {
                fresh.push(moved);
            }
        }
        self.replace_span(pos, at, &fresh)
    }

    /// Replaces what lies in `pos .. pos + len` by `fresh` if it still is what `seen` (from
    /// [`ExtentList::slice`]) says: the commit of a compaction. `fresh` gives extents inside the
    /// window, in order; gaps become holes.
    pub fn replace_if(
        &mut self,
        pos: u32,
        len: u32,
        seen: &[Extent],
        fresh: &[Extent],
    ) -> Result<Vec<Released>, ExtentError> {
        let end = pos
            .checked_add(len)
            .filter(|end| *end <= CHUNK_BYTES)
            .ok_or(ExtentError::OutOfBounds)?;
        let mut at = pos;
        for extent in fresh {
            extent.check()?;
            if extent.pos < at || extent.end() > end || extent.source == Source::Hole {
                return Err(ExtentError::OutOfBounds);
            }
            at = extent.end();
        }
        if self.slice(pos, len) != seen {
            return Err(ExtentError::Changed);
        }
        if len == 0 { Ok(Vec::new()) } else { self.replace_span(pos, end, fresh) }
    }

    /// Everything in `from .. to` becomes `fresh`: checked, stored, ordered extents inside it.
    fn replace_span(
        &mut self,
        from: u32,
        to: u32,
        fresh: &[Extent],
    ) -> Result<Vec<Released>, ExtentError> {
        let span = self.span(from, to);
        let left = self.0[span.clone()].first().filter(|extent| extent.pos < from);
        let right = self.0[span.clone()].last().filter(|extent| extent.end() > to);
        let (left, right) =
            (left.map(|extent| extent.clip(0, from)), right.map(|e| e.clip(to, u32::MAX)));
        let pieces = usize::from(left.is_some()) + fresh.len() + usize::from(right.is_some());
        if self.0.len() - span.len() + pieces > EXTENTS_MAX {
            return Err(ExtentError::Full);
        }
        let freed = self.0[span.clone()]
            .iter()
            .filter_map(|extent| released(&extent.clip(from, to)))
            .collect();
        let first = span.start;
        self.0.splice(span, left.into_iter().chain(fresh.iter().copied()).chain(right));
        self.join(first.saturating_sub(1), first + pieces + 1);
        Ok(freed)
    }

    /// Joins neighbours that continue each other among the elements `first .. past`.
    fn join(&mut self, first: usize, past: usize) {
        let past = past.min(self.0.len());
        if past - first < 2 {
            return;
        }
        let mut kept = first;
        for index in first + 1..past {
            let next = self.0[index];
            if self.0[kept].continues_in(&next) {
                self.0[kept].len += next.len;
            } else {
                kept += 1;
                self.0[kept] = next;
            }
        }
        self.0.drain(kept + 1..past);
    }

    /// What `pos .. pos + len` consists of, holes as extents of their own, in order and without
    /// gaps. The part beyond the chunk is left out.
    pub fn slice(&self, pos: u32, len: u32) -> Vec<Extent> {
        let end = pos.saturating_add(len).min(CHUNK_BYTES);
        let mut pieces = Vec::new();
        let mut at = pos;
        for extent in &self.0[self.span(pos, end)] {
            let piece = extent.clip(pos, end);
            if at < piece.pos {
                pieces.push(Extent::hole(at, piece.pos - at));
            }
            at = piece.end();
            pieces.push(piece);
        }
        if at < end {
            pieces.push(Extent::hole(at, end - at));
        }
        pieces
    }

    /// First byte at or after `pos` of a block that has stored bytes (SEEK_DATA). Blocks are
    /// aligned and have `block` bytes, a power of two of at most [`CHUNK_BYTES`].
    pub fn next_data(&self, pos: u32, block: u32) -> Option<u32> {
        let index = self.first_ending_behind(pos, block);
        self.0.get(index).map(|extent| (extent.pos - extent.pos % block).max(pos))
    }

    /// First byte at or after `pos` of a block that has none (SEEK_HOLE); [`CHUNK_BYTES`] if all
    /// have some.
    pub fn next_hole(&self, pos: u32, block: u32) -> u32 {
        let mut at = pos;
        for extent in &self.0[self.first_ending_behind(pos, block)..] {
            if extent.pos - extent.pos % block > at {
                break;
            }
            at = extent.end().next_multiple_of(block);
        }
        at
    }

    /// Index of the first extent with its last block ending behind `pos`.
    fn first_ending_behind(&self, pos: u32, block: u32) -> usize {
        self.0.partition_point(|extent| extent.end().next_multiple_of(block) <= pos)
    }

    /// First bytes of the aligned windows ([`WINDOW_BYTES`]) that compaction should rewrite: those
    /// with more than 32 extents, one per contiguous run not counted after the first (a run costs
    /// one extent however often it is rewritten, so a sparse window must not be compacted again and
    /// again).
    pub fn windows_to_compact(&self) -> Vec<u32> {
        let mut due = Vec::new();
        let (mut window, mut joins) = (0, 0);
        let mut previous_end = u32::MAX;
        for extent in &self.0 {
            let last = (extent.end() - 1) / WINDOW_BYTES;
            let at = extent.pos / WINDOW_BYTES;
            if at != window {
                (window, joins) = (at, 0);
            } else if extent.pos == previous_end {
                joins += 1;
                if joins == WINDOW_JOINS_MAX {
                    due.push(window * WINDOW_BYTES);
                }
            }
            if last != window {
                (window, joins) = (last, 0);
            }
            previous_end = extent.end();
        }
        due
    }

    /// Appends the list's encoding.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.reserve(4 + self.0.len() * 20);
        out.push(VERSION);
        put_varint(out, self.0.len() as u64);
        let mut at = 0;
        for extent in &self.0 {
            let Source::Stored { range, skip } = extent.source else {
                unreachable!("lists hold no holes")
            };
            put_varint(out, u64::from(extent.pos - at));
            put_varint(out, u64::from(extent.len));
            put_varint(out, range.object);
            put_varint(out, u64::from(range.offset));
            put_varint(out, u64::from(range.len));
            put_varint(out, u64::from(skip));
            at = extent.end();
        }
    }

    /// Reads what [`ExtentList::encode_into`] wrote and checks every invariant but the joining of
    /// neighbours.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.u8()? != VERSION {
            return Err(DecodeError("extent list of an unknown version"));
        }
        let count = reader.varint32()? as usize;
        if count > EXTENTS_MAX {
            return Err(DecodeError("too many extents"));
        }
        // Six varints an extent, so a short row cannot ask for much memory.
        let mut extents = Vec::with_capacity(count.min(reader.remaining() / 6));
        let mut at = 0u32;
        for _ in 0..count {
            let gap = reader.varint32()?;
            let pos = at.checked_add(gap).ok_or(DecodeError("extent out of bounds"))?;
            let len = reader.varint32()?;
            let range = Range {
                object: reader.varint()?,
                offset: reader.varint32()?,
                len: reader.varint32()?,
            };
            let extent =
                Extent { pos, len, source: Source::Stored { range, skip: reader.varint32()? } };
            extent.check().map_err(|_| DecodeError("extent out of bounds"))?;
            at = extent.end();
            extents.push(extent);
        }
        Ok(Self(extents))
    }
}

/// What taking `extent` away releases.
fn released(extent: &Extent) -> Option<Released> {
    match extent.source {
        Source::Hole => None,
        Source::Stored { range, .. } => Some(Released { range, bytes: extent.len }),
    }
}

#[cfg(test)]
mod tests;
