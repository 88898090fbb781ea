//! Stored ranges as frames: laying them out for writing, reading windows of them back verified.
//!
//! | file | |
//! | --- | --- |
//! | `piece` | [`FramePiece`]: a part of a frame in memory, shared without a copy |
//!
//! A range of `len` logical bytes is cut into frames of 64 KiB (the last may be shorter). Each is
//! followed by four bytes: the CRC-32C of the frame's data carried on over its object, offset and
//! number ([`placed_check`]). The check of the data alone can therefore be computed before these
//! are decided, by the thread that brings the data, and is completed in nanoseconds.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;
use kestrel_types::ids::ObjectId;
use kestrel_types::range::{FRAME_BYTES, FRAME_CHECK_BYTES, RANGE_BYTES_MAX, Range};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::object::placed_check;
use crate::payload::Payload;
use crate::reader::cache::Keeps;
use crate::store::BlockStore;

mod piece;

pub use piece::FramePiece;

const FRAME: usize = FRAME_BYTES as usize;
const CHECK: usize = FRAME_CHECK_BYTES as usize;

/// The CRC-32C of each frame's data, not yet placed.
pub fn data_checks(payload: &Payload) -> Vec<u32> {
    let mut checks = vec![0; payload.len().div_ceil(FRAME)];
    for (frame, piece) in payload.pieces(FRAME) {
        checks[frame] = crc32c::crc32c_append(checks[frame], &piece);
    }
    checks
}

enum Laid {
    /// This many bytes of the scratch buffer.
    Small(usize),
    Data(Bytes),
}

/// Data of fewer bytes is copied beside its neighbours rather than sent as a buffer of its own.
const JOINED_BYTES_MAX: usize = 8 * 1024;

/// Collects what one write consists of: small pieces made here, data where it lies.
#[derive(Default)]
pub(crate) struct Gather {
    small: Vec<u8>,
    pieces: Vec<Laid>,
    len: u64,
}

impl Gather {
    /// Bytes collected.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Copies a few bytes. Neighbouring small pieces go out as one.
    pub fn small(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
        self.len += bytes.len() as u64;
        if let Some(Laid::Small(len)) = self.pieces.last_mut() {
            *len += bytes.len();
        } else {
            self.pieces.push(Laid::Small(bytes.len()));
        }
    }

    fn data(&mut self, bytes: Bytes) {
        self.len += bytes.len() as u64;
        self.pieces.push(Laid::Data(bytes));
    }

    /// The frames of a range at byte `offset` of `object`, from the payload and its
    /// [`data_checks`].
    pub fn frames(&mut self, payload: &Payload, checks: &[u32], object: ObjectId, offset: u32) {
        let mut current = 0;
        for (frame, piece) in payload.pieces(FRAME) {
            if frame != current {
                self.check(checks[current], object, offset, current);
                current = frame;
            }
            self.data(piece);
        }
        self.check(checks[current], object, offset, current);
    }

    fn check(&mut self, check: u32, object: ObjectId, offset: u32, frame: usize) {
        self.small(&placed_check(check, object, offset, frame as u32).to_be_bytes());
    }

    /// The buffers for one vectored write.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut small = &self.small[..];
        let mut slices = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            slices.push(IoSlice::new(match piece {
                Laid::Data(bytes) => bytes,
                Laid::Small(len) => {
                    let (head, tail) = small.split_at(*len);
                    small = tail;
                    head
                }
            }));
        }
        slices
    }

    /// The buffers as the sender may keep them: large data where it lies, small pieces copied
    /// together.
    pub fn into_shared(self) -> Vec<Bytes> {
        let mut small = &self.small[..];
        let (mut buffers, mut joined) = (Vec::with_capacity(self.pieces.len()), Vec::new());
        for piece in self.pieces {
            match piece {
                Laid::Small(len) => {
                    let (head, tail) = small.split_at(len);
                    small = tail;
                    joined.extend_from_slice(head);
                }
                Laid::Data(bytes) if bytes.len() < JOINED_BYTES_MAX => {
                    joined.extend_from_slice(&bytes)
                }
                Laid::Data(bytes) => {
                    if !joined.is_empty() {
                        buffers.push(Bytes::from(std::mem::take(&mut joined)));
                    }
                    buffers.push(bytes);
                }
            }
        }
        if !joined.is_empty() {
            buffers.push(Bytes::from(joined));
        }
        buffers
    }
}

