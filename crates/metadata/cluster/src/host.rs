//! A member with threads around it: what serves real clients and talks to real nodes.
//!
//! | file | what it has |
//! | --- | --- |
//! | `host/maps.rs` | changes of the placement map, as a process with threads sees them |
//! | `host/wakeup.rs` | wakes the thread of the member |
//!
//! **What the node can serve alone it does**, on the thread that brings it, without the member:
//! [`NodeHost::submit_batch`] puts requests straight into the node's workers. What comes back as
//! not to be served alone ([`HandedBack`]), listings, and messages of others go to the member,
//! which is behind a lock.
//!
//! **The lock is a role**, as a worker's is ([`kestrel_meta::worker`]): a thread that brings
//! something queues it and tries the lock; the thread that holds it serves the others and looks at
//! the queue again after letting it go. With the lock held the member only changes state, reads and
//! commits rows; no callback runs. Afterwards, with no lock held: envelopes leave, replies are
//! given, and workers are served that have waited while the member held their states.
//!
//! **One thread** watches the time, and goes on when the log has become durable or the node has
//! answered: callbacks of the engine must not do more than wake it.
//!
//! **Once.** A session has no two requests of one number at the node at a time, and says of one
//! that it may have been executed. So nothing is done here about copies.

mod maps;
mod wakeup;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kestrel_engine::{Engine, LatencyHint};
use kestrel_meta::ids::system_key;
use kestrel_meta::lease::NEVER;
use kestrel_meta::lease::Now;
use kestrel_meta::node::{Node, Replies, ReplySink, needs_all_nodes};
use kestrel_meta::owners::Owners;
use kestrel_meta::txn::Origin;
use kestrel_meta::worker::HandedBack;
use kestrel_types::clock::{Clock, Nanos, SECOND};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::ObjectId;
use kestrel_types::name::InodeRef;
use kestrel_types::placement::NodeId;
use kestrel_types::request::{Done, Outcome, Reply, Request};
use kestrel_types::wire::TooLarge;
use parking_lot::Mutex;

use super::addresses::AddressBook;
use super::gc::{Forgot, GcListener};
use super::{ClusterNode, ClusterNodeConfig, Envelope, ONE_OF_SEVERAL, RESTART_MIN, Requester};

pub(super) use wakeup::Wakeup;
use wakeup::{Busy, Woken};

/// Time between two looks at the clock while something is under way.
const TICK: Duration = Duration::from_millis(10);

/// And while nothing is.
const TICK_IDLE: Duration = Duration::from_millis(100);

/// Rounds after which a thread that serves the member for others leaves that to the host's own.
const ROUNDS_MAX: usize = 32;

/// What is taken from the queue at a time: replies and envelopes leave in between.
const TAKEN_MAX: usize = 512;

/// Envelopes that wait for the member; more are dropped: their senders send them again.
const INCOMING_MAX: usize = 65_536;

/// Carries envelopes to other members. It may lose, repeat and reorder them, and must not block.
pub trait Carrier: Send + Sync {
    /// Takes an envelope. It leaves at the next [`Carrier::flush`] at the latest.
    ///
    /// # Errors
    /// If it is too large to be sent at all: it is handed back.
    fn carry(&self, to: NodeId, envelope: Envelope) -> Result<(), Box<Undeliverable>>;

    /// What was taken has to leave.
    fn flush(&self) {}
}

/// An envelope that is too large.
#[derive(Debug)]
pub struct Undeliverable {
    /// The envelope.
    pub envelope: Envelope,
    /// What about it.
    pub why: TooLarge,
}

/// What a host has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Requests of sessions that another member leads: refused.
    pub misdirected: u64,
    /// Requests of sessions that the node could not serve alone.
    pub handed_back: u64,
    /// Envelopes taken from other members.
    pub received: u64,
    /// Envelopes of other members dropped because too many waited.
    pub overrun: u64,
    /// Envelopes given to the carrier.
    pub sent: u64,
    /// Of these, those handed back as too large.
    pub unsent: u64,
}

