//! Which bytes of a file differ between two moments, as its layout says.
//!
//! Bytes that lie at the same place of the same stored range are the same. Others may be: a file
//! that was written again with the same bytes, or stored again by compaction and then changed
//! elsewhere, has more told of it than differs. Less is never told.

use kestrel_client::fs::unexpected;
use kestrel_types::error::FsResult;
use kestrel_types::extent::{CHUNK_BYTES, Extent, Source};
use kestrel_types::inode::{Data, Inode};
use kestrel_types::name::InodeRef;
use kestrel_types::range::Range;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::SnapshotId;

use super::calls::SnapshotCalls;
use super::diff::merged;

/// Most ranges that are told of a file; more become one.
const RANGES_MAX: usize = 100_000;

/// Chunks asked for at a time, at most what [`Op::Chunks`] takes.
const WINDOW_CHUNKS: u64 = 4096;

/// A file at a moment: the present if no snapshot is given.
pub type FileAt = (Option<SnapshotId>, InodeRef);

/// A stored piece of a file: offset, length, range, bytes of the range before it.
type Piece = (u64, u64, Range, u64);

/// Ranges `(offset, bytes)` in which the bytes of a file differ, or may.
///
/// # Errors
/// If it cannot be read at one of the moments.
pub fn changed_ranges(
    calls: &SnapshotCalls<'_>,
    before: &FileAt,
    after: &FileAt,
) -> FsResult<Vec<(u64, u64)>> {
    let was = calls.getattr(before.0, before.1.clone())?;
    let is = calls.getattr(after.0, after.1.clone())?;
    let (shorter, longer) = (was.size.min(is.size), was.size.max(is.size));
    let mut ranges = vec![(shorter, longer - shorter)];
    match (&was.data, &is.data) {
        (Data::Inline(one), Data::Inline(other)) => {
            ranges.extend(differing_bytes(one, other));
        }
        (Data::Inline(_), _) | (_, Data::Inline(_)) => ranges.push((0, longer)),
        _ => {
            let old = pieces(calls, before.0, &was)?;
            let new = pieces(calls, after.0, &is)?;
            ranges.extend(differing_pieces(&old, &new));
        }
    }
    let in_file = |(offset, len): (u64, u64)| (offset, len.min(longer.saturating_sub(offset)));
    let ranges = merged(ranges.into_iter().map(in_file).collect());
    match (ranges.len() > RANGES_MAX, ranges.first(), ranges.last()) {
        (true, Some((first, _)), Some((last, len))) => Ok(vec![(*first, last + len - first)]),
        _ => Ok(ranges),
    }
}

fn differing_bytes(one: &[u8], other: &[u8]) -> Vec<(u64, u64)> {
    let byte = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    let all = 0..one.len().max(other.len());
    all.filter(|at| byte(one, *at) != byte(other, *at)).map(|at| (at as u64, 1)).collect()
}

/// Where the pieces of the two lists, each in order and without overlap, are not the same.
fn differing_pieces(old: &[Piece], new: &[Piece]) -> Vec<(u64, u64)> {
    // Each boundary of a piece begins an interval within which both lists are uniform.
    let ends = |(at, len, ..): &Piece| [*at, at + len];
    let mut bounds: Vec<u64> = old.iter().chain(new).flat_map(ends).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
    let mut out = Vec::new();
    for pair in bounds.windows(2) {
        let [begin, end] = [pair[0], pair[1]];
        let source = |pieces: &mut std::iter::Peekable<std::slice::Iter<'_, Piece>>| {
            while pieces.next_if(|(at, len, ..)| at + len <= begin).is_some() {}
            let here = pieces.peek().filter(|(at, ..)| *at <= begin);
            here.map(|(at, _, range, skip)| (*range, skip + (begin - at)))
        };
        if source(&mut olds) != source(&mut news) {
            out.push((begin, end - begin));
        }
    }
    out
}

fn pieces(
    calls: &SnapshotCalls<'_>,
    at: Option<SnapshotId>,
    inode: &Inode,
) -> FsResult<Vec<Piece>> {
    match &inode.data {
        Data::None | Data::Inline(_) => Ok(Vec::new()),
        Data::Packed { range, visible } => Ok(vec![(0, u64::from(*visible), *range, 0)]),
        Data::Chunked => chunked(calls, at, inode),
    }
}

fn chunked(
    calls: &SnapshotCalls<'_>,
    at: Option<SnapshotId>,
    inode: &Inode,
) -> FsResult<Vec<Piece>> {
    let chunk_bytes = u64::from(CHUNK_BYTES);
    let last = inode.size.saturating_sub(1) / chunk_bytes;
    let (mut out, mut next) = (Vec::new(), Some(0));
    while let Some(first) = next.filter(|first| *first <= last) {
        let window = last.min(first.saturating_add(WINDOW_CHUNKS - 1));
        let op = Op::Chunks { ino: inode.ino, first, last: window };
        let (chunks, end) = match calls.ask(at, op)? {
            Answer::Chunks { chunks, end } => (chunks, end),
            other => return Err(unexpected(&other)),
        };
        let told = chunks.last().filter(|_| !end).map_or(window, |(chunk, _)| *chunk);
        next = told.checked_add(1);
        for (chunk, extents) in chunks {
            let base = chunk.saturating_mul(chunk_bytes);
            out.extend(extents.iter().filter_map(|extent| piece(base, extent)));
        }
    }
    Ok(out)
}

fn piece(base: u64, extent: &Extent) -> Option<Piece> {
    let Source::Stored { range, skip } = extent.source else { return None };
    Some((base + u64::from(extent.pos), u64::from(extent.len), range, u64::from(skip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(at: u64, len: u64, object: u64, skip: u64) -> Piece {
        (at, len, Range { object, offset: 0, len: 1 << 20 }, skip)
    }

    /// Bytes differ where they do not lie at the same place of the same range.
    #[test]
    fn pieces_that_differ() {
        let old = [stored(0, 100, 1, 0), stored(200, 50, 2, 7)];
        assert_eq!(differing_pieces(&old, &old), []);
        // The same bytes in two extents.
        let split = [stored(0, 40, 1, 0), stored(40, 60, 1, 40), stored(200, 50, 2, 7)];
        assert_eq!(differing_pieces(&old, &split), []);
        let new = [stored(0, 30, 1, 0), stored(30, 20, 9, 0), stored(50, 50, 1, 50)];
        assert_eq!(merged(differing_pieces(&old, &new)), [(30, 20), (200, 50)]);
        assert_eq!(merged(differing_pieces(&old, &[])), [(0, 100), (200, 50)]);
        assert_eq!(merged(differing_pieces(&[], &old)), [(0, 100), (200, 50)]);
        assert_eq!(differing_pieces(&[stored(0, 9, 1, 0)], &[stored(0, 9, 1, 1)]), [(0, 9)]);
    }

    /// Inline bytes are compared as they are.
    #[test]
    fn inline_bytes_that_differ() {
        assert_eq!(merged(differing_bytes(b"abcdef", b"abXXef")), [(2, 2)]);
        assert_eq!(merged(differing_bytes(b"ab", b"abc")), [(2, 1)]);
        assert_eq!(differing_bytes(b"ab", b"ab"), []);
    }
}
