//! Clones are finished in the background, by all members, and end at the leader of snapshots.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::Mutation;
use kestrel_meta::locks::RowLockMode;
use kestrel_meta::node::{CloneJob, ClonePart, ClonesLack};
use kestrel_meta::perm;
use kestrel_types::clock::{MILLISECOND, Nanos};
use kestrel_types::clone::CloneId;
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::key::Table;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op, Reply};
use kestrel_types::snapshot::SnapshotInfo;

use super::{INTERVAL, PAUSE};
use crate::ClusterNode;
use crate::message::clones::CloneReport;
use crate::message::polls::{PollAnswer, PollQuestion};
use crate::poll::Then;
use crate::work::{Back, Stage};

/// Directories that a member gives names at a time, and files that lose names, when nobody waits.
const AT_A_TIME: usize = 8;

/// Pause before a client that has a clone finished hears that it is not.
const STEP_PAUSE: Nanos = 50 * MILLISECOND;

/// What the leader was told.
#[derive(Default)]
pub(super) struct Round {
    /// It asks.
    asking: bool,
    /// When it asks next.
    due: Nanos,
    /// By the last round: of each member its start and what came to it.
    heard: BTreeMap<NodeId, (u64, u64)>,
    /// Clones that no directory lacked names of by that round.
    given: BTreeSet<CloneId>,
    /// Clones that members finish.
    ending: BTreeSet<CloneId>,
}

impl ClusterNode {
    pub(crate) fn tick_clones(&mut self) {
        self.tick_wanted();
        let known = &self.node.core().snapshots;
        let has_clones = known.has_clones();
        if known.has_hidden() && self.leads_snapshots() {
            self.remove_unused();
        }
        if !has_clones {
            return;
        }
        if self.clones.due <= self.now {
            self.clones.due = self.now + INTERVAL;
            if let Err(why) = self.do_clone_work() {
                log::error!("clones: {why}; tried again");
                self.clones.due = self.now + PAUSE;
            }
        }
        if self.leads_snapshots() {
            self.ask_of_clones();
        }
    }

    /// Begins some of what is left to do here.
    fn do_clone_work(&mut self) -> Result<(), FsError> {
        if self.clones.giving.len() >= AT_A_TIME || self.clones.ending_links.len() >= AT_A_TIME {
            return Ok(());
        }
        let ClonesLack { dirs, links } = self.node.clones_lack(AT_A_TIME)?;
        for dir in dirs.into_iter().take(AT_A_TIME) {
            if !self.clones.giving.contains_key(&dir) {
                self.give_names(dir, None);
            }
        }
        for (id, old) in links {
            let is_ending = self.clones.ending.contains(&id);
            let Some(clone) = self.node.core().snapshots.clone_of(id).filter(|_| is_ending) else {
                continue;
            };
            if self.clones.ending_links.insert((id, old)) {
                let job = CloneJob { clone, part: ClonePart::Link(old) };
                self.begin_clone_work(job, Back::ClonedFile(id, old));
            }
        }
        Ok(())
    }

    /// A file of a clone has lost its names, or that failed.
    pub(crate) fn clone_link_ended(&mut self, clone: CloneId, old: InodeId, reply: Reply) {
        self.clones.ending_links.remove(&(clone, old));
        match reply {
            Ok(_) => self.clones.due = self.now,
            Err(why) => {
                log::warn!("file {old} of clone {clone}: {why:?}; tried again");
                self.clones.due = self.now + INTERVAL;
            }
        }
    }

    /// What this member has of clones; `ending`: those that no directory lacks names of.
    pub(crate) fn report_clones(&mut self, ending: &[CloneId]) -> Result<CloneReport, FsError> {
        self.clones.ending = ending.iter().copied().collect();
        let (mut pending, links) = self.node.clone_states()?;
        let prepared = self.prepared_changes().filter(|row| row.key.table == Table::Clone);
        pending.extend(prepared.map(|row| row.key.id));
        pending.sort_unstable();
        pending.dedup();
        let changes = *self.clones.changes.get_mut();
        Ok(CloneReport { epoch: self.epoch, changes, pending, links })
    }

