//! Finds the one flipped bit of a record with a wrong checksum.
//!
//! A checksum is linear: the difference between the one that a record has and the one that it
//! should have depends only on which bits are wrong, and for a single bit each place has a
//! difference of its own. That damage of many bits looks like one bit has a chance of the record's
//! bits in 2^32; so this is for a salvage, which a person starts, and not for a recovery.

use std::borrow::Cow;

use super::format::{RECORD_HEADER, decode_header, decode_record};

/// CRC-32C, bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The record at the start of `bytes` as it was before one bit of it was flipped; none if that is
/// not what is wrong.
pub(crate) fn unflip(bytes: &[u8], generation: u64) -> Option<Cow<'_, [u8]>> {
    if let Some(record) = decode_header(bytes, generation) {
        let len = record.bytes().min(bytes.len());
        let mut repaired = bytes[..len].to_vec();
        let payload = repaired.get_mut(RECORD_HEADER..record.end())?;
        let difference = crc32c::crc32c(payload) ^ record.payload_crc();
        let bit = flipped_bit(payload.len(), difference)?;
        payload[bit / 8] ^= 1 << (bit % 8);
        return decode_record(&repaired, generation).is_some().then_some(repaired.into());
    }
    let mut header = *bytes.first_chunk::<RECORD_HEADER>()?;
    for bit in 0..RECORD_HEADER * 8 {
        header[bit / 8] ^= 1 << (bit % 8);
        if let Some(record) = decode_header(&header, generation) {
            let mut repaired = bytes[..record.bytes().min(bytes.len())].to_vec();
            repaired.get_mut(..RECORD_HEADER)?.copy_from_slice(&header);
            return decode_record(&repaired, generation).is_some().then_some(repaired.into());
        }
        header[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// The bit of a message of `len` bytes that, flipped, makes this difference of checksums.
fn flipped_bit(len: usize, difference: u32) -> Option<usize> {
    let shift = |state: u32| if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
    // That of the last bit of the last byte; each bit before it is one step of the checksum further
    // away.
    let mut state = shift(1);
    for bit in (0..len.checked_mul(8)?).rev() {
        if state == difference {
            return Some(bit);
        }
        state = shift(state);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::format::{Kind, put_mutation, seal};
    use super::*;
    use kestrel_types::key::{KeyRef, Table};

    /// Every single flipped bit of a record is found, wherever it is; two flipped bits are not
    /// taken for one.
    #[test]
    fn single_flipped_bits() {
        let mut record = vec![0; RECORD_HEADER];
        put_mutation(
            &mut record,
            KeyRef::new(Table::Entry, 7, b"name"),
            Some(b"a value of some length"),
        );
        let len = record.len() - RECORD_HEADER;
        let crc = crc32c::crc32c(&record[RECORD_HEADER..]);
        record.resize(record.len().next_multiple_of(8), 0);
        seal(&mut record, len, crc, Kind::Batch, (3, 10, 9));
        for bit in 0..(RECORD_HEADER + len) * 8 {
            let mut bad = record.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let repaired = unflip(&bad, 3).unwrap_or_else(|| panic!("bit {bit}"));
            assert_eq!(decode_record(&repaired, 3), decode_record(&record, 3), "bit {bit}");
            bad[(bit / 8 + 5) % (RECORD_HEADER + len)] ^= 0x10;
            assert_eq!(unflip(&bad, 3), None, "bit {bit}");
        }
    }
}
