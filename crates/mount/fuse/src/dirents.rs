//! The buffer that answers READDIR and READDIRPLUS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::abi::{self, OutHeader, Wire};
use crate::attr::Entry;

/// Collects directory entries until the room that the kernel offered is used up.
///
/// Every entry carries a cookie: the `offset` with which the kernel requests what comes after it.
/// Cookies must stay valid while entries come and go, and 0 is the start.
///
/// ```
/// # use kestrel_fuse::{Dirents, FileKind};
/// let mut dirents = Dirents::plain(4096);
/// for (name, ino, cookie) in [("a", 10, 1), ("b", 11, 2)] {
///     if !dirents.push(name.as_ref(), ino, FileKind::Regular, cookie) {
///         break; // full: the kernel will come again with the last cookie that fitted
///     }
/// }
/// # assert_eq!(dirents.len(), 2);
/// // reply.dirents(dirents)
/// ```
#[derive(Debug)]
pub struct Dirents {
    /// Room for the reply's header, then records.
    message: Vec<u8>,
    /// Largest length of `message`.
    limit: usize,
    count: usize,
    plus: bool,
}

/// Type of a directory entry (DT_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// The file system does not know without looking.
    Unknown = libc::DT_UNKNOWN,
    /// Named pipe.
    Fifo = libc::DT_FIFO,
    /// Character device.
    CharDevice = libc::DT_CHR,
    /// Directory.
    Directory = libc::DT_DIR,
    /// Block device.
    BlockDevice = libc::DT_BLK,
    /// Regular file.
    Regular = libc::DT_REG,
    /// Symbolic link.
    Symlink = libc::DT_LNK,
    /// Unix socket.
    Socket = libc::DT_SOCK,
}

impl FileKind {
    /// The kind that a mode's type bits say.
    pub const fn from_mode(mode: u32) -> FileKind {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFREG => FileKind::Regular,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFSOCK => FileKind::Socket,
            _ => FileKind::Unknown,
        }
    }
}

/// No directory reply is larger, even if a request claims more; larger ones are answered in steps.
const DIRENTS_BYTES_MAX: usize = 1 << 20;

impl Dirents {
    /// A buffer for READDIR with room for the `size` bytes that the request offers.
    pub fn plain(size: u32) -> Dirents {
        Dirents::new(size, false)
    }

    /// A buffer for READDIRPLUS.
    pub fn plus(size: u32) -> Dirents {
        Dirents::new(size, true)
    }

    fn new(size: u32, plus: bool) -> Dirents {
        let limit = size_of::<OutHeader>() + (size as usize).min(DIRENTS_BYTES_MAX);
        let mut message = Vec::with_capacity(limit);
        message.resize(size_of::<OutHeader>(), 0);
        Dirents { message, limit, count: 0, plus }
    }

    /// Adds an entry to a plain buffer; `false` (and nothing added) when it does not fit.
    #[must_use]
    pub fn push(&mut self, name: &OsStr, ino: u64, kind: FileKind, cookie: u64) -> bool {
        debug_assert!(!self.plus, "READDIRPLUS wants push_plus");
        self.record(None, name, ino, kind, cookie)
    }

    /// Adds an entry to a READDIRPLUS buffer; `false` (and nothing added) when it does not fit. One
    /// that was added counts as a lookup of `entry.nodeid`. An entry of node id 0 is listed by
    /// `attr.ino` and `attr.mode` only and counts for nothing: for `.` and `..`, or where
    /// attributes are not at hand.
    #[must_use]
    pub fn push_plus(&mut self, name: &OsStr, entry: &Entry, cookie: u64) -> bool {
        debug_assert!(self.plus, "READDIR wants push");
        let kind = FileKind::from_mode(entry.attr.mode);
        self.record(Some(entry), name, entry.attr.ino, kind, cookie)
    }

    fn record(
        &mut self,
        entry: Option<&Entry>,
        name: &OsStr,
        ino: u64,
        kind: FileKind,
        cookie: u64,
    ) -> bool {
        let head = if entry.is_some() { size_of::<abi::EntryOut>() } else { 0 };
        let len = (head + size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        if self.message.len() + len > self.limit {
            return false;
        }
        let end = self.message.len() + len;
        if let Some(entry) = entry {
            self.message.extend_from_slice(entry.to_wire().bytes());
        }
        let dirent =
            abi::Dirent { ino, off: cookie, namelen: name.len() as u32, kind: kind as u32 };
        self.message.extend_from_slice(dirent.bytes());
        self.message.extend_from_slice(name.as_bytes());
        self.message.resize(end, 0);
        self.count += 1;
        true
    }

    /// Entries so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none: the end of the directory.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn is_plus(&self) -> bool {
        self.plus
    }

    /// The message, with room for its header.
    pub(crate) fn into_message(self) -> Vec<u8> {
        self.message
    }
}
