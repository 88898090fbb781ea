//! Bytes of the log (`docs/format/log.md`).

use kestrel_types::codec::{DecodeError, Reader, put_varint};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, SUFFIX_MAX, Table};

use crate::engine::{EngineError, Epoch, Mutation};

/// First bytes of a segment.
const MAGIC: [u8; 8] = *b"KSTRLOG\n";
/// Version of the log's format that this program writes, and the newest it reads.
const VERSION: u32 = 2;
/// Bytes of a segment before its first record: a block, so that no write of records touches it.
pub(in crate::engine) const SEGMENT_HEADER: usize = 4096;
/// Bytes of the header that mean something.
const HEADER_USED: usize = 64;
/// Bytes of a record before its payload.
pub(in crate::engine) const RECORD_HEADER: usize = 32;
/// Records start at multiples of this.
pub(in crate::engine) const ALIGN: usize = 8;
/// Most bytes of a record's payload.
pub(in crate::engine) const PAYLOAD_MAX: usize = 1 << 30;

/// A volume's identity.
pub type Uuid = [u8; 16];

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Kind {
    /// A batch of mutations, at its own position.
    Batch = 1,
    /// Says that everything up to its position is durable; has the position of the batch before it.
    Marker = 2,
}

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Record {
    pub kind: Kind,
    pub position: Position,
    /// Newest durable position when the record was written.
    pub durable: Position,
    payload_len: u32,
    payload_crc: u32,
}

impl Record {
    /// Bytes from the record's start to the next one's.
    pub fn bytes(&self) -> usize {
        (RECORD_HEADER + self.payload_len as usize).next_multiple_of(ALIGN)
    }
}

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Header {
    pub generation: u64,
    /// Epoch of the opening that made it; 0 in format 1.
    pub epoch: Epoch,
    /// Position of the last batch before that opening.
    pub base: Position,
}

/// Encodes a segment's header block.
pub(in crate::engine) fn encode_segment_header(uuid: &Uuid, header: Header) -> [u8; SEGMENT_HEADER] {
    let Header { generation, epoch, base } = header;
    let mut block = [0; SEGMENT_HEADER];
    block[..8].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&VERSION.to_be_bytes());
    block[16..32].copy_from_slice(uuid);
    block[32..40].copy_from_slice(&generation.to_be_bytes());
    block[40..48].copy_from_slice(&epoch.0.to_be_bytes());
    block[48..56].copy_from_slice(&base.to_be_bytes());
    let crc = crc32c::crc32c(&block[..HEADER_USED]);
    block[12..16].copy_from_slice(&crc.to_be_bytes());
    block
}

/// Checks a segment's header. `file` is its name for messages.
pub(in crate::engine) fn decode_segment_header(
    block: &[u8],
    uuid: &Uuid,
    file: &str,
) -> Result<Header, EngineError> {
    let corrupt =
        |why| EngineError::Corrupt(format!("log segment {file}: {why}; restore the metadata from a dump"));
    let Some(used) = block.first_chunk::<HEADER_USED>() else { return Err(corrupt("header truncated")) };
    if used[..8] != MAGIC {
        return Err(corrupt("not a log segment"));
    }
    check_version(&used[8..12], VERSION, &format!("log segment {file}"))?;
    let mut zeroed = *used;
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed).to_be_bytes() != used[12..16] {
        return Err(corrupt("header checksum mismatch"));
    }
    if used[16..32] != *uuid {
        return Err(EngineError::Refused(format!("log segment {file}: belongs to another volume")));
    }
    // Format 1 has zeros there.
    Ok(Header { generation: u64_at(used, 32), epoch: Epoch(u64_at(used, 40)), base: u64_at(used, 48) })
}

/// Refuses formats newer than `known`; `bytes` is the version field of `what`.
pub(in crate::engine) fn check_version(bytes: &[u8], known: u32, what: &str) -> Result<(), EngineError> {
    let version = bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
    match version {
        0 => Err(EngineError::Corrupt(format!("{what}: format version 0; restore the metadata from a dump"))),
        version if version > known => Err(EngineError::Refused(format!(
            "{what}: format {version} is newer than this program knows ({known}); use a newer program"
        ))),
        _ => Ok(()),
    }
}

pub(in crate::engine) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn header_crc(generation: u64, header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&generation.to_be_bytes()), &header[4..RECORD_HEADER])
}

/// Fills in the first [`RECORD_HEADER`] bytes of `record`, whose payload follows them and whose checksum is `payload_crc`.
pub(in crate::engine) fn seal(
    record: &mut [u8],
    payload_len: usize,
    payload_crc: u32,
    kind: Kind,
    (generation, position, durable): (u64, Position, Position),
) {
    record[4..8].copy_from_slice(&payload_crc.to_be_bytes());
    // At most PAYLOAD_MAX, checked by those who make payloads.
    record[8..12].copy_from_slice(&(payload_len as u32).to_be_bytes());
    record[12] = kind as u8;
    record[13..16].fill(0);
    record[16..24].copy_from_slice(&position.to_be_bytes());
    record[24..32].copy_from_slice(&durable.to_be_bytes());
    let crc = header_crc(generation, record);
    record[..4].copy_from_slice(&crc.to_be_bytes());
}

