//! Extended attributes: get, set, list, remove.
//!
//! By namespace, as Linux does it:
//! - `user.*`: regular files and directories only (else `EPERM`, or `ENODATA` when reading);
//!   permission by the file's mode; in a sticky directory's own attributes only its owner writes.
//! - `trusted.*`: the superuser; to others they do not exist (`ENODATA`, `EPERM` to set).
//! - `security.*`: everybody reads, the superuser sets.
//! - `kestrel.snapshot-schedule`: directories only (else `EOPNOTSUPP`, or `ENODATA` when reading);
//!   everybody reads, the owner and the superuser set. The process that serves the volume keeps it.
//! - `kestrel.*` else: policies of directories ([`super::policy`]).
//! - `system.posix_acl_access`, `system.posix_acl_default`: ACLs ([`super::acl`]).
//! - Anything else: `EOPNOTSUPP`.
//!
//! Limits: names 255 bytes (`ERANGE`), values 64 KiB (`E2BIG`), all names of an inode together 256
//! KiB (`ENOSPC`). A list of more than 64 KiB is answered in full, and Linux turns it into `E2BIG`
//! (`XATTR_LIST_MAX`), as on XFS and Btrfs: each attribute can be read and removed by its name.
//! Setting and removing change ctime. An inode that never had one is known by its record, so asking
//! for one (the kernel asks for `security.capability` all the time) costs no row.

use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::InodeRef;
use kestrel_types::perm::CAPABILITY;
use kestrel_types::policy::XATTR_PREFIX;
use kestrel_types::request::{Answer, Creds, XATTR_NAME_MAX, XATTR_VALUE_MAX, XattrFlags};
use kestrel_types::snapshot::SCHEDULE_XATTR;

use super::acl::AclKind;
use super::{acl, policy};
use crate::perm::{self, READ, STICKY, WRITE};
use crate::rows::{CellId, Value};
use crate::stop::{Run, fail};
use crate::view::{InodeUse, LocatedInode, View};

/// Most bytes of all names of one inode, NULs included: a bound on what one operation reads. Linux
/// lists 64 KiB of them.
pub const XATTR_NAMES_MAX: usize = 256 * 1024;

/// Version of a row of table `xattr`.
const VERSION: u8 = 1;

/// A row of table `xattr`.
pub fn encode(value: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(1 + value.len());
    out.push(VERSION);
    out.extend_from_slice(value);
    out.into_boxed_slice()
}

/// The value in a row, `None` if it is of another version.
pub fn decode(row: &[u8]) -> Option<&[u8]> {
    match row.split_first() {
        Some((&VERSION, value)) => Some(value),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    Schedule,
}

/// The field of a policy that the name of an attribute means.
fn policy_field(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(XATTR_PREFIX).filter(|_| name != SCHEDULE_XATTR)
}

fn space_of(name: &[u8]) -> Run<Space> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(fail(libc::ERANGE, "the name of an extended attribute has 1 to 255 bytes"));
    }
    if name.contains(&0) {
        return Err(fail(libc::EINVAL, "the name of an extended attribute contains no NUL"));
    }
    if name == SCHEDULE_XATTR {
        return Ok(Space::Schedule);
    }
    let spaces: [(&[u8], Space); 3] =
        [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    for (prefix, space) in spaces {
        match name.strip_prefix(prefix) {
            Some([]) => {
                return Err(fail(
                    libc::EINVAL,
                    "an extended attribute needs a name after its prefix",
                ));
            }
            Some(_) => return Ok(space),
            None => {}
        }
    }
    Err(fail(libc::EOPNOTSUPP, "extended attributes of this namespace are not supported"))
}

fn check(creds: &Creds, found: &LocatedInode, space: Space, write: bool) -> Run<()> {
    if write {
        perm::check_changeable(found.inode.flags)?;
    }
    let refused = if write {
        fail(libc::EPERM, "not allowed to set this extended attribute")
    } else {
        fail(libc::ENODATA, "no such extended attribute")
    };
    match space {
        Space::Trusted if creds.uid != 0 => Err(refused),
        Space::Security if write && creds.uid != 0 => Err(refused),
        Space::Trusted | Space::Security => Ok(()),
        Space::Schedule if !found.is_dir() && write => {
            Err(fail(libc::EOPNOTSUPP, "only directories have schedules of snapshots"))
        }
        Space::Schedule if write && !perm::owns(creds, found.inode.uid) => Err(refused),
        Space::Schedule => Ok(()),
        Space::User => match found.inode.kind {
            Kind::Dir
                if write
                    && found.inode.mode & STICKY != 0
                    && !perm::owns(creds, found.inode.uid) =>
            {
                Err(refused)
            }
            Kind::File | Kind::Dir => {
                perm::check(creds, &found.guard(), if write { WRITE } else { READ })
            }
            _ => Err(refused),
        },
    }
}

fn missing() -> crate::stop::Stop {
    fail(libc::ENODATA, "no such extended attribute")
}

