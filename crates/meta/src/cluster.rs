//! What a node that is one of several knows of the others: who owns which row, and which of its own rows are lent.
//!
//! **Every row has one owner**, a pure function of its key and the placement table:
//!
//! | table | owner |
//! | --- | --- |
//! | `entry` | by placement of the name |
//! | `dirstat`, `objstat` | the node whose share it is: shares are numbered `node << 6 \| worker` |
//! | `subdir` | home slot of the child |
//! | `dirid`, `link`, `chunk`, `xattr`, `moved`, `sweep` | home slot of the id, which the id carries |
//! | `reap` | the node that wrote it |
//! | `system` | its node, but for the record [`DIR_RENAMES`], which only exists as something to lock: where the root's entry is |
//! | `txn` | its node |
//!
//! An inode number carries the slot of the name it was made for, so creating anything concerns one node. A volume that one process
//! opens alone has no such record, and pays nothing for it.

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::key::Table;
use kestrel_types::placement::{NodeId, Placement};
use kestrel_types::request::Op;

use crate::locks::LockTable;
use crate::node::WORKERS_MAX;
use crate::rows::number_of;

/// Most nodes of a cluster: their numbers are below, because shares and inode numbers carry them.
pub const NODES_MAX: u32 = 1024;

/// Shares that each node of a cluster may have of a directory or an object, and so the most workers it runs: as many as
/// [`crate::node::NodeConfig`] takes by itself. The same for all nodes, whatever their machines, because each adds up the shares of all.
pub const MEMBER_SHARES: usize = 16;

const _: () = assert!(WORKERS_MAX * NODES_MAX as usize == 1 << 16, "a share's number has 16 bits");

/// Name of the record in table `system` that whoever moves a directory to another parent locks, so that two such moves never
/// form a cycle. It stands in the place of the coordinator (`metadata.md` §5).
pub const DIR_RENAMES: &[u8] = b"dir renames";

/// See the module's header.
pub struct Cluster {
    /// This node.
    pub me: NodeId,
    /// Who owns what.
    pub placement: Placement,
    /// Own rows that are lent.
    pub locks: LockTable,
}

impl Cluster {
    /// A node of a cluster.
    ///
    /// # Errors
    /// `EINVAL` if it is not in the table, or a node has a number that is too high.
    pub fn new(me: NodeId, placement: Placement) -> FsResult<Self> {
        if placement.map.member(me).is_none() {
            return Err(FsError::new(libc::EINVAL, "metadata: this node is not in the placement table"));
        }
        if placement.map.members().iter().any(|member| member.id >= NODES_MAX) {
            return Err(FsError::new(libc::EINVAL, "metadata: numbers of nodes are below 1024"));
        }
        Ok(Self { me, placement, locks: LockTable::default() })
    }

    /// All nodes, this one included, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.placement.map.members().iter().map(|member| member.id)
    }

    /// Whether there is no other node.
    pub fn is_alone(&self) -> bool {
        self.placement.map.members().len() == 1
    }

    /// The node that owns what is found by this id.
    pub fn home_of(&self, id: u64) -> NodeId {
        self.placement.home_of(id).id
    }

    /// The node that owns the entry of a name.
    pub fn owner_of_entry(&self, parent: InodeId, name: &[u8]) -> NodeId {
        self.placement.owner_of(parent, name).id
    }

    /// The node that owns a row.
    pub fn owner(&self, table: Table, id: u64, suffix: &[u8]) -> NodeId {
        match table {
            Table::Entry => self.owner_of_entry(id, suffix),
            Table::DirStat | Table::ObjStat => match suffix.try_into() {
                Ok(share) => u32::from(u16::from_be_bytes(share)) / WORKERS_MAX as u32,
                Err(_) => self.me,
            },
            Table::Subdir => self.home_of(number_of(suffix)),
            Table::DirId | Table::Link | Table::Chunk | Table::Xattr | Table::Moved | Table::Sweep => {
                self.home_of(id)
            }
            Table::System if suffix == DIR_RENAMES => self.owner_of_entry(0, b""),
            Table::System | Table::Txn | Table::Reap => self.me,
        }
    }

    /// The node that leads an operation ([`Placement::leader`]); this one if any could.
    pub fn leader(&self, op: &Op) -> NodeId {
        self.placement.leader(op).map_or(self.me, |member| member.id)
    }
}
