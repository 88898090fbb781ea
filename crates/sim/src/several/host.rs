//! A member's machine: disk and process.

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_meta::engine::Engine;
use kestrel_meta::engine::memory::{MemoryEngine, SyncWhen};
use kestrel_meta::member::change::{Changed, Expected, Phase};
use kestrel_meta::member::lease::LeaseFigures;
use kestrel_meta::member::{Asker, Envelope, Member, MemberConfig, RESTART_MIN};
use kestrel_meta::node::{Durability, NodeConfig, Replies, RootAttr};
use kestrel_meta::txn::Origin;
use kestrel_types::clock::{ManualClock, Nanos, SECOND};
use kestrel_types::ids::ObjectId;
use kestrel_types::placement::{NodeId, Placement};
use kestrel_types::request::{Creds, Op, Reply, Request};
use kestrel_types::wire::ClientId;
use parking_lot::{Mutex, MutexGuard};

use super::leaving::{Needed, giver_of};
use super::sessions::{Admission, Claimed, Sessions, Shared};

/// Replies to clients' calls.
type Replied = Arc<Mutex<Vec<(usize, u64, Reply)>>>;

/// Numbers of objects in use.
type Used = Arc<Mutex<BTreeSet<ObjectId>>>;

/// Objects to delete, and in which start the process was told so.
type Free = Arc<Mutex<Vec<(u64, Vec<ObjectId>)>>>;

/// See the module's header.
pub struct Host {
    engine: Option<Arc<MemoryEngine>>,
    clock: Arc<ManualClock>,
    config: MemberConfig,
    member: Option<Member>,
    /// Counts starts: timers of an earlier one do nothing.
    start: u64,
    /// When it ended last, or long ago.
    ended: Nanos,
    sync_planned: bool,
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
    leases: LeaseFigures,
}

impl Host {
    /// A machine with its part of an empty volume, perhaps one that is yet to join; nothing runs.
    pub fn new(
        (me, joining): (NodeId, bool),
        placement: Placement,
        clock: Arc<ManualClock>,
        (workers, scan_rows): (usize, usize),
        seed: u64,
        (used, needed): (Used, Needed),
    ) -> Self {
        let engine = MemoryEngine::new(SyncWhen::Told);
        let root = RootAttr { mode: 0o777, uid: 0, gid: 0 };
        Member::format(&engine, root, SECOND, me, placement.clone()).expect("an empty engine");
        let node = NodeConfig {
            workers,
            durability: Durability::Commit,
            grace: 2 * SECOND,
            serves: true,
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
            config: MemberConfig { me, placement, node, seed, joining },
            member: None,
            start: 0,
            ended: -RESTART_MIN,
            sync_planned: false,
            stopped_until: 0,
            replies: Replied::default(),
            used,
            needed,
            lost: false,
            free: Free::default(),
            sessions: Shared::default(),
            leases: LeaseFigures::default(),
        }
    }

    /// Starts the process; the number of the start.
    pub fn start(&mut self, now: Nanos) -> u64 {
        self.start += 1;
        let member = Member::open(self.engine().clone(), self.clock.clone(), self.config.clone(), now);
        let mut member = member.expect("a sound volume");
        let (me, used) = (self.config.me, self.used.clone());
        // Each node knows of the numbers that it gave.
        let gave = move |object| giver_of(object) == me;
        member.set_object_users(Box::new(move |object| gave(object) && used.lock().contains(&object)));
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

    /// What is known of clients' sessions.
    pub fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// The process is gone at once. If the power is, so is what was not synced, or the end of it: `keep` says how much of it
    /// stays, in percent.
    pub fn kill(&mut self, keep: Option<u64>, now: Nanos) {
        self.leases = self.leases();
        self.member = None;
        self.ended = now;
        self.start += 1;
        self.sync_planned = false;
        self.stopped_until = 0;
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
        self.replies.lock().clear();
        self.free.lock().clear();
    }

    /// The disk.
    pub fn engine(&self) -> &Arc<MemoryEngine> {
        self.engine.as_ref().expect("taken only within a crash")
    }

    /// The process, if it runs.
    pub fn member(&self) -> Option<&Member> {
        self.member.as_ref()
    }

    /// Whether the process runs, since this start.
    pub fn is_up(&self, start: u64) -> bool {
        self.member.is_some() && self.start == start
    }

    /// What became of leases in all its starts.
    pub fn leases(&self) -> LeaseFigures {
        let LeaseFigures { lapses, fenced, .. } = self.leases;
        let now = self.member.as_ref().map(Member::lease_figures).unwrap_or_default();
        LeaseFigures { lapses: lapses + now.lapses, fenced: fenced + now.fenced, ..now }
    }

    /// The table that the process has, if it runs.
    pub fn placement(&self) -> Option<Placement> {
        self.member.as_ref().map(|member| member.placement())
    }

    /// Whether it is not yet taken into the cluster.
    pub fn joins(&self) -> bool {
        // A node may be formed with a table that the others have just got.
        self.member.as_ref().map_or(self.config.joining, |member| member.change_figures().joining)
    }

    /// Whether it is not a member any more, or never was and will not be.
    pub fn is_out(&self) -> bool {
        self.lost || self.member.as_ref().is_some_and(Member::has_left)
    }

    /// Somebody asks for a node to be forgotten.
    pub fn forget(&mut self, node: NodeId, done: Changed, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.forget(node, done, now);
        }
    }

