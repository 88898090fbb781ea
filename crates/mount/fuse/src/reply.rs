//! Replies: the right and the duty to answer one request.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use crate::abi::{self, Opcode, OutHeader, Wire};
use crate::attr::{Attr, Entry, Opened, Statfs, Statx};
use crate::dirents::Dirents;
use crate::request::Lock;
use crate::transport::ReplyChannel;

/// Answers one request, exactly once, from any thread and at any time.
///
/// Every method that answers consumes the token. A token that is dropped unanswered answers EIO, so
/// that no caller hangs on a forgotten request or a panic. For operations without an answer
/// (forget, interrupt) the token is empty and dropping it is all there is to do.
///
/// Success of the wrong kind (an `attr` for a WRITE) is a bug of the file system: debug builds
/// panic, others let the kernel see it, which turns it into EIO.
///
/// An answer that comes after its caller has gone (killed, or the connection aborted) is quietly
/// discarded.
#[must_use = "a dropped reply answers EIO"]
pub struct Reply {
    /// `None` once answered, and for operations without an answer.
    channel: Option<Arc<dyn ReplyChannel>>,
    unique: u64,
    slot: u64,
    opcode: Opcode,
    /// See [`Reply::set_aside`].
    aside: bool,
}

/// A header and one structure: one piece of memory, so one page to pin in the kernel rather than
/// two.
#[repr(C)]
struct Message<T: Wire> {
    header: OutHeader,
    body: T,
}

/// What the kernel accepts in an error reply.
const ERRNO_MAX: i32 = 511;

/// Data replies of at most this many pieces need no allocation.
const PIECES_INLINE: usize = 16;

/// Pieces that one vectored write takes (UIO_MAXIOV), one being the header.
const PIECES_MAX: usize = 1023;

impl Reply {
    /// For transports: the token of the request `unique`. `slot` is handed back to the channel.
    #[inline]
    pub fn new(channel: Arc<dyn ReplyChannel>, unique: u64, slot: u64, opcode: Opcode) -> Reply {
        // An interrupt could be answered, but only EAGAIN ("send it again") and ENOSYS mean
        // anything.
        let mute = matches!(opcode, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt);
        Reply { channel: (!mute).then_some(channel), unique, slot, opcode, aside: false }
    }

    /// The request may wait for long, and can be asked again without harm: a session that is handed
    /// over need not wait for this answer ([`Intake`](crate::Intake)).
    pub fn set_aside(&mut self) {
        if let (Some(channel), false) = (&self.channel, self.aside) {
            channel.set_aside(true);
            self.aside = true;
        }
    }

    /// The request's number, to which an interrupt would refer.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The operation that is to be answered.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The call failed with `errno` (positive, `libc::E*`). Anything that is no error number
    /// becomes EIO.
    ///
    /// ENOSYS means "never send this again": the kernel then stops sending this operation for the
    /// life of the mount (and does without it: fsync and flush succeed, access is granted, extended
    /// attributes are not supported). To refuse once, use EOPNOTSUPP.
    pub fn error(mut self, errno: i32) {
        self.send_error(errno);
    }

    /// Success without a value.
    pub fn empty(mut self) {
        let header = self.header(0);
        self.transmit(&[IoSlice::new(header.bytes())]);
    }

    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK: the entry. Counts as a lookup of its node.
    pub fn entry(mut self, entry: &Entry) {
        self.expect(matches!(
            self.opcode,
            Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link
        ));
        self.send_struct(entry.to_wire());
    }

    /// LOOKUP: there is no such entry, and the kernel may remember that for `ttl`. With a `ttl` of
    /// zero this is ENOENT.
    pub fn negative(self, ttl: Duration) {
        if ttl.is_zero() {
            self.error(libc::ENOENT);
        } else {
            self.entry(&Entry { entry_ttl: ttl, ..Entry::default() });
        }
    }

