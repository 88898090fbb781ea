//! Putting a file system together from the way to its metadata and its block store, with sizes that
//! suit where the store is.

use std::sync::Arc;

use kestrel_blockstore::packer::{Packer, PackerConfig};
use kestrel_blockstore::reader::{Reader, ReaderConfig};
use kestrel_blockstore::store::BlockStore;
use kestrel_blockstore::{Pool, ReadAheadConfig};
use kestrel_types::clock::{Clock, SECOND};

use super::Resources;
use crate::descriptor::Descriptor;
use crate::error::VolumeError;
use crate::fs::{Fs, FsConfig, FsParts, IoPools};
use crate::listed::{ENTRIES_MAX, ENTRY_BYTES};
use crate::metadata::Metadata;
use crate::object_ids::{ObjectIdPool, ObjectNumbers};

/// Reads and writes that may wait for a thread.
const IO_QUEUE_MAX: usize = 4096;

/// Read-aheads that may wait for a thread; more would be late anyway.
const AHEAD_QUEUE_MAX: usize = 256;

/// Threads that put copied bytes into files, and wait until there is room for them.
const COPY_THREADS: usize = 4;

/// Threads that wait for a store across a network: as many requests as cover its latency.
const REMOTE_IO_THREADS: usize = 64;

/// Memory for verified file data, bytes: what the kernel's cache is to a store near by has to be
/// here for one across a network.
const DATA_CACHE_BYTES: usize = 64 << 20;
const REMOTE_DATA_CACHE_BYTES: usize = 256 << 20;

/// Largest read-ahead of one open file, bytes; of a store across a network it must cover latency
/// times bandwidth, here 640 MB/s at 50 ms.
const REMOTE_READAHEAD_BYTES: u64 = 32 << 20;

/// What a file system needs beside its store.
pub(crate) struct Assembly {
    /// The way to the metadata.
    pub metadata: Arc<dyn Metadata>,
    /// Object numbers that it has handed out.
    pub numbers: ObjectNumbers,
    /// Times of writes.
    pub clock: Arc<dyn Clock>,
    /// Nothing is changed.
    pub read_only: bool,
}

impl Assembly {
    /// Starts the file system of the volume that `descriptor` describes.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn assemble(
        self,
        descriptor: &Descriptor,
        store: Arc<dyn BlockStore>,
        resources: &Resources,
    ) -> Result<Arc<Fs>, VolumeError> {
        let failed = |error: kestrel_blockstore::Error| VolumeError::Io(error.to_string());
        let ids = ObjectIdPool::new(self.metadata.clone(), self.numbers);
        let memory = &resources.store.memory;
        let config = PackerConfig {
            uploads: memory.uploads(resources.store.max_uploads),
            ..PackerConfig::new(descriptor.uuid_bytes())
        };
        let packer = Packer::new(store.clone(), Arc::new(ids), config).map_err(failed)?;
        let sizes = resources.sizes(store.is_remote());
        let config = ReaderConfig { cache_bytes: sizes.data_cache_bytes, ..Default::default() };
        let parts = FsParts {
            metadata: self.metadata,
            reader: Reader::new(store.clone(), config),
            store,
            packer,
            pools: IoPools {
                wanted: Pool::new("kestrel-io", sizes.io_threads, IO_QUEUE_MAX).map_err(failed)?,
                ahead: Pool::new("kestrel-ahead", sizes.io_threads, AHEAD_QUEUE_MAX)
                    .map_err(failed)?,
                copies: Pool::new("kestrel-copies", COPY_THREADS, IO_QUEUE_MAX).map_err(failed)?,
            },
            clock: self.clock,
        };
        let settings = &descriptor.settings;
        let config = FsConfig {
            block_bytes: settings.block_bytes,
            inline_max: settings.inline_max,
            dirty_bytes_max: resources.dirty_bytes_max,
            read_bytes_max: memory.read_bytes(),
            read_kept_bytes: memory.read_kept_bytes as usize,
            listed_entries_max: (memory.listed_bytes as usize / ENTRY_BYTES).min(ENTRIES_MAX),
            snapshot_bytes: memory.snapshot_bytes as usize,
            readahead: sizes.readahead,
            flush_interval: SECOND,
            read_only: self.read_only,
            atime: settings.atime,
        };
        Ok(Fs::new(parts, config))
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
        let memory = &self.store.memory;
        let fitting = |default: usize| {
            self.data_cache_bytes
                .unwrap_or(default.min(usize::try_from(memory.data_cache_bytes).unwrap_or(default)))
        };
        if is_remote {
            let data_cache_bytes = fitting(REMOTE_DATA_CACHE_BYTES);
            // What is ahead of one reader leaves room for a few others in the share of the cache
            // that read-ahead has.
            let window = REMOTE_READAHEAD_BYTES.min(data_cache_bytes as u64 / 8);
            let readahead = ReadAheadConfig::remote(window);
            return Sizes {
                data_cache_bytes,
                io_threads: memory.io_threads(REMOTE_IO_THREADS),
                readahead,
            };
        }
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Sizes {
            data_cache_bytes: fitting(DATA_CACHE_BYTES),
            io_threads: memory.io_threads((2 * cores).clamp(4, 64)),
            readahead: ReadAheadConfig::default(),
        }
    }
}
