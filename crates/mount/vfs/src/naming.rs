//! What the kernel's node ids stand for: inode numbers, or in shortcut mode paths.

use std::sync::Arc;

use kestrel_client::fs::Fs;
use kestrel_fuse::Entry;
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};

use crate::convert;
use crate::paths::{NodeTarget, Paths};
use crate::trust::Trust;

/// What node ids stand for.
#[derive(Clone)]
pub enum Naming {
    /// A node id is an inode number, an entry a name in a directory known by number.
    Numbers,
    /// Directories are path nodes.
    Paths(Arc<Paths>),
}

impl Naming {
    /// Path nodes, if there are any.
    pub fn paths(&self) -> Option<&Arc<Paths>> {
        match self {
            Self::Numbers => None,
            Self::Paths(paths) => Some(paths),
        }
    }

    /// Where the entry of a directory is; none if the directory is gone.
    pub fn place(&self, dir: u64, name: Name) -> Option<PathRef> {
        match self {
            Self::Numbers => Some(PathRef::new(dir, name)),
            Self::Paths(paths) => paths.place(dir, name),
        }
    }

    /// What an operation on a node is about.
    pub fn target(&self, node: u64) -> NodeTarget {
        match self {
            Self::Numbers => NodeTarget::Inode(node),
            Self::Paths(paths) => paths.target(node),
        }
    }

    /// The answer that tells the kernel of an inode found or made at a name.
    pub fn entry(&self, at: Option<(u64, &Name)>, inode: &Inode, trust: &Trust) -> Entry {
        match self {
            Self::Numbers => convert::entry(inode, trust.attributes(inode), trust.name(inode)),
            Self::Paths(paths) => paths.entry(at, inode),
        }
    }

    /// The kernel forgot lookups of a node.
    pub fn forget(&self, fs: &Fs, node: u64, count: u64) {
        match self {
            Self::Numbers => fs.forget(node, count),
            Self::Paths(paths) => paths.forget(node, count),
        }
    }

    /// A name was removed here; `gone` is what it meant.
    pub fn removed(&self, dir: u64, name: &Name, gone: Option<Box<Inode>>) {
        if let Self::Paths(paths) = self {
            paths.removed(dir, name, gone);
        }
    }
}
