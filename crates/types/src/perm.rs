//! Permission bits, and the rules of POSIX, as Linux applies them, that a client and a node both
//! need.
//!
//! Supplementary groups may be unknown ([`Creds::groups`]). Every rule here asks for them only if
//! they decide.

use crate::creds::Creds;

/// Read permission, as in `R_OK`.
pub const READ: u32 = 4;
/// Write permission, as in `W_OK`.
pub const WRITE: u32 = 2;
/// Execute or search permission, as in `X_OK`.
pub const EXEC: u32 = 1;

/// Set-user-id bit.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id bit; on a directory: what is created in it gets its group.
pub const SET_GID: u16 = 0o2000;
/// Sticky bit; on a directory: only owners remove.
pub const STICKY: u16 = 0o1000;
/// Execute permission of the group.
pub const GROUP_EXEC: u16 = 0o010;

/// What the mode of [`with_umask`] is shifted by to give the umask.
const UMASK_SHIFT: u32 = 12;

/// What something is to be made with: permission bits (12 bits), which the umask has not been taken
/// from, and above them the umask of its maker (9 bits). A directory with a default ACL passes that
/// on instead of heeding the umask, and only its node knows.
pub const fn with_umask(mode: u16, umask: u16) -> u32 {
    (mode & 0o7777) as u32 | ((umask & 0o777) as u32) << UMASK_SHIFT
}

/// Permission bits and umask of what [`with_umask`] made.
pub const fn split_umask(made: u32) -> (u16, u16) {
    ((made & 0o7777) as u16, (made >> UMASK_SHIFT) as u16 & 0o777)
}

/// Name of the extended attribute with the capabilities of a program.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Whether the caller is a member of `gid`; `None` if that depends on groups that are unknown.
#[inline]
pub fn in_group(creds: &Creds, gid: u32) -> Option<bool> {
    if creds.gid == gid {
        return Some(true);
    }
    creds.groups.as_ref().map(|groups| groups.contains(&gid))
}

/// Mode of a file that belongs to `gid` without the set-id bits that a change by the caller takes
/// away: set-user-id always; set-group-id if the group may execute, and else (it is the mark of
/// mandatory locking then) unless the caller could set it: is in the group or the superuser. (Linux
/// 6.2 and its predecessors' updates, `setattr_should_drop_suidgid`; whether anything is taken away
/// at all is the caller's to decide: a write by the superuser takes nothing, a chown by him does.)
/// `None` if that depends on groups that are unknown.
pub fn without_set_ids(creds: &Creds, mode: u16, gid: u32) -> Option<u16> {
    let rest = mode & !SET_UID;
    match mode & (SET_GID | GROUP_EXEC) {
        SET_GID if creds.uid == 0 || in_group(creds, gid)? => Some(rest),
        _ => Some(rest & !SET_GID),
    }
}
