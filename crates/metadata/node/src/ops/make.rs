//! What creating anything with a name has in common.

use kestrel_types::entry::Entry;
use kestrel_types::inode::{Data, Inode, InodeFlags, Kind};
use kestrel_types::request::Creds;

use super::acl;
use crate::perm::{self, Dentry, EXEC, WRITE};
use crate::rows::Value;
use crate::stop::{Run, fail};
use crate::view::{Spot, View};

/// What is to be created.
#[derive(Debug)]
pub struct New {
    /// Type.
    pub kind: Kind,
    /// Permission bits and umask ([`perm::with_umask`]).
    pub mode: u32,
    /// Device number of a special file.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub data: Data,
}

impl New {
    /// An empty regular file.
    pub fn file(mode: u32) -> Self {
        Self { kind: Kind::File, mode, rdev: 0, data: Data::None }
    }
}

/// Fails unless the name is free and the caller may create in the directory. In this order:
/// `EEXIST`, then `EPERM` of an immutable tree, `ENOENT` if the directory has been removed and is
/// in the trash, `EACCES`.
pub fn check(view: &mut View<'_>, creds: &Creds, spot: &Spot) -> Run<()> {
    if view.entry(spot.entry)?.is_some() {
        return Err(fail(libc::EEXIST, "the name exists"));
    }
    view.check_names_change(&spot.dir)?;
    View::check_not_removed(&spot.dir)?;
    // Together: of the groups in an ACL one has to grant both.
    perm::check(creds, &spot.dir.guard, WRITE | EXEC)
}

/// A new inode with this name that belongs to the caller, and to the directory's group if that is
/// set-group-id. Of the permission bits it has what the directory's default ACL leaves, or else the
/// umask.
pub fn inode(
    view: &mut View<'_>,
    creds: &Creds,
    dir: &Dentry,
    name: &[u8],
    new: New,
) -> Run<Inode> {
    let (wanted, umask) = perm::split_umask(new.mode);
    let (gid, mode) = perm::inherit(creds, &dir.guard, wanted, new.kind == Kind::Dir)?;
    let (mode, acls) = acl::inherited(dir.guard.acls.as_ref(), (mode, umask), new.kind);
    let size = match &new.data {
        Data::Inline(target) => target.len() as u64,
        _ => 0,
    };
    let ino = view.new_ino(dir.ino, name)?;
    let bare = Inode::new(ino, new.kind, view.now, view.stamp);
    let inherited = InodeFlags::NO_DUMP.with(InodeFlags::NO_ATIME);
    let flags = match new.kind {
        Kind::File | Kind::Dir => dir.guard.flags().only(inherited),
        _ => InodeFlags::default(),
    };
    let (xattrs, data) = (acls.is_some(), new.data);
    let (uid, rdev) = (creds.uid, new.rdev);
    Ok(Inode { mode, uid, gid, rdev, size, flags, xattrs, acls, data, ..bare })
}

/// Gives a new inode that is no directory its name.
pub fn insert(view: &mut View<'_>, spot: &Spot, inode: &Inode) -> Run<()> {
    view.change_dir(spot.share, 1, 0, inode.size.cast_signed(), true)?;
    view.put(spot.entry, Value::Entry(Entry::Inode(inode.clone())));
    Ok(())
}
