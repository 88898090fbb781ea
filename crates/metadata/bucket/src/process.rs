//! Which process wrote an object: on its own machine others can tell whether it has ended.

use std::{fs, io};

use serde::{Deserialize, Serialize};

/// A process of some machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMark {
    /// For people: what it does, its number and its machine.
    pub words: String,
    /// See `this_boot`.
    pub boot: String,
    /// Its number on its machine.
    pub pid: u32,
    /// When it was started, in ticks of its machine's clock.
    pub started: u64,
}

impl ProcessMark {
    /// This process, which does `what`.
    pub fn this(what: &str) -> Self {
        let pid = std::process::id();
        let host = read_line("/proc/sys/kernel/hostname");
        Self {
            words: format!("{what}, process {pid} on {host}"),
            boot: this_boot(),
            pid,
            started: start_of(pid).unwrap_or(0),
        }
    }

    /// Whether it was a process of this machine, and has ended. `false` may mean that this machine
    /// cannot know.
    pub fn has_ended(&self) -> bool {
        has_ended(&self.boot, self.pid, self.started)
    }
}

/// This machine, since it was started, and the namespace of process numbers there.
fn this_boot() -> String {
    let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", read_line("/proc/sys/kernel/random/boot_id"), numbers.display())
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// When a process of this machine was started: field 22 of `/proc/PID/stat`, of which the second is
/// in parentheses and may have anything in it.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// See [`ProcessMark::has_ended`].
pub fn has_ended(boot: &str, pid: u32, started: u64) -> bool {
    if boot != this_boot() {
        return false;
    }
    if let Some(found) = start_of(pid) {
        return found != started;
    }
    // Processes of other users may be hidden; a signal that is none finds them.
    // SAFETY: takes no pointers; signal 0 does nothing.
    let found = unsafe { libc::kill(pid.cast_signed(), 0) };
    found != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}
