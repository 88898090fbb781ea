//! System calls with their raw results: `Ok(value)` or `Err(errno)`. All unsafe code of this crate
//! is here.
//!
//! std hides what the judges must see (which errno, which flag), so these wrappers add nothing but
//! types.

use std::ffi::{CStr, CString};

use libc::{c_int, c_long, c_void};

/// The result of a system call.
pub type Sys<T> = Result<T, i32>;

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: __errno_location returns the address of this thread's errno, valid while the thread
    // lives.
    unsafe { *libc::__errno_location() }
}

fn check(ret: i64) -> Sys<i64> {
    if ret < 0 { Err(errno()) } else { Ok(ret) }
}

/// A path as the kernel takes it. Bytes after a NUL are cut, as the kernel would.
pub fn cstring(path: &[u8]) -> CString {
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    CString::new(&path[..end]).unwrap_or_default()
}

macro_rules! call {
    ($(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) = $body:expr) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name($($arg: $ty),*) -> Sys<i64> {
            // SAFETY: every pointer passed comes from a live reference of this frame, with its true
            // length; descriptors are plain numbers that the kernel checks.
            check(unsafe { $body } as i64)
        }
    };
}

call!(/// openat(2)
    openat(dir: c_int, path: &CStr, flags: c_int, mode: u32) =
        libc::openat(dir, path.as_ptr(), flags, mode));
call!(/// close(2)
    close(fd: c_int) = libc::close(fd));
call!(/// dup(2)
    dup(fd: c_int) = libc::dup(fd));
call!(/// read(2)
    read(fd: c_int, buf: &mut [u8]) = libc::read(fd, buf.as_mut_ptr().cast(), buf.len()));
call!(/// write(2)
    write(fd: c_int, buf: &[u8]) = libc::write(fd, buf.as_ptr().cast(), buf.len()));
call!(/// pread(2)
    pread(fd: c_int, buf: &mut [u8], off: i64) =
        libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), off));
call!(/// pwrite(2)
    pwrite(fd: c_int, buf: &[u8], off: i64) =
        libc::pwrite(fd, buf.as_ptr().cast(), buf.len(), off));
call!(/// truncate(2)
    truncate(path: &CStr, len: i64) = libc::truncate(path.as_ptr(), len));
call!(/// ftruncate(2)
    ftruncate(fd: c_int, len: i64) = libc::ftruncate(fd, len));
call!(/// fallocate(2)
    fallocate(fd: c_int, mode: c_int, off: i64, len: i64) = libc::fallocate(fd, mode, off, len));
call!(/// lseek(2)
    lseek(fd: c_int, off: i64, whence: c_int) = libc::lseek(fd, off, whence));
call!(/// mkdirat(2)
    mkdirat(dir: c_int, path: &CStr, mode: u32) = libc::mkdirat(dir, path.as_ptr(), mode));
call!(/// unlinkat(2)
    unlinkat(dir: c_int, path: &CStr, flags: c_int) = libc::unlinkat(dir, path.as_ptr(), flags));
call!(/// mknodat(2)
    mknodat(dir: c_int, path: &CStr, mode: u32, dev: u64) =
        libc::mknodat(dir, path.as_ptr(), mode, dev));
call!(/// symlinkat(2)
    symlinkat(target: &CStr, dir: c_int, path: &CStr) =
        libc::symlinkat(target.as_ptr(), dir, path.as_ptr()));
call!(/// readlinkat(2)
    readlinkat(dir: c_int, path: &CStr, buf: &mut [u8])
    = libc::readlinkat(dir, path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()));
call!(/// linkat(2)
    linkat(from_dir: c_int, from: &CStr, to_dir: c_int, to: &CStr, flags: c_int)
    = libc::linkat(from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags));
call!(/// renameat2(2)
    renameat2(from_dir: c_int, from: &CStr, to_dir: c_int, to: &CStr, flags: u32)
    = libc::renameat2(from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags));
call!(/// fchmodat(2), following symbolic links
    fchmodat(dir: c_int, path: &CStr, mode: u32) =
        libc::syscall(libc::SYS_fchmodat, dir, path.as_ptr(), mode));
