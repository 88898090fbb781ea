//! Reading of encoded rows and frames: every read is bounds-checked, nothing panics on what comes
//! from outside.
//!
//! Fixed-width integers are big-endian. Variable-width integers are LEB128 (7 bits a byte, low bits
//! first).

use std::fmt;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for DecodeError {}

const SHORT: DecodeError = DecodeError("truncated");

/// A cursor over encoded bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Starts behind a first byte, which has to be `version`.
    ///
    /// # Errors
    /// `unknown` for another version; if there is no byte.
    pub fn versioned(
        bytes: &'a [u8],
        version: u8,
        unknown: DecodeError,
    ) -> Result<Self, DecodeError> {
        let mut reader = Self::new(bytes);
        if reader.u8()? == version { Ok(reader) } else { Err(unknown) }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// The next `len` bytes.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = tail;
        Ok(head)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = tail;
        Ok(*head)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Eight bytes, two's complement.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A variable-width integer, at most 10 bytes.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.0.split_first() {
            Some((byte, tail)) if *byte < 0x80 => {
                self.0 = tail;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    /// One of several bytes: up to eight are looked at together, as far as there are eight.
    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        const CONTINUES: u64 = u64::from_le_bytes([0x80; 8]);
        let Some(word) = self.0.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)) else {
            return self.varint_by_bytes();
        };
        let last = !word & CONTINUES;
        if last == 0 {
            return self.varint_by_bytes();
        }
        let bits = last.trailing_zeros() + 1;
        // Sevens of bits side by side: pairs of bytes, then of those, then of those.
        let word = word & !CONTINUES & (u64::MAX >> (64 - bits));
        let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
        let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
        let word = word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4;
        self.0 = &self.0[bits as usize / 8..];
        Ok(word)
    }

    fn varint_by_bytes(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the 64th bit.
            if at == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err(if self.0.len() < 10 { SHORT } else { DecodeError("integer too long") })
    }

    /// A variable-width integer that must fit 32 bits.
    #[inline]
    pub fn varint32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError("integer too large"))
    }

    /// A byte string preceded by its length.
    pub fn string(&mut self, len_max: usize) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.varint()?).map_err(|_| DecodeError("length too large"))?;
        if len > len_max {
            return Err(DecodeError("length above its limit"));
        }
        self.bytes(len)
    }

    /// Fails unless everything has been read.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError("bytes left over")) }
    }
}

/// Appends a variable-width integer.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a byte string preceded by its length.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.end(), Ok(()));
        }
        for shift in 0..64 {
            for value in
                [1u64 << shift, u64::MAX >> shift, 0x0123_4567_89ab_cdef >> shift, (1 << shift) - 1]
            {
                for behind in [&[][..], &[0x7f; 9], &[0xff; 9]] {
                    let mut out = Vec::new();
                    put_varint(&mut out, value);
                    out.extend_from_slice(behind);
                    let mut reader = Reader::new(&out);
                    assert_eq!(reader.varint(), Ok(value));
                    assert_eq!(reader.rest(), behind);
                }
            }
        }
        assert!(Reader::new(&[0xff; 11]).varint().is_err());
        assert!(Reader::new(&[0x80]).varint().is_err());
    }
}
