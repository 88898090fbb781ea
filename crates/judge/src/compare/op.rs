//! The operations, and their form as a readable script.

use std::fmt;

use crate::compare::actor::ACTORS;

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
    /// Remembers a cookie in mid-scan, reads on, seeks back and reads on again: the same entries must come.
    SeekDir {
        loc: Loc,
    },
    /// Scans a directory while names in it come, go and change; `threaded` does the changes in a second thread.
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
    /// Makes a chain of directories longer than `PATH_MAX` with relative calls, uses it, removes it.
    DeepPath {
        loc: Loc,
        name_len: u32,
        depth: u32,
    },
}

/// One line of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who does it: an index into [`ACTORS`].
    pub actor: u8,
    /// Whether times before and after are compared too.
    pub probe: bool,
    /// What is done.
    pub op: Op,
}

impl Op {
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

/// Bytes as a readable, unambiguous, bounded text.
pub fn show_bytes(bytes: &[u8]) -> String {
    let text = |part: &[u8]| part.escape_ascii().to_string();
    if bytes.len() <= 80 {
        format!("\"{}\"", text(bytes))
    } else {
        format!("\"{}...{}\"[{} bytes]", text(&bytes[..24]), text(&bytes[bytes.len() - 24..]), bytes.len())
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Root => write!(f, "/:{}", show_bytes(&self.path)),
            Base::Cwd => write!(f, "cwd:{}", show_bytes(&self.path)),
            Base::Dir(d) => write!(f, "dir{d}:{}", show_bytes(&self.path)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(loc, false) => write!(f, "{loc}"),
            Target::Path(loc, true) => write!(f, "{loc} (nofollow)"),
            Target::Slot(s) => write!(f, "fd{s}"),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nsec {
            libc::UTIME_NOW => write!(f, "NOW"),
            libc::UTIME_OMIT => write!(f, "OMIT"),
            n => write!(f, "{}.{n:09}", self.sec),
        }
    }
}

/// Open flags by name.
pub fn show_flags(flags: i32) -> String {
    let mut out = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => "O_RDONLY",
        libc::O_WRONLY => "O_WRONLY",
        libc::O_RDWR => "O_RDWR",
        _ => "O_ACCMODE",
    }
    .to_string();
    let named = [
        (libc::O_CREAT, "O_CREAT"),
        (libc::O_EXCL, "O_EXCL"),
        (libc::O_TRUNC, "O_TRUNC"),
        (libc::O_APPEND, "O_APPEND"),
        (libc::O_NOFOLLOW, "O_NOFOLLOW"),
        (libc::O_DIRECT, "O_DIRECT"),
        (libc::O_SYNC, "O_SYNC"),
        (libc::O_PATH, "O_PATH"),
        (libc::O_NOATIME, "O_NOATIME"),
        (libc::O_NONBLOCK, "O_NONBLOCK"),
    ];
    for (bit, name) in named {
        if flags & bit == bit {
            out.push('|');
            out.push_str(name);
        }
    }
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        out.push_str("|O_TMPFILE");
    } else if flags & libc::O_DIRECTORY != 0 {
        out.push_str("|O_DIRECTORY");
    }
    out
}

fn show_fallocate(mode: i32) -> String {
    let named = [
        (libc::FALLOC_FL_KEEP_SIZE, "KEEP_SIZE"),
        (libc::FALLOC_FL_PUNCH_HOLE, "PUNCH_HOLE"),
        (libc::FALLOC_FL_ZERO_RANGE, "ZERO_RANGE"),
        (libc::FALLOC_FL_COLLAPSE_RANGE, "COLLAPSE_RANGE"),
        (libc::FALLOC_FL_INSERT_RANGE, "INSERT_RANGE"),
    ];
    let set: Vec<_> = named.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "0".into() } else { set.join("|") }
}

