//! Compaction: windows of a large file that many small writes cut to pieces are stored again in one piece.

use std::sync::Arc;

use kestrel_data::{Level, Payload, Placed, Turn};
use kestrel_types::error::FsResult;
use kestrel_types::extent::{Extent, Source, WINDOW_BYTES};
use kestrel_types::inode::{CHUNK_BYTES, Data};
use kestrel_types::request::{Op, Outcome};

use super::{Caller, Fs, plain};
use crate::file::{OpenFile, data_error};

/// Small writes committed to a file before its chunk lists are looked at.
const PATCHES_BEFORE_LOOK: u32 = 64;

/// How often a compaction tries to find the moment between two flushes.
const QUIET_TRIES: u32 = 1000;

impl Fs {
    /// Looks at a file's chunk lists after enough small writes, and compacts what is due. Runs on the pool.
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

    /// Writers go on meanwhile. If they keep changing what is being compacted, they have to wait for a second try, or a
    /// busy file would never be compacted.
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
        let chunks = file.lock().inode.size.div_ceil(CHUNK_BYTES);
        let mut all = true;
        for chunk in 0..chunks {
            super::wait(|done| self.load_chunks(file, chunk, chunk, done))?;
            let Some(list) = file.lock().chunks.get(&chunk).cloned() else {
                all = false; // the content changed while the list was on its way
                continue;
            };
            for window in list.windows_to_compact() {
                all &= self.compact_window(file, chunk, list.slice(window, WINDOW_BYTES))?;
            }
        }
        Ok(all)
    }

    /// Stores each run of neighbouring extents of a window again as one range.
    fn compact_window(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        chunk: u64,
        old: Vec<Extent>,
    ) -> FsResult<bool> {
        let mut new = Vec::new();
        let mut pins = Vec::new();
        for run in old.split(|extent| extent.source == Source::Hole).filter(|run| !run.is_empty()) {
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
                let placed = self.store_now(file, block.to_vec())?;
                new.push(Extent::of_range(pos + offset, placed.range));
                offset += block.len() as u32;
                pins.push(placed);
            }
        }
        kestrel_types::crash::point("client.compact.stored");
        let old = old.into_iter().filter(|extent| extent.source != Source::Hole).collect();
        let op = Op::Compact { inode: self.known.reference(file.ino), chunk, old, new };
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.request(Caller::ROOT, op, move |reply| {
            let _ = send.send(reply);
        });
        let reply = receive.recv();
        drop(pins);
        file.lock().chunks.remove(&chunk);
        match reply {
            Ok(Err(Outcome::Conflict(_))) | Err(_) => Ok(false),
            Ok(reply) => {
                plain(reply)?;
                Self::count(&self.counters.compactions, 1);
                Ok(true)
            }
        }
    }

    fn store_now(self: &Arc<Self>, file: &Arc<OpenFile>, bytes: Vec<u8>) -> FsResult<Placed> {
        super::wait(|done| {
            let stored =
                move |placed: kestrel_data::Result<Placed>| done(placed.map_err(|error| data_error(&error)));
            self.packer.store(Payload::from(bytes), file.ino, Level::Process, Box::new(stored));
        })
    }
}
