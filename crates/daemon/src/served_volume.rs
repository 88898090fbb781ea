//! The volume that a process serves or mounts, as its threads and the answers to questions use it.

use std::path::PathBuf;
use std::sync::Arc;

use kestrel_blockstore::store::BlockStore;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::fs::Fs;
use kestrel_client::storage::Storage;
use kestrel_engine::Engine;
use parking_lot::Mutex;

use super::mount_status::is_read_only;

/// See the module's header.
pub struct ServedVolume {
    /// The file system.
    pub fs: Arc<Fs>,
    /// Its metadata.
    pub engine: Arc<dyn Engine>,
    /// Its data.
    pub store: Arc<dyn BlockStore>,
    /// Where its data is.
    pub storage: Arc<Storage>,
    /// What it is.
    pub descriptor: Descriptor,
    /// Directory of the volume.
    pub dir: PathBuf,
    /// Where it is mounted, if it is.
    pub mount_point: Option<PathBuf>,
    /// It was begun so that nothing can be changed.
    pub read_only: bool,
    /// Held by a check or a collection: they walk all metadata, so one at a time.
    pub walking: Mutex<()>,
}

impl ServedVolume {
    /// Whether nothing can be changed at present.
    pub fn is_read_only(&self) -> bool {
        is_read_only(self.mount_point.as_deref(), self.read_only)
    }

    /// Whether this process looks after the volume: collects objects, takes dumps. A job's
    /// namespace is part of one.
    pub fn is_kept(&self) -> bool {
        !self.read_only && self.descriptor.job.is_none()
    }

    /// Whether something may be changed.
    ///
    /// # Errors
    /// If the volume is mounted read-only; the text says what to do.
    pub fn may_change(&self) -> Result<(), String> {
        if self.is_read_only() {
            return Err("the volume is mounted read-only; mount it for writing first".into());
        }
        Ok(())
    }
}
