//! The byte ranges of one file that one owner has locked.
//!
//! Both ends of the protocol keep them: the node to decide, the client to claim them again after a
//! restart of the node.
//!
//! Invariants: ranges do not overlap; ranges of one mode that touch are one range. Taking a lock
//! replaces the owner's own locks of that range whatever their mode (an upgrade, a downgrade, or
//! nothing new), and giving up part of a range splits it: `fcntl(2)`, "Advisory record locking".
//! Callers see to it that a range does not end before it starts.

use std::collections::BTreeMap;

use crate::wire::LockMode;

/// A range that is held, without its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldRange {
    /// Last byte.
    pub end: u64,
    /// What it excludes.
    pub mode: LockMode,
    /// Process that asked for it, or for the last piece that was joined to it.
    pub pid: u32,
}

/// One step of a change, for callers that keep a second view of the same ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeChange {
    /// The range that starts here is no more.
    Gone(u64),
    /// This range starts here now.
    New(u64, HeldRange),
}

/// Ranges of one owner, by their first byte.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockRanges(BTreeMap<u64, HeldRange>);

impl LockRanges {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The ranges in ascending order, as (first byte, rest).
    pub fn iter(&self) -> impl Iterator<Item = (u64, HeldRange)> + '_ {
        self.0.iter().map(|(start, held)| (*start, *held))
    }

    /// The ranges that have a byte of `start..=end`, in ascending order.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, HeldRange)> + '_ {
        let first = match self.0.range(..start).next_back() {
            Some((before, held)) if held.end >= start => *before,
            _ => start,
        };
        self.0.range(first..=end).map(|(start, held)| (*start, *held))
    }

    /// Whether every byte of `start..=end` is held in this mode.
    pub fn covers(&self, start: u64, end: u64, mode: LockMode) -> bool {
        // Touching ranges of one mode are one range.
        self.overlapping(start, end)
            .next()
            .is_some_and(|(first, held)| first <= start && end <= held.end && held.mode == mode)
    }

    /// By how many ranges holding `start..=end` in another mode, or (`None`) not at all, could make
    /// this longer at most.
    pub fn growth(&self, start: u64, end: u64, mode: Option<LockMode>) -> usize {
        let split = self.overlapping(start, end).next().is_some_and(|(first, held)| {
            first < start && end < held.end && Some(held.mode) != mode
        });
        usize::from(split) + usize::from(mode.is_some())
    }

    /// Holds `start..=end` in this mode, and tells what that changed, in the order in which it can
    /// be repeated.
    pub fn set(
        &mut self,
        start: u64,
        end: u64,
        mode: LockMode,
        pid: u32,
        mut tell: impl FnMut(RangeChange),
    ) {
        self.clear(start, end, &mut tell);
        let (mut first, mut last) = (start, end);
        let before = self.0.range(..start).next_back().map(|(at, held)| (*at, *held));
        if let Some((at, held)) = before
            && held.mode == mode
            && held.end.checked_add(1) == Some(start)
        {
            self.0.remove(&at);
            tell(RangeChange::Gone(at));
            first = at;
        }
        let after = end.checked_add(1).and_then(|next| self.0.get(&next).map(|held| (next, *held)));
        if let Some((at, held)) = after
            && held.mode == mode
        {
            self.0.remove(&at);
            tell(RangeChange::Gone(at));
            last = held.end;
        }
        self.put(first, HeldRange { end: last, mode, pid }, &mut tell);
    }

    /// Holds nothing of `start..=end` any more, and tells what that changed.
    pub fn clear(&mut self, start: u64, end: u64, mut tell: impl FnMut(RangeChange)) {
        // Taken out of the condition: there the iterator would live as long as the body.
        let first = |held: &Self| held.overlapping(start, end).next();
        while let Some((at, held)) = first(self) {
            self.0.remove(&at);
            tell(RangeChange::Gone(at));
            if at < start {
                self.put(at, HeldRange { end: start - 1, ..held }, &mut tell);
            }
            if held.end > end {
                self.put(end + 1, held, &mut tell);
            }
        }
    }

    fn put(&mut self, start: u64, held: HeldRange, tell: &mut impl FnMut(RangeChange)) {
        debug_assert!(start <= held.end);
        self.0.insert(start, held);
        tell(RangeChange::New(start, held));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 24;

    fn held(ranges: &LockRanges) -> Vec<(u64, u64, LockMode)> {
        ranges.iter().map(|(start, held)| (start, held.end, held.mode)).collect()
    }

    fn step() -> impl Strategy<Value = (u64, u64, Option<LockMode>)> {
        let mode = prop_oneof![Just(None), Just(Some(LockMode::Read)), Just(Some(LockMode::Write))];
        (0..BYTES, 0..BYTES, mode).prop_map(|(a, b, mode)| (a.min(b), a.max(b), mode))
    }

    proptest! {
        #[test]
        fn bytes_are_held_as_an_array_of_them_would_be(
            steps in prop::collection::vec(step(), 1..40)
        ) {
            let mut ranges = LockRanges::default();
            let mut mirror: BTreeMap<u64, HeldRange> = BTreeMap::new();
            let mut bytes = [None; BYTES as usize];
            for (start, end, mode) in steps {
                let (before, growth) = (ranges.len(), ranges.growth(start, end, mode));
                let tell = |change| match change {
                    RangeChange::Gone(at) => assert!(mirror.remove(&at).is_some()),
                    RangeChange::New(at, held) => assert!(mirror.insert(at, held).is_none()),
                };
                match mode {
                    Some(mode) => ranges.set(start, end, mode, 7, tell),
                    None => ranges.clear(start, end, tell),
                }
                prop_assert!(ranges.len() <= before + growth);
                bytes[start as usize..=end as usize].fill(mode);
                let mut expected = Vec::new();
                for (at, mode) in bytes.iter().enumerate() {
                    let Some(mode) = *mode else { continue };
                    match expected.last_mut() {
                        Some((_, end, last)) if *last == mode && *end + 1 == at as u64 => *end += 1,
                        _ => expected.push((at as u64, at as u64, mode)),
                    }
                }
                prop_assert_eq!(held(&ranges), expected);
                prop_assert_eq!(&ranges.0, &mirror);
                for mode in [LockMode::Read, LockMode::Write] {
                    let all = bytes[start as usize..=end as usize].iter().all(|byte| *byte == Some(mode));
                    prop_assert_eq!(ranges.covers(start, end, mode), all);
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_number_line_do_not_overflow() {
        let mut ranges = LockRanges::default();
        ranges.set(0, u64::MAX, LockMode::Read, 1, |_| {});
        ranges.set(u64::MAX, u64::MAX, LockMode::Write, 1, |_| {});
        ranges.clear(0, 0, |_| {});
        let expected = [(1, u64::MAX - 1, LockMode::Read), (u64::MAX, u64::MAX, LockMode::Write)];
        assert_eq!(held(&ranges), expected);
        ranges.set(0, u64::MAX, LockMode::Write, 1, |_| {});
        assert_eq!(held(&ranges), [(0, u64::MAX, LockMode::Write)]);
    }
}