    /// Rows are about to be committed, or agreed to.
    pub(crate) fn note_clone_rows(&self, rows: &[Mutation]) {
        if rows.iter().any(|row| row.key.table == Table::Clone) {
            self.clones.changes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The leader asks all members what they have.
    fn ask_of_clones(&mut self) {
        let round = &mut self.clones.round;
        if round.asking || round.due > self.now {
            return;
        }
        round.asking = true;
        let ending = round.ending.iter().copied().collect();
        self.poll(PollQuestion::Clones(ending), Then::Clones);
    }

    /// All members have answered, or one is away.
    pub(crate) fn clones_reported(&mut self, answers: Option<BTreeMap<NodeId, PollAnswer>>) {
        let now = self.now;
        let before = std::mem::take(&mut self.clones.round);
        let round = &mut self.clones.round;
        round.due = now + INTERVAL;
        let Some(answers) = answers else { return };
        let (mut pending, mut links) = (BTreeSet::new(), BTreeSet::new());
        for (node, answer) in answers {
            let PollAnswer::Clones(report) = answer else { return };
            round.heard.insert(node, (report.epoch, report.changes));
            pending.extend(report.pending);
            links.extend(report.links);
        }
        let list = self.node.core().snapshots.clones();
        let is_given = |id: &CloneId| !pending.contains(id);
        round.given = list.iter().map(|clone| clone.id).filter(is_given).collect();
        let is_same = round.heard == before.heard;
        // Since the round before no row has come to anybody that had none.
        let has_ended =
            |id: &CloneId| before.ending.contains(id) || is_same && before.given.contains(id);
        round.ending = round.given.iter().copied().filter(has_ended).collect();
        let ended: Vec<CloneId> =
            round.ending.iter().copied().filter(|id| !links.contains(id)).collect();
        if !ended.is_empty() {
            self.end_clones(&ended);
        }
    }

    /// Whether records of snapshots may change here now beside requests.
    fn may_change_records(&self) -> bool {
        self.leads_snapshots()
            && !self.snapshots.is_busy()
            && self.changing.undecided().is_none()
            && self.table.leaving.is_none()
    }

    /// Clones have ended: nothing needs their snapshots for them any more.
    fn end_clones(&mut self, ended: &[CloneId]) {
        let list = self.node.core().snapshots.list();
        let changed = list.iter().filter_map(|known| known.info.without_clones(ended)).collect();
        self.change_records(changed);
    }

    /// Removes snapshots that nobody sees and neither a clone nor a comparison needs.
    fn remove_unused(&mut self) {
        let list = self.node.core().snapshots.list();
        self.note_compared(&list);
        let unused = list.iter().filter(|known| {
            let info = &known.info;
            info.hidden && !info.removing && !info.cutting && info.clones.is_empty()
        });
        let in_use = |id| {
            let ops = self.works.values().map(|work| &work.request.op);
            let mut moments = ops.filter_map(|op| match op {
                Op::CloneDir { at: moment, .. } | Op::SnapshotChanges { newer: moment, .. } => {
                    *moment
                }
                _ => None,
            });
            self.is_compared(id) || moments.any(|moment| moment == id)
        };
        let unused = unused.filter(|known| !in_use(known.info.id));
        let unused: Vec<SnapshotInfo> =
            unused.map(|known| SnapshotInfo { removing: true, ..known.info.clone() }).collect();
        self.change_records(unused);
    }

    fn change_records(&mut self, mut changed: Vec<SnapshotInfo>) {
        // A transaction may be about to change the same record.
        let locks = &self.cluster().locks;
        changed.retain(|info| !locks.bars(info.key().borrow(), RowLockMode::Exclusive));
        if changed.is_empty() || !self.may_change_records() {
            return;
        }
        crash::point("clone.end.before");
        let node = self.node.clone();
        let quiet = node.quiesce();
        let put = node.put_snapshots(&changed, &[], Vec::new());
        drop(quiet);
        match put {
            Ok(_) => {
                crash::point("clone.end.committed");
                self.snapshots_changed();
            }
            Err(why) => log::error!("records of clones that have ended: {why}; tried again"),
        }
    }

    /// A client has a clone finished. Whether the request is such a one.
    pub(crate) fn step_clone(&mut self, ticket: u64) -> bool {
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return true };
        let (Op::CloneStep(dir), None) = (&work.request.op, &work.clone_work) else { return false };
        let dir = *dir;
        let clones = self.node.core().snapshots.clones();
        let clone = clones.iter().find(|clone| clone.dir == dir);
        let reply = match clone {
            None => Ok(Answer::CloneProgress { names: 0, done: true }),
            Some(clone) if !perm::owns(&work.request.creds, clone.uid) => {
                let why = "the clone is another user's: it is finished in the background";
                Err(FsError::new(libc::EPERM, why).into())
            }
            // All members are at it: the client asks again.
            Some(_) if work.tries > 0 => Ok(Answer::CloneProgress { names: 0, done: false }),
            Some(_) => {
                work.tries += 1;
                work.stage = Stage::Resting { until: now + STEP_PAUSE, leads: false };
                return true;
            }
        };
        let wait = self.node.core().snapshots.changed_at();
        self.answer_after(ticket, reply, wait);
        true
    }
}
