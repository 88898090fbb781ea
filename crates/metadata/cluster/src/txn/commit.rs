//! The end of a transaction, at its leader: two-phase commit, and before it the invalidation of
//! directories that change.
//!
//! One batch decides: the leader's own changes, the answer for retries, and a record of the
//! participants that have changes to make. When it is durable the reply leaves and the participants
//! are told, again and again until each has said that it is done; then the record goes. What is not
//! on record was not decided.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::locks::TxnId;
use kestrel_meta::node::Ended;
use kestrel_meta::replica::PolicyUse;
use kestrel_meta::txn;
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;

use crate::message::{Message, Vote};
use crate::txn::leader::SURE;
use crate::txn::records::{decision_key, encode_decision};
use crate::work::Stage;
use crate::work::transaction::TxnPhase;
use crate::{ClusterNode, Deferred, RESEND, without};

/// Most transactions in one message about directories to be forgotten: each changes a few, so it
/// has some hundred kilobytes at most.
const BROADCAST_MAX: usize = 4096;

/// A decision that some participants may not know.
pub(crate) struct Decision {
    participants: BTreeSet<NodeId>,
    sent: Nanos,
}

impl Decision {
    pub fn to(participants: Vec<NodeId>, sent: Nanos) -> Self {
        Self { participants: participants.into_iter().collect(), sent }
    }

    /// These need not be told. Whether that were all that did not know.
    pub fn forget(&mut self, known: impl Fn(NodeId) -> bool) -> bool {
        self.participants.retain(|node| !known(*node));
        self.participants.is_empty()
    }
}

impl ClusterNode {
    /// The operation needs no more rows.
    pub(crate) fn end(&mut self, ticket: u64, ended: Box<Ended>) {
        if self.has_read_at_once(ticket, &ended) {
            // All rows are locked at this moment, without anybody having to say so again.
            let Ended { reply, wait, .. } = *ended;
            self.give_up(ticket);
            return self.answer_after(ticket, reply, wait);
        }
        if ended.dirs.is_empty() {
            return self.settle(ticket, ended);
        }
        let now = self.now;
        // A member that is idle resolves no paths.
        let nodes: Vec<NodeId> = self.table.serving().collect();
        let fences = nodes.iter().map(|node| (*node, self.fence_from(*node))).collect();
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        let (txn, dirs) = (lead.txn, ended.dirs.clone());
        lead.sent = now;
        lead.phase = TxnPhase::Invalidating(fences, ended);
        for node in nodes {
            self.have_forget(node, txn, dirs.clone());
        }
        self.drive_fences(ticket);
    }

    /// A member is to forget directories. That leaves with whatever else it is to forget at the
    /// moment: many removals share a message, a wait for its batches, and an answer.
    pub(crate) fn have_forget(&mut self, node: NodeId, txn: TxnId, dirs: Vec<InodeId>) {
        self.broadcast.entry(node).or_default().push((txn, dirs));
    }

    /// Sends what is to be forgotten. This member does so at once, and with whatever may go on
    /// after that.
    pub(crate) fn send_broadcast(&mut self) {
        while let Some(own) = self.broadcast.remove(&self.me) {
            self.handle(self.me, Message::Invalidate(own));
            self.pump();
        }
        for (node, mut changes) in std::mem::take(&mut self.broadcast) {
            while !changes.is_empty() {
                let part = changes.drain(..changes.len().min(BROADCAST_MAX)).collect();
                self.send(node, Message::Invalidate(part));
            }
        }
    }

    /// Whether a transaction has only read, and in so short a time that no participant can have
    /// lost a locked rows.
    fn has_read_at_once(&self, ticket: u64, ended: &Ended) -> bool {
        let Some(work) = self.works.get(&ticket) else { return false };
        let Stage::Leading(lead) = &work.stage else { return false };
        let reads = work.claim.is_none()
            && ended.mutations.is_empty()
            && ended.dirs.is_empty()
            && ended.opens.is_empty()
            && ended.referred.is_empty();
        // The last rows may be this member's own, and it may have waited for them since it was told
        // the time.
        reads && self.time() - lead.begun < SURE
    }

