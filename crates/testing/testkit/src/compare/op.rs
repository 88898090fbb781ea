//! The operations, and their form as a readable script.
//!
//! | file | |
//! | --- | --- |
//! | `show` | the readable form of an operation |

mod show;

pub use show::{show_bytes, show_flags};

/// Descriptor slots of an actor.
pub const SLOTS: usize = 8;
/// Directory slots of an actor.
pub const DIR_SLOTS: usize = 4;

/// Where a path starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The root of the tree under test.
    Root,
    /// The actor's working directory.
    Cwd,
    /// A directory slot: a handle that may have been renamed or removed since.
    Dir(u8),
}

/// A path and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Where the path starts.
    pub base: Base,
    /// The path as given to the kernel.
    pub path: Vec<u8>,
}

/// A path, or an open descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By path; the flag says "do not follow a symbolic link".
    Path(Loc, bool),
    /// By descriptor slot.
    Slot(u8),
}

/// A time for utimensat: seconds and nanoseconds, or `UTIME_NOW`/`UTIME_OMIT` as nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds, or one of the two special values.
    pub nsec: i64,
}

/// Which of the three kinds of file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_SETLK`: owned by the process.
    Posix,
    /// `F_OFD_SETLK`: owned by the open file.
    Ofd,
}

/// A byte range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: i64,
    /// Length; 0 means to the end.
    pub len: i64,
}

/// One operation, mostly one system call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields carry the names of the system calls' own arguments")]
pub enum Op {
    Open {
        slot: u8,
        loc: Loc,
        flags: i32,
        mode: u32,
    },
    Close {
        slot: u8,
    },
    Dup {
        from: u8,
        to: u8,
    },
    OpenDir {
        dir: u8,
        loc: Loc,
        flags: i32,
    },
    CloseDir {
        dir: u8,
    },
    Read {
        slot: u8,
        len: u32,
    },
    Write {
        slot: u8,
        len: u32,
        fill: u64,
    },
    Pread {
        slot: u8,
        off: i64,
        len: u32,
    },
    Pwrite {
        slot: u8,
        off: i64,
        len: u32,
        fill: u64,
    },
    Truncate {
        loc: Loc,
        len: i64,
    },
    Ftruncate {
        slot: u8,
        len: i64,
    },
    Fallocate {
        slot: u8,
        mode: i32,
        off: i64,
        len: i64,
    },
    Lseek {
        slot: u8,
        off: i64,
        whence: i32,
    },
    /// Walks data and holes of the whole file; a hole that holds data is a violation.
    SeekMap {
        slot: u8,
    },
    Mkdir {
        loc: Loc,
        mode: u32,
    },
    Rmdir {
        loc: Loc,
    },
    Mknod {
        loc: Loc,
        mode: u32,
    },
    Symlink {
        target: Vec<u8>,
        loc: Loc,
    },
    Readlink {
        loc: Loc,
    },
    Link {
        from: Loc,
        to: Loc,
        follow: bool,
    },
    /// Gives an open (perhaps unnamed) file a name.
    LinkSlot {
        slot: u8,
        to: Loc,
    },
    Unlink {
        loc: Loc,
    },
    Rename {
        from: Loc,
        to: Loc,
        flags: u32,
    },
    Chmod {
        target: Target,
        mode: u32,
    },
    Chown {
        target: Target,
        uid: u32,
        gid: u32,
    },
    Utimens {
        target: Target,
        atime: Time,
        mtime: Time,
    },
    Stat {
        target: Target,
    },
    Statx {
        loc: Loc,
        flags: i32,
    },
    Statfs {
        loc: Loc,
    },
    ReadDir {
        loc: Loc,
    },
    ReadDirSlot {
        dir: u8,
        buf: u32,
    },
    /// Remembers a cookie in mid-scan, reads on, seeks back and reads on again: the same entries
    /// must come.
    SeekDir {
        loc: Loc,
    },
    /// Scans a directory while names in it come, go and change; `threaded` does the changes in a
    /// second thread.
    ScanUnderChange {
        loc: Loc,
        seed: u64,
        threaded: bool,
    },
    SetXattr {
        target: Target,
        name: Vec<u8>,
        len: u32,
        fill: u64,
        flags: i32,
    },
    GetXattr {
        target: Target,
        name: Vec<u8>,
        size: u32,
    },
    ListXattr {
        target: Target,
    },
    RemoveXattr {
        target: Target,
        name: Vec<u8>,
    },
    Access {
        loc: Loc,
        mode: i32,
        flags: i32,
    },
    MmapWrite {
        slot: u8,
        off: u32,
        len: u32,
        fill: u64,
        shared: bool,
        sync: bool,
    },
    MmapRead {
        slot: u8,
        off: u32,
        len: u32,
    },
    CopyRange {
        from: u8,
        from_off: i64,
        to: u8,
        to_off: i64,
        len: u32,
    },
    Fsync {
        slot: u8,
        data_only: bool,
    },
    FsyncDir {
        dir: u8,
    },
    Flock {
        slot: u8,
        operation: i32,
    },
    Lock {
        slot: u8,
        kind: LockKind,
        typ: i32,
        range: Range,
    },
    GetLock {
        slot: u8,
        kind: LockKind,
        typ: i32,
        range: Range,
    },
    /// Waits for a write lock (at most `LOCK_WAIT_MS`) while `other` unlocks its `other_slot`.
    LockWait {
        slot: u8,
        range: Range,
        other: u8,
        other_slot: u8,
    },
    Chdir {
        loc: Loc,
    },
    Fchdir {
        dir: u8,
    },
    Getcwd,
    Umask {
        mask: u32,
    },
    /// Makes a chain of directories longer than `PATH_MAX` with relative calls, uses it, removes
    /// it.
    DeepPath {
        loc: Loc,
        name_len: u32,
        depth: u32,
    },
}

