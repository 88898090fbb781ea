//! The coordinator: the member that the table names leads changes of the table ([`super::change`]),
//! one at a time.
//!
//! Until it decides nothing of a change is on record here, since nothing has happened: an attempt
//! that it does not know it calls off when somebody asks. The decision is record "change", the next
//! table, which stays until all members have adopted it.
//!
//! A member that leaves is told first, but not waited for long: when all are frozen it serves
//! nobody, and whenever it asks later it hears the table. A node that was added and never came can
//! be forgotten: it is a member and still expected, which is also on record, so nobody waits for it
//! while the others get a table without it.
//!
//! When the role moves the record "change" tells only the successor of the table, again and again,
//! and goes when the coordinator hears from that one that he is to adopt it himself. A change by
//! which it moves fixes what is handed over: nodes are announced before it, or after it by the
//! successor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::owners::NODES_MAX;
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::slot_map::ADDRESS_MAX;
use kestrel_types::placement::{Member as MapMember, NodeId, PlacementMap};

use super::change::records::{self, ChangeRecords};
use super::change::{Changed, Expected};
use super::{ClusterNode, Deferred, RESEND, peer_identity};
use crate::message::changes::{Announced, Attempt, ChangeMessage, Charge};

/// An attempt ends when nothing was heard of a member for so long.
const SILENCE_MAX: Nanos = 30 * SECOND;

/// Rows are kept from everybody at most so long: requests for them wait, and have deadlines.
const FREEZE_MAX: Nanos = 8 * SECOND;

/// Attempts at a change before it fails.
const ATTEMPTS_MAX: u32 = 5;

/// How long a member that leaves is waited for before the others adopt the table without it.
const FAREWELL_MAX: Nanos = 3 * SECOND;

/// The shortest and the longest pause between two attempts.
const PAUSE_MIN: Nanos = 300 * MILLISECOND;
const PAUSE_MAX: Nanos = 3 * SECOND;

/// What members are to do in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Begin,
    Copy,
    Freeze,
}

/// How far a change is.
enum Step {
    /// The next attempt begins then.
    Resting(Nanos),
    /// Members are doing something.
    Asking(Asking),
    /// The decision waits for the log.
    Deciding,
    /// These have to adopt the table, in this turn.
    Adopting { turn: Turn, silent: BTreeSet<NodeId>, since: Nanos, sent: Nanos },
}

/// The members that adopt a table: one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The coordinator by it, if that is another one, which then goes on with the turns of the
    /// others.
    Successor,
    /// The member that leaves.
    Leaving,
    /// The members before.
    Old,
    /// The members that come with it: all others tell them of changes of directories by then.
    New,
}

struct Asking {
    attempt: Attempt,
    order: Order,
    /// The members that have not done it.
    silent: BTreeSet<NodeId>,
    /// When each member was heard of last.
    heard: BTreeMap<NodeId, Nanos>,
    since: Nanos,
    sent: Nanos,
}

/// A change that is led.
struct Change {
    next: Arc<PlacementMap>,
    step: Step,
    attempts: u32,
    done: Option<Changed>,
}

/// What the coordinator knows; other members know nothing.
pub(super) struct Coordinator {
    /// Nodes to come.
    expected: BTreeMap<NodeId, Announced>,
    /// Nodes up to this one may have been forgotten.
    last_node: NodeId,
    attempt: Attempt,
    change: Option<Change>,
}

impl Coordinator {
    /// As the records say, of the member `me` with this table.
    pub fn new(
        me: NodeId,
        present: &PlacementMap,
        records: ChangeRecords,
        epoch: u64,
        now: Nanos,
    ) -> Self {
        let ChangeRecords { expected, last_node, change, era, .. } = records;
        let change = change.map(|next| {
            let step = adopting(me, present, &next, &expected, now - RESEND);
            Change { next, step, attempts: 0, done: None }
        });
        let attempt = Attempt { epoch: era.saturating_add(epoch), number: 0 };
        let mut coordinator = Self { expected, last_node, attempt, change };
        if let (None, Some(node)) = (&coordinator.change, coordinator.forgotten(present))
            && let Some(Ok(next)) =
                present.heir_for(node, me).map(|heir| present.without(node, heir))
        {
            let (next, step) = (Arc::new(next), Step::Resting(now));
            coordinator.change = Some(Change { next, step, attempts: 0, done: None });
        }
        coordinator
    }

