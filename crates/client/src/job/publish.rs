//! A job becomes a version: the rows that it has changed are written as tables of the version, and
//! the version gets its name.

use kestrel_bucket::version::{JobRecord, VersionManifest};
use kestrel_types::crash;

use super::gather::gather;
use super::rows::{Counted, write};
use super::settle::sealed_rows;
use super::{JobConflict, Jobs, MergedRanks, engine};
use crate::error::VolumeError;
use crate::state_dir::job_dir;
use crate::volume::Resources;
use crate::volume::job::seal;

/// A job that has become a version.
#[derive(Debug)]
pub struct PublishedJob {
    /// The version.
    pub version: VersionManifest,
    /// Rows that differ from those of the inputs.
    pub changed: u64,
    /// Ranks with logs that were merged.
    pub ranks: usize,
    /// Names that several ranks have made differently, as far as they are told one by one.
    pub conflicts: Vec<JobConflict>,
    /// How many of these there are.
    pub conflict_count: u64,
}

impl PublishedJob {
    fn new(version: VersionManifest, changed: u64) -> Self {
        Self { version, changed, ranks: 0, conflicts: Vec::new(), conflict_count: 0 }
    }
}

/// Publishes a job under the name that it was begun with, or another one. No process may have it
/// open; one on another machine is superseded if `resources.take_over` is set. The logs of its
/// ranks are merged first: of those that have not finished what they have synced if `unfinished` is
/// set, else they are in the way.
///
/// # Errors
/// If a process has it open, a rank has not finished, the name is taken (then the job stays, and
/// can be published under another one), or the store fails: it can be repeated.
pub fn publish(
    jobs: &Jobs,
    record: &JobRecord,
    (name, unfinished): (Option<&str>, bool),
    resources: &Resources,
) -> Result<PublishedJob, VolumeError> {
    jobs.check_job(record)?;
    let name = name.unwrap_or(&record.name);
    kestrel_bucket::version::check_name(name).map_err(VolumeError::Invalid)?;
    if let Some(found) = jobs.versions.of_id(&record.id_bytes()).map_err(engine)? {
        // The process that published it was killed behind that.
        let changed = found.rows;
        end(jobs, record)?;
        if found.name != name {
            return Err(VolumeError::Invalid(format!(
                "job {} has been published as {} already; `kestrel version rename` gives it \
                 another name",
                record.number(),
                found.name
            )));
        }
        return Ok(PublishedJob::new(found, changed));
    }
    if jobs.versions.find(name).map_err(engine)?.is_some() {
        return Err(taken(name, record));
    }
    if let Some(servers) = jobs.jobs.servers(record).map_err(engine)? {
        gather(jobs, record, servers, resources)?;
    }
    let merged = jobs.merge_ranks(record, unfinished, resources)?;
    let record = &merged.record;
    // No node has served rows that a merge has just made.
    let opened = sealed_rows(jobs, record, merged.ranks == 0, resources)?;
    crash::point("job.sealed");
    // What a process that was killed meanwhile has written of the version.
    jobs.versions.remove_tables(&record.id_bytes()).map_err(engine)?;
    let (version, changed) = write(jobs, record, name, &opened, Counted::ByNode)?;
    crash::point("job.written");
    // Fails if another process has taken the job over.
    seal(&opened).map_err(engine)?;
    if !jobs.versions.publish(&version).map_err(engine)? {
        return Err(taken(name, record));
    }
    crash::point("job.named");
    drop(opened);
    end(jobs, record)?;
    let MergedRanks { ranks, conflicts, conflict_count, .. } = merged;
    Ok(PublishedJob { version, changed, ranks, conflicts, conflict_count })
}

fn taken(name: &str, record: &JobRecord) -> VolumeError {
    VolumeError::Invalid(format!(
        "there is a version {name} already, and a version never changes; the job is kept: publish \
         it under another name with `kestrel job publish {} --as NAME`",
        record.number()
    ))
}

/// A published job is none any more.
pub(super) fn end(jobs: &Jobs, record: &JobRecord) -> Result<(), VolumeError> {
    jobs.jobs.remove_rows(&record.id_bytes()).map_err(engine)?;
    crash::point("job.rows-removed");
    jobs.jobs.remove(record.number()).map_err(engine)?;
    if let Ok(dir) = job_dir(&record.id) {
        // It is of no use to anybody; another machine may have one as well.
        let _ = std::fs::remove_dir_all(dir);
    }
    Ok(())
}
