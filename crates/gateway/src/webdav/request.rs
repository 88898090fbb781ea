//! A request, as the operations know it; what they wait for, and their errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dav_server::davpath::DavPath;
use dav_server::fs::{FsError as DavError, FsResult as DavResult};
use kestrel_types::error::{FsError, FsResult};
use parking_lot::Mutex;

use crate::account::Account;

/// A request, as the operations know it.
#[derive(Clone)]
pub struct DavRequest {
    /// What its access key gives.
    pub account: Arc<Account>,
    /// Where a MOVE or COPY puts a file. The protocol library removes what is there before it
    /// moves or copies; here that waits until the file replaces it.
    pub destination: Option<Arc<DavPath>>,
    /// Something failed of which the answer says nothing.
    pub failed: Arc<AtomicBool>,
    /// The entry that was listed last, if it has no properties: the protocol library asks for them
    /// entry by entry.
    pub plain_entry: Arc<Mutex<Vec<u8>>>,
}

impl DavRequest {
    /// Of an account.
    pub fn new(account: &Arc<Account>, destination: Option<DavPath>) -> Self {
        Self {
            account: account.clone(),
            destination: destination.map(Arc::new),
            failed: Arc::default(),
            plain_entry: Arc::default(),
        }
    }

    /// The answer that is being sent is not the whole truth.
    pub fn fail(&self, error: &FsError) {
        log::warn!("webdav: {error}");
        self.failed.store(true, Ordering::Relaxed);
    }
}

/// Runs what may wait on a thread for that.
pub async fn on_thread<T: Send + 'static>(
    run: impl FnOnce() -> FsResult<T> + Send + 'static,
) -> FsResult<T> {
    tokio::task::spawn_blocking(run).await.unwrap_or_else(|why| {
        Err(FsError::because(libc::EIO, format!("a thread for a request failed: {why}")))
    })
}

/// [`on_thread`], with errors for a client of WebDAV.
pub async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> FsResult<T> + Send + 'static,
) -> DavResult<T> {
    on_thread(run).await.map_err(|error| dav_error(&error))
}

/// What the file system says, for a client of WebDAV. What has no counterpart is an internal error
/// and goes to the log.
pub fn dav_error(error: &FsError) -> DavError {
    match error.errno {
        libc::ENOENT | libc::ESTALE | libc::ENOTDIR => DavError::NotFound,
        libc::EEXIST | libc::ENOTEMPTY | libc::EISDIR => DavError::Exists,
        libc::EACCES | libc::EPERM | libc::EROFS | libc::EBUSY => DavError::Forbidden,
        libc::ENOSPC | libc::EDQUOT => DavError::InsufficientStorage,
        libc::ELOOP => DavError::LoopDetected,
        libc::ENAMETOOLONG => DavError::PathTooLong,
        libc::EFBIG => DavError::TooLarge,
        _ => {
            log::warn!("webdav: {error}");
            DavError::GeneralFailure
        }
    }
}
