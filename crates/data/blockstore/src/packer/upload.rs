//! Rounds of a store that does not append: uploader threads, one object a round.
//!
//! Large payloads go up alone as soon as a thread is free. Small ones share objects (when,
//! [`super::gather`] decides), come first, and always find a thread: large ones leave one to them.
//! An object is compressed in one way and kept in one tier, so small ones with different options
//! gather by themselves.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::PackerConfig;
use super::complete;
use super::gather::{Due, Gather};
use super::pack::PackWriter;
use super::queue::{Queue, Submission};
use crate::store::PutOptions;

/// Payloads that share objects, all of them with the same options.
struct Group {
    options: PutOptions,
    waiting: Queue,
    gather: Gather,
}

struct State {
    /// One for all options that there were, in the order in which they came: no more than there are
    /// settings.
    small: Vec<Group>,
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
    parallel_bytes: u64,
    large_max: usize,
}

/// Something for one thread to upload.
struct Round {
    members: Vec<Submission>,
    /// The group it is of; none of a large payload.
    group: Option<usize>,
}

impl State {
    /// The first group that is due, or the moment when the next one will be.
    fn due(&self, now: Instant) -> Result<usize, Option<Instant>> {
        let mut next: Option<Instant> = None;
        for (index, group) in self.small.iter().enumerate() {
            let due = match group.waiting.len() {
                0 => Due::Later,
                _ if self.closed => Due::Now,
                waiting => group.gather.due(now, waiting, group.waiting.bytes()),
            };
            match due {
                Due::Now => return Ok(index),
                Due::At(until) => next = Some(next.map_or(until, |next| next.min(until))),
                Due::Later => {}
            }
        }
        Err(next)
    }

    fn is_empty(&self) -> bool {
        self.large.is_empty() && self.small.iter().all(|group| group.waiting.is_empty())
    }
}

impl Uploads {
    pub fn new(config: &PackerConfig) -> Self {
        let state =
            State { small: Vec::new(), large: VecDeque::new(), large_under_way: 0, closed: false };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            pack_bytes: config.pack_bytes,
            parallel_bytes: config.parallel_upload_bytes,
            large_max: config.uploads.saturating_sub(1).max(1),
        }
    }

    /// Queues; payloads of `large_bytes` and more for an object of their own.
    pub fn add(&self, submission: Submission, large_bytes: usize) {
        let mut state = self.state.lock();
        if submission.payload.len() >= large_bytes {
            state.large.push_back(submission);
        } else {
            let options = submission.options;
            let known = state.small.iter().position(|group| group.options == options);
            let index = known.unwrap_or_else(|| {
                let gather = Gather::new(self.parallel_bytes);
                state.small.push(Group { options, waiting: Queue::default(), gather });
                state.small.len() - 1
            });
            let group = &mut state.small[index];
            group.gather.arrived(Instant::now());
            group.waiting.push(submission);
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
        match round.group {
            None => state.large_under_way -= 1,
            Some(index) => {
                let group = &mut state.small[index];
                let waiting = group.waiting.len();
                group.gather.end(Instant::now(), round.members.len(), took, waiting);
            }
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
            let due = state.due(Instant::now());
            if let Ok(index) = due {
                let group = &mut state.small[index];
                let members = group.waiting.take(self.pack_bytes);
                group.gather.begin(members.len());
                let more = !state.is_empty();
                drop(state);
                if more {
                    self.work.notify_one();
                }
                return Some(Round { members, group: Some(index) });
            }
            if state.large_under_way < self.large_max
                && let Some(member) = state.large.pop_front()
            {
                state.large_under_way += 1;
                drop(state);
                // Also passes on a signal that was meant for small ones, which may be due at a
                // later moment.
                self.work.notify_one();
                return Some(Round { members: vec![member], group: None });
            }
            if state.closed && state.is_empty() {
                return None;
            }
            match due {
                Err(Some(until)) => drop(self.work.wait_until(&mut state, until)),
                _ => self.work.wait(&mut state),
            }
        }
    }
}
