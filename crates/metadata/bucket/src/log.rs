//! The log: one object for each group of batches, numbered without gaps (`docs/format/bucket.md`,
//! "The log").
//!
//! A process makes one object at a time and the next one when that is there, so the log ends at the
//! first number that is missing. A process that takes over makes the next object itself, a *fence*:
//! an earlier process that goes on wants that very number, is refused by the store, and finds out.

use bytes::Bytes;
use kestrel_engine::EngineError;

use crate::Uuid;
use crate::manifest::FORMAT;
use crate::wire::{Reader, corrupt};

const MAGIC: &[u8; 8] = b"kstlog\0\0";
const HEAD_BYTES: usize = 72;
/// The length of a value that is none: the row was deleted.
const DELETED: u32 = u32::MAX;
/// Most bytes of rows in an object, before compression.
const RAW_MAX: u32 = 1 << 30;

/// Encoded keys, with the value or that the row is deleted.
pub type RowChanges = std::collections::BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// The name of a log object, below that of the node.
pub fn name(number: u64) -> String {
    format!("log/{number:016x}")
}

/// The number of a log object of this name.
pub fn number_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.rsplit_once("log/")?.1, 16).ok()
}

/// What a look for a log object found.
pub type Found = Result<Option<LogRecord>, EngineError>;

/// Reads some log objects at a time; what was found, in order.
pub fn read_window(numbers: &[u64], read: &(impl Fn(u64) -> Found + Sync)) -> Vec<Found> {
    if let [number] = numbers {
        return vec![read(*number)];
    }
    std::thread::scope(|scope| {
        let reads: Vec<_> =
            numbers.iter().map(|number| scope.spawn(move || read(*number))).collect();
        let done = reads.into_iter().map(|read| {
            let why = || EngineError::Io("metadata in a bucket: a thread panicked".into());
            read.join().unwrap_or_else(|_| Err(why()))
        });
        done.collect()
    })
}

/// An object of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogRecord {
    /// The epoch of the process that made it.
    pub epoch: u64,
    /// Position of the last batch in it.
    pub position: u64,
    /// A number that no other process has: by it a process knows its own object.
    pub nonce: u64,
    /// What the batches came to. None: a fence.
    pub rows: RowChanges,
}

impl LogRecord {
    /// The object of this number.
    pub fn encode(&self, (uuid, node): (&Uuid, u32), number: u64) -> Bytes {
        let mut raw = Vec::new();
        for (key, value) in &self.rows {
            raw.extend_from_slice(&(key.len() as u16).to_le_bytes());
            let len = value.as_ref().map_or(DELETED, |value| value.len() as u32);
            raw.extend_from_slice(&len.to_le_bytes());
            raw.extend_from_slice(key);
            raw.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        let packed = lz4_flex::block::compress(&raw);
        let mut out = Vec::with_capacity(HEAD_BYTES + packed.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&node.to_le_bytes());
        out.extend_from_slice(uuid);
        for field in [number, self.epoch, self.position, self.nonce] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&(self.rows.len() as u32).to_le_bytes());
        out.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        out.extend_from_slice(&packed);
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.into()
    }

    /// Reads the object of this number.
    ///
    /// # Errors
    /// `Refused` for a newer format, `Corrupt` for what is not that object.
    pub fn decode(
        (uuid, node): (&Uuid, u32),
        number: u64,
        bytes: &[u8],
    ) -> Result<Self, EngineError> {
        let name = name(number);
        let bad = |why: &str| corrupt(&name, why);
        let mut reader = Reader(bytes);
        if reader.take::<8>().as_ref() != Some(MAGIC) {
            return Err(bad("it is no log object"));
        }
        let version = reader.u32().unwrap_or(0);
        if version != FORMAT {
            return Err(EngineError::Refused(format!(
                "metadata in a bucket: {name} has format {version}, which is not known to this \
                 program; use a newer one"
            )));
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| bad("it is cut off"))?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(bad("its checksum does not match"));
        }
        let mut reader = Reader(&body[12..]);
        let found = (reader.u32(), reader.take::<16>(), reader.u64());
        if found != (Some(node), Some(*uuid), Some(number)) {
            return Err(bad("it is another object"));
        }
        let record = (|| {
            let (epoch, position, nonce) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (count, raw_len) = (reader.u32()?, reader.u32().filter(|len| *len <= RAW_MAX)?);
            let raw = lz4_flex::block::decompress(reader.0, raw_len as usize).ok()?;
            let mut reader = Reader(&raw);
            let mut rows = RowChanges::new();
            for _ in 0..count {
                let (key_len, len) = (reader.u16()?, reader.u32()?);
                let key = reader.bytes(key_len.into())?;
                let value =
                    if len == DELETED { None } else { Some(reader.bytes(len as usize)?.into()) };
                rows.insert(key.into(), value);
            }
            (reader.0.is_empty() && rows.len() == count as usize).then_some(Self {
                epoch,
                position,
                nonce,
                rows,
            })
        })();
        record.ok_or_else(|| bad("its rows contradict each other"))
    }
}