    /// GETATTR, SETATTR: the attributes, which the kernel may keep for `ttl`.
    pub fn attr(mut self, attr: &Attr, ttl: Duration) {
        self.expect(matches!(self.opcode, Opcode::Getattr | Opcode::Setattr));
        self.send_struct(abi::AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: attr.to_wire(),
        });
    }

    /// OPEN, OPENDIR.
    pub fn opened(mut self, opened: Opened) {
        self.expect(matches!(self.opcode, Opcode::Open | Opcode::Opendir));
        self.send_struct(opened.to_wire());
    }

    /// CREATE, TMPFILE. Counts as a lookup.
    pub fn created(mut self, entry: &Entry, opened: Opened) {
        self.expect(matches!(self.opcode, Opcode::Create | Opcode::Tmpfile));
        self.send_struct(abi::CreateOut { entry: entry.to_wire(), open: opened.to_wire() });
    }

    /// READ, READLINK, GETXATTR and LISTXATTR with a size: the bytes, not copied. No more than were
    /// requested.
    pub fn data(mut self, data: &[u8]) {
        self.expect_data();
        let header = self.header(data.len());
        self.transmit(&[IoSlice::new(header.bytes()), IoSlice::new(data)]);
    }

    /// As [`data`](Reply::data), from pieces that lie apart.
    pub fn data_vectored(mut self, pieces: &[&[u8]]) {
        self.expect_data();
        if pieces.len() > PIECES_MAX {
            return self.data(&pieces.concat());
        }
        let header = self.header(pieces.iter().map(|piece| piece.len()).sum());
        let mut inline = [IoSlice::new(&[]); PIECES_INLINE + 1];
        let mut heap;
        let parts = if pieces.len() <= PIECES_INLINE {
            &mut inline[..=pieces.len()]
        } else {
            heap = vec![IoSlice::new(&[]); pieces.len() + 1];
            &mut heap[..]
        };
        parts[0] = IoSlice::new(header.bytes());
        for (part, piece) in parts[1..].iter_mut().zip(pieces) {
            *part = IoSlice::new(piece);
        }
        self.transmit(parts);
    }

    /// READDIR, READDIRPLUS: what the buffer holds; an empty one is the end of the directory.
    pub fn dirents(mut self, dirents: Dirents) {
        self.expect(match self.opcode {
            Opcode::Readdir => !dirents.is_plus(),
            Opcode::Readdirplus => dirents.is_plus(),
            _ => false,
        });
        let mut message = dirents.into_message();
        let header = self.header(message.len() - size_of::<OutHeader>());
        message[..size_of::<OutHeader>()].copy_from_slice(header.bytes());
        self.transmit(&[IoSlice::new(&message)]);
    }

    /// WRITE: so many bytes were taken.
    pub fn written(mut self, bytes: u32) {
        self.expect(self.opcode == Opcode::Write);
        self.send_struct(abi::WriteOut { size: bytes, padding: 0 });
    }

    /// COPY_FILE_RANGE: so many bytes were copied.
    pub fn copied(mut self, bytes: u64) {
        match self.opcode {
            Opcode::CopyFileRange64 => {
                self.send_struct(abi::CopyFileRangeOut { bytes_copied: bytes })
            }
            _ => {
                self.expect(self.opcode == Opcode::CopyFileRange);
                // The old form has 32 bits; copying less than requested is allowed, so the reply
                // has what fits.
                debug_assert!(
                    bytes <= u64::from(u32::MAX),
                    "the old form asks for less than 4 GiB"
                );
                self.send_struct(abi::WriteOut {
                    size: bytes.min(u64::from(u32::MAX)) as u32,
                    padding: 0,
                });
            }
        }
    }

    /// STATFS.
    pub fn statfs(mut self, statfs: &Statfs) {
        self.expect(self.opcode == Opcode::Statfs);
        self.send_struct(statfs.to_wire());
    }

    /// STATX.
    pub fn statx(mut self, statx: &Statx) {
        self.expect(self.opcode == Opcode::Statx);
        self.send_struct(statx.to_wire());
    }

    /// GETXATTR, LISTXATTR with size 0: the length that the value has.
    pub fn xattr_size(mut self, bytes: u32) {
        self.expect(matches!(self.opcode, Opcode::Getxattr | Opcode::Listxattr));
        self.send_struct(abi::GetxattrOut { size: bytes, padding: 0 });
    }

    /// GETXATTR, LISTXATTR: answers a caller that offered `size` bytes of room with the length
    /// (`size` 0), the value, or ERANGE.
    pub fn xattr(self, size: u32, value: &[u8]) {
        match size {
            0 => self.xattr_size(value.len() as u32),
            room if value.len() > room as usize => self.error(libc::ERANGE),
            _ => self.data(value),
        }
    }

    /// LSEEK: the offset found.
    pub fn lseek(mut self, offset: u64) {
        self.expect(self.opcode == Opcode::Lseek);
        self.send_struct(abi::LseekOut { offset });
    }

    /// GETLK: the conflicting lock, or one of kind `F_UNLCK`.
    pub fn lock(mut self, lock: &Lock) {
        self.expect(self.opcode == Opcode::Getlk);
        let lk = abi::FileLock { start: lock.start, end: lock.end, kind: lock.kind, pid: lock.pid };
        self.send_struct(abi::LkOut { lk });
    }

    /// IOCTL: the call's result and the data it passes out.
    pub fn ioctl(mut self, result: i32, data: &[u8]) {
        self.expect(self.opcode == Opcode::Ioctl);
        let out = abi::IoctlOut { result, ..Default::default() };
        let header = self.header(size_of_val(&out) + data.len());
        self.transmit(&[
            IoSlice::new(header.bytes()),
            IoSlice::new(out.bytes()),
            IoSlice::new(data),
        ]);
    }

    /// POLL: the events that are there.
    pub fn poll(mut self, revents: u32) {
        self.expect(self.opcode == Opcode::Poll);
        self.send_struct(abi::PollOut { revents, padding: 0 });
    }

    #[inline]
    fn expect(&self, fits: bool) {
        debug_assert!(fits, "this kind of reply does not answer {}", self.opcode.name());
    }

    fn expect_data(&self) {
        self.expect(matches!(
            self.opcode,
            Opcode::Read | Opcode::Readlink | Opcode::Getxattr | Opcode::Listxattr
        ));
    }

    fn send_error(&mut self, errno: i32) {
        let errno = if (1..=ERRNO_MAX).contains(&errno) { errno } else { libc::EIO };
        let header =
            OutHeader { len: size_of::<OutHeader>() as u32, error: -errno, unique: self.unique };
        self.transmit(&[IoSlice::new(header.bytes())]);
    }

    #[inline]
    fn send_struct<T: Wire>(&mut self, body: T) {
        let message = Message { header: self.header(size_of::<T>()), body };
        const { assert!(size_of::<Message<T>>() == size_of::<OutHeader>() + size_of::<T>()) };
        // SAFETY: both parts are Wire and, as just asserted, there is no padding between them.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const message).cast::<u8>(), size_of::<Message<T>>())
        };
        self.transmit(&[IoSlice::new(bytes)]);
    }

    #[inline]
    fn header(&self, body_bytes: usize) -> OutHeader {
        OutHeader {
            len: (size_of::<OutHeader>() + body_bytes) as u32,
            error: 0,
            unique: self.unique,
        }
    }

    #[inline]
    fn transmit(&mut self, parts: &[IoSlice<'_>]) {
        if let Some(channel) = self.channel.take() {
            if self.aside {
                channel.set_aside(false);
            }
            channel.send(self.slot, parts);
        }
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        if self.channel.is_some() {
            self.send_error(libc::EIO);
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({} #{})", self.opcode.name(), self.unique)
    }
}

#[cfg(test)]
mod tests;