    /// A member of the present table that was added, never came and is taken out again. Only when
    /// no table is being adopted.
    fn forgotten(&self, present: &PlacementMap) -> Option<NodeId> {
        self.expected.keys().copied().find(|node| present.map.member(*node).is_some())
    }

    /// Whether it leads a change.
    pub fn leads(&self) -> bool {
        self.change.is_some()
    }

    /// Whether it leads a change by which another member is to coordinate.
    fn hands_over(&self, me: NodeId) -> bool {
        self.change.as_ref().is_some_and(|change| change.next.coordinator != me)
    }

    /// What it knows, for the next coordinator.
    fn charge(&self) -> Charge {
        Charge {
            era: self.attempt.epoch,
            last_node: self.last_node,
            expected: self.expected.clone(),
        }
    }

    /// Takes over with a table that is decided and on record here, but not durably yet. `epoch` is
    /// this start of the member.
    pub fn take_over(&mut self, next: Arc<PlacementMap>, charge: Charge, epoch: u64) {
        let Charge { era, last_node, expected } = charge;
        let attempt = Attempt { epoch: era.saturating_add(epoch), number: 0 };
        let change = Some(Change { next, step: Step::Deciding, attempts: 0, done: None });
        *self = Self { expected, last_node, attempt, change };
    }

    /// The records of a coordinator that is none any more are gone by these.
    pub fn rows_given_up(&self) -> Vec<Mutation> {
        let names =
            [records::CHANGE, records::LAST_NODE, records::ERA].into_iter().map(records::gone);
        names.chain(self.expected.keys().map(|node| records::expect_row(*node, None))).collect()
    }

    /// Another member has taken over. The callers that wait for that.
    pub fn give_up(&mut self) -> Option<Changed> {
        (self.expected, self.last_node) = (BTreeMap::new(), 0);
        self.change.take().and_then(|change| change.done)
    }

    /// Callers that wait for the end of a change hear this instead.
    pub fn fail(&mut self, why: &FsError) {
        if let Some(done) = self.change.take().and_then(|change| change.done) {
            done(Err(why.clone()));
        }
    }
}

/// The first turn of the adoption of a table after the present one, or after the one before if this
/// member has adopted it already.
fn adopting(
    me: NodeId,
    present: &PlacementMap,
    next: &PlacementMap,
    expected: &BTreeMap<NodeId, Announced>,
    now: Nanos,
) -> Step {
    if next.coordinator != me {
        let silent = [next.coordinator].into();
        return Step::Adopting { turn: Turn::Successor, silent, since: now, sent: now };
    }
    let members = present.map.members().iter().map(|member| member.id);
    let leave =
        members.filter(|node| next.map.member(*node).is_none() && !expected.contains_key(node));
    let silent: BTreeSet<NodeId> = leave.collect();
    if silent.is_empty() {
        return Step::Adopting {
            turn: Turn::Old,
            silent: old(next, expected),
            since: now,
            sent: now,
        };
    }
    Step::Adopting { turn: Turn::Leaving, silent, since: now, sent: now }
}

/// Members of a table that are not coming with it.
fn old(next: &PlacementMap, expected: &BTreeMap<NodeId, Announced>) -> BTreeSet<NodeId> {
    let members = next.map.members().iter().map(|member| member.id);
    members.filter(|node| !expected.contains_key(node)).collect()
}

/// Members that come with a table.
fn new(next: &PlacementMap, expected: &BTreeMap<NodeId, Announced>) -> BTreeSet<NodeId> {
    let members = next.map.members().iter().map(|member| member.id);
    members.filter(|node| expected.contains_key(node)).collect()
}

fn cannot_leave(node: NodeId) -> FsError {
    let text = format!(
        "metadata: node {node} leads changes of the table: it cannot leave before another one does \
         (`kestrel cluster coordinator`)"
    );
    FsError::because(libc::EINVAL, text)
}

fn refused(text: &'static str) -> FsError {
    FsError::new(libc::EINVAL, text)
}

