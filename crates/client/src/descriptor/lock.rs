//! One writer of a descriptor at a time.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::VolumeError;

/// Held while a descriptor is read, changed and written back. It is a lock (`flock`) on the
/// volume's directory, apart from the lock of the process that serves the volume: keys can be
/// rotated while it is mounted, and two rotations cannot undo each other.
pub(super) struct DescriptorLock(
    #[allow(dead_code, reason = "the open directory is the lock")] File,
);

impl DescriptorLock {
    /// Takes the lock; waits while another process changes the descriptor, which takes
    /// milliseconds.
    pub fn take(dir: &Path) -> Result<Self, VolumeError> {
        let failed = |error: std::io::Error| VolumeError::io("lock", dir, error);
        let file = File::open(dir).map_err(failed)?;
        loop {
            // SAFETY: flock takes a descriptor that `file` keeps open, and no pointer.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Self(file));
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(failed(error));
            }
        }
    }
}
