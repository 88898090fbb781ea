//! Errors of the file system as S3's.

use std::borrow::Cow;

use kestrel_types::error::FsError;
use s3s::{S3Error, S3ErrorCode};

/// Code of a key that no path of the volume can be.
pub const KEY_IS_NO_PATH: S3ErrorCode = S3ErrorCode::InvalidArgument;

/// An error with a reason.
pub fn refused(code: S3ErrorCode, why: impl Into<Cow<'static, str>>) -> S3Error {
    S3Error::with_message(code, why)
}

/// An error with a code that S3 itself does not have.
pub fn own(
    code: &'static str,
    status: http::StatusCode,
    why: impl Into<Cow<'static, str>>,
) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), why);
    error.set_status_code(status);
    error
}

/// A name of the key's path is an object, so nothing can be below it.
pub fn parent_is_object() -> S3Error {
    own(
        "ObjectParentIsFile",
        http::StatusCode::CONFLICT,
        "a name in the path of the key is an object; a path cannot go through it",
    )
}

/// A directory is at the key, so no object can be.
pub fn is_directory() -> S3Error {
    own(
        "ExistingObjectIsDirectory",
        http::StatusCode::CONFLICT,
        "other keys begin with this key and a slash, so a directory is there and no object can be",
    )
}

/// A directory is an object without bytes.
pub fn directory_with_bytes() -> S3Error {
    own(
        "DirectoryObjectContainsData",
        http::StatusCode::BAD_REQUEST,
        "a key that ends with a slash is a directory, which has no bytes",
    )
}

/// What the file system says, for a client of S3. What has no counterpart is an internal error and
/// goes to the log.
pub fn failed(error: FsError) -> S3Error {
    let why = error.reason.clone();
    match error.errno {
        libc::ENOENT | libc::ESTALE => refused(S3ErrorCode::NoSuchKey, "there is no such object"),
        libc::EACCES | libc::EPERM => refused(S3ErrorCode::AccessDenied, why),
        libc::EROFS => refused(S3ErrorCode::AccessDenied, "nothing may be changed"),
        libc::ENOTDIR => parent_is_object(),
        libc::EISDIR => is_directory(),
        libc::ENAMETOOLONG => refused(S3ErrorCode::KeyTooLongError, why),
        libc::EINVAL => refused(S3ErrorCode::InvalidArgument, why),
        libc::EFBIG => refused(S3ErrorCode::EntityTooLarge, why),
        libc::ENOSPC => own("InsufficientCapacity", http::StatusCode::INSUFFICIENT_STORAGE, why),
        libc::EDQUOT => own("QuotaExceeded", http::StatusCode::FORBIDDEN, why),
        libc::ETIMEDOUT | libc::EAGAIN | libc::EREMCHG | libc::EBUSY => {
            refused(S3ErrorCode::SlowDown, why)
        }
        _ => {
            log::warn!("gateway: {error}");
            refused(S3ErrorCode::InternalError, why)
        }
    }
}
