//! The process that has the rows of a node open, the *holder*: it says so in an object that it
//! writes again every [`BEAT`]. It keeps two processes from serving rows in turns; what keeps rows
//! safe is the epoch.

use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bytes::Bytes;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_engine::EngineError;
use kestrel_types::clock::{Nanos, SECOND};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::shared::EngineShared;
use crate::wire::corrupt;

/// Name of the object, below that of the node.
pub const HOLDER: &str = "holder";

/// How often it is written.
const BEAT: Duration = Duration::from_secs(5);

/// A process that has not written it for so long has ended, or cannot write. Stores count seconds.
const SILENT: Nanos = 17 * SECOND;

/// The object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process, for people.
    pub words: String,
    /// The epoch that it began with.
    pub epoch: u64,
    /// See `this_boot`.
    boot: String,
    /// Its number there, and when it was started, in ticks of the machine's clock.
    pid: u32,
    started: u64,
    /// Counts writes.
    beat: u64,
    /// It has let go of the rows.
    closed: bool,
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

/// Whether there is no process of this number that was started then.
fn has_ended(pid: u32, started: u64) -> bool {
    if let Some(found) = start_of(pid) {
        return found != started;
    }
    // Processes of other users may be hidden; a signal that is none finds them.
    // SAFETY: takes no pointers; signal 0 does nothing.
    let found = unsafe { libc::kill(pid.cast_signed(), 0) };
    found != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl Holder {
    /// This process, as the holder of a node's rows.
    pub fn this_process(node: u32, epoch: u64) -> Self {
        let pid = std::process::id();
        let host = read_line("/proc/sys/kernel/hostname");
        Self {
            words: format!("kestrel node {node}, process {pid} on {host}"),
            epoch,
            boot: this_boot(),
            pid,
            started: start_of(pid).unwrap_or(0),
            beat: 0,
            closed: false,
        }
    }

    fn encode(&self) -> Bytes {
        // Strings and numbers: nothing that JSON could not say.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Reads the object.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(found: &NamedObject) -> Result<Self, EngineError> {
        serde_json::from_slice(&found.bytes).map_err(|why| corrupt(HOLDER, &why.to_string()))
    }

    /// Whether the process still has the rows, as far as this machine can know. `age`: of the
    /// object.
    pub fn is_there(&self, age: Nanos) -> bool {
        let is_here = self.boot == this_boot();
        let has_ended = is_here && has_ended(self.pid, self.started);
        !self.closed && age < SILENT && !has_ended
    }
}

/// Becomes the holder, whichever process was.
///
/// # Errors
/// The store's.
pub fn take(
    store: &dyn NamedStore,
    name: &str,
    holder: &Holder,
) -> Result<ETag, kestrel_blockstore::error::Error> {
    loop {
        let bytes = holder.encode();
        if let Some(found) = store.read(name)? {
            if let Some(tag) = store.replace(name, bytes, &found.tag)? {
                return Ok(tag);
            }
        } else {
            store.create(name, bytes)?;
        }
    }
}

/// Stops the thread.
#[derive(Default)]
pub struct Stopper {
    stopping: Mutex<bool>,
    changed: Condvar,
}

impl Stopper {
    /// The holder lets go.
    pub fn stop(&self) {
        *self.stopping.lock() = true;
        self.changed.notify_all();
    }
}

/// Keeps being the holder until the engine ends; then lets go. Another holder has claimed the rows.
pub fn stay(shared: &Arc<EngineShared>, stopper: &Stopper, mut holder: Holder, mut tag: ETag) {
    let name = shared.name(HOLDER);
    loop {
        let stopping = {
            let mut stopping = stopper.stopping.lock();
            if !*stopping {
                stopper.changed.wait_for(&mut stopping, BEAT);
            }
            *stopping
        };
        if shared.has_failed() && !stopping {
            continue;
        }
        (holder.beat, holder.closed) = (holder.beat + 1, stopping);
        let written = shared.health.watch(|| shared.store.replace(&name, holder.encode(), &tag));
        match written {
            Ok(Some(new)) => tag = new,
            // Its own beat with a lost answer, or another process: that has claimed the rows first.
            Ok(None) => match shared.health.watch(|| shared.store.read(&name)) {
                Ok(found) => {
                    let is_own = |found: &NamedObject| {
                        Holder::decode(found).is_ok_and(|found| {
                            (found.epoch, found.pid, &found.boot)
                                == (holder.epoch, holder.pid, &holder.boot)
                        })
                    };
                    let is_own = found.as_ref().is_some_and(is_own);
                    let before = tag.clone();
                    tag = found.map_or(tag, |found| found.tag);
                    if !is_own
                        && !stopping
                        && let why @ EngineError::Fenced { .. } = shared.superseded(shared.epoch())
                    {
                        shared.fail(why);
                    }
                    if is_own && stopping && tag != before {
                        // That it lets go is not written yet.
                        continue;
                    }
                }
                Err(why) => log::warn!("{}", shared.failed(&why)),
            },
            Err(why) => log::warn!("{}", shared.failed(&why)),
        }
        if stopping {
            return;
        }
    }
}
