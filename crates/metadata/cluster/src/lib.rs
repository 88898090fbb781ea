//! A member: one of several metadata nodes that share a volume, as a state machine without threads,
//! sockets or clock.
//!
//! [`ClusterNode`] is that state machine, opened with a [`ClusterNodeConfig`]. It takes requests,
//! [`Envelope`]s of other members and the time, and gives back envelopes to send. [`NodeHost`] puts
//! threads around it and sends envelopes through a [`Carrier`]:
//!
//! ```
//! use std::sync::{Arc, mpsc};
//!
//! use kestrel_cluster::host::Undeliverable;
//! use kestrel_cluster::{Carrier, ClusterNode, ClusterNodeConfig, Envelope, NodeHost};
//! use kestrel_engine::MemoryEngine;
//! use kestrel_meta::{Durability, NodeConfig, RootAttr};
//! use kestrel_types::clock::{Clock, SystemClock};
//! use kestrel_types::placement::{Exceptions, Member, NodeId, SlotMap};
//! use kestrel_types::{Creds, Op, PathRef, PlacementMap, Request};
//!
//! /// Of a cluster of one node: there is no other to send to.
//! struct NoPeers;
//!
//! impl Carrier for NoPeers {
//!     fn carry(&self, _to: NodeId, _envelope: Envelope) -> Result<(), Box<Undeliverable>> {
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let members = vec![Member { id: 1, address: "node-1:9440".into() }];
//! let placement = PlacementMap::new(SlotMap::even(members)?, Exceptions::default());
//! let (engine, clock) = (Arc::new(MemoryEngine::default()), Arc::new(SystemClock));
//! let root = RootAttr { mode: 0o755, uid: 0, gid: 0 };
//! ClusterNode::format(&*engine, root, clock.now(), 1, placement.clone())?;
//!
//! let node = NodeConfig { durability: Durability::Commit, ..NodeConfig::default() };
//! let config =
//!     ClusterNodeConfig { me: 1, placement, node, seed: 7, joining: false, exclusive: false };
//! let host = NodeHost::open(engine, clock, config, Arc::new(NoPeers))?;
//!
//! let (sender, replies) = mpsc::channel();
//! let op = Op::MkDir(PathRef::from_path(1, b"photos")?, 0o755);
//! let done = Box::new(move |reply| drop(sender.send(reply)));
//! host.submit(Request { creds: Creds::root(), op }, done);
//! assert!(replies.recv()?.is_ok());
//! host.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # How a request is served
//!
//! A client sends a request to the member that *leads* it, a function of the request alone
//! ([`MapView::leader`]), so a retry comes to the one that knows whether it was executed. Another
//! one says that it is misdirected. The leader's node tries to serve it alone, in its batches. What
//! it lacks for that decides how it goes on:
//!
//! - **a dentry of the path** (`fetch`): its owner is asked, the answer kept in the namespace
//!   replica, the request run again;
//! - **a row that is lent**: it is parked until locks are given up;
//! - **rows of other members**: it becomes a *transaction* (`txn::leader`). Its rows are
//!   borrowed, those of the leader itself too; participants (`txn::participant`) lock them. The
//!   operation, a pure function of rows, runs on what was lent and says what it lacks, until it
//!   ends. Then every participant confirms that his locks held all the while and puts on record
//!   what is to change there; the leader decides with one batch, which holds its own changes, the
//!   answer for retries, and the decision (`txn::commit`). What has only read, and fast, needs
//!   nobody's word: no locked rows are lost so soon.
//!
//! # Invariants
//!
//! **Why this is linearizable.** When the last row was lent every row is locked, and whatever the
//! operation saw of the replica is true at the moment it runs, if the member has a lease then
//! ([`lease`]): that moment is between the two halves of two-phase locking. A participant that has
//! lost a set of locked rows (crash, time) does not confirm it. A change of a directory (chmod,
//! rename, removal) has its dentry forgotten by all members before it is decided, or these are
//! fenced; while it is under way its row is locked, so no member fetches it again, and answers to
//! fetches that were sent before are thrown away. A member forgets with every worker's state held:
//! no batch runs (quiescence).
//!
//! **No deadlock.** A transaction that meets a lock gives up everything and begins again after a
//! random time. Requests of a member hold nothing while they wait.
//!
//! **Exactly once.** The answer to a numbered request that has changed something is recorded in the
//! batch that decides it. Requests come by sessions, which see to it that no two copies of one are
//! under way and none comes late, as on a single node.
//!
//! **Crashes.** Locked rows are forgotten by a participant that restarts, what it agreed to is on
//! record and locked again; it asks the leader. A leader that restarts knows its decisions; what it
//! does not know was not decided and changes nothing.
//!
//! # Modules
//!
//! | module | what it has |
//! | --- | --- |
//! | [`host`] | [`NodeHost`]: a member with threads around it |
//! | `work`, `serve` | requests that a member leads: how far each is; through its node and back |
//! | `txn` | transactions over several nodes: leader, participant, two-phase commit |
//! | `fetch` | dentries of other members |
//! | `tree` | figures of a directory and of everything below it |
//! | [`lease`], `fence` | leases; the fence around a member that does not answer |
//! | [`sums`] | sums of shares that members tell each other under leases |
//! | [`change`], `coordinate` | changes of the placement map: every member, and the coordinator |
//! | [`addresses`], [`peer_identity`] | where the nodes are; how a node is told from a copy of it |
//! | [`ownership`] | the owner of the rows in a store that several machines reach |
//! | `gc`, `orphans` | objects that nothing refers to; files without a name |
//! | `snapshot_reads` | reads at a snapshot, with the rows of all members |
//! | `snapshots` | snapshots of all members at one instant, and their records |
//! | `clones` | names for directories of clones, and the end of a clone |
//! | `quotas` | quotas: the set that all members have, and parts of limits that they are lent |
//! | `forward` | requests about snapshots and quotas of a member's own process |
//! | `poll`, `load` | questions to all members; what they have, for the balancer |
//! | `message`, `wire` | [`Envelope`] and [`Message`]; their bytes ([`Envelope::encode`]) |
//! | `undeliverable`, `stop` | messages that are too large; what a member does when its log fails |

