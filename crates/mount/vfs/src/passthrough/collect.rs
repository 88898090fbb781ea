//! Bringing to the volume what programs stored through writable shared maps of a live copy.
//!
//! Such stores reach the copy only, and no event tells of them; so the copy is compared with what
//! the volume has, page by page ([`page_sums`]). What differs is written to the volume like any
//! write. Nothing else makes them differ while the turn is held and no change is pending.
//!
//! A page of the copy that is read while somebody stores to it is of some moment in between, as
//! with msync on a local file system.
//!
//! [`page_sums`]: super::page_sums

use std::sync::Arc;

use kestrel_client::fs::{Caller, wait};
use kestrel_types::error::FsResult;

use super::Passthrough;
use super::open_inode::{CHUNK_BYTES, Live, OpenInode, Stores, failed};
use super::page_sums::{PAGE_BYTES, page_of, start_of};

impl Passthrough {
    /// Brings stores to the volume. Waits.
    ///
    /// # Errors
    /// Those of reading and writing; what was not brought is found again the next time.
    pub(super) fn collect(
        self: &Arc<Self>,
        node: &Arc<OpenInode>,
        live: &Arc<Live>,
    ) -> FsResult<()> {
        let Some(stores) = live.stores() else { return Ok(()) };
        let _turn = node.turn.lock();
        let len = live.len().map_err(|error| failed("looking at", &error))?;
        // What another client has cut off does not come back.
        let size = wait(|done| self.fs.getattr(Caller::ROOT, node.ino, done))?.size;
        for at in (0..len.min(size)).step_by(CHUNK_BYTES as usize) {
            let bytes =
                live.read(at, CHUNK_BYTES as usize).map_err(|error| failed("reading", &error))?;
            let stored = stores.pages.lock().differences(page_of(at), &bytes);
            for run in stored {
                let (from, end) = (at + run.start as u64, at + run.end as u64);
                let Some(left) = size.checked_sub(from) else { break };
                let bytes = &bytes[run];
                let reach = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.fs.write(&stores.writer, from, &bytes[..reach], false)?;
                if end <= size {
                    stores.pages.lock().set(page_of(from), bytes);
                }
            }
        }
        Ok(())
    }

    /// Writes to the copy what is about to be written to the volume. The caller holds the turn.
    ///
    /// A page that is written in part and has stores in it goes to the volume before, so that
    /// afterwards it is known what the volume has of it.
    ///
    /// # Errors
    /// Those of the cache's disk and of writing.
    pub(super) fn write_beside(
        self: &Arc<Self>,
        live: &Live,
        offset: u64,
        bytes: &[u8],
    ) -> FsResult<()> {
        let Some(stores) = live.stores().filter(|_| !bytes.is_empty()) else {
            return live.write(offset, bytes);
        };
        let len = live.len().map_err(|error| failed("looking at", &error))?;
        let end = offset + bytes.len() as u64;
        // A write behind the end makes the last page longer, too.
        let first = page_of(offset.min(len));
        let whole = offset.next_multiple_of(PAGE_BYTES as u64)..start_of(page_of(end));
        let mut edges = Vec::new();
        for page in [first, page_of(offset), page_of(end - 1)] {
            let is_whole = whole.contains(&start_of(page));
            if !is_whole && edges.last().is_none_or(|(last, _)| *last != page) {
                let till = (start_of(page) + PAGE_BYTES as u64).min(end.max(len));
                let mut edge = self.known_page(live, stores, page)?;
                edge.resize((till - start_of(page)) as usize, 0);
                let (from, to) = (offset.max(start_of(page)), end.min(till));
                if from < to {
                    let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                    edge[(from - start_of(page)) as usize..][..part.len()].copy_from_slice(part);
                }
                edges.push((page, edge));
            }
        }
        live.write(offset, bytes)?;
        let mut pages = stores.pages.lock();
        if !whole.is_empty() {
            let inside = (whole.start - offset) as usize..(whole.end - offset) as usize;
            pages.set(page_of(whole.start), &bytes[inside]);
        }
        for (page, edge) in edges {
            pages.set(page, &edge);
        }
        Ok(())
    }

    /// What the volume has of a page, as the copy has it: if there are stores in it, it brings them
    /// first. Nothing behind the end.
    fn known_page(self: &Arc<Self>, live: &Live, stores: &Stores, page: u64) -> FsResult<Vec<u8>> {
        let at = start_of(page);
        let bytes = live.read(at, PAGE_BYTES).map_err(|error| failed("reading", &error))?;
        if !stores.pages.lock().has(page, &bytes) {
            self.fs.write(&stores.writer, at, &bytes, false)?;
            stores.pages.lock().set(page, &bytes);
        }
        Ok(bytes)
    }
}
