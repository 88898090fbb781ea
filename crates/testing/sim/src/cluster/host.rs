//! A member's machine: disk and process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_cluster::change::{Announced, Changed, Expected, Phase};
use kestrel_cluster::lease::LeaseStats;
use kestrel_cluster::{ClusterNode, ClusterNodeConfig, Envelope, RESTART_MIN, Requester};
use kestrel_engine::memory::{MemoryEngine, SyncWhen};
use kestrel_engine::{Engine, EngineError};
use kestrel_meta::node::{Durability, NodeConfig, Replies, RootAttr};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{ManualClock, Nanos, SECOND};
use kestrel_types::ids::ObjectId;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::request::{Creds, Op, Outcome, Reply, Request};
use kestrel_types::wire::ClientId;
use parking_lot::{Mutex, MutexGuard};

use super::leaving::{Needed, giver_of};
use super::sessions::{Claimed, Sessions, Shared};
use super::store::{Fate, Store, Way};
use super::zombie::{HeardStarts, Zombie, submit_in_session};

/// Replies to clients' calls.
pub type Replied = Arc<Mutex<Vec<(usize, u64, Reply)>>>;

/// Numbers of objects in use.
type Used = Arc<Mutex<BTreeSet<ObjectId>>>;

/// Objects to delete, and in which start the process was told to.
pub type Free = Arc<Mutex<Vec<(u64, Vec<ObjectId>)>>>;

/// See the module's header.
pub struct Host {
    engine: Option<Arc<MemoryEngine>>,
    clock: Arc<ManualClock>,
    config: ClusterNodeConfig,
    member: Option<ClusterNode>,
    /// An earlier start that was presumed dead and goes on, cut off from all others: it gets copies
    /// of the clients' calls, and its messages reach none. The engine must refuse what it commits.
    ghost: Option<ClusterNode>,
    /// The same of a store that others can claim: it is cut off from some nodes, or from none.
    pub zombie: Option<Zombie>,
    /// What others can claim its store by, if they can.
    way: Option<Arc<Way>>,
    /// The newest starts of others that it has met.
    heard_starts: HeardStarts,
    /// The next start is on another machine, which does not know whether the last one has ended.
    pub elsewhere: bool,
    /// Commits of ghosts that the engine refused.
    refused: Arc<AtomicU64>,
    /// Counts starts: timers of an earlier one do nothing.
    start: u64,
    /// When it ended last, or long ago.
    ended: Nanos,
    sync_planned: bool,
    /// Its store answers no more, and its process is about to end.
    failed: bool,
    /// When its next messages are planned to leave.
    speaks: bool,
    /// Its process is stopped until then.
    pub stopped_until: Nanos,
    /// It never runs again.
    pub lost: bool,
    replies: Replied,
    /// Numbers of objects that clients still use.
    used: Used,
    /// Members that clients need.
    needed: Needed,
    free: Free,
    sessions: Shared,
    /// What became of leases in earlier starts.
    leases: LeaseStats,
}

/// The answer of a store that has failed. A client that gets it can conclude no more than one that
/// gets none.
const NO_ANSWER: &str = "the store gave no answer";

/// Whether a request failed so that its outcome cannot be told.
pub fn is_no_answer(reply: &Reply) -> bool {
    matches!(reply, Err(Outcome::Failed(why)) if why.reason.contains(NO_ANSWER))
}

impl Host {
    /// A machine with its part of an empty volume, perhaps one that is yet to join; nothing runs.
    pub fn new(
        (me, joining): (NodeId, bool),
        placement: PlacementMap,
        clock: Arc<ManualClock>,
        (workers, scan_rows): (usize, usize),
        seed: u64,
        (used, needed): (Used, Needed),
        shared: bool,
    ) -> Self {
        let engine = if shared {
            MemoryEngine::shared(SyncWhen::Told)
        } else {
            MemoryEngine::new(SyncWhen::Told)
        };
        let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
        ClusterNode::format(&engine, root, SECOND, me, placement.clone()).expect("an empty engine");
        let node = NodeConfig {
            workers,
            durability: Durability::Commit,
            grace: 2 * SECOND,
            objects_from: 0,
            serves: true,
            figures: None,
            replies: Replies::Inline,
            batch_max: 64,
            // So few that small files are cut in several batches, and tables change in many steps.
            scan_rows,
            // So little that dentries are evicted.
            replica_bytes: 1,
        };
        Self {
            engine: Some(Arc::new(engine)),
            clock,
            config: ClusterNodeConfig { me, placement, node, seed, joining, exclusive: true },
            member: None,
            ghost: None,
            zombie: None,
            way: None,
            heard_starts: HeardStarts::default(),
            elsewhere: false,
            refused: Arc::default(),
            start: 0,
            ended: -RESTART_MIN,
            sync_planned: false,
            speaks: false,
            stopped_until: 0,
            replies: Replied::default(),
            used,
            needed,
            lost: false,
            failed: false,
            free: Free::default(),
            sessions: Shared::default(),
            leases: LeaseStats::default(),
        }
    }