pub mod addresses;
pub mod change;
mod clones;
mod compare;
mod coordinate;
mod fence;
mod fetch;
mod forward;
mod gc;
pub mod host;
pub mod lease;
mod load;
mod message;
mod orphans;
pub mod ownership;
pub mod peer_identity;
mod poll;
mod quotas;
mod serve;
mod snapshot_reads;
mod snapshots;
mod stop;
pub mod sums;
mod tree;
mod txn;
mod undeliverable;
mod wire;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_meta::ids::{counter_row, decode_counter, system_key};
use kestrel_meta::lease::Now;
use kestrel_meta::locks::TxnId;
use kestrel_meta::node::{Durability, Node, NodeConfig, RootAttr};
use kestrel_meta::owners::{MapView, Owners};
use kestrel_meta::session::Claim;
use kestrel_meta::stop::engine_error;
use kestrel_meta::txn::Origin;
use kestrel_meta::worker::{HandedBack, NotAloneReason, ReplySink};
use kestrel_types::clock::{Clock, MILLISECOND, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{FIRST_INODE, FIRST_OBJECT, InodeId, ObjectId, Position};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::InodeRef;
use kestrel_types::placement::{NodeId, PlacementMap};
use kestrel_types::request::{Creds, Done, Op, OpenFlags, Reply, Request};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::Mutex;

use change::records::ChangeRecords;
use change::{Changed, DepartureGuard, Expected, LockGuard, MapChanges, MapListener};
use clones::Clones;
use compare::Comparison;
use coordinate::Coordinator;
use fetch::Fetching;
use forward::Forwarded;
use gc::GcRound;
use host::Wakeup;
use lease::Leases;
use message::leases::LeaseMessage;
use orphans::Asking;
use poll::Poll;
use quotas::Quotas;
use snapshots::Snapshots;
use sums::Sums;
use tree::Walk;
use txn::commit::Decision;
use txn::participant::LockedRows;
use work::{Back, Work};

pub use gc::{Forgot, GcListener};
pub use host::{Carrier, NodeHost};
pub use load::{LoadListener, LoadSource};
pub use message::clones::{CloneMessage, CloneReport};
pub use message::polls::{PollAnswer, PollQuestion, Weight};
pub use message::quotas::{QuotaAsk, QuotaMessage};
pub use message::snapshot_reads::{ReadId, SnapshotReadMessage};
pub use message::snapshots::{SnapshotMessage, SnapshotOrder};
pub use message::sums::SumMessage;
pub use message::{Envelope, Fetched, LockedRowsId, Message, TokensMessage, Vote};
pub use txn::records::{
    Prepared, decode_decision, decode_prepared, encode_decision, encode_prepared,
};

const ONE_OF_SEVERAL: &str = "a member's node was opened as one of several";

/// Pause after rows that were cut off a file could not be deleted.
const SWEEP_PAUSE: Nanos = 5 * SECOND;

/// What has no answer for so long is sent again.
const RESEND: Nanos = 200 * MILLISECOND;

/// A member that has ended is not opened again for so long: what it had lent until then was not
/// changed meanwhile. The process that opens members sees to it.
pub const RESTART_MIN: Nanos = 100 * MILLISECOND;

/// How long a request may wait for other members before it fails with `ETIMEDOUT`, nothing having
/// changed.
pub const DEADLINE: Nanos = 20 * SECOND;

/// Settings of a member.
#[derive(Debug, Clone)]
pub struct ClusterNodeConfig {
    /// Its number.
    pub me: NodeId,
    /// The placement map.
    pub placement: PlacementMap,
    /// Settings of its node: mode `commit`, or of the servers of a job `fsync`.
    pub node: NodeConfig,
    /// Seed of the random times after which it tries again.
    pub seed: u64,
    /// It waits to be taken into the cluster: the table is one in which it owns nothing, and it
    /// serves nobody until the others have one that it is in. Of no consequence once that was so.
    pub joining: bool,
    /// No earlier start of this member can be running any more. Of consequence only if its engine
    /// is shared.
    pub exclusive: bool,
}

/// The requester: what asks a member for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// Its own process: the member leads what is asked, whichever member owns what it is about.
    Own,
    /// A session. Where its request comes from, if it is numbered: no copy of it is under way.
    Session(Option<Origin>),
}