/// One frame of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FrameId {
    pub object: ObjectId,
    /// Offset of its range.
    pub offset: u32,
    /// Its number within the range.
    pub frame: u32,
}

/// Keeps verified frames. What is given to it, it may forget at any time.
pub(crate) trait FrameStore {
    /// The frame if it is here. It counts as read.
    fn find(&self, id: FrameId) -> Option<Arc<Buffer>>;
    /// Whether the frame is here.
    fn holds(&self, id: FrameId) -> bool;
    /// Which frames it takes: a reader of whole frames has to look if they may be here, and to
    /// bring those that are wanted.
    fn keeps(&self) -> Keeps;
    /// Memory for a frame of `len` bytes, to be filled; it may hold what other frames were.
    fn blank(&self, len: usize) -> Buffer;
    /// Takes a verified frame, and whether it was read or may be read soon.
    fn insert(&self, id: FrameId, bytes: Arc<Buffer>, what: Brought);
}

/// Why a frame was brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brought {
    /// A reader reads it.
    Read,
    /// A reader may read it soon.
    Ahead,
}

/// May a read wait for the store?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Yes,
    No,
    /// Yes, and past every cache: see [`BlockStore::read_fresh`].
    Fresh,
}

/// Fails unless `skip .. skip + len` are bytes of the range.
pub(crate) fn check_window(range: &Range, skip: u32, len: usize) -> Result<()> {
    let end = u64::from(skip) + len as u64;
    if range.object == 0 || range.len > RANGE_BYTES_MAX || end > u64::from(range.len) {
        return Err(Error::Invalid { what: "a window outside its stored range" });
    }
    Ok(())
}

/// Where in its object a window of a range is stored, whole frames with their checks: first byte
/// and bytes.
pub fn stored_window(range: &Range, skip: u32, len: u32) -> (u64, u64) {
    let layout = Layout { range: *range };
    let (first, last) = frames_of(skip, len);
    let (from, last) = (layout.frame_at(first as usize), last as usize);
    (from, layout.frame_at(last) + (layout.frame_len(last) + CHECK) as u64 - from)
}

/// The frames that a window lies in: first and last.
pub(crate) fn frames_of(skip: u32, len: u32) -> (u32, u32) {
    (skip / FRAME_BYTES, (skip + len.max(1) - 1) / FRAME_BYTES)
}

/// Puts frames of a range into `cache`, those that it does not have: one read for each run of
/// neighbours.
pub(crate) fn load_frames(
    store: &dyn BlockStore,
    cache: &dyn FrameStore,
    range: Range,
    (first, last): (u32, u32),
) -> Result<()> {
    let layout = Layout { range };
    let mut missing =
        (first as usize..=last as usize).filter(|frame| !cache.holds(layout.id(*frame))).peekable();
    while let Some(begin) = missing.next() {
        let mut end = begin + 1;
        while missing.next_if_eq(&end).is_some() {
            end += 1;
        }
        load_run(store, cache, &layout, begin..end, Brought::Ahead)?;
    }
    Ok(())
}

/// The bytes `skip .. skip + len` of a range as parts of its frames: those of `cache`, and the
/// others from the store, one read for each run of neighbours, which `cache` then gets.
pub(crate) fn fetch_pieces(
    store: &dyn BlockStore,
    cache: &dyn FrameStore,
    range: Range,
    skip: u32,
    len: u32,
) -> Result<Vec<FramePiece>> {
    let layout = Layout { range };
    let (first, last) = frames_of(skip, len);
    let mut frames = Vec::with_capacity((last - first + 1) as usize);
    let mut next = first as usize;
    while next <= last as usize {
        if let Some(found) = cache.find(layout.id(next)) {
            frames.push(found);
            next += 1;
            continue;
        }
        let mut end = next + 1;
        while end <= last as usize && !cache.holds(layout.id(end)) {
            end += 1;
        }
        frames.extend(load_run(store, cache, &layout, next..end, Brought::Read)?);
        next = end;
    }
    Ok(cut(frames, first, skip, len))
}

