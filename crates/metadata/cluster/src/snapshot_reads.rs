//! Reads at a snapshot: what a member that leads one does when its own rows are not enough.
//!
//! | file | what it has |
//! | --- | --- |
//! | `snapshot_reads/listing.rs` | which snapshots of the directories above one it was in |
//! | `snapshot_reads/tell.rs` | what a member tells others of its rows at a snapshot |
//!
//! History moves with its rows, so the owner of a row by the present table has what the row was.
//! What it was never changes: nothing is locked, no lease is needed, and what one member has told
//! stays true whatever happens next. The operation runs on what was told so far and says what it
//! lacks, as a transaction does ([`crate::txn`]), at the node that reads the snapshot
//! ([`kestrel_meta::node::Node::node_at`]), which keeps the directories for good.
//!
//! *All answers to one question are by one table.* A listing adds up what all members have. If a
//! name's owner changed between two answers, neither might have it. So a member with another table
//! than the leader refuses, and the leader begins again when its own table has changed.

mod listing;
mod tell;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_meta::node::{NOT_THERE, Node, Ran};
use kestrel_meta::rows::{Missing, Span, TxnRows};
use kestrel_meta::stop::Want;
use kestrel_types::codec::DecodeError;
use kestrel_types::error::FsError;
use kestrel_types::key::Key;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Op, Reply, Request};
use kestrel_types::snapshot::SnapshotId;

use super::ClusterNode;
use super::message::polls::PollQuestion;
use super::message::snapshot_reads::{ReadId, SnapshotReadMessage};
use super::message::{Message, SpanRow};
use super::poll::{Then, gone};
use super::work::Stage;
use super::work::snapshot_read::{DirAt, SnapshotRead};

/// Most rounds in which a request asks for rows: as many as of a transaction.
const ROUNDS_MAX: u32 = 4096;

impl ClusterNode {
    /// Serves a read at a snapshot with the rows of all members.
    pub(super) fn read_at(&mut self, ticket: u64) {
        if self.is_misdirected(ticket) {
            return;
        }
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::At(snapshot, op) = &work.request.op else { return };
        let (snapshot, op, creds) = (*snapshot, (**op).clone(), work.request.creds.clone());
        work.no_dirs.clear();
        let node =
            self.node.check_read_at(snapshot, &op).and_then(|()| self.node.node_at(snapshot));
        let node = match node {
            Ok(node) => node,
            Err(why) => return self.answer_at(ticket, Err(why.into())),
        };
        match &op {
            Op::Usage => {
                work.stage = Stage::Polling;
                self.poll(PollQuestion::Usage, Then::TellUsage(ticket));
            }
            Op::Locate { files, after } if creds.uid == 0 => {
                work.stage = Stage::Polling;
                let question = Box::new(PollQuestion::Locate(files.clone(), after.clone()));
                self.poll(PollQuestion::At(snapshot, question), Then::TellLocated(ticket));
            }
            // It is refused.
            Op::Locate { .. } => {
                let reply = node.call(Request { creds, op });
                self.end_at(ticket, reply);
            }
            // They are where they are led, unless the table has just changed.
            Op::Chunks { .. } => self.rest(ticket, false),
            _ => self.read_rows_at(ticket, (snapshot, node), Request { creds, op }),
        }
    }

    /// Begins to read what a request needs of the rows of a snapshot, at the node that has them.
    pub(super) fn read_rows_at(
        &mut self,
        ticket: u64,
        (snapshot, node): (SnapshotId, Arc<Node>),
        request: Request,
    ) {
        let (table, sent) = (self.table.placement.version, self.now);
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let rounds = work.rounds;
        work.stage = Stage::ReadingAt(SnapshotRead {
            snapshot,
            request,
            node,
            table,
            told: TxnRows::default(),
            first_round: rounds,
            round: rounds,
            asked: BTreeMap::new(),
            sent,
        });
        self.run_at(ticket);
    }

    /// The same from the beginning, by the present table.
    fn read_anew(&mut self, ticket: u64) {
        match self.works.get(&ticket).map(|work| &work.request.op) {
            Some(Op::At(..)) => self.read_at(ticket),
            _ => self.run_alone(ticket),
        }
    }

