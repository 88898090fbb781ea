//! Snapshots at a node: reading them, listing them, and what follows when one is removed.
//!
//! What reads a snapshot is a node of its own over the rows of then ([`SnapshotEngine`]). It has
//! its own replica, which stays true for ever. A few such nodes are kept.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::crash;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::request::{Answer, Creds, Op, Outcome, Reply, Request};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use parking_lot::{Condvar, Mutex};

use super::reply_thread::{Replies, ReplyThread};
use super::{Durability, Node};
use crate::clones::{CloneNeeds, WITHOUT_NAMES};
use crate::feeds::Feeds;
use crate::history::at::{GONE, SnapshotEngine};
use crate::history::known::{Known, KnownSnapshots};
use crate::history::removal::Pass;
use crate::ids::{Allocator, Timestamps, system_key, with_history};
use crate::owners::Owners;
use crate::quotas::Quotas;
use crate::replica::Replica;
use crate::session::{
    MovedTable, OpenTable, Orphans, PendingChunkDeletes, PendingDeletes, Reclaiming,
};
use crate::stop::{Want, engine_error};
use crate::view::{Core, decode_dir_id};
use crate::worker::{HandedBack, NotAloneReason, ReplySink, Worker};

/// Most nodes that read snapshots are kept.
const NODES_MAX: usize = 8;

/// Each has this part of a node's memory for the replica.
const REPLICA_PART: usize = 16;

/// Least memory for the replica of one, bytes.
const REPLICA_BYTES_MIN: usize = 1 << 20;

/// Directories above one that are looked at: a path has no more.
pub(super) const DEPTH_MAX: usize = 2048;

const READ_ONLY: FsError = FsError::new(libc::EROFS, "a snapshot cannot be changed");
pub(super) const NO_SUCH_SNAPSHOT: FsError = FsError::new(libc::ESTALE, GONE);

/// Nodes that read snapshots.
pub(super) struct SnapshotNodes {
    /// Memory for the replica of each, bytes.
    replica_bytes: usize,
    /// Used last ones at the end.
    kept: Mutex<VecDeque<(SnapshotId, Arc<Node>)>>,
}

impl SnapshotNodes {
    /// None yet, at a node with so much memory for its replica.
    pub fn new(replica_bytes: usize) -> Self {
        let replica_bytes = (replica_bytes / REPLICA_PART).max(REPLICA_BYTES_MIN);
        Self { replica_bytes, kept: Mutex::default() }
    }

    fn get(
        &self,
        snapshot: SnapshotId,
        open: impl FnOnce() -> FsResult<Node>,
    ) -> FsResult<Arc<Node>> {
        let mut kept = self.kept.lock();
        let index = kept.iter().position(|(of, _)| *of == snapshot);
        let found = match index.and_then(|index| kept.remove(index)) {
            Some(found) => found,
            None => (snapshot, Arc::new(open()?)),
        };
        let node = found.1.clone();
        kept.push_back(found);
        if kept.len() > NODES_MAX {
            kept.pop_front();
        }
        Ok(node)
    }

    pub fn forget(&self, snapshots: &[SnapshotId]) {
        self.kept.lock().retain(|(of, _)| !snapshots.contains(of));
    }
}

/// Takes the reply to one request, or that it was handed back.
#[derive(Default)]
struct Waiter {
    heard: Mutex<Option<Option<Reply>>>,
    changed: Condvar,
}

impl Waiter {
    fn hear(&self, reply: Option<Reply>) {
        *self.heard.lock() = Some(reply);
        self.changed.notify_one();
    }

    /// Waits for the reply. Only a thread that runs a batch of the same node, or has just run one,
    /// may be in the way.
    fn wait(&self) -> Option<Reply> {
        let mut heard = self.heard.lock();
        loop {
            if let Some(reply) = heard.take() {
                return reply;
            }
            self.changed.wait(&mut heard);
        }
    }
}

impl ReplySink for Waiter {
    fn complete(&self, _: usize, reply: Reply) {
        self.hear(Some(reply));
    }

    fn hand_back(&self, _: usize, _: HandedBack) {
        self.hear(None);
    }
}

/// Whether a node would serve an operation from its own rows only, without noticing that there are
/// others.
pub fn needs_all_nodes(op: &Op) -> bool {
    match op {
        Op::ReadDir { .. }
        | Op::ReadDirPlus { .. }
        | Op::RemovalCheck { .. }
        | Op::Usage
        | Op::TreeUsage(_)
        | Op::Locate { .. } => true,
        Op::At(_, op) => needs_all_nodes(op),
        Op::SnapshotList { dir, .. } => dir.is_some(),
        _ => false,
    }
}

