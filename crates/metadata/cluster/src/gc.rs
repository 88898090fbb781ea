//! Deleting objects that nothing on any node refers to any more.
//!
//! Each node books references of what it leads to its own shares, and only the sum of all says
//! whether an object is in use. The sums of different nodes are of different moments. So there are
//! two questions to all members:
//!
//! 1. **Weigh**: each begins to watch the object and says its part of the sum, and whether one of
//!    its clients may still come to refer to the object (it was given the number, and has not said
//!    that it is done with it). From then on any reference that it adds ends its watching.
//! 2. **Confirm**: each says whether it still watches, and if so condemns the object.
//!
//! If the parts come to nought and all confirm, there is a moment between the two at which all
//! watched. Until then nobody had added anything that was not weighed; what was released since the
//! weighing can only make the sum smaller, and it is never below nought: so it was nought at that
//! moment, over all nodes. From then on nobody *can* refer to the object: a clone refers to what
//! some file refers to, and a commit to what its client was given. This does not depend on anybody
//! remembering more than that: a member that restarts after it has confirmed may forget it. One
//! that restarts in between does not know the round and does not confirm.
//!
//! The process that asked deletes the object from the block store, puts that on record in its
//! `reap` row, has all members delete their shares, and deletes the row. A crash leaves the row,
//! and it goes on from there: without the record everything is done again, with it only the rest
//! (the sum would come out wrong: some have deleted their shares). Two members that do this at the
//! same time do not disturb each other: rounds are told apart, and an object may be deleted twice.
//!
//! While there are snapshots, what a transaction releases may be referred to by history from then
//! on: its leader releases it when it decides, and the participant that has the row writes the
//! history row when it hears of that. In between the sum is too small. So a participant does not
//! confirm an object that rows refer to which it has agreed to change, and no longer watches one
//! when it changes such a row.
//!
//! A row goes if its object is still referred to, but not if this node's own part is below nought:
//! nobody else would know of the object when the sum becomes nought. It is looked at again later.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::node::{Due, ReferencePart};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::ObjectId;
use kestrel_types::key::KeyRef;
use kestrel_types::placement::NodeId;
use kestrel_types::snapshot::references;

use super::message::polls::{PollAnswer, PollQuestion, Weight};
use super::poll::{Then, out_of_reach};
use super::{ClusterNode, Deferred};

/// How many grace periods later an object is looked at again of which this node released more than
/// it added.
const LATER: Nanos = 16;

/// Hears which objects to delete.
pub type GcListener = Box<dyn FnOnce(FsResult<Vec<ObjectId>>) + Send>;

/// Hears that deleted objects are forgotten.
pub type Forgot = Box<dyn FnOnce(FsResult<()>) + Send>;

/// How far a round is.
enum GcStage {
    /// Members are asked; the callback for what comes of it.
    Asking(GcListener),
    /// The caller deletes objects.
    Deleting,
    /// These rows say that their objects are deleted; when all members know, this hears it.
    Forgetting(Forgot),
}

/// A round of this member's.
pub(super) struct GcRound {
    round: u64,
    now: Nanos,
    due: Vec<Due>,
    stage: GcStage,
}

impl GcRound {
    /// It goes no further.
    pub fn fail(self, why: &FsError) {
        match self.stage {
            GcStage::Asking(done) => done(Err(why.clone())),
            GcStage::Forgetting(done) => done(Err(why.clone())),
            GcStage::Deleting => {}
        }
    }
}

