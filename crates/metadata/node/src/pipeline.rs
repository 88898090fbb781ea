//! The batch pipeline: prefetch, execute in order, commit, and what each request gets to hear.
//!
//! 1. **Plan.** Every operation runs dry, which names the rows it needs. A path that many share is
//!    walked once ([`crate::path_cache`]), and where it led is kept for when the operation runs
//!    ([`crate::view::Planned`]).
//! 2. **Prefetch.** One multi-get for all of them.
//! 3. **Execute** in order; each sees what those before it changed. One that finds it needs more
//!    rows is undone, the rest of the batch is planned again, and it goes on after another fetch.
//! 4. **Commit** all changes as one atomic batch, with the answers to numbered requests
//!    ([`crate::txn`]): of those that may have been executed before, the answers of then were
//!    looked up first.
//!
//! If the commit fails, nothing has happened: session state is put back, and every operation that
//! changed something, or saw a change of this batch, fails with the engine's error. A batch that
//! did not fit the disk is run again one by one, so that operations that free space get through and
//! others fail alone.

use std::time::Duration;

use kestrel_types::clock::Nanos;
use kestrel_types::crash;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::key::Table;
use kestrel_types::request::{Outcome, Reply};
use kestrel_types::snapshot::SnapshotId;

use crate::effects::{Effects, Mark};
use crate::feeds::stamp_events;
use crate::ids::{Allocator, Block, Timestamps};
use crate::lease::{LeaseView, PROMISE};
use crate::ops::{self, RunsOn};
use crate::owners::{MapView, Owners};
use crate::path_cache::PathCache;
use crate::rows::{BatchRows, Scope};
use crate::stop::{Route, Run, Stop, engine_error};
use crate::txn::{self, RecordedReply};
use crate::view::{Core, Planned, View};
use crate::worker::{NotAloneReason, QueuedRequest};
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};

/// After so many stops for rows a batch plans only the operation that stopped, not the whole rest
/// again.
const REPLANS_MAX: usize = 4;

/// What batches run on.
#[derive(Clone, Copy)]
pub struct BatchContext<'a> {
    /// The store.
    pub engine: &'a dyn Engine,
    /// What workers share.
    pub core: &'a Core,
    /// The placement map, of several nodes.
    pub table: Option<&'a MapView>,
    /// The lease as this batch sees it.
    pub lease_view: &'a LeaseView<'a>,
    /// Inode numbers.
    pub inodes: &'a Allocator,
    /// Timestamps.
    pub stamps: &'a Timestamps,
    /// The time.
    pub now: Nanos,
    /// Worker with the role that is held, or the number of workers if all are.
    pub worker: usize,
}

/// A worker's memory as a batch uses it.
pub struct BatchScratch<'a> {
    /// Rows.
    pub rows: &'a mut BatchRows,
    /// Effects.
    pub effects: &'a mut Effects,
    /// Inode numbers to give out.
    pub ids: &'a mut Block,
    /// Paths walked lately.
    pub walks: &'a mut PathCache,
}

/// How a request ended.
pub enum StepOutcome {
    /// With this reply.
    Reply(Reply),
    /// It has to run elsewhere.
    Move(RunsOn, Route),
    /// Rows of this file have to be deleted first, from this chunk on.
    Sweep(InodeId, u64),
    /// This directory has to get the names first that it lacks as a part of a clone.
    Based(InodeId),
    /// This directory has to be read first, as it was at the snapshot.
    CloneSource(InodeId, SnapshotId),
    /// It concerns other nodes too: its sender hears why.
    Elsewhere(NotAloneReason),
}

/// A request's end.
pub struct BatchStep {
    /// How it ended.
    pub verdict: StepOutcome,
    /// Position that must be durable before anybody may see it in mode `commit`; 0 if there is
    /// nothing to wait for.
    pub wait: Position,
    /// It changed rows.
    changed: bool,
    /// It changed session state, which goes with the batch.
    session: bool,
    /// It saw what the batch changed.
    depends: bool,
}

/// What batches do to the volume's figures; files, directories, bytes.
pub type UsageChange = [i64; 3];

