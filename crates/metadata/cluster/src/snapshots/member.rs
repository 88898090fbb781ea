//! What every member does for a cut, and with records of snapshots.

use kestrel_meta::node::Ended;
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use super::{STOP_MAX, Stop, heeded_row, leader_of};
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::work::Stage;
use crate::work::transaction::TxnPhase;
use crate::{ClusterNode, Deferred, Message};

impl ClusterNode {
    fn say_to_leader(&mut self, message: SnapshotMessage) {
        if let Some(leader) = leader_of(&self.table.placement) {
            self.say(leader, message);
        }
    }

    /// This member cannot take part.
    pub(crate) fn decline_cut(&mut self, order: SnapshotOrder, why: FsError) {
        self.say_to_leader(SnapshotMessage::Declined { order, why });
    }

    /// A cut begins.
    pub(super) fn stop_for(&mut self, order: SnapshotOrder) {
        if let Some(stop) = self.snapshots.stop.as_mut().filter(|stop| stop.order == order) {
            // The answer may be lost, or the leader counts and says that it goes on.
            (stop.answered, stop.since) = (false, self.now);
            return self.say_stopped();
        }
        if order <= self.snapshots.heeded {
            return;
        }
        if self.changing.undecided().is_some() {
            let why = "metadata: the placement map is being changed: try again after that";
            return self.decline_cut(order, FsError::new(libc::EAGAIN, why));
        }
        self.snapshots.heeded = order;
        let quiet = self.node.quiesce();
        self.cluster().set_stopped(true);
        drop(quiet);
        self.snapshots.stop = Some(Stop { order, since: self.now, answered: false, quotas: false });
        self.say_stopped();
    }

    /// Says that this member is stopped, once all that it has decided is applied everywhere.
    pub(crate) fn say_stopped(&mut self) {
        let decides = || {
            let mut works = self.leads.values().filter_map(|ticket| self.works.get(ticket));
            works.any(|work| matches!(&work.stage, Stage::Leading(lead) if lead.is_decided()))
        };
        let Some(stop) = self.snapshots.stop.as_ref().filter(|stop| !stop.answered) else { return };
        if !self.decisions.is_empty() || decides() {
            return;
        }
        let (order, stamp) = (stop.order, self.node.stamp());
        if let Some(stop) = &mut self.snapshots.stop {
            stop.answered = true;
        }
        let start = self.epoch;
        self.say_to_leader(SnapshotMessage::Stopped { order, stamp, start });
    }

    /// Whether a transaction that changes something has to wait with its end, since this member is
    /// stopped.
    pub(crate) fn may_not_decide(&mut self, ticket: u64) -> bool {
        if self.snapshots.stop.is_none() && !self.quotas.set.lacking {
            return false;
        }
        let stage = self.works.get(&ticket).map(|work| &work.stage);
        let Some(Stage::Leading(lead)) = stage else { return false };
        let TxnPhase::Preparing(_, changes, ended) = &lead.phase else { return false };
        let changes_rows = !changes.is_empty() || changes_something(ended);
        if changes_rows {
            self.snapshots.undecided.insert(ticket);
        }
        changes_rows
    }

    /// The instant was there: from now on rows are kept for the snapshot.
    pub(super) fn make(&mut self, order: SnapshotOrder, info: &SnapshotInfo) {
        if !self.is_stopped_for(order) {
            if self.node.core().snapshots.has_record(info.id) {
                let made = Message::Snapshot(SnapshotMessage::Made(order));
                return self.tell_leader_when_durable(self.node.last_commit(), made);
            }
            let why =
                "metadata: a node has not waited for a snapshot: it was busy or has restarted";
            return self.decline_cut(order, FsError::new(libc::EAGAIN, why));
        }
        crash::point("cut.before-record");
        match self.record_cut(order, info) {
            Ok(position) => {
                crash::point("cut.recorded");
                let made = Message::Snapshot(SnapshotMessage::Made(order));
                self.tell_leader_when_durable(position, made);
            }
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => self.decline_cut(order, why),
        }
    }

