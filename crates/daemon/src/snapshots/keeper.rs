//! Keeps the schedules of a volume: makes snapshots that are due, and removes those that a schedule
//! does not keep.
//!
//! The process that has the volume's metadata does so, a server or an embedded mount. Which
//! directories have a schedule is found in the rows, at the start and again from time to time, at a
//! small part of the time; a schedule that is set through this process counts at once.
//!
//! Of several nodes each keeps the schedules that are in its rows, so each schedule is kept by one.
//! While a schedule's row moves to another node, and where it was set through a third one, two may
//! keep it: snapshots have the names of their times, so the second finds that they are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::name::Name;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::record;
use super::schedule::{Existing, SnapshotSchedule};
use crate::served_volume::ServedVolume;
use crate::worker::Worker;

/// Longest time between two looks whether a snapshot is due. The clock may be set meanwhile.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(100);

/// Shortest time between two searches for schedules, and how much longer than a search it is.
const SEARCH_MIN: Duration = Duration::from_secs(60);
const SEARCH_SHARE: u32 = 20;

/// A search rests so long after so many steps.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);
const SEARCH_STEPS: u64 = 1000;

#[derive(Default)]
struct State {
    /// Directories with a schedule, as far as known.
    dirs: BTreeSet<InodeId>,
    taken: u64,
    removed: u64,
    failed: u64,
    /// Why the last look did not do all that was due.
    why: Option<String>,
}

/// Keeps the schedules of what a process serves.
#[derive(Default)]
pub struct SnapshotKeeper {
    state: Mutex<State>,
    /// Held while a directory is looked at, so that no two threads do the same.
    looking: Mutex<()>,
}

impl SnapshotKeeper {
    /// What a status tells.
    pub fn status(&self) -> Value {
        let state = self.state.lock();
        json!({
            "scheduled_directories": state.dirs.len(),
            "taken": state.taken,
            "removed": state.removed,
            "failed": state.failed,
            "why": state.why,
        })
    }

    /// Tells the figures.
    pub fn stats(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        let state = self.state.lock();
        tell("scheduled_snapshots", state.taken);
        tell("scheduled_snapshots_removed", state.removed);
        tell("scheduled_snapshot_failures", state.failed);
    }

    /// The schedule of a directory has changed: does what is due now.
    ///
    /// # Errors
    /// In words.
    pub fn changed(&self, volume: &ServedVolume, dir: InodeId) -> Result<(), String> {
        self.state.lock().dirs.insert(dir);
        self.look_at(volume, dir).map(|_| ())
    }

    /// Looks for schedules. Whether all were found.
    fn search(&self, volume: &ServedVolume, go_on: &dyn Fn() -> bool) -> bool {
        let rests = |steps: u64| {
            if steps > 0 && steps.is_multiple_of(SEARCH_STEPS) {
                std::thread::sleep(SEARCH_PAUSE);
            }
            go_on()
        };
        match record::find_all(&*volume.engine, &rests) {
            Ok(found) => {
                self.state.lock().dirs.extend(found);
                true
            }
            Err(_) if !go_on() => false,
            Err(why) => {
                self.note(Some(format!("schedules of snapshots cannot be looked for: {why}")));
                false
            }
        }
    }

    /// Does what is due of all directories; when something is due next, if anything is.
    fn look(&self, volume: &ServedVolume, go_on: &dyn Fn() -> bool) -> Option<Nanos> {
        let dirs: Vec<InodeId> = self.state.lock().dirs.iter().copied().collect();
        let (mut next, mut why): (Option<Nanos>, _) = (None, None);
        for dir in dirs {
            if !go_on() {
                return None;
            }
            match self.look_at(volume, dir) {
                Ok(later) => next = [next, later].into_iter().flatten().min(),
                Err(failed) => why = Some(format!("directory {dir}: {failed}")),
            }
        }
        self.note(why);
        next
    }

    /// Keeps a reason in mind, and logs it if it is another one.
    fn note(&self, why: Option<String>) {
        let mut state = self.state.lock();
        if let Some(why) = &why {
            state.failed += 1;
            if state.why.as_ref() != Some(why) {
                log::warn!("snapshots by schedule: {why}; it is tried again");
            }
        }
        state.why = why;
    }

