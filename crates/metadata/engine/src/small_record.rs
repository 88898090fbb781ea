//! Small records of 64 bytes (`docs/format/log.md`): one layout for the checkpoint, the epoch and
//! the headers of segments, and two copies of each, so that one flipped bit costs nothing.
//!
//! A record that has a file of its own has a second one, `NAME.copy`, which is replaced *before*
//! the first. So the first counts wherever it is intact, and the second is never older than it.
//! Programs from before there were copies replace the first alone: a copy may be older then, which
//! is as harmless as a crash before the record was replaced.

use std::io;

use crate::EngineError;
use crate::disk::Disk;

/// A volume's identity.
pub type Uuid = [u8; 16];

/// Bytes of a record.
pub(crate) const BYTES: usize = 64;
/// Numbers behind the volume's identity.
const NUMBERS: usize = 4;

/// What one kind of record is called and how it begins.
#[derive(Clone, Copy)]
pub(crate) struct RecordKind {
    /// Its name in messages.
    pub name: &'static str,
    pub magic: [u8; 8],
    /// Format that this program writes, and the newest it reads.
    pub version: u32,
    /// What the user can do when no copy is intact.
    pub advice: &'static str,
}

/// The advice to users about metadata that cannot be read.
pub(crate) const ADVICE: &str = "`kestrel fsck VOLUME --salvage NEW` recovers what is intact; or \
                                 restore a dump with `kestrel load`";

/// The name of the second copy.
pub(crate) fn copy_of(name: &str) -> String {
    format!("{name}.copy")
}

impl RecordKind {
    /// A record with four numbers.
    pub fn encode(&self, uuid: &Uuid, numbers: [u64; NUMBERS]) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&self.version.to_be_bytes());
        bytes[16..32].copy_from_slice(uuid);
        for (index, number) in numbers.into_iter().enumerate() {
            let at = 32 + 8 * index;
            bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// The four numbers of a record. `file` is its name for messages.
    ///
    /// # Errors
    /// `Refused` for one of a newer format or of another volume, `Corrupt` for a damaged one.
    pub fn decode(
        &self,
        bytes: &[u8],
        uuid: &Uuid,
        file: &str,
    ) -> Result<[u64; NUMBERS], EngineError> {
        let name = self.name;
        let corrupt = |why: &str| {
            EngineError::Corrupt(format!(
                "{name} {file}: damaged: {why}; {advice}",
                advice = self.advice
            ))
        };
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| corrupt("wrong length"))?;
        if bytes[..8] != self.magic {
            return Err(corrupt(&format!("not a {name}")));
        }
        let version = bytes[8..12].iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        if version > self.version {
            return Err(EngineError::Refused(format!(
                "{name} {file}: format {version} is newer than this program knows ({newest}); use \
                 a newer program",
                newest = self.version
            )));
        }
        if !is_intact(bytes) {
            return Err(corrupt("checksum mismatch"));
        }
        if version == 0 {
            return Err(corrupt("format version 0"));
        }
        if bytes[16..32] != *uuid {
            return Err(EngineError::Refused(format!("{name} {file}: belongs to another volume")));
        }
        Ok([32, 40, 48, 56].map(|at| u64_at(bytes, at)))
    }

    /// The record of which `copies` are two copies: the first if it is intact, else the second.
    /// Answers whether the first was.
    ///
    /// # Errors
    /// Those of the first copy.
    pub fn decode_either(
        &self,
        copies: [&[u8]; 2],
        uuid: &Uuid,
        file: &str,
    ) -> Result<([u64; NUMBERS], bool), EngineError> {
        match self.decode(copies[0], uuid, file) {
            Ok(numbers) => Ok((numbers, true)),
            // A record with a right checksum was not changed by accident.
            Err(EngineError::Refused(why)) if is_intact(copies[0]) => {
                Err(EngineError::Refused(why))
            }
            Err(why) => match self.decode(copies[1], uuid, file) {
                Ok(numbers) => Ok((numbers, false)),
                Err(_) => Err(why),
            },
        }
    }

    /// Replaces both files of a record; durable when it returns.
    pub fn write(
        &self,
        disk: &dyn Disk,
        file_name: &str,
        uuid: &Uuid,
        numbers: [u64; NUMBERS],
    ) -> io::Result<()> {
        let bytes = self.encode(uuid, numbers);
        let temporary = format!("{file_name}.tmp");
        for name in [copy_of(file_name), file_name.to_string()] {
            let file = disk.create(&temporary, BYTES as u64)?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
            disk.rename(&temporary, &name)?;
            disk.sync_names()?;
        }
        Ok(())
    }

    /// Reads a record from its files; none if there is neither. A damaged first copy is mended by
    /// the next [`RecordKind::write`]: every opening writes.
    ///
    /// # Errors
    /// As [`RecordKind::decode`], and `Io`.
    pub fn read(
        &self,
        disk: &dyn Disk,
        file_name: &str,
        uuid: &Uuid,
    ) -> Result<Option<[u64; NUMBERS]>, EngineError> {
        let path = disk.describe(file_name);
        let first = match content(disk, file_name) {
            // The usual case reads one file.
            Ok(Some(bytes)) => match self.decode(&bytes, uuid, &path) {
                Ok(numbers) => return Ok(Some(numbers)),
                Err(_) => Some(bytes),
            },
            Ok(None) => None,
            Err(why) => {
                return Err(EngineError::Io(format!(
                    "{} {path}: reading failed: {why}",
                    self.name
                )));
            }
        };
        let copy_name = copy_of(file_name);
        let copy = content(disk, &copy_name).map_err(|why| {
            EngineError::Io(format!(
                "{} {}: reading failed: {why}",
                self.name,
                disk.describe(&copy_name)
            ))
        })?;
        match (first, copy) {
            (None, None) => Ok(None),
            (None, Some(copy)) => self.decode(&copy, uuid, &disk.describe(&copy_name)).map(Some),
            (Some(first), copy) => {
                let copies = [&*first, copy.as_deref().unwrap_or_default()];
                let (numbers, _) = self.decode_either(copies, uuid, &path)?;
                log::warn!("{} {path} is damaged; its copy is intact and is used", self.name);
                Ok(Some(numbers))
            }
        }
    }
}

