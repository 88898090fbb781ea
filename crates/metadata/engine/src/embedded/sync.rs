//! Group sync: one thread syncs the log for all callers that wait.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kestrel_types::ids::Position;
use parking_lot::{Condvar, Mutex};

use super::{EngineError, Shared};

/// Passes requests to the thread.
#[derive(Default)]
pub(super) struct Syncer {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    position: Position,
    stop: bool,
}

impl Syncer {
    /// Requests a sync that covers `position`.
    pub fn request(&self, position: Position) {
        let mut wanted = self.wanted.lock();
        if position > wanted.position {
            wanted.position = position;
            self.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.wanted.lock().stop = true;
        self.changed.notify_one();
    }

    /// Waits for work: true to sync, false to end.
    fn next(&self, durable: Position, interval: Option<Duration>) -> bool {
        let until = interval.map(|interval| Instant::now() + interval);
        let mut wanted = self.wanted.lock();
        loop {
            if wanted.stop {
                return false;
            }
            if wanted.position > durable {
                return true;
            }
            match until {
                None => self.changed.wait(&mut wanted),
                Some(until) if self.changed.wait_until(&mut wanted, until).timed_out() => {
                    return !wanted.stop;
                }
                Some(_) => {}
            }
        }
    }
}

impl Shared {
    /// The syncer thread. Ends when the engine is closed, or for good when a sync failed: then
    /// nothing is ever durable any more.
    pub(super) fn run_syncer(&self) {
        while self.syncer.next(self.waiters.durable(), self.options.sync_interval) {
            match self.log.sync(&self.before_sync, &|| self.fence.check(&*self.disk, &self.uuid)) {
                Ok(position) => {
                    if position > self.waiters.durable() {
                        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
                    }
                    self.waiters.advance(position);
                }
                Err(why) => return self.waiters.fail(why),
            }
        }
        self.waiters.fail(EngineError::Io("metadata engine: closed".into()));
    }

    /// Makes everything appended so far durable.
    pub(super) fn sync(&self) -> Result<(), EngineError> {
        let position = self.log.appended();
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // The receiver waits below, so this cannot fail.
            let _ = sender.send(result);
        });
        if self.waiters.wait(position, done) {
            self.syncer.request(position);
        }
        receiver.recv().unwrap_or_else(|_| Err(EngineError::Io("metadata engine: closed".into())))
    }
}
