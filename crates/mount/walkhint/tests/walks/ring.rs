//! One openat through io_uring, by a worker thread.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct io_uring_params`: 40 bytes, then the offsets of both rings.
#[repr(C)]
#[derive(Default)]
struct Params {
    entries: [u32; 10],
    submission: Offsets,
    completion: Offsets,
}

/// head, tail, ring_mask, ring_entries, (flags, dropped, array | overflow, cqes, flags), reserved.
#[repr(C)]
#[derive(Default)]
struct Offsets([u32; 10]);

/// `struct io_uring_sqe`, as openat uses it.
#[repr(C)]
#[derive(Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    offset: u64,
    address: u64,
    mode: u32,
    open_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

const OPENAT: u8 = 18;
/// Do not even try in the submitting thread.
const ASYNC: u8 = 1 << 4;
const GETEVENTS: u32 = 1;
const OFF_SQ_RING: i64 = 0;
const OFF_SQES: i64 = 0x1000_0000;

/// Opens and closes `path`; the result of the open.
pub fn open(path: &Path, flags: i32) -> io::Result<i32> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut params = Params::default();
    // SAFETY: `params` is what the call takes.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor.
    let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let map = |offset| {
        // SAFETY: a new mapping; the kernel refuses what is not there.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_SHARED,
                ring.as_raw_fd(),
                offset,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        base.cast::<u8>()
    };
    let (rings, submissions) = (map(OFF_SQ_RING), map(OFF_SQES).cast::<Submission>());
    // SAFETY: offsets of the kernel's, of words in the mapping. (Both rings share it since Linux
    // 5.4.)
    let word = |offset: u32| unsafe { &*rings.add(offset as usize).cast::<AtomicU32>() };
    let submission = Submission {
        opcode: OPENAT,
        flags: ASYNC,
        fd: libc::AT_FDCWD,
        address: path.as_ptr() as u64,
        open_flags: flags as u32,
        ..Submission::default()
    };
    // SAFETY: the first entry of the array.
    unsafe { submissions.write(submission) };
    word(params.submission.0[6]).store(0, Ordering::Relaxed);
    word(params.submission.0[1]).store(1, Ordering::Release);
    // SAFETY: no memory but the rings' is involved.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            ring.as_raw_fd(),
            1,
            1,
            GETEVENTS,
            std::ptr::null::<u8>(),
            0,
        )
    };
    assert_eq!(done, 1, "{}", io::Error::last_os_error());
    assert_eq!(word(params.completion.0[1]).load(Ordering::Acquire), 1);
    // `struct io_uring_cqe`: user_data (8 bytes), result.
    let result = word(params.completion.0[5] + 8).load(Ordering::Relaxed) as i32;
    if result >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(result) };
    }
    // SAFETY: mapped above, not used any more.
    unsafe {
        libc::munmap(rings.cast(), 4096);
        libc::munmap(submissions.cast(), 4096);
    }
    Ok(result)
}
