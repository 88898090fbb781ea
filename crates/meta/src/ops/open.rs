//! Open: opens a file by number, checks permissions, truncates if asked to; Release gives it back.
//!
//! Errors: a symbolic link `ELOOP`; a directory for writing `EISDIR`; missing permission `EACCES`. `O_TRUNC` needs write
//! permission and works on regular files only (elsewhere it is ignored, as Linux does); it sets times even on an empty file.
//!
//! Opens are counted in the node's memory, so that the data of a file that loses its last name stays until the last
//! release. After a crash nothing is open: files without names are deleted when the volume is opened.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, OpenFlags};

use crate::content::{self, Content, Removal};
use crate::perm::{self, EXEC, READ, WRITE};
use crate::rows::Value;
use crate::view::{Found, Run, Use, View, fail};

/// What is needed of the inode.
pub fn use_for(flags: &OpenFlags) -> Use {
    if flags.truncate { Use::Write } else { Use::Open }
}

/// Runs Open.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, flags: &OpenFlags) -> Run<Answer> {
    let found = view.find(inode, use_for(flags))?;
    existing(view, creds, found, flags)
}

/// Opens a file that exists.
pub fn existing(view: &mut View<'_>, creds: &Creds, found: Found, flags: &OpenFlags) -> Run<Answer> {
    check(creds, &found, flags)?;
    let is_file = found.inode.kind == Kind::File;
    if flags.truncate && is_file {
        return truncated(view, found, flags);
    }
    view.begin()?;
    if found.inode.kind != Kind::Dir {
        view.count_open(found.inode.ino);
    }
    let inode = view.shown(found)?;
    Ok(Answer::Opened { inode: Box::new(inode), created: false })
}

fn check(creds: &Creds, found: &Found, flags: &OpenFlags) -> Run<()> {
    match found.inode.kind {
        Kind::Symlink => return Err(fail(libc::ELOOP, "a symbolic link cannot be opened")),
        Kind::Dir if flags.write || flags.truncate => {
            return Err(fail(libc::EISDIR, "a directory cannot be opened for writing"));
        }
        _ => {}
    }
    let mut want = 0;
    if flags.exec {
        want |= EXEC;
    }
    if flags.read {
        want |= READ;
    }
    if flags.write || flags.truncate {
        want |= WRITE;
    }
    perm::check(creds, found.guard(), want)
}

fn truncated(view: &mut View<'_>, found: Found, flags: &OpenFlags) -> Run<Answer> {
    let home = found.at.home();
    let changes = found.inode.size != 0;
    let mut content = if changes { content::truncate(view, &found.inode, 0)? } else { Content::default() };
    content.want(view, home)?;
    let share = if changes { view.bytes_share(&found.at) } else { None };
    view.begin()?;

    let Found { mut inode, at } = found;
    let old_size = inode.size;
    content.apply(view, &mut inode, home)?;
    if changes {
        inode.size = 0;
        inode.data_change = view.stamp;
    }
    if flags.kill_suid {
        inode.mode = perm::without_set_ids(inode.mode);
    }
    inode.mtime = view.now;
    inode.ctime = view.now;
    inode.change = view.stamp;
    view.put_inode(&at, inode.clone(), old_size, share)?;
    view.count_open(inode.ino);
    Ok(Answer::Opened { inode: Box::new(inode), created: false })
}

/// Runs Release. The last one of a file without names deletes it and releases its data.
pub fn release(view: &mut View<'_>, ino: InodeId) -> Run<Answer> {
    let state = view.open_state(ino);
    if state.count == 0 {
        return Err(fail(libc::EBADF, "the file is not open"));
    }
    if state.count > 1 || !state.orphan {
        view.begin()?;
        view.count_release(ino);
        return Ok(Answer::Done);
    }
    let cell = view.link_cell(ino);
    let inode = view.link(cell)?.cloned();
    let removal = match &inode {
        Some(inode) => Some(Removal::prepare(view, inode, view.core.home_of_inode(ino))?),
        None => None,
    };
    view.begin()?;
    if let (Some(removal), Some(inode)) = (removal, inode) {
        removal.apply(view)?;
        view.put(cell, Value::Absent);
        view.effects.usage[2] -= inode.size.cast_signed();
    }
    view.count_release(ino);
    Ok(Answer::Done)
}
