//! From requests to batches to replies: which thread holds which role when. See [`crate::worker`]
//! for why no request is forgotten.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::op_counters::WorkerCounters;
use kestrel_types::op_kind;
use kestrel_types::request::{Creds, Op, Outcome, Reply, Request};
use parking_lot::MutexGuard;

use super::reply_thread::PendingReply;
use super::{Durability, Node};
use crate::clones::WITHOUT_NAMES;
use crate::lease::LeaseView;
use crate::ops::RunsOn;
use crate::pipeline::{self, BatchContext, BatchScratch, StepOutcome};
use crate::worker::{
    HandedBack, NotAloneReason, QueuedRequest, ReplySlot, ReplyTarget, Woken, WorkerState,
};

/// Batches a thread runs for others after its own before it looks for somebody to take over.
const ROUNDS_MAX: usize = 8;

/// Times a request is sent on before it runs with every worker's state held, where it can go
/// nowhere else.
const HOPS_MAX: u8 = 6;

/// Batches in which nothing was deleted of what is in a request's way before it fails.
const STALLED_MAX: u8 = 16;

thread_local! {
    /// The slot this thread waits in, kept for the next time.
    static SLOT: Cell<Option<Arc<ReplySlot>>> = const { Cell::new(None) };
}

/// What became of the request of the thread that ran the batch.
enum OwnRequest {
    Reply(Reply),
    /// The reply comes when this position is durable.
    Later(Reply, Position),
    Moved(usize, Box<QueuedRequest>),
}

/// What a batch leaves to do when no worker's state is held any more.
#[derive(Default)]
struct BatchOutcome {
    own: Option<OwnRequest>,
    replies: Vec<(ReplyTarget, Reply)>,
    /// Requests that this node cannot serve by itself.
    handed_back: Vec<(ReplyTarget, HandedBack)>,
    /// Replies that must wait for their own batch, and its position.
    waiting: Vec<PendingReply>,
    position: Position,
    /// Workers to look at.
    pending: u128,
}

/// The node cannot serve it alone.
fn hand_back(job: QueuedRequest, why: NotAloneReason, after: &mut BatchOutcome) {
    match job.sink {
        ReplyTarget::Caller => after.own = Some(OwnRequest::Reply(Err(several()))),
        sink => {
            let handed_back = HandedBack { request: job.request, origin: job.origin, why };
            after.handed_back.push((sink, handed_back));
        }
    }
}

impl Node {
    /// Runs a request of this thread on a worker, or waits until somebody has.
    pub(super) fn call_on(&self, mut worker: usize, mut job: QueuedRequest) -> Reply {
        loop {
            let Some(worker_state) = self.workers[worker].worker_state.try_lock() else {
                return self.call_queued(worker, job);
            };
            let kind = op_kind::kind(&job.request.op);
            let since = job.since;
            let mut after = self.serve(worker, worker_state, Some(job));
            let own = after.own.take();
            match own {
                Some(OwnRequest::Reply(reply)) => {
                    self.finish(after);
                    return reply;
                }
                Some(OwnRequest::Later(reply, position)) => {
                    let slot = take_slot();
                    after.waiting.push(PendingReply {
                        sink: ReplyTarget::Slot(slot.clone()),
                        reply,
                        kind,
                        since,
                    });
                    after.position = after.position.max(position);
                    self.finish(after);
                    return self.wait(slot);
                }
                Some(OwnRequest::Moved(to, moved)) => {
                    self.finish(after);
                    (worker, job) = (to, *moved);
                }
                None => unreachable!("a batch ends each of its requests"),
            }
        }
    }

    #[cold]
    fn call_queued(&self, worker: usize, mut job: QueuedRequest) -> Reply {
        let slot = take_slot();
        job.sink = ReplyTarget::Slot(slot.clone());
        self.workers[worker].push(job);
        self.drive(1 << worker);
        self.wait(slot)
    }

    fn wait(&self, slot: Arc<ReplySlot>) -> Reply {
        loop {
            match slot.wait() {
                Woken::Done(reply) => {
                    SLOT.set(Some(slot));
                    return reply;
                }
                Woken::TakeOver(worker) => self.drive(1 << worker),
            }
        }
    }