/// Runs the jobs as one batch; one step a job in `steps`.
pub fn run(
    context: &BatchContext<'_>,
    scratch: &mut BatchScratch<'_>,
    jobs: &[QueuedRequest],
    steps: &mut Vec<BatchStep>,
) -> UsageChange {
    let first = steps.len();
    let _until_committed = context.core.feeds.begin(context.worker, || context.stamps.last());
    if !context.lease_view.may_begin() {
        hand_back(jobs.len(), &NotAloneReason::Unleased, first, steps);
        return [0; 3];
    }
    let stamp = context.stamps.tick(context.engine, context.now);
    // Any other failure is that of an operation that finds no number left.
    let filled = scratch.ids.fill(jobs.len() as u64, context.inodes, context.engine);
    if let Some(why) = taken_over(context, &filled) {
        hand_back(jobs.len(), &why, first, steps);
        return [0; 3];
    }
    let result = execute(context, scratch, jobs, *stamp.as_ref().unwrap_or(&0), steps)
        // Without a timestamp nothing may change, but reads are as good as ever.
        .and_then(|()| if scratch.rows.is_dirty() { stamp.map(drop) } else { Ok(()) });
    if result.is_ok() && context.lease_view.is_always_asked() {
        for step in &mut steps[first..] {
            if matches!(&step.verdict, StepOutcome::Reply(reply) if is_lost(context.engine, reply))
            {
                step.verdict = StepOutcome::Elsewhere(NotAloneReason::Later);
            }
        }
    }
    let may_end = context.lease_view.may_end();
    let result = match result {
        Ok(()) if may_end => commit(context, scratch, jobs, &mut steps[first..]),
        other => other,
    };
    let taken = if may_end { taken_over(context, &result) } else { Some(NotAloneReason::Unleased) };
    let usage = match result {
        _ if taken.is_some() => {
            scratch.effects.back_to(&Mark::default(), &context.core.opens);
            hand_back(jobs.len(), taken.as_ref().unwrap_or(&NotAloneReason::Later), first, steps);
            [0; 3]
        }
        Ok(()) => std::mem::take(&mut scratch.effects.usage),
        Err(error) => {
            scratch.effects.back_to(&Mark::default(), &context.core.opens);
            if jobs.len() > 1 && is_worth_single_runs(&error, jobs) {
                steps.truncate(first);
                let mut sum: UsageChange = [0; 3];
                for job in jobs {
                    let change = run(context, scratch, std::slice::from_ref(job), steps);
                    sum = std::array::from_fn(|i| sum[i].wrapping_add(change[i]));
                }
                return sum;
            }
            fail_all(jobs.len(), &error, first, steps);
            [0; 3]
        }
    };
    scratch.rows.clear();
    scratch.effects.clear();
    usage
}

/// Whether the store was lost to another process, which may be asked in a moment, or does not
/// answer: nothing of the batch has happened.
fn taken_over(
    context: &BatchContext<'_>,
    result: &Result<(), EngineError>,
) -> Option<NotAloneReason> {
    let lost = match result {
        Err(EngineError::Fenced { .. } | EngineError::Refused(_)) => {
            context.lease_view.is_always_asked()
        }
        Err(EngineError::Io(_)) => context.lease_view.is_always_asked() && is_away(context.engine),
        Err(EngineError::NoSpace | EngineError::Corrupt(_)) | Ok(()) => false,
    };
    lost.then_some(NotAloneReason::Later)
}

/// Whether the store is lost to this process: one that takes another batch is not.
fn takes_nothing(engine: &dyn Engine) -> bool {
    engine.commit(BatchKind::Freeing, Vec::new()).is_err()
}

/// Whether the store is lost to this process, or has not answered for so long that this node has no
/// lease: then a read in a hurry ([`kestrel_engine::LatencyHint`]) has failed by that.
fn is_away(engine: &dyn Engine) -> bool {
    engine.silence() > Duration::from_nanos(PROMISE.unsigned_abs()) || takes_nothing(engine)
}

/// Whether something failed by itself because the store is lost, or does not answer.
pub fn is_lost(engine: &dyn Engine, reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::EIO) && is_away(engine)
}

