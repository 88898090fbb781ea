//! Ranks: processes of a job that log their changes for themselves ([`super::ChangeLog`]), and what
//! becomes of their logs.
//!
//! A rank *joins* with its number, and gets a log: a job of its own on what the job was begun with,
//! which another process of the rank goes on with. It *finishes* when it has logged all; its log
//! becomes a part then, tables that never change. When the job is published the parts are *merged*:
//! the job becomes one that has as inputs what its server has done and the parts of its ranks, in
//! this order, on what it was begun with. So what is said of several inputs ([`merge`]) is said of
//! ranks: of two that made one name the lower rank counts, and the other one is told.
//!
//! The job's record is replaced in one put. What is left over before and behind that is removed by
//! the next one that merges or aborts.

use std::sync::Arc;

use kestrel_bucket::version::{JobRecord, RankOf, VersionId, VersionManifest, copy_aliases, merge};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::{BatchKind, BeforeSync, Engine};
use kestrel_meta::node::Node;
use kestrel_types::clock::{Clock, SystemClock};
use kestrel_types::crash;
use kestrel_types::hex::to_hex;
use kestrel_types::ids::objects_of_job;

use super::rows::{Counted, write};
use super::settle::{read_once, sealed_rows};
use super::{BegunJob, JobConflict, Jobs, NewJob, engine, job_dir, root_of};
use crate::descriptor::random;
use crate::error::VolumeError;
use crate::volume::Resources;
use crate::volume::job::{is_sealed, seal};

/// Most ranks of a job: each becomes a version below it.
pub const RANKS_MAX: u32 = 900;

/// What a rank is at.
#[derive(Debug, Clone)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its log, as the job that it is.
    pub log: JobRecord,
    /// It has finished.
    pub finished: bool,
}

/// What merging the logs of ranks has made of a job.
#[derive(Debug)]
pub struct MergedRanks {
    /// The job from now on.
    pub record: JobRecord,
    /// Ranks that were merged.
    pub ranks: usize,
    /// Names that several have made differently, as far as they are told one by one.
    pub conflicts: Vec<JobConflict>,
    /// How many of these there are.
    pub conflict_count: u64,
}

fn invalid(why: String) -> VolumeError {
    VolumeError::Invalid(why)
}

impl Jobs {
    /// A process joins a job as a rank that logs for itself: the rank's log, a new one or the one
    /// that an earlier process of the rank has left. `mounted`: the log is changed through a mount,
    /// not by a [`super::ChangeLog`].
    ///
    /// # Errors
    /// If the job is being published, has inputs that rows of its own make one tree, or the rank
    /// has finished; the store's.
    pub fn join(
        &self,
        job: &JobRecord,
        rank: u32,
        mounted: bool,
    ) -> Result<JobRecord, VolumeError> {
        self.check_job(job)?;
        if rank >= RANKS_MAX {
            return Err(invalid(format!("rank {rank}: a job has at most {RANKS_MAX} ranks")));
        }
        if job.sealed {
            return Err(invalid(format!(
                "job {} is being published, and no rank joins any more",
                job.number()
            )));
        }
        if !job.base.is_settled() {
            return Err(invalid(format!(
                "job {}: its inputs were not made one on the other, which client logging needs; \
                 make one version of them first: `kestrel job run VOLUME --input … --publish NAME \
                 -- true`",
                job.number()
            )));
        }
        if let Some(log) = self.rank_log(job, rank)? {
            if self.versions.part(&log).map_err(engine)?.is_some() {
                return Err(invalid(format!(
                    "rank {rank} of job {} has finished; a process that goes on is another rank",
                    job.number()
                )));
            }
            return check_way(log, mounted);
        }
        let log = self.begin_log(job, rank, mounted)?;
        let has_it = self.jobs.claim_rank(job.number(), rank, log.number()).map_err(engine)?;
        if has_it == log.number() {
            return Ok(log);
        }
        // Two processes were given one rank. Only one of them can open the log.
        self.remove_log(&log)?;
        match self.rank_log(job, rank)? {
            Some(log) => check_way(log, mounted),
            None => Err(invalid(format!(
                "job {} has been published or aborted meanwhile",
                job.number()
            ))),
        }
    }

