//! The participant: rows that are locked for transactions, what was agreed to, and what becomes of
//! it.
//!
//! A set of locked rows that is not prepared may be given up at any time, because its number is
//! asked for before the transaction ends. A prepared one stays, on record too, until the leader
//! says how it ended.

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_meta::locks::{RowLockMode, TxnId};
use kestrel_meta::owners::MapView;
use kestrel_meta::rows::{Missing, Span, is_full};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::NodeId;
use kestrel_types::snapshot::SnapshotId;

use crate::message::{LockedRowsId, Message, SpanRow, Vote};
use crate::txn::commit::Decision;
use crate::txn::records::{Prepared, Records, encode_prepared, prepared_key};
use crate::{ClusterNode, Deferred, RESEND, without};

/// A leader that has not been heard of for so long loses what it was lent, unless that is prepared.
const SILENCE_MAX: Nanos = 3 * SECOND;

/// Rows lent to a transaction.
pub(crate) struct LockedRows {
    id: LockedRowsId,
    /// When the leader was heard of last, and asked last.
    heard: Nanos,
    asked: Nanos,
    /// What is agreed to be changed, and where the log says so.
    prepared: Option<(Prepared, Position)>,
}

/// Rows as they are lent.
#[derive(Default)]
pub(crate) struct LockedRead {
    pub(crate) rows: Vec<(Key, Option<Box<[u8]>>)>,
    pub(crate) spans: Vec<(Span, Vec<SpanRow>)>,
    /// Nobody may see them before this is durable.
    pub(crate) wait: Position,
}

impl ClusterNode {
    /// Takes up what an earlier start had agreed to and decided.
    pub(crate) fn restore(&mut self, records: Records) {
        let quiet = self.node.quiesce();
        for (txn, prepared) in records.prepared {
            let (id, mutations) = (prepared.locked, &prepared.mutations);
            let keys: Vec<Key> = mutations.iter().map(|mutation| mutation.key.clone()).collect();
            let taken = self.cluster().locks.take(txn, &keys, &[], RowLockMode::Exclusive);
            debug_assert!(taken, "two transactions have agreed on one row");
            let (heard, asked) = (self.now, self.now - RESEND);
            let locked = LockedRows { id, heard, asked, prepared: Some((prepared, 0)) };
            self.locked_rows.insert(txn, locked);
        }
        drop(quiet);
        for (txn, participants) in records.decided {
            self.decisions.insert(txn, Decision::to(participants, self.now - RESEND));
        }
    }

    /// Lends rows, or refuses.
    pub(crate) fn lend(
        &mut self,
        from: NodeId,
        txn: TxnId,
        (round, table): (u32, u64),
        mode: RowLockMode,
        wanted: &Missing,
    ) {
        if self.locked_rows.get(&txn).is_some_and(|locked| locked.prepared.is_some()) {
            // A copy of a question that was answered long ago.
            return;
        }
        let ranges: Vec<(Table, u64)> =
            wanted.spans.iter().map(|span| (span.table, span.id)).collect();
        // Readers that take turns must not keep out for ever a transaction that waits here to
        // write.
        let waited_for = mode == RowLockMode::Shared
            && !self.parked.is_empty()
            && !self.locked_rows.contains_key(&txn)
            && self.cluster().locks.holds_any(&wanted.keys, &ranges);
        if waited_for || !self.agrees(from, table) || self.some_leave(wanted) {
            return self.send(from, Message::Refused(txn, round));
        }
        if mode == RowLockMode::Exclusive && self.revoke_for(&wanted.keys) {
            // A moment: a holder of a lease answers without waiting for anything.
            let rows = wanted.clone();
            return self.borrow_later(from, Message::Borrow { txn, round, table, mode, rows });
        }
        let quiet = self.node.quiesce();
        let taken = self.cluster().locks.take(txn, &wanted.keys, &ranges, mode);
        drop(quiet);
        if !taken {
            return self.send(from, Message::Refused(txn, round));
        }
        let (now, number) = (self.now, self.number());
        let id = LockedRowsId { epoch: self.epoch, number };
        let locked = self.locked_rows.entry(txn).or_insert(LockedRows {
            id,
            heard: now,
            asked: now,
            prepared: None,
        });
        locked.heard = now;
        let locked = locked.id;
        match self.read(wanted) {
            // Another one may have begun to serve these rows while they were read.
            Ok(_) if !self.cluster().may_answer() => {}
            Ok(LockedRead { rows, spans, wait }) => {
                let lent = Message::Lent { txn, round, locked, rows, spans };
                self.when_durable(wait, Deferred::Send(from, lent));
            }
            Err(why) => {
                log::error!("rows for another node: {why}");
                self.give_back(txn);
                self.send(from, Message::Refused(txn, round));
            }
        }
    }

