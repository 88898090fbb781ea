//! Byte-range locks.

use crate::compare::op::{LockKind, Range};
use crate::compare::outcome::Outcome;
use crate::sys;

/// How long a waiting lock call waits before a signal interrupts it.
pub const LOCK_WAIT_MS: u64 = 150;

fn flock(typ: i32, range: Range) -> libc::flock {
    libc::flock {
        l_type: typ as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    }
}

/// Takes or drops a lock without waiting.
pub fn lock(fd: i32, kind: LockKind, typ: i32, range: Range) -> Outcome {
    let cmd = match kind {
        LockKind::Posix => libc::F_SETLK,
        LockKind::Ofd => libc::F_OFD_SETLK,
    };
    Outcome::of(sys::fcntl_lock(fd, cmd, &mut flock(typ, range)))
}

/// Asks which lock is in the way. With several in the way any of them may be named, so only
/// "somebody" is compared, except where there can be just one: a write lock on a single byte.
pub fn get(fd: i32, kind: LockKind, typ: i32, range: Range) -> Outcome {
    let cmd = match kind {
        LockKind::Posix => libc::F_GETLK,
        LockKind::Ofd => libc::F_OFD_GETLK,
    };
    let mut lock = flock(typ, range);
    let mut out = Outcome::of(sys::fcntl_lock(fd, cmd, &mut lock));
    if out.ret < 0 {
        return out;
    }
    let held = lock.l_type != libc::F_UNLCK as i16;
    out.field("held", held);
    if held && range.len == 1 && lock.l_type == libc::F_WRLCK as i16 {
        out.field("lock", format!("write {} {}", lock.l_start, lock.l_len));
        out.pid = i64::from(lock.l_pid);
    }
    if held && lock.l_type == libc::F_RDLCK as i16 && typ == libc::F_RDLCK {
        out.violations.push("a read lock is said to bar a read lock".into());
    }
    out
}

/// Waits for a write lock; a signal ends the wait.
pub fn wait(fd: i32, range: Range) -> Outcome {
    sys::alarm_ms(LOCK_WAIT_MS);
    let out = Outcome::of(sys::fcntl_lock(fd, libc::F_SETLKW, &mut flock(libc::F_WRLCK, range)));
    sys::alarm_ms(0);
    out
}
