//! Leases: a member resolves paths only while most members let it, and one that does not answer is fenced.
//!
//! A change of a directory has to be forgotten by all members before it is decided. One that does not answer may be down, or go on
//! serving paths from a replica that is out of date. So what a replica says counts only under a *lease*.
//!
//! **Holder.** It asks all members every [`RENEW`], and holds the lease until [`LEASE`] after it *sent* the oldest question of a majority that was
//! granted, itself included. Not the coordinator grants it: that would be one node without which nobody serves. A volume of one node needs no lease.
//!
//! **Granter.** A grant is a promise not to say, for [`PROMISE`] since the question was *heard*, that the member can hold no lease. Heard is after sent, so by
//! the time the promise is over the lease is, if the two clocks agree on how long it lasts within an eighth. Nothing of it is on record: who has
//! started again keeps the longest promise that it may have made.
//!
//! **Where it counts** ([`crate::lease`]). A batch that finds something in its replica reads the clock, once: it holds a role then, and a replica's contents
//! change only with every role held, so all that it finds was true at the moment of that reading, which is its place in the order, however long it takes
//! to commit. The rows that it reads are its worker's and nobody changes them while the role is held; those that it writes others see after it, through locks
//! that are given with every role held. So whatever a fenced member still commits was as good as done before it was fenced. A
//! transaction reads the clock when it runs: when that was its last run all its rows were locked, then and until it is decided, and so that is its place. What finds nothing in the replica
//! (by handle, or by rows of the node's own, which nobody changes without asking it) needs no lease.
//!
//! **Lapse.** Who gets a lease after having had none, start included, first empties its replica, with every role held, and what it has asked for
//! dentries is void. Whether it has had none is judged when a grant comes, by the clock at that moment: if that is within the old lease, nobody has fenced
//! it in between, since some member of both majorities has kept its promise.
//!
//! **Fence.** The leader of a change that a member has not acknowledged within [`PATIENCE`] asks the others again and again to *hold* the lease of that member: to
//! grant it nothing. Each says so when its promise has run out. A hold has a number, lasts until [`HOLD`] after the last question, and ends
//! by the next grant only. When a majority has held through one moment the member had no lease then ([`Fence`]), and when it gets another it empties its
//! replica; what it fetches afterwards meets the lock of the row that changes. So it counts as having forgotten. One round of answers would not do: the
//! first who answered may have started again, and granted, before the last one did.
//!
//! Majorities of two tables that follow each other meet, since these differ by one member at most, and there are no others at a time. A lease that was granted by
//! members of one table ends on adoption of the next as soon as too few of those are a majority of the next.
//!
//! Where rows of a fenced member are needed it is waited for all the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;

use super::lead::Phase;
use super::message::Message;
use super::work::Stage;
use super::{Member, RESEND};
use crate::lease::{FOREVER, NEVER};
use crate::locks::TxnId;

/// How long a lease lasts.
pub const LEASE: Nanos = 2 * SECOND;

/// Time between two questions for it.
pub const RENEW: Nanos = LEASE / 4;

/// How long a promise lasts: longer than the lease by as much as clocks may disagree.
pub const PROMISE: Nanos = LEASE + LEASE / 8;

/// A change of a directory waits so long for a member before it is fenced.
pub const PATIENCE: Nanos = 500 * MILLISECOND;

/// Nothing is granted for so long after the last question about a fence.
pub const HOLD: Nanos = SECOND;

/// What members say to each other about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseMessage {
    /// Asks for a lease: the sender's number.
    Ask(u64),
    /// Granted.
    Granted(u64),
    /// Asks to grant a member nothing.
    Fence {
        /// For this transaction.
        txn: TxnId,
        /// Counts the rounds of such questions.
        round: u32,
        /// The member.
        node: NodeId,
    },
    /// Nothing is granted to it, and what was has run out.
    Fenced {
        /// As asked.
        txn: TxnId,
        /// As asked.
        round: u32,
        /// As asked.
        node: NodeId,
        /// Since when.
        hold: HoldId,
    },
}

/// A time in which a member has granted another one nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldId {
    /// Start of the member that holds.
    pub epoch: u64,
    /// Its number since.
    pub number: u64,
}

/// What there is to say of a member's lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseFigures {
    /// It has one.
    pub held: bool,
    /// How often it has lost one.
    pub lapses: u64,
    /// Members that it began to fence, for changes that it leads.
    pub fences: u64,
    /// Of these, those that came to hold.
    pub fenced: u64,
}