    /// Runs the operation on what was told so far.
    pub(super) fn run_at(&mut self, ticket: u64) {
        loop {
            let Some(work) = self.works.get_mut(&ticket) else { return };
            let Stage::ReadingAt(read) = &mut work.stage else { return };
            if read.table != self.table.placement.version {
                return self.read_anew(ticket);
            }
            if let Op::TreeUsage(dir) = read.request.op {
                let lacks = match read.find(&Want::Id(dir)) {
                    Ok(DirAt::Lacks(key)) => Missing { keys: vec![key], spans: Vec::new() },
                    Ok(DirAt::Dir(..)) => {
                        work.stage = Stage::Polling;
                        return self.walk_tree(ticket);
                    }
                    Ok(DirAt::None) => return self.answer_at(ticket, Err(NOT_THERE.into())),
                    Err(why) => {
                        return self.answer(ticket, Err(damaged(&Want::Id(dir), &why).into()));
                    }
                };
                if !self.ask_rows(ticket, lacks) {
                    return;
                }
                continue;
            }
            match self.read_for_clone(ticket) {
                Some(Ok(None)) => return,
                Some(Ok(Some(missing))) => {
                    if !self.ask_rows(ticket, missing) {
                        return;
                    }
                    continue;
                }
                Some(Err(why)) => return self.fail_at(ticket, why),
                None => {}
            }
            let Some(work) = self.works.get_mut(&ticket) else { return };
            let Stage::ReadingAt(read) = &mut work.stage else { return };
            let ran = read.node.transact((&read.request, None), &read.told, &work.no_dirs, 0);
            let lacks = match ran {
                Err(why) => return self.fail_at(ticket, why),
                Ok(Ran::Lacks(missing)) => missing,
                Ok(Ran::Dentry(want)) => match read.find(&want) {
                    Ok(DirAt::Lacks(key)) => Missing { keys: vec![key], spans: Vec::new() },
                    Ok(DirAt::Dir(dir, name)) => {
                        let quiet = read.node.quiesce();
                        read.node.core().replica.insert(dir, &name, 0);
                        drop(quiet);
                        continue;
                    }
                    Ok(DirAt::None) => {
                        work.no_dirs.insert(want);
                        continue;
                    }
                    Err(why) => return self.answer(ticket, Err(damaged(&want, &why).into())),
                },
                Ok(Ran::Names(dir)) => {
                    let quiet = read.node.quiesce();
                    read.node.core().replica.remove(dir);
                    drop(quiet);
                    return self.await_names(ticket, dir);
                }
                Ok(
                    Ran::CloneSource(..)
                    | Ran::Unleased
                    | Ran::Later
                    | Ran::Stopped
                    | Ran::Cut
                    | Ran::Feed(_)
                    | Ran::Quotas(_),
                ) => {
                    return self.rest(ticket, true);
                }
                Ok(Ran::Ended(ended)) => return self.end_at(ticket, ended.reply),
            };
            if !self.ask_rows(ticket, lacks) {
                return;
            }
        }
    }

    /// Own rows could not be read.
    fn fail_at(&mut self, ticket: u64, why: FsError) {
        if !self.has_lost_store(&why) {
            self.answer_at(ticket, Err(why.into()));
        }
    }