/// Nothing of the batch has happened, and its senders hear why.
#[cold]
fn hand_back(count: usize, why: &NotAloneReason, first: usize, steps: &mut Vec<BatchStep>) {
    steps.truncate(first);
    let handed = || BatchStep {
        verdict: StepOutcome::Elsewhere(why.clone()),
        wait: 0,
        changed: false,
        session: false,
        depends: false,
    };
    steps.extend(std::iter::repeat_with(handed).take(count));
}

/// Whether some of the operations may succeed alone though the batch failed.
fn is_worth_single_runs(error: &EngineError, jobs: &[QueuedRequest]) -> bool {
    match error {
        EngineError::NoSpace => jobs.iter().any(|job| ops::is_freeing(&job.request.op)),
        // One damaged or unreadable row must not fail its neighbours.
        EngineError::Io(_) | EngineError::Corrupt(_) => true,
        EngineError::Refused(_) | EngineError::Fenced { .. } => false,
    }
}

/// Every operation that has not ended without the failed commit fails with it.
fn fail_all(count: usize, error: &EngineError, first: usize, steps: &mut Vec<BatchStep>) {
    let failed = || StepOutcome::Reply(Err(Outcome::Failed(engine_error(error.clone()))));
    for step in &mut steps[first..] {
        if step.changed || step.session || step.depends {
            step.verdict = failed();
            step.wait = 0;
        }
    }
    while steps.len() < first + count {
        steps.push(BatchStep {
            verdict: failed(),
            wait: 0,
            changed: false,
            session: false,
            depends: false,
        });
    }
}

/// A batch broke off in the middle: undoes what can be undone, forgets its rows, and fails every
/// operation.
#[cold]
pub fn abandon(
    context: &BatchContext<'_>,
    scratch: &mut BatchScratch<'_>,
    count: usize,
    steps: &mut Vec<BatchStep>,
) {
    scratch.effects.back_to(&Mark::default(), &context.core.opens);
    scratch.effects.clear();
    *scratch.rows = BatchRows::default();
    steps.clear();
    let error =
        EngineError::Io("metadata: an operation broke off by a bug; run kestrel fsck".into());
    fail_all(count, &error, 0, steps);
}

/// Runs one operation.
fn attempt(
    context: &BatchContext<'_>,
    scratch: &mut BatchScratch<'_>,
    job: &QueuedRequest,
    told: Option<&RecordedReply>,
    planned: &mut Option<Planned>,
    stamp: u64,
    dry: bool,
) -> (Run<kestrel_types::request::Answer>, Position, bool) {
    let mut view = View {
        rows: scratch.rows,
        core: context.core,
        table: context.table,
        lease_view: context.lease_view,
        effects: scratch.effects,
        ids: scratch.ids,
        walks: scratch.walks,
        worker: context.worker,
        now: context.now,
        stamp,
        dry,
        route: &job.route,
        planned,
        wait: 0,
        depends: false,
        no_dirs: None,
    };
    let mut result = match (told, &job.claim) {
        (Some(told), _) => ops::open::again(&mut view, &job.request.op, told),
        (None, Some(claim)) => ops::open::claim(&mut view, &job.request.op, *claim),
        (None, None) => ops::execute(&mut view, &job.request),
    };
    if !dry
        && result.is_ok()
        && let Err(stop) = view.note_feed_events(&job.request)
    {
        result = Err(stop);
    }
    if !dry
        && view.core.quotas.in_use()
        && result.is_ok()
        && let Err(stop) = view.charge_quotas(&job.request)
    {
        result = Err(stop);
    }
    (result, view.wait, view.depends)
}

