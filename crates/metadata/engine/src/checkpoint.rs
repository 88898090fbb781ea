//! The checkpoint: up to which position the sorted runs have everything, so where reading the log
//! begins.
//!
//! A small record in two files ([`super::small_record`]), replaced as a whole.

use std::io;

use kestrel_types::ids::Position;

use super::small_record::{ADVICE, RecordKind, Uuid, copy_of};
use crate::EngineError;
use crate::disk::Disk;

/// Name of the file.
const NAME: &str = "checkpoint";
const KIND: RecordKind =
    RecordKind { name: "checkpoint", magic: *b"KSTRCKP\n", version: 1, advice: ADVICE };

/// The contents of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The sorted runs have every batch up to here.
    pub position: Position,
    /// Segment that holds the next batch, or will.
    pub generation: u64,
    /// The log was durable up to here at least, when this was written. At or above `position`.
    pub durable: Position,
}

/// Replaces the checkpoint; durable when it returns.
pub(crate) fn write(disk: &dyn Disk, uuid: &Uuid, checkpoint: Checkpoint) -> io::Result<()> {
    let Checkpoint { position, generation, durable } = checkpoint;
    KIND.write(disk, NAME, uuid, [position, generation, durable, 0])
}

/// Removes the checkpoint, if there is one; the caller syncs names.
pub(crate) fn remove(disk: &dyn Disk) -> io::Result<()> {
    for name in [NAME.to_string(), copy_of(NAME)] {
        match disk.remove(&name) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
    }
    Ok(())
}

/// Reads the checkpoint; `None` if there is none.
pub(crate) fn read(disk: &dyn Disk, uuid: &Uuid) -> Result<Option<Checkpoint>, EngineError> {
    let Some([position, generation, durable, _]) = KIND.read(disk, NAME, uuid)? else {
        return Ok(None);
    };
    if durable < position {
        return Err(EngineError::Corrupt(format!(
            "checkpoint {}: its positions contradict each other; {ADVICE}",
            disk.describe(NAME)
        )));
    }
    Ok(Some(Checkpoint { position, generation, durable }))
}
