//! The fence that the leader of a change puts around a member ([`crate::lease`]).

use std::collections::BTreeMap;

use kestrel_types::clock::Nanos;
use kestrel_types::placement::NodeId;

use crate::message::leases::HoldId;

/// The fence that the leader of a change puts around a member.
///
/// Rounds of questions to the others. A member that answered one in round `a` and answers another
/// of round `b > a` by the same hold has held it all the time in between, so also when each of the
/// rounds `a + 1` to `b` began.
#[derive(Default)]
pub(crate) struct Fence {
    /// When the next round begins.
    pub due: Nanos,
    /// The present round; 0: none has begun.
    pub round: u32,
    /// A majority has answered.
    pub answered: bool,
    seen: BTreeMap<NodeId, Seen>,
}

/// What was heard of a member that is to hold.
struct Seen {
    hold: HoldId,
    /// In which round this hold was heard of first.
    since: u32,
    /// The newest round that was answered by it.
    until: u32,
}

impl Fence {
    /// One that is not there until then.
    pub fn at(due: Nanos) -> Self {
        Self { due, ..Self::default() }
    }

    /// A member has held like that in this round.
    pub fn heard(&mut self, from: NodeId, round: u32, hold: HoldId) {
        if round > self.round {
            return;
        }
        match self.seen.get_mut(&from) {
            Some(seen) if seen.hold == hold => seen.until = seen.until.max(round),
            _ => {
                self.seen.insert(from, Seen { hold, since: self.round, until: round });
            }
        }
    }

    /// How many members were heard of.
    pub fn answers(&self) -> usize {
        self.seen.len()
    }

    /// Whether so many held through the beginning of one round.
    pub fn holds(&self, majority: usize) -> bool {
        let began = |round: u32| {
            self.seen.values().filter(move |seen| seen.since < round && round <= seen.until)
        };
        self.seen.values().any(|seen| began(seen.until).count() >= majority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_holds_when_most_held_through_one_moment() {
        let hold = |epoch| HoldId { epoch, number: 1 };
        let mut fence = Fence { round: 1, ..Fence::default() };
        fence.heard(1, 1, hold(1));
        fence.heard(2, 1, hold(1));
        assert!(!fence.holds(2), "the first may have started again before the second answered");
        fence.round = 2;
        fence.heard(1, 2, hold(2));
        fence.heard(2, 2, hold(1));
        assert!(!fence.holds(2), "it has");
        // Answers to questions of the round in which it was heard of first say nothing of the time
        // between.
        fence.heard(1, 2, hold(2));
        assert!(!fence.holds(2));
        fence.round = 3;
        fence.heard(1, 3, hold(2));
        assert!(!fence.holds(2));
        fence.heard(2, 3, hold(1));
        assert!(fence.holds(2) && !fence.holds(3));
    }

    /// Answers of different rounds of a fence count if they have a moment in common.
    #[test]
    fn fence_answers_of_different_rounds() {
        let hold = HoldId { epoch: 1, number: 1 };
        let mut fence = Fence { round: 1, ..Fence::default() };
        fence.heard(1, 1, hold);
        fence.round = 3;
        fence.heard(1, 2, hold);
        fence.heard(2, 1, hold);
        fence.round = 4;
        fence.heard(2, 4, hold);
        assert!(!fence.holds(2), "one to the beginning of round 2, the other at that of round 4");
        fence.heard(1, 4, hold);
        assert!(fence.holds(2));
        fence.heard(3, 9, hold);
        assert_eq!(fence.seen.len(), 2, "a round that has not begun");
    }
}
