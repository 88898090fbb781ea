//! Extent lists of a chunked file, as far as the node has told them.
//!
//! Chunks without extents take no room: the node tells the lists of a *stretch* of chunks, and
//! those of it that it did not name are holes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kestrel_types::extent::ExtentList;

/// The list of a chunk that is one hole.
static HOLE: ExtentList = ExtentList::new();

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct ExtentCache {
    /// The chunks that have extents.
    lists: BTreeMap<u64, Arc<ExtentList>>,
    /// First and last chunk of each stretch that is known. They neither overlap nor touch.
    stretches: BTreeMap<u64, u64>,
}

impl ExtentCache {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.lists.clear();
        self.stretches.clear();
    }

    /// Forgets one chunk.
    pub fn remove(&mut self, chunk: u64) {
        self.lists.remove(&chunk);
        let Some((&first, &last)) = self.stretches.range(..=chunk).next_back() else { return };
        if last < chunk {
            return;
        }
        self.stretches.remove(&first);
        if first < chunk {
            self.stretches.insert(first, chunk - 1);
        }
        if chunk < last {
            self.stretches.insert(chunk + 1, last);
        }
    }

    /// Takes in what the node told of the chunks `first..=last`: `lists` are those of them that
    /// have extents.
    pub fn learn(
        &mut self,
        first: u64,
        last: u64,
        lists: impl IntoIterator<Item = (u64, Arc<ExtentList>)>,
    ) {
        let old: Vec<u64> = self.lists.range(first..=last).map(|(chunk, _)| *chunk).collect();
        for chunk in old {
            self.lists.remove(&chunk);
        }
        self.lists.extend(lists);
        let (mut from, mut to) = (first, last);
        // Stretches are ordered by their ends as well: those that overlap or touch are the last
        // ones that begin early enough.
        while let Some((&begin, &end)) = self.stretches.range(..=last.saturating_add(1)).next_back()
        {
            if end.saturating_add(1) < first {
                break;
            }
            (from, to) = (from.min(begin), to.max(end));
            self.stretches.remove(&begin);
        }
        self.stretches.insert(from, to);
    }

    /// The list of a chunk, if it is known.
    pub fn get(&self, chunk: u64) -> Option<&ExtentList> {
        self.known_until(chunk)?;
        Some(self.lists.get(&chunk).map_or(&HOLE, |list| list))
    }

    /// The last chunk of the known stretch that `chunk` is in.
    pub fn known_until(&self, chunk: u64) -> Option<u64> {
        self.stretches
            .range(..=chunk)
            .next_back()
            .map(|(_, last)| *last)
            .filter(|last| *last >= chunk)
    }

    /// The lists of known chunks that have extents, in order.
    pub fn lists(&self, chunks: RangeInclusive<u64>) -> impl Iterator<Item = (u64, &ExtentList)> {
        self.lists.range(chunks).map(|(chunk, list)| (*chunk, &**list))
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::extent::Extent;
    use kestrel_types::range::Range;
    use proptest::prelude::*;

    use super::*;

    /// A list that can be told from others.
    fn list(mark: u32) -> Arc<ExtentList> {
        let range = Range { object: 1, offset: 0, len: mark + 1 };
        Arc::new(
            ExtentList::from_extents(&[Extent::of_range(0, range)])
                .expect("it is within its chunk"),
        )
    }

    proptest! {
        /// The cache says of every chunk what was last told of it, near the largest number as well.
        #[test]
        fn cache_like_a_list_for_each_chunk(
            steps in prop::collection::vec((0..24u64, 0..12u64, any::<u32>(), any::<bool>()),
                1..40),
            at_the_end: bool,
        ) {
            let base = if at_the_end { u64::MAX - 35 } else { 0 };
            let mut cache = ExtentCache::default();
            let mut model: Vec<Option<Option<u32>>> = vec![None; 36];
            for (first, more, mark, forget) in steps {
                if forget {
                    cache.remove(base + first);
                    model[first as usize] = None;
                    continue;
                }
                let last = first + more;
                // A chunk has extents if its bit is set.
                let has = |chunk: &u64| mark >> (chunk % 8) & 1 == 1;
                let told = (first..=last).filter(has).map(|chunk| (base + chunk, list(mark >> 8)));
                cache.learn(base + first, base + last, told);
                for chunk in first..=last {
                    model[chunk as usize] = Some(has(&chunk).then_some(mark >> 8));
                }
            }
            for (chunk, expected) in (base..=base + 35).zip(&model) {
                let expected =
                    expected.map(|mark| mark.map_or_else(|| Arc::new(ExtentList::new()), list));
                prop_assert_eq!(cache.get(chunk), expected.as_deref());
                let until =
                    (chunk..=base + 35)
                        .take_while(|chunk| model[(chunk - base) as usize].is_some()).last();
                prop_assert_eq!(cache.known_until(chunk), until);
            }
        }
    }
}