impl Requester {
    /// Where the request comes from, if it is numbered.
    pub fn origin(self) -> Option<Origin> {
        match self {
            Self::Own => None,
            Self::Session(origin) => origin,
        }
    }
}

/// Says of an object whether somebody may still come to refer to it.
pub type ObjectUsers = dyn Fn(ObjectId) -> bool + Send + Sync;

/// What a member does when something is durable.
enum Deferred {
    Send(NodeId, Message),
    Finish(TxnId),
    Answer(u64, Reply),
    Forget(u64),
    /// The next table is decided.
    Decided,
    Expect(NodeId, Expected),
    Changed(Option<Changed>),
    /// The store was this start's then.
    Confirmed(Nanos),
    /// The leader's record of a snapshot that is being made.
    CutRecorded(SnapshotOrder),
    /// Records of snapshots, by this placement map.
    RecordsDurable(u64),
    /// The leader's record of quotas that change.
    QuotasRecorded(SnapshotOrder),
}

/// What the node said.
enum NodeAnswer {
    Reply(Reply),
    Elsewhere(NotAloneReason),
}

/// What was said to a member, perhaps on other threads, and not looked at yet.
#[derive(Default)]
struct Inbox {
    heard: Mutex<VecDeque<(u64, NodeAnswer)>>,
    /// The thread to wake, if the member has threads around it.
    wakeup: Option<Arc<Wakeup>>,
}

impl Inbox {
    fn push(&self, ticket: u64, heard: NodeAnswer) {
        self.heard.lock().push_back((ticket, heard));
        self.ring();
    }

    fn ring(&self) {
        if let Some(wakeup) = &self.wakeup {
            wakeup.ring();
        }
    }
}

impl ReplySink for Inbox {
    fn complete(&self, number: usize, reply: Reply) {
        self.push(number as u64, NodeAnswer::Reply(reply));
    }

    fn hand_back(&self, number: usize, handed_back: HandedBack) {
        self.push(number as u64, NodeAnswer::Elsewhere(handed_back.why));
    }
}

