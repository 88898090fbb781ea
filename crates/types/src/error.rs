//! Errors as they reach the user: an errno decided where the cause is known, and a reason in words.

use std::borrow::Cow;
use std::fmt;

/// Result of a file-system operation.
pub type FsResult<T> = Result<T, FsError>;

/// Why a file-system operation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsError {
    /// Linux errno value, above zero.
    pub errno: i32,
    /// What failed and why, for logs and native clients; applications on a mount see only the
    /// errno.
    pub reason: Cow<'static, str>,
}

impl FsError {
    /// An error with a fixed reason.
    pub const fn new(errno: i32, reason: &'static str) -> Self {
        Self { errno, reason: Cow::Borrowed(reason) }
    }

    /// An error with particulars in its reason.
    pub fn because(errno: i32, reason: impl Into<String>) -> Self {
        Self { errno, reason: Cow::Owned(reason.into()) }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.reason, self.errno)
    }
}

impl std::error::Error for FsError {}
