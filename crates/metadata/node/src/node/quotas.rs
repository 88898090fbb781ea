//! Quotas: read at the start, made, changed, removed, and counted anew.
//!
//! All of it but reading runs with every worker's state held, so that nothing changes meanwhile.
//! What is counted is what batches charge ([`crate::quotas`]); the differences to the rows go to
//! the share of exclusive batches.
//!
//! | file | what it has |
//! | --- | --- |
//! | `quotas/count.rs` | rows of quotas, and what counts by names and inodes |
//! | `quotas/several.rs` | a node of several: the quotas it is told of, what it has counted |

mod count;
mod several;

use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::crash;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::key::Table;
use kestrel_types::quota::{
    OverSince, QUOTAS_MAX, QuotaInfo, QuotaLimits, QuotaRow, QuotaSubject, QuotaUsage,
};
use kestrel_types::request::{Answer, Creds, Outcome};
use rustc_hash::FxHashSet;

pub use count::{QuotaDifferences, compare_quotas, home_by_names};
use count::{QuotaRows, Rehome, count, count_tree, home_row, parent_of};
pub use several::{CountedFile, CountedPage, QuotaCount, QuotaPart};

use super::Node;
use crate::owners::{MapView, has_shares_of, holder_of_share};
use crate::quotas::{NewQuota, QuotaCounters, Quotas};
use crate::stop::engine_error;

/// What others than the superuser hear.
pub const NOT_ROOT: FsError = FsError::new(libc::EPERM, "only the superuser handles quotas");

/// What a limit that is too large gets.
pub const LIMIT_TOO_LARGE: FsError = FsError::new(libc::EINVAL, "a limit is at most 8 EiB - 1");

/// What one quota too many gets.
pub const TOO_MANY: FsError = FsError::new(libc::ENOSPC, "a volume has at most 4096 quotas");

/// A quota counts all that is there, and clones that are not finished have names that are not.
pub const UNFINISHED_CLONE: FsError =
    FsError::new(libc::EBUSY, "a clone is not finished yet: finish it with kestrel clone --eager");

/// The directory of a quota is none.
pub const NO_DIR: FsError =
    FsError::new(libc::ENOENT, "no such directory: a quota is of a directory");

/// There is none of the kind.
pub const NO_QUOTA: FsError = FsError::new(libc::ENOENT, "there is no such quota");

/// Differences of counters to what was counted, to be made when their rows are written.
type Changes = Vec<(Arc<QuotaCounters>, QuotaUsage)>;

/// Reads a volume's quotas: of several nodes the records that this one was told, and the shares
/// that it has.
///
/// # Errors
/// Damaged rows; the engine's.
pub fn read_quotas(
    engine: &dyn Engine,
    workers: usize,
    cluster: Option<&MapView>,
) -> FsResult<Quotas> {
    let quotas = Quotas::default();
    let new = stored_quotas(engine, workers, cluster)?;
    if !new.is_empty() {
        quotas.replace(new);
    }
    Ok(quotas)
}

/// The quotas that a node's rows have.
fn stored_quotas(
    engine: &dyn Engine,
    workers: usize,
    cluster: Option<&MapView>,
) -> FsResult<Vec<NewQuota>> {
    let mut is_any = false;
    let visited = engine.scan_table(Table::Quota, None, &mut |_, _| {
        is_any = true;
        ControlFlow::Break(())
    });
    visited.map_err(engine_error)?;
    if !is_any {
        return Ok(Vec::new());
    }
    let rows = QuotaRows::read(engine)?;
    let is_own = |share: u16| {
        let has_it = |table: &MapView| has_shares_of(&table.placement, holder_of_share(share));
        cluster.is_none_or(|table| has_it(table) == table.me)
    };
    let mut new = Vec::new();
    for (of, limits) in &rows.limits {
        let since = rows.since.get(of).copied().unwrap_or_default();
        let shares = rows.shares.get(of).map_or(&[][..], Vec::as_slice);
        let shares: Vec<_> = shares.iter().filter(|(number, _)| is_own(*number)).copied().collect();
        let me = cluster.map(|table| table.me);
        let counters = Arc::new(QuotaCounters::new(&shares, since, (workers, me)));
        let above = rows.above.get(of).copied();
        new.push(NewQuota { of: *of, limits: *limits, above, counters });
    }
    // One node of several has not the rows of all directories.
    if cluster.is_none() {
        set_above(engine, &mut new)?;
    }
    Ok(new)
}

/// Finds the next quota above that of each directory.
fn set_above(engine: &dyn Engine, quotas: &mut [NewQuota]) -> FsResult<()> {
    let subjects: FxHashSet<QuotaSubject> = quotas.iter().map(|quota| quota.of).collect();
    for quota in quotas {
        let QuotaSubject::Dir(dir) = quota.of else { continue };
        let mut at = parent_of(engine, dir)?;
        while let Some(dir) = at.filter(|dir| !subjects.contains(&QuotaSubject::Dir(*dir))) {
            at = parent_of(engine, dir)?;
        }
        quota.above = at;
    }
    Ok(())
}

