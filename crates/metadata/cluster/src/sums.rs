//! Sums of directories' shares that members tell each other under leases: a stat of a directory
//! asks nobody while no share of it changes.
//!
//! | file | what it has |
//! | --- | --- |
//! | `sums/granter.rs` | tells sums under leases, and revokes the leases |
//! | `sums/holder.rs` | asks for sums, and forgets them |
//! | `sums/listing.rs` | listings from names that came with the sums |
//!
//! A directory's size, link count and times are sums over shares that lie at all members
//! ([`kestrel_meta::view`]). The member that leads a stat, the *holder* (`holder`), asks each
//! other one, the *granter* (`granter`), once for the sum of its shares of that directory. The
//! answer is under a lease: the granter changes no share of the directory before it has revoked
//! that lease. From then on the holder's batches serve stats of the directory from their own rows
//! and these sums. They look at the clock after they have read both, so all of it was true together
//! at that moment, which is the stat's place in the order.
//!
//! **Revoking.** A batch that changes a share of a leased directory stops before it has changed
//! anything ([`kestrel_meta::stop::Stop::Leased`]), and a transaction that wants such a share
//! exclusively is kept waiting. The granter tells all holders to forget the sum; when they have
//! said that they did, the change goes on. The change itself waits, not only its acknowledgement: a
//! client that sees the change at the granter and then asks the holder must see it there too. A
//! directory that nobody stats has no lease, and a change of it costs one load of a counter.
//!
//! **Failures.** All leases that a holder has of one granter end at the same time, and they ride on
//! the leases of [`super::lease`]: a member asks each other one for that lease every
//! [`super::lease::RENEW`] anyway. A member that grants it promises to keep its leases on sums for
//! [`PROMISE`](crate::lease::PROMISE) since it heard the question, and the holder uses the sums
//! until [`LEASE`](crate::lease::LEASE) after it sent that question. So a granter waits for a
//! holder that does not answer a revocation until its promise is over, and no longer: a grant says
//! that it does not extend the promise while the holder owes an answer. A holder forgets
//! all sums of a granter once its leases of that granter have lapsed.
//!
//! A granter that starts again does not know what it has told. Before it changes any share it has
//! all members forget what it said earlier, or waits until what earlier starts may have promised is
//! over (`self_lease::SelfLease::forgets`). A holder does not believe a sum that an
//! earlier start of the granter tells. A start of a holder answers for earlier ones only if none of
//! them can be running.
//!
//! **Directories that are changed and looked at in turn** would pay for a lease and its revocation
//! each time. So a granter that had to revoke a lease refuses leases on that directory for a while,
//! twice as long each time if that happens again soon ([`COOL_MIN`], [`COOL_MAX`]). Stats of the
//! directory are transactions meanwhile, which borrow the rows.
//!
//! **Listings.** Whatever changes a name in a directory, or what it names, changes a share of the
//! directory at the owner of the name. So a lease also holds for the names that a granter tells
//! with the sum, and a listing is served from them, page by page (`listing`).
//!
//! **Tables.** Members of one table only tell each other sums, and a holder that adopts another
//! table forgets all it knows. A granter with shares that get an heir revokes all leases before it
//! is frozen. At a granter leases outlast the adoption of a table: a holder may still have the one
//! before.

mod granter;
mod holder;
mod listing;

use std::collections::BTreeMap;

use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;

use super::message::Message;
use super::work::Stage;
use super::{ClusterNode, RESEND};
use listing::List;

pub use super::message::sums::{Also, Names, SumMessage};

/// After its lease had to be revoked, a directory is not leased again for so long, at first.
pub const COOL_MIN: Nanos = 50 * MILLISECOND;

/// And at most.
pub const COOL_MAX: Nanos = 2 * SECOND;

/// A directory, and what is asked of it besides the sum.
type Subject = (InodeId, Also);

/// Questions about a directory with answers that requests wait for.
struct Gathering {
    /// The members that were asked, by what number.
    asked: BTreeMap<NodeId, u64>,
    /// Requests that wait.
    tickets: Vec<u64>,
    sent: Nanos,
}

/// Leases that are being revoked.
struct Revoking {
    /// Of these directories; none: all.
    dirs: Vec<InodeId>,
    /// Holders that have not answered, and the oldest start of each that was told.
    waiting: BTreeMap<NodeId, u64>,
    since: Nanos,
    sent: Nanos,
}

