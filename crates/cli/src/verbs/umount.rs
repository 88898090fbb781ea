//! `kestrel umount`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::volume::VolumeLock;
use kestrel_fuse::mount::{How, find, unmount};

use super::control_dir;
use crate::failure::{Failure, Verdict};

/// How long a serving process may take to store what is left and end.
const END_TIME_MAX: Duration = Duration::from_secs(120);

/// Unmount a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel umount /mnt/data
  kestrel umount --force /mnt/data

Returns when the serving process has stored everything and let go of the volume. --force cuts the connection first: every
waiting call fails, files that are open break; it gets out also when the serving process hangs or is gone.")]
pub struct UmountArgs {
    /// Where it is mounted
    pub dir: PathBuf,
    /// Also when files are open or the serving process does not answer
    #[arg(long)]
    pub force: bool,
}

/// Unmounts.
pub fn run(args: &UmountArgs) -> Result<Verdict, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("umount", why);
    let entry = find(&args.dir).map_err(|why| fail(&why))?;
    let Some(entry) = entry else {
        return Err(fail(&format!("{}: nothing is mounted there", args.dir.display())));
    };
    if !entry.is_kestrel() {
        return Err(fail(&format!(
            "{}: it is {}, not KestrelFS; use umount(8)",
            args.dir.display(),
            entry.fs_type
        )));
    }
    let volume = control_dir(&entry);
    let server = VolumeLock::holder(&volume).and_then(process);
    let how = if args.force { How::Force } else { How::Clean };
    unmount(&args.dir, how).map_err(|why| match why.raw_os_error() {
        Some(libc::EBUSY) => fail(&format!(
            "{}: in use; close what is open there (`fuser -vm {0}` lists it) or use --force",
            args.dir.display()
        )),
        _ => fail(&why),
    })?;
    let begun = Instant::now();
    while VolumeLock::holder(&volume).is_some() || server.as_ref().is_some_and(runs) {
        if begun.elapsed() > END_TIME_MAX {
            return Err(fail(&format!(
                "{}: unmounted, but its process has not ended after {} s; see its log",
                args.dir.display(),
                END_TIME_MAX.as_secs()
            )));
        }
        if args.force && begun.elapsed() > Duration::from_secs(10) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Verdict::Good)
}

/// A process, whatever becomes of its number; `None` if it has ended, or on a kernel without such descriptors (before 5.3).
fn process(pid: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor was just made for us and nobody else has it.
    i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether it still runs: having let go of the volume it still has its log open, which may lie on a disk to be unmounted next.
fn runs(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call; a timeout of zero does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
}
