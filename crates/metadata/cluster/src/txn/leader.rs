//! The leader of a transaction: borrows rows until the operation needs no more, then ends it
//! ([`crate::txn::commit`]).

use std::collections::BTreeMap;

use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::node::Ran;
use kestrel_meta::rows::{Missing, Span, TxnRows};
use kestrel_types::clock::Nanos;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::request::Op;

use crate::ClusterNode;
use crate::message::{LockedRowsId, Message, SpanRow};
use crate::work::Stage;
use crate::work::clone_work::CloneWork;
use crate::work::transaction::{LeaderTxn, TxnPhase};

/// Most rounds in which a transaction borrows rows. No operation needs more than a few, but a path
/// has up to 2,048 parts.
const ROUNDS_MAX: u32 = 4096;

/// For so long after a transaction has begun no participant has lost a set of locked rows: silence
/// takes him longer ([`crate::txn::participant`]), and so does a restart ([`crate::RESTART_MIN`]).
pub(crate) const SURE: Nanos = crate::RESTART_MIN;

impl ClusterNode {
    /// Begins a transaction for a request. What is read at a snapshot needs none.
    pub(crate) fn lead(&mut self, ticket: u64) {
        match self.works.get(&ticket).map(|work| &work.request.op) {
            Some(Op::At(..)) => return self.read_at(ticket),
            Some(Op::SnapshotList { .. }) => return self.list_snapshots(ticket),
            Some(Op::SnapshotUsage { .. }) => return self.tell_removal(ticket),
            Some(Op::SnapshotChanges { .. }) => return self.compare(ticket),
            _ => {}
        }
        let work = self.works.get(&ticket).and_then(|work| work.clone_work.as_ref());
        if work.is_some_and(|work| work.then.is_none()) {
            return self.run_clone_work(ticket);
        }
        if self.is_misdirected(ticket) {
            return;
        }
        if self.read_feed(ticket)
            || self.begin_quota_request(ticket)
            || self.step_clone(ticket)
            || self.begin_walk(ticket)
        {
            return;
        }
        if self.table.departs() {
            return self.rest(ticket, true);
        }
        let number = self.number();
        let txn = TxnId { node: self.me, epoch: self.epoch, number };
        let now = self.now;
        let Some(work) = self.works.get_mut(&ticket) else { return };
        if work.counter.is_none() && makes(&work.request.op) {
            match self.node.counter() {
                Ok(counter) => work.counter = Some(counter),
                Err(why) if self.has_lost_store(&why) => return,
                Err(why) => return self.answer(ticket, Err(why.into())),
            }
        }
        let quotas = self.node.core().quotas.version();
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let mode = if work.clone_work.is_some() || may_change(&work.request.op) {
            RowLockMode::Exclusive
        } else {
            RowLockMode::Shared
        };
        work.stage = Stage::Leading(LeaderTxn {
            txn,
            mode,
            lent: TxnRows::default(),
            round: 0,
            participants: BTreeMap::new(),
            phase: TxnPhase::Borrowing,
            begun: now,
            sent: now,
            quotas,
            doubtful: false,
        });
        self.leads.insert(txn, ticket);
        self.run(ticket);
    }

    /// The transaction that a message is about, if it goes on.
    pub(crate) fn led(&mut self, txn: TxnId) -> Option<(u64, &mut LeaderTxn)> {
        let ticket = *self.leads.get(&txn)?;
        match &mut self.works.get_mut(&ticket)?.stage {
            Stage::Leading(lead) if lead.txn == txn => Some((ticket, lead)),
            _ => None,
        }
    }

