//! The metadata of a volume that servers serve.
//!
//! Counts what it asks as a node counts what it is asked, so that figures of both kinds of volumes
//! can be compared; here the time of a request includes its way. Keeps the table of what is open up
//! to date, and holds commits back until the bytes they name are durable where that takes a sync.
//! How each call gets to a node and its answer back: [`super::calls`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kestrel_rpc::client::{Remote, RemoteStats};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{ObjectId, ROOT};
use kestrel_types::op_counters::{self, NodeStats};
use kestrel_types::placement::PlacementMap;
use kestrel_types::request::{Done, Op, Request};
use kestrel_types::wire::{LockReply, LockRequest};
use serde_json::Value;

use super::addresses::AddressResolver;
use super::calls::RemoteShared;
use super::durable::{SyncFirst, names_new_bytes};
use super::map_refresher::MapRefresher;
use super::nodes::{NodeConnections, NodeLink};
use super::pending::{PendingCall, PendingLock};
use super::query::NodeAnswer;
use super::reclaimable::Reclaimable;
use crate::error::VolumeError;
use crate::handover::{HexBytes, SessionNote};
use crate::metadata::{LockCall, LockServer, Metadata};
use crate::subtree;

/// How long a client that leaves its session to another one waits for the last answers.
const LEAVE: Duration = Duration::from_secs(10);

/// Why a member that leaves is not asked.
pub const MOVED_OUT: &str =
    "it leaves the cluster, and this mount has moved out of it; ask the volume by its URL";

/// The way to a volume's metadata across a network.
pub struct RemoteMetadata {
    shared: Arc<RemoteShared>,
    guide: MapRefresher,
    seeker: AddressResolver,
    /// Where bytes need a sync before a commit may name them.
    sync_first: OnceLock<SyncFirst>,
    /// What a node has acknowledged may not be durable there: a sync is for all nodes.
    syncs_all: AtomicBool,
}

impl RemoteMetadata {
    /// Over connections; their sessions stand for `reclaimable`. Starts two threads if there are
    /// several nodes.
    ///
    /// # Errors
    /// If the system refuses the thread; the connections are closed then.
    pub(super) fn new(
        nodes: NodeConnections,
        reclaimable: Arc<Reclaimable>,
    ) -> Result<Self, VolumeError> {
        let (redirects, counters) = Default::default();
        let nodes = Arc::new(nodes);
        let shared = Arc::new(RemoteShared { nodes, redirects, reclaimable, counters });
        let weak = Arc::downgrade(&shared);
        shared.reclaimable.when_objects_are_lost(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.fail_lost();
            }
        }));
        let guide = MapRefresher::start(&shared).inspect_err(|_| shared.nodes.close())?;
        let seeker = AddressResolver::start(&shared.nodes).inspect_err(|_| {
            guide.end(&shared);
            shared.nodes.close();
        })?;
        let losses = seeker.losses();
        shared.reclaimable.when_a_node_is_lost(Box::new(move || losses.noticed()));
        let weak = Arc::downgrade(&shared);
        shared.reclaimable.when_a_table_is_newer(Box::new(move |node, version| {
            if let Some(shared) = weak.upgrade() {
                shared.redirects.heard_of(node, version);
            }
        }));
        for link in &shared.nodes.known().links {
            // What was mentioned before anybody listened.
            shared.redirects.heard_of(link.node, link.remote.table());
        }
        let (sync_first, syncs_all) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { shared, guide, seeker, sync_first, syncs_all })
    }

    /// From now on a sync is one of all nodes.
    pub(super) fn sync_all_nodes(&self) {
        self.syncs_all.store(true, Ordering::Relaxed);
    }

    /// From now on commits wait for `sync`.
    pub(super) fn sync_first(&self, sync: SyncFirst) {
        let _ = self.sync_first.set(sync);
    }

    /// The connections to the volume's nodes, ascending by their numbers; one if there is only one
    /// node. None to a node that leaves and where nothing is held any more.
    pub fn nodes(&self) -> Vec<Arc<NodeLink>> {
        let nodes = self.shared.nodes.known();
        nodes.links.iter().filter(|link| !link.has_left()).cloned().collect()
    }

    /// Those to all members of the table, and to a node that leaves also when nothing can be asked
    /// there any more ([`NodeLink::has_left`]).
    pub fn members(&self) -> Vec<Arc<NodeLink>> {
        self.shared.nodes.known().links.clone()
    }

    /// The present placement map; none in a volume of one node.
    pub fn placement(&self) -> Option<Arc<PlacementMap>> {
        self.shared.nodes.known().placement.clone()
    }

    /// A connection to any node that answers, for what all of them know.
    pub fn remote(&self) -> Arc<Remote> {
        let nodes = self.shared.nodes.known();
        nodes.links[nodes.any()].remote.clone()
    }

    /// Asks all nodes the same at the same time, over these connections; the answers are in the
    /// order of the nodes' numbers. `limit` bounds how long each may take; one that is not
    /// connected is not waited for (one that does not let this client in: its reason is the error),
    /// and one that leaves and that this client has moved out of is not asked: an error says so.
    pub fn ask_each(&self, question: &Value, limit: Duration) -> Vec<NodeAnswer> {
        let ask = |link: &NodeLink| {
            let answer = match link.remote.stats().outage {
                _ if link.has_left() => Err(MOVED_OUT.to_string()),
                Some(_) if let Some(why) = link.remote.refusal() => Err(why),
                None => link
                    .remote
                    .admin(question, Some(limit), &mut |_| ())
                    .map_err(|why| why.to_string()),
                Some(outage) => Err(format!("it has not answered for {} s", outage.as_secs())),
            };
            let failed =
                |why| VolumeError::Io(format!("node {} at {}: {why}", link.node, link.address()));
            NodeAnswer { node: link.node, address: link.address(), answer: answer.map_err(failed) }
        };
        let nodes = self.members();
        std::thread::scope(|scope| {
            let asking: Vec<_> =
                nodes.iter().map(|link| (link, scope.spawn(move || ask(link)))).collect();
            let answers = asking.into_iter().map(|(link, thread)| {
                thread.join().unwrap_or_else(|_| NodeAnswer {
                    node: link.node,
                    address: link.address(),
                    answer: Err(VolumeError::Io("the thread that asks has failed".into())),
                })
            });
            answers.collect()
        })
    }

    /// A request as the servers get it: what this client takes for the root may be a directory.
    fn below_root(&self, mut request: Request, done: Done) -> (Request, Done) {
        let root = self.shared.reclaimable.root();
        if root == ROOT {
            return (request, done);
        }
        subtree::op_below(root, &mut request.op);
        let above = move |mut reply| {
            subtree::reply_above(root, &mut reply);
            done(reply);
        };
        (request, Box::new(above))
    }
}

