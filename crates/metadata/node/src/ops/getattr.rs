//! GetAttr: attributes by number. Parent: the directory above a directory.
//!
//! Needs no permission, as `fstat`. A directory's link count is 2 + its subdirectories, its times
//! are the newest of its own record and of its shares. `ESTALE` if the inode is gone. Changes
//! nothing; one fetch.

use kestrel_types::ids::InodeId;
use kestrel_types::name::InodeRef;
use kestrel_types::request::Answer;

use crate::stop::{Run, fail};
use crate::view::{InodeUse, View};

/// Runs GetAttr.
pub fn run(view: &mut View<'_>, inode: &InodeRef) -> Run<Answer> {
    if let Some(file) = view.seen_file(inode)? {
        return Ok(Answer::Inode(file));
    }
    let found = view.find(inode, InodeUse::Read)?;
    Ok(Answer::Inode(Box::new(view.shown(found)?)))
}

/// Runs Parent.
pub fn parent(view: &mut View<'_>, dir: InodeId) -> Run<Answer> {
    let dir = view
        .find_dir(dir)?
        .ok_or_else(|| fail(libc::ESTALE, "the directory does not exist any more"))?;
    let above = view.dir_record(dir.parent)?;
    Ok(Answer::Inode(Box::new(view.shown(above)?)))
}
