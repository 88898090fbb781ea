//! Formatting a volume's metadata, and opening it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::clock::{Clock, Nanos};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{FIRST_INODE, FIRST_OBJECT, InodeId, ObjectId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table, number_of};
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::placement::{WORKERS_MAX, history_share_of};
use kestrel_types::request::{Creds, Done, Op, Reply, Request};
use kestrel_types::snapshot::HISTORY_SHARE;
use parking_lot::Mutex;

use super::feeds::read_feeds;
use super::quotas::read_quotas;
use super::reply_thread::ReplyThread;
use super::snapshots::SnapshotNodes;
use super::{Durability, Node, NodeConfig, RootAttr, refused, without};
use crate::clones::{self, CloneNeeds};
use crate::history::HistoryLayer;
use crate::history::known::KnownSnapshots;
use crate::ids::{Allocator, Timestamps, counter_row, decode_counter, system_key, with_history};
use crate::ops::usage;
use crate::owners::{MEMBER_SHARES, Owners};
use crate::replica::Replica;
use crate::session::{
    Moved, MovedTable, NewPath, OpenState, OpenTable, Orphans, PendingChunkDeletes, PendingDeletes,
    Reclaiming,
};
use crate::stop::engine_error;
use crate::view::{Core, decode_dir_id, encode_dir_id};
use crate::worker::Worker;

/// Version of the record "usage".
const USAGE_VERSION: u8 = 1;

/// The record "usage": figures at a clean stop with no file open, so that no file without a name
/// exists.
pub(super) fn usage_row(usage: &[i64; 3]) -> Mutation {
    let mut bytes = vec![USAGE_VERSION];
    for value in usage {
        bytes.extend_from_slice(&value.to_be_bytes());
    }
    Mutation { key: Key::new(Table::System, 0, b"usage"), value: Some(bytes.into()) }
}

fn decode_usage(bytes: &[u8]) -> Result<[i64; 3], DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != USAGE_VERSION {
        return Err(DecodeError("figures of an unknown format version"));
    }
    let usage = [reader.i64()?, reader.i64()?, reader.i64()?];
    reader.end()?;
    Ok(usage)
}

fn read(engine: &dyn Engine, key: KeyRef<'_>) -> FsResult<Option<Vec<u8>>> {
    let mut value = None;
    engine
        .get_many(&[key], &mut |_, row| value = row.value.map(<[u8]>::to_vec))
        .map_err(engine_error)?;
    Ok(value)
}

fn counter(engine: &dyn Engine, name: &'static str) -> FsResult<u64> {
    let bytes = read(engine, system_key(name))?.ok_or_else(|| {
        FsError::because(
            libc::EINVAL,
            format!("metadata: no record {name:?}: not a formatted volume"),
        )
    })?;
    decode_counter(&bytes).map_err(|why| {
        FsError::because(libc::EIO, format!("metadata: damaged record {name:?}: {why}"))
    })
}

/// Shares that rows may have: the most workers that the volume ever had.
pub(super) fn recorded_shares(engine: &dyn Engine) -> FsResult<usize> {
    let shares = usize::try_from(counter(engine, "shares")?).ok();
    let damaged = FsError::new(libc::EIO, "metadata: damaged record \"shares\"");
    shares.filter(|shares| (1..=WORKERS_MAX).contains(shares)).ok_or(damaged)
}

/// The figures of a volume that was closed properly.
fn recorded_figures(engine: &dyn Engine) -> FsResult<Option<[i64; 3]>> {
    let closed = read(engine, system_key("usage"))?;
    let figures = closed.as_deref().map(decode_usage).transpose();
    figures.map_err(|why| {
        FsError::because(libc::EIO, format!("metadata: damaged record \"usage\": {why}"))
    })
}

