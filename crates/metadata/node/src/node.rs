//! The metadata node: takes requests, runs them in batches on its workers' states, and answers.
//!
//! | file | what it has |
//! | --- | --- |
//! | `node/start.rs` | formatting a volume's metadata, and opening it |
//! | `node/dispatch.rs` | requests to workers, batches, and replies |
//! | `node/caller.rs` | requests that need no worker |
//! | `node/clients.rs` | numbered requests, sessions and claims of opens |
//! | `node/quotas.rs` | quotas: made, removed, counted anew |
//! | `node/feeds.rs` | change feeds: read, and bounded by time |
//! | `node/clones.rs` | clones: names for directories that lack them |
//! | `node/dir_place.rs` | where directories are, by rows |
//! | `node/moment.rs` | a node over the rows of one moment that another process has written |
//! | `node/multi_node.rs` | what `kestrel_cluster` needs of a node |
//! | `node/reply_thread.rs` | replies that waited for the log |
//! | `node/snapshots.rs` | snapshots: reading them, listing them, what follows their removal |
//! | `node/snapshot_changes.rs` | changes between two moments; what a snapshot holds |
//! | `node/snapshot_records.rs` | records of snapshots of several nodes |
//! | `node/gc.rs` | objects and chunks that nothing refers to |
//!
//! **Workers.** Each worker has a worker: its queue and role. One more worker is for exclusive
//! batches; the thread that holds its role takes all the others too, in order of their numbers, and
//! no thread takes a second role in any other way, so there is no deadlock. Taking all workers'
//! states is the quiescence point of `docs/design/metadata.md`, section 3: no operation is running
//! that could have seen what the exclusive batch is going to change.
//!
//! **Replies** leave when no worker's state is held, so a callback may send the next request. In
//! mode `fsync` they leave at once. In mode `commit` those that changed something, or saw something
//! that is not durable, wait for the log; nobody holds a worker's state meanwhile. In either mode a
//! callback may send requests, blocking ones too.

mod caller;
mod clients;
mod clones;
mod dir_place;
mod dispatch;
mod feeds;
mod gc;
mod moment;
mod multi_node;
mod quotas;
mod reply_thread;
mod snapshot_changes;
mod snapshot_records;
mod snapshots;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use kestrel_types::clock::{Clock, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId, Position};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::op_counters::{self, NodeStats, WorkerCounters};
use kestrel_types::quota::{OverSince, QuotaInfo};
use kestrel_types::request::{Done, Reply, Request};
use parking_lot::Mutex;

use crate::ids::{Allocator, Timestamps, system_key};
use crate::ops::{self, RunsOn};
use crate::rows::SCAN_ROWS_MAX;
use crate::stop::{Route, engine_error};
use crate::view::Core;
use crate::worker::{QueuedRequest, ReplyTarget, Worker};
use kestrel_engine::{BatchKind, Engine, Mutation};

use reply_thread::ReplyThread;
use snapshots::{Removal, SnapshotNodes};

pub use crate::txn::{Origin, SessionRecord};
pub use crate::worker::ReplySink;
pub use clones::{CloneJob, ClonePart, ClonesLack, DirLacks, SourceRead};
pub use gc::objects::{Due, ReferencePart};
pub use multi_node::{Ended, MemoryEffect, Moved, Ran, TreePart, figures_of};
pub use quotas::{
    CountedFile, CountedPage, LIMIT_TOO_LARGE, NO_DIR, NO_QUOTA, NOT_ROOT, QuotaCount,
    QuotaDifferences, QuotaPart, TOO_MANY, UNFINISHED_CLONE, compare_quotas, home_by_names,
};
pub use reply_thread::Replies;
pub use snapshot_changes::{BAD_CURSOR, Compared, ComparedTold, told};
pub use snapshots::{NOT_THERE, needs_all_nodes};

/// What an acknowledgement promises (`docs/design/metadata.md`, section 7, item 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The change survives the death of the process; power loss after fsync or a second.
    Fsync,
    /// The change is durable.
    Commit,
}

