//! What may differ between two snapshots of a tree: each node has history of its own rows.
//!
//! A page is judged by what nodes have told so far ([`kestrel_meta::node::told`]), and all are
//! asked for what it lacks: a page of history, the rows of both moments that it leads to, and names
//! that are new in directories that have grown. Snapshots do not change, so nothing is locked; all
//! answers are by one placement map, as of every poll.
//!
//! **The present** is compared by a snapshot that nobody sees, as a clone of the present is made
//! ([`crate::clones`]). The answer to the first question names it, and the next questions are about
//! it. The leader of snapshots removes it when nobody has asked about it for [`COMPARED_KEPT`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_meta::history::known::Known;
use kestrel_meta::node::told::{ChangesLack, ChangesQuestion, ToldChanges};
use kestrel_meta::node::{Compared, ComparedTold};
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;
use kestrel_types::request::Op;
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use kestrel_types::snapshot_changes::{CHANGED_FILES_MAX, COMPARED_KEPT};

use super::ClusterNode;
use super::message::polls::{PollAnswer, PollQuestion};
use super::poll::{Then, gone, is_gone, merge_located, out_of_reach};
use super::work::Stage;

/// Rounds of questions for one page: a path has up to 2,048 directories.
const ROUNDS_MAX: u32 = 4096;

/// Least names for which a node looks in one page.
const LIMIT_MIN: usize = 32;

/// Most snapshots for comparisons with the present at a time.
const COMPARED_MAX: usize = 64;

const BEGIN_AGAIN: FsError = FsError::new(
    libc::ESTALE,
    "nodes have joined the volume while it was compared with the present: compare again",
);

const TOO_MANY_COMPARED: FsError = FsError::new(
    libc::EBUSY,
    "too many comparisons with the present at a time: compare two snapshots, or try again in a \
     minute",
);

const TOO_MANY_FILES: FsError = FsError::new(libc::EINVAL, "too many files are looked for at once");

const TOO_LONG: FsError =
    FsError::new(libc::ELOOP, "metadata: a page of changes needs more questions than any path has");

/// A comparison under way.
pub(super) struct Comparison {
    told: ToldChanges,
    /// What all members are asked.
    asked: Option<ChangesLack>,
    rounds: u32,
}

impl ClusterNode {
    /// Begins to answer `Op::SnapshotChanges`.
    pub(super) fn compare(&mut self, ticket: u64) {
        if self.is_misdirected(ticket) {
            return;
        }
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::SnapshotChanges { dir, older, newer, files, after, .. } = &work.request.op else {
            return;
        };
        if files.len() > CHANGED_FILES_MAX {
            return self.answer(ticket, Err(TOO_MANY_FILES.into()));
        }
        let Some(newer) = *newer else {
            let (older, is_first) = (*older, after.is_none());
            return self.compare_with_present(ticket, older, is_first);
        };
        if let Some(asked) = self.compared.get_mut(&newer) {
            *asked = now;
        }
        let dir = *dir;
        work.stage = Stage::Polling;
        let comparison = Comparison { told: ToldChanges::new(dir), asked: None, rounds: 0 };
        self.compare_more(ticket, comparison);
    }

    /// Has a snapshot made that nobody sees, which is the newer moment.
    fn compare_with_present(&mut self, ticket: u64, older: SnapshotId, is_first: bool) {
        if self.node.core().snapshots.get(older).is_none() {
            return self.answer_at(ticket, Err(gone().into()));
        }
        if !is_first {
            return self.answer(ticket, Err(BEGIN_AGAIN.into()));
        }
        let list = self.node.core().snapshots.list();
        if list.iter().filter(|known| is_kept(&known.info)).count() >= COMPARED_MAX {
            return self.answer(ticket, Err(TOO_MANY_COMPARED.into()));
        }
        match self.table.leaving.is_some() {
            // The next leader of snapshots has what this one had on record when it was frozen.
            true => self.rest(ticket, true),
            false => self.begin_cut(ticket),
        }
    }

