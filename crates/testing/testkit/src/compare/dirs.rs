//! Reading directories, and very deep ones.

use std::ffi::CString;

use crate::compare::op::show_bytes;
use crate::compare::outcome::Outcome;
use crate::errno;
use crate::sys::{self, Dirent, Sys};

/// Reads on from where the descriptor stands.
pub fn rest(fd: i32, buf_len: usize) -> Sys<Vec<Dirent>> {
    let mut buf = vec![0; buf_len];
    let mut all = Vec::new();
    loop {
        let n = sys::getdents64(fd, &mut buf)? as usize;
        if n == 0 {
            return Ok(all);
        }
        all.extend(sys::dirents(&buf[..n]));
    }
}

fn names(entries: &[Dirent]) -> Vec<&[u8]> {
    let mut names: Vec<_> = entries.iter().map(|e| &e.name[..]).collect();
    names.sort();
    names
}

fn record(out: &mut Outcome, entries: &[Dirent]) {
    let mut lines: Vec<_> =
        entries.iter().map(|e| format!("{} type {}", show_bytes(&e.name), e.kind)).collect();
    lines.sort();
    if let Some(twice) = lines.windows(2).find(|w| w[0] == w[1]) {
        out.violations.push(format!("listed twice: {}", twice[0]));
    }
    out.field("entries", lines.join("\n"));
}

fn open(dir: i32, path: &CString) -> Sys<i32> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    sys::openat(dir, path, flags, 0).map(|fd| fd as i32)
}

/// Opens and reads a directory.
pub fn read((dir, path): (i32, CString)) -> Outcome {
    match open(dir, &path) {
        Ok(fd) => {
            let out = read_again(fd, 8192);
            let _ = sys::close(fd);
            out
        }
        Err(e) => Outcome::of(Err(e)),
    }
}

/// Rewinds an open directory and reads it.
pub fn read_again(fd: i32, buf_len: usize) -> Outcome {
    let mut out = Outcome::default();
    match sys::lseek(fd, 0, libc::SEEK_SET).and_then(|_| rest(fd, buf_len)) {
        Ok(entries) => record(&mut out, &entries),
        Err(e) => out.ret = -i64::from(e),
    }
    out
}

/// Seeks back to a remembered cookie: the same entries must follow.
pub fn seek((dir, path): (i32, CString)) -> Outcome {
    let fd = match open(dir, &path) {
        Ok(fd) => fd,
        Err(e) => return Outcome::of(Err(e)),
    };
    let mut out = Outcome::default();
    if let Ok(all) = rest(fd, 512) {
        record(&mut out, &all);
        for at in [0, all.len() / 3, all.len() / 2, all.len().saturating_sub(1)] {
            let Some(entry) = all.get(at) else { continue };
            match sys::lseek(fd, entry.next, libc::SEEK_SET).and_then(|_| rest(fd, 4096)) {
                Ok(again) if names(&again) == names(&all[at + 1..]) => {}
                Ok(again) => out.violations.push(format!(
                    "after seekdir behind entry {at} of {}: {} entries instead of {}",
                    all.len(),
                    again.len(),
                    all.len() - at - 1
                )),
                Err(e) => out.violations.push(format!("seekdir: {}", errno::name(e))),
            }
        }
    }
    let _ = sys::close(fd);
    out
}

/// Makes a chain of directories below `path` that is longer than any single path may be, works at
/// its bottom, and removes it.
pub fn deep((dir, path): (i32, CString), name_len: u32, depth: u32) -> Outcome {
    let mut out = Outcome::default();
    let top = match open(dir, &path) {
        Ok(fd) => fd,
        Err(e) => return Outcome::of(Err(e)),
    };
    let name = sys::cstring(&vec![b'd'; name_len as usize]);
    let mut chain = vec![top];
    for _ in 0..depth {
        let at = chain[chain.len() - 1];
        let made = sys::mkdirat(at, &name, 0o755).and_then(|_| open(at, &name));
        match made {
            Ok(fd) => chain.push(fd),
            Err(e) => {
                out.field("stopped", format!("depth {}: {}", chain.len(), errno::name(e)));
                break;
            }
        }
    }
    let bottom = chain[chain.len() - 1];
    if chain.len() > 1 {
        let made = sys::openat(bottom, c"file", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o644);
        out.field("create at the bottom", Outcome::of(made.map(|_| 0)).show_ret());
        if let Ok(fd) = made {
            out.field("write", Outcome::of(sys::write(fd as i32, b"deep")).show_ret());
            let _ = sys::close(fd as i32);
        }
        let levels = chain.len() - 1;
        for below in [levels / 2, levels] {
            let mut long = Vec::new();
            for _ in 0..below {
                long.extend_from_slice(name.as_bytes());
                long.push(b'/');
            }
            let rel = sys::fstatat(
                chain[levels - below],
                &sys::cstring(&[&long[..], b"file"].concat()),
                0,
            );
            out.field("stat by a long path", Outcome::of(rel.map(|st| st.st_size)).show_ret());
        }
        out.field("unlink", Outcome::of(sys::unlinkat(bottom, c"file", 0)).show_ret());
    }
    while let Some(fd) = chain.pop() {
        let _ = sys::close(fd);
        if let Some(&parent) = chain.last()
            && let Err(e) = sys::unlinkat(parent, &name, libc::AT_REMOVEDIR)
        {
            out.field("rmdir", errno::name(e));
        }
    }
    out
}
