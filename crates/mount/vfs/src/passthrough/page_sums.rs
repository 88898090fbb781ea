//! What the volume has of each page of a live copy that may be mapped writably.
//!
//! No event tells of a store through a map: it makes a page of the copy differ from what the volume
//! has of it. So a checksum of each page *as the volume has it, as far as the copy has followed*
//! tells apart what both sides have changed:
//!
//! | the copy's page | the volume's page | so |
//! | --- | --- | --- |
//! | as the sum | as the sum | nothing has changed |
//! | differs | as the sum | a store: it goes to the volume |
//! | as the sum | differs | another client's change: it goes to the copy |
//! | differs | differs | both: the other client's change goes to the copy, and the store is lost |
//!
//! Every change made here keeps the sums in step, under the turn. The sum is XXH3 with 64 bits: two
//! contents of a page have the same one by a chance of 2⁻⁶⁴.

use std::ops::Range;

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

/// The unit of maps, bytes.
pub(super) const PAGE_BYTES: usize = 4096;

/// Pages of which the sums are kept together.
const GROUP: u64 = 256;

/// Checksums of the pages of a file, of which the last one may be short: 2 KiB for 1 MiB of the
/// file, nothing for 1 MiB of holes.
#[derive(Debug, Default)]
pub(crate) struct PageSums {
    /// Pages in the file.
    len: u64,
    /// By number of the page over [`GROUP`]. Pages of groups that are missing are whole and zeros.
    groups: FxHashMap<u64, Box<[u64; GROUP as usize]>>,
}

/// The sum of a whole page of zeros.
fn zeros() -> u64 {
    xxh3_64(&[0; PAGE_BYTES])
}

/// The page with this byte.
pub(super) fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES as u64
}

/// First byte of a page.
pub(super) fn start_of(page: u64) -> u64 {
    page * PAGE_BYTES as u64
}

impl PageSums {
    /// Whether the volume has these bytes as a page. A page behind the end has none.
    pub fn has(&self, page: u64, bytes: &[u8]) -> bool {
        if page >= self.len {
            return bytes.is_empty();
        }
        let group = self.groups.get(&(page / GROUP));
        group.map_or_else(zeros, |group| group[(page % GROUP) as usize]) == xxh3_64(bytes)
    }

    /// The volume has these bytes from the beginning of a page on. What lies between the end and
    /// that page is a hole.
    pub fn set(&mut self, first: u64, bytes: &[u8]) {
        for (page, bytes) in (first..).zip(bytes.chunks(PAGE_BYTES)) {
            let group = self.groups.entry(page / GROUP);
            let group = group.or_insert_with(|| Box::new([zeros(); GROUP as usize]));
            group[(page % GROUP) as usize] = xxh3_64(bytes);
            self.len = self.len.max(page + 1);
        }
    }

    /// The file has this size. What it is longer by are zeros; what a page has that was short, or
    /// is now, is told by [`PageSums::set`] then.
    pub fn resize(&mut self, size: u64) {
        let (old, rest) = (self.len, (size % PAGE_BYTES as u64) as usize);
        self.len = size.div_ceil(PAGE_BYTES as u64);
        self.groups.retain(|number, group| {
            let kept = self.len.saturating_sub(number * GROUP).min(GROUP);
            group[kept as usize..].fill(zeros());
            kept > 0
        });
        if rest > 0 && self.len > old {
            self.set(self.len - 1, &[0; PAGE_BYTES][..rest]);
        }
    }

    /// Nothing is known of the volume: all of it differs.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Runs of pages in `bytes`, which begin at a page, that the volume has not.
    pub fn differences(&self, first: u64, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            if self.has(first + number as u64, page) {
                continue;
            }
            let (from, to) = (number * PAGE_BYTES, number * PAGE_BYTES + page.len());
            match found.last_mut() {
                Some(last) if last.end == from => last.end = to,
                _ => found.push(from..to),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn sums_of(bytes: &[u8]) -> PageSums {
        let mut sums = PageSums::default();
        sums.set(0, bytes);
        sums
    }

    /// Differences are whole pages in runs; a page that is shorter or longer differs.
    #[test]
    fn differences_in_runs_of_pages() {
        let old = vec![0; 5 * PAGE_BYTES + 100];
        let sums = sums_of(&old);
        let mut new = old.clone();
        assert!(sums.differences(0, &new).is_empty());
        new[PAGE_BYTES] = 1;
        new[3 * PAGE_BYTES - 1] = 1;
        new[5 * PAGE_BYTES + 99] = 1;
        let expected = [PAGE_BYTES..3 * PAGE_BYTES, 5 * PAGE_BYTES..5 * PAGE_BYTES + 100];
        assert_eq!(sums.differences(0, &new), expected);
        let first = |page, bytes: &[u8]| sums.differences(page, bytes).first().cloned();
        assert_eq!(first(2, &new[2 * PAGE_BYTES..][..PAGE_BYTES]), Some(0..PAGE_BYTES));
        assert_eq!(first(5, &old[..99]), Some(0..99), "a shorter page");
        assert_eq!(first(6, &[0]), Some(0..1), "behind the end");
        assert!(PageSums::default().differences(0, &[]).is_empty());
    }

    /// After any change of size, and being told of the page at the smaller size, the sums are those
    /// of the content.
    #[test]
    fn sums_after_changes_of_size() {
        let sizes = [0, 1, 4095, PAGE, PAGE + 1, 5 * PAGE - 1, 300 * PAGE, 300 * PAGE + 7];
        for (old, new) in sizes.iter().flat_map(|old| sizes.map(|new| (*old, new))) {
            let mut content = vec![7; old as usize];
            let mut sums = sums_of(&content);
            content.resize(new as usize, 0);
            sums.resize(new);
            let cut = page_of(old.min(new));
            let page = content.chunks(PAGE_BYTES).nth(cut as usize).unwrap_or_default();
            sums.set(cut, page);
            assert_eq!(sums.differences(0, &content), [], "{old} to {new}");
            assert!(!sums.has(new.div_ceil(PAGE), &[1]), "{old} to {new}");
            assert!(sums.has(new.div_ceil(PAGE), &[]), "{old} to {new}");
        }
    }

    /// A hole costs no memory, however large.
    #[test]
    fn page_far_behind_the_end() {
        let mut sums = sums_of(&[1; 10]);
        sums.set(1 << 50, &[2; PAGE_BYTES]);
        assert!(sums.has(1 << 49, &[0; PAGE_BYTES]) && sums.has(1 << 50, &[2; PAGE_BYTES]));
        sums.resize(PAGE << 51);
        assert!(sums.has(1 << 50, &[2; PAGE_BYTES]) && sums.groups.len() == 2);
        sums.resize(PAGE);
        assert_eq!((sums.len, sums.groups.len()), (1, 1));
    }
}
