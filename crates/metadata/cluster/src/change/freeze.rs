//! The source: rows that leave are kept from everybody, and what is left of them is sent.

use kestrel_engine::BatchKind;
use kestrel_meta::owners::MapView;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, Table};

use super::{Step, hands_over, loses, records};
use crate::message::changes::{Attempt, ChangeMessage};
use crate::{ClusterNode, Deferred, Message};

impl ClusterNode {
    /// The coordinator says that all are ready.
    pub(super) fn freeze(&mut self, attempt: Attempt) {
        let (coordinator, table, last) =
            (self.coordinator(), self.table.clone(), self.node.last_commit());
        let next = self.changing.part.as_ref().map(|part| part.next.clone());
        let leads_no_more = next.is_some_and(|next| self.hands_snapshots_over(&next));
        let Some(part) = self.part_in(attempt) else { return };
        match std::mem::replace(&mut part.step, Step::Frozen(0)) {
            Step::Copying(copying) => part.step = Step::Freezing(copying),
            Step::Frozen(position) => {
                part.step = Step::Frozen(position);
                let frozen = Message::Change(ChangeMessage::Frozen(attempt));
                return self.when_durable(position, Deferred::Send(coordinator, frozen));
            }
            before @ (Step::Cleaning | Step::Clean | Step::Freezing(_)) => {
                part.step = before;
                return;
            }
        }
        let next = part.next.clone();
        if !loses(table.me, &table.placement, &next)
            && !hands_over(table.me, &table.placement, &next)
            && !leads_no_more
        {
            // It may have been frozen in an earlier attempt, at another table: that it is not any
            // more must not be lost after this.
            part.step = Step::Frozen(last);
            let frozen = Message::Change(ChangeMessage::Frozen(attempt));
            return self.when_durable(last, Deferred::Send(coordinator, frozen));
        }
        self.set_table(MapView { leaving: Some(next), ..MapView::clone(&self.table) });
        // After that: no lock of such a file is given from now on.
        let files = self.locked_files();
        if files > 0 {
            self.end_part();
            return self.decline(attempt, self.has_locks(files));
        }
        self.drive_freezing();
    }

    /// Why rows cannot leave.
    pub(super) fn has_locks(&self, files: usize) -> FsError {
        let text = format!(
            "metadata: node {} keeps locks of {files} files in slots that are to move; tried again",
            self.me
        );
        FsError::because(libc::EBUSY, text)
    }

    /// How many files that leave have locks, or calls that wait for them.
    fn locked_files(&self) -> usize {
        let table = &self.table;
        let leaves = |ino: InodeId| table.home_of(ino) == table.me && table.is_leaving_home(ino);
        self.lock_guard.as_ref().map_or(0, |guard| guard(&leaves))
    }

    /// Once nothing that leaves is lent and all has been sent: says so, on record.
    pub(super) fn drive_freezing(&mut self) {
        let table = self.table.clone();
        let Some(next) = table.leaving.as_deref() else { return };
        let Some(part) = &self.changing.part else { return };
        if !matches!(part.step, Step::Freezing(_)) {
            return;
        }
        let attempt = part.attempt;
        if self.lends_what_leaves(&table) || table.departs() && self.is_busy_with_others() {
            return;
        }
        if self.hands_snapshots_over(next) && self.lacks_records(next).is_some() {
            return;
        }
        // Its shares get an heir, which does not know the members that were told what they come to.
        if table.departs() && self.revoke_all() {
            return;
        }
        self.drive_copying();
        let Some(part) = &mut self.changing.part else { return };
        if !matches!(&part.step, Step::Freezing(copying) if copying.is_over()) {
            return;
        }
        if table.departs()
            && let Some(why) = self.why_it_stays().or_else(|| self.why_it_is_not_done())
        {
            self.end_part();
            return self.decline(attempt, why);
        }
        match self.commit_beside(BatchKind::Freeing, vec![records::frozen_row(attempt, next)]) {
            Ok(position) => {
                if let Some(part) = &mut self.changing.part {
                    (part.step, part.recorded) = (Step::Frozen(position), true);
                }
                let frozen = Message::Change(ChangeMessage::Frozen(attempt));
                self.when_durable(position, Deferred::Send(self.coordinator(), frozen));
            }
            Err(why) => self.decline(attempt, why),
        }
    }

    /// Whether a transaction still has rows that leave, or a directory's entries: a listing must
    /// not miss what comes elsewhere meanwhile.
    fn lends_what_leaves(&self, table: &MapView) -> bool {
        self.cluster().locks.touches(
            |key: &Key| table.is_leaving(key.table, key.id, &key.suffix),
            |kind, id| kind == Table::Entry || table.is_leaving_home(id),
        )
    }
}