/// What a member knows of leases.
pub(super) struct Leases {
    /// Its newest questions, and when they were sent.
    asks: VecDeque<(u64, Nanos)>,
    /// When the next one is sent.
    due: Nanos,
    /// By member, when the newest question was sent that it has granted.
    granted: BTreeMap<NodeId, Nanos>,
    until: Nanos,
    /// It had one when somebody looked last.
    held: bool,
    /// Requests that wait for one.
    waiting: BTreeSet<u64>,
    /// Until when it keeps what it promised whom.
    promises: BTreeMap<NodeId, Nanos>,
    /// To whom it grants nothing: the number of that time, and until when.
    holds: BTreeMap<NodeId, (u64, Nanos)>,
    /// When it started.
    opened: Nanos,
    /// Fenced, and not heard of since.
    silent: BTreeSet<NodeId>,
    lapses: u64,
    fences: u64,
    fenced: u64,
}

impl Leases {
    /// Those of a member that starts.
    pub fn new(now: Nanos) -> Self {
        Self {
            asks: VecDeque::new(),
            due: now,
            granted: BTreeMap::new(),
            until: NEVER,
            held: false,
            waiting: BTreeSet::new(),
            promises: BTreeMap::new(),
            holds: BTreeMap::new(),
            opened: now,
            silent: BTreeSet::new(),
            lapses: 0,
            fences: 0,
            fenced: 0,
        }
    }

    /// Something was heard of a member.
    pub fn heard_of(&mut self, node: NodeId) {
        if !self.silent.is_empty() {
            self.silent.remove(&node);
        }
    }
}

/// The fence that the leader of a change puts around a member.
///
/// Rounds of questions to the others. Who answered one in round `a` and answers another of round `b > a` by the same hold has held it all the
/// time in between, so also when each of the rounds `a + 1` to `b` began.
#[derive(Default)]
pub(super) struct Fence {
    /// When the next round begins.
    due: Nanos,
    /// The present round; 0: none has begun.
    round: u32,
    /// A majority has answered.
    answered: bool,
    seen: BTreeMap<NodeId, Seen>,
}

/// What was heard of one who is to hold.
struct Seen {
    hold: HoldId,
    /// In which round this hold was heard of first.
    since: u32,
    /// The newest round that was answered by it.
    until: u32,
}

impl Fence {
    /// One that is not there until then.
    pub fn at(due: Nanos) -> Self {
        Self { due, ..Self::default() }
    }

    fn heard(&mut self, from: NodeId, round: u32, hold: HoldId) {
        if round > self.round {
            return;
        }
        match self.seen.get_mut(&from) {
            Some(seen) if seen.hold == hold => seen.until = seen.until.max(round),
            _ => {
                self.seen.insert(from, Seen { hold, since: self.round, until: round });
            }
        }
    }

    /// Whether so many held through the beginning of one round.
    fn holds(&self, majority: usize) -> bool {
        let began =
            |round: u32| self.seen.values().filter(move |seen| seen.since < round && round <= seen.until);
        self.seen.values().any(|seen| began(seen.until).count() >= majority)
    }
}

impl Member {
    /// What there is to say of its lease.
    pub fn lease_figures(&self) -> LeaseFigures {
        let Leases { lapses, fences, fenced, .. } = self.leases;
        LeaseFigures { held: self.cluster().lease.is_held(), lapses, fences, fenced }
    }

    /// What time it is now, for whoever must not go by the time that the member was told last.
    pub(super) fn time(&self) -> Nanos {
        self.cluster().lease.now().max(self.now)
    }

    /// It is that late.
    pub(super) fn at(&mut self, now: Nanos) {
        self.now = now;
        self.cluster().lease.tell(now);
    }

    fn majority(&self) -> usize {
        self.table.nodes().count() / 2 + 1
    }

    pub(super) fn heard_of_lease(&mut self, from: NodeId, message: LeaseMessage) {
        match message {
            LeaseMessage::Ask(number) => self.grant(from, number),
            LeaseMessage::Granted(number) => self.granted(from, number),
            LeaseMessage::Fence { txn, round, node } => self.hold(from, txn, round, node),
            LeaseMessage::Fenced { txn, round, node, hold } => self.fenced(from, txn, (round, node), hold),
        }
    }

    pub(super) fn tick_lease(&mut self) {
        let now = self.now;
        if !self.cluster().lease.is_held() {
            self.note_lapse();
        }
        if self.leases.due > now || self.table.is_alone() || self.changing.joining {
            return;
        }
        self.leases.due = now + RENEW;
        let number = self.number();
        // Older ones are worth nothing when they are granted.
        self.leases.asks.retain(|(_, sent)| sent + LEASE > now);
        self.leases.asks.push_back((number, now));
        self.leases.granted.insert(self.me, now);
        for node in self.table.nodes().filter(|node| *node != self.me).collect::<Vec<_>>() {
            self.send(node, Message::Lease(LeaseMessage::Ask(number)));
        }
    }

