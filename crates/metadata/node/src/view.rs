//! What an operation sees and may do: rows, directories, session state; the end of its reading and
//! its changes.
//!
//! | file | what it has |
//! | --- | --- |
//! | `view/dirs.rs` | directories: walks to a path, sums of shares |
//! | `view/inodes.rs` | inodes: which record a name or a number stands for |
//! | `view/policies.rs` | effective policies: what the directories of a path say |
//! | `view/feeds.rs` | events of change feeds for what an operation changed |
//! | `view/quotas.rs` | charging quotas for what an operation changed |
//! | `view/trash.rs` | where what is removed is kept |
//! | `view/refs.rs` | opens, references to objects, chunks, extended attributes |
//!
//! An operation is a pure function of a [`View`]: it does no I/O, reads no clock and takes no lock
//! that outlives a look-up. It has two halves, divided by [`View::begin`]:
//!
//! 1. **Read and check.** Anything it needs that is not here yet ends the run with [`Stop::Need`];
//!    it runs again from its start when the rows are there. Every error is found in this half.
//! 2. **Change.** Nothing here can fail for a reason other than a damaged row, and then the journal
//!    undoes all of it.
//!
//! In a *dry* run `begin` stops the operation: that is how a batch finds out what to fetch, and why
//! the first half must change nothing.
//!
//! **Which worker may write what.** The entry of a name and its shares belong to the worker that
//! the placement hash of `(parent, name)` gives; a row of table `link` to that of the inode's
//! number. Records of directories, names of hard-linked files and of open files change only in
//! *exclusive* batches, which hold every worker's state. So a thread that holds any worker's state
//! may read all of them.

mod dirs;
mod feeds;
mod inodes;
mod policies;
mod quotas;
mod refs;
mod trash;

pub use inodes::{At, InodeUse, LocatedInode, Planned, Spot, guard_of};
pub use refs::Chunks;
pub use trash::KeptPlace;

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_engine::Mutation;
use kestrel_types::clock::Nanos;
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ObjectId, Position};
use kestrel_types::inode::Inode;
use kestrel_types::key::Table;
use kestrel_types::name::NAME_MAX;
use kestrel_types::placement::{NodeId, WORKERS_MAX, hash_entry, hash_inode, place_of};
use kestrel_types::stat::DirStat;

use crate::clones::CloneNeeds;
use crate::effects::Effects;
use crate::feeds::Feeds;
use crate::history::known::KnownSnapshots;
use crate::ids::Block;
use crate::lease::LeaseView;
use crate::owners::{MapView, Owners, has_shares_of};
use crate::path_cache::PathCache;
use crate::quotas::Quotas;
use crate::replica::Replica;
use crate::rows::{BatchRows, CellId, Value, share_suffix};
use crate::session::{
    MovedTable, OpenState, OpenTable, Orphans, PendingChunkDeletes, PendingDeletes, Reclaiming,
};
use crate::stop::{Route, Run, Stop, Want, damaged};

/// Size that a directory shows.
pub const DIR_SIZE: u64 = 4096;

/// Most names of one file, as on ext4. Subdirectories of a directory are not limited.
pub const LINK_MAX: u32 = 65_000;

/// What all workers of a node share.
pub struct Core {
    /// Dentries.
    pub replica: Replica,
    /// Open files.
    pub opens: OpenTable,
    /// Renamed files.
    pub moved: MovedTable,
    /// Objects being deleted.
    pub condemned: PendingDeletes,
    /// Files with rows being deleted.
    pub sweeps: PendingChunkDeletes,
    /// Clients across a network use this node: what they have open outlives it.
    pub serves: bool,
    /// The time in which they claim it.
    pub reclaiming: Reclaiming,
    /// Of one of several nodes: files without names that have it as their home.
    pub orphans: Orphans,
    /// Workers that run.
    pub workers: usize,
    /// Shares that rows may have: the most workers this volume ever had.
    pub shares: usize,
    /// Most chunks of a file that one batch takes in; what needs more is done in several.
    pub scan_rows: usize,
    /// Time between the last reference to an object and its deletion.
    pub grace: Nanos,
    /// References to objects below this are not counted: they are not this node's to delete.
    pub objects_from: ObjectId,
    /// The volume's snapshots.
    pub snapshots: Arc<KnownSnapshots>,
    /// What requests need of clones.
    pub clones: CloneNeeds,
    /// Quotas.
    pub quotas: Quotas,
    /// Change feeds.
    pub feeds: Feeds,
    /// What is served is a snapshot: nothing changes, and opens are not counted.
    pub is_snapshot: bool,
    /// The node is one of several that share the volume.
    pub cluster: Option<Box<Owners>>,
}