/// What is being done with the history of snapshots that were removed.
#[derive(Default)]
pub(super) struct Removal {
    pass: Pass,
    /// Of one of several nodes: snapshots of which no history is left here. Their records go when
    /// all nodes are so far.
    cleared: BTreeSet<SnapshotId>,
    /// Version of the placement map by which that is so.
    table: u64,
}

/// Whether an operation only reads.
fn reads(op: &Op) -> bool {
    match op {
        Op::Open(_, flags) | Op::OpenAt(_, flags) => !flags.write && !flags.truncate,
        Op::Access(_, mask) => mask & libc::W_OK as u32 == 0,
        Op::AllocObjects(_)
        | Op::Sync
        | Op::At(..)
        | Op::SnapshotList { .. }
        | Op::SnapshotChanges { .. }
        | Op::SnapshotUsage { .. }
        | Op::CloneStep(_)
        | Op::QuotaSet(..)
        | Op::QuotaRemove(_)
        | Op::QuotaList(_)
        | Op::QuotaCheck { .. }
        | Op::FeedRead { .. } => false,
        op => !op.is_numbered(),
    }
}

/// A snapshot does not have the directory.
pub const NOT_THERE: FsError =
    FsError::new(libc::ENOENT, "the directory was not there at the snapshot");

/// What a node over rows that never change is made of.
pub(super) struct FixedRows {
    pub engine: Arc<dyn Engine>,
    /// The engine below the layer that writes history.
    pub below: Arc<dyn Engine>,
    pub clock: Arc<dyn Clock>,
    /// Memory for its replica, bytes.
    pub replica_bytes: usize,
    /// The memory by which those of nodes that read its snapshots are measured.
    pub snapshot_replicas: usize,
    pub workers: usize,
    /// Shares that rows may have.
    pub shares: usize,
    pub batch_max: usize,
    pub scan_rows: usize,
    pub grace: Nanos,
    pub snapshots: Arc<KnownSnapshots>,
    pub quotas: Quotas,
    pub feeds: Feeds,
    pub cluster: Option<Box<Owners>>,
    /// Those of another node, which this one counts on.
    pub counters: Option<Arc<[WorkerCounters]>>,
}

impl Node {
    /// Executes an operation on the volume as it was at a snapshot. The volume's figures are those
    /// of now: they are about its space. `None` if it needs rows of other nodes, or the table has
    /// changed meanwhile.
    pub fn at_snapshot(&self, creds: &Creds, snapshot: SnapshotId, op: &Op) -> Option<Reply> {
        let node = match self.check_read_at(snapshot, op).and_then(|()| self.node_at(snapshot)) {
            Ok(node) => node,
            Err(why) => return Some(Err(why.into())),
        };
        let request = Request { creds: creds.clone(), op: op.clone() };
        let Some(cluster) = &self.core.cluster else {
            return Some(self.at_snapshot_alone(&node, snapshot, request));
        };
        let table = cluster.table();
        if needs_all_nodes(op) && !table.is_alone() {
            return None;
        }
        let reply = match op {
            Op::Usage => Some(self.answer(&request, &mut 0)),
            _ => {
                let waiter = Arc::new(Waiter::default());
                let sink: Arc<dyn ReplySink> = waiter.clone();
                node.submit_numbered(std::iter::once((0, request, None)), &sink);
                waiter.wait()
            }
        };
        // What was read may be another node's by now, and gone from here.
        reply.filter(|_| Arc::ptr_eq(&table, &cluster.table()))
    }

    /// The same at a node that has the volume alone. A directory of a clone that has not all its
    /// names gets them first.
    fn at_snapshot_alone(&self, node: &Self, snapshot: SnapshotId, request: Request) -> Reply {
        match request.op {
            Op::Usage => return self.answer(&request, &mut 0),
            Op::TreeUsage(dir) => {
                // The row of its place alone may be that of a newer clone's directory.
                if node.dentry_of(dir, &mut 0)?.is_none() {
                    return Err(NOT_THERE.into());
                }
                return Ok(Answer::Usage(self.tree_usage(Some(snapshot), dir)?));
            }
            _ => {}
        }
        loop {
            let reply = node.call(request.clone());
            if reply != Err(Outcome::Failed(WITHOUT_NAMES)) {
                return reply;
            }
            for dir in node.core.clones.take_wanted() {
                self.give_all_names(dir)?;
                node.core.replica.remove(dir);
            }
        }
    }