/// See the module's header.
pub struct ClusterNode {
    node: Arc<Node>,
    me: NodeId,
    /// The placement map: its node's.
    table: Arc<MapView>,
    /// Counts its starts.
    epoch: u64,
    now: Nanos,
    random: u64,
    numbers: u64,
    inbox: Arc<Inbox>,
    outbox: Vec<(NodeId, Envelope)>,
    /// Directories that members are to forget: they have not been told, nor has this one.
    broadcast: BTreeMap<NodeId, Vec<(TxnId, Vec<InodeId>)>>,
    /// Messages to itself.
    own: VecDeque<Message>,
    /// What waits for the log.
    waiting: BTreeMap<(Position, u64), Deferred>,
    /// Requests that it leads, by ticket. Bounded by the senders: each waits for what it has asked,
    /// or throttles itself.
    works: BTreeMap<u64, Work>,
    fetches: BTreeMap<u64, Fetching>,
    /// Transactions that it leads and has not decided: their tickets.
    leads: BTreeMap<TxnId, u64>,
    /// Transactions that it decided and some participants may not know.
    decisions: BTreeMap<TxnId, Decision>,
    /// What it has lent.
    locked_rows: BTreeMap<TxnId, LockedRows>,
    /// Questions to all members, by number.
    polls: BTreeMap<u64, Poll>,
    /// Walks over trees for figures, by ticket.
    walks: BTreeMap<u64, Walk>,
    /// Comparisons of two moments, by request.
    comparisons: BTreeMap<u64, Comparison>,
    /// At the leader of snapshots: those made for comparisons with the present, and when their
    /// changes were asked for last.
    compared: BTreeMap<SnapshotId, Nanos>,
    /// Its round of deleting objects.
    reaping: Option<GcRound>,
    /// Whether one of its clients may come to refer to an object.
    object_users: Option<Box<ObjectUsers>>,
    /// Rows that were cut off files are being deleted.
    sweeping: Option<u64>,
    /// The file that the rows belong to, the last one tried.
    swept: InodeId,
    /// That failed.
    sweep_failed: Arc<AtomicBool>,
    /// When it is tried again after a failure.
    sweep_due: Nanos,
    /// The log has failed: what could not be made durable, and what came of that.
    sync_failure: Arc<Mutex<Option<FsError>>>,
    failure: Option<FsError>,
    /// Files without names at their home.
    orphans: BTreeMap<InodeId, Asking>,
    leases: Leases,
    sums: Sums,
    /// Requests that wait until locks are given up; some may have ended.
    parked: BTreeSet<u64>,
    /// Locks were given up: requests that wait for that may go on.
    unlocked: bool,
    /// How often that was so.
    unlocks: u64,
    /// Requests that have ended, for the thread that lets go of the member.
    finished: Vec<(Done, Reply)>,
    /// That messages are too large was logged.
    told_unsent: bool,
    /// Whether locks of files are in the way of a change.
    lock_guard: Option<Box<LockGuard>>,
    /// Counts what the node has.
    census: Option<Box<LoadSource>>,
    /// Requests of other members' processes.
    forwarded: Forwarded,
    /// Callers that wait for what all nodes have.
    counting: Option<LoadListener>,
    /// Whether the process knows of a client that keeps this node from leaving.
    departure_guard: Option<Box<DepartureGuard>>,
    /// The listener for new tables.
    table_listener: Option<Box<MapListener>>,
    changing: MapChanges,
    coordinator: Coordinator,
    snapshots: Snapshots,
    clones: Clones,
    quotas: Quotas,
}

impl ClusterNode {
    /// Writes what a member of a new volume begins with.
    ///
    /// # Errors
    /// As [`Node::format`] and [`Owners::new`].
    pub fn format(
        engine: &dyn Engine,
        root: RootAttr,
        now: Nanos,
        me: NodeId,
        placement: PlacementMap,
    ) -> FsResult<()> {
        Node::format_one_of(engine, root, now, &Owners::new(me, placement)?)
    }

    /// Has a new member count on from there: inodes and objects. What it makes up then differs from
    /// what was ever made up under its number by others that this volume's rows came from, if the
    /// counters, which were the coordinator's, are above all of that. One that is further stays
    /// there.
    ///
    /// # Errors
    /// The engine's.
    pub fn count_from(engine: &dyn Engine, [inodes, objects]: [u64; 2]) -> FsResult<()> {
        let from = |name, least: u64| {
            FsResult::Ok(counter_row(name, read_counter(engine, name)?.max(least)))
        };
        let rows = vec![
            from("inodes", inodes.max(FIRST_INODE))?,
            from("objects", objects.max(FIRST_OBJECT))?,
        ];
        engine.commit(BatchKind::Growing, rows).map(drop).map_err(engine_error)
    }

    /// Starts a member: what it had agreed to is locked again before anybody is served. `now` is a
    /// monotonic time, `clock` the volume's.
    ///
    /// # Errors
    /// `EINVAL` for settings that make no sense; `EIO` for damaged records; the engine's.
    pub fn open(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: ClusterNodeConfig,
        now: Nanos,
    ) -> FsResult<Self> {
        Self::open_with(engine, clock, config, now, None)
    }

