//! Names for a directory of a clone: requests that wait for them, and the directory's home.

use std::collections::BTreeSet;

use kestrel_meta::node::{CloneJob, ClonePart, DirLacks, SourceRead};
use kestrel_meta::rows::{Missing, TxnRows};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use kestrel_types::snapshot::SnapshotId;

use super::PAUSE;
use crate::message::Message;
use crate::message::clones::CloneMessage;
use crate::work::clone_work::CloneWork;
use crate::work::{Back, Stage};
use crate::{ClusterNode, DEADLINE, RESEND, Requester};

/// Names in one transaction. Fewer where their rows fit no message.
const NAMES_MAX: usize = 512;

/// A directory that requests wait for.
pub(super) struct Wanted {
    tickets: BTreeSet<u64>,
    /// When the home was asked last.
    pub(super) sent: Nanos,
    /// Names that the home has told of.
    names: u64,
}

/// A directory that gets its names.
pub(super) struct Giving {
    /// The members that wait for them.
    askers: BTreeSet<NodeId>,
    /// Names so far.
    names: u64,
    /// It has all of them.
    is_whole: bool,
    /// Most names in one transaction.
    most: usize,
    /// The transaction.
    ticket: u64,
}

impl ClusterNode {
    /// A request needs the names of a directory.
    pub(crate) fn await_names(&mut self, ticket: u64, dir: InodeId) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.stage = Stage::AwaitingNames;
        let now = self.now;
        let tickets = BTreeSet::new();
        let wanted = self.clones.wanted.entry(dir).or_insert(Wanted { tickets, sent: 0, names: 0 });
        let is_first = wanted.tickets.is_empty();
        wanted.tickets.insert(ticket);
        if is_first {
            wanted.sent = now;
            self.want_names(dir);
        }
    }

    fn want_names(&mut self, dir: InodeId) {
        let (home, table) = (self.table.home_of(dir), self.table.placement.version);
        self.send(home, Message::Clone(CloneMessage::Want { dir, table }));
    }

    pub(crate) fn heard_of_clones(&mut self, from: NodeId, message: CloneMessage) {
        match message {
            CloneMessage::Want { dir, table } => {
                if self.agrees(from, table) && self.table.home_of(dir) == self.me {
                    self.give_names(dir, Some(from));
                }
            }
            CloneMessage::Given { dir, names, done: true } => self.have_names(dir, names > 0),
            CloneMessage::Given { dir, names, done: false } => self.have_some_names(dir, names),
            CloneMessage::Failed { dir, why } => {
                let Some(wanted) = self.clones.wanted.remove(&dir) else { return };
                for ticket in self.waiting_for_names(wanted) {
                    self.walks.remove(&ticket);
                    self.answer(ticket, Err(why.clone().into()));
                }
            }
        }
    }

    /// Requests that still wait.
    fn waiting_for_names(&self, wanted: Wanted) -> Vec<u64> {
        let waits = |ticket: &u64| {
            let stage = self.works.get(ticket).map(|work| &work.stage);
            matches!(stage, Some(Stage::AwaitingNames))
        };
        wanted.tickets.into_iter().filter(waits).collect()
    }

    /// It gets them: requests go on waiting for as long as that is so.
    fn have_some_names(&mut self, dir: InodeId, names: u64) {
        let until = self.now + DEADLINE;
        let Some(wanted) = self.clones.wanted.get_mut(&dir) else { return };
        if names <= wanted.names {
            return;
        }
        wanted.names = names;
        for ticket in &wanted.tickets {
            if let Some(work) = self.works.get_mut(ticket) {
                work.until = work.until.max(until);
            }
        }
    }

    /// It has them. Unless some came into being just now, what says otherwise may be on its way
    /// still: then requests look again after a moment.
    fn have_names(&mut self, dir: InodeId, given: bool) {
        let Some(wanted) = self.clones.wanted.remove(&dir) else { return };
        let quiet = self.node.quiesce();
        // What says otherwise is old.
        self.node.core().replica.remove(dir);
        drop(quiet);
        for ticket in self.waiting_for_names(wanted) {
            if self.walks.contains_key(&ticket) {
                self.walk_into(ticket, dir);
            } else if given {
                self.run_alone(ticket);
            } else {
                self.rest(ticket, false);
            }
        }
    }

    /// This member, the home of a directory, has it get its names.
    pub(super) fn give_names(&mut self, dir: InodeId, asker: Option<NodeId>) {
        if let Some(giving) = self.clones.giving.get_mut(&dir) {
            giving.askers.extend(asker);
            let given = CloneMessage::Given { dir, names: giving.names, done: false };
            return asker
                .into_iter()
                .for_each(|node| self.send(node, Message::Clone(given.clone())));
        }
        let giving = Giving {
            askers: asker.into_iter().collect(),
            names: 0,
            is_whole: false,
            most: NAMES_MAX,
            ticket: 0,
        };
        self.clones.giving.insert(dir, giving);
        self.give_more_names(dir);
    }

    /// Begins the next transaction for a directory.
    fn give_more_names(&mut self, dir: InodeId) {
        let Some(giving) = self.clones.giving.get(&dir) else { return };
        let (is_whole, most) = (giving.is_whole, giving.most);
        if self.table.home_of(dir) != self.me {
            // The asking members ask its new home.
            return drop(self.clones.giving.remove(&dir));
        }
        let (clone, pending) = match self.node.dir_lacks(dir) {
            Ok(DirLacks::Names(clone, pending)) => (clone, pending),
            // The record of the clone is on its way here: the asking member asks again.
            Ok(DirLacks::Unknown) => return drop(self.clones.giving.remove(&dir)),
            Ok(DirLacks::Nothing) => return self.end_giving(dir, Ok(())),
            Err(why) if self.has_lost_store(&why) => return drop(self.clones.giving.remove(&dir)),
            Err(why) => return self.end_giving(dir, Err(why)),
        };
        let part = match is_whole {
            true => ClonePart::Ends(dir),
            false => ClonePart::Names(dir, pending, most),
        };
        let ticket = self.begin_clone_work(CloneJob { clone, part }, Back::Names(dir));
        if let Some(giving) = self.clones.giving.get_mut(&dir) {
            giving.ticket = ticket;
        }
    }

    /// Begins a transaction that gives a clone something.
    pub(super) fn begin_clone_work(&mut self, job: CloneJob, back: Back) -> u64 {
        let request = Request { creds: Creds::root(), op: Op::CloneStep(job.clone.dir) };
        let ticket = self.put((request, Requester::Own), None, back);
        if let Some(work) = self.works.get_mut(&ticket) {
            work.clone_work = Some(Box::new(CloneWork { job, then: None }));
        }
        self.run_clone_work(ticket);
        ticket
    }

    /// Reads what a part of a clone needs, and then begins its transaction.
    pub(crate) fn run_clone_work(&mut self, ticket: u64) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Some(CloneWork { job, then }) = work.clone_work.as_deref_mut() else { return };
        let snapshot = job.clone.snapshot;
        if !matches!(job.part, ClonePart::Names(..)) {
            *then = Some(TxnRows::default());
            return self.lead(ticket);
        }
        *then = None;
        self.read_source_at(ticket, snapshot);
    }

    /// Reads what a request that clones something needs of the rows of a snapshot.
    pub(crate) fn read_source_at(&mut self, ticket: u64, snapshot: SnapshotId) {
        let Some(work) = self.works.get(&ticket) else { return };
        let request = work.request.clone();
        match self.node.node_at(snapshot) {
            Ok(node) => self.read_rows_at(ticket, (snapshot, node), request),
            Err(why) => self.answer_at(ticket, Err(why.into())),
        }
    }

    /// What the rows told so far come to, of a request that is no read of a client: `None` if it
    /// is one; else what is missing, if it has not gone on.
    pub(crate) fn read_for_clone(&mut self, ticket: u64) -> Option<FsResult<Option<Missing>>> {
        let work = self.works.get_mut(&ticket)?;
        let Stage::ReadingAt(read) = &mut work.stage else { return None };
        if let Op::CloneDir { source, at: Some(at), .. } = work.request.op {
            return match self.node.read_source_dir((source, at), &read.told) {
                Ok(None) => {
                    self.lead(ticket);
                    Some(Ok(None))
                }
                other => Some(other),
            };
        }
        let CloneWork { job, then } = work.clone_work.as_deref_mut()?;
        let ClonePart::Names(dir, pending, most) = &job.part else { return None };
        let asked = (*dir, pending, *most);
        Some(match self.node.read_clone_source(&job.clone, asked, &read.told) {
            Err(why) => Err(why),
            Ok(SourceRead::Lacks(missing)) => Ok(Some(missing)),
            Ok(SourceRead::Based(source)) => {
                self.await_names(ticket, source);
                Ok(None)
            }
            Ok(SourceRead::Whole(count)) => {
                *then = Some(std::mem::take(&mut read.told));
                match self.node.counters(count.max(1)) {
                    Ok(counter) => {
                        work.counter = Some(counter);
                        self.lead(ticket);
                        Ok(None)
                    }
                    Err(why) => Err(why),
                }
            }
        })
    }

    /// A transaction for a directory has ended.
    pub(crate) fn names_given(&mut self, dir: InodeId, reply: Reply) {
        let Some(giving) = self.clones.giving.get_mut(&dir) else { return };
        match reply {
            Ok(Answer::CloneProgress { names, done }) => {
                giving.names += names;
                let ends = giving.is_whole;
                giving.is_whole |= done;
                if ends {
                    return self.end_giving(dir, Ok(()));
                }
                let given = CloneMessage::Given { dir, names: giving.names, done: false };
                for node in giving.askers.clone() {
                    self.send(node, Message::Clone(given.clone()));
                }
                self.give_more_names(dir);
            }
            Ok(_) => self.end_giving(dir, Ok(())),
            Err(Outcome::Failed(why)) if why.errno == libc::EFBIG && giving.most > 1 => {
                giving.most /= 2;
                self.give_more_names(dir);
            }
            // Its snapshot is not known here yet, or a node was away: members that wait ask again.
            Err(Outcome::Failed(why)) if matches!(why.errno, libc::ESTALE | libc::ETIMEDOUT) => {
                self.clones.giving.remove(&dir);
            }
            Err(Outcome::Failed(why)) => self.end_giving(dir, Err(why)),
            Err(_) => drop(self.clones.giving.remove(&dir)),
        }
    }

    fn end_giving(&mut self, dir: InodeId, result: Result<(), FsError>) {
        let Some(giving) = self.clones.giving.remove(&dir) else { return };
        let message = match result {
            Ok(()) => CloneMessage::Given { dir, names: giving.names, done: true },
            Err(why) => {
                log::error!("names of directory {dir}, which belongs to a clone: {why}");
                self.clones.due = self.now + PAUSE;
                CloneMessage::Failed { dir, why }
            }
        };
        for node in giving.askers {
            self.send(node, Message::Clone(message.clone()));
        }
    }

    /// Asks homes again that have not answered.
    pub(super) fn tick_wanted(&mut self) {
        let now = self.now;
        let works = &self.works;
        let waits = |ticket: &u64| {
            let stage = works.get(ticket).map(|work| &work.stage);
            matches!(stage, Some(Stage::AwaitingNames))
        };
        self.clones.wanted.retain(|_, wanted| {
            wanted.tickets.retain(waits);
            !wanted.tickets.is_empty()
        });
        let due = self.clones.wanted.iter_mut().filter(|(_, wanted)| wanted.sent + RESEND <= now);
        let due: Vec<InodeId> = due
            .map(|(dir, wanted)| {
                wanted.sent = now;
                *dir
            })
            .collect();
        due.into_iter().for_each(|dir| self.want_names(dir));
    }
}