/// The record header at the start of `bytes`, if there is a valid one of this generation.
pub(in crate::engine) fn decode_header(bytes: &[u8], generation: u64) -> Option<Record> {
    let header = bytes.first_chunk::<RECORD_HEADER>()?;
    let kind = match header[12] {
        1 => Kind::Batch,
        2 => Kind::Marker,
        _ => return None,
    };
    if header[13..16] != [0; 3] || header_crc(generation, header) != u32_at(header, 0) {
        return None;
    }
    Some(Record {
        kind,
        position: u64_at(header, 16),
        durable: u64_at(header, 24),
        payload_len: u32_at(header, 8),
        payload_crc: u32_at(header, 4),
    })
}

/// The record at the start of `bytes` and its payload, if both are valid.
pub(in crate::engine) fn decode_record(bytes: &[u8], generation: u64) -> Option<(Record, &[u8])> {
    let record = decode_header(bytes, generation)?;
    let end = RECORD_HEADER.checked_add(record.payload_len as usize)?;
    let payload = bytes.get(RECORD_HEADER..end)?;
    (crc32c::crc32c(payload) == record.payload_crc).then_some((record, payload))
}

/// Appends a mutation to a payload.
pub(in crate::engine) fn put_mutation(out: &mut Vec<u8>, key: KeyRef<'_>, value: Option<&[u8]>) {
    out.push(key.table as u8);
    out.extend_from_slice(&key.id.to_be_bytes());
    put_varint(out, key.suffix.len() as u64);
    out.extend_from_slice(key.suffix);
    match value {
        None => out.push(0),
        Some(value) => {
            put_varint(out, value.len() as u64 + 1);
            out.extend_from_slice(value);
        }
    }
}

/// A mutation that borrows what it says.
pub(in crate::engine) type Change<'a> = (KeyRef<'a>, Option<&'a [u8]>);

/// The mutations of a payload.
pub(in crate::engine) fn decode_mutations(payload: &[u8]) -> Result<Vec<Change<'_>>, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut mutations = Vec::new();
    while reader.remaining() > 0 {
        let table = Table::from_u8(reader.u8()?).ok_or(DecodeError("unknown table"))?;
        let id = reader.u64()?;
        let suffix = reader.string(SUFFIX_MAX)?;
        let value = match reader.varint32()? {
            0 => None,
            len => Some(reader.bytes(len as usize - 1)?),
        };
        mutations.push((KeyRef { table, id, suffix }, value));
    }
    Ok(mutations)
}

/// Mutations that own what they say, for callers outside the engine.
pub(in crate::engine) fn to_owned(mutations: &[Change<'_>]) -> Vec<Mutation> {
    mutations
        .iter()
        .map(|(key, value)| Mutation { key: KeyRef::to_owned(*key), value: value.map(Into::into) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_only_as_a_whole_and_in_its_generation() {
        let mut record = vec![0; RECORD_HEADER];
        put_mutation(&mut record, KeyRef::new(Table::Entry, 7, b"name"), Some(b"value"));
        put_mutation(&mut record, KeyRef::new(Table::Link, 8, b""), None);
        let len = record.len() - RECORD_HEADER;
        let crc = crc32c::crc32c(&record[RECORD_HEADER..]);
        seal(&mut record, len, crc, Kind::Batch, (3, 10, 9));
        let (header, payload) = decode_record(&record, 3).unwrap();
        assert_eq!((header.kind, header.position, header.durable), (Kind::Batch, 10, 9));
        assert_eq!(
            decode_mutations(payload).unwrap(),
            [
                (KeyRef::new(Table::Entry, 7, b"name"), Some(b"value".as_slice())),
                (KeyRef::new(Table::Link, 8, b""), None)
            ]
        );
        assert!(decode_record(&record, 4).is_none());
        for at in 0..record.len() {
            let mut bad = record.clone();
            bad[at] ^= 0x40;
            assert!(decode_record(&bad, 3).is_none(), "byte {at}");
            assert!(decode_record(&record[..at], 3).is_none());
        }
    }

    #[test]
    fn segment_headers_are_checked() {
        let uuid = [7; 16];
        let header = Header { generation: 42, epoch: Epoch(3), base: 17 };
        let block = encode_segment_header(&uuid, header);
        assert_eq!(decode_segment_header(&block, &uuid, "f"), Ok(header));
        assert!(matches!(decode_segment_header(&block, &[8; 16], "f"), Err(EngineError::Refused(_))));
        let mut newer = block;
        newer[11] = 3;
        assert!(matches!(decode_segment_header(&newer, &uuid, "f"), Err(EngineError::Refused(_))));
        for at in (0..8).chain(12..HEADER_USED) {
            let mut bad = block;
            bad[at] ^= 1;
            assert!(
                matches!(decode_segment_header(&bad, &uuid, "f"), Err(EngineError::Corrupt(_))),
                "byte {at}"
            );
        }
    }
}