    /// As [`ClusterNode::open`]. With a wakeup, which is rung on whatever thread when there is
    /// something to look at, the thread that holds the member leaves to do what may take other
    /// threads' time: [`Node::drive_due`] and [`ClusterNode::take_finished`]. The clock beside it
    /// says what time it is, as `now` does.
    fn open_with(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        config: ClusterNodeConfig,
        now: Nanos,
        host: Option<(Arc<Wakeup>, Box<Now>)>,
    ) -> FsResult<Self> {
        // What a member tells the others is durable in either mode. Those of a job may answer its
        // clients before: the clients sync all members.
        if config.node.durability != Durability::Commit && config.node.objects_from == 0 {
            return Err(FsError::new(libc::EINVAL, "member: its node is of mode commit"));
        }
        // Before anything is read: the process that had the rows until now gets no commit through
        // any more.
        let engine = engine.claim().map_err(engine_error)?;
        let (wakeup, time) = host.unzip();
        // A claim takes its time; what is counted from it must not begin before.
        let claimed = time.as_ref().map_or(now, |time| time()).max(now);
        let changes = ChangeRecords::read(&*engine)?;
        let changing = MapChanges::new(&changes, config.joining, now);
        let table = changes.present(config.me, config.placement)?;
        let (present, outside) = (table.placement.clone(), changing.joining || table.has_left());
        let shared = engine.is_shared();
        let cluster = Owners::with(table).on_shared(shared);
        if let Some(time) = time {
            cluster.lease.set_clock(time);
        }
        cluster.set_outside(outside);
        let epoch = next_epoch(&*engine)?;
        let records = txn::records::read(&*engine)?;
        let snapshots = Snapshots::read(&*engine)?;
        let quotas = Quotas::read(&*engine)?;
        cluster.set_lacks_quotas(quotas.set.lacking);
        let coordinator = Coordinator::new(config.me, &present, changes, epoch, now);
        let node = Node::open_one_of(engine, clock, config.node, cluster)?;
        let mut member = Self {
            table: node.cluster().map(Owners::table).expect(ONE_OF_SEVERAL),
            node,
            me: config.me,
            epoch,
            now,
            random: config.seed ^ epoch.rotate_left(32) ^ u64::from(config.me),
            // Others may still answer what an earlier start asked.
            numbers: epoch << 32,
            inbox: Arc::new(Inbox { wakeup, ..Inbox::default() }),
            outbox: Vec::new(),
            broadcast: BTreeMap::new(),
            own: VecDeque::new(),
            waiting: BTreeMap::new(),
            works: BTreeMap::new(),
            fetches: BTreeMap::new(),
            leads: BTreeMap::new(),
            decisions: BTreeMap::new(),
            locked_rows: BTreeMap::new(),
            polls: BTreeMap::new(),
            walks: BTreeMap::new(),
            comparisons: BTreeMap::new(),
            compared: BTreeMap::new(),
            reaping: None,
            object_users: None,
            sweeping: None,
            swept: 0,
            sweep_failed: Arc::default(),
            sweep_due: now,
            sync_failure: Arc::default(),
            failure: None,
            orphans: BTreeMap::new(),
            leases: Leases::new(shared, config.exclusive, claimed),
            sums: Sums::default(),
            parked: BTreeSet::new(),
            unlocked: false,
            unlocks: 0,
            finished: Vec::new(),
            told_unsent: false,
            lock_guard: None,
            census: None,
            forwarded: Forwarded::default(),
            counting: None,
            departure_guard: None,
            table_listener: None,
            changing,
            coordinator,
            snapshots,
            clones: Clones::default(),
            quotas,
        };
        member.at(now);
        let quiet = member.node.clone();
        let quiet = quiet.quiesce();
        member.lease_by_table();
        member.sums_by_table();
        drop(quiet);
        member.revoke_of_earlier_starts();
        member.restore(records);
        member.forget_former();
        Ok(member)
    }

    /// Has `used` asked before an object is deleted: whether a client of this member may still come
    /// to refer to it. It must not block.
    pub fn set_object_users(&mut self, used: Box<ObjectUsers>) {
        self.object_users = Some(used);
    }

