//! The user that asks for something.

use std::sync::Arc;

/// The user and groups that ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creds {
    /// Effective user. 0 may do anything that `CAP_DAC_OVERRIDE`, `CAP_FOWNER` and `CAP_CHOWN`
    /// allow.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups, or `None` if the client has not looked them up: an operation that
    /// depends on them is answered with [`crate::request::Outcome::NeedGroups`] and sent again.
    /// (FUSE does not carry them.)
    pub groups: Option<Arc<[u32]>>,
}

impl Creds {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Some(Arc::default()) }
    }
}
