//! The batch pipeline: prefetch, execute in order, commit, and what each request gets to hear.
//!
//! 1. **Plan.** Every operation runs dry, which names the rows it needs. A path that many share is
//!    walked once ([`crate::walks`]), and where it led is kept for when the operation runs
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

use crate::effects::{Effects, Mark};
use crate::ids::{Allocator, Block, Timestamps};
use crate::lease::LeaseView;
use crate::lease::PROMISE;
use crate::ops::{self, RunsOn};
use crate::owners::{MapView, Owners};
use crate::rows::{Rows, Scope};
use crate::txn::{self, Told};
use crate::view::{Core, Planned, Route, Run, Stop, View};
use crate::walks::Walks;
use crate::worker::{NotAloneReason, QueuedRequest};
use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};

/// After so many stops for rows a batch plans only the operation that stopped, not the whole rest
/// again.
const REPLANS_MAX: usize = 4;

/// How an engine's error looks to a client.
pub fn engine_error(error: EngineError) -> FsError {
    match error {
        EngineError::NoSpace => FsError::because(libc::ENOSPC, error.to_string()),
        other => FsError::because(libc::EIO, other.to_string()),
    }
}

/// What batches run on.
#[derive(Clone, Copy)]
pub struct Means<'a> {
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
    /// Worker whose role is held, or the number of workers if all are.
    pub worker: usize,
}

/// A worker's memory as a batch uses it.
pub struct Desk<'a> {
    /// Rows.
    pub rows: &'a mut Rows,
    /// Effects.
    pub effects: &'a mut Effects,
    /// Inode numbers to give out.
    pub ids: &'a mut Block,
    /// Paths walked lately.
    pub walks: &'a mut Walks,
}

/// How a request ended.
pub enum Verdict {
    /// With this reply.
    Reply(Reply),
    /// It has to run elsewhere.
    Move(RunsOn, Route),
    /// Rows of this file have to be deleted first, from this chunk on.
    Sweep(InodeId, u64),
    /// It concerns other nodes too: its sender hears why.
    Elsewhere(NotAloneReason),
}

/// A request's end.
pub struct Step {
    /// How it ended.
    pub verdict: Verdict,
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
    means: &Means<'_>,
    desk: &mut Desk<'_>,
    jobs: &[QueuedRequest],
    steps: &mut Vec<Step>,
) -> UsageChange {
    let first = steps.len();
    if !means.lease_view.may_begin() {
        hand_back(jobs.len(), &NotAloneReason::Unleased, first, steps);
        return [0; 3];
    }
    let stamp = means.stamps.tick(means.engine, means.now);
    // Any other failure is that of an operation that finds no number left.
    let filled = desk.ids.fill(jobs.len() as u64, means.inodes, means.engine);
    if let Some(why) = taken_over(means, &filled) {
        hand_back(jobs.len(), &why, first, steps);
        return [0; 3];
    }
    let result = execute(means, desk, jobs, *stamp.as_ref().unwrap_or(&0), steps)
        // Without a timestamp nothing may change, but reads are as good as ever.
        .and_then(|()| if desk.rows.is_dirty() { stamp.map(drop) } else { Ok(()) });
    if result.is_ok() && means.lease_view.is_always_asked() {
        for step in &mut steps[first..] {
            if matches!(&step.verdict, Verdict::Reply(reply) if is_lost(means.engine, reply)) {
                step.verdict = Verdict::Elsewhere(NotAloneReason::Later);
            }
        }
    }
    let may_end = means.lease_view.may_end();
    let result = match result {
        Ok(()) if may_end => commit(means, desk, jobs, &mut steps[first..]),
        other => other,
    };
    let taken = if may_end { taken_over(means, &result) } else { Some(NotAloneReason::Unleased) };
    let usage = match result {
        _ if taken.is_some() => {
            desk.effects.back_to(&Mark::default(), &means.core.opens);
            hand_back(jobs.len(), taken.as_ref().unwrap_or(&NotAloneReason::Later), first, steps);
            [0; 3]
        }
        Ok(()) => std::mem::take(&mut desk.effects.usage),
        Err(error) => {
            desk.effects.back_to(&Mark::default(), &means.core.opens);
            if jobs.len() > 1 && is_worth_single_runs(&error, jobs) {
                steps.truncate(first);
                let mut sum: UsageChange = [0; 3];
                for job in jobs {
                    let change = run(means, desk, std::slice::from_ref(job), steps);
                    sum = std::array::from_fn(|i| sum[i].wrapping_add(change[i]));
                }
                return sum;
            }
            fail_all(jobs.len(), &error, first, steps);
            [0; 3]
        }
    };
    desk.rows.clear();
    desk.effects.clear();
    usage
}

