//! A set of 64-bit ids that is small when they are dense, as inode and object numbers are: about
//! one bit each.

use std::collections::BTreeMap;

/// Ids of one page.
const PAGE_BITS: u32 = 16;
/// A page with more ids than this is kept as a bitmap of 8 KiB.
const LIST_MAX: usize = 4096;

/// The set.
#[derive(Debug, Default)]
pub struct IdSet {
    pages: BTreeMap<u64, Page>,
    len: u64,
}

#[derive(Debug)]
enum Page {
    /// Sorted low bits.
    List(Vec<u16>),
    /// One bit each.
    Bits(Box<[u64; 1024]>),
}

impl IdSet {
    /// Adds an id; false if it was there.
    pub fn insert(&mut self, id: u64) -> bool {
        let low = id as u16;
        let page = self.pages.entry(id >> PAGE_BITS).or_insert_with(|| Page::List(Vec::new()));
        let fresh = match page {
            Page::List(list) => match list.binary_search(&low) {
                Ok(_) => false,
                Err(at) => {
                    list.insert(at, low);
                    true
                }
            },
            Page::Bits(bits) => {
                let bits_word = &mut bits[usize::from(low >> 6)];
                let bit = 1u64 << (low & 63);
                let fresh = *bits_word & bit == 0;
                *bits_word |= bit;
                fresh
            }
        };
        if let Page::List(list) = page
            && list.len() > LIST_MAX
        {
            let mut bits = Box::new([0u64; 1024]);
            for low in list.iter() {
                bits[usize::from(*low >> 6)] |= 1 << (low & 63);
            }
            *page = Page::Bits(bits);
        }
        self.len += u64::from(fresh);
        fresh
    }

    /// Whether the id is in the set.
    pub fn contains(&self, id: u64) -> bool {
        let low = id as u16;
        match self.pages.get(&(id >> PAGE_BITS)) {
            None => false,
            Some(Page::List(list)) => list.binary_search(&low).is_ok(),
            Some(Page::Bits(bits)) => bits[usize::from(low >> 6)] & 1 << (low & 63) != 0,
        }
    }

    /// Ids in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest id.
    pub fn max(&self) -> Option<u64> {
        let (high, page) = self.pages.last_key_value()?;
        let low = match page {
            Page::List(list) => u64::from(*list.last()?),
            Page::Bits(bits) => {
                let bits_word = bits.iter().rposition(|bits_word| *bits_word != 0)?;
                bits_word as u64 * 64 + u64::from(63 - bits[bits_word].leading_zeros())
            }
        };
        Some(high << PAGE_BITS | low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_set_dense_and_sparse() {
        let mut set = IdSet::default();
        let ids =
            || (0..200_000u64).step_by(3).chain((0..64).map(|bit| 1u64 << bit)).chain([u64::MAX]);
        let mut model = std::collections::BTreeSet::new();
        for id in ids().chain(ids()) {
            assert_eq!(set.insert(id), model.insert(id), "{id}");
        }
        assert_eq!(set.len(), model.len() as u64);
        for id in (0..201_000).chain([u64::MAX, u64::MAX - 1]) {
            assert_eq!(set.contains(id), model.contains(&id), "{id}");
        }
        assert_eq!(set.max(), Some(u64::MAX));
        assert_eq!(IdSet::default().max(), None);
        let mut dense = IdSet::default();
        (0..70_000).for_each(|id| assert!(dense.insert(id)));
        assert_eq!(dense.max(), Some(69_999));
    }
}