    /// Takes a request. `done` hears the reply, if there is one: a member that crashes gives none.
    /// That of a session is misdirected if another member leads it.
    pub fn submit(&mut self, request: Request, asker: Requester, done: Done, now: Nanos) {
        self.at(now);
        if !self.is_sound()
            && let Some(why) = self.failure()
        {
            let why = why.clone();
            self.refuse(done, why);
            return self.tell_finished();
        }
        self.begin(request, asker, None, Back::Here(done));
        self.pump();
    }

    /// A client of this member claims `count` opens that it had of a file here before a restart, or
    /// before its session expired ([`Node::reclaim_open`]), wherever the file is by now.
    pub fn reclaim_open(
        &mut self,
        inode: InodeRef,
        count: u32,
        linkable: bool,
        done: Done,
        now: Nanos,
    ) {
        self.at(now);
        if let Some(failure) = self.failure() {
            let failure = failure.clone();
            self.refuse(done, failure);
            return self.tell_finished();
        }
        let request = Request { creds: Creds::root(), op: Op::Open(inode, OpenFlags::default()) };
        self.begin(request, Requester::Own, Some(Claim { count, linkable }), Back::Here(done));
        self.pump();
    }

    /// Takes a message of another member.
    pub fn receive(&mut self, envelope: Envelope, now: Nanos) {
        self.at(now);
        if !self.is_sound() {
            return;
        }
        let left = self.table.placement.heir_of(envelope.from).is_some();
        if left && !matches!(envelope.message, Message::Change(_)) {
            // It goes on as if it had not, and does not ask how that is.
            if self.leads_changes().is_ok()
                && matches!(envelope.message, Message::Lease(LeaseMessage::Ask { .. }))
            {
                self.has_left_already(envelope.from);
            }
            return;
        }
        self.node.observe(envelope.stamp);
        self.leases.heard_of(envelope.from, now);
        self.handle(envelope.from, envelope.message);
        self.pump();
    }

    /// Time has passed, or the log has been synced.
    pub fn tick(&mut self, now: Nanos) {
        self.at(now);
        if !self.is_sound() {
            return;
        }
        self.tick_self_lease();
        self.tick_lease();
        self.tick_sums();
        self.tick_works();
        self.tick_fetches();
        self.tick_locked_rows();
        self.tick_decisions();
        self.tick_polls();
        self.sweep();
        self.tick_orphans();
        self.tick_change();
        self.tick_snapshots();
        self.tick_clones();
        self.tick_quotas();
        self.pump();
    }

    /// Deletes some of the rows that truncations and removals left behind, if there are any: its
    /// node is their home.
    fn sweep(&mut self) {
        if self.sweeping.is_some_and(|ticket| self.works.contains_key(&ticket)) {
            return;
        }
        if self.sweep_failed.swap(false, Ordering::Relaxed) {
            self.sweep_due = self.now + SWEEP_PAUSE;
        }
        if self.sweep_due > self.now {
            return;
        }
        // One after the other, so that one that cannot be had does not stop the rest.
        self.sweeping = self.node.core().sweeps.after(self.swept).map(|ino| {
            self.swept = ino;
            let request = Request { creds: Creds::root(), op: Op::Sweep(ino) };
            let failed = self.sweep_failed.clone();
            let ended = move |reply: Reply| {
                if let Err(why) = reply {
                    failed.store(true, Ordering::Relaxed);
                    log::error!(
                        "rows that were cut off file {ino} cannot be deleted: {why:?}; tried \
                         again, and kestrel fsck tells more"
                    );
                }
            };
            self.begin(request, Requester::Own, None, Back::Here(Box::new(ended)))
        });
    }

    /// Something was heard, or has become durable.
    fn go_on(&mut self, now: Nanos) {
        self.at(now);
        if self.is_sound() {
            self.pump();
        }
    }

    /// Requests that have ended since this was asked last, and their callbacks: to be told with no
    /// lock held.
    fn take_finished(&mut self) -> Vec<(Done, Reply)> {
        std::mem::take(&mut self.finished)
    }