impl Core {
    /// The worker that owns an entry, if this node does.
    #[inline]
    pub fn worker_of_name(&self, parent: InodeId, name: &[u8]) -> usize {
        place_of(hash_entry(parent, name), self.workers)
    }

    /// The worker of what is found by number, if this node owns it.
    #[inline]
    pub fn worker_of_inode(&self, ino: InodeId) -> usize {
        place_of(hash_inode(ino), self.workers)
    }

    /// The worker of a home, on whichever node.
    #[inline]
    pub fn worker_of(home: usize) -> usize {
        home % WORKERS_MAX
    }

    /// Whether a home is one of this node.
    #[inline]
    pub fn is_own(&self, home: usize) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| home / WORKERS_MAX == cluster.me as usize)
    }

    /// The share that an operation books references of objects to: the worker's of `home`, and of
    /// several nodes this one's.
    #[inline]
    pub fn own_share(&self, home: usize) -> usize {
        match &self.cluster {
            None => home,
            Some(cluster) => home_at(cluster.me, Self::worker_of(home)),
        }
    }
}

/// What a batch makes of rows of table `link`: which files have no name from now on, and which have
/// one or are gone.
pub struct LinkNews(Vec<(InodeId, bool)>);

impl Core {
    /// What changes of rows say about files without names. Nothing for a node that has the volume
    /// alone: it knows which clients have them open.
    pub fn link_news(&self, mutations: &[Mutation]) -> LinkNews {
        if self.cluster.is_none() {
            return LinkNews(Vec::new());
        }
        let links = mutations.iter().filter(|mutation| mutation.key.table == Table::Link);
        let news = |mutation: &Mutation| {
            let row = mutation.value.as_deref();
            let inode = row.and_then(|row| Inode::decode(&mut Reader::new(row)).ok());
            (mutation.key.id, inode.is_some_and(|inode| inode.nlink == 0))
        };
        LinkNews(links.map(news).collect())
    }

    /// These changes were committed, and nobody has run since.
    pub fn note_links(&self, LinkNews(news): LinkNews) {
        for (ino, orphans) in news {
            if orphans {
                self.orphans.insert(ino);
                continue;
            }
            self.orphans.remove(ino);
            let open = self.opens.get(ino);
            if open.orphan {
                // It got a name, with every worker's state held, by which others may open it
                // elsewhere.
                self.opens.set(ino, OpenState { orphan: false, ..open });
            }
        }
    }
}

/// The home of a node's worker.
pub(crate) fn home_at(node: NodeId, worker: usize) -> usize {
    node as usize * WORKERS_MAX + worker
}

