//! What a client asks of a metadata node, and what it is told.
//!
//! Every operation is one request. Types here are plain values: the embedded volume passes them by
//! call, the cluster will encode them.

use crate::clock::Nanos;
use crate::extent::Extent;
use crate::feed::{FeedPage, FeedStart};
use crate::ids::{InodeId, ObjectId};
use crate::inode::{Inode, InodeFlags, Kind};
use crate::name::{InodeRef, Name, PathRef};
use crate::quota::{QuotaInfo, QuotaLimits, QuotaSubject};
use crate::range::Range;
use crate::removal::RemovalPage;
use crate::snapshot::{SnapshotId, SnapshotInfo};
use crate::snapshot_changes::{HistoryCursor, SnapshotChanges, SnapshotUsage};

pub use crate::creds::Creds;

/// Most entries in one answer to [`Op::ReadDir`].
pub const READDIR_ENTRIES_MAX: usize = 4096;

/// Most extents in one [`Op::Commit`]; a client with more sends several commits.
pub const COMMIT_EXTENTS_MAX: usize = 4096;

/// Most files in one [`Op::Locate`].
pub const LOCATE_MAX: usize = 4096;

/// Largest value of an extended attribute, bytes (Linux `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_MAX: usize = 65536;

/// Longest name of an extended attribute, bytes (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The node's present time (`UTIME_NOW`); allowed with the permission to write.
    Now,
    /// This time; allowed to the owner.
    At(Nanos),
}

/// Attributes to change; absent ones stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, 12 bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends with a hole. Content beyond the new size is released.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// The size changes through a descriptor opened for writing: no permission check of the file.
    pub through_handle: bool,
    /// Drop set-id bits, as a truncation by an unprivileged caller must.
    pub kill_suid: bool,
}

/// A read of a file or directory, for its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accessed {
    /// When.
    pub at: Nanos,
    /// It counts only where the access time is due ([`crate::inode::is_access_due`]).
    pub relative: bool,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// Read permission is needed.
    pub read: bool,
    /// Write permission is needed.
    pub write: bool,
    /// Opened to be executed: execute permission is needed instead.
    pub exec: bool,
    /// Truncate to nothing (needs write permission even if not opened for writing).
    pub truncate: bool,
    /// With [`OpenFlags::truncate`]: drop set-id bits.
    pub kill_suid: bool,
    /// Every write goes to the end (`O_APPEND`): what a file that is append only wants.
    pub append: bool,
}

/// Flags of a rename.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail with `EEXIST` if the destination exists.
    pub no_replace: bool,
    /// Exchange the two entries, which must both exist.
    pub exchange: bool,
    /// Replace this directory, or fail with `ESTALE` if it would be another one. A kernel looks at
    /// what is there before it asks, and takes that directory for dead when it was told that the
    /// name is replaced.
    pub replaced: Option<InodeId>,
}

/// Flags of setting an extended attribute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XattrFlags {
    /// Fail with `EEXIST` if it exists.
    pub create: bool,
    /// Fail with `ENODATA` if it does not exist.
    pub replace: bool,
}

/// New content of a file in a [`Op::Commit`]. All bytes named here are already in the block store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewData {
    /// Content does not change (size and times may).
    Unchanged,
    /// The whole content, to be kept in the record.
    Inline(Box<[u8]>),
    /// The whole content is this range.
    Packed(Range),
    /// Patches over the content there is, as `(chunk, extent)` in the order they were written: a
    /// later one wins. An inline file must be patched by a commit with extents that cover all its
    /// inline bytes (they cannot be referred to); a packed one becomes chunked with its range as
    /// the oldest extent.
    Patches(Vec<(u64, Extent)>),
}

