//! Leases: a member resolves paths only while most members let it, and one that does not answer is
//! fenced.
//!
//! | file | what it has |
//! | --- | --- |
//! | `lease/self_lease.rs` | which start of a member speaks for it where leases are granted |
//!
//! A change of a directory has to be forgotten by all members before it is decided. One that does
//! not answer may be down, or go on serving paths from a replica that is out of date. So what a
//! replica says counts only under a *lease*.
//!
//! **Holder.** It asks all members every [`RENEW`], and holds the lease until [`LEASE`] after it
//! *sent* the oldest question of a majority that was granted, itself included. Not the coordinator
//! grants it: that would be one node without which nobody serves. A volume of one node needs no
//! lease, and an idle member gets none: it resolves nothing.
//!
//! **Granter.** A grant is a promise not to say, for [`PROMISE`] since the question was *heard*,
//! that the member can hold no lease. Heard is after sent, so by the time the promise is over the
//! lease is, if the two clocks agree on how long it lasts within an eighth. Nothing of it is on
//! record: a member that has started again keeps the longest promise that it may have made.
//!
//! **Where it counts** ([`kestrel_meta::lease`]). A batch that finds something in its replica reads
//! the clock, once: it holds a worker's state then, and a replica's contents change only with every
//! worker's state held, so all that it finds was true at the moment of that reading, which is its
//! place in the order, however long it takes to commit. The rows that it reads are its worker's and
//! nobody changes them while the role is held; those that it writes others see after it, through
//! locks that are given with every worker's state held. So whatever a fenced member still commits
//! was as good as done before it was fenced. A transaction reads the clock when it runs: when that
//! was its last run all its rows were locked, then and until it is decided, and so that is its
//! place. What finds nothing in the replica (by handle, or by rows of the node's own, which nobody
//! changes without asking it) needs no lease.
//!
//! **Lapse.** A member that gets a lease after having had none, start included, first empties its
//! replica, with every worker's state held, and what it has asked for dentries is void. Whether it
//! has had none is judged when a grant comes, by the clock at that moment: if that is within the
//! old lease, no member has fenced it in between, since some member of both majorities has kept its
//! promise.
//!
//! **Fence.** The leader of a change that a member has not acknowledged within [`PATIENCE`] asks
//! the others again and again to *hold* the lease of that member: to grant it nothing. Each says so
//! when its promise has run out. A hold has a number, lasts until [`HOLD`] after the last question,
//! and ends by the next grant only. When a majority has held through one moment the member had no
//! lease then (`Fence`), and when it gets another it empties its replica; what it fetches
//! afterwards meets the lock of the row that changes. So it counts as having forgotten. One round
//! of answers would not do: the first that answered may have started again, and granted, before the
//! last one did.
//!
//! Majorities of two tables that follow each other meet, since these differ by one member at most,
//! and there are no others at a time. A lease that was granted by members of one table ends on
//! adoption of the next as soon as too few of those are a majority of the next.
//!
//! Where rows of a fenced member are needed it is waited for all the same.
//!
//! # Stores that others can claim
//!
//! A member on a *shared* engine ([`kestrel_engine::Engine::is_shared`]) can be started again by
//! another process while the one before goes on: a zombie, which may have clients, and be reached
//! by other members. The engine's epoch sees to it that nothing of a zombie's is written. That
//! nothing of it is *believed*, leases do:
//!
//! **Without a lease such a member answers nothing** that anybody relies on: no request, found in
//! the replica or not (Tenure; [`kestrel_meta::lease`]); it lends nothing, agrees to nothing,
//! forgets nothing on behalf of others, says nothing of dentries, of how transactions ended, or of
//! what it has (`ClusterNode::may_say`). It begins no part in a change of the table and sends no
//! rows for one: of two starts one might send what the other never had. Idle members get leases,
//! too, if their engine is shared. What goes on without one: leases themselves, and what is said of
//! changes when it has been committed.
//!
//! **No two starts of a member have leases at the same time.** Questions carry the start; a member
//! that grants one promises it to that start. An older start than the newest that was heard of is
//! granted nothing, and that one is on record before it is let in ([`super::peer_identity`]). One
//! that is asked by a newer start grants it nothing before the promise to an older one is over,
//! unless the newer one is *sole*: no earlier start can be running. A member that has started again
//! does not know what it has promised to older starts, so until that is over it grants to sole ones
//! only. Any two majorities have a member in common; if that is another one, these rules keep the
//! two apart; if it is the member itself, or another one that runs twice, its self lease does
//! (`self_lease`).
//!
//! A start that has had a lease is sole from then on: most members have it on record, so no earlier
//! one gets a lease any more.
//!
//! **What a start says under its lease, it says of a time before its successor's begins.** A batch
//! looks at the lease again when it has read all it answers by: then nobody had written there but
//! itself. What it commits the engine takes only if nobody has claimed the store by then, so its
//! successor reads it; an answer leaves when that is durable. Messages that were sent before and
//! come late mean what they meant: the dentry of a directory that has changed since was asked for
//! before the change, and is thrown away; locks that it says it holds have been held until then,
//! and what it agreed to is on record and locked again by its successor.
//!
//! **Locked rows that are not confirmed** (`txn::leader`): a leader that was lent all its
//! rows within [`RESTART_MIN`](crate::RESTART_MIN) relies on them for so long. A zombie lends under
//! a lease that ends [`LEASE`] after it was asked for, and its successor begins [`PROMISE`] after
//! that was heard, which is more by 250 ms: enough for both if clocks agree within a twentieth. One
//! that ends cleanly gives up its lease, waits for [`RESTART_MIN`](crate::RESTART_MIN), and says so
//! ([`LeaseMessage::Release`]): then the promise to it is over at once.
//!
//! **A store that does not answer** ([`kestrel_engine::Engine::silence`]) for [`LEASE`] makes its
//! member ask for no lease, so that another process, which may reach it, can take over. When nobody
//! reaches it nobody has leases there.

