//! Reading pages of a cache file into the buffers of a reader that wants a part of them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;

use crate::page::{self, PAGE_BYTES, PageOwner, PageSlot, SLOT_BYTES, TRAILER_BYTES};
use crate::sys;

const PAGE: usize = PAGE_BYTES as usize;

/// Most pages in one call: with few buffers of the caller's among them they stay below the kernel's
/// bound.
const BATCH_PAGES: usize = 256;

thread_local! {
    /// Where the ends of the first and last page go that were not requested. They are read because
    /// a page is checked as a whole; kept because making 64 KiB anew for every read costs as much
    /// as the read.
    static ENDS: RefCell<Vec<u8>> = RefCell::new(vec![0; 2 * PAGE]);
}

/// Buffers of the caller, taken piece by piece.
struct Cuts<'p, 'b> {
    parts: std::slice::IterMut<'p, IoSliceMut<'b>>,
    rest: &'p mut [u8],
}

impl<'p> Cuts<'p, '_> {
    fn take(&mut self, mut len: usize, into: &mut Vec<IoSliceMut<'p>>) {
        while len > 0 {
            if self.rest.is_empty() {
                let Some(part) = self.parts.next() else { return };
                self.rest = part;
                continue;
            }
            let cut = len.min(self.rest.len());
            let (piece, rest) = std::mem::take(&mut self.rest).split_at_mut(cut);
            len -= cut;
            self.rest = rest;
            into.push(IoSliceMut::new(piece));
        }
    }
}

