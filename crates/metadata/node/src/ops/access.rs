//! Access: checks permissions of an inode as `access(2)` with these credentials. ReadLink: target
//! of a symbolic link.
//!
//! The superuser may do all but execute a file without any execute bit. Changes nothing; one fetch.

use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, Outcome};

use crate::perm::{self, WRITE};
use crate::stop::{Run, Stop, fail};
use crate::view::{InodeUse, View, guard_of};

/// Runs Access.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, mask: u32) -> Run<Answer> {
    let dir = match inode.seen {
        None => view.find_dir(inode.ino)?,
        Some(_) => None,
    };
    let writes = mask & WRITE != 0;
    let guard = match dir {
        Some(dir) => {
            if writes {
                view.check_names_change(&dir)?;
            }
            dir.guard
        }
        None => {
            let found = view.find(inode, InodeUse::Read)?;
            if writes {
                view.check_inode_changes(&found, inode)?;
            }
            found.guard()
        }
    };
    perm::check(creds, &guard, mask & 7)?;
    Ok(Answer::Done)
}

/// As Access, of something that has been removed and that only the client knows.
pub fn of_removed(creds: &Creds, inode: &Inode, mask: u32) -> Result<(), Outcome> {
    perm::check(creds, &guard_of(inode), mask & 7).map_err(Stop::without_rows)
}

/// Runs ReadLink. `EINVAL` for anything but a symbolic link.
pub fn readlink(view: &mut View<'_>, inode: &InodeRef) -> Run<Answer> {
    match view.find(inode, InodeUse::Read)?.inode {
        Inode { kind: Kind::Symlink, data: Data::Inline(target), .. } => Ok(Answer::Bytes(target)),
        _ => Err(fail(libc::EINVAL, "not a symbolic link")),
    }
}