/// Runs GetXattr.
pub fn get(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, name: &[u8]) -> Run<Answer> {
    if let Some(field) = policy_field(name) {
        return policy::get(view, inode, field);
    }
    if let Some(kind) = AclKind::of(name) {
        return acl::get(view, inode, kind);
    }
    let space = space_of(name)?;
    let found = view.find(inode, InodeUse::Read)?;
    check(creds, &found, space, false)?;
    if !found.inode.xattrs {
        return Err(missing());
    }
    let cell = view.rows.cell(Table::Xattr, found.inode.ino, name);
    let Some(row) = view.bytes(cell)? else { return Err(missing()) };
    let value = decode(row)
        .ok_or_else(|| fail(libc::EIO, "extended attribute of an unknown format version"))?;
    Ok(Answer::Bytes(value.into()))
}

/// The cell of a file's capabilities, if it has some. They go with every change of its content or
/// its owner, also by the superuser, as in Linux.
pub fn capabilities(view: &mut View<'_>, inode: &Inode) -> Run<Option<CellId>> {
    if inode.kind != Kind::File || !inode.xattrs {
        return Ok(None);
    }
    let cell = view.rows.cell(Table::Xattr, inode.ino, CAPABILITY);
    Ok(view.bytes(cell)?.is_some().then_some(cell))
}

/// Takes them away, in the writing half.
pub fn drop_capabilities(view: &mut View<'_>, cell: Option<CellId>) {
    if let Some(cell) = cell {
        view.put(cell, Value::Absent);
    }
}

/// Runs ListXattr.
pub fn list(view: &mut View<'_>, creds: &Creds, inode: &InodeRef) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Read)?;
    let mut names = Vec::new();
    acl::list(&found.inode, &mut names);
    policy::list(view, &found.inode, &mut names)?;
    if found.inode.xattrs {
        for cell in view.xattrs(found.inode.ino)? {
            let name = view.rows.suffix(cell);
            if creds.uid == 0 || !name.starts_with(b"trusted.") {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
    }
    Ok(Answer::Bytes(names.into()))
}

/// Runs SetXattr.
pub fn set(
    view: &mut View<'_>,
    creds: &Creds,
    inode: &InodeRef,
    name: &[u8],
    value: &[u8],
    flags: XattrFlags,
) -> Run<Answer> {
    if let Some(field) = policy_field(name) {
        return policy::set(view, creds, inode, (field, value), flags);
    }
    let attribute = match AclKind::of(name) {
        Some(kind) => Err(kind),
        None => Ok(space_of(name)?),
    };
    if value.len() > XATTR_VALUE_MAX {
        return Err(fail(libc::E2BIG, "the value of an extended attribute has at most 64 KiB"));
    }
    if flags.create && flags.replace {
        return Err(fail(libc::EINVAL, "create and replace exclude each other"));
    }
    let space = match attribute {
        Ok(space) => space,
        Err(kind) => return acl::set(view, creds, inode, (kind, value), flags),
    };
    let found = view.find(inode, InodeUse::Write)?;
    check(creds, &found, space, true)?;
    view.check_inode_changes(&found, inode)?;
    let (mut names, mut exists) = (name.len() + 1, false);
    if found.inode.xattrs {
        for cell in view.xattrs(found.inode.ino)? {
            let other = view.rows.suffix(cell);
            if other == name {
                exists = true;
            } else {
                names += other.len() + 1;
            }
        }
    }
    if exists && flags.create {
        return Err(fail(libc::EEXIST, "the extended attribute exists"));
    }
    if !exists && flags.replace {
        return Err(missing());
    }
    if names > XATTR_NAMES_MAX {
        return Err(fail(
            libc::ENOSPC,
            "an inode has at most 256 KiB of names of extended attributes",
        ));
    }
    view.begin()?;
    let cell = view.rows.cell(Table::Xattr, found.inode.ino, name);
    view.put(cell, Value::Bytes(encode(value)));
    touch(view, found)
}

/// Runs RemoveXattr.
pub fn remove(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, name: &[u8]) -> Run<Answer> {
    if let Some(field) = policy_field(name) {
        return policy::remove(view, creds, inode, field);
    }
    if let Some(kind) = AclKind::of(name) {
        return acl::remove(view, creds, inode, kind);
    }
    let space = space_of(name)?;
    let found = view.find(inode, InodeUse::Write)?;
    check(creds, &found, space, true)?;
    view.check_inode_changes(&found, inode)?;
    if !found.inode.xattrs {
        return Err(missing());
    }
    let cell = view.rows.cell(Table::Xattr, found.inode.ino, name);
    if view.bytes(cell)?.is_none() {
        return Err(missing());
    }
    view.begin()?;
    view.put(cell, Value::Absent);
    touch(view, found)
}

fn touch(view: &mut View<'_>, found: LocatedInode) -> Run<Answer> {
    let LocatedInode { mut inode, at } = found;
    inode.xattrs = true;
    inode.ctime = view.now;
    inode.change = view.stamp;
    let size = inode.size;
    view.put_inode(&at, inode, size, None)?;
    Ok(Answer::Done)
}