    /// Somebody asks for a lease.
    fn grant(&mut self, from: NodeId, number: u64) {
        // Not when this member was told the time last: that may be before the question was sent.
        let now = self.time();
        let leases = &mut self.leases;
        if self.table.placement.map.member(from).is_none()
            || leases.holds.get(&from).is_some_and(|(_, until)| now < *until)
        {
            return;
        }
        leases.holds.remove(&from);
        let promise = leases.promises.entry(from).or_insert(now);
        *promise = (*promise).max(now + PROMISE);
        self.send(from, Message::Lease(LeaseMessage::Granted(number)));
    }

    fn granted(&mut self, from: NodeId, number: u64) {
        let Some((_, sent)) = self.leases.asks.iter().find(|(asked, _)| *asked == number).copied() else {
            return;
        };
        if self.table.placement.map.member(from).is_none() {
            return;
        }
        let newest = self.leases.granted.entry(from).or_insert(sent);
        *newest = sent.max(*newest);
        let until = self.granted_until();
        if until <= self.leases.until {
            return;
        }
        let now = self.time();
        if now < self.leases.until {
            self.leases.until = until;
            self.cluster().lease.set(until);
        } else if now < until {
            self.note_lapse();
            self.begin_tenure(until);
        }
    }

    /// It has no lease, or had none.
    fn note_lapse(&mut self) {
        if std::mem::take(&mut self.leases.held) {
            self.leases.lapses += 1;
            log::warn!(
                "most nodes of the cluster have not answered in time: this one resolves no paths until they do"
            );
        }
    }

    /// Until when it has a lease by what members of the present table have granted.
    fn granted_until(&self) -> Nanos {
        let mut sent: Vec<Nanos> =
            self.table.nodes().filter_map(|node| self.leases.granted.get(&node).copied()).collect();
        sent.sort_unstable_by(|a, b| b.cmp(a));
        sent.get(self.majority() - 1).map_or(NEVER, |sent| sent + LEASE)
    }

    /// A lease after a time without one: what the replica says may not be true any more, nor what was asked for it.
    fn begin_tenure(&mut self, until: Nanos) {
        let node = self.node.clone();
        let quiet = node.quiesce();
        node.core().replica.clear();
        self.cluster().lease.set(until);
        drop(quiet);
        self.void_fetches();
        self.leases.until = until;
        self.leases.held = true;
        if self.leases.lapses > 0 {
            log::warn!("most nodes of the cluster answer again: this one resolves paths");
        }
        self.look_for_lease();
    }

    /// Requests that wait for a lease are tried again: there may be one, or others may lead them now.
    pub(super) fn look_for_lease(&mut self) {
        for ticket in std::mem::take(&mut self.leases.waiting) {
            if self.works.get(&ticket).is_some_and(|work| matches!(work.stage, Stage::Unleased)) {
                self.run_alone(ticket);
            }
        }
    }

    /// A request does not wait for a lease any more.
    pub(super) fn forget_waiting(&mut self, ticket: u64) {
        self.leases.waiting.remove(&ticket);
    }

    /// Whether a member has asked this one for a lease, or granted it one, so short a time ago that it may hold one itself.
    pub(super) fn may_live(&self, node: NodeId) -> bool {
        let (leases, now) = (&self.leases, self.time());
        leases.promises.get(&node).is_some_and(|until| now < *until)
            || leases.granted.get(&node).is_some_and(|sent| now < sent + PROMISE)
    }

    /// The table has other members, perhaps. With every role held.
    pub(super) fn lease_by_table(&mut self) {
        let until = if self.table.is_alone() {
            FOREVER
        } else if self.leases.until == FOREVER {
            self.leases.held = false;
            NEVER
        } else {
            self.leases.until.min(self.granted_until())
        };
        if until == FOREVER && self.leases.until != FOREVER {
            self.node.core().replica.clear();
            self.leases.held = true;
        }
        self.leases.until = until;
        self.cluster().lease.set(until);
    }

    /// A request needs a lease.
    pub(super) fn await_lease(&mut self, ticket: u64) {
        // It may have come since the node looked: that wakes nobody any more.
        if self.cluster().lease.is_held() {
            return self.run_alone(ticket);
        }
        if let Some(work) = self.works.get_mut(&ticket) {
            work.stage = Stage::Unleased;
            self.leases.waiting.insert(ticket);
        }
    }

