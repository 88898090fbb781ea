//! What an open of a file or directory holds.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use kestrel_data::ReadAhead;
use kestrel_types::ids::InodeId;

use crate::dir_stream::DirStream;
use crate::file::OpenFile;

/// An open file.
pub struct FileHandle {
    pub(crate) file: Arc<OpenFile>,
    /// Opened for reading.
    pub(crate) read: bool,
    /// Opened for writing.
    pub(crate) write: bool,
    /// Opened to be executed.
    pub(crate) exec: bool,
    pub(crate) readahead: Mutex<ReadAhead>,
}

impl FileHandle {
    /// The file's inode.
    pub fn ino(&self) -> InodeId {
        self.file.ino
    }

    /// Whether it was opened for writing.
    pub fn writable(&self) -> bool {
        self.write
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileHandle").field("ino", &self.file.ino).field("write", &self.write).finish()
    }
}

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    pub(crate) ino: InodeId,
    pub(crate) stream: Mutex<DirStream>,
}

impl DirHandle {
    /// The directory's inode.
    pub fn ino(&self) -> InodeId {
        self.ino
    }
}
