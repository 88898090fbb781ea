//! The epoch of an embedded engine, and how a process notices that another one has taken its files
//! over.
//!
//! Only one process at a time has a volume's files: a lock sees to that. The epoch is for when that
//! lock was lost (a file system that forgot it, files brought back on a second machine). It stands
//! in file `epoch`, replaced as a whole, and in the header of every segment. A process that opens
//! the volume raises it *before* reading the log; the holder looks at the file *after* each sync of
//! the log, before any caller gets its answer, and before changing the log's files. So a batch that
//! was acknowledged is one that the next process has read.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;

use super::small_record::{ADVICE, RecordKind, Uuid};
use crate::disk::{Disk, io_error};
use crate::{EngineError, Epoch};

/// Name of the file.
const NAME: &str = "epoch";
/// Its next version, which every opening makes and renames.
pub(crate) const TEMPORARY: &str = "epoch.tmp";
const KIND: RecordKind =
    RecordKind { name: "epoch", magic: *b"KSTREPO\n", version: 1, advice: ADVICE };

/// The newest epoch that this process has begun.
pub(crate) struct Fenced {
    held: Mutex<Epoch>,
}

fn write(disk: &dyn Disk, uuid: &Uuid, epoch: Epoch) -> io::Result<()> {
    KIND.write(disk, NAME, uuid, [epoch.0, 0, 0, 0])
}

/// The epoch in the file, 0 if there is none.
fn read(disk: &dyn Disk, uuid: &Uuid) -> Result<Epoch, EngineError> {
    Ok(KIND.read(disk, NAME, uuid)?.map_or(Epoch(0), |[epoch, ..]| Epoch(epoch)))
}

/// How often the file is read before a failure counts, and the pause after the first failure; each
/// is longer by that than the one before.
const READS_MAX: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(10);

impl Fenced {
    /// Begins an epoch above the one in the file and `highest`, that of the segments. Called before
    /// the log's records are read.
    pub fn open(disk: &dyn Disk, uuid: &Uuid, highest: Epoch) -> Result<Self, EngineError> {
        let held = Epoch(read(disk, uuid)?.max(highest).0 + 1);
        write(disk, uuid, held).map_err(|why| io_error("writing its epoch", &why))?;
        Ok(Self { held: Mutex::new(held) })
    }

    /// The newest epoch of this process.
    pub fn held(&self) -> Epoch {
        *self.held.lock()
    }

    /// Fails if another process has begun an epoch.
    pub fn check(&self, disk: &dyn Disk, uuid: &Uuid) -> Result<(), EngineError> {
        // Locked, so that an epoch of this process's own is not taken for another's.
        let held = self.held.lock();
        let mut tried = 1;
        let current = loop {
            match read(disk, uuid) {
                // No descriptor or memory at the moment, say: what is looked at was synced, so that
                // must not stop the volume.
                Err(EngineError::Io(_)) if tried < READS_MAX => {
                    std::thread::sleep(READ_PAUSE * tried);
                    tried += 1;
                }
                read => break read?,
            }
        };
        if current > *held { Err(EngineError::Fenced { held: *held, current }) } else { Ok(()) }
    }

    /// Begins another epoch of this process.
    pub fn begin(&self, disk: &dyn Disk, uuid: &Uuid) -> Result<Epoch, EngineError> {
        self.check(disk, uuid)?;
        let mut held = self.held.lock();
        let next = Epoch(held.0 + 1);
        write(disk, uuid, next).map_err(|why| io_error("writing its epoch", &why))?;
        *held = next;
        Ok(next)
    }
}
