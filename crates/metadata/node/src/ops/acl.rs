//! POSIX ACLs: the extended attributes `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! As Linux has them (`fs/posix_acl.c`), in [`kestrel_types::acl`]:
//! - Everybody reads them; `ENODATA` if there is none, `EOPNOTSUPP` of a symbolic link.
//! - The owner and the superuser set and remove them (`EPERM`), unless `chattr +i` or `+a` or an
//!   immutable tree keeps the inode as it is. A default ACL is for directories (`EACCES`).
//! - An access ACL sets the permission bits of the mode; one that says no more than they do is not
//!   kept. The set-group-id bit goes unless the caller is in the group or the superuser.
//! - A value without entries removes the ACL. It is no error if there is none.
//! - Removing an access ACL leaves the mode, and so the mask for the group, as it is.
//!
//! Both are part of the inode's record: permissions cost no other row. A directory's dentry in the
//! replica has them, so that setting one is a change of the directory, as chmod is.

use std::sync::Arc;

use kestrel_types::acl::{AccessAcl, Acl, Acls, XATTR_ACCESS, XATTR_DEFAULT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, XattrFlags};

use crate::perm::{self, SET_GID};
use crate::stop::{Run, Stop, fail};
use crate::view::{InodeUse, LocatedInode, View};

/// Which ACL of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclKind {
    /// The access ACL.
    Access,
    /// The default ACL.
    Default,
}

impl AclKind {
    /// The ACL that an extended attribute shows, if it shows one.
    pub fn of(name: &[u8]) -> Option<Self> {
        match name {
            XATTR_ACCESS => Some(Self::Access),
            XATTR_DEFAULT => Some(Self::Default),
            _ => None,
        }
    }
}

const MISSING: Stop = fail(libc::ENODATA, "it has no such ACL");

fn access(inode: &Inode) -> Option<&AccessAcl> {
    inode.acls.as_ref().and_then(|acls| acls.access.as_ref())
}

fn default(inode: &Inode) -> Option<&Acl> {
    inode.acls.as_ref().and_then(|acls| acls.default.as_ref())
}

fn check_kind(inode: &Inode) -> Run<()> {
    match inode.kind {
        Kind::Symlink => Err(fail(libc::EOPNOTSUPP, "a symbolic link has no ACLs")),
        _ => Ok(()),
    }
}

/// Runs GetXattr of an ACL.
pub fn get(view: &mut View<'_>, inode: &InodeRef, kind: AclKind) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Read)?;
    check_kind(&found.inode)?;
    let value = match kind {
        AclKind::Access => {
            access(&found.inode).map(|acl| acl.with_mode(found.inode.mode).to_xattr())
        }
        AclKind::Default => default(&found.inode).map(Acl::to_xattr),
    };
    value.map(Answer::Bytes).ok_or(MISSING)
}

/// Appends the names that ListXattr gives of an inode's ACLs, each with its NUL.
pub fn list(inode: &Inode, names: &mut Vec<u8>) {
    let has = [(access(inode).is_some(), XATTR_ACCESS), (default(inode).is_some(), XATTR_DEFAULT)];
    for (_, name) in has.iter().filter(|(has, _)| *has) {
        names.extend_from_slice(name);
        names.push(0);
    }
}

/// Runs SetXattr of an ACL.
pub fn set(
    view: &mut View<'_>,
    creds: &Creds,
    inode: &InodeRef,
    (kind, value): (AclKind, &[u8]),
    flags: XattrFlags,
) -> Run<Answer> {
    let acl = Acl::from_xattr(value).map_err(Stop::Fail)?;
    let found = changeable(view, creds, inode, (kind, acl.is_some()))?;
    let is_set = has(&found.inode, kind);
    if is_set && flags.create {
        return Err(fail(libc::EEXIST, "it has such an ACL"));
    }
    if !is_set && flags.replace {
        return Err(MISSING);
    }
    let Some(acl) = acl else {
        return if is_set { write(view, found, (kind, None), None) } else { Ok(Answer::Done) };
    };
    if kind == AclKind::Default {
        return write(view, found, (kind, Some(acl)), None);
    }
    let mut mode = found.inode.mode & !0o777 | acl.mode();
    if mode & SET_GID != 0 && creds.uid != 0 && !perm::in_group(creds, found.inode.gid)? {
        mode &= !SET_GID;
    }
    write(view, found, (kind, Some(acl)), Some(mode))
}

/// Runs RemoveXattr of an ACL.
pub fn remove(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, kind: AclKind) -> Run<Answer> {
    let found = changeable(view, creds, inode, (kind, false))?;
    match has(&found.inode, kind) {
        true => write(view, found, (kind, None), None),
        false => Ok(Answer::Done),
    }
}

fn has(inode: &Inode, kind: AclKind) -> bool {
    match kind {
        AclKind::Access => access(inode).is_some(),
        AclKind::Default => default(inode).is_some(),
    }
}

/// The inode, if the caller may change its ACLs; with `sets` it gets one.
fn changeable(
    view: &mut View<'_>,
    creds: &Creds,
    inode: &InodeRef,
    (kind, sets): (AclKind, bool),
) -> Run<LocatedInode> {
    let found = view.find(inode, InodeUse::Write)?;
    check_kind(&found.inode)?;
    perm::check_changeable(found.inode.flags)?;
    if kind == AclKind::Default && sets && !found.is_dir() {
        return Err(fail(libc::EACCES, "only directories have a default ACL"));
    }
    if !perm::owns(creds, found.inode.uid) {
        return Err(fail(libc::EPERM, "only the owner changes an ACL"));
    }
    view.check_inode_changes(&found, inode)?;
    Ok(found)
}

fn write(
    view: &mut View<'_>,
    found: LocatedInode,
    (kind, acl): (AclKind, Option<Acl>),
    mode: Option<u16>,
) -> Run<Answer> {
    view.begin()?;
    let LocatedInode { mut inode, at } = found;
    let (access, default) = match kind {
        AclKind::Access => (acl.and_then(|acl| acl.access()), default(&inode).cloned()),
        AclKind::Default => (access(&inode).cloned(), acl),
    };
    inode.acls = Acls::new(access, default);
    inode.mode = mode.unwrap_or(inode.mode);
    inode.xattrs |= inode.acls.is_some();
    inode.ctime = view.now;
    inode.change = view.stamp;
    let size = inode.size;
    view.put_inode(&at, inode, size, None)?;
    Ok(Answer::Done)
}

/// Mode and ACLs of what is made in a directory that has these (`posix_acl_create`): a default ACL
/// takes the place of the umask, and a directory passes it on.
pub fn inherited(
    above: Option<&Arc<Acls>>,
    (mode, umask): (u16, u16),
    kind: Kind,
) -> (u16, Option<Arc<Acls>>) {
    let passed_on = above.filter(|_| kind != Kind::Symlink);
    let Some((above, acl)) = passed_on.and_then(|acls| Some((acls, acls.default.as_ref()?))) else {
        return (mode & !umask, None);
    };
    let (mode, access) = acl.inherited(mode);
    if kind != Kind::Dir {
        return (mode, Acls::new(access, None));
    }
    let same = access == above.access;
    let acls = if same { Some(above.clone()) } else { Acls::new(access, Some(acl.clone())) };
    (mode, acls)
}
