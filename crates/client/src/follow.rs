//! Following: a volume that a bucket has all of, read beside the process that writes it
//! (`docs/operations/bucket.md`, "Read beside the writer").
//!
//! No lock of the volume is taken and nothing is written to the bucket: any number of processes
//! follow one writer, on any machine, also while none writes. A thread reads the log on
//! ([`kestrel_bucket::Follower`]); each moment that it comes to has a metadata node of its own,
//! which answers all requests that come until the next one. So a request sees one moment, wholly,
//! and one that begins after another one has been answered sees the same moment or a later one.
//!
//! | file | |
//! | --- | --- |
//! | `follow/metadata.rs` | [`FollowedMetadata`]: requests, and those that are asked again |
//! | `follow/poller.rs` | the thread that reads on, and what is known of its progress |

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_bucket::Follower;
use kestrel_meta::node::{Durability, NodeConfig};
use kestrel_types::clock::{Clock, SECOND, SystemClock};

use crate::descriptor::{Descriptor, RowsAt};
use crate::error::VolumeError;
use crate::fs::Fs;
use crate::keys;
use crate::object_ids::ObjectNumbers;
use crate::state_dir::{StateRecord, credentials_for};
use crate::storage::{self, Storage, StoreOptions};
use crate::volume::Resources;
use crate::volume::assembly::Assembly;

mod metadata;
mod poller;

pub use metadata::FollowedMetadata;
pub use poller::FollowStatus;

/// How often a follower looks for changes by default.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// The node of a volume of which a bucket has all rows.
const NODE: u32 = 0;

/// A volume that is followed, with a file system running on it.
pub struct FollowedVolume {
    /// The file system. Call [`Fs::shutdown`] before dropping it.
    pub fs: Arc<Fs>,
    /// The way to its metadata.
    pub metadata: Arc<FollowedMetadata>,
    /// What the volume is.
    pub descriptor: Descriptor,
    /// Where its data is.
    pub storage: Arc<Storage>,
}

impl FollowedVolume {
    /// Begins to follow the volume with this state directory, and to look for changes `every` so
    /// often. Starts threads: a process that goes to the background does so before.
    ///
    /// # Errors
    /// If the volume is not one that a bucket has all of, something of it is damaged or newer, or
    /// the store cannot be reached; the text says which and what to do.
    pub fn open(dir: &Path, every: Duration, resources: &Resources) -> Result<Self, VolumeError> {
        let descriptor = Descriptor::read(dir)?;
        let credentials = credentials_for(dir, resources.store.credentials.as_deref());
        let rows = descriptor.rows()?.with_credentials(credentials.as_deref());
        let rows = keys::with_keys(rows, &descriptor, resources.store.key_file.as_deref())?;
        let (RowsAt::Bucket(place), true) = (rows, is_followed(dir)?) else {
            return Err(VolumeError::Invalid(format!(
                "{}: only a volume that a bucket has all of can be followed",
                dir.display()
            )));
        };
        let options = StoreOptions { credentials, ..resources.store.clone() };
        let storage = Storage::open(dir, &descriptor, &options)?;
        let place = storage::with_cached_tables(*place, &options);
        let opened = Instant::now();
        let follower =
            Follower::open(&place, descriptor.uuid_bytes(), NODE, resources.metadata_bytes)
                .map_err(VolumeError::engine)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let config = NodeConfig {
            workers: resources.workers,
            durability: Durability::Fsync,
            grace: i64::from(descriptor.settings.grace_seconds) * SECOND,
            replica_bytes: resources.store.memory.replica_bytes as usize,
            ..NodeConfig::default()
        };
        let metadata = FollowedMetadata::start(follower, clock.clone(), config, (every, opened))?;
        let plan = Assembly {
            metadata: metadata.clone(),
            numbers: ObjectNumbers::default(),
            clock,
            read_only: true,
        };
        let fs = plan.assemble(&descriptor, storage.store.clone(), resources)?;
        Ok(Self { fs, metadata, descriptor, storage: Arc::new(storage) })
    }
}

/// Whether a read-only mount of the volume with this directory follows: a bucket has all of it.
///
/// # Errors
/// If the directory cannot be read.
pub fn is_followed(dir: &Path) -> Result<bool, VolumeError> {
    Ok(StateRecord::read(dir)?.is_some())
}
