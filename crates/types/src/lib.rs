//! The vocabulary of KestrelFS: ids, names, rows and their keys, requests and answers, the
//! placement map, errors, and the messages of the protocol.
//!
//! Clients, metadata nodes and tools speak to each other in these types. This crate does no I/O and
//! depends on no other crate of the workspace.
//!
//! # Where to begin
//!
//! A client sends a [`Request`]: an operation ([`Op`]) and the user that asks ([`Creds`]). The
//! reply ([`Reply`]) is an [`Answer`] or another [`Outcome`]. The operation names an entry by a
//! [`PathRef`] or an inode by an [`InodeRef`]; the [`PlacementMap`] says which node leads it. That
//! node keeps rows, each under a [`Key`] of a [`Table`]; the row of a name is an [`Entry`], which
//! holds the [`Inode`] unless the file has several names.
//!
//! ```
//! use kestrel_types::ids::ROOT;
//! use kestrel_types::placement::{Exceptions, Member, SlotMap};
//! use kestrel_types::{Creds, Op, PathRef, PlacementMap, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let members = (1..=3).map(|id| Member { id, address: format!("node-{id}:9440") }).collect();
//! let placement = PlacementMap::new(SlotMap::even(members)?, Exceptions::default());
//!
//! let op = Op::Lookup(PathRef::from_path(ROOT, b"photos/2026/cat.jpg")?);
//! let request = Request { creds: Creds::root(), op };
//! let leader = placement.leader(&request.op).ok_or("any node may lead this")?;
//! println!("{request:?} goes to {}", leader.address);
//!
//! assert_eq!(PlacementMap::decode(&placement.encode())?, placement);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`ids`] | numbers of inodes, objects and log positions |
//! | [`name`] | names and paths, checked when they are made |
//! | [`inode`], [`entry`] | an inode; what a name in a directory stands for |
//! | [`extent`], [`range`] | which stored bytes make up a chunk of a file; where these bytes are |
//! | [`trash`] | the trash: names in it |
//! | [`removal`] | what is asked before a tree is removed |
//! | [`feed`] | change feeds: events, and the rows that have them |
//! | [`retention`] | how long policies have something kept |
//! | [`snapshot`], [`clone`] | snapshots of directories, and clones |
//! | [`snapshot_changes`] | what differs between two moments, and the space that a snapshot holds |
//! | [`stat`] | shares: what each worker knows of a directory or an object |
//! | [`key`] | the tables of a volume, and the keys of their rows |
//! | [`request`] | requests, operations, answers |
//! | [`creds`] | the user and groups that ask |
//! | [`op_kind`], [`op_counters`] | kinds of requests, and counters by kind |
//! | [`perm`] | permission rules that client and node share |
//! | [`quota`] | limits of bytes and files, and what counts towards them |
//! | [`policy`] | what a directory hands down to what is below it |
//! | [`compression`] | how data of files is compressed |
//! | [`tier`] | where a store keeps an object |
//! | [`placement`] | slots, exceptions, the placement map |
//! | [`wire`] | messages of the protocol and their bytes |
//! | [`codec`] | bounds-checked reading of rows and frames |
//! | [`hex`] | bytes as text |
//! | [`token`], [`security`] | records of tokens; how far a connection can be trusted |
//! | [`lock_ranges`] | the byte ranges of a file that one owner has locked |
//! | [`clock`] | time as a trait, so that tests decide what time it is |
//! | [`error`] | an errno with a reason in words |
//! | [`crash`] | named points at which tests kill the process |
//!
//! # Invariants
//!
//! - Numbers and layouts that are on disk or on the wire never change or get another meaning. Test
//!   vectors pin the hashes of [`placement`] and the messages of [`wire`].
//! - Decoding never panics, whatever the bytes are, and what it gives keeps the rules of its type.
//! - Ids are never reused within a volume, and zero is never a valid one ([`ids`]).

pub mod acl;
pub mod clock;
pub mod clone;
pub mod codec;
pub mod compression;
pub mod crash;
pub mod creds;
pub mod entry;
pub mod error;
pub mod extent;
pub mod feed;
pub mod hex;
pub mod ids;
pub mod inode;
pub mod key;
pub mod lock_ranges;
pub mod name;
pub mod op_counters;
pub mod op_kind;
pub mod perm;
pub mod placement;
pub mod policy;
pub mod quota;
pub mod range;
pub mod removal;
pub mod request;
pub mod retention;
pub mod security;
pub mod snapshot;
pub mod snapshot_changes;
pub mod stat;
pub mod tier;
pub mod token;
pub mod trash;
pub mod wire;

pub use entry::Entry;
pub use error::{FsError, FsResult};
pub use ids::{InodeId, ObjectId, Position};
pub use inode::Inode;
pub use key::{Key, KeyRef, Table};
pub use name::{InodeRef, Name, PathRef};
pub use placement::PlacementMap;
pub use request::{Answer, Creds, Op, Outcome, Reply, Request};
pub use snapshot::{SnapshotId, SnapshotInfo};