    /// Answers a read at a snapshot. That there is no such snapshot may be undone by a loss of
    /// power until the removal is durable.
    pub(super) fn answer_at(&mut self, ticket: u64, reply: Reply) {
        if reply.is_ok() {
            return self.answer(ticket, reply);
        }
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Ending;
        }
        let changed_at = self.node.core().snapshots.changed_at();
        self.answer_after(ticket, reply, changed_at);
    }

    /// The answer of a read at a snapshot, if this member may say it.
    pub(super) fn end_at(&mut self, ticket: u64, reply: Reply) {
        match self.cluster().may_answer() {
            true => self.answer_at(ticket, reply),
            // Another one may have begun to serve its rows while they were read.
            false => self.await_lease(ticket),
        }
    }

    /// Asks the owners of rows for them. Whether all are here: they were this member's own.
    fn ask_rows(&mut self, ticket: u64, missing: Missing) -> bool {
        let mut parts = self.by_owner(missing);
        let own = parts.remove(&self.me);
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return false };
        let Stage::ReadingAt(read) = &mut work.stage else { return false };
        read.round += 1;
        work.rounds = read.round;
        if read.round - read.first_round > ROUNDS_MAX {
            self.rest(ticket, true);
            return false;
        }
        if let Some(own) = own {
            match tell::rows_of(&read.node, &own) {
                Ok(found) => {
                    read.told.rows.extend(found.rows);
                    for (span, rows) in found.spans {
                        read.told.spans.entry(span).or_default().extend(rows);
                    }
                }
                Err(why) => {
                    self.fail_at(ticket, why);
                    return false;
                }
            }
        }
        (read.asked, read.sent) = (parts, now);
        let is_here = read.asked.is_empty();
        self.send_questions(ticket);
        is_here
    }

    /// Asks the members that have not answered.
    fn send_questions(&mut self, ticket: u64) {
        let Some(Stage::ReadingAt(read)) = self.works.get(&ticket).map(|work| &work.stage) else {
            return;
        };
        let id = ReadId { number: ticket, round: read.round };
        let (table, snapshot) = (read.table, read.snapshot);
        for (node, rows) in read.asked.clone() {
            let question = SnapshotReadMessage::Rows { id, table, snapshot, rows };
            self.send(node, Message::SnapshotRead(question));
        }
    }

    /// Nothing was heard for a while.
    pub(super) fn ask_again_at(&mut self, ticket: u64) {
        let now = self.now;
        let Some(Stage::ReadingAt(read)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        if read.table != self.table.placement.version {
            return self.read_anew(ticket);
        }
        read.sent = now;
        self.send_questions(ticket);
    }

    pub(super) fn heard_of_snapshot_read(&mut self, from: NodeId, message: SnapshotReadMessage) {
        use SnapshotReadMessage as M;
        match message {
            M::Rows { id, table, snapshot, rows } => {
                self.tell_rows(from, id, table, snapshot, &rows)
            }
            M::GotRows { id, rows, spans } => self.got_rows_at(from, id, rows, spans),
            M::Parents { id, table, dirs } => self.tell_parents(from, id, table, &dirs),
            M::GotParents { id, dirs } => self.got_parents(from, id, &dirs),
            M::Gone(id) if self.is_asked(from, id) => self.lacked_at(id.number),
            M::Busy(id) if self.is_asked(from, id) => self.rest(id.number, true),
            M::TooLarge(id) if self.is_asked(from, id) => {
                let text = "metadata: the rows of a snapshot that this needs do not fit a message";
                self.answer(id.number, Err(FsError::new(libc::EFBIG, text).into()));
            }
            M::Gone(_) | M::Busy(_) | M::TooLarge(_) => {}
        }
    }

    /// Another member does not have the snapshot that a request reads. If this one has it, the
    /// other one has joined just now and is about to get the record, or this one is about to hear
    /// that the snapshot goes: the request begins anew after a while.
    pub(super) fn lacked_at(&mut self, ticket: u64) {
        let op = self.works.get(&ticket).map(|work| &work.request.op);
        let has_it = match op {
            Some(Op::At(snapshot, _)) => self.node.core().snapshots.get(*snapshot).is_some(),
            _ => true,
        };
        if has_it {
            self.rest(ticket, true);
        } else {
            self.answer_at(ticket, Err(gone().into()));
        }
    }

    /// Whether a member has yet to answer a question.
    fn is_asked(&self, from: NodeId, id: ReadId) -> bool {
        match self.works.get(&id.number).map(|work| &work.stage) {
            Some(Stage::ReadingAt(read)) => {
                read.round == id.round && read.asked.contains_key(&from)
            }
            Some(Stage::ListingSnapshots(listing)) => listing.is_asked(from, id),
            _ => false,
        }
    }

    fn got_rows_at(
        &mut self,
        from: NodeId,
        id: ReadId,
        rows: Vec<(Key, Option<Box<[u8]>>)>,
        spans: Vec<(Span, Vec<SpanRow>)>,
    ) {
        if !self.is_asked(from, id) {
            return;
        }
        let Some(Stage::ReadingAt(read)) =
            self.works.get_mut(&id.number).map(|work| &mut work.stage)
        else {
            return;
        };
        read.asked.remove(&from);
        read.told.rows.extend(rows);
        for (span, rows) in spans {
            read.told.spans.entry(span).or_default().extend(rows);
        }
        if read.asked.is_empty() {
            self.run_at(id.number);
        }
    }

    /// The table has changed: what members were asked for others may have.
    pub(super) fn begin_again_at(&mut self) {
        let reads = |stage: &Stage| {
            matches!(
                stage,
                Stage::ReadingAt(_) | Stage::ListingSnapshots(_) | Stage::Forwarded { .. }
            )
        };
        let reading = self.works.iter().filter(|(_, work)| reads(&work.stage));
        for ticket in reading.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.run_alone(ticket);
        }
    }
}

fn damaged(want: &Want, why: &DecodeError) -> FsError {
    let text = format!("metadata: damaged row of a directory, {want:?}: {why}; run kestrel fsck");
    FsError::because(libc::EIO, text)
}