impl ClusterNode {
    /// Makes `next` the table of the cluster. Only at the coordinator; `next` has the version after
    /// the present one, and all present members but at most one, which was leaving; at most one
    /// comes with it, which is expected and gets no slots yet. If it has another coordinator
    /// nothing else changes, and when it has succeeded this member is the coordinator no more.
    /// `done` hears how it ended: after a failure everything is as it was; `ETIMEDOUT` and `EAGAIN`
    /// say that it may succeed later.
    pub fn change(&mut self, next: PlacementMap, done: Changed, now: Nanos) {
        self.at(now);
        match self.may_change(&next) {
            Err(why) => done(Err(why)),
            Ok(()) => self.lead_change(next, Some(done)),
        }
        self.pump();
    }

    fn lead_change(&mut self, next: PlacementMap, done: Option<Changed>) {
        let (next, step) = (Arc::new(next), Step::Resting(self.now));
        self.coordinator.change = Some(Change { next, step, attempts: 0, done });
        self.tick_coordinator();
    }

    /// Whether this member can lead this change.
    fn may_change(&mut self, next: &PlacementMap) -> FsResult<()> {
        if !self.is_sound()
            && let Some(why) = self.failure()
        {
            return Err(why.clone());
        }
        self.leads_changes()?;
        if self.coordinator.change.is_some() {
            return Err(FsError::new(libc::EBUSY, "metadata: the table is being changed already"));
        }
        let present = &self.table.placement;
        if next.version != present.version + 1 {
            return Err(FsError::new(
                libc::ESTALE,
                "metadata: the table has changed meanwhile: look at it again",
            ));
        }
        if let Some(node) = self.coordinator.forgotten(present) {
            let text = format!(
                "metadata: node {node}, which never came, is to be taken out first: remove it"
            );
            return Err(FsError::because(libc::EBUSY, text));
        }
        let (before, after) = (present.map.members(), next.map.members());
        if before.iter().any(|member| next.map.member(member.id).is_some_and(|same| same != member))
        {
            return Err(refused("metadata: the next table changes the address of a node"));
        }
        let mut gone = before.iter().filter(|member| next.map.member(member.id).is_none());
        if let Some(node) = gone.next().map(|member| member.id) {
            return self.may_leave(node, next);
        }
        // So majorities of the two have a member in common.
        if after.len() > before.len() + 1 {
            return Err(refused("metadata: nodes join one after the other"));
        }
        if next.former != present.former {
            return Err(refused(
                "metadata: the next table tells something else of nodes that have left",
            ));
        }
        if next.is_leaving(self.me) {
            return Err(cannot_leave(self.me));
        }
        if next.coordinator != present.coordinator {
            return match present.with_coordinator(next.coordinator) {
                Ok(expected) if expected == *next => Ok(()),
                _ => {
                    Err(refused("metadata: a table with another coordinator differs by that only"))
                }
            };
        }
        let counts = next.map.slots_of_members();
        for (member, slots) in next.map.members().iter().zip(counts) {
            let idle = next.is_idle(member.id);
            if present.map.member(member.id).is_some() {
                if present.is_idle(member.id) != idle {
                    return Err(refused("metadata: whether a node serves clients never changes"));
                }
                continue;
            }
            let came = Announced { address: member.address.clone(), idle };
            if self.coordinator.expected.get(&member.id) != Some(&came) {
                return Err(refused("metadata: the next table has a node that is not expected"));
            }
            if slots > 0 {
                return Err(refused("metadata: a node gets slots when it has joined"));
            }
        }
        Ok(())
    }

    /// Whether a table may follow that a node is not in any more.
    fn may_leave(&self, node: NodeId, next: &PlacementMap) -> FsResult<()> {
        let present = &self.table.placement;
        if node == self.me {
            return Err(cannot_leave(node));
        }
        if !present.is_leaving(node) {
            return Err(refused(
                "metadata: the next table lacks a node of the present one that is not leaving",
            ));
        }
        // Nothing else changes with it.
        let expected = next.heir_of(node).and_then(|heir| present.without(node, heir).ok());
        if expected.as_ref() != Some(next) {
            return Err(refused(
                "metadata: a table that a node has left differs by that and its heir only",
            ));
        }
        Ok(())
    }

    /// Takes a node out that never came: one that is only expected, or was added to the table and
    /// was lost before it heard of that. In the second case its process must have ended for good.
    /// Nobody asks it, since it owned nothing. `done` hears how it ended, as for
    /// [`ClusterNode::change`].
    pub fn forget(&mut self, node: NodeId, done: Changed, now: Nanos) {
        self.at(now);
        match self.try_forget(node) {
            Err(why) => done(Err(why)),
            Ok(None) => self.when_durable(self.node.last_commit(), Deferred::Changed(Some(done))),
            Ok(Some(next)) => self.lead_change(next, Some(done)),
        }
        self.pump();
    }