    /// Puts a request into a worker and serves what can be served.
    pub(super) fn submit_on(&self, worker: usize, job: QueuedRequest) {
        self.workers[worker].push(job);
        self.drive(1 << worker);
    }

    /// Serves workers until they are empty or somebody else serves them.
    pub(super) fn drive(&self, pending: u128) {
        let left = self.drive_some(pending, usize::MAX);
        debug_assert_eq!(left, 0, "nothing bounds it");
    }

    /// As [`Node::drive`], at most so many batches; the workers that were not come to.
    fn drive_some(&self, mut pending: u128, rounds_max: usize) -> u128 {
        let mut rounds = 0;
        while pending != 0 && rounds < rounds_max {
            let worker = pending.trailing_zeros() as usize;
            pending &= !(1 << worker);
            if !self.workers[worker].has_work() {
                continue;
            }
            if rounds >= ROUNDS_MAX && self.workers[worker].hand_over(worker) {
                continue;
            }
            if let Some(worker_state) = self.workers[worker].worker_state.try_lock() {
                rounds += 1;
                let after = self.serve(worker, worker_state, None);
                pending |= after.pending;
                self.deliver(after);
            }
        }
        pending
    }

    /// What remains after a batch of this thread's own request.
    fn finish(&self, after: BatchOutcome) {
        let pending = after.pending;
        self.deliver(after);
        self.drive(pending);
    }

    /// Runs one batch: what waits in the worker, and `own`. All workers' states are free when it
    /// returns.
    fn serve(
        &self,
        worker: usize,
        mut worker_state: MutexGuard<'_, WorkerState>,
        own: Option<QueuedRequest>,
    ) -> BatchOutcome {
        let exclusive = worker == self.core.workers;
        let others: Vec<_> = if exclusive {
            self.workers[..worker].iter().map(|worker| worker.worker_state.lock()).collect()
        } else {
            Vec::new()
        };
        let mut jobs = std::mem::take(&mut worker_state.jobs);
        self.workers[worker].drain(&mut jobs, self.batch_max);
        jobs.extend(own);
        let mut after = BatchOutcome::default();
        if !jobs.is_empty() {
            self.run_batch(worker, &mut worker_state, &mut jobs, &mut after);
        }
        worker_state.jobs = jobs;
        drop(others);
        drop(worker_state);
        // Requests that came meanwhile found the state taken. An exclusive batch held them all.
        after.pending |= if exclusive { (1 << (worker + 1)) - 1 } else { 1 << worker };
        after
    }

