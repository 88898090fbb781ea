//! The leader of snapshots has all members have the records, and ends removals
//! ([`crate::snapshots`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_meta::history::known::Known;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::ids::Position;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::snapshot::SnapshotId;

use super::CLEARED_POLL;
use crate::message::snapshots::{SnapshotMessage, SnapshotOrder};
use crate::{ClusterNode, Deferred, RESEND};

/// Most records in one message: with holds a record has some kilobytes.
const MESSAGE_RECORDS: usize = 256;

/// What the leader knows of records at members.
#[derive(Default)]
pub(super) struct Records {
    /// The placement map by which this is so; 0: this member does not lead.
    table: u64,
    /// The records that members were told of, or are about to be.
    seen: Arc<Vec<Arc<Known>>>,
    /// Where the log has them: what is not durable here is told to nobody.
    position: Position,
    /// The other members that serve.
    members: BTreeMap<NodeId, MemberRecords>,
    /// Snapshots that no member has history of: their records go.
    dropping: BTreeSet<SnapshotId>,
}

/// What is known of one member.
#[derive(Default)]
struct MemberRecords {
    /// Records that it may not have as they are.
    pending: BTreeSet<SnapshotId>,
    /// What it was told last and has not said anything of, and when.
    sent: Option<SentRecords>,
    sent_at: Nanos,
    /// Snapshots in removal that it has no history of.
    cleared: BTreeSet<SnapshotId>,
    /// Snapshots that it has no record of any more.
    dropped: BTreeSet<SnapshotId>,
    /// When it is asked again what it has cleared.
    poll: Nanos,
}

/// What a member was told in one message.
struct SentRecords {
    order: SnapshotOrder,
    /// The records that it was about.
    ids: Vec<SnapshotId>,
    /// Of these, those that it was to delete.
    dropped: Vec<SnapshotId>,
}

impl MemberRecords {
    fn agrees(&self) -> bool {
        self.pending.is_empty() && self.sent.is_none()
    }
}

impl Records {
    /// Whether all members have all records, and no removal is under way.
    pub fn is_idle(&self) -> bool {
        self.members.values().all(MemberRecords::agrees) && self.dropping.is_empty()
    }
}

impl ClusterNode {
    /// Whether members lack records: no snapshot is made before they have them. A removal that goes
    /// on is not in the way.
    pub(super) fn records_spread_to_go(&mut self) -> bool {
        self.notice_records();
        let polls = |member: &MemberRecords| {
            let removing = |id: &SnapshotId| {
                let seen = &self.snapshots.records.seen;
                let found = seen.binary_search_by_key(id, |known| known.info.id);
                found.is_ok_and(|index| seen[index].info.removing)
            };
            let sent = member.sent.iter().flat_map(|sent| &sent.ids);
            member.pending.iter().chain(sent).all(removing)
        };
        !self.snapshots.records.members.values().all(polls)
    }

    /// Why a change of the placement map cannot begin: a member that stays lacks records of
    /// snapshots, or another one is to lead and records are being deleted. Only the leader of
    /// snapshots knows.
    pub(crate) fn lacks_records(&mut self, next: &PlacementMap) -> Option<FsError> {
        if !self.leads_snapshots() {
            return None;
        }
        if self.quotas.set.unspread {
            let text = "metadata: not all nodes have the quotas yet: try again";
            return Some(FsError::new(libc::EAGAIN, text));
        }
        self.notice_records();
        let stays_leader = next.snapshot_leader().is_some_and(|leader| leader.id == self.me);
        if !stays_leader && !self.snapshots.records.dropping.is_empty() {
            // The next leader may have dropped a record that this one still has.
            let text = "metadata: records of removed snapshots are being deleted: try again";
            return Some(FsError::new(libc::EAGAIN, text));
        }
        let members = &self.snapshots.records.members;
        let lacks = members.iter().filter(|(node, _)| next.map.member(**node).is_some());
        let (node, _) = lacks.into_iter().find(|(_, member)| !member.agrees())?;
        let text = format!("metadata: node {node} has not got all records of snapshots yet");
        Some(FsError::because(libc::EAGAIN, text))
    }

    /// Looks for records that have changed.
    fn notice_records(&mut self) {
        if !self.leads_snapshots() {
            self.snapshots.records = Records::default();
            return;
        }
        let version = self.table.placement.version;
        if self.snapshots.records.table != version {
            let others = self.table.serving().filter(|node| *node != self.me);
            let members = others.map(|node| (node, MemberRecords::default())).collect();
            self.snapshots.records = Records { table: version, members, ..Records::default() };
        }
        let list = self.node.core().snapshots.list();
        let records = &mut self.snapshots.records;
        if Arc::ptr_eq(&list, &records.seen) {
            return;
        }
        let before: BTreeMap<SnapshotId, &Arc<Known>> =
            records.seen.iter().map(|known| (known.info.id, known)).collect();
        let is_new = |known: &&Arc<Known>| {
            !before.get(&known.info.id).is_some_and(|before| Arc::ptr_eq(before, known))
        };
        let changed: Vec<SnapshotId> =
            list.iter().filter(is_new).map(|known| known.info.id).collect();
        for member in records.members.values_mut() {
            member.pending.extend(&changed);
        }
        records.seen = list;
        // The batch that wrote them is over after this, and has said where it is.
        drop(self.node.quiesce());
        let position = self.node.last_commit();
        self.snapshots.records.position = position;
        self.when_durable(position, Deferred::RecordsDurable(version));
    }

