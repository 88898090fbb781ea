//! Permission rules of POSIX as Linux applies them.
//!
//! Supplementary groups may be unknown ([`Creds::groups`]). Every rule here asks for them only if
//! they decide.

use std::sync::Arc;

use kestrel_types::acl::{AccessAcl, Acls};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::InodeFlags;
use kestrel_types::perm;
use kestrel_types::policy::{Policy, PolicyRecord};
use kestrel_types::request::{Creds, Outcome};

use crate::stop::{Run, Stop, fail};

pub use kestrel_types::perm::{
    EXEC, GROUP_EXEC, READ, SET_GID, SET_UID, STICKY, WRITE, split_umask, with_umask,
};

/// What decides which user may do what with a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Permission bits, 12 bits, and above them the [`InodeFlags`], 4 bits: see [`Guard::flags`].
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// It is a directory.
    pub dir: bool,
    /// ACLs, if it has any.
    pub acls: Option<Arc<Acls>>,
}

/// What the mode of a [`Guard`] is shifted by to give the flags.
const FLAGS_SHIFT: u32 = 12;

/// The mode of a [`Guard`].
pub const fn guard_mode(mode: u16, flags: InodeFlags) -> u16 {
    mode & 0o7777 | (flags.bits() as u16) << FLAGS_SHIFT
}

impl Guard {
    /// The flags.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits((self.mode >> FLAGS_SHIFT) as u8).unwrap_or_default()
    }

    /// Whether every user has these permissions, 0 to 7.
    pub fn all_may(&self, want: u32) -> bool {
        let want = want as u16;
        let all = want << 6 | want << 3 | want;
        self.mode & all == all && self.access_acl().is_none()
    }

    #[inline]
    fn access_acl(&self) -> Option<&AccessAcl> {
        self.acls.as_ref().and_then(|acls| acls.access.as_ref())
    }
}

/// What protects it from all changes but new content or new names.
const PROTECTED: InodeFlags = InodeFlags::IMMUTABLE.with(InodeFlags::APPEND);

/// Fails with `EPERM` if it is immutable.
pub fn check_mutable(flags: InodeFlags) -> Run<()> {
    if flags.has(InodeFlags::IMMUTABLE) {
        Err(fail(libc::EPERM, "it is immutable (chattr -i)"))
    } else {
        Ok(())
    }
}

/// Fails with `EPERM` if it is immutable or append only: its attributes and names stay.
pub fn check_changeable(flags: InodeFlags) -> Run<()> {
    if flags.has(PROTECTED) {
        return Err(fail(libc::EPERM, "it is immutable or append only (chattr -i, -a)"));
    }
    Ok(())
}

/// An answer that may depend on groups which are unknown.
#[inline]
fn known<T>(answer: Option<T>) -> Run<T> {
    answer.ok_or_else(|| Stop::Out(Box::new(Outcome::NeedGroups)))
}

/// [`perm::in_group`].
#[inline]
pub fn in_group(creds: &Creds, gid: u32) -> Run<bool> {
    known(perm::in_group(creds, gid))
}

/// [`perm::without_set_ids`].
#[inline]
pub fn without_set_ids(creds: &Creds, mode: u16, gid: u32) -> Run<u16> {
    known(perm::without_set_ids(creds, mode, gid))
}

/// Fails with `EACCES` unless the caller has all permissions in `want`; with `EPERM`, first of all,
/// if what is immutable is to be written.
#[inline]
pub fn check(creds: &Creds, guard: &Guard, want: u32) -> Run<()> {
    if want & WRITE != 0 {
        check_mutable(guard.flags())?;
    }
    let mode = u32::from(guard.mode);
    let granted = if creds.uid == 0 {
        // The superuser may do anything but execute what nobody may execute.
        want & EXEC == 0 || guard.dir || mode & 0o111 != 0
    } else if creds.uid == guard.uid {
        mode >> 6 & want == want
    } else if let Some(acl) = guard.access_acl() {
        known(acl.permits(creds, (guard.mode, guard.gid), want))?
    } else {
        let (as_group, as_other) = (mode >> 3 & want == want, mode & want == want);
        if as_group == as_other || in_group(creds, guard.gid)? { as_group } else { as_other }
    };
    if granted {
        Ok(())
    } else {
        Err(fail(libc::EACCES, "permission denied by the mode bits or the ACL"))
    }
}

