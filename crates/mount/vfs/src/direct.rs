//! Direct writes (`O_DIRECT`) beside reads through the kernel's page cache.
//!
//! The kernel drops the cached pages of a range before it sends a direct write of it, and again
//! when the write is answered, but only where the caller waits in write(2). The end of an
//! asynchronous write (io_submit, io_uring) is told to the program at once:
//! `generic_file_direct_write` skips the second drop, and `fuse_aio_complete` does not make up for
//! it. A page that a reader had filled in between then keeps the old bytes for good. (A patch of
//! January 2026 mends it in the kernel: "fuse: invalidate the page cache after direct write".)
//!
//! So the mount has the kernel drop the range before it answers such a write. That waits for READs
//! of the same pages, which the kernel holds locked, so threads of their own do it, and never one
//! that serves requests. A file that nobody has read through pages since it was opened here has
//! none that could be old: its writes are answered at once.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

use kestrel_fuse::{Notifier, Reply};
use kestrel_types::ids::InodeId;
use parking_lot::Mutex;

/// Threads that drop pages: one that waits for a slow READ must not stop all writers.
const THREADS: usize = 4;

/// A range that was written, and the answer that waits.
struct Written {
    ino: InodeId,
    offset: u64,
    len: u32,
    reply: Reply,
}

/// Answers direct writes when the kernel has dropped its pages of what they wrote.
#[derive(Default)]
pub struct DirectWrites {
    queue: OnceLock<Mutex<Sender<Written>>>,
}

impl DirectWrites {
    /// Starts the threads. They end when this is dropped.
    pub fn start(&self, notifier: &Notifier) {
        let (send, written) = mpsc::channel();
        let written = Arc::new(Mutex::new(written));
        let started = (0..THREADS).filter(|_| {
            let (notifier, written) = (notifier.clone(), written.clone());
            let run = move || drop_pages(&notifier, &written);
            let thread = std::thread::Builder::new().name("kestrel-direct".into()).spawn(run);
            thread
                .inspect_err(|error| {
                    log::warn!("cannot start a thread that drops pages beside direct I/O: {error}")
                })
                .is_ok()
        });
        if started.count() > 0 {
            drop(self.queue.set(Mutex::new(send)));
        }
    }

    /// Answers a direct write of `len` bytes at `offset` that was done.
    pub fn answer(&self, ino: InodeId, offset: u64, len: u32, reply: Reply) {
        let unsent = match self.queue.get() {
            Some(queue) => queue
                .lock()
                .send(Written { ino, offset, len, reply })
                .err()
                .map(|unsent| unsent.0.reply),
            None => Some(reply),
        };
        // Without the threads old pages stay until the file is opened again.
        if let Some(reply) = unsent {
            reply.written(len);
        }
    }
}

/// Whether a READ or WRITE goes past the page cache. The open's flags do not say so: a file that
/// was opened with `O_DIRECT` can be mapped, and the kernel writes through pages what it cannot
/// write directly. Then it keeps the pages locked until the answer, so dropping them first would
/// wait for ever. Only what is direct names a lock owner.
pub fn is_direct(lock_owner: Option<u64>) -> bool {
    lock_owner.is_some()
}

fn drop_pages(notifier: &Notifier, written: &Mutex<Receiver<Written>>) {
    loop {
        let next = written.lock().recv();
        let Ok(Written { ino, offset, len, reply }) = next else { return };
        // Offsets are below 2^63: the write was done.
        if let Err(error) = notifier.invalidate_inode(ino, offset as i64, i64::from(len)) {
            log::warn!(
                "inode {ino}: the kernel does not drop its cached pages beside direct I/O: {error}"
            );
        }
        reply.written(len);
    }
}
