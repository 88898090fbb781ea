//! Dumps into the block store (`kestrel_admin::dump::backup`), on a schedule and when somebody asks
//! for one.
//!
//! The store says when the last one was taken, so nothing about the schedule is kept elsewhere: the
//! next process that serves the volume goes on with it. Of several nodes the coordinator takes
//! them, of all nodes as they are at one moment.

use std::cell::LazyCell;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kestrel_admin::dump::backup::{Backup, BackupRepository, Stamp};
use kestrel_admin::dump::dump;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::remote::{NodeFanOut, RemoteUrl};
use kestrel_client::storage::{Storage, StoreOptions};
use kestrel_engine::Engine;
use kestrel_rpc::tls::TlsMode;
use kestrel_types::clock::{Clock, Nanos, SECOND, SystemClock};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::served_volume::ServedVolume;
use super::worker::Worker;
use crate::jobs::dump::{about, spool_in};
use crate::nodes::cut;
use crate::progress_stream::ProgressStream;

/// Unless told otherwise.
const EVERY_DEFAULT: Every = Every(Some(Duration::from_secs(24 * 3600)));
const KEEP_DEFAULT: u16 = 7;

/// Longest time between two looks whether one is due.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Shortest and longest pause after a dump that failed.
const RETRY_MIN: Duration = Duration::from_secs(10);
const RETRY_MAX: Duration = Duration::from_secs(600);

/// How often, and how many are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeeperOptions {
    /// Dump the metadata into the block store this often while the volume is in use here; off:
    /// never [default: 1d]
    pub dump_every: Option<Every>,
    /// How many of these dumps are kept: older ones are removed when one was taken [default: 7]
    pub dump_keep: Option<u16>,
}

impl KeeperOptions {
    fn every(&self) -> Option<Duration> {
        self.dump_every.unwrap_or(EVERY_DEFAULT).0
    }

    fn keep(&self) -> u16 {
        self.dump_keep.unwrap_or(KEEP_DEFAULT)
    }
}

/// Time from one dump to the next, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every(pub Option<Duration>);

/// What became of the last attempt.
#[derive(Default)]
struct State {
    last: Option<Backup>,
    taken: u64,
    failed: u64,
    why: Option<String>,
}

impl State {
    fn failed(&mut self, why: &str) {
        self.failed += 1;
        self.why = Some(why.into());
    }
}

/// Dumps of a volume; its store is asked for them once and only if somebody needs them.
type LazyRepository<'a> = LazyCell<
    Result<BackupRepository, String>,
    Box<dyn FnOnce() -> Result<BackupRepository, String> + 'a>,
>;

/// Takes dumps of what a process serves.
pub struct BackupScheduler {
    args: KeeperOptions,
    options: StoreOptions,
    /// How the other nodes are connected to.
    tls: TlsMode,
    state: Mutex<State>,
    /// Held while one is taken, or some are removed.
    busy: Mutex<()>,
}

/// What a dump in the store is, for people and programs.
pub fn describe(kept: &Backup) -> Value {
    json!({
        "dump": kept.stamp.0, "rows": kept.counts.rows, "changes": kept.counts.changes,
        "bytes": kept.counts.bytes,
        "parts": kept.parts, "stored_bytes": kept.stored_bytes, "left_out": kept.left_out,
        "program": kept.program,
        "name": kept.volume["settings"]["name"], "uuid": kept.volume["uuid"],
    })
}

/// The dumps of a volume.
///
/// # Errors
/// If its store cannot be reached, in words.
pub fn shelf(
    dir: &Path,
    descriptor: &Descriptor,
    options: &StoreOptions,
) -> Result<BackupRepository, String> {
    let plain = Storage::open_dumps(dir, descriptor, options).map_err(|why| why.to_string())?;
    let coded =
        Storage::coded_dumps(plain.clone(), descriptor, options).map_err(|why| why.to_string())?;
    Ok(BackupRepository::new(plain, coded))
}

