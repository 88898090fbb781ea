//! A published version: a tree that never changes, read from the store alone
//! (`docs/operations/versions.md`).
//!
//! No node of the volume is asked for anything, and the volume's lock is not taken: any number of
//! processes read a version, whatever becomes of the volume's servers meanwhile. The version's rows
//! are an engine ([`VersionEngine`]), and a metadata node in this process serves them. A process
//! that does so for others is a *curator* ([`VersionUrl::serve`]): its clients ask it for metadata,
//! and read file data from the store by themselves.
//!
//! A program reads a version by the text that `kestrel mount` takes:
//!
//! ```no_run
//! use kestrel_client::fs::{Caller, wait};
//! use kestrel_client::remote::Introduction;
//! use kestrel_client::version::VersionUrl;
//! use kestrel_client::volume::Resources;
//! use kestrel_types::ids::ROOT;
//! use kestrel_types::name::{Name, PathRef};
//! use kestrel_types::request::OpenFlags;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Also /data/vol//imagenet@v3 and kestrel://meta1/photos//imagenet@v3.
//! let text = "s3://bucket/photos//imagenet@v3?region=eu-central-1";
//! let url = VersionUrl::parse(text)?.ok_or("no version is named")?;
//! let opened = url.open(&Introduction::of_reader("example"), &Resources::default())?;
//! let fs = opened.fs();
//!
//! let place = PathRef::new(ROOT, Name::new(b"labels.txt")?);
//! let inode = wait(|done| fs.lookup(Caller::ROOT, place, done))?;
//! let flags = OpenFlags { read: true, ..OpenFlags::default() };
//! let file = wait(|done| fs.open(Caller::ROOT, inode.ino, flags, done))?;
//! let bytes = wait(|done| fs.read(&file.handle, 0, 4096, done))?;
//! # drop(bytes);
//! wait(|done| fs.release(file.handle, done))?;
//! fs.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `url` | `VOLUME//NAME`: a version of a volume |
//! | `publish` | writing a version of a tree |
//! | `metadata` | a node that changes nothing |

use std::path::Path;
use std::sync::Arc;

use kestrel_meta::node::{Durability, Node, NodeConfig};
use kestrel_types::clock::{Clock, SystemClock};

use crate::descriptor::Descriptor;
use crate::error::VolumeError;
use crate::fs::Fs;
use crate::object_ids::ObjectNumbers;
use crate::remote::{Introduction, RemoteUrl, RemoteVolume, volume_at};
use crate::state_dir::credentials_for;
use crate::storage::{Offer, Storage, StoreOptions};
use crate::volume::assembly::Assembly;
use crate::volume::{self, Resources};

mod metadata;
pub(crate) mod publish;
mod url;

use self::metadata::VersionMetadata;
pub use self::publish::{Publication, PublishError, publish};
pub use self::url::VersionUrl;
pub use kestrel_bucket::version::{
    Compaction, CompactionEnd, CompactionOrder, CompactionWorker, Loaded, PARTITIONS_MAX,
    VersionEngine, VersionFigures, VersionId, VersionInput, VersionManifest, VersionRegistry,
    VersionSource, VersionWriter, WorkEnd, check_name, remove_old_plans,
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

/// A version that is open: its metadata is in this process, or in a curator's.
pub enum OpenVersion {
    /// Read from the store alone.
    Stored(Box<MountedVersion>),
    /// Served by curators (`kestrel serve VOLUME//NAME`).
    Curated(Box<RemoteVolume>),
}

impl OpenVersion {
    /// The file system, read-only. Call [`Fs::shutdown`] before dropping it.
    pub fn fs(&self) -> &Arc<Fs> {
        match self {
            Self::Stored(version) => &version.fs,
            Self::Curated(volume) => &volume.fs,
        }
    }
}

/// A version that this process serves to others.
pub struct CuratedVersion {
    /// The version. Its node serves clients.
    pub version: MountedVersion,
    /// Its rows.
    pub engine: Arc<VersionEngine>,
    /// What clients are told.
    pub offer: Offer,
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
    /// Opens the version. Of `kestrel://…` curators at these addresses are asked first; if servers
    /// of the volume are there, they say where the store is. Starts threads: a process that goes to
    /// the background does so before.
    ///
    /// # Errors
    /// If there is no such volume or version, something of it is damaged or newer, or the store
    /// cannot be reached; the text says which and what to do.
    pub fn open(
        &self,
        how: &Introduction,
        resources: &Resources,
    ) -> Result<OpenVersion, VolumeError> {
        if let Some(url) = self.curators()? {
            let how = Introduction { read_only: true, ..how.clone() };
            match RemoteVolume::open(&url.to_string(), &how, resources) {
                Err(VolumeError::NotServed(_)) => {}
                opened => return opened.map(|volume| OpenVersion::Curated(Box::new(volume))),
            }
        }
        Ok(OpenVersion::Stored(Box::new(self.open_with(resources, false)?.0)))
    }

    /// The URL by which curators of the version are asked, if the volume is named by addresses.
    ///
    /// # Errors
    /// If that is none.
    pub fn curators(&self) -> Result<Option<RemoteUrl>, VolumeError> {
        if !RemoteUrl::is_one(&self.volume) {
            return Ok(None);
        }
        let url = RemoteUrl::parse(&self.volume)?;
        let name = format!("{}//{}", url.name, self.name);
        Ok(Some(RemoteUrl { name, ..url }))
    }

    /// Opens the version to serve it to others, from the store. Starts threads.
    ///
    /// # Errors
    /// As for [`VersionUrl::open`], and if clients could not know the store.
    pub fn serve(&self, resources: &Resources) -> Result<CuratedVersion, VolumeError> {
        let (version, engine) = self.open_with(resources, true)?;
        let offer = Offer::of_version(&version.descriptor, &version.storage, &version.manifest.id)?;
        Ok(CuratedVersion { version, engine, offer })
    }

    fn open_with(
        &self,
        resources: &Resources,
        serves: bool,
    ) -> Result<(MountedVersion, Arc<VersionEngine>), VolumeError> {
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
        let engine = Arc::new(engine);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: resources.workers,
            durability: Durability::Fsync,
            serves,
            replica_bytes: resources.store.memory.replica_bytes as usize,
            ..NodeConfig::default()
        };
        let node = Node::open(engine.clone(), clock.clone(), config)
            .map_err(|why| VolumeError::Io(format!("{self}: {why}")))?;
        let plan = Assembly {
            metadata: Arc::new(VersionMetadata::new(node)),
            numbers: ObjectNumbers::default(),
            clock,
            read_only: true,
        };
        let fs = plan.assemble(&descriptor, storage.store.clone(), resources)?;
        let storage = Arc::new(storage);
        Ok((MountedVersion { fs, descriptor, storage, manifest }, engine))
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
