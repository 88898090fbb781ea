//! The file-system API: the one place where metadata and data meet.
//!
//! A [`Volume`] is opened, then served; [`Fs`] is what mounts, gateways and tools call. An embedded
//! volume has its metadata node in this process; a [`RemoteVolume`] has it in a server's. The calls
//! of [`Fs`] are the same for both.
//!
//! ```no_run
//! use kestrel_client::descriptor::Durability;
//! use kestrel_client::fs::{Caller, Creation, wait};
//! use kestrel_client::storage::StoreOptions;
//! use kestrel_client::volume::{NewVolume, Resources, Volume, format};
//! use kestrel_types::ids::ROOT;
//! use kestrel_types::name::{Name, PathRef};
//! use kestrel_types::request::OpenFlags;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! format("/srv/v", NewVolume::plain("v", Durability::Commit), &StoreOptions::default())?;
//! let resources = Resources::default();
//! let mounted = Volume::open("/srv/v", "example", &resources)?.serve(&resources, false)?;
//! let fs = &mounted.fs;
//!
//! let place = PathRef::new(ROOT, Name::new(b"hello")?);
//! let flags = OpenFlags { write: true, ..OpenFlags::default() };
//! let how = Creation { mode: 0o644, flags, exclusive: true };
//! let opened = wait(|done| fs.create(Caller::ROOT, place, how, done))?;
//! fs.write(&opened.handle, 0, b"hello", false)?;
//! wait(|done| fs.fsync(&opened.handle, done))?; // durable
//! wait(|done| fs.release(opened.handle, done))?;
//! fs.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | |
//! | --- | --- |
//! | [`volume`] | embedded volumes: format, open, serve, lock, salvage |
//! | [`remote`] | volumes that servers serve: sessions, outages, reclaim, routes |
//! | [`fs`] | every operation of POSIX on inodes, handles and names |
//! | [`native`] | volumes by URL and files by path, for programs without a mount |
//! | [`metadata`] | the way to the metadata: a node in this process, or servers |
//! | [`snapshot`], `snapshot_metadata` | a volume at a snapshot; its metadata at that moment |
//! | [`version`] | a published version of a volume, read from the store alone |
//! | [`follow`] | a volume in a bucket, read beside the process that writes it |
//! | `kept_inodes` | answers about snapshots that are kept: they never become wrong |
//! | `subtree` | a client that sees one directory as the root |
//! | [`storage`] | the stack of block stores: coding, disk cache, store |
//! | [`descriptor`], [`keys`] | `kestrel.json`: what a volume is; keys of volumes |
//! | [`state_dir`] | what a machine keeps of a volume that a bucket has all of |
//! | [`memory`] | how much memory this process may use, and its division |
//! | [`control`] | the control socket of a process that serves a volume |
//! | [`listed`], `dir_stream` | attributes that came with listings; listing with stable cookies |
//! | `inode_table`, `file` | inodes that the kernel refers to; a file that is open here |
//! | `write_buffer`, `extent_cache` | bytes not yet stored; extent lists of chunked files |
//! | `held_locks`, `accesses` | locks granted; reads that the node was not told of yet |
//! | [`handover`] | what goes from one process to the next that serves a mount |
//! | `caller`, `groups` | the process that calls; its supplementary groups |
//! | `answering` | threads that bring answers of servers |
//! | `url` | `kestrel://host[:port]…/NAME`: the URL of a volume that servers serve |
//! | `disk_space` | how much of a disk a volume takes for itself |
//! | `object_ids` | object numbers at hand |
//! | `recovery` | after a power cut, no change survives without its data |
//! | [`error`] | why a volume cannot be used |
//!
//! # Invariants
//!
//! - Calls of [`Fs`] do not block on a disk on purpose. They answer through a callback, once.
//! - A commit that names bytes is sent when the bytes are stored: after a power
//!   loss no change survives without its file data.
//! - One process at a time has an embedded volume open ([`volume::VolumeLock`]).

mod accesses;
mod answering;
mod caller;
pub mod control;
pub mod descriptor;
mod dir_stream;
mod disk_space;
pub mod error;
mod extent_cache;
mod file;
pub mod follow;
pub mod fs;
mod groups;
pub mod handover;
mod held_locks;
mod inode_table;
pub mod job;
mod kept_inodes;
pub mod keys;
pub mod listed;
pub mod memory;
pub mod metadata;
pub mod native;
mod object_ids;
mod recovery;
pub mod remote;
pub mod snapshot;
mod snapshot_metadata;
pub mod state_dir;
pub mod storage;
mod subtree;
mod url;
pub mod version;
pub mod volume;
mod write_buffer;

pub use fs::Fs;
pub use native::NativeVolume;
pub use remote::RemoteVolume;
pub use volume::Volume;
