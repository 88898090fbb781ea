//! What a node that is one of several knows of the others: which node owns which row, and which of
//! its own rows are lent.
//!
//! **Every row has one owner**, a pure function of its key and the placement map:
//!
//! | table | owner |
//! | --- | --- |
//! | `entry` | by placement of the name |
//! | `dirstat`, `objstat` | the node of the share, or its heir if it has left: shares are numbered `node << 6 \| worker` |
//! | `subdir` | home slot of the child |
//! | `dirid`, `link`, `chunk`, `xattr`, `moved`, `sweep` | home slot of the id, which the id carries |
//! | `history` | the owner of the row that it is about |
//! | `quota` | shares: as those of `dirstat`; a file's home: home slot of the file; else its node |
//! | share 63 of a node in `objstat`: references of its history | that node, for ever |
//! | `clone` | home slot of the directory, or of the file at the snapshot |
//! | `reap` | the node that wrote it |
//! | `system` | its node, but for the record [`DIR_RENAMES`], which only exists as something to lock: the coordinator |
//! | `txn` | its node |
//!
//! An inode number carries the slot of the name it was made for, so creating anything concerns one
//! node.
//!
//! Idle members ([`PlacementMap::idle`]) own none of that but their own `system` and `txn` rows,
//! and lead no request: so nobody has to ask them for figures, names or opens, and they need no
//! lease, nor to be told which directories change. They take part in changes of the table, and
//! grant leases.
//!
//! The table changes (`kestrel_cluster`) with every worker's state of the node held, so a batch
//! takes it once and sees the same one from beginning to end. A volume that one process opens alone
//! has no such record, and pays nothing for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kestrel_types::clone::CloneRow;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::feed::FeedRow;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{KeyRef, Table, number_of};
use kestrel_types::placement::{NodeId, PlacementMap, WORKERS_MAX, is_history_share, maker_of_id};
use kestrel_types::quota::QuotaRow;
use kestrel_types::request::Op;
use kestrel_types::snapshot::decode_history_key;
use kestrel_types::stat::DirStat;
use parking_lot::RwLock;

use crate::lease::{FOREVER, Lease, LeaseView};
use crate::locks::LockTable;
use crate::sums::{KnownSums, LeasedShares};

/// Most nodes of a cluster: their numbers are below, because shares and inode numbers carry them.
pub const NODES_MAX: u32 = 1024;

/// Shares that each node of a cluster may have of a directory or an object, and so the most workers
/// it runs: as many as [`crate::node::NodeConfig`] takes by itself. The same for all nodes,
/// whatever their machines, because each adds up the shares of all.
pub const MEMBER_SHARES: usize = 16;

const _: () = assert!(WORKERS_MAX * NODES_MAX as usize == 1 << 16, "a share's number has 16 bits");

/// Name of the record in table `system` that each move of a directory to another parent locks, so
/// that two such moves never form a cycle. It is the coordinator's (`docs/design/metadata.md`,
/// section 5), and moves with that role.
pub const DIR_RENAMES: &[u8] = b"dir renames";

/// See the module's header.
pub struct Owners {
    /// This node.
    pub me: NodeId,
    /// Own rows that are lent.
    pub locks: LockTable,
    /// Until when what the namespace replica says is true.
    pub lease: Lease,
    /// What other nodes have said of their shares of directories.
    pub sums: KnownSums,
    /// Directories with shares that other nodes were told.
    pub leased: LeasedShares,
    table: RwLock<Arc<MapView>>,
    /// Version of the table, for callers that need no more of it.
    version: AtomicU64,
    /// The node is not one of the cluster, not yet or not any more: it serves nobody.
    outside: AtomicBool,
    /// Nothing changes: a snapshot of all nodes is being made, or quotas change.
    stopped: AtomicBool,
    /// Nothing changes: the node serves clients and has not been told of the volume's quotas.
    without_quotas: AtomicBool,
    /// Others can claim the node's store while it runs: it answers nothing without a lease.
    shared: bool,
}

impl Owners {
    /// A node of a cluster.
    ///
    /// # Errors
    /// `EINVAL` if it is not in the table and has not left either, or a node has a number that is
    /// too high.
    pub fn new(me: NodeId, placement: PlacementMap) -> FsResult<Self> {
        Ok(Self::with(MapView::new(me, placement)?))
    }

