//! The thread that reads the log on, and what is known of its progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_bucket::{FollowedRows, FollowedTo, Follower};
use kestrel_engine::EngineError;
use kestrel_meta::node::{Node, NodeConfig};
use kestrel_types::clock::Clock;
use kestrel_types::error::FsError;
use parking_lot::{Condvar, Mutex, RwLock};

/// Times that a moment is looked for, if tables of it are gone before its node is open.
const OPENS_MAX: usize = 3;

/// A look that takes longer than this may take long: the store does not answer.
const SLACK: Duration = Duration::from_millis(500);

/// What becomes of a request.
pub(super) enum Admission {
    /// It is executed.
    Now,
    /// It waits for a look: what is shown is older than it should be, for the process was stopped.
    AfterLook,
    /// It fails: the bucket does not have this volume any more.
    Lost(FsError),
}

/// A moment of the writer.
pub(super) struct Moment {
    pub rows: Arc<FollowedRows>,
    pub node: Arc<Node>,
}

/// How far a follower has come.
#[derive(Debug, Clone)]
pub struct FollowStatus {
    /// What is shown.
    pub to: FollowedTo,
    /// How old that is at most: the time since the last look that came to the end of the log began.
    pub age: Duration,
    /// Time between two looks.
    pub every: Duration,
    /// How long the store has not answered; zero: it does.
    pub silence: Duration,
    /// Why the last look did not come to the end of the log.
    pub error: Option<String>,
    /// Nothing is shown because of that: the bucket does not have this volume any more.
    pub is_lost: bool,
    /// Looks so far.
    pub looks: u64,
    /// Moments so far.
    pub moments: u64,
    /// Requests that were executed again at a later moment.
    pub repeated: u64,
}

/// What the threads of a follower tell each other.
struct Progress {
    to: FollowedTo,
    /// When the last look began that came to the end of the log.
    current_at: Instant,
    /// When the look began that is under way.
    looking_since: Option<Instant>,
    error: Option<EngineError>,
    /// Looks that have begun, and that have ended.
    begun: u64,
    ended: u64,
    moments: u64,
    /// Somebody waits for the next look.
    wanted: bool,
    stopping: bool,
}

/// What a follower's threads and its requests share.
pub(super) struct Poller {
    moment: RwLock<Arc<Moment>>,
    progress: Mutex<Progress>,
    changed: Condvar,
    every: Duration,
    silence: Box<dyn Fn() -> Duration + Send + Sync>,
    clock: Arc<dyn Clock>,
    config: NodeConfig,
}

impl Poller {
    /// Shows what the follower has read.
    ///
    /// # Errors
    /// If its rows cannot be read.
    pub fn new(
        follower: &mut Follower,
        clock: Arc<dyn Clock>,
        config: NodeConfig,
        (every, opened): (Duration, Instant),
    ) -> Result<Self, FsError> {
        let rows = follower.rows();
        let node = Node::open_moment(rows.clone(), clock.clone(), &config, None)?;
        let progress = Progress {
            to: follower.followed_to(),
            current_at: opened,
            looking_since: None,
            error: None,
            begun: 1,
            ended: 1,
            moments: 1,
            wanted: false,
            stopping: false,
        };
        Ok(Self {
            moment: RwLock::new(Arc::new(Moment { rows, node })),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            every,
            silence: Box::new(follower.silence()),
            clock,
            config,
        })
    }

    /// What is shown now.
    pub fn moment(&self) -> Arc<Moment> {
        self.moment.read().clone()
    }

    /// Whether requests are executed at the moment that is shown.
    pub fn admission(&self) -> Admission {
        let progress = self.progress.lock();
        match &progress.error {
            Some(why) if is_loss(why) => {
                return Admission::Lost(FsError::because(libc::ESTALE, why.to_string()));
            }
            Some(_) => return Admission::Now,
            None => {}
        }
        let is_old = progress.current_at.elapsed() > self.every + self.every.max(SLACK);
        let is_hanging = progress.looking_since.is_some_and(|since| since.elapsed() > SLACK);
        if is_old && !is_hanging { Admission::AfterLook } else { Admission::Now }
    }