    /// Keeps rows for a snapshot from now on, and goes on, or goes on without.
    pub(super) fn record_cut(
        &mut self,
        order: SnapshotOrder,
        info: &SnapshotInfo,
    ) -> Result<u64, FsError> {
        let node = self.node.clone();
        let quiet = node.quiesce();
        let recorded = node.begin_snapshot(info, vec![heeded_row(order)]);
        self.cluster().set_stopped(false);
        drop(quiet);
        self.end_stop();
        recorded
    }

    /// Whether this member is stopped for a cut, and has said so.
    pub(crate) fn is_stopped_for(&self, order: SnapshotOrder) -> bool {
        self.snapshots.stop.as_ref().is_some_and(|stop| stop.order == order && stop.answered)
    }

    pub(crate) fn tell_leader_when_durable(&mut self, position: u64, message: Message) {
        if let Some(leader) = leader_of(&self.table.placement) {
            self.when_durable(position, Deferred::Send(leader, message));
        }
    }

    /// The cut has failed.
    pub(super) fn resume_from(&mut self, order: SnapshotOrder) {
        if self.snapshots.stop.as_ref().is_some_and(|stop| stop.order == order) {
            self.end_stop();
        }
    }

    /// This member goes on, if it was stopped.
    pub(crate) fn end_stop(&mut self) {
        let Some(stop) = self.snapshots.stop.take() else { return };
        let quiet = self.node.quiesce();
        if stop.quotas {
            // All members have the set: what was read of one that had not does not count.
            self.node.core().quotas.renew();
        }
        self.cluster().set_stopped(false);
        drop(quiet);
        self.end_waits();
    }

    /// What waited until changes go on does so no more.
    pub(crate) fn end_waits(&mut self) {
        self.snapshots_changed();
        for ticket in std::mem::take(&mut self.snapshots.undecided) {
            let stage = self.works.get(&ticket).map(|work| &work.stage);
            let waits = matches!(stage, Some(Stage::Leading(lead))
                if matches!(&lead.phase, TxnPhase::Preparing(nodes, ..) if nodes.is_empty()));
            if waits {
                self.commit_txn(ticket);
            }
        }
    }

    /// Requests that were handed back look again.
    pub(crate) fn snapshots_changed(&mut self) {
        self.unlocked = true;
        self.unlocks += 1;
    }

    pub(super) fn tick_stop(&mut self) {
        let now = self.now;
        if self.snapshots.stop.as_ref().is_some_and(|stop| stop.since + STOP_MAX <= now) {
            log::warn!("metadata: a snapshot was not made in time; this node goes on without");
            return self.end_stop();
        }
        self.say_stopped();
    }

    /// The leader says how records are to be.
    pub(super) fn keep(
        &mut self,
        order: SnapshotOrder,
        records: &[SnapshotInfo],
        dropped: &[SnapshotId],
    ) {
        if order <= self.snapshots.heeded || self.snapshots.is_busy() {
            // It is said again, in another order.
            return;
        }
        let node = self.node.clone();
        let known = &node.core().snapshots;
        let differs = |info: &&SnapshotInfo| {
            let list = known.list();
            let found = list.binary_search_by_key(&info.id, |known| known.info.id);
            !found.is_ok_and(|index| list[index].info == **info)
        };
        let changed: Vec<SnapshotInfo> = records.iter().filter(differs).cloned().collect();
        let quiet = node.quiesce();
        let kept = node.put_snapshots(&changed, dropped, vec![heeded_row(order)]);
        drop(quiet);
        match kept {
            Ok(position) => {
                self.snapshots.heeded = order;
                let mut cleared = node.cleared_snapshots();
                cleared.retain(|id| records.iter().any(|info| info.id == *id && info.removing));
                let cleared = cleared.into_iter().collect();
                let kept = Message::Snapshot(SnapshotMessage::Kept { order, cleared });
                self.tell_leader_when_durable(position, kept);
            }
            Err(why) => log::error!("records of snapshots: {why}; the leader says them again"),
        }
    }
}

fn changes_something(ended: &Ended) -> bool {
    !ended.mutations.is_empty()
}
