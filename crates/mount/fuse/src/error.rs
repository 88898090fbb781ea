//! Errors of mounting and serving: what failed, and why.

use std::fmt;
use std::io;

/// An operation of this crate that failed.
#[derive(Debug)]
pub struct Error {
    what: String,
    cause: io::Error,
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(what: impl Into<String>, cause: io::Error) -> Error {
        Error { what: what.into(), cause }
    }

    /// A failure that no system call reported.
    pub fn plain(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error { what: what.into(), cause: io::Error::other(why.into()) }
    }

    /// As [`Error::plain`], with an error number for callers that look.
    pub(crate) fn errno(what: impl Into<String>, errno: i32) -> Error {
        Error { what: what.into(), cause: io::Error::from_raw_os_error(errno) }
    }

    /// The system's error number, if it was a system call that failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}