impl ClusterNode {
    /// Asks all members about objects with `reap` rows on this node that are due, at most `limit`.
    /// `done` hears which of them nothing refers to: they are condemned. The caller deletes them
    /// from the block store and calls [`ClusterNode::reaped`] with those that are gone; if it never
    /// does, they come up again. `wall` is the time as the volume's clock has it, which is what
    /// rows are due by. One round at a time: `EBUSY` while another asks.
    pub fn condemn(&mut self, wall: Nanos, limit: usize, done: GcListener, now: Nanos) {
        self.at(now);
        if let Some(why) = self.failure() {
            return done(Err(why.clone()));
        }
        if self.reaping.as_ref().is_some_and(|reaping| !matches!(reaping.stage, GcStage::Deleting))
        {
            return done(Err(FsError::new(
                libc::EBUSY,
                "metadata: objects are being deleted already",
            )));
        }
        self.reaping = None;
        // What is not begun when this member leaves its heir looks at.
        let due = match self.node.due_rows(wall, limit, self.is_about_to_leave()) {
            Ok(due) if due.is_empty() => return done(Ok(Vec::new())),
            Ok(due) => due,
            Err(why) => return done(Err(why)),
        };
        let round = self.number();
        let (deleted, due): (Vec<Due>, Vec<Due>) = due.into_iter().partition(|row| row.deleted);
        if !deleted.is_empty() {
            // What a crash, or a member out of reach, has left of an earlier round comes first.
            let objects = deleted.iter().map(|row| row.object).collect();
            let stage = GcStage::Forgetting(Box::new(|_| ()));
            self.reaping = Some(GcRound { round, now: wall, due: deleted, stage });
            self.poll(PollQuestion::Forget(round, objects), Then::Forgotten(round));
            self.pump();
            return done(Ok(Vec::new()));
        }
        let mut objects: Vec<ObjectId> = due.iter().map(|row| row.object).collect();
        objects.sort_unstable();
        objects.dedup();
        self.reaping = Some(GcRound { round, now: wall, due, stage: GcStage::Asking(done) });
        self.poll(PollQuestion::Weigh(round, objects), Then::Weighed(round));
        self.pump();
    }

    /// These objects, which [`ClusterNode::condemn`] gave, have been deleted from the block store;
    /// the others may be referred to again.
    pub fn reaped(&mut self, deleted: &[ObjectId], done: Forgot, now: Nanos) {
        self.at(now);
        if let Some(why) = self.failure() {
            return done(Err(why.clone()));
        }
        let Some(mut reaping) =
            self.reaping.take_if(|reaping| matches!(reaping.stage, GcStage::Deleting))
        else {
            return done(Err(FsError::new(libc::EINVAL, "metadata: no objects were condemned")));
        };
        reaping.due.retain(|row| deleted.contains(&row.object));
        let rows =
            reaping.due.iter().map(|row| Mutation { key: row.key(), value: Some([1].into()) });
        let round = reaping.round;
        match self.commit(BatchKind::Freeing, rows.collect()) {
            Ok(position) => {
                reaping.stage = GcStage::Forgetting(done);
                self.reaping = Some(reaping);
                self.when_durable(position, Deferred::Forget(round));
            }
            // They come up again and are deleted once more.
            Err(why) => done(Err(why)),
        }
        self.pump();
    }

    /// It is on record that the objects are deleted.
    pub(super) fn have_forgotten(&mut self, round: u64) {
        let Some(reaping) = self.reaping.as_ref().filter(|reaping| reaping.round == round) else {
            return;
        };
        let objects = reaping.due.iter().map(|row| row.object).collect();
        self.poll(PollQuestion::Forget(round, objects), Then::Forgotten(round));
    }

    /// What this member says of objects.
    pub(super) fn weigh(&mut self, from: NodeId, number: u64, round: u64, objects: &[ObjectId]) {
        let (parts, position) = match self.node.watch_objects(from, round, objects) {
            Ok(weighed) => weighed,
            // The asking member gives up at its deadline.
            Err(why) => return log::error!("objects that another node wants to delete: {why}"),
        };
        let claiming = self.node.core().reclaiming.lasts();
        let used = |object: ObjectId| {
            claiming || self.object_users.as_ref().is_some_and(|used| used(object))
        };
        let weigh = |(object, part): (&ObjectId, ReferencePart)| match used(*object) {
            true => Weight::Used,
            false => Weight::Part(part),
        };
        let weights = objects.iter().zip(parts).map(weigh).collect();
        // A release that a crash could undo must not count.
        self.answer_poll(from, number, PollAnswer::Weighed(weights), position);
    }

