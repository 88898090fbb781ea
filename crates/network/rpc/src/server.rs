//! The listening side: connections on tokio, served by a [`Handler`].
//!
//! | file | |
//! | --- | --- |
//! | `accept` | accepting connections, as many as there may be |
//! | `sniff` | whether a connection is encrypted, and whether it has to be |
//! | `connection` | the task of one connection |
//! | `channel` | what is queued for a peer, and what other tasks see of a connection |
//! | `unidentified` | connections that have not said Hello: how many there may be |
//! | `watch` | cuts off peers that take too long, and tells the handler the time |
//!
//! **One task a connection**, which reads, decodes, hands over whole batches, and writes what was
//! queued meanwhile with one write. Nothing is copied but once into the queue of the connection; no
//! lock is held while the handler runs.
//!
//! **Backpressure.** A connection is not read while more than [`ListenerConfig::calls_max`] of its
//! calls have no reply, or more than [`ListenerConfig::unsent_bytes_max`] of replies have not been
//! taken by the peer; what the peer sends then stays in its own buffers.
//!
//! **Bad peers** are cut off: those that send no Hello, or are silent (a frame that trickles in
//! counts when it is complete), or take nothing of what is sent to them, each for a bounded time;
//! and those that send bytes that are no messages, with a reason. A handshake of TLS is part of the
//! time for a Hello, and a connection in one counts as unidentified. Unidentified connections are
//! always taken, and make room for each other (`unidentified`).
//!
//! **Stopping** lets calls that were received be answered, for a bounded time, and takes no new
//! ones.

mod accept;
mod channel;
mod connection;
mod sniff;
mod unidentified;
mod watch;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::handler::Handler;
use crate::tls::ServerTls;
use channel::Channel;
use unidentified::UnidentifiedConns;

/// Most connections that the kernel keeps until they are accepted (less where
/// `net.core.somaxconn` is).
const QUEUE: libc::c_int = 4096;

/// Settings of the listening side.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Threads that read, run the handler and write; at least one.
    pub threads: usize,
    /// Most connections; further ones are refused with a reason.
    pub connections_max: usize,
    /// Most connections that have not sent Hello; above that one is cut off for each that comes.
    pub unidentified_max: usize,
    /// Most of them of one address, in the same way.
    pub unidentified_share: usize,
    /// Time for a Hello.
    pub greeting: Duration,
    /// Longest time between two whole frames of a client.
    pub silent: Duration,
    /// Longest time for which a client takes nothing of what is sent to it.
    pub stalled: Duration,
    /// Calls of one connection without a reply at which it is not read any more.
    pub calls_max: usize,
    /// Unsent bytes of one connection at which it is not read any more.
    pub unsent_bytes_max: usize,
    /// Most messages that a handler is given at once; at most [`BATCH_MAX`].
    pub batch_max: usize,
    /// How to encrypt, and which connections have to be; none: all are in clear.
    pub tls: Option<Arc<ServerTls>>,
}

/// Unsent bytes of one connection at which it is closed: a batch of the largest replies stays
/// below.
pub const UNSENT_BYTES_FATAL: usize = 256 << 20;