/// Whether the caller owns the file or is the superuser.
pub fn owns(creds: &Creds, uid: u32) -> bool {
    creds.uid == 0 || creds.uid == uid
}

/// Fails with `EPERM` if `dir` is sticky and the caller owns neither it nor the entry to be removed
/// from it.
pub fn check_sticky(creds: &Creds, dir: &Guard, victim_uid: u32) -> Run<()> {
    if dir.mode & STICKY != 0 && !owns(creds, dir.uid) && creds.uid != victim_uid {
        return Err(fail(
            libc::EPERM,
            "the directory is sticky and the entry belongs to somebody else",
        ));
    }
    Ok(())
}

/// Group and mode of something to be created in `dir`: a set-group-id directory passes its group
/// on, and to directories also the bit itself. A file cannot become set-group-id for a group its
/// creator is not in.
pub fn inherit(creds: &Creds, dir: &Guard, mode: u16, is_dir: bool) -> Run<(u32, u16)> {
    let mode = mode & 0o7777;
    if dir.mode & SET_GID == 0 {
        return Ok((creds.gid, mode));
    }
    if is_dir {
        return Ok((dir.gid, mode | SET_GID));
    }
    let runs_as_group = mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
    if runs_as_group && creds.uid != 0 && !in_group(creds, dir.gid)? {
        return Ok((dir.gid, mode & !SET_GID));
    }
    Ok((dir.gid, mode))
}

/// What path resolution needs of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dentry {
    /// Number.
    pub ino: InodeId,
    /// The directory above; the root's is itself.
    pub parent: InodeId,
    /// Which user may do what.
    pub guard: Guard,
    /// What the directory itself says of policies.
    pub policy: PolicyRecord,
}

