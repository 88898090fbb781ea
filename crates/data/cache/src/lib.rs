//! A persistent cache near the compute: local disks in front of a block store that is far away.
//!
//! **Contract.** [`CachedStore`] is a [`kestrel_blockstore::BlockStore`] in front of another and
//! answers every call as that one would, sooner. What it keeps on disk survives restarts and kill
//! -9, needs no recovery, and is checked on every read: a byte that fails its check is fetched
//! again, never served. A reader that does not wait checks the bytes itself: the cache then vouches
//! for the file being the object's, no more. A cache disk that is full, slow, wedged, read-only or
//! gone makes reads as slow as the store, never wrong and never stuck. Several processes, mounts
//! and volumes may share a directory. Nothing is in the cache that is not in the store, so any file
//! of it may be removed at any time.
//!
//! ```text
//! store      the wrapper                         read   page cache → disk → flight → store
//! near       what warmup sees                    look   reads of the disk, on its threads, in bounded time
//! object     what is known of an object          fill   writes to the disk, in the background
//! flight     single flight, gathered requests    span   how much to fetch (pure)
//! page       the format of a slot                slots  reading slots without a copy
//! promise    telling those who do not wait
//! disk       one directory: its files and service; disk/keeper its thread, disk/sweep making room, disk/marker its format
//! whole      copies of whole files, for the kernel to read by itself; disk/whole their names
//! evict      what to remove (pure)               breaker  when to leave a disk alone (pure)
//! ```
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
pub use options::CacheOptions;
pub use span::SpanConfig;
pub use store::{CachedStore, OpenError};
pub use whole::{CHUNK_BYTES, WholeCopies, WholeCopy, WholeId, WholeWriter, chunk_sum};
