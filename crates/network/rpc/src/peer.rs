//! A connection to another node of the cluster, for envelopes, one way: each node dials each other.
//!
//! | file | |
//! | --- | --- |
//! | `link_thread` | the thread of a link: connects, watches, connects again |
//! | `proof` | proofs between nodes that both know the cluster's secret, which is never sent |
//!
//! **Loss.** What is sent while there is no connection, or more than the queue holds, is dropped,
//! and so is what a broken connection has not delivered: members send again what they have no
//! answer to. So nothing here waits or is kept.
//!
//! **Writing.** A thread that has sent something tries to become the writer ([`PeerLink::flush`])
//! and writes for all; a thread that finds another one writing leaves. The writer lets go, *then*
//! looks at the queue again, so nothing stays there. What the socket has no room for, and what a
//! writer that has written enough leaves over, is for the link's thread.
//!
//! **The thread** dials, names its node, and watches: another thread reads, because the node on the
//! other side sends why it refuses, or closes. A node that takes nothing more is given up after
//! [`PeerConfig::dead_after`] (`TCP_USER_TIMEOUT`; there is a Ping every second, so an idle link
//! does not hide that). It dials again for ever, with pauses of up to [`PAUSE_MAX`]; at once when
//! another message shows that the node is there ([`PeerLink::hurry`]).

mod link_thread;
pub mod proof;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::wire::{
    self, Checksum, FRAME_BYTES_MAX, HEADER_BYTES, PeerHello, PeerSecret, TooLarge,
};
use parking_lot::{Condvar, Mutex};

use crate::client::socket::Socket;
use crate::tls::ClientTls;

/// Longest pause between two attempts to connect.
pub const PAUSE_MAX: Nanos = SECOND;

/// Rounds after which a writer leaves the rest to the link's thread.
const ROUNDS_MAX: usize = 16;

/// What is kept of an emptied buffer, bytes.
const BYTES_KEPT: usize = 256 * 1024;

/// Makes the first envelope of a connection, if there is something to say.
#[derive(Clone)]
pub struct Greeting(pub Arc<dyn Fn() -> Option<Vec<u8>> + Send + Sync>);

impl fmt::Debug for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Greeting(..)")
    }
}

/// Settings of a connection to another node.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// Where it listens, `host:port`.
    pub address: String,
    /// The two nodes of the connection. The nonce is drawn for each connection.
    pub hello: PeerHello,
    /// What both sides know.
    pub secret: PeerSecret,
    /// Which connections are encrypted, and by what.
    pub tls: ClientTls,
    /// Most bytes that wait to be written; what comes then is dropped. At least one frame.
    pub queue_bytes_max: usize,
    /// A node that takes nothing of what was sent for this long is given up.
    pub dead_after: Duration,
    /// The message that is sent first over each connection.
    pub greeting: Option<Greeting>,
}

impl PeerConfig {
    /// Usual settings.
    pub fn new(address: String, hello: PeerHello, secret: PeerSecret, tls: &ClientTls) -> Self {
        let tls = tls.to_node(hello.to);
        let (queue_bytes_max, dead_after) = (64 << 20, Duration::from_secs(5));
        Self { address, hello, secret, tls, queue_bytes_max, dead_after, greeting: None }
    }
}

/// What a connection has carried since it was begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// There is a connection at present.
    pub up: bool,
    /// Connections so far.
    pub connects: u64,
    /// Envelopes queued.
    pub envelopes: u64,
    /// Envelopes dropped: no connection, or no room.
    pub dropped: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Writes they left with.
    pub writes: u64,
}

#[derive(Default)]
struct Counters {
    connects: AtomicU64,
    envelopes: AtomicU64,
    dropped: AtomicU64,
    bytes_out: AtomicU64,
    writes: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// Whole frames that wait for a writer.
struct Queue {
    bytes: Vec<u8>,
    /// Of the present connection; `None`: there is none.
    checksum: Option<Checksum>,
}

/// What a writer holds.
#[derive(Default)]
struct WriteState {
    socket: Option<Arc<Socket>>,
    /// Bytes being written, from `written` on.
    bytes: Vec<u8>,
    written: usize,
}

/// What the link's thread is to know.
#[derive(Default)]
struct Notice {
    closed: bool,
    /// Bytes are left: the socket has no room, or their writer had enough.
    left: bool,
    /// The present connection is of no use any more, and why.
    broken: Option<String>,
    /// There is no reason to wait before the next attempt.
    hurry: bool,
}

struct Shared {
    config: PeerConfig,
    queue: Mutex<Queue>,
    write_state: Mutex<WriteState>,
    /// There is something in the queue.
    offered: AtomicBool,
    notice: Mutex<Notice>,
    changed: Condvar,
    counters: Counters,
    /// Why there is no connection, if a reason has been found.
    why_down: Mutex<Option<String>>,
    /// The node's reason, when it refused this one for good.
    expelled: Mutex<Option<String>>,
}

/// See the module's header. Dropping it closes the connection.
pub struct PeerLink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl PeerLink {
    /// Begins to connect. `seed` of the pauses between attempts.
    ///
    /// # Errors
    /// If its thread does not start.
    pub fn start(config: PeerConfig, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            config,
            queue: Mutex::new(Queue { bytes: Vec::new(), checksum: None }),
            write_state: Mutex::default(),
            offered: AtomicBool::new(false),
            notice: Mutex::default(),
            changed: Condvar::new(),
            counters: Counters::default(),
            why_down: Mutex::default(),
            expelled: Mutex::default(),
        });
        let kept = shared.clone();
        let name = format!("kestrel-peer-{}", shared.config.hello.to);
        let thread =
            std::thread::Builder::new().name(name).spawn(move || link_thread::run(&kept, seed))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queues an envelope. It leaves at the next [`PeerLink::flush`], of whichever thread. Never
    /// blocks.
    ///
    /// # Errors
    /// If it is too large for a frame.
    pub fn send(&self, envelope: &[u8]) -> Result<(), TooLarge> {
        self.shared.send(envelope)
    }

