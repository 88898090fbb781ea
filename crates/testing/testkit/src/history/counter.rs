//! Locked read-modify-write: a number in a file that stays open, to which each call adds one under
//! an exclusive lock.

use super::linear::Model;

/// Adds one. Says what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Add;

/// The number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counter(u64);

impl Model for Counter {
    type Call = Add;
    type Answer = u64;

    fn step(&self, _: &Add, found: Option<&u64>) -> Option<Self> {
        found.is_none_or(|found| *found == self.0).then_some(Self(self.0 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::RecordedCall;
    use crate::history::linear::{Linearity, check};

    #[test]
    fn no_addition_is_lost() {
        let add = |begin, end, found| RecordedCall {
            thread: 0,
            call: Add,
            answer: Some(found),
            begin,
            end,
        };
        let is_right = |events: &[_]| {
            matches!(check(Counter::default(), events), Linearity::Linearizable { .. })
        };
        assert!(is_right(&[add(0, 10, 1), add(5, 20, 0), add(30, 40, 2)]));
        assert!(!is_right(&[add(0, 10, 0), add(5, 20, 0)]));
        assert!(!is_right(&[add(0, 10, 1), add(15, 20, 0)]));
        let unknown = RecordedCall { answer: None, ..add(0, 10, 0) };
        assert!(
            is_right(&[unknown.clone(), add(20, 30, 1)]) && is_right(&[unknown, add(20, 30, 0)])
        );
    }
}
