//! The file-system API: the one place where metadata and data meet.
//!
//! A [`volume::Volume`] is opened, then served; [`fs::Fs`] is what mounts, gateways and tools call.
//! The embedded volume is this client with the metadata node in its own process; a
//! [`remote::RemoteVolume`] is one whose node is a server's.

mod accesses;
pub mod control;
pub mod descriptor;
mod dir_stream;
pub mod error;
mod extent_cache;
mod file;
pub mod fs;
mod groups;
mod held_locks;
pub mod hex;
mod inode_table;
pub mod keys;
pub mod listed;
pub mod memory;
pub mod metadata;
mod object_ids;
mod recovery;
pub mod remote;
pub mod storage;
pub mod volume;
mod write_buffer;