/// Whether the store was lost to another process, which may be asked in a moment, or does not
/// answer: nothing of the batch has happened.
fn taken_over(means: &Means<'_>, result: &Result<(), EngineError>) -> Option<NotAloneReason> {
    let lost = match result {
        Err(EngineError::Fenced { .. } | EngineError::Refused(_)) => means.lease_view.is_always_asked(),
        Err(EngineError::Io(_)) => means.lease_view.is_always_asked() && is_away(means.engine),
        Err(EngineError::NoSpace | EngineError::Corrupt(_)) | Ok(()) => false,
    };
    lost.then_some(NotAloneReason::Later)
}

/// Whether the store is lost to this process: one that takes another batch is not.
fn takes_nothing(engine: &dyn Engine) -> bool {
    engine.commit(BatchKind::Freeing, Vec::new()).is_err()
}

/// Whether the store is lost to this process, or has not answered for so long that this node has no
/// lease: then a read in a hurry ([`kestrel_engine::Hurry`]) has failed by that.
fn is_away(engine: &dyn Engine) -> bool {
    engine.silence() > Duration::from_nanos(PROMISE.unsigned_abs()) || takes_nothing(engine)
}

/// Whether something failed by itself because the store is lost, or does not answer.
pub fn is_lost(engine: &dyn Engine, reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::EIO) && is_away(engine)
}

