//! The format of a cache file: slots (`docs/format/cache.md`, byte-exact there).
//!
//! A cache file holds pages of one object. Page `i` has its slot at byte `i * SLOT_BYTES`: the
//! page's data, then a trailer with the number of bytes that are data, and a checksum over these
//! and over their identity (volume, object, page). A page is there if and only if it has a trailer
//! and the checksum agrees: a hole, a torn write, a file copied from elsewhere or renamed are all
//! the same thing, a page that is not there. Nothing else is recorded, so nothing needs to be
//! recovered.

use std::ops::{Deref, Range};

use kestrel_blockstore::object::VolumeId;
use kestrel_types::ids::ObjectId;

/// Data of a page, bytes.
///
/// Readers ask for frames of 65,540 bytes that begin anywhere. A page is read and checked as a
/// whole, so larger pages cost more for each such read (64 KiB: twice what was requested, 32 KiB:
/// 1.5 times, 16 KiB: 1.25 times), and smaller ones cost more buffers in each call. CPU of a hit
/// for each 64 KiB requested, measured with `cache_bench` (`pread` of the same: 5.6 µs for frames,
/// 2.4 to 3.5 µs for 1 MiB):
///
/// | | 16 KiB | 32 KiB | 64 KiB |
/// | --- | ---: | ---: | ---: |
/// | frames | 12.1 µs | 12.9 µs | 17.0 µs |
/// | files of 100 KiB in packs | 10.9 µs | 11.1 µs | 13.9 µs |
/// | 1 MiB | 7.2 µs | 6.1 µs | 7.1 µs |
pub const PAGE_BYTES: u64 = 32 * 1024;

/// Bytes of a trailer.
pub const TRAILER_BYTES: usize = 16;

/// From one slot to the next, bytes.
pub const SLOT_BYTES: u64 = PAGE_BYTES + TRAILER_BYTES as u64;

/// Bytes of an object beyond this one are not cached. Bounds what is kept in memory for an object:
/// a bit a page, four times.
pub const OBJECT_BYTES_MAX: u64 = 1 << 32;

/// First bytes of a trailer; the last one is the version.
const MAGIC: [u8; 4] = *b"KCP\x01";

/// The owner of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOwner {
    /// The volume.
    pub volume: VolumeId,
    /// The object.
    pub object: ObjectId,
}

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSlot {
    /// Nothing was written.
    Empty,
    /// So many bytes of the page: all of it, or up to the object's end.
    Page(u32),
    /// Something else than what was written, or half of it.
    Damaged,
}

impl PageOwner {
    fn check(&self, page: u32, data_check: u32, head: &[u8]) -> u32 {
        let mut identity = [0; 32];
        identity[..16].copy_from_slice(&self.volume);
        identity[16..24].copy_from_slice(&self.object.to_be_bytes());
        identity[24..].copy_from_slice(&u64::from(page).to_be_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(data_check, &identity), head)
    }

