//! System calls that std does not offer.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Most buffers in one call (`UIO_MAXIOV`).
pub(crate) const BUFFERS_MAX: usize = 1024;

/// `fcntl` command: the signal for a lease that another process wants broken
/// (`asm-generic/fcntl.h`).
const F_SETSIG: libc::c_int = 10;

/// Calls again while a signal interrupts; turns -1 into the thread's errno.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

pub(crate) fn open_dir(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

fn open_with(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let (mode, flags): (libc::c_uint, _) = (0o600, flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
    let fd =
        // SAFETY: `name` is a C string that outlives the call.
        retried(|| unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, mode) } as isize)?;
    // SAFETY: the kernel just returned this descriptor to this call, nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}

/// Opens for reading. Reads of cache files do not count as access: no code reads that time, and it
/// would be a write for each.
pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    match open_with(dir, name, libc::O_RDONLY | libc::O_NOATIME) {
        // Another user's, and this process is not root.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            open_with(dir, name, libc::O_RDONLY)
        }
        other => other,
    }
}

/// Opens for reading if the kernel has the path in its caches (`RESOLVE_CACHED`); EAGAIN if not.
pub(crate) fn open_at_cached(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_cached(dir, name, libc::O_RDONLY | libc::O_NOATIME)
}

/// Opens for reading and writing if the kernel has the path in its caches; EAGAIN if not.
pub(crate) fn open_rw_at_cached(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_cached(dir, name, libc::O_RDWR)
}

fn open_cached(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    how.resolve = libc::RESOLVE_CACHED;
    let size = size_of::<libc::open_how>();
    // SAFETY: `name` and `how` outlive the call, and `size` is that of `how`.
    let fd = retried(|| unsafe {
        libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), name.as_ptr(), &raw const how, size)
            as isize
    })?;
    // SAFETY: the kernel just returned this descriptor to this call, nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}

/// Opens for reading and writing.
pub(crate) fn open_rw_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_with(dir, name, libc::O_RDWR)
}

/// Opens for reading and writing, and makes it if it is missing.
pub(crate) fn create_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_with(dir, name, libc::O_RDWR | libc::O_CREAT)
}

/// Makes a file without a name in a directory, open for reading and writing.
pub(crate) fn create_unnamed_at(root: BorrowedFd<'_>, dir: &CStr) -> io::Result<File> {
    open_with(root, dir, libc::O_RDWR | libc::O_TMPFILE)
}

/// Gives a file without a name one.
pub(crate) fn link_at(file: &File, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .unwrap_or_else(|_| unreachable!("a number holds no NUL"));
    // SAFETY: both names are C strings that outlive the call.
    retried(|| unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        ) as isize
    })
    .map(drop)
}

/// Sets an extended attribute.
pub(crate) fn set_attribute(file: &File, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: `name` is a C string, and `value` holds as many bytes as are named; both outlive the
    // call.
    retried(|| unsafe {
        libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
            as isize
    })
    .map(drop)
}

/// An extended attribute of exactly `N` bytes; none if it is missing or of another length.
pub(crate) fn attribute<const N: usize>(file: &File, name: &CStr) -> io::Result<Option<[u8; N]>> {
    let mut value = [0; N];
    // SAFETY: `name` is a C string, and `value` has room for `N` bytes; both outlive the call.
    let read = retried(|| unsafe {
        libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), N)
    });
    match read {
        Ok(read) => Ok((read == N).then_some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::ERANGE)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether anything but `file`, which must be open for writing, refers to its inode as an open file
/// or a map. A write lease is granted to the only process that has a file open (fcntl(2)), so one
/// is taken and given back.
pub(crate) fn is_open_elsewhere(file: &File) -> io::Result<bool> {
    let control = |command, argument: libc::c_int| {
        // SAFETY: takes no pointers.
        retried(|| unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } as isize)
    };
    // Should another process open the file in between, it waits until the lease is given back, and
    // this process is sent a signal: one that does nothing, in place of SIGIO, which ends
    // processes.
    control(F_SETSIG, libc::SIGURG)?;
    match control(libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(_) => control(libc::F_SETLEASE, libc::F_UNLCK).map(|_| false),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes a directory; fine if it is there.
pub(crate) fn mkdir_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string that outlives the call.
    match retried(|| unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) } as isize) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Removes a file.
pub(crate) fn unlink_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string that outlives the call.
    retried(|| unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) } as isize).map(drop)
}

