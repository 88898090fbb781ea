//! Snapshots of a volume that several nodes share: all of them at one instant, and their records at
//! every member that serves.
//!
//! | file | what it has |
//! | --- | --- |
//! | `snapshots/cut.rs` | the leader makes a snapshot |
//! | `snapshots/member.rs` | what every member does for that, and with records |
//! | `snapshots/records.rs` | the leader has all members have the records, and ends removals |
//!
//! One member leads all that is done with snapshots ([`PlacementMap::snapshot_leader`]). Its
//! records are what there is. A *cut* makes a snapshot, one at a time:
//!
//! 1. **Stop.** A member that is stopped hands back what changes something, and decides no
//!    transaction that it leads. It goes on reading, lending, agreeing, and applying what others
//!    decided. When all that it had decided is applied everywhere it answers with its newest
//!    timestamp.
//! 2. **The number.** When all have answered, nothing changes anywhere, and nothing that was
//!    decided is unapplied: this is the instant. The snapshot's number T is above every timestamp
//!    that they named. The leader is cut first, so its record says from now on that T may be known
//!    elsewhere.
//! 3. **Make.** Each other member writes the record, knows T from then on with every worker's state
//!    held, has timestamps above T, and goes on.
//! 4. **Done.** When all records are durable, one batch of the leader takes the mark `cutting` away
//!    and records the answer for retries. Until then nothing lists the snapshot.
//!
//! **Why it is one instant.** A change is in the snapshot if its batch was committed before the cut
//! of its member. It then came before the instant, as members are stopped until they are cut, and a
//! change that is not in it came after. So a change that is in it was committed before any that is
//! not began to be committed: what a client heard of before it asked for the second was in it, too.
//! Of a transaction all parts are in it or none. If its leader decided before it was stopped, all
//! members had applied it at the instant. If it decided after its cut, Decide names T, and a member
//! that has not been cut does not apply it yet.
//!
//! **Timestamps.** What was committed before the cut has timestamps below T. A transaction that
//! ran before the cut and was decided after it may have a lower one than T: the layer that keeps
//! history notes that its rows were not there ([`kestrel_meta::history`]).
//!
//! **Failures.** A member that hears of no cut in [`STOP_MAX`] goes on, and declines it from then
//! on; so does one that has started again. Then the attempt has failed: the leader marks the record
//! as removed, so that what was kept for it is given back like that of any snapshot. A leader that
//! starts and finds a record with the mark does so, too. The caller hears of it, or the leader
//! tries again.
//!
//! **Changes of the placement map** and cuts exclude each other at each member: one that has a part
//! in a change declines Stop, and one that is stopped answers Begin later. Before a change all
//! members have all records, and a change by which another member is to lead snapshots freezes them
//! (`ClusterNode::lacks_records`). History rows go with the rows that they are about.
//!
//! **Removal.** The leader marks the record, and the others hear it. Each clears its own history.
//! When all have none left by one placement map they delete their records, and the leader deletes
//! its own last. Members heed what the leader says in its order, which they put on record, so a
//! message that comes late cannot bring back what a later one took away.

mod cut;
mod member;
mod records;

use std::collections::{BTreeSet, VecDeque};

use kestrel_engine::{Engine, Mutation};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::{MILLISECOND, Nanos, SECOND};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::snapshot::SnapshotId;

use super::ClusterNode;
use super::message::Message;
use super::message::snapshots::{SnapshotMessage, SnapshotOrder};
use super::work::Stage;
use cut::Cut;
use records::Records;

/// A member that was stopped goes on by itself after so long.
const STOP_MAX: Nanos = 5 * SECOND;

/// An attempt to make a snapshot fails after so long: before the first member goes on by itself,
/// unless clocks differ by a fifth, and then a member declines.
const CUT_MAX: Nanos = 4 * SECOND;

/// Pause after history could not be cleared.
const PAUSE: Nanos = 5 * SECOND;

/// So often the leader asks members that have history of removed snapshots whether that is gone.
const CLEARED_POLL: Nanos = 500 * MILLISECOND;

/// Name of the record of what the leader of snapshots said last that this member heeded.
const HEEDED: &[u8] = b"snapshots heeded";

/// Version of that record.
const HEEDED_VERSION: u8 = 1;

/// What a member knows of snapshots besides their records.
#[derive(Default)]
pub(super) struct Snapshots {
    /// The cut that it is stopped for.
    stop: Option<Stop>,
    /// What the leader said last that it heeded.
    heeded: SnapshotOrder,
    /// Requests that wait to be decided, as transactions.
    undecided: BTreeSet<u64>,
    /// When history is cleared again after a failure.
    clear_due: Nanos,
    /// At the leader: the snapshot that is being made.
    cut: Option<Cut>,
    /// At the leader: no cut begins before, as one has failed.
    cut_due: Nanos,
    /// At the leader: requests that wait for the end of a cut.
    waiting: VecDeque<u64>,
    /// At the leader: what members know of records.
    records: Records,
}

/// A cut at a member that is stopped for it.
struct Stop {
    order: SnapshotOrder,
    since: Nanos,
    /// It has answered.
    answered: bool,
    /// It has got another set of quotas meanwhile.
    quotas: bool,
}

impl Snapshots {
    /// As the records say.
    ///
    /// # Errors
    /// `EIO` for a damaged one; the engine's.
    pub fn read(engine: &dyn Engine) -> FsResult<Self> {
        let mut heeded = Ok(SnapshotOrder::default());
        let key = KeyRef::new(Table::System, 0, HEEDED);
        let read = engine.get_many(&[key], &mut |_, row| {
            if let Some(row) = row.value {
                heeded = decode_heeded(row);
            }
        });
        read.map_err(engine_error)?;
        let heeded = heeded.map_err(|why| {
            let name = String::from_utf8_lossy(HEEDED);
            let text = format!("metadata: damaged record {name:?}: {why}; run kestrel fsck");
            FsError::because(libc::EIO, text)
        })?;
        Ok(Self { heeded, ..Self::default() })
    }