call!(/// fchmod(2)
    fchmod(fd: c_int, mode: u32) = libc::fchmod(fd, mode));
call!(/// fchownat(2)
    fchownat(dir: c_int, path: &CStr, uid: u32, gid: u32, flags: c_int)
    = libc::fchownat(dir, path.as_ptr(), uid, gid, flags));
call!(/// fchown(2)
    fchown(fd: c_int, uid: u32, gid: u32) = libc::fchown(fd, uid, gid));
call!(/// utimensat(2); times are access, then modification
    utimensat(dir: c_int, path: &CStr, times: &[libc::timespec; 2], flags: c_int)
    = libc::utimensat(dir, path.as_ptr(), times.as_ptr(), flags));
call!(/// futimens(3)
    futimens(fd: c_int, times: &[libc::timespec; 2]) = libc::futimens(fd, times.as_ptr()));
call!(/// faccessat2(2)
    faccessat2(dir: c_int, path: &CStr, mode: c_int, flags: c_int)
    = libc::syscall(libc::SYS_faccessat2, dir, path.as_ptr(), mode, flags));
call!(/// fsync(2)
    fsync(fd: c_int) = libc::fsync(fd));
call!(/// fdatasync(2)
    fdatasync(fd: c_int) = libc::fdatasync(fd));
call!(/// syncfs(2)
    syncfs(fd: c_int) = libc::syncfs(fd));
call!(/// flock(2)
    flock(fd: c_int, operation: c_int) = libc::flock(fd, operation));
call!(/// fcntl(2) with a lock
    fcntl_lock(fd: c_int, cmd: c_int, lock: &mut libc::flock) =
        libc::fcntl(fd, cmd, lock as *mut libc::flock));
call!(/// fcntl(2) with a number
    fcntl_int(fd: c_int, cmd: c_int, arg: c_int) = libc::fcntl(fd, cmd, arg));
call!(/// chdir(2)
    chdir(path: &CStr) = libc::chdir(path.as_ptr()));
call!(/// fchdir(2)
    fchdir(fd: c_int) = libc::fchdir(fd));
call!(/// chroot(2)
    chroot(path: &CStr) = libc::chroot(path.as_ptr()));
call!(/// umask(2)
    umask(mask: u32) = libc::umask(mask));
call!(/// getdents64(2)
    getdents64(fd: c_int, buf: &mut [u8])
    = libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()));
call!(/// setxattr(2), or lsetxattr(2) when `nofollow`
setxattr(path: &CStr, name: &CStr, value: &[u8], flags: c_int, nofollow: bool)
= if nofollow {
    libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
} else {
    libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
});
call!(/// fsetxattr(2)
    fsetxattr(fd: c_int, name: &CStr, value: &[u8], flags: c_int)
    = libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), flags));
call!(/// getxattr(2), or lgetxattr(2) when `nofollow`
getxattr(path: &CStr, name: &CStr, value: &mut [u8], nofollow: bool)
= if nofollow {
    libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
} else {
    libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
});
call!(/// fgetxattr(2)
    fgetxattr(fd: c_int, name: &CStr, value: &mut [u8])
    = libc::fgetxattr(fd, name.as_ptr(), value.as_mut_ptr().cast(), value.len()));
call!(/// listxattr(2), or llistxattr(2) when `nofollow`
listxattr(path: &CStr, list: &mut [u8], nofollow: bool)
= if nofollow {
    libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len())
} else {
    libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len())
});
call!(/// flistxattr(2)
    flistxattr(fd: c_int, list: &mut [u8]) =
        libc::flistxattr(fd, list.as_mut_ptr().cast(), list.len()));
call!(/// removexattr(2), or lremovexattr(2) when `nofollow`
removexattr(path: &CStr, name: &CStr, nofollow: bool)
= if nofollow {
    libc::lremovexattr(path.as_ptr(), name.as_ptr())
} else {
    libc::removexattr(path.as_ptr(), name.as_ptr())
});
call!(/// fremovexattr(2)
    fremovexattr(fd: c_int, name: &CStr) = libc::fremovexattr(fd, name.as_ptr()));
