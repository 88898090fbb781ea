//! What clients and metadata nodes say to each other.

use std::borrow::Cow;
use std::fmt;

use super::lock::{LockReply, LockRequest};
use super::peer::{PROOF_BYTES, PeerChallenge, PeerHello};
use super::reclaim::{Reclaim, ReclaimReply};
use crate::error::FsResult;
use crate::ids::{InodeId, ObjectId};
use crate::request::{Reply, Request};
use crate::token::TokenId;

/// Name of a client: 16 random bytes that it draws once, when it starts. Never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub [u8; 16]);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Versions of the protocol that a client speaks, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Oldest; the [`Hello`] that carries it is written in this version's layout.
    pub min: u16,
    /// Newest.
    pub max: u16,
}

impl Versions {
    /// What this build speaks.
    pub const OURS: Self = Self { min: super::VERSION, max: super::VERSION };

    /// The newest version that both sides speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// First message of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Versions offered.
    pub versions: Versions,
    /// Name of the volume, 1 to [`super::VOLUME_BYTES_MAX`] bytes.
    pub volume: String,
    /// The client that connects.
    pub client: ClientId,
    /// Counts the connections of this client, from 1. A connection supersedes those with lower
    /// numbers.
    pub incarnation: u64,
    /// For readers of logs: host, process, mount point; at most [`super::WHO_BYTES_MAX`] bytes.
    pub who: String,
    /// A node has welcomed this client before: it may have opens and locks to lose.
    pub established: bool,
    /// The token that the client has. It is asked to prove that by [`ToClient::Challenge`].
    pub token: Option<TokenId>,
}

/// A message from a client, or from another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToServer {
    /// First message of a connection, and only that. Answer: Welcome or Refused.
    Hello(Hello),
    /// A call. Answer: one Reply with its id, in any order with other replies.
    Call(Call),
    /// The client lives. Answer: Pong.
    Ping {
        /// Objects below this number that this client allocated are referenced or abandoned;
        /// `u64::MAX` if it has none open. What it is still uploading is at or above.
        oldest_open_object: ObjectId,
    },
    /// Gives up waiting in the call with this id: its Reply says `EINTR`, unless it was finished
    /// before. A call that does not wait is not affected. No answer of its own.
    Cancel {
        /// The call.
        id: u64,
    },
    /// The session ends: opens and locks are released. No answer; the client closes.
    Bye,
    /// First message of a connection of another node, and only that. Answer: PeerChallenge, or
    /// Refused.
    PeerHello(PeerHello),
    /// Second message of a connection of another node: that it knows the cluster's secret. No
    /// answer, or Refused.
    PeerProof([u8; PROOF_BYTES]),
    /// From another node: one envelope of its member. No answer; and none to a Ping from there.
    Peer(Box<[u8]>),
    /// The answer to a [`ToClient::Challenge`], which only a client that has the token can give.
    Proof([u8; 32]),
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Chosen by the client, unique among its calls that wait for their replies, on this
    /// connection.
    pub id: u64,
    /// Number for exactly-once execution, ascending from 1, perhaps with gaps; 0 for calls that may
    /// be executed twice, see [`Body::is_numbered`].
    pub seq: u64,
    /// Every numbered call up to this one has its answer: the node may forget them.
    pub acked: u64,
    /// The call was sent before, on another connection, and has not been answered.
    pub retry: bool,
    /// What is asked.
    pub body: Body,
}

/// What a [`Call`] asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A metadata operation. Answer: [`Answered::Op`].
    Op(Request),
    /// A lock. Answer: [`Answered::Lock`].
    Lock(LockRequest),
    /// What a client holds of a session that the node has lost. Answer: [`Answered::Reclaim`].
    Reclaim(Reclaim),
    /// A question of the control protocol in JSON, at most [`super::JSON_BYTES_MAX`] bytes. Answer:
    /// [`Answered::Admin`].
    Admin(Box<[u8]>),
}

impl Body {
    /// Whether the call must be executed exactly once and so carries a number
    /// ([`Op::is_numbered`](crate::request::Op::is_numbered)). Locks and reclaims are idempotent,
    /// admin calls are never sent twice.
    pub fn is_numbered(&self) -> bool {
        matches!(self, Body::Op(request) if request.op.is_numbered())
    }
}

/// What became of a client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    /// It begins now.
    New = 1,
    /// It goes on: unanswered calls are sent again, nothing is lost.
    Known = 2,
    /// The node has restarted: opens and locks must be reclaimed before anything else.
    Restarted = 3,
    /// The node had given it up: locks are lost, opens may be reclaimed, what became of unanswered
    /// calls is known only if their answers are still recorded.
    Expired = 4,
}

/// The answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u16,
    /// Number of the node within its cluster.
    pub node: u32,
    /// Counts the starts of the node.
    pub epoch: u64,
    /// The volume's descriptor as JSON, at most [`super::JSON_BYTES_MAX`] bytes.
    pub descriptor: Box<[u8]>,
    /// What became of the session.
    pub session: SessionState,
    /// A client not heard of for this long has lost its session.
    pub lease_ms: u32,
    /// Version of the placement map.
    pub table: u64,
    /// The directory that this client takes for the root: another one than that if it is confined
    /// to a subtree.
    pub root: InodeId,
}

/// Why a connection is not served; the node closes it after this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Linux errno value, above zero.
    pub errno: i32,
    /// What failed, why, and what to do; at most [`super::REASON_BYTES_MAX`] bytes.
    pub reason: Cow<'static, str>,
}

/// A message from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToClient {
    /// The client is served.
    Welcome(Welcome),
    /// It is not.
    Refused(Refused),
    /// The answer to a call.
    Reply(ReplyTo),
    /// Something to tell before the answer of an admin call is ready.
    Event {
        /// The call.
        id: u64,
        /// A message of the control protocol in JSON, at most [`super::JSON_BYTES_MAX`] bytes.
        json: Box<[u8]>,
    },
    /// The answer to a Ping.
    Pong {
        /// Version of the placement map that the node has, as in a [`ReplyTo`]: a client that
        /// asks for nothing hears of a newer one, too.
        table: u64,
    },
    /// The answer to another node's PeerHello.
    PeerChallenge(PeerChallenge),
    /// The answer to a Hello that names a token: random bytes. Answer: [`ToServer::Proof`], and to
    /// that Welcome or Refused.
    Challenge([u8; 32]),
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo {
    /// The call's id.
    pub id: u64,
    /// Version of the node's placement map.
    pub table: u64,
    /// The answer.
    pub answered: Answered,
}

/// What was answered, by what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// To [`Body::Op`].
    Op(Reply),
    /// To [`Body::Lock`].
    Lock(LockReply),
    /// To [`Body::Reclaim`].
    Reclaim(ReclaimReply),
    /// To [`Body::Admin`]: JSON, at most [`super::JSON_BYTES_MAX`] bytes.
    Admin(FsResult<Box<[u8]>>),
}