    /// The table without it, if it is in the present one.
    fn try_forget(&mut self, node: NodeId) -> FsResult<Option<PlacementMap>> {
        if !self.is_sound()
            && let Some(why) = self.failure()
        {
            return Err(why.clone());
        }
        self.leads_changes()?;
        let only_it_is_silent = match &self.coordinator.change {
            None => false,
            Some(Change { step: Step::Adopting { turn: Turn::New, silent, .. }, .. })
                if silent.contains(&node) =>
            {
                true
            }
            Some(_) => {
                return Err(FsError::new(
                    libc::EBUSY,
                    "metadata: the table is being changed already",
                ));
            }
        };
        let is_member = self.table.placement.map.member(node).is_some();
        let expected = self.coordinator.expected.contains_key(&node);
        if is_member && expected && self.may_live(node) {
            let text =
                format!("metadata: node {node} answers: stop it first, or let it join and leave");
            return Err(FsError::because(libc::EBUSY, text));
        }
        if only_it_is_silent {
            // It stays expected, which says what becomes of it.
            self.commit(BatchKind::Freeing, vec![records::gone(records::CHANGE)])?;
            if let Some(done) = self.coordinator.change.take().and_then(|change| change.done) {
                done(Ok(()));
            }
        }
        let present = &self.table.placement;
        if is_member {
            if expected {
                let heir =
                    present.heir_for(node, self.me).ok_or(refused("metadata: no node stays"))?;
                let next = present.without(node, heir);
                return next
                    .map(Some)
                    .map_err(|why| FsError::because(libc::EINVAL, why.to_string()));
            }
            return Err(refused("metadata: the node is a member: it has to leave by itself"));
        }
        if !expected {
            let why =
                if present.heir_of(node).is_some() { "has left already" } else { "is not known" };
            return Err(FsError::because(libc::ENOENT, format!("metadata: node {node} {why}")));
        }
        let last = self.coordinator.last_node.max(node);
        let rows = vec![
            records::expect_row(node, None),
            records::last_node_row(last),
            peer_identity::forget_row(node),
        ];
        self.commit(BatchKind::Freeing, rows)?;
        self.coordinator.last_node = last;
        self.coordinator.expected.remove(&node);
        Ok(None)
    }

    /// That this member is the coordinator.
    ///
    /// # Errors
    /// `EINVAL`, with the one that is.
    pub fn leads_changes(&self) -> FsResult<()> {
        if self.coordinator() == self.me && !self.changing.joining {
            return Ok(());
        }
        let text =
            format!("metadata: node {} leads changes of the table: ask there", self.coordinator());
        Err(FsError::because(libc::EINVAL, text))
    }

    /// Reserves a number, durably, for a node to come; the same one for an address that is expected
    /// already. Only at the coordinator.
    pub fn expect(&mut self, node: Announced, done: Expected, now: Nanos) {
        self.at(now);
        match self.reserve(node) {
            Err(why) => done(Err(why)),
            Ok(node) => self.when_durable(self.node.last_commit(), Deferred::Expect(node, done)),
        }
        self.pump();
    }

    fn reserve(&mut self, announced: Announced) -> FsResult<NodeId> {
        let address = &announced.address;
        if !self.is_sound()
            && let Some(why) = self.failure()
        {
            return Err(why.clone());
        }
        self.leads_changes()?;
        if self.coordinator.hands_over(self.me) {
            return Err(FsError::new(
                libc::EBUSY,
                "metadata: another node is about to lead changes of the table",
            ));
        }
        if !(1..=ADDRESS_MAX).contains(&address.len()) {
            return Err(refused("metadata: an address has 1 to 255 bytes"));
        }
        let members = self.table.placement.map.members();
        if members.iter().any(|member| member.address == *address) {
            return Err(FsError::new(
                libc::EEXIST,
                "metadata: a node of the cluster has this address",
            ));
        }
        let expected = &self.coordinator.expected;
        if let Some((node, other)) = expected.iter().find(|(_, other)| other.address == *address) {
            if other.idle != announced.idle {
                let text = format!(
                    "metadata: node {node} is expected there in another role: remove it first"
                );
                return Err(FsError::because(libc::EEXIST, text));
            }
            return Ok(*node);
        }
        // Numbers are never used again: members stay in the table, as former ones at least, and of
        // those that never came the last is on record.
        let former = self.table.placement.former.iter().map(|(node, _)| *node);
        let known = self.table.nodes().chain(former).chain(expected.keys().copied());
        let node = known.max().unwrap_or(self.me).max(self.coordinator.last_node) + 1;
        if node >= NODES_MAX {
            return Err(FsError::new(libc::ENOSPC, "metadata: a cluster has at most 1023 nodes"));
        }
        self.commit(BatchKind::Growing, vec![records::expect_row(node, Some(&announced))])?;
        self.coordinator.expected.insert(node, announced);
        Ok(node)
    }

