//! Link: gives a file another name.
//!
//! Order of errors as Linux: the source `ESTALE`; the walk; `EEXIST`; a source that is not safe
//! `EPERM`; `EACCES`; a directory `EPERM`; a file without names `ENOENT`, unless it is an
//! `O_TMPFILE` that may get one; more than [`crate::view::LINK_MAX`] names `EMLINK`. Sets the
//! file's ctime.
//!
//! The first time, the inode moves from its entry to table `link`, where it belongs to no directory
//! (its bytes leave the directory's figures). It stays there even when one name is left, because
//! nothing leads from the inode to that name. Exclusive.

use kestrel_types::entry::Entry;
use kestrel_types::error::FsError;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Creds};

use super::make;

use crate::perm::{self, GROUP_EXEC, READ, SET_GID, SET_UID, WRITE};
use crate::rows::Value;
use crate::session::OpenState;
use crate::stop::{Run, Stop, fail};
use crate::view::{At, InodeUse, LINK_MAX, LocatedInode, View};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, place: &PathRef) -> Run<Answer> {
    view.need_exclusive()?;
    let found = view.find(inode, InodeUse::Write)?;
    let spot = view.spot(creds, place, true)?;
    if view.entry(spot.entry)?.is_some() {
        return Err(fail(libc::EEXIST, "the name exists"));
    }
    check_source(creds, &found)?;
    make::check(view, creds, &spot)?;
    perm::check_changeable(found.inode.flags)?;
    view.check_inode_changes(&found, inode)?;
    if found.is_dir() {
        return Err(fail(libc::EPERM, "a directory has one name only"));
    }
    let open = view.open_state(found.inode.ino);
    let orphans = matches!(found.at, At::Link { .. }) && found.inode.nlink == 0;
    if orphans && !view.is_linkable(found.inode.ino)? {
        return Err(fail(libc::ENOENT, "the file was removed"));
    }
    if found.inode.nlink >= LINK_MAX {
        return Err(fail(libc::EMLINK, "a file has at most 65000 names"));
    }
    let old_share = view.bytes_share(&found.at);
    view.want_moved(found.inode.ino)?;
    view.begin()?;

    let LocatedInode { mut inode, at } = found;
    let (ino, kind, size) = (inode.ino, inode.kind, inode.size.cast_signed());
    inode.nlink += 1;
    inode.ctime = view.now;
    inode.change = view.stamp;
    match at {
        At::Link { cell, .. } if orphans => {
            view.put(cell, Value::Absent);
            view.effects.count_bytes(-size);
            view.change_dir(spot.share, 1, 0, size, true)?;
            view.put(spot.entry, Value::Entry(Entry::Inode(inode.clone())));
            if view.core.cluster.is_none() {
                view.set_open(ino, OpenState { orphan: false, linkable: false, ..open });
            }
            view.move_to(ino, spot.dir.ino, place.name.as_bytes());
        }
        At::Link { cell, .. } => {
            view.change_dir(spot.share, 1, 0, 0, true)?;
            view.put(cell, Value::Inode(inode.clone()));
            view.put(spot.entry, Value::Entry(Entry::Link { ino, kind }));
        }
        At::Name { cell, .. } | At::Dir(cell) => {
            if let Some(share) = old_share {
                view.change_dir(share, 0, 0, -size, false)?;
            }
            view.effects.count_bytes(size);
            view.change_dir(spot.share, 1, 0, 0, true)?;
            view.put(cell, Value::Entry(Entry::Link { ino, kind }));
            view.put(spot.entry, Value::Entry(Entry::Link { ino, kind }));
            let link = view.link_cell(ino);
            view.put(link, Value::Inode(inode.clone()));
            view.move_away(ino);
        }
    }
    Ok(Answer::Entry { parent: spot.dir.ino, inode: Box::new(inode) })
}

/// The rule that Linux calls `protected_hardlinks` and all distributions turn on: a user that does
/// not own a file may link it only if it is a regular one without set-id bits that the user may
/// read and write. The kernel leaves it to a daemon that checks permissions.
fn check_source(creds: &Creds, found: &LocatedInode) -> Run<()> {
    const UNSAFE: FsError =
        FsError::new(libc::EPERM, "another user's file that the caller may not read and write");
    let inode = &found.inode;
    if perm::owns(creds, inode.uid) {
        return Ok(());
    }
    let runs_as_group = inode.mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
    if inode.kind != Kind::File || inode.mode & SET_UID != 0 || runs_as_group {
        return Err(Stop::Fail(UNSAFE));
    }
    perm::check(creds, &found.guard(), READ | WRITE).map_err(|stop| match stop {
        Stop::Fail(_) => Stop::Fail(UNSAFE),
        other => other,
    })
}
