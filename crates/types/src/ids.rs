//! Numbers that name things. All are 64 bits, never reused within a volume, and zero is never a
//! valid one.

/// Inode number of a file, directory or special file; what applications see in `st_ino`.
pub type InodeId = u64;

/// Number of an object in the block store.
pub type ObjectId = u64;

/// Number of a snapshot: the commit stamp at which it was made. Every change before it has a lower
/// one, every later change a higher one. Never reused within a volume.
pub type SnapshotId = u64;

/// Position in an engine's log: the sequence number of the last record it covers. Zero covers
/// nothing.
pub type Position = u64;

/// Number of a metadata node. Given once, never reused within a cluster.
pub type NodeId = u32;

/// The root directory of every volume.
pub const ROOT: InodeId = 1;

/// First inode number given to anything but the root.
pub const FIRST_INODE: InodeId = 16;

/// First object number of a volume.
pub const FIRST_OBJECT: ObjectId = 1;
