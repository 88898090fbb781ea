//! SetFlags: chattr.
//!
//! Order of errors as on ext4: `EPERM` for a user that neither owns it nor is the superuser, and
//! for a user that is not the superuser where "immutable" or "append only" change (the kernel asks
//! for `CAP_LINUX_IMMUTABLE` before it asks us); `EOPNOTSUPP` for what is neither file nor
//! directory; `EPERM` where something immutable stays so and another flag changes. Sets ctime.
//!
//! A directory's flags are in the replica of every worker: exclusive.

use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds};

use crate::perm;
use crate::stop::{Run, fail};
use crate::view::{At, InodeUse, LocatedInode, View};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, flags: InodeFlags) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Write)?;
    check(creds, &found, flags)?;
    view.check_inode_changes(&found, inode)?;
    let is_dir = matches!(found.at, At::Dir(_));
    if is_dir {
        view.figures(found.inode.ino)?;
    }
    view.begin()?;
    let LocatedInode { mut inode, at } = found;
    inode.flags = flags;
    inode.ctime = view.now;
    inode.change = view.stamp;
    let size = inode.size;
    view.put_inode(&at, inode.clone(), size, None)?;
    let inode = if is_dir { view.shown_dir(inode)? } else { inode };
    Ok(Answer::Inode(Box::new(inode)))
}

fn check(creds: &Creds, found: &LocatedInode, flags: InodeFlags) -> Run<()> {
    let inode = &found.inode;
    if !perm::owns(creds, inode.uid) {
        return Err(fail(libc::EPERM, "only the owner sets flags"));
    }
    let changed = inode.flags.difference(flags);
    if creds.uid != 0 && changed.has(InodeFlags::IMMUTABLE.with(InodeFlags::APPEND)) {
        return Err(fail(libc::EPERM, "only the superuser makes files immutable or append only"));
    }
    if !matches!(inode.kind, Kind::File | Kind::Dir) {
        return Err(fail(libc::EOPNOTSUPP, "only files and directories have flags"));
    }
    let stays = inode.flags.only(flags).has(InodeFlags::IMMUTABLE);
    if stays && changed != InodeFlags::default() {
        return Err(fail(libc::EPERM, "it is immutable (chattr -i)"));
    }
    Ok(())
}
