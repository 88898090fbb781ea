//! Questions by path, for programs that keep no inode numbers: nothing that is found here has to be
//! forgotten, and nothing that is read here has to be closed.

use std::sync::Arc;

use kestrel_blockstore::{Buffer, ErrorKind, Turn};
use kestrel_meta::ops::access;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::Name;
use kestrel_types::perm::READ;
use kestrel_types::range::Range;
use kestrel_types::request::{Creds, Op, Outcome, Reply, Request};

use super::{Fs, plain, too_late};
use crate::file::data_error;

/// Takes the reply to the request with this number; may run on any thread, and must not block.
pub type EachReply = Arc<dyn Fn(usize, Reply) + Send + Sync>;

/// Takes the content of a file, as [`EachReply`]; none: it has to be opened and read.
pub type ContentDone = Box<dyn FnOnce(FsResult<Option<Buffer>>) + Send>;

/// Bytes of a file that lie in one stored range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedContent {
    range: Range,
    visible: u32,
    size: usize,
}

impl PackedContent {
    /// Where it lies: what is read in this order is read from the start of each object to its end.
    pub fn position(&self) -> (u64, u32) {
        (self.range.object, self.range.offset)
    }
}

/// The content of a file, by what its record says.
#[derive(Debug)]
pub enum FoundContent {
    /// The bytes.
    Bytes(Buffer),
    /// They lie in one stored range.
    Packed(PackedContent),
    /// The file has to be opened and read.
    Open,
}

impl Fs {
    /// Sends several requests at once. `each` gets every reply, with the number of its request.
    pub fn submit_all(&self, creds: &Creds, ops: Vec<Op>, each: &EachReply) {
        let requests = ops.into_iter().enumerate().map(|(number, op)| {
            let each = each.clone();
            let done = self.noting(&op, Box::new(move |reply| each(number, reply)));
            (Request { creds: creds.clone(), op }, done)
        });
        self.metadata.submit_many(requests.collect());
    }

    /// Shows in attributes what was written here and is not committed.
    pub fn show_written(&self, inode: &mut Inode) {
        if inode.kind == Kind::File {
            self.files.overlay(inode);
        }
    }

    /// The kernel, or a program in its place, will know an inode that it found under this name,
    /// until [`Fs::forget`].
    pub fn remember(&self, inode: Inode, place: Option<(InodeId, &Name)>) -> Inode {
        self.introduce(inode, place)
    }

    /// The content of a file that a caller has just found, as far as its record tells.
    ///
    /// # Errors
    /// `EACCES` if the caller may not read it; `EISDIR` and `EINVAL` if it is no file.
    pub fn found_content(&self, creds: &Creds, inode: Inode) -> FsResult<FoundContent> {
        match inode.kind {
            Kind::File => {}
            Kind::Dir => return Err(FsError::new(libc::EISDIR, "it is a directory")),
            _ => return Err(FsError::new(libc::EINVAL, "it is no regular file")),
        }
        access::of_removed(creds, &inode, READ)
            .map_err(|outcome: Outcome| plain(Err(outcome)).err().unwrap_or_else(too_late))?;
        let Ok(size) = usize::try_from(inode.size) else { return Ok(FoundContent::Open) };
        if size > super::read::READ_BYTES_MAX || self.files.get(inode.ino).is_some() {
            // What is open here may have been written to.
            return Ok(FoundContent::Open);
        }
        Ok(match inode.data {
            Data::None => FoundContent::Bytes(vec![0; size].into()),
            Data::Inline(bytes) => {
                let mut bytes = bytes.into_vec();
                bytes.resize(size, 0);
                FoundContent::Bytes(bytes.into())
            }
            Data::Packed { range, visible } => {
                FoundContent::Packed(PackedContent { range, visible, size })
            }
            Data::Chunked => FoundContent::Open,
        })
    }

    /// Reads bytes that lie in one range: now if memory or a disk near by has them, else on the
    /// I/O pool. `done` gets nothing if they are not there any more, or damaged: the file has
    /// changed, or an open read says what is wrong.
    pub fn read_packed(self: &Arc<Self>, content: PackedContent, done: ContentDone) {
        let PackedContent { range, visible, size } = content;
        // From memory that is kept: what the system gives anew it clears first, a page at a time.
        let mut bytes = self.buffers.take(size);
        let len = size.min(visible as usize);
        bytes[len..].fill(0);
        match self.reader.try_read(range, 0, &mut bytes[..len]) {
            Ok(true) => {
                Self::count(&self.counters.read_bytes, size as u64);
                return done(Ok(Some(bytes)));
            }
            Ok(false) => {}
            Err(error) => return done(content_error(&error)),
        }
        let fs = self.clone();
        self.on_pool(move |turn| {
            if turn == Turn::Late {
                return done(Err(too_late()));
            }
            done(match fs.reader.read(range, 0, &mut bytes[..len]) {
                Ok(()) => {
                    Self::count(&fs.counters.read_bytes, size as u64);
                    Ok(Some(bytes))
                }
                Err(error) => content_error(&error),
            });
        });
    }
}

/// What a failed read by what was found means.
fn content_error(error: &kestrel_blockstore::Error) -> FsResult<Option<Buffer>> {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Corrupt => Ok(None),
        _ => Err(data_error(error)),
    }
}
