//! The destination: rows that come are strangers until their table is adopted.

use kestrel_engine::{BatchKind, Mutation};
use kestrel_meta::owners::{MapView, owner};
use kestrel_types::error::FsError;
use kestrel_types::placement::NodeId;

use super::records::{self, ForeignRows};
use super::{Step, Taken, forgotten};
use crate::message::changes::{Attempt, ChangeMessage};
use crate::{ClusterNode, Deferred, Message};

impl ClusterNode {
    /// Takes rows from their owner, which gives them to this member.
    pub(super) fn take_rows(
        &mut self,
        from: NodeId,
        attempt: Attempt,
        (stream, number): (u64, u64),
        rows: Vec<Mutation>,
    ) {
        let (table, me) = (self.table.clone(), self.me);
        let Some(part) = self.part_in(attempt) else { return };
        if matches!(part.step, Step::Cleaning) {
            return;
        }
        let got = ChangeMessage::GotRows { attempt, stream, number };
        match part.taken.get(&from) {
            // A message that was late could bring back what a later one, which has been forgotten,
            // replaced.
            _ if part.restarted => return self.decline(attempt, forgotten()),
            Some(taken) if taken.stream != stream => return self.decline(attempt, forgotten()),
            Some(taken) if number <= taken.number => {
                let position = taken.position;
                return self.when_durable(position, Deferred::Send(from, Message::Change(got)));
            }
            Some(taken) if number > taken.number + 1 => return,
            None if number > 1 => return self.decline(attempt, forgotten()),
            _ => {}
        }
        let ours = |row: &Mutation| {
            let (kind, id, suffix) = (row.key.table, row.key.id, &*row.key.suffix);
            table.owner(kind, id, suffix) == from
                && from != me
                && owner(&part.next, me, kind, id, suffix) == me
        };
        if !rows.iter().all(ours) {
            let text =
                format!("metadata: node {from} sent rows to node {me} that are not to go there");
            return self.decline(attempt, FsError::because(libc::EIO, text));
        }
        let count = rows.len() as u64;
        let mut batch = rows;
        if self.changing.strangers != ForeignRows::Coming(attempt) {
            if !self.table.strangers {
                self.set_table(MapView { strangers: true, ..MapView::clone(&self.table) });
            }
            batch.push(records::strangers_row(ForeignRows::Coming(attempt)));
        }
        // They may bear timestamps above all on record here, as in `prepare`.
        let kept = self
            .node
            .raise_ceiling()
            .and_then(|()| self.node.commit_moved(BatchKind::Growing, batch));
        match kept {
            Ok(position) => {
                self.changing.strangers = ForeignRows::Coming(attempt);
                self.changing.rows_taken += count;
                if let Some(part) = &mut self.changing.part {
                    part.taken.insert(from, Taken { stream, number, position });
                }
                self.when_durable(position, Deferred::Send(from, Message::Change(got)));
            }
            Err(why) => self.decline(attempt, why),
        }
    }
}
