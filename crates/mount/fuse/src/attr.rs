//! Attributes, entries and totals: the file system's answers in its own terms, and their wire form.

use std::time::Duration;

use crate::abi;

/// A time as POSIX keeps it: seconds since 1970, negative before, and nanoseconds of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds.
    pub sec: i64,
    /// 0 to 999,999,999, forward from `sec`.
    pub nsec: u32,
}

/// Attributes of an inode, as `stat(2)` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// What `st_ino` shows. It is not the node id: two nodes may show one number (hard links), and
    /// a node id never reaches the user.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte units in use.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Timestamp,
    /// Time of last modification.
    pub mtime: Timestamp,
    /// Time of last change.
    pub ctime: Timestamp,
    /// Type (`libc::S_IF*`) and permission bits.
    pub mode: u32,
    /// Link count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the kernel's 32-bit form, for device nodes (`rdev` of MKNOD has the same
    /// form).
    pub rdev: u32,
    /// Preferred size of an I/O.
    pub blksize: u32,
}

impl Attr {
    #[inline]
    pub(crate) fn to_wire(self) -> abi::RawAttr {
        abi::RawAttr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.sec as u64,
            mtime: self.mtime.sec as u64,
            ctime: self.ctime.sec as u64,
            atimensec: self.atime.nsec,
            mtimensec: self.mtime.nsec,
            ctimensec: self.ctime.nsec,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// The answer to everything that finds or makes a directory entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// The number by which the kernel will speak of this node: the file system's free choice, 1
    /// being the root. Each answered entry adds one to the node's lookup count. Zero makes the
    /// entry negative.
    pub nodeid: u64,
    /// Differs when a node id is used again.
    pub generation: u64,
    /// Attributes, with their own inode number. The type of a node id must never change.
    pub attr: Attr,
    /// How long the kernel may answer `stat` by itself.
    pub attr_ttl: Duration,
    /// How long it may answer lookups of the name by itself.
    pub entry_ttl: Duration,
}

impl Entry {
    #[inline]
    pub(crate) fn to_wire(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.nodeid,
            generation: self.generation,
            entry_valid: self.entry_ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.entry_ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: self.attr.to_wire(),
        }
    }
}

/// The answer to OPEN, OPENDIR, and half of the answer to CREATE.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened {
    /// The file system's number for the open file; it comes back with every operation on it.
    pub fh: u64,
    /// How the kernel should treat it.
    pub flags: OpenFlags,
    /// With [`OpenFlags::PASSTHROUGH`], the number of the [`Backing`](crate::passthrough::Backing);
    /// else 0.
    pub backing_id: i32,
}

/// Treatment of an open file by the kernel (FOPEN_*); combine with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// No page cache: every read and write is a request.
    pub const DIRECT_IO: OpenFlags = OpenFlags(1 << 0);
    /// Keep pages cached from earlier opens; without it an open drops them (close-to-open).
    pub const KEEP_CACHE: OpenFlags = OpenFlags(1 << 1);
    /// `lseek` is an error.
    pub const NONSEEKABLE: OpenFlags = OpenFlags(1 << 2);
    /// The kernel may cache this directory's entries.
    pub const CACHE_DIR: OpenFlags = OpenFlags(1 << 3);
    /// No file position at all.
    pub const STREAM: OpenFlags = OpenFlags(1 << 4);
    /// No FLUSH at close.
    pub const NOFLUSH: OpenFlags = OpenFlags(1 << 5);
    /// Direct writes of one file may run side by side.
    pub const PARALLEL_DIRECT_WRITES: OpenFlags = OpenFlags(1 << 6);
    /// Reads and maps go to a backing file: see [`passthrough`](crate::passthrough).
    pub const PASSTHROUGH: OpenFlags = OpenFlags(1 << 7);

    /// Whether all of `other` is in it.
    pub const fn contains(self, other: OpenFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for OpenFlags {
    type Output = OpenFlags;
    fn bitor(self, other: OpenFlags) -> OpenFlags {
        OpenFlags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for OpenFlags {
    fn bitor_assign(&mut self, other: OpenFlags) {
        self.0 |= other.0;
    }
}

impl Opened {
    #[inline]
    pub(crate) fn to_wire(self) -> abi::OpenOut {
        abi::OpenOut { fh: self.fh, open_flags: self.flags.0, backing_id: self.backing_id }
    }
}

/// Totals of the file system for `df`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// Size in units of `frsize`.
    pub blocks: u64,
    /// Free.
    pub bfree: u64,
    /// Free for ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred size of an I/O.
    pub bsize: u32,
    /// Unit of the block counts.
    pub frsize: u32,
    /// Longest name.
    pub namelen: u32,
}

impl Statfs {
    pub(crate) fn to_wire(self) -> abi::StatfsOut {
        abi::StatfsOut {
            blocks: self.blocks,
            bfree: self.bfree,
            bavail: self.bavail,
            files: self.files,
            ffree: self.ffree,
            bsize: self.bsize,
            namelen: self.namelen,
            frsize: self.frsize,
            ..Default::default()
        }
    }
}

/// The answer to STATX.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statx {
    /// The basic attributes.
    pub attr: Attr,
    /// Time of birth, where there is one.
    pub btime: Option<Timestamp>,
    /// `STATX_ATTR_*` that are set, and those that have a meaning here.
    pub attributes: u64,
    /// See `attributes`.
    pub attributes_mask: u64,
    /// How long the kernel may keep them.
    pub attr_ttl: Duration,
}

impl Statx {
    pub(crate) fn to_wire(self) -> abi::StatxOut {
        let time = |t: Timestamp| abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
        let attr = &self.attr;
        abi::StatxOut {
            attr_valid: self.attr_ttl.as_secs(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            mask: libc::STATX_BASIC_STATS
                | if self.btime.is_some() { libc::STATX_BTIME } else { 0 },
            blksize: attr.blksize,
            attributes: self.attributes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            attributes_mask: self.attributes_mask,
            atime: time(attr.atime),
            btime: time(self.btime.unwrap_or_default()),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            // The kernel's 32-bit form: minor in bits 0..8 and 20..32, major in 8..20.
            rdev_major: (attr.rdev >> 8) & 0xfff,
            rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
            ..Default::default()
        }
    }
}