fn execute(
    context: &BatchContext<'_>,
    scratch: &mut BatchScratch<'_>,
    jobs: &[QueuedRequest],
    stamp: u64,
    steps: &mut Vec<BatchStep>,
) -> Result<(), EngineError> {
    scratch.rows.clear();
    scratch.effects.clear();
    let told = txn::recall(context.engine, jobs.iter().map(|job| job.origin))?;
    let told = |number: usize| told.get(number).and_then(Option::as_ref);
    let mut planned: Vec<Option<Planned>> = jobs.iter().map(|_| None).collect();
    for (number, job) in jobs.iter().enumerate() {
        let _plan = attempt(context, scratch, job, told(number), &mut planned[number], stamp, true);
    }
    let cluster = context.core.cluster.as_deref();
    let scope = cluster.zip(context.table).map(|(cluster, table)| {
        let Owners { locks, leased, .. } = cluster;
        Scope { table, locks, leased, stopped: cluster.is_stopped() }
    });
    scratch.rows.fetch(context.engine, scope, context.core.scan_rows)?;
    let mut stops = 0;
    for (number, job) in jobs.iter().enumerate() {
        if !scratch.effects.snapshots.is_empty() {
            // What changes after a snapshot, or after the source of a clone was read, has another
            // timestamp.
            let again = StepOutcome::Move(RunsOn::Exclusive, job.route.clone());
            let (wait, no) = (0, false);
            steps.push(BatchStep { verdict: again, wait, changed: no, session: no, depends: no });
            continue;
        }
        loop {
            let (mark, first_id) = (scratch.effects.mark(), scratch.ids.mark());
            let (result, wait, depends) =
                attempt(context, scratch, job, told(number), &mut planned[number], stamp, false);
            let result = match scope {
                None => result,
                Some(scope) => result.and_then(|answer| within(scope, scratch).map(|()| answer)),
            };
            let (mut changed, mut session) = (false, false);
            let verdict = match result {
                Ok(answer) => {
                    changed = scratch.rows.keep();
                    session = scratch.effects.session_changed_since(&mark);
                    Some(StepOutcome::Reply(Ok(answer)))
                }
                Err(stop) => {
                    scratch.rows.rollback();
                    scratch.effects.back_to(&mark, &context.core.opens);
                    scratch.ids.back_to(first_id);
                    verdict_of(stop)
                }
            };
            if let Some(verdict) = verdict {
                steps.push(BatchStep { verdict, wait, changed, session, depends });
                break;
            }
            if !scratch.rows.lacks() {
                let error = FsError::new(
                    libc::EIO,
                    "metadata: an operation stopped without asking for a row",
                );
                let verdict = StepOutcome::Reply(Err(Outcome::Failed(error)));
                steps.push(BatchStep { verdict, wait, changed, session, depends });
                break;
            }
            stops += 1;
            let rest = if stops <= REPLANS_MAX { number + 1..jobs.len() } else { 0..0 };
            for later in rest {
                let _plan = attempt(
                    context,
                    scratch,
                    &jobs[later],
                    told(later),
                    &mut planned[later],
                    stamp,
                    true,
                );
            }
            scratch.rows.fetch(context.engine, scope, context.core.scan_rows)?;
        }
    }
    Ok(())
}

/// Stops an operation that changed what a batch of one of several nodes must not: rows of others,
/// rows that are lent, and directories that others may know.
fn within(scope: Scope<'_>, scratch: &mut BatchScratch<'_>) -> Run<()> {
    if !scratch.effects.dirs_changed.is_empty() && !scope.table.is_alone() {
        // No operation before it in the batch got through with such a change.
        scratch.effects.dirs_changed.clear();
        return Err(Stop::Away);
    }
    scratch.rows.trespass(scope).map_or(Ok(()), Err)
}

/// What a stop means for the request; `None` if it has to run again.
fn verdict_of(stop: Stop) -> Option<StepOutcome> {
    match stop {
        Stop::Need => None,
        Stop::Exclusive => Some(StepOutcome::Move(RunsOn::Exclusive, Route::AsAsked)),
        Stop::Forward(worker, route) => Some(StepOutcome::Move(RunsOn::Worker(worker), route)),
        Stop::Unswept(ino, first) => Some(StepOutcome::Sweep(ino, first)),
        Stop::Based(dir) => Some(StepOutcome::Based(dir)),
        Stop::CloneSource(dir, at) => Some(StepOutcome::CloneSource(dir, at)),
        Stop::Away => Some(StepOutcome::Elsewhere(NotAloneReason::Away)),
        Stop::Locked => Some(StepOutcome::Elsewhere(NotAloneReason::Locked)),
        Stop::Dentry(want) => Some(StepOutcome::Elsewhere(NotAloneReason::Dentry(want))),
        Stop::Unleased => Some(StepOutcome::Elsewhere(NotAloneReason::Unleased)),
        Stop::Sum(dir) => Some(StepOutcome::Elsewhere(NotAloneReason::Sum(dir))),
        Stop::Leased(dir) => Some(StepOutcome::Elsewhere(NotAloneReason::Leased(dir))),
        Stop::Stopped => Some(StepOutcome::Elsewhere(NotAloneReason::Stopped)),
        Stop::Cut => Some(StepOutcome::Elsewhere(NotAloneReason::Cut)),
        Stop::QuotaPart(want) => Some(StepOutcome::Elsewhere(NotAloneReason::QuotaPart(want))),
        Stop::Quotas(of) => Some(StepOutcome::Elsewhere(NotAloneReason::Quotas(of))),
        Stop::Fail(error) => Some(StepOutcome::Reply(Err(Outcome::Failed(error)))),
        Stop::Out(outcome) => Some(StepOutcome::Reply(Err(*outcome))),
    }
}

