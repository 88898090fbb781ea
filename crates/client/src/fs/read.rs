//! Reading: the newest layer that has a byte gives it; what no layer has is a hole.
//!
//! Of a store across a network, whole frames lie in memory once they have been fetched: what
//! consists of such frames and nothing else goes to the caller as it lies there
//! ([`ReadBytes::Shared`]).

use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::{Budget, Buffer, Buffers, ErrorKind, FramePiece, Grant, Turn, Window};
use kestrel_types::error::FsResult;
use kestrel_types::extent::{Extent, Source, chunk_parts};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{CHUNK_BYTES, Data, Inode};
use kestrel_types::range::Range;
use kestrel_types::request::Op;

use super::chunk_lists::Page;
use super::repeat::{LoopStep, Next, repeat};
use super::{Caller, Done, FileHandle, Fs, into_inode, too_late};
use crate::file::{FileState, OpenFile, bad_handle, data_error};
use crate::write_buffer::copy_piece;

/// Largest read, bytes.
pub const READ_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long a read waits for room while no other read ends before it fails with `ETIMEDOUT`.
const ROOM_DEADLINE: Duration = Duration::from_secs(60);

/// Chunks by number, ascending, each with its extents; without those that have none.
pub type ChunkLists = Vec<(u64, Vec<Extent>)>;

/// Where a file's bytes are: its inode, and the extents of each chunk that has any.
pub type FileLayout = (Inode, ChunkLists);

/// Stored bytes that make up a part of a read.
#[derive(Debug, Clone, Copy)]
struct Stored {
    range: Range,
    skip: u32,
    /// Where in the output.
    at: usize,
    len: usize,
}

/// Bytes that were read.
#[derive(Debug)]
pub enum ReadBytes {
    /// In one piece.
    Whole(Buffer),
    /// As they lie in memory.
    Shared(Vec<FramePiece>),
}

impl ReadBytes {
    /// The pieces in order.
    pub fn pieces(&self) -> Vec<&[u8]> {
        match self {
            Self::Whole(bytes) => vec![bytes],
            Self::Shared(pieces) => pieces.iter().map(|piece| &piece[..]).collect(),
        }
    }

    /// In one piece.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Whole(bytes) => bytes.into_vec(),
            Self::Shared(pieces) => pieces.iter().flat_map(|piece| piece.iter().copied()).collect(),
        }
    }
}

/// Room in memory for a read that is under way; given back when dropped.
pub struct ReadRoom {
    _grant: Option<Grant>,
}

/// What a read consists of.
struct Ready {
    /// How many bytes it will give.
    len: usize,
    /// What memory has of them: inline data, or nothing yet.
    out: Vec<u8>,
    /// What is to be read from the store.
    stored: Vec<Stored>,
    /// What was written since, to be copied over it.
    overlay: Vec<(u64, Vec<u8>)>,
    /// The content that was planned for.
    data_change: u64,
}

impl Ready {
    /// Whether stored bytes fill all of it.
    fn is_stored(&self) -> bool {
        let follows = |at: usize, part: &Stored| (part.at == at).then_some(at + part.len);
        self.stored.iter().try_fold(0, follows) == Some(self.len)
    }

    /// Whether it is stored bytes and nothing else.
    fn is_stored_only(&self) -> bool {
        self.overlay.is_empty() && self.is_stored()
    }

    /// Room for all bytes. Nothing of what it held before is left if the stored bytes are read:
    /// there are zeros where there are none.
    fn make_room(&mut self, buffers: &Arc<Buffers>) -> Buffer {
        if self.out.len() == self.len {
            return std::mem::take(&mut self.out).into();
        }
        let mut room = buffers.take(self.len);
        if !self.is_stored() {
            let (known, rest) = room.split_at_mut(self.out.len());
            known.copy_from_slice(&self.out);
            rest.fill(0);
        }
        room
    }
}

