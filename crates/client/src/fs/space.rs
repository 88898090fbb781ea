//! Holes: allocate, punch, zero, and seek for data and holes.

use std::ops::Range;
use std::sync::Arc;

use kestrel_data::Turn;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, chunk_parts};
use kestrel_types::inode::{CHUNK_BYTES, Data, FILE_SIZE_MAX, InodeFlags};
use kestrel_types::request::{Commit, NewData, Op, Outcome, SetAttr};

use super::chunk_lists::Page;
use super::repeat::{Next, Step, repeat};
use super::write::IMMUTABLE;
use super::{Answer, Caller, Done, FileHandle, Fs, too_late};
use crate::extent_cache::ExtentCache;
use crate::file::{FileState, OpenFile, Piece, bad_handle};

/// What `fallocate` shall do with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hole {
    /// Extend the file over the window unless told to keep its size. Space is not reserved (`docs/semantics.md`).
    Allocate,
    /// Make it a hole; the size stays.
    Punch,
    /// Make it read as zeros, extending the file over it unless told to keep its size.
    Zero,
}

/// What fallocate(2) shall do.
#[derive(Debug, Clone, Copy)]
pub struct Fallocate {
    /// With the window.
    pub hole: Hole,
    /// First byte of the window.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The size of the file stays.
    pub keep_size: bool,
    /// The caller if he is unprivileged: set-id bits go, as with a write.
    pub unprivileged: Option<Caller>,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in a hole; the end of the file counts as one.
    Hole,
}

/// Windows without a whole block in files up to this size are zeroed by writing zeros, which keeps small files in one piece.
const ZERO_BYTES_MAX: u64 = 256 * 1024;

/// Holes are told in aligned blocks of this many bytes, as local file systems tell theirs: a block is data if any byte of it is
/// stored.
const HOLE_BYTES: u64 = 4096;