mod self_lease;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kestrel_meta::lease::{FOREVER, NEVER};
use kestrel_meta::locks::TxnId;
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;

use super::fence::Fence;
use super::message::Message;
use super::message::changes::ChangeMessage;
use super::message::snapshot_reads::SnapshotReadMessage;
use super::message::snapshots::SnapshotMessage;
use super::message::sums::SumMessage;
use super::peer_identity::PeerIdentity;
use super::work::transaction::TxnPhase;
use super::work::{Stage, Work};
use super::{ClusterNode, DEADLINE, RESEND};
use self_lease::SelfLease;

pub use super::message::leases::{HoldId, LeaseMessage};
pub use kestrel_meta::lease::{LEASE, PROMISE};

/// Time between two questions for it.
pub const RENEW: Nanos = LEASE / 4;

/// The same while there is none.
const SEEK: Nanos = 100 * MILLISECOND;

/// A change of a directory waits so long for a member before it is fenced.
pub const PATIENCE: Nanos = 500 * MILLISECOND;

/// Nothing is granted for so long after the last question about a fence.
pub const HOLD: Nanos = SECOND;

/// What there is to say of a member's lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseStats {
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
    /// What it promised to each member: to which start, and until when.
    promises: BTreeMap<NodeId, (u64, Nanos)>,
    /// The newest start of each that it has heard of, or one more if that has ended.
    pub(super) starts: BTreeMap<NodeId, u64>,
    /// The members that it grants nothing: the number of that time, and until when.
    holds: BTreeMap<NodeId, (u64, Nanos)>,
    /// When it began to count how long nothing was heard of others.
    opened: Nanos,
    /// When something was heard of each last.
    heard: BTreeMap<NodeId, Nanos>,
    /// Whether this start speaks for its member.
    pub(super) self_lease: SelfLease,
    /// No earlier start can be running, or get a lease.
    pub(super) exclusive: bool,
    /// It gets none any more.
    ended: bool,
    /// Fenced, and not heard of since.
    silent: BTreeSet<NodeId>,
    lapses: u64,
    fences: u64,
    fenced: u64,
}