/// Settings of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeConfig {
    /// Workers, 1 to [`WORKERS_MAX`](kestrel_types::placement::WORKERS_MAX).
    pub workers: usize,
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// Time between the last reference to an object and its deletion, nanoseconds.
    pub grace: Nanos,
    /// References to objects below this are not counted: they are not this node's to delete. Of a
    /// job these are the objects of its inputs.
    pub objects_from: ObjectId,
    /// Memory for the namespace replica, bytes.
    pub replica_bytes: usize,
    /// Most requests in one batch.
    pub batch_max: usize,
    /// Most chunks of a file that one batch deletes; more than that go in several. Of several nodes
    /// all have the same. Half as many rows are looked at in one step when the table changes.
    pub scan_rows: usize,
    /// Clients across a network use this node: after a start it waits, until [`Node::end_grace`],
    /// for them to claim what they had open. If not set, nothing is open at the start.
    pub serves: bool,
    /// Files, directories and bytes of the volume ([`Node::figures`]), as the node had them that
    /// left it a moment ago with files open; none: what was recorded, or the sums over all rows.
    pub figures: Option<[i64; 3]>,
    /// The threads that run callbacks that waited for the log.
    pub replies: Replies,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            workers: cores.clamp(1, 16),
            durability: Durability::Fsync,
            grace: 60 * SECOND,
            objects_from: 0,
            replica_bytes: 64 << 20,
            batch_max: 1024,
            scan_rows: SCAN_ROWS_MAX,
            serves: false,
            figures: None,
            replies: Replies::Thread,
        }
    }
}

/// Attributes of a new volume's root.
#[derive(Debug, Clone, Copy)]
pub struct RootAttr {
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A metadata node.
pub struct Node {
    engine: Arc<dyn Engine>,
    /// The engine below the layer that writes history.
    below: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    durability: Durability,
    batch_max: usize,
    core: Core,
    /// One for each worker, then the exclusive one.
    workers: Box<[Worker]>,
    /// As `workers`, then one for replies that waited, then one for requests without a worker.
    counters: Arc<[WorkerCounters]>,
    inodes: Allocator,
    objects: Allocator,
    stamps: Timestamps,
    /// Files, directories, bytes.
    usage: [AtomicI64; 3],
    /// The record of [`Node::close`] is in place and must go before anything changes.
    closed: AtomicBool,
    reopening: Mutex<()>,
    /// Newest position any batch was committed at.
    committed: AtomicU64,
    /// A member has let go of all workers' states, or brought a request: [`Node::drive_due`] is to
    /// look at every worker.
    due: AtomicBool,
    reply_thread: ReplyThread,
    /// Nodes that read snapshots.
    snapshot_nodes: SnapshotNodes,
    /// What is being done with the history of snapshots that were removed.
    removal: Mutex<Removal>,
}

impl Node {
    /// Sends a request and waits for its reply. It runs on this thread unless its worker is busy.
    pub fn call(&self, request: Request) -> Reply {
        match ops::runs_on(&self.core, &request.op, &Route::AsAsked) {
            RunsOn::Worker(worker) => {
                self.call_on(worker, QueuedRequest::new(request, ReplyTarget::Caller))
            }
            RunsOn::Exclusive => {
                self.call_on(self.core.workers, QueuedRequest::new(request, ReplyTarget::Caller))
            }
            RunsOn::Caller => self.call_without_worker(request),
        }
    }

    /// Sends a request; `done` gets the reply, on this thread or another. Returns when no request
    /// can be served by this thread any more, so it throttles a sender of more than the node can
    /// do.
    pub fn submit(&self, request: Request, done: Done) {
        self.drive_one(request, None, done);
    }

    /// Sends many requests: one batch a worker, as far as they fit. Those of one worker keep their
    /// order.
    pub fn submit_many(&self, requests: Vec<(Request, Done)>) {
        let (mut pending, now) = (0, Instant::now());
        for (request, done) in requests {
            pending |= self.enqueue(request, None, ReplyTarget::Callback(done), now);
        }
        self.drive(pending);
    }

    fn drive_one(&self, request: Request, origin: Option<Origin>, done: Done) {
        let pending = self.enqueue(request, origin, ReplyTarget::Callback(done), Instant::now());
        self.drive(pending);
    }

