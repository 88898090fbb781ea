//! System calls that std does not offer.

use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use kestrel_types::clock::{Nanos, SECOND};

use crate::store::total_len;

/// Most buffers in one call (`UIO_MAXIOV`).
const BUFFERS_MAX: usize = 1024;

/// Bytes compared at a time.
const COMPARED_BYTES: usize = 1 << 20;

/// Turns -1 into the thread's errno.
fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Calls again while a signal interrupts.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match checked(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

pub fn open_dir(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)
}

fn open_with(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let mode: libc::c_uint = 0o644;
    // SAFETY: `name` is a C string that outlives the call.
    let fd = retried(|| unsafe {
        libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode)
    } as isize)?;
    // SAFETY: the kernel just returned this descriptor to this call, nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd as libc::c_int) })
}

/// Opens for reading.
pub fn open_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_with(dir, name, libc::O_RDONLY)
}

/// Creates a file that must not exist.
pub fn create_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    open_with(dir, name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
}

/// Opens for reading if the kernel has the path in its caches (`RESOLVE_CACHED`); EAGAIN if not.
pub fn open_at_cached(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
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

/// Makes a directory; fine if it is there.
pub fn mkdir_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string that outlives the call.
    match retried(|| unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) } as isize) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

pub fn unlink_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string that outlives the call.
    retried(|| unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) } as isize).map(drop)
}

/// Creates a file without a name on the file system of a directory.
pub fn create_unnamed_in(dir: BorrowedFd<'_>) -> io::Result<File> {
    open_with(dir, c".", libc::O_RDWR | libc::O_TMPFILE)
}

/// Gives a file that has no name one, which must not be there.
pub fn link_at(file: &File, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = std::ffi::CString::new(link).map_err(io::Error::other)?;
    // SAFETY: both names are C strings that outlive the call.
    retried(|| unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            link.as_ptr(),
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    } as isize)
    .map(drop)
}

/// Whether two files have the same bytes.
pub fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let len = one.metadata()?.len();
    if other.metadata()?.len() != len {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut at = 0;
    while at < len {
        let part =
            usize::try_from(len - at).map_or(COMPARED_BYTES, |rest| rest.min(COMPARED_BYTES));
        one.read_exact_at(&mut left[..part], at)?;
        other.read_exact_at(&mut right[..part], at)?;
        if left[..part] != right[..part] {
            return Ok(false);
        }
        at += part as u64;
    }
    Ok(true)
}

/// Locks a file together with others (`flock`), without waiting.
pub fn lock_shared(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_SH | libc::LOCK_NB)
}

/// Locks a file alone (`flock`); `WouldBlock` if another description has it locked.
pub fn lock_alone(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_EX | libc::LOCK_NB)
}

/// Ends the lock of a file's description.
pub fn unlock(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_UN)
}

fn flock(file: &File, how: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    retried(|| unsafe { libc::flock(file.as_raw_fd(), how) } as isize).map(drop)
}

/// Writes all of `parts` at `offset`, one system call for every 1,024 of them in the usual case.
pub fn write_all_at(file: &File, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
    let mut at = offset;
    for batch in parts.chunks(BUFFERS_MAX) {
        let wanted = total_len(batch);
        let position =
            libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: `IoSlice` has the layout of `iovec`, and the borrowed buffers outlive the call.
        let written = retried(|| unsafe {
            libc::pwritev(
                file.as_raw_fd(),
                batch.as_ptr().cast(),
                batch.len() as libc::c_int,
                position,
            )
        })?;
        if written < wanted {
            write_rest(file, batch, at, written)?;
        }
        at += wanted as u64;
    }
    Ok(())
}

/// Writes what a short write left of `parts`, piece by piece, so that the cause of it comes to
/// light.
fn write_rest(file: &File, parts: &[IoSlice<'_>], offset: u64, written: usize) -> io::Result<()> {
    let mut before = 0;
    for part in parts {
        let skip = written.saturating_sub(before).min(part.len());
        file.write_all_at(&part[skip..], offset + (before + skip) as u64)?;
        before += part.len();
    }
    Ok(())
}

fn read_once(
    file: &File,
    parts: &mut [IoSliceMut<'_>],
    offset: u64,
    flags: libc::c_int,
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

/// Fills `parts` from `offset`; false if the file ends first.
pub fn read_exact_at(file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<bool> {
    let mut at = offset;
    for batch in parts.chunks_mut(BUFFERS_MAX) {
        let wanted = total_len(batch);
        let read = read_once(file, batch, at, 0)?;
        if read < wanted && !read_rest(file, batch, at, read)? {
            return Ok(false);
        }
        at += wanted as u64;
    }
    Ok(true)
}

fn read_rest(
    file: &File,
    parts: &mut [IoSliceMut<'_>],
    offset: u64,
    read: usize,
) -> io::Result<bool> {
    let mut before = 0;
    for part in parts {
        let len = part.len();
        let skip = read.saturating_sub(before).min(len);
        match file.read_exact_at(&mut part[skip..], offset + (before + skip) as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        before += len;
    }
    Ok(true)
}

/// Fills `parts` from the page cache; false if some of it is not there (or the file ends: the
/// blocking read finds out).
pub fn try_read_exact_at(
    file: &File,
    parts: &mut [IoSliceMut<'_>],
    offset: u64,
) -> io::Result<bool> {
    if parts.len() > BUFFERS_MAX {
        return Ok(false);
    }
    match read_once(file, parts, offset, libc::RWF_NOWAIT) {
        Ok(read) => Ok(read == total_len(parts)),
        // EOPNOTSUPP: a file system without nowait reads.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Has the kernel read a part of the file into its cache.
pub fn will_need(file: &File, offset: u64, len: u64) {
    // SAFETY: takes no pointers. A hint: failure costs speed only.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_WILLNEED)
    };
}

/// Starts writing a file's dirty pages without waiting for them.
pub fn start_writeback(file: &File) {
    // SAFETY: takes no pointers. A hint: the fdatasync that follows does the work and reports
    // errors.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Syncs the whole file system that holds `file`.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: takes no pointers.
    retried(|| unsafe { libc::syncfs(file.as_raw_fd()) } as isize).map(drop)
}

/// Size of the file system and what an ordinary user can still write, bytes.
pub fn room(file: &File) -> io::Result<(u64, u64)> {
    // SAFETY: the structure is plain integers, for which all zeros is a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` outlives the call.
    retried(|| unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) } as isize)?;
    Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

/// Time of the last write.
pub fn modified(found: &Metadata) -> Nanos {
    found.mtime().saturating_mul(SECOND).saturating_add(found.mtime_nsec())
}