fn commit(
    context: &BatchContext<'_>,
    scratch: &mut BatchScratch<'_>,
    jobs: &[QueuedRequest],
    steps: &mut [BatchStep],
) -> Result<(), EngineError> {
    let mut position = 0;
    if scratch.rows.is_dirty() {
        for (dir, _) in &scratch.effects.dirs_made {
            for table in [Table::Entry, Table::DirStat, Table::Subdir] {
                context.engine.hint_new(table, dir.ino);
            }
        }
        let effects = &mut *scratch.effects;
        let more = effects.charges.count() + effects.feed_rows.len();
        let mut mutations = scratch.rows.mutations(more);
        mutations.extend(answers(jobs, steps));
        effects.charges.rows(context.worker, &mut mutations);
        if !effects.feed_rows.is_empty() {
            let stamp = context.stamps.tick(context.engine, context.now)?;
            stamp_events(&mut effects.feed_rows, stamp);
            mutations.append(&mut effects.feed_rows);
        }
        if !mutations.is_empty() {
            let growing = steps
                .iter()
                .zip(jobs)
                .any(|(step, job)| step.changed && !ops::is_freeing(&job.request.op));
            let kind = if growing { BatchKind::Growing } else { BatchKind::Freeing };
            let links = context.core.link_news(&mutations);
            let snapshots = &scratch.effects.snapshots;
            let makes_clone = snapshots.iter().any(|info| !info.clones.is_empty());
            crash::point("node.commit.before");
            if !scratch.effects.snapshots.is_empty() {
                crash::point("snapshot.record.before");
            }
            if makes_clone {
                crash::point("clone.record.before");
            }
            position = context.engine.commit(kind, mutations)?;
            crash::point("node.commit.after");
            if !scratch.effects.snapshots.is_empty() {
                crash::point("snapshot.record.committed");
            }
            if makes_clone {
                crash::point("clone.record.committed");
            }
            context.core.note_links(links);
        }
    }
    take_effect(context.core, scratch.effects, position);
    scratch.effects.charges.commit(context.worker);
    for step in steps.iter_mut().filter(|step| step.changed || step.depends) {
        step.wait = step.wait.max(position);
    }
    Ok(())
}

/// Rows for the answers to numbered requests that changed something.
fn answers(jobs: &[QueuedRequest], steps: &[BatchStep]) -> impl Iterator<Item = Mutation> {
    let steps = jobs.iter().zip(steps).filter(|(_, step)| step.changed);
    steps.filter_map(|(job, step)| match (job.origin, &step.verdict) {
        (Some(origin), StepOutcome::Reply(reply)) => Some(txn::answer_row(origin, reply)),
        _ => None,
    })
}

/// What happens when the batch has committed, before anybody else runs.
fn take_effect(core: &Core, effects: &mut Effects, position: Position) {
    for dir in &effects.dirs_changed {
        core.replica.remove(*dir);
    }
    for (dir, name) in effects.dirs_made.drain(..) {
        if !effects.dirs_changed.contains(&dir.ino) {
            core.replica.insert(dir, &name, position);
        }
    }
    for info in effects.snapshots.drain(..) {
        core.snapshots.put(info, position);
    }
    for (ino, first) in effects.sweeps.drain(..) {
        core.sweeps.set(ino, first);
    }
    for (ino, moved) in effects.moved.drain(..) {
        core.moved.set(ino, moved, &core.opens);
    }
}
