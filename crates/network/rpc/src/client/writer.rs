//! Writing: a thread with something to send tries to become the writer, and the writer writes for
//! all (combining).
//!
//! **Nothing is forgotten.** A thread that queues something says so (`offered`), *then* tries the
//! writer's lock. The writer lets the lock go, *then* looks again whether something was offered.
//! Fences order the two on both sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;

use super::socket::Socket;
use super::{Shared, count};

/// How long one wait for room takes at most, before the writer looks whether the connection is
/// still there.
const WAIT: Duration = Duration::from_secs(1);

/// How often a thread writes what others have queued meanwhile, before it goes back to its own
/// work.
const ROUNDS_MAX: u32 = 32;

/// What is kept of an emptied buffer, bytes.
const BYTES_KEPT: usize = 256 * 1024;

#[derive(Default)]
struct WriteState {
    socket: Option<Arc<Socket>>,
    /// Bytes being written, from `written` on.
    bytes: Vec<u8>,
    written: usize,
}

/// The way out.
#[derive(Default)]
pub(super) struct SocketWriter {
    desk: Mutex<WriteState>,
    /// The link has output that nobody has taken.
    offered: AtomicBool,
    /// The socket had no room, and bytes are left.
    stuck: AtomicBool,
    /// A writer had enough, and there is more.
    relief: AtomicBool,
    /// The present connection, to be cut by any thread that finds it dead, even while another one
    /// writes.
    present: Mutex<Option<Arc<Socket>>>,
}

impl SocketWriter {
    /// There is something in the link's output.
    pub fn offer(&self) {
        self.offered.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the ticker is asked to write. It is asked once.
    pub fn wants_relief(&self) -> bool {
        self.relief.swap(false, Ordering::Relaxed)
    }

    fn has_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.offered.load(Ordering::Relaxed) || self.is_stuck()
    }

    /// Bytes are left because the socket had no room.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// A new connection.
    pub fn install(&self, socket: Arc<Socket>) {
        *self.present.lock() = Some(socket.clone());
        *self.desk.lock() = WriteState { socket: Some(socket), ..WriteState::default() };
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// The connection is gone. A thread that waits for room on it gives up.
    pub fn remove(&self) {
        self.cut();
        *self.present.lock() = None;
        *self.desk.lock() = WriteState::default();
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// Cuts the present connection; the reader finds out.
    pub fn cut(&self) {
        if let Some(socket) = &*self.present.lock() {
            socket.cut();
        }
    }

    /// Everything was said: the node sees the end after the last byte written, and closes.
    pub fn finish(&self) {
        if let Some(socket) = &*self.present.lock() {
            socket.finish();
        }
    }
}

/// How a turn at the desk ended.
enum WriteEnd {
    /// Nothing is left, or somebody else writes.
    Done,
    /// The socket has no room.
    Stuck,
    /// There is more, but this thread has written for others long enough.
    Enough,
}

impl Shared {
    /// Writes what there is, waiting for room if need be. A writer that finds more and more from
    /// others leaves it to the ticker.
    pub(super) fn write_all(&self) {
        self.write(true);
    }

    /// Writes what there is room for; the rest is for the next writer, or the ticker.
    pub(super) fn write_some(&self) {
        self.write(false);
    }

    /// As [`Shared::write_some`], by a thread that does not come back to see to the rest: the
    /// ticker does, at once.
    pub(super) fn write_in_passing(&self) {
        self.write(false);
        if self.writer.is_stuck() {
            self.ask_for_relief();
        }
    }

    /// Has the ticker write.
    fn ask_for_relief(&self) {
        self.writer.relief.store(true, Ordering::Relaxed);
        self.ask_for_a_look();
    }

    /// Has the ticker look how long it may sleep.
    pub(super) fn ask_for_a_look(&self) {
        // The lock, because the ticker must not miss it between its look and its sleep.
        drop(self.life.lock());
        self.changed.notify_all();
    }

    fn write(&self, patient: bool) {
        let mut rounds = ROUNDS_MAX;
        while self.writer.has_work() {
            let Some(mut desk) = self.writer.desk.try_lock() else { return };
            match self.write_at(&mut desk, patient, &mut rounds) {
                WriteEnd::Done => {}
                WriteEnd::Stuck => return,
                WriteEnd::Enough => {
                    drop(desk);
                    self.ask_for_relief();
                    return;
                }
            }
        }
    }

    fn write_at(&self, desk: &mut WriteState, patient: bool, rounds: &mut u32) -> WriteEnd {
        loop {
            if desk.bytes.is_empty() {
                if *rounds == 0 {
                    return WriteEnd::Enough;
                }
                *rounds -= 1;
                self.writer.offered.store(false, Ordering::Relaxed);
                {
                    let mut link = self.link.lock();
                    self.deferred.end();
                    link.take_output(&mut desk.bytes);
                }
                if desk.bytes.is_empty() {
                    return WriteEnd::Done;
                }
                count(&self.traffic.messages, usize::from(desk.socket.is_some()));
            }
            let Some(socket) = &desk.socket else {
                // What was meant for a connection that is gone is sent again on the next one.
                desk.bytes.clear();
                continue;
            };
            match socket.write_some(&desk.bytes[desk.written..]) {
                Ok(written) => {
                    desk.written += written;
                    count(&self.traffic.bytes_sent, written);
                    count(&self.traffic.writes, 1);
                    if desk.written == desk.bytes.len() {
                        desk.bytes.clear();
                        desk.bytes.shrink_to(BYTES_KEPT);
                        desk.written = 0;
                        self.writer.stuck.store(false, Ordering::Relaxed);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.writer.stuck.store(true, Ordering::Relaxed);
                    if !patient {
                        return WriteEnd::Stuck;
                    }
                    if let Err(error) = socket.wait(false, WAIT) {
                        self.broken(desk, &error);
                    }
                }
                Err(error) => self.broken(desk, &error),
            }
        }
    }

    /// Writing failed: the reader will see the end of the connection.
    fn broken(&self, desk: &mut WriteState, error: &std::io::Error) {
        log::debug!("net: writing to the metadata server failed: {error}");
        if let Some(socket) = desk.socket.take() {
            socket.cut();
        }
        (desk.bytes, desk.written) = (Vec::new(), 0);
        self.writer.stuck.store(false, Ordering::Relaxed);
    }
}
