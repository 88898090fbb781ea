//! The leader makes a snapshot ([`crate::snapshots`]).

use std::collections::{BTreeMap, BTreeSet};

use kestrel_meta::txn;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::name::Name;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Reply};
use kestrel_types::snapshot::{SNAPSHOTS_MAX, SnapshotInfo};

use super::CUT_MAX;
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::poll::out_of_reach;
use crate::quotas::QuotaChange;
use crate::work::Stage;
use crate::{ClusterNode, Deferred, RESEND};

/// Pause after an attempt that has failed. A change of the placement map, which may be the reason,
/// goes on meanwhile: what is said of it is said again before that.
const CUT_PAUSE: Nanos = RESEND + RESEND / 2;

/// So often members hear that quotas are still being counted.
const COUNTING_RESEND: Nanos = SECOND;

/// A snapshot that is being made, or a change of the quotas.
pub(super) struct Cut {
    /// The request; 0: none.
    ticket: u64,
    order: SnapshotOrder,
    step: CutStep,
    /// The change of the quotas, until all have stopped.
    quotas: Option<Box<QuotaChange>>,
    /// The starts of members that have stopped.
    starts: BTreeMap<NodeId, u64>,
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
    /// All have stopped for a change of the quotas.
    Quotas(Box<QuotaChange>),
}

impl ClusterNode {
    /// A request to make a snapshot has passed all checks.
    pub(crate) fn begin_cut(&mut self, ticket: u64) {
        self.begin_cut_for(ticket, None);
    }

    /// A request to change the quotas has passed all checks, or nobody asks.
    pub(crate) fn begin_quota_cut(&mut self, ticket: u64, change: Box<QuotaChange>) {
        if ticket == 0 {
            self.stop_all(0, Some(change));
        } else {
            self.begin_cut_for(ticket, Some(change));
        }
    }

