//! The format of objects (`docs/format/objects.md`, byte-exact there).
//!
//! An object is a header and members. A member is a header and a stored range: frames of up to 64
//! KiB, each followed by its check. Integers are big-endian. Members begin where the one before
//! ends, so what an object holds can be found without any metadata, by reading it from its
//! beginning ([`crate::scan`]).

use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::ids::{InodeId, ObjectId};

/// First bytes of every object.
pub const MAGIC: [u8; 8] = *b"KSTLOBJ\n";

/// First bytes of every member.
pub const MEMBER_MAGIC: [u8; 4] = *b"KMBR";

/// Version of the format that this code writes, and the newest it reads.
pub const VERSION: u16 = 1;

/// Bytes of an object's header.
pub const HEADER_BYTES: usize = 48;

/// Bytes of a member's header.
pub const MEMBER_BYTES: usize = 32;

/// Identity of the volume an object belongs to.
pub type VolumeId = [u8; 16];

/// What an object was made for. Readers need not care: both are header and members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectKind {
    /// Members of many files.
    Pack = 1,
    /// One large member.
    Block = 2,
}

/// The header of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHeader {
    /// What it was made for.
    pub kind: ObjectKind,
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Its own number.
    pub object: ObjectId,
}

impl ObjectHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10] = self.kind as u8;
        bytes[16..32].copy_from_slice(&self.volume);
        bytes[32..40].copy_from_slice(&self.object.to_be_bytes());
        let check = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(8)? != MAGIC {
            return Err(DecodeError("not an object of KestrelFS"));
        }
        let version = reader.u16()?;
        if crc32c::crc32c(&bytes[..44]).to_be_bytes() != bytes[44..] {
            return Err(DecodeError("checksum of the object's header does not match"));
        }
        if version != VERSION {
            return Err(DecodeError("object of an unknown format version"));
        }
        let kind = match reader.u8()? {
            1 => ObjectKind::Pack,
            2 => ObjectKind::Block,
            _ => return Err(DecodeError("object of an unknown kind")),
        };
        reader.bytes(5)?;
        let mut volume = VolumeId::default();
        volume.copy_from_slice(reader.bytes(16)?);
        Ok(Self { kind, volume, object: reader.u64()? })
    }
}

/// The header of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberHeader {
    /// The file the bytes were written for. A hint for recovery: clones and links make other files
    /// refer to them too.
    pub inode: InodeId,
    /// Logical bytes of the range that follows.
    pub len: u32,
}

impl MemberHeader {
    /// The header's bytes, at byte `offset` of an object.
    pub fn encode(&self, object: ObjectId, offset: u32) -> [u8; MEMBER_BYTES] {
        let mut bytes = [0; MEMBER_BYTES];
        bytes[..4].copy_from_slice(&MEMBER_MAGIC);
        bytes[8..16].copy_from_slice(&self.inode.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_be_bytes());
        let check = placed_check(crc32c::crc32c(&bytes[..28]), object, offset, 0);
        bytes[28..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// Reads the header at byte `offset` of an object.
    pub fn decode(
        bytes: &[u8; MEMBER_BYTES],
        object: ObjectId,
        offset: u32,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes(4)? != MEMBER_MAGIC {
            return Err(DecodeError("no member here"));
        }
        if placed_check(crc32c::crc32c(&bytes[..28]), object, offset, 0).to_be_bytes()
            != bytes[28..]
        {
            return Err(DecodeError("checksum of the member's header does not match"));
        }
        if reader.u32()? != 0 {
            return Err(DecodeError("member with unknown flags"));
        }
        Ok(Self { inode: reader.u64()?, len: reader.u32()? })
    }
}

/// Carries the CRC-32C of some bytes on over where they lie, so that right bytes in the wrong place
/// do not pass: the object, the offset of the range within it and the number of the frame within
/// the range.
pub fn placed_check(check: u32, object: ObjectId, offset: u32, frame: u32) -> u32 {
    let mut position = [0; 16];
    position[..8].copy_from_slice(&object.to_be_bytes());
    position[8..12].copy_from_slice(&offset.to_be_bytes());
    position[12..].copy_from_slice(&frame.to_be_bytes());
    crc32c::crc32c_append(check, &position)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: ObjectHeader =
        ObjectHeader { kind: ObjectKind::Pack, volume: [7; 16], object: 0x0102_0304 };

    /// Object headers read back, and damage of any byte of them is noticed.
    #[test]
    fn object_header_round_trip_and_damage() {
        let bytes = HEADER.encode();
        assert_eq!(ObjectHeader::decode(&bytes), Ok(HEADER));
        for at in 0..HEADER_BYTES {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(ObjectHeader::decode(&bad).is_err(), "byte {at}");
        }
        let member = MemberHeader { inode: 99, len: 5 };
        let bytes = member.encode(3, 48);
        assert_eq!(MemberHeader::decode(&bytes, 3, 48), Ok(member));
        assert!(MemberHeader::decode(&bytes, 4, 48).is_err());
        assert!(MemberHeader::decode(&bytes, 3, 49).is_err());
        for at in 0..MEMBER_BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x80;
            assert!(MemberHeader::decode(&bad, 3, 48).is_err(), "byte {at}");
        }
    }

    #[test]
    fn newer_versions_are_refused() {
        let mut bytes = HEADER.encode();
        bytes[9] = 2;
        let check = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&check.to_be_bytes());
        assert_eq!(
            ObjectHeader::decode(&bytes),
            Err(DecodeError("object of an unknown format version"))
        );
    }

    #[test]
    fn the_format_is_pinned() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&HEADER.encode()),
            "4b53544c4f424a0a000101000000000007070707070707070707070707070707000000000102030400000\
            000f988de89"
        );
        assert_eq!(
            hex(&MemberHeader { inode: 99, len: 5 }.encode(3, 48)),
            "4b4d425200000000000000000000006300000005000000000000000081bb23d1"
        );
        assert_eq!(format!("{:08x}", placed_check(crc32c::crc32c(b"hello"), 3, 80, 0)), "ffcab73b");
    }
}
