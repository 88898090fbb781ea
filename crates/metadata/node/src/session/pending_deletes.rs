//! Objects on their way out: watched, in case somebody refers to them, and condemned.
//!
//! A node that has a volume for itself adds up an object's shares with every worker's state held
//! and condemns it at once. Of several nodes one asks all, in *rounds* of which each reaper has one
//! at a time (see `kestrel_cluster`): first each of them begins to watch the object and tells its
//! part of the sum; then each says whether anybody has referred to it since, and if not condemns
//! it.

use std::collections::BTreeMap;

use kestrel_types::ids::ObjectId;
use kestrel_types::placement::NodeId;
use parking_lot::RwLock;
use rustc_hash::FxHashSet;

/// What one reaper is about to delete.
#[derive(Default)]
struct Round {
    number: u64,
    ended: bool,
    watched: FxHashSet<ObjectId>,
    condemned: FxHashSet<ObjectId>,
}

/// See the module's header. Changes with every worker's state held, but for what operations say
/// that refer to objects.
#[derive(Default)]
pub struct PendingDeletes(RwLock<BTreeMap<NodeId, Round>>);

/// Stands for a node that has the volume for itself.
const ALONE: NodeId = 0;

impl PendingDeletes {
    /// An operation is about to refer to an object. Whether it must not, because the object is
    /// being deleted. Otherwise no round that watches it will delete it.
    pub fn refer(&self, object: ObjectId) -> bool {
        let concerned =
            |round: &Round| round.watched.contains(&object) || round.condemned.contains(&object);
        if !self.0.read().values().any(concerned) {
            return false;
        }
        let mut rounds = self.0.write();
        if rounds.values().any(|round| round.condemned.contains(&object)) {
            return true;
        }
        for round in rounds.values_mut() {
            round.watched.remove(&object);
        }
        false
    }

    /// Whether a round watches any object.
    pub fn is_watching(&self) -> bool {
        self.0.read().values().any(|round| !round.watched.is_empty())
    }

    /// The object is about to be deleted, by a node that has the volume for itself.
    pub fn insert(&self, object: ObjectId) {
        self.0.write().entry(ALONE).or_default().condemned.insert(object);
    }

    /// The object is gone.
    pub fn remove(&self, object: ObjectId) {
        if let Some(round) = self.0.write().get_mut(&ALONE) {
            round.condemned.remove(&object);
        }
    }

    /// A reaper's round begins, and with it the one before has ended. Copies of old messages change
    /// nothing.
    pub fn watch(&self, reaper: NodeId, number: u64, objects: &[ObjectId]) {
        let mut rounds = self.0.write();
        let round = rounds.entry(reaper).or_default();
        if number > round.number {
            let watched = objects.iter().copied().collect();
            *round = Round { number, ended: false, watched, condemned: FxHashSet::default() };
        }
    }

    /// Those of the objects that nobody has referred to since the round began; they are condemned
    /// until it ends. None if this node does not know the round.
    pub fn confirm(
        &self,
        reaper: NodeId,
        number: u64,
        mut objects: Vec<ObjectId>,
    ) -> Vec<ObjectId> {
        let mut rounds = self.0.write();
        let Some(round) =
            rounds.get_mut(&reaper).filter(|round| round.number == number && !round.ended)
        else {
            return Vec::new();
        };
        objects.retain(|object| round.watched.contains(object));
        round.condemned.extend(objects.iter().copied());
        objects
    }

    /// A round has ended.
    pub fn end(&self, reaper: NodeId, number: u64) {
        let mut rounds = self.0.write();
        let round = rounds.entry(reaper).or_default();
        if number >= round.number {
            *round = Round { number, ended: true, ..Round::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that refers to an object saves it, unless the object is condemned.
    #[test]
    fn reference_to_a_watched_object() {
        let objects = PendingDeletes::default();
        objects.watch(1, 5, &[10, 11]);
        objects.watch(2, 3, &[10]);
        assert!(!objects.refer(10), "it is only watched");
        assert_eq!(objects.confirm(1, 5, vec![10, 11]), [11]);
        assert_eq!(objects.confirm(2, 3, vec![10]), []);
        assert!(objects.refer(11) && !objects.refer(10));
        assert_eq!(objects.confirm(1, 5, vec![11]), [11], "a copy of the question");
        objects.end(1, 5);
        assert!(!objects.refer(11));
    }

    /// Copies of messages of earlier rounds change nothing.
    #[test]
    fn messages_of_earlier_rounds() {
        let objects = PendingDeletes::default();
        objects.watch(1, 5, &[10]);
        objects.end(1, 5);
        objects.watch(1, 5, &[10]);
        assert_eq!(objects.confirm(1, 5, vec![10]), []);
        objects.watch(1, 6, &[10]);
        objects.end(1, 5);
        objects.watch(1, 5, &[11]);
        assert_eq!(objects.confirm(1, 5, vec![11]), []);
        assert_eq!(objects.confirm(1, 6, vec![10]), [10]);
        // A node that has started again knows of no round.
        assert_eq!(PendingDeletes::default().confirm(1, 6, vec![10]), []);
    }
}