    /// Fails unless an operation only reads, at a snapshot that there is.
    ///
    /// # Errors
    /// `EROFS`, `ESTALE`.
    pub fn check_read_at(&self, snapshot: SnapshotId, op: &Op) -> FsResult<()> {
        if !reads(op) {
            return Err(READ_ONLY);
        }
        match self.core.snapshots.get(snapshot).is_some_and(|known| self.is_readable(&known)) {
            true => Ok(()),
            false => Err(NO_SUCH_SNAPSHOT),
        }
    }

    /// The node that reads a snapshot of this one's rows. Of several nodes it has the present
    /// table, for as long as nobody calls this with a newer one.
    ///
    /// # Errors
    /// `ESTALE` if there is no such snapshot; `EAGAIN` if no thread starts.
    pub fn node_at(&self, snapshot: SnapshotId) -> FsResult<Arc<Self>> {
        if self.core.snapshots.get(snapshot).is_none() {
            return Err(NO_SUCH_SNAPSHOT);
        }
        let node = self.snapshot_nodes.get(snapshot, || self.open_at(snapshot))?;
        if let (Some(cluster), Some(own)) = (&self.core.cluster, &node.core.cluster)
            && own.version() != cluster.version()
        {
            let _all = node.hold_all();
            let table = cluster.table();
            // Another thread may have given it a newer one.
            if own.version() < table.placement.version {
                own.set_table(Arc::new(table.of_snapshot()));
            }
        }
        Ok(node)
    }

    /// Whether a snapshot may be read: once it is durable, before which nobody was told of it.
    pub(super) fn is_readable(&self, known: &Known) -> bool {
        let is_told = !known.info.hidden || known.info.is_compared();
        is_told && known.made_at <= self.engine.durable()
    }

    /// Whether a snapshot is listed: it is not one before all nodes keep rows for it.
    fn is_listed(&self, known: &Known) -> bool {
        self.is_readable(known) && !known.info.hidden && !known.info.cutting
    }

    /// Whether old values of rows are kept for some snapshot.
    pub fn has_snapshots(&self) -> bool {
        self.core.snapshots.newest().is_some()
    }

    /// A node over the rows of a snapshot.
    fn open_at(&self, snapshot: SnapshotId) -> FsResult<Self> {
        let snapshots = self.core.snapshots.clone();
        let engine = SnapshotEngine::new(self.engine.clone(), snapshots.clone(), snapshot);
        Self::over_fixed_rows(FixedRows {
            engine: Arc::new(engine),
            below: self.below.clone(),
            clock: self.clock.clone(),
            replica_bytes: self.snapshot_nodes.replica_bytes,
            snapshot_replicas: 0,
            workers: self.core.workers,
            shares: 1,
            batch_max: self.batch_max,
            scan_rows: self.core.scan_rows,
            grace: self.core.grace,
            snapshots,
            quotas: Quotas::default(),
            feeds: Feeds::new(self.core.workers, false),
            cluster: self
                .core
                .cluster
                .as_ref()
                .map(|cluster| Box::new(Owners::of_snapshot(&cluster.table()))),
            counters: None,
        })
    }

    /// A node over rows that never change.
    pub(super) fn over_fixed_rows(rows: FixedRows) -> FsResult<Self> {
        let FixedRows { workers, snapshots, quotas, feeds, cluster, .. } = rows;
        let core = Core {
            replica: Replica::new(rows.replica_bytes),
            opens: OpenTable::new(),
            moved: MovedTable::default(),
            condemned: PendingDeletes::default(),
            sweeps: PendingChunkDeletes::default(),
            serves: false,
            reclaiming: Reclaiming::default(),
            orphans: Orphans::default(),
            workers,
            shares: rows.shares,
            scan_rows: rows.scan_rows,
            grace: rows.grace,
            objects_from: 0,
            snapshots,
            clones: CloneNeeds::default(),
            quotas,
            feeds,
            is_snapshot: true,
            cluster,
        };
        let reply_thread = ReplyThread::start(Replies::Inline).map_err(|why| {
            FsError::because(libc::EAGAIN, format!("metadata: no thread for replies: {why}"))
        })?;
        let counters = rows
            .counters
            .unwrap_or_else(|| (0..workers + 3).map(|_| WorkerCounters::default()).collect());
        Ok(Self {
            below: rows.below,
            engine: rows.engine,
            clock: rows.clock,
            // Nothing that it reads changes or is lost.
            durability: Durability::Fsync,
            batch_max: rows.batch_max,
            core,
            workers: (0..=workers).map(|_| Worker::default()).collect(),
            counters,
            inodes: Allocator::unused(),
            objects: Allocator::unused(),
            stamps: Timestamps::unused(),
            usage: [0; 3].map(AtomicI64::new),
            closed: AtomicBool::new(false),
            reopening: Mutex::new(()),
            committed: AtomicU64::new(0),
            due: AtomicBool::new(false),
            reply_thread,
            snapshot_nodes: SnapshotNodes::new(rows.snapshot_replicas),
            removal: Mutex::default(),
        })
    }