/// The same if `cache` has all of them.
pub(crate) fn find_pieces(
    cache: &dyn FrameStore,
    range: Range,
    skip: u32,
    len: u32,
) -> Option<Vec<FramePiece>> {
    let layout = Layout { range };
    let (first, last) = frames_of(skip, len);
    // First whether, then what: a frame that is found counts as read.
    let mut frames = (first as usize..=last as usize).map(|frame| layout.id(frame));
    if !frames.clone().all(|id| cache.holds(id)) {
        return None;
    }
    let found: Option<Vec<_>> = frames.by_ref().map(|id| cache.find(id)).collect();
    found.map(|frames| cut(frames, first, skip, len))
}

/// Cuts the window `skip .. skip + len` out of a range's frames from number `first` on.
fn cut(frames: Vec<Arc<Buffer>>, first: u32, skip: u32, len: u32) -> Vec<FramePiece> {
    let (from, until) = (skip as usize, skip as usize + len as usize);
    let pair = |(frame, bytes)| {
        let at: usize = (first as usize + frame) * FRAME;
        FramePiece::new(bytes, from.saturating_sub(at)..until.saturating_sub(at))
    };
    frames.into_iter().enumerate().map(pair).collect()
}

/// Reads neighbouring frames with one call, verifies them and gives them to `cache`.
fn load_run(
    store: &dyn BlockStore,
    cache: &dyn FrameStore,
    layout: &Layout,
    run: std::ops::Range<usize>,
    what: Brought,
) -> Result<Vec<Arc<Buffer>>> {
    let mut frames: Vec<Buffer> =
        run.clone().map(|frame| cache.blank(layout.frame_len(frame))).collect();
    let mut checks = vec![[0; CHECK]; frames.len()];
    let mut parts = Vec::with_capacity(2 * frames.len());
    for (frame, check) in frames.iter_mut().zip(&mut checks) {
        parts.push(IoSliceMut::new(frame));
        parts.push(IoSliceMut::new(check));
    }
    store.read(layout.range.object, layout.frame_at(run.start), &mut parts)?;
    drop(parts);
    let mut kept = Vec::with_capacity(frames.len());
    for ((frame, bytes), check) in run.zip(frames).zip(checks) {
        layout.verify(frame, &bytes, check)?;
        let bytes = Arc::new(bytes);
        cache.insert(layout.id(frame), Arc::clone(&bytes), what);
        kept.push(bytes);
    }
    Ok(kept)
}

/// Where a frame's bytes lie.
struct Layout {
    range: Range,
}

impl Layout {
    fn frame_len(&self, frame: usize) -> usize {
        (self.range.len as usize - frame * FRAME).min(FRAME)
    }

    /// Byte of the object where the frame begins.
    fn frame_at(&self, frame: usize) -> u64 {
        u64::from(self.range.offset) + (frame * (FRAME + CHECK)) as u64
    }

    fn id(&self, frame: usize) -> FrameId {
        FrameId { object: self.range.object, offset: self.range.offset, frame: frame as u32 }
    }

    fn verify(&self, frame: usize, data: &[u8], check: [u8; CHECK]) -> Result<()> {
        let Range { object, offset, .. } = self.range;
        if placed_check(crc32c::crc32c(data), object, offset, frame as u32).to_be_bytes() == check {
            return Ok(());
        }
        let offset = self.frame_at(frame);
        Err(Error::Corrupt { object, offset, what: "the checksum of a frame does not match" })
    }
}

/// The part of a frame that a read wants, and where it goes.
struct Wanted<'a> {
    frame: usize,
    /// Bytes of the frame before the part.
    skip: usize,
    out: &'a mut [u8],
}

/// How a window was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowRead {
    /// All of it; `cached` bytes came from the cache.
    Whole { cached: u64 },
    /// It would have had to wait.
    WouldWait,
}

