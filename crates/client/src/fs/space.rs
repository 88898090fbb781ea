//! Holes: allocate, punch and zero.

use std::ops::Range;
use std::sync::Arc;

use kestrel_blockstore::Turn;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, ExtentList, Source, chunk_parts};
use kestrel_types::inode::{CHUNK_BYTES, Data, FILE_SIZE_MAX, InodeFlags};
use kestrel_types::request::{Commit, NewData, Op, Outcome, Reply, SetAttr};

use super::chunk_lists::Page;
use super::repeat::{LoopStep, Next, repeat};
use super::write::IMMUTABLE;
use super::{Answer, Caller, Done, FileHandle, Fs, too_late};
use crate::file::{OpenFile, WrittenPiece, bad_handle};

/// What `fallocate` shall do with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hole {
    /// Extend the file over the window unless told to keep its size. There must be room for it; it
    /// is not reserved (`docs/semantics.md`).
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

/// Windows without a whole block in files up to this size are zeroed by writing zeros, which keeps
/// small files in one piece.
const ZERO_BYTES_MAX: u64 = 256 * 1024;

/// Holes are told in aligned blocks of this many bytes, as local file systems tell theirs: a block
/// is data if any byte of it is stored.
pub(super) const HOLE_BYTES: u64 = 4096;

impl Fs {
    /// fallocate(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EFBIG`, `ENOSPC` if there is no room for what is to be allocated, and
    /// those of a write; `EPERM` for anything but space in a file that is append only.
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
        // As a write does, also if nothing else changes: the flush that comes first commits it, and
        // so drops capabilities.
        let now = self.clock.now();
        let mut state = handle.file.lock();
        if let Some(caller) = what.unprivileged {
            state.written_by(caller);
        }
        state.mtime = Some(now);
        state.dirty_since.get_or_insert(now);
        drop(state);
        let (fs, handle) = (self.clone(), handle.clone());
        self.flush_file(
            &handle.file.clone(),
            Box::new(move |flushed| match flushed {
                Ok(()) if what.hole == Hole::Punch => fs.fallocate_flushed(&handle, what, done),
                Ok(()) => {
                    let (again, file) = (fs.clone(), handle.file.clone());
                    let then: Done<()> = Box::new(move |has_room| match has_room {
                        Ok(()) => again.fallocate_flushed(&handle, what, done),
                        Err(error) => done(Err(error)),
                    });
                    fs.check_room(&file, what, then);
                }
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn fallocate_flushed(
        self: &Arc<Self>,
        handle: &Arc<FileHandle>,
        what: Fallocate,
        done: Done<()>,
    ) {
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
            Ok(()) if hole != Hole::Punch => {
                fs.extend(&again.file, if grow { end } else { size }, done)
            }
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
    fn write_zeros(
        self: &Arc<Self>,
        handle: &Arc<FileHandle>,
        offset: u64,
        end: u64,
        done: Done<()>,
    ) {
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

    /// Gives a file a size, not below the present one, in a form that counts as stored: `st_blocks`
    /// tells of it, and does not grow when it is written to.
    fn extend(self: &Arc<Self>, file: &Arc<OpenFile>, size: u64, done: Done<()>) {
        let (fs, file) = (self.clone(), file.clone());
        let body = move |(), next: Next<(), ()>| {
            let state = file.lock();
            let (base, present) = (state.inode.data_change, state.inode.size);
            let is_empty = matches!(state.inode.data, Data::None);
            drop(state);
            if !is_empty && size > present {
                return fs.resize(&file, size, Box::new(move |result| next(LoopStep::End(result))));
            }
            if !is_empty || size == 0 {
                return next(LoopStep::End(Ok(())));
            }
            let hole = Extent::hole(0, size.min(CHUNK_BYTES) as u32);
            let commit = Commit {
                inode: fs.known.reference(file.ino),
                base,
                data: NewData::Patches(vec![(0, hole)]),
                size: (size != present).then_some(size),
                mtime: fs.clock.now(),
                kill_suid: false,
            };
            let (again, file) = (fs.clone(), file.clone());
            fs.request(Caller::ROOT, Op::Commit(commit), move |reply| {
                next(again.accept_or_again(&file, base, reply, ()));
            });
        };
        repeat((), body, done);
    }

    /// What a commit that was made on `base` has come to: another try from `state` on if somebody
    /// else changed the content.
    fn accept_or_again<S>(
        &self,
        file: &OpenFile,
        base: u64,
        reply: Reply,
        state: S,
    ) -> LoopStep<S, ()> {
        match reply {
            Ok(Answer::Inode(inode)) => {
                self.accept(*inode, Some(base));
                LoopStep::End(Ok(()))
            }
            Err(Outcome::Conflict(inode)) => {
                file.lock().refresh(*inode);
                LoopStep::Again(state)
            }
            other => LoopStep::End(super::plain(other).map(|_| ())),
        }
    }

    /// Fails with `ENOSPC` if the store has no room for those bytes of a window that are not stored
    /// yet.
    fn check_room(self: &Arc<Self>, file: &OpenFile, what: Fallocate, done: Done<()>) {
        let free = self.store.usage().ok().and_then(|usage| usage.free);
        let Some(free) = free.map(|free| free.saturating_sub(self.dirty_bytes())) else {
            return done(Ok(()));
        };
        if what.len <= free {
            return done(Ok(()));
        }
        let end = what.offset + what.len;
        let judge = move |stored: u64| {
            let needed = what.len.saturating_sub(stored);
            if needed <= free {
                return Ok(());
            }
            let why = format!(
                "allocating needs {needed} bytes, and the block store has room for {free}: make \
                 room"
            );
            Err(FsError::because(libc::ENOSPC, why))
        };
        let state = file.lock();
        let (size, ino) = (state.size, file.ino);
        let stored = match &state.inode.data {
            Data::None => 0,
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Packed { visible, .. } => u64::from(*visible),
            Data::Chunked => {
                drop(state);
                if what.offset >= size {
                    return done(judge(0));
                }
                let (fs, last) = (self.clone(), (end.min(size) - 1) / CHUNK_BYTES);
                let body = move |(first, stored): (u64, u64), next: Next<(u64, u64), u64>| {
                    let told = move |page: FsResult<Page>| {
                        next(match page {
                            Ok(page) => {
                                let stored = stored + stored_in(&page, what.offset..end);
                                match page.until >= last {
                                    true => LoopStep::End(Ok(stored)),
                                    false => LoopStep::Again((page.until + 1, stored)),
                                }
                            }
                            Err(error) => LoopStep::End(Err(error)),
                        });
                    };
                    fs.chunk_page(ino, first, last, Box::new(told));
                };
                let judged = move |stored: FsResult<u64>| done(stored.and_then(judge));
                return repeat((what.offset / CHUNK_BYTES, 0), body, Box::new(judged));
            }
        };
        drop(state);
        done(judge(stored.min(end).saturating_sub(what.offset)));
    }

    fn resize(self: &Arc<Self>, file: &Arc<OpenFile>, size: u64, done: Done<()>) {
        let set = SetAttr { size: Some(size), through_handle: true, ..SetAttr::default() };
        self.setattr(Caller::ROOT, file.ino, set, Box::new(move |result| done(result.map(|_| ()))));
    }

    /// Makes a window within the file a hole, in the time that what is stored there takes. The
    /// caller's window goes on to `end`.
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
                        let until =
                            if page.until >= last { upto } else { (page.until + 1) * CHUNK_BYTES };
                        let data = patches(page.lists.iter().flat_map(|(chunk, _)| {
                            let begin = chunk * CHUNK_BYTES;
                            holes(from.max(begin)..upto.min(begin + CHUNK_BYTES))
                        }));
                        fs.commit_holes(&file, (base, data), window, until, next);
                    }
                    Err(error) => next(LoopStep::End(Err(error))),
                };
                return self.chunk_page(ino, first, last, Box::new(told));
            }
        };
        drop(state);
        self.commit_holes(file, (base, data), window, upto, next);
    }