impl Fs {
    /// fallocate(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EFBIG`, and those of a write; `EPERM` for anything but space in a file that is append only.
    pub fn fallocate(self: &Arc<Self>, handle: &Arc<FileHandle>, what: Fallocate, done: Done<()>) {
        if !handle.write {
            return done(Err(bad_handle()));
        }
        if what.len == 0 {
            return done(Err(FsError::new(libc::EINVAL, "fallocate needs a length above zero")));
        }
        if what.offset.checked_add(what.len).is_none_or(|end| end > FILE_SIZE_MAX) {
            return done(Err(FsError::new(libc::EFBIG, "the file would become larger than 8 EiB")));
        }
        let flags = handle.file.lock().inode.flags;
        if flags.has(InodeFlags::IMMUTABLE) {
            return done(Err(IMMUTABLE));
        }
        if flags.has(InodeFlags::APPEND) && what.hole != Hole::Allocate {
            return done(Err(FsError::new(libc::EPERM, "the file is append only (chattr -a)")));
        }
        if let Some(caller) = what.unprivileged {
            // As a write does: the flush that comes first commits it, also if nothing else changes.
            let now = self.clock.now();
            let mut state = handle.file.lock();
            state.written_by(caller);
            state.mtime = Some(now);
            state.dirty_since.get_or_insert(now);
        }
        let (fs, handle) = (self.clone(), handle.clone());
        self.flush_file(
            &handle.file.clone(),
            Box::new(move |flushed| match flushed {
                Ok(()) => fs.fallocate_flushed(&handle, what, done),
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn fallocate_flushed(self: &Arc<Self>, handle: &Arc<FileHandle>, what: Fallocate, done: Done<()>) {
        let Fallocate { hole, offset, len, keep_size, .. } = what;
        let end = offset + len;
        let (size, packed) = {
            let state = handle.file.lock();
            let packed = match &state.inode.data {
                Data::Packed { visible, .. } => u64::from(*visible),
                _ => 0,
            };
            (state.size, packed)
        };
        let grow = hole != Hole::Punch && !keep_size && end > size;
        let upto = end.min(size);
        let (fs, again) = (self.clone(), handle.clone());
        let then_grow: Done<()> = Box::new(move |result| match result {
            Ok(()) if grow => fs.resize(&again.file, end, done),
            other => done(other),
        });
        if hole == Hole::Allocate || offset >= upto {
            return then_grow(Ok(()));
        }
        let first_block = offset.next_multiple_of(HOLE_BYTES);
        let has_block = first_block < upto && first_block + HOLE_BYTES <= end;
        if offset < packed && !has_block && size <= ZERO_BYTES_MAX {
            return self.write_zeros(handle, offset, upto.min(packed), then_grow);
        }
        self.punch(&handle.file, offset..upto, end, then_grow);
    }

    /// Zeroes a window as a write does, and commits that.
    fn write_zeros(self: &Arc<Self>, handle: &Arc<FileHandle>, offset: u64, end: u64, done: Done<()>) {
        let (fs, handle) = (self.clone(), handle.clone());
        self.where_waiting_is_fine(move |turn| {
            let zeros = vec![0; (end - offset) as usize];
            let written = match turn {
                Turn::Run => fs.write(&handle, offset, &zeros, false),
                Turn::Late => Err(too_late()),
            };
            match written {
                Ok(()) => fs.flush(&handle, done),
                Err(error) => done(Err(error)),
            }
        });
    }

    fn resize(self: &Arc<Self>, file: &Arc<OpenFile>, size: u64, done: Done<()>) {
        let set = SetAttr { size: Some(size), through_handle: true, ..SetAttr::default() };
        self.setattr(Caller::ROOT, file.ino, set, Box::new(move |result| done(result.map(|_| ()))));
    }

    /// Makes a window within the file a hole, in the time that what is stored there takes. The caller's window goes on to `end`.
    fn punch(self: &Arc<Self>, file: &Arc<OpenFile>, window: Range<u64>, end: u64, done: Done<()>) {
        let (fs, file) = (self.clone(), file.clone());
        let body = move |from, next| {
            let is_first = from == window.start;
            fs.punch_page(&file, Window { from, upto: window.end, end, is_first }, next);
        };
        repeat(window.start, body, done);
    }

    /// Punches the first of the stored bytes in a window, as many as the node tells at once.
    fn punch_page(self: &Arc<Self>, file: &Arc<OpenFile>, window: Window, next: Next<u64, ()>) {
        let Window { from, upto, .. } = window;
        let state = file.lock();
        let base = state.inode.data_change;
        let data = match &state.inode.data {
            Data::None => NewData::Unchanged,
            Data::Inline(bytes) => punched(bytes, window),
            Data::Packed { visible, .. } if from == 0 && upto >= u64::from(*visible) => {
                NewData::Inline(Box::default())
            }
            Data::Packed { visible, .. } => patches(holes(from..upto.min(u64::from(*visible)))),
            Data::Chunked => {
                drop(state);
                let (fs, file, ino) = (self.clone(), file.clone(), file.ino);
                let (first, last) = (from / CHUNK_BYTES, (upto - 1) / CHUNK_BYTES);
                let told = move |page: FsResult<Page>| match page {
                    Ok(page) => {
                        let until = if page.until >= last { upto } else { (page.until + 1) * CHUNK_BYTES };
                        let data = patches(page.lists.iter().flat_map(|(chunk, _)| {
                            let begin = chunk * CHUNK_BYTES;
                            holes(from.max(begin)..upto.min(begin + CHUNK_BYTES))
                        }));
                        fs.commit_holes(&file, (base, data), window, until, next);
                    }
                    Err(error) => next(Step::End(Err(error))),
                };
                return self.chunk_page(ino, first, last, Box::new(told));
            }
        };
        drop(state);
        self.commit_holes(file, (base, data), window, upto, next);
    }

    /// Commits holes that cover what is stored from the window's begin to `until`. The first commit sets the times, also if there are
    /// none.
    fn commit_holes(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        (base, data): (u64, NewData),
        window: Window,
        until: u64,
        next: Next<u64, ()>,
    ) {
        let then = move || if until < window.upto { Step::Again(until) } else { Step::End(Ok(())) };
        if data == NewData::Unchanged && !window.is_first {
            return next(then());
        }
        let commit = Commit {
            inode: self.known.reference(file.ino),
            base,
            data,
            size: None,
            mtime: self.clock.now(),
            kill_suid: false,
        };
        let (fs, file) = (self.clone(), file.clone());
        self.request(Caller::ROOT, Op::Commit(commit), move |reply| {
            next(match reply {
                Ok(Answer::Inode(inode)) => {
                    fs.accept(*inode, Some(base));
                    then()
                }
                Err(Outcome::Conflict(inode)) => {
                    file.lock().refresh(*inode);
                    Step::Again(window.from)
                }
                other => Step::End(super::plain(other).map(|_| ())),
            });
        });
    }

    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// `ENXIO` beyond the end, or if no data follows.
    pub fn seek(self: &Arc<Self>, handle: &Arc<FileHandle>, offset: u64, seek: Seek, done: Done<u64>) {
        let (fs, file) = (self.clone(), handle.file.clone());
        self.flush_file(
            &handle.file,
            Box::new(move |flushed| match flushed {
                Ok(()) => fs.seek_flushed(file, offset, seek, done),
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn seek_flushed(self: &Arc<Self>, file: Arc<OpenFile>, offset: u64, seek: Seek, done: Done<u64>) {
        let fs = self.clone();
        let body = move |from, next: Next<u64, u64>| {
            let (first, last) = match find(&file.lock(), from, seek) {
                Find::Found(found) => return next(Step::End(Ok(found))),
                Find::Nothing => return next(Step::End(Err(beyond_end()))),
                Find::Ask(first, last) => (first, last),
            };
            // What lies before has been looked at.
            let from = from.max(first * CHUNK_BYTES);
            fs.load_chunks(&file, first, last, move |loaded| {
                next(match loaded {
                    Ok(()) => Step::Again(from),
                    Err(error) => Step::End(Err(error)),
                });
            });
        };
        repeat(offset, body, done);
    }
}

/// A part of a window that is being punched.
#[derive(Debug, Clone, Copy)]
struct Window {
    /// First byte that is not punched yet.
    from: u64,
    /// First byte behind the window, at most the file's size.
    upto: u64,
    /// First byte behind the window that the caller named.
    end: u64,
    /// Nothing has been committed before.
    is_first: bool,
}

/// A hole for each chunk of a window; none if it is empty.
fn holes(window: Range<u64>) -> impl Iterator<Item = (u64, Extent)> {
    chunk_parts(window.start, window.end.saturating_sub(window.start))
        .map(|part| (part.chunk, Extent::hole(part.pos, part.len)))
}

/// Lays holes over what there is; changes nothing if there are none.
fn patches(holes: impl Iterator<Item = (u64, Extent)>) -> NewData {
    let holes: Vec<_> = holes.collect();
    if holes.is_empty() { NewData::Unchanged } else { NewData::Patches(holes) }
}

/// Content in the inode with zeros in a window; without the blocks at its end that are all in the window.
fn punched(bytes: &[u8], window: Window) -> NewData {
    let len = bytes.len() as u64;
    if window.from >= len {
        return NewData::Unchanged;
    }
    let mut bytes = bytes.to_vec();
    if window.end >= len.next_multiple_of(HOLE_BYTES) {
        bytes.truncate(window.from.next_multiple_of(HOLE_BYTES).min(len) as usize);
    }
    let upto = window.upto.min(bytes.len() as u64) as usize;
    if let Some(zeroed) = bytes.get_mut(window.from as usize..upto) {
        zeroed.fill(0);
    }
    NewData::Inline(bytes.into())
}

/// What a look at what is known of a file has found.
enum Find {
    /// The byte.
    Found(u64),
    /// There is none.
    Nothing,
    /// The lists of these chunks, the first to the last, have to be asked for.
    Ask(u64, u64),
}

/// Looks for data or a hole from `offset` on.
fn find(state: &FileState, offset: u64, seek: Seek) -> Find {
    let size = state.size;
    if offset >= size {
        return Find::Nothing;
    }
    let stored = match &state.inode.data {
        Data::None => 0,
        Data::Inline(bytes) => bytes.len() as u64,
        Data::Packed { visible, .. } => u64::from(*visible),
        Data::Chunked => return find_in_chunks(&state.chunks, offset, size, seek),
    };
    let stored = stored.next_multiple_of(HOLE_BYTES).min(size);
    match seek {
        Seek::Data if offset < stored => Find::Found(offset),
        Seek::Data => Find::Nothing,
        Seek::Hole => Find::Found(offset.max(stored)),
    }
}

/// As [`find`], in a chunked file.
fn find_in_chunks(chunks: &ExtentCache, offset: u64, size: u64, seek: Seek) -> Find {
    let last = (size - 1) / CHUNK_BYTES;
    let (mut chunk, mut pos) = (offset / CHUNK_BYTES, (offset % CHUNK_BYTES) as u32);
    while chunk <= last {
        let Some(until) = chunks.known_until(chunk) else { return Find::Ask(chunk, last) };
        let until = until.min(last);
        for (number, list) in chunks.lists(chunk..=until) {
            if number > chunk {
                // The chunks before it have no extents.
                if seek == Seek::Hole {
                    break;
                }
                (chunk, pos) = (number, 0);
            }
            let found = match seek {
                Seek::Data => list.next_data(pos, HOLE_BYTES as u32),
                Seek::Hole => {
                    Some(list.next_hole(pos, HOLE_BYTES as u32)).filter(|hole| u64::from(*hole) < CHUNK_BYTES)
                }
            };
            if let Some(found) = found.map(|found| chunk * CHUNK_BYTES + u64::from(found)) {
                return match seek {
                    Seek::Data if found >= size => Find::Nothing,
                    _ => Find::Found(found.min(size)),
                };
            }
            (chunk, pos) = (number + 1, 0);
        }
        if seek == Seek::Hole && chunk <= until {
            return Find::Found(chunk * CHUNK_BYTES + u64::from(pos));
        }
        (chunk, pos) = (until + 1, 0);
    }
    if seek == Seek::Hole { Find::Found(size) } else { Find::Nothing }
}

fn beyond_end() -> FsError {
    FsError::new(libc::ENXIO, "no data at or after this offset")
}

/// Whether a block of a file has no bytes when `pieces` lie over what it has. Such a block stays a hole: nothing is stored for it.
pub(super) fn has_hole(data: &Data, pieces: &[Piece], size: u64) -> bool {
    let stored = match data {
        Data::None | Data::Chunked => 0,
        Data::Inline(bytes) => bytes.len() as u64,
        Data::Packed { visible, .. } => u64::from(*visible),
    };
    let mut has_bytes = vec![false; size.div_ceil(HOLE_BYTES) as usize];
    let written = pieces.iter().map(|piece| (piece.offset, piece.offset + piece.bytes.len() as u64));
    for (from, to) in written.chain([(0, stored)]).filter(|(from, to)| from < to) {
        let last = (to.div_ceil(HOLE_BYTES) as usize).min(has_bytes.len());
        if let Some(blocks) = has_bytes.get_mut((from / HOLE_BYTES) as usize..last) {
            blocks.fill(true);
        }
    }
    has_bytes.contains(&false)
}