    pub(crate) fn records_durable(&mut self, version: u64) {
        if self.snapshots.records.table == version {
            self.send_records();
        }
    }

    pub(super) fn tick_records(&mut self) {
        self.notice_records();
        if self.snapshots.records.table == 0 || self.snapshots.is_busy() {
            return;
        }
        self.end_removals();
        self.send_records();
    }

    /// Looks how far removals are, and asks members that have not cleared their history.
    fn end_removals(&mut self) {
        if !self.node.core().snapshots.has_removed() {
            return;
        }
        let (now, own) = (self.now, self.node.cleared_snapshots());
        // Another member may be about to lead, which has to know what is being dropped.
        let may_drop = self.changing.undecided().is_none();
        let records = &mut self.snapshots.records;
        let removed = records.seen.iter().filter(|known| known.info.removing);
        let removed: Vec<SnapshotId> = removed.map(|known| known.info.id).collect();
        let mut gone = Vec::new();
        for id in removed {
            let members = &mut records.members;
            if records.dropping.contains(&id) {
                if members.values().all(|member| member.dropped.contains(&id)) {
                    gone.push(id);
                }
                continue;
            }
            let is_clear = |member: &MemberRecords| member.cleared.contains(&id);
            if may_drop && own.contains(&id) && members.values().all(is_clear) {
                records.dropping.insert(id);
                for member in members.values_mut() {
                    member.pending.insert(id);
                }
                continue;
            }
            let slow = members.values_mut().filter(|member| !member.cleared.contains(&id));
            slow.filter(|member| member.poll <= now).for_each(|member| {
                member.pending.insert(id);
            });
        }
        for member in records.members.values_mut().filter(|member| member.poll <= now) {
            member.poll = now + CLEARED_POLL;
        }
        if gone.is_empty() {
            return;
        }
        let node = self.node.clone();
        let quiet = node.quiesce();
        let dropped = node.put_snapshots(&[], &gone, Vec::new());
        drop(quiet);
        match dropped {
            Ok(_) => gone.iter().for_each(|id| {
                self.snapshots.records.dropping.remove(id);
            }),
            Err(why) => log::error!("records of removed snapshots: {why}; tried again"),
        }
    }

    /// Tells members what they may lack. Not while a snapshot is being made.
    fn send_records(&mut self) {
        let durable = self.node.engine().durable();
        if self.snapshots.is_busy() || durable < self.snapshots.records.position {
            return;
        }
        let now = self.now;
        let table = self.table.placement.version;
        for node in self.snapshots.records.members.keys().copied().collect::<Vec<NodeId>>() {
            let order = SnapshotOrder { table, number: self.number() };
            let Records { seen, members, dropping, .. } = &mut self.snapshots.records;
            let Some(member) = members.get_mut(&node) else { continue };
            if member.sent.is_some() && member.sent_at + RESEND > now {
                continue;
            }
            // What was lost is said anew, as it is by now.
            member.pending.extend(member.sent.take().into_iter().flat_map(|sent| sent.ids));
            let ids: Vec<SnapshotId> =
                member.pending.iter().take(MESSAGE_RECORDS).copied().collect();
            if ids.is_empty() {
                continue;
            }
            let (mut records, mut dropped) = (Vec::new(), Vec::new());
            for id in &ids {
                member.pending.remove(id);
                match seen.binary_search_by_key(id, |known| known.info.id) {
                    Ok(index) if !dropping.contains(id) => records.push(seen[index].info.clone()),
                    _ => dropped.push(*id),
                }
            }
            let sent = SentRecords { order, ids, dropped: dropped.clone() };
            (member.sent, member.sent_at) = (Some(sent), now);
            self.say(node, SnapshotMessage::Keep { order, records, dropped });
        }
    }

    pub(super) fn kept(&mut self, from: NodeId, order: SnapshotOrder, cleared: Vec<SnapshotId>) {
        let records = &mut self.snapshots.records;
        let Some(member) = records.members.get_mut(&from) else { return };
        let Some(sent) = member.sent.take_if(|sent| sent.order == order) else { return };
        member.cleared.extend(cleared);
        // Records may have begun to be deleted since it was told to keep them.
        member.dropped.extend(sent.dropped);
        self.next_cut();
    }
}
