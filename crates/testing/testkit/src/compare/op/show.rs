//! The readable form of an operation.

use std::fmt;

use super::{Base, Loc, LockKind, Op, Step, Target, Time};
use crate::compare::actor::ACTORS;

/// Bytes as a readable, unambiguous, bounded text.
pub fn show_bytes(bytes: &[u8]) -> String {
    let text = |part: &[u8]| part.escape_ascii().to_string();
    if bytes.len() <= 80 {
        format!("\"{}\"", text(bytes))
    } else {
        format!(
            "\"{}...{}\"[{} bytes]",
            text(&bytes[..24]),
            text(&bytes[bytes.len() - 24..]),
            bytes.len()
        )
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
    let set: Vec<_> =
        named.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, name)| *name).collect();
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
            Op::OpenDir { dir, loc, flags } => {
                write!(f, "dir{dir} = open({loc}, {})", show_flags(*flags))
            }
            Op::Close { slot } | Op::SeekMap { slot } => write!(f, "{kind}(fd{slot})"),
            Op::Dup { from, to } => write!(f, "fd{to} = dup(fd{from})"),
            Op::CloseDir { dir } | Op::Fchdir { dir } | Op::FsyncDir { dir } => {
                write!(f, "{kind}(dir{dir})")
            }
            Op::Read { slot, len } => write!(f, "read(fd{slot}, {len})"),
            Op::Write { slot, len, fill } => {
                write!(f, "write(fd{slot}, len {len}, fill {fill:#x})")
            }
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
            Op::RemoveXattr { target, name } => {
                write!(f, "removexattr({target}, {})", show_bytes(name))
            }
            Op::Access { loc, mode, flags } => {
                write!(f, "faccessat({loc}, {mode:#o}, flags {flags:#x})")
            }
            Op::MmapWrite { slot, off, len, fill, shared, sync } => write!(
                f,
                "mmap-write(fd{slot}, off {off}, len {len}, fill {fill:#x}, {}{})",
                if *shared { "MAP_SHARED" } else { "MAP_PRIVATE" },
                if *sync { ", msync" } else { "" }
            ),
            Op::MmapRead { slot, off, len } => {
                write!(f, "mmap-read(fd{slot}, off {off}, len {len})")
            }
            Op::CopyRange { from, from_off, to, to_off, len } => {
                write!(
                    f,
                    "copy_file_range(fd{from}, off {from_off}, fd{to}, off {to_off}, len {len})"
                )
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
                "fcntl(fd{slot}, F_SETLKW, F_WRLCK, start {}, len {}) while [{}] unlocks its \
                 fd{other_slot}",
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
