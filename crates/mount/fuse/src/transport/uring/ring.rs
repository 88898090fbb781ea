//! An io_uring, straight from the system calls, as far as FUSE needs one.
//!
//! An io_uring is two rings in memory that is shared with the kernel: commands go into the
//! submission ring, results come out of the completion ring, and one system call, `io_uring_enter`,
//! hands over commands and waits for results. (See io_uring(7), io_uring_setup(2),
//! io_uring_enter(2); numbers and structures are those of `include/uapi/linux/io_uring.h`.)
//! Commands here have 128 bytes, because FUSE's arguments do not fit into 64.
//!
//! **Which thread.** The kernel finishes a command in the thread that submitted it: when it sleeps
//! in the kernel where it can be interrupted, or on its next way out of it. Commands of a thread
//! that ends are cancelled. So a thread that submits has to stay until the end. Unlike most users
//! of io_uring this crate does without IORING_SETUP_DEFER_TASKRUN, which would leave them
//! unfinished for as long as that thread does not call for them: see [the transport](super).
//!
//! Only one thread at a time uses a [`Ring`]; [`Waker`] is for all.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `user_data` of the completion that [`Waker::wake`] makes.
pub(super) const WAKE: u64 = u64::MAX;

/// Commands that can be submitted at once; more are submitted in several calls.
const SUBMISSIONS: u32 = 64;

const OP_MSG_RING: u8 = 40;
const OP_URING_CMD: u8 = 46;
const SETUP_CQSIZE: u32 = 1 << 3;
/// A command that fails does not keep those after it from being submitted.
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
/// A thread that runs in user space is not interrupted for its commands.
const SETUP_COOP_TASKRUN: u32 = 1 << 8;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const FEAT_SINGLE_MMAP: u32 = 1 << 0;
const ENTER_GETEVENTS: u32 = 1 << 0;
const OFF_SQ_RING: libc::off_t = 0;
const OFF_SQES: libc::off_t = 0x1000_0000;
const REGISTER_SEND_MSG_RING: u32 = 31;

#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

#[repr(C)]
#[derive(Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

const _: () = assert!(size_of::<Params>() == 120);

/// A command, the fields that are used here by name.
#[repr(C)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    /// For FUSE the command's number, for messages the `user_data` that arrives.
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    unused: u64,
}

const _: () = assert!(size_of::<Sqe>() == 48);

/// A command with the room of 128 bytes that the submission ring has for each.
#[repr(C)]
struct Sqe128 {
    sqe: Sqe,
    cmd: [u8; CMD_BYTES],
}

const _: () = assert!(size_of::<Sqe128>() == 128);

/// Bytes of a command's own arguments.
const CMD_BYTES: usize = 80;

/// A result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// What the command, or the waker, gave.
    pub(super) user_data: u64,
    /// Zero or more on success, else a negated error number.
    pub(super) result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Completion>() == 16);

/// A command for the ring's file.
pub(super) struct Command<'a> {
    /// Which command of the driver.
    pub(super) op: u32,
    /// Comes back with the result.
    pub(super) user_data: u64,
    /// Address and number of what belongs to it.
    pub(super) memory: (u64, u32),
    /// Its arguments, at most 80 bytes.
    pub(super) args: &'a [u8],
}

/// An io_uring for commands to one file.
pub(super) struct Ring {
    fd: Arc<OwnedFd>,
    /// Not registered with the ring: that would keep it open until all threads have noticed the
    /// ring's end, and the end of a connection is that its files are closed.
    file: OwnedFd,
    shared: Mapping,
    commands: Mapping,
    sq: SqOffsets,
    cq: CqOffsets,
    sq_entries: u32,
    cq_entries: u32,
}

