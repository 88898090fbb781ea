//! What a member tells others of its rows at a snapshot.

use kestrel_meta::node::Node;
use kestrel_meta::rows::Missing;
use kestrel_meta::stop::engine_error;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::placement::NodeId;
use kestrel_types::snapshot::SnapshotId;

use crate::ClusterNode;
use crate::message::Message;
use crate::message::snapshot_reads::{ReadId, SnapshotReadMessage};
use crate::txn::participant::{LockedRead, read_rows};

/// Rows of a node that reads a snapshot.
pub(super) fn rows_of(node: &Node, wanted: &Missing) -> FsResult<LockedRead> {
    let table = node.cluster().map(|cluster| cluster.table());
    let table = table.ok_or(FsError::new(libc::EIO, crate::ONE_OF_SEVERAL))?;
    let read = read_rows(&**node.engine(), &table, node.core().scan_rows, wanted);
    read.map_err(engine_error)
}

impl ClusterNode {
    /// Tells another member rows as they were. They have not changed since, so they are durable.
    pub(super) fn tell_rows(
        &mut self,
        from: NodeId,
        id: ReadId,
        table: u64,
        snapshot: SnapshotId,
        wanted: &Missing,
    ) {
        if !self.agrees(from, table) {
            return self.tell_reader(from, SnapshotReadMessage::Busy(id));
        }
        let read = self.node.node_at(snapshot).and_then(|node| rows_of(&node, wanted));
        match read {
            // Another one may have begun to serve these rows while they were read.
            Ok(_) if !self.cluster().may_answer() => {}
            Ok(LockedRead { rows, spans, .. }) => {
                self.tell_reader(from, SnapshotReadMessage::GotRows { id, rows, spans });
            }
            Err(why) => self.tell_failure(from, id, &why),
        }
    }

    /// Tells another member which directories were above others.
    pub(super) fn tell_parents(
        &mut self,
        from: NodeId,
        id: ReadId,
        table: u64,
        dirs: &[(InodeId, Vec<SnapshotId>)],
    ) {
        if !self.agrees(from, table) {
            return self.tell_reader(from, SnapshotReadMessage::Busy(id));
        }
        let above = |(dir, snapshots): &(InodeId, Vec<_>)| self.node.parents_at(*dir, snapshots);
        let above: FsResult<Vec<Vec<InodeId>>> = dirs.iter().map(above).collect();
        match above {
            Ok(_) if !self.cluster().may_answer() => {}
            Ok(dirs) => self.tell_reader(from, SnapshotReadMessage::GotParents { id, dirs }),
            Err(why) => self.tell_failure(from, id, &why),
        }
    }

    fn tell_failure(&mut self, from: NodeId, id: ReadId, why: &FsError) {
        match why.errno {
            libc::ESTALE => self.tell_reader(from, SnapshotReadMessage::Gone(id)),
            // The asking request gives up at its deadline.
            _ => log::error!("rows of a snapshot that another node asks for: {why}"),
        }
    }

    fn tell_reader(&mut self, to: NodeId, message: SnapshotReadMessage) {
        self.send(to, Message::SnapshotRead(message));
    }
}
