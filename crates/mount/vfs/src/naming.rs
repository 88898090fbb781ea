//! What the kernel's node ids stand for: inode numbers, or in shortcut mode paths.

use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::Fs;
use kestrel_fuse::Entry;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::policy::Consistency;

use crate::convert;
use crate::paths::{NodeTarget, Paths};

/// What the kernel may keep for the moment between a lookup and the stat that made it: it rounds up
/// to the next tick of its clock.
pub const MOMENT: Duration = Duration::from_nanos(1);

/// How long the kernel may trust what it is told.
#[derive(Debug, Clone, Copy)]
pub struct Trust {
    /// Attributes of directories.
    pub dirs: Duration,
    /// Attributes of everything else.
    pub files: Duration,
    /// Names of files; without the shortcut of directories too.
    pub entry: Duration,
    /// With the shortcut: names of directories, after they were last proved.
    pub names: Duration,
    /// Nobody else changes the volume, so what was proved once stays true.
    pub alone: bool,
    /// Nothing changes: the volume is at a snapshot.
    pub immutable: bool,
}

impl Trust {
    /// How long the kernel may trust the attributes of an inode.
    pub fn attributes(&self, inode: &Inode) -> Duration {
        let told = if inode.kind == Kind::Dir { self.dirs } else { self.files };
        told.max(attributes_kept(inode))
    }

    /// How long the kernel may trust the name of an inode.
    pub fn name(&self, inode: &Inode) -> Duration {
        self.entry.max(name_kept(inode))
    }
}

/// How long the kernel may keep the attributes of an inode by the policy of its directories.
pub fn attributes_kept(inode: &Inode) -> Duration {
    inode.effective.consistency.and_then(Consistency::kept).unwrap_or_default()
}

/// How long the kernel may keep the name of an inode by the policy of its directories. That of a
/// directory with a policy of its own is not below that policy.
pub fn name_kept(inode: &Inode) -> Duration {
    let own = inode.policy().map(|record| record.own.consistency);
    if own == Ok(None) { attributes_kept(inode) } else { Duration::ZERO }
}

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
