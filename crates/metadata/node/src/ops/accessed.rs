//! Accessed: a client tells of a read, for the access time.
//!
//! No permission is asked for: the reader had one, and the message may be about reads of several
//! users. The time never moves backwards, and never beyond the node's present time, so a client
//! with a clock that is ahead does no lasting harm. Times of change stay.
//!
//! With `relative` the node looks at Linux's rule again, since another client may have told of a
//! read meanwhile. For a directory of several nodes the client's word has to do: when names in it
//! changed lies with all of them.
//!
//! A directory's record belongs to the worker of its name: exclusive. What others know of a
//! directory has no times, so nobody has to forget it.

use kestrel_types::entry::Entry;
use kestrel_types::inode::{InodeFlags, is_access_due};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Accessed, Answer};

use crate::rows::Value;
use crate::stop::Run;
use crate::view::{At, InodeUse, LocatedInode, View};

/// Runs the operation.
pub fn run(view: &mut View<'_>, inode: &InodeRef, accessed: Accessed) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Write)?;
    let at = accessed.at.min(view.now);
    let stays = found.inode.flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::NO_ATIME));
    let stays = stays || view.policy_of(&found, inode)?.is_immutable();
    if stays || at <= found.inode.atime || accessed.relative && !is_due(view, &found)? {
        return Ok(Answer::Done);
    }
    view.begin()?;
    let LocatedInode { mut inode, at: place } = found;
    inode.atime = at;
    inode.change = view.stamp;
    match place {
        At::Name { cell, .. } | At::Dir(cell) => view.put(cell, Value::Entry(Entry::Inode(inode))),
        At::Link { cell, .. } => view.put(cell, Value::Inode(inode)),
    }
    Ok(Answer::Done)
}

fn is_due(view: &mut View<'_>, found: &LocatedInode) -> Run<bool> {
    let inode = match (found.is_dir(), &view.core.cluster) {
        (false, _) => found.inode.clone(),
        (true, None) => view.shown_dir(found.inode.clone())?,
        (true, Some(_)) => return Ok(true),
    };
    Ok(is_access_due(inode.atime, inode.mtime, inode.ctime, view.now))
}
