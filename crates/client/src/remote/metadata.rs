//! The metadata of a volume that a server serves.
//!
//! Counts what it asks as a node counts what it is asked, so that figures of both kinds of volumes can be compared; here the
//! time of a request includes its way. Keeps the table of what is open up to date, and holds commits back until the bytes
//! they name are durable where that takes a sync.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kestrel_meta::node::Done;
use kestrel_meta::ops;
use kestrel_meta::stats::{self, LaneCounters, NodeStats};
use kestrel_net::link::CallId;
use kestrel_net::remote::Remote;
use kestrel_types::error::FsResult;
use kestrel_types::request::{Reply, Request};
use kestrel_types::wire::{LockReply, LockRequest};

use super::durable::{SyncFirst, names_new_bytes};
use super::holdings::Holdings;
use super::opens::Effect;
use crate::metadata::{LockServer, Metadata};

thread_local! {
    /// This thread is calling back with an answer of the server.
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread brings an answer from a server. It is the one that reads them all then, or the one that ends calls at
/// their deadline, and must wait for neither a server nor a disk.
pub fn is_answering() -> bool {
    ANSWERING.get()
}

/// Calls back with an answer of the server.
fn answering(call: impl FnOnce()) {
    let before = ANSWERING.replace(true);
    call();
    ANSWERING.set(before);
}

/// The way to a volume's metadata across a network.
pub struct RemoteMetadata {
    remote: Arc<Remote>,
    holdings: Arc<Holdings>,
    counters: Arc<[LaneCounters; 1]>,
    /// Where bytes need a sync before a commit may name them.
    sync_first: OnceLock<SyncFirst>,
}

impl RemoteMetadata {
    /// Over a connection whose session stands for `holdings`.
    pub(super) fn new(remote: Arc<Remote>, holdings: Arc<Holdings>) -> Self {
        Self { remote, holdings, counters: Arc::default(), sync_first: OnceLock::new() }
    }

    /// From now on commits wait for `sync`.
    pub(super) fn sync_first(&self, sync: SyncFirst) {
        let _ = self.sync_first.set(sync);
    }

    /// The connection.
    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// What happens with an answer before whoever asked gets it.
    fn counted(&self, request: &Request, done: Done) -> Done {
        let (since, kind, effect) = (Instant::now(), ops::kind(&request.op), Effect::of(&request.op));
        let (counters, holdings) = (self.counters.clone(), self.holdings.clone());
        Box::new(move |reply: Reply| {
            counters[0].reply_shared(kind, reply.is_err(), since.elapsed());
            holdings.opens.answered(effect, &reply);
            answering(|| done(reply));
        })
    }
}

impl Metadata for RemoteMetadata {
    fn submit(&self, request: Request, done: Done) {
        let done = self.counted(&request, done);
        match self.sync_first.get().filter(|_| names_new_bytes(&request.op)) {
            Some(sync) => {
                let remote = self.remote.clone();
                sync.then(Box::new(move |synced| match synced {
                    Ok(()) => remote.submit(request, done),
                    Err(why) => done(Err(why.into())),
                }));
            }
            None => self.remote.submit(request, done),
        }
    }

    fn remote(&self) -> Option<&RemoteMetadata> {
        Some(self)
    }

    fn locks(&self) -> Option<&dyn LockServer> {
        Some(self)
    }

    fn stats(&self) -> NodeStats {
        NodeStats { open_files: self.holdings.opens.len() as u64, ..stats::sum(&*self.counters, 1) }
    }

    fn close(&self) -> FsResult<()> {
        self.remote.close();
        Ok(())
    }
}

impl LockServer for RemoteMetadata {
    fn lock(&self, request: LockRequest, done: Box<dyn FnOnce(LockReply) + Send>) -> u64 {
        let answered = move |reply| {
            answering(|| done(reply));
        };
        self.remote.lock(request, Box::new(answered)).0
    }

    fn cancel(&self, call: u64) {
        self.remote.cancel(CallId(call));
    }
}
