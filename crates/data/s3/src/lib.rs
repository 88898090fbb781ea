//! The block store in an S3-compatible object store.
//!
//! **Contract.** [`S3Store`] is a [`kestrel_blockstore::store::BlockStore`]: objects are written
//! once, by conditional puts where the store has them, and an acknowledged put is durable. What a
//! request cannot settle at once is tried again, with exponential backoff and full jitter, until
//! its deadline; what cannot get better by trying (no permission, no such bucket, no such object)
//! is not. An answer is believed only if it is whole: bodies have the length that was asked for,
//! pages of listings go forward, name as many keys as they say, and the last one is asked for
//! twice.
//!
//! **Layers**, one module each, from the store down to the wire:
//!
//! | module | |
//! | --- | --- |
//! | [`store`] | the block store: put, multipart, read, list, delete |
//! | [`marker`] | the object that says whose bucket it is; create, open, erase |
//! | `client` | one request with its turn, its deadline and its attempts |
//! | `retry`, `gate`, `bandwidth` | when to try again; how many at a time; how many bytes a second: pure, with explicit time |
//! | `fault` | what an attempt's failure means |
//! | `wire` | HTTP below the crate `object_store`: counts, times, and looks into answers that it does not check |
//! | `executors` | reactors and connections, one set for each call at a time |
//! | [`options`], `credentials` | the URL, the limits, who we are |
//! | [`objbench`] | measures a store and checks that it does what we need |
//!
//! **Threads.** A call blocks its caller; the calling thread drives the sockets of its request
//! itself (`executors`); the store has no threads of its own but short-lived ones that look up
//! names. Its calls must not be made from async code.

mod bandwidth;
mod client;
mod credentials;
mod executors;
mod fault;
pub mod marker;
pub mod objbench;
pub mod options;
mod rate_limiter;
mod retry;
mod scatter;
mod stats;
pub mod store;
mod wire;

pub use marker::OpenError;
pub use options::{S3_SCHEME, S3Limits, S3Options};
pub use store::S3Store;
