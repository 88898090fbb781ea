//! The few operations on files that the log needs, so that tests can put a disk below it that
//! loses, tears and fails.
//!
//! | file | what it has |
//! | --- | --- |
//! | `disk/real.rs` | a directory of the operating system |
//! | `disk/sim.rs` | a disk for tests that loses, tears and fails |

pub(super) mod real;
#[cfg(test)]
pub mod sim;

use std::io;
use std::sync::Arc;

use super::EngineError;

/// A flat directory of files.
pub trait Disk: Send + Sync {
    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that exists.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a file of `len` zeros, replacing an older one of that name. All its blocks are
    /// allocated and written, so that later writes within it need no space and no metadata. Leaves
    /// no file behind when it fails.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, replacing another one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> io::Result<()>;

    /// Bytes that can still be allocated.
    fn free_bytes(&self) -> io::Result<u64>;

    /// What to call a file in messages.
    fn describe(&self, name: &str) -> String;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Bytes in the file.
    fn len(&self) -> io::Result<u64>;

    /// Reads exactly `buf.len()` bytes.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all writes durable.
    fn sync(&self) -> io::Result<()>;
}

/// An error of the disk, in words.
pub(crate) fn io_error(what: &str, why: &io::Error) -> EngineError {
    if no_space(why) {
        EngineError::NoSpace
    } else {
        EngineError::Io(format!("metadata engine: {what} failed: {why}"))
    }
}

/// Whether an error means that the disk is full.
pub(crate) fn no_space(why: &io::Error) -> bool {
    why.kind() == io::ErrorKind::StorageFull
        || matches!(why.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