#[derive(Default)]
struct Counters {
    misdirected: AtomicU64,
    handed_back: AtomicU64,
    received: AtomicU64,
    overrun: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Something for the member.
enum Incoming {
    Envelope(Envelope),
    /// The node's own background work, or what the node does not serve by itself.
    Request(Request, Requester, Done),
    HandedBack(HandedBack, Done),
    Unsent(NodeId, Box<Undeliverable>),
    /// Anything else, with the host's time.
    Turn(HostTask),
}

/// Something to be done with the member, while its lock is held.
type HostTask = Box<dyn FnOnce(&mut ClusterNode, Nanos) + Send>;

/// Somebody to be told something, with no lock held.
type Call = Box<dyn FnOnce() + Send>;

/// What the threads share.
struct HostShared {
    node: Arc<Node>,
    me: NodeId,
    epoch: u64,
    address_book: Arc<AddressBook>,
    member: Mutex<ClusterNode>,
    incoming: Mutex<VecDeque<Incoming>>,
    /// Callbacks for what was done in a turn.
    calls: Arc<Mutex<Vec<Call>>>,
    wakeup: Arc<Wakeup>,
    carrier: Arc<dyn Carrier>,
    /// As [`boot_time`] says.
    opened: Nanos,
    /// The member wants to be told the time.
    waiting: AtomicBool,
    /// It is time to.
    late: AtomicBool,
    /// It has said that it ends.
    released: AtomicBool,
    counters: Counters,
}

/// See the module's header.
pub struct NodeHost {
    shared: Arc<HostShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl NodeHost {
    /// Opens a member, not before [`RESTART_MIN`] is over, and starts its thread. Replies that wait
    /// for the log are given by a thread of the node's own, whatever the settings say.
    ///
    /// # Errors
    /// As [`ClusterNode::open`]; `EAGAIN` if the thread does not start.
    pub fn open(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        mut config: ClusterNodeConfig,
        carrier: Arc<dyn Carrier>,
    ) -> FsResult<Arc<Self>> {
        config.node.replies = Replies::Thread;
        // Whether an earlier process has just ended nobody knows.
        std::thread::sleep(Duration::from_nanos(RESTART_MIN.unsigned_abs()));
        let (wakeup, me) = (Arc::new(Wakeup::default()), config.me);
        let opened = boot_time();
        let host = (wakeup.clone(), Box::new(move || boot_time() - opened) as Box<Now>);
        let member = ClusterNode::open_with(engine, clock, config, 0, Some(host))?;
        let placement = &member.cluster().table().placement;
        let others =
            placement.map.members().iter().map(|other| other.id).filter(|other| *other != me);
        let address_book = AddressBook::read(&**member.node().engine(), others)?;
        let shared = Arc::new(HostShared {
            node: member.node().clone(),
            me,
            epoch: member.epoch(),
            address_book: Arc::new(address_book),
            member: Mutex::new(member),
            incoming: Mutex::default(),
            calls: Arc::default(),
            wakeup,
            carrier,
            opened,
            // What an earlier start has agreed to is asked about.
            waiting: AtomicBool::new(true),
            late: AtomicBool::new(false),
            released: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let tended = shared.clone();
        let thread = std::thread::Builder::new()
            .name("kestrel-member".into())
            .spawn(move || tended.tend())
            .map_err(|why| {
                FsError::because(libc::EAGAIN, format!("member: its thread did not start: {why}"))
            })?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.shared.node
    }

    /// Its number.
    pub fn me(&self) -> NodeId {
        self.shared.me
    }

    /// Counts the starts of its directory, this one included.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Where it and the other nodes are, as far as they have said so: nodes that are not in here
    /// are where the table says.
    pub fn addresses(&self) -> BTreeMap<NodeId, String> {
        self.shared.address_book.addresses()
    }

    /// The same as it changes.
    pub fn address_book(&self) -> &Arc<AddressBook> {
        &self.shared.address_book
    }

    /// Has a request of the node's own executed, which leads it. Not numbered.
    pub fn submit(&self, request: Request, done: Done) {
        self.shared.bring(Incoming::Request(request, Requester::Own, done));
    }

    /// Serves requests of sessions that this node leads; `sink` hears each reply with the request's
    /// index, [`Outcome::Misdirected`] for those that another member leads and that have no answer
    /// on record here. A request is numbered or not; of one number there is none under way.
    pub fn submit_batch(
        &self,
        requests: Vec<(Request, Option<Origin>)>,
        sink: &Arc<impl ReplySink + 'static>,
    ) {
        let shared = &self.shared;
        let table = shared.cluster().table();
        let relay: Arc<dyn ReplySink> =
            Arc::new(Relay { shared: Arc::downgrade(shared), sink: sink.clone() });
        let (mut refused, mut brought) = (Vec::new(), false);
        let outside = shared.cluster().is_outside();
        let alone = requests.into_iter().enumerate().filter_map(|(number, (request, origin))| {
            if (outside || table.leader(&request.op) != shared.me)
                && !origin.is_some_and(|origin| shared.node.has_answer(origin))
            {
                refused.push(number);
                return None;
            }
            if table.is_alone() || !needs_all_nodes(&request.op) {
                return Some((number, request, origin));
            }
            let done = done_of(shared, sink.clone(), number);
            shared.incoming.lock().push_back(Incoming::Request(
                request,
                Requester::Session(origin),
                done,
            ));
            brought = true;
            None
        });
        {
            // What comes back is only queued meanwhile: the member takes all of it at once.
            let _busy = Busy::on(&shared.wakeup);
            shared.node.submit_numbered(alone, &relay);
        }
        if brought || shared.wakeup.is_noted() {
            shared.drive();
        }
        for number in refused {
            count(&shared.counters.misdirected);
            sink.complete(number, Err(Outcome::Misdirected { table: table.placement.version }));
        }
    }

    /// Why it has stopped, if it has ([`ClusterNode::failure`]): its process must end and be
    /// started again.
    pub fn failure(&self) -> Option<FsError> {
        let failure = self.shared.member.lock().failure().cloned();
        self.shared.wakeup.wake();
        failure
    }

    /// As [`ClusterNode::reclaim_open`].
    pub fn reclaim_open(&self, inode: InodeRef, count: u32, linkable: bool, done: Done) {
        self.shared.turn(move |member, now| member.reclaim_open(inode, count, linkable, done, now));
    }

    /// As [`ClusterNode::set_object_users`].
    pub fn set_object_users(&self, used: Box<super::ObjectUsers>) {
        self.shared.turn(move |member, _| member.set_object_users(used));
    }

    /// As [`ClusterNode::condemn`]; `done` hears it on any thread, with no lock held, and must not
    /// block.
    pub fn condemn(&self, wall: Nanos, limit: usize, done: GcListener) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.condemn(wall, limit, done, now));
    }

    /// As [`ClusterNode::reaped`]; `done` as above.
    pub fn reaped(&self, deleted: Vec<ObjectId>, done: Forgot) {
        let done = self.shared.later(done);
        self.shared.turn(move |member, now| member.reaped(&deleted, done, now));
    }

    /// Takes a message of another member.
    pub fn receive(&self, envelope: Envelope) {
        self.receive_many([envelope]);
    }

    /// Takes messages of other members.
    pub fn receive_many(&self, envelopes: impl IntoIterator<Item = Envelope>) {
        {
            let mut incoming = self.shared.incoming.lock();
            for envelope in envelopes {
                count(&self.shared.counters.received);
                if incoming.len() < INCOMING_MAX {
                    incoming.push_back(Incoming::Envelope(envelope));
                } else {
                    count(&self.shared.counters.overrun);
                }
            }
        }
        self.shared.drive();
    }

    /// What it has done.
    pub fn stats(&self) -> HostStats {
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HostStats {
            misdirected: of(&counters.misdirected),
            handed_back: of(&counters.handed_back),
            received: of(&counters.received),
            overrun: of(&counters.overrun),
            sent: of(&counters.sent),
            unsent: of(&counters.unsent),
        }
    }

    /// Whether nothing is under way that concerns other members.
    pub fn is_idle(&self) -> bool {
        let idle = self.shared.incoming.lock().is_empty() && self.shared.member.lock().is_idle();
        // A thread that found the lock taken has left it to its holder.
        self.shared.wakeup.wake();
        idle
    }

    /// Whether it may answer anybody at this moment ([`Owners::may_answer`]), and tell clients
    /// that they still have a session.
    pub fn may_answer(&self) -> bool {
        self.shared.cluster().may_answer()
    }

    /// How long nothing was heard of the other members; `None` while this one has no lease, since
    /// then it may be itself that is cut off.
    pub fn unheard(&self) -> Option<Vec<(NodeId, Duration)>> {
        let unheard = self.shared.member.lock().unheard(self.shared.now());
        self.shared.wakeup.wake();
        let in_time =
            |(node, time): (NodeId, Nanos)| (node, Duration::from_nanos(time.unsigned_abs()));
        Some(unheard?.into_iter().map(in_time).collect())
    }

    /// Tells the other members that this start has ended: it answers nothing any more that needs a
    /// lease, and if others can claim its store one of them need not wait. Once; later calls do
    /// nothing. Takes [`RESTART_MIN`] in that case.
    pub fn release(&self) {
        if self.shared.released.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.member.lock().give_up_lease(self.shared.now());
        self.shared.wakeup.wake();
        if self.shared.cluster().is_shared() {
            // What it has just lent may be relied on for so long.
            std::thread::sleep(Duration::from_nanos(RESTART_MIN.unsigned_abs()));
        }
        let outbox = {
            let mut member = self.shared.member.lock();
            member.say_released();
            member.take_outbox()
        };
        self.shared.wakeup.wake();
        self.shared.send(outbox);
    }

    /// Says that it ends ([`NodeHost::release`]), stops its thread and makes everything durable.
    /// What is under way with other members ends when the node starts again.
    ///
    /// # Errors
    /// The engine's.
    pub fn close(&self) -> FsResult<()> {
        self.release();
        self.stop();
        self.shared.node.close()
    }

    fn stop(&self) {
        self.shared.wakeup.close();
        let own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        // A callback of it may hold the last reference to the host.
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| !own(thread)) {
            // If it panicked, that has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl Drop for NodeHost {
    fn drop(&mut self) {
        self.stop();
    }
}

impl HostShared {
    fn cluster(&self) -> &Owners {
        self.node.cluster().expect(ONE_OF_SEVERAL)
    }

    fn now(&self) -> Nanos {
        boot_time() - self.opened
    }

    /// Whether the engine reads nothing any more. It says nothing from then on.
    fn is_replaced(&self) -> bool {
        // A row that is in memory.
        let replaced = self.node.engine().get_many(&[system_key("epoch")], &mut |_, _| ()).is_err();
        if replaced {
            self.cluster().lease.set(NEVER);
        }
        replaced
    }

    fn bring(&self, what: Incoming) {
        self.incoming.lock().push_back(what);
        self.drive();
    }

    fn turn(&self, turn: impl FnOnce(&mut ClusterNode, Nanos) + Send + 'static) {
        self.bring(Incoming::Turn(Box::new(turn)));
    }

    /// Has `done` called when the member's lock has been let go.
    fn later<T: Send + 'static>(
        &self,
        done: Box<dyn FnOnce(T) + Send>,
    ) -> Box<dyn FnOnce(T) + Send> {
        let calls = self.calls.clone();
        Box::new(move |result| calls.lock().push(Box::new(move || done(result))))
    }

    /// Serves the member until nothing is left to do, or somebody else does. Of what was queued
    /// before nothing is forgotten.
    fn drive(&self) {
        self.wakeup.note();
        let Some(_busy) = Busy::on(&self.wakeup) else {
            // This thread gives replies, or carries envelopes: it must not go deeper, and may be
            // about to block.
            return self.wakeup.wake();
        };
        for _ in 0..ROUNDS_MAX {
            let Some(mut member) = self.member.try_lock() else { return };
            let (whole, hurry) = (PanicGuard, LatencyHint::begin());
            self.wakeup.look();
            let incoming = {
                let mut queue = self.incoming.lock();
                let taken = queue.len().min(TAKEN_MAX);
                let rest = queue.split_off(taken);
                std::mem::replace(&mut *queue, rest)
            };
            if incoming.len() == TAKEN_MAX {
                self.wakeup.note();
            }
            for what in incoming {
                self.take(&mut member, what);
            }
            if self.late.swap(false, Ordering::Relaxed) {
                member.tick(self.now());
            } else {
                member.go_on(self.now());
            }
            let (outbox, finished) = (member.take_outbox(), member.take_finished());
            let waits = member.is_waiting();
            if waits && !self.waiting.swap(waits, Ordering::Relaxed) {
                // The thread looks at the clock rarely until it knows.
                self.wakeup.wake();
            } else {
                self.waiting.store(waits, Ordering::Relaxed);
            }
            drop((whole, hurry));
            drop(member);
            self.send(outbox);
            for (done, reply) in finished {
                done(reply);
            }
            let calls = std::mem::take(&mut *self.calls.lock());
            for call in calls {
                call();
            }
            if self.node.drive_due() {
                // Perhaps not everything was served.
                self.wakeup.note();
            }
            if !self.wakeup.is_noted() {
                return;
            }
        }
        self.wakeup.wake();
    }

    fn take(&self, member: &mut ClusterNode, what: Incoming) {
        let now = self.now();
        match what {
            Incoming::Envelope(envelope) => member.receive(envelope, now),
            Incoming::Request(request, asker, done) => member.submit(request, asker, done, now),
            Incoming::HandedBack(handed_back, done) => member.take_up(handed_back, done, now),
            Incoming::Unsent(to, unsent) => member.unsent(to, unsent.envelope.message, unsent.why),
            Incoming::Turn(turn) => turn(member, now),
        }
    }

    fn send(&self, outbox: Vec<(NodeId, Envelope)>) {
        if outbox.is_empty() {
            return;
        }
        for (to, envelope) in outbox {
            count(&self.counters.sent);
            if let Err(unsent) = self.carrier.carry(to, envelope) {
                count(&self.counters.unsent);
                self.incoming.lock().push_back(Incoming::Unsent(to, unsent));
                self.wakeup.note();
            }
        }
        self.carrier.flush();
    }

    /// The host's thread.
    fn tend(&self) {
        let mut ticked = Instant::now();
        loop {
            let pause = if self.waiting.load(Ordering::Relaxed) { TICK } else { TICK_IDLE };
            if self.wakeup.wait(pause) == Woken::Closed {
                return;
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.late.store(true, Ordering::Relaxed);
            }
            self.drive();
        }
    }
}

/// Time since the machine was booted, the time in which it slept included: what members agree on by
/// how long it lasts, they must not miss while they sleep.
fn boot_time() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame. The clock exists on every Linux since
    // 2.6.39, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec * SECOND + time.tv_nsec
}

/// A member is being changed. If that ends by a panic nobody knows what state it is in, and the
/// other nodes would wait for one that seems to live: the process ends, and the next start reads
/// what is true from the log.
struct PanicGuard;

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!(
                "this node stops: a defect of its member, see the message above; start it again"
            );
            std::process::abort();
        }
    }
}

