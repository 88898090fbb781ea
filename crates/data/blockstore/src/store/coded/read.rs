//! Reading chunks of a coded object.

use std::io::IoSliceMut;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;

use super::decode::{self, OutputBuffers, SCRATCH_BYTES_KEPT, Scratch};
use super::head::Head;
use super::{CodedStore, How};
use crate::error::{Error, Result};

/// Bytes fetched and decoded at a time from stores where a request costs nothing: what fits the
/// processor's cache.
const LOCAL_PIECE_BYTES: u64 = 256 << 10;

/// What is read of a coded object.
pub(super) struct Read<'a> {
    pub head: &'a Head,
    /// The object's first stored bytes, as many as are in memory.
    pub start: &'a [u8],
    /// Plain bytes.
    pub wanted: Range<u64>,
    pub how: How,
}

impl CodedStore {
    /// Fills `parts`, which have the length of what is wanted; false if that would block and must
    /// not. One request, if a request is what costs.
    pub(super) fn read_coded(&self, read: &Read<'_>, parts: &mut [IoSliceMut<'_>]) -> Result<bool> {
        let Read { head, wanted, .. } = read;
        if wanted.end > head.header.plain_len {
            let what = "the object is shorter than what was stored";
            return Err(Error::Corrupt { object: head.header.object, offset: wanted.start, what });
        }
        if wanted.is_empty() {
            return Ok(true);
        }
        let (first, last) =
            (head.header.chunk_of(wanted.start), head.header.chunk_of(wanted.end - 1));
        self.stats.chunks_read.fetch_add(u64::from(last - first + 1), Ordering::Relaxed);
        let mut output = OutputBuffers::new(parts);
        Scratch::with(|scratch| {
            if self.inner.is_remote() {
                return self.read_at_once(read, first..=last, scratch, &mut output);
            }
            let mut next = first;
            while next <= last {
                let from = head.stored_of(next).start;
                let fits = |chunk: &u32| head.stored_of(*chunk).end - from <= LOCAL_PIECE_BYTES;
                let end = (next + 1..=last).take_while(fits).last().unwrap_or(next);
                if !self.read_chunks(read, next..=end, scratch, &mut output)? {
                    return Ok(false);
                }
                next = end + 1;
            }
            Ok(true)
        })
    }

    /// All chunks with one read, however many.
    fn read_at_once(
        &self,
        read: &Read<'_>,
        chunks: RangeInclusive<u32>,
        scratch: &mut Scratch,
        output: &mut OutputBuffers<'_, '_>,
    ) -> Result<bool> {
        let stored =
            read.head.stored_of(*chunks.start()).start..read.head.stored_of(*chunks.end()).end;
        let stored_bytes = (stored.end - stored.start) as usize;
        if stored_bytes <= SCRATCH_BYTES_KEPT {
            return self.read_chunks(read, chunks, scratch, output);
        }
        let own = std::mem::replace(&mut scratch.stored, self.buffers.take(stored_bytes));
        let done = self.read_chunks(read, chunks, scratch, output);
        self.buffers.give(std::mem::replace(&mut scratch.stored, own));
        done
    }

    /// Fetches some chunks with one read and decodes them.
    fn read_chunks(
        &self,
        read: &Read<'_>,
        chunks: RangeInclusive<u32>,
        scratch: &mut Scratch,
        output: &mut OutputBuffers<'_, '_>,
    ) -> Result<bool> {
        let Read { head, start, wanted, how } = read;
        let stored = head.stored_of(*chunks.start()).start..head.stored_of(*chunks.end()).end;
        // Objects have at most 1 GiB and some.
        let (from, until) = (stored.start as usize, stored.end as usize);
        scratch.stored.clear();
        if let Some(bytes) = start.get(from..until) {
            scratch.stored.extend_from_slice(bytes);
        } else {
            scratch.stored.resize(until - from, 0);
            if !self.fetch(head.header.object, stored.start, &mut scratch.stored, *how)? {
                return Ok(false);
            }
        }
        decode::decode(head, chunks, wanted, scratch, output)?;
        Ok(true)
    }
}
