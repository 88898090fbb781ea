//! The snapshots of a directory, and those of the directories above it in which it was.
//!
//! The coordinator has the records. Where the directory is now the namespace replica says, under a
//! lease. Whether it was below a snapshot's directory then is found by a walk up through the rows
//! of then, one step for all snapshots at a time.

use std::collections::BTreeMap;

use kestrel_meta::worker::NotAloneReason;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::SnapshotId;

use crate::ClusterNode;
use crate::message::Message;
use crate::message::snapshot_reads::{ReadId, SnapshotReadMessage};
use crate::work::Stage;
use crate::work::snapshot_read::{IsListed, SnapshotListing};

impl ClusterNode {
    /// Lists the snapshots of a directory.
    pub(crate) fn list_snapshots(&mut self, ticket: u64) {
        if self.is_misdirected(ticket) {
            return;
        }
        let (now, table) = (self.now, self.table.placement.version);
        let Some(work) = self.works.get_mut(&ticket) else { return };
        let Op::SnapshotList { dir: Some(dir), ancestors } = work.request.op else { return };
        let path = match self.node.known_path(dir, ancestors) {
            Ok(path) => path,
            Err(NotAloneReason::Dentry(want)) if !work.no_dirs.contains(&want) => {
                work.stage = Stage::Fetching;
                return self.fetch(want, ticket);
            }
            Err(NotAloneReason::Dentry(want)) if want == kestrel_meta::stop::Want::Id(dir) => {
                let why = FsError::new(libc::ENOENT, "the directory has been removed");
                return self.answer(ticket, Err(why.into()));
            }
            // A directory above it was moved or removed meanwhile.
            Err(NotAloneReason::Dentry(_)) => return self.rest(ticket, true),
            Err(_) => return self.await_lease(ticket),
        };
        let found = self.node.snapshots_of(&path).into_iter().map(|info| {
            let listed = if info.dir == dir { IsListed::Yes } else { IsListed::If(dir, 0) };
            (info, listed)
        });
        work.stage = Stage::ListingSnapshots(SnapshotListing {
            found: found.collect(),
            table,
            round: work.rounds,
            asked: BTreeMap::new(),
            sent: now,
        });
        self.go_up(ticket);
    }

    /// Takes the next steps up, until members are asked for some.
    fn go_up(&mut self, ticket: u64) {
        loop {
            let Some(work) = self.works.get_mut(&ticket) else { return };
            let Stage::ListingSnapshots(listing) = &mut work.stage else { return };
            if listing.table != self.table.placement.version {
                return self.list_snapshots(ticket);
            }
            let steps = listing.steps();
            if steps.is_empty() {
                let found = std::mem::take(&mut listing.found).into_iter();
                let found = found.filter(|(_, listed)| *listed == IsListed::Yes);
                let answer = Answer::Snapshots(found.map(|(info, _)| info).collect());
                // What a crash would take back nobody may hear of.
                let wait = self.node.core().snapshots.changed_at();
                return match self.cluster().may_answer() {
                    true => self.answer_after(ticket, Ok(answer), wait),
                    false => self.await_lease(ticket),
                };
            }
            let mut parts: BTreeMap<NodeId, Vec<(InodeId, Vec<SnapshotId>)>> = BTreeMap::new();
            for (dir, snapshots) in steps {
                parts.entry(self.table.home_of(dir)).or_default().push((dir, snapshots));
            }
            for (dir, snapshots) in parts.remove(&self.me).unwrap_or_default() {
                match self.node.parents_at(dir, &snapshots) {
                    Ok(above) => listing.take(&[(dir, snapshots)], &[above]),
                    Err(why) if self.has_lost_store(&why) => return,
                    Err(why) => return self.answer(ticket, Err(why.into())),
                }
            }
            if parts.is_empty() {
                continue;
            }
            (listing.asked, listing.sent) = (parts, self.now);
            listing.round += 1;
            work.rounds = listing.round;
            return self.send_steps(ticket);
        }
    }

    fn send_steps(&mut self, ticket: u64) {
        let Some(Stage::ListingSnapshots(listing)) =
            self.works.get(&ticket).map(|work| &work.stage)
        else {
            return;
        };
        let id = ReadId { number: ticket, round: listing.round };
        let table = listing.table;
        for (node, dirs) in listing.asked.clone() {
            let question = SnapshotReadMessage::Parents { id, table, dirs };
            self.send(node, Message::SnapshotRead(question));
        }
    }

    /// Nothing was heard for a while.
    pub(crate) fn list_again(&mut self, ticket: u64) {
        let now = self.now;
        let Some(Stage::ListingSnapshots(listing)) =
            self.works.get_mut(&ticket).map(|work| &mut work.stage)
        else {
            return;
        };
        if listing.table != self.table.placement.version {
            return self.list_snapshots(ticket);
        }
        listing.sent = now;
        self.send_steps(ticket);
    }

    pub(super) fn got_parents(&mut self, from: NodeId, id: ReadId, dirs: &[Vec<InodeId>]) {
        if !self.is_asked(from, id) {
            return;
        }
        let Some(Stage::ListingSnapshots(listing)) =
            self.works.get_mut(&id.number).map(|work| &mut work.stage)
        else {
            return;
        };
        let Some(asked) = listing.asked.remove(&from) else { return };
        listing.take(&asked, dirs);
        if listing.asked.is_empty() {
            self.go_up(id.number);
        }
    }
}