/// Fills `parts` (`len` bytes together, at least 1) from byte `offset` of the object on, from what
/// the kernel has of the cache file in its page cache. No copy but the kernel's. False: not all of
/// it is there, or not as it should be; the contents of `parts` are then unspecified.
pub(crate) fn read_cached(
    file: &File,
    owner: &PageOwner,
    offset: u64,
    len: u64,
    parts: &mut [IoSliceMut<'_>],
) -> io::Result<bool> {
    ENDS.with_borrow_mut(|ends| read_with(file, owner, offset, len, parts, ends))
}

/// Like [`read_cached`] for a file that is certain to be the object's and a caller that verifies
/// what it reads: only what is wanted is read, and no checksum of a page is computed. What is not
/// there may come as zeros.
pub(crate) fn read_cached_unchecked(
    file: &File,
    offset: u64,
    len: u64,
    parts: &mut [IoSliceMut<'_>],
) -> io::Result<bool> {
    let (pages, end) = (page::pages(offset, len), offset + len);
    let mut trailers = vec![[0; TRAILER_BYTES]; pages.len() - 1];
    let mut buffers: Vec<IoSliceMut<'_>> = Vec::with_capacity(2 * pages.len() + 8);
    let mut cuts = Cuts { parts: parts.iter_mut(), rest: &mut [] };
    let mut at = offset;
    for trailer in trailers.iter_mut().map(Some).chain([None]) {
        let until = (at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES).min(end);
        cuts.take((until - at) as usize, &mut buffers);
        buffers.extend(trailer.map(|trailer| IoSliceMut::new(trailer)));
        at = until;
    }
    if buffers.len() > sys::BUFFERS_MAX {
        return Ok(false);
    }
    let bytes = page::stored_span(offset, len);
    let read = sys::read_cached_at(file, &mut buffers, bytes.start)?;
    Ok(read == Some((bytes.end - bytes.start) as usize))
}

fn read_with(
    file: &File,
    owner: &PageOwner,
    offset: u64,
    len: u64,
    parts: &mut [IoSliceMut<'_>],
    ends: &mut [u8],
) -> io::Result<bool> {
    let pages = page::pages(offset, len);
    let end = offset + len;
    let mut trailers = vec![[0; TRAILER_BYTES]; pages.len()];
    let mut trailers = trailers.iter_mut();
    let (mut head_end, mut tail_end) = ends.split_at_mut(PAGE);
    let mut cuts = Cuts { parts: parts.iter_mut(), rest: &mut [] };
    let mut buffers: Vec<IoSliceMut<'_>> = Vec::with_capacity(3 * pages.len().min(BATCH_PAGES) + 8);
    // Of each page of the batch: the end of its buffers, and how many bytes of it are wanted at
    // least.
    let mut batch: Vec<(usize, usize)> = Vec::with_capacity(pages.len().min(BATCH_PAGES));
    let mut first = pages.start;
    for page in pages.clone() {
        let head = offset.saturating_sub(page::page_at(page)) as usize;
        let until = (end - page::page_at(page)).min(PAGE_BYTES) as usize;
        if head > 0 {
            buffers.push(IoSliceMut::new(&mut std::mem::take(&mut head_end)[..head]));
        }
        cuts.take(until - head, &mut buffers);
        if until < PAGE {
            buffers.push(IoSliceMut::new(&mut std::mem::take(&mut tail_end)[..PAGE - until]));
        }
        let Some(trailer) = trailers.next() else { return Ok(false) };
        buffers.push(IoSliceMut::new(trailer));
        batch.push((buffers.len(), until));
        if buffers.len() > sys::BUFFERS_MAX {
            return Ok(false);
        }
        if batch.len() == BATCH_PAGES
            || page + 1 == pages.end
            || buffers.len() > sys::BUFFERS_MAX / 2
        {
            if !read_batch(file, owner, first, &mut buffers, &batch)? {
                return Ok(false);
            }
            buffers.clear();
            batch.clear();
            first = page + 1;
        }
    }
    Ok(true)
}

fn read_batch(
    file: &File,
    owner: &PageOwner,
    first: u32,
    buffers: &mut [IoSliceMut<'_>],
    batch: &[(usize, usize)],
) -> io::Result<bool> {
    let read = sys::read_cached_at(file, buffers, page::slot_at(first))?;
    if read != Some(batch.len() * SLOT_BYTES as usize) {
        return Ok(false);
    }
    let mut from = 0;
    for (page, (until, wanted)) in (first..).zip(batch) {
        let (pieces, trailer) = (&buffers[from..until - 1], &buffers[until - 1]);
        match owner.verify(page, pieces, trailer) {
            PageSlot::Page(len) if len as usize >= *wanted => {}
            _ => return Ok(false),
        }
        from = *until;
    }
    Ok(true)
}

/// Pages of a cache file in memory.
#[derive(Debug)]
pub(crate) struct Slots {
    first: u32,
    bytes: Vec<u8>,
    found: Vec<PageSlot>,
}

impl Slots {
    /// Reads pages and judges each. May wait for the disk. Pages that do not match are read once
    /// more before that is believed: another process may have been writing them.
    pub fn read(file: &File, owner: &PageOwner, pages: Range<u32>) -> io::Result<Self> {
        let mut slots = Self {
            first: pages.start,
            bytes: vec![0; pages.len() * SLOT_BYTES as usize],
            found: Vec::new(),
        };
        slots.fill(file, 0)?;
        slots.found = pages.clone().map(|page| slots.verify(owner, page)).collect();
        for index in 0..slots.found.len() {
            if slots.found[index] == PageSlot::Damaged {
                slots.fill(file, index * SLOT_BYTES as usize)?;
                slots.found[index] = slots.verify(owner, pages.start + index as u32);
            }
        }
        Ok(slots)
    }

    /// Reads from byte `from` of the buffer on, to its end or the file's.
    fn fill(&mut self, file: &File, from: usize) -> io::Result<()> {
        let mut at = from;
        while at < self.bytes.len() {
            let position = page::slot_at(self.first) + at as u64;
            let read = sys::read_at(file, &mut [IoSliceMut::new(&mut self.bytes[at..])], position)?;
            if read == 0 {
                self.bytes[at..].fill(0);
                break;
            }
            at += read;
        }
        Ok(())
    }

    fn slot(&self, page: u32) -> &[u8] {
        let at = (page - self.first) as usize * SLOT_BYTES as usize;
        &self.bytes[at..at + SLOT_BYTES as usize]
    }

    fn verify(&self, owner: &PageOwner, page: u32) -> PageSlot {
        let (data, trailer) = self.slot(page).split_at(PAGE);
        owner.verify(page, &[data], trailer)
    }

    /// What was found, page by page.
    pub fn found(&self) -> impl Iterator<Item = (u32, PageSlot)> {
        (self.first..).zip(self.found.iter().copied())
    }

    /// The data of a page that is here.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        match self.found.get(page.checked_sub(self.first)? as usize)? {
            PageSlot::Page(len) => self.slot(page).get(..*len as usize),
            PageSlot::Empty | PageSlot::Damaged => None,
        }
    }
}
