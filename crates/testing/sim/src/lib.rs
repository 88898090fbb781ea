//! Deterministic simulation of metadata nodes and their clients: one process, one thread, one seed.
//!
//! Clients (the session of `kestrel-rpc`, a generator of calls) and a server (`kestrel-server` over
//! `kestrel-meta` over an engine in memory that loses what was not synced) talk over a virtual
//! network on a virtual clock, while both sides crash, stop, and lose each other. [`World`] is a
//! run with one node, [`ClusterRun`] one with several. The program `kestrel-sim` runs seeds:
//!
//! ```text
//! cargo run --profile ci -p kestrel-sim -- --seeds 1..1000
//! cargo run --profile ci -p kestrel-sim -- --nodes 3 --seed 17 --trace
//! ```
//!
//! ```
//! use kestrel_sim::{RunPlan, World};
//!
//! let stats = World::new(RunPlan { seed: 1, calls: 50, trace: false }).run().unwrap();
//! println!("{} calls, {} crashes", stats.calls, stats.crashes);
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`world`] | one run of one node and its clients: events, faults, the check at the end |
//! | [`cluster`] | one run of several nodes that share a volume |
//! | [`run`] | what a run may be, and what it was |
//! | [`client`], [`host`] | a client's machine; the node's machine: disk, process, connections |
//! | [`network`] | connections that bring bytes in order, late, or never |
//! | [`workload`] | what clients ask |
//! | [`history`], [`linear`] | calls and answers; the search for an order that explains them |
//! | [`prng`], `event_queue` | randomness from the seed; the virtual clock |
//! | `feed` | the change feed of the root: a reader that applies it has the tree |
//! | `check` | whether the rows of a node are sound, shared with the tests of `kestrel-meta` |
//!
//! # Invariants
//!
//! - A seed determines a run completely.
//! - The answers that clients got must have an order in which the model ([`kestrel_model`]) would
//!   have answered the same, and what is left in the end must be sound.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a simulation that cannot go on has found something"
)]

pub mod client;
pub mod cluster;
mod event_queue;
mod feed;
pub mod history;
pub mod host;
pub mod linear;
pub mod network;
pub mod prng;
pub mod run;
pub mod workload;
pub mod world;

pub use cluster::ClusterRun;
pub use run::{Failure, RunPlan, RunStats};
pub use world::World;

#[allow(
    dead_code,
    clippy::cast_possible_wrap,
    missing_docs,
    reason = "shared with the tests of kestrel-meta, each uses a part"
)]
#[path = "../../../metadata/node/tests/common/check.rs"]
mod check;