call!(/// copy_file_range(2); the offsets are advanced
    copy_file_range(from: c_int, from_off: &mut i64, to: c_int, to_off: &mut i64, len: usize)
    = libc::copy_file_range(from, from_off, to, to_off, len, 0));
call!(/// getcwd(2)
    getcwd(buf: &mut [u8]) = libc::syscall(libc::SYS_getcwd, buf.as_mut_ptr(), buf.len()));
call!(/// setgroups(2), for this process
    setgroups(groups: &[u32]) = libc::setgroups(groups.len(), groups.as_ptr()));
call!(/// setresgid(2), all three
    setgid(gid: u32) = libc::setresgid(gid, gid, gid));
call!(/// setresuid(2), all three
    setuid(uid: u32) = libc::setresuid(uid, uid, uid));
call!(/// unshare(2): a root directory, working directory and umask of this thread's own
    own_fs_context() = libc::unshare(libc::CLONE_FS));
call!(/// geteuid(2)
    geteuid() = libc::geteuid());
call!(/// kill(2)
    kill(pid: i32, signal: c_int) = libc::kill(pid, signal));
call!(/// Ends this process's life with its parent's
    die_with_parent() = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_long, 0 as c_long,
        0 as c_long, 0 as c_long));
call!(/// prctl(2): how late the kernel may wake this thread, in nanoseconds
    timer_slack(ns: u64) = libc::prctl(libc::PR_SET_TIMERSLACK, ns as libc::c_ulong, 0 as c_long,
        0 as c_long, 0 as c_long));
call!(/// close_range(2)
    close_range(first: u32, last: u32) =
        libc::syscall(libc::SYS_close_range, first, last, 0 as c_int));
call!(/// waitpid(2); the status comes in `status`
    waitpid(pid: i32, status: &mut c_int, flags: c_int) = libc::waitpid(pid, status, flags));

/// Groups, gid and uid of the calling thread only: libc's own functions would change all threads.
pub fn thread_credentials(uid: u32, gid: u32, groups: &[u32]) -> Sys<()> {
    // SAFETY: numbers, and a slice that is live for the call.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// fstatat(2)
pub fn fstatat(dir: c_int, path: &CStr, flags: c_int) -> Sys<libc::stat> {
    // SAFETY: stat is plain data for which zero is a value; the kernel fills it.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: path and st are live for the call.
    check(i64::from(unsafe { libc::fstatat(dir, path.as_ptr(), &mut st, flags) }))?;
    Ok(st)
}

/// fstat(2)
pub fn fstat(fd: c_int) -> Sys<libc::stat> {
    // SAFETY: as in fstatat.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: st is live for the call.
    check(i64::from(unsafe { libc::fstat(fd, &mut st) }))?;
    Ok(st)
}

/// statx(2) with every basic field
pub fn statx(dir: c_int, path: &CStr, flags: c_int) -> Sys<libc::statx> {
    // SAFETY: statx is plain data for which zero is a value; the kernel fills it.
    let mut st: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: path and st are live for the call.
    check(i64::from(unsafe {
        libc::statx(dir, path.as_ptr(), flags, libc::STATX_BASIC_STATS, &mut st)
    }))?;
    Ok(st)
}

/// statfs(2)
pub fn statfs(path: &CStr) -> Sys<libc::statfs> {
    // SAFETY: statfs is plain data for which zero is a value; the kernel fills it.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and st are live for the call.
    check(i64::from(unsafe { libc::statfs(path.as_ptr(), &mut st) }))?;
    Ok(st)
}

/// pipe2(2): the reading end, then the writing end
pub fn pipe() -> Sys<(c_int, c_int)> {
    let mut ends = [0; 2];
    // SAFETY: ends has room for the two descriptors.
    check(i64::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    Ok((ends[0], ends[1]))
}

/// fork(2): 0 in the child. The caller must have one thread only, and the child must end with
/// [`exit_now`].
pub fn fork() -> Sys<i32> {
    // SAFETY: callers keep the rule above, so no lock is held by a thread that the child lacks.
    check(i64::from(unsafe { libc::fork() })).map(|pid| pid as i32)
}

/// _exit(2): no destructors, no flushing
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Waits until `fd` can be read: false when `timeout_ms` passed first.
pub fn readable(fd: c_int, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one pollfd, live for the call.
        let ret = unsafe { libc::poll(&mut poll, 1, timeout_ms) };
        if ret >= 0 || errno() != libc::EINTR {
            return ret > 0;
        }
    }
}

/// Seconds and nanoseconds of the wall clock.
pub fn wall_clock() -> (i64, i64) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: ts is live for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut ts) };
    (ts.tv_sec, ts.tv_nsec)
}