/// What a read has to do.
enum Plan {
    /// All is known that is needed for it.
    Ready(Ready),
    /// The lists of these chunks are needed first.
    Chunks(u64, u64),
}

/// A read that is being served.
struct Read {
    file: Arc<OpenFile>,
    offset: u64,
    len: usize,
    /// It was planned again after stored bytes were missing; the next failure is final.
    retried: bool,
    /// The caller does not wait: what an archive has to restore is EAGAIN to it.
    nonblock: bool,
    done: Done<ReadBytes>,
}

impl Fs {
    /// Room for a read of `len` bytes, if there is any without waiting.
    pub fn try_read_room(&self, len: usize) -> Option<ReadRoom> {
        let Some(reading) = &self.reading else { return Some(ReadRoom { _grant: None }) };
        Some(ReadRoom { _grant: Some(reading.try_acquire(len as u64)?) })
    }

    /// The same; waits for other reads to end, as long as the caller is not `gone`. Only for
    /// threads that no read needs.
    ///
    /// # Errors
    /// `ETIMEDOUT` if none has ended for a minute.
    pub fn read_room(&self, len: usize, gone: &dyn Fn() -> bool) -> FsResult<ReadRoom> {
        let grant = self
            .reading
            .as_ref()
            .map(|reading| reading.acquire_unless(len as u64, ROOM_DEADLINE, gone));
        Ok(ReadRoom { _grant: grant.transpose().map_err(|error| data_error(&error))? })
    }

    /// How often a read had to wait for room.
    pub fn read_waits(&self) -> u64 {
        self.reading.as_ref().map_or(0, Budget::waits)
    }

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    pub fn read(
        self: &Arc<Self>,
        handle: &FileHandle,
        offset: u64,
        len: usize,
        done: Done<Vec<u8>>,
    ) {
        let whole = |content: FsResult<ReadBytes>| done(content.map(ReadBytes::into_vec));
        self.read_content(handle, (offset, len), false, Box::new(whole));
    }

    /// Like [`Fs::read`]; the bytes come as they lie in memory where that saves a copy. Of what
    /// lies in an archive, `EAGAIN` to a caller that does not wait (`nonblock`), else `EIO`.
    pub fn read_content(
        self: &Arc<Self>,
        handle: &FileHandle,
        (offset, len): (u64, usize),
        nonblock: bool,
        done: Done<ReadBytes>,
    ) {
        if !handle.read {
            return done(Err(bad_handle()));
        }
        if let Err(error) = self.check_locks(handle) {
            return done(Err(error));
        }
        self.heard_of(handle);
        self.note_read(handle, offset, len);
        let read = Read {
            file: handle.file.clone(),
            offset,
            len: len.min(READ_BYTES_MAX),
            retried: false,
            nonblock,
            done,
        };
        self.read_ahead(handle, offset, len);
        self.serve(read);
    }

    fn serve(self: &Arc<Self>, read: Read) {
        let state = read.file.lock();
        let plan = plan(&state, read.offset, read.len);
        drop(state);
        match plan {
            Plan::Ready(mut ready) if ready.stored.is_empty() => {
                let room = ready.make_room(&self.buffers);
                self.finish(read, ready, Ok(room));
            }
            Plan::Ready(ready) if self.reader.shares() && ready.is_stored_only() => {
                self.serve_shared(read, ready)
            }
            Plan::Ready(ready) => self.serve_copied(read, ready),
            Plan::Chunks(first, last) => {
                let fs = self.clone();
                let file = read.file.clone();
                self.load_chunks(&file, first, last, move |loaded| match loaded {
                    Ok(()) => fs.serve(read),
                    Err(error) => (read.done)(Err(error)),
                });
            }
        }
    }