/// See the module's header.
pub struct View<'a> {
    /// Rows of the batch.
    pub rows: &'a mut BatchRows,
    /// What all workers share.
    pub core: &'a Core,
    /// The placement map, of several nodes.
    pub table: Option<&'a MapView>,
    /// The lease of one of several nodes, as its batch sees it.
    pub lease_view: &'a LeaseView<'a>,
    /// What happens besides.
    pub effects: &'a mut Effects,
    /// Inode numbers to give out.
    pub ids: &'a mut Block,
    /// Paths walked lately.
    pub walks: &'a mut PathCache,
    /// The worker with the role that is held, or `core.workers` if all are.
    pub worker: usize,
    /// The time.
    pub now: Nanos,
    /// Commit timestamp of this batch.
    pub stamp: u64,
    /// Stop at [`View::begin`].
    pub dry: bool,
    /// Where to look for the inode that the request names.
    pub route: &'a Route,
    /// What the dry run found.
    pub planned: &'a mut Option<Planned>,
    /// Newest position that must be durable before the answer may leave in mode `commit`.
    pub wait: Position,
    /// It saw what an earlier operation of this batch changed.
    pub depends: bool,
    /// It runs as a transaction of several nodes, on rows that were lent, and these are no
    /// directories: their names are looked at as rows, under a lock, instead of in the replica.
    pub no_dirs: Option<&'a BTreeSet<Want>>,
}

