//! Deleting objects that nothing refers to any more.
//!
//! In this order (`docs/design/data.md`, section 5): a batch releases the last reference and writes
//! a `reap` row, due after the grace period; [`Node::due_objects`] adds up the shares with every
//! role held and condemns the object if they come to nought, so nothing can refer to it again; the
//! caller deletes it from the block store; [`Node::forget_object`] deletes its rows. A crash in
//! between leaves the rows, and everything is done again. Of several nodes each has a part of the
//! sum: see [`crate::member`], which does this with what the second half of this file offers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{ObjectId, Position};
use kestrel_types::key::{Key, Table, number_of};
use kestrel_types::placement::NodeId;
use kestrel_types::stat::ObjStat;

use super::super::Node;
use crate::owners::share_holder_of;
use crate::rows::share_suffix;
use crate::stop::engine_error;
use kestrel_engine::{BatchKind, Mutation};

/// Most objects looked at in one call: roles are held meanwhile.
pub const DUE_MAX: usize = 1024;

/// A row of table `reap` that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// When it was due, seconds.
    pub seconds: u64,
    /// The object.
    pub object: ObjectId,
    /// It has been deleted from the block store; several nodes have to forget it.
    pub deleted: bool,
}

impl Due {
    /// Its key.
    pub fn key(&self) -> Key {
        Key::new(Table::Reap, self.seconds, &self.object.to_be_bytes())
    }
}

/// A node's part of the sum of an object's references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferencePart {
    /// It has no share.
    None,
    /// So many bytes; of one of several nodes maybe below nought.
    Bytes(i64),
    /// A damaged share: the object is left alone.
    Damaged,
}

impl Node {
    /// Up to `limit` objects that nothing refers to, after their grace period. From now on until
    /// [`Node::forget_object`] a commit that would refer to one of them fails with `EIO`. Objects
    /// for which `in_use` holds (somebody may still come to refer to bytes just stored there) stay
    /// due; it is asked with every worker's state held. While clients claim what they had open
    /// before a restart nobody knows that: none.
    ///
    /// # Errors
    /// The engine's. `EINVAL` for one of several nodes: its member asks them all.
    pub fn due_objects(
        &self,
        now: Nanos,
        limit: usize,
        in_use: &dyn Fn(ObjectId) -> bool,
    ) -> FsResult<Vec<ObjectId>> {
        if self.shares_volume() {
            return Err(FsError::new(
                libc::EINVAL,
                "metadata: one of several nodes cannot tell what is not used",
            ));
        }
        if self.core.reclaiming.lasts() {
            return Ok(Vec::new());
        }
        let due = self.due_rows(now, limit, false)?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let _all = self.hold_all();
        let (mut free, mut settled) = (Vec::new(), Vec::new());
        for row in due {
            if in_use(row.object) {
                continue;
            }
            if self.references(row.object)? == ReferencePart::Bytes(0) {
                if !free.contains(&row.object) {
                    self.core.condemned.insert(row.object);
                    free.push(row.object);
                }
            } else {
                settled.push(Mutation { key: row.key(), value: None });
            }
        }
        if !settled.is_empty() {
            self.engine.commit(BatchKind::Freeing, settled).map_err(engine_error)?;
        }
        Ok(free)
    }

    /// Deletes the rows of an object that [`Node::due_objects`] gave and that has been deleted.
    /// (Its `reap` rows go at the next look: they lead to no share.)
    pub fn forget_object(&self, object: ObjectId) -> FsResult<()> {
        let _all = self.hold_all();
        if self.references(object)? == ReferencePart::Bytes(0) {
            self.engine
                .commit(BatchKind::Freeing, self.share_rows(object)?)
                .map_err(engine_error)?;
        }
        self.core.condemned.remove(object);
        Ok(())
    }

    /// Schedules objects of which no row is known for deletion, due at once. Whether anything
    /// refers to them is asked then, of several nodes of all.
    ///
    /// # Errors
    /// The engine's.
    pub fn schedule(&self, objects: &[ObjectId], now: Nanos) -> FsResult<()> {
        let seconds = (now.max(0) / SECOND).cast_unsigned();
        let _all = self.quiesce();
        let mut rows = Vec::new();
        for object in objects {
            let due = Due { seconds, object: *object, deleted: false };
            rows.push(Mutation { key: due.key(), value: Some(Box::default()) });
            if self.references(*object)? == ReferencePart::None {
                // An object without a share is one that was deleted.
                let key = Key::new(Table::ObjStat, *object, &share_suffix(self.core.own_share(0)));
                rows.push(Mutation { key, value: Some(ObjStat::default().encode()) });
            }
        }
        if !rows.is_empty() {
            let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
            self.committed_at(position);
        }
        Ok(())
    }

