//! Between the kernel's structures and ours.

use std::time::Duration;

use kestrel_client::fs::{Caller, Hole};
use kestrel_fuse as fuse;
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::ids::ROOT;
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::request::{OpenFlags, SetAttr, SetTime};

/// `f_flags` bit of a file that is opened to be executed (`__FMODE_EXEC` in the kernel's `fs.h`).
const FMODE_EXEC: u32 = 0x20;

/// Block size that `st_blksize` recommends.
const IO_BYTES: u32 = 128 * 1024;

/// Unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;

pub fn caller(request: &fuse::Request<'_>) -> Caller {
    Caller { uid: request.uid, gid: request.gid, pid: request.pid }
}

fn timestamp(time: Nanos) -> fuse::Timestamp {
    fuse::Timestamp { sec: time.div_euclid(SECOND), nsec: time.rem_euclid(SECOND) as u32 }
}

/// Times beyond what 64 bits of nanoseconds hold (the years 1677 to 2262) become the nearest that
/// they hold, as local file systems do with theirs.
fn nanos(time: fuse::Timestamp) -> Nanos {
    time.sec.saturating_mul(SECOND).saturating_add(i64::from(time.nsec))
}

pub fn attr(inode: &Inode) -> fuse::Attr {
    let blocks = match inode.data {
        // A file without stored bytes takes no room, as a sparse file should show.
        Data::None if inode.kind == Kind::File => 0,
        _ => inode.size.div_ceil(STAT_BLOCK),
    };
    fuse::Attr {
        ino: inode.ino,
        size: inode.size,
        blocks,
        atime: timestamp(inode.atime),
        mtime: timestamp(inode.mtime),
        ctime: timestamp(inode.ctime),
        mode: inode.st_mode(),
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        blksize: IO_BYTES,
    }
}

pub fn statx(inode: &Inode, attr_ttl: Duration) -> fuse::Statx {
    let btime = Some(timestamp(inode.btime));
    fuse::Statx { attr: attr(inode), btime, attr_ttl, ..fuse::Statx::default() }
}

/// An entry as the kernel shall know it. Inode numbers are never reused, so the generation is
/// constant; of the root the kernel expects none.
pub fn entry(inode: &Inode, attr_ttl: Duration, entry_ttl: Duration) -> fuse::Entry {
    let generation = u64::from(inode.ino != ROOT);
    fuse::Entry { nodeid: inode.ino, generation, attr: attr(inode), attr_ttl, entry_ttl }
}

/// Whether the caller of a READ with these flags does not wait.
pub fn is_nonblock(flags: u32) -> bool {
    flags & libc::O_NONBLOCK as u32 != 0
}

pub fn open_flags(flags: u32, kill_suid: bool) -> OpenFlags {
    let access = flags as i32 & libc::O_ACCMODE;
    let exec = flags & FMODE_EXEC != 0;
    OpenFlags {
        read: access != libc::O_WRONLY && !exec,
        write: access != libc::O_RDONLY,
        exec,
        truncate: flags as i32 & libc::O_TRUNC != 0,
        kill_suid,
        append: flags as i32 & libc::O_APPEND != 0,
    }
}

pub fn setattr(set: &fuse::Setattr, through_handle: bool) -> SetAttr {
    let time = |time: fuse::SetTime| match time {
        fuse::SetTime::Now => SetTime::Now,
        fuse::SetTime::At(time) => SetTime::At(nanos(time)),
    };
    SetAttr {
        mode: set.mode.map(|mode| (mode & 0o7777) as u16),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        through_handle,
        kill_suid: set.kill_suidgid,
    }
}

/// What a `fallocate` mode asks for, and whether the size stays; `None` for what cannot be offered.
pub fn hole(mode: u32) -> Option<(Hole, bool)> {
    let keep_size = mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some((Hole::Allocate, keep_size)),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some((Hole::Punch, true)),
        libc::FALLOC_FL_ZERO_RANGE => Some((Hole::Zero, keep_size)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times before 1970 and beyond the range survive the conversion.
    #[test]
    fn times_before_1970_and_out_of_range() {
        for time in [-1, -SECOND, 0, 1, i64::MAX, i64::MIN] {
            let there = timestamp(time);
            assert!(there.nsec < SECOND as u32);
            if time != i64::MIN {
                assert_eq!(nanos(there), time);
            }
        }
        assert_eq!(nanos(fuse::Timestamp { sec: i64::MAX, nsec: 0 }), i64::MAX);
    }

    #[test]
    fn open_flags_follow_the_access_mode() {
        let flags = open_flags((libc::O_RDWR | libc::O_TRUNC) as u32, true);
        assert!(flags.read && flags.write && flags.truncate && flags.kill_suid && !flags.exec);
        let flags = open_flags(FMODE_EXEC, false);
        assert!(!flags.read && flags.exec && !flags.write);
    }

    #[test]
    fn only_holes_that_can_be_made_are_promised() {
        assert_eq!(hole(0), Some((Hole::Allocate, false)));
        assert_eq!(hole(libc::FALLOC_FL_KEEP_SIZE as u32), Some((Hole::Allocate, true)));
        assert_eq!(
            hole((libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32),
            Some((Hole::Punch, true))
        );
        assert_eq!(hole(libc::FALLOC_FL_PUNCH_HOLE as u32), None);
        assert_eq!(hole(libc::FALLOC_FL_COLLAPSE_RANGE as u32), None);
        assert_eq!(hole(libc::FALLOC_FL_INSERT_RANGE as u32), None);
    }
}
