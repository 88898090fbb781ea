//! The epoch of an embedded engine, and how a process notices that another one has taken its files over.
//!
//! Only one process at a time has a volume's files: a lock sees to that. The epoch is for when that lock was lost (a file system that
//! forgot it, files brought back on a second machine). It stands in file `epoch`, replaced as a whole, and in the header of every
//! segment. Who opens the volume raises it *before* reading the log; who holds it looks at the file *after* each sync of the log,
//! before anybody is told, and before changing the log's files. So a batch that was acknowledged is one that the successor has read.

use std::io;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::disk::Disk;
use crate::engine::log::format::{Uuid, check_version, u64_at};
use crate::engine::{EngineError, Epoch};

/// Name of the file.
const NAME: &str = "epoch";
/// Its next version, which every opening makes and renames.
pub(in crate::engine) const TEMPORARY: &str = "epoch.tmp";
const MAGIC: [u8; 8] = *b"KSTREPO\n";
const VERSION: u32 = 1;
const BYTES: usize = 64;

/// The newest epoch that this process has begun.
pub(in crate::engine) struct Fenced {
    held: Mutex<Epoch>,
}

fn encode(uuid: &Uuid, epoch: Epoch) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
    bytes[16..32].copy_from_slice(uuid);
    bytes[32..40].copy_from_slice(&epoch.0.to_be_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8], uuid: &Uuid, file: &str) -> Result<Epoch, EngineError> {
    let corrupt = |why| {
        EngineError::Corrupt(format!(
            "epoch {file}: {why}; if no other process has the volume open, remove this file"
        ))
    };
    let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| corrupt("wrong length"))?;
    if bytes[..8] != MAGIC {
        return Err(corrupt("not an epoch"));
    }
    check_version(&bytes[8..12], VERSION, &format!("epoch {file}"))?;
    let mut zeroed = *bytes;
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed).to_be_bytes() != bytes[12..16] {
        return Err(corrupt("checksum mismatch"));
    }
    if bytes[16..32] != *uuid {
        return Err(EngineError::Refused(format!("epoch {file}: belongs to another volume")));
    }
    Ok(Epoch(u64_at(bytes, 32)))
}

fn write(disk: &dyn Disk, uuid: &Uuid, epoch: Epoch) -> io::Result<()> {
    let file = disk.create(TEMPORARY, BYTES as u64)?;
    file.write_at(&encode(uuid, epoch), 0)?;
    file.sync()?;
    disk.rename(TEMPORARY, NAME)?;
    disk.sync_names()
}

/// The epoch that the file says, 0 if there is none.
fn read(disk: &dyn Disk, uuid: &Uuid) -> Result<Epoch, EngineError> {
    let path = disk.describe(NAME);
    let file = match disk.open(NAME) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Epoch(0)),
        Err(why) => return Err(EngineError::Io(format!("epoch {path}: opening failed: {why}"))),
    };
    let fail = |why: io::Error| EngineError::Io(format!("epoch {path}: reading failed: {why}"));
    let len = file.len().map_err(fail)?;
    let mut bytes = vec![0; usize::try_from(len.min(BYTES as u64 + 1)).unwrap_or(BYTES)];
    file.read_at(&mut bytes, 0).map_err(fail)?;
    decode(&bytes, uuid, &path)
}

/// How often the file is read before a failure counts, and the pause after the first failure; each is longer by that than the one before.
const READS_MAX: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(10);

impl Fenced {
    /// Begins an epoch above the one in the file and `highest`, that of the segments. Called before the log's records are read.
    pub fn open(disk: &dyn Disk, uuid: &Uuid, highest: Epoch) -> Result<Self, EngineError> {
        let held = Epoch(read(disk, uuid)?.max(highest).0 + 1);
        write(disk, uuid, held).map_err(|why| super::open::io_error("writing its epoch", &why))?;
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
                // No descriptor or memory at the moment, say: what is looked at was synced, so that must not stop the volume.
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
        write(disk, uuid, next).map_err(|why| super::open::io_error("writing its epoch", &why))?;
        *held = next;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damaged_byte_is_noticed() {
        let (uuid, epoch) = ([3; 16], Epoch(77));
        let bytes = encode(&uuid, epoch);
        assert_eq!(decode(&bytes, &uuid, "e"), Ok(epoch));
        for at in 0..BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(decode(&bad, &uuid, "e").is_err(), "byte {at}");
            assert!(decode(&bytes[..at], &uuid, "e").is_err());
        }
    }
}
