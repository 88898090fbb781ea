//! copy_file_range(2): by reference where the source's bytes are stored ranges, by copying
//! otherwise.

use std::sync::Arc;

use kestrel_blockstore::Turn;
use kestrel_types::error::FsError;
use kestrel_types::inode::FILE_SIZE_MAX;
use kestrel_types::request::Op;

use super::{Caller, Done, FileHandle, Fs, WriteAt, into_inode, too_late};
use crate::file::bad_handle;

/// Below this, copying bytes is cheaper than another reference. Bytes.
const REFERENCE_BYTES_MIN: u64 = 256 * 1024;

/// Most bytes one call copies by reading and writing; the application calls again for the rest.
const COPY_BYTES_MAX: u64 = 1024 * 1024;

/// Most bytes one call copies by reference.
const REFERENCE_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;

/// What copy_file_range(2) shall copy.
#[derive(Debug)]
pub struct CopyRange {
    /// Source.
    pub from: Arc<FileHandle>,
    /// First byte in the source.
    pub from_offset: u64,
    /// Destination; may be the source.
    pub to: Arc<FileHandle>,
    /// First byte in the destination.
    pub to_offset: u64,
    /// Most bytes.
    pub len: u64,
    /// The caller if he is unprivileged: set-id bits go, as with a write.
    pub unprivileged: Option<Caller>,
}

impl Fs {
    /// Copies bytes between files; the answer is how many, fewer at the source's end.
    pub fn copy_range(self: &Arc<Self>, mut copy: CopyRange, done: Done<u64>) {
        let CopyRange { from, from_offset, to, to_offset, len, .. } = &mut copy;
        if !from.read || !to.write {
            return done(Err(bad_handle()));
        }
        let left = from.file.lock().size.saturating_sub(*from_offset);
        *len = left.min(*len).min(REFERENCE_BYTES_MAX);
        if *len == 0 {
            return done(Ok(0));
        }
        if to_offset.checked_add(*len).is_none_or(|end| end > FILE_SIZE_MAX) {
            return done(Err(FsError::new(libc::EFBIG, "the file would become larger than 8 EiB")));
        }
        let overlap = from.ino() == to.ino()
            && *from_offset < *to_offset + *len
            && *to_offset < *from_offset + *len;
        if overlap {
            return done(Err(FsError::new(libc::EINVAL, "source and destination overlap")));
        }
        if *len < REFERENCE_BYTES_MIN {
            return self.copy_bytes(copy, done);
        }
        let fs = self.clone();
        let (source, target) = (copy.from.file.clone(), copy.to.file.clone());
        self.flush_file(
            &source,
            Box::new(move |flushed| {
                if let Err(error) = flushed {
                    return done(Err(error));
                }
                let again = fs.clone();
                fs.flush_file(
                    &target,
                    Box::new(move |flushed| match flushed {
                        Ok(()) => again.copy_references(copy, done),
                        Err(error) => done(Err(error)),
                    }),
                );
            }),
        );
    }

    fn copy_references(self: &Arc<Self>, copy: CopyRange, done: Done<u64>) {
        let op = Op::Clone {
            from: self.known.reference(copy.from.ino()),
            from_offset: copy.from_offset,
            to: self.known.reference(copy.to.ino()),
            to_offset: copy.to_offset,
            len: copy.len,
        };
        let fs = self.clone();
        self.ask(copy.unprivileged.unwrap_or(Caller::ROOT), op, move |answer| {
            match answer.and_then(into_inode) {
                Ok(inode) => {
                    fs.accept(inode, None);
                    done(Ok(copy.len));
                }
                Err(error) if error.errno == libc::EOPNOTSUPP => fs.copy_bytes(copy, done),
                Err(error) => done(Err(error)),
            }
        });
    }

    fn copy_bytes(self: &Arc<Self>, copy: CopyRange, done: Done<u64>) {
        let fs = self.clone();
        let len = copy.len.min(COPY_BYTES_MAX) as usize;
        let from = copy.from.clone();
        self.read(
            &from,
            copy.from_offset,
            len,
            Box::new(move |bytes| match bytes {
                Ok(bytes) => {
                    let again = fs.clone();
                    // A thread that reads is not for waiting until there is room, and one that
                    // stores makes the room.
                    fs.on(&fs.pools.copies, move |turn| {
                        let written = match turn {
                            Turn::Run => again.write_unless(
                                &copy.to,
                                WriteAt::Offset(copy.to_offset),
                                &bytes,
                                copy.unprivileged,
                                &|| false,
                            ),
                            Turn::Late => Err(too_late()),
                        };
                        done(written.map(|_| bytes.len() as u64));
                    });
                }
                Err(error) => done(Err(error)),
            }),
        );
    }
}
