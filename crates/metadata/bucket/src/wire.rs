//! Reading of fields, and the error of what is damaged.

use kestrel_engine::EngineError;

/// Bytes that have not been read yet.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes, if they are there.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// An array.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A number, little-endian.
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// A number, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// A number, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// An object is damaged.
pub fn corrupt(name: &str, why: &str) -> EngineError {
    EngineError::Corrupt(format!(
        "metadata in a bucket: {name}: {why}; the object was damaged or changed in the store: \
         bring it back from a copy of the bucket, or load a dump of the volume"
    ))
}
