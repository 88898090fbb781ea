//! Holes: allocate, punch, zero, and seek for data and holes.

use std::sync::Arc;

use kestrel_data::Turn;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::extent::{Extent, chunk_parts};
use kestrel_types::inode::{CHUNK_BYTES, Data, FILE_SIZE_MAX};
use kestrel_types::request::{COMMIT_EXTENTS_MAX, Commit, NewData, Op, Outcome, SetAttr};

use super::{Answer, Caller, Done, FileHandle, Fs, too_late};
use crate::file::{OpenFile, bad_handle};

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

/// Windows up to this size in files up to this size are zeroed by writing zeros, which keeps small files in one piece.
const ZERO_BYTES_MAX: u64 = 256 * 1024;

impl Fs {
    /// fallocate(2).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EFBIG`, and those of a write.
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
        let (size, inline) = {
            let state = handle.file.lock();
            (state.size, matches!(state.inode.data, Data::Inline(_)))
        };
        let grow = hole != Hole::Punch && !keep_size && end > size;
        let upto = end.min(size);
        if inline && hole != Hole::Allocate && upto.saturating_sub(offset) > ZERO_BYTES_MAX {
            // Bytes in the inode cannot be punched in part. Zeros over all that may lie there move them to the store; the rest of
            // the window, which ends beyond them, is punched then.
            let middle = offset + u64::from(self.config.inline_max).clamp(1, ZERO_BYTES_MAX);
            let rest = Fallocate { offset: middle, len: end - middle, ..what };
            let (fs, again) = (self.clone(), handle.clone());
            let then_rest: Done<()> = Box::new(move |result| match result {
                Ok(()) => fs.fallocate_flushed(&again, rest, done),
                Err(error) => done(Err(error)),
            });
            return self.write_zeros(handle, offset, middle, then_rest);
        }
        let (fs, again) = (self.clone(), handle.clone());
        let then_grow: Done<()> = Box::new(move |result| match result {
            Ok(()) if grow => fs.resize(&again.file, end, done),
            other => done(other),
        });
        if hole == Hole::Allocate || offset >= upto {
            return then_grow(Ok(()));
        }
        if upto - offset <= ZERO_BYTES_MAX && (inline || size <= ZERO_BYTES_MAX) {
            return self.write_zeros(handle, offset, upto, then_grow);
        }
        self.punch(&handle.file, offset, upto, then_grow);
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

    /// Commits holes over a window that lies within the file, a request for every [`COMMIT_EXTENTS_MAX`] chunks.
    fn punch(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, end: u64, done: Done<()>) {
        let reach = end.min((offset / CHUNK_BYTES + COMMIT_EXTENTS_MAX as u64) * CHUNK_BYTES);
        let holes = chunk_parts(offset, reach - offset)
            .map(|p| (u64::from(p.chunk), Extent::hole(p.pos, p.len)))
            .collect();
        let base = file.lock().inode.data_change;
        let commit = Commit {
            inode: self.known.reference(file.ino),
            base,
            data: NewData::Patches(holes),
            size: None,
            mtime: self.clock.now(),
            kill_suid: false,
        };
        let (fs, file) = (self.clone(), file.clone());
        self.request(Caller::ROOT, Op::Commit(commit), move |reply| match reply {
            Ok(Answer::Inode(inode)) => {
                fs.accept(*inode, Some(base));
                if reach < end { fs.punch(&file, reach, end, done) } else { done(Ok(())) }
            }
            Err(Outcome::Conflict(inode)) => {
                file.lock().refresh(*inode);
                fs.punch(&file, offset, end, done);
            }
            other => done(super::plain(other).map(|_| ())),
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
        let state = file.lock();
        let size = state.size;
        if offset >= size {
            drop(state);
            return done(Err(beyond_end()));
        }
        let stored_upto = match &state.inode.data {
            Data::None => 0,
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Packed { visible, .. } => u64::from(*visible),
            Data::Chunked => {
                let found = seek_chunks(&state.chunks, offset, size, seek);
                drop(state);
                return match found {
                    Ok(found) => done(found),
                    Err(chunk) => {
                        let fs = self.clone();
                        let last = ((size - 1) / CHUNK_BYTES).min(chunk + 63);
                        let again = file.clone();
                        self.load_chunks(&again, chunk, last, move |loaded| match loaded {
                            Ok(()) => fs.seek_flushed(file, offset, seek, done),
                            Err(error) => done(Err(error)),
                        })
                    }
                };
            }
        }
        .min(size);
        drop(state);
        done(match seek {
            Seek::Data if offset < stored_upto => Ok(offset),
            Seek::Data => Err(beyond_end()),
            Seek::Hole if offset < stored_upto => Ok(stored_upto),
            Seek::Hole => Ok(offset),
        });
    }
}

fn beyond_end() -> FsError {
    FsError::new(libc::ENXIO, "no data at or after this offset")
}

/// Walks the chunk lists; `Err` names a chunk whose list is needed.
fn seek_chunks(
    chunks: &crate::file::Chunks,
    offset: u64,
    size: u64,
    seek: Seek,
) -> Result<FsResult<u64>, u64> {
    let (mut chunk, mut pos) = (offset / CHUNK_BYTES, (offset % CHUNK_BYTES) as u32);
    while chunk * CHUNK_BYTES < size {
        let list = chunks.get(&chunk).ok_or(chunk)?;
        let found = match seek {
            Seek::Data => list.next_data(pos),
            Seek::Hole => Some(list.next_hole(pos)).filter(|hole| u64::from(*hole) < CHUNK_BYTES),
        };
        if let Some(found) = found {
            let found = chunk * CHUNK_BYTES + u64::from(found);
            return Ok(match seek {
                Seek::Data if found >= size => Err(beyond_end()),
                _ => Ok(found.min(size)),
            });
        }
        (chunk, pos) = (chunk + 1, 0);
    }
    Ok(if seek == Seek::Hole { Ok(size) } else { Err(beyond_end()) })
}