    /// Puts a request into its worker and returns the worker's bit; one without a worker is served
    /// at once. What may have been executed before runs with every worker's state held: that is
    /// rare, and its answer may concern a file without names.
    fn enqueue(
        &self,
        request: Request,
        origin: Option<Origin>,
        sink: ReplyTarget,
        now: Instant,
    ) -> u128 {
        let worker = match ops::runs_on(&self.core, &request.op, &Route::AsAsked) {
            RunsOn::Caller => {
                self.submit_without_worker(request, sink);
                return 0;
            }
            RunsOn::Worker(worker)
                if !origin.is_some_and(|origin| origin.retry) || self.shares_volume() =>
            {
                worker
            }
            RunsOn::Worker(_) | RunsOn::Exclusive => self.core.workers,
        };
        self.workers[worker].push(QueuedRequest {
            request,
            origin,
            claim: None,
            route: Route::AsAsked,
            hops: 0,
            unswept: None,
            since: now,
            sink,
        });
        1 << worker
    }

    /// Counters since the node was opened.
    pub fn stats(&self) -> NodeStats {
        let mut stats = op_counters::sum(&self.counters, self.core.workers);
        stats.open_files = self.core.opens.len() as u64;
        stats.dentries = self.core.replica.len() as u64;
        let quotas = self.quotas();
        let is_above = |info: &&QuotaInfo| info.since != OverSince::default();
        stats.quotas = quotas.len() as u64;
        stats.quotas_above_soft_limit = quotas.iter().filter(is_above).count() as u64;
        stats.quota_refusals = self.core.quotas.refused();
        stats
    }

    /// The store.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Whether the rows of this node have a name in a directory, as of the last commit. This counts
    /// as no request.
    ///
    /// # Errors
    /// The engine's.
    pub fn has_entry(&self, dir: InodeId, name: &[u8]) -> FsResult<bool> {
        let mut found = false;
        let key = KeyRef::new(Table::Entry, dir, name);
        let read = self.engine.get_many(&[key], &mut |_, row| found = row.value.is_some());
        read.map(|()| found).map_err(engine_error)
    }

    /// Records the volume's figures, so that opening it again need not add them up, and makes
    /// everything durable. The node still answers afterwards; the first batch takes the record
    /// back.
    pub fn close(&self) -> FsResult<()> {
        {
            let _all = self.hold_all();
            let sums_up = self.core.opens.is_empty() && !self.shares_volume();
            if sums_up && !self.core.reclaiming.lasts() {
                let row = start::usage_row(&self.usage_now());
                self.engine.commit(BatchKind::Freeing, vec![row]).map_err(engine_error)?;
                self.closed.store(true, Ordering::Release);
            }
        }
        self.engine.sync().map_err(engine_error)
    }

    /// Takes back what [`Node::close`] recorded. Called with a role held, and `close` held them
    /// all.
    #[cold]
    fn reopen(&self) {
        let _one_at_a_time = self.reopening.lock();
        if self.closed.load(Ordering::Acquire) {
            // If this fails so will the batch that follows, and the next one tries again.
            let taken_back = self.engine.commit(BatchKind::Freeing, vec![without("usage")]);
            self.closed.store(taken_back.is_err(), Ordering::Release);
        }
    }

    /// [`Engine::upload`] of everything committed so far: before something happens that other
    /// machines see, or that cannot be taken back, because of it.
    ///
    /// # Errors
    /// The engine's.
    pub fn upload(&self) -> FsResult<()> {
        self.engine.upload(Position::MAX).map_err(engine_error)
    }

    fn usage_now(&self) -> [i64; 3] {
        std::array::from_fn(|i| self.usage[i].load(Ordering::Relaxed))
    }

    fn add_usage(&self, change: [i64; 3]) {
        for (sum, change) in self.usage.iter().zip(change) {
            if change != 0 {
                sum.fetch_add(change, Ordering::Relaxed);
            }
        }
    }

    fn committed_at(&self, position: u64) {
        if position > self.committed.load(Ordering::Relaxed) {
            self.committed.fetch_max(position, Ordering::Relaxed);
        }
    }
}

/// A volume-wide record to delete.
fn without(name: &'static str) -> Mutation {
    Mutation { key: system_key(name).to_owned(), value: None }
}

fn refused(why: &'static str) -> FsError {
    FsError::new(libc::EINVAL, why)
}