/// A change of content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The file, open by this client.
    pub inode: InodeRef,
    /// The `data_change` the change was made on. If the file has another one meanwhile, the answer
    /// is [`Outcome::Conflict`] and nothing changes: the client merges and sends again.
    pub base: u64,
    /// The change.
    pub data: NewData,
    /// New size, or `None` to keep it.
    pub size: Option<u64>,
    /// When the content was last written, by the client's clock.
    pub mtime: Nanos,
    /// Drop set-id bits, as a write by an unprivileged caller must. Of several writers, the request
    /// has the one that may keep least.
    pub kill_suid: bool,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Finds an entry. Answer: [`Answer::Entry`].
    Lookup(PathRef),
    /// The directory above a directory (the root's is the root). Answer: [`Answer::Inode`].
    Parent(InodeId),
    /// Attributes. Answer: [`Answer::Inode`].
    GetAttr(InodeRef),
    /// Changes attributes. Answer: [`Answer::Inode`], with the content after a truncation.
    SetAttr(InodeRef, SetAttr),
    /// Sets the flags of a file or directory; the owner, and the superuser alone where "immutable"
    /// or "append only" change (`EPERM`). Anything else has none (`EOPNOTSUPP`). Answer:
    /// [`Answer::Inode`].
    SetFlags(InodeRef, InodeFlags),
    /// It was read. The access time becomes that of the read if that is later, and no later than
    /// the node's present time; nothing else changes. Takes no permission. What is immutable, or
    /// has no access times ([`InodeFlags::NO_ATIME`]), stays as it is. Answer: [`Answer::Done`].
    Accessed(InodeRef, Accessed),
    /// Checks `R_OK | W_OK | X_OK` permissions. Answer: [`Answer::Done`].
    Access(InodeRef, u32),
    /// Target of a symbolic link. Answer: [`Answer::Bytes`].
    ReadLink(InodeRef),
    /// Opens a file, creating it if it does not exist (unless `exclusive`, then it must not).
    /// Answer: [`Answer::Opened`]. A symbolic link or directory at the place is answered with
    /// `EEXIST` if `exclusive`, else `ELOOP` and `EISDIR`.
    Create {
        /// Where.
        place: PathRef,
        /// Permission bits and umask of a new file ([`crate::perm::with_umask`]).
        mode: u32,
        /// How it is opened; permission bits do not apply to a file just created.
        flags: OpenFlags,
        /// Fail if it exists.
        exclusive: bool,
    },
    /// Opens a file by number. Answer: [`Answer::Opened`]. A directory is answered alike, but its
    /// opens are not counted.
    Open(InodeRef, OpenFlags),
    /// Finds an entry and opens what it stands for, as Lookup and Open would at one instant.
    /// Answer: [`Answer::Opened`] with the directory. A symbolic link at the place is answered with
    /// `ELOOP`.
    OpenAt(PathRef, OpenFlags),
    /// Creates and opens a file without a name in a directory. Answer: [`Answer::Opened`]. It can
    /// be given a name by [`Op::Link`] unless `exclusive` (`O_EXCL`).
    TmpFile {
        /// The directory.
        dir: InodeId,
        /// Permission bits and umask ([`crate::perm::with_umask`]).
        mode: u32,
        /// `O_EXCL`: it must never get a name.
        exclusive: bool,
    },
    /// Gives back one open (of Create, Open, OpenAt or TmpFile). The last release of a file without
    /// names deletes it. Answer: Done.
    Release(InodeId),
    /// Creates a special file or an empty regular file without opening it. Answer:
    /// [`Answer::Entry`].
    MkNod {
        /// Where.
        place: PathRef,
        /// Type; not Dir or Symlink.
        kind: Kind,
        /// Permission bits and umask ([`crate::perm::with_umask`]).
        mode: u32,
        /// Device number.
        rdev: u32,
    },
    /// Creates a directory with these permission bits and umask ([`crate::perm::with_umask`]).
    /// Answer: [`Answer::Entry`].
    MkDir(PathRef, u32),
    /// Creates a symbolic link with this target, 1 to 4095 bytes. Answer: [`Answer::Entry`].
    Symlink(PathRef, Box<[u8]>),
    /// Removes an entry that is not a directory. Answer: [`Answer::Removed`].
    Unlink(PathRef),
    /// Removes an empty directory; if a number is given, that one or none (`ESTALE`): see
    /// [`RenameFlags::replaced`]. Answer: [`Answer::Removed`].
    RmDir(PathRef, Option<InodeId>),
    /// Renames. Answer: [`Answer::Renamed`].
    Rename(PathRef, PathRef, RenameFlags),
    /// Gives a file another name. Answer: [`Answer::Entry`].
    Link(InodeRef, PathRef),
    /// Lists a directory by name from the first one after `after`. Needs read permission when
    /// `check` is set (opendir). Answer: [`Answer::Entries`].
    ReadDir {
        /// The directory.
        dir: InodeId,
        /// Name to continue after.
        after: Option<Name>,
        /// Entries wanted at most, 1 to [`READDIR_ENTRIES_MAX`].
        limit: usize,
        /// Check read permission of the directory.
        check: bool,
    },
    /// Attributes of the files in a part of a directory, by name from the first one after `after`.
    /// Needs read and search permission. Directories and files with several names are left out:
    /// their attributes are in other rows. Answer: [`Answer::EntriesPlus`].
    ReadDirPlus {
        /// The directory.
        dir: InodeId,
        /// Name to continue after.
        after: Option<Name>,
        /// Entries to read at most, 1 to [`READDIR_ENTRIES_MAX`].
        limit: usize,
    },
    /// What would keep a directory from being removed with all that is in it, by name from the
    /// first one after `after`. Needs read, write and search permission. Answer:
    /// [`Answer::RemovalPage`].
    RemovalCheck {
        /// The directory.
        dir: InodeId,
        /// Name to continue after.
        after: Option<Name>,
        /// Entries to read at most, 1 to [`READDIR_ENTRIES_MAX`].
        limit: usize,
    },
    /// Changes content. Answer: [`Answer::Inode`].
    Commit(Commit),
    /// Replaces the extents within a window of a chunk by others that hold the same bytes, if they
    /// are still what the client read. Answer: Done, or [`Outcome::Conflict`]. A packed file has
    /// one extent in chunk 0, all that is visible of its range, and stays packed. What readers see
    /// does not change, so neither do times and `data_change`.
    Compact {
        /// The file.
        inode: InodeRef,
        /// The chunk.
        chunk: u64,
        /// Extents the window had when it was read, holes between them included; the first and the
        /// last are stored ones and bound the window.
        old: Vec<Extent>,
        /// What replaces them.
        new: Vec<Extent>,
    },
    /// Makes a window of one file refer to the stored bytes of another (copy by reference). Both
    /// must hold no unflushed bytes at the client. Answer: [`Answer::Inode`] of the destination.
    /// Inline content is answered with `EOPNOTSUPP`: the client copies bytes.
    Clone {
        /// Source.
        from: InodeRef,
        /// First byte in the source.
        from_offset: u64,
        /// Destination, open for writing at this client.
        to: InodeRef,
        /// First byte in the destination.
        to_offset: u64,
        /// Bytes; the source must have them.
        len: u64,
    },
    /// Extents of chunks `first..=last` that have any, from the first of these on as many as a
    /// message holds. The time it takes is that of the chunks that are answered, however far they
    /// are apart. Answer: [`Answer::Chunks`].
    Chunks {
        /// The file.
        ino: InodeId,
        /// First chunk.
        first: u64,
        /// Last chunk, at most 4096 after the first.
        last: u64,
    },
    /// Deletes some of the rows that were cut off a file with very many chunks. The node asks
    /// itself. Answer: Done.
    Sweep(InodeId),
    /// Value of an extended attribute. Answer: [`Answer::Bytes`].
    GetXattr(InodeRef, Box<[u8]>),
    /// Sets an extended attribute. Answer: Done.
    SetXattr(InodeRef, Box<[u8]>, Box<[u8]>, XattrFlags),
    /// Names of all extended attributes, each followed by NUL. Answer: [`Answer::Bytes`].
    ListXattr(InodeRef),
    /// Removes an extended attribute. Answer: Done.
    RemoveXattr(InodeRef, Box<[u8]>),
    /// Finds files by number alone, by reading names from a place on: for file handles, which hold
    /// nothing else. The superuser only (`EPERM`). Answer: [`Answer::Located`].
    Locate {
        /// The files, 1 to [`LOCATE_MAX`].
        files: Vec<InodeId>,
        /// Directory and name after which reading goes on; `None` at the start.
        after: Option<(InodeId, Name)>,
    },
    /// Hands out object numbers. Answer: [`Answer::Objects`].
    AllocObjects(u32),
    /// Files, directories and bytes of the volume. Answer: [`Answer::Usage`].
    Usage,
    /// Sums of a directory's tree from its shares. Answer: [`Answer::Usage`].
    TreeUsage(InodeId),
    /// Makes everything acknowledged so far durable. Answer: Done.
    Sync,
    /// A read operation on the volume as it was at a snapshot. `ESTALE` if there is no such
    /// snapshot any more, `EROFS` if it is no read operation. An open is not counted: nothing gives
    /// it back. No operation of this kind is within another one. Answer: that of the operation.
    At(SnapshotId, Box<Op>),
    /// Makes a snapshot of a directory. The directory's owner or the superuser (`EPERM`), as for
    /// all changes of snapshots. Answer: [`Answer::Snapshots`] with it.
    SnapshotCreate {
        /// The directory.
        dir: InodeId,
        /// Its name, see [`crate::snapshot::is_snapshot_name`] (`EINVAL`).
        name: Name,
    },
    /// Gives a snapshot another name. Answer: Done.
    SnapshotRename {
        /// The directory that it is of.
        dir: InodeId,
        /// Its name.
        from: Name,
        /// Its name from now on; `EEXIST` if another snapshot of the directory has it.
        to: Name,
    },
    /// Removes a snapshot, unless it is held (`EBUSY`). What only it needed is given back in the
    /// background. Answer: Done.
    SnapshotRemove {
        /// The directory that it is of.
        dir: InodeId,
        /// Its name.
        name: Name,
    },
    /// Adds (`EEXIST`) or takes away (`ENOENT`) a tag that keeps a snapshot from being removed.
    /// Answer: Done.
    SnapshotHold {
        /// The directory that it is of.
        dir: InodeId,
        /// Its name.
        name: Name,
        /// The tag.
        tag: Name,
        /// Add it.
        hold: bool,
    },
    /// Lists snapshots, oldest first. Answer: [`Answer::Snapshots`].
    SnapshotList {
        /// Those of this directory; `None`: all of the volume, for the superuser (`EPERM`).
        dir: Option<InodeId>,
        /// Also those of the directories that are now above it, as far as it was below them then.
        ancestors: bool,
    },
    /// What may differ between two moments of the tree below a directory, by the rows of history:
    /// see [`SnapshotChanges`]. `EACCES` if the caller may not list a directory with changes, or
    /// one between that and the tree's root; `ESTALE` if a snapshot is gone. Answer:
    /// [`Answer::SnapshotChanges`].
    SnapshotChanges {
        /// The tree's root.
        dir: InodeId,
        /// The older moment.
        older: SnapshotId,
        /// The newer moment: a later snapshot (`EINVAL` for another one), or `None` for now. Of
        /// several nodes only a first page may be of now: its answer names the snapshot that was
        /// made for it (`EBUSY` if there are too many such).
        newer: Option<SnapshotId>,
        /// Names of these files are looked for, in place of changes: at most
        /// [`crate::snapshot_changes::CHANGED_FILES_MAX`].
        files: Vec<InodeId>,
        /// A page ends at so many names, or some more; the node has a limit of its own.
        limit: usize,
        /// Where to go on; `None` at the start.
        after: Option<HistoryCursor>,
    },
    /// What would be given back if a snapshot was removed now. `ESTALE` if it is gone. Answer:
    /// [`Answer::SnapshotUsage`].
    SnapshotUsage {
        /// The snapshot.
        snapshot: SnapshotId,
        /// Where to go on; `None` at the start.
        after: Option<HistoryCursor>,
    },
    /// Makes a clone of a directory: a directory with a tree of its own, which comes into being
    /// where it is looked at. The source's owner or the superuser (`EPERM`). Answer:
    /// [`Answer::Entry`] of it.
    CloneDir {
        /// The directory to be cloned.
        source: InodeId,
        /// As it was at this snapshot (`ESTALE` if that is gone); `None`: as it is.
        at: Option<SnapshotId>,
        /// The place of the clone, which must be free (`EEXIST`).
        place: PathRef,
    },
    /// Has a part of what a clone lacks come into being; the clone is named by the directory that
    /// [`Op::CloneDir`] made. Its owner or the superuser (`EPERM`). Answer:
    /// [`Answer::CloneProgress`].
    CloneStep(InodeId),
    /// Gives a quota these limits; if there is none yet, makes it and counts what there is. The
    /// superuser (`EPERM`). Answer: [`Answer::Quotas`] with it.
    QuotaSet(QuotaSubject, Box<QuotaLimits>),
    /// Removes a quota (`ENOENT` if there is none). The superuser (`EPERM`). Answer: Done.
    QuotaRemove(QuotaSubject),
    /// Lists quotas: all, for the superuser (`EPERM`), or those that count for what is made in a
    /// directory, or for the content of a file, of whichever owner: its directories', the nearest
    /// first, then the volume's. Answer: [`Answer::Quotas`].
    QuotaList(Option<InodeRef>),
    /// Counts anew what counts towards each quota, and with `repair` corrects what is wrong. The
    /// superuser (`EPERM`). Answer: [`Answer::Quotas`].
    QuotaCheck {
        /// Correct it.
        repair: bool,
    },
    /// Reads the change feed that a directory is in, of what is below the directory. The superuser
    /// (`EPERM`). `ENODATA` if nothing is recorded there (policy `feed`), `ESTALE` if the events
    /// after the position are not all kept any more. Answer: [`Answer::Feed`].
    FeedRead {
        /// The directory.
        dir: InodeId,
        /// Where to begin.
        from: FeedStart,
        /// Most events, at most [`crate::feed::FEED_PAGE_MAX`]; the node has a limit of its own.
        limit: u32,
    },
}