/// Writes a dump of `engine` into the store. `left_out` is how many rows are known to be missing in
/// it.
///
/// # Errors
/// In words; there is no such dump then.
pub fn keep(
    shelf: &BackupRepository,
    engine: &dyn Engine,
    descriptor: &Descriptor,
    spool_dir: &Path,
    left_out: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Backup, String> {
    let about = about(descriptor)?;
    let spool = spool_in(spool_dir)?;
    let mut writing = shelf.begin(about.now);
    let mut out = BufWriter::with_capacity(1 << 20, &mut writing);
    let counts = dump(engine, &about, &mut out, spool, progress).map_err(|why| why.to_string())?;
    out.flush().map_err(|why| why.to_string())?;
    drop(out);
    writing.finish(counts, left_out, &about.program, about.volume).map_err(|why| why.to_string())
}

impl BackupScheduler {
    /// Does as the arguments say, and reaches the store as `options` say, and other nodes by `tls`.
    pub fn new(args: KeeperOptions, options: StoreOptions, tls: TlsMode) -> Self {
        Self { args, options, tls, state: Mutex::default(), busy: Mutex::default() }
    }

    /// Answers `{"verb": "backup", "act": "now" | "list" | "prune", …}`.
    ///
    /// # Errors
    /// In words.
    pub fn answer(
        &self,
        volume: &ServedVolume,
        question: &Value,
        feed: &ProgressStream<'_>,
    ) -> Result<Value, String> {
        match question["act"].as_str() {
            Some("now") => {
                volume.may_change()?;
                let mut tick = |rows| feed.progress("dumping rows", rows);
                let shelf = self.lazy_shelf(volume);
                self.take(volume, &shelf, &mut tick).map(|kept| describe(&kept))
            }
            Some("list") => list(&self.shelf(volume)?),
            Some("prune") => {
                volume.may_change()?;
                let _busy = self.alone()?;
                let keep = question["keep"].as_u64().and_then(|keep| usize::try_from(keep).ok());
                let keep = keep.ok_or("the question does not say how many are kept")?;
                prune(&self.shelf(volume)?, keep)
            }
            _ => Err("the question does not say what is to be done with dumps".into()),
        }
    }

    fn shelf(&self, volume: &ServedVolume) -> Result<BackupRepository, String> {
        shelf(&volume.dir, &volume.descriptor, &self.options)
    }

    fn lazy_shelf<'a>(&'a self, volume: &'a ServedVolume) -> LazyRepository<'a> {
        LazyCell::new(Box::new(|| self.shelf(volume)))
    }

    fn alone(&self) -> Result<parking_lot::MutexGuard<'_, ()>, String> {
        self.busy.try_lock().ok_or("a dump into the store is being taken; wait for it".into())
    }

    /// Takes a dump now.
    fn take(
        &self,
        volume: &ServedVolume,
        shelf: &LazyRepository<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Backup, String> {
        let _busy = self.alone()?;
        let taken = of_lazy(shelf).and_then(|shelf| self.try_take(volume, shelf, progress));
        let mut state = self.state.lock();
        match &taken {
            Ok(kept) => {
                state.taken += 1;
                state.why = None;
                state.last = Some(kept.clone());
            }
            Err(why) => state.failed(why),
        }
        taken
    }

    fn try_take(
        &self,
        volume: &ServedVolume,
        shelf: &BackupRepository,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Backup, String> {
        let Some(section) = &volume.descriptor.cluster else {
            return keep(shelf, &*volume.engine, &volume.descriptor, &volume.dir, 0, progress);
        };
        let url = section.url(&volume.descriptor.settings.name);
        let url = url.and_then(|url| RemoteUrl::parse(&url)).map_err(|why| why.to_string())?;
        let url = RemoteUrl { tls: self.tls, ..url };
        let who = crate::who("kestrel serve (dump)");
        let panel = NodeFanOut::connect(&url.to_string(), &who).map_err(|why| why.to_string())?;
        let panel = panel.ok_or("the volume has only one node, and says that it has several")?;
        let whole = cut::gather(&panel, &volume.dir, progress)?;
        let left_out = whole.findings.len() as u64;
        let whole = whole.into_one(SystemClock.now()).map_err(|why| why.to_string())?;
        keep(shelf, whole.engine(), &volume.descriptor, &volume.dir, left_out, progress)
    }

    /// What a status tells.
    pub fn status(&self) -> Value {
        let state = self.state.lock();
        json!({
            "every_seconds": self.args.every().map(|every| every.as_secs_f64()),
            "keep": self.args.keep(),
            "last": state.last.as_ref().map(describe),
            "taken": state.taken,
            "failed": state.failed,
            "why": state.why,
        })
    }

    /// Tells the figures.
    pub fn stats(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        let state = self.state.lock();
        tell("store_dumps", state.taken);
        tell("store_dump_failures", state.failed);
        tell("store_dump_time_seconds", state.last.as_ref().map_or(0, |kept| kept.stamp.0));
    }

    /// One look: takes a dump if one is due, and returns how long to wait for the next look.
    fn look(&self, volume: &ServedVolume, every: Duration) -> Duration {
        if volume.fs.member().is_some_and(|host| !host.leads_changes()) {
            return LOOK_MAX.min(every);
        }
        let (now, shelf) = (SystemClock.now(), self.lazy_shelf(volume));
        match self.due(volume, &shelf, every, now) {
            Ok(None) => {}
            Ok(Some(rest)) => return rest.min(LOOK_MAX.max(every / 8)),
            Err(why) => {
                self.state.lock().failed(&why);
                return retry(&why, every);
            }
        }
        let taken = match self.take(volume, &shelf, &mut |_| ()) {
            Ok(kept) => kept,
            Err(why) => return retry(&why, every),
        };
        log::info!("dump {} is in the block store: {} rows", taken.stamp.0, taken.counts.rows);
        if taken.left_out > 0 {
            log::warn!(
                "{} rows are damaged, and not in the dump: run `kestrel fsck`",
                taken.left_out
            );
        }
        let kept = usize::from(self.args.keep());
        match of_lazy(&shelf)
            .and_then(|shelf| shelf.prune(kept, SystemClock.now()).map_err(|why| why.to_string()))
        {
            Ok(gone) if !gone.is_empty() => {
                log::info!("{} older dumps removed from the block store", gone.len())
            }
            Ok(_) => {}
            Err(why) => log::warn!("older dumps could not be removed from the block store: {why}"),
        }
        every
    }

    /// How long it is until one is due; none if it is. A volume without dumps counts from when it
    /// was made. What a clock that was ahead has left counts for nothing.
    fn due(
        &self,
        volume: &ServedVolume,
        shelf: &LazyRepository<'_>,
        every: Duration,
        now: Nanos,
    ) -> Result<Option<Duration>, String> {
        let every = Nanos::try_from(every.as_nanos()).unwrap_or(Nanos::MAX);
        let rest = |last: Nanos| {
            let rest = last.saturating_add(every).saturating_sub(now);
            let rest = u64::try_from(rest).ok().filter(|rest| *rest > 0).map(Duration::from_nanos);
            rest.filter(|_| Stamp::at(last) <= Stamp::latest(now))
        };
        if let Some(rest) = rest(volume.descriptor.created) {
            return Ok(Some(rest));
        }
        let known = self.state.lock().last.as_ref().map(|kept| kept.stamp);
        let last = match known {
            Some(last) => Some(last),
            None => {
                let listed = of_lazy(shelf)?.list().map_err(|why| why.to_string())?;
                for (Stamp(stamp), why) in &listed.damaged {
                    log::warn!("dump {stamp} in the block store cannot be used: {why}");
                }
                let newest =
                    listed.kept.into_iter().rev().find(|kept| kept.stamp <= Stamp::latest(now));
                self.state.lock().last.clone_from(&newest);
                newest.map(|kept| kept.stamp)
            }
        };
        Ok(last.and_then(|Stamp(last)| {
            rest(Nanos::try_from(last).unwrap_or(0).saturating_mul(SECOND))
        }))
    }
}

/// How long to wait after a failure, which it logs.
fn retry(why: &str, every: Duration) -> Duration {
    log::error!("no dump into the block store: {why}; it is tried again");
    every.clamp(RETRY_MIN, RETRY_MAX)
}

fn of_lazy<'a>(shelf: &'a LazyRepository<'_>) -> Result<&'a BackupRepository, String> {
    shelf.as_ref().map_err(Clone::clone)
}

/// All dumps in a store, as they are told.
///
/// # Errors
/// In words.
pub fn list(shelf: &BackupRepository) -> Result<Value, String> {
    let listed = shelf.list().map_err(|why| why.to_string())?;
    let unfinished: Vec<u64> = listed.unfinished.iter().map(|stamp| stamp.0).collect();
    let damaged = listed.damaged.iter().map(|(stamp, why)| json!({ "dump": stamp.0, "why": why }));
    Ok(json!({
        "dumps": listed.kept.iter().map(describe).collect::<Vec<_>>(), "unfinished": unfinished,
        "damaged": damaged.collect::<Vec<_>>(),
    }))
}

/// Removes all but the newest `keep`.
///
/// # Errors
/// In words.
pub fn prune(shelf: &BackupRepository, keep: usize) -> Result<Value, String> {
    let gone = shelf.prune(keep, SystemClock.now()).map_err(|why| why.to_string())?;
    Ok(json!({ "removed": gone.iter().map(|stamp| stamp.0).collect::<Vec<_>>() }))
}

/// The thread that keeps the schedule. It ends when this is dropped, after the dump that it is
/// taking.
pub struct Schedule {
    _worker: Option<Worker>,
}

impl Schedule {
    /// Begins, if there is a schedule and the volume can be changed.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn begin(
        keeper: &Arc<BackupScheduler>,
        volume: &Arc<ServedVolume>,
    ) -> std::io::Result<Self> {
        let Some(every) = keeper.args.every().filter(|_| volume.is_kept()) else {
            return Ok(Self { _worker: None });
        };
        let (keeper, volume) = (keeper.clone(), Arc::downgrade(volume));
        let worker = Worker::start("dumps", move |rest| {
            let mut wait = LOOK_MAX.min(every);
            while rest.sleep(wait).is_ok() {
                let Some(volume) = volume.upgrade() else { return };
                wait = keeper.look(&volume, every);
            }
        })?;
        Ok(Self { _worker: Some(worker) })
    }
}
