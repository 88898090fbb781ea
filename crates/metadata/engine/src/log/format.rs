//! Bytes of the log (`docs/format/log.md`).

use kestrel_types::codec::{DecodeError, Reader, put_varint};
use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, SUFFIX_MAX, Table};

use crate::small_record::{self, ADVICE, RecordKind, Uuid, u64_at};
use crate::{EngineError, Epoch, Mutation};

/// How the record at the beginning of a segment looks.
const HEADER: RecordKind =
    RecordKind { name: "log segment", magic: *b"KSTRLOG\n", version: 2, advice: ADVICE };
/// Bytes of a segment before its first record: a block, so that no write of records touches it.
pub(crate) const SEGMENT_HEADER: usize = 4096;
/// Where the header's second copy is: in another sector than the first.
const HEADER_COPY: usize = 2048;
/// Bytes of a record before its payload.
pub(crate) const RECORD_HEADER: usize = 32;
/// Records start at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Most bytes of a record's payload.
pub(crate) const PAYLOAD_MAX: usize = 1 << 30;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A batch of mutations, at its own position.
    Batch = 1,
    /// Marks everything up to its position as durable; has the position of the batch before it.
    Marker = 2,
}

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: Kind,
    pub position: Position,
    /// Newest durable position when the record was written.
    pub durable: Position,
    payload_len: u32,
    payload_crc: u32,
}

impl Record {
    /// Where the payload ends, bytes from the record's start.
    pub fn end(&self) -> usize {
        RECORD_HEADER + self.payload_len as usize
    }

    /// The checksum that the payload should have.
    pub fn payload_crc(&self) -> u32 {
        self.payload_crc
    }

    /// Bytes from the record's start to the next one's.
    pub fn bytes(&self) -> usize {
        (RECORD_HEADER + self.payload_len as usize).next_multiple_of(ALIGN)
    }
}

/// The contents of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub generation: u64,
    /// Epoch of the opening that made it; 0 in format 1.
    pub epoch: Epoch,
    /// Position of the last batch before that opening.
    pub base: Position,
}

/// Encodes a segment's header block.
pub(crate) fn encode_segment_header(uuid: &Uuid, header: Header) -> [u8; SEGMENT_HEADER] {
    let Header { generation, epoch, base } = header;
    let mut block = [0; SEGMENT_HEADER];
    let used = HEADER.encode(uuid, [generation, epoch.0, base, 0]);
    for at in [0, HEADER_COPY] {
        block[at..at + small_record::BYTES].copy_from_slice(&used);
    }
    block
}

/// Checks a segment's header, of which the block holds two copies unless an older program wrote it.
/// `file` is its name for messages. Answers whether the first copy is intact.
pub(crate) fn decode_segment_header(
    block: &[u8],
    uuid: &Uuid,
    file: &str,
) -> Result<(Header, bool), EngineError> {
    let part = |at: usize| block.get(at..at + small_record::BYTES).unwrap_or_default();
    let ([generation, epoch, base, _], is_whole) =
        HEADER.decode_either([part(0), part(HEADER_COPY)], uuid, file)?;
    // Format 1 has zeros there.
    Ok((Header { generation, epoch: Epoch(epoch), base }, is_whole))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn header_crc(generation: u64, header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&generation.to_be_bytes()), &header[4..RECORD_HEADER])
}

/// Fills in the first [`RECORD_HEADER`] bytes of `record`; its payload follows them and has the
/// checksum `payload_crc`.
pub(crate) fn seal(
    record: &mut [u8],
    payload_len: usize,
    payload_crc: u32,
    kind: Kind,
    (generation, position, durable): (u64, Position, Position),
) {
    record[4..8].copy_from_slice(&payload_crc.to_be_bytes());
    // At most PAYLOAD_MAX, checked where payloads are made.
    record[8..12].copy_from_slice(&(payload_len as u32).to_be_bytes());
    record[12] = kind as u8;
    record[13..16].fill(0);
    record[16..24].copy_from_slice(&position.to_be_bytes());
    record[24..32].copy_from_slice(&durable.to_be_bytes());
    let crc = header_crc(generation, record);
    record[..4].copy_from_slice(&crc.to_be_bytes());
}

/// The record header at the start of `bytes`, if there is a valid one of this generation.
pub(crate) fn decode_header(bytes: &[u8], generation: u64) -> Option<Record> {
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
pub(crate) fn decode_record(bytes: &[u8], generation: u64) -> Option<(Record, &[u8])> {
    let record = decode_header(bytes, generation)?;
    let end = RECORD_HEADER.checked_add(record.payload_len as usize)?;
    let payload = bytes.get(RECORD_HEADER..end)?;
    (crc32c::crc32c(payload) == record.payload_crc).then_some((record, payload))
}

/// Appends a mutation to a payload.
pub(crate) fn put_mutation(out: &mut Vec<u8>, key: KeyRef<'_>, value: Option<&[u8]>) {
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

/// A mutation that borrows its key and value.
pub(crate) type Change<'a> = (KeyRef<'a>, Option<&'a [u8]>);

/// The mutations of a payload.
pub(crate) fn decode_mutations(payload: &[u8]) -> Result<Vec<Change<'_>>, DecodeError> {
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
pub(crate) fn to_owned(mutations: &[Change<'_>]) -> Vec<Mutation> {
    mutations
        .iter()
        .map(|(key, value)| Mutation { key: KeyRef::to_owned(*key), value: value.map(Into::into) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log record is valid only as a whole, and only in its generation.
    #[test]
    fn log_record_validity() {
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

    /// A header with one damaged copy is read, with two refused.
    #[test]
    fn damaged_segment_headers() {
        let uuid = [7; 16];
        let header = Header { generation: 42, epoch: Epoch(3), base: 17 };
        let block = encode_segment_header(&uuid, header);
        assert_eq!(decode_segment_header(&block, &uuid, "f"), Ok((header, true)));
        assert!(matches!(
            decode_segment_header(&block, &[8; 16], "f"),
            Err(EngineError::Refused(_))
        ));
        for at in 0..small_record::BYTES {
            let mut bad = block;
            bad[at] ^= 1;
            assert_eq!(decode_segment_header(&bad, &uuid, "f"), Ok((header, false)), "byte {at}");
            bad[HEADER_COPY + at] ^= 1;
            assert!(decode_segment_header(&bad, &uuid, "f").is_err(), "byte {at}");
        }
        // As a program wrote it that knew of one copy only.
        let mut old = block;
        old[HEADER_COPY..].fill(0);
        assert_eq!(decode_segment_header(&old, &uuid, "f"), Ok((header, true)));
    }
}
