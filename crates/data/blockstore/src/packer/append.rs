//! Rounds of a store that appends: pack streams, and the thread that seals idle ones.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::complete;
use super::pack::{PackStream, PackWriter};
use super::queue::{Queue, Submission};

/// What the sealing thread waits for.
#[derive(Default)]
struct Watch {
    /// Lanes may have open packs.
    packs_open: bool,
    closed: bool,
}

/// Open packs, and what waits for them.
pub(super) struct PackStreams {
    queue: Mutex<Queue>,
    streams: Vec<Mutex<PackStream>>,
    watch: Mutex<Watch>,
    changed: Condvar,
}

impl PackStreams {
    pub fn new(streams: usize) -> Self {
        Self {
            queue: Mutex::default(),
            streams: std::iter::repeat_with(Mutex::default).take(streams.max(1)).collect(),
            watch: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Queues, then serves the queue as long as a pack stream is free and there is something in it.
    /// A thread that fails to get a pack stream queued before its holder's last look at the queue,
    /// which comes after the holder let the pack stream go: nothing is left.
    pub fn combine(&self, writer: &PackWriter, pack_bytes: u64, submission: Submission) {
        self.queue.lock().push(submission);
        while let Some(mut stream) = self.streams.iter().find_map(Mutex::try_lock) {
            let round = self.queue.lock().take(pack_bytes);
            if round.is_empty() {
                return;
            }
            let begins = stream.is_sealed();
            let results = writer.write_round(&mut stream, &round);
            drop(stream);
            if begins {
                self.pack_begun();
            }
            complete(round, results);
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
        for stream in &self.streams {
            match stream.try_lock() {
                Some(mut stream) => {
                    stream.seal_if_idle();
                    open |= !stream.is_sealed();
                }
                None => open = true,
            }
        }
        open
    }

    pub fn seal_all(&self) {
        self.streams.iter().for_each(|stream| stream.lock().seal());
    }

    #[cfg(test)]
    pub fn all_sealed(&self) -> bool {
        self.streams.iter().all(|stream| stream.lock().is_sealed())
    }

    pub fn close(&self) {
        self.watch.lock().closed = true;
        self.changed.notify_all();
    }
}
