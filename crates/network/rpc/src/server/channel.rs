//! What is queued for a peer, and what of a connection others than its task see.
//!
//! **Waking.** The task is awake from when it runs until it finds nothing to do, under the queue's
//! lock. A thread that queues something while it sleeps wakes it, once; while it is awake it will
//! look by itself. So all that is sent within one `receive`, and all that others send until the
//! task runs, leaves with one write. The socket wakes it as well, so its waker is taken back when
//! it looks: a task that is woken while it runs is run again, and has tokio wake another thread for
//! that.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use kestrel_types::wire;
use parking_lot::Mutex;

use super::UNSENT_BYTES_FATAL;
use crate::handler::Outbox;

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Close when everything is written.
    closing: bool,
    /// Close now.
    aborted: bool,
    /// The task that sleeps until something is queued; none while it is awake.
    sleeper: Option<Waker>,
    /// It is to look around once more before it sleeps.
    nudged: bool,
}

/// What the task is to do about its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Go on.
    Serve,
    /// Read nothing more; close when everything is written.
    Close,
    /// Close now.
    Abort,
}

/// One connection, for code outside of its task.
#[derive(Default)]
pub(super) struct Channel {
    queue: Mutex<Queue>,
    /// Calls received that have no reply yet.
    pub calls: AtomicUsize,
    /// The task does not read: messages of the peer may be waiting, so it does not count as silent.
    pub paused: AtomicBool,
    /// A Hello came.
    pub greeted: AtomicBool,
    /// It was a node's.
    pub node: AtomicBool,
    /// There are unsent bytes.
    pub unsent: AtomicBool,
    /// Round of the watch in which the last whole frame came.
    pub last_received: AtomicU64,
    /// Round of the watch in which the peer last took something, or there began to be something to
    /// take.
    pub moved: AtomicU64,
    /// For logs.
    pub peer: String,
}

impl Channel {
    pub fn new(peer: String, round: u64) -> Self {
        Self {
            last_received: AtomicU64::new(round),
            moved: AtomicU64::new(round),
            peer,
            ..Self::default()
        }
    }

    /// Takes what is queued, if `out` has been written completely. Also answers how many bytes are
    /// queued still. From here on the task is awake.
    pub fn collect(&self, out: &mut Vec<u8>) -> (Order, usize) {
        let mut queue = self.queue.lock();
        (queue.sleeper, queue.nudged) = (None, false);
        if out.is_empty() {
            std::mem::swap(&mut queue.bytes, out);
        }
        (queue.order(), queue.bytes.len())
    }

    /// Goes to sleep, unless there is something to do that was not there at the last
    /// [`Channel::collect`]. `flushed`: what is queued could be written at once.
    pub fn sleep(&self, waker: &Waker, seen: Order, flushed: bool) -> bool {
        let mut queue = self.queue.lock();
        if queue.nudged || queue.order() != seen || (flushed && !queue.bytes.is_empty()) {
            return false;
        }
        queue.sleeper = Some(waker.clone());
        true
    }

    /// Lets the task look around.
    pub fn wake(&self) {
        let mut queue = self.queue.lock();
        queue.nudged = true;
        let sleeper = queue.sleeper.take();
        drop(queue);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Closes the connection at once.
    pub fn abort(&self, why: &str) {
        log::debug!("net: connection of {} is cut off: {why}", self.peer);
        self.queue.lock().aborted = true;
        self.wake();
    }

    /// Drops what is queued and everything to come.
    pub fn shut(&self) {
        let mut queue = self.queue.lock();
        queue.aborted = true;
        queue.bytes = Vec::new();
        queue.sleeper = None;
    }
}

impl Queue {
    fn order(&self) -> Order {
        match (self.aborted, self.closing) {
            (true, _) => Order::Abort,
            (false, true) => Order::Close,
            (false, false) => Order::Serve,
        }
    }
}

impl Outbox for Channel {
    fn send(&self, frames: &[u8]) {
        let replies = wire::count_replies(frames);
        let mut queue = self.queue.lock();
        if queue.aborted || queue.closing {
            return;
        }
        queue.bytes.extend_from_slice(frames);
        queue.aborted = queue.bytes.len() > UNSENT_BYTES_FATAL;
        let sleeper = queue.sleeper.take();
        drop(queue);
        if replies > 0 {
            // After the bytes are queued: a thread that sees no open call must find all answers.
            self.calls.fetch_sub(replies, Ordering::Release);
        }
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    fn close(&self, why: &str) {
        log::debug!("net: connection of {} is closed: {why}", self.peer);
        self.queue.lock().closing = true;
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What is sent while the task runs does not wake it, however it came to run, and does not stay
    /// behind either.
    #[test]
    fn running_task_is_not_woken() {
        let (channel, wakes) = (Channel::new("test".into(), 0), Arc::new(Wakes::default()));
        let (waker, mut out) = (Waker::from(wakes.clone()), Vec::new());
        let woken = || wakes.0.swap(0, Ordering::Relaxed);
        assert!(channel.sleep(&waker, Order::Serve, true));
        // The socket woke it.
        channel.collect(&mut out);
        channel.send(b"reply");
        assert_eq!((woken(), channel.sleep(&waker, Order::Serve, true)), (0, false));
        channel.collect(&mut out);
        assert_eq!(out, b"reply");
        channel.wake();
        assert_eq!((woken(), channel.sleep(&waker, Order::Serve, true)), (0, false));
        channel.collect(&mut out);
        assert!(channel.sleep(&waker, Order::Serve, true));
        channel.send(b"more");
        assert_eq!(woken(), 1);
    }
}
