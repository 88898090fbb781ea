//! The cache below, for callers that fill it and look into it in bytes of objects as they were
//! before coding.

use std::ops::Range;

use kestrel_types::ids::ObjectId;

use super::head::{HEADER_BYTES, Head};
use super::heads::ObjectCoding;
use super::{CodedStore, How};
use crate::error::{Error, Result};
use crate::store::LocalCache;

/// The chunks that some plain bytes are in; none if there are no such bytes.
fn chunks_of(head: &Head, offset: u64, len: u64) -> Option<(Range<u64>, Range<u32>)> {
    let until = offset.saturating_add(len).min(head.header.plain_len);
    let wanted = offset..until;
    let last = until.checked_sub(1).filter(|_| !wanted.is_empty())?;
    Some((wanted, head.header.chunk_of(offset)..head.header.chunk_of(last) + 1))
}

fn stored(head: &Head, chunks: &Range<u32>) -> Range<u64> {
    head.stored_of(chunks.start).start..head.stored_of(chunks.end - 1).end
}

impl LocalCache for CodedStore {
    fn is_plain(&self) -> bool {
        false
    }

    fn fill(&self, object: ObjectId, offset: u64, len: u64) -> Result<()> {
        let cache =
            self.inner.near().ok_or(Error::Invalid { what: "there is no cache to fill" })?;
        match self.coding_of(object, None, How::Wait)?.coding {
            ObjectCoding::Plain => cache.fill(object, offset, len),
            ObjectCoding::Coded(head) => {
                // Without its head the rest cannot be read.
                cache.fill(object, 0, head.header.head_len() as u64)?;
                let Some((_, chunks)) = chunks_of(&head, offset, len) else { return Ok(()) };
                let span = stored(&head, &chunks);
                cache.fill(object, span.start, span.end - span.start)
            }
        }
    }

    fn holds(&self, object: ObjectId, offset: u64, len: u64) -> u64 {
        let Some(cache) = self.inner.near() else { return 0 };
        // The head is read only from the cache.
        let header = HEADER_BYTES as u64;
        let coding = self.heads.get(object).or_else(|| {
            let is_cached = cache.holds(object, 0, header) == header;
            is_cached
                .then(|| self.coding_of(object, None, How::Wait).ok().map(|found| found.coding))
                .flatten()
        });
        match coding {
            None => 0,
            Some(ObjectCoding::Plain) => cache.holds(object, offset, len),
            Some(ObjectCoding::Coded(head)) => {
                let Some((wanted, chunks)) = chunks_of(&head, offset, len) else { return 0 };
                let held = |span: &Range<u64>| {
                    cache.holds(object, span.start, span.end - span.start) == span.end - span.start
                };
                if held(&stored(&head, &chunks)) {
                    return wanted.end - wanted.start;
                }
                chunks
                    .filter(|chunk| held(&head.stored_of(*chunk)))
                    .map(|chunk| head.header.plain_of(chunk))
                    .map(|plain| plain.end.min(wanted.end) - plain.start.max(wanted.start))
                    .sum()
            }
        }
    }

    fn evict(&self, object: ObjectId) -> u64 {
        self.inner.near().map_or(0, |cache| cache.evict(object))
    }
}
