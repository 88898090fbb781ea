//! The interface between sockets and the server: the transport has no code for sessions, the server
//! none for sockets.
//!
//! **Batches.** Everything that one read brought goes to [`Connection::receive`] as one batch, and
//! what is sent meanwhile leaves with one write: that is where the throughput comes from, far more
//! than from the runtime (`docs/design/engine.md`, section 3).
//!
//! **Order.** Messages of a connection are received in the order in which they were sent, by one
//! thread at a time. Frames leave in the order of the calls of [`Outbox::send`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kestrel_types::security::Security;
use kestrel_types::wire::{ToServer, WireError};

/// Serves connections.
pub trait Handler: Send + Sync + 'static {
    /// A connection was accepted, and whether it is encrypted is decided; no message has come yet.
    fn connect(
        &self,
        peer: SocketAddr,
        security: Security,
        outbox: Arc<dyn Outbox>,
    ) -> Box<dyn Connection>;

    /// Time passes. Called again after the answered duration, which is taken to be 10 ms to 1 s.
    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// The handler's side of one connection.
pub trait Connection: Send {
    /// Takes all whole messages of one read, in order. What is left in `batch` is dropped; its
    /// memory is used again. Must not wait for this client.
    fn receive(&mut self, batch: &mut Vec<ToServer>);

    /// Bytes came that are no message; what preceded them was received. The connection is closed
    /// when this has returned, after what it sends ([`kestrel_types::wire::Refused`]).
    fn refuse(&mut self, error: &WireError);

    /// Nothing more comes, and nothing more is sent. The last call, made exactly once.
    fn closed(self: Box<Self>);
}

/// The transport's side of one connection: where frames are put.
pub trait Outbox: Send + Sync {
    /// Queues one or more whole frames; those of one call stay together. Any thread may call; it
    /// never blocks. Dropped without a word when the connection is closed.
    fn send(&self, frames: &[u8]);

    /// Closes the connection when what is queued has left, or could not for a bounded time. `why`
    /// goes to the log.
    fn close(&self, why: &str);
}
