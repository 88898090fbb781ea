//! The rows of a job that a directory is of.

use std::path::Path;
use std::sync::Arc;

use kestrel_bucket::version::{JobRegistry, JobServers, OwnsRow};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_cluster::peer_identity::PeerIdentity;
use kestrel_engine::{BatchKind, BeforeSync, Engine, EngineError, Mutation};
use kestrel_meta::owners::MapView;
use kestrel_types::error::FsError;
use kestrel_types::hex::from_hex;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::{NodeId, PlacementMap};

use super::Resources;
use crate::descriptor::{ClusterSection, Descriptor};
use crate::error::VolumeError;
use crate::storage::Storage;

/// The record by which a job says that it is being published: nobody writes any more.
const SEALED: &[u8] = b"sealed";

fn invalid(why: impl std::fmt::Display) -> VolumeError {
    VolumeError::Invalid(why.to_string())
}

/// Which server owns what.
pub(crate) fn placement_of(servers: &JobServers) -> Result<PlacementMap, VolumeError> {
    let bytes = from_hex(&servers.placement)
        .ok_or_else(|| invalid("the job's placement map is not hexadecimal"))?;
    PlacementMap::decode(&bytes).map_err(invalid)
}

/// Which rows a server owns.
///
/// # Errors
/// If the map does not have it.
pub(crate) fn owned_by(server: NodeId, placement: &PlacementMap) -> Result<OwnsRow, VolumeError> {
    let view = MapView::new(server, placement.clone()).map_err(invalid)?;
    Ok(Arc::new(move |key: KeyRef<'_>| view.owns(key.table, key.id, key.suffix)))
}

/// Lets go of the addresses that a server has on record of others and that are not those of its
/// directory: all of them may have gone elsewhere while none was served.
fn forget_addresses(
    rows: &dyn Engine,
    (me, placement): (NodeId, &PlacementMap),
) -> Result<(), EngineError> {
    let failed = |why: FsError| EngineError::Io(why.to_string());
    for member in placement.map.members().iter().filter(|member| member.id != me) {
        let Some(known) = PeerIdentity::read(rows, member.id).map_err(failed)? else { continue };
        if known.address.as_ref().is_some_and(|address| *address != member.address) {
            let known = PeerIdentity { address: None, ..known };
            known.write(rows, member.id).map_err(failed)?;
        }
    }
    Ok(())
}

/// Opens the rows of the job that a directory is of.
///
/// # Errors
/// If the job is not there any more, another process has it open, or its rows are damaged.
pub(super) fn open_rows(
    dir: &Path,
    descriptor: &Descriptor,
    job: u32,
    resources: &Resources,
    before_sync: BeforeSync,
) -> Result<Arc<dyn Engine>, VolumeError> {
    let failed = |why: EngineError| VolumeError::engine_at(dir, why);
    if resources.log_dir.dir.is_some() {
        return Err(VolumeError::Invalid(format!(
            "{}: --log-dir is not for jobs: another machine could not go on with what is there",
            dir.display()
        )));
    }
    let versions = Storage::versions_of(dir, descriptor, &resources.store)?;
    let jobs = JobRegistry::new(versions.place().clone(), *versions.volume());
    let Some(record) = jobs.find(job).map_err(failed)? else {
        return Err(VolumeError::Invalid(format!(
            "{}: job {job} is published or aborted; mount its version instead",
            dir.display()
        )));
    };
    let options = BucketOptions {
        memory_bytes: resources.metadata_bytes,
        take_over: resources.take_over,
        upload_every: Some(resources.log_dir.upload_every),
        ..BucketOptions::default()
    };
    let servers = jobs.servers(&record).map_err(failed)?;
    let opened = match (&descriptor.cluster, servers) {
        (None, None) => jobs.open(&record, options, before_sync).map_err(failed)?,
        (Some(section), Some(servers)) => {
            let server = (section.node, Some(owned_by(section.node, &placement_of(servers)?)?));
            let opened = jobs.open_server(&record, server, options, before_sync);
            let opened = opened.map_err(failed)?;
            forget_addresses(&opened, (section.node, &section.placement()?)).map_err(failed)?;
            opened
        }
        (None, Some(_)) => return Err(has_several(dir, job)),
        (Some(section), None) => return Err(is_gathered(dir, job, section)),
    };
    if is_sealed(&opened).map_err(failed)? {
        return Err(VolumeError::Invalid(format!(
            "{}: job {job} is being published, and nothing is changed any more; finish it with \
             `kestrel job publish`",
            dir.display()
        )));
    }
    Ok(Arc::new(opened))
}

fn has_several(dir: &Path, job: u32) -> VolumeError {
    VolumeError::Invalid(format!(
        "{}: not supported: job {job} has several servers, and one process cannot open it alone; \
         serve it with `kestrel job resume`, and run commands in it with `kestrel job join`",
        dir.display()
    ))
}

fn is_gathered(dir: &Path, job: u32, section: &ClusterSection) -> VolumeError {
    VolumeError::Invalid(format!(
        "{}: server {} of job {job} has no rows any more: the job is being published; finish it \
         with `kestrel job publish`",
        dir.display(),
        section.node
    ))
}

/// Whether a job is being published.
pub(crate) fn is_sealed(rows: &BucketEngine) -> Result<bool, EngineError> {
    let mut sealed = false;
    let key = KeyRef::new(Table::System, 0, SEALED);
    rows.get_many(&[key], &mut |_, row| sealed |= row.value.is_some())?;
    Ok(sealed)
}

/// Ends all changes of a job: a process that opens it later finds that it is sealed, and one that
/// had it open has been superseded.
pub(crate) fn seal(rows: &BucketEngine) -> Result<(), EngineError> {
    let key = Key::new(Table::System, 0, SEALED);
    let sealed = Mutation { key, value: Some(Box::default()) };
    rows.commit(BatchKind::Freeing, vec![sealed])?;
    rows.settle()
}