/// Most messages that a handler is given at once.
pub const BATCH_MAX: usize = 1024;

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            connections_max: 10_000,
            unidentified_max: 512,
            unidentified_share: 64,
            greeting: Duration::from_secs(10),
            silent: Duration::from_secs(90),
            stalled: Duration::from_secs(30),
            calls_max: 32_768,
            unsent_bytes_max: 4 << 20,
            batch_max: BATCH_MAX,
            tls: None,
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListenerStats {
    /// Connections at present.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because there are too many.
    pub turned_away: u64,
    /// Connections closed because of bytes that are no messages.
    pub malformed: u64,
    /// Connections cut off: no Hello, silent, stalled, or no Hello yet where others wait.
    pub cut_off: u64,
    /// Connections that were encrypted.
    pub encrypted: u64,
    /// Handshakes of TLS that failed, those that took too long included.
    pub not_encrypted: u64,
    /// Connections refused because they were in clear, or because they were not.
    pub unwanted: u64,
    /// Messages received.
    pub messages: u64,
    /// Batches they came in.
    pub batches: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Writes they left with.
    pub writes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    turned_away: AtomicU64,
    malformed: AtomicU64,
    cut_off: AtomicU64,
    encrypted: AtomicU64,
    not_encrypted: AtomicU64,
    unwanted: AtomicU64,
    messages: AtomicU64,
    batches: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    writes: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// What all tasks share.
struct Shared {
    handler: Arc<dyn Handler>,
    config: ListenerConfig,
    counters: Counters,
    channels: Mutex<FxHashMap<u64, Arc<Channel>>>,
    /// Connections that have not sent Hello.
    unidentified: Mutex<UnidentifiedConns>,
    /// A connection is gone.
    gone: Notify,
    stopping: AtomicBool,
    /// Rounds of the watch: the clock of all time limits.
    rounds: AtomicU64,
}

/// A running server. Dropping it cuts all connections.
pub struct Serving {
    shared: Arc<Shared>,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

/// Serves connections to `listener` until the answer is stopped or dropped.
///
/// # Errors
/// If the threads cannot be started or the listener cannot be used.
pub fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    config: ListenerConfig,
) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    widen_queue(&listener)?;
    let address = listener.local_addr()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(config.threads.max(1))
        .thread_name("kestrel-net")
        .enable_io()
        .enable_time()
        .build()?;
    let shared = Arc::new(Shared {
        handler,
        config,
        counters: Counters::default(),
        channels: Mutex::default(),
        unidentified: Mutex::default(),
        gone: Notify::new(),
        stopping: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
    });
    let listener = {
        let _entered = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    runtime.spawn(accept::run(shared.clone(), listener));
    runtime.spawn(watch::run(shared.clone()));
    runtime.spawn(watch::tick(shared.clone()));
    Ok(Serving { shared, address, runtime: Some(runtime) })
}

/// Has the kernel keep [`QUEUE`] connections, not the 128 of the standard library, until they are
/// accepted. Where many connections come at a moment, those that the queue has no room for are
/// dropped without an answer: an honest client among them tries again after 1 s, then after 2 s
/// more.
fn widen_queue(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: the descriptor is open and listens; listening again changes the length of its queue.
    match unsafe { libc::listen(listener.as_raw_fd(), QUEUE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Serving {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters.
    pub fn stats(&self) -> ListenerStats {
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ListenerStats {
            connections: self.shared.channels.lock().len() as u64,
            accepted: of(&counters.accepted),
            turned_away: of(&counters.turned_away),
            malformed: of(&counters.malformed),
            cut_off: of(&counters.cut_off),
            encrypted: of(&counters.encrypted),
            not_encrypted: of(&counters.not_encrypted),
            unwanted: of(&counters.unwanted),
            messages: of(&counters.messages),
            batches: of(&counters.batches),
            bytes_in: of(&counters.bytes_in),
            bytes_out: of(&counters.bytes_out),
            writes: of(&counters.writes),
        }
    }

    /// Accepts and reads nothing more, waits up to `grace` until all calls received are answered
    /// and the answers have left, then closes. Every connection's handler has been called for the
    /// end when this returns.
    pub fn stop(mut self, grace: Duration) {
        self.shut(grace);
    }

    fn shut(&mut self, grace: Duration) {
        let Some(runtime) = self.runtime.take() else { return };
        let shared = self.shared.clone();
        shared.stopping.store(true, Ordering::SeqCst);
        shared.wake_all();
        runtime.block_on(async {
            // A connection that is still there after the grace is cut off; that takes no time but
            // the handler's.
            let _ = tokio::time::timeout(
                grace,
                shared.left_by(|channel| !channel.node.load(Ordering::Relaxed)),
            )
            .await;
            shared.channels.lock().values().for_each(|channel| channel.abort("the server stops"));
            let _ = tokio::time::timeout(Duration::from_secs(10), shared.left_by(|_| true)).await;
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shut(Duration::ZERO);
    }
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn wake_all(&self) {
        self.channels.lock().values().for_each(|channel| channel.wake());
    }

    /// Until there is no such connection.
    async fn left_by(&self, these: impl Fn(&Channel) -> bool) {
        loop {
            let gone = self.gone.notified();
            if !self.channels.lock().values().any(|channel| these(channel)) {
                return;
            }
            gone.await;
        }
    }
}
