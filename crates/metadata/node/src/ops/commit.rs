//! Commit: new content of a file, with bytes that are already in the block store (or come along, if
//! they are few).
//!
//! - The change was made on a certain content, named by its `data_change`. If the file has another
//!   one meanwhile, nothing happens and the client gets the present inode to merge with
//!   (`Conflict`). So no commit ever undoes another unseen.
//! - Content longer than the size, extents out of bounds, too many of them, a patch that leaves out
//!   bytes of inline content: `EINVAL`. A size above the limit: `EFBIG`. A chunk in too many
//!   pieces: `EFBIG`.
//! - Every commit takes `security.capability` away.
//! - A size below the present one cuts; one above makes a hole.
//! - mtime comes from the client that wrote. ctime becomes the same unless it is newer already; it
//!   never lies in the future.
//!
//! No permission is needed: the file was open for writing. The user only matters for set-id bits
//! that a write by that user drops. References to objects go up and down in the same batch as the
//! content changes, so a crash leaves either both or neither.

use kestrel_types::inode::{Data, INLINE_MAX, Kind};
use kestrel_types::request::{Answer, COMMIT_EXTENTS_MAX, Commit, Creds, NewData, Outcome};

use crate::content::{self, Content};
use crate::ops::xattr;
use crate::perm;
use crate::stop::{Run, Stop, fail};
use crate::view::{InodeUse, LocatedInode, View};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, commit: &Commit) -> Run<Answer> {
    let found = view.find(&commit.inode, InodeUse::Write)?;
    if found.inode.kind != Kind::File {
        return Err(fail(libc::EINVAL, "only regular files have content"));
    }
    // A process that has it open may not write to it any more either. (Append only is a matter of
    // opening.)
    perm::check_mutable(found.inode.flags)?;
    view.check_inode_changes(&found, &commit.inode)?;
    if found.inode.data_change != commit.base {
        return Err(Stop::Out(Box::new(Outcome::Conflict(Box::new(found.inode)))));
    }
    let mode = match commit.kill_suid {
        true => perm::without_set_ids(creds, found.inode.mode, found.inode.gid)?,
        false => found.inode.mode,
    };
    let size = commit.size.unwrap_or(found.inode.size);
    content::check_size(size)?;
    let capabilities = xattr::capabilities(view, &found.inode)?;
    let home = found.at.home();
    let mut content = new_content(view, &found, &commit.data, size)?;
    content::check_swept(
        view,
        found.inode.ino,
        size,
        content.data.as_ref().unwrap_or(&found.inode.data),
    )?;
    content.want(view, home)?;
    let share = if size != found.inode.size { view.bytes_share(&found.at) } else { None };
    view.begin()?;

    xattr::drop_capabilities(view, capabilities);
    let LocatedInode { mut inode, at } = found;
    let old_size = inode.size;
    content.apply(view, &mut inode, home)?;
    inode.mode = mode;
    if size != old_size || commit.data != NewData::Unchanged {
        inode.data_change = view.stamp;
    }
    inode.size = size;
    inode.mtime = commit.mtime;
    // The file changed when it was written, not when that came to be known here.
    inode.ctime = inode.ctime.max(commit.mtime.min(view.now));
    inode.change = view.stamp;
    view.put_inode(&at, inode.clone(), old_size, share)?;
    Ok(Answer::Inode(Box::new(inode)))
}

fn new_content(
    view: &mut View<'_>,
    found: &LocatedInode,
    data: &NewData,
    size: u64,
) -> Run<Content> {
    let inode = &found.inode;
    match data {
        NewData::Unchanged => content::truncate(view, inode, size),
        NewData::Inline(bytes) if bytes.len() > INLINE_MAX || bytes.len() as u64 > size => {
            Err(fail(libc::EINVAL, "inline content is longer than allowed or than the file"))
        }
        NewData::Inline(bytes) if bytes.is_empty() => content::replace(view, inode, Data::None),
        NewData::Inline(bytes) => content::replace(view, inode, Data::Inline(bytes.clone())),
        NewData::Packed(range) => {
            content::check_range(range)?;
            if u64::from(range.len) > size {
                return Err(fail(libc::EINVAL, "packed content is longer than the file"));
            }
            content::replace(view, inode, Data::Packed { range: *range, visible: range.len })
        }
        NewData::Patches(patches) if patches.len() > COMMIT_EXTENTS_MAX => {
            Err(fail(libc::EINVAL, "too many extents in one commit"))
        }
        NewData::Patches(patches) => content::patch(view, inode, patches, size),
    }
}
