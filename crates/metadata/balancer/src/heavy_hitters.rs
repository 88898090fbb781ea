//! The most frequent names of a node's entries, in memory that does not grow with them:
//! Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k
//! Elements in Data Streams", ICDT 2005).
//!
//! A name that is not among those counted replaces the rarest, and starts with its count, as it may
//! have come as often before. So a count is too high by no more than that; the certain part is
//! reported. Names with an exception are counted apart, exactly: whether an exception can go
//! depends on them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use kestrel_types::name::Name;
use kestrel_types::placement::{Exceptions, NodeId};
use rustc_hash::FxHashMap;

use crate::load_report::{LoadReport, NameCount};

/// Names counted at a time, but for exceptions: what is more frequent than one entry in so many is
/// among them. About 100 bytes each.
pub const NAMES_MAX: usize = 1 << 16;

/// Counts entries by name.
#[derive(Debug)]
pub struct HeavyHitters {
    entries: u64,
    exceptions: FxHashMap<Name, u64>,
    counters: FxHashMap<Name, Counter>,
    /// Every counted name once, the rarest first, by a count that it had at some time.
    rarest: BinaryHeap<Reverse<(u64, Name)>>,
    capacity: usize,
}

#[derive(Debug, Clone, Copy)]
struct Counter {
    count: u64,
    /// By how much it may be too high.
    error: u64,
}

impl HeavyHitters {
    /// Nothing is counted. `capacity`, not 0: names counted at a time, [`NAMES_MAX`] as a rule.
    pub fn new(exceptions: &Exceptions, capacity: usize) -> Self {
        Self {
            entries: 0,
            exceptions: exceptions.iter().map(|(name, _)| (name.clone(), 0)).collect(),
            counters: FxHashMap::default(),
            rarest: BinaryHeap::new(),
            capacity: capacity.max(1),
        }
    }

    /// One more entry.
    pub fn count(&mut self, name: &[u8]) {
        self.entries += 1;
        if let Some(count) = self.exceptions.get_mut(name) {
            *count += 1;
        } else if let Some(counter) = self.counters.get_mut(name) {
            counter.count += 1;
        } else if let Ok(name) = Name::new(name) {
            let error = if self.counters.len() < self.capacity { 0 } else { self.displace() };
            let count = error + 1;
            self.rarest.push(Reverse((count, name.clone())));
            self.counters.insert(name, Counter { count, error });
        }
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Forgets the rarest name; answers its count.
    fn displace(&mut self) -> u64 {
        while let Some(Reverse((count, name))) = self.rarest.pop() {
            match self.counters.get(&name) {
                Some(counter) if counter.count > count => {
                    self.rarest.push(Reverse((counter.count, name)))
                }
                _ => {
                    self.counters.remove(&name);
                    return count;
                }
            }
        }
        0
    }

    /// The report of a node that has these entries: names with an exception, then the `wanted` most
    /// frequent ones, most frequent first.
    pub fn report(self, node: NodeId, wanted: usize) -> LoadReport {
        let certain = |(name, counter): (Name, Counter)| NameCount {
            name,
            entries: counter.count - counter.error,
        };
        let mut names: Vec<NameCount> = self.counters.into_iter().map(certain).collect();
        names.retain(|count| count.entries > 0);
        names.sort_by(|one, other| {
            other.entries.cmp(&one.entries).then_with(|| one.name.cmp(&other.name))
        });
        names.truncate(wanted);
        let exceptions = self.exceptions.into_iter().filter(|(_, entries)| *entries > 0);
        let exceptions = exceptions.map(|(name, entries)| NameCount { name, entries });
        LoadReport { node, entries: self.entries, names: exceptions.chain(names).collect() }
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::Rule;
    use proptest::prelude::*;

    use super::*;

    fn name(number: u32) -> Name {
        Name::new(format!("name-{number}").as_bytes()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The counts that are reported are never too high, and no frequent name is missed.
        #[test]
        fn bounds_of_frequent_name_counts(
            names in prop::collection::vec(0u32..200, 1..2000), capacity in 1usize..40,
        ) {
            // Lower numbers are far more frequent.
            let names: Vec<u32> = names.into_iter().map(|number| number * number / 400).collect();
            let mut exceptions = Exceptions::default();
            exceptions.set(name(3), Some(Rule::PathWalk)).unwrap();
            let mut hitters = HeavyHitters::new(&exceptions, capacity);
            let mut truth: FxHashMap<Name, u64> = FxHashMap::default();
            for number in &names {
                hitters.count(name(*number).as_bytes());
                *truth.entry(name(*number)).or_default() += 1;
            }
            prop_assert!(hitters.counters.len() <= capacity
                && hitters.rarest.len() == hitters.counters.len());
            let counted: Vec<Name> = hitters.counters.keys().cloned().collect();
            let report = hitters.report(7, usize::MAX);
            prop_assert!(report.adds_up());
            prop_assert_eq!(report.entries, names.len() as u64);
            for NameCount { name, entries } in &report.names {
                prop_assert!(entries <= &truth[name]);
            }
            let of = |wanted: &Name| {
                let found = report.names.iter().find(|count| count.name == *wanted);
                found.map_or(0, |count| count.entries)
            };
            prop_assert_eq!(of(&name(3)), truth.get(&name(3)).copied().unwrap_or(0));
            for (name, entries) in truth {
                let must_be_counted = entries > names.len() as u64 / capacity as u64;
                prop_assert!(!must_be_counted || of(&name) > 0 || counted.contains(&name));
            }
        }
    }

    /// With room for all names the counts are exact, and the most frequent names are reported.
    #[test]
    fn exact_counts_with_room_for_all_names() {
        let mut hitters = HeavyHitters::new(&Exceptions::default(), 100);
        for number in 0..50 {
            (0..=number).for_each(|_| hitters.count(name(number).as_bytes()));
        }
        let report = hitters.report(1, 2);
        let expected =
            [(49, 50), (48, 49)].map(|(number, entries)| NameCount { name: name(number), entries });
        assert_eq!(report.names, expected);
    }
}
