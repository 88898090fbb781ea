//! Stored ranges: where bytes of file data are in the block store (`docs/format/objects.md`,
//! "Stored range").

use crate::codec::{DecodeError, Reader};
use crate::ids::ObjectId;

/// Logical bytes of a frame. Each frame is stored with its checksum and verified as a whole.
pub const FRAME_BYTES: u32 = 64 * 1024;

/// Bytes of the CRC-32C that follows each frame's data.
pub const FRAME_CHECK_BYTES: u32 = 4;

/// Longest stored range, logical bytes: the largest block size.
pub const RANGE_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// `len` logical bytes of one file, stored from byte `offset` of an object as frames. Immutable
/// once written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Range {
    /// The object that holds the frames.
    pub object: ObjectId,
    /// First byte of the first frame within the object.
    pub offset: u32,
    /// Logical bytes, 1 to [`RANGE_BYTES_MAX`].
    pub len: u32,
}

impl Range {
    /// Bytes the range takes within its object: data and checksums.
    pub fn stored_len(&self) -> u32 {
        stored_len(self.len)
    }

    /// Appends 16 bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.object.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// Reads what [`Range::encode_into`] wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let range = Self { object: reader.u64()?, offset: reader.u32()?, len: reader.u32()? };
        if range.object == 0 || range.len == 0 || range.len > RANGE_BYTES_MAX {
            return Err(DecodeError("stored range out of bounds"));
        }
        Ok(range)
    }
}

/// Bytes that `len` logical bytes take within an object.
pub const fn stored_len(len: u32) -> u32 {
    len + len.div_ceil(FRAME_BYTES) * FRAME_CHECK_BYTES
}