/// Whether a record's checksum is right.
fn is_intact(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk::<BYTES>() else { return false };
    let mut zeroed = *bytes;
    zeroed[12..16].fill(0);
    crc32c::crc32c(&zeroed).to_be_bytes() == bytes[12..16]
}

/// The bytes of a small file, one more than a record has at most; none if there is no such file.
fn content(disk: &dyn Disk, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why),
    };
    let len = file.len()?.min(BYTES as u64 + 1);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(BYTES)];
    file.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: RecordKind =
        RecordKind { name: "record", magic: *b"KSTRTST\n", version: 2, advice: "mend it" };
    const UUID: Uuid = [3; 16];

    /// Any damaged bit, and any missing byte, of one copy is noticed.
    #[test]
    fn damaged_bits_of_a_record() {
        let bytes = KIND.encode(&UUID, [1, 2, 3, 4]);
        assert_eq!(KIND.decode(&bytes, &UUID, "f"), Ok([1, 2, 3, 4]));
        for bit in 0..BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(KIND.decode(&bad, &UUID, "f").is_err(), "bit {bit}");
            assert_eq!(
                KIND.decode_either([&bad, &bytes], &UUID, "f"),
                Ok(([1, 2, 3, 4], false)),
                "bit {bit}"
            );
            assert_eq!(
                KIND.decode_either([&bytes, &bad], &UUID, "f"),
                Ok(([1, 2, 3, 4], true)),
                "bit {bit}"
            );
            assert!(KIND.decode_either([&bad, &bad], &UUID, "f").is_err(), "bit {bit}");
        }
        for len in 0..BYTES {
            assert!(KIND.decode(&bytes[..len], &UUID, "f").is_err());
            assert_eq!(
                KIND.decode_either([&bytes[..len], &bytes], &UUID, "f"),
                Ok(([1, 2, 3, 4], false))
            );
        }
    }

    /// A newer format and another volume's record are refused, even with a good copy.
    #[test]
    fn refused_records() {
        let older = KIND.encode(&UUID, [0; 4]);
        let newer = RecordKind { version: 3, ..KIND }.encode(&UUID, [0; 4]);
        assert!(matches!(
            KIND.decode_either([&newer, &older], &UUID, "f"),
            Err(EngineError::Refused(_))
        ));
        let other = KIND.encode(&[4; 16], [0; 4]);
        assert!(matches!(
            KIND.decode_either([&other, &older], &UUID, "f"),
            Err(EngineError::Refused(_))
        ));
    }
}