impl View<'_> {
    /// Home of an entry: the worker that owns it. Of several nodes also which node's:
    /// `node << 6 | worker`. Of another node it may be a worker that does not run there; its share
    /// counts all the same.
    #[inline]
    pub fn home_of_name(&self, parent: InodeId, name: &[u8]) -> usize {
        self.home_of_hashed(parent, name, hash_entry(parent, name))
    }

    /// As [`View::home_of_name`], with the name's [`hash_entry`].
    #[inline]
    pub fn home_of_hashed(&self, parent: InodeId, name: &[u8], hash: u64) -> usize {
        let worker = place_of(hash, self.core.workers);
        match self.table {
            None => worker,
            Some(table) => home_at(table.owner_of_entry(parent, name), worker),
        }
    }

    /// Home of what is found by number.
    #[inline]
    pub fn home_of_inode(&self, ino: InodeId) -> usize {
        let worker = self.core.worker_of_inode(ino);
        match self.table {
            None => worker,
            Some(table) => home_at(table.home_of(ino), worker),
        }
    }

    /// How many shares a directory may have in all.
    #[inline]
    pub fn shares_in_all(&self) -> usize {
        match self.table {
            None => self.core.shares,
            Some(table) => self.core.shares * table.share_holders(),
        }
    }

    /// The home that a share belongs to; `number` counts from 0 to [`View::shares_in_all`].
    #[inline]
    pub fn share_home(&self, number: usize) -> usize {
        let shares = self.core.shares;
        match self.table {
            None => number,
            Some(table) => home_at(table.share_holder(number / shares), number % shares),
        }
    }

    /// Whether that share is this node's, be it as an heir; counted as above.
    #[inline]
    pub fn is_own_share(&self, number: usize) -> bool {
        self.table.is_none_or(|table| {
            let holder = table.share_holder(number / self.core.shares);
            has_shares_of(&table.placement, holder) == table.me
        })
    }

    /// Whether every worker's state is held.
    #[inline]
    pub fn exclusive(&self) -> bool {
        self.worker == self.core.workers
    }

    /// Stops until every worker's state is held.
    pub fn need_exclusive(&self) -> Run<()> {
        if self.exclusive() { Ok(()) } else { Err(Stop::Exclusive) }
    }

    /// Stops if rows are wanted that are not here.
    #[inline]
    pub fn ready(&self) -> Run<()> {
        if self.rows.lacks() { Err(Stop::Need) } else { Ok(()) }
    }

    /// Ends the reading half. Exactly once in every operation that changes anything.
    #[inline]
    pub fn begin(&self) -> Run<()> {
        if self.dry { Err(Stop::Need) } else { self.ready() }
    }

    #[inline]
    fn note(&mut self, cell: CellId) {
        let (dirty, changed_at) = self.rows.provenance(cell);
        self.depends |= dirty;
        self.wait = self.wait.max(changed_at);
    }

    /// Stops unless this cell is here.
    #[inline]
    fn fetched(&mut self, cell: CellId) -> Run<()> {
        if self.rows.is_wanted(cell) {
            return Err(self.rows.why_not_here(cell));
        }
        self.note(cell);
        Ok(())
    }

    /// Stops on the way to the worker of `home`; not with every worker's state held.
    #[cold]
    pub fn forward(&self, home: usize, route: Route) -> Stop {
        if self.core.is_own(home) {
            Stop::Forward(Core::worker_of(home), route)
        } else {
            Stop::Away
        }
    }

    /// Whether the worker of `home`, or every worker's state, is held.
    #[inline]
    pub fn holds(&self, home: usize) -> bool {
        self.exclusive() || (Core::worker_of(home) == self.worker && self.core.is_own(home))
    }

    /// What looking for a directory comes to if it stopped for a row: if the row is another node's,
    /// the dentry is asked for and kept in the replica, rather than the row lent.
    #[cold]
    fn or_dentry(&self, stop: Stop, want: impl FnOnce() -> Want) -> Stop {
        match (&stop, self.no_dirs) {
            (Stop::Away, _) => Stop::Dentry(want()),
            (Stop::Need, Some(no_dirs)) => {
                let want = want();
                if no_dirs.contains(&want) { stop } else { Stop::Dentry(want) }
            }
            _ => stop,
        }
    }

    /// The cell of an entry.
    #[inline]
    pub fn entry_cell(&mut self, parent: InodeId, name: &[u8]) -> CellId {
        self.rows.cell(Table::Entry, parent, name)
    }

    /// The cell of an inode in table `link`.
    pub fn link_cell(&mut self, ino: InodeId) -> CellId {
        self.rows.cell(Table::Link, ino, b"")
    }

    /// The cell of a worker's share of a directory.
    #[inline]
    pub fn share_cell(&mut self, dir: InodeId, home: usize) -> CellId {
        self.rows.cell(Table::DirStat, dir, &share_suffix(home))
    }

    /// An entry.
    #[inline]
    pub fn entry(&mut self, cell: CellId) -> Run<Option<&Entry>> {
        self.fetched(cell)?;
        self.rows.entry(cell).map_err(|why| damaged("entry", &why))
    }

    /// An inode in table `link`.
    pub fn link(&mut self, cell: CellId) -> Run<Option<&Inode>> {
        self.fetched(cell)?;
        self.rows.inode(cell).map_err(|why| damaged("link", &why))
    }

    /// A share of a directory.
    #[inline]
    pub fn share(&mut self, cell: CellId) -> Run<DirStat> {
        self.fetched(cell)?;
        self.rows.dir_stat(cell).map_err(|why| damaged("dirstat", &why))
    }

    /// Extents of a chunk.
    pub fn extents(&mut self, cell: CellId) -> Run<&kestrel_types::extent::ExtentList> {
        self.fetched(cell)?;
        self.rows.extents(cell).map_err(|why| damaged("chunk", &why))
    }

    /// Bytes of a row.
    pub fn bytes(&mut self, cell: CellId) -> Run<Option<&[u8]>> {
        self.fetched(cell)?;
        Ok(self.rows.bytes(cell))
    }

    /// Changes a row.
    #[inline]
    pub fn put(&mut self, cell: CellId, value: Value) {
        debug_assert!(!self.dry, "a change before the end of the reading half");
        self.rows.put(cell, value);
    }
}

/// Version of a row of table `dirid` or `moved`.
const DIR_ID_VERSION: u8 = 1;

/// A row of table `dirid` or `moved`: a place.
pub fn encode_dir_id(parent: InodeId, name: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(9 + name.len());
    out.push(DIR_ID_VERSION);
    out.extend_from_slice(&parent.to_be_bytes());
    out.extend_from_slice(name);
    out.into_boxed_slice()
}

/// Reads what [`encode_dir_id`] wrote. The root's name is empty and its parent 0.
pub fn decode_dir_id(bytes: &[u8]) -> Result<(InodeId, &[u8]), DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != DIR_ID_VERSION {
        return Err(DecodeError("directory place of an unknown format version"));
    }
    let parent = reader.u64()?;
    let name = reader.rest();
    if name.len() > NAME_MAX || name.is_empty() != (parent == 0) {
        return Err(DecodeError("name out of bounds"));
    }
    Ok((parent, name))
}