/// Fills `parts` (at most [`BUFFERS_MAX`]) as far as one call does; bytes filled.
pub(crate) fn read_at(file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
    read_flags(file, parts, offset, 0)
}

/// Like [`read_at`], from the page cache only; none if something is not there, or the file system
/// cannot tell.
pub(crate) fn read_cached_at(
    file: &File,
    parts: &mut [IoSliceMut<'_>],
    offset: u64,
) -> io::Result<Option<usize>> {
    match read_flags(file, parts, offset, libc::RWF_NOWAIT) {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS)
            ) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Waits until a part of a file is in the page cache, as far as the file has it and the kernel
/// follows the request to read it ahead: it does unless it is short of memory.
pub(crate) fn bring(file: &File, bytes: Range<u64>) -> io::Result<()> {
    /// Bytes of the part for each that is waited for: what is requested at once comes with few
    /// requests to the disk.
    const STEP: usize = 128 << 10;
    will_need(file, bytes.clone());
    let last = bytes.end.saturating_sub(1);
    for at in bytes.step_by(STEP).chain([last]) {
        if read_at(file, &mut [IoSliceMut::new(&mut [0])], at)? == 0 {
            break;
        }
    }
    Ok(())
}

fn read_flags(
    file: &File,
    parts: &mut [IoSliceMut<'_>],
    offset: u64,
    flags: i32,
) -> io::Result<usize> {
    let position =
        libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let count = parts.len() as libc::c_int;
    // SAFETY: `IoSliceMut` has the layout of `iovec`, and the buffers are borrowed for writing
    // during the call.
    retried(|| unsafe {
        libc::preadv2(file.as_raw_fd(), parts.as_mut_ptr().cast(), count, position, flags)
    })
}

/// Writes all of `parts` at `offset`.
pub(crate) fn write_all_at(file: &File, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
    let mut at = offset;
    for batch in parts.chunks(BUFFERS_MAX) {
        let position =
            libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: `IoSlice` has the layout of `iovec`, and the borrowed buffers outlive the call.
        let mut written = retried(|| unsafe {
            libc::pwritev(
                file.as_raw_fd(),
                batch.as_ptr().cast(),
                batch.len() as libc::c_int,
                position,
            )
        })?;
        // What a short write left, piece by piece, so that the cause of it comes to light.
        for part in batch {
            let done = written.min(part.len());
            written -= done;
            if done < part.len() {
                file.write_all_at(&part[done..], at + done as u64)?;
            }
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// Where a file has data, in order; whole blocks of the file system, so a little more than what was
/// written.
pub(crate) fn data_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let seek = |from: u64, whence| {
        let fd = file.as_raw_fd();
        // SAFETY: takes no pointers.
        match retried(|| unsafe { libc::lseek(fd, from as libc::off_t, whence) } as isize) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            other => other.map(|at| Some(at as u64)),
        }
    };
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(start) = seek(at, libc::SEEK_DATA)? {
        // None: the file was cut off meanwhile.
        let Some(end) = seek(start, libc::SEEK_HOLE)? else { break };
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// Makes a part of a file a hole. Where the file system cannot, zeros are written over it.
pub(crate) fn punch(file: &File, part: Range<u64>) -> io::Result<()> {
    let (at, len) = (part.start, part.end - part.start);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let fd = file.as_raw_fd();
    // SAFETY: takes no pointers.
    match retried(|| unsafe { libc::fallocate(fd, mode, at as i64, len as i64) } as isize) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            file.write_all_at(&vec![0; len as usize], at)
        }
        other => other.map(drop),
    }
}

/// Has the kernel read a part of the file into its cache.
pub(crate) fn will_need(file: &File, part: Range<u64>) {
    advise(file, part, libc::POSIX_FADV_WILLNEED);
}

/// Has the kernel forget a file's pages, so that the next read is one of the disk.
pub(crate) fn forget_cached(file: &File) {
    advise(file, 0..0, libc::POSIX_FADV_DONTNEED);
}

fn advise(file: &File, part: Range<u64>, advice: libc::c_int) {
    let (at, len) = (part.start as i64, (part.end - part.start) as i64);
    // SAFETY: takes no pointers. A hint: failure costs speed only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), at, len, advice) };
}

/// Size of the file system and what an ordinary user can still write, bytes.
pub(crate) fn room(file: &File) -> io::Result<(u64, u64)> {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` outlives the call.
    retried(|| unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) } as isize)?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}