/// Wakes the thread that waits for results of a ring, from any thread.
#[derive(Clone)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Ring {
    /// A ring for commands to `file` that has room for `results` unread results.
    pub(super) fn new(file: OwnedFd, results: u32) -> io::Result<Ring> {
        let mut params = Params {
            cq_entries: results.next_power_of_two().max(2 * SUBMISSIONS),
            flags: SETUP_CQSIZE
                | SETUP_SUBMIT_ALL
                | SETUP_COOP_TASKRUN
                | SETUP_SQE128
                | SETUP_NO_SQARRAY,
            ..Params::default()
        };
        // SAFETY: the kernel reads and writes one live `Params`.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, SUBMISSIONS, &raw mut params) };
        let fd =
            RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a fresh descriptor that nothing else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(io::Error::other("both rings in one mapping are needed (Linux 5.4)"));
        }
        let shared_bytes =
            params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Completion>();
        let shared = Mapping::of(&fd, OFF_SQ_RING, shared_bytes)?;
        let commands =
            Mapping::of(&fd, OFF_SQES, params.sq_entries as usize * size_of::<Sqe128>())?;
        let Params { sq_entries, cq_entries, sq_off: sq, cq_off: cq, .. } = params;
        Ok(Ring { fd: Arc::new(fd), file, shared, commands, sq, cq, sq_entries, cq_entries })
    }

    pub(super) fn waker(&self) -> Waker {
        Waker(self.fd.clone())
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of an aligned word within the mapping, which lives as
        // long as `self`.
        unsafe { &*self.shared.0.as_ptr().add(offset as usize).cast::<AtomicU32>() }
    }

    /// Commands that were queued and not yet submitted.
    fn queued(&self) -> u32 {
        let tail = self.word(self.sq.tail).load(Ordering::Relaxed);
        tail.wrapping_sub(self.word(self.sq.head).load(Ordering::Acquire))
    }

    /// Queues a command; submits those before it when there is no room.
    ///
    /// # Safety
    /// What the command refers to must stay as long as the driver needs it.
    pub(super) unsafe fn push(&mut self, command: &Command<'_>) -> io::Result<()> {
        while self.queued() == self.sq_entries {
            self.submit()?;
        }
        let tail = self.word(self.sq.tail);
        let at = tail.load(Ordering::Relaxed);
        let mut cmd = [0; CMD_BYTES];
        cmd[..command.args.len()].copy_from_slice(command.args);
        let (addr, len) = command.memory;
        let sqe = Sqe {
            opcode: OP_URING_CMD,
            flags: 0,
            ioprio: 0,
            fd: self.file.as_raw_fd(),
            off: u64::from(command.op),
            addr,
            len,
            op_flags: 0,
            user_data: command.user_data,
            unused: 0,
        };
        let index = (at & (self.sq_entries - 1)) as usize;
        // SAFETY: the index is within the mapping of `sq_entries` commands, a power of two. The
        // kernel does not look at that index before the tail is beyond it, and has read what was
        // there: the ring is not full.
        unsafe { self.commands.0.as_ptr().cast::<Sqe128>().add(index).write(Sqe128 { sqe, cmd }) };
        tail.store(at.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Submits what is queued. A system call unless there is nothing.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        while self.queued() > 0 {
            self.enter(0, 0)?;
        }
        Ok(())
    }

    /// Submits what is queued, and waits until there is a result (or a signal).
    pub(super) fn submit_and_wait(&mut self) -> io::Result<()> {
        self.enter(1, ENTER_GETEVENTS)
    }

    fn enter(&self, wanted: u32, flags: u32) -> io::Result<()> {
        let (fd, queued) = (self.fd.as_raw_fd(), self.queued());
        // SAFETY: no pointers are passed; what the queued commands refer to is their callers'
        // promise.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
                queued,
                wanted,
                flags,
                std::ptr::null::<libc::c_void>(),
                0usize,
            )
        };
        if rc >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // EAGAIN, EBUSY: short of memory or of room for results; the call is repeated.
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        }
    }

    /// The next result, if there is one.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Completion> {
        let completion = self.peek(0)?;
        let head = self.word(self.cq.head);
        head.store(head.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    /// The result that comes after `ahead` others, left where it is.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> Option<Completion> {
        let at = self.word(self.cq.head).load(Ordering::Relaxed).wrapping_add(ahead);
        if at == self.word(self.cq.tail).load(Ordering::Acquire) {
            return None;
        }
        let index = (at & (self.cq_entries - 1)) as usize;
        // SAFETY: the index is within the mapping, and the kernel has written the place: the tail
        // is beyond it.
        Some(unsafe {
            let first = self.shared.0.as_ptr().add(self.cq.cqes as usize).cast::<Completion>();
            first.add(index).read()
        })
    }
}

impl Waker {
    /// Makes a result with [`WAKE`], for which the waiting thread wakes up. Needs Linux 6.13, which
    /// is older than FUSE over io_uring.
    pub(super) fn wake(&self) -> io::Result<()> {
        let sqe = Sqe {
            opcode: OP_MSG_RING,
            flags: 0,
            ioprio: 0,
            fd: self.0.as_raw_fd(),
            off: WAKE,
            addr: 0,
            len: 0,
            op_flags: 0,
            user_data: 0,
            unused: 0,
        };
        let message = Message { sqe, rest: [0; 2] };
        // SAFETY: the kernel reads one live command of 64 bytes.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                -1,
                REGISTER_SEND_MSG_RING,
                &raw const message,
                1u32,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A command of 64 bytes.
#[repr(C)]
struct Message {
    sqe: Sqe,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Message>() == 64);

/// A part of the ring's memory, mapped.
struct Mapping(NonNull<u8>, usize);

// SAFETY: plain memory; `Ring` decides which thread may touch it when.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(fd: &OwnedFd, offset: libc::off_t, bytes: usize) -> io::Result<Mapping> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), offset)
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(start) if at != libc::MAP_FAILED => Ok(Mapping(start, bytes)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring, or nothing where io_uring is not to be had.
    fn ring() -> Option<Ring> {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        match Ring::new(file.into(), 100) {
            Ok(ring) => Some(ring),
            Err(error) => {
                eprintln!("skipped: no io_uring: {error}");
                None
            }
        }
    }

    #[test]
    fn wakes_and_refusals_come_back() {
        let Some(mut ring) = ring() else { return };
        assert!(ring.next().is_none());
        let waker = ring.waker();
        let other = std::thread::spawn(move || waker.wake());
        ring.submit_and_wait().unwrap();
        assert_eq!(ring.next().map(|completion| completion.user_data), Some(WAKE));
        other.join().unwrap().unwrap();
        // A plain file takes no commands; more of them than fit at once.
        let count = u64::from(SUBMISSIONS) + 30;
        for user_data in 0..count {
            // SAFETY: the command refers to nothing.
            unsafe {
                ring.push(&Command { op: 1234, user_data, memory: (0, 0), args: &[0; CMD_BYTES] })
                    .unwrap()
            };
        }
        ring.submit().unwrap();
        let results: Vec<Completion> = std::iter::from_fn(|| ring.next()).collect();
        assert_eq!(results.len() as u64, count);
        assert!(
            results.iter().zip(0..).all(|(result, n)| result.user_data == n && result.result < 0)
        );
    }
}