    /// Nodes that are expected and have not joined.
    pub fn expected(&self) -> Vec<(NodeId, Announced)> {
        let expected = self.coordinator.expected.iter();
        expected.map(|(node, announced)| (*node, announced.clone())).collect()
    }

    /// What members say to the coordinator.
    pub(super) fn coordinate(&mut self, from: NodeId, message: ChangeMessage) {
        use ChangeMessage as M;
        if self.leads_changes().is_err() {
            return;
        }
        let now = self.now;
        let change = &mut self.coordinator.change;
        let mut did = |attempt: Attempt, order: Order| match change {
            Some(Change { step: Step::Asking(asking), .. }) if asking.attempt == attempt => {
                asking.heard.insert(from, now);
                asking.order == order && asking.silent.remove(&from) && asking.silent.is_empty()
            }
            _ => false,
        };
        match message {
            M::Clean(attempt) if did(attempt, Order::Begin) => self.order(Order::Copy),
            M::Ready(attempt) if did(attempt, Order::Copy) => self.order(Order::Freeze),
            M::Frozen(attempt) if did(attempt, Order::Freeze) => self.decide_change(),
            M::Declined { attempt, why } => self.declined(attempt, why),
            M::Adopted(version) => self.adopted(from, version),
            M::Join => self.join(from),
            M::Ask(attempt) => self.tell_how(from, attempt),
            _ => {}
        }
    }

    /// All have done what they were to do before.
    fn order(&mut self, order: Order) {
        let (now, nodes) = (self.now, self.participants());
        if let Some(Change { step: Step::Asking(asking), .. }) = &mut self.coordinator.change {
            (asking.order, asking.silent, asking.since) = (order, nodes, now);
        }
        self.send_orders();
    }

    /// Members that take part in an attempt: not one that never came and is taken out again.
    fn participants(&self) -> BTreeSet<NodeId> {
        self.table.nodes().filter(|node| !self.coordinator.expected.contains_key(node)).collect()
    }

    /// Tells the members that have not done it what to do.
    fn send_orders(&mut self) {
        let now = self.now;
        let Some(Change { next, step: Step::Asking(asking), .. }) = &mut self.coordinator.change
        else {
            return;
        };
        asking.sent = now;
        let attempt = asking.attempt;
        let message = match asking.order {
            Order::Begin => ChangeMessage::Begin { attempt, next: next.clone() },
            Order::Copy => ChangeMessage::Copy(attempt),
            Order::Freeze => ChangeMessage::Freeze(attempt),
        };
        for node in asking.silent.clone() {
            self.tell(node, message.clone());
        }
    }

    fn begin_attempt(&mut self) {
        self.coordinator.attempt.number += 1;
        let (now, attempt) = (self.now, self.coordinator.attempt);
        let silent = self.participants();
        let heard = silent.iter().map(|node| (*node, now)).collect();
        let Some(change) = &mut self.coordinator.change else { return };
        change.attempts += 1;
        let order = Order::Begin;
        change.step = Step::Asking(Asking { attempt, order, silent, heard, since: now, sent: now });
        self.send_orders();
    }

    fn declined(&mut self, attempt: Attempt, why: FsError) {
        let Some(Change { step: Step::Asking(asking), .. }) = &self.coordinator.change else {
            return;
        };
        if asking.attempt == attempt {
            self.fail_attempt(why);
        }
    }