    /// Takes out requests that wait for the end of a cut.
    pub fn retain_waiting(&mut self, mut stays: impl FnMut(u64) -> bool) {
        self.waiting.retain(|ticket| stays(*ticket));
    }

    /// This member has another set of quotas, perhaps while it is stopped.
    pub fn note_quotas(&mut self) {
        if let Some(stop) = &mut self.stop {
            stop.quotas = true;
        }
    }

    /// Whether this member is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether a cut is under way here.
    pub fn is_busy(&self) -> bool {
        self.stop.is_some() || self.cut.is_some()
    }

    /// Whether time alone may give it something to do.
    pub fn is_idle(&self) -> bool {
        !self.is_busy() && self.waiting.is_empty() && self.records.is_idle()
    }

    /// Nothing is under way any more: the member has stopped for good.
    pub fn clear(&mut self) {
        *self = Self { heeded: self.heeded, ..Self::default() };
    }
}

fn heeded_row(order: SnapshotOrder) -> Mutation {
    let mut out = vec![HEEDED_VERSION];
    out.extend_from_slice(&order.table.to_be_bytes());
    out.extend_from_slice(&order.number.to_be_bytes());
    Mutation { key: Key::new(Table::System, 0, HEEDED), value: Some(out.into()) }
}

fn decode_heeded(row: &[u8]) -> Result<SnapshotOrder, DecodeError> {
    let mut reader = Reader::new(row);
    if reader.u8()? != HEEDED_VERSION {
        return Err(DecodeError("a record of an unknown format version"));
    }
    let order = SnapshotOrder { table: reader.u64()?, number: reader.u64()? };
    reader.end()?;
    Ok(order)
}

/// The member that leads snapshots by a map. One serves in each.
fn leader_of(map: &PlacementMap) -> Option<NodeId> {
    map.snapshot_leader().map(|member| member.id)
}

impl ClusterNode {
    /// Whether this member leads snapshots.
    pub(super) fn leads_snapshots(&self) -> bool {
        !self.changing.joining && leader_of(&self.table.placement) == Some(self.me)
    }

    /// Whether another member is to lead snapshots by the next map.
    pub(super) fn hands_snapshots_over(&self, next: &PlacementMap) -> bool {
        self.leads_snapshots() && leader_of(next) != Some(self.me)
    }

    /// The member that leads snapshots, and quotas.
    pub(super) fn snapshot_leader(&self) -> Option<NodeId> {
        leader_of(&self.table.placement)
    }

    /// The newest snapshot that this member keeps rows for, or 0.
    pub(super) fn newest_cut(&self) -> SnapshotId {
        self.node.core().snapshots.newest().unwrap_or(0)
    }

    /// Whether this member was cut for a snapshot, or there is none.
    pub(super) fn was_cut(&self, snapshot: SnapshotId) -> bool {
        snapshot == 0 || self.node.core().snapshots.has_record(snapshot)
    }

    fn say(&mut self, to: NodeId, message: SnapshotMessage) {
        self.send(to, Message::Snapshot(message));
    }

    pub(super) fn heard_of_snapshots(&mut self, from: NodeId, message: SnapshotMessage) {
        use SnapshotMessage as M;
        let (M::Stop(order)
        | M::Stopped { order, .. }
        | M::Make { order, .. }
        | M::Made(order)
        | M::Declined { order, .. }
        | M::Resume(order)
        | M::Keep { order, .. }
        | M::Kept { order, .. }) = message;
        if !self.agrees(from, order.table) {
            return;
        }
        let to_leader =
            matches!(message, M::Stopped { .. } | M::Made(_) | M::Declined { .. } | M::Kept { .. });
        let leader = if to_leader { self.me } else { from };
        if leader_of(&self.table.placement) != Some(leader) {
            return log::debug!("node {from} says of snapshots what their leader says, or hears");
        }
        match message {
            M::Stop(_) => self.stop_for(order),
            M::Make { info, .. } => self.make(order, &info),
            M::Resume(_) => self.resume_from(order),
            M::Keep { records, dropped, .. } => self.keep(order, &records, &dropped),
            M::Stopped { stamp, start, .. } => self.has_stopped(from, order, (stamp, start)),
            M::Made(_) => self.has_made(from, order),
            M::Declined { why, .. } => self.cut_declined(order, why),
            M::Kept { cleared, .. } => self.kept(from, order, cleared),
        }
    }

    pub(super) fn tick_snapshots(&mut self) {
        self.tick_stop();
        self.tick_cut();
        self.tick_records();
        self.tick_history();
    }

    /// Clears some of the history of removed snapshots, if there is any.
    fn tick_history(&mut self) {
        if !self.node.core().snapshots.has_removed() || self.snapshots.clear_due > self.now {
            return;
        }
        if let Err(why) = self.node.tidy_history() {
            log::error!("history of a removed snapshot: {why}; tried again");
            self.snapshots.clear_due = self.now + PAUSE;
        }
    }

    /// The placement map is another one. What was under way by the one before has failed.
    pub(super) fn snapshots_by_table(&mut self) {
        self.end_stop();
        let why = "metadata: the placement map has changed while the snapshot was being made";
        self.fail_cut(FsError::new(libc::EAGAIN, why));
        // Another member may lead.
        for ticket in std::mem::take(&mut self.snapshots.waiting) {
            let stage = self.works.get(&ticket).map(|work| &work.stage);
            if matches!(stage, Some(Stage::AwaitingCut)) {
                self.rest(ticket, false);
            }
        }
    }
}
