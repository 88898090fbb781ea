//! The metadata of a volume that servers serve.
//!
//! Counts what it asks as a node counts what it is asked, so that figures of both kinds of volumes
//! can be compared; here the time of a request includes its way. Keeps the table of what is open up
//! to date, and holds commits back until the bytes they name are durable where that takes a sync.
//! Which node is asked: [`super::routes`]; which answers lead to another attempt:
//! [`super::pending`].

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kestrel_rpc::client::{Remote, RemoteStats};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ObjectId, ROOT};
use kestrel_types::op_counters::{self, NodeStats, WorkerCounters};
use kestrel_types::placement::PlacementMap;
use kestrel_types::request::{Answer, Done, Op, Reply, Request};
use kestrel_types::wire::{LockReply, LockRequest};
use serde_json::Value;

use super::addresses::{AddressResolver, LostNodes};
use super::durable::{SyncFirst, names_bytes_in, names_new_bytes};
use super::leaving::Moves;
use super::nodes::{NodeConnections, NodeLink, NodeSet};
use super::opens::{OpenEffect, ReleasedOpen};
use super::pending::{INTERRUPTED, Next, PendingCall, PendingLock, RedirectedCall, RequestRoute};
use super::query::NodeAnswer;
use super::reclaimable::Reclaimable;
use super::redirects::{CLOSED, MapRefresher, Redirects};
use super::routes::SecondTry;
use super::subtree;
use crate::error::VolumeError;
use crate::metadata::{LockCall, LockServer, Metadata};

/// Why a member that leaves is not asked.
pub const MOVED_OUT: &str =
    "it leaves the cluster, and this mount has moved out of it; ask the volume by its URL";

/// Why new bytes are not committed.
const BYTES_LOST: &str = "the data was stored while this client was cut off, for longer than its lease, from the metadata node that \
    keeps such data from being deleted; it is not committed: write it again";

thread_local! {
    /// This thread is calling back with an answer of a server.
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread brings an answer from a server. It is the one that reads them all then, or
/// the one that ends calls at their deadline, and must wait for neither a server nor a disk.
pub fn is_answering() -> bool {
    ANSWERING.get()
}

/// Calls back with an answer of a server.
pub(super) fn answering(call: impl FnOnce()) {
    let before = ANSWERING.replace(true);
    call();
    ANSWERING.set(before);
}

/// The way to a volume's metadata across a network.
pub struct RemoteMetadata {
    shared: Arc<RemoteShared>,
    guide: MapRefresher,
    seeker: AddressResolver,
    /// Where bytes need a sync before a commit may name them.
    sync_first: OnceLock<SyncFirst>,
}

/// What answers need.
pub(super) struct RemoteShared {
    pub nodes: NodeConnections,
    pub redirects: Redirects,
    pub moves: Moves,
    pub losses: Arc<LostNodes>,
    pub reclaimable: Arc<Reclaimable>,
    counters: [WorkerCounters; 1],
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
        let (redirects, moves, losses, counters) = Default::default();
        let shared =
            Arc::new(RemoteShared { nodes, redirects, moves, losses, reclaimable, counters });
        let weak = Arc::downgrade(&shared);
        shared.reclaimable.when_objects_are_lost(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.fail_lost();
            }
        }));
        let guide = MapRefresher::start(&shared).inspect_err(|_| shared.nodes.close())?;
        let seeker = AddressResolver::start(&shared).inspect_err(|_| {
            guide.end(&shared);
            shared.nodes.close();
        })?;
        let losses = shared.losses.clone();
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
        Ok(Self { shared, guide, seeker, sync_first: OnceLock::new() })
    }

    /// Whether an object was stored in a session that is lost, or may be: it may be deleted unless
    /// something refers to it.
    pub fn is_lost(&self, object: ObjectId) -> bool {
        self.shared.reclaimable.numbers.is_lost(object)
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

    /// Counters of all connections together.
    pub fn connection_stats(&self) -> RemoteStats {
        self.shared.nodes.known().stats()
    }
}

impl RemoteShared {
    /// Ends the requests that wait for nodes and name new bytes which may be deleted.
    fn fail_lost(&self) {
        for link in &self.nodes.known().links {
            link.remote.fail_waiting(|op| self.names_lost(op), BYTES_LOST);
        }
    }

    fn names_lost(&self, op: &Op) -> bool {
        let numbers = &self.reclaimable.numbers;
        numbers.losses() > 0 && names_bytes_in(op, |object| numbers.is_lost(object))
    }

    /// Sends a request to the node that leads it.
    pub fn send(self: &Arc<Self>, request: Request, asked: PendingCall) {
        let losses = self.reclaimable.numbers.losses();
        if self.names_lost(&request.op) {
            return self.answer(asked, Err(FsError::new(libc::EIO, BYTES_LOST).into()));
        }
        if let Op::Release(ino) = request.op {
            return self.give_back(ino, request, asked);
        }
        let nodes = self.nodes.known();
        let used = nodes.begin_use(&request.op, &self.reclaimable.opens);
        let at = nodes.leader(&request.op, used.map(|row| row.node));
        let second_try = nodes.second_try(&request, at);
        let route = RequestRoute { effect: OpenEffect::of(&request.op), used, second_try };
        self.send_to(&nodes, at, request, route, asked);
        if self.reclaimable.numbers.losses() != losses {
            // It may wait since after the others were ended.
            self.fail_lost();
        }
    }

