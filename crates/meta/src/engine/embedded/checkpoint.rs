//! The checkpoint: up to which position the sorted runs have everything, so where reading the log begins.
//!
//! A file of 64 bytes, replaced as a whole: written beside, synced, renamed, and the name synced.

use std::io;

use kestrel_types::ids::Position;

use crate::engine::EngineError;
use crate::engine::disk::Disk;
use crate::engine::log::format::{Uuid, check_version, u64_at};

/// Name of the file.
const NAME: &str = "checkpoint";
const MAGIC: [u8; 8] = *b"KSTRCKP\n";
const VERSION: u32 = 1;
const BYTES: usize = 64;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Checkpoint {
    /// The sorted runs have every batch up to here.
    pub position: Position,
    /// Segment that holds the next batch, or will.
    pub generation: u64,
    /// The log was durable up to here at least, when this was written. At or above `position`.
    pub durable: Position,
}

fn encode(uuid: &Uuid, checkpoint: Checkpoint) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
    bytes[16..32].copy_from_slice(uuid);
    bytes[32..40].copy_from_slice(&checkpoint.position.to_be_bytes());
    bytes[40..48].copy_from_slice(&checkpoint.generation.to_be_bytes());
    bytes[48..56].copy_from_slice(&checkpoint.durable.to_be_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8], uuid: &Uuid, file: &str) -> Result<Checkpoint, EngineError> {
    let corrupt =
        |why| EngineError::Corrupt(format!("checkpoint {file}: {why}; restore the metadata from a dump"));
    let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| corrupt("wrong length"))?;
    if bytes[..8] != MAGIC {
        return Err(corrupt("not a checkpoint"));
    }
    check_version(&bytes[8..12], VERSION, &format!("checkpoint {file}"))?;
    let mut zeroed = *bytes;
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed).to_be_bytes() != bytes[12..16] {
        return Err(corrupt("checksum mismatch"));
    }
    if bytes[16..32] != *uuid {
        return Err(EngineError::Refused(format!("checkpoint {file}: belongs to another volume")));
    }
    let checkpoint =
        Checkpoint { position: u64_at(bytes, 32), generation: u64_at(bytes, 40), durable: u64_at(bytes, 48) };
    if checkpoint.durable < checkpoint.position {
        return Err(corrupt("its positions contradict each other"));
    }
    Ok(checkpoint)
}

/// Replaces the checkpoint; durable when it returns.
pub(in crate::engine) fn write(disk: &dyn Disk, uuid: &Uuid, checkpoint: Checkpoint) -> io::Result<()> {
    let temporary = "checkpoint.tmp";
    let bytes = encode(uuid, checkpoint);
    let file = disk.create(temporary, BYTES as u64)?;
    file.write_at(&bytes, 0)?;
    file.sync()?;
    disk.rename(temporary, NAME)?;
    disk.sync_names()
}

/// Reads the checkpoint; `None` if there is none.
pub(in crate::engine) fn read(disk: &dyn Disk, uuid: &Uuid) -> Result<Option<Checkpoint>, EngineError> {
    let path = disk.describe(NAME);
    let fail = |why: io::Error| EngineError::Io(format!("checkpoint {path}: reading failed: {why}"));
    if !disk.list().map_err(fail)?.iter().any(|name| name == NAME) {
        return Ok(None);
    }
    let file = disk.open(NAME).map_err(fail)?;
    let len = file.len().map_err(fail)?;
    let mut bytes = vec![0; usize::try_from(len.min(BYTES as u64 + 1)).unwrap_or(BYTES)];
    file.read_at(&mut bytes, 0).map_err(fail)?;
    decode(&bytes, uuid, &path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_byte_is_noticed() {
        let (uuid, checkpoint) = ([3; 16], Checkpoint { position: 77, generation: 5, durable: 80 });
        let bytes = encode(&uuid, checkpoint);
        assert_eq!(decode(&bytes, &uuid, "c"), Ok(checkpoint));
        for at in 0..BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(decode(&bad, &uuid, "c").is_err(), "byte {at}");
            assert!(decode(&bytes[..at], &uuid, "c").is_err());
        }
    }
}
