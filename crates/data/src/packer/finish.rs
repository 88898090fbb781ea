//! The packer's own threads: syncing what must be durable before its owner is told, and uploading rounds to stores that
//! cannot append.

use std::sync::atomic::Ordering;

use kestrel_types::crash;
use kestrel_types::ids::ObjectId;
use parking_lot::{Condvar, Mutex};

use super::{Done, Placed, RoundSink, Shared, Submission};
use crate::error::Error;

struct State<T> {
    /// Written, not synced.
    unsynced: Vec<(Done<T>, Placed)>,
    /// Lanes may have open packs.
    packs_open: bool,
    /// Uploads under way.
    uploads: usize,
    closed: bool,
}

/// What the threads wait for.
pub(super) struct Finisher<T> {
    state: Mutex<State<T>>,
    work: Condvar,
}

impl<T> Default for Finisher<T> {
    fn default() -> Self {
        let state = State { unsynced: Vec::new(), packs_open: false, uploads: 0, closed: false };
        Self { state: Mutex::new(state), work: Condvar::new() }
    }
}

impl<T> Finisher<T> {
    pub fn add(&self, written: Vec<(Done<T>, Placed)>) {
        if !written.is_empty() {
            self.state.lock().unsynced.extend(written);
            self.work.notify_one();
        }
    }

    /// Starts the watch for idle packs.
    pub fn pack_begun(&self) {
        let mut state = self.state.lock();
        if !state.packs_open {
            state.packs_open = true;
            drop(state);
            self.work.notify_one();
        }
    }

    pub fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }
}

impl<S: RoundSink> Shared<S> {
    /// The finisher thread: sync whatever has gathered, tell its owners, again. Idle, it seals packs that nobody uses.
    pub(super) fn finish_rounds(&self) {
        loop {
            let mut state = self.finisher.state.lock();
            while state.unsynced.is_empty() && !state.closed {
                if !state.packs_open {
                    self.finisher.work.wait(&mut state);
                } else if self.finisher.work.wait_for(&mut state, self.config.idle).timed_out() {
                    state.packs_open = false;
                    drop(state);
                    let open = self.seal_idle();
                    state = self.finisher.state.lock();
                    state.packs_open |= open;
                }
            }
            let written = std::mem::take(&mut state.unsynced);
            drop(state);
            if written.is_empty() {
                return;
            }
            self.finish(written);
        }
    }

    /// Seals packs that took nothing for a while; true if any stays open.
    fn seal_idle(&self) -> bool {
        let mut open = false;
        for lane in self.lanes() {
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

    fn finish(&self, written: Vec<(Done<S::Tag>, Placed)>) {
        let mut objects: Vec<ObjectId> = written.iter().map(|(_, placed)| placed.range.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let synced = self.writer.store.sync_objects(&objects);
        self.writer.stats.syncs.fetch_add(1, Ordering::Relaxed);
        crash::point("data.pack.synced");
        if synced.is_err() {
            self.writer.stats.failures.fetch_add(1, Ordering::Relaxed);
            self.disk_lane.lock().seal();
        }
        let results = written.into_iter().map(|(done, placed)| (done, synced.clone().map(|()| placed)));
        self.tell(results.collect());
    }

    /// Queues for the uploaders.
    pub(super) fn queue_upload(&self, submission: Submission<S::Tag>) {
        let state = self.finisher.state.lock();
        if state.closed {
            drop(state);
            return self.tell(vec![(submission.done, Err(Error::Closed { during: "storing data" }))]);
        }
        self.disk_queue.lock().push(submission);
        drop(state);
        self.finisher.work.notify_one();
    }

    /// An uploader thread: one object a round.
    pub(super) fn upload(&self) {
        while let Some(round) = self.next_upload() {
            let results = self.writer.write_object(&round);
            let synced = results.and_then(|places| {
                let objects: Vec<ObjectId> =
                    places.iter().map(|placed| placed.range.object).take(1).collect();
                self.writer.store.sync_objects(&objects).map(|()| places)
            });
            self.finisher.state.lock().uploads -= 1;
            self.finisher.work.notify_one();
            let results = match synced {
                Ok(places) => {
                    round.into_iter().zip(places).map(|(member, placed)| (member.done, Ok(placed))).collect()
                }
                Err(error) => round.into_iter().map(|member| (member.done, Err(error.clone()))).collect(),
            };
            self.tell(results);
        }
    }

    /// Waits until a round is worth an upload; none once the packer is closed and the queue empty.
    fn next_upload(&self) -> Option<Vec<Submission<S::Tag>>> {
        let mut state = self.finisher.state.lock();
        loop {
            let mut queue = self.disk_queue.lock();
            let is_due =
                state.uploads == 0 || state.closed || queue.bytes >= self.config.parallel_upload_bytes;
            if is_due && !queue.waiting.is_empty() {
                let round = queue.take(self.config.pack_bytes);
                drop(queue);
                state.uploads += 1;
                return Some(round);
            }
            let is_over = state.closed && queue.waiting.is_empty();
            drop(queue);
            if is_over {
                return None;
            }
            self.finisher.work.wait(&mut state);
        }
    }
}