    /// Fails for what is the log of a rank.
    pub(super) fn check_job(&self, job: &JobRecord) -> Result<(), VolumeError> {
        match &job.rank {
            None => Ok(()),
            Some(of) => Err(invalid(format!(
                "job {} is the log of rank {} of job {}; give that one",
                job.number(),
                of.rank,
                of.job
            ))),
        }
    }

    /// The log of a rank of this job, if it has one.
    fn rank_log(&self, job: &JobRecord, rank: u32) -> Result<Option<JobRecord>, VolumeError> {
        let number = self.jobs.rank_log(job.number(), rank).map_err(engine)?;
        let log = number.map(|number| self.jobs.find(number)).transpose().map_err(engine)?;
        let is_its = |log: &JobRecord| log.rank.as_ref().is_some_and(|of| of.id == job.id);
        Ok(log.flatten().filter(is_its))
    }

    /// Makes the log of a rank.
    fn begin_log(
        &self,
        job: &JobRecord,
        rank: u32,
        mounted: bool,
    ) -> Result<JobRecord, VolumeError> {
        let id: VersionId = random()?;
        let mut base = job.base.clone();
        base.job = self.jobs.take_number().map_err(engine)?;
        let name = log_name(&job.name, rank);
        let volume = self.versions.volume();
        let mut log = JobRecord::new((volume, &id), &name, job.inputs.clone(), base);
        log.created = SystemClock.now();
        log.user = job.user;
        log.begun_by.clone_from(&job.begun_by);
        log.rank = Some(RankOf { job: job.number(), id: job.id.clone(), rank, mounted });
        self.jobs.add(&log).map_err(engine)?;
        copy_aliases(self.versions.place(), &job.id_bytes(), &id, log.base.aliases)
            .map_err(engine)?;
        self.jobs.create_rows(&log).map_err(engine)?;
        let nothing: BeforeSync = Arc::new(|| Ok(()));
        let opened = self.jobs.open(&log, BucketOptions::default(), nothing).map_err(engine)?;
        let root = root_of(&opened, &log, 0)?;
        let numbers = (log.base.first_number(), objects_of_job(log.number()).start);
        let rows = Node::rows_of_tree(root, Some([0; 3]), 1, numbers);
        opened.commit(BatchKind::Growing, rows).map_err(engine)?;
        opened.settle().map_err(engine)?;
        Ok(log)
    }

    /// Opens the rows of a rank's log.
    pub(super) fn open_log(
        &self,
        log: &JobRecord,
        options: BucketOptions,
        before_sync: BeforeSync,
    ) -> Result<BucketEngine, VolumeError> {
        let opened = self.jobs.open(log, options, before_sync).map_err(engine)?;
        match is_sealed(&opened).map_err(engine)? {
            false => Ok(opened),
            true => Err(invalid(format!(
                "job {}: this rank has finished, and logs nothing any more",
                log.number()
            ))),
        }
    }

    /// The ranks of a job that have joined, in order.
    ///
    /// # Errors
    /// The store's, and those of records that cannot be read.
    pub fn ranks(&self, job: &JobRecord) -> Result<Vec<Rank>, VolumeError> {
        let mut ranks = Vec::new();
        for (rank, _) in self.jobs.ranks(job.number()).map_err(engine)? {
            if let Some(log) = self.rank_log(job, rank)? {
                let finished = self.versions.part(&log).map_err(engine)?.is_some();
                ranks.push(Rank { rank, log, finished });
            }
        }
        Ok(ranks)
    }

    /// A rank has logged all: its log becomes a part of the job. No process may have it open; one
    /// on another machine is superseded if `resources.take_over` is set. How many rows the part
    /// has.
    ///
    /// # Errors
    /// If a process has the log open, or the job is being published: then the rank may be missing
    /// in it. The store's. It can be repeated.
    pub fn finish(&self, log: &JobRecord, resources: &Resources) -> Result<u64, VolumeError> {
        let Some(of) = &log.rank else {
            return Err(invalid(format!("job {} is no rank's log", log.number())));
        };
        let part = self.make_part(log, resources)?;
        // A process that merges has sealed the job before it looked for parts.
        let job = self.jobs.find(of.job).map_err(engine)?;
        if job.is_none_or(|job| job.id != of.id || job.sealed) {
            return Err(invalid(format!(
                "job {} is being published or has ended: what rank {} has logged may not be in it",
                of.job, of.rank
            )));
        }
        Ok(part.rows)
    }

