//! Waiting for the process that holds a volume, or the directory of a mount, to end.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kestrel_client::volume::VolumeLock;

/// How long a serving process may take to store what is left and end.
pub const END_TIME_MAX: Duration = Duration::from_secs(120);

/// The holder of the lock in a directory, and the process that held it when this was made.
pub struct Holder {
    dir: PathBuf,
    process: Option<OwnedFd>,
}

impl Holder {
    /// Of the lock in `dir`; look before the process is told to end.
    pub fn of(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), process: VolumeLock::holder(dir).and_then(process) }
    }

    /// Whether the lock is held or the process still runs: having let go of the volume it still has
    /// its log open, which may lie on a disk that is to be unmounted next.
    pub fn is_there(&self) -> bool {
        VolumeLock::holder(&self.dir).is_some() || self.process.as_ref().is_some_and(runs)
    }
}

/// A process, whatever becomes of its number; `None` if it has ended, or on a kernel without such
/// descriptors (before 5.3).
fn process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor was just made for us and nobody else has it.
    i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn runs(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call; a timeout of zero does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
}
