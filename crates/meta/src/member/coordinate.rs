//! The coordinator: the member with the lowest number leads changes of the table ([`super::change`]), one at a time.
//!
//! Until it decides nothing of a change is on record here, since nothing has happened: an attempt that it does not know it calls off when somebody
//! asks. The decision is record "change", the next table, which stays until all members have adopted it.
//!
//! A member that leaves is told first, but not waited for long: when all are frozen it serves nobody, and whenever it asks later it hears the
//! table. A node that was added and never came can be forgotten: it is a member and still expected, which is also on record, so nobody waits for it
//! while the others get a table without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::placement::map::ADDRESS_MAX;
use kestrel_types::placement::{ClusterMap, Member as MapMember, NodeId, Placement};

use super::change::records::{self, ChangeRecords};
use super::change::{Attempt, ChangeMessage, Changed, Expected};
use super::{Member, RESEND, Todo, known};
use crate::cluster::NODES_MAX;
use crate::engine::BatchKind;

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

/// Who adopts a table: one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Who leaves.
    Leaving,
    /// Who was a member before.
    Old,
    /// Who comes with it: everybody tells them of changes of directories by then.
    New,
}

struct Asking {
    attempt: Attempt,
    order: Order,
    /// Who has not done it.
    silent: BTreeSet<NodeId>,
    /// When each member was heard of last.
    heard: BTreeMap<NodeId, Nanos>,
    since: Nanos,
    sent: Nanos,
}

/// A change that is led.
struct Change {
    next: Arc<Placement>,
    step: Step,
    attempts: u32,
    done: Option<Changed>,
}

/// What the coordinator knows; other members know nothing.
pub(super) struct Coordinator {
    /// Nodes to come: their addresses.
    expected: BTreeMap<NodeId, String>,
    /// Nodes up to this one may have been forgotten.
    last_node: NodeId,
    attempt: Attempt,
    change: Option<Change>,
}

impl Coordinator {
    /// As the records say, of the member `me` with this table.
    pub fn new(me: NodeId, present: &Placement, records: ChangeRecords, epoch: u64, now: Nanos) -> Self {
        let ChangeRecords { expected, last_node, change, .. } = records;
        let change = change.map(|next| {
            let step = adopting(present, &next, &expected, now - RESEND);
            Change { next, step, attempts: 0, done: None }
        });
        let mut coordinator = Self { expected, last_node, attempt: Attempt { epoch, number: 0 }, change };
        if let (None, Some(node)) = (&coordinator.change, coordinator.forgotten(present))
            && let Ok(next) = present.without(node, me)
        {
            let (next, step) = (Arc::new(next), Step::Resting(now));
            coordinator.change = Some(Change { next, step, attempts: 0, done: None });
        }
        coordinator
    }

    /// A member of the present table that was added, never came and is taken out again. Only when no table is being adopted.
    fn forgotten(&self, present: &Placement) -> Option<NodeId> {
        self.expected.keys().copied().find(|node| present.map.member(*node).is_some())
    }

    /// Whether it leads a change.
    pub fn leads(&self) -> bool {
        self.change.is_some()
    }

    /// Whoever waits for the end of a change hears this instead.
    pub fn fail(&mut self, why: &FsError) {
        if let Some(done) = self.change.take().and_then(|change| change.done) {
            done(Err(why.clone()));
        }
    }
}

/// The first turn of the adoption of a table after the present one, or after the one before if this member has adopted it already.
fn adopting(present: &Placement, next: &Placement, expected: &BTreeMap<NodeId, String>, now: Nanos) -> Step {
    let members = present.map.members().iter().map(|member| member.id);
    let leave = members.filter(|node| next.map.member(*node).is_none() && !expected.contains_key(node));
    let silent: BTreeSet<NodeId> = leave.collect();
    if silent.is_empty() {
        return Step::Adopting { turn: Turn::Old, silent: old(next, expected), since: now, sent: now };
    }
    Step::Adopting { turn: Turn::Leaving, silent, since: now, sent: now }
}