/// Fills `out` with bytes `skip..` of the range. Reads only the frames that cover them, in one
/// contiguous read for each run of frames that `cache` does not have; whole frames go straight to
/// `out`, parts through a buffer that `cache` then gets. On any error `out` is zeroed where it may
/// hold unverified bytes; if it would have to wait, it holds anything.
pub(crate) fn read_window(
    store: &dyn BlockStore,
    cache: Option<&dyn FrameStore>,
    range: Range,
    skip: u32,
    out: &mut [u8],
    wait: Wait,
) -> Result<WindowRead> {
    check_window(&range, skip, out.len())?;
    let layout = Layout { range };
    let mut run: Vec<Wanted<'_>> = Vec::new();
    let mut rest = out;
    let mut at = skip as usize;
    let mut cached = 0;
    while !rest.is_empty() {
        let (frame, skip) = (at / FRAME, at % FRAME);
        let frame_len = layout.frame_len(frame);
        let (part, tail) = rest.split_at_mut((frame_len - skip).min(rest.len()));
        at += part.len();
        rest = tail;
        let is_whole = part.len() == frame_len;
        let hit = cache
            .filter(|cache| wait != Wait::Fresh && (!is_whole || cache.keeps() != Keeps::Parts))
            .and_then(|cache| cache.find(layout.id(frame)))
            .and_then(|bytes| {
                bytes.get(skip..skip + part.len()).map(|found| part.copy_from_slice(found))
            })
            .is_some();
        if !hit {
            run.push(Wanted { frame, skip, out: part });
            continue;
        }
        cached += part.len() as u64;
        if !read_run(store, cache, &layout, std::mem::take(&mut run), wait)? {
            return Ok(WindowRead::WouldWait);
        }
    }
    let is_done = read_run(store, cache, &layout, run, wait)?;
    Ok(if is_done { WindowRead::Whole { cached } } else { WindowRead::WouldWait })
}

/// Reads neighbouring frames with one call and verifies each.
fn read_run(
    store: &dyn BlockStore,
    cache: Option<&dyn FrameStore>,
    layout: &Layout,
    mut run: Vec<Wanted<'_>>,
    wait: Wait,
) -> Result<bool> {
    let Some(first) = run.first().map(|wanted| wanted.frame) else { return Ok(true) };
    let done = read_run_unscrubbed(store, cache, layout, &mut run, first, wait);
    if done.is_err() {
        run.iter_mut().for_each(|wanted| wanted.out.fill(0));
    }
    done
}

fn read_run_unscrubbed(
    store: &dyn BlockStore,
    cache: Option<&dyn FrameStore>,
    layout: &Layout,
    run: &mut [Wanted<'_>],
    first: usize,
    wait: Wait,
) -> Result<bool> {
    let object = layout.range.object;
    // Only the first and the last frame of a window can be partial.
    let blank = |len| cache.map_or_else(|| Buffer::from(vec![0; len]), |cache| cache.blank(len));
    let mut partial: Vec<Buffer> = run
        .iter()
        .filter(|wanted| wanted.out.len() != layout.frame_len(wanted.frame))
        .map(|wanted| blank(layout.frame_len(wanted.frame)))
        .collect();
    let mut checks = vec![[0; CHECK]; run.len()];
    let mut parts = Vec::with_capacity(2 * run.len());
    let mut buffers = partial.iter_mut();
    for (wanted, check) in run.iter_mut().zip(&mut checks) {
        let is_whole = wanted.out.len() == layout.frame_len(wanted.frame);
        let target = if is_whole {
            &mut *wanted.out
        } else {
            buffers.next().map_or(&mut [][..], |buffer| &mut buffer[..])
        };
        parts.push(IoSliceMut::new(target));
        parts.push(IoSliceMut::new(check));
    }
    let offset = layout.frame_at(first);
    match wait {
        Wait::Yes => store.read(object, offset, &mut parts)?,
        Wait::Fresh => store.read_fresh(object, offset, &mut parts)?,
        Wait::No => {
            if store.try_read_nowait(object, offset, &mut parts)?.is_none() {
                return Ok(false);
            }
        }
    }
    drop(parts);
    let keeps_whole = cache.is_some_and(|cache| cache.keeps() == Keeps::Waited);
    let mut buffers = partial.into_iter();
    for (wanted, check) in run.iter_mut().zip(checks) {
        let is_whole = wanted.out.len() == layout.frame_len(wanted.frame);
        let buffer = if is_whole { None } else { buffers.next() };
        layout.verify(wanted.frame, buffer.as_deref().unwrap_or(wanted.out), check)?;
        let kept = match buffer {
            Some(buffer) => {
                wanted.out.copy_from_slice(&buffer[wanted.skip..wanted.skip + wanted.out.len()]);
                Some(buffer)
            }
            // What came without waiting is in a local cache already.
            None if keeps_whole && wait != Wait::No => {
                let mut frame = blank(wanted.out.len());
                frame.copy_from_slice(wanted.out);
                Some(frame)
            }
            None => None,
        };
        if let (Some(cache), Some(frame)) = (cache, kept) {
            cache.insert(layout.id(wanted.frame), Arc::new(frame), Brought::Read);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