impl Metadata for RemoteMetadata {
    fn is_subtree(&self) -> bool {
        self.shared.reclaimable.root() != ROOT
    }

    fn submit(&self, request: Request, done: Done) {
        let (request, done) = self.below_root(request, done);
        if matches!(request.op, Op::Sync) && self.syncs_all.load(Ordering::Relaxed) {
            return self.shared.sync_all(&request, done);
        }
        let asked = PendingCall::new(&request.op, done);
        match self.sync_first.get().filter(|_| names_new_bytes(&request.op)) {
            Some(sync) => {
                let shared = self.shared.clone();
                sync.then(Box::new(move |synced| match synced {
                    Ok(()) => shared.send(request, asked),
                    Err(why) => shared.answer(asked, Err(why.into())),
                }));
            }
            None => self.shared.send(request, asked),
        }
    }

    fn submit_many(&self, requests: Vec<(Request, Done)>) {
        if requests.iter().any(|(request, _)| request.op.is_numbered()) {
            return requests.into_iter().for_each(|(request, done)| self.submit(request, done));
        }
        let reads = requests.into_iter().map(|(request, done)| {
            let (request, done) = self.below_root(request, done);
            let asked = PendingCall::new(&request.op, done);
            (request, asked)
        });
        self.shared.send_reads(reads.collect());
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_lost(&self, object: ObjectId) -> bool {
        self.shared.reclaimable.numbers.is_lost(object)
    }

    fn connection_stats(&self) -> Option<RemoteStats> {
        Some(self.shared.nodes.known().stats())
    }

    fn locks(&self) -> Option<&dyn LockServer> {
        Some(self)
    }

    fn stats(&self) -> NodeStats {
        let open_files = self.shared.reclaimable.opens.len() as u64;
        NodeStats { open_files, ..op_counters::sum(&self.shared.counters, 1) }
    }

    fn session_notes(&self) -> Vec<SessionNote> {
        let note = |link: &Arc<NodeLink>| {
            let session = link.remote.session();
            let opens = self.shared.reclaimable.opens.all_at(link.node).into_iter();
            let opens = opens.map(|(ino, open)| (ino, open.count, open.write, open.linkable));
            SessionNote {
                node: link.node,
                client: HexBytes::new(&session.client.0),
                incarnation: session.incarnation,
                calls: session.calls,
                opens: opens.collect(),
            }
        };
        let nodes = self.shared.nodes.known();
        nodes.links.iter().filter(|link| !link.has_left()).map(note).collect()
    }

    fn leave(&self) -> FsResult<()> {
        self.guide.end(&self.shared);
        self.seeker.end();
        let quiet = self.shared.nodes.known().links.iter().all(|link| link.remote.leave(LEAVE));
        match quiet {
            true => Ok(()),
            false => Err(FsError::new(libc::EIO, "calls to the metadata server have no answer")),
        }
    }

    fn close(&self) -> FsResult<()> {
        self.guide.end(&self.shared);
        self.seeker.end();
        self.shared.nodes.close();
        Ok(())
    }
}

impl LockServer for RemoteMetadata {
    fn lock(&self, request: LockRequest, done: Box<dyn FnOnce(LockReply) + Send>) -> LockCall {
        let (asked, place) = PendingLock::new(request, done);
        self.shared.ask_lock(asked);
        LockCall::new(move || {
            let call = place.lock().cancel();
            if let Some((link, call)) = call {
                link.remote.cancel(call);
            }
        })
    }
}
