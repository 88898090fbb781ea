//! Cache disks that fail on purpose, for tests.

use std::io;
use std::path::Path;

/// What is done with a cache disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// A read of what the kernel has in its page cache, on the thread that wants it. It may fail
    /// but must not block.
    ReadCached,
    /// A read that may have to wait for the disk.
    Read,
    /// Pages are written.
    Write,
    /// Pages have been written and are about to be recorded as being there.
    Written,
    /// Files are looked for and removed.
    Evict,
    /// The disk is tried out while it is out of service for reads (`ProbeRead`) or for writes.
    ProbeRead,
    /// See `ProbeRead`.
    ProbeWrite,
}

/// Is called before every operation on a cache directory.
pub trait DiskFaults: Send + Sync {
    /// Fails the operation with an error, or blocks for as long as the disk is to be wedged.
    ///
    /// # Errors
    /// What the operation fails with.
    fn before(&self, op: DiskOp, dir: &Path) -> io::Result<()>;
}
