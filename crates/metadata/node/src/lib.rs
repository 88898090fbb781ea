//! The metadata core.
//!
//! A [`node::Node`] takes requests, queues each at the worker that owns its key, and runs what has
//! queued up as one batch: *resolve* against the [`replica`], *prefetch* with one multi-get
//! ([`rows`]), *execute* the operations ([`ops`], each a pure function of a [`view`]), *commit* to
//! the [engine](kestrel_engine), reply.

pub mod content;
pub mod effects;
pub mod ids;
pub mod lease;
pub mod locks;
pub mod node;
pub mod ops;
pub mod owners;
pub mod path_cache;
pub mod perm;
pub mod pipeline;
pub mod ref_deltas;
pub mod replica;
pub mod rows;
pub mod session;
pub mod sums;
pub mod tokens;
pub mod txn;
pub mod view;
pub mod worker;