    /// Starts the process; the number of the start.
    pub fn start(&mut self, now: Nanos) -> u64 {
        self.start += 1;
        let mut engine: Arc<dyn Engine> = self.engine().clone();
        if let Some(zombie) = self.zombie.as_ref().filter(|zombie| !zombie.way.has_parted()) {
            zombie.way.part(self.engine(), zombie.fate);
        }
        if engine.is_shared() {
            let way = Arc::<Way>::default();
            engine = Arc::new(Store { engine: self.engine().clone(), way: way.clone() });
            self.way = Some(way);
        }
        let exclusive = !std::mem::take(&mut self.elsewhere) && self.zombie.is_none();
        let config = ClusterNodeConfig { exclusive, ..self.config.clone() };
        let member = ClusterNode::open(engine, self.clock.clone(), config, now);
        let mut member = member.expect("a sound volume");
        let (me, used) = (self.config.me, self.used.clone());
        // Each node has a record of the numbers that it gave.
        let gave = move |object| giver_of(object) == me;
        member.set_object_users(Box::new(move |object| {
            gave(object) && used.lock().contains(&object)
        }));
        let needed = self.needed.clone();
        let guard = move || needed.lock().contains(&me).then(|| "clients need it".into());
        member.set_departure_guard(Box::new(guard));
        self.member = Some(member);
        self.sessions = Shared::default();
        self.start
    }

    /// When the process may start again.
    pub fn rests_until(&self) -> Nanos {
        self.ended + RESTART_MIN
    }

    /// Number of the present start, or of the last end.
    pub fn started(&self) -> u64 {
        self.start
    }

    /// The sessions of clients.
    pub fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// The process is gone at once. If the power is, so is what was not synced, or the end of it:
    /// `keep` is how much of it stays, in percent.
    pub fn kill(&mut self, keep: Option<u64>, now: Nanos) {
        self.end(now);
        self.ghost = None;
        if self.zombie.is_some() {
            // It goes on, and what was committed is in the store.
            return self.engine().sync().expect("no fault was injected");
        }
        let engine = self.engine.take().expect("taken only here");
        let mut engine = Arc::into_inner(engine).expect("nothing of the process is left");
        match keep {
            Some(keep) => {
                let unsynced = engine.appended() - engine.durable();
                engine.crash_to(engine.durable() + unsynced * keep / 100);
            }
            None => engine.sync().expect("no fault was injected"),
        }
        self.engine = Some(Arc::new(engine));
    }

    /// The process is presumed dead and goes on beside its next start.
    pub fn haunt(&mut self, now: Nanos) {
        self.ghost = self.member.take();
        self.end(now);
    }

    /// As above, and the members that it is not cut off from reach it, if others can claim its
    /// store. Its start.
    pub fn haunt_alive(
        &mut self,
        cuts: BTreeSet<NodeId>,
        fate: Fate,
        stopped_until: Nanos,
        now: Nanos,
    ) -> Option<u64> {
        let zombie = Zombie {
            member: self.member.take()?,
            start: self.start,
            way: self.way.take()?,
            fate,
            replies: self.replies.clone(),
            free: self.free.clone(),
            sessions: self.sessions.clone(),
            heard_starts: std::mem::take(&mut self.heard_starts),
            cuts,
            stopped_until,
            sync_planned: false,
        };
        self.end(now);
        self.zombie = Some(zombie);
        Some(self.start - 1)
    }

    /// Whether others can claim its store.
    pub fn is_shared(&self) -> bool {
        self.engine().is_shared()
    }

