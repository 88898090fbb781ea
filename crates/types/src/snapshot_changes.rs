//! What a node tells of the changes between two moments of a tree, and of the space that a snapshot
//! holds. Both are told page by page, each page with the [`HistoryCursor`] of the next one.

use crate::clock::{Nanos, SECOND};
use crate::ids::InodeId;
use crate::inode::Inode;
use crate::name::Name;
use crate::snapshot::SnapshotId;

/// Where the next page goes on. Only the node reads it.
pub type HistoryCursor = Box<[u8]>;

/// Most bytes of a [`HistoryCursor`]: a key of table `history` and some numbers.
pub const CURSOR_BYTES_MAX: usize = 320;

/// Most files that one request for changes looks for: as many as the operation Locate does.
pub const CHANGED_FILES_MAX: usize = 4096;

/// For so long nodes keep a snapshot that they made for a comparison with the present, after the
/// last question about its changes.
pub const COMPARED_KEPT: Nanos = 60 * SECOND;

/// A page of what may differ between two moments of a tree: all that does, and some that does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotChanges {
    /// Directories that the tree has at both moments. One may be in several pages.
    pub dirs: Vec<ChangedDir>,
    /// Files of the volume with several names at both moments that have changed: their names are
    /// told when they are looked for.
    pub files: Vec<InodeId>,
    /// The newer moment, if it is a snapshot. Several nodes make one for a question about the
    /// present: the next questions are about that. It goes when nobody has asked about it for
    /// [`COMPARED_KEPT`].
    pub newer: Option<SnapshotId>,
    /// Where the next page goes on; `None` at the end.
    pub next: Option<HistoryCursor>,
}

/// A directory that the tree has at both moments, with those of its names that may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedDir {
    /// Its number.
    pub dir: InodeId,
    /// It at the older moment.
    pub older: DirMoment,
    /// It at the newer moment.
    pub newer: DirMoment,
    /// Names in it, each once in a page.
    pub names: Vec<ChangedName>,
}

/// A directory at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirMoment {
    /// The directory above; 0 of the tree's root.
    pub parent: InodeId,
    /// Path from the tree's root, without a slash at its ends; empty for that root.
    pub path: Box<[u8]>,
    /// Its attributes, as they are shown.
    pub inode: Box<Inode>,
}

/// A name of a directory at both moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedName {
    /// The name.
    pub name: Name,
    /// What had it at the older moment, without content.
    pub older: Option<Box<Inode>>,
    /// What has it at the newer moment, without content.
    pub newer: Option<Box<Inode>>,
}

/// A part of what a snapshot holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Rows of table `history` that go with the snapshot.
    pub rows: u64,
    /// Bytes that no other moment of the same files refers to.
    pub bytes: u64,
    /// Where the next part begins; `None` at the end.
    pub next: Option<HistoryCursor>,
}
