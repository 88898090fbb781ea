//! Notifications: telling the kernel to forget what it has cached.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::abi::{self, OutHeader, Wire};
use crate::passthrough::Backings;
use crate::transport::device::Channel;

/// Nodes in one message of [`Notifier::prune`].
const PRUNE_MAX: usize = 512;

/// Sends notifications, from any thread; clones are cheap.
///
/// The kernel takes the locks of the inodes concerned before it returns. A handler that has not
/// answered a request on the same directory or file must therefore not call these methods, nor wait
/// for a thread that does: the request holds the lock, and both wait for ever. Send from another
/// thread, or after the answer.
///
/// What the kernel does not have cached is no error: the methods then return `Ok(false)`.
#[derive(Clone)]
pub struct Notifier {
    channel: Arc<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Notifier {
        Notifier { channel }
    }

    /// Registers backing files for pass-through at the same connection.
    pub fn backings(&self) -> Backings {
        Backings::new(self.channel.clone())
    }

    /// Drops a node's attributes and its cached pages from `offset` on, `length` bytes or with 0 to
    /// the end. A negative `offset` drops the attributes only.
    pub fn invalidate_inode(&self, nodeid: u64, offset: i64, length: i64) -> io::Result<bool> {
        let body = abi::NotifyInvalInode { ino: nodeid, off: offset, len: length };
        self.send(abi::NOTIFY_INVAL_INODE, body.bytes(), None)
    }

    /// Makes the kernel take a file for at least `size` bytes long, at most 2^63 - 1, without a
    /// request for its attributes. The cached pages stay as they are. A file that the kernel takes
    /// for longer keeps that size.
    ///
    /// The kernel changes the size when stored bytes are announced, before it looks at them. There
    /// are none here: to store the last byte would undo a write to it that is faster.
    pub fn extend_inode(&self, nodeid: u64, size: u64) -> io::Result<bool> {
        let Some(last) = size.checked_sub(1) else { return Ok(true) };
        let body = abi::NotifyStore { ino: nodeid, offset: last, size: 1, padding: 0 };
        let len = (size_of::<OutHeader>() + body.bytes().len() + 1) as u32;
        let header = OutHeader { len, error: abi::NOTIFY_STORE, unique: 0 };
        match self.channel.transmit_head(&[header.bytes(), body.bytes()].concat(), 1) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EFAULT) => Ok(true),
                Some(libc::ENOENT) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Drops the entry `name` of the directory `parent`, and with it the cached subtree.
    pub fn invalidate_entry(&self, parent: u64, name: &OsStr) -> io::Result<bool> {
        self.entry(parent, name, 0)
    }

    /// Ends the time for which the entry may be believed, without dropping it: the next use makes a
    /// LOOKUP. Kernels before 6.2 drop it.
    pub fn expire_entry(&self, parent: u64, name: &OsStr) -> io::Result<bool> {
        self.entry(parent, name, abi::NOTIFY_EXPIRE_ONLY)
    }

    /// The entry `name`, which was the node `child`, has been removed by another client. Unlike
    /// [`invalidate_entry`](Notifier::invalidate_entry) this also notifies the watchers of the
    /// directory (inotify).
    pub fn deleted(&self, parent: u64, child: u64, name: &OsStr) -> io::Result<bool> {
        let body = abi::NotifyDelete { parent, child, namelen: name.len() as u32, padding: 0 };
        self.send(abi::NOTIFY_DELETE, body.bytes(), Some(name))
    }

    /// Has the kernel drop those of these nodes that nothing uses, as it does when memory gets
    /// short; it forgets them then. Kernels from 6.18
    /// ([`Negotiated::prunes`](crate::Negotiated::prunes)).
    pub fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        for nodes in nodes.chunks(PRUNE_MAX) {
            let count = nodes.len() as u32;
            let mut body = abi::NotifyPrune { count, padding: 0, spare: 0 }.bytes().to_vec();
            nodes.iter().for_each(|node| body.extend_from_slice(node.bytes()));
            self.send(abi::NOTIFY_PRUNE, &body, None)?;
        }
        Ok(())
    }

    /// Has the kernel send all requests again that were read and not answered: the process that
    /// read them is gone. Their numbers then have bit 63 set. Where INIT has agreed on
    /// [`Features::resend`](crate::Features::resend).
    pub fn resend(&self) -> io::Result<()> {
        self.send(abi::NOTIFY_RESEND, &[], None).map(drop)
    }

    fn entry(&self, parent: u64, name: &OsStr, flags: u32) -> io::Result<bool> {
        let body = abi::NotifyInvalEntry { parent, namelen: name.len() as u32, flags };
        self.send(abi::NOTIFY_INVAL_ENTRY, body.bytes(), Some(name))
    }

    fn send(&self, code: i32, body: &[u8], name: Option<&OsStr>) -> io::Result<bool> {
        let (name, nul): (&[u8], &[u8]) = match name {
            Some(name) => (name.as_bytes(), &[0]),
            None => (&[], &[]),
        };
        let len = (size_of::<OutHeader>() + body.len() + name.len() + nul.len()) as u32;
        let header = OutHeader { len, error: code, unique: 0 };
        let parts = [header.bytes(), body, name, nul].map(IoSlice::new);
        match self.channel.transmit(&parts) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