/// An inode number in an operation.
pub enum Named<'a> {
    /// Of a directory.
    Dir(&'a mut InodeId),
    /// A reference, to whatever it is.
    Ref(&'a mut InodeRef),
    /// Of a file.
    File(&'a mut InodeId),
}

impl Op {
    /// Shows all inode numbers that say what the operation is about, directories first. (Not those
    /// that a removal or a rename only compares with.)
    pub fn visit_named(&mut self, visit: &mut dyn FnMut(Named<'_>)) {
        match self {
            Op::Lookup(place)
            | Op::Create { place, .. }
            | Op::OpenAt(place, _)
            | Op::MkNod { place, .. }
            | Op::MkDir(place, _)
            | Op::Symlink(place, _)
            | Op::Unlink(place)
            | Op::RmDir(place, _) => visit(Named::Dir(&mut place.base)),
            Op::Rename(from, to, _) => {
                visit(Named::Dir(&mut from.base));
                visit(Named::Dir(&mut to.base));
            }
            Op::Link(inode, place) => {
                visit(Named::Dir(&mut place.base));
                visit(Named::Ref(inode));
            }
            Op::Parent(ino)
            | Op::TreeUsage(ino)
            | Op::TmpFile { dir: ino, .. }
            | Op::ReadDir { dir: ino, .. }
            | Op::ReadDirPlus { dir: ino, .. }
            | Op::RemovalCheck { dir: ino, .. } => visit(Named::Dir(ino)),
            Op::Sweep(ino) | Op::Release(ino) | Op::Chunks { ino, .. } => visit(Named::File(ino)),
            Op::Locate { files, .. } => files.iter_mut().for_each(|ino| visit(Named::File(ino))),
            Op::GetAttr(inode)
            | Op::SetAttr(inode, _)
            | Op::SetFlags(inode, _)
            | Op::Accessed(inode, _)
            | Op::Access(inode, _)
            | Op::ReadLink(inode)
            | Op::Open(inode, _)
            | Op::Compact { inode, .. }
            | Op::GetXattr(inode, _)
            | Op::SetXattr(inode, ..)
            | Op::ListXattr(inode)
            | Op::RemoveXattr(inode, _)
            | Op::Commit(Commit { inode, .. }) => visit(Named::Ref(inode)),
            Op::Clone { from, to, .. } => {
                visit(Named::Ref(from));
                visit(Named::Ref(to));
            }
            Op::At(_, op) => op.visit_named(visit),
            Op::SnapshotCreate { dir, .. }
            | Op::SnapshotRename { dir, .. }
            | Op::SnapshotRemove { dir, .. }
            | Op::SnapshotHold { dir, .. }
            | Op::SnapshotChanges { dir, .. }
            | Op::FeedRead { dir, .. }
            | Op::CloneStep(dir) => visit(Named::Dir(dir)),

            Op::CloneDir { source, place, .. } => {
                visit(Named::Dir(source));
                visit(Named::Dir(&mut place.base));
            }
            Op::SnapshotList { dir, .. } => {
                dir.iter_mut().for_each(|dir| visit(Named::Dir(dir)));
            }
            Op::QuotaSet(QuotaSubject::Dir(dir), _) | Op::QuotaRemove(QuotaSubject::Dir(dir)) => {
                visit(Named::Dir(dir));
            }
            Op::QuotaList(above) => {
                above.iter_mut().for_each(|inode| visit(Named::Ref(inode)));
            }
            Op::SnapshotUsage { .. }
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaCheck { .. }
            | Op::AllocObjects(_)
            | Op::Usage
            | Op::Sync => {}
        }
    }
}

/// What an operation is about: all that decides where it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// An entry, by path. Of two, the first one.
    Path(&'a PathRef),
    /// An inode.
    Inode(&'a InodeRef),
    /// An inode that the client has open: the node that counts that open is asked.
    Held(&'a InodeRef),
    /// An open that is given back to the node that counts it.
    Open(InodeId),
    /// What is found by an inode number.
    Number(InodeId),
    /// The volume.
    Volume,
}

impl Op {
    /// What it is about.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Op::Lookup(place)
            | Op::Create { place, .. }
            | Op::OpenAt(place, _)
            | Op::MkNod { place, .. }
            | Op::MkDir(place, _)
            | Op::Symlink(place, _)
            | Op::Unlink(place)
            | Op::RmDir(place, _)
            | Op::Rename(place, ..)
            | Op::Link(_, place)
            | Op::CloneDir { place, .. } => Subject::Path(place),
            Op::Commit(Commit { inode, .. })
            | Op::Compact { inode, .. }
            | Op::Clone { to: inode, .. }
            | Op::SetAttr(inode, SetAttr { through_handle: true, .. }) => Subject::Held(inode),
            Op::GetAttr(inode)
            | Op::SetAttr(inode, _)
            | Op::SetFlags(inode, _)
            | Op::Accessed(inode, _)
            | Op::Access(inode, _)
            | Op::ReadLink(inode)
            | Op::Open(inode, _)
            | Op::GetXattr(inode, _)
            | Op::SetXattr(inode, ..)
            | Op::ListXattr(inode)
            | Op::RemoveXattr(inode, _) => Subject::Inode(inode),
            Op::Release(ino) => Subject::Open(*ino),
            Op::Parent(ino)
            | Op::Sweep(ino)
            | Op::Chunks { ino, .. }
            | Op::TreeUsage(ino)
            | Op::CloneStep(ino)
            | Op::TmpFile { dir: ino, .. }
            | Op::ReadDir { dir: ino, .. }
            | Op::ReadDirPlus { dir: ino, .. }
            | Op::RemovalCheck { dir: ino, .. } => Subject::Number(*ino),
            // One node keeps all snapshots of a volume.
            Op::At(..)
            | Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::SnapshotList { .. }
            | Op::SnapshotChanges { .. }
            | Op::SnapshotUsage { .. }
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(_)
            | Op::QuotaCheck { .. }
            | Op::FeedRead { .. }
            | Op::Locate { .. }
            | Op::AllocObjects(_)
            | Op::Usage
            | Op::Sync => Subject::Volume,
        }
    }

    /// Whether it changes something, or prepares a change: a client that may only read may not make
    /// it. Opens to read are counted, and change nothing.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Open(_, flags) | Self::OpenAt(_, flags) => flags.write || flags.truncate,
            Self::Release(_) => false,
            Self::AllocObjects(_)
            | Self::CloneStep(_)
            | Self::QuotaSet(..)
            | Self::QuotaRemove(_)
            | Self::QuotaCheck { repair: true } => true,
            op => op.is_numbered(),
        }
    }

    /// Whether it changes something or counts an open: a client that asks over a network numbers
    /// it, so that it is executed exactly once.
    pub fn is_numbered(&self) -> bool {
        match self {
            Op::Lookup(_)
            | Op::Parent(_)
            | Op::GetAttr(_)
            | Op::Access(..)
            | Op::ReadLink(_)
            | Op::ReadDir { .. }
            | Op::ReadDirPlus { .. }
            | Op::RemovalCheck { .. }
            | Op::Chunks { .. }
            | Op::GetXattr(..)
            | Op::ListXattr(_)
            | Op::Locate { .. }
            | Op::AllocObjects(_)
            | Op::Usage
            | Op::TreeUsage(_)
            | Op::At(..)
            | Op::SnapshotList { .. }
            | Op::SnapshotChanges { .. }
            | Op::SnapshotUsage { .. }
            // Sent again it does the next part.
            | Op::CloneStep(_)
            // Sent again they come to the same.
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaList(_)
            | Op::QuotaCheck { .. }
            | Op::FeedRead { .. }
            | Op::Sync => false,
            Op::SetAttr(..)
            | Op::SetFlags(..)
            | Op::Accessed(..)
            | Op::Create { .. }
            | Op::Open(..)
            | Op::OpenAt(..)
            | Op::TmpFile { .. }
            | Op::Release(_)
            | Op::MkNod { .. }
            | Op::MkDir(..)
            | Op::Symlink(..)
            | Op::Unlink(_)
            | Op::RmDir(..)
            | Op::Rename(..)
            | Op::Link(..)
            | Op::Commit(_)
            | Op::Compact { .. }
            | Op::Clone { .. }
            | Op::Sweep(_)
            | Op::SetXattr(..)
            | Op::RemoveXattr(..)
            | Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::CloneDir { .. } => true,
        }
    }
}

/// A request: credentials and operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The user and groups that ask.
    pub creds: Creds,
    /// What for.
    pub op: Op,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Name,
    /// Inode number.
    pub ino: InodeId,
    /// Type.
    pub kind: Kind,
}