    /// The number of the next look to begin, which [`Poller::has_ended`] tells the end of. `now`:
    /// it begins at once.
    pub fn next_look(&self, now: bool) -> u64 {
        let mut progress = self.progress.lock();
        progress.wanted |= now;
        let next = progress.begun + 1;
        drop(progress);
        if now {
            self.changed.notify_all();
        }
        next
    }

    /// Whether a look has ended; and if so, whether the last one came to the end of the log.
    pub fn has_ended(&self, look: u64) -> Option<bool> {
        let progress = self.progress.lock();
        (progress.ended >= look).then(|| progress.error.is_none())
    }

    /// How far it has come. `repeated`: requests that were executed again.
    pub fn status(&self, repeated: u64) -> FollowStatus {
        let progress = self.progress.lock();
        FollowStatus {
            to: progress.to,
            age: progress.current_at.elapsed(),
            every: self.every,
            silence: (self.silence)(),
            error: progress.error.as_ref().map(EngineError::to_string),
            is_lost: progress.error.as_ref().is_some_and(is_loss),
            looks: progress.ended,
            moments: progress.moments,
            repeated,
        }
    }

    /// The thread ends.
    pub fn stop(&self) {
        self.progress.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Looks for changes until it is stopped. `ended` is called after each look.
    pub fn run(&self, mut follower: Follower, ended: &dyn Fn()) {
        let mut last = Instant::now();
        while self.wait_until(last + self.every) {
            last = Instant::now();
            let looked = self.look(&mut follower);
            self.end_look(last, follower.followed_to(), looked);
            ended();
        }
    }

    /// Waits for the time of the next look; false: the thread ends.
    fn wait_until(&self, due: Instant) -> bool {
        let mut progress = self.progress.lock();
        while !progress.stopping
            && !progress.wanted
            && !self.changed.wait_until(&mut progress, due).timed_out()
        {}
        progress.wanted = false;
        progress.begun += 1;
        progress.looking_since = Some(Instant::now());
        !progress.stopping
    }

    /// Looks once, and shows what it has come to.
    fn look(&self, follower: &mut Follower) -> Result<(), EngineError> {
        for attempt in 1.. {
            let looked = follower.poll();
            if let Err(why) = &looked
                && is_loss(why)
            {
                return looked;
            }
            match self.show(follower.rows()) {
                Ok(()) => return looked,
                // Its tables may have been merged away since the manifest was read.
                Err(why) if attempt == OPENS_MAX => {
                    return Err(looked.err().unwrap_or(EngineError::Io(why.reason.into_owned())));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Shows a moment, if it is another one.
    fn show(&self, rows: Arc<FollowedRows>) -> Result<(), FsError> {
        let before = self.moment();
        if Arc::ptr_eq(&before.rows, &rows) {
            return Ok(());
        }
        let (clock, config) = (self.clock.clone(), &self.config);
        let node = Node::open_moment(rows.clone(), clock, config, Some(&before.node))?;
        *self.moment.write() = Arc::new(Moment { rows, node });
        self.progress.lock().moments += 1;
        Ok(())
    }

    fn end_look(&self, begun: Instant, to: FollowedTo, looked: Result<(), EngineError>) {
        let mut progress = self.progress.lock();
        progress.looking_since = None;
        progress.ended = progress.begun;
        let before = std::mem::replace(&mut progress.error, looked.err());
        match (&before, &progress.error) {
            (None, Some(why)) if is_loss(why) => log::error!("nothing is shown any more: {why}"),
            (None, Some(why)) => log::warn!("changes of the writer are not seen: {why}"),
            (Some(_), None) => log::info!("changes of the writer are seen again"),
            _ => {}
        }
        if progress.error.is_none() {
            (progress.to, progress.current_at) = (to, begun);
        }
    }
}

/// Whether an error means that what is shown is not the volume any more.
fn is_loss(why: &EngineError) -> bool {
    matches!(why, EngineError::Refused(_) | EngineError::Fenced { .. })
}