    /// Commits holes that cover what is stored from the window's begin to `until`. The first commit
    /// sets the times, also if there are none.
    fn commit_holes(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        (base, data): (u64, NewData),
        window: Window,
        until: u64,
        next: Next<u64, ()>,
    ) {
        let then = move || {
            if until < window.upto { LoopStep::Again(until) } else { LoopStep::End(Ok(())) }
        };
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
            next(match fs.accept_or_again(&file, base, reply, window.from) {
                LoopStep::End(Ok(())) => then(),
                again => again,
            });
        });
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

/// Content in the inode with zeros in a window; without the blocks at its end that are all in the
/// window.
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

/// Stored bytes of a window on a page of lists.
fn stored_in(page: &Page, window: Range<u64>) -> u64 {
    let of_chunk = |(chunk, list): &(u64, Arc<ExtentList>)| {
        let begin = chunk * CHUNK_BYTES;
        let (from, to) = (
            window.start.max(begin) - begin,
            window.end.min(begin + CHUNK_BYTES).saturating_sub(begin),
        );
        let pieces = list.slice(from as u32, to.saturating_sub(from) as u32);
        let is_stored = |piece: &&Extent| piece.source != Source::Hole;
        pieces.iter().filter(is_stored).map(|piece| u64::from(piece.len)).sum::<u64>()
    };
    page.lists.iter().map(of_chunk).sum()
}

/// Whether a block of a file has no bytes when `pieces` lie over what it has. Such a block stays a
/// hole: nothing is stored for it.
pub(super) fn has_hole(data: &Data, pieces: &[WrittenPiece], size: u64) -> bool {
    let stored = match data {
        Data::None | Data::Chunked => 0,
        Data::Inline(bytes) => bytes.len() as u64,
        Data::Packed { visible, .. } => u64::from(*visible),
    };
    let mut has_bytes = vec![false; size.div_ceil(HOLE_BYTES) as usize];
    let written =
        pieces.iter().map(|piece| (piece.offset, piece.offset + piece.bytes.len() as u64));
    for (from, to) in written.chain([(0, stored)]).filter(|(from, to)| from < to) {
        let last = (to.div_ceil(HOLE_BYTES) as usize).min(has_bytes.len());
        if let Some(blocks) = has_bytes.get_mut((from / HOLE_BYTES) as usize..last) {
            blocks.fill(true);
        }
    }
    has_bytes.contains(&false)
}