/// Counts and bytes of a tree or a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Entries that are not directories.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Bytes, sum of file sizes.
    pub bytes: u64,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// An inode.
    Inode(Box<Inode>),
    /// An inode and the directory in which a [`PathRef`] led to it: with the place's last name,
    /// where the inode can be found again ([`InodeRef::seen`]).
    Entry {
        /// The directory of the entry.
        parent: InodeId,
        /// What the entry stands for.
        inode: Box<Inode>,
    },
    /// An open file; `created` if it did not exist.
    Opened {
        /// The file, with its content's place.
        inode: Box<Inode>,
        /// It was created by this request.
        created: bool,
        /// The directory in which a [`PathRef`] led to it; `None` if it was opened by number or has
        /// no name.
        parent: Option<InodeId>,
    },
    /// The inode that lost the name, as it is after that. With `nlink` 0 it is gone, or lives only
    /// while it is open.
    Removed(Box<Inode>),
    /// What a rename moved, and what it removed or exchanged at the destination.
    Renamed {
        /// The inode that moved.
        moved: InodeId,
        /// Inode that was replaced (then as in [`Answer::Removed`]) or exchanged.
        other: Option<Box<Inode>>,
        /// The directory it left. 0, which is no inode, in an answer that a program before version
        /// 2 of the protocol recorded.
        from: InodeId,
        /// The directory it came to; 0 as `from`.
        to: InodeId,
    },
    /// Bytes.
    Bytes(Box<[u8]>),
    /// Part of a listing; `end` if nothing follows.
    Entries {
        /// Entries in order of their names.
        entries: Vec<DirEntry>,
        /// The directory above, for `..`.
        parent: InodeId,
        /// Nothing follows.
        end: bool,
    },
    /// Attributes of files in a part of a directory.
    EntriesPlus {
        /// Names and inodes in order of the names. The inodes are without content: [`Inode::data`]
        /// only says whether there is any.
        entries: Vec<(Name, Box<Inode>)>,
        /// Nothing follows in the directory.
        end: bool,
    },
    /// A page of a directory that is to be removed.
    RemovalPage(Box<RemovalPage>),
    /// Extents of those chunks asked for that have any: the first of them, or all.
    Chunks {
        /// By chunk number, ascending.
        chunks: Vec<(u64, Vec<Extent>)>,
        /// No chunk asked for follows. If one does, `chunks` is not empty.
        end: bool,
    },
    /// Files that were found by number, among some of the volume's names.
    Located {
        /// Each with its directory.
        found: Vec<(InodeId, DirEntry)>,
        /// Directory and name after which to go on; `None` if all names have been read.
        next: Option<(InodeId, Name)>,
    },
    /// `count` object numbers from `first` on belong to the client.
    Objects {
        /// First number.
        first: ObjectId,
        /// How many.
        count: u32,
    },
    /// Counts.
    Usage(Usage),
    /// Snapshots, oldest first.
    Snapshots(Vec<SnapshotInfo>),
    /// A page of what may differ between two moments.
    SnapshotChanges(Box<SnapshotChanges>),
    /// A part of what a snapshot holds.
    SnapshotUsage(SnapshotUsage),
    /// What [`Op::CloneStep`] did.
    CloneProgress {
        /// So many names came into being.
        names: u64,
        /// The clone lacks nothing: it stands by itself.
        done: bool,
    },
    /// Quotas.
    Quotas(Vec<QuotaInfo>),
    /// A part of a change feed.
    Feed(Box<FeedPage>),
}

