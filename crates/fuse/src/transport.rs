//! Transports: how requests arrive and replies leave.
//!
//! There is one today, the `/dev/fuse` device ([`device`]). The traits are cut so that FUSE over io_uring becomes a
//! second one without a change above: a transport owns its serving threads' loops, hands over messages in one piece or
//! in parts, and gives every request a `slot` that finds its way back with the reply (the ring entry to commit).

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use crate::abi::InHeader;

pub mod device;
mod seats;

pub use seats::block_in_place;

/// A connection to the kernel, past INIT.
pub trait Transport: Send + Sync + 'static {
    /// For logs and status: "device", "io_uring".
    fn name(&self) -> &'static str;

    /// How many threads shall call [`serve`](Transport::serve).
    fn threads(&self) -> usize;

    /// Receives requests on the calling thread, number `thread` of [`threads`](Transport::threads), and passes them
    /// to `sink` until the connection ends.
    fn serve(&self, thread: usize, sink: &dyn RequestSink) -> io::Result<End>;
}

/// Where a transport delivers requests: the session.
pub trait RequestSink: Send + Sync {
    /// A message in one piece, header first.
    fn message(&self, message: &[u8], slot: u64, channel: &Arc<dyn ReplyChannel>);

    /// A message in parts: header, the operation's fixed structure, names and payload.
    fn message_split(
        &self,
        header: &InHeader,
        fixed: &[u8],
        payload: &[u8],
        slot: u64,
        channel: &Arc<dyn ReplyChannel>,
    );
}

/// Where replies go: the same descriptor or ring on which the request came.
pub trait ReplyChannel: Send + Sync + 'static {
    /// Sends one message, given in pieces of which the first begins with the whole header. Must not block on other
    /// requests. Failures concern nobody but the kernel, which has then ended the request itself; they are counted.
    fn send(&self, slot: u64, parts: &[IoSlice<'_>]);
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Unmounted in good order.
    Unmounted,
    /// Cut off, by [`abort`](crate::mount::abort) or the kernel's request timeout.
    Aborted,
}
