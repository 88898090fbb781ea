//! Requests to the metadata of a volume that is followed.
//!
//! A request that fails because something of its moment is gone from the store (tables that the
//! writer has merged, objects that it has collected) is executed again at the moment that a look
//! which begins after the failure comes to. So it fails only if what it needs is missing now. The
//! same becomes of one that comes when what is shown is older than it should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kestrel_bucket::{FollowedRows, Follower};
use kestrel_meta::clones::WITHOUT_NAMES;
use kestrel_meta::node::{Node, NodeConfig};
use kestrel_types::clock::Clock;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::Position;
use kestrel_types::op_counters::NodeStats;
use kestrel_types::request::{Answer, Done, Op, Outcome, Reply, Request, Usage};
use parking_lot::{Condvar, Mutex};

use super::poller::{Admission, FollowStatus, Poller};
use crate::error::VolumeError;
use crate::metadata::Metadata;

/// Times that a request is executed, at different moments.
const TRIES_MAX: u32 = 4;

/// How long a request waits for the next moment after it has failed; for one if what is shown is
/// too old.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_OVERDUE: Duration = Duration::from_secs(2);

/// How often it is looked whether the patience is over.
const TICK: Duration = Duration::from_millis(200);

/// Figures of the volume are counted anew when so many times the time has passed that the count
/// took.
const COUNT_REST: u32 = 20;

/// What is to be done at a later moment.
enum Later {
    /// Execute a request again, which has failed with this reply so often; none: it was not
    /// executed.
    Request(Box<Request>, Option<Reply>, u32, Done),
    /// Tell that the moment has come.
    Tell(Box<dyn FnOnce() + Send>),
}

/// Requests that a node is asked together.
type Batch = (Arc<Node>, Vec<(Request, Done)>);

struct Waiting {
    /// The look that it waits for.
    look: u64,
    until: Instant,
    later: Later,
}

/// Files, directories and bytes of the volume at a moment.
struct Counted {
    at: Position,
    usage: Usage,
    when: Instant,
    took: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    stopped: bool,
}

struct Shared {
    poller: Poller,
    queue: Mutex<Queue>,
    changed: Condvar,
    counted: Mutex<Option<Counted>>,
    repeated: AtomicU64,
}

/// The way to the metadata of a volume that is followed.
pub struct FollowedMetadata {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What becomes of a request.
enum Handling {
    /// It is executed.
    Execute,
    /// It is done: nothing is counted and nothing is to be made durable.
    Nothing,
    /// It asks for the figures of the volume.
    Count,
    /// It would change something.
    Refuse,
}

impl Handling {
    fn of(op: &Op) -> Self {
        match op {
            Op::Accessed(..) | Op::Release(_) | Op::Sync => Self::Nothing,
            Op::Usage => Self::Count,
            Op::At(_, op) if **op == Op::Usage => Self::Count,
            Op::Open(_, flags) | Op::OpenAt(_, flags) if !flags.write && !flags.truncate => {
                Self::Execute
            }
            Op::AllocObjects(_)
            | Op::CloneStep(_)
            | Op::QuotaSet(..)
            | Op::QuotaRemove(_)
            | Op::QuotaCheck { .. } => Self::Refuse,
            op if op.is_numbered() => Self::Refuse,
            _ => Self::Execute,
        }
    }
}

fn refused() -> Outcome {
    let why = "this mount follows the process that writes the volume: make changes at that mount";
    FsError::new(libc::EROFS, why).into()
}

/// Whether a request may succeed at a later moment; if so, whether that is worth a look at once.
fn may_succeed_later(reply: &Reply) -> Option<bool> {
    match reply {
        Err(Outcome::Failed(why)) if why.errno == libc::EIO => Some(true),
        // The writer gives names to the directories of a clone one after the other.
        Err(Outcome::Failed(why)) if *why == WITHOUT_NAMES => Some(false),
        _ => None,
    }
}

impl FollowedMetadata {
    /// Starts the threads. The follower began to read when it was `opened`.
    pub(super) fn start(
        mut follower: Follower,
        clock: Arc<dyn Clock>,
        config: NodeConfig,
        (every, opened): (Duration, Instant),
    ) -> Result<Arc<Self>, VolumeError> {
        let poller = Poller::new(&mut follower, clock, config, (every, opened))
            .map_err(|why| VolumeError::Io(why.reason.into_owned()))?;
        let shared = Arc::new(Shared {
            poller,
            queue: Mutex::default(),
            changed: Condvar::new(),
            counted: Mutex::new(None),
            repeated: AtomicU64::new(0),
        });
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
            spawned.map_err(|why| VolumeError::Io(format!("no thread to follow with: {why}")))
        };
        let own = shared.clone();
        let look = move || own.poller.run(follower, &|| own.looked());
        let own = shared.clone();
        let threads = vec![
            spawn("kestrel-follow", Box::new(look))?,
            spawn("kestrel-again", Box::new(move || own.repeat()))?,
        ];
        Ok(Arc::new(Self { shared, threads: Mutex::new(threads) }))
    }

