//! Writing: a thread with something to send tries to become the writer, and the writer writes for
//! all (combining).
//!
//! **Nothing is forgotten.** A thread that queues something sets `offered`, *then* tries the
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
    state: Mutex<WriteState>,
    /// The link has output that no writer has taken.
    offered: AtomicBool,
    /// The socket had no room, and bytes are left.
    stuck: AtomicBool,
    /// A writer had enough, and there is more.
    handed_over: AtomicBool,
    /// The present connection, to be cut by any thread that finds it dead, even while another one
    /// writes.
    present: Mutex<Option<Present>>,
}

/// The present connection.
struct Present {
    socket: Arc<Socket>,
    /// How often the node had moved when the reader chose the address.
    moves: u64,
}

impl SocketWriter {
    /// There is something in the link's output.
    pub fn offer(&self) {
        self.offered.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes over the request that the ticker write; true once for each request.
    pub fn take_handed_over(&self) -> bool {
        self.handed_over.swap(false, Ordering::Relaxed)
    }

    fn has_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.offered.load(Ordering::Relaxed) || self.is_stuck()
    }

    /// Bytes are left because the socket had no room.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// A new connection, to an address chosen after the node had moved `moves` times.
    pub fn install(&self, socket: Arc<Socket>, moves: u64) {
        *self.present.lock() = Some(Present { socket: socket.clone(), moves });
        *self.state.lock() = WriteState { socket: Some(socket), ..WriteState::default() };
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// The connection is gone. A thread that waits for room on it gives up.
    pub fn remove(&self) {
        self.cut();
        *self.present.lock() = None;
        *self.state.lock() = WriteState::default();
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// Cuts the present connection; the reader finds out.
    pub fn cut(&self) {
        self.cut_before(u64::MAX);
    }

    /// Cuts the present connection if the node has moved since: `moves` times by now. The reader
    /// may have connected to the new address already, and that connection stays.
    pub fn cut_before(&self, moves: u64) {
        if let Some(present) = &*self.present.lock()
            && present.moves < moves
        {
            present.socket.cut();
        }
    }

    /// All messages are written: the node sees the end after the last byte, and closes.
    pub fn finish(&self) {
        if let Some(present) = &*self.present.lock() {
            present.socket.finish();
        }
    }
}

/// How one turn of writing ended.
enum WriteEnd {
    /// Nothing is left, or another thread writes.
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
            self.hand_to_ticker();
        }
    }

    /// Has the ticker write.
    fn hand_to_ticker(&self) {
        self.writer.handed_over.store(true, Ordering::Relaxed);
        self.wake_ticker();
    }

    /// Has the ticker look how long it may sleep.
    pub(super) fn wake_ticker(&self) {
        // The lock, because the ticker must not miss it between its look and its sleep.
        drop(self.life.lock());
        self.changed.notify_all();
    }

    fn write(&self, patient: bool) {
        let mut rounds = ROUNDS_MAX;
        while self.writer.has_work() {
            let Some(mut state) = self.writer.state.try_lock() else { return };
            match self.write_at(&mut state, patient, &mut rounds) {
                WriteEnd::Done => {}
                WriteEnd::Stuck => return,
                WriteEnd::Enough => {
                    drop(state);
                    self.hand_to_ticker();
                    return;
                }
            }
        }
    }

    fn write_at(&self, state: &mut WriteState, patient: bool, rounds: &mut u32) -> WriteEnd {
        loop {
            if state.bytes.is_empty() {
                if *rounds == 0 {
                    return WriteEnd::Enough;
                }
                *rounds -= 1;
                self.writer.offered.store(false, Ordering::Relaxed);
                {
                    let mut link = self.link.lock();
                    self.deferred.end();
                    link.take_output(&mut state.bytes);
                }
                if state.bytes.is_empty() {
                    return WriteEnd::Done;
                }
                count(&self.traffic.messages, usize::from(state.socket.is_some()));
            }
            let Some(socket) = &state.socket else {
                // What was meant for a connection that is gone is sent again on the next one.
                state.bytes.clear();
                continue;
            };
            match socket.write_some(&state.bytes[state.written..]) {
                Ok(written) => {
                    state.written += written;
                    count(&self.traffic.bytes_sent, written);
                    count(&self.traffic.writes, 1);
                    if state.written == state.bytes.len() {
                        state.bytes.clear();
                        state.bytes.shrink_to(BYTES_KEPT);
                        state.written = 0;
                        self.writer.stuck.store(false, Ordering::Relaxed);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.writer.stuck.store(true, Ordering::Relaxed);
                    if !patient {
                        return WriteEnd::Stuck;
                    }
                    if let Err(error) = socket.wait(false, WAIT) {
                        self.broken(state, &error);
                    }
                }
                Err(error) => self.broken(state, &error),
            }
        }
    }

    /// Writing failed: the reader will see the end of the connection.
    fn broken(&self, state: &mut WriteState, error: &std::io::Error) {
        log::debug!("net: writing to the metadata server failed: {error}");
        if let Some(socket) = state.socket.take() {
            socket.cut();
        }
        (state.bytes, state.written) = (Vec::new(), 0);
        self.writer.stuck.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A thread that redirects the client, and is slow, cuts a connection to the old address and
    /// none that the reader has made to the new one meanwhile.
    #[test]
    fn slow_redirect_beside_a_fast_dial() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let writer = SocketWriter::default();
        for (made_at, is_cut) in [(0, true), (1, false)] {
            let socket = Arc::new(Socket::clear(TcpStream::connect(address).unwrap()));
            writer.install(socket.clone(), made_at);
            writer.cut_before(1);
            let ready = socket.wait(true, Duration::ZERO).unwrap();
            assert_eq!(ready.read, is_cut, "made at {made_at}: a cut connection is at its end");
        }
    }
}
