//! Messages with descriptors between a supervisor and the process that serves its mount.
//!
//! A socket of whole messages (`SOCK_SEQPACKET`): one byte that says what it is, some bytes of
//! text, some descriptors. Nothing is allocated for a message but what it brings.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors in one message; the kernel takes 253.
pub const FDS_MAX: usize = 200;

/// Longest text of a message, bytes: a path fits.
pub const TEXT_MAX: usize = 4096;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// What it is.
    pub kind: u8,
    /// Text.
    pub text: Vec<u8>,
    /// Descriptors, which are the receiver's.
    pub fds: Vec<OwnedFd>,
}

/// Room for one control message with [`FDS_MAX`] descriptors, aligned as `cmsghdr` wants it.
#[repr(C)]
union Control {
    _align: libc::cmsghdr,
    bytes: [u8; 64 + FDS_MAX * size_of::<RawFd>()],
}

/// A pair of connected sockets.
///
/// # Errors
/// The system's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is valid for writes of two descriptors.
    let rc = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both have just been opened, and nothing else knows them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Sends a message; of the text what is too long is cut, and of descriptors there are at most
/// [`FDS_MAX`].
///
/// # Errors
/// The system's; `EPIPE` when the other side is gone.
pub fn send(socket: &OwnedFd, kind: u8, text: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let fds = &fds[..fds.len().min(FDS_MAX)];
    let mut bytes = Vec::with_capacity(1 + text.len().min(TEXT_MAX));
    bytes.push(kind);
    bytes.extend_from_slice(&text[..text.len().min(TEXT_MAX)]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control { bytes: [0; 64 + FDS_MAX * size_of::<RawFd>()] };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if !fds.is_empty() {
        let len = size_of_val(fds) as u32;
        message.msg_control = (&raw mut control).cast();
        // SAFETY: the lengths are those of FDS_MAX descriptors at most, for which `control` has
        // room; CMSG_FIRSTHDR is not null for that reason.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(len) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len) as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                len as usize,
            );
        }
    }
    loop {
        // SAFETY: every pointer in `message` is to a live local of the stated size.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives a message, waiting for one; none when the other side is gone.
///
/// # Errors
/// The system's.
pub fn receive(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; 1 + TEXT_MAX];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control { bytes: [0; 64 + FDS_MAX * size_of::<RawFd>()] };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let len = loop {
        // SAFETY: every pointer in `message` is to a live local of the stated size.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(got) {
            Ok(len) => break len,
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(error),
                }
            }
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in `message`; the header and its data are within `control`, and the
    // descriptors of an SCM_RIGHTS message are ours from here on.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let data = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            for at in 0..data / size_of::<RawFd>() {
                let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(at).read_unaligned();
                fds.push(OwnedFd::from_raw_fd(fd));
            }
        }
    }
    if len == 0 {
        return Ok(None);
    }
    bytes.truncate(len);
    let kind = bytes.remove(0);
    Ok(Some(Message { kind, text: bytes, fds }))
}

/// Whether the other side is gone.
pub fn is_gone(socket: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live pollfd.
    let rc = unsafe { libc::poll(&raw mut poll, 1, 0) };
    rc < 0 || poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    /// Messages arrive whole, with descriptors of the very same files.
    #[test]
    fn messages_with_descriptors() {
        let (here, there) = pair().expect("a pair");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"same").expect("written");
        let fds = [file.as_raw_fd(), file.as_raw_fd()];
        send(&here, b'D', b"text", &fds).expect("sent");
        send(&here, b'R', b"", &[]).expect("sent");
        let first = receive(&there).expect("received").expect("a message");
        assert_eq!((first.kind, &*first.text, first.fds.len()), (b'D', &b"text"[..], 2));
        let mut same = std::fs::File::from(first.fds.into_iter().next().expect("one"));
        same.seek(SeekFrom::Start(0)).expect("sought");
        let mut text = String::new();
        same.read_to_string(&mut text).expect("read");
        assert_eq!((&*text, file.stream_position().expect("where")), ("same", 4));
        let second = receive(&there).expect("received").expect("a message");
        assert_eq!((second.kind, second.text.len(), second.fds.len()), (b'R', 0, 0));
        assert!(!is_gone(&there));
        drop(here);
        assert!(is_gone(&there) && receive(&there).expect("the end").is_none());
        assert!(send(&there, b'R', b"", &[]).is_err());
    }
}
