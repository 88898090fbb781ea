//! The file-system API: the one place where metadata and data meet.
//!
//! A [`volume::Volume`] is opened, then served; [`fs::Fs`] is what mounts, gateways and tools call. The embedded volume is
//! this client with the metadata node in its own process.

pub mod control;
pub mod descriptor;
mod dir_stream;
pub mod error;
mod file;
pub mod fs;
mod groups;
pub mod keys;
mod known;
mod object_ids;
mod recovery;
pub mod storage;
pub mod volume;
mod write_buffer;
