//! What a file system can do at all, and the list of differences that are allowed, each with its
//! reason.
//!
//! A call that one side does not support would change the other side only, and everything after it
//! would differ. So support is found out beforehand; what the side under test lacks must be on the
//! list, and is then left out.

use std::collections::BTreeSet;
use std::path::Path;

use crate::compare::op::Op;
use crate::compare::outcome::Outcome;
use crate::{errno, sys};

/// Every capability that is looked for.
pub const CAPABILITIES: &[&str] = &[
    "fallocate",
    "fallocate.keep-size",
    "fallocate.punch-hole",
    "fallocate.zero-range",
    "fallocate.collapse-range",
    "fallocate.insert-range",
    "rename.noreplace",
    "rename.exchange",
    "tmpfile",
    "xattr",
    "direct-io",
    "copy-file-range",
    "seek-data",
    "mmap-shared",
    "fifo",
    "hard-link",
    "symlink",
    "posix-lock",
    "flock",
];

/// The list of allowed differences.
#[derive(Clone, Debug, Default)]
pub struct Allowances {
    unsupported: BTreeSet<String>,
    errnos: Vec<(String, String, String)>,
    times: BTreeSet<String>,
}

impl Allowances {
    /// Reads the list. A line is `unsupported CAPABILITY reason…`, `errno OPERATION A B reason…` or
    /// `times OPERATION reason…`; `#` starts a comment. A line without a reason is an error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        for (number, line) in text.lines().enumerate() {
            let bad = |why: &str| Err(format!("line {}: {why}: {line}", number + 1));
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["unsupported", capability, _, ..] => {
                    if !CAPABILITIES.contains(&capability) {
                        return bad("no such capability");
                    }
                    list.unsupported.insert(capability.into());
                }
                ["errno", op, a, b, _, ..] => {
                    if errno::number(a).is_none()
                        || (errno::number(b).is_none() && (op, b) != ("getcwd", "ok"))
                    {
                        return bad("no such errno");
                    }
                    list.errnos.push((op.into(), a.into(), b.into()));
                }
                ["times", op, _, ..] => {
                    list.times.insert(op.into());
                }
                ["unsupported" | "errno" | "times", ..] => return bad("a reason is missing"),
                _ => return bad("unknown"),
            }
        }
        Ok(list)
    }

    /// Whether the side under test may lack this.
    pub fn may_lack(&self, capability: &str) -> bool {
        self.unsupported.contains(capability)
    }

    /// Whether times may be updated where the reference leaves them, or the other way round.
    pub fn times_free(&self, op: &str) -> bool {
        self.times.contains(op)
    }

    /// Whether two failures that differ only in errno are allowed. For `getcwd`, which changes
    /// nothing, the reference may also succeed: it is `ok` on the list.
    pub fn allows(&self, op: &str, a: &Outcome, b: &Outcome) -> bool {
        let result = if b.ret < 0 { b.show_ret() } else { "ok".to_string() };
        a.ret < 0
            && a.violations.is_empty()
            && self
                .errnos
                .iter()
                .any(|(o, ea, eb)| (o == op || o == "*") && *ea == a.show_ret() && *eb == result)
    }
}

/// What an operation needs beyond the basics.
pub fn needs(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Fallocate { mode, .. } => match *mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => "fallocate.punch-hole",
            libc::FALLOC_FL_ZERO_RANGE => "fallocate.zero-range",
            libc::FALLOC_FL_COLLAPSE_RANGE => "fallocate.collapse-range",
            libc::FALLOC_FL_INSERT_RANGE => "fallocate.insert-range",
            _ if *mode & libc::FALLOC_FL_KEEP_SIZE != 0 => "fallocate.keep-size",
            _ => "fallocate",
        },
        Op::Rename { flags: libc::RENAME_NOREPLACE, .. } => "rename.noreplace",
        Op::Rename { flags: libc::RENAME_EXCHANGE, .. } => "rename.exchange",
        Op::Open { flags, .. } if flags & libc::O_TMPFILE == libc::O_TMPFILE => "tmpfile",
        Op::Open { flags, .. } if flags & libc::O_DIRECT != 0 => "direct-io",
        Op::SetXattr { .. }
        | Op::GetXattr { .. }
        | Op::ListXattr { .. }
        | Op::RemoveXattr { .. } => "xattr",
        Op::CopyRange { .. } => "copy-file-range",
        Op::SeekMap { .. } => "seek-data",
        Op::Lseek { whence: libc::SEEK_DATA | libc::SEEK_HOLE, .. } => "seek-data",
        Op::MmapWrite { shared: true, .. } => "mmap-shared",
        Op::Mknod { .. } => "fifo",
        Op::Link { .. } | Op::LinkSlot { .. } => "hard-link",
        Op::Symlink { .. } => "symlink",
        Op::Lock { .. } | Op::GetLock { .. } | Op::LockWait { .. } => "posix-lock",
        Op::Flock { .. } => "flock",
        _ => return None,
    })
}

