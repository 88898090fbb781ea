//! Files without names, at their home: the members where they are open, and the end of those that
//! are open nowhere.
//!
//! A file that was never renamed or linked can be open at its home only, which decides as a single
//! node does. Any other one becomes a file without a name, and so does every one that a restart
//! finds: all members are asked whether they have it open, again from time to time, and when all
//! have said no it is deleted. A member says yes if it has counted an open, is about to, or still
//! waits for clients of before its start to claim theirs.
//!
//! **Why no client loses a file.** A question goes out after the name was gone: a member that
//! relied on the name has counted its open by then or is about to, since its locked rows of the
//! name ended when the transaction that took the name away began. After that only its home, by
//! number, and the members that say yes count opens of the file. (A name that it gets meanwhile
//! makes another case of it.)

use std::collections::{BTreeMap, BTreeSet};

use kestrel_meta::session::OpenState;
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer as Answered, Creds, Op, Reply, Request};

use super::poll::Then;
use super::work::{Back, Stage};
use super::{ClusterNode, Requester};
use crate::message::polls::{PollAnswer, PollQuestion};
use crate::work::transaction::TxnPhase;

/// The first and the longest pause between two questions about a file.
const PAUSE_MIN: Nanos = 50 * MILLISECOND;
const PAUSE_MAX: Nanos = 5 * SECOND;

/// Most files in one question.
const FILES_MAX: usize = 4096;

/// Questions under way at a time: with a member away each lasts until its deadline.
const POLLS_MAX: usize = 2;

/// How far a file without a name is.
pub(super) struct Asking {
    /// When it is looked at next; never while a question is under way.
    due: Nanos,
    pause: Nanos,
}

impl ClusterNode {
    /// Looks after files without names.
    pub(super) fn tick_orphans(&mut self) {
        let (now, core) = (self.now, self.node.core());
        for ino in core.orphans.take_news() {
            let asking = self.orphans.entry(ino).or_insert(Asking { due: now, pause: PAUSE_MIN });
            asking.due = asking.due.min(now);
        }
        if self.orphans.is_empty() || core.reclaiming.lasts() {
            return;
        }
        let asked = self.polls.values().filter(|poll| poll.is_about_orphans()).count();
        if asked >= POLLS_MAX {
            return;
        }
        let mut cases = Vec::new();
        self.orphans.retain(|ino, asking| {
            let Some(case) = core.orphans.case(*ino) else { return false };
            if asking.due > now {
                return true;
            }
            if core.opens.get(*ino).count > 0 {
                asking.put_off(now);
            } else if cases.len() < FILES_MAX {
                asking.due = Nanos::MAX;
                cases.push((*ino, case));
            }
            true
        });
        if !cases.is_empty() {
            let files = cases.iter().map(|(ino, _)| *ino).collect();
            self.poll(PollQuestion::Held(files), Then::Delete(cases));
        }
    }

    /// Files that a transaction which nothing can stop any more but its participants is about to
    /// open here.
    pub(super) fn about_to_open(&self) -> BTreeSet<InodeId> {
        let opened = self.works.values().filter_map(|work| match &work.stage {
            Stage::Leading(lead) => match &lead.phase {
                TxnPhase::Preparing(_, _, ended) | TxnPhase::Invalidating(_, ended) => {
                    match &ended.reply {
                        Ok(Answered::Opened { inode, .. }) => Some(inode.ino),
                        _ => None,
                    }
                }
                TxnPhase::Borrowing | TxnPhase::Decided(..) => None,
            },
            _ => None,
        });
        opened.collect()
    }

    /// All members have said which of these files are open there, or not all have.
    pub(super) fn delete_unless_held(
        &mut self,
        cases: &[(InodeId, u64)],
        answers: Option<BTreeMap<NodeId, PollAnswer>>,
    ) {
        let heard_all = answers.is_some();
        let mut held = BTreeSet::new();
        for answer in answers.into_iter().flat_map(BTreeMap::into_values) {
            if let PollAnswer::Held(files) = answer {
                held.extend(files);
            }
        }
        let mut free = Vec::new();
        let quiet = self.node.quiesce();
        let core = self.node.core();
        for (ino, case) in cases {
            let Some(asking) = self.orphans.get_mut(ino) else { continue };
            asking.put_off(self.now);
            let same = core.orphans.case(*ino) == Some(*case);
            if !heard_all || held.contains(ino) || !same || core.reclaiming.lasts() {
                continue;
            }
            // From now on it can be open here only: the last release deletes it. If nobody has it
            // open that is one of our own.
            let open = core.opens.get(*ino);
            core.opens
                .set(*ino, OpenState { count: open.count.max(1), orphan: true, linkable: false });
            if open.count == 0 {
                asking.due = Nanos::MAX;
                free.push(*ino);
            }
        }
        drop(quiet);
        for ino in free {
            let request = Request { creds: Creds::root(), op: Op::Release(ino) };
            self.begin(request, Requester::Own, None, Back::Deletion(ino));
        }
    }

    /// A file was deleted, or could not be.
    pub(super) fn deleted(&mut self, ino: InodeId, reply: Reply) {
        if let Err(why) = reply {
            log::warn!(
                "metadata: file {ino}, which has no name and is not open, was not deleted: {why:?}"
            );
            let quiet = self.node.quiesce();
            self.node.core().opens.release(ino);
            drop(quiet);
        }
        if let Some(asking) = self.orphans.get_mut(&ino) {
            asking.put_off(self.now);
        }
    }

    /// Whether a transaction claims opens of a file without a name though the time for that is
    /// over. With every worker's state held.
    pub(super) fn claims_in_vain(&self, ticket: u64) -> bool {
        let Some(work) = self.works.get(&ticket).filter(|work| work.claim.is_some()) else {
            return false;
        };
        let Stage::Leading(lead) = &work.stage else { return false };
        let TxnPhase::Preparing(_, _, ended) = &lead.phase else { return false };
        let core = self.node.core();
        match &ended.reply {
            Ok(Answered::Opened { inode, .. }) => {
                inode.nlink == 0 && !core.reclaiming.lasts() && core.opens.get(inode.ino).count == 0
            }
            _ => false,
        }
    }
}

impl Asking {
    /// It is looked at again after a pause, longer each time.
    fn put_off(&mut self, now: Nanos) {
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}
