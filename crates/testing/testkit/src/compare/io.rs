//! Reading, writing, seeking and mapping.

use crate::compare::exec::OpenFile;
use crate::compare::outcome::Outcome;
use crate::rng;
use crate::sys::{self, AlignedBuf, Mapping};

const PAGE: u64 = 4096;
/// Zeros are checked below this offset only, so that huge sparse files cost nothing.
const CHECKED_BYTES: i64 = 16 << 20;

/// Under direct I/O everything is a multiple of the page size.
fn fit(file: OpenFile, len: u32, off: Option<i64>) -> (usize, Option<i64>) {
    if file.flags & libc::O_DIRECT == 0 {
        return (len as usize, off);
    }
    let page = PAGE as usize;
    let len = (len as usize).div_ceil(page) * page;
    match off {
        Some(off) => (len, Some(off & !(PAGE as i64 - 1))),
        // The position may be anywhere: align it, which both sides do alike.
        None => {
            if let Ok(pos) = sys::lseek(file.fd, 0, libc::SEEK_CUR) {
                let _ = sys::lseek(file.fd, pos & !(PAGE as i64 - 1), libc::SEEK_SET);
            }
            (len, None)
        }
    }
}

fn note_position(out: &mut Outcome, fd: i32) {
    if let Ok(pos) = sys::lseek(fd, 0, libc::SEEK_CUR) {
        out.field("position", pos);
    }
}

/// read or pread
pub fn read(file: OpenFile, len: u32, off: Option<i64>) -> Outcome {
    let (len, off) = fit(file, len, off);
    let mut buf = AlignedBuf::new(len);
    let ret = match off {
        Some(off) => sys::pread(file.fd, buf.get(), off),
        None => sys::read(file.fd, buf.get()),
    };
    let mut out = Outcome::of(ret);
    out.data = buf.get()[..out.ret.max(0) as usize].to_vec();
    note_position(&mut out, file.fd);
    out
}

/// write or pwrite
pub fn write(file: OpenFile, len: u32, off: Option<i64>, seed: u64) -> Outcome {
    let (len, off) = fit(file, len, off);
    let mut buf = AlignedBuf::new(len);
    rng::fill(seed, buf.get());
    let ret = match off {
        Some(off) => sys::pwrite(file.fd, buf.get(), off),
        None => sys::write(file.fd, buf.get()),
    };
    let mut out = Outcome::of(ret);
    note_position(&mut out, file.fd);
    if let Ok(st) = sys::fstat(file.fd)
        && st.st_mode & libc::S_IFMT == libc::S_IFREG
    {
        out.field("size", st.st_size);
    }
    out
}

/// The size of an open regular file; EINVAL for anything else, about which file systems differ.
fn regular_size(fd: i32) -> Result<i64, i32> {
    let st = sys::fstat(fd)?;
    if st.st_mode & libc::S_IFMT == libc::S_IFREG { Ok(st.st_size) } else { Err(libc::EINVAL) }
}

/// lseek. Where data and holes lie may differ between two correct file systems, so for these two
/// only the rules are checked, and the position is put back.
pub fn seek(fd: i32, off: i64, whence: i32) -> Outcome {
    // Positions in a directory are cookies, which each file system makes up for itself.
    let is_dir = sys::fstat(fd).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR);
    if is_dir && (off, whence) != (0, libc::SEEK_SET) {
        return Outcome::of(Err(libc::EISDIR));
    }
    if whence != libc::SEEK_DATA && whence != libc::SEEK_HOLE {
        return Outcome::of(sys::lseek(fd, off, whence));
    }
    let size = match regular_size(fd) {
        Ok(size) => size,
        Err(e) => return Outcome::of(Err(e)),
    };
    let back = sys::lseek(fd, 0, libc::SEEK_CUR);
    let ret = sys::lseek(fd, off, whence);
    let mut out = Outcome::default();
    match ret {
        // In range: an offset from `off` on, or (data only) "no more data".
        Ok(at) if off >= 0 && off < size => {
            if at < off || at > size || (whence == libc::SEEK_DATA && at == size) {
                out.violations
                    .push(format!("lseek from {off} answers {at}, the size being {size}"));
            }
        }
        Err(libc::ENXIO) if whence == libc::SEEK_DATA && off >= 0 && off < size => {}
        other => out = Outcome::of(other),
    }
    if let Ok(back) = back {
        let _ = sys::lseek(fd, back, libc::SEEK_SET);
    }
    out
}

/// Extents of data of an open file, from SEEK_DATA and SEEK_HOLE. The position is left anywhere.
pub fn data_extents(fd: i32, size: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match sys::lseek(fd, at, libc::SEEK_DATA) {
            Ok(data) => data,
            Err(libc::ENXIO) => break,
            Err(e) => return Err(format!("SEEK_DATA from {at}: {}", crate::errno::name(e))),
        };
        let hole = sys::lseek(fd, data, libc::SEEK_HOLE)
            .map_err(|e| format!("SEEK_HOLE from {data}: {}", crate::errno::name(e)))?;
        if data < at || hole <= data || hole > size {
            return Err(format!("from {at}: data at {data}, hole at {hole}, size {size}"));
        }
        extents.push((data, hole));
        at = hole;
    }
    Ok(extents)
}