    /// Whether rows are wanted that another node is about to get; the entries of a directory are
    /// only to be had as a whole.
    fn some_leave(&self, wanted: &Missing) -> bool {
        let table = &self.table;
        table.leaving.is_some()
            && (wanted.keys.iter().any(|key| table.is_leaving(key.table, key.id, &key.suffix))
                || wanted
                    .spans
                    .iter()
                    .any(|span| span.table == Table::Entry || table.is_leaving_home(span.id)))
    }

    /// Reads rows of this member's own.
    pub(crate) fn read(&self, wanted: &Missing) -> Result<LockedRead, EngineError> {
        let most = self.node.core().scan_rows;
        read_rows(&**self.node.engine(), &self.table, most, wanted)
    }

    /// Gives up a set of locked rows.
    fn give_back(&mut self, txn: TxnId) {
        let quiet = self.node.quiesce();
        self.locked_rows.remove(&txn);
        self.cluster().locks.release(txn);
        drop(quiet);
        self.unlocked = true;
        self.unlocks += 1;
    }

    /// Whether a set of locked rows still exists as it was.
    pub(crate) fn still_lends(&self, txn: TxnId, id: LockedRowsId) -> bool {
        self.locked_rows.get(&txn).is_some_and(|locked| locked.id == id)
    }

    pub(crate) fn prepare(&mut self, from: NodeId, txn: TxnId, prepared: Prepared) {
        let id = prepared.locked;
        let vote = Message::Voted(txn, Vote::Yes);
        let Some(locked) = self.locked_rows.get_mut(&txn).filter(|locked| locked.id == id) else {
            return self.send(from, Message::Voted(txn, Vote::No));
        };
        locked.heard = self.now;
        if let Some((_, position)) = locked.prepared {
            return self.when_durable(position, Deferred::Send(from, vote));
        }
        if prepared.mutations.is_empty() {
            self.give_back(txn);
            return self.send(from, vote);
        }
        // The changes may bear a timestamp of the leader's that is above all on record here. What
        // this node issues after a crash has to be above it: the ceiling goes to the log first.
        if let Err(why) = self.node.raise_ceiling() {
            if self.has_lost_store(&why) {
                return;
            }
            self.give_back(txn);
            return self.send(from, Message::Voted(txn, Vote::Failed(why)));
        }
        self.note_clone_rows(&prepared.mutations);
        let row = Mutation { key: prepared_key(txn), value: Some(encode_prepared(&prepared)) };
        match self.commit(BatchKind::Growing, vec![row]) {
            Ok(position) => {
                if let Some(locked) = self.locked_rows.get_mut(&txn) {
                    locked.prepared = Some((prepared, position));
                }
                self.when_durable(position, Deferred::Send(from, vote));
            }
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => {
                self.give_back(txn);
                self.send(from, Message::Voted(txn, Vote::Failed(why)));
            }
        }
    }

    /// Changes that were agreed to, of transactions that have not ended here.
    pub(crate) fn prepared_changes(&self) -> impl Iterator<Item = &Mutation> {
        self.locked_rows
            .values()
            .filter_map(|locked| locked.prepared.as_ref())
            .flat_map(|it| &it.0.mutations)
    }