/// Fails with `EPERM` if a directory above says that nothing changes.
pub fn check_policy(policy: Policy) -> Run<()> {
    if policy.is_immutable() {
        return Err(fail(
            libc::EPERM,
            "a directory above is immutable (kestrel policy unset DIRECTORY consistency)",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn creds(uid: u32, gid: u32, groups: Option<&[u32]>) -> Creds {
        Creds { uid, gid, groups: groups.map(Arc::from) }
    }

    fn errno(result: Run<()>) -> i32 {
        match result {
            Ok(()) => 0,
            Err(Stop::Fail(error)) => error.errno,
            Err(Stop::Out(outcome)) if *outcome == Outcome::NeedGroups => -1,
            Err(_) => -2,
        }
    }

    /// One class of permission bits decides, and groups are asked for only if they decide.
    #[test]
    fn permission_class_and_group_lookup() {
        let guard = |mode| Guard { mode, uid: 10, gid: 20, dir: false, acls: None };
        // The owner's bits decide for the owner, even if others may more.
        assert_eq!(errno(check(&creds(10, 20, None), &guard(0o077), READ)), libc::EACCES);
        assert_eq!(errno(check(&creds(10, 20, None), &guard(0o700), READ | WRITE | EXEC)), 0);
        // The group's bits decide for the group.
        assert_eq!(errno(check(&creds(11, 20, None), &guard(0o704), READ)), libc::EACCES);
        assert_eq!(errno(check(&creds(11, 21, Some(&[20])), &guard(0o704), READ)), libc::EACCES);
        assert_eq!(errno(check(&creds(11, 21, Some(&[20])), &guard(0o740), READ)), 0);
        assert_eq!(errno(check(&creds(11, 21, Some(&[])), &guard(0o740), READ)), libc::EACCES);
        // Unknown groups matter only where they differ from the rest.
        assert_eq!(errno(check(&creds(11, 21, None), &guard(0o744), READ)), 0);
        assert_eq!(errno(check(&creds(11, 21, None), &guard(0o700), READ)), libc::EACCES);
        assert_eq!(errno(check(&creds(11, 21, None), &guard(0o740), READ)), -1);
        assert_eq!(errno(check(&creds(11, 21, None), &guard(0o704), READ)), -1);
    }

    #[test]
    fn the_superuser_may_all_but_execute_what_nobody_may() {
        let root = creds(0, 0, None);
        let file = |mode| Guard { mode, uid: 10, gid: 20, dir: false, acls: None };
        assert_eq!(errno(check(&root, &file(0), READ | WRITE)), 0);
        assert_eq!(errno(check(&root, &file(0o666), EXEC)), libc::EACCES);
        assert_eq!(errno(check(&root, &file(0o010), EXEC)), 0);
        assert_eq!(errno(check(&root, &Guard { dir: true, ..file(0) }, EXEC)), 0);
    }

    #[test]
    fn sticky_directories_protect_entries() {
        let dir = Guard { mode: 0o1777, uid: 10, gid: 20, dir: true, acls: None };
        assert_eq!(errno(check_sticky(&creds(11, 20, None), &dir, 12)), libc::EPERM);
        for uid in [0, 10, 12] {
            assert_eq!(errno(check_sticky(&creds(uid, 20, None), &dir, 12)), 0);
        }
        assert_eq!(
            errno(check_sticky(&creds(11, 20, None), &Guard { mode: 0o777, ..dir.clone() }, 12)),
            0
        );
    }

    #[test]
    fn set_group_id_directories_pass_their_group_on() {
        let plain = Guard { mode: 0o777, uid: 10, gid: 20, dir: true, acls: None };
        let dir = Guard { mode: 0o2777, ..plain.clone() };
        let caller = creds(11, 21, Some(&[22]));
        assert_eq!(inherit(&caller, &plain, 0o2755, false).ok(), Some((21, 0o2755)));
        assert_eq!(inherit(&caller, &dir, 0o755, true).ok(), Some((20, 0o2755)));
        assert_eq!(inherit(&caller, &dir, 0o2755, false).ok(), Some((20, 0o755)));
        assert_eq!(inherit(&caller, &dir, 0o2644, false).ok(), Some((20, 0o2644)));
        assert_eq!(
            inherit(&creds(11, 21, Some(&[20])), &dir, 0o2755, false).ok(),
            Some((20, 0o2755))
        );
        assert_eq!(inherit(&creds(0, 0, None), &dir, 0o2755, false).ok(), Some((20, 0o2755)));
        assert!(inherit(&creds(11, 21, None), &dir, 0o2755, false).is_err());
    }

    #[test]
    fn set_ids_fall_as_linux_drops_them() {
        let mode = |creds: &Creds, mode| match without_set_ids(creds, mode, 20) {
            Ok(mode) => mode,
            Err(Stop::Out(outcome)) if *outcome == Outcome::NeedGroups => 0xffff,
            Err(_) => 0xfffe,
        };
        let (member, stranger) = (creds(10, 5, Some(&[20])), creds(10, 5, Some(&[21])));
        for creds in
            [&creds(0, 0, None), &member, &stranger, &creds(10, 20, None), &creds(10, 5, None)]
        {
            // The group may execute, or there is no such bit: nobody's membership decides.
            assert_eq!(mode(creds, 0o6755), 0o755);
            assert_eq!(mode(creds, 0o4745), 0o745);
            assert_eq!(mode(creds, 0o1755), 0o1755);
        }
        assert_eq!(
            [&creds(0, 0, None), &creds(10, 20, None), &member].map(|who| mode(who, 0o6745)),
            [0o2745; 3]
        );
        assert_eq!(mode(&stranger, 0o6745), 0o745);
        assert_eq!(mode(&creds(10, 5, None), 0o2745), 0xffff);
    }
}
