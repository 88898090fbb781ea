//! Sets of pages.

use std::ops::Range;

/// A set of page numbers, one bit each.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    pub fn contains(&self, page: u32) -> bool {
        self.0.get(page as usize / 64).is_some_and(|bits| bits >> (page % 64) & 1 == 1)
    }

    /// Whether all of these pages are in it.
    pub fn contains_all(&self, pages: Range<u32>) -> bool {
        pages.into_iter().all(|page| self.contains(page))
    }

    pub fn insert(&mut self, page: u32) {
        let bits = page as usize / 64;
        if bits >= self.0.len() {
            self.0.resize(bits + 1, 0);
        }
        self.0[bits] |= 1 << (page % 64);
    }

    /// True if it was in it.
    pub fn remove(&mut self, page: u32) -> bool {
        let was_in = self.contains(page);
        if was_in {
            self.0[page as usize / 64] &= !(1 << (page % 64));
        }
        was_in
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Cuts sorted pages into runs, over gaps of at most `gap` pages.
pub(crate) fn runs(pages: impl IntoIterator<Item = u32>, gap: u32) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if page - run.end <= gap => run.end = page + 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_pages() {
        let mut set = PageSet::default();
        for page in [0, 63, 64, 1000] {
            assert!(!set.contains(page));
            set.insert(page);
            assert!(set.contains(page));
        }
        assert!(set.contains_all(63..65) && !set.contains_all(63..66) && set.contains_all(5..5));
        assert!(set.remove(64) && !set.remove(64) && !set.remove(100_000));
        set.clear();
        assert_eq!(set, PageSet::default());
    }

    #[test]
    fn runs_of_pages() {
        assert_eq!(runs([1, 2, 3, 7, 8, 20], 0), [1..4, 7..9, 20..21]);
        assert_eq!(runs([1, 2, 3, 7, 8, 20], 3), [1..9, 20..21]);
        assert!(runs([], 3).is_empty());
    }
}
