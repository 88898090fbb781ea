//! Calls that nobody waits for: their answer goes to a callback, which is what queues of
//! completions are made of.
//!
//! A callback runs with no lock held, on the calling thread if memory has the answer, otherwise on
//! the thread that has it. It must not block.

use kestrel_types::error::FsError;

use super::NativeFile;
use super::files::PIECE_BYTES;
use crate::fs::{Done, ReadBytes};

impl NativeFile {
    /// Most bytes that [`NativeFile::submit_read`] takes.
    pub const SUBMIT_BYTES_MAX: usize = PIECE_BYTES;

    /// Reads `len` bytes from `offset`, fewer only at the end of the file. Errors are those of
    /// pread(2), and `EINVAL` of more than [`NativeFile::SUBMIT_BYTES_MAX`] bytes.
    pub fn submit_read(&self, offset: u64, len: usize, done: Done<ReadBytes>) {
        if len > PIECE_BYTES {
            return done(Err(FsError::new(libc::EINVAL, "more bytes than one request reads")));
        }
        match self.parts() {
            Ok((fs, handle)) => fs.read_content(handle, (offset, len), false, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Commits what was written: other clients see it.
    pub fn submit_flush(&self, done: Done<()>) {
        match self.parts() {
            Ok((fs, handle)) => fs.flush(handle, done),
            Err(error) => done(Err(error)),
        }
    }

    /// The same, and makes it durable.
    pub fn submit_fsync(&self, done: Done<()>) {
        match self.parts() {
            Ok((fs, handle)) => fs.fsync(handle, done),
            Err(error) => done(Err(error)),
        }
    }
}