    /// Says which of the objects nothing has come to refer to, and history will not either.
    pub(super) fn confirm(
        &mut self,
        from: NodeId,
        number: u64,
        round: u64,
        mut objects: Vec<ObjectId>,
    ) {
        match self.referred_by_rows(self.prepared_changes()) {
            Ok(kept) => objects.retain(|object| !kept.contains(object)),
            // The asking member gives up at its deadline.
            Err(why) => return log::error!("objects that another node wants to delete: {why}"),
        }
        let confirmed = self.node.confirm_objects(from, round, objects);
        self.answer_poll(from, number, PollAnswer::Confirmed(confirmed), 0);
    }

    /// Another member's transaction is about to change rows here: history may refer to what they
    /// refer to now, so no round that watches it deletes it.
    pub(super) fn unwatch_replaced(&self, changes: &[Mutation]) -> FsResult<()> {
        let condemned = &self.node.core().condemned;
        if condemned.is_watching() {
            for object in self.referred_by_rows(changes.iter())? {
                // The round of one that is condemned here fails: it is not nought over all nodes.
                let _condemned = condemned.refer(object);
            }
        }
        Ok(())
    }

    /// Objects that rows refer to which these changes replace.
    fn referred_by_rows<'a>(
        &self,
        changes: impl Iterator<Item = &'a Mutation>,
    ) -> FsResult<BTreeSet<ObjectId>> {
        let keys: Vec<KeyRef<'_>> = changes.map(|change| change.key.borrow()).collect();
        let mut objects = BTreeSet::new();
        let read = self.node.engine().get_many(&keys, &mut |index, row| {
            let released = row.value.map(|row| references(keys[index].table, row));
            objects.extend(released.into_iter().flatten().map(|released| released.range.object));
        });
        read.map_err(engine_error).map(|()| objects)
    }

    /// The parts of the sums are here, or somebody is out of reach.
    pub(super) fn weighed(&mut self, round: u64, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let Some(reaping) = self.reaping.as_mut().filter(|reaping| reaping.round == round) else {
            return;
        };
        let Some(answers) = answers else { return self.end_round(Err(out_of_reach())) };
        let mut objects: Vec<ObjectId> = reaping.due.iter().map(|row| row.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let later = (reaping.now + self.node.core().grace * LATER).max(0) / SECOND + 1;
        let (mut free, mut changes) = (Vec::new(), Vec::new());
        let node = self.node.clone();
        let quiet = node.quiesce();
        for (index, object) in objects.iter().enumerate() {
            // What was released here since it was weighed has written its own row; if the clock was
            // set back, the same one.
            let weighed = answers.get(&self.me);
            let same = |part| {
                matches!(weighed, Some(PollAnswer::Weighed(weights))
                    if weights.get(index) == Some(&Weight::Part(part)))
            };
            let settled = node.references(*object).is_ok_and(same);
            let owes = node.owes(*object).unwrap_or(true);
            // A member that does not say that nothing refers to it may have something that does.
            let weights = answers.values().map(|answer| match answer {
                PollAnswer::Weighed(weights) => weights.get(index).copied().unwrap_or(Weight::Used),
                _ => Weight::Used,
            });
            let rows = reaping.due.iter().filter(|row| row.object == *object);
            let goes = |row: &Due| Mutation { key: row.key(), value: None };
            match weighed_together(owes, weights) {
                Weighed::Used => {}
                Weighed::Referred | Weighed::Owing if !settled => {}
                Weighed::Free => free.push(*object),
                Weighed::Referred => changes.extend(rows.map(goes)),
                Weighed::Owing => {
                    changes.extend(rows.map(goes));
                    let row =
                        Due { seconds: later.cast_unsigned(), object: *object, deleted: false };
                    changes.push(Mutation { key: row.key(), value: Some(Box::default()) });
                }
            }
        }
        if !changes.is_empty()
            && let Err(why) = self.commit(BatchKind::Freeing, changes)
        {
            drop(quiet);
            return self.end_round(Err(why));
        }
        drop(quiet);
        if free.is_empty() {
            return self.end_round(Ok(free));
        }
        self.poll(PollQuestion::Confirm(round, free), Then::Confirmed(round));
    }

    /// Everybody has said what nothing has come to refer to.
    pub(super) fn confirmed(&mut self, round: u64, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let Some(reaping) = self.reaping.as_mut().filter(|reaping| reaping.round == round) else {
            return;
        };
        let Some(answers) = answers else { return self.end_round(Err(out_of_reach())) };
        let stands = |object: ObjectId| {
            let says = |answer: &PollAnswer| {
                matches!(answer,
                    PollAnswer::Confirmed(some) if some.contains(&object))
            };
            answers.values().all(says)
        };
        reaping.due.retain(|row| stands(row.object));
        let mut free: Vec<ObjectId> = reaping.due.iter().map(|row| row.object).collect();
        free.sort_unstable();
        free.dedup();
        if free.is_empty() {
            return self.end_round(Ok(free));
        }
        if let GcStage::Asking(done) = std::mem::replace(&mut reaping.stage, GcStage::Deleting) {
            done(Ok(free));
        }
    }

    /// All members have deleted their shares of what was deleted, or somebody is out of reach: then
    /// the rows stay.
    pub(super) fn forgotten(&mut self, round: u64, all: bool) {
        let Some(reaping) = self.reaping.take_if(|reaping| reaping.round == round) else { return };
        let GcStage::Forgetting(done) = reaping.stage else { return };
        if !all {
            return done(Err(out_of_reach()));
        }
        let rows = reaping.due.iter().map(|row| Mutation { key: row.key(), value: None }).collect();
        done(self.commit(BatchKind::Freeing, rows).map(drop));
    }

    /// Nothing is deleted in this round: the table has changed since objects were weighed.
    pub(super) fn end_round_early(&mut self, round: u64) {
        if self.reaping.as_ref().is_some_and(|reaping| reaping.round == round) {
            self.end_round(Ok(Vec::new()));
        }
    }

    /// Nothing is deleted in this round: members need not watch any longer.
    fn end_round(&mut self, result: FsResult<Vec<ObjectId>>) {
        let Some(GcRound { round, stage: GcStage::Asking(done), .. }) = self.reaping.take() else {
            return;
        };
        self.poll(PollQuestion::Forget(round, Vec::new()), Then::Nothing);
        done(result);
    }
}

