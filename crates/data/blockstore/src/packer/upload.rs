//! Rounds of a store that does not append: uploader threads, one object a round.
//!
//! Large payloads go up alone as soon as a thread is free. Small ones share objects (when,
//! [`super::gather`] decides), come first, and always find a thread: large ones leave one to them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::PackerConfig;
use super::complete;
use super::gather::{Due, Gather};
use super::pack::PackWriter;
use super::queue::{Queue, Submission};

struct State {
    /// Payloads that share objects.
    small: Queue,
    gather: Gather,
    /// Payloads that are objects of their own.
    large: VecDeque<Submission>,
    /// Uploads of large payloads under way.
    large_under_way: usize,
    closed: bool,
}

/// What the uploader threads work on.
pub(super) struct Uploads {
    state: Mutex<State>,
    /// Signalled when there may be something to do for one more thread.
    work: Condvar,
    pack_bytes: u64,
    large_max: usize,
}

/// Something for one thread to upload.
struct Round {
    members: Vec<Submission>,
    is_large: bool,
}

impl Uploads {
    pub fn new(config: &PackerConfig) -> Self {
        let state = State {
            small: Queue::default(),
            gather: Gather::new(config.parallel_upload_bytes),
            large: VecDeque::new(),
            large_under_way: 0,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            pack_bytes: config.pack_bytes,
            large_max: config.uploads.saturating_sub(1).max(1),
        }
    }

    /// Queues; payloads of `large_bytes` and more for an object of their own.
    pub fn add(&self, submission: Submission, large_bytes: usize) {
        let mut state = self.state.lock();
        if submission.payload.len() >= large_bytes {
            state.large.push_back(submission);
        } else {
            state.gather.arrived(Instant::now());
            state.small.push(submission);
        }
        drop(state);
        self.work.notify_one();
    }

    pub fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    /// An uploader thread: until the packer is closed and everything is uploaded.
    pub fn work(&self, writer: &PackWriter) {
        while let Some(round) = self.next() {
            let begun = Instant::now();
            let results = writer.write_object(&round.members);
            self.ended(&round, begun.elapsed());
            complete(round.members, results);
        }
    }

    fn ended(&self, round: &Round, took: Duration) {
        let mut state = self.state.lock();
        if round.is_large {
            state.large_under_way -= 1;
        } else {
            let waiting = state.small.len();
            state.gather.end(Instant::now(), round.members.len(), took, waiting);
        }
        drop(state);
        // This thread is about to call back, which may take a while: another one looks for what
        // comes next.
        self.work.notify_one();
    }

    /// Waits for a round; none once the packer is closed and nothing waits.
    fn next(&self) -> Option<Round> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let due = match state.small.len() {
                0 => Due::Later,
                _ if state.closed => Due::Now,
                waiting => state.gather.due(now, waiting, state.small.bytes()),
            };
            if due == Due::Now {
                let members = state.small.take(self.pack_bytes);
                state.gather.begin(members.len());
                let more = !state.small.is_empty() || !state.large.is_empty();
                drop(state);
                if more {
                    self.work.notify_one();
                }
                return Some(Round { members, is_large: false });
            }
            if state.large_under_way < self.large_max
                && let Some(member) = state.large.pop_front()
            {
                state.large_under_way += 1;
                drop(state);
                // Also passes on a signal that was meant for small ones, which may be due at a
                // later moment.
                self.work.notify_one();
                return Some(Round { members: vec![member], is_large: true });
            }
            if state.closed && state.small.is_empty() && state.large.is_empty() {
                return None;
            }
            match due {
                Due::At(until) => drop(self.work.wait_until(&mut state, until)),
                Due::Now | Due::Later => self.work.wait(&mut state),
            }
        }
    }
}