    /// Does what is due of a directory. When something is due of it next; none if it has no
    /// schedule any more.
    fn look_at(&self, volume: &ServedVolume, dir: InodeId) -> Result<Option<Nanos>, String> {
        let _looking = self.looking.lock();
        let calls = SnapshotCalls::as_root(&volume.fs);
        let told = |why: FsError| why.reason.to_string();
        let text = match record::read(&calls, dir) {
            Ok(Some(text)) => text,
            Ok(None) | Err(FsError { errno: libc::ESTALE, .. }) => {
                self.state.lock().dirs.remove(&dir);
                return Ok(None);
            }
            Err(why) => return Err(told(why)),
        };
        let schedule = SnapshotSchedule::parse(&text).map_err(|why| {
            format!("its schedule cannot be read: {why}; set it with `kestrel snapshot schedule`")
        })?;
        let now = volume.fs.now();
        let listed = calls.list(Some(dir), false).map_err(told)?;
        // What is being removed needs no second removal.
        let existing: Vec<Existing<'_>> = listed
            .iter()
            .map(|one| Existing {
                name: one.name.as_bytes(),
                held: one.removing || !one.holds.is_empty(),
            })
            .collect();
        let mut failed = None;
        for rule in schedule.rules() {
            let work = rule.due(now, &existing);
            if let Some(name) = &work.make {
                match self.make(&calls, dir, name) {
                    Ok(()) => {}
                    Err(why) => {
                        // What is there stays until there is something newer.
                        failed = Some(format!("{name} was not made: {why}"));
                        continue;
                    }
                }
            }
            for name in &work.remove {
                self.remove(&calls, dir, name).unwrap_or_else(|why| {
                    let name = String::from_utf8_lossy(name);
                    failed = Some(format!("{name} was not removed: {why}"));
                });
            }
        }
        match failed {
            Some(why) => Err(why),
            None => Ok(schedule.rules().iter().map(|rule| rule.next(now)).min()),
        }
    }

    fn make(&self, calls: &SnapshotCalls<'_>, dir: InodeId, name: &str) -> Result<(), String> {
        let valid = Name::new(name.as_bytes()).map_err(|why| why.reason.to_string())?;
        match calls.create(dir, valid) {
            Ok(_) => {
                log::info!("snapshot {name} of directory {dir} made");
                self.state.lock().taken += 1;
                Ok(())
            }
            Err(FsError { errno: libc::EEXIST, .. }) => Ok(()),
            Err(why) => Err(why.reason.to_string()),
        }
    }

    fn remove(&self, calls: &SnapshotCalls<'_>, dir: InodeId, name: &[u8]) -> Result<(), String> {
        let valid = Name::new(name).map_err(|why| why.reason.to_string())?;
        match calls.remove(dir, valid) {
            Ok(()) => {
                let name = String::from_utf8_lossy(name);
                log::info!("snapshot {name} of directory {dir} removed, as its schedule says");
                self.state.lock().removed += 1;
                Ok(())
            }
            // Gone, or held since it was listed.
            Err(FsError { errno: libc::ENOENT | libc::EBUSY, .. }) => Ok(()),
            Err(why) => Err(why.reason.to_string()),
        }
    }
}

/// The thread that keeps the schedules. It ends when this is dropped, after what it is doing.
pub struct KeepingSnapshots {
    _worker: Option<Worker>,
}

impl KeepingSnapshots {
    /// Begins, if the volume can be changed.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn begin(
        keeper: &Arc<SnapshotKeeper>,
        volume: &Arc<ServedVolume>,
    ) -> std::io::Result<Self> {
        if volume.read_only {
            return Ok(Self { _worker: None });
        }
        let (keeper, volume) = (keeper.clone(), Arc::downgrade(volume));
        let worker = Worker::start("snapshots", move |rest| {
            let (mut wait, mut search_at) = (Duration::ZERO, Instant::now());
            while rest.sleep(wait).is_ok() {
                let Some(volume) = volume.upgrade() else { return };
                let go_on = || rest.sleep(Duration::ZERO).is_ok();
                wait = LOOK_MAX;
                // Remounted to be read only.
                if volume.may_change().is_err() {
                    continue;
                }
                if Instant::now() >= search_at {
                    let begun = Instant::now();
                    keeper.search(&volume, &go_on);
                    search_at = Instant::now() + SEARCH_MIN.max(begun.elapsed() * SEARCH_SHARE);
                }
                let next = keeper.look(&volume, &go_on);
                wait = next.map_or(LOOK_MAX, |next| until(next, volume.fs.now()));
            }
        })?;
        Ok(Self { _worker: Some(worker) })
    }
}

/// How long to wait for `next`.
fn until(next: Nanos, now: Nanos) -> Duration {
    let rest = u64::try_from(next.saturating_sub(now)).map_or(Duration::ZERO, Duration::from_nanos);
    rest.clamp(LOOK_MIN, LOOK_MAX)
}

#[cfg(test)]
mod tests {
    use kestrel_types::clock::SECOND;

    use super::*;

    /// A look comes when a period begins, and at least once a minute.
    #[test]
    fn time_to_the_next_look() {
        assert_eq!(until(10 * SECOND, 5 * SECOND), Duration::from_secs(5));
        assert_eq!(until(10 * SECOND, 11 * SECOND), LOOK_MIN);
        assert_eq!(until(Nanos::MAX, Nanos::MIN), LOOK_MAX);
    }
}