    /// Where it dials.
    pub fn address(&self) -> &str {
        &self.shared.config.address
    }

    /// The node is there: if there is no connection to it, the next attempt to make one is not
    /// waited for.
    pub fn hurry(&self) {
        if self.shared.queue.lock().checksum.is_none() {
            self.shared.notice.lock().hurry = true;
            self.shared.changed.notify_all();
        }
    }

    /// Has what was queued written, as far as there is room. Never blocks.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Why there is no connection; none if there is one, or no reason has been found yet.
    pub fn why_down(&self) -> Option<String> {
        self.shared.why_down.lock().clone()
    }

    /// The node has refused this one for good ([`wire::is_refused_for_good`]): its reason. This
    /// node must not go on.
    pub fn expelled(&self) -> Option<String> {
        self.shared.expelled.lock().clone()
    }

    /// What it has carried.
    pub fn stats(&self) -> PeerStats {
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerStats {
            up: self.shared.queue.lock().checksum.is_some(),
            connects: of(&counters.connects),
            envelopes: of(&counters.envelopes),
            dropped: of(&counters.dropped),
            bytes_out: of(&counters.bytes_out),
            writes: of(&counters.writes),
        }
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.shared.notice.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn send(&self, envelope: &[u8]) -> Result<(), TooLarge> {
        if envelope.len() > FRAME_BYTES_MAX {
            return Err(TooLarge("the length of a message to another node"));
        }
        let Self { queue, counters, config, offered, .. } = self;
        let mut queue = queue.lock();
        let room = queue.bytes.len() + HEADER_BYTES + envelope.len() <= config.queue_bytes_max;
        let Some(checksum) = queue.checksum.filter(|_| room) else {
            count(&counters.dropped, 1);
            return Ok(());
        };
        wire::encode_peer(envelope, checksum, &mut queue.bytes)?;
        offered.store(true, Ordering::SeqCst);
        count(&counters.envelopes, 1);
        Ok(())
    }

    /// A connection: it begins with these bytes.
    fn install(&self, socket: Arc<Socket>, checksum: Checksum, begin: Vec<u8>) {
        count(&self.counters.connects, 1);
        {
            let mut notice = self.notice.lock();
            *notice = Notice { closed: notice.closed, ..Notice::default() };
        }
        *self.write_state.lock() = WriteState { socket: Some(socket), bytes: begin, written: 0 };
        self.queue.lock().checksum = Some(checksum);
    }

    /// The connection is gone, and what it had not taken.
    fn remove(&self) {
        {
            let mut queue = self.queue.lock();
            *queue = Queue { bytes: Vec::new(), checksum: None };
        }
        let write_state = std::mem::take(&mut *self.write_state.lock());
        if let Some(socket) = write_state.socket {
            socket.cut();
        }
    }

    /// The present connection is of no use.
    fn broken(&self, why: String) {
        self.notice.lock().broken.get_or_insert(why);
        self.changed.notify_all();
    }

    /// The node has refused this one with this error; answers the text for logs. A refusal for good
    /// is logged once, as an error.
    fn refused(&self, errno: i32, reason: &str) -> String {
        let refusal = format!("it refuses: {reason}");
        if !wire::is_refused_for_good(errno) {
            return refusal;
        }
        let PeerConfig { address, hello, .. } = &self.config;
        let why = format!("node {} at {address} refuses this node: {reason}", hello.to);
        let mut expelled = self.expelled.lock();
        if expelled.is_none() {
            log::error!("net: {why}");
            *expelled = Some(why);
        }
        refusal
    }

    fn leave_over(&self) {
        self.notice.lock().left = true;
        self.changed.notify_all();
    }

    fn flush(&self) {
        for _ in 0..ROUNDS_MAX {
            if !self.offered.load(Ordering::SeqCst) {
                return;
            }
            let Some(mut write_state) = self.write_state.try_lock() else { return };
            if !self.write(&mut write_state) {
                return;
            }
        }
        self.leave_over();
    }

    /// Writes what is queued. False if something is in the way.
    fn write(&self, write_state: &mut WriteState) -> bool {
        let Some(socket) = write_state.socket.clone() else {
            self.offered.store(false, Ordering::SeqCst);
            return true;
        };
        loop {
            if write_state.written == write_state.bytes.len() {
                write_state.bytes.clear();
                write_state.bytes.shrink_to(BYTES_KEPT);
                write_state.written = 0;
                let mut queue = self.queue.lock();
                self.offered.store(false, Ordering::SeqCst);
                std::mem::swap(&mut queue.bytes, &mut write_state.bytes);
                if write_state.bytes.is_empty() {
                    return true;
                }
            }
            match socket.write_some(&write_state.bytes[write_state.written..]) {
                Ok(written) => {
                    write_state.written += written;
                    count(&self.counters.bytes_out, written);
                    count(&self.counters.writes, 1);
                    if write_state.written == write_state.bytes.len() {
                        // What others have queued meanwhile is the caller's next round, of which
                        // there are not many.
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.offered.store(true, Ordering::SeqCst);
                    self.leave_over();
                    return false;
                }
                Err(error) => {
                    self.broken(error.to_string());
                    return false;
                }
            }
        }
    }
}
