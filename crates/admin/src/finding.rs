//! What a check finds, and how it can be put right without guessing.

use kestrel_engine::Mutation;
use kestrel_types::entry::Entry;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::Key;
use kestrel_types::placement::NodeId;

macro_rules! finding_kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $severity:ident;)+) => {
        /// What is wrong. The names are stable: programs may match on them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingKind {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$variant,)+];

            /// Its stable name.
            pub fn name(self) -> &'static str {
                match self { $(FindingKind::$variant => $name,)+ }
            }

            /// Whether the volume is damaged, or this is only worth knowing.
            pub fn severity(self) -> Severity {
                match self { $(FindingKind::$variant => Severity::$severity,)+ }
            }
        }
    };
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// An invariant is broken.
    Error,
    /// Nothing is broken; something can be reclaimed, or will be by itself.
    Info,
}

finding_kinds! {
    /// The root directory's record is missing or not a directory's.
    RootMissing = "root-missing", Error;
    /// A record of table `entry` cannot be decoded.
    EntryDamaged = "entry-damaged", Error;
    /// An entry's name is not a valid name.
    NameInvalid = "name-invalid", Error;
    /// An inode's record contradicts itself.
    InodeInvalid = "inode-invalid", Error;
    /// An inode has two records.
    InodeDuplicate = "inode-duplicate", Error;
    /// A directory has two names.
    DirectoryDuplicate = "directory-duplicate", Error;
    /// A hard-link reference to an inode that does not exist.
    LinkDangling = "link-dangling", Error;
    /// An inode with several names counts a wrong number of them.
    LinkCountWrong = "link-count-wrong", Error;
    /// An inode of table `link` that no name refers to although it counts names.
    InodeUnreachable = "inode-unreachable", Error;
    /// A record of table `link` cannot be decoded.
    LinkDamaged = "link-damaged", Error;
    /// A file that has no name: it was open when the volume stopped, and is deleted at the next
    /// start.
    OpenUnlinked = "open-unlinked", Info;
    /// There are entries in a directory that does not exist.
    DirectoryMissing = "directory-missing", Error;
    /// Directories that contain each other and hang on nothing.
    DirectoryCycle = "directory-cycle", Error;
    /// Directories have policies, and the root's record does not say that nodes look for them.
    PolicyUnmarked = "policy-unmarked", Error;
    /// A directory's place (table `dirid`) is missing, damaged or not where its entry is.
    DirIdWrong = "dirid-wrong", Error;
    /// A place of a directory that does not exist.
    DirIdDangling = "dirid-dangling", Error;
    /// A directory is not listed as subdirectory of its parent.
    SubdirMissing = "subdir-missing", Error;
    /// A subdirectory is listed where none is.
    SubdirDangling = "subdir-dangling", Error;
    /// A directory's sums are not those of its entries.
    DirStatWrong = "dirstat-wrong", Error;
    /// Sums of a directory that does not exist.
    DirStatDangling = "dirstat-dangling", Error;
    /// A list of extents cannot be decoded.
    ChunkDamaged = "chunk-damaged", Error;
    /// Extents of a file that has none, or of no file.
    ChunkDangling = "chunk-dangling", Error;
    /// Extents beyond the end of their file.
    ChunkBeyondEnd = "chunk-beyond-end", Error;
    /// An extended attribute cannot be decoded.
    XattrDamaged = "xattr-damaged", Error;
    /// An extended attribute of nothing.
    XattrDangling = "xattr-dangling", Error;
    /// A file has extended attributes but its record denies it.
    XattrUnmarked = "xattr-unmarked", Error;
    /// An object's referenced bytes are not those found in layouts.
    ObjStatWrong = "objstat-wrong", Error;
    /// A file refers to an object that is not in the store.
    ObjectMissing = "object-missing", Error;
    /// A file refers to bytes beyond the end of an object.
    ObjectShort = "object-short", Error;
    /// Stored bytes do not match their checksum.
    DataCorrupt = "data-corrupt", Error;
    /// A volume-wide record is missing, damaged or contradicts what the volume holds.
    SystemWrong = "system-wrong", Error;
    /// A row with the new name of a renamed file is damaged, or the file is not there.
    MovedWrong = "moved-wrong", Error;
    /// A client's session or the answer to one of its requests is damaged, or an answer belongs to
    /// no session.
    TxnWrong = "txn-wrong", Error;
    /// What a row was at a snapshot cannot be decoded: reading it there fails.
    HistoryDamaged = "history-damaged", Error;
    /// There is history of a snapshot that has no record.
    HistoryDangling = "history-dangling", Error;
    /// Rows of a clone that is not finished do not fit each other.
    CloneWrong = "clone-wrong", Error;
    /// What counts towards a quota is not what there is, or a row of a quota is damaged.
    QuotaWrong = "quota-wrong", Error;
    /// A row of a change feed cannot be decoded: readers of the feed get an error there.
    FeedDamaged = "feed-damaged", Error;
    /// A row lies at a node that does not own it, where it is not read.
    RowMisplaced = "row-misplaced", Error;
    /// A row that this version does not know.
    RowUnknown = "row-unknown", Error;
    /// Objects that nothing refers to: `kestrel gc` removes them.
    ObjectsLeaked = "objects-leaked", Info;
    /// A file in the store that is not an object.
    ObjectUnknown = "object-unknown", Info;
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// Where: a path in the volume if there is one, else what stands for it.
    pub path: String,
    /// Particulars.
    pub detail: String,
    /// How to put it right, if that needs no guessing.
    pub fix: Option<Fix>,
}

/// A repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// When.
    pub stage: Stage,
    /// What it does, in words.
    pub says: String,
    /// How.
    pub act: Act,
}

/// Repairs of a later stage are computed anew after those of an earlier one: sums mean something
/// only once the tree is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Counters that new numbers are taken from.
    Numbers,
    /// Entries and inodes.
    Tree,
    /// What follows from them.
    Derived,
    /// Sums over all of it.
    Sums,
}

/// What a repair does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Changes rows.
    Rows(Vec<Mutation>),
    /// Writes a new root directory.
    NewRoot,
    /// Creates the directory with this number in `lost+found`; its entries are still there.
    AdoptDirectory(InodeId),
    /// Moves an entry to `lost+found`.
    AdoptEntry(Key, Entry),
    /// Gives an inode of table `link` a name in `lost+found`.
    AdoptLink(InodeId, Kind),
    /// Makes extents that belong to no file a file in `lost+found`, of this size.
    AdoptExtents(InodeId, u64),
    /// Keeps the bytes of a damaged record as a file in `lost+found` and removes the record.
    AdoptBytes(Key, Box<[u8]>),
    /// Gives an inode another number.
    Renumber(Key, Inode),
    /// Changes what one of several nodes keeps for itself.
    AtNode(NodeId, Vec<Mutation>),
    /// Brings a row from the node where it lies to the one that owns it.
    Bring(NodeId, Key),
}

impl Finding {
    /// A finding without a repair.
    pub fn new(kind: FindingKind, path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind, path: path.into(), detail: detail.into(), fix: None }
    }

    /// The same with a repair.
    pub fn with(mut self, stage: Stage, says: impl Into<String>, act: Act) -> Self {
        self.fix = Some(Fix { stage, says: says.into(), act });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> =
            FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), FindingKind::ALL.len());
    }
}