    /// Calls an attempt off that has not been decided: another one follows, or the change has
    /// failed.
    fn fail_attempt(&mut self, why: FsError) {
        let pause = PAUSE_MIN + self.random_time(PAUSE_MAX - PAUSE_MIN);
        let Some(change) = &mut self.coordinator.change else { return };
        let Step::Asking(Asking { attempt, .. }) = &change.step else { return };
        let attempt = *attempt;
        log::warn!("metadata: attempt {} to change the table has failed: {why}", change.attempts);
        if change.attempts < ATTEMPTS_MAX {
            change.step = Step::Resting(self.now + pause);
        } else if let Some(done) = self.coordinator.change.take().and_then(|change| change.done) {
            done(Err(why));
        }
        for node in self.participants() {
            self.tell(node, ChangeMessage::Abort(attempt));
        }
    }

    /// All are frozen.
    fn decide_change(&mut self) {
        let Some(change) = &mut self.coordinator.change else { return };
        let row = records::change_row(&change.next);
        match self.commit(BatchKind::Freeing, vec![row]) {
            Ok(position) => {
                if let Some(change) = &mut self.coordinator.change {
                    change.step = Step::Deciding;
                }
                self.when_durable(position, Deferred::Decided);
            }
            // If nobody can tell whether it is on record the member has stopped.
            Err(why) => {
                if let Ok(Err(why)) = self.not_decided(why) {
                    self.fail_attempt(why);
                }
            }
        }
    }

    /// The decision is durable.
    pub(super) fn decided_change(&mut self) {
        let now = self.now;
        let Coordinator { expected, change: Some(change), .. } = &mut self.coordinator else {
            return;
        };
        log::info!("metadata: table {} of placement is decided", change.next.version);
        change.step = adopting(self.me, &self.table.placement, &change.next, expected, now);
        self.send_table();
    }

    /// Tells the members that have not adopted the table that it is decided.
    fn send_table(&mut self) {
        let now = self.now;
        let Some(Change { next, step: Step::Adopting { silent, sent, .. }, .. }) =
            &mut self.coordinator.change
        else {
            return;
        };
        *sent = now;
        let (next, silent) = (next.clone(), silent.clone());
        for node in silent {
            let adopt = self.adopt_message(node, next.clone());
            self.tell(node, adopt);
        }
    }

    /// By what a member hears that a table is decided.
    fn adopt_message(&self, to: NodeId, next: Arc<PlacementMap>) -> ChangeMessage {
        if to == next.coordinator && to != self.me {
            return ChangeMessage::Entrust { next, charge: self.coordinator.charge() };
        }
        ChangeMessage::Adopt(next)
    }

    fn adopted(&mut self, from: NodeId, version: u64) {
        let Some(Change { next, step: Step::Adopting { silent, .. }, .. }) =
            &mut self.coordinator.change
        else {
            return;
        };
        if version == next.version && silent.remove(&from) && silent.is_empty() {
            self.next_turn();
        }
    }

    /// All nodes that were to adopt the table have done so, or are not waited for any longer.
    fn next_turn(&mut self) {
        let now = self.now;
        let Coordinator { expected, change: Some(Change { next, step, .. }), .. } =
            &mut self.coordinator
        else {
            return;
        };
        let Step::Adopting { turn, silent, since, .. } = step else { return };
        (*turn, *silent) = match turn {
            // It goes on, and has this member adopt the table.
            Turn::Successor => return,
            Turn::Leaving => (Turn::Old, old(next, expected)),
            // The members that they fetch dentries from know of them now.
            Turn::Old => (Turn::New, new(next, expected)),
            Turn::New => (Turn::New, BTreeSet::new()),
        };
        *since = now;
        if silent.is_empty() { self.finish_change() } else { self.send_table() }
    }

    /// All members have the table.
    fn finish_change(&mut self) {
        let Some(Change { next, .. }) = &self.coordinator.change else { return };
        // A node that was taken out before it came is not expected any more either.
        let former = next.former.iter().map(|(node, _)| *node);
        let came = next.map.members().iter().map(|member| member.id).chain(former);
        let came: Vec<NodeId> =
            came.filter(|node| self.coordinator.expected.contains_key(node)).collect();
        let mut rows = vec![records::gone(records::CHANGE)];
        rows.extend(came.iter().map(|node| records::expect_row(*node, None)));
        match self.commit(BatchKind::Freeing, rows) {
            Ok(position) => {
                for node in came {
                    self.coordinator.expected.remove(&node);
                }
                let done = self.coordinator.change.take().and_then(|change| change.done);
                self.when_durable(position, Deferred::Changed(done));
            }
            // It is done again.
            Err(why) => log::error!("the end of a change of the table: {why}; tried again"),
        }
    }