fn show_lock_type(typ: i32) -> &'static str {
    match typ {
        libc::F_RDLCK => "F_RDLCK",
        libc::F_WRLCK => "F_WRLCK",
        _ => "F_UNLCK",
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Op::Open { slot, loc, flags, mode } => {
                write!(f, "fd{slot} = open({loc}, {}, {mode:#o})", show_flags(*flags))
            }
            Op::OpenDir { dir, loc, flags } => write!(f, "dir{dir} = open({loc}, {})", show_flags(*flags)),
            Op::Close { slot } | Op::SeekMap { slot } => write!(f, "{kind}(fd{slot})"),
            Op::Dup { from, to } => write!(f, "fd{to} = dup(fd{from})"),
            Op::CloseDir { dir } | Op::Fchdir { dir } | Op::FsyncDir { dir } => write!(f, "{kind}(dir{dir})"),
            Op::Read { slot, len } => write!(f, "read(fd{slot}, {len})"),
            Op::Write { slot, len, fill } => write!(f, "write(fd{slot}, len {len}, fill {fill:#x})"),
            Op::Pread { slot, off, len } => write!(f, "pread(fd{slot}, off {off}, len {len})"),
            Op::Pwrite { slot, off, len, fill } => {
                write!(f, "pwrite(fd{slot}, off {off}, len {len}, fill {fill:#x})")
            }
            Op::Truncate { loc, len } => write!(f, "truncate({loc}, {len})"),
            Op::Ftruncate { slot, len } => write!(f, "ftruncate(fd{slot}, {len})"),
            Op::Fallocate { slot, mode, off, len } => {
                write!(f, "fallocate(fd{slot}, {}, off {off}, len {len})", show_fallocate(*mode))
            }
            Op::Lseek { slot, off, whence } => {
                let whence = ["SEEK_SET", "SEEK_CUR", "SEEK_END", "SEEK_DATA", "SEEK_HOLE"]
                    .get(*whence as usize)
                    .unwrap_or(&"?");
                write!(f, "lseek(fd{slot}, {off}, {whence})")
            }
            Op::Mkdir { loc, mode } => write!(f, "mkdir({loc}, {mode:#o})"),
            Op::Mknod { loc, mode } => write!(f, "mknod({loc}, {mode:#o})"),
            Op::Symlink { target, loc } => write!(f, "symlink({}, {loc})", show_bytes(target)),
            Op::Link { from, to, follow } => {
                write!(f, "link({from}, {to}{})", if *follow { ", AT_SYMLINK_FOLLOW" } else { "" })
            }
            Op::LinkSlot { slot, to } => write!(f, "linkat(fd{slot}, \"\", {to}, AT_EMPTY_PATH)"),
            Op::Rename { from, to, flags } => {
                let flags = match *flags {
                    0 => "",
                    libc::RENAME_NOREPLACE => ", RENAME_NOREPLACE",
                    libc::RENAME_EXCHANGE => ", RENAME_EXCHANGE",
                    _ => ", other flags",
                };
                write!(f, "rename({from}, {to}{flags})")
            }
            Op::Chmod { target, mode } => write!(f, "chmod({target}, {mode:#o})"),
            Op::Chown { target, uid, gid } => {
                write!(f, "chown({target}, {}, {})", *uid as i32, *gid as i32)
            }
            Op::Utimens { target, atime, mtime } => {
                write!(f, "utimensat({target}, atime {atime}, mtime {mtime})")
            }
            Op::Stat { target } => write!(f, "stat({target})"),
            Op::Statx { loc, flags } => write!(f, "statx({loc}, {flags:#x})"),
            Op::ReadDirSlot { dir, buf } => write!(f, "readdir(dir{dir}, buffer {buf})"),
            Op::ScanUnderChange { loc, seed, threaded } => {
                write!(
                    f,
                    "scan-under-change({loc}, seed {seed:#x}{})",
                    if *threaded { ", thread" } else { "" }
                )
            }
            Op::SetXattr { target, name, len, fill, flags } => write!(
                f,
                "setxattr({target}, {}, len {len}, fill {fill:#x}, {})",
                show_bytes(name),
                match *flags {
                    libc::XATTR_CREATE => "XATTR_CREATE",
                    libc::XATTR_REPLACE => "XATTR_REPLACE",
                    _ => "0",
                }
            ),
            Op::GetXattr { target, name, size } => {
                write!(f, "getxattr({target}, {}, size {size})", show_bytes(name))
            }
            Op::ListXattr { target } => write!(f, "listxattr({target})"),
            Op::RemoveXattr { target, name } => write!(f, "removexattr({target}, {})", show_bytes(name)),
            Op::Access { loc, mode, flags } => write!(f, "faccessat({loc}, {mode:#o}, flags {flags:#x})"),
            Op::MmapWrite { slot, off, len, fill, shared, sync } => write!(
                f,
                "mmap-write(fd{slot}, off {off}, len {len}, fill {fill:#x}, {}{})",
                if *shared { "MAP_SHARED" } else { "MAP_PRIVATE" },
                if *sync { ", msync" } else { "" }
            ),
            Op::MmapRead { slot, off, len } => write!(f, "mmap-read(fd{slot}, off {off}, len {len})"),
            Op::CopyRange { from, from_off, to, to_off, len } => {
                write!(f, "copy_file_range(fd{from}, off {from_off}, fd{to}, off {to_off}, len {len})")
            }
            Op::Fsync { slot, data_only } => {
                write!(f, "{}(fd{slot})", if *data_only { "fdatasync" } else { "fsync" })
            }
            Op::Flock { slot, operation } => write!(
                f,
                "flock(fd{slot}, {})",
                match operation & !libc::LOCK_NB {
                    libc::LOCK_SH => "LOCK_SH|LOCK_NB",
                    libc::LOCK_EX => "LOCK_EX|LOCK_NB",
                    _ => "LOCK_UN",
                }
            ),
            Op::Lock { slot, kind, typ, range } | Op::GetLock { slot, kind, typ, range } => {
                let get = matches!(self, Op::GetLock { .. });
                let cmd = match (kind, get) {
                    (LockKind::Posix, false) => "F_SETLK",
                    (LockKind::Posix, true) => "F_GETLK",
                    (LockKind::Ofd, false) => "F_OFD_SETLK",
                    (LockKind::Ofd, true) => "F_OFD_GETLK",
                };
                write!(
                    f,
                    "fcntl(fd{slot}, {cmd}, {}, start {}, len {})",
                    show_lock_type(*typ),
                    range.start,
                    range.len
                )
            }
            Op::LockWait { slot, range, other, other_slot } => write!(
                f,
                "fcntl(fd{slot}, F_SETLKW, F_WRLCK, start {}, len {}) while [{}] unlocks its fd{other_slot}",
                range.start, range.len, ACTORS[*other as usize].name
            ),
            Op::Getcwd => write!(f, "getcwd()"),
            Op::Umask { mask } => write!(f, "umask({mask:#o})"),
            Op::DeepPath { loc, name_len, depth } => {
                write!(f, "deep-path({loc}, {depth} names of {name_len} bytes)")
            }
            Op::Rmdir { loc }
            | Op::Readlink { loc }
            | Op::Unlink { loc }
            | Op::Statfs { loc }
            | Op::ReadDir { loc }
            | Op::SeekDir { loc }
            | Op::Chdir { loc } => write!(f, "{kind}({loc})"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", ACTORS[self.actor as usize].name, self.op)
    }
}
