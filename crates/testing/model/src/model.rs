//! The state of the model: files and directories by number.
//!
//! | file | |
//! | --- | --- |
//! | `oracle` | what the model makes of requests and replies |
//! | `names` | names: find, add, move, remove |
//! | `acl` | POSIX ACLs |
//! | `attr` | permissions and attributes |
//! | `clones` | copies of trees |
//! | `data` | file contents and extended attributes |
//! | `policies` | what directories hand down, and what that forbids |
//! | `snapshots` | snapshots: copies of the whole tree, and what is read from them |

mod acl;
mod attr;
mod changes;
mod clones;
mod data;
mod names;
mod oracle;
mod policies;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_types::clock::Nanos;
use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::policy::Policy;
use kestrel_types::range::Range;
use kestrel_types::request::{Answer, Outcome, Reply};

pub use snapshots::ModelSnapshot;

/// [`code`] of a request with an outcome that depends on groups that the client must look up.
pub const NEED_GROUPS: i32 = -1;
/// [`code`] of a commit on content that has changed meanwhile.
pub const CONFLICT: i32 = -2;
/// [`code`] of a path that meets a symbolic link.
pub const SYMLINK: i32 = -3;
/// [`code`] of a request that another node leads.
pub const MISDIRECTED: i32 = -5;
/// The request should have succeeded and did not, or with a number that cannot be.
const MISFIT: i32 = -4;

/// Numbers of inodes that no client has seen yet begin here; a node hands out none as high.
const UNSEEN: u64 = 1 << 63;

/// How a request ended, as one number: 0, its errno, or one of the constants above.
pub fn code(reply: &Reply) -> i32 {
    match reply {
        Ok(_) => 0,
        Err(Outcome::Failed(error)) => error.errno,
        Err(Outcome::NeedGroups) => NEED_GROUPS,
        Err(Outcome::Conflict(_)) => CONFLICT,
        Err(Outcome::Symlink { .. }) => SYMLINK,
        Err(Outcome::Misdirected { .. }) => MISDIRECTED,
    }
}

/// Where a byte comes from; absent: a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Byte {
    /// It is kept in the record.
    Inline(u8),
    /// Object, offset of the range, and the byte counted from the start of the range.
    Stored(u64, u32, u32),
}

/// How content is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// There is none.
    None,
    /// In the record.
    Inline,
    /// In one range.
    Packed(Range),
    /// In chunks.
    Chunked,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelInode {
    /// Type.
    pub kind: Kind,
    /// Permission bits, 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names, or of a directory 2 and its subdirectories.
    pub nlink: u32,
    /// Of a file of a clone: most names of its source outside the cloned tree, which a reply may
    /// count, too.
    pub outside: u32,
    /// Device number.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Last access.
    pub atime: Nanos,
    /// Last modification.
    pub mtime: Nanos,
    /// Last change.
    pub ctime: Nanos,
    /// The directory above a directory.
    pub parent: u64,
    /// What is in a directory, by name.
    pub children: BTreeMap<Vec<u8>, u64>,
    /// Content, byte by byte.
    pub bytes: BTreeMap<u64, Byte>,
    /// How it is kept.
    pub layout: Layout,
    /// State of the content; 0 if the reply with it did not come.
    pub data_change: u64,
    /// Extended attributes; under the name `->` a symbolic link's target.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Set by chattr.
    pub flags: InodeFlags,
    /// Of a directory: what it says itself of policies.
    pub policy: Policy,
    /// It was given another name once: its record may lie apart from its names.
    pub linked: bool,
    /// It has no name and may be given one.
    pub linkable: bool,
    /// Opens not yet released.
    pub opens: u32,
}

impl ModelInode {
    /// A file has no capabilities any more once its content or owner changes.
    fn drop_capabilities(&mut self) {
        if self.kind == Kind::File {
            self.xattrs.remove(&b"security.capability"[..]);
        }
    }
}