/// What the file system below `dir` (an empty scratch directory) supports.
pub fn probe(dir: &Path) -> Result<BTreeSet<&'static str>, String> {
    use std::os::unix::ffi::OsStrExt;
    let text = |e: i32| format!("{}: {}", dir.display(), errno::name(e));
    let path = |name: &str| sys::cstring(dir.join(name).as_os_str().as_bytes());
    let cwd = libc::AT_FDCWD;
    let (a, b, c) = (path("a"), path("b"), path("c"));
    let fd = sys::openat(cwd, &a, libc::O_CREAT | libc::O_RDWR, 0o600).map_err(text)? as i32;
    let mut found = BTreeSet::new();
    let mut note = |name: &'static str, r: sys::Sys<i64>| {
        if r.is_ok() {
            found.insert(name);
        }
    };
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    sys::pwrite(fd, &[7; 65536], 0).map_err(text)?;
    note("fallocate", sys::fallocate(fd, 0, 0, 65536));
    note("fallocate.keep-size", sys::fallocate(fd, keep, 0, 65536));
    note("fallocate.punch-hole", sys::fallocate(fd, keep | libc::FALLOC_FL_PUNCH_HOLE, 4096, 4096));
    note("fallocate.zero-range", sys::fallocate(fd, libc::FALLOC_FL_ZERO_RANGE, 8192, 4096));
    note(
        "fallocate.collapse-range",
        sys::fallocate(fd, libc::FALLOC_FL_COLLAPSE_RANGE, 4096, 4096),
    );
    note("fallocate.insert-range", sys::fallocate(fd, libc::FALLOC_FL_INSERT_RANGE, 4096, 4096));
    note("seek-data", sys::lseek(fd, 0, libc::SEEK_DATA));
    note("xattr", sys::fsetxattr(fd, c"user.probe", b"1", 0));
    note("mmap-shared", sys::Mapping::new(fd, 0, 4096, true, true).map(|_| 0));
    note("flock", sys::flock(fd, libc::LOCK_EX | libc::LOCK_NB));
    let range = crate::compare::op::Range { start: 0, len: 0 };
    let lock =
        crate::compare::locks::lock(fd, crate::compare::op::LockKind::Posix, libc::F_WRLCK, range);
    note("posix-lock", if lock.ret == 0 { Ok(0) } else { Err(0) });
    let (mut from, mut to) = (0, 32768);
    note("copy-file-range", sys::copy_file_range(fd, &mut from, fd, &mut to, 4096));
    note("hard-link", sys::linkat(cwd, &a, cwd, &b, 0));
    note("symlink", sys::symlinkat(c"a", cwd, &path("s")));
    note("fifo", sys::mknodat(cwd, &path("f"), libc::S_IFIFO | 0o600, 0));
    note(
        "rename.noreplace",
        sys::renameat2(cwd, &path("f"), cwd, &path("g"), libc::RENAME_NOREPLACE),
    );
    sys::mkdirat(cwd, &c, 0o700).map_err(text)?;
    note("rename.exchange", sys::renameat2(cwd, &a, cwd, &c, libc::RENAME_EXCHANGE));
    for (name, target, flags) in [
        ("tmpfile", path("."), libc::O_TMPFILE | libc::O_RDWR),
        ("direct-io", b, libc::O_DIRECT | libc::O_RDWR),
    ] {
        let opened = sys::openat(cwd, &target, flags, 0o600);
        note(name, opened);
        if let Ok(fd) = opened {
            let _ = sys::close(fd as i32);
        }
    }
    let _ = sys::close(fd);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_read_strictly() {
        let text = "# comment\n\nunsupported fallocate.collapse-range rarely used\nerrno rename \
                    ENOTEMPTY EEXIST both fit\n";
        let list = Allowances::parse(text).unwrap();
        assert!(list.may_lack("fallocate.collapse-range") && !list.may_lack("xattr"));
        let (a, b) = (Outcome::of(Err(libc::ENOTEMPTY)), Outcome::of(Err(libc::EEXIST)));
        assert!(
            list.allows("rename", &a, &b)
                && !list.allows("rename", &b, &a)
                && !list.allows("link", &a, &b)
        );
        assert!(Allowances::parse("unsupported xattr").is_err(), "no reason");
        assert!(Allowances::parse("unsupported wings can not fly").is_err());
        assert!(Allowances::parse("errno rename ENOSUCH EEXIST why").is_err());
    }
}