    /// Executes a listing of snapshots: of one directory those that stay, of the volume all.
    /// `wait` becomes the position that the answer waits for.
    pub(super) fn list_snapshots(
        &self,
        creds: &Creds,
        (dir, ancestors): (Option<InodeId>, bool),
        wait: &mut Position,
    ) -> Reply {
        let list = self.core.snapshots.list();
        *wait = self.core.snapshots.changed_at();
        let shown = list.iter().filter(|known| self.is_listed(known));
        let Some(dir) = dir else {
            if creds.uid != 0 {
                let why = "only the superuser lists all snapshots of a volume";
                return Err(FsError::new(libc::EPERM, why).into());
            }
            return Ok(Answer::Snapshots(shown.map(|known| known.info.clone()).collect()));
        };
        let above = if ancestors { self.dirs_above(dir, wait)? } else { Vec::new() };
        self.place_of(dir, wait)?;
        let mut found: Vec<SnapshotInfo> = Vec::new();
        for known in shown.filter(|known| !known.info.removing) {
            let info = &known.info;
            if info.dir == dir || above.contains(&info.dir) && self.was_below(dir, info)? {
                found.push(info.clone());
            }
        }
        Ok(Answer::Snapshots(found))
    }

    /// Snapshots of these directories that stay, the oldest first.
    pub fn snapshots_of(&self, dirs: &[InodeId]) -> Vec<SnapshotInfo> {
        let list = self.core.snapshots.list();
        let shown = list.iter().filter(|known| self.is_listed(known) && !known.info.removing);
        let of = shown.filter(|known| dirs.contains(&known.info.dir));
        of.map(|known| known.info.clone()).collect()
    }

    /// The directory above one at each of these snapshots, as far as this node's rows say; 0 if it
    /// was not there then, or the snapshot is gone.
    ///
    /// # Errors
    /// The engine's.
    pub fn parents_at(&self, dir: InodeId, snapshots: &[SnapshotId]) -> FsResult<Vec<InodeId>> {
        let parent = |snapshot: &SnapshotId| match self.parent_at(dir, *snapshot) {
            Err(why) if why.errno == libc::ESTALE => Ok(0),
            other => other,
        };
        snapshots.iter().map(parent).collect()
    }

    /// The directories above one, the nearest first, and the one itself before them, as the replica
    /// has them at one moment; with `above` not set only the one itself.
    ///
    /// # Errors
    /// What the replica lacks, or that the node has no lease.
    pub fn known_path(&self, dir: InodeId, above: bool) -> Result<Vec<InodeId>, NotAloneReason> {
        let _quiet = self.hold_quietly();
        if self.core.cluster.as_ref().is_some_and(|cluster| !cluster.holds_lease()) {
            return Err(NotAloneReason::Unleased);
        }
        let (mut path, mut at) = (vec![dir], dir);
        loop {
            let Some((dentry, _)) = self.core.replica.get(at) else {
                return Err(NotAloneReason::Dentry(Want::Id(at)));
            };
            if at == ROOT || !above || path.len() > DEPTH_MAX {
                return Ok(path);
            }
            at = dentry.parent;
            path.push(at);
        }
    }

    /// The directories above one, the nearest first.
    fn dirs_above(&self, dir: InodeId, wait: &mut Position) -> FsResult<Vec<InodeId>> {
        let (mut above, mut at) = (Vec::new(), dir);
        while at != ROOT && above.len() < DEPTH_MAX {
            (at, _) = self.place_of(at, wait)?;
            above.push(at);
        }
        Ok(above)
    }