    /// What a rank has logged, or the job's server has done, as a version without a name.
    fn make_part(
        &self,
        log: &JobRecord,
        resources: &Resources,
    ) -> Result<VersionManifest, VolumeError> {
        if log.rank.is_some()
            && let Some(part) = self.versions.part(log).map_err(engine)?
        {
            return Ok(part);
        }
        let counted = match log.rank.as_ref().is_some_and(|of| !of.mounted) {
            true => Counted::Now,
            false => Counted::ByNode,
        };
        let opened = sealed_rows(self, log, counted == Counted::ByNode, resources)?;
        crash::point("job.rank.sealed");
        self.versions.remove_tables(&log.id_bytes()).map_err(engine)?;
        let (part, _) = write(self, log, &log.name, &opened, counted)?;
        crash::point("job.rank.written");
        // Fails if another process has taken it over.
        seal(&opened).map_err(engine)?;
        if log.rank.is_some() {
            self.versions.keep_part(&part).map_err(engine)?;
        }
        Ok(part)
    }

    /// Merges the logs of all ranks into the job, which no process may have open. Nothing happens
    /// to a job without ranks. `unfinished`: ranks that have not finished are merged with what they
    /// have synced, instead of being in the way.
    ///
    /// # Errors
    /// If a rank has not finished, or what was made does not go together; the store's. It can be
    /// repeated.
    pub(super) fn merge_ranks(
        &self,
        job: &JobRecord,
        unfinished: bool,
        resources: &Resources,
    ) -> Result<MergedRanks, VolumeError> {
        self.check_job(job)?;
        self.tidy(job)?;
        let ranks = self.ranks(job)?;
        if ranks.is_empty() {
            let (conflicts, conflict_count) = (Vec::new(), 0);
            return Ok(MergedRanks { record: job.clone(), ranks: 0, conflicts, conflict_count });
        }
        if !unfinished {
            check_finished(job, &ranks)?;
        }
        // A process that has the job open is in the way before anything is done.
        drop(self.jobs.open(job, read_once(resources), Arc::new(|| Ok(()))).map_err(engine)?);
        let mut sealed = job.clone();
        sealed.sealed = true;
        if !job.sealed && !self.jobs.replace(job, &sealed).map_err(engine)? {
            return Err(invalid(format!("job {} has changed; try again", job.number())));
        }
        crash::point("job.ranks.sealed");
        // What has joined in between.
        let ranks = self.ranks(job)?;
        if !unfinished && let Err(why) = check_finished(job, &ranks) {
            let mut open = job.clone();
            open.sealed = false;
            self.jobs.replace(&sealed, &open).map_err(engine)?;
            return Err(why);
        }
        let mut inputs = vec![self.make_part(&sealed, resources)?];
        for rank in &ranks {
            inputs.push(self.make_part(&rank.log, resources)?);
        }
        let merged = self.merge_parts(&sealed, &inputs)?;
        crash::point("job.ranks.merged");
        if !self.jobs.replace(&sealed, &merged.record).map_err(engine)? {
            return Err(invalid(format!("job {} has changed; try again", job.number())));
        }
        crash::point("job.ranks.replaced");
        self.tidy(&merged.record)?;
        let BegunJob { record, conflicts, conflict_count, .. } = merged;
        Ok(MergedRanks { record, ranks: ranks.len(), conflicts, conflict_count })
    }

    /// The job that has these parts as its inputs.
    fn merge_parts(
        &self,
        job: &JobRecord,
        inputs: &[VersionManifest],
    ) -> Result<BegunJob, VolumeError> {
        let mut merged = merge(self.versions.place(), inputs).map_err(engine)?;
        let id: VersionId = random()?;
        merged.base.job = job.number();
        let mut record = job.clone();
        (record.id, record.base, record.sealed) = (to_hex(&id), merged.base.clone(), false);
        // Their rows are those of the part by now.
        record.servers = None;
        let new = NewJob {
            inputs: Vec::new(),
            name: job.name.clone(),
            user: job.user,
            group: 0,
            begun_by: job.begun_by.clone(),
            servers: Vec::new(),
        };
        let conflicts = self.make(&record, &merged, inputs, &new)?;
        let (dir, conflict_count) = (job_dir(&record.id)?, merged.conflict_count);
        Ok(BegunJob { record, dir, conflicts, conflict_count })
    }

