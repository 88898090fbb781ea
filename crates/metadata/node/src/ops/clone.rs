//! Clone: makes a window of one file refer to the stored bytes of another, copying none
//! (`copy_file_range`, `FICLONERANGE`).
//!
//! `EINVAL`: not regular files, a window beyond the source's end, overlapping windows of one file,
//! more than [`CLONE_CHUNKS_MAX`] chunks. Inline content on either side has no reference to share:
//! `EOPNOTSUPP`, the client copies. Holes are cloned as holes. Sets mtime and ctime of the
//! destination. Two files, maybe of two workers: exclusive.

use kestrel_types::inode::{CHUNK_BYTES, Data, FILE_SIZE_MAX, Inode, Kind};
use kestrel_types::name::InodeRef;
use kestrel_types::request::{Answer, Creds};

use crate::content::{self, Content};
use crate::ops::xattr;
use crate::perm;
use crate::stop::{Run, fail};
use crate::view::{InodeUse, LocatedInode, View};

/// Most chunks one request may touch.
pub const CLONE_CHUNKS_MAX: u64 = 4096;

/// What to clone where.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// First byte in the source.
    pub from: u64,
    /// First byte in the destination.
    pub to: u64,
    /// Bytes.
    pub len: u64,
}

/// Runs the operation.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    from: &InodeRef,
    to: &InodeRef,
    window: Window,
) -> Run<Answer> {
    view.need_exclusive()?;
    let source = view.find(from, InodeUse::Read)?;
    let target = view.find(to, InodeUse::Write)?;
    perm::check_mutable(target.inode.flags)?;
    view.check_inode_changes(&target, to)?;
    check(&source.inode, &target.inode, window)?;
    let mode = match creds.uid {
        0 => target.inode.mode,
        _ => perm::without_set_ids(creds, target.inode.mode, target.inode.gid)?,
    };
    let capabilities = xattr::capabilities(view, &target.inode)?;
    let home = target.at.home();
    let size = target.inode.size.max(window.to + window.len);
    let mut content = new_content(view, &source.inode, &target.inode, window)?;
    content::check_swept(
        view,
        target.inode.ino,
        size,
        content.data.as_ref().unwrap_or(&target.inode.data),
    )?;
    content.shared = true;
    content.want(view, home)?;
    let share = if size != target.inode.size { view.bytes_share(&target.at) } else { None };
    view.begin()?;

    xattr::drop_capabilities(view, capabilities);
    let LocatedInode { mut inode, at } = target;
    let old_size = inode.size;
    content.apply(view, &mut inode, home)?;
    inode.mode = mode;
    inode.size = size;
    inode.mtime = view.now;
    inode.ctime = view.now;
    inode.change = view.stamp;
    inode.data_change = view.stamp;
    view.put_inode(&at, inode.clone(), old_size, share)?;
    Ok(Answer::Inode(Box::new(inode)))
}

fn check(source: &Inode, target: &Inode, window: Window) -> Run<()> {
    if source.kind != Kind::File || target.kind != Kind::File {
        return Err(fail(libc::EINVAL, "only regular files can be cloned"));
    }
    if matches!(source.data, Data::Inline(_)) || matches!(target.data, Data::Inline(_)) {
        return Err(fail(libc::EOPNOTSUPP, "inline content cannot be shared"));
    }
    let Window { from, to, len } = window;
    if from.checked_add(len).is_none_or(|end| end > source.size) {
        return Err(fail(libc::EINVAL, "the source has no such bytes"));
    }
    if to.checked_add(len).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(fail(libc::EFBIG, "a file has at most 8 EiB - 1"));
    }
    if source.ino == target.ino && from < to + len && to < from + len {
        return Err(fail(libc::EINVAL, "the windows overlap"));
    }
    if len / CHUNK_BYTES >= CLONE_CHUNKS_MAX {
        return Err(fail(libc::EINVAL, "too many bytes for one request: clone in parts"));
    }
    Ok(())
}

fn new_content(
    view: &mut View<'_>,
    source: &Inode,
    target: &Inode,
    window: Window,
) -> Run<Content> {
    let whole = window.from == 0 && window.to == 0 && window.len == source.size;
    if whole && target.size <= window.len && !matches!(source.data, Data::Chunked) {
        // A whole small file stays packed: no chunk row.
        return content::replace(view, target, source.data.clone());
    }
    let pieces = content::pieces(view, source, window.from, window.to, window.len)?;
    if matches!(target.data, Data::Chunked) {
        for piece in &pieces {
            content::chunk_cell(view, target, piece.chunk);
        }
    }
    content::graft(view, target, &pieces)
}
