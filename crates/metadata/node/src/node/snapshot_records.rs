//! Records of snapshots of several nodes: each node has them all, and `kestrel_cluster` sees to it
//! that they agree.

use kestrel_engine::{BatchKind, Mutation};
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{ObjectId, Position};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};

use super::Node;
use crate::history;
use crate::stop::engine_error;

impl Node {
    /// The volume's time.
    pub fn wall_time(&self) -> Nanos {
        self.clock.now()
    }

    /// From now on rows are kept for this snapshot. With every worker's state held. `more` is
    /// committed with the record. The position to wait for before anybody relies on that.
    ///
    /// # Errors
    /// The engine's: nothing has changed.
    pub fn begin_snapshot(&self, info: &SnapshotInfo, more: Vec<Mutation>) -> FsResult<Position> {
        // Later changes have higher timestamps, after a crash too.
        self.stamps.observe(info.id);
        self.raise_ceiling()?;
        self.put_snapshots(std::slice::from_ref(info), &[], more)
    }

    /// Writes records of snapshots, as they are to be, and deletes others; `more` is committed with
    /// them. With every worker's state held. The position to wait for.
    ///
    /// # Errors
    /// The engine's: nothing has changed.
    pub fn put_snapshots(
        &self,
        records: &[SnapshotInfo],
        dropped: &[SnapshotId],
        more: Vec<Mutation>,
    ) -> FsResult<Position> {
        let known = &self.core.snapshots;
        let (list, mut rows) = (known.list(), more);
        let (gone, left): (Vec<_>, Vec<_>) =
            list.iter().partition(|known| dropped.contains(&known.info.id));
        rows.extend(gone.iter().map(|known| Mutation { key: known.info.key(), value: None }));
        for info in records {
            rows.push(Mutation { key: info.key(), value: Some(info.encode()) });
        }
        if !gone.is_empty() || !records.is_empty() {
            rows.extend(self.shares_row(!left.is_empty() || !records.is_empty())?);
        }
        let kind = if records.is_empty() { BatchKind::Freeing } else { BatchKind::Growing };
        let position = self.engine.commit(kind, rows).map_err(engine_error)?;
        self.committed_at(position);
        records.iter().for_each(|info| known.put(info.clone(), position));
        if !gone.is_empty() {
            known.forget(dropped, position);
            self.snapshot_nodes.forget(dropped);
        }
        Ok(position)
    }

    /// Commits rows that get another owner, or have got one, and are no changes of the volume
    /// ([`history::commit_moved`]).
    ///
    /// # Errors
    /// The engine's: nothing has happened.
    pub fn commit_moved(&self, kind: BatchKind, rows: Vec<Mutation>) -> FsResult<Position> {
        let due = |object: ObjectId| self.due_later(object);
        let position = history::commit_moved(&*self.below, &self.core.snapshots, kind, rows, &due);
        let position = position.map_err(engine_error)?;
        self.committed_at(position);
        Ok(position)
    }
}
