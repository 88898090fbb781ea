//! Decoding chunks into the buffers of a reader.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::ops::RangeInclusive;

use super::compression;
use super::head::Head;
use super::keys::NoncePart;
use crate::error::{Error, Result};

/// Scratch memory a thread keeps between reads, bytes. Reads that need more for stored chunks share
/// buffers instead.
pub(super) const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// Memory that reads are decoded in.
#[derive(Default)]
pub(super) struct Scratch {
    /// Chunks as they are stored.
    pub stored: Vec<u8>,
    plain: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    /// Runs `work` with this thread's memory, so that large reads do not get theirs from the system
    /// each time.
    pub fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut scratch = SCRATCH.take();
        let result = work(&mut scratch);
        if scratch.stored.capacity() + scratch.plain.capacity() <= SCRATCH_BYTES_KEPT {
            SCRATCH.set(scratch);
        }
        result
    }
}

/// Buffers that are filled from the first to the last.
pub(super) struct OutputBuffers<'a, 'b> {
    parts: &'a mut [IoSliceMut<'b>],
    part: usize,
    filled: usize,
}

impl<'a, 'b> OutputBuffers<'a, 'b> {
    pub fn new(parts: &'a mut [IoSliceMut<'b>]) -> Self {
        Self { parts, part: 0, filled: 0 }
    }

    /// Adds bytes; those for which there is no room are left out.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(part) = self.parts.get_mut(self.part).filter(|_| !bytes.is_empty()) {
            let room = &mut part[self.filled..];
            let (now, later) = bytes.split_at(room.len().min(bytes.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == part.len() {
                self.part += 1;
                self.filled = 0;
            }
        }
    }
}

/// Plain bytes `from..until` of an object, as far as they are in `chunks`, go to `output`.
/// `scratch.stored` holds those chunks as they are stored, directly behind one another.
///
/// # Errors
/// `Corrupt` if a chunk is not what was stored.
pub(super) fn decode(
    head: &Head,
    chunks: RangeInclusive<u32>,
    wanted: &std::ops::Range<u64>,
    scratch: &mut Scratch,
    output: &mut OutputBuffers<'_, '_>,
) -> Result<()> {
    let Scratch { stored, plain: buffer } = scratch;
    let mut rest = &mut stored[..];
    for chunk in chunks {
        let stored = head.stored_of(chunk);
        let corrupt =
            |what| Err(Error::Corrupt { object: head.header.object, offset: stored.start, what });
        // Chunks have at most 2 MiB.
        let len = (stored.end - stored.start) as usize;
        let Some((bytes, later)) = std::mem::take(&mut rest).split_at_mut_checked(len) else {
            return corrupt("a chunk is cut off");
        };
        rest = later;
        let entry = head.entry(chunk);
        let bytes = match &head.key {
            Some(key) => match key.open(NoncePart::Chunk(chunk), &head.header_bytes, bytes) {
                Some(bytes) => &*bytes,
                None => return corrupt("a chunk is not what was encrypted here"),
            },
            None if crc32c::crc32c(bytes) != entry.check => {
                return corrupt("the checksum of a chunk does not match");
            }
            None => &*bytes,
        };
        let span = head.header.plain_of(chunk);
        let bytes = if entry.is_compressed {
            buffer.resize((span.end - span.start) as usize, 0);
            if !compression::decompress(head.header.method, bytes, buffer) {
                return corrupt("a chunk does not decompress to what was stored");
            }
            &buffer[..]
        } else {
            bytes
        };
        let (from, until) = (wanted.start.max(span.start), wanted.end.min(span.end));
        output.push(&bytes[(from - span.start) as usize..(until - span.start) as usize]);
    }
    Ok(())
}
