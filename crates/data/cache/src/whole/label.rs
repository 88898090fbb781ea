//! The label of a whole copy: an extended attribute with the identity of the file that it is a copy
//! of, and its checksum.

use kestrel_blockstore::object::VolumeId;

/// Name of the extended attribute.
pub(super) const NAME: &std::ffi::CStr = c"user.kestrel.whole";

/// Bytes of a label.
pub(super) const LABEL_BYTES: usize = 16;

/// First bytes of a label; the last one is the version.
const MAGIC: [u8; 4] = *b"KCW\x01";

/// The content that a whole copy is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WholeId {
    /// The file's inode.
    pub ino: u64,
    /// Which of its contents: the `data_change` of the inode.
    pub change: u64,
    /// Bytes.
    pub size: u64,
}

impl WholeId {
    /// The checksum that the label carries: CRC-32C of the bytes, followed by what they are.
    fn check(&self, volume: &VolumeId, bytes_check: u32) -> u32 {
        let mut identity = [0; 40];
        identity[..16].copy_from_slice(volume);
        identity[16..24].copy_from_slice(&self.ino.to_be_bytes());
        identity[24..32].copy_from_slice(&self.change.to_be_bytes());
        identity[32..].copy_from_slice(&self.size.to_be_bytes());
        crc32c::crc32c_append(bytes_check, &identity)
    }

    /// The label of a copy with bytes of this CRC-32C.
    pub(super) fn label(&self, volume: &VolumeId, bytes_check: u32) -> [u8; LABEL_BYTES] {
        let mut label = [0; LABEL_BYTES];
        label[..4].copy_from_slice(&MAGIC);
        label[4..12].copy_from_slice(&self.size.to_be_bytes());
        label[12..].copy_from_slice(&self.check(volume, bytes_check).to_be_bytes());
        label
    }

    /// Name of the copy in its directory.
    pub(super) fn name(&self) -> String {
        format!("{:016x}-{:016x}", self.ino, self.change)
    }
}

/// Whether a name is one of a whole copy; then the inode's number.
pub(crate) fn parse(name: &str) -> Option<u64> {
    let (ino, change) = name.split_once('-')?;
    let number = |text: &str| {
        let is_plain =
            text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    number(change).and(number(ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_pinned() {
        let id = WholeId { ino: 0x15, change: 0x1234, size: 5 };
        let label = id.label(&[7; 16], crc32c::crc32c(b"hello"));
        assert_eq!(label[..12], *b"KCW\x01\0\0\0\0\0\0\0\x05");
        let mut all = b"hello".to_vec();
        all.extend([7; 16]);
        all.extend(0x15u64.to_be_bytes());
        all.extend(0x1234u64.to_be_bytes());
        all.extend(5u64.to_be_bytes());
        assert_eq!(label[12..], crc32c::crc32c(&all).to_be_bytes());
        assert_eq!(id.name(), "0000000000000015-0000000000001234");
        assert_eq!(parse(&id.name()), Some(0x15));
        for bad in [
            "",
            "-",
            "15-1234",
            "0000000000000015-000000000000123G",
            "0000000000000015-+000000000001234",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
