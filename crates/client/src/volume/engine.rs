//! The engine that a volume's descriptor names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::store::BlockStore;
use kestrel_bucket::log_dir::{LogDirOptions, NOTE_NAME, remembered};
use kestrel_bucket::{BucketEngine, BucketOptions};
use kestrel_engine::embedded::{EmbeddedEngine, EmbeddedOptions, Uuid};
use kestrel_engine::{BeforeSync, Engine, EngineError, Mutation};
use kestrel_etcd::{EtcdEngine, EtcdOptions};
use kestrel_postgres::{PgEngine, PgOptions};

use super::{LogDirSettings, META_DIR, Resources, job};
use crate::descriptor::{Descriptor, Durability, RowsAt};
use crate::disk_space::fitting_options;
use crate::error::VolumeError;
use crate::keys;
use crate::recovery::Recovery;
use crate::state_dir::credentials_for;
use crate::storage::{self, StoreOptions};

/// How often a volume in mode `fsync` syncs on its own (`docs/design/metadata.md`, section 7, item
/// 3).
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The node that owns these rows; in a database a volume of one node has number 0.
fn node_of(descriptor: &Descriptor) -> u32 {
    descriptor.cluster.as_ref().map_or(0, |section| section.node)
}

/// Opens the engine of a volume, or of one node's part of one, with its data in `store`.
pub(super) fn open(
    dir: &Path,
    descriptor: &Descriptor,
    resources: &Resources,
    store: &Arc<dyn BlockStore>,
) -> Result<Arc<dyn Engine>, VolumeError> {
    let failed = |why: EngineError| VolumeError::engine_at(dir, why);
    let synced = store.clone();
    let before_sync: BeforeSync = Arc::new(move || {
        synced.sync().map_err(|error| EngineError::Io(format!("syncing file data: {error}")))
    });
    let (uuid, node, take_over) =
        (descriptor.uuid_bytes(), node_of(descriptor), resources.take_over);
    if let Some(job) = descriptor.job {
        return job::open_rows(dir, descriptor, job, resources, before_sync);
    }
    // No recovery of those elsewhere: each transaction went after the data that it refers to.
    let credentials = credentials_for(dir, resources.store.credentials.as_deref());
    if resources.log_dir.dir.is_some() {
        may_have_log_dir(dir, descriptor)?;
    }
    let key_file = resources.store.key_file.as_deref();
    let rows = descriptor.rows()?.with_credentials(credentials.as_deref());
    match keys::with_keys(rows, descriptor, key_file)? {
        RowsAt::Directory => {}
        RowsAt::Postgres(place) => {
            let options = PgOptions { memory_bytes: resources.metadata_bytes, take_over };
            let engine = PgEngine::open(*place, uuid, node, options, before_sync);
            return Ok(Arc::new(engine.map_err(failed)?));
        }
        RowsAt::Etcd(place) => {
            let engine =
                EtcdEngine::open(*place, uuid, node, EtcdOptions { take_over }, before_sync);
            return Ok(Arc::new(engine.map_err(failed)?));
        }
        RowsAt::Bucket(place) => {
            let options = BucketOptions {
                memory_bytes: resources.metadata_bytes,
                take_over,
                ..BucketOptions::default()
            };
            let place = storage::with_cached_tables(*place, &resources.store);
            let Some(log_dir) = log_dir(dir, &uuid, resources).map_err(failed)? else {
                let engine = BucketEngine::open(&place, uuid, node, options, before_sync);
                return Ok(Arc::new(engine.map_err(failed)?));
            };
            let mut recovery = Recovery::new(store.clone());
            let mut verify = |mutations: &[Mutation]| recovery.is_intact(mutations);
            let (shard, options) = ((uuid, node), (options, log_dir));
            let engine =
                BucketEngine::open_behind(&place, shard, options, before_sync, &mut verify);
            let engine = engine.map_err(failed)?;
            recovery.finish(dir)?;
            return Ok(Arc::new(engine));
        }
    }
    let options = EmbeddedOptions {
        memory_bytes: resources.metadata_bytes,
        sync_interval: (descriptor.settings.durability == Durability::Fsync)
            .then_some(SYNC_INTERVAL),
        ..fitting_options(dir)
    };
    let mut recovery = Recovery::new(store.clone());
    let engine =
        EmbeddedEngine::open(&dir.join(META_DIR), uuid, options, before_sync, &mut |mutations| {
            recovery.is_intact(mutations)
        });
    let engine = engine.map_err(failed)?;
    recovery.finish(dir)?;
    Ok(Arc::new(engine))
}

/// Fails unless the volume may have a log directory.
fn may_have_log_dir(dir: &Path, descriptor: &Descriptor) -> Result<(), VolumeError> {
    let why = match descriptor.rows()? {
        _ if descriptor.cluster.is_some() => {
            "for volumes of one node: another node that takes over could not read it"
        }
        RowsAt::Bucket(_) => return Ok(()),
        _ => "for volumes with metadata in a bucket",
    };
    Err(VolumeError::Invalid(format!("{}: --log-dir is {why}", dir.display())))
}