/// What parts come to.
#[derive(Debug, PartialEq, Eq)]
enum Weighed {
    /// Somebody may still come to refer to it.
    Used,
    /// Nothing refers to it.
    Free,
    /// Something does, or nobody knows of it, or a part is damaged.
    Referred,
    /// Something does, and this node released more than it added.
    Owing,
}

/// `owes`: this node released more of the object than it added
/// ([`kestrel_meta::node::Node::owes`]).
fn weighed_together(owes: bool, weights: impl Iterator<Item = Weight>) -> Weighed {
    let (mut sum, mut known, mut damaged) = (0, false, false);
    for weight in weights {
        match weight {
            Weight::Used => return Weighed::Used,
            Weight::Part(ReferencePart::Damaged) => damaged = true,
            Weight::Part(ReferencePart::None) => {}
            Weight::Part(ReferencePart::Bytes(bytes)) => (sum, known) = (sum + bytes, true),
        }
    }
    match (damaged, known, sum, owes) {
        (false, true, 0, _) => Weighed::Free,
        (_, _, _, true) => Weighed::Owing,
        _ => Weighed::Referred,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sum_over_all_that_is_nought_frees_an_object() {
        let weigh = |weights: [Weight; 3]| {
            let owes = matches!(weights[0], Weight::Part(ReferencePart::Bytes(bytes)) if bytes < 0);
            weighed_together(owes, weights.into_iter())
        };
        let bytes = |bytes| Weight::Part(ReferencePart::Bytes(bytes));
        let none = Weight::Part(ReferencePart::None);
        assert_eq!(weigh([bytes(0), none, none]), Weighed::Free);
        assert_eq!(weigh([bytes(-5), bytes(7), bytes(-2)]), Weighed::Free);
        assert_eq!(weigh([bytes(0), bytes(3), none]), Weighed::Referred);
        assert_eq!(weigh([bytes(-5), bytes(6), none]), Weighed::Owing);
        assert_eq!(weigh([none, none, none]), Weighed::Referred);
        assert_eq!(weigh([bytes(0), none, Weight::Used]), Weighed::Used);
        assert_eq!(
            weigh([bytes(0), none, Weight::Part(ReferencePart::Damaged)]),
            Weighed::Referred
        );
    }
}
