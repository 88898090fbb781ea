//! The complete tree as text: one line an entry with every attribute, the bytes as a digest.

use std::collections::BTreeMap;

use crate::compare::exec::{show_time, user_names};
use crate::compare::op::show_bytes;
use crate::compare::outcome::Outcome;
use crate::compare::{dirs, io};
use crate::rng::mix;
use crate::{errno, sys};

/// Files up to this size are also read whole, to check what SEEK_DATA said.
const READ_WHOLE: i64 = 8 << 20;

struct Walker {
    run_start: i64,
    lines: Vec<String>,
    violations: Vec<String>,
    /// Inode number: kind and first path.
    inodes: BTreeMap<u64, (u64, String)>,
}

/// Walks the calling process's root directory.
pub fn walk(run_start: i64) -> Outcome {
    let mut walker =
        Walker { run_start, lines: Vec::new(), violations: Vec::new(), inodes: BTreeMap::new() };
    let mut out = Outcome::default();
    match sys::openat(libc::AT_FDCWD, c"/", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)
    {
        Ok(root) => {
            walker.dir(root as i32, "");
            let _ = sys::close(root as i32);
        }
        Err(e) => out.ret = -i64::from(e),
    }
    out.field("tree", walker.lines.join("\n"));
    out.violations = walker.violations;
    out
}

impl Walker {
    fn dir(&mut self, fd: i32, path: &str) {
        let mut entries = match dirs::rest(fd, 32768) {
            Ok(entries) => entries,
            Err(e) => {
                self.lines.push(format!("{path}/ getdents {}", errno::name(e)));
                return;
            }
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for pair in entries.windows(2) {
            if pair[0].name == pair[1].name {
                self.violations.push(format!("{path}/ lists {} twice", show_bytes(&pair[0].name)));
            }
        }
        for entry in entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            self.entry(fd, entry, &path);
        }
    }

    fn entry(&mut self, dir: i32, entry: &sys::Dirent, path: &str) {
        let name = sys::cstring(&entry.name);
        let st = match sys::fstatat(dir, &name, libc::AT_SYMLINK_NOFOLLOW) {
            Ok(st) => st,
            Err(e) => {
                self.lines.push(format!("{path} listed, but stat answers {}", errno::name(e)));
                return;
            }
        };
        let kind = st.st_mode & libc::S_IFMT;
        if u32::from(entry.kind) != kind >> 12 {
            self.violations.push(format!(
                "{path}: getdents says type {}, stat {}",
                entry.kind,
                kind >> 12
            ));
        }
        if entry.ino != st.st_ino {
            self.violations
                .push(format!("{path}: getdents says inode {}, stat {}", entry.ino, st.st_ino));
        }
        let mut line = format!(
            "{path} mode {:o} owner {}:{} nlink {} mtime {}",
            st.st_mode,
            st.st_uid,
            st.st_gid,
            st.st_nlink,
            show_time(st.st_mtime, st.st_mtime_nsec, self.run_start)
        );
        let first = self
            .inodes
            .entry(st.st_ino)
            .or_insert_with(|| (u64::from(st.st_mode), path.to_string()));
        if first.1 != path {
            if st.st_nlink < 2 || first.0 != u64::from(st.st_mode) || kind == libc::S_IFDIR {
                self.violations
                    .push(format!("{path} and {} share inode number {}", first.1, st.st_ino));
            }
            line.push_str(&format!(" same as {}", first.1));
        }
        match kind {
            libc::S_IFLNK => {
                let mut target = vec![0; 4096];
                let n = sys::readlinkat(dir, &name, &mut target);
                target.truncate(n.unwrap_or(0) as usize);
                line.push_str(&format!(" size {} -> {}", st.st_size, show_bytes(&target)));
                self.lines.push(line);
            }
            libc::S_IFREG | libc::S_IFDIR => {
                let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
                match sys::openat(dir, &name, flags, 0) {
                    Ok(fd) => {
                        let fd = fd as i32;
                        line.push_str(&xattrs(fd));
                        if kind == libc::S_IFREG {
                            let digest = self.digest(fd, st.st_size, path);
                            line.push_str(&format!(" size {} bytes {digest}", st.st_size));
                        }
                        self.lines.push(line);
                        if kind == libc::S_IFDIR {
                            self.dir(fd, path);
                        }
                        let _ = sys::close(fd);
                    }
                    Err(e) => self.lines.push(format!("{line} open {}", errno::name(e))),
                }
            }
            _ => self.lines.push(line),
        }
    }

    /// A digest that does not depend on where the holes are: zero blocks do not count.
    fn digest(&mut self, fd: i32, size: i64, path: &str) -> String {
        let extents = match io::data_extents(fd, size) {
            Ok(extents) => extents,
            Err(what) => {
                self.violations.push(format!("{path}: {what}"));
                vec![(0, size)]
            }
        };
        let by_extents = digest_of(fd, &extents);
        if size <= READ_WHOLE && size > 0 {
            let whole = digest_of(fd, &[(0, size)]);
            if whole != by_extents {
                self.violations
                    .push(format!("{path}: a reported hole holds data (extents {extents:?})"));
            }
            return whole;
        }
        by_extents
    }
}

fn digest_of(fd: i32, extents: &[(i64, i64)]) -> String {
    const BLOCK: i64 = 4096;
    let mut buf = vec![0; BLOCK as usize];
    let mut sum = 0u64;
    for &(start, end) in extents {
        let mut at = start;
        while at < end {
            let stop = (at / BLOCK + 1) * BLOCK;
            let want = (stop.min(end) - at) as usize;
            let got = match sys::pread(fd, &mut buf[..want], at) {
                Ok(0) => return format!("end at {at}"),
                Ok(got) => got as usize,
                Err(e) => return format!("{} at {at}", errno::name(e)),
            };
            // Adding keeps it independent of how a block is cut into extents.
            for (i, &b) in buf[..got].iter().enumerate().filter(|(_, b)| **b != 0) {
                sum = sum.wrapping_add(mix((at as u64 + i as u64) << 8 | u64::from(b)));
            }
            at += got as i64;
        }
    }
    format!("{sum:016x}")
}

fn xattrs(fd: i32) -> String {
    let mut list = vec![0; 65536];
    let Ok(n) = sys::flistxattr(fd, &mut list) else { return String::new() };
    let list = &list[..n as usize];
    let mut out = String::new();
    let mut names: Vec<_> = list.split(|&b| b == 0).filter(|n| n.starts_with(b"user.")).collect();
    names.sort();
    debug_assert_eq!(names.len(), user_names(list).len());
    for name in names {
        let mut value = vec![0; 65536];
        let n = sys::fgetxattr(fd, &sys::cstring(name), &mut value);
        let sum = value[..n.unwrap_or(0) as usize].iter().fold(0, |h, &b| mix(h ^ u64::from(b)));
        out.push_str(&format!(" {}={}:{sum:08x}", show_bytes(name), Outcome::of(n).show_ret()));
    }
    out
}