    /// What it says to others since this was asked last. All that one of them is to forget because
    /// directories change is one message.
    pub fn take_outbox(&mut self) -> Vec<(NodeId, Envelope)> {
        if self.is_sound() {
            self.send_broadcast();
        }
        std::mem::take(&mut self.outbox)
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Counts the starts of its directory, this one included.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it has nothing to do: no request, no locked rows, no decision that somebody does not
    /// know, no rows that were cut off, no change of the table, no rows of other members.
    pub fn is_idle(&self) -> bool {
        let swept = self.node.core().sweeps.after(0).is_none();
        swept
            && self.works.is_empty()
            && self.locked_rows.is_empty()
            && self.decisions.is_empty()
            && self.waiting.is_empty()
            && self.changing.is_idle()
            && self.snapshots.is_idle()
            && self.clones.is_idle()
            // What a member that has left had of clones others have.
            && (self.has_left() || !self.node.core().snapshots.has_clones())
            && self.quotas_are_idle()
            // To a member that has left the leader says nothing any more.
            && (self.has_left() || !self.node.core().snapshots.has_removed())
            && !self.coordinator.leads()
    }

    /// Whether time alone may give it something to do.
    fn is_waiting(&self) -> bool {
        !self.is_idle()
            || !self.fetches.is_empty()
            || !self.polls.is_empty()
            || self.sums.is_waiting()
            || self.node.core().snapshots.has_hidden()
    }

    fn handle(&mut self, from: NodeId, message: Message) {
        if !self.may_say(from, &message) {
            return;
        }
        match message {
            Message::Fetch { number, table, want } => self.look_up(from, number, table, &want),
            Message::Fetched(number, found) => self.fetched(number, found),
            Message::Borrow { txn, round, table, mode, rows } => {
                self.lend(from, txn, (round, table), mode, &rows);
            }
            Message::Lent { txn, round, locked, rows, spans } => {
                self.lent(from, txn, round, locked, rows, spans);
            }
            Message::Refused(txn, round) => self.refused(from, txn, round),
            Message::Invalidate(changes) => self.invalidate(from, changes),
            Message::Invalidated(txns) => {
                txns.into_iter().for_each(|txn| self.invalidated(from, txn))
            }
            Message::Prepare { txn, locked, mutations, below } => {
                self.prepare(from, txn, Prepared { locked, mutations, below });
            }
            Message::Voted(txn, vote) => self.voted(from, txn, vote),
            Message::Decide(txn, commit, cut) => self.decide(from, txn, commit, cut),
            Message::Decided(txn) => self.decided(from, txn),
            Message::Ask(txn) => self.asked(from, txn),
            Message::Alive(txn) => self.alive(from, txn),
            Message::Poll { number, table, question } => {
                if self.agrees(from, table) {
                    self.polled(from, number, question);
                }
            }
            Message::Polled { number, answer } => self.told(from, number, answer),
            Message::Change(message) => self.heard_of_change(from, message),
            Message::Lease(message) => self.heard_of_lease(from, message),
            Message::Sum(message) => self.heard_of_sums(from, message),
            Message::Forward { number, table, request } => {
                self.take_forward(from, number, table, *request);
            }
            Message::Forwarded { number, reply } => self.heard_of_forward(number, reply),
            Message::SnapshotRead(message) => self.heard_of_snapshot_read(from, message),
            Message::Snapshot(message) => self.heard_of_snapshots(from, message),
            Message::Clone(message) => self.heard_of_clones(from, message),
            Message::Quota(message) => self.heard_of_quotas(from, message),
            Message::Tokens(_) | Message::Addresses(_) => {}
        }
    }

    /// Does what can be done without anybody else.
    fn pump(&mut self) {
        loop {
            if let Some(message) = self.own.pop_front() {
                self.handle(self.me, message);
                continue;
            }
            let heard = self.inbox.heard.lock().pop_front();
            if let Some((ticket, heard)) = heard {
                match heard {
                    NodeAnswer::Reply(reply) => self.answer(ticket, reply),
                    NodeAnswer::Elsewhere(why) => self.elsewhere(ticket, why),
                }
                continue;
            }
            let durable = self.node.engine().durable();
            if let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= durable)
            {
                match first.remove() {
                    Deferred::Send(to, message) => self.send(to, message),
                    Deferred::Finish(txn) => self.finish(txn),
                    Deferred::Answer(ticket, reply) => self.answer(ticket, reply),
                    Deferred::Forget(round) => self.have_forgotten(round),
                    Deferred::Decided => self.decided_change(),
                    Deferred::Expect(node, done) => done(Ok(node)),
                    Deferred::Changed(done) => {
                        if let Some(done) = done {
                            done(Ok(()));
                        }
                    }
                    Deferred::Confirmed(made) => self.leases.self_lease.confirmed(made),
                    Deferred::CutRecorded(order) => self.cut_recorded(order),
                    Deferred::RecordsDurable(version) => self.records_durable(version),
                    Deferred::QuotasRecorded(order) => self.quotas_recorded(order),
                }
                continue;
            }
            if std::mem::take(&mut self.unlocked) {
                self.resume_parked();
                continue;
            }
            self.tell_finished();
            if self.inbox.wakeup.is_some() || !self.node.drive_due() {
                return;
            }
        }
    }

