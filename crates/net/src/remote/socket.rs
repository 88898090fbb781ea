//! A connected socket: blocking reads, writes that do not block, and waiting for either.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Which way a socket is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready {
    pub read: bool,
    pub write: bool,
}

/// Writes what there is room for; `WouldBlock` if there is none. The socket itself stays in blocking mode, for the reader.
pub(crate) fn write_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length are those of a slice that lives until the call returns; the kernel only reads it.
        let written = unsafe {
            libc::send(
                stream.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if let Ok(written) = usize::try_from(written) {
            return Ok(written);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reads what there is, waiting for something. Zero: the other side has closed.
pub(crate) fn read_some(mut stream: &TcpStream, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(space) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Waits until the socket can be read (if `read` is set) or written, or something is wrong with it (then it is ready both ways).
/// None within `limit`: not ready.
pub(crate) fn wait(stream: &TcpStream, read: bool, limit: Duration) -> io::Result<Ready> {
    let events = libc::POLLOUT | if read { libc::POLLIN } else { 0 };
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
    let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one valid pollfd that lives until the call returns.
    let count = unsafe { libc::poll(&raw mut poll, 1, limit_ms) };
    if count < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let broken = poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
    Ok(Ready {
        read: broken || poll.revents & libc::POLLIN != 0,
        write: broken || poll.revents & libc::POLLOUT != 0,
    })
}

/// Closes both ways; whoever reads or waits to write wakes up.
pub(crate) fn cut(stream: &TcpStream) {
    // It may be closed already; that is as good.
    let _ = stream.shutdown(Shutdown::Both);
}