    /// How far it has come.
    pub fn status(&self) -> FollowStatus {
        self.shared.poller.status(self.shared.repeated.load(Ordering::Relaxed))
    }

    /// The rows of the moment that is shown.
    pub fn rows(&self) -> Arc<FollowedRows> {
        self.shared.poller.moment().rows.clone()
    }
}

impl Shared {
    fn submit(self: &Arc<Self>, request: Request, tries: u32, done: Done) {
        let Some((node, request, done)) = self.prepare(request, tries, done) else { return };
        node.submit(request, done);
    }

    /// Answers a request, or has it wait, or gives the node that executes it and what hears of the
    /// end.
    fn prepare(
        self: &Arc<Self>,
        request: Request,
        tries: u32,
        done: Done,
    ) -> Option<(Arc<Node>, Request, Done)> {
        let reply = match (Handling::of(&request.op), self.poller.admission()) {
            (Handling::Nothing, _) => Ok(Answer::Done),
            (_, Admission::Lost(why)) => Err(why.into()),
            (Handling::Refuse, _) => Err(refused()),
            (_, Admission::AfterLook) if tries == 0 => {
                let later = Later::Request(Box::new(request), None, 1, done);
                self.wait(true, PATIENCE_OVERDUE, later);
                return None;
            }
            (Handling::Count, _) => self.count(&self.poller.moment().node),
            (Handling::Execute, _) => return Some(self.to_execute(request, tries, done)),
        };
        self.heard(request, tries, reply, done);
        None
    }

    fn to_execute(
        self: &Arc<Self>,
        request: Request,
        tries: u32,
        done: Done,
    ) -> (Arc<Node>, Request, Done) {
        let (shared, again) = (self.clone(), request.clone());
        let heard = move |reply| shared.heard(again, tries, reply, done);
        (self.poller.moment().node.clone(), request, Box::new(heard))
    }

    /// Passes a reply on, or has the request executed again.
    fn heard(self: &Arc<Self>, request: Request, tries: u32, reply: Reply, done: Done) {
        match may_succeed_later(&reply) {
            Some(now) if tries < TRIES_MAX => {
                let later = Later::Request(Box::new(request), Some(reply), tries + 1, done);
                self.wait(now, PATIENCE, later);
            }
            _ => done(reply),
        }
    }

    /// Has something wait for the next look.
    fn wait(self: &Arc<Self>, now: bool, patience: Duration, later: Later) {
        let (look, until) = (self.poller.next_look(now), Instant::now() + patience);
        let mut queue = self.queue.lock();
        if queue.stopped {
            drop(queue);
            return self.give_up(later);
        }
        queue.waiting.push(Waiting { look, until, later });
        drop(queue);
        self.changed.notify_one();
    }

