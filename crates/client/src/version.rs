//! A published version: a tree that never changes, read from the store alone
//! (`docs/operations/versions.md`).
//!
//! No node of the volume is asked for anything, and the volume's lock is not taken: any number of
//! processes read a version, whatever becomes of the volume's servers meanwhile. The version's rows
//! are an engine ([`VersionEngine`]), and a metadata node in this process serves them.
//!
//! | file | |
//! | --- | --- |
//! | `url` | `VOLUME//NAME`: a version of a volume |
//! | `publish` | writing a version of a tree |

use std::path::Path;
use std::sync::Arc;

use kestrel_bucket::version::VersionEngine;
use kestrel_meta::node::{Durability, Node, NodeConfig};
use kestrel_types::clock::{Clock, SystemClock};

use crate::descriptor::Descriptor;
use crate::error::VolumeError;
use crate::fs::Fs;
use crate::metadata::Embedded;
use crate::object_ids::ObjectNumbers;
use crate::remote::{RemoteUrl, volume_at};
use crate::state_dir::credentials_for;
use crate::storage::{Storage, StoreOptions};
use crate::volume::assembly::Assembly;
use crate::volume::{self, Resources};

pub(crate) mod publish;
mod url;

pub use self::publish::{Publication, PublishError, publish};
pub use self::url::VersionUrl;
pub use kestrel_bucket::version::{
    Compaction, CompactionEnd, CompactionOrder, CompactionWorker, PARTITIONS_MAX, VersionFigures,
    VersionId, VersionInput, VersionManifest, VersionRegistry, VersionSource, VersionWriter,
    WorkEnd, check_name, remove_old_plans,
};

/// How a process names itself to a server that it asks what the volume is.
const WHO: &str = "a reader of published versions";

/// What a volume is, and where its data is.
pub(crate) struct VolumePlace {
    pub descriptor: Descriptor,
    pub storage: Storage,
}

impl VolumePlace {
    /// Of the volume that `url` names: a directory, or a server, which is asked once.
    pub fn of(url: &str, options: &StoreOptions) -> Result<Self, VolumeError> {
        if RemoteUrl::is_one(url) {
            let (descriptor, storage) = volume_at(url, WHO, options)?;
            return Ok(Self { descriptor, storage });
        }
        let dir = volume::find(url, options.credentials.as_deref(), true)?;
        let descriptor = Descriptor::read(&dir)?;
        let storage = Storage::open(&dir, &descriptor, &with_credentials(&dir, options))?;
        Ok(Self { descriptor, storage })
    }
}

/// The versions of the volume that `url` names: a path, or `kestrel://…`. No process that has the
/// volume open is asked; a server is asked what the volume is.
///
/// # Errors
/// If there is no such volume, or the place of its versions cannot be reached.
pub fn registry(url: &str, options: &StoreOptions) -> Result<VersionRegistry, VolumeError> {
    if RemoteUrl::is_one(url) {
        return VolumePlace::of(url, options)?.storage.versions();
    }
    let dir = volume::find(url, options.credentials.as_deref(), true)?;
    Storage::versions_of(&dir, &Descriptor::read(&dir)?, &with_credentials(&dir, options))
}

/// The same options with the credentials that the volume's state directory names, if none are
/// given.
fn with_credentials(dir: &Path, options: &StoreOptions) -> StoreOptions {
    let credentials = credentials_for(dir, options.credentials.as_deref());
    StoreOptions { credentials, ..options.clone() }
}

/// A version with a file system running on it.
pub struct MountedVersion {
    /// The file system. Call [`Fs::shutdown`] before dropping it.
    pub fs: Arc<Fs>,
    /// What the volume is.
    pub descriptor: Descriptor,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// What the version is.
    pub manifest: VersionManifest,
}

impl VersionUrl {
    /// Opens the version. Starts threads: a process that goes to the background does so before.
    ///
    /// # Errors
    /// If there is no such volume or version, something of it is damaged or newer, or the store
    /// cannot be reached; the text says which and what to do.
    pub fn open(&self, resources: &Resources) -> Result<MountedVersion, VolumeError> {
        let VolumePlace { descriptor, storage } = VolumePlace::of(&self.volume, &resources.store)?;
        let registry = storage.versions()?;
        let manifest = self.find(&registry)?;
        let storage = match manifest.changes() {
            Some(_) => storage.of_job(),
            None => storage,
        };
        let tables = storage.version_tables(&manifest.id_bytes(), &resources.store)?;
        let engine = VersionEngine::new(&tables, &manifest, resources.metadata_bytes)
            .map_err(|why| VolumeError::Io(format!("{self}: {why}")))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: resources.workers,
            durability: Durability::Fsync,
            replica_bytes: resources.store.memory.replica_bytes as usize,
            ..NodeConfig::default()
        };
        let node = Node::open(Arc::new(engine), clock.clone(), config)
            .map_err(|why| VolumeError::Io(format!("{self}: {why}")))?;
        let plan = Assembly {
            metadata: Arc::new(Embedded::new(node)),
            numbers: ObjectNumbers::default(),
            clock,
            read_only: true,
        };
        let fs = plan.assemble(&descriptor, storage.store.clone(), resources)?;
        Ok(MountedVersion { fs, descriptor, storage: Arc::new(storage), manifest })
    }

    /// What the version is, by the registry of its volume.
    ///
    /// # Errors
    /// If there is no such version, it is damaged or newer, or the store cannot be reached.
    pub fn find(&self, registry: &VersionRegistry) -> Result<VersionManifest, VolumeError> {
        let failed = |why: kestrel_engine::EngineError| VolumeError::Io(format!("{self}: {why}"));
        registry.find(&self.name).map_err(failed)?.ok_or_else(|| self.absent(registry))
    }

    fn absent(&self, registry: &VersionRegistry) -> VolumeError {
        let names = registry.names("").unwrap_or_default();
        let has = match &names[..] {
            [] => "the volume has none: make one with `kestrel publish DIR NAME`".to_string(),
            [first, ..] => format!(
                "the volume has {} of other names, as {first}; `kestrel version list {}` shows all",
                names.len(),
                self.volume
            ),
        };
        VolumeError::Invalid(format!("{self}: there is no version of this name; {has}"))
    }
}

/// Whether a directory has a volume.
fn is_volume(dir: &Path) -> bool {
    Descriptor::read(dir).is_ok()
}
