//! The block store in an S3-compatible object store.
//!
//! [`S3Store`] is a [`kestrel_blockstore::BlockStore`] with the objects of one volume below a
//! prefix of a bucket. [`S3Options::parse`] reads the URL; [`S3Store::create`] takes the prefix for
//! a volume, [`S3Store::open`] comes back to it.
//!
//! ```no_run
//! use kestrel_blockstore::BlockStore;
//! use kestrel_s3::{S3Options, S3Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Credentials come from the environment or from ~/.aws/credentials, never from the URL.
//! let options = S3Options::parse("s3://bucket/volume?region=eu-central-1")?;
//! let store = S3Store::open_any(options)?;
//! for object in store.list(None, 10)?.objects {
//!     println!("object {}: {}", object.object, store.place(object.object));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! From the store down to the wire:
//!
//! | module | |
//! | --- | --- |
//! | [`store`] | the block store: put, multipart, read, list, delete |
//! | [`named`] | objects with names, by which processes agree: metadata in a bucket |
//! | [`marker`] | the object that names the volume of a prefix; create, open, erase |
//! | `client` | one request with its turn, its deadline and its attempts |
//! | `retry` | when a failed attempt is made again: pure, with explicit time |
//! | `rate_limiter`, `bandwidth` | how many requests at a time, how many bytes a second: pure |
//! | `fault` | what an attempt's failure means |
//! | `open_error` | why a store cannot be created or opened |
//! | `wire` | HTTP below the crate `object_store`: counts, times, checks of answers |
//! | `scatter` | bytes that arrive in pieces, written to a caller's buffers |
//! | `executors` | reactors and connections, one set for each call at a time |
//! | [`options`], `credentials` | the URL, the limits, the credentials |
//! | `stats` | counters of a store (`docs/metrics.md`) |
//! | [`objbench`] | measures a store and checks that it does what the file system needs |
//!
//! # Invariants
//!
//! - Objects are written once, by conditional puts where the store has them, and an acknowledged
//!   put is durable.
//! - What a request cannot settle at once is tried again, with exponential backoff and full jitter,
//!   until its deadline. What cannot get better by trying (no permission, no such bucket, no such
//!   object) is not tried again.
//! - An answer is believed only if it is whole: bodies have the length that was requested; pages of
//!   listings go forward and have as many keys as they announce; the last page is requested twice.
//! - A call blocks its caller. The calling thread drives the sockets of its request itself
//!   (`executors`); the store has no threads of its own but short-lived ones that look up names.
//!   Calls must not be made from async code.

mod bandwidth;
mod client;
mod credentials;
mod executors;
mod fault;
pub mod marker;
pub mod named;
pub mod objbench;
mod open_error;
pub mod options;
mod rate_limiter;
mod retry;
mod scatter;
mod stats;
pub mod store;
mod wire;

pub use named::S3Named;
pub use open_error::OpenError;
pub use options::{S3_SCHEME, S3Limits, S3Options};
pub use store::S3Store;
