//! What an administrator does with a volume, over its raw rows and objects: consistency check and
//! repair, dump and load, garbage collection, information about files and directories.
//!
//! Everything here works on the engine trait and the block store trait, so it serves every engine
//! and every store. The repair and the load need the volume for themselves; the check needs
//! metadata that nobody changes, of a volume in use a [`cut`]; the rest works while it is in use.

pub mod check;
pub mod cluster_view;
pub mod cut;
pub mod dump;
pub mod finding;
pub mod fragmented;
pub mod gc;
pub mod idset;
pub mod info;
pub mod merge;
pub mod recording;
pub mod references;
pub mod repair;
pub mod rows;
pub mod salvage;
pub mod tree;
pub mod warmup;
