//! An embedded volume: a directory with descriptor and metadata engine, and a block store, open in one process at a time.
//!
//! [`Volume::open`] gives the raw parts, for the tools that check, dump and collect; [`Volume::serve`] starts a metadata
//! node and a file system on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kestrel_data::packer::{Packer, PackerConfig};
use kestrel_data::reader::{Reader, ReaderConfig};
use kestrel_data::store::BlockStore;
use kestrel_data::{Pool, ReadAheadConfig};
use kestrel_meta::engine::BeforeSync;
use kestrel_meta::engine::EngineError;
use kestrel_meta::engine::embedded::{EmbeddedEngine, EmbeddedOptions};
use kestrel_meta::node::{self, Node, NodeConfig};
use kestrel_types::clock::{Clock, SECOND, SystemClock};

use crate::descriptor::{Descriptor, Durability, volume_dir};
use crate::error::VolumeError;
use crate::fs::{Fs, FsConfig, IoPools};
use crate::object_ids::ObjectIdPool;
use crate::recovery::Recovery;
use crate::storage::{Storage, StoreOptions};

mod format;
mod lock;
mod sizes;

pub use format::{NewVolume, format};
pub use lock::VolumeLock;
use sizes::fitting_options;
pub use sizes::scratch_reserve;
pub(crate) use sizes::{data_reserve, disk_bytes};

/// Directory of the metadata engine.
const META_DIR: &str = "meta";

/// How often a volume in mode `fsync` syncs on its own (`metadata.md` §7.3).
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Reads and writes that may wait for a thread.
const IO_QUEUE_MAX: usize = 4096;

/// Read-aheads that may wait for a thread; more would be late anyway.
const AHEAD_QUEUE_MAX: usize = 256;

/// Threads that wait for a store across a network: as many requests as cover its latency.
const REMOTE_IO_THREADS: usize = 64;

/// Memory for verified file data, bytes: what the kernel's cache is to a store near by has to be here for one across a
/// network.
const DATA_CACHE_BYTES: usize = 64 << 20;
const REMOTE_DATA_CACHE_BYTES: usize = 256 << 20;

/// Largest read-ahead of one open file, bytes; of a store across a network it must cover latency times bandwidth, here
/// 640 MB/s at 50 ms.
const REMOTE_READAHEAD_BYTES: u64 = 32 << 20;

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
    /// How the block store is reached.
    pub store: StoreOptions,
}

impl Default for Resources {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            metadata_bytes: 512 << 20,
            data_cache_bytes: None,
            dirty_bytes_max: 256 << 20,
            workers: cores.clamp(1, 64),
            store: StoreOptions::default(),
        }
    }
}

/// Sizes that depend on where the block store is.
struct Sizes {
    data_cache_bytes: usize,
    io_threads: usize,
    readahead: ReadAheadConfig,
}

impl Resources {
    fn sizes(&self, is_remote: bool) -> Sizes {
        if is_remote {
            let data_cache_bytes = self.data_cache_bytes.unwrap_or(REMOTE_DATA_CACHE_BYTES);
            // What is ahead of one reader leaves room for a few others in the share of the cache that read-ahead has.
            let window = REMOTE_READAHEAD_BYTES.min(data_cache_bytes as u64 / 8);
            let readahead = ReadAheadConfig::remote(window);
            return Sizes { data_cache_bytes, io_threads: REMOTE_IO_THREADS, readahead };
        }
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Sizes {
            data_cache_bytes: self.data_cache_bytes.unwrap_or(DATA_CACHE_BYTES),
            io_threads: (2 * cores).clamp(4, 64),
            readahead: ReadAheadConfig::default(),
        }
    }
}

/// The raw parts of a volume that this process has open.
pub struct Volume {
    /// Its directory.
    pub dir: PathBuf,
    /// What it is.
    pub descriptor: Descriptor,
    /// Its metadata.
    pub engine: Arc<EmbeddedEngine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    lock: VolumeLock,
}

impl Volume {
    /// Opens the volume that `url` names: takes its lock, opens its block store, replays its log. Starts threads: a process
    /// that goes to the background does so before.
    ///
    /// # Errors
    /// If it is not there, damaged, newer, or in use; the text says which and what to do.
    pub fn open(url: &str, role: &str, resources: &Resources) -> Result<Self, VolumeError> {
        let dir = volume_dir(url)?;
        let descriptor = Descriptor::read(&dir)?;
        let lock = VolumeLock::take(&dir, role)?;
        // Before the metadata: recovery reads file data and takes back what is not whole.
        let storage = Arc::new(Storage::open(&dir, &descriptor, &resources.store)?);
        let store = storage.store.clone();
        let synced = store.clone();
        let before_sync: BeforeSync = Arc::new(move || {
            synced.sync().map_err(|error| EngineError::Io(format!("syncing file data: {error}")))
        });
        let options = EmbeddedOptions {
            memory_bytes: resources.metadata_bytes,
            sync_interval: (descriptor.settings.durability == Durability::Fsync).then_some(SYNC_INTERVAL),
            ..fitting_options(&dir)
        };
        let mut recovery = Recovery::new(store.clone());
        let engine = EmbeddedEngine::open(
            &dir.join(META_DIR),
            descriptor.uuid_bytes(),
            options,
            before_sync,
            &mut |mutations| recovery.is_intact(mutations),
        )
        .map_err(|error| VolumeError::Engine(format!("{}: {error}", dir.display())))?;
        recovery.finish(&dir)?;
        Ok(Self { dir, descriptor, engine: Arc::new(engine), store, storage, lock })
    }

    /// Starts a metadata node and a file system on the volume.
    ///
    /// # Errors
    /// If the metadata cannot be read or threads cannot be started.
    pub fn serve(self, resources: &Resources, read_only: bool) -> Result<MountedVolume, VolumeError> {
        let settings = &self.descriptor.settings;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: resources.workers,
            durability: match settings.durability {
                Durability::Commit => node::Durability::Commit,
                Durability::Fsync => node::Durability::Fsync,
            },
            grace: i64::from(settings.grace_seconds) * SECOND,
            ..NodeConfig::default()
        };
        let node = Node::open(self.engine.clone(), clock.clone(), config)
            .map_err(|error| VolumeError::Engine(format!("{}: {error}", self.dir.display())))?;
        let failed = |error: kestrel_data::Error| VolumeError::Io(error.to_string());
        let ids = ObjectIdPool::new(node.clone());
        let config = PackerConfig {
            uploads: resources.store.max_uploads,
            ..PackerConfig::new(self.descriptor.uuid_bytes())
        };
        let packer = Packer::new(self.store.clone(), Arc::new(ids), config).map_err(failed)?;
        let sizes = resources.sizes(self.store.is_remote());
        let config = ReaderConfig { cache_bytes: sizes.data_cache_bytes, ..Default::default() };
        let reader = Reader::new(self.store.clone(), config);
        let pools = IoPools {
            wanted: Pool::new("kestrel-io", sizes.io_threads, IO_QUEUE_MAX).map_err(failed)?,
            ahead: Pool::new("kestrel-ahead", sizes.io_threads, AHEAD_QUEUE_MAX).map_err(failed)?,
        };
        let config = FsConfig {
            block_bytes: settings.block_bytes,
            inline_max: settings.inline_max,
            dirty_bytes_max: resources.dirty_bytes_max,
            readahead: sizes.readahead,
            flush_interval: SECOND,
            read_only,
        };
        let fs = Fs::new(node, self.store.clone(), packer, reader, pools, clock, config);
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