    /// The trailer of a page with this data.
    pub fn trailer(&self, page: u32, data: &[u8]) -> [u8; TRAILER_BYTES] {
        let mut trailer = [0; TRAILER_BYTES];
        trailer[..4].copy_from_slice(&MAGIC);
        trailer[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        let check = self.check(page, crc32c::crc32c(data), &trailer[..12]);
        trailer[12..].copy_from_slice(&check.to_be_bytes());
        trailer
    }

    /// Judges a slot. `pieces` are the page's [`PAGE_BYTES`] in order.
    pub fn verify<T: Deref<Target = [u8]>>(
        &self,
        page: u32,
        pieces: &[T],
        trailer: &[u8],
    ) -> PageSlot {
        let Some((head, check)) = trailer.split_at_checked(12) else { return PageSlot::Damaged };
        if trailer.iter().all(|byte| *byte == 0) {
            return PageSlot::Empty;
        }
        let len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        if head[..4] != MAGIC || len == 0 || u64::from(len) > PAGE_BYTES {
            return PageSlot::Damaged;
        }
        let mut left = len as usize;
        let mut data_check = 0;
        for piece in pieces {
            let part = &piece[..piece.len().min(left)];
            data_check = crc32c::crc32c_append(data_check, part);
            left -= part.len();
        }
        let found = self.check(page, data_check, head);
        if left == 0 && found.to_be_bytes() == check {
            PageSlot::Page(len)
        } else {
            PageSlot::Damaged
        }
    }
}

/// The pages that cover bytes `offset .. offset + len` of an object; `len` at least 1, within
/// [`OBJECT_BYTES_MAX`].
pub fn pages(offset: u64, len: u64) -> Range<u32> {
    debug_assert!(len > 0 && offset + len <= OBJECT_BYTES_MAX);
    (offset / PAGE_BYTES) as u32..((offset + len - 1) / PAGE_BYTES) as u32 + 1
}

/// Byte of the object where a page begins.
pub fn page_at(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES
}

/// Byte of the cache file where a page's slot begins.
pub fn slot_at(page: u32) -> u64 {
    u64::from(page) * SLOT_BYTES
}

/// Bytes of the cache file from the first to the last of these bytes of the object; `len` at
/// least 1.
pub fn stored_span(offset: u64, len: u64) -> Range<u64> {
    let identity = |at: u64| at + at / PAGE_BYTES * TRAILER_BYTES as u64;
    identity(offset)..identity(offset + len - 1) + 1
}

/// The pages that may be in a cache file of `file_len` bytes that has data in these ranges.
pub fn pages_of_data(data: &[Range<u64>], file_len: u64) -> impl Iterator<Item = u32> {
    data.iter().flat_map(move |range| {
        // A page is here if its whole slot has data; the object's last one may be short, with a
        // hole behind it.
        let whole = range.start.div_ceil(SLOT_BYTES)..range.end / SLOT_BYTES;
        let is_last = range.end >= file_len && file_len > 0 && file_len.is_multiple_of(SLOT_BYTES);
        let last = is_last.then(|| file_len / SLOT_BYTES - 1);
        whole.chain(last).map(|page| page as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: PageOwner = PageOwner { volume: [7; 16], object: 9 };

    #[test]
    fn a_page_is_recognized_and_nothing_else() {
        let page: Vec<u8> = (0..PAGE_BYTES).map(|i| (i * 7) as u8).collect();
        let trailer = OWNER.trailer(3, &page);
        let verify = |owner: PageOwner, number, page: &[u8], trailer: &[u8]| {
            owner.verify(number, &[page], trailer)
        };
        assert_eq!(verify(OWNER, 3, &page, &trailer), PageSlot::Page(PAGE_BYTES as u32));
        assert_eq!(
            OWNER.verify(3, &[&page[..100], &page[100..]], &trailer),
            PageSlot::Page(PAGE_BYTES as u32)
        );
        assert_eq!(verify(OWNER, 4, &page, &trailer), PageSlot::Damaged);
        assert_eq!(
            verify(PageOwner { object: 10, ..OWNER }, 3, &page, &trailer),
            PageSlot::Damaged
        );
        assert_eq!(
            verify(PageOwner { volume: [8; 16], ..OWNER }, 3, &page, &trailer),
            PageSlot::Damaged
        );
        assert_eq!(verify(OWNER, 3, &page, &[0; TRAILER_BYTES]), PageSlot::Empty);
        for at in 0..TRAILER_BYTES {
            let mut bad = trailer;
            bad[at] ^= 4;
            assert_eq!(
                verify(OWNER, 3, &page, &bad),
                PageSlot::Damaged,
                "byte {at} of the trailer"
            );
        }
        for at in [0, 1, 4095, 4096, page.len() - 1] {
            let mut bad = page.clone();
            bad[at] ^= 0x80;
            assert_eq!(verify(OWNER, 3, &bad, &trailer), PageSlot::Damaged, "byte {at}");
        }
    }

    #[test]
    fn a_short_page_does_not_care_for_what_follows_it() {
        let mut page = vec![5; PAGE_BYTES as usize];
        let trailer = OWNER.trailer(0, &page[..1000]);
        page[1000] = 77;
        assert_eq!(OWNER.verify(0, &[&page[..]], &trailer), PageSlot::Page(1000));
        assert_eq!(OWNER.verify(0, &[&page[..999]], &trailer), PageSlot::Damaged);
    }

    #[test]
    fn the_format_is_pinned() {
        let hex: String =
            OWNER.trailer(2, b"hello").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4b4350010000000500000000107edc50");
        assert_eq!((slot_at(1), slot_at(2), page_at(3)), (32_784, 65_568, 98_304));
        assert_eq!((stored_span(0, 32_768), stored_span(32_767, 2)), (0..32_768, 32_767..32_785));
        assert_eq!(
            (stored_span(32_768, 1), stored_span(65_546, 32_768)),
            (32_784..32_785, 65_578..98_362)
        );
        assert_eq!((pages(0, 1), pages(32_767, 2), pages(65_536, 32_768)), (0..1, 0..2, 2..3));
    }
}