    fn run_batch(
        &self,
        worker: usize,
        worker_state: &mut WorkerState,
        jobs: &mut VecDeque<QueuedRequest>,
        after: &mut BatchOutcome,
    ) {
        if self.closed.load(Ordering::Relaxed) {
            self.reopen();
        }
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let lease_view = self
            .core
            .cluster
            .as_ref()
            .map_or_else(|| LeaseView::of(None, false), |cluster| cluster.lease_view());
        let context = BatchContext {
            engine: &*self.engine,
            core: &self.core,
            table: table.as_deref(),
            lease_view: &lease_view,
            inodes: &self.inodes,
            stamps: &self.stamps,
            now: self.clock.now(),
            worker,
        };
        let mut steps = Vec::with_capacity(jobs.len());
        let mut scratch = BatchScratch {
            rows: &mut worker_state.rows,
            effects: &mut worker_state.effects,
            ids: &mut worker_state.ids,
            walks: &mut worker_state.walks,
        };
        let jobs_in_order = &*jobs.make_contiguous();
        let run = || pipeline::run(&context, &mut scratch, jobs_in_order, &mut steps);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(usage) => self.add_usage(usage),
            // A bug, reported by the panic itself. Nobody may wait for ever because of it.
            Err(_) => pipeline::abandon(&context, &mut scratch, jobs.len(), &mut steps),
        }
        let counters = &self.counters[worker];
        counters.batch(jobs.len());
        let durable = match self.durability {
            Durability::Fsync => Position::MAX,
            Durability::Commit => self.engine.durable(),
        };
        let end = Instant::now();
        after.replies.reserve(jobs.len());
        let mut moves = Vec::new();
        for (number, (job, step)) in jobs.iter_mut().zip(steps).enumerate() {
            self.committed_at(step.wait);
            let StepOutcome::Reply(reply) = step.verdict else {
                moves.push((number, step.verdict));
                continue;
            };
            let kind = op_kind::kind(&job.request.op);
            // A snapshot that has been made stays in either mode.
            let durable = match job.request.op {
                Op::SnapshotCreate { .. } => self.engine.durable(),
                _ => durable,
            };
            // The job is done with: it gives its sink away.
            let sink = std::mem::replace(&mut job.sink, ReplyTarget::Caller);
            if step.wait <= durable {
                counters.reply(kind, reply.is_err(), end.saturating_duration_since(job.since));
                match sink {
                    ReplyTarget::Caller => after.own = Some(OwnRequest::Reply(reply)),
                    sink => after.replies.push((sink, reply)),
                }
            } else {
                match sink {
                    ReplyTarget::Caller => after.own = Some(OwnRequest::Later(reply, step.wait)),
                    sink => {
                        after.waiting.push(PendingReply { sink, reply, kind, since: job.since });
                        after.position = after.position.max(step.wait);
                    }
                }
            }
        }
        if moves.is_empty() {
            jobs.clear();
        } else {
            self.move_on(worker, end, jobs, moves, after);
        }
    }

    /// What becomes of those jobs of a batch, by their numbers in it, that have no reply.
    #[cold]
    fn move_on(
        &self,
        worker: usize,
        end: Instant,
        jobs: &mut VecDeque<QueuedRequest>,
        moves: Vec<(usize, StepOutcome)>,
        after: &mut BatchOutcome,
    ) {
        let counters = &self.counters[worker];
        let mut moves = moves.into_iter().peekable();
        for (number, mut job) in jobs.drain(..).enumerate() {
            let Some((_, verdict)) = moves.next_if(|(of, _)| *of == number) else { continue };
            match verdict {
                StepOutcome::Reply(_) => debug_assert!(false, "it has been given"),
                StepOutcome::Elsewhere(why) => hand_back(job, why, after),
                StepOutcome::Move(to, route) => {
                    job.hops += 1;
                    job.route = route;
                    let to = match to {
                        RunsOn::Worker(worker) if job.hops <= HOPS_MAX => worker,
                        _ => self.core.workers,
                    };
                    self.send_on(to, job, after);
                }
                StepOutcome::Based(dir) if self.shares_volume() => {
                    hand_back(job, NotAloneReason::Names(dir), after);
                }
                StepOutcome::CloneSource(dir, at) if self.shares_volume() => {
                    hand_back(job, NotAloneReason::CloneSource(dir, at), after);
                }
                StepOutcome::Based(dir) => {
                    let done = self.names_for_job(worker, dir);
                    self.again_after(done, counters, end, job, after);
                }
                StepOutcome::CloneSource(dir, at) => {
                    let done = self.read_source_of(dir, at);
                    self.again_after(done, counters, end, job, after);
                }
                // The node's member has them deleted, and may find rows lent.
                StepOutcome::Sweep(..) if self.shares_volume() => {
                    hand_back(job, NotAloneReason::Later, after);
                }
                StepOutcome::Sweep(ino, first) => {
                    let stalled = match job.unswept {
                        Some((before, at, stalled)) if (before, at) == (ino, first) => stalled + 1,
                        _ => 0,
                    };
                    if stalled == STALLED_MAX {
                        let kind = op_kind::kind(&job.request.op);
                        counters.reply(kind, true, end.saturating_duration_since(job.since));
                        let error = FsError::new(
                            libc::EIO,
                            "metadata: what was cut off the file cannot be deleted",
                        );
                        match job.sink {
                            ReplyTarget::Caller => {
                                after.own = Some(OwnRequest::Reply(Err(error.into())))
                            }
                            sink => after.replies.push((sink, Err(error.into()))),
                        }
                        continue;
                    }
                    // One step of it comes before the job, in the same worker, and the job asks
                    // again.
                    job.unswept = Some((ino, first, stalled));
                    let sweep = Request { creds: Creds::root(), op: Op::Sweep(ino) };
                    self.workers[self.core.workers]
                        .push(QueuedRequest::new(sweep, ReplyTarget::Callback(Box::new(|_| ()))));
                    self.send_on(self.core.workers, job, after);
                }
            }
        }
    }

    /// Gives a directory of a clone some of the names that a job needs, if every worker's state is
    /// held.
    fn names_for_job(&self, worker: usize, dir: InodeId) -> FsResult<()> {
        if self.core.is_snapshot {
            self.core.clones.want(dir);
            return Err(WITHOUT_NAMES);
        }
        if worker == self.core.workers { self.give_names(dir).map(drop) } else { Ok(()) }
    }

    /// Has a job run again with every worker's state held, unless what it needed failed.
    fn again_after(
        &self,
        done: FsResult<()>,
        counters: &WorkerCounters,
        end: Instant,
        job: QueuedRequest,
        after: &mut BatchOutcome,
    ) {
        let Err(error) = done else { return self.send_on(self.core.workers, job, after) };
        let kind = op_kind::kind(&job.request.op);
        counters.reply(kind, true, end.saturating_duration_since(job.since));
        match job.sink {
            ReplyTarget::Caller => after.own = Some(OwnRequest::Reply(Err(error.into()))),
            sink => after.replies.push((sink, Err(error.into()))),
        }
    }

    /// Sends a job to another worker.
    fn send_on(&self, to: usize, job: QueuedRequest, after: &mut BatchOutcome) {
        match job.sink {
            ReplyTarget::Caller => after.own = Some(OwnRequest::Moved(to, Box::new(job))),
            _ => {
                self.workers[to].push(job);
                after.pending |= 1 << to;
            }
        }
    }

    /// Gives replies. No worker's state is held.
    fn deliver(&self, after: BatchOutcome) {
        for (sink, reply) in after.replies {
            sink.give(reply);
        }
        for (sink, handed_back) in after.handed_back {
            match sink {
                ReplyTarget::Sink(sink, number) => sink.hand_back(number, handed_back),
                sink => sink.give(Err(several())),
            }
        }
        if after.waiting.is_empty() {
            return;
        }
        let (waiting, tray) = (
            after.waiting,
            self.reply_thread.tray(
                self.counters.clone(),
                self.core.workers + 1,
                self.is_claimable(),
            ),
        );
        self.engine.on_durable(after.position, Box::new(move |result| tray.give(waiting, &result)));
    }

    /// Takes every worker's state, in order.
    pub(super) fn hold_all(&self) -> AllWorkers<'_> {
        let states = self.workers.iter().rev().take(1).chain(&self.workers[..self.core.workers]);
        AllWorkers {
            node: self,
            states: states.map(|worker| worker.worker_state.lock()).collect(),
            serves: true,
        }
    }

    /// As [`Node::hold_all`], for a member, which has locks of its own: what comes meanwhile waits
    /// for [`Node::drive_due`]. A node that reads a snapshot serves it at the end: no member drives
    /// it, and its replies only wake threads.
    pub(super) fn hold_quietly(&self) -> AllWorkers<'_> {
        let mut held = self.hold_all();
        held.serves = self.core.is_snapshot;
        held
    }

    /// Serves what came while a member held every worker's state, and what it brought; for others
    /// not for ever. False if nothing was due: else it has to be called again.
    pub fn drive_due(&self) -> bool {
        let due = self.due.swap(false, Ordering::AcqRel);
        if due
            && self.drive_some((1 << self.workers.len()) - 1, self.workers.len() + ROUNDS_MAX) != 0
        {
            self.due.store(true, Ordering::Release);
        }
        due
    }
}

/// Every worker's state. Letting go of it serves what came meanwhile.
pub struct AllWorkers<'a> {
    node: &'a Node,
    states: Vec<MutexGuard<'a, WorkerState>>,
    serves: bool,
}

impl AllWorkers<'_> {
    /// The memory of the worker for exclusive batches, which has the first role.
    pub fn exclusive(&mut self) -> &mut WorkerState {
        &mut self.states[0]
    }
}

impl Drop for AllWorkers<'_> {
    fn drop(&mut self) {
        self.states.clear();
        if self.serves {
            self.node.drive((1 << self.node.workers.len()) - 1);
        } else {
            self.node.due.store(true, Ordering::Release);
        }
    }
}

/// What a caller hears that cannot be told that several nodes are concerned.
pub(super) fn several() -> Outcome {
    FsError::new(libc::ENOTSUP, "metadata: this concerns several nodes").into()
}

fn take_slot() -> Arc<ReplySlot> {
    SLOT.take().unwrap_or_default()
}
