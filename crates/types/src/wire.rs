//! The protocol between clients and metadata nodes, and between these: messages and their bytes
//! (`docs/protocol.md`).
//!
//! | file | what it has |
//! | --- | --- |
//! | `wire/message.rs` | the messages of clients and nodes, as types |
//! | `wire/frame.rs` | frames: messages cut out of a stream of bytes |
//! | `wire/session.rs` | which frame carries which message; bytes of the session's messages |
//! | `wire/op.rs` | bytes of requests: credentials and operation |
//! | `wire/reply.rs` | bytes of answers to operations, on the wire and on record |
//! | `wire/lock.rs` | locks of byte ranges and of whole files: types and bytes |
//! | `wire/reclaim.rs` | what a client tells a node that has lost its session |
//! | `wire/peer.rs` | the first messages between two nodes |
//! | `wire/basic.rs` | integers, strings, lists and other types that occur everywhere |
//! | `wire/tests.rs` | round trips of generated messages |
//!
//! A connection is a stream of frames each way: a header of [`HEADER_BYTES`] and a payload of at
//! most [`FRAME_BYTES_MAX`]. The first frame is the client's [`Hello`], answered by [`Welcome`] or
//! [`Refused`], or another node's [`PeerHello`]. From then on both sides send when they like;
//! replies come in any order and name the call they belong to.
//!
//! **Encoding.** Integers of the header are big-endian; within messages small ones are LEB128
//! varints, see `docs/protocol.md`. `decode(encode(x)) == x` for every message within its limits;
//! what exceeds them is refused by the encoder ([`TooLarge`]) as it is by the decoder.
//!
//! **Bad input.** Decoding never panics, reads nothing beyond the frame, and allocates at most a
//! small multiple of the frame's length. What a type promises by itself holds after decoding (names
//! are names, extents lie within their ranges, modes have 12 bits). Limits that belong to an
//! operation and have an errno of their own (a listing of too many entries, a link's target that is
//! too long) are for the node to judge: a client that exceeds them gets an answer, not a closed
//! door. Any [`WireError`] ends the connection: after it the stream cannot be trusted.

mod basic;
mod feed;
mod frame;
mod lock;
mod message;
mod op;
mod peer;
mod quota;
mod reclaim;
mod reply;
mod session;

#[cfg(test)]
mod tests;

pub use frame::{Checksum, Frame, Frames};
pub use lock::{LOCK_END, LockAnswer, LockKind, LockMode, LockReply, LockRequest, LockSpan};
pub use message::{
    Answered, Body, Call, ClientId, Hello, Refused, ReplyTo, SessionState, ToClient, ToServer,
    Versions, Welcome,
};
pub use op::{decode_request, encode_request};
pub use peer::{
    PROOF_BYTES, PeerChallenge, PeerHello, PeerSecret, Prover, REFUSED_LEFT, REFUSED_NODE_UUID,
    REFUSED_OLD, REFUSED_TWICE, is_refused_for_good,
};
pub use reclaim::{RECLAIM_ITEMS_MAX, Reclaim, ReclaimOpen, ReclaimReply, Reclaimed};
pub use reply::{decode_reply, encode_reply};

use std::fmt;

use crate::codec::DecodeError;
use crate::error::FsError;

/// Version of the protocol that this build speaks.
pub const VERSION: u16 = 14;

/// The error of a request for a lock that another node keeps, as [`Outcome::Misdirected`] is that
/// of other requests: look at a newer table, or wait, and ask again.
///
/// [`Outcome::Misdirected`]: crate::request::Outcome::Misdirected
pub const LOCK_MISDIRECTED: i32 = libc::EREMCHG;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;

/// Longest payload of a frame, bytes.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest payload of the first frame of a connection, bytes: a node need not hold more for a
/// stranger.
pub const HELLO_BYTES_MAX: usize = 1024;

/// A client sends no call numbered `seq` while one numbered `seq - WINDOW` or lower has no answer.
pub const WINDOW: u64 = 4096;

/// Longest name of a volume, bytes.
pub const VOLUME_BYTES_MAX: usize = 255;

/// Longest [`Hello::who`], bytes.
pub const WHO_BYTES_MAX: usize = 256;

/// Longest reason of an error, bytes; the encoder cuts longer ones.
pub const REASON_BYTES_MAX: usize = 1024;

/// Longest JSON text in a message, bytes.
pub const JSON_BYTES_MAX: usize = 1024 * 1024;

/// Most supplementary groups in [`crate::request::Creds`] (Linux `NGROUPS_MAX`).
pub const GROUPS_MAX: usize = 65_536;