    /// It is about to end, and gives its lease up.
    pub fn give_up_lease(&mut self, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.give_up_lease(now);
        }
    }

    /// It announces that it has ended.
    pub fn say_released(&mut self) {
        if let Some(member) = &mut self.member {
            member.say_released();
        }
    }

    /// Its store gives no answer to what was not synced, nor takes anything. False if there is
    /// nothing to fail.
    pub fn fail_store(&mut self, now: Nanos) -> bool {
        if self.failed || self.member.is_none() || self.ghost.is_some() || self.zombie.is_some() {
            return false;
        }
        self.failed = true;
        self.sessions.lock().fail_store();
        self.engine().fail_sync(EngineError::Io(NO_ANSWER.into()));
        self.engine().sync().expect_err("a fault was injected");
        self.tick(now);
        true
    }

    /// Whether its store has failed, and its process runs.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// What was presumed dead is.
    pub fn lay(&mut self) {
        (self.ghost, self.zombie) = (None, None);
    }

    fn end(&mut self, now: Nanos) {
        self.leases = self.leases();
        self.member = None;
        self.heard_starts = HeardStarts::default();
        self.ended = now;
        self.start += 1;
        self.sync_planned = false;
        self.failed = false;
        self.speaks = false;
        self.stopped_until = 0;
        // New ones: no client gets what a ghost still sends.
        (self.replies, self.free) = (Replied::default(), Free::default());
    }

    /// Commits of ghosts that the engine refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A ghost gets a copy of a client's call.
    fn copy_to_ghost(&mut self, request: &Request, origin: Option<Origin>, now: Nanos) {
        let Some(ghost) = &mut self.ghost else { return };
        let refused = self.refused.clone();
        let done = move |reply: Reply| {
            if let Err(Outcome::Failed(why)) = reply
                && why.reason.contains("taken this metadata over")
            {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        };
        ghost.submit(request.clone(), Requester::Session(origin), Box::new(done), now);
        ghost.tick(now);
        ghost.take_outbox();
    }

    /// The disk.
    pub fn engine(&self) -> &Arc<MemoryEngine> {
        self.engine.as_ref().expect("taken only within a crash")
    }

    /// The process, if it runs.
    pub fn member(&self) -> Option<&ClusterNode> {
        self.member.as_ref()
    }

    /// Whether the process runs, since this start.
    pub fn is_up(&self, start: u64) -> bool {
        self.member.is_some() && self.start == start
    }

    /// What became of leases in all its starts.
    pub fn leases(&self) -> LeaseStats {
        let LeaseStats { lapses, fenced, .. } = self.leases;
        let now = self.member.as_ref().map(ClusterNode::lease_stats).unwrap_or_default();
        LeaseStats { lapses: lapses + now.lapses, fenced: fenced + now.fenced, ..now }
    }

    /// The table that the process has, if it runs.
    pub fn placement(&self) -> Option<PlacementMap> {
        self.member.as_ref().map(|member| member.placement())
    }

    /// The table with which it was set up.
    pub fn formed(&self) -> &PlacementMap {
        &self.config.placement
    }

    /// Whether it is not yet taken into the cluster.
    pub fn joins(&self) -> bool {
        // A node may be formed with a table that the others have just got.
        self.member.as_ref().map_or(self.config.joining, |member| member.change_stats().joining)
    }

    /// Whether it is not a member any more, or never was and will not be.
    pub fn is_out(&self) -> bool {
        self.lost || self.member.as_ref().is_some_and(ClusterNode::has_left)
    }

    /// An operator wants a node to be forgotten.
    pub fn forget(&mut self, node: NodeId, done: Changed, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.forget(node, done, now);
        }
    }

    /// Whether its process runs and no change of the table is under way there.
    pub fn has_no_change(&self) -> bool {
        self.member.as_ref().is_some_and(|member| {
            let stats = member.change_stats();
            stats.phase == Phase::None && !stats.purging && !stats.leads
        })
    }

    /// An operator wants another map.
    pub fn change(&mut self, next: PlacementMap, done: Changed, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.change(next, done, now);
        }
    }

    /// An operator wants a new member's number.
    pub fn expect(&mut self, node: Announced, done: Expected, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.expect(node, done, now);
        }
    }

    /// Until when the process is stopped, if it is.
    pub fn stopped(&self, now: Nanos) -> Option<Nanos> {
        (self.stopped_until > now).then_some(self.stopped_until)
    }

    /// A message of this start of another member arrives.
    pub fn receive(&mut self, envelope: Envelope, epoch: u64, now: Nanos) {
        let shared = self.is_shared();
        if let Some(member) = &mut self.member
            && (!shared || self.heard_starts.lets_in(member, envelope.from, epoch))
        {
            member.receive(envelope, now);
        }
    }

    /// Counts the starts of its member, as the others know it.
    pub fn epoch(&self) -> u64 {
        self.member.as_ref().map_or(0, ClusterNode::epoch)
    }

    /// A client's call that is not numbered arrives.
    pub fn submit(&mut self, client: usize, number: u64, request: Request, now: Nanos) {
        self.copy_to_ghost(&request, None, now);
        let Some(member) = &mut self.member else { return };
        let replies = self.replies.clone();
        let done = move |reply| replies.lock().push((client, number, reply));
        member.submit(request, Requester::Session(None), Box::new(done), now);
    }

    /// The process requests the objects that it may delete.
    pub fn condemn(&mut self, wall: Nanos, now: Nanos) {
        let Some(member) = &mut self.member else { return };
        let (free, start) = (self.free.clone(), self.start);
        let done = move |objects| {
            if let Ok(objects) = objects {
                free.lock().push((start, objects));
            }
        };
        member.condemn(wall, 100, Box::new(done), now);
    }

    /// The objects that it is to delete, and the start in which it was told to.
    pub fn take_free(&mut self) -> Vec<(u64, Vec<ObjectId>)> {
        std::mem::take(&mut *self.free.lock())
    }

    /// It has deleted these.
    pub fn reaped(&mut self, objects: &[ObjectId], now: Nanos) {
        if let Some(member) = &mut self.member {
            member.reaped(objects, Box::new(|_| ()), now);
        }
    }

    /// A client's numbered call arrives.
    pub fn submit_in_session(
        &mut self,
        client_index: usize,
        request: Request,
        origin: Origin,
        now: Nanos,
    ) {
        self.copy_to_ghost(&request, Some(origin), now);
        let Some(member) = &mut self.member else { return };
        submit_in_session(
            member,
            (&self.replies, &self.sessions),
            (client_index, request, origin),
            now,
        );
    }

    /// A client claims what it had open before this start.
    pub fn claim(&mut self, client: ClientId, opens: &[Claimed], now: Nanos) {
        let Some(member) = &mut self.member else { return };
        for open in opens {
            let missing = self.sessions.lock().claim(client, open);
            if missing == 0 {
                continue;
            }
            let (sessions, claimed) = (self.sessions.clone(), open.clone());
            let done = move |reply: Reply| sessions.lock().claimed(client, &claimed, &reply);
            member.reclaim_open(open.file.clone(), missing, open.linkable, Box::new(done), now);
        }
    }

    /// Opens of clients that are gone are given back.
    pub fn release_abandoned(&mut self, now: Nanos) {
        let Some(member) = &mut self.member else { return };
        let abandoned = self.sessions.lock().take_abandoned();
        for ino in abandoned {
            let (sessions, op) = (self.sessions.clone(), Op::Release(ino));
            let done = move |reply: Reply| sessions.lock().given_back(ino, &reply);
            member.submit(
                Request { creds: Creds::root(), op },
                Requester::Own,
                Box::new(done),
                now,
            );
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.tick(now);
        }
        if let Some(ghost) = &mut self.ghost {
            ghost.tick(now);
            ghost.take_outbox();
        }
    }

    /// The disk has done its work.
    pub fn sync(&mut self, now: Nanos) {
        self.sync_planned = false;
        if !self.failed {
            self.engine().sync().expect("no fault was injected");
        }
        self.tick(now);
    }

    /// The start in which something waits to be synced without a planned sync.
    pub fn wants_sync(&mut self) -> Option<u64> {
        let dirty = self.member.is_some()
            && !self.failed
            && self.engine().appended() > self.engine().durable();
        let wants = dirty && !self.sync_planned;
        self.sync_planned |= wants;
        wants.then_some(self.start)
    }

    /// The start in which it may have messages without a planned time for them.
    pub fn wants_to_speak(&mut self) -> Option<u64> {
        let wants = self.member.is_some() && !self.speaks;
        self.speaks |= wants;
        wants.then_some(self.start)
    }

    /// The member's messages to others.
    pub fn take_outbox(&mut self) -> Vec<(NodeId, Envelope)> {
        self.speaks = false;
        self.member.as_mut().map_or_else(Vec::new, ClusterNode::take_outbox)
    }

    /// The member's answers to clients; those that failed with its store reach no client, as it
    /// ends.
    pub fn take_replies(&mut self) -> Vec<(usize, u64, Reply)> {
        let replies = std::mem::take(&mut *self.replies.lock());
        replies.into_iter().filter(|(.., reply)| !(self.failed && is_no_answer(reply))).collect()
    }
}
