//! An embedded volume: a directory with descriptor and metadata engine, and a block store, open in
//! one process at a time.
//!
//! | file | |
//! | --- | --- |
//! | `format` | making a volume |
//! | `bucket` | making and removing a volume that a bucket has all of |
//! | `cluster` | making a volume that several nodes share |
//! | `token` | the token with which a node joins a cluster, in one line |
//! | `salvage` | a new volume from the intact part of a damaged one |
//! | `contents` | the files in a directory that belong to a volume, for `format --force` |
//! | `engine` | the engine that a volume's descriptor names |
//! | `job` | the rows of a job's namespace |
//! | `assembly` | putting a file system together from metadata and block store |
//! | `lock` | the lock of a volume: one process at a time |
//! | `ownership` | which directory serves the rows of a node in a store that other machines reach |
//!
//! [`Volume::open`] gives the raw parts, for the tools that check, dump and collect;
//! [`Volume::serve`] starts a metadata node and a file system on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kestrel_blockstore::store::{BlockStore, OwnStore};
use kestrel_bucket::log_dir::UPLOAD_EVERY_DEFAULT;
pub use kestrel_bucket::log_dir::{NOTE_NAME, remembered};
use kestrel_cluster::ClusterNodeConfig;
use kestrel_cluster::host::{Carrier, NodeHost};
use kestrel_engine::Engine;
use kestrel_meta::node::{self, Node, NodeConfig};
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use kestrel_types::ids::objects_of_job;

use crate::descriptor::{Descriptor, Durability, find_volume};
use crate::error::VolumeError;
use crate::fs::Fs;
use crate::memory::MemoryPlan;
use crate::metadata::{Embedded, Hosted, Metadata};
use crate::object_ids::ObjectNumbers;
use crate::state_dir::{StateRecord, is_bucket_url};
use crate::storage::{Storage, StoreOptions};

pub(crate) mod assembly;
mod bucket;
mod cluster;
mod contents;
mod engine;
mod format;
pub(crate) mod job;
mod lock;
mod ownership;
mod salvage;
mod token;

pub use crate::disk_space::{scratch_reserve, scratch_room};
use assembly::Assembly;
pub use bucket::discard;
pub use cluster::{form, join};
pub use engine::discard_rows;
pub use format::NewVolume;
pub use lock::VolumeLock;
pub use ownership::{has_left, holder_of, stand_in};
pub use salvage::{Salvaged, salvage};
pub use token::Token;

/// Directory of the metadata engine.
const META_DIR: &str = "meta";

/// What a process may use for a volume.
#[derive(Debug, Clone)]
pub struct Resources {
    /// Memory for metadata rows, bytes.
    pub metadata_bytes: u64,
    /// Memory for verified frames of file data, bytes; none: what suits the store.
    pub data_cache_bytes: Option<usize>,
    /// Memory for bytes written and not yet stored.
    pub dirty_bytes_max: u64,
    /// Metadata workers.
    pub workers: usize,
    /// Most requests that a worker executes together; none: what suits it.
    pub batch_max: Option<usize>,
    /// How the block store is reached, and the memory for what is not told above.
    pub store: StoreOptions,
    /// Metadata in a database: take it over from another process that has it open.
    pub take_over: bool,
    /// Metadata in a bucket: a log on a local disk in front of it.
    pub log_dir: LogDirSettings,
}

/// A log on a local disk in front of metadata in a bucket.
#[derive(Debug, Clone)]
pub struct LogDirSettings {
    /// Its directory; none: there is no log, unless a process that was killed here has left one.
    pub dir: Option<PathBuf>,
    /// How often its batches are uploaded; of a job's namespace, which has no such log, how long
    /// changes may wait for their upload if nothing waits for them.
    pub upload_every: Duration,
    /// A log that does not fit the volume any more is set aside, instead of being a failure.
    pub discard: bool,
}

impl Default for LogDirSettings {
    fn default() -> Self {
        Self { dir: None, upload_every: UPLOAD_EVERY_DEFAULT, discard: false }
    }
}

