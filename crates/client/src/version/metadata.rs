//! The metadata of a version that is read from the store: a node in this process that changes
//! nothing. (What a curator serves its server guards.)

use std::sync::Arc;

use kestrel_meta::node::Node;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Done, Outcome, Request};

use crate::metadata::{Embedded, Metadata};

/// See the module's header.
pub(super) struct VersionMetadata(Embedded);

impl VersionMetadata {
    /// The way to `node`.
    pub fn new(node: Arc<Node>) -> Self {
        Self(Embedded::new(node))
    }
}

fn refused() -> Outcome {
    FsError::new(libc::EROFS, "a published version never changes").into()
}

impl Metadata for VersionMetadata {
    fn submit(&self, request: Request, done: Done) {
        match request.op.is_change() {
            true => done(Err(refused())),
            false => self.0.submit(request, done),
        }
    }

    fn submit_many(&self, requests: Vec<(Request, Done)>) {
        let (changes, reads): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|(request, _)| request.op.is_change());
        changes.into_iter().for_each(|(_, done)| done(Err(refused())));
        self.0.submit_many(reads);
    }

    fn local(&self) -> Option<&Arc<Node>> {
        self.0.local()
    }

    fn stats(&self) -> NodeStats {
        self.0.stats()
    }

    fn close(&self) -> FsResult<()> {
        self.0.close()
    }
}