/// Members of a table that are not coming with it.
fn old(next: &Placement, expected: &BTreeMap<NodeId, String>) -> BTreeSet<NodeId> {
    let members = next.map.members().iter().map(|member| member.id);
    members.filter(|node| !expected.contains_key(node)).collect()
}

/// Members that come with a table.
fn new(next: &Placement, expected: &BTreeMap<NodeId, String>) -> BTreeSet<NodeId> {
    let members = next.map.members().iter().map(|member| member.id);
    members.filter(|node| expected.contains_key(node)).collect()
}

fn cannot_leave(node: NodeId) -> FsError {
    let text = format!("metadata: node {node} leads changes of the table: it cannot leave");
    FsError::because(libc::EINVAL, text)
}

fn refused(text: &'static str) -> FsError {
    FsError::new(libc::EINVAL, text)
}

impl Member {
    /// Makes `next` the table of the cluster. Only at the coordinator, the member with the lowest number; `next` has the version after the
    /// present one, and all present members but at most one, which was leaving; at most one comes with it, which is expected and gets no slots yet. `done` hears how it ended: after a
    /// failure everything is as it was; `ETIMEDOUT` and `EAGAIN` say that it may succeed later.
    pub fn change(&mut self, next: Placement, done: Changed, now: Nanos) {
        self.at(now);
        match self.may_change(&next) {
            Err(why) => done(Err(why)),
            Ok(()) => self.lead_change(next, Some(done)),
        }
        self.pump();
    }

    fn lead_change(&mut self, next: Placement, done: Option<Changed>) {
        let (next, step) = (Arc::new(next), Step::Resting(self.now));
        self.coordinator.change = Some(Change { next, step, attempts: 0, done });
        self.tick_coordinator();
    }

