//! The head of a coded object: header, table of chunks, checks (`docs/format/objects.md`, "Coded
//! objects").

use std::ops::Range;

use kestrel_types::ids::ObjectId;
use kestrel_types::range::{FRAME_BYTES, FRAME_CHECK_BYTES};

use super::compression::Method;
use super::keys::{Keys, NoncePart, ObjectKey, SALT_BYTES, TAG_BYTES};
use crate::error::{Error, Result};
use crate::object::{HEADER_BYTES as PLAIN_HEADER_BYTES, MEMBER_BYTES, VolumeId};

/// First bytes of every coded object.
pub(super) const MAGIC: [u8; 8] = *b"KSTCODED";

/// Version of the format that this code writes, and the newest it reads.
pub(super) const VERSION: u16 = 1;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 96;

/// Bytes of a chunk's line in the table.
const ENTRY_BYTES: usize = 8;

/// Bytes of the checks behind the table: tag and CRC.
const CHECKS_BYTES: usize = TAG_BYTES + 4;

/// Plain bytes of a chunk: a frame and its check, so that reading one frame of a large file decodes
/// one chunk.
pub(super) const CHUNK_BYTES: u32 = FRAME_BYTES + FRAME_CHECK_BYTES;

/// Plain bytes of the first chunk: also the headers that come before the first frame.
pub(super) const FIRST_CHUNK_BYTES: u32 = (PLAIN_HEADER_BYTES + MEMBER_BYTES) as u32 + CHUNK_BYTES;

/// Largest chunk that is read, bytes: bounds what one read decodes for a single byte.
const CHUNK_BYTES_MAX: u32 = 2 << 20;

/// Most chunks of an object: bounds its table to 128 KiB. At the present chunk size that is 1 GiB
/// of plain bytes; packs and blocks have 16 MiB.
pub(super) const CHUNKS_MAX: u32 = 16_384;

/// Bit of a table line's length: the chunk is compressed.
const COMPRESSED: u32 = 1 << 31;

/// The fixed part of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// How its compressed chunks are compressed.
    pub method: Method,
    /// Number of the data key, if it is encrypted.
    pub key: Option<u32>,
    pub volume: VolumeId,
    pub object: ObjectId,
    /// Bytes before coding.
    pub plain_len: u64,
    pub first_chunk_bytes: u32,
    pub chunk_bytes: u32,
    /// Zero if it is not encrypted.
    pub salt: [u8; SALT_BYTES],
}

impl Header {
    /// Number of chunks; beyond [`CHUNKS_MAX`] some number beyond it.
    pub fn chunks(&self) -> u32 {
        let rest = self.plain_len.saturating_sub(u64::from(self.first_chunk_bytes));
        let more = rest.div_ceil(u64::from(self.chunk_bytes));
        u32::from(self.plain_len > 0).saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
    }

    /// Bytes from the object's beginning to its first chunk.
    pub fn head_len(&self) -> usize {
        HEADER_BYTES + ENTRY_BYTES * self.chunks() as usize + CHECKS_BYTES
    }

    /// Plain bytes that a chunk holds.
    pub fn plain_of(&self, chunk: u32) -> Range<u64> {
        let begin = |chunk: u32| match chunk {
            0 => 0,
            _ => {
                u64::from(self.first_chunk_bytes)
                    + u64::from(chunk - 1) * u64::from(self.chunk_bytes)
            }
        };
        begin(chunk)..begin(chunk + 1).min(self.plain_len)
    }

    /// The chunk that holds a plain byte.
    pub fn chunk_of(&self, plain: u64) -> u32 {
        match plain.checked_sub(u64::from(self.first_chunk_bytes)) {
            None => 0,
            Some(behind) => {
                u32::try_from(behind / u64::from(self.chunk_bytes) + 1).unwrap_or(u32::MAX)
            }
        }
    }