/// The log directory to be used: the one that is given, or one that a process on this machine has
/// left with changes that are perhaps not in the bucket.
fn log_dir(
    dir: &Path,
    uuid: &Uuid,
    resources: &Resources,
) -> Result<Option<LogDirOptions>, EngineError> {
    let LogDirSettings { dir: given, upload_every, discard } = resources.log_dir.clone();
    let note = dir.join(NOTE_NAME);
    let left = remembered(&note, Some(uuid))?;
    let resolved = |dir: PathBuf| std::fs::canonicalize(&dir).unwrap_or(dir);
    let dir = match (given.map(resolved), left.map(resolved)) {
        (Some(given), Some(left)) if given != left => {
            if !discard {
                return Err(EngineError::Refused(format!(
                    "log directory: the last process here kept changes in {} that may not be in \
                     the bucket; give --log-dir {}, or go on without them with --discard-log",
                    left.display(),
                    left.display()
                )));
            }
            log::warn!("changes in {} may not be in the bucket", left.display());
            given
        }
        (Some(given), _) => given,
        (None, Some(left)) => {
            log::info!(
                "a process that was killed left its log in {}, which is used",
                left.display()
            );
            left
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(LogDirOptions { dir, upload_every, discard, note }))
}

/// Makes the engine of a new volume, or of one node's part of one, and opens it. In a database only
/// the node that makes the volume makes its tables: a node that joins and does not find them has
/// come to another database.
pub(super) fn create(
    dir: &Path,
    descriptor: &Descriptor,
    joins: bool,
    options: &StoreOptions,
) -> Result<Box<dyn Engine>, VolumeError> {
    let failed = |why: EngineError| VolumeError::engine(why);
    let nothing: BeforeSync = Arc::new(|| Ok(()));
    let (uuid, node) = (descriptor.uuid_bytes(), node_of(descriptor));
    let credentials = credentials_for(dir, options.credentials.as_deref());
    let rows = descriptor.rows()?.with_credentials(credentials.as_deref());
    match keys::with_keys(rows, descriptor, options.key_file.as_deref())? {
        RowsAt::Directory => {}
        RowsAt::Postgres(place) => {
            let made = if joins {
                PgEngine::add_node(&place, uuid, node)
            } else {
                PgEngine::create(&place, uuid, node)
            };
            made.map_err(failed)?;
            let engine = PgEngine::open(*place, uuid, node, PgOptions::default(), nothing)
                .map_err(failed)?;
            return Ok(Box::new(engine));
        }
        RowsAt::Etcd(place) => {
            // The first node made the volume's keys, whichever this one is ([`create_registry`]).
            EtcdEngine::add_node(&place, uuid, node).map_err(failed)?;
            let options = EtcdOptions::default();
            let engine = EtcdEngine::open(*place, uuid, node, options, nothing).map_err(failed)?;
            return Ok(Box::new(engine));
        }
        RowsAt::Bucket(place) => {
            BucketEngine::create(&place, uuid, node, joins).map_err(failed)?;
            let options = BucketOptions::default();
            let engine =
                BucketEngine::open(&place, uuid, node, options, nothing).map_err(failed)?;
            return Ok(Box::new(engine));
        }
    }
    let meta = dir.join(META_DIR);
    std::fs::create_dir_all(&meta).map_err(|error| VolumeError::io("create", &meta, error))?;
    let engine = EmbeddedEngine::open(&meta, uuid, fitting_options(dir), nothing, &mut |_| true);
    Ok(Box::new(engine.map_err(failed)?))
}

/// Makes the volume's keys in the registry, if it has one: the first node does, so that a registry
/// that cannot be used is heard of before there is a volume, and a node that joins knows by them
/// that it has come to the right one.
///
/// # Errors
/// Those of etcd, and if something else is there.
pub(super) fn create_registry(
    descriptor: &Descriptor,
    coordinator: u32,
) -> Result<(), VolumeError> {
    let Some(place) = descriptor.registry()? else { return Ok(()) };
    let made = EtcdEngine::create(&place, descriptor.uuid_bytes(), coordinator);
    made.map_err(VolumeError::engine)
}

/// Removes the rows of a volume of one node, or of one that was not made to its end, from where
/// they are outside of its directory.
///
/// # Errors
/// Those of the database, the registry or the bucket.
pub fn discard_rows(
    descriptor: &Descriptor,
    credentials: Option<&Path>,
) -> Result<(), VolumeError> {
    if let Some(place) = descriptor.registry()? {
        EtcdEngine::remove(&place, descriptor.uuid_bytes()).map_err(VolumeError::engine)?;
    }
    let uuid = descriptor.uuid_bytes();
    let removed = match descriptor.metadata()?.with_credentials(credentials) {
        RowsAt::Postgres(place) => PgEngine::remove(&place, uuid),
        RowsAt::Bucket(place) => BucketEngine::remove(&place, uuid),
        RowsAt::Directory | RowsAt::Etcd(_) => Ok(()),
    };
    removed.map_err(VolumeError::engine)
}