/// The first byte of `from..to` that is not zero.
pub fn first_nonzero(fd: i32, from: i64, to: i64) -> Option<i64> {
    let mut buf = vec![0; 1 << 16];
    let mut at = from;
    while at < to {
        let want = buf.len().min((to - at) as usize);
        let got = sys::pread(fd, &mut buf[..want], at).unwrap_or(0) as usize;
        if got == 0 {
            return None;
        }
        if let Some(i) = buf[..got].iter().position(|&b| b != 0) {
            return Some(at + i as i64);
        }
        at += got as i64;
    }
    None
}

/// Every hole must read as zeros.
pub fn seek_map(fd: i32) -> Outcome {
    let size = match regular_size(fd) {
        Ok(size) => size,
        Err(e) => return Outcome::of(Err(e)),
    };
    let back = match sys::lseek(fd, 0, libc::SEEK_CUR) {
        Ok(back) => back,
        Err(e) => return Outcome::of(Err(e)),
    };
    let mut out = Outcome::default();
    match data_extents(fd, size) {
        Ok(extents) => {
            let mut at = 0;
            for (data, hole) in extents.into_iter().chain([(size, size)]) {
                if let Some(bad) = first_nonzero(fd, at, data.min(CHECKED_BYTES)) {
                    out.violations.push(format!(
                        "byte {bad} is data but lies in a reported hole {at}..{data}"
                    ));
                }
                at = hole;
            }
        }
        Err(what) => out.violations.push(what),
    }
    for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
        out.field("seek at the end", Outcome::of(sys::lseek(fd, size, whence)).show_ret());
    }
    let _ = sys::lseek(fd, back, libc::SEEK_SET);
    out
}

/// fallocate
pub fn allocate(fd: i32, mode: i32, off: i64, len: i64) -> Outcome {
    let before = sys::fstat(fd);
    let out = Outcome::of(sys::fallocate(fd, mode, off, len));
    if let (0, Ok(before), Ok(after)) = (out.ret, before, sys::fstat(fd))
        && before.st_size == after.st_size
    {
        // Whether this updates the times when perhaps no byte changed is left open, so both sides
        // start anew.
        let now = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW };
        let _ = sys::futimens(fd, &[now, now]);
    }
    out
}

/// The part of `off..off+len` inside the file: start, length, and the page it starts in.
fn inside(fd: i32, off: u32, len: u32) -> Result<(u64, usize, u64), i32> {
    let size = regular_size(fd)? as u64;
    let off = u64::from(off);
    let end = (off + u64::from(len)).min(size);
    if off >= end { Err(libc::ERANGE) } else { Ok((off, (end - off) as usize, off & !(PAGE - 1))) }
}

/// Writes through a mapping, and reads the bytes back through the descriptor.
pub fn mmap_write(
    file: OpenFile,
    off: u32,
    len: u32,
    seed: u64,
    shared: bool,
    sync: bool,
) -> Outcome {
    let fd = file.fd;
    let (off, len, page) = match inside(fd, off, len) {
        Ok(part) => part,
        Err(e) => return Outcome::of(Err(e)),
    };
    let skip = (off - page) as usize;
    let map = match Mapping::new(fd, page as i64, skip + len, true, shared) {
        Ok(map) => map,
        Err(e) => return Outcome::of(Err(e)),
    };
    let mut data = vec![0; len];
    rng::fill(seed, &mut data);
    map.store(skip, &data);
    let mut out = Outcome::default();
    if sync {
        out.field("msync", Outcome::of(map.sync()).show_ret());
    }
    if file.flags & libc::O_DIRECT != 0 {
        return out;
    }
    let mut back = vec![0; len];
    let ret = sys::pread(fd, &mut back, off as i64);
    out.field("pread", Outcome::of(ret).show_ret());
    out.data = back;
    out
}

/// Reads through a mapping.
pub fn mmap_read(fd: i32, off: u32, len: u32) -> Outcome {
    let (off, len, page) = match inside(fd, off, len) {
        Ok(part) => part,
        Err(e) => return Outcome::of(Err(e)),
    };
    let skip = (off - page) as usize;
    match Mapping::new(fd, page as i64, skip + len, false, true) {
        Ok(map) => {
            let mut data = vec![0; len];
            map.load(skip, &mut data);
            Outcome { data, ..Outcome::default() }
        }
        Err(e) => Outcome::of(Err(e)),
    }
}

/// copy_file_range until everything is copied: how much one call copies is free.
pub fn copy_range(from: OpenFile, from_off: i64, to: OpenFile, to_off: i64, len: u32) -> Outcome {
    // Whether direct I/O wants alignment here too is for each file system to say.
    if (from.flags | to.flags) & libc::O_DIRECT != 0 {
        return Outcome::of(Err(libc::EINVAL));
    }
    let (from, to) = (from.fd, to.fd);
    let (mut from_off, mut to_off, mut done) = (from_off, to_off, 0);
    while done < i64::from(len) {
        match sys::copy_file_range(
            from,
            &mut from_off,
            to,
            &mut to_off,
            len as usize - done as usize,
        ) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if done == 0 => return Outcome::of(Err(e)),
            Err(e) => {
                let mut out = Outcome::of(Ok(done));
                out.field("then", crate::errno::name(e));
                return out;
            }
        }
    }
    Outcome::of(Ok(done))
}