    /// Tells one that has left so, should it not have heard.
    pub(super) fn has_left_already(&mut self, node: NodeId) -> bool {
        let left = self.table.placement.heir_of(node).is_some();
        if left {
            let table = Arc::new(self.table.placement.clone());
            self.tell(node, ChangeMessage::Adopt(table));
        }
        left
    }

    /// A node asks to be taken in.
    fn join(&mut self, from: NodeId) {
        if self.has_left_already(from) {
            return;
        }
        if self.coordinator.change.is_some() {
            // It asks again.
            return;
        }
        if self.coordinator.forgotten(&self.table.placement) == Some(from) {
            return log::warn!("metadata: node {from} asks to be taken in, and is being taken out");
        }
        if self.table.placement.map.member(from).is_some() {
            let table = Arc::new(self.table.placement.clone());
            return self.tell(from, ChangeMessage::Adopt(table));
        }
        let Some(Announced { address, idle }) = self.coordinator.expected.get(&from).cloned()
        else {
            return log::warn!("metadata: node {from} asks to be taken in, and is not expected");
        };
        let present = &self.table.placement;
        match present.with_member(MapMember { id: from, address }, idle) {
            Ok(with) => {
                self.lead_change(PlacementMap { version: present.version + 1, ..with }, None)
            }
            Err(why) => log::error!("metadata: node {from} cannot be taken in: {why}"),
        }
    }

    /// A member waits to hear of an attempt.
    fn tell_how(&mut self, from: NodeId, attempt: Attempt) {
        let now = self.now;
        if self.has_left_already(from) {
            return;
        }
        let answer = match &mut self.coordinator.change {
            Some(Change { step: Step::Asking(asking), .. }) if asking.attempt == attempt => {
                asking.heard.insert(from, now);
                return;
            }
            Some(Change { step: Step::Deciding, .. }) => return,
            // The others hear it of him, this member too: it must not let go before he has taken
            // over.
            Some(Change { step: Step::Adopting { turn: Turn::Successor, .. }, next, .. })
                if from != next.coordinator =>
            {
                return;
            }
            Some(Change { step: Step::Adopting { .. }, next, .. }) => {
                let next = next.clone();
                self.adopt_message(from, next)
            }
            Some(Change { step: Step::Asking(_) | Step::Resting(_), .. }) | None => {
                ChangeMessage::Abort(attempt)
            }
        };
        self.tell(from, answer);
    }

    pub(super) fn tick_coordinator(&mut self) {
        let now = self.now;
        let Some(change) = &self.coordinator.change else { return };
        match &change.step {
            Step::Resting(until) if *until <= now => self.begin_attempt(),
            Step::Resting(_) | Step::Deciding => {}
            Step::Asking(asking) => {
                let lost = asking.heard.iter().find(|(_, heard)| **heard + SILENCE_MAX <= now);
                if let Some((node, _)) = lost {
                    let text = format!(
                        "metadata: nothing was heard of node {node} while the table was being \
                         changed"
                    );
                    self.fail_attempt(FsError::because(libc::ETIMEDOUT, text));
                } else if asking.order == Order::Freeze && asking.since + FREEZE_MAX <= now {
                    let text = format!(
                        "metadata: rows could not be kept from everybody in time: nodes {:?} wait \
                         for transactions, or for each other",
                        asking.silent
                    );
                    self.fail_attempt(FsError::because(libc::EAGAIN, text));
                } else if asking.sent + RESEND <= now {
                    self.send_orders();
                }
            }
            Step::Adopting { turn: Turn::New, silent, .. } if silent.is_empty() => {
                self.finish_change()
            }
            Step::Adopting { turn: Turn::Leaving, silent, since, .. }
                if *since + FAREWELL_MAX <= now =>
            {
                log::warn!(
                    "metadata: nodes {silent:?}, which leave, do not answer; the others go on"
                );
                self.next_turn();
            }
            Step::Adopting { sent, .. } => {
                if *sent + RESEND <= now {
                    self.send_table();
                }
            }
        }
    }
}
