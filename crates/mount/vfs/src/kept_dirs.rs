//! Directories of immutable trees: they are opened and looked at without a request, and the kernel
//! keeps what it lists of them.
//!
//! A directory comes here with the look-up that tells of it, if every user may list it, and is here
//! for as long as the kernel may keep its names ([`IMMUTABLE_KEPT`]). The kernel asks for
//! attributes that it was told to keep whenever it has listed a directory, since that might have
//! changed the access time; of a directory that does not say itself that it is immutable, which may
//! be renamed, nothing has changed.
//!
//! A change through this mount that concerns a directory here, allowed or not, may mean that the
//! tree is not immutable any more: then all are forgotten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kestrel_fuse::Operation;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::perm::{EXEC, READ};
use kestrel_types::policy::IMMUTABLE_KEPT;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::trust::name_kept;

/// Most directories that are known, so that they take less than 8 MiB. Beyond, all are forgotten.
const DIRS_MAX: usize = 32_768;

/// Permission to read and to search a directory.
const LIST: u16 = (READ | EXEC) as u16;

/// A directory that does not change.
#[derive(Debug)]
struct KeptDir {
    inode: Inode,
    until: Instant,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct KeptDirs {
    any: AtomicBool,
    by_node: Mutex<FxHashMap<u64, KeptDir>>,
}

impl KeptDirs {
    /// The kernel is told of a directory by this node id.
    pub fn note(&self, node: u64, inode: &Inode) {
        let kept = inode.kind == Kind::Dir && inode.effective.is_immutable();
        if !kept && !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut by_node = self.by_node.lock();
        if !kept || !inode.all_may(LIST) {
            by_node.remove(&node);
            return;
        }
        if by_node.len() >= DIRS_MAX {
            by_node.clear();
        }
        let until = Instant::now() + IMMUTABLE_KEPT;
        by_node.insert(node, KeptDir { inode: inode.clone(), until });
        self.any.store(true, Ordering::Relaxed);
    }

    /// The directory of a node id, if it may be opened without a request.
    #[inline]
    pub fn find(&self, node: u64) -> Option<InodeId> {
        self.with(node, |inode| Some(inode.ino))
    }

    /// The attributes of a node id's directory, if they are as they were.
    #[inline]
    pub fn attributes(&self, node: u64) -> Option<Inode> {
        self.with(node, |inode| (!name_kept(inode).is_zero()).then(|| inode.clone()))
    }

    #[inline]
    fn with<T>(&self, node: u64, show: impl FnOnce(&Inode) -> Option<T>) -> Option<T> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut by_node = self.by_node.lock();
        let dir = by_node.get(&node)?;
        if dir.until <= Instant::now() {
            by_node.remove(&node);
            return None;
        }
        show(&dir.inode)
    }

    /// The kernel asks for something, before it is done.
    #[inline]
    pub fn notice(&self, node: u64, operation: &Operation<'_>) {
        if self.any.load(Ordering::Relaxed) {
            self.forget_changed(node, operation);
        }
    }

    fn forget_changed(&self, node: u64, operation: &Operation<'_>) {
        let other = match operation {
            Operation::Setattr(_)
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Ioctl(_)
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile { .. } => node,
            Operation::Rename { new_parent, .. } => *new_parent,
            _ => return,
        };
        let mut by_node = self.by_node.lock();
        if by_node.contains_key(&node) || by_node.contains_key(&other) {
            by_node.clear();
            self.any.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::inode::Data;
    use kestrel_types::policy::{Consistency, Policy};

    use super::*;

    const IMMUTABLE: Option<Consistency> = Some(Consistency::Immutable);

    fn dir(consistency: Option<Consistency>, mode: u16) -> Inode {
        let effective = Policy { consistency, ..Policy::default() };
        Inode { mode, effective, ..Inode::new(7, Kind::Dir, 0, 1) }
    }

    /// A directory is kept while look-ups say that it is immutable and everybody may list it.
    #[test]
    fn kept_directory_by_its_last_look_up() {
        let kept = KeptDirs::default();
        kept.note(9, &dir(None, 0o755));
        assert_eq!(kept.find(9), None);
        kept.note(9, &dir(IMMUTABLE, 0o755));
        assert_eq!((kept.find(9), kept.find(8)), (Some(7), None));
        assert_eq!(kept.attributes(9), Some(dir(IMMUTABLE, 0o755)));
        for (consistency, mode) in
            [(IMMUTABLE, 0o750), (None, 0o755), (Some(Consistency::CloseToOpen), 0o755)]
        {
            kept.note(9, &dir(IMMUTABLE, 0o555));
            kept.note(9, &dir(consistency, mode));
            assert_eq!(kept.find(9), None, "{consistency:?} {mode:o}");
        }
    }

    /// The directory that says it is opened without a request, and its attributes are asked for.
    #[test]
    fn directory_that_says_it() {
        let kept = KeptDirs::default();
        let says = Inode { data: Data::Inline([1, 1, 1, 2].into()), ..dir(IMMUTABLE, 0o755) };
        kept.note(9, &says);
        assert_eq!((kept.find(9), kept.attributes(9)), (Some(7), None));
    }

    /// A change that concerns a directory that is kept has all of them forgotten.
    #[test]
    fn kept_directories_and_changes() {
        let kept = KeptDirs::default();
        let name = std::ffi::OsStr::new("n");
        for node in [8, 9] {
            kept.note(node, &dir(IMMUTABLE, 0o755));
        }
        kept.notice(9, &Operation::Opendir { flags: 0 });
        kept.notice(5, &Operation::Removexattr { name });
        assert_eq!((kept.find(8), kept.find(9)), (Some(7), Some(7)));
        kept.notice(9, &Operation::Removexattr { name });
        assert_eq!((kept.find(8), kept.find(9)), (None, None));
    }
}
