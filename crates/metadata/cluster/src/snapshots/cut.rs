//! The leader makes a snapshot ([`crate::snapshots`]).

use std::collections::BTreeSet;

use kestrel_meta::txn;
use kestrel_types::clock::Nanos;
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::{SNAPSHOTS_MAX, SnapshotInfo};

use super::CUT_MAX;
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::poll::out_of_reach;
use crate::work::Stage;
use crate::{ClusterNode, Deferred, RESEND};

/// A snapshot that is being made.
pub(super) struct Cut {
    /// The request.
    ticket: u64,
    order: SnapshotOrder,
    step: CutStep,
    since: Nanos,
    sent: Nanos,
}

/// How far it is.
enum CutStep {
    /// These have not stopped; the newest timestamp of the others.
    Stopping(BTreeSet<NodeId>, u64),
    /// The leader's record is not durable.
    Recording(SnapshotInfo),
    /// These have no durable record.
    Making(BTreeSet<NodeId>, SnapshotInfo),
}

impl ClusterNode {
    /// A request to make a snapshot has passed all checks.
    pub(crate) fn begin_cut(&mut self, ticket: u64) {
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::AwaitingCut;
        let until = work.until;
        if self.snapshots.cut.is_some() || self.records_spread_to_go() {
            self.snapshots.waiting.push_back(ticket);
            return;
        }
        if until < now + CUT_MAX {
            return self.answer(ticket, Err(out_of_reach().into()));
        }
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Cutting;
        }
        let order = SnapshotOrder { table: self.table.placement.version, number: self.number() };
        let silent: BTreeSet<NodeId> = self.table.serving().collect();
        let step = CutStep::Stopping(silent, 0);
        self.snapshots.cut = Some(Cut { ticket, order, step, since: now, sent: now });
        self.send_cut();
    }

    /// Says to the members that have not done it what they are to do.
    fn send_cut(&mut self) {
        let now = self.now;
        let Some(cut) = &mut self.snapshots.cut else { return };
        cut.sent = now;
        let order = cut.order;
        let (silent, message) = match &cut.step {
            CutStep::Stopping(silent, _) => (silent.clone(), SnapshotMessage::Stop(order)),
            CutStep::Making(silent, info) => {
                (silent.clone(), SnapshotMessage::Make { order, info: info.clone() })
            }
            CutStep::Recording(_) => return,
        };
        for node in silent {
            self.say(node, message.clone());
        }
    }

    /// The cut of this order, if it goes on.
    fn cut_of(&mut self, order: SnapshotOrder) -> Option<&mut Cut> {
        self.snapshots.cut.as_mut().filter(|cut| cut.order == order)
    }

    pub(super) fn has_stopped(&mut self, from: NodeId, order: SnapshotOrder, stamp: u64) {
        let Some(cut) = self.cut_of(order) else {
            // It waits for something that has failed.
            return self.say(from, SnapshotMessage::Resume(order));
        };
        let CutStep::Stopping(silent, newest) = &mut cut.step else { return };
        *newest = stamp.max(*newest);
        if silent.remove(&from) && silent.is_empty() {
            let newest = *newest;
            self.all_stopped(newest);
        }
    }

    /// This is the instant.
    fn all_stopped(&mut self, newest: u64) {
        let Some(cut) = &self.snapshots.cut else { return };
        let (ticket, order) = (cut.ticket, cut.order);
        let known = &self.node.core().snapshots;
        let Some((dir, name)) = self.wanted_snapshot(ticket) else {
            return self.fail_cut(out_of_reach());
        };
        // This member was not stopped yet when it looked.
        if known.find(dir, &name).is_some() || known.list().len() >= SNAPSHOTS_MAX {
            self.call_off();
            self.run_alone(ticket);
            return self.next_cut();
        }
        let info = SnapshotInfo {
            id: newest.max(self.node.stamp()).max(known.highest()) + 1,
            dir,
            name,
            created: self.node.wall_time(),
            removing: false,
            cutting: true,
            hidden: false,
            holds: Vec::new(),
        };
        crash::point("cut.stopped");
        match self.record_cut(order, &info) {
            Ok(position) => {
                if let Some(cut) = &mut self.snapshots.cut {
                    cut.step = CutStep::Recording(info);
                }
                self.when_durable(position, Deferred::CutRecorded(order));
            }
            Err(why) => self.fail_cut(why),
        }
    }

    fn wanted_snapshot(&self, ticket: u64) -> Option<(InodeId, Name)> {
        match &self.works.get(&ticket)?.request.op {
            Op::SnapshotCreate { dir, name } => Some((*dir, name.clone())),
            _ => None,
        }
    }

    /// The leader's own record is durable: whatever happens, it knows of the snapshot.
    pub(crate) fn cut_recorded(&mut self, order: SnapshotOrder) {
        let (me, others) = (self.me, self.table.serving().collect::<BTreeSet<NodeId>>());
        let Some(cut) = self.cut_of(order) else { return };
        let CutStep::Recording(info) = &cut.step else { return };
        let others: BTreeSet<NodeId> = others.into_iter().filter(|node| *node != me).collect();
        let none = others.is_empty();
        cut.step = CutStep::Making(others, info.clone());
        if none { self.all_made() } else { self.send_cut() }
    }

    pub(super) fn has_made(&mut self, from: NodeId, order: SnapshotOrder) {
        let Some(cut) = self.cut_of(order) else { return };
        let CutStep::Making(silent, _) = &mut cut.step else { return };
        if silent.remove(&from) && silent.is_empty() {
            self.all_made();
        }
    }

    /// All members keep rows for it: it is a snapshot.
    fn all_made(&mut self) {
        let Some(Cut { ticket, step: CutStep::Making(_, info), .. }) = &self.snapshots.cut else {
            return;
        };
        let (ticket, info) = (*ticket, SnapshotInfo { cutting: false, ..info.clone() });
        let reply = Ok(Answer::Snapshots(vec![info.clone()]));
        let origin = self.works.get(&ticket).and_then(|work| work.asker.origin());
        let answer = origin.map(|origin| txn::answer_row(origin, &reply));
        crash::point("cut.before-end");
        let node = self.node.clone();
        let quiet = node.quiesce();
        let made = node.put_snapshots(&[info], &[], answer.into_iter().collect());
        drop(quiet);
        match made.map_or_else(|why| self.not_decided(why), |position| Ok(Ok(position))) {
            Ok(Ok(position)) => {
                crash::point("cut.ended");
                self.snapshots.cut = None;
                self.end_cut_work(ticket, reply, position);
            }
            Ok(Err(why)) => self.fail_cut(why),
            // The member has stopped.
            Err(()) => {}
        }
    }

    fn end_cut_work(&mut self, ticket: u64, reply: kestrel_types::request::Reply, wait: Position) {
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Ending;
        }
        self.snapshots_changed();
        self.answer_after(ticket, reply, wait);
        self.next_cut();
    }

    /// The next request that waits.
    pub(super) fn next_cut(&mut self) {
        if self.snapshots.cut.is_some() || self.records_spread_to_go() {
            return;
        }
        while let Some(ticket) = self.snapshots.waiting.pop_front() {
            let waits = |stage: &Stage| matches!(stage, Stage::AwaitingCut);
            if self.works.get(&ticket).is_some_and(|work| waits(&work.stage)) {
                return self.run_alone(ticket);
            }
        }
    }

    pub(super) fn cut_declined(&mut self, order: SnapshotOrder, why: FsError) {
        if self.cut_of(order).is_some() {
            self.fail_cut(why);
        }
    }

    /// Has all members go on, without a snapshot.
    fn call_off(&mut self) -> Option<Cut> {
        let cut = self.snapshots.cut.take()?;
        for node in self.table.serving().collect::<Vec<NodeId>>() {
            self.say(node, SnapshotMessage::Resume(cut.order));
        }
        self.resume_from(cut.order);
        self.snapshots_changed();
        Some(cut)
    }

    /// The snapshot cannot be made, at least not now. What was kept for it is given back.
    pub(super) fn fail_cut(&mut self, why: FsError) {
        let Some(cut) = self.call_off() else { return };
        self.remove_half_made();
        let again = matches!(why.errno, libc::EAGAIN | libc::ETIMEDOUT | libc::EBUSY);
        let until = self.works.get(&cut.ticket).map_or(0, |work| work.until);
        if again && until >= self.now + CUT_MAX {
            self.rest(cut.ticket, false);
        } else {
            self.answer(cut.ticket, Err(why.into()));
        }
        self.next_cut();
    }

    /// Marks a snapshot that is not going to be made as removed. If that cannot be put on record it
    /// is tried again.
    fn remove_half_made(&mut self) {
        let list = self.node.core().snapshots.list();
        let half_made = list.iter().filter(|known| known.info.cutting && !known.info.removing);
        let removed: Vec<SnapshotInfo> =
            half_made.map(|known| SnapshotInfo { removing: true, ..known.info.clone() }).collect();
        if removed.is_empty() {
            return;
        }
        let node = self.node.clone();
        let quiet = node.quiesce();
        let put = node.put_snapshots(&removed, &[], Vec::new());
        drop(quiet);
        match put {
            Ok(_) => self.snapshots_changed(),
            Err(why) => log::error!("the record of a snapshot that was not made: {why}"),
        }
    }

    pub(super) fn tick_cut(&mut self) {
        if !self.leads_snapshots() {
            return;
        }
        let now = self.now;
        let Some(cut) = &self.snapshots.cut else {
            if self.node.core().snapshots.is_cutting() {
                self.remove_half_made();
            }
            return self.next_cut();
        };
        if cut.since + CUT_MAX <= now {
            let why = match &cut.step {
                CutStep::Stopping(silent, _) | CutStep::Making(silent, _) => format!(
                    "metadata: nodes {silent:?} could not be reached, or wait for transactions; no \
                     snapshot was made; see kestrel cluster status"
                ),
                CutStep::Recording(_) => "metadata: the log is slow; no snapshot was made".into(),
            };
            return self.fail_cut(FsError::because(libc::ETIMEDOUT, why));
        }
        if cut.sent + RESEND <= now {
            self.send_cut();
        }
    }
}
