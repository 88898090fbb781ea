//! Quotas of a volume that several nodes share.
//!
//! | file | what it has |
//! | --- | --- |
//! | `quotas/change.rs` | the leader makes, changes, removes and checks quotas |
//! | `quotas/count.rs` | what counts, by the rows of all members |
//! | `quotas/lender.rs` | the leader lends parts of limits |
//! | `quotas/member.rs` | every member: takes over sets, asks for parts, gives them back |
//!
//! One member leads quotas, the one that leads snapshots. Every member that serves has the same
//! set of quotas, and charges what it commits to its own shares ([`kestrel_meta::quotas`]); the
//! member that decides a transaction charges all of it.
//!
//! **The set changes** while nothing else does, as for a snapshot ([`crate::snapshots`]): Stop, and
//! when all have stopped the leader counts what the change needs, by questions to all members. When
//! all have said again that they are stopped, each by the same start, it puts the set on record
//! with the differences to what was counted before, marked as not known everywhere; Set tells it to
//! the others, which put it on record. When all have it they go on, the mark goes, and the caller
//! hears. A transaction that began before they went on begins anew: a row of a file with several
//! names, that says towards which quota it counts, may be one of the set before. If a change fails
//! the leader begins again by itself, with a count of everything: what a
//! member has committed by the old set is counted then. Until the mark goes no parts are lent, and
//! the placement map does not change.
//!
//! **Parts** (escrow). No member counts above its part of a limit, and the sum of the parts is
//! never above the limit. The leader knows for each member a number that its part is not above, the
//! *ledger*, and lends what is left: half of that divided by the members beyond what is asked for,
//! so parts shrink as the limit comes near. When too little is left all members give back what they
//! have not used (Recall), and only then the leader says that the quota is used up. A member's part
//! shrinks with what it frees, or a limit that is below what is used would not keep others from
//! growing.
//!
//! - *Durable.* A member answers Recall when all that it has committed is durable, so a crash does
//!   not bring back what it had freed. After a start its part is what its rows have.
//! - *A leader that starts*, or another one by a new placement map, has an empty ledger and lends
//!   nothing before all members have given back what they did not use (Sync). A grant names the
//!   last Recall or Sync before it, and a member that has answered a later one drops it.
//! - *A member that is away* keeps its part. A request that needs that waits, as for the member's
//!   rows; it comes back with the member, or with the process that takes its place.
//!
//! **Soft limits** are the leader's: it lends up to them, and above them only after all parts were
//! given back. From then on, while usage is above, it has what it lends given back every second
//! ([`OVER_POLL`]), and lends nothing when the grace period is over.
//!
//! **A member that joins**, or begins to serve, changes nothing before the leader has told it the
//! set: its record says so until then.

mod change;
mod count;
mod lender;
mod member;

use kestrel_engine::{Engine, Mutation};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;

use super::ClusterNode;
use super::message::Message;
use super::message::quotas::QuotaMessage;
use super::message::snapshots::SnapshotOrder;
use lender::Lender;
use member::Asks;

pub(super) use change::QuotaChange;

/// So often parts are given back while usage is above a soft limit.
const OVER_POLL: Nanos = SECOND;

/// Pause before a set that some members may not have is told again.
const SPREAD_PAUSE: Nanos = SECOND;

/// Name of the record of the set of quotas that a member has.
const SET: &[u8] = b"quotas";

/// Version of that record.
const SET_VERSION: u8 = 1;

const UNSPREAD: u8 = 1;
const LACKING: u8 = 2;

/// The set of quotas that a member has, as its record says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QuotaSet {
    /// The change that made it.
    pub order: SnapshotOrder,
    /// At the leader: some members may have the one before.
    pub unspread: bool,
    /// The member serves and may lack a newer one.
    pub lacking: bool,
}

impl QuotaSet {
    pub(super) fn row(self) -> Mutation {
        let flags =
            if self.unspread { UNSPREAD } else { 0 } | if self.lacking { LACKING } else { 0 };
        let mut out = vec![SET_VERSION, flags];
        out.extend_from_slice(&self.order.table.to_be_bytes());
        out.extend_from_slice(&self.order.number.to_be_bytes());
        Mutation { key: Key::new(Table::System, 0, SET), value: Some(out.into()) }
    }

