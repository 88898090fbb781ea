//! An open inode: its mode, and the copy that stands for it while it is live.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use kestrel_client::fs::{CHUNK_BYTES, FileHandle, Fs, WholeCopy};
use kestrel_fuse::Backing;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;

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
    /// CRC-32C of each chunk as the volume has it, where that is known.
    sums: Mutex<Vec<Option<u32>>>,
    /// For what was stored through maps; there since the first open that may map it writably.
    pub writer: OnceLock<Arc<FileHandle>>,
}

impl Live {
    pub fn new(copy: WholeCopy, backing: Backing) -> Self {
        let sums = Mutex::new(copy.sums().iter().copied().map(Some).collect());
        Self { copy, backing, is_private: AtomicBool::new(false), sums, writer: OnceLock::new() }
    }

    pub fn backing_id(&self) -> i32 {
        self.backing.id()
    }

    /// Whether somebody could map it writably.
    pub fn has_writers(&self) -> bool {
        self.writer.get().is_some()
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
        self.copy.write(offset, bytes).map_err(|error| failed("writing", &error))?;
        self.forget_sums(offset, bytes.len() as u64);
        Ok(())
    }

    /// Changes its size. The caller holds the turn.
    pub fn resize(&self, size: u64) -> FsResult<()> {
        self.make_private()?;
        let len = self.len().map_err(|error| failed("looking at", &error))?;
        self.copy.file().set_len(size).map_err(|error| failed("resizing", &error))?;
        self.forget_sums(len.min(size), len.abs_diff(size));
        Ok(())
    }

    /// The checksum of a chunk as the volume has it, if it is known.
    pub fn sum(&self, chunk: u64) -> Option<u32> {
        self.sums.lock().get(usize::try_from(chunk).ok()?).copied().flatten()
    }

    /// The volume has this chunk.
    pub fn set_sum(&self, chunk: u64, sum: u32) {
        if let Some(known) = self.sums.lock().get_mut(chunk as usize) {
            *known = Some(sum);
        }
    }

    /// Chunks that have changed are compared with the volume by their bytes from now on.
    fn forget_sums(&self, offset: u64, len: u64) {
        let mut sums = self.sums.lock();
        let first = ((offset / CHUNK_BYTES) as usize).min(sums.len());
        let last = (offset.saturating_add(len) / CHUNK_BYTES).min(sums.len() as u64) as usize;
        let end = (last + 1).min(sums.len());
        sums[first..end.max(first)].fill(None);
    }

    /// Makes a part zeros. The caller holds the turn.
    pub fn zero(&self, part: Range<u64>) -> FsResult<()> {
        self.make_private()?;
        self.copy.zero(part.clone()).map_err(|error| failed("zeroing", &error))?;
        self.forget_sums(part.start, part.end - part.start);
        Ok(())
    }

    /// Closes the mount's own handle.
    pub fn close(&self, fs: &Arc<Fs>) {
        if let Some(writer) = self.writer.get() {
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