    /// Sends a release to a node that counts an open, unless its node has lost it.
    fn give_back(self: &Arc<Self>, ino: InodeId, request: Request, asked: PendingCall) {
        let nodes = self.nodes.known();
        match self.reclaimable.opens.leave(ino) {
            ReleasedOpen::Back(given) => {
                let at = nodes.index_of(given.node);
                self.send_to(
                    &nodes,
                    at,
                    request,
                    RequestRoute::of(OpenEffect::Releases(given)),
                    asked,
                );
            }
            ReleasedOpen::Lost => self.answer(asked, Ok(Answer::Done)),
            ReleasedOpen::Unknown => {
                self.send_to(
                    &nodes,
                    nodes.home_of(ino),
                    request,
                    RequestRoute::of(OpenEffect::None),
                    asked,
                );
            }
        }
    }

    /// Sends a request to this node, and takes in what its answer means before the caller gets it.
    pub fn send_to(
        self: &Arc<Self>,
        nodes: &NodeSet,
        at: usize,
        request: Request,
        route: RequestRoute,
        asked: PendingCall,
    ) {
        let RequestRoute { effect, used, second_try } = route;
        let (shared, version) = (self.clone(), nodes.version());
        let link = &nodes.links[at];
        let node = link.node;
        let numbers = &self.reclaimable.numbers;
        let generation =
            matches!(request.op, Op::AllocObjects(_)).then(|| numbers.generation(node));
        // The time that is left is counted from the first node that was asked.
        let left = (asked.redirected > 0).then(|| self.time_left(asked.since));
        let answered = move |reply: Reply, request: Option<Request>| {
            if let Some(row) = &used {
                shared.reclaimable.opens.end_use(row);
            }
            // An open is given back where it is counted.
            let redirect = request.filter(|_| !matches!(effect, OpenEffect::Releases(_)));
            let next = PendingCall::retry((&reply).into(), redirect, second_try);
            if let Next::Redirect { call, table } = next {
                if let Some(table) = table {
                    shared.redirects.heard_of(node, table);
                }
                return shared.led_elsewhere(RedirectedCall::Op(call, asked.redirects()), version);
            }
            if let (Some(generation), Ok(Answer::Objects { first, count })) = (generation, &reply) {
                shared.reclaimable.numbers.gave(node, generation, (*first, *count));
            }
            shared.reclaimable.opens.answered(node, effect, &reply);
            match next {
                Next::SecondTry(SecondTry { ino, request }) => answering(|| {
                    let nodes = shared.nodes.known();
                    let (home, route) = (nodes.home_of(ino), RequestRoute::of(effect));
                    shared.send_to(&nodes, home, request, route, asked);
                }),
                _ => shared.answer(asked, reply),
            }
        };
        link.remote.submit_or_back(request, left, Box::new(answered));
    }

    /// What is left of the time that a call may wait.
    pub fn time_left(&self, since: Instant) -> Duration {
        self.nodes.deadline().saturating_sub(since.elapsed())
    }

    /// Goes on with what a node does not lead, which was asked by a table of this version.
    fn led_elsewhere(self: &Arc<Self>, redirected_call: RedirectedCall, version: u64) {
        if self.nodes.known().version() > version {
            // There is a newer one meanwhile.
            answering(|| redirected_call.go_on(self));
        } else if let Some(redirected_call) = self.redirects.park(redirected_call, version) {
            answering(|| redirected_call.end(self, CLOSED));
        }
    }

    /// Asks the home of a file about a lock.
    pub fn ask_lock(self: &Arc<Self>, asked: PendingLock) {
        let nodes = self.nodes.known();
        let link = nodes.links[nodes.home_of(asked.request.ino())].clone();
        let (shared, version) = (self.clone(), nodes.version());
        let (request, place, attempt) = (asked.request, asked.place.clone(), asked.redirected);
        if !place.lock().is_wanted() {
            return asked.end(Err(INTERRUPTED));
        }
        let answered = move |reply: LockReply| {
            // Locks are always asked for at the home of the file: there is no second try.
            match PendingCall::retry((&reply).into(), Some(()), None::<()>) {
                Next::Redirect { .. } => {
                    shared.led_elsewhere(RedirectedCall::Lock(asked.redirects()), version);
                }
                _ => asked.end(reply),
            }
        };
        let call = link.remote.lock(request, Box::new(answered));
        let cancelled = place.lock().asked(attempt, link, call);
        if let Some((link, call)) = cancelled {
            link.remote.cancel(call);
        }
    }

    pub fn answer(&self, asked: PendingCall, reply: Reply) {
        asked.end(&self.counters[0], reply);
    }
}

impl Metadata for RemoteMetadata {
    fn submit(&self, mut request: Request, mut done: Done) {
        let root = self.shared.reclaimable.root();
        if root != ROOT {
            subtree::op_below(root, &mut request.op);
            let above = done;
            done = Box::new(move |mut reply| {
                subtree::reply_above(root, &mut reply);
                above(reply);
            });
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

    fn remote(&self) -> Option<&RemoteMetadata> {
        Some(self)
    }

    fn locks(&self) -> Option<&dyn LockServer> {
        Some(self)
    }

    fn stats(&self) -> NodeStats {
        let open_files = self.shared.reclaimable.opens.len() as u64;
        NodeStats { open_files, ..op_counters::sum(&self.shared.counters, 1) }
    }

    fn close(&self) -> FsResult<()> {
        self.guide.end(&self.shared);
        self.seeker.end(&self.shared);
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