/// A directory that is not leased because its leases had to be revoked.
struct Cooling {
    until: Nanos,
    span: Nanos,
}

/// What a member knows of sums besides what its batches look at.
#[derive(Default)]
pub(super) struct Sums {
    /// Other members that have shares.
    others: Vec<NodeId>,
    /// What is being asked for.
    gathering: BTreeMap<Subject, Gathering>,
    /// Names that other members have told.
    lists: BTreeMap<InodeId, List>,
    /// Directories on which no leases are given: until when that is so.
    refused: BTreeMap<InodeId, Nanos>,
    /// Until when this member has a lease on another one's sums.
    held: BTreeMap<NodeId, Nanos>,
    /// Until when this member has promised to keep another one's leases.
    promises: BTreeMap<NodeId, Nanos>,
    revoking: BTreeMap<u64, Revoking>,
    cooling: BTreeMap<InodeId, Cooling>,
    /// Questions for rows that wait for leases to be revoked, and the members that sent them.
    borrows: Vec<(NodeId, Message)>,
}

impl Sums {
    /// Whether time alone may give it something to do.
    pub fn is_waiting(&self) -> bool {
        !self.gathering.is_empty() || !self.revoking.is_empty()
    }

    /// Whether a grant to this member extends the promise about sums: not while it does not answer
    /// a revocation.
    fn may_promise(&self, node: NodeId, now: Nanos) -> bool {
        !self
            .revoking
            .values()
            .any(|revoking| revoking.waiting.contains_key(&node) && revoking.since + RESEND <= now)
    }

    fn is_revoking(&self, dir: InodeId) -> bool {
        self.revoking
            .values()
            .any(|revoking| revoking.dirs.is_empty() || revoking.dirs.contains(&dir))
    }
}

impl ClusterNode {
    /// Changes what batches look at.
    fn change_sums(&self, change: impl FnOnce(&Self)) {
        let quiet = self.node.quiesce();
        change(self);
        drop(quiet);
    }

    /// The table is another one. With every worker's state held.
    pub(super) fn sums_by_table(&mut self) {
        self.sums.others = if self.table.is_idle() || self.table.has_left() {
            Vec::new()
        } else {
            self.table.other_share_owners()
        };
        self.cluster().sums.reset(self.sums.others.len());
        self.sums.refused.clear();
        self.sums.lists.clear();
        for gathering in std::mem::take(&mut self.sums.gathering).into_values() {
            for ticket in gathering.tickets {
                if let Some(work) = self.works.get_mut(&ticket)
                    && matches!(work.stage, Stage::Gathering)
                {
                    work.stage = Stage::Parked;
                    self.parked.insert(ticket);
                }
            }
        }
        self.unlocked = true;
        self.hold_sums();
    }

    pub(super) fn heard_of_sums(&mut self, from: NodeId, message: SumMessage) {
        match message {
            SumMessage::Ask { number, table, epoch, dir, also } => {
                self.tell_sum(from, number, (table, epoch), (dir, also));
            }
            SumMessage::Sum { number, epoch, dir, sum, names } => {
                self.told_sum(from, (number, epoch), dir, (sum, names));
            }
            SumMessage::Refused { number, dir, pause } => {
                self.refused_sum(from, number, dir, pause)
            }
            SumMessage::Revoke { number, epoch, holder, dirs } => {
                self.forget_sums(from, number, (epoch, holder), &dirs);
            }
            SumMessage::Revoked { number } => self.revoked(from, number),
        }
    }

    pub(super) fn tick_sums(&mut self) {
        let now = self.time();
        let forgets = self.leases.self_lease.forgets();
        let Sums { revoking, promises, .. } = &mut self.sums;
        for revoking in revoking.values_mut() {
            revoking.waiting.retain(|node, _| {
                now < promises.get(node).map_or(forgets, |until| forgets.max(*until))
            });
        }
        let over = revoking.iter().filter(|(_, revoking)| revoking.waiting.is_empty());
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_revoking(number);
        }
        let silent =
            self.sums.revoking.iter().filter(|(_, revoking)| revoking.sent + RESEND <= self.now);
        for number in silent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.send_revoke(number);
        }
        self.tick_gathering();
        self.tick_lists();
        self.sums.refused.retain(|_, until| now < *until);
        self.sums.cooling.retain(|_, cooling| now < cooling.until + 2 * cooling.span);
    }
}
