//! A persistent cache near the compute: local disks in front of a block store that is far away.
//!
//! [`CachedStore`] is a [`kestrel_blockstore::BlockStore`] in front of another one and answers
//! every call as that one would, sooner. [`CacheOptions`] say where and how much. [`WholeCopies`]
//! are copies of whole files that the kernel reads by itself.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kestrel_blockstore::BlockStore;
//! use kestrel_blockstore::store::MemoryStore;
//! use kestrel_cache::{CacheOptions, CachedStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let far: Arc<dyn BlockStore> = Arc::new(MemoryStore::put_only()); // in practice an S3Store
//! let options = CacheOptions::new(vec!["/var/cache/kestrel".into()]);
//! let store = CachedStore::open(far, [0; 16], options)?; // of the volume with this identity
//! let mut head = [0; 64];
//! store.read_up_to(1, 0, &mut head)?; // from the disk, or from the store and soon from the disk
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | `store` | the wrapper: [`CachedStore`] |
//! | `read` | the order of a read: page cache, disk, flight, store |
//! | `lookup` | reads of the disk, on the disk's threads, in bounded time |
//! | `fill` | writes to the disk, in the background |
//! | `flight` | single flight, gathered requests |
//! | `object`, `pages` | what is known in memory of objects; sets of pages |
//! | [`page`], `slots` | the format of a cache file; reading it into a reader's buffers |
//! | `completion`, `workers` | callbacks of the disk's reads; threads that wait for a disk |
//! | `disk` | one directory: its files, its threads, making room |
//! | `whole` | copies of whole files |
//! | `named` | the same cache for objects with names: [`CachedNamed`] |
//! | `local_cache` | the cache as warmup and `kestrel info` see it |
//! | [`evict`], [`span`] | what to remove; how much to fetch (pure) |
//! | `breaker` | when to leave a disk alone (pure) |
//! | [`options`], `stats`, `core` | settings, counters, shared state |
//! | [`faults`], `sys` | disks that fail on purpose; system calls |
//!
//! # Invariants
//!
//! - Nothing is in the cache that is not in the store, so any file of it may be removed at any
//!   time.
//! - What is on disk survives restarts and kill -9, needs no recovery, and is checked on every
//!   read: a byte that fails its check is fetched again, never served. A reader that does not wait
//!   checks the bytes itself: the cache then vouches for the file being the object's, no more.
//! - A cache disk that is full, slow, wedged, read-only or gone makes reads as slow as the store,
//!   never wrong and never stuck.
//! - Several processes, mounts and volumes may share a directory.
//!
//! Format: `docs/format/cache.md`. For operators: `docs/cache.md`.

mod breaker;
mod completion;
mod core;
mod disk;
pub mod evict;
pub mod faults;
mod fill;
mod flight;
mod local_cache;
mod lookup;
mod named;
mod object;
pub mod options;
pub mod page;
mod pages;
mod read;
mod slots;
pub mod span;
mod stats;
mod store;
mod sys;
mod whole;
mod workers;

pub use faults::{DiskFaults, DiskOp};
pub use named::{CachedNamed, NumberedNames};
pub use options::CacheOptions;
pub use span::SpanConfig;
pub use store::{CachedStore, OpenError};
pub use whole::{WholeCopies, WholeCopy, WholeId, WholeWriter};