    /// Whether a directory was below a snapshot's when that was made.
    fn was_below(&self, dir: InodeId, snapshot: &SnapshotInfo) -> FsResult<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            match self.parent_at(at, snapshot.id)? {
                // It was not there then, or is above the one that was asked for.
                0 => return Ok(false),
                above if above == snapshot.dir => return Ok(true),
                above => at = above,
            }
        }
        Ok(false)
    }

    /// The directory above one at a snapshot; 0 if it was not there, and of the root.
    fn parent_at(&self, dir: InodeId, snapshot: SnapshotId) -> FsResult<InodeId> {
        let snapshots = self.core.snapshots.clone();
        let engine = SnapshotEngine::new(self.engine.clone(), snapshots, snapshot);
        let (key, mut parent) = (KeyRef::new(Table::DirId, dir, b""), 0);
        engine
            .get_many(&[key], &mut |_, row| {
                let place = row.value.and_then(|row| decode_dir_id(row).ok());
                parent = place.map_or(0, |(parent, _)| parent);
            })
            .map_err(engine_error)?;
        Ok(parent)
    }

    /// Does a part of what follows the removal of snapshots, if there is anything to do; false if
    /// not. For something that calls it now and then, until it is false. Other requests are served
    /// between two calls.
    ///
    /// # Errors
    /// The engine's. Nothing is lost: the next call tries again.
    pub fn tidy_history(&self) -> FsResult<bool> {
        let mut removal = self.removal.lock();
        let gate = self.core.snapshots.gate.write();
        if !self.may_tidy(&mut removal) {
            return Ok(false);
        }
        let Removal { pass, cleared, .. } = &mut *removal;
        pass.begin(&self.core.snapshots, cleared);
        if pass.going.is_empty() {
            return Ok(false);
        }
        self.snapshot_nodes.forget(&pass.going);
        let due = |object| self.due_later(object);
        let step = pass.step(&*self.engine, &self.core.snapshots, &due).map_err(engine_error);
        drop(gate);
        let (ends, position) = step?;
        self.committed_at(position);
        if ends {
            if self.shares_volume() {
                cleared.extend(&pass.going);
            } else {
                self.forget_snapshots(&pass.going)?;
            }
            *pass = Pass::default();
        }
        Ok(true)
    }

    /// Whether history may be changed. One of several nodes leaves it alone while some of its rows
    /// may be on their way to another node or from there, and begins again when it has the next
    /// placement map. With the gate held: the map stays as it is.
    fn may_tidy(&self, removal: &mut Removal) -> bool {
        let Some(table) = self.core.cluster.as_ref().map(|cluster| cluster.table()) else {
            return true;
        };
        if removal.table != table.placement.version {
            *removal = Removal { table: table.placement.version, ..Removal::default() };
        }
        !table.strangers && table.leaving.is_none()
    }

    /// Of one of several nodes: snapshots in removal that it has no history of, by the present
    /// placement map.
    pub fn cleared_snapshots(&self) -> BTreeSet<SnapshotId> {
        let removal = self.removal.lock();
        let version = self.core.cluster.as_ref().map(|cluster| cluster.version());
        if version == Some(removal.table) { removal.cleared.clone() } else { BTreeSet::new() }
    }

    /// No history row is left of these snapshots.
    fn forget_snapshots(&self, going: &[SnapshotId]) -> FsResult<()> {
        let _all = self.hold_all();
        let list = self.core.snapshots.list();
        let is_going = |known: &&Arc<Known>| going.contains(&known.info.id);
        let mut rows: Vec<Mutation> = list
            .iter()
            .filter(is_going)
            .map(|known| Mutation { key: known.info.key(), value: None })
            .collect();
        if rows.len() == list.len() {
            rows.extend(self.shares_row(false)?);
        }
        crash::point("snapshot.remove.before-end");
        let position = self.engine.commit(BatchKind::Freeing, rows).map_err(engine_error)?;
        crash::point("snapshot.remove.ended");
        self.committed_at(position);
        self.core.snapshots.forget(going, position);
        Ok(())
    }

    /// The row by which programs that know no history refuse the volume, or do not any more, unless
    /// it says so already.
    pub(super) fn shares_row(&self, history: bool) -> FsResult<Option<Mutation>> {
        let (key, mut row) = (system_key("shares"), None);
        self.engine
            .get_many(&[key], &mut |_, found| {
                row = found.value.and_then(|shares| with_history(shares, history));
            })
            .map_err(engine_error)?;
        Ok(row.map(|row| Mutation { key: key.to_owned(), value: Some(row) }))
    }
}
