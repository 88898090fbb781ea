//! An open inode: its mode, and the copy that stands for it while it is live.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use kestrel_client::fs::{FileHandle, Fs, WholeCopy};
use kestrel_fuse::Backing;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;

use super::page_sums::{PageSums, page_of};

/// Bytes of the copy read at a time; whole pages.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// How an inode is open.
#[derive(Default)]
pub(crate) struct State {
    /// Open files in the ordinary mode.
    pub ordinary: u32,
    /// Numbers of those that name the copy.
    pub passed: FxHashSet<u64>,
    /// The copy, while the inode is live. Then nothing is open in the ordinary mode.
    pub live: Option<Arc<Live>>,
    /// Opens that named the copy, ever.
    pub opens: u64,
    /// The entry has left the table: look for the inode again.
    pub gone: bool,
}

impl State {
    /// Notes an open file that names the copy.
    pub fn pass(&mut self, fh: u64) {
        self.passed.insert(fh);
        self.opens += 1;
    }
}

/// An inode that is open, or was and may still be mapped.
pub(crate) struct OpenInode {
    pub ino: InodeId,
    pub state: Mutex<State>,
    /// Held by the thread that changes the copy, and by the thread that compares it with the
    /// volume. Taken after nothing and before the file's own lock; a thread that waits for it may
    /// wait for the block store.
    pub turn: Mutex<()>,
    /// Changes that the volume may have and the copy not yet.
    pub pending: AtomicUsize,
}

/// Announces such a change, until it is dropped.
pub(crate) struct Pending(Arc<OpenInode>);

impl Pending {
    pub fn new(node: Arc<OpenInode>) -> Self {
        node.pending.fetch_add(1, Ordering::SeqCst);
        Self(node)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OpenInode {
    pub fn new(ino: InodeId) -> Self {
        Self { ino, state: Mutex::default(), turn: Mutex::default(), pending: AtomicUsize::new(0) }
    }
}

/// A copy in use.
pub(crate) struct Live {
    copy: WholeCopy,
    backing: Backing,
    /// Its name was taken: it is different from what it was checked to be, or may be.
    is_private: AtomicBool,
    /// There since the first open that may map it writably.
    stores: OnceLock<Stores>,
    /// The newest content of the volume that all of the copy was brought up to in use; 0: none.
    pub refreshed: AtomicU64,
}

/// What tells and takes stores through maps.
pub(crate) struct Stores {
    /// Brings them to the volume.
    pub writer: Arc<FileHandle>,
    /// What the volume has. Changed by the thread that holds the turn.
    pub pages: Mutex<PageSums>,
}

impl Live {
    pub fn new(copy: WholeCopy, backing: Backing) -> Self {
        Self {
            copy,
            backing,
            is_private: AtomicBool::new(false),
            stores: OnceLock::new(),
            refreshed: AtomicU64::new(0),
        }
    }

    pub fn backing_id(&self) -> i32 {
        self.backing.id()
    }

    /// Whether somebody could map it writably.
    pub fn has_writers(&self) -> bool {
        self.stores.get().is_some()
    }

    /// What tells and takes stores through maps, if there may be any.
    pub fn stores(&self) -> Option<&Stores> {
        self.stores.get()
    }

    /// Expects stores through maps from now on, and brings them to the volume through `writer`.
    /// Reads all of the copy. The caller holds the turn: so the copy has what the volume has, as
    /// far as it has followed.
    pub fn expect_stores(&self, writer: Arc<FileHandle>) -> FsResult<()> {
        let mut pages = PageSums::default();
        let len = self.len().map_err(|error| failed("looking at", &error))?;
        for at in (0..len).step_by(CHUNK_BYTES as usize) {
            let bytes =
                self.read(at, CHUNK_BYTES as usize).map_err(|error| failed("reading", &error))?;
            pages.set(page_of(at), &bytes);
        }
        // Only jobs of the one service thread come here.
        let _ = self.stores.set(Stores { writer, pages: Mutex::new(pages) });
        Ok(())
    }

    /// Whether anybody has it open or mapped.
    pub fn is_in_use(&self) -> bool {
        // If that cannot be found out: as long as the process lives.
        self.copy.is_in_use().unwrap_or(true)
    }

    /// Present size, bytes.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.copy.file().metadata()?.len())
    }

    /// Reads up to `len` bytes; fewer only at the end.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let end = self.len()?;
        let len = (len as u64).min(end.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.copy.file().read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Takes its name before a change. A caller that may change it calls this first.
    pub fn make_private(&self) -> FsResult<()> {
        if !self.is_private.load(Ordering::Acquire) {
            self.copy.take_away().map_err(|error| failed("taking its name", &error))?;
            self.is_private.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Writes bytes. The caller holds the turn.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> FsResult<()> {
        self.make_private()?;
        self.copy.write(offset, bytes).map_err(|error| failed("writing", &error))
    }

    /// Writes what the volume has; zeros as a hole. The caller holds the turn.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> FsResult<()> {
        let end = offset + bytes.len() as u64;
        let has = self.len().map_err(|error| failed("looking at", &error))?;
        if end <= has && bytes.iter().all(|byte| *byte == 0) {
            return self.zero(offset..end);
        }
        self.write(offset, bytes)
    }

    /// Changes its size. The caller holds the turn.
    pub fn resize(&self, size: u64) -> FsResult<()> {
        self.make_private()?;
        self.copy.file().set_len(size).map_err(|error| failed("resizing", &error))
    }

    /// Makes a part zeros. The caller holds the turn.
    fn zero(&self, part: Range<u64>) -> FsResult<()> {
        self.make_private()?;
        self.copy.zero(part).map_err(|error| failed("zeroing", &error))
    }

    /// Closes the mount's own handle.
    pub fn close(&self, fs: &Arc<Fs>) {
        if let Some(Stores { writer, .. }) = self.stores() {
            let ino = writer.ino();
            let fs_done = move |result: FsResult<()>| {
                if let Err(error) = result {
                    log::error!(
                        "inode {ino}: what was stored through maps could not be stored: {error}"
                    );
                }
            };
            fs.release(writer.clone(), Box::new(fs_done));
        }
    }
}

/// The error of a copy's disk.
pub(super) fn failed(what: &str, error: &io::Error) -> FsError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    FsError::because(errno, format!("{what} a whole copy in the cache: {error}"))
}
