//! Workers are roles, not threads (flat combining: Hendler, Incze, Shavit, Tzafrir, 2010).
//!
//! Each worker has a queue and a worker's state, which is a lock around its working memory. The
//! thread that brings a request tries to take the state; if another thread has it, the request
//! stays in the queue and the holder serves it. So an idle worker serves a request at once on the
//! caller's own thread, and load makes batches large by itself.
//!
//! **No request is forgotten.** The thread that brings one puts it into the queue, *then* tries the
//! role. The thread that holds the state lets it go, *then* looks at the queue again. The queue's
//! mutex orders the two: if the holder's look came before the request, then its release of the
//! state came before the other's attempt, which therefore succeeds or meets a new holder, which
//! will look.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::quota::QuotaSubject;
use kestrel_types::request::{Done, Reply, Request};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::{Condvar, Mutex};

use crate::effects::Effects;
use crate::ids::Block;
use crate::path_cache::PathCache;
use crate::rows::BatchRows;
use crate::session::Claim;
use crate::stop::{QuotaWant, Route, Want};
use crate::txn::Origin;

/// Takes the replies to many requests, each with the request's number among them; on any thread,
/// and must not block. One object instead of a callback a request.
pub trait ReplySink: Send + Sync {
    /// Takes a reply.
    fn complete(&self, number: usize, reply: Reply);

    /// One of several nodes cannot serve a request by itself, nothing has happened, and there will
    /// be no reply: it hands the request back. Only a `kestrel_cluster` sends its node such
    /// requests.
    fn hand_back(&self, number: usize, _handed_back: HandedBack) {
        self.complete(
            number,
            Err(FsError::new(libc::ENOTSUP, "metadata: this concerns several nodes").into()),
        );
    }
}

/// A request that its node cannot serve by itself.
#[derive(Debug)]
pub struct HandedBack {
    /// The request.
    pub request: Request,
    /// Where it comes from, if it is numbered.
    pub origin: Option<Origin>,
    /// What is in its way.
    pub why: NotAloneReason,
}

/// Why a node cannot serve a request by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAloneReason {
    /// It needs rows of other nodes.
    Away,
    /// It needs rows that are lent.
    Locked,
    /// It needs a dentry that another node has.
    Dentry(Want),
    /// Rows that were cut off a file have to be deleted first.
    Later,
    /// Its path led through the replica, and the node has no lease.
    Unleased,
    /// It shows this directory, and what other nodes' shares of it come to is not known.
    Sum(InodeId),
    /// It changes a share of this directory, which other nodes were told of under leases.
    Leased(InodeId),
    /// It changes something, and nothing changes at present because a snapshot is being made.
    Stopped,
    /// It makes a snapshot, and nothing is in the way of that.
    Cut,
    /// It needs a larger part of a quota.
    QuotaPart(QuotaWant),
    /// It shows these quotas, of which each node has counted a part.
    Quotas(Vec<QuotaSubject>),
    /// This directory belongs to a clone and has not all names yet.
    Names(InodeId),
    /// It clones this directory as it was at a snapshot, which has not been read.
    CloneSource(InodeId, SnapshotId),
}

/// Where a blocked caller waits.
#[derive(Default)]
pub struct ReplySlot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
enum SlotState {
    #[default]
    Waiting,
    /// The holder of this worker's state has worked for others long enough: it is the waiter's
    /// turn.
    TakeOver(usize),
    Done(Box<Reply>),
}

/// What a waiter wakes up to.
pub enum Woken {
    /// The reply.
    Done(Reply),
    /// Serve this worker.
    TakeOver(usize),
}

impl ReplySlot {
    /// Blocks until there is something to do.
    pub fn wait(&self) -> Woken {
        let mut state = self.state.lock();
        loop {
            match std::mem::take(&mut *state) {
                SlotState::Done(reply) => return Woken::Done(*reply),
                SlotState::TakeOver(worker) => return Woken::TakeOver(worker),
                SlotState::Waiting => self.changed.wait(&mut state),
            }
        }
    }

    /// Gives the reply.
    pub fn fill(&self, reply: Reply) {
        *self.state.lock() = SlotState::Done(Box::new(reply));
        self.changed.notify_one();
    }