    /// Serves a read of stored bytes with frames as they are in memory, brought there if need be.
    fn serve_shared(self: &Arc<Self>, read: Read, ready: Ready) {
        let found = ready
            .stored
            .iter()
            .map(|part| self.reader.find(part.range, part.skip, part.len as u32));
        if let Some(found) = found.collect::<Option<Vec<_>>>() {
            return self.finish_shared(read, found.concat());
        }
        // What a cache on a local disk has, it gives without waiting.
        if self.store.near().is_some() {
            return self.serve_copied(read, ready);
        }
        Self::count(&self.counters.cold_reads, 1);
        let fs = self.clone();
        self.on_pool(move |turn| {
            if turn == Turn::Late {
                return (read.done)(Err(too_late()));
            }
            let fetch = |part: &Stored| fs.reader.fetch(part.range, part.skip, part.len as u32);
            match ready.stored.iter().map(fetch).collect::<Result<Vec<_>, _>>() {
                Ok(fetched) => fs.finish_shared(read, fetched.concat()),
                Err(error) => fs.finish(read, ready, Err(error)),
            }
        });
    }

    fn finish_shared(&self, read: Read, pieces: Vec<FramePiece>) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        Self::count(&self.counters.read_bytes, len as u64);
        (read.done)(Ok(ReadBytes::Shared(pieces)));
    }

    fn serve_copied(self: &Arc<Self>, read: Read, mut ready: Ready) {
        let mut room = ready.make_room(&self.buffers);
        match self.try_stored(&ready.stored, &mut room) {
            Ok(None) => self.finish(read, ready, Ok(room)),
            Ok(Some(from)) => self.read_near(read, ready, room, from),
            Err(error) => self.finish(read, ready, Err(error)),
        }
    }

    /// Reads what memory or the page cache has; returns the first part that would block.
    fn try_stored(
        &self,
        stored: &[Stored],
        out: &mut [u8],
    ) -> kestrel_blockstore::Result<Option<usize>> {
        for (index, part) in stored.iter().enumerate() {
            if !self.reader.try_read(
                part.range,
                part.skip,
                &mut out[part.at..part.at + part.len],
            )? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Reads the rest where it can be waited for: from the disk of a cache by a thread of the
    /// cache's if that has it, which spares two changes of threads, else on the pool.
    fn read_near(self: &Arc<Self>, read: Read, ready: Ready, mut room: Buffer, mut from: usize) {
        Self::count(&self.counters.cold_reads, 1);
        let (fs, part) = (self.clone(), ready.stored[from]);
        let then = Box::new(move |is_here: bool| {
            if is_here {
                match fs.try_stored(&ready.stored[from..], &mut room) {
                    Ok(None) => return fs.finish(read, ready, Ok(room)),
                    Ok(Some(further)) => from += further,
                    Err(error) => return fs.finish(read, ready, Err(error)),
                }
            }
            fs.read_cold(read, ready, room, from);
        });
        if let Err(then) = self.reader.bring(part.range, part.skip, part.len as u32, then) {
            then(false);
        }
    }

    /// Reads the rest on the pool.
    fn read_cold(self: &Arc<Self>, read: Read, ready: Ready, mut room: Buffer, from: usize) {
        let fs = self.clone();
        self.on_pool(move |turn| {
            if turn == Turn::Late {
                return (read.done)(Err(too_late()));
            }
            let result = ready.stored[from..].iter().try_for_each(|part| {
                fs.reader.read(part.range, part.skip, &mut room[part.at..part.at + part.len])
            });
            fs.finish(read, ready, result.map(|()| room));
        });
    }

    /// Answers a read after its stored bytes were read into `result`.
    fn finish(
        self: &Arc<Self>,
        mut read: Read,
        ready: Ready,
        result: kestrel_blockstore::Result<Buffer>,
    ) {
        match result {
            Ok(mut room) => {
                for (offset, bytes) in &ready.overlay {
                    copy_piece(*offset, bytes, read.offset, &mut room);
                }
                Self::count(&self.counters.read_bytes, room.len() as u64);
                (read.done)(Ok(ReadBytes::Whole(room)));
            }
            Err(error) => {
                let bad = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
                if bad {
                    Self::count(&self.counters.bad_reads, 1);
                }
                if bad && !read.retried {
                    // Compaction or another client may have replaced what we knew; look again
                    // before giving up.
                    read.retried = true;
                    let fs = self.clone();
                    let relearn = move || fs.relearn(read, ready.data_change);
                    return self.metadata.catch_up(Box::new(relearn));
                }
                let (ino, len, offset) = (read.file.ino, read.len, read.offset);
                let mut told = data_error(&error);
                let mut level = log::Level::Error;
                if error.kind() == ErrorKind::Archived {
                    level = log::Level::Warn;
                    told.errno = if read.nonblock { libc::EAGAIN } else { told.errno };
                }
                log::log!(level, "inode {ino}: reading {len} bytes at {offset}: {error}");
                (read.done)(Err(told));
            }
        }
    }

    /// Gets layout and chunk lists anew, then serves the read again.
    fn relearn(self: &Arc<Self>, read: Read, data_change: u64) {
        let fs = self.clone();
        self.ask(Caller::ROOT, Op::GetAttr(self.known.reference(read.file.ino)), move |answer| {
            match answer.and_then(into_inode) {
                Ok(inode) => {
                    let mut state = read.file.lock();
                    if state.inode.data_change == data_change {
                        state.chunks.clear();
                    }
                    state.refresh(inode);
                    drop(state);
                    fs.serve(read);
                }
                Err(error) => (read.done)(Err(error)),
            }
        });
    }

    /// Asks the node for the lists of the chunks from `first` to at most `last`, and keeps what it
    /// tells as long as the content stays what it is.
    pub(super) fn load_chunks(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        first: u64,
        last: u64,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let file = file.clone();
        let ino = file.ino;
        let data_change = file.lock().inode.data_change;
        let keep = move |page: FsResult<Page>| {
            done(page.map(|page| {
                let mut state = file.lock();
                if state.inode.data_change == data_change {
                    state.chunks.learn(first, page.until, page.lists);
                }
            }));
        };
        self.chunk_page(ino, first, last, Box::new(keep));
    }

    /// Starts fetching what a sequential reader will ask for next.
    fn read_ahead(self: &Arc<Self>, handle: &FileHandle, offset: u64, len: usize) {
        let state = handle.file.lock();
        if matches!(state.inode.data, Data::None | Data::Inline(_)) {
            return;
        }
        let size = state.size;
        drop(state);
        let Some(window) = handle.readahead.lock().on_read(offset, len as u64, size) else {
            return;
        };
        self.fetch_ahead(&handle.file, window, false);
    }

    fn fetch_ahead(self: &Arc<Self>, file: &Arc<OpenFile>, window: Window, retried: bool) {
        let state = file.lock();
        let plan = plan_stored(&state, window.pos, window.len as usize);
        drop(state);
        let stored = match plan {
            Plan::Ready(ready) => ready.stored,
            // The window reaches into a chunk that nobody has read from yet.
            Plan::Chunks(first, last) if !retried => {
                let (fs, again) = (self.clone(), file.clone());
                return self.load_chunks(file, first, last, move |loaded| {
                    if loaded.is_ok() {
                        fs.fetch_ahead(&again, window, true);
                    }
                });
            }
            Plan::Chunks(..) => return,
        };
        for part in stored {
            let fs = self.clone();
            let fetch = move |turn| {
                if turn == Turn::Run {
                    fs.reader.prefetch(part.range, part.skip, part.len as u32);
                }
            };
            // A full queue means that the store does not keep up anyway.
            let _ = self.pools.ahead.try_submit(None, Box::new(fetch));
        }
    }

    /// Where the stored bytes of a file lie, for tests: inode and all chunk lists.
    pub fn layout(self: &Arc<Self>, ino: InodeId, done: Done<FileLayout>) {
        let fs = self.clone();
        self.getattr(
            Caller::ROOT,
            ino,
            Box::new(move |inode| {
                let inode = match inode {
                    Ok(inode) if matches!(inode.data, Data::Chunked) => inode,
                    other => return done(other.map(|inode| (inode, Vec::new()))),
                };
                let last = inode.size.saturating_sub(1) / CHUNK_BYTES;
                let ino = inode.ino;
                let whole = move |(first, lists): (u64, ChunkLists), next: Next<_, _>| {
                    let told = move |page: FsResult<Page>| next(with_page(page, lists, last));
                    fs.chunk_page(ino, first, last, Box::new(told));
                };
                let told =
                    move |lists: FsResult<ChunkLists>| done(lists.map(|lists| (inode, lists)));
                repeat((0, Vec::new()), whole, Box::new(told));
            }),
        );
    }
}

/// Adds a page to the lists before it.
fn with_page(
    page: FsResult<Page>,
    mut lists: ChunkLists,
    last: u64,
) -> LoopStep<(u64, ChunkLists), ChunkLists> {
    match page {
        Ok(page) => {
            lists.extend(page.lists.iter().map(|(chunk, list)| (*chunk, list.extents().to_vec())));
            if page.until >= last {
                LoopStep::End(Ok(lists))
            } else {
                LoopStep::Again((page.until + 1, lists))
            }
        }
        Err(error) => LoopStep::End(Err(error)),
    }
}

/// Plans a read of the committed layer only.
fn plan_stored(state: &FileState, offset: u64, len: usize) -> Plan {
    let len = (len as u64).min(state.size.saturating_sub(offset)) as usize;
    let mut out = Vec::new();
    let mut stored = Vec::new();
    match &state.inode.data {
        Data::None => {}
        Data::Inline(bytes) => {
            out.resize(len, 0);
            copy_piece(0, bytes, offset, &mut out);
        }
        Data::Packed { range, visible } => {
            let visible = u64::from(*visible).min(state.inode.size);
            if offset < visible {
                let len = (len as u64).min(visible - offset) as usize;
                stored.push(Stored { range: *range, skip: offset as u32, at: 0, len });
            }
        }
        Data::Chunked => {
            for part in chunk_parts(offset, len as u64) {
                let Some(list) = state.chunks.get(part.chunk) else {
                    let last = (offset + len as u64 - 1) / CHUNK_BYTES;
                    return Plan::Chunks(part.chunk, last);
                };
                for extent in list.slice(part.pos, part.len) {
                    if let Source::Stored { range, skip } = extent.source {
                        let at = (part.done + u64::from(extent.pos - part.pos)) as usize;
                        stored.push(Stored { range, skip, at, len: extent.len as usize });
                    }
                }
            }
        }
    }
    Plan::Ready(Ready {
        len,
        out,
        stored,
        overlay: Vec::new(),
        data_change: state.inode.data_change,
    })
}

fn plan(state: &FileState, offset: u64, len: usize) -> Plan {
    let mut plan = plan_stored(state, offset, len);
    if state.inflight.is_empty() && state.buffer.is_empty() {
        return plan;
    }
    if let Plan::Ready(ready) = &mut plan {
        let window = offset..offset + ready.len as u64;
        // Copied now: the layers may change before the stored bytes arrive, and a read sees one
        // moment.
        for piece in &state.inflight {
            clip(piece.offset, &piece.bytes, &window, &mut ready.overlay);
        }
        for (start, bytes) in state.buffer.pieces() {
            clip(start, bytes, &window, &mut ready.overlay);
        }
        let covers =
            |(start, bytes): &(u64, Vec<u8>)| *start == window.start && bytes.len() == ready.len;
        if ready.overlay.iter().any(covers) {
            ready.stored.clear();
        }
    }
    plan
}

fn clip(
    start: u64,
    bytes: &[u8],
    window: &std::ops::Range<u64>,
    overlay: &mut Vec<(u64, Vec<u8>)>,
) {
    let (from, to) = (start.max(window.start), (start + bytes.len() as u64).min(window.end));
    if from < to {
        overlay.push((from, bytes[(from - start) as usize..(to - start) as usize].to_vec()));
    }
}
