//! One process at a time: the lock of a volume.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::VolumeError;

/// File that the process using a volume holds a lock on; it names the process.
pub(super) const LOCK_FILE: &str = "lock";

/// A process that looks for the holder ([`VolumeLock::holder`]) has the lock for a moment.
const PROBED: Duration = Duration::from_millis(100);

/// Keeps other processes out of a volume while it lives.
#[derive(Debug)]
pub struct VolumeLock(#[allow(dead_code, reason = "the open file is the lock")] File);

impl VolumeLock {
    /// Takes the lock of the volume at `dir`; `role` tells others what this process does with it.
    ///
    /// # Errors
    /// [`VolumeError::InUse`] names the holder.
    pub fn take(dir: &Path, role: &str) -> Result<Self, VolumeError> {
        let path = dir.join(LOCK_FILE);
        let io = |what: &'static str, error: std::io::Error| VolumeError::io(what, &path, error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| io("open", error))?;
        // SAFETY: flock takes a descriptor that `file` keeps open, and no pointer.
        let attempt =
            || unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        let begun = Instant::now();
        let mut taken = attempt();
        while !taken && begun.elapsed() < PROBED {
            std::thread::sleep(PROBED / 20);
            taken = attempt();
        }
        if !taken {
            let error = std::io::Error::last_os_error();
            if error.kind() != ErrorKind::WouldBlock {
                return Err(io("lock", error));
            }
            let mut holder = String::new();
            let _ = (&file).take(1024).read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() {
                "another process".into()
            } else {
                holder.trim().into()
            };
            return Err(VolumeError::InUse { dir: dir.into(), holder });
        }
        let write = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "process {} ({role})", std::process::id())
        };
        // A full disk must not keep a volume from being opened; the note is for people only.
        if let Err(error) = write(&mut file) {
            log::debug!("{}: {error}", path.display());
        }
        Ok(Self(file))
    }

    /// Process that holds the lock of the volume at `dir`, if one does.
    pub fn holder(dir: &Path) -> Option<u32> {
        let file = File::open(dir.join(LOCK_FILE)).ok()?;
        // SAFETY: as in `take`.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0 {
            return None;
        }
        let mut text = String::new();
        let _ = (&file).take(1024).read_to_string(&mut text);
        text.strip_prefix("process ")?.split(' ').next()?.parse().ok()
    }
}
