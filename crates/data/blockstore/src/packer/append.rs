//! Rounds of a store that appends: lanes, and the thread that seals idle ones.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::pack::{Lane, Writer};
use super::queue::{Queue, Submission};
use super::tell;

/// What the sealing thread waits for.
#[derive(Default)]
struct Watch {
    /// Lanes may have open packs.
    packs_open: bool,
    closed: bool,
}

/// Open packs, and what waits for them.
pub(super) struct Lanes {
    queue: Mutex<Queue>,
    lanes: Vec<Mutex<Lane>>,
    watch: Mutex<Watch>,
    changed: Condvar,
}

impl Lanes {
    pub fn new(lanes: usize) -> Self {
        Self {
            queue: Mutex::default(),
            lanes: std::iter::repeat_with(Mutex::default).take(lanes.max(1)).collect(),
            watch: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Queues, then serves the queue as long as a lane is free and there is something in it. A
    /// thread that fails to get a lane queued before its holder's last look at the queue, which
    /// comes after the holder let the lane go: nothing is left.
    pub fn combine(&self, writer: &Writer, pack_bytes: u64, submission: Submission) {
        self.queue.lock().push(submission);
        while let Some(mut lane) = self.lanes.iter().find_map(Mutex::try_lock) {
            let round = self.queue.lock().take(pack_bytes);
            if round.is_empty() {
                return;
            }
            let begins = lane.is_sealed();
            let results = writer.write_round(&mut lane, &round);
            drop(lane);
            if begins {
                self.pack_begun();
            }
            tell(round, results);
            if self.queue.lock().is_empty() {
                return;
            }
        }
    }

    /// Starts the watch for idle packs.
    fn pack_begun(&self) {
        let mut watch = self.watch.lock();
        if !watch.packs_open {
            watch.packs_open = true;
            drop(watch);
            self.changed.notify_one();
        }
    }

    /// The packer's thread: seals packs that took nothing for `idle`, until the packer is closed.
    pub fn seal_idle(&self, idle: Duration) {
        let mut watch = self.watch.lock();
        while !watch.closed {
            if !watch.packs_open {
                self.changed.wait(&mut watch);
            } else if self.changed.wait_for(&mut watch, idle).timed_out() {
                watch.packs_open = false;
                drop(watch);
                let open = self.seal_untouched();
                watch = self.watch.lock();
                watch.packs_open |= open;
            }
        }
    }

    /// Seals packs that took nothing since the last call; true if any stays open.
    fn seal_untouched(&self) -> bool {
        let mut open = false;
        for lane in &self.lanes {
            match lane.try_lock() {
                Some(mut lane) => {
                    lane.seal_if_idle();
                    open |= !lane.is_sealed();
                }
                None => open = true,
            }
        }
        open
    }

    pub fn seal_all(&self) {
        self.lanes.iter().for_each(|lane| lane.lock().seal());
    }

    #[cfg(test)]
    pub fn all_sealed(&self) -> bool {
        self.lanes.iter().all(|lane| lane.lock().is_sealed())
    }

    pub fn close(&self) {
        self.watch.lock().closed = true;
        self.changed.notify_all();
    }
}
