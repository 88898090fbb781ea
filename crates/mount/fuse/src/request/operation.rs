//! The operations that a request can be for.

use std::ffi::OsStr;
use std::fmt;

use crate::abi::{self, Wire};
use crate::attr::Timestamp;

/// The operation of a request. In brackets: the [`Reply`](crate::Reply) method that answers
/// success.
///
/// `fh` is the value that the file system gave when the file was opened. `flags` of open files are
/// the `open(2)` flags as the kernel keeps them (`libc::O_*`). Names of entries are one component,
/// never empty, without `/` or NUL; names of extended attributes are never empty and without NUL.
#[derive(Debug)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "fields that need no more words have the names of the system calls' arguments"
)]
pub enum Operation<'a> {
    /// Find `name` in a directory; a success counts as one reference to the answered node ("lookup
    /// count") until [`Operation::Forget`] \[entry, or negative\].
    Lookup { name: &'a OsStr },
    /// The kernel dropped references to nodes (FORGET and BATCH_FORGET) \[no answer\].
    Forget(Forgets<'a>),
    /// Attributes of a node, through an open file if it has one \[attr\].
    Getattr { fh: Option<u64> },
    /// Change attributes \[attr\].
    Setattr(Setattr),
    /// Target of a symbolic link \[data\].
    Readlink,
    /// Create a symbolic link \[entry\].
    Symlink { name: &'a OsStr, target: &'a OsStr },
    /// Create a node of any type but directory and symbolic link \[entry\]. `mode` includes the
    /// type; the umask has been applied.
    Mknod { name: &'a OsStr, mode: u32, rdev: u32, umask: u32 },
    /// Create a directory \[entry\]. `mode` is without type bits.
    Mkdir { name: &'a OsStr, mode: u32, umask: u32 },
    /// Remove an entry that is no directory \[empty\].
    Unlink { name: &'a OsStr },
    /// Remove an empty directory \[empty\].
    Rmdir { name: &'a OsStr },
    /// Rename (RENAME and RENAME2); `flags` are `libc::RENAME_*` \[empty\].
    Rename { name: &'a OsStr, new_parent: u64, new_name: &'a OsStr, flags: u32 },
    /// Give the node `target` a further name in the directory `nodeid` \[entry\].
    Link { target: u64, new_name: &'a OsStr },
    /// Open a file \[open\].
    Open {
        /// `open(2)` flags without O_CREAT, O_EXCL and O_NOCTTY; with O_TRUNC under
        /// [`Features::atomic_o_trunc`](crate::Features::atomic_o_trunc).
        flags: u32,
        /// The truncation must clear set-user-ID and set-group-ID.
        kill_suidgid: bool,
    },
    /// Read up to `size` bytes; a short answer means end of file \[data\].
    Read {
        /// Handle.
        fh: u64,
        /// First byte.
        offset: u64,
        /// At most this many.
        size: u32,
        /// `open(2)` flags of the file.
        flags: u32,
        /// Owner of mandatory locks, if the kernel names one.
        lock_owner: Option<u64>,
    },
    /// Write; all of it or an error, a short count only where less could be stored \[written\].
    Write(Write<'a>),
    /// File-system totals \[statfs\].
    Statfs,
    /// The last reference to an open file is gone; no caller sees the answer \[empty\].
    Release {
        /// Handle.
        fh: u64,
        /// `open(2)` flags of the file.
        flags: u32,
        /// Owner of the BSD lock that goes away, if locks are the file system's business.
        flock_owner: Option<u64>,
    },
    /// Make a file durable \[empty\].
    Fsync { fh: u64, datasync: bool },
    /// Set an extended attribute; `flags` are `libc::XATTR_*` \[empty\].
    Setxattr {
        /// Name with its namespace, as `user.comment`.
        name: &'a OsStr,
        /// The new value.
        value: &'a [u8],
        /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
        flags: u32,
        /// The value is an access ACL; setting it must clear set-group-ID.
        kill_sgid: bool,
    },
    /// Read an extended attribute: with `size` 0 its length \[xattr_size\], else the value
    /// \[data\], or ERANGE when it is longer than `size`. [`Reply::xattr`](crate::Reply::xattr)
    /// does all three.
    Getxattr { name: &'a OsStr, size: u32 },
    /// Names of extended attributes, each followed by NUL; `size` as for Getxattr \[xattr\].
    Listxattr { size: u32 },
    /// Remove an extended attribute \[empty\].
    Removexattr { name: &'a OsStr },
    /// `close(2)` of one of the descriptors of an open file; an error is the result of close
    /// \[empty\].
    Flush { fh: u64, lock_owner: u64 },
    /// Open a directory for reading \[open\].
    Opendir { flags: u32 },
    /// Entries after the cookie `offset` (0 is the start), in at most `size` bytes \[dirents\].
    Readdir { fh: u64, offset: u64, size: u32 },
    /// As Readdir; every entry but `.` and `..` also counts as a lookup \[dirents\].
    Readdirplus { fh: u64, offset: u64, size: u32 },
    /// An open directory is gone \[empty\].
    Releasedir { fh: u64, flags: u32 },
    /// Make a directory durable \[empty\].
    Fsyncdir { fh: u64, datasync: bool },
    /// Test for a lock that conflicts \[lock\].
    Getlk(Lock),
    /// Set or drop a lock; with `wait`, when it is free \[empty\].
    Setlk { lock: Lock, wait: bool },
    /// `access(2)` and `chdir(2)`: may the caller do this? `mask` of `libc::{R,W,X}_OK` \[empty\].
    Access { mask: u32 },
    /// Create a file and open it \[create\].
    Create {
        /// The new entry.
        name: &'a OsStr,
        /// Type and permission bits, umask applied.
        mode: u32,
        /// The caller's umask, already applied.
        umask: u32,
        /// `open(2)` flags, with O_CREAT, and O_EXCL where the caller set it.
        flags: u32,
        /// A truncation must clear set-user-ID and set-group-ID.
        kill_suidgid: bool,
    },
    /// Create a file without a name in a directory and open it (O_TMPFILE) \[create\].
    Tmpfile { mode: u32, umask: u32, flags: u32 },
    /// The caller of the request `unique` got a signal: answer that request soon, with EINTR if it
    /// has had no effect \[no answer\]. It may come after the answer was sent.
    Interrupt { unique: u64 },
    /// The file system is going away (not sent for ordinary mounts) \[empty\].
    Destroy,
    /// `ioctl(2)` \[ioctl\].
    Ioctl(Ioctl<'a>),
    /// `poll(2)` \[poll\]. `kh` names the waiter, should a notification be wanted.
    Poll { fh: u64, kh: u64, flags: u32, events: u32 },
    /// Allocate or free space; `mode` of `libc::FALLOC_FL_*` \[empty\].
    Fallocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// SEEK_DATA and SEEK_HOLE only \[lseek\].
    Lseek { fh: u64, offset: u64, whence: u32 },
    /// Copy between two open files of this mount \[copied\].
    CopyFileRange {
        /// Handle of the source, which is `nodeid`.
        fh_in: u64,
        /// First byte of the source.
        offset_in: u64,
        /// Destination.
        nodeid_out: u64,
        /// Its handle.
        fh_out: u64,
        /// First byte of the destination.
        offset_out: u64,
        /// At most this many bytes.
        length: u64,
        /// Of the system call.
        flags: u64,
    },
    /// `syncfs(2)`. Ordinary FUSE mounts never get it: the kernel sends it for virtiofs only
    /// \[empty\].
    Syncfs,
    /// `statx(2)` that wants more than Getattr gives, as the time of birth \[statx\]. ENOSYS once,
    /// and the kernel uses Getattr from then on.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
}

/// A new value for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the file system.
    Now,
    /// This one.
    At(Timestamp),
}

/// Arguments of SETATTR: what is `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setattr {
    /// Open file through which the change comes.
    pub fh: Option<u64>,
    /// Permission bits (and the type, unchanged).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last modification.
    pub mtime: Option<SetTime>,
    /// Time of last change; only from a kernel that caches writes.
    pub ctime: Option<Timestamp>,
    /// The truncation or change of owner must clear set-user-ID, set-group-ID and capabilities.
    pub kill_suidgid: bool,
    /// Owner of mandatory locks.
    pub lock_owner: Option<u64>,
}

/// Arguments of WRITE.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// Handle; for `cached` writes any handle of the node that was open for writing.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// What to write, in the receive buffer. It is page-aligned there.
    pub data: &'a [u8],
    /// `open(2)` flags of the file.
    pub flags: u32,
    /// From the page cache (shared mmap): the caller's ids are not those of the writer.
    pub cached: bool,
    /// Must clear set-user-ID, set-group-ID and capabilities.
    pub kill_suidgid: bool,
    /// Owner of mandatory locks.
    pub lock_owner: Option<u64>,
}

impl fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write")
            .field("fh", &self.fh)
            .field("offset", &self.offset)
            .field("bytes", &self.data.len())
            .field("flags", &self.flags)
            .field("cached", &self.cached)
            .field("kill_suidgid", &self.kill_suidgid)
            .finish_non_exhaustive()
    }
}

/// A byte-range lock.
#[derive(Clone, Copy, Debug)]
pub struct Lock {
    /// Handle.
    pub fh: u64,
    /// The owner that holds or wants it.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// `libc::F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// Process.
    pub pid: u32,
    /// A BSD lock (`flock(2)`) rather than a POSIX one.
    pub flock: bool,
}

/// Arguments of IOCTL.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// Handle.
    pub fh: u64,
    /// `FUSE_IOCTL_*` flags.
    pub flags: u32,
    /// The request code.
    pub cmd: u32,
    /// Its argument as a number.
    pub arg: u64,
    /// What the argument points to, for codes that pass data in.
    pub data: &'a [u8],
    /// Room for data out.
    pub out_size: u32,
}

/// Nodes that the kernel forgot, each with the number of lookups to take off.
#[derive(Clone, Debug)]
pub struct Forgets<'a>(pub(super) ForgetList<'a>);

#[derive(Clone, Debug)]
pub(super) enum ForgetList<'a> {
    /// FORGET: node and count, until taken.
    One(Option<(u64, u64)>),
    /// BATCH_FORGET: records of the wire.
    Many(&'a [u8]),
}

impl Iterator for Forgets<'_> {
    /// Node id and count.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        match &mut self.0 {
            ForgetList::One(one) => one.take(),
            ForgetList::Many(bytes) => {
                let one = abi::ForgetOne::read(bytes)?;
                *bytes = &bytes[size_of::<abi::ForgetOne>()..];
                Some((one.nodeid, one.nlookup))
            }
        }
    }
}
