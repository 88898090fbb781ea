//! FUSE, from the wire up: a file system in a process of its own.
//!
//! # What FUSE is
//!
//! When a program calls `open("/mnt/a/b")`, the kernel walks the path and finds that `/mnt` is a
//! FUSE mount. It then turns to the process that mounted it: it puts a *request* in a queue (LOOKUP
//! of "a" in node 1, LOOKUP of "b" in the node that was answered, OPEN of that one), the process
//! reads it from the device `/dev/fuse`, and writes a *reply* back. The program that called `open`
//! sleeps meanwhile. That is all: no code of this crate runs in the kernel, and the file system may
//! find its answer in any way.
//!
//! The kernel speaks of files by *node id*, a number that the file system chooses when it answers a
//! lookup. The root is node 1. Each such answer counts as one reference, and FORGET gives
//! references back; a node id must mean the same until all are given back. It is not the inode
//! number that `stat` shows, which is one of the attributes ([`Attr::ino`]): a file system may have
//! a node id for each path and one inode number for both names of a file. An *open file* has a
//! second number, the handle `fh`, of its own choice as well.
//!
//! What the kernel may remember, the file system says with each answer: for how long a name is good
//! ([`Entry::entry_ttl`]), for how long attributes are, and whether pages stay cached from one open
//! to the next ([`OpenFlags`]). With zero everywhere every call reaches the file system.
//!
//! # How to write one
//!
//! Implement [`FileSystem`]: a method that gets a [`Request`] and a [`Reply`]. The request borrows
//! the receive buffer; the reply is a token that may be answered on the spot, or kept and answered
//! by another thread. Then [`Mount`] and [`Session::start`]:
//!
//! ```no_run
//! use kestrel_fuse::*;
//! use std::time::Duration;
//!
//! /// One empty directory.
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn handle(&self, request: Request<'_>, reply: Reply) {
//!         match request.op {
//!             Operation::Lookup { .. } => reply.error(libc::ENOENT),
//!             Operation::Getattr { .. } => {
//!                 let mode = libc::S_IFDIR | 0o755;
//!                 let attr = Attr { ino: 1, mode, nlink: 2, ..Attr::default() };
//!                 reply.attr(&attr, Duration::ZERO);
//!             }
//!             Operation::Opendir { .. } => reply.opened(Opened::default()),
//!             Operation::Readdir { size, .. } => reply.dirents(Dirents::plain(size)),
//!             Operation::Releasedir { .. } => reply.empty(),
//!             // "Not implemented": the kernel does without, and mostly does not ask again.
//!             _ => reply.error(libc::ENOSYS),
//!         }
//!     }
//! }
//!
//! # fn main() -> kestrel_fuse::Result<()> {
//! let mount = Mount::new("/mnt/empty".as_ref(), &MountOptions::default())?;
//! let session = Session::start(mount, Empty, &Config::default())?; // from here on it works
//! session.join()?; // until somebody unmounts it
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! | module | |
//! | --- | --- |
//! | [`abi`] | structures and numbers of the protocol, as in the kernel's header |
//! | `request` | [`Request`], [`Operation`]: parsed in place, nothing copied, nothing trusted |
//! | `reply`, `dirents`, `attr` | [`Reply`], [`Dirents`], [`Attr`], [`Entry`]: answers |
//! | `config` | [`Config`], [`Features`], [`Negotiated`]: what is agreed with the kernel at INIT |
//! | `session` | [`Session`]: the threads that serve a mount |
//! | [`transport`] | how messages travel: `/dev/fuse` or io_uring; [`block_in_place`] to wait |
//! | `notify` | [`Notifier`]: messages that make the kernel forget what it cached |
//! | [`passthrough`] | files that the kernel reads from elsewhere by itself |
//! | [`mount`] | mounting, unmounting (also of dead and hung servers), finding mounts |
//! | `creds` | [`caller_groups`]: what a request lacks of its caller |
//! | `error` | [`Error`]: what failed, and why |
//! | [`null`] | a file system that does nothing, to measure what FUSE itself costs |
//!
//! A reply that is dropped answers EIO, so no caller hangs.
//!
//! # Dead callers and dead servers
//!
//! A process that waits for a reply cannot be killed by an ordinary signal once the request was
//! read; so every request must be answered some day. Interrupts ([`Operation::Interrupt`]) come
//! when a caller would like to leave. When the serving process dies, its descriptors close, and all
//! waiting callers get ECONNABORTED; the mount point then answers ENOTCONN until it is unmounted or
//! mounted anew, which [`Mount::new`] does by itself. A server that hangs is cut off with
//! [`mount::unmount`] and [`mount::How::Force`].
//!
//! A process should not use its own mount from the threads that answer for it, nor hold memory that
//! only they can free.

pub mod abi;
mod attr;
mod config;
mod creds;
mod dirents;
mod error;
pub mod mount;
mod notify;
pub mod null;
pub mod passthrough;
mod reply;
mod request;
mod session;
pub mod transport;

pub use attr::{Attr, Entry, OpenFlags, Opened, Statfs, Statx, Timestamp};
pub use config::{
    Config, Features, MAX_WRITE_MAX, MAX_WRITE_MIN, Negotiated, ReaddirPlus, WORKERS_MAX,
    workers_default,
};
pub use creds::caller_groups;
pub use dirents::{Dirents, FileKind};
pub use error::{Error, Result};
pub use mount::{Inherited, Mount, MountOptions, Unmounter};
pub use notify::Notifier;
pub use passthrough::{Backing, Backings};
pub use reply::Reply;
pub use request::{
    Dialect, Forgets, Ioctl, Lock, Malformed, Operation, Request, SetTime, Setattr, Write,
};
pub use session::{FileSystem, Session, SessionStats};
pub use transport::{End, Intake, TransportChoice, block_in_place};
