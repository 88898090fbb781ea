//! The process that calls an operation of a file system, and the way its result comes back.

use kestrel_types::error::FsResult;

/// The process that calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread, for its supplementary groups; 0 if unknown.
    pub pid: u32,
}

impl Caller {
    /// The superuser, on behalf of nobody.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

    /// A caller without any rights, in no group.
    pub(crate) const STRANGER: Caller = Caller { uid: u32::MAX, gid: u32::MAX, pid: 0 };
}

/// Completion of an operation. Called exactly once, possibly before the call that takes it returns.
pub type Done<T> = Box<dyn FnOnce(FsResult<T>) + Send>;
