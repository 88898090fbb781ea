//! The metadata core: one node, which executes operations on the rows of an engine.
//!
//! A [`Node`] takes requests, queues each at the worker that owns its key, and runs what has queued
//! up as one batch: *resolve* against the [`replica`], *prefetch* with one multi-get ([`rows`]),
//! *execute* the operations ([`ops`], each a pure function of a [`view`]), *commit* to the
//! [engine](kestrel_engine), reply. Several nodes that share a volume are `kestrel_cluster`;
//! clients across a network reach a node through `kestrel_server`.
//!
//! [`Node::format`] writes what a volume begins with, [`Node::open`] opens it with a
//! [`NodeConfig`], and [`Node::call`] or [`Node::submit`] sends it a request:
//!
//! ```
//! use std::sync::Arc;
//!
//! use kestrel_engine::MemoryEngine;
//! use kestrel_meta::{Node, NodeConfig, RootAttr};
//! use kestrel_types::clock::{Clock, SystemClock};
//! use kestrel_types::ids::ROOT;
//! use kestrel_types::{Answer, Creds, FsResult, Op, PathRef, Request};
//!
//! # fn main() -> FsResult<()> {
//! let (engine, clock) = (Arc::new(MemoryEngine::default()), Arc::new(SystemClock));
//! Node::format(&*engine, RootAttr { mode: 0o755, uid: 0, gid: 0 }, clock.now())?;
//! let node = Node::open(engine, clock, NodeConfig::default())?;
//!
//! let op = Op::MkDir(PathRef::from_path(ROOT, b"photos")?, 0o755);
//! match node.call(Request { creds: Creds::root(), op }) {
//!     Ok(Answer::Entry { parent, inode }) => {
//!         assert_eq!(parent, ROOT);
//!         println!("made directory {}", inode.ino);
//!     }
//!     other => panic!("{other:?}"),
//! }
//! node.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`node`] | [`Node`]: start, dispatch, clients, garbage collection |
//! | [`worker`] | a worker: its queue and its state, which one thread holds at a time |
//! | [`pipeline`] | one batch: prefetch, execute, commit, what each request hears |
//! | [`ops`] | the operations, a file each |
//! | [`view`] | what an operation sees and may do |
//! | [`stop`] | why an operation stops before it has an answer |
//! | [`rows`] | the rows of one batch |
//! | [`content`] | changes of a file's content: chunks and references to objects |
//! | [`ref_deltas`], [`effects`] | changes of references; what a batch does besides changing rows |
//! | [`perm`] | permission rules of POSIX |
//! | [`replica`], [`path_cache`] | caches of dentries and of walked paths |
//! | [`session`] | what clients hold: open files; what they claim after a restart |
//! | [`txn`] | answers already given, so that a request is executed once |
//! | [`history`] | what rows were at snapshots |
//! | [`clones`] | clones that are not finished |
//! | [`quotas`] | limits, and what counts towards them |
//! | [`feeds`] | change feeds: which changes are under way |
//! | [`tokens`] | records of tokens |
//! | [`ids`] | numbers of inodes and objects, and timestamps, given out once |
//! | [`owners`], [`locks`], [`lease`], [`sums`] | what a node of a cluster knows of the others |
//!
//! # Invariants
//!
//! - An operation happens wholly or not at all: a batch is one commit, and a journal undoes an
//!   operation that stops half-way ([`rows`]).
//! - Whatever batch a thread runs, it holds the state of that worker. An *exclusive* batch holds
//!   every worker's state, so no other batch is running then ([`node`]).
//! - A reply leaves when no worker's state is held. In mode [`Durability::Commit`] nothing leaves
//!   that power loss could take back.
//! - A numbered request that changed something is executed once, also across a restart ([`txn`]).

pub mod clones;
pub mod content;
pub mod effects;
pub mod feeds;
pub mod history;
pub mod ids;
pub mod lease;
pub mod locks;
pub mod node;
pub mod ops;
pub mod owners;
pub mod path_cache;
pub mod perm;
pub mod pipeline;
pub mod quotas;
pub mod ref_deltas;
pub mod replica;
pub mod rows;
pub mod session;
pub mod stop;
pub mod sums;
pub mod tokens;
pub mod txn;
pub mod view;
pub mod worker;

pub use node::{Durability, Node, NodeConfig, RootAttr};