    /// Rows that are due, the oldest first, at most `DUE_MAX`; perhaps only those of objects that
    /// are deleted.
    pub fn due_rows(&self, now: Nanos, limit: usize, deleted_only: bool) -> FsResult<Vec<Due>> {
        let now_seconds = (now.max(0) / SECOND).cast_unsigned();
        let mut due: Vec<Due> = Vec::new();
        let visited = self.engine.scan_table(Table::Reap, None, &mut |key, row| {
            if key.id > now_seconds || due.len() == limit.min(DUE_MAX) {
                return ControlFlow::Break(());
            }
            let deleted = !row.is_empty();
            if deleted || !deleted_only {
                due.push(Due { seconds: key.id, object: number_of(key.suffix), deleted });
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        Ok(due)
    }

    /// Begins to watch objects on behalf of another node, or this one: this node's parts of the
    /// sums, and the position to wait for before he may hear of them.
    pub fn watch_objects(
        &self,
        reaper: u32,
        round: u64,
        objects: &[ObjectId],
    ) -> FsResult<(Vec<ReferencePart>, Position)> {
        let _all = self.quiesce();
        self.core.condemned.watch(reaper, round, objects);
        let parts =
            objects.iter().map(|object| self.references(*object)).collect::<FsResult<_>>()?;
        Ok((parts, self.last_commit()))
    }

    /// Of objects that it watches those that nothing has come to refer to; they are condemned.
    pub fn confirm_objects(
        &self,
        reaper: u32,
        round: u64,
        objects: Vec<ObjectId>,
    ) -> Vec<ObjectId> {
        let _all = self.quiesce();
        self.core.condemned.confirm(reaper, round, objects)
    }

    /// A round has ended; these objects have been deleted from the block store. The position to
    /// wait for.
    pub fn forget_objects(
        &self,
        reaper: u32,
        round: u64,
        objects: &[ObjectId],
    ) -> FsResult<Position> {
        let _all = self.quiesce();
        let mut rows = Vec::new();
        for object in objects {
            rows.extend(self.share_rows(*object)?);
        }
        if !rows.is_empty() {
            let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
            self.committed_at(position);
        }
        self.core.condemned.end(reaper, round);
        Ok(self.last_commit())
    }

    /// Visits the node's shares of an object, those that it has inherited too.
    fn each_share(
        &self,
        object: ObjectId,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> FsResult<()> {
        let table = self.strangers_table();
        let strange = |share: &[u8]| {
            table.as_ref().is_some_and(|table| !table.owns(Table::ObjStat, object, share))
        };
        let visited = self.engine.scan(Table::ObjStat, object, None, &mut |share, row, _| {
            if strange(share) { ControlFlow::Continue(()) } else { visit(share, row) }
        });
        visited.map(drop).map_err(engine_error)
    }

    /// Deletions of the node's shares of an object.
    fn share_rows(&self, object: ObjectId) -> FsResult<Vec<Mutation>> {
        let mut rows = Vec::new();
        self.each_share(object, |share, _| {
            rows.push(Mutation { key: Key::new(Table::ObjStat, object, share), value: None });
            ControlFlow::Continue(())
        })?;
        Ok(rows)
    }

    /// Sum of an object's shares, as far as this node has them.
    pub fn references(&self, object: ObjectId) -> FsResult<ReferencePart> {
        let mut sum = ReferencePart::None;
        self.each_share(object, |_, row| match ObjStat::decode(row) {
            Ok(stat) => {
                let before = if let ReferencePart::Bytes(before) = sum { before } else { 0 };
                sum = ReferencePart::Bytes(before + stat.referenced);
                ControlFlow::Continue(())
            }
            Err(_) => {
                sum = ReferencePart::Damaged;
                ControlFlow::Break(())
            }
        })?;
        Ok(sum)
    }

    /// Whether more of an object was released than added by this node, or by one of those that it
    /// has inherited from: each counts for itself, since what a node releases later it adds up with
    /// its own shares only.
    pub fn owes(&self, object: ObjectId) -> FsResult<bool> {
        let mut sums: BTreeMap<NodeId, i64> = BTreeMap::new();
        self.each_share(object, |share, row| {
            let bytes = ObjStat::decode(row).map_or(0, |stat| stat.referenced);
            *sums.entry(share_holder_of(share)).or_default() += bytes;
            ControlFlow::Continue(())
        })?;
        Ok(sums.into_values().any(|sum| sum < 0))
    }

    /// The row by which somebody looks at an object after the grace period.
    pub fn due_later(&self, object: ObjectId) -> Mutation {
        let seconds = ((self.clock.now() + self.core.grace).max(0) / SECOND + 1).cast_unsigned();
        let due = Due { seconds, object, deleted: false };
        Mutation { key: due.key(), value: Some(Box::default()) }
    }

    /// Whether rows say of objects that they are deleted and not all members may have forgotten
    /// them.
    pub fn has_deleted_rows(&self) -> FsResult<bool> {
        let mut found = false;
        let visited = self.engine.scan_table(Table::Reap, None, &mut |_, row| {
            found |= !row.is_empty();
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        visited.map_err(engine_error)?;
        Ok(found)
    }
}
