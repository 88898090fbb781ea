//! Before the rows of a job become a version what processes have left unfinished is ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_bucket::version::JobRecord;
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::Engine;
use kestrel_meta::ops::usage;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::stat::DirStat;
use kestrel_types::trash::{KEPT, TRASH};

use super::{Jobs, engine, node, row_of};
use crate::error::VolumeError;
use crate::fs::tree_removal::REMOVING;
use crate::volume::job::{is_sealed, seal};
use crate::volume::{Resources, Volume};

/// Longest wait for trees that are being removed, and the pause between two looks.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(600);
const REMOVAL_LOOK: Duration = Duration::from_millis(50);

/// Opens the rows of a job that is to become a version, and seals them: nothing is changed any
/// more. Of a job that a node may have served (`is_served`) what processes have left unfinished is
/// ended before.
pub(super) fn sealed_rows(
    jobs: &Jobs,
    record: &JobRecord,
    is_served: bool,
    resources: &Resources,
) -> Result<BucketEngine, VolumeError> {
    let open = || {
        let opened = jobs.jobs.open(record, read_once(resources), Arc::new(|| Ok(())));
        opened.map_err(engine)
    };
    let mut opened = open()?;
    if is_sealed(&opened).map_err(engine)? {
        return Ok(opened);
    }
    if is_served {
        drop(opened);
        settle(jobs, record, resources)?;
        opened = open()?;
    }
    seal(&opened).map_err(engine)?;
    Ok(opened)
}

/// How rows are opened that are read once, to become tables of a version.
pub(super) fn read_once(resources: &Resources) -> BucketOptions {
    BucketOptions {
        memory_bytes: resources.metadata_bytes,
        take_over: resources.take_over,
        merges: false,
        ..BucketOptions::default()
    }
}

/// Ends what processes have left unfinished: files without names that were open, trees that are
/// being removed, and the figures.
fn settle(jobs: &Jobs, record: &JobRecord, resources: &Resources) -> Result<(), VolumeError> {
    let dir = jobs.make_dir(record)?;
    let volume = Volume::open_part(&dir, "kestrel job publish", resources)?;
    let rows = volume.engine.clone();
    let mounted = volume.serve(resources, false)?;
    let emptied = wait_for_trash(&*rows, record);
    mounted.fs.shutdown().map_err(node)?;
    emptied
}

/// Waits until trees are gone that are being removed: the file system does that meanwhile.
fn wait_for_trash(rows: &dyn Engine, record: &JobRecord) -> Result<(), VolumeError> {
    let until = Instant::now() + REMOVAL_TIME_MAX;
    let names_in = |name: &[u8]| -> Result<i64, VolumeError> {
        let Some(trash) = child(rows, ROOT, TRASH)? else { return Ok(0) };
        let Some(dir) = child(rows, trash, name)? else { return Ok(0) };
        let mut sum = DirStat::default();
        usage::add_shares(rows, dir, &|_| true, &mut sum).map_err(node)?;
        Ok(sum.children)
    };
    if names_in(KEPT)? > 0 {
        return Err(VolumeError::Invalid(format!(
            "job {}: it keeps removed files, as the policy `trash` of a directory says; empty the \
             trash with `kestrel job run VOLUME --resume {} --keep -- kestrel trash empty .`",
            record.number(),
            record.number()
        )));
    }
    let is_there = |name: &[u8]| match child(rows, ROOT, TRASH)? {
        Some(trash) => Ok::<_, VolumeError>(child(rows, trash, name)?.is_some()),
        None => Ok(false),
    };
    while is_there(REMOVING)? {
        if Instant::now() > until {
            return Err(VolumeError::Io(format!(
                "job {}: removing trees takes more than {} s; publish it again later",
                record.number(),
                REMOVAL_TIME_MAX.as_secs()
            )));
        }
        std::thread::sleep(REMOVAL_LOOK);
    }
    Ok(())
}

/// The number of what has a name in a directory.
pub(super) fn child(
    rows: &dyn Engine,
    dir: InodeId,
    name: &[u8],
) -> Result<Option<InodeId>, VolumeError> {
    let entry = row_of(rows, KeyRef::new(Table::Entry, dir, name))?;
    Ok(entry.and_then(|entry| Entry::peek(&entry).ok()).map(|(number, _)| number))
}