    fn begin_cut_for(&mut self, ticket: u64, quotas: Option<Box<QuotaChange>>) {
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::AwaitingCut;
        let until = work.until;
        if self.must_not_cut() {
            self.snapshots.waiting.push_back(ticket);
            return;
        }
        if until < now + CUT_MAX {
            return self.answer(ticket, Err(out_of_reach().into()));
        }
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Cutting;
        }
        self.stop_all(ticket, quotas);
    }

    /// Whether so much time has passed since an attempt failed that another one may begin.
    pub(crate) fn may_cut(&self) -> bool {
        self.now >= self.snapshots.cut_due
    }

    /// Whether none begins at the moment.
    fn must_not_cut(&mut self) -> bool {
        self.snapshots.cut.is_some()
            || !self.may_cut()
            // This member would decline.
            || self.changing.undecided().is_some()
            || self.quotas_settle()
            || self.records_spread_to_go()
    }

    fn stop_all(&mut self, ticket: u64, quotas: Option<Box<QuotaChange>>) {
        let now = self.now;
        let order = SnapshotOrder { table: self.table.placement.version, number: self.number() };
        let silent: BTreeSet<NodeId> = self.table.serving().collect();
        let step = CutStep::Stopping(silent, 0);
        self.snapshots.cut = Some(Cut {
            ticket,
            order,
            step,
            quotas,
            starts: BTreeMap::new(),
            since: now,
            sent: now,
        });
        self.send_cut();
    }

    /// Says to the members that have not done it what they are to do.
    pub(crate) fn send_cut(&mut self) {
        let now = self.now;
        let Some(cut) = &mut self.snapshots.cut else { return };
        cut.sent = now;
        let order = cut.order;
        let (silent, message) = match &cut.step {
            CutStep::Stopping(silent, _) => (silent.clone(), SnapshotMessage::Stop(order)),
            CutStep::Making(silent, info) => {
                (silent.clone(), SnapshotMessage::Make { order, info: info.clone() })
            }
            // Members stay stopped while quotas are counted and told.
            CutStep::Quotas(_) => (self.table.serving().collect(), SnapshotMessage::Stop(order)),
            CutStep::Recording(_) => return,
        };
        for node in silent {
            self.say(node, message.clone());
        }
        self.tell_of_quotas(order);
    }

    /// The change of the quotas of this order, if all have stopped for it.
    pub(crate) fn quota_change(&mut self, order: SnapshotOrder) -> Option<&mut QuotaChange> {
        match &mut self.cut_of(order)?.step {
            CutStep::Quotas(change) => Some(change),
            _ => None,
        }
    }

    /// The change of the quotas that all have stopped for, and the request for it.
    pub(crate) fn quota_change_now(&self) -> Option<(u64, &QuotaChange)> {
        match self.snapshots.cut.as_ref()? {
            Cut { ticket, step: CutStep::Quotas(change), .. } => Some((*ticket, change)),
            _ => None,
        }
    }

    /// The start of a member that has stopped.
    pub(crate) fn start_of_stopped(&self, node: NodeId) -> u64 {
        let cut = self.snapshots.cut.as_ref();
        cut.and_then(|cut| cut.starts.get(&node)).copied().unwrap_or_default()
    }

    /// The step that a cut is at begins now, or members have done a part of it.
    pub(crate) fn restart_cut(&mut self, now: Nanos) {
        if let Some(cut) = &mut self.snapshots.cut {
            cut.since = now;
        }
    }

    /// A change of the quotas is made.
    pub(crate) fn end_quota_work(&mut self, ticket: u64, reply: Reply, wait: Position) {
        self.snapshots.cut = None;
        self.end_cut_work(ticket, reply, wait);
    }

    /// The cut of this order, if it goes on.
    fn cut_of(&mut self, order: SnapshotOrder) -> Option<&mut Cut> {
        self.snapshots.cut.as_mut().filter(|cut| cut.order == order)
    }

    pub(super) fn has_stopped(
        &mut self,
        from: NodeId,
        order: SnapshotOrder,
        (stamp, start): (u64, u64),
    ) {
        let Some(cut) = self.cut_of(order) else {
            // It waits for something that has failed.
            return self.say(from, SnapshotMessage::Resume(order));
        };
        if *cut.starts.entry(from).or_insert(start) != start {
            let why = "metadata: a node has started again while the others were stopped";
            return self.fail_cut(FsError::new(libc::EAGAIN, why));
        }
        let CutStep::Stopping(silent, newest) = &mut cut.step else {
            return self.is_stopped_still(from, order);
        };
        *newest = stamp.max(*newest);
        if silent.remove(&from) && silent.is_empty() {
            let newest = *newest;
            self.all_stopped(newest);
        }
    }

    /// This is the instant.
    fn all_stopped(&mut self, newest: u64) {
        let now = self.now;
        let Some(cut) = &mut self.snapshots.cut else { return };
        let (ticket, order) = (cut.ticket, cut.order);
        if let Some(change) = cut.quotas.take() {
            cut.step = CutStep::Quotas(change);
            self.restart_cut(now);
            return self.count_for_quotas(order);
        }
        let known = &self.node.core().snapshots;
        let Some((dir, name)) = self.wanted_snapshot(ticket) else {
            return self.fail_cut(out_of_reach());
        };
        // This member was not stopped yet when it looked.
        let hidden = self.makes_hidden(ticket);
        let is_taken = !hidden && known.find(dir, &name).is_some();
        if is_taken || known.list().len() >= SNAPSHOTS_MAX {
            self.call_off();
            self.run_alone(ticket);
            return self.next_cut();
        }
        let tag = self.compares(ticket).then(|| name.clone());
        let info = SnapshotInfo {
            id: newest.max(self.node.stamp()).max(known.highest()) + 1,
            dir,
            name,
            created: self.node.wall_time(),
            removing: false,
            cutting: true,
            hidden,
            holds: tag.into_iter().collect(),
            clones: Vec::new(),
        };
        crash::point("cut.stopped");
        match self.record_cut(order, &info) {
            Ok(position) => {
                if let Some(cut) = &mut self.snapshots.cut {
                    cut.step = CutStep::Recording(info);
                }
                self.when_durable(position, Deferred::CutRecorded(order));
            }
            // Another process has this member's rows, and ends the cut.
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => self.fail_cut(why),
        }
    }

    fn wanted_snapshot(&self, ticket: u64) -> Option<(InodeId, Name)> {
        match &self.works.get(&ticket)?.request.op {
            Op::SnapshotCreate { dir, name } => Some((*dir, name.clone())),
            Op::CloneDir { source, .. } => Some((*source, Name::new(b"clone").ok()?)),
            Op::SnapshotChanges { dir, .. } => Some((*dir, Name::new(b"compared").ok()?)),
            _ => None,
        }
    }

    /// Whether no user is to see the snapshot.
    fn makes_hidden(&self, ticket: u64) -> bool {
        let op = self.works.get(&ticket).map(|work| &work.request.op);
        self.compares(ticket) || matches!(op, Some(Op::CloneDir { .. }))
    }

    /// Whether a snapshot is made for a comparison with the present.
    fn compares(&self, ticket: u64) -> bool {
        let op = self.works.get(&ticket).map(|work| &work.request.op);
        matches!(op, Some(Op::SnapshotChanges { .. }))
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
        self.has_quotas(from, order);
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
        if info.hidden {
            return self.made_hidden(ticket, info);
        }
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

    /// All members keep rows for a snapshot that nobody sees: it is cloned, or compared.
    fn made_hidden(&mut self, ticket: u64, info: SnapshotInfo) {
        let (id, node) = (info.id, self.node.clone());
        let quiet = node.quiesce();
        let made = node.put_snapshots(&[info], &[], Vec::new());
        drop(quiet);
        match made.map_or_else(|why| self.not_decided(why), |position| Ok(Ok(position))) {
            Ok(Ok(_)) => {
                self.snapshots.cut = None;
                let op = self.works.get_mut(&ticket).map(|work| &mut work.request.op);
                if let Some(
                    Op::CloneDir { at: moment, .. } | Op::SnapshotChanges { newer: moment, .. },
                ) = op
                {
                    *moment = Some(id);
                }
                self.snapshots_changed();
                self.run_alone(ticket);
                self.next_cut();
            }
            Ok(Err(why)) => self.fail_cut(why),
            // The member has stopped.
            Err(()) => {}
        }
    }

    fn end_cut_work(&mut self, ticket: u64, reply: Reply, wait: Position) {
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Ending;
        }
        self.snapshots_changed();
        self.answer_after(ticket, reply, wait);
        self.next_cut();
    }

    /// The next request that waits.
    pub(crate) fn next_cut(&mut self) {
        if self.must_not_cut() {
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
    pub(crate) fn call_off(&mut self) {
        self.end_cut();
    }

    fn end_cut(&mut self) -> Option<Cut> {
        self.resume_all();
        let cut = self.snapshots.cut.take()?;
        self.snapshots_changed();
        Some(cut)
    }

    /// Has all members go on.
    pub(crate) fn resume_all(&mut self) {
        let Some(order) = self.snapshots.cut.as_ref().map(|cut| cut.order) else { return };
        for node in self.table.serving().collect::<Vec<NodeId>>() {
            self.say(node, SnapshotMessage::Resume(order));
        }
        self.resume_from(order);
    }

    /// The snapshot cannot be made, at least not now. What was kept for it is given back.
    pub(crate) fn fail_cut(&mut self, why: FsError) {
        let Some(cut) = self.end_cut() else { return };
        self.snapshots.cut_due = self.now + CUT_PAUSE;
        self.remove_half_made();
        let again = matches!(why.errno, libc::EAGAIN | libc::ETIMEDOUT | libc::EBUSY);
        let followers = match &cut.step {
            CutStep::Quotas(change) => change.followers(),
            _ => &[],
        };
        for ticket in followers.iter().copied().chain([cut.ticket]) {
            let until = self.works.get(&ticket).map_or(0, |work| work.until);
            if again && until >= self.now + CUT_MAX {
                self.rest(ticket, false);
            } else {
                self.answer(ticket, Err(why.clone().into()));
            }
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
        if let CutStep::Quotas(change) = &cut.step {
            let (limit, why) = change.time_limit();
            if cut.since + limit <= now {
                return self.fail_cut(why);
            }
            let pause = if change.silent().is_some() { RESEND } else { COUNTING_RESEND };
            if cut.sent + pause <= now {
                self.send_cut();
            }
            return;
        }
        if cut.since + CUT_MAX <= now {
            let why = match &cut.step {
                CutStep::Stopping(silent, _) | CutStep::Making(silent, _) => format!(
                    "metadata: nodes {silent:?} could not be reached, or wait for transactions; no \
                     snapshot was made; see kestrel cluster status"
                ),
                CutStep::Recording(_) | CutStep::Quotas(_) => {
                    "metadata: the log is slow; no snapshot was made".into()
                }
            };
            return self.fail_cut(FsError::because(libc::ETIMEDOUT, why));
        }
        if cut.sent + RESEND <= now {
            self.send_cut();
        }
    }
}