    /// Whether its process runs and no change of the table is under way there.
    pub fn has_no_change(&self) -> bool {
        self.member.as_ref().is_some_and(|member| {
            let figures = member.change_figures();
            figures.phase == Phase::None && !figures.purging && !figures.leads
        })
    }

    /// Somebody asks for another table.
    pub fn change(&mut self, next: Placement, done: Changed, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.change(next, done, now);
        }
    }

    /// Somebody asks for a new member's number.
    pub fn expect(&mut self, address: String, done: Expected, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.expect(address, done, now);
        }
    }

    /// Until when the process is stopped, if it is.
    pub fn stopped(&self, now: Nanos) -> Option<Nanos> {
        (self.stopped_until > now).then_some(self.stopped_until)
    }

    /// A message arrives.
    pub fn receive(&mut self, envelope: Envelope, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.receive(envelope, now);
        }
    }

    /// A client's call that is not numbered arrives.
    pub fn submit(&mut self, client: usize, number: u64, request: Request, now: Nanos) {
        let Some(member) = &mut self.member else { return };
        let replies = self.replies.clone();
        let done = move |reply| replies.lock().push((client, number, reply));
        member.submit(request, Asker::Session(None), Box::new(done), now);
    }

    /// The process asks what objects it may delete.
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

    /// What it was told to delete, and in which start.
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
    pub fn submit_in_session(&mut self, place: usize, request: Request, origin: Origin, now: Nanos) {
        let Some(member) = &mut self.member else { return };
        let (replies, sessions) = (self.replies.clone(), self.sessions.clone());
        match sessions.lock().admit(origin.client, origin.seq, &request.op) {
            Admission::Run => {}
            Admission::Answered(reply) => return replies.lock().push((place, origin.seq, reply)),
            Admission::Running => return,
        }
        let op = request.op.clone();
        let done = move |reply: Reply| {
            if sessions.lock().finish(origin.client, origin.seq, &op, &reply) {
                replies.lock().push((place, origin.seq, reply));
            }
        };
        member.submit(request, Asker::Session(Some(origin)), Box::new(done), now);
    }

    /// A client says what it had open before this start.
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
            member.submit(Request { creds: Creds::root(), op }, Asker::Own, Box::new(done), now);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Nanos) {
        if let Some(member) = &mut self.member {
            member.tick(now);
        }
    }

    /// The disk has done its work.
    pub fn sync(&mut self, now: Nanos) {
        self.sync_planned = false;
        self.engine().sync().expect("no fault was injected");
        self.tick(now);
    }

    /// The start in which something waits to be synced and nobody has planned it.
    pub fn wants_sync(&mut self) -> Option<u64> {
        let dirty = self.member.is_some() && self.engine().appended() > self.engine().durable();
        let wants = dirty && !self.sync_planned;
        self.sync_planned |= wants;
        wants.then_some(self.start)
    }

    /// What the member has said to others.
    pub fn take_outbox(&mut self) -> Vec<(NodeId, Envelope)> {
        self.member.as_mut().map_or_else(Vec::new, Member::take_outbox)
    }

    /// What it has answered clients.
    pub fn take_replies(&mut self) -> Vec<(usize, u64, Reply)> {
        std::mem::take(&mut *self.replies.lock())
    }
}
