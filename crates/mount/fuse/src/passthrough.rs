//! Pass-through: the kernel reads, and maps, a file of this file system from a file of another one,
//! without a request.
//!
//! A file system registers an open file of its own with [`Backings::open`] and names the
//! [`Backing`] in its answer to an OPEN ([`Opened::backing_id`](crate::Opened::backing_id) with
//! [`OpenFlags::PASSTHROUGH`](crate::OpenFlags::PASSTHROUGH)). From then on reads, splices and maps
//! of that open file go to the backing file, at its speed; everything else (attributes, locks,
//! fallocate, flush, fsync) comes here as ever.
//!
//! # Rules of the kernel
//!
//! - It must offer it (Linux 6.9), INIT must have agreed on it
//!   ([`Features::passthrough`](crate::Features::passthrough)), and the process that registers
//!   needs CAP_SYS_ADMIN.
//! - The backing file must not lie on a file system that is itself stacked (overlay, another mount
//!   like this one).
//! - While an inode is open in pass-through, **every** open of it must name the same backing; while
//!   it is open in the ordinary way, none may. An open that breaks this fails with EIO. So the mode
//!   belongs to the inode for as long as it is open.
//! - With [`OpenFlags::DIRECT_IO`](crate::OpenFlags::DIRECT_IO) beside it, reads and writes through
//!   that open file are requests after all, and only maps go to the backing file: this is how a
//!   writer fits in.
//! - Of the other flags only PARALLEL_DIRECT_WRITES and NOFLUSH may stand beside it; KEEP_CACHE
//!   fails.
//! - A map refers to the backing file alone: closing the descriptor releases the open file here
//!   although the map lives on.
//! - The kernel opens the backing file anew for each open, with the flags of that open and the
//!   credentials of the process that registered it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::abi::{self, Wire};
use crate::transport::device::Channel;

/// Registers backing files at a connection. Clones are cheap.
#[derive(Clone)]
pub struct Backings {
    channel: Arc<Channel>,
}

impl Backings {
    pub(crate) fn new(channel: Arc<Channel>) -> Backings {
        Backings { channel }
    }

    /// Registers a file. The kernel keeps it open for as long as the [`Backing`] lives or anything
    /// opened with it.
    ///
    /// # Errors
    /// `EPERM`: not agreed on at INIT, or no CAP_SYS_ADMIN. `ELOOP`: its file system is stacked.
    /// `EOPNOTSUPP`: the file system cannot.
    pub fn open(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        let map = abi::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads one `BackingMap`.
        let id = unsafe {
            libc::ioctl(
                self.channel.as_raw_fd(),
                abi::DEV_IOC_BACKING_OPEN as _,
                map.bytes().as_ptr(),
            )
        };
        if id <= 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Backing { id, backings: self.clone() })
    }
}

/// A registered file; dropping it takes it back. Files opened with it go on working.
pub struct Backing {
    id: i32,
    backings: Backings,
}

impl Backing {
    /// Its number, for [`Opened::backing_id`](crate::Opened::backing_id).
    pub fn id(&self) -> i32 {
        self.id
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the request reads one u32, with the bits of the number. It fails when the
        // connection has ended, and with it what was registered.
        unsafe {
            libc::ioctl(
                self.backings.channel.as_raw_fd(),
                abi::DEV_IOC_BACKING_CLOSE as _,
                (&raw const self.id).cast::<u32>(),
            );
        }
    }
}