impl Resources {
    /// What a process may use if its memory is divided as `memory` says.
    pub fn within(memory: MemoryPlan) -> Self {
        Self {
            metadata_bytes: memory.metadata_bytes,
            dirty_bytes_max: memory.dirty_bytes_max,
            store: StoreOptions { memory, ..StoreOptions::default() },
            ..Self::default()
        }
    }
}

impl Default for Resources {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            metadata_bytes: 512 << 20,
            data_cache_bytes: None,
            dirty_bytes_max: 256 << 20,
            workers: cores.clamp(1, 64),
            batch_max: None,
            store: StoreOptions::default(),
            take_over: false,
            log_dir: LogDirSettings::default(),
        }
    }
}

/// Creates a volume in a directory that is missing or empty, or in a bucket; with `force`, replaces
/// a volume that is there, unless something else is among what would be removed.
///
/// # Errors
/// Names what is in the way. Nothing of an existing volume is touched before all checks have
/// passed.
pub fn format(
    url: &str,
    new: NewVolume,
    options: &StoreOptions,
) -> Result<Descriptor, VolumeError> {
    match is_bucket_url(url) {
        true => bucket::format(url, new, options),
        false => format::format_directory(url, new, options),
    }
}

/// Directory of the volume that a URL names ([`find_volume`]). `is_fresh`: what a bucket says of
/// the volume is read anew, unless a process here has it open.
///
/// # Errors
/// As for [`find_volume`].
pub fn find(url: &str, credentials: Option<&Path>, is_fresh: bool) -> Result<PathBuf, VolumeError> {
    find_volume(url, credentials, is_fresh, &|dir| VolumeLock::holder(dir).is_some())
}

/// The raw parts of a volume that this process has open.
pub struct Volume {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is.
    pub descriptor: Descriptor,
    /// Its metadata.
    pub engine: Arc<dyn Engine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    lock: VolumeLock,
}

impl Volume {
    /// Opens the volume that `url` names: takes its lock, opens its block store, replays its log.
    /// Starts threads: a process that goes to the background does so before.
    ///
    /// # Errors
    /// If it is not there, damaged, newer, one node's part of one, or in use; the text says which
    /// and what to do.
    pub fn open(url: &str, role: &str, resources: &Resources) -> Result<Self, VolumeError> {
        let dir = find(url, resources.store.credentials.as_deref(), false)?;
        Descriptor::read(&dir)?.is_whole(&dir)?;
        Self::open_part(&dir, role, resources)
    }

    /// The same for a directory that may be one node's part of a volume: for callers that know what
    /// to do with it.
    ///
    /// # Errors
    /// As for [`Volume::open`].
    pub fn open_part(dir: &Path, role: &str, resources: &Resources) -> Result<Self, VolumeError> {
        let dir = dir.to_path_buf();
        let mut descriptor = Descriptor::read(&dir)?;
        let lock = VolumeLock::take(&dir, role)?;
        if StateRecord::read(&dir)?.is_some() {
            // Another machine may have changed it.
            Descriptor::refresh(&dir, resources.store.credentials.as_deref())?;
            descriptor = Descriptor::read(&dir)?;
        }
        Descriptor::mend(&dir);
        // Before the metadata: recovery reads file data and takes back what is not whole.
        let storage = Arc::new(Storage::open(&dir, &descriptor, &resources.store)?);
        let store: Arc<dyn BlockStore> = match descriptor.job {
            Some(job) => Arc::new(OwnStore::new(storage.store.clone(), objects_of_job(job))),
            None => storage.store.clone(),
        };
        let engine = engine::open(&dir, &descriptor, resources, &store)?;
        Ok(Self { dir, descriptor, engine, store, storage, lock })
    }

    /// Starts a metadata node and a file system on the volume.
    ///
    /// # Errors
    /// If the metadata cannot be read or threads cannot be started.
    pub fn serve(
        self,
        resources: &Resources,
        read_only: bool,
    ) -> Result<MountedVolume, VolumeError> {
        self.start(resources, read_only, (false, None))
    }