    /// Bytes that encryption adds to each chunk.
    pub fn tag_len(&self) -> usize {
        if self.key.is_some() { TAG_BYTES } else { 0 }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10] = self.method as u8;
        bytes[11] = u8::from(self.key.is_some());
        bytes[12..16].copy_from_slice(&self.key.unwrap_or(0).to_be_bytes());
        bytes[16..32].copy_from_slice(&self.volume);
        bytes[32..40].copy_from_slice(&self.object.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.plain_len.to_be_bytes());
        bytes[48..52].copy_from_slice(&self.first_chunk_bytes.to_be_bytes());
        bytes[52..56].copy_from_slice(&self.chunk_bytes.to_be_bytes());
        bytes[56..60].copy_from_slice(&self.chunks().to_be_bytes());
        bytes[60..92].copy_from_slice(&self.salt);
        let check = crc32c::crc32c(&bytes[..92]);
        bytes[92..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// Reads the header of `object` of `volume`.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged or another object's, `Coding` if it takes a newer program.
    pub fn decode(bytes: &[u8; HEADER_BYTES], volume: &VolumeId, object: ObjectId) -> Result<Self> {
        let corrupt = |what| Err(Error::Corrupt { object, offset: 0, what });
        if crc32c::crc32c(&bytes[..92]).to_be_bytes() != bytes[92..] {
            return corrupt("the checksum of a coded object's header does not match");
        }
        let version = u16::from_be_bytes(array(bytes, 8));
        if version != VERSION {
            return Err(newer(object, &format!("coded in format version {version}")));
        }
        let Some(method) = Method::from_byte(bytes[10]) else {
            return Err(newer(object, &format!("compressed by method {}", bytes[10])));
        };
        let number = u32::from_be_bytes(array(bytes, 12));
        let key = match bytes[11] {
            0 if number == 0 => None,
            1 if number != 0 => Some(number),
            0 | 1 => {
                return corrupt("a coded object's header tells a data key where there is none");
            }
            cipher => return Err(newer(object, &format!("encrypted by cipher {cipher}"))),
        };
        let header = Self {
            method,
            key,
            volume: array(bytes, 16),
            object: u64::from_be_bytes(array(bytes, 32)),
            plain_len: u64::from_be_bytes(array(bytes, 40)),
            first_chunk_bytes: u32::from_be_bytes(array(bytes, 48)),
            chunk_bytes: u32::from_be_bytes(array(bytes, 52)),
            salt: array(bytes, 60),
        };
        if header.volume != *volume {
            return corrupt("it is an object of another volume");
        }
        if header.object != object {
            return corrupt("it is another object under this name");
        }
        let sizes = 1..=CHUNK_BYTES_MAX;
        if !sizes.contains(&header.first_chunk_bytes)
            || !sizes.contains(&header.chunk_bytes)
            || header.chunks() > CHUNKS_MAX
            || header.chunks().to_be_bytes() != bytes[56..60]
        {
            return corrupt("a coded object's header tells sizes that cannot be");
        }
        Ok(header)
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn newer(object: ObjectId, what: &str) -> Error {
    Error::Coding {
        object,
        why: format!("it is {what}, which this version does not know; use a newer kestrel").into(),
    }
}

/// A chunk's entry in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkEntry {
    /// Where its stored bytes end, counted from the first chunk on. They begin where the chunk
    /// before ends.
    end: u32,
    pub is_compressed: bool,
    /// CRC-32C of the stored bytes.
    pub check: u32,
}

/// A head that was read and verified.
pub(super) struct Head {
    pub header: Header,
    /// The header's bytes: what every chunk is authenticated with.
    pub header_bytes: [u8; HEADER_BYTES],
    entries: Box<[ChunkEntry]>,
    pub key: Option<ObjectKey>,
}

impl Head {
    /// Reads the table behind `header`. `bytes` are the object's first ones, [`Header::head_len`]
    /// of them.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged; `Coding` if there is no key for it, or not the right one.
    pub fn decode(header: Header, bytes: &[u8], keys: Option<&Keys>) -> Result<Self> {
        let object = header.object;
        let corrupt = |what| Err(Error::Corrupt { object, offset: HEADER_BYTES as u64, what });
        let Some((header_bytes, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return corrupt("a coded object's head is cut off");
        };
        let table_len = ENTRY_BYTES * header.chunks() as usize;
        let Some((table, checks)) =
            rest.split_at_checked(table_len).filter(|(_, rest)| rest.len() == CHECKS_BYTES)
        else {
            return corrupt("a coded object's head is cut off");
        };
        let (tag, check) = checks.split_at(TAG_BYTES);
        if crc32c::crc32c(&bytes[..bytes.len() - 4]).to_be_bytes() != check {
            return corrupt("the checksum of a coded object's table does not match");
        }
        let key = object_key(&header, keys)?;
        match &key {
            Some(key) => {
                let mut tag: Vec<u8> = tag.to_vec();
                if key.open(NoncePart::Head, &bytes[..HEADER_BYTES + table_len], &mut tag).is_none()
                {
                    let why = format!(
                        "its head does not open with data key {} of this volume: it was written \
                         with another key or \
                         forged; if the descriptor was restored, restore the newest copy of it",
                        header.key.unwrap_or(0)
                    );
                    return Err(Error::Coding { object, why: why.into() });
                }
            }
            None if tag.iter().any(|byte| *byte != 0) => {
                return corrupt("a coded object has a tag and is not encrypted");
            }
            None => {}
        }
        let Some(entries) = decode_table(&header, table) else {
            return corrupt("a coded object's table tells sizes that cannot be");
        };
        Ok(Self { header_bytes: *header_bytes, header, entries, key })
    }

    /// Where a chunk's stored bytes are in the object.
    pub fn stored_of(&self, chunk: u32) -> Range<u64> {
        let base = self.header.head_len() as u64;
        let begin = chunk.checked_sub(1).map_or(0, |before| self.entries[before as usize].end);
        base + u64::from(begin)..base + u64::from(self.entries[chunk as usize].end)
    }

    /// A chunk's entry in the table.
    pub fn entry(&self, chunk: u32) -> ChunkEntry {
        self.entries[chunk as usize]
    }

    /// Memory it takes, bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.entries) + if self.key.is_some() { 1024 } else { 0 }
    }
}

/// The object's own key, if it is encrypted.
pub(super) fn object_key(header: &Header, keys: Option<&Keys>) -> Result<Option<ObjectKey>> {
    let Some(number) = header.key else { return Ok(None) };
    let missing = |why: String| Error::Coding { object: header.object, why: why.into() };
    let keys = keys.ok_or_else(|| {
        missing(
            "it is encrypted, and this volume's descriptor has no keys; restore the newest \
                 copy of kestrel.json"
                .into(),
        )
    })?;
    let key = keys.object_key(number, &header.salt, &header.volume, header.object).ok_or_else(|| {
        missing(format!(
            "it is encrypted with data key {number}, which this volume's descriptor does not have; \
             restore the newest copy \
             of kestrel.json, then mount again"
        ))
    })?;
    Ok(Some(key))
}

fn decode_table(header: &Header, table: &[u8]) -> Option<Box<[ChunkEntry]>> {
    let mut end = 0u32;
    let entries = table.chunks_exact(ENTRY_BYTES).zip(0u32..).map(|(entry, chunk)| {
        let (len, check) = entry.split_first_chunk::<4>()?;
        let (len, check) = (u32::from_be_bytes(*len), u32::from_be_bytes(check.try_into().ok()?));
        let (is_compressed, len) = (len & COMPRESSED != 0, len & !COMPRESSED);
        let plain = header.plain_of(chunk);
        let whole = u32::try_from(plain.end - plain.start).ok()? + header.tag_len() as u32;
        let is_possible =
            if is_compressed { header.method != Method::None && len < whole } else { len == whole };
        end = end.checked_add(len).filter(|_| is_possible)?;
        Some(ChunkEntry { end, is_compressed, check })
    });
    entries.collect()
}

/// Writes heads: filled in chunk by chunk, sealed at the end.
pub(super) struct HeadWriter {
    header: Header,
    header_bytes: [u8; HEADER_BYTES],
    table: Vec<u8>,
}

impl HeadWriter {
    pub fn new(header: Header) -> Self {
        let table = Vec::with_capacity(ENTRY_BYTES * header.chunks() as usize);
        Self { header_bytes: header.encode(), header, table }
    }

    /// The header's bytes: what every chunk is authenticated with.
    pub fn header_bytes(&self) -> &[u8; HEADER_BYTES] {
        &self.header_bytes
    }

    /// Notes the next chunk, as it is stored.
    pub fn push(&mut self, stored: &[u8], is_compressed: bool) {
        // Chunks have at most 2 MiB and a tag, so their lengths leave the flag's bit alone.
        let len = stored.len() as u32 | if is_compressed { COMPRESSED } else { 0 };
        self.table.extend_from_slice(&len.to_be_bytes());
        self.table.extend_from_slice(&crc32c::crc32c(stored).to_be_bytes());
    }

    /// Writes the head into its place, the first [`Header::head_len`] bytes of the object.
    ///
    /// # Errors
    /// As [`ObjectKey::seal`].
    pub fn finish(self, key: Option<&ObjectKey>, out: &mut [u8]) -> Result<()> {
        let (covered, checks) = out.split_at_mut(self.header.head_len() - CHECKS_BYTES);
        covered[..HEADER_BYTES].copy_from_slice(&self.header_bytes);
        covered[HEADER_BYTES..].copy_from_slice(&self.table);
        let tag = match key {
            Some(key) => key.seal(NoncePart::Head, covered, &mut [])?,
            None => [0; TAG_BYTES],
        };
        checks[..TAG_BYTES].copy_from_slice(&tag);
        let check = crc32c::crc32c_append(crc32c::crc32c(covered), &tag);
        checks[TAG_BYTES..CHECKS_BYTES].copy_from_slice(&check.to_be_bytes());
        Ok(())
    }
}