impl Leases {
    /// Those of a member that starts, and claimed its store then.
    pub fn new(shared: bool, exclusive: bool, now: Nanos) -> Self {
        Self {
            asks: VecDeque::new(),
            due: now,
            granted: BTreeMap::new(),
            until: NEVER,
            held: false,
            waiting: BTreeSet::new(),
            promises: BTreeMap::new(),
            starts: BTreeMap::new(),
            holds: BTreeMap::new(),
            opened: now,
            heard: BTreeMap::new(),
            self_lease: SelfLease::new(shared, exclusive, now),
            exclusive: exclusive || !shared,
            ended: false,
            silent: BTreeSet::new(),
            lapses: 0,
            fences: 0,
            fenced: 0,
        }
    }

    /// Something was heard of a member.
    pub fn heard_of(&mut self, node: NodeId, now: Nanos) {
        self.heard.insert(node, now);
        if !self.silent.is_empty() {
            self.silent.remove(&node);
        }
    }
}

impl ClusterNode {
    /// What there is to say of its lease.
    pub fn lease_stats(&self) -> LeaseStats {
        let Leases { lapses, fences, fenced, .. } = self.leases;
        LeaseStats { held: self.cluster().lease.is_held(), lapses, fences, fenced }
    }

    /// What time it is now, for callers that must not go by the time that the member was told last.
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
            LeaseMessage::Ask { number, epoch, exclusive } => {
                self.grant(from, number, epoch, exclusive)
            }
            LeaseMessage::Release { epoch } => self.released(from, epoch),
            LeaseMessage::Granted { number, sums } => self.granted(from, number, sums),
            LeaseMessage::Fence { txn, round, node } => self.hold(from, txn, round, node),
            LeaseMessage::Fenced { txn, round, node, hold } => {
                self.fenced(from, txn, (round, node), hold)
            }
        }
    }

    /// Whether it needs no lease, whatever it does: it has nobody to ask, or serves nothing that
    /// anybody else could serve.
    fn needs_none(&self) -> bool {
        let shared = self.cluster().is_shared();
        !shared && (self.table.is_alone() || self.table.is_idle()) || self.changing.joining
    }

    pub(super) fn tick_lease(&mut self) {
        let now = self.now;
        if !self.cluster().lease.is_held() {
            self.note_lapse();
        }
        if self.leases.due > now || self.leases.ended || self.needs_none() {
            return;
        }
        self.leases.due = now + if self.cluster().lease.is_held() { RENEW } else { SEEK };
        if self.node.engine().silence() > Duration::from_nanos(LEASE.unsigned_abs()) {
            return;
        }
        let number = self.number();
        // Older ones are worth nothing when they are granted.
        self.leases.asks.retain(|(_, sent)| sent + LEASE > now);
        self.leases.asks.push_back((number, now));
        if let Some(vote) = self.leases.self_lease.votes(self.time()) {
            self.leases.granted.insert(self.me, vote.min(now));
            self.count_grants();
        }
        let (epoch, exclusive) = (self.epoch, self.leases.exclusive);
        for node in self.table.nodes().filter(|node| *node != self.me).collect::<Vec<_>>() {
            self.send(node, Message::Lease(LeaseMessage::Ask { number, epoch, exclusive }));
        }
    }

    /// The newest start of a member that this one has heard of, perhaps in an earlier start of its
    /// own; `None` if nobody knows.
    pub(super) fn newest_start(&mut self, node: NodeId) -> Option<u64> {
        if let Some(start) = self.leases.starts.get(&node) {
            return Some(*start);
        }
        let known = PeerIdentity::read(&**self.node.engine(), node)
            .inspect_err(|why| log::error!("{why}"))
            .ok()?;
        let start = known.map_or(0, |known| known.epoch);
        self.leases.starts.insert(node, start);
        Some(start)
    }

    /// Somebody asks for a lease.
    fn grant(&mut self, from: NodeId, number: u64, epoch: u64, exclusive: bool) {
        // Not when this member was told the time last: that may be before the question was sent.
        let now = self.time();
        if self.table.placement.map.member(from).is_none()
            || self.newest_start(from).is_none_or(|newest| epoch < newest)
        {
            return;
        }
        let leases = &mut self.leases;
        leases.starts.insert(from, epoch);
        let earlier =
            leases.promises.get(&from).is_some_and(|(start, until)| *start < epoch && now < *until);
        let unknown = now < leases.self_lease.forgets();
        if !leases.self_lease.is_held(now)
            || !exclusive && (earlier || unknown)
            || leases.holds.get(&from).is_some_and(|(_, until)| now < *until)
        {
            return;
        }
        leases.holds.remove(&from);
        leases.promises.insert(from, (epoch, now + PROMISE));
        let sums = self.promise_sums(from, now);
        self.send(from, Message::Lease(LeaseMessage::Granted { number, sums }));
    }

    /// A member's start has ended, or is about to: it has no lease.
    fn released(&mut self, from: NodeId, epoch: u64) {
        if self.newest_start(from).is_none_or(|newest| epoch < newest) {
            return;
        }
        // What it asked for before that may still come.
        self.leases.starts.insert(from, epoch.saturating_add(1));
        if self.leases.promises.get(&from).is_some_and(|(start, _)| *start == epoch) {
            self.leases.promises.remove(&from);
        }
    }

    /// Gives up the lease, for good: this start ends. A shared store may be opened by another
    /// process as soon as the others know ([`ClusterNode::say_released`]).
    pub fn give_up_lease(&mut self, now: Nanos) {
        self.at(now);
        self.leases.ended = true;
        // What it has asked for may still be granted.
        self.leases.asks.clear();
        self.leases.granted.clear();
        self.leases.self_lease.end();
        let node = self.node.clone();
        let quiet = node.quiesce();
        self.leases.until = NEVER;
        self.cluster().lease.set(NEVER);
        drop(quiet);
    }

    /// Tells the others that it has no lease any more. Not before [`super::RESTART_MIN`] is over
    /// since it gave that up.
    pub fn say_released(&mut self) {
        let epoch = self.epoch;
        for node in self.table.nodes().filter(|node| *node != self.me).collect::<Vec<_>>() {
            self.send(node, Message::Lease(LeaseMessage::Release { epoch }));
        }
    }

    /// How long nothing was heard of the other members; `None` while this one has no lease, since
    /// then it may be itself that is cut off.
    pub fn unheard(&self, now: Nanos) -> Option<Vec<(NodeId, Nanos)>> {
        let leases = &self.leases;
        let since = |node: NodeId| now - leases.heard.get(&node).copied().unwrap_or(leases.opened);
        let others = self.table.nodes().filter(|node| *node != self.me);
        self.cluster()
            .lease
            .is_held()
            .then(|| others.map(|node| (node, since(node).max(0))).collect())
    }

    /// Whether this may be said, or done on behalf of others, at this moment: not by a member with
    /// a store that others can claim, unless the member has a lease.
    pub(super) fn may_say(&self, from: NodeId, message: &Message) -> bool {
        let own = from == self.me;
        let relied_on = match message {
            Message::Fetch { .. }
            | Message::Sum(SumMessage::Ask { .. })
            | Message::Forward { .. }
            | Message::SnapshotRead(
                SnapshotReadMessage::Rows { .. } | SnapshotReadMessage::Parents { .. },
            )
            | Message::Borrow { .. }
            | Message::Prepare { .. }
            | Message::Poll { .. } => true,
            // Another start of it may be changing rows.
            Message::Snapshot(
                SnapshotMessage::Stop(_)
                | SnapshotMessage::Make { .. }
                | SnapshotMessage::Keep { .. },
            ) => true,
            // So may it be counting, or lending, or giving names.
            Message::Quota(_) | Message::Clone(_) => true,
            // What it tells itself of its own transactions concerns its own rows.
            Message::Invalidate(_) | Message::Decide(..) | Message::Ask(_) => !own,
            // Two starts must not both take part in an attempt: one would send rows, and the other
            // be frozen.
            Message::Change(
                ChangeMessage::Begin { .. } | ChangeMessage::Copy(_) | ChangeMessage::Freeze(_),
            ) => true,
            Message::Fetched(..)
            | Message::Lent { .. }
            | Message::Refused(..)
            | Message::Invalidated(_)
            | Message::Voted(..)
            | Message::Decided(_)
            | Message::Alive(_)
            | Message::Polled { .. }
            | Message::Change(_)
            | Message::Lease(_)
            | Message::Sum(_)
            | Message::SnapshotRead(_)
            | Message::Forwarded { .. }
            | Message::Snapshot(_)
            | Message::Tokens(_)
            | Message::Addresses(_) => false,
        };
        !relied_on || self.cluster().may_answer()
    }

    fn granted(&mut self, from: NodeId, number: u64, sums: bool) {
        let Some((_, sent)) = self.leases.asks.iter().find(|(asked, _)| *asked == number).copied()
        else {
            return;
        };
        if self.table.placement.map.member(from).is_none() {
            return;
        }
        let newest = self.leases.granted.entry(from).or_insert(sent);
        *newest = sent.max(*newest);
        self.count_grants();
        if sums {
            self.sums_granted(from, sent);
        }
    }

    /// Somebody has granted it a lease, it itself perhaps.
    fn count_grants(&mut self) {
        if self.leases.ended {
            return;
        }
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
                "most nodes of the cluster have not answered in time, or the store has not: this \
                 one {} until they do",
                self.waits_how()
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

    /// A lease after a time without one: what the replica says may not be true any more, nor what
    /// was asked for it.
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
            log::warn!("most nodes of the cluster answer again, and so does this one");
        }
        // Most members have this start on record: no earlier one gets a lease any more.
        self.leases.exclusive = true;
        self.look_for_lease();
    }

    /// What it does not do without a lease, for people.
    fn waits_how(&self) -> &'static str {
        if self.cluster().is_shared() { "answers nobody" } else { "resolves no paths" }
    }

    /// Requests that wait for a lease are tried again: there may be one, or others may lead them
    /// now.
    pub(super) fn look_for_lease(&mut self) {
        let (until, shared) = (self.now + DEADLINE, self.cluster().is_shared());
        for ticket in std::mem::take(&mut self.leases.waiting) {
            let waits = |work: &&mut Work| matches!(work.stage, Stage::Unleased);
            let Some(work) = self.works.get_mut(&ticket).filter(waits) else { continue };
            if shared && work.asker.origin().is_some() {
                // How long it has waited for this does not count.
                work.until = until;
            }
            self.run_alone(ticket);
        }
    }

    /// A request does not wait for a lease any more.
    pub(super) fn forget_waiting(&mut self, ticket: u64) {
        self.leases.waiting.remove(&ticket);
    }

    /// Whether a member has asked this one for a lease, or granted it one, so short a time ago that
    /// it may hold one itself.
    pub(super) fn may_live(&self, node: NodeId) -> bool {
        let (leases, now) = (&self.leases, self.time());
        leases.promises.get(&node).is_some_and(|(_, until)| now < *until)
            || leases.granted.get(&node).is_some_and(|sent| now < sent + PROMISE)
    }

    /// The table has other members, perhaps. With every worker's state held.
    pub(super) fn lease_by_table(&mut self) {
        let until = if self.leases.ended {
            NEVER
        } else if self.table.is_alone() && !self.cluster().is_shared() {
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
        let leases = &self.leases;
        let promised = leases.promises.get(&node).is_some_and(|(_, until)| now < *until);
        // What an earlier start has promised nobody remembers.
        if !promised && leases.self_lease.forgets() <= now && leases.self_lease.is_held(now) {
            self.send(from, Message::Lease(LeaseMessage::Fenced { txn, round, node, hold }));
        }
    }

    fn fenced(&mut self, from: NodeId, txn: TxnId, (round, node): (u32, NodeId), hold: HoldId) {
        let (majority, now) = (self.majority(), self.now);
        if self.table.placement.map.member(from).is_none() || from == node {
            return;
        }
        let Some((ticket, lead)) = self.led(txn) else { return };
        let TxnPhase::Invalidating(nodes, _) = &mut lead.phase else { return };
        let Some(fence) = nodes.get_mut(&node) else { return };
        fence.heard(from, round, hold);
        if fence.holds(majority) {
            log::warn!(
                "node {node} does not answer and has no lease any more: a directory changes \
                 without it"
            );
            self.leases.silent.insert(node);
            self.leases.fenced += 1;
            self.invalidated(node, txn);
        } else if !fence.answered && fence.answers() >= majority {
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
        let Some(Stage::Leading(lead)) = self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        let txn = lead.txn;
        let TxnPhase::Invalidating(nodes, _) = &mut lead.phase else { return };
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