    fn decode(row: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(row);
        let unknown = DecodeError("a record of an unknown format version");
        if reader.u8()? != SET_VERSION {
            return Err(unknown);
        }
        let flags = Some(reader.u8()?).filter(|flags| *flags <= UNSPREAD | LACKING);
        let flags = flags.ok_or(unknown)?;
        let order = SnapshotOrder { table: reader.u64()?, number: reader.u64()? };
        reader.end()?;
        Ok(Self { order, unspread: flags & UNSPREAD != 0, lacking: flags & LACKING != 0 })
    }
}

/// What a member knows of quotas besides the quotas.
#[derive(Default)]
pub(super) struct Quotas {
    pub(super) set: QuotaSet,
    /// The last time that it gave back parts.
    returned: SnapshotOrder,
    /// Requests that wait for parts.
    asks: Asks,
    /// At the leader.
    lender: Lender,
    /// At the leader: when a set that some members may not have is told again.
    spread_due: Nanos,
}

impl Quotas {
    /// As the record says.
    ///
    /// # Errors
    /// `EIO` for a damaged one; the engine's.
    pub fn read(engine: &dyn Engine) -> FsResult<Self> {
        let mut set = Ok(QuotaSet::default());
        let key = KeyRef::new(Table::System, 0, SET);
        let read = engine.get_many(&[key], &mut |_, row| {
            if let Some(row) = row.value {
                set = QuotaSet::decode(row);
            }
        });
        read.map_err(engine_error)?;
        let set = set.map_err(|why| {
            let text = format!("metadata: damaged record \"quotas\": {why}; run kestrel fsck");
            FsError::because(libc::EIO, text)
        })?;
        Ok(Self { set, ..Self::default() })
    }

    /// Nothing is under way any more: the member has stopped for good.
    pub fn clear(&mut self) {
        *self = Self { set: self.set, returned: self.returned, ..Self::default() };
    }
}

impl ClusterNode {
    fn say_of_quotas(&mut self, to: NodeId, message: QuotaMessage) {
        self.send(to, Message::Quota(message));
    }

    fn quota_order(&mut self) -> SnapshotOrder {
        SnapshotOrder { table: self.table.placement.version, number: self.number() }
    }

    pub(super) fn heard_of_quotas(&mut self, from: NodeId, message: QuotaMessage) {
        use QuotaMessage as M;
        let table = match &message {
            M::Sync { order, .. }
            | M::Synced { order, .. }
            | M::Set { order, .. }
            | M::Recall { order, .. }
            | M::Returned { order, .. } => order.table,
            M::Granted { after, .. } => after.table,
            M::Ask(_) | M::Denied { .. } => self.table.placement.version,
        };
        let to_leader = matches!(message, M::Synced { .. } | M::Ask(_) | M::Returned { .. });
        let leader = if to_leader { self.me } else { from };
        if !self.agrees(from, table) || self.snapshot_leader() != Some(leader) {
            return log::debug!("node {from} says of quotas what their leader says, or hears");
        }
        match message {
            M::Sync { order, set, certain, records } => {
                self.sync_quotas(order, (set, certain), &records);
            }
            M::Synced { order, newer, parts } => self.quotas_synced(from, order, newer, parts),
            M::Set { order, start, records, homes } => {
                self.set_quotas(order, start, (&records, &homes));
            }
            M::Ask(ask) => self.asked_for_part(from, ask),
            M::Granted { number, after, to } => self.part_granted(number, after, to),
            M::Denied { number, soft } => self.part_denied(number, soft),
            M::Recall { order, of } => self.return_parts(order, &of),
            M::Returned { order, parts } => self.parts_returned(from, order, parts),
        }
    }

    /// Whether time alone has nothing to do about quotas.
    pub(super) fn quotas_are_idle(&self) -> bool {
        let Quotas { set, asks, lender, .. } = &self.quotas;
        let table = self.table.placement.version;
        let lends =
            || !set.unspread && lender.rests(table) && self.lent_above_soft_limits().is_empty();
        asks.is_empty() && (!self.leads_snapshots() || lends())
    }

    pub(super) fn tick_quotas(&mut self) {
        self.tick_asks();
        self.tick_lender();
        self.tick_spread();
    }

    /// The placement map is another one.
    pub(super) fn quotas_by_table(&mut self) {
        self.begin_ledger();
        self.ask_for_parts_again();
    }
}
