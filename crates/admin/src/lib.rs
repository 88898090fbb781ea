//! What an administrator does with a volume, over its raw rows and objects: consistency check and repair, dump and load,
//! garbage collection, information about files and directories.
//!
//! Everything here works on the engine trait and the block store trait, so it serves every engine and every store. The
//! check, the repair and the load need the volume for themselves; the rest works while it is in use.

pub mod check;
pub mod dump;
pub mod finding;
pub mod gc;
pub mod idset;
pub mod info;
pub mod references;
pub mod repair;
pub mod rows;
