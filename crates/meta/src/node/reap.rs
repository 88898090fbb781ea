//! Deleting objects that nothing refers to any more.
//!
//! In this order (`data.md` §5): a batch releases the last reference and writes a `reap` row, due after the grace period;
//! [`Node::due_objects`] adds up the shares with every role held and condemns the object if they come to nought, so nothing can
//! refer to it again; the caller deletes it from the block store; [`Node::forget_object`] deletes its rows. A crash in between
//! leaves the rows, and everything is done again.

use std::ops::ControlFlow;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsResult;
use kestrel_types::ids::ObjectId;
use kestrel_types::key::{Key, Table};
use kestrel_types::stat::ObjStat;

use super::Node;
use crate::engine::{BatchKind, Mutation};
use crate::pipeline::engine_error;
use crate::rows::{number_of, share_suffix};

/// Most objects looked at in one call: roles are held meanwhile.
pub const DUE_MAX: usize = 1024;

impl Node {
    /// Up to `limit` objects whose grace period is over and that nothing refers to. From now on until
    /// [`Node::forget_object`] a commit that would refer to one of them fails with `EIO`. Objects for which `in_use` holds
    /// (somebody may still come to refer to bytes just stored there) stay due; it is asked with every role held. While clients
    /// claim what they had open before a restart nobody knows that: none.
    pub fn due_objects(
        &self,
        now: Nanos,
        limit: usize,
        in_use: &dyn Fn(ObjectId) -> bool,
    ) -> FsResult<Vec<ObjectId>> {
        if self.core.reclaiming.lasts() {
            return Ok(Vec::new());
        }
        let now_seconds = (now.max(0) / SECOND).cast_unsigned();
        let mut due: Vec<(u64, ObjectId)> = Vec::new();
        let visited = self.engine.scan_table(Table::Reap, None, &mut |key, _| {
            if key.id > now_seconds || due.len() == limit.min(DUE_MAX) {
                return ControlFlow::Break(());
            }
            due.push((key.id, number_of(key.suffix)));
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let _all = self.hold_all();
        let (mut free, mut settled) = (Vec::new(), Vec::new());
        for (seconds, object) in due {
            if in_use(object) {
                continue;
            }
            if self.references(object)? == Some(0) {
                if !free.contains(&object) {
                    self.core.condemned.insert(object);
                    free.push(object);
                }
            } else {
                let key = Key::new(Table::Reap, seconds, &object.to_be_bytes());
                settled.push(Mutation { key, value: None });
            }
        }
        if !settled.is_empty() {
            self.engine.commit(BatchKind::Freeing, settled).map_err(engine_error)?;
        }
        Ok(free)
    }

    /// Deletes the rows of an object that [`Node::due_objects`] gave and that has been deleted. (Its `reap` rows go at the next
    /// look: they lead to no share.)
    pub fn forget_object(&self, object: ObjectId) -> FsResult<()> {
        let _all = self.hold_all();
        if self.references(object)? == Some(0) {
            let rows = (0..self.core.shares).map(|share| Mutation {
                key: Key::new(Table::ObjStat, object, &share_suffix(share)),
                value: None,
            });
            self.engine.commit(BatchKind::Freeing, rows.collect()).map_err(engine_error)?;
        }
        self.core.condemned.remove(object);
        Ok(())
    }

    /// Sum of an object's shares; `None` if it has none or one is damaged: then it is left alone.
    fn references(&self, object: ObjectId) -> FsResult<Option<i64>> {
        let mut sum = None;
        let visited =
            self.engine.scan(Table::ObjStat, object, None, &mut |_, row, _| match ObjStat::decode(row) {
                Ok(stat) => {
                    sum = Some(sum.unwrap_or(0) + stat.referenced);
                    ControlFlow::Continue(())
                }
                Err(_) => {
                    sum = None;
                    ControlFlow::Break(())
                }
            });
        visited.map_err(engine_error)?;
        Ok(sum)
    }
}