/// Milliseconds of a clock that only goes forward.
pub fn monotonic_ms() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: ts is live for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1000 + ts.tv_nsec as u64 / 1_000_000
}

/// Sends this process SIGALRM in `ms` milliseconds, with a handler that does nothing: a blocked
/// call returns EINTR. 0 switches it off.
pub fn alarm_ms(ms: u64) {
    extern "C" fn nothing(_: c_int) {}
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval {
            tv_sec: (ms / 1000) as i64,
            tv_usec: ((ms % 1000) * 1000) as i64,
        },
    };
    // SAFETY: the handler touches nothing; action and timer are live for the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
}

/// A memory mapping of a file, unmapped when dropped.
pub struct Mapping {
    address: *mut c_void,
    len: usize,
}

impl Mapping {
    /// mmap(2), readable; `write` and `shared` as they say. `off` is a multiple of the page size.
    pub fn new(fd: c_int, off: i64, len: usize, write: bool, shared: bool) -> Sys<Self> {
        let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, off) };
        if address == libc::MAP_FAILED { Err(errno()) } else { Ok(Self { address, len }) }
    }

    /// Copies `out.len()` bytes from position `at`. Beyond the end of the file this raises SIGBUS,
    /// as it should.
    pub fn load(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len);
        // SAFETY: within the mapping, checked above; another process may change the bytes, which a
        // raw copy allows.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address.cast::<u8>().add(at),
                out.as_mut_ptr(),
                out.len(),
            )
        }
    }

    /// Copies `data` to position `at` of a writable mapping.
    pub fn store(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len);
        // SAFETY: within the mapping, checked above.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.address.cast::<u8>().add(at),
                data.len(),
            )
        }
    }

    /// msync(2) with MS_SYNC
    pub fn sync(&self) -> Sys<i64> {
        // SAFETY: the whole of our own mapping.
        check(i64::from(unsafe { libc::msync(self.address, self.len, libc::MS_SYNC) }))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, never used after this.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// One entry as getdents64 gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// The name, without the NUL.
    pub name: Vec<u8>,
    /// `DT_REG` and the like.
    pub kind: u8,
    /// Inode number.
    pub ino: u64,
    /// Cookie of the entry after this one.
    pub next: i64,
}

/// The entries in a buffer that getdents64 filled.
pub fn dirents(mut buf: &[u8]) -> Vec<Dirent> {
    let u64_at = |b: &[u8], at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&b[at..at + 8]);
        if cfg!(target_endian = "little") {
            u64::from_le_bytes(bytes)
        } else {
            u64::from_be_bytes(bytes)
        }
    };
    let mut out = Vec::new();
    while buf.len() >= 19 {
        let reclen = if cfg!(target_endian = "little") {
            u16::from_le_bytes([buf[16], buf[17]])
        } else {
            u16::from_be_bytes([buf[16], buf[17]])
        } as usize;
        if reclen < 20 || reclen > buf.len() {
            break;
        }
        let name = &buf[19..reclen];
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        out.push(Dirent {
            name: name[..end].to_vec(),
            kind: buf[18],
            ino: u64_at(buf, 0),
            next: u64_at(buf, 8) as i64,
        });
        buf = &buf[reclen..];
    }
    out
}

/// A buffer with bytes that start at a multiple of 4096, as direct I/O wants.
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0u8; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    /// The bytes.
    pub fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
