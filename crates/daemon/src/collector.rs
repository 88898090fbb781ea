//! Collects by itself what nobody will delete but a collection: objects that a killed mount had
//! stored and not committed (`kestrel_admin::gc`, under the same rules as `kestrel gc --delete`).
//!
//! At a bounded rate, so that clients do not feel it: rows and names are read, and objects deleted,
//! a few thousand and a hundred a second. A request to this process for a check or a collection has
//! it give up, and it begins anew later. Of several nodes the one that leads changes collects, over
//! the rows of all, as `kestrel gc` does; the nodes then delete what they agree on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kestrel_admin::gc::{self, GcEvent, Options};
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_client::storage::StoreOptions;
use kestrel_engine::EngineError;
use kestrel_engine::cancellable::CancellableScan;
use kestrel_rpc::tls::TlsMode;
use kestrel_types::clock::{Clock, SECOND, SystemClock};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::backup_schedule::Every;
use super::served_volume::ServedVolume;
use super::worker::Worker;
use crate::jobs::gc::{self as jobs, GRACE_SECONDS_DEFAULT};
use crate::progress_stream::ProgressStream;

/// Unless told otherwise.
const EVERY_DEFAULT: Every = Every(Some(Duration::from_secs(24 * 3600)));

/// After so long it is tried again where it could not be done.
const RETRY: Duration = Duration::from_secs(60);

/// Pause before each page of the metadata (some thousand rows), and before each few deletions (64
/// in a remote store, else one).
const PAGE_PAUSE: Duration = Duration::from_millis(20);
const DELETE_PAUSE: Duration = Duration::from_millis(10);

/// Longest time in which a collection gives up that is in somebody's way.
pub const GIVE_UP_MAX: Duration = Duration::from_secs(10);

/// When what a killed mount left behind is collected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectorOptions {
    /// Delete objects that nothing refers to this often while the volume is in use here; off: never
    /// [default: 1d]
    pub collect_every: Option<Every>,
    /// Leave objects alone that were written to less than this ago [default: 1h]
    pub collect_grace: Option<Duration>,
}

impl CollectorOptions {
    fn every(&self) -> Option<Duration> {
        self.collect_every.unwrap_or(EVERY_DEFAULT).0
    }

    fn grace(&self) -> Duration {
        self.collect_grace.unwrap_or(Duration::from_secs(GRACE_SECONDS_DEFAULT))
    }
}

/// What collections have come to.
#[derive(Default)]
struct State {
    /// When the last one ended, seconds since 1970.
    last: Option<i64>,
    runs: u64,
    deleted: u64,
    deleted_bytes: u64,
    failed: u64,
    /// Why the last one was not done.
    why: Option<String>,
}

/// Collects what a process serves.
pub struct Collector {
    args: CollectorOptions,
    options: StoreOptions,
    /// How the other nodes are connected to.
    tls: TlsMode,
    state: Mutex<State>,
    running: AtomicBool,
    /// Somebody asks for a check or a collection: the one under way, or the next, gives up.
    gives_up: AtomicBool,
    /// The process ends.
    ends: AtomicBool,
}

impl Collector {
    /// Does as the arguments say, and reaches the store as `options` say, and other nodes by `tls`.
    pub fn new(args: CollectorOptions, options: StoreOptions, tls: TlsMode) -> Self {
        let [running, gives_up, ends] = [(); 3].map(|()| AtomicBool::new(false));
        Self { args, options, tls, state: Mutex::default(), running, gives_up, ends }
    }

    /// Has a collection that is under way give up. Says whether one was.
    pub fn give_up(&self) -> bool {
        self.gives_up.store(true, Ordering::SeqCst);
        self.running.load(Ordering::SeqCst)
    }

    /// What a status tells.
    pub fn status(&self) -> Value {
        let state = self.state.lock();
        json!({
            "every_seconds": self.args.every().map(|every| every.as_secs_f64()),
            "grace_seconds": self.args.grace().as_secs_f64(),
            "last": state.last,
            "running": self.running.load(Ordering::Relaxed),
            "runs": state.runs,
            "deleted_objects": state.deleted,
            "deleted_bytes": state.deleted_bytes,
            "failed": state.failed,
            "why": state.why,
        })
    }

    /// Tells the figures.
    pub fn stats(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        let state = self.state.lock();
        tell("leftovers_collections", state.runs);
        tell("leftovers_collection_failures", state.failed);
        tell("leftovers_deleted_objects", state.deleted);
    }

