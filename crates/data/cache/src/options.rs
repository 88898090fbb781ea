//! Settings of a cache.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kestrel_types::clock::{Clock, SystemClock};

use crate::faults::DiskFaults;
use crate::span::SpanConfig;

/// Most cache directories of one mount.
pub const DIRS_MAX: usize = 64;

/// Largest share of a file system that an option may keep free.
pub const FREE_SPACE_RATIO_MAX: f64 = 0.9;

/// Settings of a [`crate::CachedStore`].
#[derive(Clone)]
pub struct CacheOptions {
    /// Where to cache: at least one directory, at most [`DIRS_MAX`], on a disk each. A missing one
    /// is made.
    pub dirs: Vec<PathBuf>,
    /// Most bytes of disk in **each** directory, those of all volumes together.
    pub bytes: u64,
    /// Share of each directory's file system that the cache leaves free: 0 to
    /// [`FREE_SPACE_RATIO_MAX`].
    pub free_space_ratio: f64,
    /// Most bytes in memory that wait to be written to cache disks. What comes when they are full
    /// is not cached.
    pub fill_queue_bytes: u64,
    /// A cache disk that takes longer than this for one read is put out of service for a while, and
    /// the read goes to the store.
    pub disk_deadline: Duration,
    /// How much is fetched beyond what was requested.
    pub span: SpanConfig,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Faults of cache disks, for tests.
    pub faults: Option<Arc<dyn DiskFaults>>,
}

impl CacheOptions {
    /// The defaults, in these directories.
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self {
            dirs,
            bytes: 100 * 1024 * 1024 * 1024,
            free_space_ratio: 0.1,
            fill_queue_bytes: 64 * 1024 * 1024,
            disk_deadline: Duration::from_secs(1),
            span: SpanConfig::default(),
            clock: Arc::new(SystemClock),
            faults: None,
        }
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions")
            .field("dirs", &self.dirs)
            .field("bytes", &self.bytes)
            .field("free_space_ratio", &self.free_space_ratio)
            .finish_non_exhaustive()
    }
}
