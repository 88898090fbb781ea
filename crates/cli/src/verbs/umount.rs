//! `kestrel umount`.
//!
//! | file | what it has |
//! | --- | --- |
//! | `umount/busy.rs` | processes that keep a mount busy |

mod busy;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use kestrel_client::remote::RemoteUrl;
use kestrel_client::volume::{NOTE_NAME, remembered};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::holder::{END_TIME_MAX, Holder};
use kestrel_daemon::remote::NOT_LET_IN;
use kestrel_fuse::mount::{How, MountEntry, find, unmount};

use super::control_dir;
use busy::Users;

/// Unmount a volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel umount /mnt/data
  kestrel umount --force /mnt/data
  kestrel umount --lazy /mnt/data

Returns when the serving process has stored everything and let go of the volume. --force cuts the
connection first: every waiting call fails, files that are open break; it gets out also when the
serving process hangs or is gone. A volume that a server serves is not unmounted without --force
while the server does not answer, as what was written last could not be stored. --lazy returns at
once: the mount is gone from the tree, programs that use it go on, and the serving process ends when
the last of them has.")]
pub struct UmountArgs {
    /// Where it is mounted
    pub dir: PathBuf,
    /// Also when files are open or the serving process does not answer
    #[arg(long)]
    pub force: bool,
    /// Take it out of the tree now, and let programs that use it go on until they are done; with
    /// --force too, that is what happens
    #[arg(long)]
    pub lazy: bool,
}

/// How long a busy mount is tried again. A program that is just being started still has its
/// parent's open files, and a scan of all mounts (df, updatedb) holds each for a moment.
const BUSY_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a process may take to end after its mount was taken away by force.
const FORCED_TIME_MAX: Duration = Duration::from_millis(800);

/// Refuses, nothing being lost yet, if the volume is served and its server does not answer: the
/// process would wait for it until its calls have met their deadline, and the caller with it.
fn server_answers(args: &UmountArgs, entry: &MountEntry, dir: &Path) -> Result<(), Failure> {
    if !entry.source.to_str().is_some_and(RemoteUrl::is_one) {
        return Ok(());
    }
    // The mounting process passes it on, and waits for less than a call would.
    let question = serde_json::json!({ "verb": "alive" });
    super::ask("umount", dir, &question, kestrel_client::control::QUICK).map(drop).map_err(|why| {
        let dir = args.dir.display();
        let why = why.reason();
        let what = if why.contains(NOT_LET_IN) {
            "still mounted; what was written last is not stored, and is given up with --force"
        } else {
            "still mounted, so that what was written last can be stored; bring the server back or \
             use --force"
        };
        Failure::new("umount", format!("{dir}: {why}: {what}"))
    })
}

/// Takes the mount away, or fails with EBUSY if it was in use each time within [`BUSY_TIME_MAX`].
fn unmount_when_free(dir: &Path, how: How) -> Result<(), kestrel_fuse::Error> {
    let begun = Instant::now();
    loop {
        match unmount(dir, how) {
            Err(why)
                if why.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < BUSY_TIME_MAX =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// Unmounts.
pub fn run(args: &UmountArgs) -> Result<ExitStatus, Failure> {
    let fail = |why: &dyn std::fmt::Display| Failure::new("umount", why);
    let entry = find(&args.dir).map_err(|why| fail(&why))?;
    let Some(entry) = entry else {
        return Err(fail(&format!(
            "{}: nothing is mounted there; `findmnt -t fuse.kestrel` lists mounts",
            args.dir.display()
        )));
    };
    if !entry.is_kestrel() {
        return Err(fail(&format!(
            "{}: it is {}, not KestrelFS; use umount(8)",
            args.dir.display(),
            entry.fs_type
        )));
    }
    let volume = control_dir(&entry);
    if args.lazy {
        return unmount(&args.dir, How::Detach)
            .map(|()| ExitStatus::Good)
            .map_err(|why| fail(&why));
    }
    if !args.force {
        server_answers(args, &entry, &volume)?;
    }
    let holder = Holder::of(&volume);
    let how = if args.force { How::Force } else { How::Clean };
    unmount_when_free(&args.dir, how).map_err(|why| match why.raw_os_error() {
        Some(libc::EBUSY) => fail(&format!(
            "{}: in use by {}; end that, or use --force",
            args.dir.display(),
            Users::of(&entry.mount_point)
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
        if args.force && begun.elapsed() > FORCED_TIME_MAX {
            // It waits for its store, say, and may do so for long: nothing can be done about that
            // here.
            eprintln!(
                "kestrel umount: {}: unmounted; its process still stores what was written, or \
                 waits for its store or server, and ends by \
                 itself",
                args.dir.display()
            );
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // A log directory is remembered until the bucket has everything.
    if let Ok(Some(log_dir)) = remembered(&volume.join(NOTE_NAME), None) {
        return Err(fail(&format!(
            "{}: unmounted, but changes in {} are not in the bucket; the next mount on this \
             machine uploads them; why is in the mount's log",
            args.dir.display(),
            log_dir.display()
        )));
    }
    Ok(ExitStatus::Good)
}