impl Node {
    fn may_change_quotas(&self, creds: &Creds) -> FsResult<()> {
        if creds.uid == 0 { Ok(()) } else { Err(NOT_ROOT) }
    }

    /// Takes out those of directories that have been removed, and to which nothing is charged any
    /// more.
    fn without_removed(&self, quotas: &mut Vec<NewQuota>) -> FsResult<Vec<QuotaSubject>> {
        let mut removed = Vec::new();
        for quota in &*quotas {
            let QuotaSubject::Dir(dir) = quota.of else { continue };
            let is_empty = quota.counters.own() == QuotaUsage::default();
            if is_empty && dir != ROOT && parent_of(&*self.engine, dir)?.is_none() {
                removed.push(quota.of);
            }
        }
        quotas.retain(|quota| !removed.contains(&quota.of));
        Ok(removed)
    }

    /// The quotas that there are, to be put back with changes.
    fn known_quotas(&self) -> Vec<NewQuota> {
        let table = self.core.quotas.table();
        let known = table.all.values().map(|quota| NewQuota {
            of: quota.of,
            limits: quota.limits,
            above: quota.above.as_ref().and_then(|above| match above.of {
                QuotaSubject::Dir(dir) => Some(dir),
                _ => None,
            }),
            counters: quota.counters.clone(),
        });
        known.collect()
    }

    /// Counts, and gives the rows that make the quotas `new` say what was counted.
    fn count_for(
        &self,
        rows: &QuotaRows,
        new: &[NewQuota],
        rehome: Rehome,
    ) -> FsResult<(Changes, Vec<Mutation>)> {
        let subjects = new.iter().map(|quota| quota.of).collect();
        let counts = count(&*self.engine, &subjects, &rows.homes, rehome)?;
        let (mut changes, mut mutations) = (Vec::new(), Vec::new());
        for quota in new {
            let counted = counts.own.get(&quota.of).copied().unwrap_or_default();
            let change = counted.minus(quota.counters.own());
            if change == QuotaUsage::default() {
                continue;
            }
            let worker = self.core.workers;
            let share = quota.counters.share(worker).plus(change);
            let key = QuotaRow::Share(quota.of, worker as u16).key();
            mutations.push(Mutation { key, value: Some(share.encode()) });
            changes.push((quota.counters.clone(), change));
        }
        mutations.extend(counts.homes.iter().map(home_row));
        Ok((changes, mutations))
    }

    /// The rows by which the directory above takes what a quota has counted that goes. A file in
    /// table `link` with its bytes counted there may have names below any directory with a quota:
    /// then all is counted anew.
    fn hand_up(
        &self,
        rows: &QuotaRows,
        new: &[NewQuota],
        (dir, removed): (InodeId, &NewQuota),
    ) -> FsResult<(Changes, Vec<Mutation>)> {
        if rows.homes.values().any(|home| *home == dir) {
            return self.count_for(rows, new, Rehome::ByNames);
        }
        Ok(match removed.above {
            Some(above) => self.changed(new, vec![(above, removed.counters.own())]),
            None => Default::default(),
        })
    }

    /// What a new quota counts, and the rows that say so; what is below a directory is taken from
    /// the one above it.
    fn count_new(
        &self,
        rows: &QuotaRows,
        new: &[NewQuota],
        of: QuotaSubject,
    ) -> FsResult<(Changes, Vec<Mutation>)> {
        let subjects = new.iter().map(|quota| quota.of).collect();
        if let QuotaSubject::Dir(dir) = of
            && let Some(sum) = count_tree(&*self.engine, &subjects, dir)?
        {
            let above = new.iter().find(|quota| quota.of == of).and_then(|quota| quota.above);
            let taken = above.map(|above| (above, QuotaUsage::default().minus(sum)));
            return Ok(self.changed(new, [(dir, sum)].into_iter().chain(taken).collect()));
        }
        self.count_for(rows, new, Rehome::ByNames)
    }

    /// The rows for changes of what directories' quotas have counted.
    fn changed(
        &self,
        new: &[NewQuota],
        changes: Vec<(InodeId, QuotaUsage)>,
    ) -> (Changes, Vec<Mutation>) {
        let (worker, mut rows) = (self.core.workers, Vec::new());
        let mut made = Vec::new();
        for (dir, change) in changes {
            let of = QuotaSubject::Dir(dir);
            let Some(quota) = new.iter().find(|quota| quota.of == of) else { continue };
            let share = quota.counters.share(worker).plus(change);
            let key = QuotaRow::Share(of, worker as u16).key();
            rows.push(Mutation { key, value: Some(share.encode()) });
            made.push((quota.counters.clone(), change));
        }
        (made, rows)
    }

    fn commit_quotas(
        &self,
        kind: BatchKind,
        rows: Vec<Mutation>,
        wait: &mut Position,
    ) -> FsResult<()> {
        if rows.is_empty() {
            return Ok(());
        }
        crash::point("quota.before");
        let position = self.engine.commit(kind, rows).map_err(engine_error)?;
        crash::point("quota.committed");
        self.committed_at(position);
        *wait = position.max(*wait);
        Ok(())
    }

