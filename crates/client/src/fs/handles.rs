//! What an open of a file or directory holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use kestrel_blockstore::ReadAhead;
use kestrel_types::ids::InodeId;

use super::Fs;
use crate::dir_stream::DirStream;
use crate::file::OpenFile;
use crate::listed::Listing;

/// What has come through a handle.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub bytes: AtomicU64,
    pub told: AtomicBool,
}

impl Progress {
    /// Of a handle with reads that do not count.
    pub fn silent() -> Self {
        Self { bytes: AtomicU64::new(0), told: AtomicBool::new(true) }
    }
}

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
    /// Locks of the file are the server's.
    pub(crate) locks: bool,
    /// Not shared with any other handle, ever.
    pub(crate) number: u64,
    /// Losses of locks before it was opened, which do not concern it.
    pub(crate) losses: u64,
    /// The kernel was told to drop cached pages when it was opened, and nothing has come through it
    /// since.
    pub(crate) drops_pages: AtomicBool,
    /// What has come through it.
    pub(crate) progress: Progress,
    /// See [`FileHandle::go_uncached`].
    pub(crate) uncached: AtomicBool,
    /// See [`FileHandle::keep_access_time`].
    pub(crate) keeps_access_time: AtomicBool,
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

    /// Whether it was opened for reading, or to be executed.
    pub fn readable(&self) -> bool {
        self.read
    }

    /// The kernel is about to fill pages with what it reads of the file.
    pub fn note_read_through_pages(&self) {
        if !self.file.paged.load(Ordering::Relaxed) {
            self.file.paged.store(true, Ordering::SeqCst);
        }
    }

    /// Whether pages may have been filled since the file was opened here, by any handle of it. A
    /// read that was noted before a write was done counts.
    pub fn is_read_through_pages(&self) -> bool {
        self.file.paged.load(Ordering::SeqCst)
    }

    /// Notes that the kernel keeps no pages of what is written through it.
    pub fn go_uncached(&self) {
        self.uncached.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel keeps no pages of what is written through it.
    pub fn is_uncached(&self) -> bool {
        self.uncached.load(Ordering::Relaxed)
    }

    /// Whether a write to `offset` waits until what was appended to the file is committed.
    pub fn waits_for_appended(&self, offset: u64) -> bool {
        self.file.lock().ends_with_appended(offset)
    }

    /// Reads through it do not count for the access time (`O_NOATIME`).
    pub fn keep_access_time(&self) {
        self.keeps_access_time.store(true, Ordering::Relaxed);
    }

    /// Whether reads through it do not count for the access time.
    pub fn keeps_access_time(&self) -> bool {
        self.keeps_access_time.load(Ordering::Relaxed)
    }

    /// Whether other clients append to the file, too, as far as that has been noticed since it was
    /// opened here.
    pub fn has_shared_end(&self) -> bool {
        self.file.lock().shared_end
    }

    /// Whether the kernel may have cached pages of the file since the last call: it was open for
    /// reading, through whatever handle.
    pub fn may_be_cached(&self) -> bool {
        let mut state = self.file.lock();
        let is_read = state.readers > 0;
        std::mem::replace(&mut state.was_read, is_read) || is_read
    }

    /// Whether a close has to wait for something: what was written, or locks of the process that
    /// closes.
    pub fn flushes(&self) -> bool {
        self.write || self.locks
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileHandle")
            .field("ino", &self.file.ino)
            .field("write", &self.write)
            .finish()
    }
}

impl Fs {
    /// Something comes through an open file: the kernel has handled the answer to the open.
    pub(super) fn heard_of(&self, handle: &FileHandle) {
        if handle.drops_pages.load(Ordering::Relaxed)
            && handle.drops_pages.swap(false, Ordering::Relaxed)
        {
            self.known.pages_dropped(handle.ino());
        }
    }
}

/// An open directory.
#[derive(Debug)]
pub struct DirHandle {
    pub(crate) ino: InodeId,
    pub(crate) stream: Mutex<DirStream>,
    /// What came with the listing.
    pub(crate) listing: Arc<Listing>,
    /// See [`DirHandle::keep_access_time`].
    pub(crate) keeps_access_time: AtomicBool,
}

impl DirHandle {
    /// The directory does not change: the kernel keeps what was listed, and may ask through this
    /// handle for what follows a cookie of another one.
    pub fn stays_as_it_is(&self) {
        self.stream.lock().stays_as_it_is();
    }

    /// Listing through it does not count for the access time (`O_NOATIME`).
    pub fn keep_access_time(&self) {
        self.keeps_access_time.store(true, Ordering::Relaxed);
    }

    /// Whether listing through it does not count for the access time.
    pub fn keeps_access_time(&self) -> bool {
        self.keeps_access_time.load(Ordering::Relaxed)
    }

    /// The directory's inode.
    pub fn ino(&self) -> InodeId {
        self.ino
    }
}