fn done_of(shared: &Arc<HostShared>, sink: Arc<impl ReplySink + 'static>, number: usize) -> Done {
    let shared = Arc::downgrade(shared);
    Box::new(move |reply| {
        if !is_unsaid(&shared, &reply) {
            sink.complete(number, reply);
        }
    })
}

/// Whether a session is not to hear a reply: its request failed because the store is another
/// process's now. Nobody here knows what became of it; that process does, and the client asks there
/// when this one has ended, which it does next.
fn is_unsaid(shared: &Weak<HostShared>, reply: &Reply) -> bool {
    let failed = matches!(reply, Err(Outcome::Failed(why)) if why.errno == libc::EIO);
    failed
        && shared
            .upgrade()
            .is_some_and(|shared| shared.cluster().is_shared() && shared.is_replaced())
}

/// Passes replies of the node on, and takes what it cannot serve alone to the member.
struct Relay<E> {
    shared: Weak<HostShared>,
    sink: Arc<E>,
}

impl<E: ReplySink + 'static> ReplySink for Relay<E> {
    fn complete(&self, number: usize, reply: Reply) {
        if !is_unsaid(&self.shared, &reply) {
            self.sink.complete(number, reply);
        }
    }

    fn hand_back(&self, number: usize, handed_back: HandedBack) {
        match self.shared.upgrade() {
            Some(shared) => {
                count(&shared.counters.handed_back);
                let done = done_of(&shared, self.sink.clone(), number);
                shared.incoming.lock().push_back(Incoming::HandedBack(handed_back, done));
                if !shared.wakeup.is_mine() {
                    return shared.drive();
                }
                // This thread serves the member, and is only here because that had the workers
                // served.
                shared.wakeup.note();
            }
            None => self.sink.complete(
                number,
                Err(FsError::new(libc::ESHUTDOWN, "metadata: the node is shutting down").into()),
            ),
        }
    }
}
