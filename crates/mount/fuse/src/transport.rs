//! Transports: how requests arrive and replies leave.
//!
//! | file | |
//! | --- | --- |
//! | `choice` | which transport a session shall use |
//! | `device` | the classic transport: `read(2)` and `write(2)` on `/dev/fuse` |
//! | `intake` | taking no further requests, to hand a connection over
//! | `uring` | requests and replies over io_uring |
//! | `worker_slots` | how many threads serve, and which takes over when one has to wait |
//!
//! There are two: the `/dev/fuse` device ([`device`]), and io_uring ([`uring`]) for kernels that
//! offer it. A transport owns its serving threads' loops, hands over messages in one piece or in
//! parts, and gives every request a `slot` that finds its way back with the reply (the ring entry
//! to commit).

use std::io;
use std::io::IoSlice;
use std::sync::Arc;

use crate::abi::InHeader;

mod choice;
pub mod device;
mod intake;
pub mod uring;
mod worker_slots;

pub use choice::TransportChoice;
pub(crate) use intake::Gate;
pub use intake::Intake;
pub use worker_slots::block_in_place;

/// A connection to the kernel, past INIT.
pub trait Transport: Send + Sync + 'static {
    /// For logs and status: "device", "io_uring".
    fn name(&self) -> &'static str;

    /// How many threads shall call [`serve`](Transport::serve).
    fn threads(&self) -> usize;

    /// Receives requests on the calling thread, number `thread` of [`threads`](Transport::threads),
    /// and passes them to `sink` until the connection ends.
    fn serve(&self, thread: usize, sink: &dyn RequestSink) -> io::Result<End>;

    /// The session could not start all threads: lets those go that the end of the connection alone
    /// does not.
    fn give_up(&self) {}
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
    /// Sends one message, given in pieces of which the first begins with the whole header. Must not
    /// block on other requests. Failures concern only the kernel, which has then ended the request
    /// itself; they are counted.
    fn send(&self, slot: u64, parts: &[IoSlice<'_>]);

    /// A request of this channel is set aside, or is about to be answered after that: see
    /// [`Reply::set_aside`](crate::Reply::set_aside).
    fn set_aside(&self, aside: bool) {
        let _ = aside;
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Unmounted in good order.
    Unmounted,
    /// Cut off, by [`abort`](crate::mount::abort) or the kernel's request timeout.
    Aborted,
}
