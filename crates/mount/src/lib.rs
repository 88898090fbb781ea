//! The mount: turns requests of the kernel into calls of the client, and its answers into replies.
//!
//! Thin on purpose: no state but the numbers of open handles, no decision about semantics. Node ids are inode numbers.

mod convert;
mod dispatch;
mod handles;
mod locking;
mod patience;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::Fs;
use kestrel_fuse as fuse;

use crate::dispatch::Mounted;

/// How a volume is mounted.
#[derive(Debug, Clone, Default)]
pub struct MountConfig {
    /// Options of the kernel's mount.
    pub options: fuse::MountOptions,
    /// Options of the FUSE session: workers, sizes, features.
    pub session: fuse::Config,
    /// How long the kernel may trust attributes. Zero by default: then every stat sees what any client did before it.
    pub attr_ttl: Duration,
    /// How long the kernel may trust names. Zero by default.
    pub entry_ttl: Duration,
}

/// Mounts a file system at `dir`. When this returns the mount serves.
///
/// # Errors
/// If the kernel or `fusermount3` refuses; the text says why and what to do.
pub fn mount(fs: Arc<Fs>, dir: &Path, config: &MountConfig) -> fuse::Result<fuse::Session> {
    let mut session = config.session.clone();
    // Other clients see the locks of a volume that a server serves; those of an embedded one are the kernel's own.
    (session.features.posix_locks, session.features.flock_locks) = (fs.has_locks(), fs.has_locks());
    let mounted = Mounted::new(fs, config.attr_ttl, config.entry_ttl);
    fuse::Session::start(fuse::Mount::new(dir, &config.options)?, mounted, &session)
}