    /// Asks the waiter to serve `worker`; not if it already has its reply.
    pub fn hand_over(&self, worker: usize) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, SlotState::Done(_)) {
            return false;
        }
        *state = SlotState::TakeOver(worker);
        self.changed.notify_one();
        true
    }
}

/// The receiver of the reply.
pub enum ReplyTarget {
    /// The thread that runs the batch: its own request.
    Caller,
    /// A thread that waits.
    Slot(Arc<ReplySlot>),
    /// A callback.
    Callback(Done),
    /// The sender of many requests, of which this is the one with this number.
    Sink(Arc<dyn ReplySink>, usize),
}

impl ReplyTarget {
    /// Gives the reply to somebody else than the caller.
    pub fn give(self, reply: Reply) {
        match self {
            ReplyTarget::Caller => debug_assert!(false, "the caller takes its reply itself"),
            ReplyTarget::Slot(slot) => slot.fill(reply),
            ReplyTarget::Callback(done) => done(reply),
            ReplyTarget::Sink(sink, number) => sink.complete(number, reply),
        }
    }
}

/// A request on its way.
pub struct QueuedRequest {
    /// What is asked.
    pub request: Request,
    /// Where it comes from, if it is numbered.
    pub origin: Option<Origin>,
    /// It is no request but claims opens of before a restart; the request is an Open of the file.
    pub claim: Option<Claim>,
    /// Where to look for the inode it names.
    pub route: Route,
    /// How often it was sent on.
    pub hops: u8,
    /// Rows of this file, from this chunk on, that it found in its way, and how often in a row they
    /// were no fewer.
    pub unswept: Option<(InodeId, u64, u8)>,
    /// When it came.
    pub since: Instant,
    /// The receiver of the reply.
    pub sink: ReplyTarget,
}

impl QueuedRequest {
    /// A request that has just come.
    pub fn new(request: Request, sink: ReplyTarget) -> Self {
        Self::since(request, sink, Instant::now())
    }

    /// A request that came then.
    pub fn since(request: Request, sink: ReplyTarget, since: Instant) -> Self {
        Self {
            request,
            origin: None,
            claim: None,
            route: Route::AsAsked,
            hops: 0,
            unswept: None,
            since,
            sink,
        }
    }
}

/// A worker's memory. The thread that holds it is the worker.
#[derive(Default)]
pub struct WorkerState {
    /// Rows of the present batch.
    pub rows: BatchRows,
    /// What the present batch does besides.
    pub effects: Effects,
    /// Inode numbers to give out.
    pub ids: Block,
    /// Paths walked lately.
    pub walks: PathCache,
    /// Requests of the present batch; empty between batches.
    pub jobs: VecDeque<QueuedRequest>,
}

/// A queue and a worker's state. On cache lines of its own (two, because processors fetch them in
/// pairs).
#[derive(Default)]
#[repr(align(128))]
pub struct Worker {
    /// Requests that wait. Bounded by the callers: each has one request, or throttles itself.
    pub queue: Mutex<VecDeque<QueuedRequest>>,
    /// The state.
    pub worker_state: Mutex<WorkerState>,
}

impl Worker {
    /// Puts a request into the queue.
    #[inline]
    pub fn push(&self, job: QueuedRequest) {
        self.queue.lock().push_back(job);
    }

    /// Whether requests wait.
    pub fn has_work(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// Moves up to `max` waiting requests to `jobs`, which is empty. As a rule there are no more,
    /// and they need not be moved one by one.
    pub fn drain(&self, jobs: &mut VecDeque<QueuedRequest>, max: usize) {
        debug_assert!(jobs.is_empty());
        let mut queue = self.queue.lock();
        if queue.len() <= max {
            std::mem::swap(&mut *queue, jobs);
        } else {
            jobs.extend(queue.drain(..max));
        }
    }

    /// Wakes a thread that waits in the queue to serve `worker`. False if there is none.
    pub fn hand_over(&self, worker: usize) -> bool {
        let queue = self.queue.lock();
        queue.iter().any(|job| match &job.sink {
            ReplyTarget::Slot(slot) => slot.hand_over(worker),
            ReplyTarget::Caller | ReplyTarget::Callback(_) | ReplyTarget::Sink(..) => false,
        })
    }
}