    fn check_quota_dir(&self, of: QuotaSubject) -> FsResult<()> {
        let QuotaSubject::Dir(dir) = of else { return Ok(()) };
        if dir == ROOT || parent_of(&*self.engine, dir)?.is_some() {
            return Ok(());
        }
        Err(NO_DIR)
    }

    /// Executes QuotaSet.
    pub(super) fn set_quota(
        &self,
        creds: &Creds,
        of: QuotaSubject,
        limits: &QuotaLimits,
        wait: &mut Position,
    ) -> Result<Answer, Outcome> {
        self.may_change_quotas(creds)?;
        if !limits.is_valid() {
            return Err(LIMIT_TOO_LARGE.into());
        }
        let _all = self.hold_all();
        let mut new = self.known_quotas();
        let record = Mutation { key: QuotaRow::Record(of).key(), value: Some(limits.encode()) };
        if let Some(quota) = new.iter_mut().find(|quota| quota.of == of) {
            quota.limits = *limits;
            self.commit_quotas(BatchKind::Growing, vec![record], wait)?;
        } else {
            if new.len() >= QUOTAS_MAX {
                return Err(TOO_MANY.into());
            }
            if self.core.snapshots.has_clones() {
                return Err(UNFINISHED_CLONE.into());
            }
            self.check_quota_dir(of)?;
            let removed = self.without_removed(&mut new)?;
            let counters = QuotaCounters::new(&[], OverSince::default(), (self.core.workers, None));
            new.push(NewQuota { of, limits: *limits, above: None, counters: Arc::new(counters) });
            set_above(&*self.engine, &mut new)?;
            let known = QuotaRows::read(&*self.engine)?;
            let (changes, mut rows) = self.count_new(&known, &new, of)?;
            rows.push(record);
            rows.extend(known.without(&removed));
            self.commit_quotas(BatchKind::Growing, rows, wait)?;
            for (counters, change) in changes {
                counters.add_share(self.core.workers, change);
            }
        }
        self.core.quotas.replace(new);
        let table = self.core.quotas.table();
        Ok(Answer::Quotas(table.all.get(&of).map(|quota| quota.info()).into_iter().collect()))
    }

    /// Executes QuotaRemove.
    pub(super) fn remove_quota(
        &self,
        creds: &Creds,
        of: QuotaSubject,
        wait: &mut Position,
    ) -> Result<Answer, Outcome> {
        self.may_change_quotas(creds)?;
        let _all = self.hold_all();
        let mut new = self.known_quotas();
        let Some(at) = new.iter().position(|quota| quota.of == of) else {
            return Err(NO_QUOTA.into());
        };
        let removed = new.swap_remove(at);
        let mut gone = self.without_removed(&mut new)?;
        set_above(&*self.engine, &mut new)?;
        let known = QuotaRows::read(&*self.engine)?;
        let (changes, mut rows) = match of {
            QuotaSubject::Dir(dir) => self.hand_up(&known, &new, (dir, &removed))?,
            _ => Default::default(),
        };
        gone.push(of);
        rows.extend(known.without(&gone));
        self.commit_quotas(BatchKind::Freeing, rows, wait)?;
        for (counters, change) in changes {
            counters.add_share(self.core.workers, change);
        }
        self.core.quotas.replace(new);
        Ok(Answer::Done)
    }

    /// Executes QuotaList of all.
    pub(super) fn list_quotas(&self, creds: &Creds) -> Result<Answer, Outcome> {
        if creds.uid != 0 {
            return Err(NOT_ROOT.into());
        }
        Ok(Answer::Quotas(self.quotas()))
    }

    /// All quotas, in order.
    pub fn quotas(&self) -> Vec<QuotaInfo> {
        let table = self.core.quotas.table();
        let mut all: Vec<QuotaInfo> = table.all.values().map(|quota| quota.info()).collect();
        all.sort_by_key(|info| info.of);
        all
    }

    /// Executes QuotaCheck.
    pub(super) fn check_quotas(
        &self,
        creds: &Creds,
        repair: bool,
        wait: &mut Position,
    ) -> Result<Answer, Outcome> {
        self.may_change_quotas(creds)?;
        let _all = self.hold_all();
        let new = self.known_quotas();
        let known = QuotaRows::read(&*self.engine)?;
        let (changes, rows) = self.count_for(&known, &new, Rehome::Never)?;
        let before = self.quotas();
        // The sums over nested quotas are made in one place: of what was counted, too.
        let apply = |sign: i64| {
            for (counters, change) in &changes {
                let (files, bytes) =
                    (change.files.wrapping_mul(sign), change.bytes.wrapping_mul(sign));
                counters.add_share(self.core.workers, QuotaUsage { files, bytes });
            }
            self.core.quotas.replace(self.known_quotas());
        };
        if repair {
            self.commit_quotas(BatchKind::Growing, rows, wait)?;
        }
        apply(1);
        let counted = self.quotas();
        if !repair {
            apply(-1);
        }
        let infos = before.into_iter().zip(counted);
        let infos = infos.map(|(was, is)| QuotaInfo { counted: Some(is.used), ..was });
        Ok(Answer::Quotas(infos.collect()))
    }
}
