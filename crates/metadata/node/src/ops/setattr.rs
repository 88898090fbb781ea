//! SetAttr: chmod, chown, truncate, utimes, one or several at once.
//!
//! - **chown**: the superuser; the owner may keep the owner and give a group he is in (`EPERM`).
//!   With any caller set-user-id goes, and set-group-id if the group may execute or the caller is
//!   not in the group it was; not on directories. (Linux treats root like others here, but for that
//!   he counts as a member of every group.)
//! - **chmod**: owner or superuser (`EPERM`). Set-group-id is dropped if the caller is neither
//!   privileged nor in the group.
//! - **size**: regular files (`EISDIR`, `EINVAL`), write permission unless it comes through a
//!   descriptor (`EACCES`); above the limit `EFBIG`. Times of modification and change are set even
//!   if the size stays; `data_change` only if it does not.
//! - **times**: both to the present: owner or write permission (`EACCES`); anything else: owner
//!   (`EPERM`).
//! - What is immutable keeps all of it, and what is append only all but times that are set to the
//!   present (`EPERM`).
//! - Every SetAttr, even an empty one, sets ctime.
//!
//! A directory's dentry is in the replica of every worker, and its times are spread over its
//! shares: exclusive. All checks come before any change, so it happens wholly or not at all.

use kestrel_types::clock::Nanos;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds, Outcome, SetAttr, SetTime};

use crate::content::{self, Content};
use crate::ops::xattr;
use crate::perm::{self, SET_GID, WRITE};
use crate::rows::Value;
use crate::stop::{Run, Stop, fail};
use crate::view::{At, InodeUse, LocatedInode, View, guard_of};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, inode: &InodeRef, set: &SetAttr) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Write)?;
    let mode = check(creds, &found.inode, set)?;
    view.check_inode_changes(&found, inode)?;
    // Linux takes them on a chown, too.
    let capabilities = match set.size.is_some() || set.uid.is_some() || set.gid.is_some() {
        true => xattr::capabilities(view, &found.inode)?,
        false => None,
    };
    let home = found.at.home();
    let mut content = Content::default();
    let mut share = None;
    if let Some(size) = set.size
        && size != found.inode.size
    {
        share = view.bytes_share(&found.at);
        content::check_swept(view, found.inode.ino, size, &found.inode.data)?;
        content = content::truncate(view, &found.inode, size)?;
        content.want(view, home)?;
    }
    let is_dir = matches!(found.at, At::Dir(_));
    if is_dir {
        view.figures(found.inode.ino)?;
    }
    view.begin()?;

    xattr::drop_capabilities(view, capabilities);
    let LocatedInode { mut inode, at } = found;
    let old_size = inode.size;
    content.apply(view, &mut inode, home)?;
    if let Some(size) = set.size {
        if size != old_size {
            inode.size = size;
            inode.data_change = view.stamp;
        }
        inode.mtime = view.now;
    }
    assign(&mut inode, set, mode, view.now);
    inode.change = view.stamp;
    if is_dir && set.mtime.is_some() {
        forget_times(view, inode.ino)?;
    }
    view.put_inode(&at, inode.clone(), old_size, share)?;
    let inode = if is_dir { view.shown_dir(inode)? } else { inode };
    Ok(Answer::Inode(Box::new(inode)))
}

/// As SetAttr, on something that has been removed and that only the client knows. It has no size to
/// set any more: `ESTALE`.
pub fn of_removed(
    creds: &Creds,
    inode: &mut Inode,
    set: &SetAttr,
    now: Nanos,
) -> Result<(), Outcome> {
    if set.size.is_some() {
        return Err(fail(libc::ESTALE, "the file's content does not exist any more").without_rows());
    }
    let mode = check(creds, inode, set).map_err(Stop::without_rows)?;
    assign(inode, set, mode, now);
    Ok(())
}

/// Puts everything but the size into `inode`.
fn assign(inode: &mut Inode, set: &SetAttr, mode: u16, now: Nanos) {
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    inode.mode = mode;
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.atime = set.atime.map_or(inode.atime, time);
    inode.mtime = set.mtime.map_or(inode.mtime, time);
    inode.ctime = now;
}

/// Takes the times out of all shares of a directory, because one set explicitly counts from now on.
fn forget_times(view: &mut View<'_>, dir: u64) -> Run<()> {
    for number in 0..view.shares_in_all() {
        let cell = view.share_cell(dir, view.share_home(number));
        let mut stat = view.share(cell)?;
        if stat.mtime != 0 {
            stat.mtime = 0;
            stat.change = view.stamp;
            view.put(cell, Value::DirStat(stat));
        }
    }
    Ok(())
}

/// Checks everything; the mode that the inode will have.
fn check(creds: &Creds, inode: &Inode, set: &SetAttr) -> Run<u16> {
    perm::check_mutable(inode.flags)?;
    if set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.size.is_some()
        || is_explicit(set.atime)
        || is_explicit(set.mtime)
    {
        perm::check_changeable(inode.flags)?;
    }
    if let Some(size) = set.size {
        match inode.kind {
            Kind::File => content::check_size(size)?,
            Kind::Dir => return Err(fail(libc::EISDIR, "a directory has no size to set")),
            _ => return Err(fail(libc::EINVAL, "only regular files have a size to set")),
        }
        if !set.through_handle {
            perm::check(creds, &guard_of(inode), WRITE)?;
        }
    }
    let owns = perm::owns(creds, inode.uid);
    if creds.uid != 0 {
        if set.uid.is_some_and(|uid| uid != inode.uid || !owns) {
            return Err(fail(libc::EPERM, "only the superuser gives files away"));
        }
        if let Some(gid) = set.gid
            && (!owns || gid != inode.gid && !perm::in_group(creds, gid)?)
        {
            return Err(fail(libc::EPERM, "the owner may only set a group he is in"));
        }
    }
    let mut mode = inode.mode;
    let chown = set.uid.is_some() || set.gid.is_some();
    if inode.kind != Kind::Dir && (chown || set.kill_suid) {
        mode = perm::without_set_ids(creds, mode, inode.gid)?;
    }
    if let Some(new) = set.mode {
        if !owns {
            return Err(fail(libc::EPERM, "only the owner changes the mode"));
        }
        mode = new & 0o7777;
        let gid = set.gid.unwrap_or(inode.gid);
        if mode & SET_GID != 0 && creds.uid != 0 && !perm::in_group(creds, gid)? {
            mode &= !SET_GID;
        }
    }
    if !owns && (set.atime.is_some() || set.mtime.is_some()) {
        check_times(creds, inode, set)?;
    }
    Ok(mode)
}

/// Whether a time is set that is not the present.
fn is_explicit(time: Option<SetTime>) -> bool {
    matches!(time, Some(SetTime::At(_)))
}

/// Whether a user that does not own the file may set these times.
fn check_times(creds: &Creds, inode: &Inode, set: &SetAttr) -> Run<()> {
    if is_explicit(set.atime) || is_explicit(set.mtime) {
        return Err(fail(libc::EPERM, "only the owner sets a time"));
    }
    if set.size.is_some() {
        return Ok(());
    }
    if set.atime.is_none() || set.mtime.is_none() {
        return Err(fail(libc::EPERM, "only the owner sets one time alone"));
    }
    perm::check(creds, &guard_of(inode), WRITE)
}
