//! The fuse module's switch for io_uring, which all tests of the machine share: a test that needs
//! it holds a lock, and the last one restores what was set before. `tests/shortcut/modes.sh` does
//! the same with the same files.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const LOCK: &str = "/run/lock/kestrel-uring";
const SAVED: &str = "/run/lock/kestrel-uring.saved";

/// The lock, held shared until the process ends, or why there is none.
static HELD: OnceLock<Result<File, String>> = OnceLock::new();

/// Switches io_uring on for as long as this process lives; false, after saying why, where that
/// cannot be.
pub fn uring_on() -> bool {
    match HELD.get_or_init(hold) {
        Ok(_) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

fn hold() -> Result<File, String> {
    let before = fs::read_to_string(SWITCH)
        .map_err(|error| format!("no FUSE over io_uring: {SWITCH}: {error}"))?;
    let lock = lock(libc::LOCK_SH).map_err(|error| format!("cannot lock {LOCK}: {error}"))?;
    let saved = fs::metadata(SAVED).is_ok_and(|saved| saved.len() > 0);
    if !saved {
        fs::write(SAVED, before).map_err(|error| format!("{SAVED}: {error}"))?;
    }
    fs::write(SWITCH, "Y").map_err(|error| format!("{SWITCH}: {error}"))?;
    // SAFETY: a function without conditions.
    unsafe { libc::atexit(restore) };
    Ok(lock)
}

/// At the end of the process.
extern "C" fn restore() {
    if let Some(Ok(held)) = HELD.get()
        // SAFETY: a live descriptor.
        && unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0
        && let Ok(before) = fs::read(SAVED)
    {
        let _ = fs::write(SWITCH, before);
        let _ = fs::remove_file(SAVED);
    }
}

fn lock(how: i32) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(Path::new(LOCK))?;
    // SAFETY: a live descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