    /// Answers requests that have ended, unless a thread lets go of the member first.
    fn tell_finished(&mut self) {
        if self.inbox.wakeup.is_none() {
            for (done, reply) in self.take_finished() {
                done(reply);
            }
        }
    }

    fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.own.push_back(message);
        } else {
            let envelope = Envelope { from: self.me, stamp: self.node.stamp(), message };
            self.outbox.push((to, envelope));
        }
    }

    /// Does something once a position is durable.
    fn when_durable(&mut self, position: Position, todo: Deferred) {
        let number = self.number();
        self.waiting.insert((position, number), todo);
        let engine = self.node.engine();
        if position <= engine.durable() {
            return;
        }
        // Somebody waits: that is what has the log synced.
        let (inbox, failure) = (self.inbox.clone(), self.sync_failure.clone());
        let synced = move |result: Result<(), EngineError>| {
            if let Err(why) = result {
                *failure.lock() = Some(engine_error(why));
            }
            inbox.ring();
        };
        engine.on_durable(position, Box::new(synced));
    }

    fn cluster(&self) -> &Owners {
        self.node.core().cluster.as_ref().expect(ONE_OF_SEVERAL)
    }

    /// Commits rows beside the workers; those of table `link` with every worker's state held.
    fn commit(&self, kind: BatchKind, rows: Vec<Mutation>) -> FsResult<Position> {
        self.commit_to(&**self.node.engine(), kind, rows)
    }

    fn commit_to(
        &self,
        engine: &dyn Engine,
        kind: BatchKind,
        rows: Vec<Mutation>,
    ) -> FsResult<Position> {
        self.note_clone_rows(&rows);
        let links = self.node.core().link_news(&rows);
        let position = engine.commit(kind, rows).map_err(engine_error)?;
        self.node.note_commit(position);
        self.node.core().note_links(links);
        Ok(position)
    }

    /// As [`ClusterNode::commit`], of rows that the node keeps count of in memory. With every
    /// worker's state held.
    /// `below`: they are no changes of the volume, so that nothing is kept for snapshots.
    fn commit_changes(
        &self,
        kind: BatchKind,
        rows: Vec<Mutation>,
        below: bool,
    ) -> FsResult<Position> {
        let effect = self.node.effect_of(&rows)?;
        let engine = if below { self.node.engine_below() } else { self.node.engine() };
        let position = self.commit_to(&**engine, kind, rows)?;
        self.node.take_effect(effect);
        Ok(position)
    }

    /// A number that none of its starts has used.
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A random time of up to `most` (xorshift*, Vigna 2016; all that counts is that members do not
    /// agree).
    fn random_time(&mut self, most: Nanos) -> Nanos {
        self.random |= 1;
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let bits = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 1;
        bits.cast_signed() % most.max(1)
    }
}

/// A counter; 0 if there is none.
fn read_counter(engine: &dyn Engine, name: &'static str) -> FsResult<u64> {
    let mut counter = Ok(0);
    let read = engine.get_many(&[system_key(name)], &mut |_, row| {
        counter = row.value.map_or(Ok(0), decode_counter);
    });
    read.map_err(engine_error)?;
    counter.map_err(|why| {
        FsError::because(libc::EIO, format!("metadata: damaged record \"{name}\": {why}"))
    })
}

/// Counts a start, durably. Not the engine's epoch: this one is a row, which an old copy of the
/// directory has as it was, and by which the others know the copy; that one belongs to the store,
/// and grows there whatever the rows say.
fn next_epoch(engine: &dyn Engine) -> FsResult<u64> {
    let epoch = read_counter(engine, "epoch")? + 1;
    engine.commit(BatchKind::Freeing, vec![counter_row("epoch", epoch)]).map_err(engine_error)?;
    engine.sync().map_err(engine_error)?;
    Ok(epoch)
}

/// A row that goes.
fn without(key: Key) -> Mutation {
    debug_assert_eq!(key.table, Table::Txn);
    Mutation { key, value: None }
}