    /// Runs the operation on what was lent so far.
    pub(crate) fn run(&mut self, ticket: u64) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Stage::Leading(lead) = &mut work.stage else { return };
        lead.doubtful = false;
        let counter = work.counter.unwrap_or_default();
        let ran = match work.clone_work.as_deref().and_then(CloneWork::parts) {
            Some((job, then)) => self.node.transact_clone(job, (then, &lead.lent), counter),
            None => {
                self.node.transact((&work.request, work.claim), &lead.lent, &work.no_dirs, counter)
            }
        };
        match ran {
            Err(why) => {
                if !self.has_lost_store(&why) {
                    self.give_up(ticket);
                    self.answer(ticket, Err(why.into()));
                }
            }
            Ok(Ran::Lacks(missing)) => self.borrow(ticket, missing),
            Ok(Ran::Dentry(want)) => self.fetch(want, ticket),
            Ok(Ran::Unleased) => {
                self.give_up(ticket);
                self.await_lease(ticket);
            }
            Ok(Ran::Stopped) => {
                self.give_up(ticket);
                self.rest(ticket, false);
            }
            Ok(Ran::Cut) => {
                self.give_up(ticket);
                self.begin_cut(ticket);
            }
            Ok(Ran::Feed(place)) => {
                self.give_up(ticket);
                self.poll_feed(ticket, place);
            }
            Ok(Ran::Names(dir)) => {
                self.give_up(ticket);
                self.await_names(ticket, dir);
            }
            Ok(Ran::CloneSource(_, at)) => {
                self.give_up(ticket);
                self.read_source_at(ticket, at);
            }
            Ok(Ran::Quotas(of)) => {
                self.give_up(ticket);
                self.tell_quotas(ticket, Some(of));
            }
            Ok(Ran::Later) => {
                self.give_up(ticket);
                self.rest(ticket, true);
            }
            Ok(Ran::Ended(ended)) => {
                // What is written without having been read has to be locked as well.
                let keys = ended.mutations.iter().map(|mutation| &mutation.key);
                let keys: Vec<Key> = keys.filter(|key| !lead.has(key)).cloned().collect();
                if keys.is_empty() {
                    return self.end(ticket, ended);
                }
                self.borrow(ticket, Missing { keys, spans: Vec::new() });
            }
        }
    }

    /// Rows by the members that own them.
    pub(crate) fn by_owner(&self, missing: Missing) -> BTreeMap<NodeId, Missing> {
        let mut parts: BTreeMap<NodeId, Missing> = BTreeMap::new();
        let cluster = &self.table;
        for key in missing.keys {
            let owner = cluster.owner(key.table, key.id, &key.suffix);
            parts.entry(owner).or_default().keys.push(key);
        }
        for span in missing.spans {
            // Names of a directory are everywhere.
            let owners: Vec<NodeId> = if span.table == Table::Entry {
                cluster.serving().collect()
            } else {
                vec![cluster.home_of(span.id)]
            };
            for owner in owners {
                parts.entry(owner).or_default().spans.push(span.clone());
            }
        }
        parts
    }

    /// Asks the owners of rows for them.
    fn borrow(&mut self, ticket: u64, missing: Missing) {
        let parts = self.by_owner(missing);
        let now = self.now;
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        lead.round += 1;
        lead.sent = now;
        if lead.round > ROUNDS_MAX {
            self.give_up(ticket);
            return self.rest(ticket, true);
        }
        let (txn, round, mode) = (lead.txn, lead.round, lead.mode);
        let table = self.table.placement.version;
        for (node, rows) in &parts {
            lead.participants.entry(*node).or_default().asked = Some((round, rows.clone()));
        }
        for (node, rows) in parts {
            self.send(node, Message::Borrow { txn, round, table, mode, rows });
        }
    }

    pub(crate) fn lent(
        &mut self,
        from: NodeId,
        txn: TxnId,
        round: u32,
        locked: LockedRowsId,
        rows: Vec<(Key, Option<Box<[u8]>>)>,
        spans: Vec<(Span, Vec<SpanRow>)>,
    ) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        let Some(participant) = lead.participants.get_mut(&from) else { return };
        if participant.asked.as_ref().is_none_or(|(asked, _)| *asked != round) {
            return;
        }
        if participant.locked.is_some_and(|before| before != locked) {
            // What he lent before is not locked any more.
            self.give_up(ticket);
            return self.rest(ticket, true);
        }
        (participant.locked, participant.asked) = (Some(locked), None);
        lead.lent.rows.extend(rows);
        for (span, rows) in spans {
            lead.lent.spans.entry(span).or_default().extend(rows);
        }
        if lead.participants.values().all(|participant| participant.asked.is_none()) {
            self.run(ticket);
        }
    }

    pub(crate) fn refused(&mut self, from: NodeId, txn: TxnId, round: u32) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        let asked = lead.participants.get(&from).and_then(|participant| participant.asked.as_ref());
        if asked.is_some_and(|(asked, _)| *asked == round) {
            self.give_up(ticket);
            self.rest(ticket, true);
        }
    }

    /// Ends an attempt that has not been decided: nothing has happened.
    pub(crate) fn give_up(&mut self, ticket: u64) {
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Stage::Leading(lead) = &work.stage else { return };
        debug_assert!(!lead.is_decided());
        let (txn, participants) = (lead.txn, lead.participants.keys().copied().collect::<Vec<_>>());
        work.stage = Stage::Ending;
        self.leads.remove(&txn);
        self.forget_fetches(ticket);
        for node in participants {
            // If this is lost he asks.
            self.send(node, Message::Decide(txn, false, 0));
        }
    }

    /// Asks the members that have not answered once more.
    pub(crate) fn send_again(&mut self, ticket: u64) {
        let (now, table) = (self.now, self.table.placement.version);
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        lead.sent = now;
        let (txn, mode) = (lead.txn, lead.mode);
        let (mut messages, mut forget) = (Vec::new(), Vec::new());
        match &lead.phase {
            TxnPhase::Borrowing => {
                for (node, participant) in &lead.participants {
                    if let Some((round, rows)) = participant.asked.clone() {
                        messages.push((*node, Message::Borrow { txn, round, table, mode, rows }));
                    }
                }
            }
            TxnPhase::Invalidating(nodes, ended) => {
                forget.extend(nodes.keys().map(|node| (*node, ended.dirs.clone())));
            }
            TxnPhase::Preparing(nodes, changes, ended) => {
                let below = ended.below;
                for node in nodes {
                    let locked =
                        lead.participants.get(node).and_then(|participant| participant.locked);
                    let mutations = changes.get(node).cloned().unwrap_or_default();
                    messages.extend(
                        locked.map(|locked| {
                            (*node, Message::Prepare { txn, locked, mutations, below })
                        }),
                    );
                }
            }
            TxnPhase::Decided(..) => {}
        }
        for (node, message) in messages {
            self.send(node, message);
        }
        for (node, dirs) in forget {
            self.have_forget(node, txn, dirs);
        }
        self.drive_fences(ticket);
    }
}

/// Whether an operation may make an inode.
fn makes(op: &Op) -> bool {
    matches!(
        op,
        Op::MkNod { .. }
            | Op::MkDir(..)
            | Op::Symlink(..)
            | Op::Create { .. }
            | Op::TmpFile { .. }
            | Op::CloneDir { .. }
    )
}

/// Whether an operation may change rows. To open a file that exists changes none.
fn may_change(op: &Op) -> bool {
    match op {
        Op::Open(_, flags) | Op::OpenAt(_, flags) => flags.truncate,
        // The cut follows when the rows are given back.
        Op::SnapshotCreate { .. } => false,
        _ => op.is_numbered(),
    }
}
