//! `kestrel umount`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_fuse::mount::{How, find, unmount};

use super::control_dir;
use crate::failure::{Failure, Verdict};
use crate::serve::holder::{END_TIME_MAX, Holder};

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
    let holder = Holder::of(&volume);
    let how = if args.force { How::Force } else { How::Clean };
    unmount(&args.dir, how).map_err(|why| match why.raw_os_error() {
        Some(libc::EBUSY) => fail(&format!(
            "{}: in use; close what is open there (`fuser -vm {0}` lists it) or use --force",
            args.dir.display()
        )),
        _ => fail(&why),
    })?;
    let begun = Instant::now();
    while holder.is_there() {
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