/// How a request ended other than with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It failed; nothing changed.
    Failed(crate::error::FsError),
    /// The caller's supplementary groups decide: look them up and ask again. Nothing changed.
    NeedGroups,
    /// The content changed meanwhile; this is the present inode. Nothing changed.
    Conflict(Box<Inode>),
    /// A symbolic link in mid-path: `resolved` directories of the place were walked, then this
    /// target stands where the next component is. The client substitutes and sends again, at most
    /// 40 times.
    Symlink {
        /// Components of `dirs` before the link.
        resolved: usize,
        /// Directory the link lies in.
        dir: InodeId,
        /// Its target.
        target: Box<[u8]>,
    },
    /// Another node leads the request. Nothing changed, and nothing will: the client looks at a
    /// newer placement map, or waits until this node has one, and asks the node that leads it
    /// by that table, as a new request.
    Misdirected {
        /// Version of the table by which this node says so.
        table: u64,
    },
}

impl From<crate::error::FsError> for Outcome {
    fn from(error: crate::error::FsError) -> Self {
        Outcome::Failed(error)
    }
}

/// Result of a request.
pub type Reply = Result<Answer, Outcome>;

/// Takes a reply; may run on any thread, and must not block.
pub type Done = Box<dyn FnOnce(Reply) + Send>;
