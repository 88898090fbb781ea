//! Compact: replaces the extents of a window of a chunk by fewer that hold the same bytes.
//!
//! Happens only if the window still has the extents that the client read and copied, else
//! `Conflict`. A packed file has one extent in chunk 0: what it shows of its range; it stays
//! packed, in the new range. What readers see does not change, so neither do the inode, its times
//! nor its `data_change`. The objects that are no longer referred to stay for the grace period, for
//! readers that still use the old extents.

use kestrel_types::extent::Extent;
use kestrel_types::inode::Kind;
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, COMMIT_EXTENTS_MAX, Outcome};

use crate::content;
use crate::stop::{Run, Stop, fail};
use crate::view::{InodeUse, View};

/// Runs the operation.
pub fn run(
    view: &mut View<'_>,
    inode: &InodeRef,
    chunk: u64,
    old: &[Extent],
    new: &[Extent],
) -> Run<Answer> {
    let found = view.find(inode, InodeUse::Write)?;
    if found.inode.kind != Kind::File {
        return Err(fail(libc::EINVAL, "only regular files have content"));
    }
    if old.len().max(new.len()) > COMMIT_EXTENTS_MAX {
        return Err(fail(libc::EINVAL, "too many extents in one compaction"));
    }
    let home = found.at.home();
    let content = match content::compact(view, &found.inode, chunk, old, new)? {
        Some(mut content) => {
            content.want(view, home)?;
            content
        }
        None => return Err(Stop::Out(Box::new(Outcome::Conflict(Box::new(found.inode))))),
    };
    let moved = content.data.is_some();
    view.begin()?;
    let mut inode = found.inode;
    content.apply(view, &mut inode, home)?;
    if moved {
        // The record says where the content is: it is written anew, with all that readers see as it
        // was.
        let size = inode.size;
        view.put_inode(&found.at, inode, size, None)?;
    }
    Ok(Answer::Done)
}
