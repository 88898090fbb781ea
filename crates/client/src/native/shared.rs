//! One open volume for all users of a URL in this process: a volume in a directory can be open only
//! once, and a served one needs one session.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use kestrel_types::error::FsResult;
use parking_lot::Mutex;

use super::{NativeOptions, NativeVolume};
use crate::error::VolumeError;

/// The volumes that a process has open.
struct Registry {
    pid: u32,
    open: Mutex<Vec<Shared>>,
}

struct Shared {
    url: String,
    token: Option<String>,
    read_only: bool,
    volume: Weak<NativeVolume>,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());

/// The registry of this process. A process that was forked begins with an empty one: a thread that
/// did not come along may have the lock of its parent's, which is left as it is.
fn registry() -> &'static Registry {
    let pid = std::process::id();
    loop {
        let found = REGISTRY.load(Ordering::Acquire);
        // SAFETY: what was stored there is never freed.
        if let Some(registry) = unsafe { found.as_ref() }.filter(|registry| registry.pid == pid) {
            return registry;
        }
        let fresh = Box::into_raw(Box::new(Registry { pid, open: Mutex::default() }));
        let swapped =
            REGISTRY.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

impl NativeVolume {
    /// The volume that `url` names, which other users of the same URL and token in this process
    /// share. [`NativeVolume::give_back`] ends the use.
    ///
    /// # Errors
    /// As for [`NativeVolume::open`].
    pub fn open_shared(url: &str, options: &NativeOptions) -> Result<Arc<Self>, VolumeError> {
        let mut open = registry().open.lock();
        open.retain(|shared| shared.volume.strong_count() > 0);
        let is_same = |shared: &&Shared| {
            shared.url == url
                && shared.token == options.token
                && shared.read_only == options.read_only
        };
        if let Some(volume) = open.iter().find(is_same).and_then(|shared| shared.volume.upgrade()) {
            return Ok(volume);
        }
        let volume = Arc::new(Self::open(url, options)?);
        open.push(Shared {
            url: url.to_string(),
            token: options.token.clone(),
            read_only: options.read_only,
            volume: Arc::downgrade(&volume),
        });
        Ok(volume)
    }

    /// Ends the use of a volume that is shared: the last user closes it.
    ///
    /// # Errors
    /// The first file that could not be stored.
    pub fn give_back(self: Arc<Self>) -> FsResult<()> {
        if !self.is_of_this_process() {
            // The parent's: nothing of it is touched, not even the count of its users.
            std::mem::forget(self);
            return Ok(());
        }
        // No user begins meanwhile.
        let _open = registry().open.lock();
        match Arc::into_inner(self) {
            Some(volume) => volume.close(),
            None => Ok(()),
        }
    }
}
