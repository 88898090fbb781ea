//! The way to a volume's metadata: a node in this process, or a server across a network.
//!
//! **Order.** Requests that touch the same keys and are submitted one after the other by one thread
//! are executed in that order, unless several servers serve the volume: then requests about one
//! file may go to different ones, and a caller that needs an order waits for answers
//! (`remote::routes` says what holds). Replies may come in any order, on any thread.
//!
//! **Exactly once.** A request is executed once, or it fails having changed nothing, with one
//! exception: one that a server across a network has not answered by the deadline (`EIO`) may have
//! been executed.

use std::fmt;
use std::sync::Arc;

use kestrel_cluster::host::NodeHost;
use kestrel_meta::node::Node;
use kestrel_rpc::client::RemoteStats;
use kestrel_types::acl::{XATTR_ACCESS, XATTR_DEFAULT};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::ObjectId;
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Request};
use kestrel_types::wire::{LockReply, LockRequest};

use crate::handover::SessionNote;

/// Takes requests to the node that keeps the metadata.
pub trait Metadata: Send + Sync {
    /// Sends a request; `done` gets the reply, once, maybe before this returns. Does not wait for a
    /// network.
    fn submit(&self, request: Request, done: Done);

    /// Sends several requests at once.
    fn submit_many(&self, requests: Vec<(Request, Done)>) {
        for (request, done) in requests {
            self.submit(request, done);
        }
    }

    /// The node, if it is in this process: what needs the engine (deleting, rewriting, checking,
    /// dumping) runs here then.
    fn local(&self) -> Option<&Arc<Node>> {
        None
    }

    /// The member, if this process is one of several nodes that share the volume. It has no
    /// [`Metadata::local`] then: what needs the engine of a whole volume finds only a part of it.
    fn member(&self) -> Option<&Arc<NodeHost>> {
        None
    }

    /// Whether the metadata is across a network.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether nobody but this client changes the volume, so that what it was told stays true.
    fn is_alone(&self) -> bool {
        self.locks().is_none()
    }

    /// Calls `done` when what is asked from then on is answered by what there was at this call, or
    /// later: for a client that is told what there was a moment ago, and found that gone.
    fn catch_up(&self, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// Whether what this client takes for the root is a directory below the volume's.
    fn is_subtree(&self) -> bool {
        false
    }

    /// Whether an object was stored in a session that is lost, or may be: it may be deleted unless
    /// something refers to it.
    fn is_lost(&self, _object: ObjectId) -> bool {
        false
    }

    /// Counters of the connections, if the metadata is across a network.
    fn connection_stats(&self) -> Option<RemoteStats> {
        None
    }

    /// The keeper of locks that other clients see. Without one the kernel keeps them for each mount
    /// by itself.
    fn locks(&self) -> Option<&dyn LockServer> {
        None
    }

    /// The sessions, when no call is under way, for a client that goes on with them.
    fn session_notes(&self) -> Vec<SessionNote> {
        Vec::new()
    }

    /// Lets go of the metadata as [`Metadata::close`] does, but what is open stays open for a
    /// client that goes on with it.
    ///
    /// # Errors
    /// If what was acknowledged could not be made durable, or there are still calls without answer.
    fn leave(&self) -> FsResult<()> {
        self.close()
    }

    /// Requests answered, by kind, counted the same way wherever the node is.
    fn stats(&self) -> NodeStats;

    /// Lets go of the metadata, last of all: what is open is closed, and everything acknowledged is
    /// durable.
    ///
    /// # Errors
    /// If it could not be made durable.
    fn close(&self) -> FsResult<()>;
}

/// What the node answers for an attribute that is not there.
pub(crate) fn no_attribute() -> FsError {
    FsError::new(libc::ENODATA, "no such attribute")
}

/// What the node would answer for an attribute of an inode that has none, if that does not depend
/// on the caller.
pub(crate) fn attribute_of_none(name: &[u8]) -> Option<FsError> {
    match name {
        name if name.starts_with(b"security.") || name.starts_with(b"trusted.") => {
            Some(no_attribute())
        }
        XATTR_ACCESS | XATTR_DEFAULT => Some(no_attribute()),
        name if name.starts_with(b"system.") => {
            Some(FsError::new(libc::EOPNOTSUPP, "there are no such extended attributes"))
        }
        _ => None,
    }
}

/// A call about a lock, to be cancelled by.
pub struct LockCall(Box<dyn FnOnce() + Send>);

impl LockCall {
    /// One that `cancel` ends the wait of.
    pub fn new(cancel: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(cancel))
    }

    /// Ends its wait: it is answered `EINTR`, unless it has been answered or does not wait.
    pub fn cancel(self) {
        (self.0)();
    }
}

impl fmt::Debug for LockCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockCall").finish_non_exhaustive()
    }
}

/// Keeps locks that all clients of a volume see.
pub trait LockServer: Send + Sync {
    /// Asks about a lock; `done` gets the answer, once, maybe before this returns.
    fn lock(&self, request: LockRequest, done: Box<dyn FnOnce(LockReply) + Send>) -> LockCall;
}

/// A node in this process.
pub struct Embedded(Arc<Node>);

impl Embedded {
    /// The way to `node`.
    pub fn new(node: Arc<Node>) -> Self {
        Self(node)
    }
}

impl Metadata for Embedded {
    fn submit(&self, request: Request, done: Done) {
        self.0.submit(request, done);
    }

    fn submit_many(&self, requests: Vec<(Request, Done)>) {
        self.0.submit_many(requests);
    }

    fn local(&self) -> Option<&Arc<Node>> {
        Some(&self.0)
    }

    fn stats(&self) -> NodeStats {
        self.0.stats()
    }

    fn close(&self) -> FsResult<()> {
        self.0.close()
    }
}

/// One of several nodes, in this process; requests go to whichever leads them.
pub struct Hosted(Arc<NodeHost>);

impl Hosted {
    /// The way by way of `host`.
    pub fn new(host: Arc<NodeHost>) -> Self {
        Self(host)
    }
}

impl Metadata for Hosted {
    fn submit(&self, request: Request, done: Done) {
        self.0.submit(request, done);
    }

    fn member(&self) -> Option<&Arc<NodeHost>> {
        Some(&self.0)
    }

    fn stats(&self) -> NodeStats {
        self.0.node().stats()
    }

    fn close(&self) -> FsResult<()> {
        self.0.close()
    }
}