/// Files with rows that were being deleted when the volume was last open.
fn sweeps(engine: &dyn Engine, own: &dyn Fn(InodeId) -> bool) -> FsResult<PendingChunkDeletes> {
    let sweeps = PendingChunkDeletes::default();
    let visited = engine.scan_table(Table::Sweep, None, &mut |key, _| {
        // Of several rows of a file, which only damage can leave, the lowest counts; it comes
        // first.
        if own(key.id) && sweeps.get(key.id).is_none() {
            sweeps.set(key.id, Some(number_of(key.suffix)));
        }
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    Ok(sweeps)
}

/// Files without names.
fn orphans(engine: &dyn Engine, own: &dyn Fn(InodeId) -> bool) -> FsResult<Vec<InodeId>> {
    let mut orphans = Vec::new();
    let visited = engine.scan_table(Table::Link, None, &mut |key, row| {
        // A damaged row is fsck's business; it must not keep the volume from opening.
        if own(key.id) && Inode::decode(&mut Reader::new(row)).is_ok_and(|inode| inode.nlink == 0) {
            orphans.push(key.id);
        }
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    Ok(orphans)
}

/// Where files went that were open when the node stopped: parent 0 for one without a name that may
/// be given one. `None` for a damaged row, which tells nothing.
fn moved_rows(engine: &dyn Engine) -> FsResult<Vec<(InodeId, Option<NewPath>)>> {
    let mut rows = Vec::new();
    let visited = engine.scan_table(Table::Moved, None, &mut |key, row| {
        if key.suffix.is_empty() {
            let place = decode_dir_id(row).ok();
            rows.push((key.id, place.map(|(parent, name)| (parent, name.into()))));
        }
        ControlFlow::Continue(())
    });
    visited.map_err(engine_error)?;
    Ok(rows)
}

impl Node {
    /// Writes the root directory and the counters of a new volume, and syncs.
    ///
    /// # Errors
    /// `EEXIST` if the engine holds a volume already; the engine's.
    pub fn format(engine: &dyn Engine, root: RootAttr, now: Nanos) -> FsResult<()> {
        Self::format_rows(engine, root, now, &|_| true)
    }

    /// The rows that make a tree a volume of its own which never changes: its root, the counters,
    /// and its figures (files, directories below the root, bytes). `stamp` is the newest commit
    /// timestamp of its rows, `inodes` is above all its inode numbers. Without figures the node
    /// counts when it starts. The rows of what is below the root, and those of the root's share,
    /// are for the caller to add.
    pub fn rows_of_tree(
        root: Inode,
        figures: Option<[i64; 3]>,
        stamp: u64,
        (inodes, objects): (InodeId, ObjectId),
    ) -> Vec<Mutation> {
        let root = [
            Mutation {
                key: Key::new(Table::Entry, 0, b""),
                value: Some(Entry::Inode(root).encode()),
            },
            Mutation { key: Key::new(Table::DirId, ROOT, b""), value: Some(encode_dir_id(0, b"")) },
        ];
        let mut rows = Self::records_at_rest(figures, stamp, (inodes, objects));
        rows.extend(root);
        rows
    }

    /// What a node has on record besides its tree ([`Node::rows_of_tree`]): counters and figures.
    /// Of one of several nodes both counters are those of which it makes numbers.
    pub fn records_at_rest(
        figures: Option<[i64; 3]>,
        stamp: u64,
        (inodes, objects): (InodeId, ObjectId),
    ) -> Vec<Mutation> {
        let mut rows = Self::counter_rows(stamp, (inodes, objects));
        rows.push(counter_row("shares", 1));
        rows.extend(figures.map(|figures| usage_row(&figures)));
        rows
    }

    /// The rows that say which timestamps and numbers were given: `stamp` is the newest timestamp,
    /// the numbers are above all of inodes and objects.
    pub fn counter_rows(stamp: u64, (inodes, objects): (InodeId, ObjectId)) -> Vec<Mutation> {
        vec![
            counter_row("clock", stamp.saturating_add(1)),
            counter_row("inodes", inodes.max(FIRST_INODE)),
            counter_row("objects", objects),
        ]
    }

    /// What these rows say: the timestamp, and the numbers of inodes and objects.
    ///
    /// # Errors
    /// The engine's, and if rows are damaged or missing.
    pub fn counters_at_rest(engine: &dyn Engine) -> FsResult<(u64, InodeId, ObjectId)> {
        let counter = |name| counter(engine, name);
        Ok((counter("clock")?, counter("inodes")?, counter("objects")?))
    }

    /// The counter of timestamps, that of inodes and the figures, as they stand in rows of a node
    /// that was stopped cleanly; no figures of one that was not.
    ///
    /// # Errors
    /// The engine's, and if rows are damaged.
    pub fn rows_at_rest(engine: &dyn Engine) -> FsResult<(u64, InodeId, Option<[i64; 3]>)> {
        let figures = recorded_figures(engine)?;
        Ok((counter(engine, "clock")?, counter(engine, "inodes")?, figures))
    }

    /// As [`Node::format`], with those of the rows of the root that are `own`.
    pub(super) fn format_rows(
        engine: &dyn Engine,
        root: RootAttr,
        now: Nanos,
        own: &dyn Fn(&Key) -> bool,
    ) -> FsResult<()> {
        if read(engine, system_key("inodes"))?.is_some() {
            return Err(FsError::new(libc::EEXIST, "metadata: the engine holds a volume already"));
        }
        let (mode, uid, gid) = (root.mode & 0o7777, root.uid, root.gid);
        let inode = Inode { mode, uid, gid, ..Inode::new(ROOT, Kind::Dir, now, 1) };
        let mut rows = vec![
            counter_row("clock", 2),
            counter_row("inodes", FIRST_INODE),
            counter_row("objects", FIRST_OBJECT),
            counter_row("shares", 1),
            Mutation {
                key: Key::new(Table::Entry, 0, b""),
                value: Some(Entry::Inode(inode).encode()),
            },
            Mutation { key: Key::new(Table::DirId, ROOT, b""), value: Some(encode_dir_id(0, b"")) },
        ];
        rows.retain(|row| row.key.table == Table::System || own(&row.key));
        engine.commit(BatchKind::Growing, rows).map_err(engine_error)?;
        engine.sync().map_err(engine_error)
    }

    /// Opens a volume: reads the counters, adds up its figures unless it was closed properly, and
    /// deletes files that were open and had no name; with [`NodeConfig::serves`] they stay for
    /// clients to claim, until [`Node::end_grace`].
    ///
    /// # Errors
    /// `EINVAL` for bad settings or an engine without a volume; the engine's.
    pub fn open(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: NodeConfig,
    ) -> FsResult<Arc<Self>> {
        // The process that had the rows before gets no commit through any more.
        let engine = engine.claim().map_err(engine_error)?;
        Self::open_as(engine, clock, config, None)
    }

    /// Files, directories and bytes of a volume as its rows say: what was recorded when it was
    /// closed, else the sums over all of it.
    ///
    /// # Errors
    /// `EIO` for damaged rows; the engine's.
    pub fn figures_of_rows(&self) -> FsResult<[i64; 3]> {
        match recorded_figures(&*self.engine)? {
            Some(figures) => Ok(figures),
            None => usage::volume(&*self.engine, &|_| true).map_err(engine_error),
        }
    }

    /// As [`Node::open`], alone or as one of several, through a handle that has been claimed.
    pub(super) fn open_as(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: NodeConfig,
        cluster: Option<Owners>,
    ) -> FsResult<Arc<Self>> {
        if config.workers == 0 || config.workers > WORKERS_MAX {
            return Err(refused("metadata: a node has 1 to 64 workers"));
        }
        if config.batch_max == 0 || config.grace < 0 {
            return Err(refused(
                "metadata: a batch has at least one request, and no grace period is negative",
            ));
        }
        if cluster.is_none() && read(&*engine, system_key("epoch"))?.is_some() {
            return Err(refused(
                "metadata: this is one node's part of a volume that several nodes share",
            ));
        }
        let share = cluster.as_ref().map_or(HISTORY_SHARE, |cluster| history_share_of(cluster.me));
        let snapshots = KnownSnapshots::read(&*engine, share).map_err(engine_error)?;
        clones::move_own_records(&*engine, &snapshots).map_err(engine_error)?;
        let quotas =
            read_quotas(&*engine, config.workers, cluster.as_ref().map(Owners::table).as_deref())?;
        let feeds = read_feeds(&*engine, config.workers)?;
        let (snapshots, below) = (Arc::new(snapshots), engine);
        let engine: Arc<dyn Engine> = Arc::new(HistoryLayer::new(below.clone(), snapshots.clone()));
        let ceilings = ["clock", "inodes", "objects"].map(|name| counter(&*engine, name));
        let [stamps, inodes, objects] = ceilings;
        let recorded = recorded_shares(&*engine)?;
        let shares = match &cluster {
            None => recorded.max(config.workers),
            Some(_) if config.workers.max(recorded) <= MEMBER_SHARES => MEMBER_SHARES,
            Some(_) => return Err(refused("metadata: a node of several has at most 16 workers")),
        };
        let table = cluster.as_ref().map(Owners::table).filter(|table| table.strangers);
        // What is found by an id may be another node's.
        let own = |id: u64| table.as_ref().is_none_or(|table| table.home_of(id) == table.me);
        let closed = recorded_figures(&*engine)?;
        let figures = match closed.or(config.figures) {
            Some(figures) => figures,
            None => {
                let own = |key: KeyRef<'_>| {
                    table.as_ref().is_none_or(|table| table.owns(key.table, key.id, key.suffix))
                };
                usage::volume(&*engine, &own).map_err(engine_error)?
            }
        };
        let mut changes = Vec::new();
        if shares > recorded {
            let row = counter_row("shares", shares as u64);
            let history = !snapshots.list().is_empty();
            let newer = row.value.as_deref().and_then(|value| with_history(value, history));
            changes.push(Mutation { value: newer.or(row.value), key: row.key });
        }
        if closed.is_some() {
            changes.push(without("usage"));
        }
        let opens = OpenTable::new();
        let moved = MovedTable::default();
        for (ino, place) in moved_rows(&*engine)? {
            match place {
                // Read as rows: clients of any node find the file by them until it goes.
                _ if cluster.is_some() => {}
                // Read as rows too, when clients claim what they had open.
                Some((0, _)) if config.serves => {}
                Some(place) if config.serves => {
                    moved.set(ino, Moved::To { place, row: true }, &opens)
                }
                _ => changes.push(Mutation { key: Key::new(Table::Moved, ino, b""), value: None }),
            }
        }
        if !changes.is_empty() {
            engine.commit(BatchKind::Freeing, changes).map_err(engine_error)?;
        }
        // A proper stop leaves no file without a name.
        let orphans = if closed.is_some() { Vec::new() } else { orphans(&*engine, &own)? };
        let reply_thread = ReplyThread::start(config.replies).map_err(|why| {
            FsError::because(
                libc::EAGAIN,
                format!("metadata: the thread for replies did not start: {why}"),
            )
        })?;
        let stamps = Timestamps::new(stamps?);
        // Another node may have chosen the number of a snapshot.
        stamps.observe(snapshots.highest());
        let core = Core {
            replica: Replica::new(config.replica_bytes),
            opens,
            moved,
            condemned: PendingDeletes::default(),
            sweeps: sweeps(&*engine, &own)?,
            serves: config.serves,
            reclaiming: Reclaiming::default(),
            orphans: Orphans::default(),
            workers: config.workers,
            shares,
            scan_rows: config.scan_rows.max(1),
            grace: config.grace,
            objects_from: config.objects_from,
            snapshots,
            clones: CloneNeeds::default(),
            quotas,
            feeds,
            is_snapshot: false,
            cluster: cluster.map(Box::new),
        };
        let mut node = Self {
            engine,
            below,
            clock,
            // Nobody waits for what the node does first.
            durability: Durability::Fsync,
            batch_max: config.batch_max,
            core,
            workers: (0..=config.workers).map(|_| Worker::default()).collect(),
            counters: (0..config.workers + 3).map(|_| WorkerCounters::default()).collect(),
            inodes: Allocator::new("inodes", inodes?),
            objects: Allocator::new("objects", objects?),
            stamps,
            usage: figures.map(AtomicI64::new),
            closed: AtomicBool::new(false),
            reopening: Mutex::new(()),
            committed: AtomicU64::new(0),
            due: AtomicBool::new(false),
            reply_thread,
            snapshot_nodes: SnapshotNodes::new(config.replica_bytes),
            removal: Mutex::default(),
        };
        if node.shares_volume() {
            // Others may have them open: they are asked.
            orphans.into_iter().for_each(|ino| node.core.orphans.insert(ino));
            if config.serves {
                node.core.reclaiming.begin([]);
            }
        } else if config.serves {
            node.core.reclaiming.begin(orphans);
        } else {
            node.delete_orphans(orphans)?;
        }
        node.durability = config.durability;
        Ok(Arc::new(node))
    }

    /// The request that deletes a file without a name, as the last release of it.
    fn release_of(&self, ino: InodeId) -> Request {
        self.core.opens.set(ino, OpenState { count: 1, orphan: true, linkable: false });
        Request { creds: Creds::root(), op: Op::Release(ino) }
    }

    /// As [`Node::delete_orphans`], while the node serves: nobody waits until that is durable.
    pub(super) fn delete_orphans_soon(&self, orphans: Vec<InodeId>) {
        let release = |ino: InodeId| -> (Request, Done) {
            let done = Box::new(move |reply: Reply| {
                if let Err(why) = reply {
                    log::warn!("file {ino} without a name is deleted at the next start: {why:?}");
                }
            });
            (self.release_of(ino), done)
        };
        self.submit_many(orphans.into_iter().map(release).collect());
    }

    /// Deletes files without names that are not open: those that were when the node stopped.
    pub(super) fn delete_orphans(&self, orphans: Vec<InodeId>) -> FsResult<()> {
        for ino in orphans {
            if let Err(why) = self.call(self.release_of(ino)) {
                self.core.opens.set(ino, OpenState::default());
                return Err(match why {
                    kestrel_types::request::Outcome::Failed(error) => error,
                    _ => FsError::new(
                        libc::EIO,
                        "metadata: a file without a name could not be deleted",
                    ),
                });
            }
        }
        Ok(())
    }
}