    /// The same for clients across a network: the node waits for those of before it was restarted,
    /// until [`kestrel_meta::node::Node::end_grace`].
    ///
    /// # Errors
    /// As for [`Volume::serve`].
    pub fn serve_clients(self, resources: &Resources) -> Result<MountedVolume, VolumeError> {
        self.start(resources, false, (true, None))
    }

    /// The same for a mount that another process can take over, or that this process takes over:
    /// files without names stay until [`Fs::take_files`]. `figures` are those that the process
    /// before has left ([`ClientState::figures`]).
    ///
    /// # Errors
    /// As for [`Volume::serve`].
    ///
    /// [`ClientState::figures`]: crate::handover::ClientState::figures
    pub fn serve_handed_over(
        self,
        resources: &Resources,
        read_only: bool,
        figures: Option<[i64; 3]>,
    ) -> Result<MountedVolume, VolumeError> {
        self.start(resources, read_only, (true, figures))
    }

    /// Starts the node of a cluster that this is, which reaches the others by way of `carrier`, and
    /// a file system for what it does on its own.
    ///
    /// # Errors
    /// As for [`Volume::serve`], and if this is no node of a cluster.
    pub fn serve_part(
        self,
        resources: &Resources,
        carrier: Arc<dyn Carrier>,
    ) -> Result<MountedVolume, VolumeError> {
        let Some(section) = &self.descriptor.cluster else {
            let why = "not a node of a cluster: it has all of the volume";
            return Err(VolumeError::Invalid(format!("{}: {why}", self.dir.display())));
        };
        let exclusive = self.take_ownership(resources.take_over)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = ClusterNodeConfig {
            me: section.node,
            placement: section.placement()?,
            node: NodeConfig {
                workers: section.workers as usize,
                ..self.node_config(resources, true)
            },
            seed: clock.now().cast_unsigned(),
            joining: section.joining,
            exclusive,
        };
        let host = NodeHost::open(self.engine.clone(), clock.clone(), config, carrier)
            .map_err(|error| VolumeError::engine_at(&self.dir, error))?;
        self.assemble(Arc::new(Hosted::new(host)), clock, resources, false)
    }

    fn start(
        self,
        resources: &Resources,
        read_only: bool,
        (serves, figures): (bool, Option<[i64; 3]>),
    ) -> Result<MountedVolume, VolumeError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig { figures, ..self.node_config(resources, serves) };
        let node = Node::open(self.engine.clone(), clock.clone(), config)
            .map_err(|error| VolumeError::engine_at(&self.dir, error))?;
        self.assemble(Arc::new(Embedded::new(node)), clock, resources, read_only)
    }

    fn node_config(&self, resources: &Resources, serves: bool) -> NodeConfig {
        let settings = &self.descriptor.settings;
        NodeConfig {
            workers: resources.workers,
            durability: match settings.durability {
                Durability::Commit => node::Durability::Commit,
                Durability::Fsync => node::Durability::Fsync,
            },
            grace: i64::from(settings.grace_seconds) * SECOND,
            serves,
            batch_max: resources.batch_max.unwrap_or(NodeConfig::default().batch_max),
            replica_bytes: resources.store.memory.replica_bytes as usize,
            objects_from: self.descriptor.job.map_or(0, |job| objects_of_job(job).start),
            ..NodeConfig::default()
        }
    }

    fn assemble(
        self,
        metadata: Arc<dyn Metadata>,
        clock: Arc<dyn Clock>,
        resources: &Resources,
        read_only: bool,
    ) -> Result<MountedVolume, VolumeError> {
        let plan = Assembly { metadata, numbers: ObjectNumbers::default(), clock, read_only };
        let fs = plan.assemble(&self.descriptor, self.store.clone(), resources)?;
        Ok(MountedVolume { fs, volume: self })
    }

    /// The lock that keeps others out; held as long as the volume is open.
    pub fn lock(&self) -> &VolumeLock {
        &self.lock
    }
}

/// A volume with a file system running on it.
pub struct MountedVolume {
    /// The file system. Call [`Fs::shutdown`] before dropping it.
    pub fs: Arc<Fs>,
    /// The raw parts.
    pub volume: Volume,
}