/// Why bytes from the other side were not understood. The connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The frame announces more payload than allowed.
    Oversized {
        /// Bytes announced.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A kind of frame that this side does not take.
    UnknownKind(u8),
    /// Flags that this version does not know, or reserved bytes that are not zero.
    UnknownFlags,
    /// The checksum does not fit.
    Checksum,
    /// The first frame of a client offers no version that this build speaks.
    Version(Versions),
    /// The first bytes are not those of a KestrelFS client.
    NotHello,
    /// The payload is no message.
    Malformed(DecodeError),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Oversized { len, max } => {
                write!(f, "a frame of {len} bytes is above the limit of {max}")
            }
            WireError::UnknownKind(kind) => write!(f, "a frame of unknown kind {kind}"),
            WireError::UnknownFlags => f.write_str("a frame with unknown flags"),
            WireError::Checksum => f.write_str("a frame with a checksum that does not fit"),
            WireError::Version(v) => write!(
                f,
                "the client speaks versions {} to {} of the protocol, this node {} to {}: upgrade \
                 the older one",
                v.min,
                v.max,
                Versions::OURS.min,
                Versions::OURS.max
            ),
            WireError::NotHello => f.write_str("the peer does not speak the KestrelFS protocol"),
            WireError::Malformed(why) => write!(f, "a malformed message: {why}"),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(why) => Some(why),
            _ => None,
        }
    }
}

impl From<DecodeError> for WireError {
    fn from(error: DecodeError) -> Self {
        WireError::Malformed(error)
    }
}

/// A message was not encoded: it exceeds a limit, and the other side would refuse it. Nothing was
/// appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge(pub &'static str);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not sent: {} is above the protocol's limit", self.0)
    }
}

impl std::error::Error for TooLarge {}

/// Appends a client's message as a frame.
///
/// # Errors
/// If it exceeds a limit; `out` is then as it was.
pub fn encode_to_server(
    message: &ToServer,
    checksum: Checksum,
    out: &mut Vec<u8>,
) -> Result<(), TooLarge> {
    frame::put(out, session::kind_to_server(message), checksum, |w| {
        session::put_to_server(message, w)
    })
}

/// Appends a call as a frame: [`encode_to_server`] for a call that is not wrapped.
///
/// # Errors
/// As [`encode_to_server`].
pub fn encode_call(call: &Call, checksum: Checksum, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    frame::put(out, session::CALL, checksum, |w| session::put_call(call, w))
}

/// Appends a node's message as a frame. A reply that is too large becomes a failure, see
/// [`encode_reply_to`].
///
/// # Errors
/// If another message exceeds a limit; `out` is then as it was.
pub fn encode_to_client(
    message: &ToClient,
    checksum: Checksum,
    out: &mut Vec<u8>,
) -> Result<(), TooLarge> {
    match message {
        ToClient::Reply(reply) => {
            encode_reply_to(reply, checksum, out);
            Ok(())
        }
        other => frame::put(out, session::kind_to_client(other), checksum, |w| {
            session::put_to_client(other, w)
        }),
    }
}

/// Appends the answer to a call as a frame. One that is too large becomes the failure `EMSGSIZE`:
/// the client asks for less.
pub fn encode_reply_to(reply: &ReplyTo, checksum: Checksum, out: &mut Vec<u8>) {
    let ReplyTo { id, table, answered } = reply;
    let put = |out: &mut Vec<u8>, answered: &Answered| {
        frame::put(out, session::REPLY, checksum, |w| session::put_reply(*id, *table, answered, w))
    };
    if let Err(TooLarge(what)) = put(out, answered) {
        let error = FsError::because(
            libc::EMSGSIZE,
            format!("the answer was not sent: {what} is above the limit"),
        );
        let failed = match answered {
            Answered::Op(_) => Answered::Op(Err(error.into())),
            Answered::Lock(_) => Answered::Lock(Err(error)),
            Answered::Reclaim(_) => Answered::Reclaim(Err(error)),
            Answered::Admin(_) => Answered::Admin(Err(error)),
        };
        // An error is within all limits, so this one is not too large.
        let _ = put(out, &failed);
    }
}

/// Appends an envelope of a member as a frame: [`encode_to_server`] for bytes that are not in a
/// box.
///
/// # Errors
/// As [`encode_to_server`].
pub fn encode_peer(envelope: &[u8], checksum: Checksum, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    frame::put(out, session::PEER, checksum, |w| w.raw(envelope))
}

/// Reads a client's message, or another node's.
///
/// # Errors
/// See [`WireError`]; the connection must be closed.
pub fn decode_to_server(frame: Frame<'_>) -> Result<ToServer, WireError> {
    session::to_server(frame)
}

/// Reads a node's message.
///
/// # Errors
/// See [`WireError`]; the connection must be closed.
pub fn decode_to_client(frame: Frame<'_>) -> Result<ToClient, WireError> {
    session::to_client(frame)
}

/// How many replies whole frames of a node hold: for callers that bound the calls of a connection
/// without replies.
pub fn count_replies(mut frames: &[u8]) -> usize {
    let mut replies = 0;
    while let Some(([l0, l1, l2, l3, kind, ..], _)) = frames.split_first_chunk::<HEADER_BYTES>() {
        replies += usize::from(*kind == session::REPLY);
        let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        frames = frames.get(HEADER_BYTES + len..).unwrap_or_default();
    }
    replies
}