    /// Removes what a merge has left over: rows of the job from before, and logs of its ranks.
    fn tidy(&self, job: &JobRecord) -> Result<(), VolumeError> {
        for (number, found) in self.list_all()? {
            let Ok(log) = found else { continue };
            let Some(of) = log.rank.as_ref().filter(|of| of.job == job.number()) else { continue };
            if of.id == job.id {
                continue;
            }
            self.jobs.remove_rows(&log.id_bytes()).map_err(engine)?;
            self.versions.forget_part(&log.id_bytes()).map_err(engine)?;
            self.jobs.forget_rank(job.number(), of.rank).map_err(engine)?;
            self.jobs.remove(number).map_err(engine)?;
            remove_dir(&log);
        }
        for layer in job.base.layers.iter().filter(|layer| layer.job == job.number()) {
            let id = kestrel_types::hex::from_hex(&layer.id).and_then(|id| id.try_into().ok());
            if let Some(id) = id {
                self.jobs.remove_rows(&id).map_err(engine)?;
            }
            if let Ok(dir) = job_dir(&layer.id) {
                let _ = std::fs::remove_dir_all(dir);
            }
        }
        Ok(())
    }

    /// Removes a log with all that it has.
    fn remove_log(&self, log: &JobRecord) -> Result<(), VolumeError> {
        self.versions.remove_data(&log.id_bytes()).map_err(engine)?;
        self.jobs.remove(log.number()).map_err(engine)?;
        remove_dir(log);
        Ok(())
    }

    /// Removes the logs of all ranks of a job, and says which jobs these were.
    pub(super) fn remove_ranks(&self, job: &JobRecord) -> Result<Vec<u32>, VolumeError> {
        let mut removed = Vec::new();
        for (number, found) in self.list_all()? {
            let Ok(log) = found else { continue };
            let Some(of) = log.rank.as_ref().filter(|of| of.job == job.number()) else { continue };
            self.remove_log(&log)?;
            self.jobs.forget_rank(job.number(), of.rank).map_err(engine)?;
            removed.push(number);
        }
        Ok(removed)
    }
}

fn remove_dir(log: &JobRecord) {
    if let Ok(dir) = job_dir(&log.id) {
        // It is of no use to anybody; another machine may have one as well.
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// The name of what a rank's log becomes: it is never published by it.
fn log_name(job: &str, rank: u32) -> String {
    let end = format!("-rank-{rank}");
    let room = kestrel_bucket::version::NAME_BYTES_MAX - end.len();
    format!("{}{end}", &job[..job.len().min(room)])
}

/// Fails unless the log is changed in this way.
fn check_way(log: JobRecord, mounted: bool) -> Result<JobRecord, VolumeError> {
    match &log.rank {
        Some(of) if of.mounted != mounted => Err(invalid(format!(
            "rank {} of job {} {}; that stays as it is until the rank has finished: use another \
             rank",
            of.rank,
            of.job,
            if of.mounted { "has its log mounted" } else { "logs without a mount" },
        ))),
        _ => Ok(log),
    }
}

fn check_finished(job: &JobRecord, ranks: &[Rank]) -> Result<(), VolumeError> {
    let unfinished: Vec<String> =
        ranks.iter().filter(|rank| !rank.finished).map(|rank| rank.rank.to_string()).collect();
    if unfinished.is_empty() {
        return Ok(());
    }
    let which = match unfinished.as_slice() {
        [one] => format!("rank {one} has"),
        some => format!("ranks {} have", some.join(", ")),
    };
    Err(invalid(format!(
        "job {}: {which} not finished: go on with `kestrel job log --rank`, or publish what was \
         synced with --unfinished",
        job.number()
    )))
}