    /// The leader says how it ended. `cut`: the newest snapshot that it keeps rows for. What was
    /// decided after the leader's cut is no part of that snapshot: it is not applied before the cut
    /// of this member, and the leader says it again.
    pub(crate) fn decide(&mut self, from: NodeId, txn: TxnId, commit: bool, cut: SnapshotId) {
        if from != txn.node || commit && !self.was_cut(cut) {
            return;
        }
        let done = Message::Decided(txn);
        self.forget_borrows(txn);
        let Some(locked) = self.locked_rows.get(&txn) else {
            // It is done, or was never begun. What was done may still wait for the log.
            if commit {
                self.when_durable(self.node.last_commit(), Deferred::Send(from, done));
            }
            return;
        };
        let (mut changes, mut below) = (Vec::new(), false);
        if let Some((prepared, _)) = &locked.prepared {
            if commit {
                changes.clone_from(&prepared.mutations);
                below = prepared.below;
            }
            changes.push(without(prepared_key(txn)));
        }
        if changes.is_empty() {
            return self.give_back(txn);
        }
        let quiet = self.node.quiesce();
        let committed = self
            .unwatch_replaced(&changes)
            .and_then(|()| self.commit_changes(BatchKind::Freeing, changes, below));
        drop(quiet);
        match committed {
            Ok(position) => {
                self.give_back(txn);
                if commit {
                    self.when_durable(position, Deferred::Send(from, done));
                }
            }
            // It stays, and is asked about again.
            Err(why) => log::error!("changes of a transaction over several nodes: {why}"),
        }
    }

    pub(crate) fn alive(&mut self, from: NodeId, txn: TxnId) {
        if let Some(locked) = self.locked_rows.get_mut(&txn).filter(|_| from == txn.node) {
            locked.heard = self.now;
        }
    }

    /// Asks the leaders of locked rows that nothing was heard of.
    pub(crate) fn tick_locked_rows(&mut self) {
        let (now, me) = (self.now, self.me);
        let (mut lost, mut ask) = (Vec::new(), Vec::new());
        for (txn, locked) in &mut self.locked_rows {
            if txn.node == me && self.leads.contains_key(txn) {
                continue;
            }
            if locked.prepared.is_none() && locked.heard + SILENCE_MAX <= now {
                lost.push(*txn);
            } else if locked.heard.max(locked.asked) + RESEND <= now {
                locked.asked = now;
                ask.push(*txn);
            }
        }
        for txn in lost {
            self.give_back(txn);
        }
        for txn in ask {
            if self.table.placement.heir_of(txn.node).is_some() {
                // A member that has left has left no other in doubt: this could not be put on
                // record before.
                self.decide(txn.node, txn, false, 0);
            } else {
                self.send(txn.node, Message::Ask(txn));
            }
        }
    }
}

/// Reads rows that are a member's own by this table, of the chunks of a file at most `most`.
pub(crate) fn read_rows(
    engine: &dyn Engine,
    table: &MapView,
    most: usize,
    wanted: &Missing,
) -> Result<LockedRead, EngineError> {
    let mut read = LockedRead::default();
    let keys: Vec<_> = wanted.keys.iter().map(Key::borrow).collect();
    engine.get_many(&keys, &mut |index, row| {
        read.rows.push((wanted.keys[index].clone(), row.value.map(Into::into)));
        read.wait = read.wait.max(row.changed_at);
    })?;
    for span in &wanted.spans {
        let mut rows: Vec<SpanRow> = Vec::new();
        let (wait, mut bytes) = (&mut read.wait, 0);
        let mut visit = |suffix: &[u8], value: &[u8], changed_at: Position| {
            if table.strangers && !table.owns(span.table, span.id, suffix) {
                return ControlFlow::Continue(());
            }
            if rows.len() >= span.rows_max as usize {
                return ControlFlow::Break(());
            }
            bytes += value.len();
            // One more than one batch may take, which tells that there is more.
            let last = span.table == Table::Chunk && is_full(most, rows.len(), bytes);
            rows.push((suffix.into(), value.into()));
            *wait = (*wait).max(changed_at);
            if last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let deleted_at = engine.scan(span.table, span.id, span.after.as_deref(), &mut visit)?;
        read.wait = read.wait.max(deleted_at);
        read.spans.push((span.clone(), rows));
    }
    Ok(read)
}
