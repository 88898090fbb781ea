//! The size that the kernel takes a file for, where another client has made the file shorter.
//!
//! No notification makes a file shorter for the kernel: it learns of that by the attributes that it
//! asks for, or by a read that ends early, which it does not believe if another read of the file
//! has ended earlier still while it was under way. Then it reads zeros behind the end. So the mount
//! has the kernel ask for the attributes, by a stat(2) of its own, through a file handle, since the
//! file may have any name or none.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kestrel_types::ids::InodeId;

/// Kind of a handle of FUSE without the directory above (`FILEID_INO64_GEN` of the kernel).
const HANDLE_KIND: libc::c_int = 0x81;

/// What [`crate::convert`] tells the kernel for every file.
const GENERATION: u32 = 1;

/// Other changes of the file at that moment can make the kernel ask in vain.
const TRIES: u32 = 3;

/// `struct file_handle`, of FUSE.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    id: [u32; 3],
}

/// Has the kernel ask for the size of a file of the mount at `dir` if it takes it for longer than
/// `size`.
///
/// # Errors
/// `EPERM` where this process may not open by handles, that is, as a rule, if it is not root's.
pub(crate) fn shorten(dir: &Path, ino: InodeId, size: u64) -> io::Result<()> {
    let file = by_number(dir, ino)?;
    for _ in 0..TRIES {
        if size_of(&file, libc::AT_STATX_DONT_SYNC)? <= size {
            break;
        }
        size_of(&file, libc::AT_STATX_FORCE_SYNC)?;
    }
    Ok(())
}

/// A descriptor of the file that can be asked about and nothing else.
fn by_number(dir: &Path, ino: InodeId) -> io::Result<File> {
    // A descriptor that is only a path does not do. It is closed soon: it keeps the mount busy.
    let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(dir)?;
    if !is_fuse(&dir)? {
        return Err(io::Error::other("something else is mounted there"));
    }
    let id = [(ino >> 32) as u32, ino as u32, GENERATION];
    let handle = Handle { bytes: size_of_val(&id) as libc::c_uint, kind: HANDLE_KIND, id };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the handle is as long as it says, and only read.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, dir.as_raw_fd(), &raw const handle, flags)
    };
    match fd {
        ..0 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new and nobody else's.
        fd => Ok(unsafe { File::from_raw_fd(fd as libc::c_int) }),
    }
}

fn is_fuse(file: &File) -> io::Result<bool> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and the result has room.
    match unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } {
        // SAFETY: the kernel has filled it in.
        0 => Ok(unsafe { stat.assume_init() }.f_type == libc::FUSE_SUPER_MAGIC),
        _ => Err(io::Error::last_os_error()),
    }
}

fn size_of(file: &File, sync: libc::c_int) -> io::Result<u64> {
    const ITSELF: &CStr = c"";
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | sync;
    // SAFETY: the descriptor is open, the name ends with a NUL, and the result has room.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), ITSELF.as_ptr(), flags, libc::STATX_SIZE, stat.as_mut_ptr())
    };
    match failed {
        // SAFETY: the kernel has filled it in.
        0 => Ok(unsafe { stat.assume_init() }.stx_size),
        _ => Err(io::Error::last_os_error()),
    }
}