/// See the crate's header.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Model {
    /// Files and directories by number.
    pub nodes: BTreeMap<u64, Arc<ModelInode>>,
    /// Snapshots in the order in which they were made.
    pub snapshots: Vec<ModelSnapshot>,
    /// Snapshots may be read for a while after they were removed, as at a node that has not heard
    /// of the removal.
    pub late_reads: bool,
    /// Those that were removed, if they may still be read.
    removed: Vec<ModelSnapshot>,
    /// `nodes` are those of a snapshot, which is being read.
    in_past: bool,
    /// The time.
    pub now: Nanos,
    /// Times of replies are compared; else they may be any.
    pub times: bool,
    /// Inodes made by requests with a reply that did not come.
    unseen: u64,
}

/// A result, or the [`code`] of a failure.
type Run<T> = Result<T, i32>;

/// A reply, if it came.
type MaybeReply<'a> = Option<&'a Reply>;

const READ: u16 = 4;
const WRITE: u16 = 2;
const EXEC: u16 = 1;

impl Model {
    /// An empty file system with a root that every user may write to.
    pub fn new(now: Nanos) -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
            snapshots: Vec::new(),
            late_reads: false,
            removed: Vec::new(),
            in_past: false,
            now,
            times: true,
            unseen: 0,
        };
        let mut root = model.fresh(Kind::Dir, 0o777, 0, 0, 1);
        root.parent = 1;
        model.nodes.insert(1, Arc::new(root));
        model
    }

    /// An empty file system that keeps no times, for histories without the times of execution.
    pub fn without_times() -> Self {
        Self { times: false, ..Self::new(0) }
    }

    fn fresh(&self, kind: Kind, mode: u16, uid: u32, gid: u32, parent: u64) -> ModelInode {
        ModelInode {
            kind,
            mode,
            uid,
            gid,
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            outside: 0,
            rdev: 0,
            size: if kind == Kind::Dir { 4096 } else { 0 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            parent,
            children: BTreeMap::new(),
            bytes: BTreeMap::new(),
            layout: Layout::None,
            data_change: 0,
            xattrs: BTreeMap::new(),
            flags: InodeFlags::default(),
            policy: Policy::default(),
            linked: false,
            linkable: false,
            opens: 0,
        }
    }

    fn node(&self, ino: u64) -> Run<&ModelInode> {
        self.nodes.get(&ino).map(Arc::as_ref).ok_or(libc::ESTALE)
    }

    /// A node that exists, to be changed.
    pub fn node_mut(&mut self, ino: u64) -> &mut ModelInode {
        Arc::make_mut(self.nodes.get_mut(&ino).unwrap())
    }

    /// The number that a reply gives to a new inode and to the state of its content.
    fn numbers(&mut self, reply: MaybeReply<'_>) -> Run<(u64, u64)> {
        match reply {
            Some(Ok(
                Answer::Inode(inode) | Answer::Entry { inode, .. } | Answer::Opened { inode, .. },
            )) => Ok((inode.ino, inode.data_change)),
            Some(_) => Err(MISFIT),
            None => {
                self.unseen += 1;
                Ok((UNSEEN + self.unseen, 0))
            }
        }
    }

    /// A reply shows that what was made unheard has this number, now and in snapshots.
    fn bind(&mut self, unseen: u64, seen: u64) {
        rename_inode(&mut self.nodes, unseen, seen);
        for snapshot in self.snapshots.iter_mut().chain(&mut self.removed) {
            snapshot.rename_inode(unseen, seen);
        }
    }

    /// Whether an inode has this number, or has had it in a snapshot.
    fn has_number(&self, ino: u64) -> bool {
        self.nodes.contains_key(&ino) || self.pasts().any(|past| past.has_number(ino))
    }
}

/// Gives an inode another number, wherever it is named.
fn rename_inode(nodes: &mut BTreeMap<u64, Arc<ModelInode>>, unseen: u64, seen: u64) {
    let Some(node) = nodes.remove(&unseen) else { return };
    nodes.insert(seen, node);
    for node in nodes.values_mut().filter(|node| node.kind == Kind::Dir) {
        if node.parent == unseen || node.children.values().any(|child| *child == unseen) {
            let node = Arc::make_mut(node);
            node.parent = if node.parent == unseen { seen } else { node.parent };
            node.children
                .values_mut()
                .filter(|child| **child == unseen)
                .for_each(|child| *child = seen);
        }
    }
}
