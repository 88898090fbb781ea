//! Deterministic simulation of a metadata node and its clients: one process, one thread, one seed.
//!
//! Clients (the session of `kestrel-rpc`, a generator of calls) and a server (`kestrel-server` over
//! `kestrel-meta` over an engine in memory that loses what was not synced) talk over a virtual
//! network on a virtual clock, while both sides crash, stop, and lose each other ([`world`]). What
//! clients asked and heard must have an order in which a model file system would have answered the
//! same ([`linear`]), and what is left in the end must be sound.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a simulation that cannot go on has found something"
)]

pub mod client;
pub mod cluster;
mod event_queue;
pub mod history;
pub mod host;
pub mod linear;
pub mod network;
pub mod prng;
pub mod workload;
pub mod world;

#[allow(
    dead_code,
    clippy::cast_possible_wrap,
    missing_docs,
    reason = "shared with the tests of kestrel-meta, each uses a part"
)]
#[path = "../../../metadata/node/tests/common/check.rs"]
mod check;
