//! Mounting without privileges, through `fusermount3`.
//!
//! The helper is given one end of a socket pair in the environment variable `_FUSE_COMMFD`. It
//! opens `/dev/fuse`, mounts, and sends the descriptor back.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{How, MountOptions};
use crate::error::{Error, Result};

/// Names of the helper, in order of preference.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Number of the descriptor in the helper.
const COMM_FD: RawFd = 3;

/// Mounts; the second descriptor must stay open if the helper is to watch over the mount.
pub(super) fn mount(dir: &Path, options: &MountOptions) -> Result<(OwnedFd, Option<OwnedFd>)> {
    let what = || format!("cannot mount on {}", dir.display());
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::new(what(), e))?;
    let options_text = options.helper_options();
    let mut child = spawn(|program| {
        let mut command = Command::new(program);
        command
            .arg("-o")
            .arg(&options_text)
            .arg("--")
            .arg(dir)
            .env("_FUSE_COMMFD", COMM_FD.to_string());
        let theirs = theirs.as_raw_fd();
        // SAFETY: only system calls that are safe between fork and exec. dup2 also clears
        // close-on-exec, unless the two numbers are the same.
        unsafe {
            command.pre_exec(move || {
                let rc = if theirs == COMM_FD {
                    libc::fcntl(theirs, libc::F_SETFD, 0)
                } else {
                    libc::dup2(theirs, COMM_FD)
                };
                if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        command
    })
    .map_err(|e| Error::new(what(), e))?;
    // Once the helper is the only holder of its end, its death ends the wait below.
    drop(theirs);
    match receive_fd(&ours) {
        Ok(device) if options.auto_unmount => {
            // It lives as long as the socket, and has to be waited for.
            std::thread::spawn(move || child.wait());
            Ok((device, Some(ours.into())))
        }
        Ok(device) => {
            let _ = child.wait();
            Ok((device, None))
        }
        Err(error) => Err(Error::plain(what(), complaint(child, &error.to_string()))),
    }
}

/// Unmounts on behalf of a user that may not.
pub(super) fn unmount(dir: &Path, how: How) -> Result<()> {
    let what = || format!("cannot unmount {}", dir.display());
    let mut child = spawn(|program| {
        let mut command = Command::new(program);
        command.arg("-u");
        if how != How::Clean {
            command.arg("-z");
        }
        command.arg("--").arg(dir);
        command
    })
    .map_err(|e| Error::new(what(), e))?;
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let why = complaint(child, &format!("fusermount3 ended with {status}"));
            if why.contains("busy") {
                Err(Error::errno(what(), libc::EBUSY))
            } else {
                Err(Error::plain(what(), why))
            }
        }
        Err(error) => Err(Error::new(what(), error)),
    }
}

/// Starts the first helper that exists.
fn spawn(command: impl Fn(&str) -> Command) -> io::Result<Child> {
    for program in HELPERS {
        match command(program)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "fusermount3 is not installed (Debian: apt install fuse3); root can do without",
    ))
}

/// The helper's text on its standard error, else `otherwise`.
fn complaint(mut child: Child, otherwise: &str) -> String {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.take(4096).read_to_string(&mut text);
    }
    let _ = child.wait();
    let text = text.trim();
    if text.is_empty() { otherwise.to_owned() } else { text.replace('\n', "; ") }
}

/// Receives one descriptor.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    /// Room for one control message with one descriptor, aligned as `cmsghdr` wants it.
    #[repr(C)]
    union Control {
        _align: libc::cmsghdr,
        bytes: [u8; 64],
    }
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = MaybeUninit::<Control>::zeroed();
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let got = loop {
        // SAFETY: every pointer in `message` is to a live local of the stated size.
        let got =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= 0 {
            break got;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    if got == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "fusermount3 ended without an answer",
        ));
    }
    // SAFETY: the kernel filled in `message`; CMSG_FIRSTHDR checks the length, and CMSG_DATA of an
    // SCM_RIGHTS message of sufficient length holds a descriptor that is ours from here on.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || ((*header).cmsg_len as usize) < libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "fusermount3 sent no descriptor",
            ));
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}