    pub(crate) fn invalidated(&mut self, from: NodeId, txn: TxnId) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        let TxnPhase::Invalidating(nodes, _) = &mut lead.phase else { return };
        nodes.remove(&from);
        if !nodes.is_empty() {
            return;
        }
        if let TxnPhase::Invalidating(_, ended) =
            std::mem::replace(&mut lead.phase, TxnPhase::Borrowing)
        {
            self.settle(ticket, ended);
        }
    }

    /// Asks all participants but this member whether they agree.
    fn settle(&mut self, ticket: u64, mut ended: Box<Ended>) {
        let mut changes: BTreeMap<NodeId, Vec<Mutation>> = BTreeMap::new();
        let (me, now, cluster) = (self.me, self.now, &self.table);
        for mutation in std::mem::take(&mut ended.mutations) {
            let key = &mutation.key;
            let owner = cluster.owner(key.table, key.id, &key.suffix);
            changes.entry(owner).or_default().push(mutation);
        }
        ended.mutations = changes.remove(&me).unwrap_or_default();
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        let txn = lead.txn;
        let participants = lead.participants.iter().filter(|(node, _)| **node != me);
        let participants: Vec<_> = participants
            .filter_map(|(node, participant)| Some((*node, participant.locked?)))
            .collect();
        debug_assert!(
            changes
                .keys()
                .all(|node| participants.iter().any(|(participant, _)| participant == node))
        );
        let nodes: BTreeSet<NodeId> = participants.iter().map(|(node, _)| *node).collect();
        lead.sent = now;
        let below = ended.below;
        lead.phase = TxnPhase::Preparing(nodes, changes.clone(), ended);
        for (node, locked) in &participants {
            let mutations = changes.remove(node).unwrap_or_default();
            self.send(*node, Message::Prepare { txn, locked: *locked, mutations, below });
        }
        if participants.is_empty() {
            self.commit_txn(ticket);
        }
    }

    pub(crate) fn voted(&mut self, from: NodeId, txn: TxnId, vote: Vote) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        if let (TxnPhase::Borrowing, Vote::Failed(why)) = (&lead.phase, &vote)
            && lead.participants.contains_key(&from)
        {
            // He cannot even lend.
            let why = why.clone();
            self.give_up(ticket);
            return self.answer(ticket, Err(why.into()));
        }
        let TxnPhase::Preparing(nodes, ..) = &mut lead.phase else { return };
        if !nodes.contains(&from) {
            return;
        }
        match vote {
            Vote::Yes => {
                nodes.remove(&from);
                if nodes.is_empty() {
                    self.commit_txn(ticket);
                }
            }
            Vote::No => {
                self.give_up(ticket);
                self.rest(ticket, true);
            }
            Vote::Failed(why) => {
                self.give_up(ticket);
                self.answer(ticket, Err(why.into()));
            }
        }
    }

    /// All participants agree: decides.
    pub(crate) fn commit_txn(&mut self, ticket: u64) {
        if self.may_not_decide(ticket) {
            return;
        }
        if self.changes_handed_over(ticket) {
            self.give_up(ticket);
            return self.rest(ticket, true);
        }
        let node = self.node.clone();
        let quiet = node.quiesce();
        if self.claims_in_vain(ticket) || self.doubts_policies(ticket) || self.lacks_quotas(ticket)
        {
            drop(quiet);
            self.give_up(ticket);
            return self.rest(ticket, true);
        }
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let origin = work.asker.origin();
        let Stage::Leading(lead) = &mut work.stage else { return };
        let TxnPhase::Preparing(_, changes, mut ended) =
            std::mem::replace(&mut lead.phase, TxnPhase::Borrowing)
        else {
            return;
        };
        let wait = ended.wait;
        let (txn, own) =
            (lead.txn, lead.participants.get(&self.me).and_then(|participant| participant.locked));
        debug_assert!(
            own.is_none_or(|own| self.still_lends(txn, own)),
            "its own loans it does not give up"
        );
        let participants: Vec<NodeId> = changes.into_keys().collect();
        let mut batch = std::mem::take(&mut ended.mutations);
        let changes = !batch.is_empty() || !participants.is_empty();
        let recorded = origin.filter(|_| changes);
        batch.extend(recorded.map(|origin| txn::answer_row(origin, &ended.reply)));
        if !participants.is_empty() {
            batch.push(Mutation {
                key: decision_key(txn),
                value: Some(encode_decision(&participants)),
            });
        }
        let condemned = &self.node.core().condemned;
        if ended.referred.iter().any(|object| condemned.refer(*object)) {
            // Since the last run somebody has begun to delete what it is going to refer to. The
            // next run says what comes of that.
            drop(quiet);
            self.give_up(ticket);
            return self.rest(ticket, true);
        }
        // Of what changes nothing it does not matter which quotas there were.
        let charged = match changes {
            true => node.core().quotas.charge_all(&ended.charges, node.core().workers),
            false => Ok(Vec::new()),
        };
        match charged {
            Ok(rows) => batch.extend(rows),
            Err(want) => {
                drop(quiet);
                self.give_up(ticket);
                return match want {
                    Some(want) => self.await_part(ticket, want),
                    // The quotas have changed since it ran.
                    None => self.rest(ticket, true),
                };
            }
        }
        // Nothing of what the participants have agreed to is visible before this: the events come
        // after all that they know of the names.
        let mut events = std::mem::take(&mut ended.feed_events);
        let position = {
            let _until_committed = node.begin_decision();
            node.stamp_feed_events(&mut events).and_then(|()| {
                batch.append(&mut events);
                if batch.is_empty() {
                    Ok(0)
                } else {
                    self.commit_changes(BatchKind::Growing, batch, ended.below)
                }
            })
        };
        if position.is_ok() {
            node.core().quotas.charged(&ended.charges, node.core().workers);
            for change in std::mem::take(&mut ended.opens) {
                change.make(&self.node.core().opens);
            }
        }
        if let Ok(position) = position {
            let known = &self.node.core().snapshots;
            std::mem::take(&mut ended.snapshots).into_iter().for_each(|it| known.put(it, position));
        }
        drop(quiet);
        let position =
            position.map_or_else(|why| self.not_decided(why), |position| Ok(Ok(position)));
        let position = match position {
            Ok(Ok(position)) => position,
            Ok(Err(why)) => {
                self.give_up(ticket);
                return self.answer(ticket, Err(why.into()));
            }
            Err(()) => return,
        };
        if let Some((_, lead)) = self.led(txn) {
            lead.phase = TxnPhase::Decided(participants, ended);
        }
        // A request that sees its changes here waits for the log as well.
        self.decide(self.me, txn, false, 0);
        self.when_durable(position.max(wait), Deferred::Finish(txn));
    }

    /// Whether a transaction changes records of snapshots that the next leader of them may have had
    /// already.
    fn changes_handed_over(&self, ticket: u64) -> bool {
        let Some(next) = &self.table.leaving else { return false };
        let stage = self.works.get(&ticket).map(|work| &work.stage);
        let Some(Stage::Leading(lead)) = stage else { return false };
        let TxnPhase::Preparing(_, _, ended) = &lead.phase else { return false };
        !ended.snapshots.is_empty() && self.hands_snapshots_over(next)
    }

    /// Whether a transaction may change what a policy has made immutable since it was run. Without
    /// a lease this member may not have heard of that.
    fn doubts_policies(&self, ticket: u64) -> bool {
        if self.node.core().replica.policy_use() == PolicyUse::None {
            return false;
        }
        let stage = self.works.get(&ticket).map(|work| &work.stage);
        matches!(stage, Some(Stage::Leading(lead)) if lead.doubtful)
            || !self.cluster().holds_lease()
    }

    /// Whether the set of quotas has changed since a transaction began: the rows that it read, of
    /// files with several names, may be of the set before. What changes nothing is charged to none.
    fn lacks_quotas(&self, ticket: u64) -> bool {
        let stage = self.works.get(&ticket).map(|work| &work.stage);
        let Some(Stage::Leading(lead)) = stage else { return false };
        let TxnPhase::Preparing(_, changes, ended) = &lead.phase else { return false };
        lead.quotas != self.node.core().quotas.version()
            && !(changes.is_empty() && ended.mutations.is_empty())
    }

    /// The decision is durable.
    pub(crate) fn finish(&mut self, txn: TxnId) {
        let Some((ticket, lead)) = self.led(txn) else { return };
        let TxnPhase::Decided(participants, ended) =
            std::mem::replace(&mut lead.phase, TxnPhase::Borrowing)
        else {
            return;
        };
        self.leads.remove(&txn);
        let cut = self.newest_cut();
        for node in &participants {
            self.send(*node, Message::Decide(txn, true, cut));
        }
        if !participants.is_empty() {
            self.decisions.insert(txn, Decision::to(participants, self.now));
        }
        self.answer(ticket, ended.reply);
    }

    /// A participant has made its changes.
    pub(crate) fn decided(&mut self, from: NodeId, txn: TxnId) {
        let Some(decision) = self.decisions.get_mut(&txn) else { return };
        decision.participants.remove(&from);
        if decision.participants.is_empty() {
            self.decisions.remove(&txn);
            // If that fails, or is lost, the participants are told once more after the next start.
            if let Err(why) = self.commit(BatchKind::Freeing, vec![without(decision_key(txn))]) {
                log::warn!("the record of a transaction that has ended: {why}");
            }
            self.say_stopped();
        }
    }

    /// A participant asks what became of a transaction.
    pub(crate) fn asked(&mut self, from: NodeId, txn: TxnId) {
        let answer = if self.decisions.contains_key(&txn) {
            Message::Decide(txn, true, self.newest_cut())
        } else if self.leads.contains_key(&txn) {
            Message::Alive(txn)
        } else {
            Message::Decide(txn, false, 0)
        };
        self.send(from, answer);
    }

    pub(crate) fn tick_decisions(&mut self) {
        let (now, cut) = (self.now, self.newest_cut());
        let mut again = Vec::new();
        for (txn, decision) in &mut self.decisions {
            if decision.sent + RESEND <= now {
                decision.sent = now;
                again.extend(
                    decision
                        .participants
                        .iter()
                        .map(|node| (*node, Message::Decide(*txn, true, cut))),
                );
            }
        }
        for (node, message) in again {
            self.send(node, message);
        }
    }
}