    /// A look has ended.
    fn looked(&self) {
        // Under the lock: a thread that is about to wait has seen the end, or hears of it.
        drop(self.queue.lock());
        self.changed.notify_one();
    }

    /// Does what was left for later, until it is stopped.
    fn repeat(self: &Arc<Self>) {
        loop {
            let (due, stopped) = self.take_due();
            for Waiting { look, later, .. } in due {
                let has_come = self.poller.has_ended(look) == Some(true);
                match later {
                    Later::Request(request, failed, tries, done)
                        if has_come || failed.is_none() =>
                    {
                        if failed.is_some() {
                            self.repeated.fetch_add(1, Ordering::Relaxed);
                        }
                        // One that was not executed is so now, whatever is shown.
                        self.submit(*request, tries, done);
                    }
                    later => self.give_up(later),
                }
            }
            if stopped {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn take_due(&self) -> (Vec<Waiting>, bool) {
        let mut queue = self.queue.lock();
        loop {
            let (now, stopped) = (Instant::now(), queue.stopped);
            let is_due = |waiting: &mut Waiting| {
                stopped || waiting.until <= now || self.poller.has_ended(waiting.look).is_some()
            };
            let due: Vec<Waiting> = queue.waiting.extract_if(.., is_due).collect();
            if !due.is_empty() || stopped {
                return (due, stopped);
            }
            if queue.waiting.is_empty() {
                self.changed.wait(&mut queue);
            } else {
                self.changed.wait_for(&mut queue, TICK);
            }
        }
    }

    /// No later moment comes.
    fn give_up(&self, later: Later) {
        match later {
            Later::Tell(tell) => tell(),
            Later::Request(_, failed, _, done) => {
                let ends = FsError::new(libc::EIO, "the mount ends");
                done(failed.unwrap_or(Err(ends.into())));
            }
        }
    }

    /// The figures of the volume, at this moment or one that is not long past.
    fn count(&self, node: &Node) -> Reply {
        let mut counted = self.counted.lock();
        let is_good = |counted: &&Counted| {
            counted.at == node.moment() || counted.when.elapsed() < counted.took * COUNT_REST
        };
        if let Some(counted) = counted.as_ref().filter(is_good) {
            return Ok(Answer::Usage(counted.usage));
        }
        let begun = Instant::now();
        let [files, dirs, bytes] =
            node.figures_of_rows()?.map(|figure| figure.max(0).cast_unsigned());
        let usage = Usage { files, dirs, bytes };
        let (at, when) = (node.moment(), Instant::now());
        *counted = Some(Counted { at, usage, when, took: begun.elapsed() });
        Ok(Answer::Usage(usage))
    }
}

impl Metadata for FollowedMetadata {
    fn submit(&self, request: Request, done: Done) {
        self.shared.submit(request, 0, done);
    }

    fn submit_many(&self, requests: Vec<(Request, Done)>) {
        let mut prepared: Vec<Batch> = Vec::new();
        for (request, done) in requests {
            let Some((node, request, done)) = self.shared.prepare(request, 0, done) else {
                continue;
            };
            match prepared.last_mut() {
                Some((last, requests)) if Arc::ptr_eq(last, &node) => {
                    requests.push((request, done));
                }
                _ => prepared.push((node, vec![(request, done)])),
            }
        }
        for (node, requests) in prepared {
            node.submit_many(requests);
        }
    }

    fn is_remote(&self) -> bool {
        // What it was told may change by what others do.
        true
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn catch_up(&self, done: Box<dyn FnOnce() + Send>) {
        self.shared.wait(true, PATIENCE, Later::Tell(done));
    }

    fn stats(&self) -> NodeStats {
        self.shared.poller.moment().node.stats()
    }

    fn close(&self) -> FsResult<()> {
        self.shared.poller.stop();
        self.shared.queue.lock().stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            // One that panicked has printed that.
            let _ = thread.join();
        }
        Ok(())
    }
}
