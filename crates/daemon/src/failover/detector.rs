//! When another node is taken over, and by which: a function of what is seen, without clock and
//! threads.
//!
//! All times are since the watching began. A node is looked at when nothing was heard of it for
//! [`UNHEARD`]; the first live node after it in the cyclic order of numbers does so at once, each
//! further one [`STEP`] later, in case that one does not. It is taken over if nobody holds its
//! rows. Longer waits those
//! - that nobody here has heard of yet ([`SLOW`]): the cluster is being started, and its nodes
//!   start one after the other;
//! - that ended as they were told to ([`SLOW`]): somebody is about to start them again, or stops
//!   all;
//! - that somebody still holds ([`HELD`]): a process that hangs, or was cut off from all others,
//!   keeps its session with the database. It has no lease; that none of the others hears of it
//!   either is asked before ([`FailoverAction::Ask`]).

use std::collections::BTreeMap;
use std::time::Duration;

use kestrel_types::placement::NodeId;

/// A node of which nothing was heard for so long is looked at.
pub const UNHEARD: Duration = Duration::from_millis(1200);

/// What each further node waits longer than the one before it.
pub const STEP: Duration = Duration::from_millis(1500);

/// How long a node is waited for that has ended on purpose, or was not heard of yet.
pub const SLOW: Duration = Duration::from_secs(30);

/// How long the detector waits for a node while some process holds its rows.
pub const HELD: Duration = Duration::from_secs(6);

/// How long this node's own store must have answered: after a break all that had their rows open
/// there come back, and not at the same time.
pub const CALM: Duration = Duration::from_secs(3);

/// Time between two looks at a node that is not taken over.
const AGAIN: Duration = Duration::from_millis(500);

/// And after one that did not come up.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// A node that was never heard of counts as silent since the watching began, give or take this.
const NEVER_SLACK: Duration = Duration::from_millis(500);

/// What is seen at one moment.
pub struct Observation<'a> {
    /// Now, since the watching began.
    pub now: Duration,
    /// How long this node's store has answered without a break.
    pub calm: Duration,
    /// The node that watches.
    pub me: NodeId,
    /// The nodes that take others over, ascending; this one is among them.
    pub takers: &'a [NodeId],
    /// How long nothing was heard of the others that can be taken over or take over.
    pub unheard: &'a [(NodeId, Duration)],
}

/// What the store says of a node's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsOwner {
    /// Nobody has them open. Whether the last one ended on purpose.
    Free { left: bool },
    /// This one has.
    Held(String),
    /// It does not say.
    Unknown(String),
}

/// What is to be done about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailoverAction {
    /// It is taken over.
    TakeOver,
    /// So it is if none of the other nodes hears of it either, from the process that holds its
    /// rows.
    Ask,
    /// Nothing now.
    Wait,
}

/// What the watching remembers.
#[derive(Debug, Default)]
pub struct FailureDetector {
    /// Not to be looked at before.
    later: BTreeMap<NodeId, Duration>,
    /// Being taken over.
    busy: Vec<NodeId>,
}

impl Observation<'_> {
    fn unheard(&self, node: NodeId) -> Option<Duration> {
        self.unheard.iter().find(|(other, _)| *other == node).map(|(_, unheard)| *unheard)
    }

    /// How many others come before this one in taking `node` over: live ones between the two, in
    /// cyclic order.
    fn rank(&self, node: NodeId) -> u32 {
        let between = |other: &NodeId| match node < self.me {
            true => (node..self.me).contains(other),
            false => *other > node || *other < self.me,
        };
        let is_live =
            |other: &NodeId| self.unheard(*other).is_some_and(|unheard| unheard < UNHEARD);
        let before =
            self.takers.iter().filter(|other| **other != node && between(other) && is_live(other));
        before.count() as u32
    }

    /// Whether it has been silent for `time`, and as much longer as it is others' turn first.
    fn is_due(&self, node: NodeId, time: Duration) -> bool {
        self.unheard(node).is_some_and(|unheard| unheard >= time + STEP * self.rank(node))
    }

    fn was_never_heard(&self, node: NodeId) -> bool {
        self.unheard(node).is_some_and(|unheard| unheard + NEVER_SLACK >= self.now)
    }
}