    /// One collection; how long to wait for the next one.
    fn collect(&self, volume: &ServedVolume, every: Duration) -> Duration {
        if volume.fs.member().is_some_and(|host| !host.leads_changes()) {
            return RETRY.min(every);
        }
        if volume.may_change().is_err() {
            // Remounted to be read only.
            return RETRY.min(every);
        }
        // Before the lock: a caller that finds that taken then knows why.
        self.running.store(true, Ordering::SeqCst);
        let done = volume.walking.try_lock().map(|_alone| match volume.descriptor.cluster {
            None => self.of_one(volume),
            Some(_) => self.of_several(volume),
        });
        self.running.store(false, Ordering::SeqCst);
        let gave_up = self.gives_up.swap(false, Ordering::SeqCst);
        let Some(done) = done else { return RETRY.min(every) };
        let mut state = self.state.lock();
        match done {
            Ok((objects, bytes)) => {
                state.runs += 1;
                state.deleted += objects;
                state.deleted_bytes += bytes;
                state.last = Some(SystemClock.now() / SECOND);
                state.why = None;
                if objects > 0 {
                    log::info!(
                        "{objects} objects with {bytes} bytes that nothing referred to were deleted"
                    );
                }
                every
            }
            Err(_) if gave_up || self.ends.load(Ordering::Relaxed) => RETRY.min(every),
            Err(why) => {
                log::warn!(
                    "objects that nothing refers to were not collected: {why}; it is tried again"
                );
                state.failed += 1;
                state.why = Some(why);
                RETRY.max(every / 8).min(every)
            }
        }
    }

    /// Whether to go on, after a pause.
    fn goes_on(&self, pause: Duration) -> bool {
        std::thread::sleep(pause);
        !self.gives_up.load(Ordering::SeqCst) && !self.ends.load(Ordering::Relaxed)
    }

    /// Objects and bytes deleted of a volume that this process has alone.
    fn of_one(&self, volume: &ServedVolume) -> Result<(u64, u64), String> {
        let go_on = || match self.goes_on(PAGE_PAUSE) {
            true => Ok(()),
            false => Err(EngineError::Io("the collection was given up".into())),
        };
        let engine = CancellableScan::new(&*volume.engine, &go_on);
        let options = Options {
            now: SystemClock.now(),
            grace: i64::try_from(self.args.grace().as_nanos()).unwrap_or(i64::MAX),
            delete: true,
            is_open: &|object| volume.fs.is_open_object(object),
            go_on: &|| self.goes_on(DELETE_PAUSE),
        };
        let mut sizes = 0;
        let mut report = |event: GcEvent<'_>| match event {
            GcEvent::Leaked { size, .. } => sizes += size,
            GcEvent::Failed(object, why) => {
                log::warn!("object {object:016x} was not deleted: {why}")
            }
            GcEvent::Disputed(_) | GcEvent::Unknown(_) => {}
        };
        let totals = gc::collect(&engine, &*volume.store, &options, &mut report, &mut |_, _| ())
            .map_err(|why| why.to_string())?;
        let all = totals.deleted == totals.leaked;
        Ok((totals.deleted, if all { sizes } else { 0 }))
    }

    /// The same of a volume that several nodes share. What the nodes still have to agree on is not
    /// counted.
    fn of_several(&self, volume: &ServedVolume) -> Result<(u64, u64), String> {
        let section = volume.descriptor.cluster.as_ref().ok_or("one node serves the volume")?;
        let url = section.url(&volume.descriptor.settings.name);
        let url = url.and_then(|url| RemoteUrl::parse(&url)).map_err(|why| why.to_string())?;
        let url = RemoteUrl { tls: self.tls, ..url };
        let who = crate::who("kestrel serve (gc)");
        let panel = NodeFanOut::connect(&url.to_string(), &who).map_err(|why| why.to_string())?;
        let panel = panel.ok_or("the volume has only one node, and says that it has several")?;
        let mut tell = |_: &Value| self.goes_on(PAGE_PAUSE);
        let how = jobs::GcMode {
            store: self.options.clone(),
            grace: self.args.grace(),
            delete: true,
            scratch: volume.dir.clone(),
        };
        let done = jobs::served(&how, &panel, &ProgressStream::new(&mut tell))
            .map_err(|why| why.reason())?;
        let number = |name: &str| done[name].as_u64().unwrap_or(0);
        Ok((
            number("deleted_objects"),
            if number("deleted_objects") > 0 { number("leaked_bytes") } else { 0 },
        ))
    }
}

/// The thread that collects. It ends when this is dropped, and gives up what it is doing.
pub struct Collecting {
    collector: Arc<Collector>,
    worker: Option<Worker>,
}

impl Collecting {
    /// Begins, if it is wanted and the volume can be changed. What the process before left behind
    /// has to be older than the grace period, so that is when it is looked for first.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn begin(collector: &Arc<Collector>, volume: &Arc<ServedVolume>) -> std::io::Result<Self> {
        let collector = collector.clone();
        let Some(every) = collector.args.every().filter(|_| volume.is_kept()) else {
            return Ok(Self { collector, worker: None });
        };
        let begun = Instant::now();
        let grace = collector.args.grace();
        let (works, volume) = (collector.clone(), Arc::downgrade(volume));
        let worker = Worker::start("kestrel-collect", move |rest| {
            let mut wait = every.min(grace).saturating_sub(begun.elapsed());
            while rest.sleep(wait).is_ok() {
                let Some(volume) = volume.upgrade() else { return };
                wait = works.collect(&volume, every);
            }
        })?;
        Ok(Self { collector, worker: Some(worker) })
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.collector.ends.store(true, Ordering::Relaxed);
        drop(self.worker.take());
    }
}
