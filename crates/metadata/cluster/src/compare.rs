//! What may differ between two snapshots of a tree: each node has history of its own rows.
//!
//! A page is judged by what nodes have told so far ([`kestrel_meta::node::told`]), and all are
//! asked for what it lacks: a page of history, the rows of both moments that it leads to, and names
//! that are new in directories that have grown. Snapshots do not change, so nothing is locked; all
//! answers are by one placement map, as of every poll.

use std::collections::BTreeMap;

use kestrel_meta::node::told::{ChangesLack, ChangesQuestion, ToldChanges};
use kestrel_meta::node::{Compared, ComparedTold};
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;
use kestrel_types::request::Op;
use kestrel_types::snapshot_changes::CHANGED_FILES_MAX;

use super::ClusterNode;
use super::message::polls::{PollAnswer, PollQuestion};
use super::poll::{Then, gone, is_gone, merge_located, out_of_reach};
use super::work::Stage;

/// Rounds of questions for one page: a path has up to 2,048 directories.
const ROUNDS_MAX: u32 = 4096;

/// Least names for which a node looks in one page.
const LIMIT_MIN: usize = 32;

const NOT_NOW: FsError = FsError::new(
    libc::EOPNOTSUPP,
    "nodes of a cluster tell changes between snapshots: walk through both moments",
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
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::SnapshotChanges { dir, newer, files, .. } = &work.request.op else { return };
        let refused = match newer {
            None => Some(NOT_NOW),
            Some(_) if files.len() > CHANGED_FILES_MAX => Some(TOO_MANY_FILES),
            Some(_) => None,
        };
        let dir = *dir;
        if let Some(why) = refused {
            return self.answer(ticket, Err(why.into()));
        }
        work.stage = Stage::Polling;
        let comparison = Comparison { told: ToldChanges::new(dir), asked: None, rounds: 0 };
        self.compare_more(ticket, comparison);
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