    /// Whether this member can lead this change.
    fn may_change(&mut self, next: &Placement) -> FsResult<()> {
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
            let text =
                format!("metadata: node {node}, which never came, is to be taken out first: remove it");
            return Err(FsError::because(libc::EBUSY, text));
        }
        let (before, after) = (present.map.members(), next.map.members());
        if before.iter().any(|member| next.map.member(member.id).is_some_and(|same| same != member)) {
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
            return Err(refused("metadata: the next table tells something else of nodes that have left"));
        }
        if next.is_leaving(self.me) {
            return Err(cannot_leave(self.me));
        }
        let counts = next.map.slots_of_members();
        for (member, slots) in next.map.members().iter().zip(counts) {
            if present.map.member(member.id).is_some() {
                continue;
            }
            if self.coordinator.expected.get(&member.id) != Some(&member.address) {
                return Err(refused("metadata: the next table has a node that is not expected"));
            }
            if slots > 0 {
                return Err(refused("metadata: a node gets slots when it has joined"));
            }
        }
        Ok(())
    }

    /// Whether a table may follow that a node is not in any more.
    fn may_leave(&self, node: NodeId, next: &Placement) -> FsResult<()> {
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
            return Err(refused("metadata: a table that a node has left differs by that and its heir only"));
        }
        Ok(())
    }

    /// Takes a node out that never came: one that is only expected, or was added to the table and was lost before it heard of that. In the
    /// second case its process must have ended for good. Nobody asks it, since it owned nothing. `done` hears how it ended, as for [`Member::change`].
    pub fn forget(&mut self, node: NodeId, done: Changed, now: Nanos) {
        self.at(now);
        match self.try_forget(node) {
            Err(why) => done(Err(why)),
            Ok(None) => self.when_durable(self.node.last_commit(), Todo::Changed(Some(done))),
            Ok(Some(next)) => self.lead_change(next, Some(done)),
        }
        self.pump();
    }

    /// The table without it, if it is in the present one.
    fn try_forget(&mut self, node: NodeId) -> FsResult<Option<Placement>> {
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
            Some(_) => return Err(FsError::new(libc::EBUSY, "metadata: the table is being changed already")),
        };
        let is_member = self.table.placement.map.member(node).is_some();
        let expected = self.coordinator.expected.contains_key(&node);
        if is_member && expected && self.may_live(node) {
            let text = format!("metadata: node {node} answers: stop it first, or let it join and leave");
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
                let next = present.without(node, self.me);
                return next.map(Some).map_err(|why| FsError::because(libc::EINVAL, why.to_string()));
            }
            return Err(refused("metadata: the node is a member: it has to leave by itself"));
        }
        if !expected {
            let why = if present.heir_of(node).is_some() { "has left already" } else { "is not known" };
            return Err(FsError::because(libc::ENOENT, format!("metadata: node {node} {why}")));
        }
        let last = self.coordinator.last_node.max(node);
        let rows =
            vec![records::expect_row(node, None), records::last_node_row(last), known::forget_row(node)];
        self.commit(BatchKind::Freeing, rows)?;
        self.coordinator.last_node = last;
        self.coordinator.expected.remove(&node);
        Ok(None)
    }

    pub(super) fn leads_changes(&self) -> FsResult<()> {
        if self.coordinator() == self.me && !self.changing.joining {
            return Ok(());
        }
        let text = format!("metadata: node {} leads changes of the table: ask there", self.coordinator());
        Err(FsError::because(libc::EINVAL, text))
    }

    /// Reserves a number, durably, for a node to come; the same one for an address that is expected already. Only at the coordinator.
    pub fn expect(&mut self, address: String, done: Expected, now: Nanos) {
        self.at(now);
        match self.reserve(address) {
            Err(why) => done(Err(why)),
            Ok(node) => self.when_durable(self.node.last_commit(), Todo::Expect(node, done)),
        }
        self.pump();
    }

    fn reserve(&mut self, address: String) -> FsResult<NodeId> {
        if !self.is_sound()
            && let Some(why) = self.failure()
        {
            return Err(why.clone());
        }
        self.leads_changes()?;
        if !(1..=ADDRESS_MAX).contains(&address.len()) {
            return Err(refused("metadata: an address has 1 to 255 bytes"));
        }
        let members = self.table.placement.map.members();
        if members.iter().any(|member| member.address == address) {
            return Err(FsError::new(libc::EEXIST, "metadata: a node of the cluster has this address"));
        }
        let expected = &self.coordinator.expected;
        if let Some((node, _)) = expected.iter().find(|(_, other)| **other == address) {
            return Ok(*node);
        }
        // Numbers are never used again: members stay in the table, as former ones at least, and of those who never came the last is on record.
        let former = self.table.placement.former.iter().map(|(node, _)| *node);
        let known = self.table.nodes().chain(former).chain(expected.keys().copied());
        let node = known.max().unwrap_or(self.me).max(self.coordinator.last_node) + 1;
        if node >= NODES_MAX {
            return Err(FsError::new(libc::ENOSPC, "metadata: a cluster has at most 1023 nodes"));
        }
        self.commit(BatchKind::Growing, vec![records::expect_row(node, Some(&address))])?;
        self.coordinator.expected.insert(node, address);
        Ok(node)
    }

    /// Nodes that are expected and have not joined: their numbers and addresses.
    pub fn expected(&self) -> Vec<(NodeId, String)> {
        let expected = self.coordinator.expected.iter();
        expected.map(|(node, address)| (*node, address.clone())).collect()
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

    /// Members that take part in an attempt: not who never came and is taken out again.
    fn participants(&self) -> BTreeSet<NodeId> {
        self.table.nodes().filter(|node| !self.coordinator.expected.contains_key(node)).collect()
    }

    /// Tells those who have not done it what to do.
    fn send_orders(&mut self) {
        let now = self.now;
        let Some(Change { next, step: Step::Asking(asking), .. }) = &mut self.coordinator.change else {
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
        let Some(Change { step: Step::Asking(asking), .. }) = &self.coordinator.change else { return };
        if asking.attempt == attempt {
            self.fail_attempt(why);
        }
    }

    /// Calls an attempt off that has not been decided: another one follows, or the change has failed.
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
                self.when_durable(position, Todo::Decided);
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
        let Coordinator { expected, change: Some(change), .. } = &mut self.coordinator else { return };
        log::info!("metadata: table {} of placement is decided", change.next.version);
        change.step = adopting(&self.table.placement, &change.next, expected, now);
        self.send_table();
    }

    /// Tells those who have not adopted the table that it is decided.
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
            self.tell(node, ChangeMessage::Adopt(next.clone()));
        }
    }

    fn adopted(&mut self, from: NodeId, version: u64) {
        let Some(Change { next, step: Step::Adopting { silent, .. }, .. }) = &mut self.coordinator.change
        else {
            return;
        };
        if version == next.version && silent.remove(&from) && silent.is_empty() {
            self.next_turn();
        }
    }

    /// All whose turn it was have adopted the table, or are not waited for any longer.
    fn next_turn(&mut self) {
        let now = self.now;
        let Coordinator { expected, change: Some(Change { next, step, .. }), .. } = &mut self.coordinator
        else {
            return;
        };
        let Step::Adopting { turn, silent, since, .. } = step else { return };
        (*turn, *silent) = match turn {
            Turn::Leaving => (Turn::Old, old(next, expected)),
            // Whoever they fetch dentries from knows of them now.
            Turn::Old => (Turn::New, new(next, expected)),
            Turn::New => (Turn::New, BTreeSet::new()),
        };
        *since = now;
        if silent.is_empty() { self.finish_change() } else { self.send_table() }
    }

    /// All members have the table.
    fn finish_change(&mut self) {
        let Some(Change { next, .. }) = &self.coordinator.change else { return };
        // Who was taken out before it came is not expected any more either.
        let former = next.former.iter().map(|(node, _)| *node);
        let came = next.map.members().iter().map(|member| member.id).chain(former);
        let came: Vec<NodeId> = came.filter(|node| self.coordinator.expected.contains_key(node)).collect();
        let mut rows = vec![records::gone(records::CHANGE)];
        rows.extend(came.iter().map(|node| records::expect_row(*node, None)));
        match self.commit(BatchKind::Freeing, rows) {
            Ok(position) => {
                for node in came {
                    self.coordinator.expected.remove(&node);
                }
                let done = self.coordinator.change.take().and_then(|change| change.done);
                self.when_durable(position, Todo::Changed(done));
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
        let Some(address) = self.coordinator.expected.get(&from).cloned() else {
            return log::warn!("metadata: node {from} asks to be taken in, and is not expected");
        };
        let present = &self.table.placement;
        let mut members = present.map.members().to_vec();
        members.push(MapMember { id: from, address });
        match ClusterMap::new(members, |slot| present.map.owner(slot).id) {
            Ok(map) => {
                let next = Placement { version: present.version + 1, map, ..present.clone() };
                self.lead_change(next, None);
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
            Some(Change { step: Step::Adopting { .. }, next, .. }) => ChangeMessage::Adopt(next.clone()),
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
                        "metadata: nothing was heard of node {node} while the table was being changed"
                    );
                    self.fail_attempt(FsError::because(libc::ETIMEDOUT, text));
                } else if asking.order == Order::Freeze && asking.since + FREEZE_MAX <= now {
                    let text = format!(
                        "metadata: rows could not be kept from everybody in time: nodes {:?} wait for transactions, or for each other",
                        asking.silent
                    );
                    self.fail_attempt(FsError::because(libc::EAGAIN, text));
                } else if asking.sent + RESEND <= now {
                    self.send_orders();
                }
            }
            Step::Adopting { turn: Turn::New, silent, .. } if silent.is_empty() => self.finish_change(),
            Step::Adopting { turn: Turn::Leaving, silent, since, .. } if *since + FAREWELL_MAX <= now => {
                log::warn!("metadata: nodes {silent:?}, which leave, do not answer; the others go on");
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