    /// Notes the snapshots that were made for comparisons with the present. One that an earlier
    /// start or leader had made is kept as long as one that is made now.
    pub(super) fn note_compared(&mut self, list: &[Arc<Known>]) {
        let now = self.now;
        let made = list.iter().filter(|known| is_kept(&known.info));
        let made: BTreeSet<SnapshotId> = made.map(|known| known.info.id).collect();
        self.compared.retain(|id, _| made.contains(id));
        for id in made {
            self.compared.entry(id).or_insert(now);
        }
    }

    /// Whether a snapshot is kept for a comparison with the present.
    pub(super) fn is_compared(&self, id: SnapshotId) -> bool {
        self.compared.get(&id).is_some_and(|asked| asked + COMPARED_KEPT > self.now)
    }

    /// Judges what was told, and asks for what is not.
    fn compare_more(&mut self, ticket: u64, mut comparison: Comparison) {
        let nodes = self.table.serving().count().max(1);
        let Some(work) = self.works.get(&ticket) else { return };
        let Op::SnapshotChanges { dir, older, newer, files, limit, after } = &work.request.op
        else {
            return;
        };
        let Some(to) = *newer else { return };
        let limit = (limit / nodes).max(LIMIT_MIN);
        let compared = Compared { dir: *dir, older: *older, newer: *newer, limit };
        let creds = &work.request.creds;
        let told = &comparison.told;
        let outcome = self.node.compare_told(creds, &compared, (files, after.as_ref()), told);
        let lack = match outcome {
            ComparedTold::Lacks(lack) => lack,
            ComparedTold::Ended(reply) => return self.end_at(ticket, reply),
        };
        comparison.rounds += 1;
        if comparison.rounds > ROUNDS_MAX {
            return self.answer(ticket, Err(TOO_LONG.into()));
        }
        let question = match &lack {
            ChangesLack::Asked(wanted) => {
                let question = ChangesQuestion { moments: (*older, to), wanted: wanted.clone() };
                PollQuestion::Changes(Box::new(question))
            }
            ChangesLack::Located(files, after) => {
                let question = PollQuestion::Locate(files.clone(), after.clone());
                PollQuestion::At(to, Box::new(question))
            }
        };
        comparison.asked = Some(lack);
        self.comparisons.insert(ticket, comparison);
        self.poll(question, Then::CompareOn(ticket));
    }

    /// All members have told what a comparison lacked, or somebody is out of reach.
    pub(super) fn compare_on(
        &mut self,
        ticket: u64,
        answers: Option<BTreeMap<NodeId, PollAnswer>>,
    ) {
        let Some(mut comparison) = self.comparisons.remove(&ticket) else { return };
        let Some(answers) = answers else {
            return self.answer(ticket, Err(out_of_reach().into()));
        };
        if is_gone(&answers) {
            return self.lacked_moment(ticket);
        }
        let failed = answers.values().find_map(|answer| match answer {
            PollAnswer::Failed(why) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = failed {
            return self.answer(ticket, Err(why.into()));
        }
        match comparison.asked.take() {
            Some(ChangesLack::Asked(wanted)) => {
                let parts = answers.into_values().filter_map(|answer| match answer {
                    PollAnswer::Changes(part) => Some(*part),
                    _ => None,
                });
                comparison.told.take(&wanted, parts.collect());
            }
            Some(ChangesLack::Located(..)) => comparison.told.take_located(merge_located(answers)),
            None => return,
        }
        self.compare_more(ticket, comparison);
    }

    /// Another member does not have one of the snapshots. If this one has both, the other one has
    /// joined just now, or this one is about to hear that a snapshot goes.
    fn lacked_moment(&mut self, ticket: u64) {
        let known = &self.node.core().snapshots;
        let has_both = match self.works.get(&ticket).map(|work| &work.request.op) {
            Some(Op::SnapshotChanges { older, newer, .. }) => {
                [Some(*older), *newer].into_iter().flatten().all(|at| known.get(at).is_some())
            }
            _ => false,
        };
        match has_both {
            true => self.rest(ticket, true),
            false => self.answer_at(ticket, Err(gone().into())),
        }
    }
}

/// Whether a snapshot was made for a comparison with the present, and is not removed.
fn is_kept(info: &SnapshotInfo) -> bool {
    info.is_compared() && !info.removing
}