impl FailureDetector {
    /// The nodes of which the rows are to be looked at now.
    pub fn look(&mut self, sight: &Observation<'_>) -> Vec<NodeId> {
        if sight.calm < CALM {
            return Vec::new();
        }
        let is_due = |node: NodeId| {
            let wait = if sight.was_never_heard(node) { SLOW } else { UNHEARD };
            let later = self.later.get(&node).is_some_and(|later| sight.now < *later);
            sight.is_due(node, wait) && !later && !self.busy.contains(&node)
        };
        sight.unheard.iter().map(|(node, _)| *node).filter(|node| is_due(*node)).collect()
    }

    /// What is to be done about one of them, after what was found. What is taken over is not looked
    /// at until [`FailureDetector::ended`].
    pub fn judge(
        &mut self,
        sight: &Observation<'_>,
        node: NodeId,
        found: &RowsOwner,
    ) -> FailoverAction {
        let deed = match found {
            RowsOwner::Free { left: true } if !sight.is_due(node, SLOW) => FailoverAction::Wait,
            RowsOwner::Free { .. } => FailoverAction::TakeOver,
            RowsOwner::Held(_) if sight.is_due(node, HELD) => FailoverAction::Ask,
            RowsOwner::Held(_) | RowsOwner::Unknown(_) => FailoverAction::Wait,
        };
        let again = match found {
            // As after a break of this node's own store, which may be another one.
            RowsOwner::Unknown(_) => CALM + STEP * sight.rank(node),
            RowsOwner::Free { .. } | RowsOwner::Held(_) => AGAIN,
        };
        match deed {
            FailoverAction::TakeOver => self.busy.push(node),
            FailoverAction::Ask | FailoverAction::Wait => {
                self.later.insert(node, sight.now + again);
            }
        }
        deed
    }

    /// The other nodes do not hear of it either: it is taken over.
    pub fn agreed(&mut self, node: NodeId) {
        self.busy.push(node);
    }

    /// The process that took it over has ended at `now`, or did not come up.
    pub fn ended(&mut self, node: NodeId, now: Duration) {
        self.busy.retain(|busy| *busy != node);
        self.later.insert(node, now + AFTER_FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(100);
    const FREE: RowsOwner = RowsOwner::Free { left: false };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What `me` of nodes 1 to 4 sees, of which the last only coordinates.
    fn sight<'a>(me: NodeId, now: Duration, unheard: &'a [(NodeId, Duration)]) -> Observation<'a> {
        Observation { now, calm: now, me, takers: &[1, 2, 3], unheard }
    }

    /// The next live node takes over, and the others wait for their turn.
    #[test]
    fn takeover_in_turn() {
        // The nodes that are silent besides node `dead`, the node that watches, and after how many
        // turns it looks.
        for (dead, silent, me, turns) in [
            (1, 0, 2, 0),
            (1, 0, 3, 1),
            (2, 0, 3, 0),
            (2, 0, 1, 1),
            (3, 0, 1, 0),
            (3, 0, 2, 1),
            // No node comes before it that no node hears.
            (1, 2, 3, 0),
            (3, 1, 2, 0),
            // One that only coordinates is taken over, and takes nobody over.
            (4, 0, 1, 0),
            (4, 0, 3, 2),
            (3, 4, 1, 0),
        ] {
            let at = |time: Duration| {
                let of = |node| if node == dead || node == silent { time } else { ms(40) };
                [1, 2, 3, 4]
                    .into_iter()
                    .filter(|node| *node != me)
                    .map(|node| (node, of(node)))
                    .collect::<Vec<_>>()
            };
            let due = UNHEARD + STEP * turns;
            let (before, then) = (at(due - ms(1)), at(due));
            let mut detector = FailureDetector::default();
            assert!(
                !detector.look(&sight(me, LONG, &before)).contains(&dead),
                "{dead} {silent} {me}"
            );
            assert!(detector.look(&sight(me, LONG, &then)).contains(&dead), "{dead} {silent} {me}");
        }
    }

