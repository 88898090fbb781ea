//! Walks over the rows that may get other owners, some at a time; deleting those that are not this
//! member's.
//!
//! The same walk looks at what was inherited of objects. The node that releases the last reference
//! to one notes that it is to be looked at; notes of a node that has left are not copied, as two
//! may have one key. Each of its shares that is not above nought may be the one that such a note
//! was about, so a new one is written. One too many costs a look.

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_meta::node::Node;
use kestrel_meta::owners::{MapView, share_holder_of};
use kestrel_meta::stop::engine_error;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::stat::ObjStat;

use super::Step;
use super::records::{self, ForeignRows};
use crate::ClusterNode;
use crate::message::changes::ChangeMessage;

/// Tables with rows that may get other owners.
const TABLES: [Table; 14] = [
    Table::Entry,
    Table::DirId,
    Table::Subdir,
    Table::Link,
    Table::Chunk,
    Table::Xattr,
    Table::Moved,
    Table::Sweep,
    Table::DirStat,
    Table::ObjStat,
    Table::History,
    Table::Feed,
    Table::Quota,
    Table::Clone,
];

/// Most rows that one step of a walk looks at: the member serves nobody else meanwhile.
pub(super) fn visited_max(node: &Node) -> usize {
    (node.core().scan_rows / 2).max(1)
}

/// Most rows that one step deletes.
fn deleted_max(node: &Node) -> usize {
    (node.core().scan_rows / 8).max(1)
}

/// Pause after rows could not be deleted.
const PAUSE: Nanos = 5 * SECOND;

/// A place in a walk: all before it was visited.
#[derive(Default)]
pub(super) struct Cursor {
    table: usize,
    last: Option<Key>,
}

impl Cursor {
    /// Visits up to `most` rows more, or until `visit` says no. Whether the walk has ended.
    pub fn walk(
        &mut self,
        engine: &dyn Engine,
        most: usize,
        mut visit: impl FnMut(KeyRef<'_>, &[u8]) -> bool,
    ) -> FsResult<bool> {
        let mut left = most;
        while let Some(table) = TABLES.get(self.table) {
            let (before, mut last, mut broke) = (self.last.take(), None, false);
            let visited =
                engine.scan_table(*table, before.as_ref().map(Key::borrow), &mut |key, row| {
                    if before.as_ref().is_some_and(|before| before.borrow() == key) {
                        return ControlFlow::Continue(());
                    }
                    left -= 1;
                    broke = !visit(key, row) || left == 0;
                    if broke {
                        last = Some(key.to_owned());
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                });
            if let Err(why) = visited {
                self.last = before;
                return Err(engine_error(why));
            }
            if broke {
                self.last = last;
                return Ok(false);
            }
            self.table += 1;
        }
        Ok(true)
    }
}

/// The deletion of strangers that are of no use.
#[derive(Default)]
pub(super) struct RangeDelete {
    cursor: Cursor,
    due: Nanos,
}

impl ClusterNode {
    /// Deletes some strangers, if they are to be deleted.
    pub(super) fn tick_purge(&mut self) {
        let now = self.now;
        let Some(mut purge) = self.changing.purge.take_if(|purge| purge.due <= now) else { return };
        match self.purge_some(&mut purge.cursor) {
            Ok(true) => self.purged(),
            Ok(false) => self.changing.purge = Some(purge),
            Err(why) => {
                log::error!("rows that are other nodes' could not be deleted: {why}; tried again");
                self.changing.purge =
                    Some(RangeDelete { due: now + PAUSE, ..RangeDelete::default() });
            }
        }
    }

    /// Whether that was all.
    fn purge_some(&mut self, cursor: &mut Cursor) -> FsResult<bool> {
        let (table, mut rows, mut count) = (&self.table, Vec::new(), 0);
        let (visited, most) = (visited_max(&self.node), deleted_max(&self.node));
        let all = cursor.walk(&**self.node.engine(), visited, |key, value| {
            if !table.owns(key.table, key.id, key.suffix) {
                rows.push(Mutation { key: key.to_owned(), value: None });
                count += 1;
            } else if key.table == Table::ObjStat
                && table.placement.heir_of(share_holder_of(key.suffix)).is_some()
                && ObjStat::decode(value).is_ok_and(|stat| stat.referenced <= 0)
            {
                rows.push(self.node.due_later(key.id));
            }
            rows.len() < most
        })?;
        if all {
            rows.push(records::strangers_row(ForeignRows::None));
        }
        if !rows.is_empty() {
            self.node.commit_moved(BatchKind::Freeing, rows)?;
        }
        self.changing.rows_purged += count;
        Ok(all)
    }

    /// There are no strangers any more.
    fn purged(&mut self) {
        self.changing.strangers = ForeignRows::None;
        self.set_table(MapView { strangers: false, ..MapView::clone(&self.table) });
        let Some(part) = &mut self.changing.part else { return };
        if matches!(part.step, Step::Cleaning) {
            part.step = Step::Clean;
            let clean = ChangeMessage::Clean(part.attempt);
            self.tell(self.coordinator(), clean);
        }
    }
}
