//! The process that has the rows of a node open, the *holder*: it says so in an object that it
//! writes again every [`BEAT`]. It keeps two processes from serving rows in turns; what keeps rows
//! safe is the epoch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kestrel_blockstore::named::{ETag, NamedObject, NamedStore};
use kestrel_engine::EngineError;
use kestrel_types::clock::{Nanos, SECOND};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::process::{self, ProcessMark};
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
    /// As in [`ProcessMark`], like the next two.
    boot: String,
    pid: u32,
    started: u64,
    /// Counts writes.
    beat: u64,
    /// It has let go of the rows.
    closed: bool,
}

impl Holder {
    /// This process, as the holder of a node's rows.
    pub fn this_process(node: u32, epoch: u64) -> Self {
        let ProcessMark { words, boot, pid, started } =
            ProcessMark::this(&format!("kestrel node {node}"));
        Self { words, epoch, boot, pid, started, beat: 0, closed: false }
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
        let has_ended = process::has_ended(&self.boot, self.pid, self.started);
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