    #[test]
    fn it_is_taken_over_once_and_again_if_that_fails() {
        let unheard = [(2, ms(1300)), (3, ms(10))];
        let mut detector = FailureDetector::default();
        // Node 3 comes before node 1.
        assert!(detector.look(&sight(1, LONG, &unheard)).is_empty());
        let unheard = [(2, ms(1300)), (1, ms(10))];
        let sees = |now| sight(3, now, &unheard);
        assert_eq!(detector.look(&sees(LONG)), [2]);
        assert_eq!(detector.judge(&sees(LONG), 2, &FREE), FailoverAction::TakeOver);
        assert!(detector.look(&sees(LONG + LONG)).is_empty());
        detector.ended(2, LONG + LONG);
        assert!(detector.look(&sees(LONG + LONG + AFTER_FAILURE - ms(1))).is_empty());
        assert_eq!(detector.look(&sees(LONG + LONG + AFTER_FAILURE)), [2]);
    }

    /// No node is taken over right after an outage of the store.
    #[test]
    fn no_takeover_after_a_store_outage() {
        let unheard = [(2, ms(5000))];
        for (calm, looks) in [(CALM - ms(1), 0), (CALM, 1)] {
            let sight = Observation { calm, ..sight(3, LONG, &unheard) };
            assert_eq!(FailureDetector::default().look(&sight).len(), looks);
        }
    }

    #[test]
    fn a_store_that_did_not_say_is_asked_again_in_turn() {
        let unheard = [(1, ms(10)), (2, ms(10)), (4, ms(9000))];
        let away = RowsOwner::Unknown("away".into());
        for (me, turns) in [(1, 0), (3, 2)] {
            let others: Vec<_> = unheard.into_iter().filter(|(node, _)| *node != me).collect();
            let mut detector = FailureDetector::default();
            assert_eq!(detector.judge(&sight(me, LONG, &others), 4, &away), FailoverAction::Wait);
            let next = LONG + CALM + STEP * turns;
            assert!(detector.look(&sight(me, next - ms(1), &others)).is_empty());
            assert_eq!(detector.look(&sight(me, next, &others)), [4]);
        }
    }

    #[test]
    fn who_is_stopped_or_started_is_waited_for() {
        let mut detector = FailureDetector::default();
        // Silent since the watching began: it is being started.
        for (silent, now, looks) in [
            (20_000, 20_000, false),
            (20_000, 20_400, false),
            (30_000, 30_000, true),
            (2_000, 20_000, true),
        ] {
            let unheard = [(2, ms(silent))];
            assert_eq!(
                !detector.look(&sight(3, ms(now), &unheard)).is_empty(),
                looks,
                "{silent} {now}"
            );
        }
        let left = RowsOwner::Free { left: true };
        let unheard = [(2, ms(29_000))];
        assert_eq!(detector.judge(&sight(3, LONG, &unheard), 2, &left), FailoverAction::Wait);
        let unheard = [(2, ms(30_000))];
        assert_eq!(detector.judge(&sight(3, LONG, &unheard), 2, &left), FailoverAction::TakeOver);
    }

    /// Before a node that holds its rows but is not heard is taken over, the other nodes are asked
    /// about it.
    #[test]
    fn silent_node_that_holds_its_rows() {
        let mut detector = FailureDetector::default();
        let held = RowsOwner::Held("a process".into());
        let unheard = [(2, HELD - ms(1))];
        assert_eq!(detector.judge(&sight(3, LONG, &unheard), 2, &held), FailoverAction::Wait);
        let unheard = [(2, HELD)];
        let sees = |now| sight(3, now, &unheard);
        // Not at once again.
        assert!(detector.look(&sees(LONG)).is_empty());
        assert_eq!(detector.look(&sees(LONG + AGAIN)), [2]);
        assert_eq!(detector.judge(&sees(LONG), 2, &held), FailoverAction::Ask);
        assert_eq!(
            detector.judge(&sees(LONG), 2, &RowsOwner::Unknown("away".into())),
            FailoverAction::Wait
        );
        detector.agreed(2);
        assert!(detector.look(&sees(LONG + LONG)).is_empty());
    }
}