    /// As [`Owners::new`], in the middle of what a table may be in the middle of.
    pub fn with(table: MapView) -> Self {
        let (me, version) = (table.me, AtomicU64::new(table.placement.version));
        Self {
            me,
            locks: LockTable::default(),
            lease: Lease::default(),
            sums: KnownSums::default(),
            leased: LeasedShares::default(),
            table: RwLock::new(Arc::new(table)),
            version,
            outside: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            without_quotas: AtomicBool::new(false),
            shared: false,
        }
    }

    /// What the node over the rows of a snapshot has of the cluster: the same owners, and nothing
    /// that needs a lease or a lock, since those rows do not change. Rows that are on their way to
    /// another node stay readable until it owns them.
    pub fn of_snapshot(table: &MapView) -> Self {
        let owners = Self::with(table.of_snapshot());
        owners.lease.set(FOREVER);
        owners
    }

    /// What other nodes' shares of a directory come to, if that is known and counts now. The caller
    /// holds a worker's state, and has read the node's own rows of the directory: all of it was
    /// true together when this looks at the time.
    #[inline]
    pub fn sum_of_others(&self, dir: InodeId) -> Option<DirStat> {
        self.sums.get(dir).filter(|_| self.sums.is_held(self.lease.now()))
    }

    /// That of a node with a store that others can claim, if they can.
    pub fn on_shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// Whether others can claim the node's store while it runs.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether the node may say anything at this moment that others rely on: another process may
    /// have its store otherwise.
    #[inline]
    pub fn may_answer(&self) -> bool {
        !self.needs_lease() || self.lease.is_held()
    }

    /// Whether what the replica says counts at this moment.
    #[inline]
    pub fn holds_lease(&self) -> bool {
        self.lease.is_held()
    }

    /// The lease as a batch that begins now sees it.
    pub(crate) fn lease_view(&self) -> LeaseView<'_> {
        LeaseView::of(Some(&self.lease), self.needs_lease())
    }

    /// Nothing is answered without a lease; a node that is outside answers only clients that ask
    /// what became of earlier calls.
    #[inline]
    fn needs_lease(&self) -> bool {
        self.shared && !self.is_outside()
    }

    /// The present placement map. A thread that holds a worker's state sees the same table until
    /// it lets the state go.
    #[inline]
    pub fn table(&self) -> Arc<MapView> {
        self.table.read().clone()
    }

    /// Version of the present table.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether it serves nobody, because it is not one of the cluster yet, or not any more.
    #[inline]
    pub fn is_outside(&self) -> bool {
        self.outside.load(Ordering::Acquire)
    }

    /// It serves from now on, or does not.
    pub fn set_outside(&self, outside: bool) {
        self.outside.store(outside, Ordering::Release);
    }

    /// Whether requests that change something are handed back for now.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.lacks_quotas()
    }

    /// Whether the node has not been told of the volume's quotas.
    #[inline]
    pub fn lacks_quotas(&self) -> bool {
        self.without_quotas.load(Ordering::Acquire)
    }

    /// It has, or has not. With every worker's state held.
    pub fn set_lacks_quotas(&self, lacks: bool) {
        self.without_quotas.store(lacks, Ordering::Release);
    }

    /// From now on they are, or are not. With every worker's state held.
    pub fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Release);
    }

    /// From now on this is the placement map. With every worker's state held.
    pub fn set_table(&self, table: Arc<MapView>) {
        self.version.store(table.placement.version, Ordering::Release);
        *self.table.write() = table;
    }
}

/// The placement map, as a node knows it at one time.
#[derive(Debug, Clone)]
pub struct MapView {
    /// The node.
    pub me: NodeId,
    /// The placement map.
    pub placement: PlacementMap,
    /// The next table, while those of the node's rows that it gives to others are kept from
    /// everybody.
    pub leaving: Option<Arc<PlacementMap>>,
    /// The node may have rows that it does not own.
    pub strangers: bool,
    /// Files with numbers that the node made of lower counters may be open elsewhere, though they
    /// are where they were made; so may all that others made.
    pub only_here: u64,
}

