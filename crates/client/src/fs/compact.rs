//! Compaction: windows of a large file that many small writes cut to pieces are stored again in one
//! piece.

use std::sync::Arc;

use kestrel_blockstore::{Payload, PutOptions, StoredRange, Turn};
use kestrel_types::error::FsResult;
use kestrel_types::extent::{Extent, ExtentList, Source, WINDOW_BYTES};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{CHUNK_BYTES, Data};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Op, Outcome};

use super::{Caller, Fs, plain};
use crate::file::{OpenFile, data_error};

/// Small writes committed to a file before its chunk lists are looked at.
const PATCHES_BEFORE_LOOK: u32 = 64;

/// How often a compaction tries to find the moment between two flushes.
const QUIET_TRIES: u32 = 1000;

impl Fs {
    /// Looks at a file's chunk lists after enough small writes, and compacts what is due. Runs on
    /// the pool.
    pub(super) fn compact_if_due(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let mut state = file.lock();
        if state.compacting
            || state.patches_since_compaction < PATCHES_BEFORE_LOOK
            || !matches!(state.inode.data, Data::Chunked)
        {
            return;
        }
        state.compacting = true;
        state.patches_since_compaction = 0;
        drop(state);
        let (fs, again) = (self.clone(), file.clone());
        self.on_pool(move |turn| {
            // A file that was deleted meanwhile needs no compaction.
            if turn == Turn::Run
                && let Err(error) = fs.compact(&again)
                && error.errno != libc::ESTALE
            {
                log::warn!("inode {}: compaction: {error}", again.ino);
            }
            again.lock().compacting = false;
        });
    }

    /// Writers go on meanwhile. If they keep changing what is being compacted, they have to wait
    /// for a second try, or a busy file would never be compacted.
    fn compact(self: &Arc<Self>, file: &Arc<OpenFile>) -> FsResult<()> {
        if self.compact_chunks(file)? {
            return Ok(());
        }
        for _ in 0..QUIET_TRIES {
            super::wait(|done| self.flush_file(file, done))?;
            let mut state = file.lock();
            if !state.flushing {
                state.flushing = true;
                drop(state);
                let result = self.compact_chunks(file);
                self.finish_flush(file, file.lock(), Vec::new(), Ok(()));
                return result.map(|_| ());
            }
        }
        Ok(())
    }

    /// Compacts all windows that are due; `false` if a writer interfered with one.
    fn compact_chunks(self: &Arc<Self>, file: &Arc<OpenFile>) -> FsResult<bool> {
        let last = file.lock().inode.size.saturating_sub(1) / CHUNK_BYTES;
        let (mut first, mut all) = (0, true);
        loop {
            let page = super::wait(|done| self.chunk_page(file.ino, first, last, done))?;
            for (chunk, list) in page.lists {
                let inode = self.known.reference(file.ino);
                let options = file.lock().put_options;
                let folded = self.fold_windows(&inode, chunk, &list, options);
                file.lock().chunks.remove(chunk);
                all &= folded?.1;
            }
            if page.until >= last {
                return Ok(all);
            }
            first = page.until + 1;
        }
    }

    /// Folds what is due in a chunk of a file that need not be open. How many windows were folded,
    /// and whether a writer interfered with none.
    pub(super) fn fold_chunk(
        self: &Arc<Self>,
        inode: &InodeRef,
        chunk: u64,
    ) -> FsResult<(u64, bool)> {
        let page = super::wait(|done| self.chunk_page(inode.ino, chunk, chunk, done))?;
        let Some((_, list)) = page.lists.into_iter().next() else { return Ok((0, true)) };
        let dir = inode.seen.as_ref().map(|(dir, _)| *dir);
        let options = self.put_options(dir.into_iter().collect()).into_values().next();
        let folded = self.fold_windows(inode, chunk, &list, options.unwrap_or_default())?;
        if let Some(file) = self.files.get(inode.ino) {
            file.lock().chunks.remove(chunk);
        }
        Ok(folded)
    }

    fn fold_windows(
        self: &Arc<Self>,
        inode: &InodeRef,
        chunk: u64,
        list: &ExtentList,
        options: PutOptions,
    ) -> FsResult<(u64, bool)> {
        let (mut folded, mut all) = (0, true);
        for window in list.windows_to_compact() {
            let window = list.slice(window, WINDOW_BYTES);
            if self.fold_window(inode, chunk, &window, options)? {
                folded += 1;
            } else {
                all = false;
            }
        }
        Ok((folded, all))
    }

    /// Stores each run of neighbouring extents of a window again as one range. False if the window
    /// changed meanwhile.
    fn fold_window(
        self: &Arc<Self>,
        inode: &InodeRef,
        chunk: u64,
        window: &[Extent],
        options: PutOptions,
    ) -> FsResult<bool> {
        let is_stored = |extent: &Extent| extent.source != Source::Hole;
        let (Some(first), Some(last)) =
            (window.iter().position(is_stored), window.iter().rposition(is_stored))
        else {
            return Ok(true);
        };
        // Holes between are part of what must not have changed.
        let old = &window[first..=last];
        let mut new = Vec::new();
        let mut pins = Vec::new();
        for run in old.split(|extent| !is_stored(extent)).filter(|run| !run.is_empty()) {
            let pos = run[0].pos;
            let len: u32 = run.iter().map(|extent| extent.len).sum();
            let mut bytes = vec![0; len as usize];
            for extent in run {
                if let Source::Stored { range, skip } = extent.source {
                    let at = (extent.pos - pos) as usize;
                    let out = &mut bytes[at..at + extent.len as usize];
                    self.reader.read(range, skip, out).map_err(|error| data_error(&error))?;
                }
            }
            let mut offset = 0;
            for block in bytes.chunks(self.config.block_bytes as usize) {
                let placed = self.store_now(inode.ino, block.to_vec(), options)?;
                new.push(Extent::of_range(pos + offset, placed.range));
                offset += block.len() as u32;
                pins.push(placed);
            }
        }
        kestrel_types::crash::point("client.compact.stored");
        let op = Op::Compact { inode: inode.clone(), chunk, old: old.to_vec(), new };
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.request(Caller::ROOT, op, move |reply| {
            let _ = send.send(reply);
        });
        let reply = receive.recv();
        drop(pins);
        match reply {
            Ok(Err(Outcome::Conflict(_))) | Err(_) => Ok(false),
            Ok(reply) => {
                plain(reply)?;
                Self::count(&self.counters.compactions, 1);
                Ok(true)
            }
        }
    }

    fn store_now(
        self: &Arc<Self>,
        ino: InodeId,
        bytes: Vec<u8>,
        options: PutOptions,
    ) -> FsResult<StoredRange> {
        super::wait(|done| {
            let stored = move |placed: kestrel_blockstore::Result<StoredRange>| {
                done(placed.map_err(|error| data_error(&error)))
            };
            let (payload, stored) = (Payload::from(bytes), Box::new(stored));
            self.packer.store_with(payload, ino, options, stored);
        })
    }
}
