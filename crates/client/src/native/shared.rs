//! One open volume for all users of a URL in this process: a volume in a directory can be open only
//! once, and a served one needs one session.

use std::sync::Arc;

use kestrel_types::error::FsResult;
use parking_lot::Mutex;

use super::open::{NativeOptions, NativeVolume, SharedPlace};
use super::waiting::{Gone, run_or};
use crate::error::VolumeError;

/// The volumes that this process has open or is about to open. Not locked while one is opened.
static OPEN: Mutex<Vec<Arc<SharedPlace>>> = Mutex::new(Vec::new());

/// The place of a volume among those that are shared.
fn shared(url: &str, options: &NativeOptions) -> Arc<SharedPlace> {
    let mut open = OPEN.lock();
    // What no volume and no thread refers to.
    open.retain(|shared| Arc::strong_count(shared) > 1);
    let is_same = |shared: &&Arc<SharedPlace>| {
        shared.url == url && shared.token == options.token && shared.read_only == options.read_only
    };
    if let Some(shared) = open.iter().find(is_same) {
        return shared.clone();
    }
    let shared = Arc::new(SharedPlace {
        url: url.to_string(),
        token: options.token.clone(),
        read_only: options.read_only,
        volume: Mutex::default(),
    });
    open.push(shared.clone());
    shared
}

impl NativeVolume {
    /// The volume that `url` names, which other users of the same URL and token in this process
    /// share. [`NativeVolume::give_back`] ends the use. A caller that is gone does not wait: what
    /// is opened then is closed.
    ///
    /// # Errors
    /// As for [`NativeVolume::open`]; none if the caller is gone.
    pub fn open_shared(
        url: &str,
        options: &NativeOptions,
        gone: Gone<'_>,
    ) -> Option<Result<Arc<Self>, VolumeError>> {
        let (url, options) = (url.to_string(), options.clone());
        // On a thread of its own: a server may take a minute to say nothing.
        let open = move || Self::open_or_share(&url, &options);
        run_or(gone, open, |late| drop(late.map(Self::give_back)))
    }

    fn open_or_share(url: &str, options: &NativeOptions) -> Result<Arc<Self>, VolumeError> {
        let shared = shared(url, options);
        let mut open = shared.volume.lock();
        if let Some(volume) = open.upgrade() {
            return Ok(volume);
        }
        let volume = Self::open(url, options)?;
        let volume = Arc::new(volume.shared_as(shared.clone()));
        *open = Arc::downgrade(&volume);
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
        let shared = self.shared();
        // No user begins meanwhile.
        let _open = shared.as_ref().map(|shared| shared.volume.lock());
        match Arc::into_inner(self) {
            Some(volume) => volume.close(),
            None => Ok(()),
        }
    }
}