    /// The leader of a change wants a member fenced.
    fn hold(&mut self, from: NodeId, txn: TxnId, round: u32, node: NodeId) {
        let map = &self.table.placement.map;
        if map.member(from).is_none() || map.member(node).is_none() || node == self.me {
            return;
        }
        let (now, fresh) = (self.now, self.number());
        let hold = self.leases.holds.entry(node).or_insert((fresh, now));
        hold.1 = now + HOLD;
        let hold = HoldId { epoch: self.epoch, number: hold.0 };
        let promised = self.leases.promises.get(&node).is_some_and(|until| now < *until);
        // What an earlier start has promised nobody remembers.
        if !promised && self.leases.opened + PROMISE <= now {
            self.send(from, Message::Lease(LeaseMessage::Fenced { txn, round, node, hold }));
        }
    }

    fn fenced(&mut self, from: NodeId, txn: TxnId, (round, node): (u32, NodeId), hold: HoldId) {
        let (majority, now) = (self.majority(), self.now);
        if self.table.placement.map.member(from).is_none() || from == node {
            return;
        }
        let Some((ticket, lead)) = self.led(txn) else { return };
        let Phase::Invalidating(nodes, _) = &mut lead.phase else { return };
        let Some(fence) = nodes.get_mut(&node) else { return };
        fence.heard(from, round, hold);
        if fence.holds(majority) {
            log::warn!(
                "node {node} does not answer and has no lease any more: a directory changes without it"
            );
            self.leases.silent.insert(node);
            self.leases.fenced += 1;
            self.invalidated(node, txn);
        } else if !fence.answered && fence.seen.len() >= majority {
            (fence.answered, fence.due) = (true, now);
            self.drive_fences(ticket);
        }
    }

    /// When a member that does not acknowledge a change is to be fenced.
    pub(super) fn fence_from(&self, node: NodeId) -> Fence {
        let silent = self.leases.silent.contains(&node);
        Fence::at(if silent { self.now } else { self.now + PATIENCE })
    }

    /// Begins the rounds of questions that are due.
    pub(super) fn drive_fences(&mut self, ticket: u64) {
        let (now, members) = (self.now, self.table.nodes().collect::<Vec<_>>());
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage) else {
            return;
        };
        let txn = lead.txn;
        let Phase::Invalidating(nodes, _) = &mut lead.phase else { return };
        let mut questions = Vec::new();
        for (node, fence) in nodes.iter_mut().filter(|(_, fence)| fence.due <= now) {
            self.leases.fences += u64::from(fence.round == 0);
            fence.round += 1;
            fence.due = now + RESEND;
            questions.push((*node, LeaseMessage::Fence { txn, round: fence.round, node: *node }));
        }
        for (node, question) in questions {
            for to in members.iter().filter(|to| **to != node) {
                self.send(*to, Message::Lease(question));
            }
        }
    }
}

/// A member had no lease in time.
pub(super) fn unleased() -> FsError {
    let text = "metadata: this node cannot reach most nodes of the cluster; nothing has changed";
    FsError::new(libc::ETIMEDOUT, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_holds_when_most_held_through_one_moment() {
        let hold = |epoch| HoldId { epoch, number: 1 };
        let mut fence = Fence { round: 1, ..Fence::default() };
        fence.heard(1, 1, hold(1));
        fence.heard(2, 1, hold(1));
        assert!(!fence.holds(2), "the first may have started again before the second answered");
        fence.round = 2;
        fence.heard(1, 2, hold(2));
        fence.heard(2, 2, hold(1));
        assert!(!fence.holds(2), "it has");
        // Answers to questions of the round in which it was heard of first say nothing of the time between.
        fence.heard(1, 2, hold(2));
        assert!(!fence.holds(2));
        fence.round = 3;
        fence.heard(1, 3, hold(2));
        assert!(!fence.holds(2));
        fence.heard(2, 3, hold(1));
        assert!(fence.holds(2) && !fence.holds(3));
    }

    #[test]
    fn answers_of_different_rounds_count_if_they_have_a_moment_in_common() {
        let hold = HoldId { epoch: 1, number: 1 };
        let mut fence = Fence { round: 1, ..Fence::default() };
        fence.heard(1, 1, hold);
        fence.round = 3;
        fence.heard(1, 2, hold);
        fence.heard(2, 1, hold);
        fence.round = 4;
        fence.heard(2, 4, hold);
        assert!(!fence.holds(2), "one to the beginning of round 2, the other at that of round 4");
        fence.heard(1, 4, hold);
        assert!(fence.holds(2));
        fence.heard(3, 9, hold);
        assert_eq!(fence.seen.len(), 2, "a round that has not begun");
    }
}
