//! Making a whole copy: a file without a name, until it is complete.

use std::fs::File;
use std::io;
use std::sync::Arc;

use kestrel_types::crash;

use super::label::{self, WholeId};
use super::{PIECE_BYTES, WholeCopies};
use crate::disk::Disk;
use crate::faults::DiskOp;
use crate::sys;

/// A whole copy that is being made. Dropped before [`WholeWriter::finish`], it leaves nothing
/// behind; nor does a crash.
pub struct WholeWriter {
    copies: WholeCopies,
    id: WholeId,
    disk: Arc<Disk>,
    file: File,
    /// Bytes written, and their CRC-32C.
    len: u64,
    check: u32,
}

impl WholeWriter {
    pub(super) fn new(copies: &WholeCopies, id: WholeId, disk: &Arc<Disk>, file: File) -> Self {
        Self { copies: copies.clone(), id, disk: Arc::clone(disk), file, len: 0, check: 0 }
    }

    /// Adds the next bytes, which the caller has verified.
    ///
    /// # Errors
    /// Those of the disk; `StorageFull` also when the cache has no room for them, and
    /// `InvalidInput` beyond the file's size.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.id.size - self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.disk.has_room(bytes.len() as u64)? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.disk.before(DiskOp::Write)?;
        for piece in bytes.chunks(PIECE_BYTES as usize) {
            sys::write_all_at(&self.file, &[io::IoSlice::new(piece)], self.len)?;
            self.check = crc32c::crc32c_append(self.check, piece);
            self.len += piece.len() as u64;
        }
        self.disk.note_written(bytes.len() as u64);
        Ok(())
    }

    /// Gives the copy its name, in place of one that is there already.
    ///
    /// # Errors
    /// Those of the disk; `InvalidInput` if bytes are missing.
    pub fn finish(self) -> io::Result<()> {
        if self.len != self.id.size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let volume = self.copies.volume();
        sys::set_attribute(&self.file, label::NAME, &self.id.label(&volume, self.check))?;
        crash::point("cache.whole.written");
        self.disk.before(DiskOp::Written)?;
        self.disk.publish_whole(&self.file, &self.id.name())?;
        crash::point("cache.whole.named");
        Ok(())
    }
}