impl MapView {
    /// A table in which nothing is under way.
    ///
    /// # Errors
    /// As [`Owners::new`].
    pub fn new(me: NodeId, placement: PlacementMap) -> FsResult<Self> {
        if placement.map.member(me).is_none() && placement.heir_of(me).is_none() {
            return Err(FsError::new(
                libc::EINVAL,
                "metadata: this node is not in the placement table",
            ));
        }
        let former = placement.former.iter().map(|(node, _)| *node);
        if placement
            .map
            .members()
            .iter()
            .map(|member| member.id)
            .chain(former)
            .any(|node| node >= NODES_MAX)
        {
            return Err(FsError::new(libc::EINVAL, "metadata: numbers of nodes are below 1024"));
        }
        Ok(Self { me, placement, leaving: None, strangers: false, only_here: 0 })
    }

    /// The table by which the rows of a snapshot are read. Rows of others may always be among this
    /// node's: while they come, nothing else says so.
    pub fn of_snapshot(&self) -> Self {
        Self { leaving: None, strangers: true, ..self.clone() }
    }

    /// All nodes, this one included unless it has left, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.placement.map.members().iter().map(|member| member.id)
    }

    /// Those of them that serve clients.
    pub fn serving(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.placement.serving().map(|member| member.id)
    }

    /// Whether this node serves no clients.
    pub fn is_idle(&self) -> bool {
        self.placement.is_idle(self.me)
    }

    /// Whether there is no other node.
    pub fn is_alone(&self) -> bool {
        self.placement.map.members().len() == 1 && !self.has_left()
    }

    /// Whether this node has left.
    pub fn has_left(&self) -> bool {
        self.placement.heir_of(self.me).is_some()
    }

    /// Whether this node is not in the table that is to follow.
    pub fn departs(&self) -> bool {
        self.leaving.as_ref().is_some_and(|next| next.map.member(self.me).is_none())
    }

    /// The node with the shares of directories and objects at this place, from 0
    /// to [`MapView::share_holders`]: members that are not idle, and then those that have left and
    /// have left their shares to heirs.
    #[inline]
    pub fn share_holder(&self, at: usize) -> NodeId {
        let PlacementMap { map, idle, former, .. } = &self.placement;
        let members = map.members();
        let mut place = at;
        for node in idle {
            let skipped = members.binary_search_by_key(node, |member| member.id);
            place += usize::from(skipped.is_ok_and(|skipped| skipped <= place));
        }
        members.get(place).map_or_else(|| former[place - members.len()].0, |member| member.id)
    }

    /// How many nodes have, or had, shares of their own.
    #[inline]
    pub fn share_holders(&self) -> usize {
        let PlacementMap { map, idle, former, .. } = &self.placement;
        map.members().len() - idle.len() + former.len()
    }

    /// The other nodes that have shares of directories, be it as heirs.
    pub fn other_share_owners(&self) -> Vec<NodeId> {
        let owner = |at: usize| has_shares_of(&self.placement, self.share_holder(at));
        let mut owners: Vec<NodeId> = (0..self.share_holders()).map(owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|node| *node != self.me);
        owners
    }

    /// The node that owns what is found by this id.
    #[inline]
    pub fn home_of(&self, id: u64) -> NodeId {
        self.placement.home_of(id).id
    }

    /// The node that owns the entry of a name.
    #[inline]
    pub fn owner_of_entry(&self, parent: InodeId, name: &[u8]) -> NodeId {
        self.placement.owner_of(parent, name).id
    }

    /// The node that owns a row.
    #[inline]
    pub fn owner(&self, table: Table, id: u64, suffix: &[u8]) -> NodeId {
        owner(&self.placement, self.me, table, id, suffix)
    }

    /// Whether a row is this node's.
    #[inline]
    pub fn owns(&self, table: Table, id: u64, suffix: &[u8]) -> bool {
        self.owner(table, id, suffix) == self.me
    }

    /// Whether a row of this node's is kept from everybody because another node gets it.
    #[inline]
    pub fn is_leaving(&self, table: Table, id: u64, suffix: &[u8]) -> bool {
        match &self.leaving {
            None => false,
            Some(next) => owner(next, self.me, table, id, suffix) != self.me,
        }
    }

    /// As [`MapView::is_leaving`], of everything that is found by an id.
    #[inline]
    pub fn is_leaving_home(&self, id: u64) -> bool {
        self.leaving.as_ref().is_some_and(|next| next.home_of(id).id != self.me)
    }

    /// The node that leads an operation ([`PlacementMap::leader`]); this one if any could, unless
    /// it has left or is idle. One that is leaving gives no object numbers any more: no node would
    /// know which clients use them.
    pub fn leader(&self, op: &Op) -> NodeId {
        if let Some(member) = self.placement.leader(op) {
            return member.id;
        }
        if let Some(heir) = self.placement.heir_of(self.me) {
            return heir;
        }
        let passes_on = match op {
            Op::AllocObjects(_) => self.placement.is_leaving(self.me) || self.is_idle(),
            _ => self.is_idle(),
        };
        if passes_on {
            return self
                .serving()
                .find(|node| !self.placement.is_leaving(*node))
                .unwrap_or(self.me);
        }
        self.me
    }

    /// Whether the number of a file says that nobody can have opened it elsewhere while it was
    /// where it was made.
    pub fn made_here(&self, ino: InodeId) -> bool {
        let (counter, maker) = maker_of_id(ino);
        // Until it was given something this node has only what it always had, whichever node made
        // the numbers.
        self.only_here == 0 || maker == self.me && counter >= self.only_here
    }
}