/// Nothing of the batch has happened, and its senders hear why.
#[cold]
fn hand_back(count: usize, why: &NotAloneReason, first: usize, steps: &mut Vec<Step>) {
    steps.truncate(first);
    let handed = || Step {
        verdict: Verdict::Elsewhere(why.clone()),
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
fn fail_all(count: usize, error: &EngineError, first: usize, steps: &mut Vec<Step>) {
    let failed = || Verdict::Reply(Err(Outcome::Failed(engine_error(error.clone()))));
    for step in &mut steps[first..] {
        if step.changed || step.session || step.depends {
            step.verdict = failed();
            step.wait = 0;
        }
    }
    while steps.len() < first + count {
        steps.push(Step { verdict: failed(), wait: 0, changed: false, session: false, depends: false });
    }
}

/// A batch broke off in the middle: undoes what can be undone, forgets its rows, and fails every
/// operation.
#[cold]
pub fn abandon(means: &Means<'_>, desk: &mut Desk<'_>, count: usize, steps: &mut Vec<Step>) {
    desk.effects.back_to(&Mark::default(), &means.core.opens);
    desk.effects.clear();
    *desk.rows = Rows::default();
    steps.clear();
    let error = EngineError::Io("metadata: an operation broke off by a bug; run kestrel fsck".into());
    fail_all(count, &error, 0, steps);
}

/// Runs one operation.
fn attempt(
    means: &Means<'_>,
    desk: &mut Desk<'_>,
    job: &QueuedRequest,
    told: Option<&Told>,
    planned: &mut Option<Planned>,
    stamp: u64,
    dry: bool,
) -> (Run<kestrel_types::request::Answer>, Position, bool) {
    let mut view = View {
        rows: desk.rows,
        core: means.core,
        table: means.table,
        lease_view: means.lease_view,
        effects: desk.effects,
        ids: desk.ids,
        walks: desk.walks,
        worker: means.worker,
        now: means.now,
        stamp,
        dry,
        route: &job.route,
        planned,
        wait: 0,
        depends: false,
        no_dirs: None,
    };
    let result = match (told, &job.claim) {
        (Some(told), _) => ops::open::again(&mut view, &job.request.op, told),
        (None, Some(claim)) => ops::open::claim(&mut view, &job.request.op, *claim),
        (None, None) => ops::execute(&mut view, &job.request),
    };
    (result, view.wait, view.depends)
}

fn execute(
    means: &Means<'_>,
    desk: &mut Desk<'_>,
    jobs: &[QueuedRequest],
    stamp: u64,
    steps: &mut Vec<Step>,
) -> Result<(), EngineError> {
    desk.rows.clear();
    desk.effects.clear();
    let told = txn::recall(means.engine, jobs)?;
    let told = |number: usize| told.get(number).and_then(Option::as_ref);
    let mut planned = vec![None; jobs.len()];
    for (number, job) in jobs.iter().enumerate() {
        let _plan = attempt(means, desk, job, told(number), &mut planned[number], stamp, true);
    }
    let cluster = means.core.cluster.as_deref();
    let scope = cluster.zip(means.table).map(|(cluster, table)| {
        let Owners { locks, leased, .. } = cluster;
        Scope { table, locks, leased }
    });
    desk.rows.fetch(means.engine, scope, means.core.scan_rows)?;
    let mut stops = 0;
    for (number, job) in jobs.iter().enumerate() {
        loop {
            let mark = desk.effects.mark();
            let (result, wait, depends) =
                attempt(means, desk, job, told(number), &mut planned[number], stamp, false);
            let result = match scope {
                None => result,
                Some(scope) => result.and_then(|answer| within(scope, desk).map(|()| answer)),
            };
            let (mut changed, mut session) = (false, false);
            let verdict = match result {
                Ok(answer) => {
                    changed = desk.rows.keep();
                    session = desk.effects.session_changed_since(&mark);
                    Some(Verdict::Reply(Ok(answer)))
                }
                Err(stop) => {
                    desk.rows.rollback();
                    desk.effects.back_to(&mark, &means.core.opens);
                    verdict_of(stop)
                }
            };
            if let Some(verdict) = verdict {
                steps.push(Step { verdict, wait, changed, session, depends });
                break;
            }
            if !desk.rows.lacks() {
                let error =
                    FsError::new(libc::EIO, "metadata: an operation stopped without asking for a row");
                let verdict = Verdict::Reply(Err(Outcome::Failed(error)));
                steps.push(Step { verdict, wait, changed, session, depends });
                break;
            }
            stops += 1;
            let rest = if stops <= REPLANS_MAX { number + 1..jobs.len() } else { 0..0 };
            for later in rest {
                let _plan = attempt(means, desk, &jobs[later], told(later), &mut planned[later], stamp, true);
            }
            desk.rows.fetch(means.engine, scope, means.core.scan_rows)?;
        }
    }
    Ok(())
}

/// Stops an operation that changed what a batch of one of several nodes must not: rows of others,
/// rows that are lent, and directories that others may know.
fn within(scope: Scope<'_>, desk: &mut Desk<'_>) -> Run<()> {
    if !desk.effects.dirs_changed.is_empty() && !scope.table.is_alone() {
        // No operation before it in the batch got through with such a change.
        desk.effects.dirs_changed.clear();
        return Err(Stop::Away);
    }
    desk.rows.trespass(scope).map_or(Ok(()), Err)
}

/// What a stop means for the request; `None` if it has to run again.
fn verdict_of(stop: Stop) -> Option<Verdict> {
    match stop {
        Stop::Need => None,
        Stop::Exclusive => Some(Verdict::Move(RunsOn::Exclusive, Route::AsAsked)),
        Stop::Forward(worker, route) => Some(Verdict::Move(RunsOn::Worker(worker), route)),
        Stop::Unswept(ino, first) => Some(Verdict::Sweep(ino, first)),
        Stop::Away => Some(Verdict::Elsewhere(NotAloneReason::Away)),
        Stop::Locked => Some(Verdict::Elsewhere(NotAloneReason::Locked)),
        Stop::Dentry(want) => Some(Verdict::Elsewhere(NotAloneReason::Dentry(want))),
        Stop::Unleased => Some(Verdict::Elsewhere(NotAloneReason::Unleased)),
        Stop::Sum(dir) => Some(Verdict::Elsewhere(NotAloneReason::Sum(dir))),
        Stop::Leased(dir) => Some(Verdict::Elsewhere(NotAloneReason::Leased(dir))),
        Stop::Fail(error) => Some(Verdict::Reply(Err(Outcome::Failed(error)))),
        Stop::Out(outcome) => Some(Verdict::Reply(Err(*outcome))),
    }
}

fn commit(
    means: &Means<'_>,
    desk: &mut Desk<'_>,
    jobs: &[QueuedRequest],
    steps: &mut [Step],
) -> Result<(), EngineError> {
    let mut position = 0;
    if desk.rows.is_dirty() {
        for (dir, _) in &desk.effects.dirs_made {
            for table in [Table::Entry, Table::DirStat, Table::Subdir] {
                means.engine.hint_new(table, dir.ino);
            }
        }
        let mut mutations = desk.rows.mutations();
        mutations.extend(answers(jobs, steps));
        if !mutations.is_empty() {
            let growing =
                steps.iter().zip(jobs).any(|(step, job)| step.changed && !ops::is_freeing(&job.request.op));
            let kind = if growing { BatchKind::Growing } else { BatchKind::Freeing };
            let links = means.core.link_news(&mutations);
            crash::point("node.commit.before");
            position = means.engine.commit(kind, mutations)?;
            crash::point("node.commit.after");
            means.core.note_links(links);
        }
    }
    take_effect(means.core, desk.effects, position);
    for step in steps.iter_mut().filter(|step| step.changed || step.depends) {
        step.wait = step.wait.max(position);
    }
    Ok(())
}

/// Rows for the answers to numbered requests that changed something.
fn answers(jobs: &[QueuedRequest], steps: &[Step]) -> impl Iterator<Item = Mutation> {
    let steps = jobs.iter().zip(steps).filter(|(_, step)| step.changed);
    steps.filter_map(|(job, step)| match (job.origin, &step.verdict) {
        (Some(origin), Verdict::Reply(reply)) => Some(txn::answer_row(origin, reply)),
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
    for (ino, first) in effects.sweeps.drain(..) {
        core.sweeps.set(ino, first);
    }
    for (ino, moved) in effects.moved.drain(..) {
        core.moved.set(ino, moved, &core.opens);
    }
}
