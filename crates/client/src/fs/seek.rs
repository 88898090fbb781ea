//! lseek(2) for data and holes, in the time of what a file has.

use std::sync::Arc;

use kestrel_types::error::FsError;
use kestrel_types::inode::{CHUNK_BYTES, Data};

use super::repeat::{LoopStep, Next, repeat};
use super::space::HOLE_BYTES;
use super::{Done, FileHandle, Fs};
use crate::extent_cache::ExtentCache;
use crate::file::{FileState, OpenFile};

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in a hole; the end of the file counts as one.
    Hole,
}

impl Seek {
    /// What a `whence` of lseek(2) looks for; `None` if that is no search.
    pub fn from_whence(whence: u32) -> Option<Self> {
        match whence as i32 {
            libc::SEEK_DATA => Some(Self::Data),
            libc::SEEK_HOLE => Some(Self::Hole),
            _ => None,
        }
    }
}

impl Fs {
    /// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// `ENXIO` beyond the end, or if no data follows.
    pub fn seek(
        self: &Arc<Self>,
        handle: &Arc<FileHandle>,
        offset: u64,
        seek: Seek,
        done: Done<u64>,
    ) {
        let (fs, file) = (self.clone(), handle.file.clone());
        self.flush_file(
            &handle.file,
            Box::new(move |flushed| match flushed {
                Ok(()) => fs.seek_flushed(file, offset, seek, done),
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn seek_flushed(
        self: &Arc<Self>,
        file: Arc<OpenFile>,
        offset: u64,
        seek: Seek,
        done: Done<u64>,
    ) {
        let fs = self.clone();
        let body = move |from, next: Next<u64, u64>| {
            let (first, last) = match find(&file.lock(), from, seek) {
                Find::Found(found) => return next(LoopStep::End(Ok(found))),
                Find::Nothing => return next(LoopStep::End(Err(beyond_end()))),
                Find::Ask(first, last) => (first, last),
            };
            // What lies before has been looked at.
            let from = from.max(first * CHUNK_BYTES);
            fs.load_chunks(&file, first, last, move |loaded| {
                next(match loaded {
                    Ok(()) => LoopStep::Again(from),
                    Err(error) => LoopStep::End(Err(error)),
                });
            });
        };
        repeat(offset, body, done);
    }
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
                Seek::Hole => Some(list.next_hole(pos, HOLE_BYTES as u32))
                    .filter(|hole| u64::from(*hole) < CHUNK_BYTES),
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