/// The node with the number that a share bears; 0 if it is none.
#[inline]
pub fn share_holder_of(suffix: &[u8]) -> NodeId {
    suffix.try_into().map_or(0, |share| holder_of_share(u16::from_be_bytes(share)))
}

/// The node with the number that is in that of a share.
#[inline]
pub fn holder_of_share(share: u16) -> NodeId {
    NodeId::from(share) / WORKERS_MAX as NodeId
}

/// The node that has the shares which bear a node's number.
#[inline]
pub fn has_shares_of(placement: &PlacementMap, node: NodeId) -> NodeId {
    placement.heir_of(node).unwrap_or(node)
}

/// The node that owns a row by this table, as the node `me` sees it.
#[inline]
pub fn owner(placement: &PlacementMap, me: NodeId, table: Table, id: u64, suffix: &[u8]) -> NodeId {
    match table {
        Table::Entry => placement.owner_of(id, suffix).id,
        // It stays where the rows of table `history` are that it counts.
        Table::ObjStat if is_history_share(suffix) => share_holder_of(suffix),
        Table::DirStat | Table::ObjStat if suffix.len() == 2 => {
            has_shares_of(placement, share_holder_of(suffix))
        }
        Table::DirStat | Table::ObjStat => me,
        Table::Subdir => placement.home_of(number_of(suffix)).id,
        Table::DirId | Table::Link | Table::Chunk | Table::Xattr | Table::Moved | Table::Sweep => {
            placement.home_of(id).id
        }
        Table::System if suffix == DIR_RENAMES => placement.coordinator,
        Table::History => match decode_history_key(KeyRef::new(table, id, suffix)) {
            Some((of, _)) => owner(placement, me, of.table, of.id, of.suffix),
            None => me,
        },
        // An event stays where it was made; when a feed began, its directory's home knows.
        Table::Feed => match FeedRow::node_of(suffix) {
            0 => placement.home_of(id).id,
            node => has_shares_of(placement, node),
        },
        Table::Quota => match QuotaRow::of(id, suffix) {
            Some(QuotaRow::Share(_, share)) => has_shares_of(placement, holder_of_share(share)),
            Some(QuotaRow::Home(ino)) => placement.home_of(ino).id,
            _ => me,
        },
        Table::Clone => match CloneRow::of(suffix) {
            Some(CloneRow::Pending(ino) | CloneRow::Link(ino)) => placement.home_of(ino).id,
            None => me,
        },
        Table::System | Table::Txn | Table::Reap => me,
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::placement::{Exceptions, Member, SlotMap};

    use super::*;

    #[test]
    fn idle_members_have_no_shares() {
        let member = |id: NodeId| Member { id, address: format!("n{id}:1") };
        let map = SlotMap::new([2, 5, 8].map(member).into(), |_| 5).unwrap();
        let mut placement =
            PlacementMap::new(map, Exceptions::default()).with_coordinator(5).unwrap();
        placement = placement.without(2, 8).unwrap();
        for id in [1, 6, 7, 9] {
            placement = placement.with_member(member(id), true).unwrap();
        }
        let table = MapView::new(1, placement).unwrap();
        let holders: Vec<NodeId> =
            (0..table.share_holders()).map(|at| table.share_holder(at)).collect();
        assert_eq!(holders, [5, 8, 2]);
    }
}