/// One line of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The actor: an index into [`ACTORS`](super::actor::ACTORS).
    pub actor: u8,
    /// Whether times before and after are compared too.
    pub probe: bool,
    /// What is done.
    pub op: Op,
}

impl Op {
    /// The locations it takes.
    pub fn places(&self) -> Vec<&Loc> {
        match self {
            Op::Link { from, to, .. } | Op::Rename { from, to, .. } => vec![from, to],
            Op::Open { loc, .. }
            | Op::OpenDir { loc, .. }
            | Op::Truncate { loc, .. }
            | Op::Mkdir { loc, .. }
            | Op::Rmdir { loc }
            | Op::Mknod { loc, .. }
            | Op::Symlink { loc, .. }
            | Op::Readlink { loc }
            | Op::LinkSlot { to: loc, .. }
            | Op::Unlink { loc }
            | Op::Statx { loc, .. }
            | Op::Statfs { loc }
            | Op::ReadDir { loc }
            | Op::SeekDir { loc }
            | Op::ScanUnderChange { loc, .. }
            | Op::Access { loc, .. }
            | Op::Chdir { loc }
            | Op::DeepPath { loc, .. }
            | Op::Chmod { target: Target::Path(loc, _), .. }
            | Op::Chown { target: Target::Path(loc, _), .. }
            | Op::Utimens { target: Target::Path(loc, _), .. }
            | Op::Stat { target: Target::Path(loc, _) }
            | Op::SetXattr { target: Target::Path(loc, _), .. }
            | Op::GetXattr { target: Target::Path(loc, _), .. }
            | Op::ListXattr { target: Target::Path(loc, _) }
            | Op::RemoveXattr { target: Target::Path(loc, _), .. } => vec![loc],
            _ => Vec::new(),
        }
    }

    /// The directory slots it starts from.
    pub fn dirs(&self) -> Vec<u8> {
        if let Op::Fchdir { dir } | Op::FsyncDir { dir } | Op::ReadDirSlot { dir, .. } = self {
            return vec![*dir];
        }
        let slot = |loc: &&Loc| if let Base::Dir(dir) = loc.base { Some(dir) } else { None };
        self.places().iter().filter_map(slot).collect()
    }

    /// Whether it starts from the working directory.
    pub fn uses_cwd(&self) -> bool {
        // Calls without a directory argument take a path from a slot as one from here.
        self.places().iter().any(|loc| loc.base != Base::Root) || matches!(self, Op::Getcwd)
    }

    /// The name of the operation, as the list of allowances spells it.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Dup { .. } => "dup",
            Op::OpenDir { .. } => "opendir",
            Op::CloseDir { .. } => "closedir",
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Pread { .. } => "pread",
            Op::Pwrite { .. } => "pwrite",
            Op::Truncate { .. } => "truncate",
            Op::Ftruncate { .. } => "ftruncate",
            Op::Fallocate { .. } => "fallocate",
            Op::Lseek { .. } => "lseek",
            Op::SeekMap { .. } => "seekmap",
            Op::Mkdir { .. } => "mkdir",
            Op::Rmdir { .. } => "rmdir",
            Op::Mknod { .. } => "mknod",
            Op::Symlink { .. } => "symlink",
            Op::Readlink { .. } => "readlink",
            Op::Link { .. } => "link",
            Op::LinkSlot { .. } => "linkslot",
            Op::Unlink { .. } => "unlink",
            Op::Rename { .. } => "rename",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Utimens { .. } => "utimens",
            Op::Stat { .. } => "stat",
            Op::Statx { .. } => "statx",
            Op::Statfs { .. } => "statfs",
            Op::ReadDir { .. } => "readdir",
            Op::ReadDirSlot { .. } => "readdirslot",
            Op::SeekDir { .. } => "seekdir",
            Op::ScanUnderChange { .. } => "scan",
            Op::SetXattr { .. } => "setxattr",
            Op::GetXattr { .. } => "getxattr",
            Op::ListXattr { .. } => "listxattr",
            Op::RemoveXattr { .. } => "removexattr",
            Op::Access { .. } => "access",
            Op::MmapWrite { .. } => "mmapwrite",
            Op::MmapRead { .. } => "mmapread",
            Op::CopyRange { .. } => "copyrange",
            Op::Fsync { .. } => "fsync",
            Op::FsyncDir { .. } => "fsyncdir",
            Op::Flock { .. } => "flock",
            Op::Lock { .. } => "lock",
            Op::GetLock { .. } => "getlock",
            Op::LockWait { .. } => "lockwait",
            Op::Chdir { .. } => "chdir",
            Op::Fchdir { .. } => "fchdir",
            Op::Getcwd => "getcwd",
            Op::Umask { .. } => "umask",
            Op::DeepPath { .. } => "deeppath",
        }
    }
}
