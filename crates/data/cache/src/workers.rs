//! Threads for what may wait for a cache disk, and may wait for ever.
//!
//! Unlike [`kestrel_blockstore::Pool`] no thread ever joins them or waits for room: a disk that
//! wedges keeps its threads (a bounded number of them) and nothing else. Threads are started as
//! they are needed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Work for a thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// When a job was begun or finished last.
    progress: Option<Instant>,
    closed: bool,
}

struct Shared {
    name: String,
    threads_max: usize,
    queue_max: usize,
    state: Mutex<State>,
    work: Condvar,
    /// Signalled when a thread has nothing to do.
    done: Condvar,
}

/// The threads. Dropping it drops what is queued; threads end with what they are doing.
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

impl Workers {
    /// At most `threads_max` threads and `queue_max` waiting jobs.
    pub fn new(name: String, threads_max: usize, queue_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                threads_max,
                queue_max,
                state: Mutex::default(),
                work: Condvar::new(),
                done: Condvar::new(),
            }),
        }
    }

    /// Queues a job; false (and the job is dropped) if too many wait, or no thread can be had.
    pub fn submit(&self, job: Job) -> bool {
        let mut state = self.shared.state.lock();
        if state.closed || state.queue.len() >= self.shared.queue_max {
            return false;
        }
        if state.idle <= state.queue.len() && state.threads < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let started =
                std::thread::Builder::new().name(self.shared.name.clone()).spawn(move || {
                    run_anywhere();
                    shared.work();
                });
            if started.is_ok() {
                state.threads += 1;
            }
        }
        if state.threads == 0 {
            return false;
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.work.notify_one();
        true
    }

    /// Jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// Runs `work` on a thread and waits for its result, at most for `limit`. None: no result until
    /// then; a later one is dropped.
    pub fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let job = move || {
            // The caller may have given up.
            let _ = sender.send(work());
        };
        self.submit(Box::new(job)).then(|| receiver.recv_timeout(limit).ok()).flatten()
    }

    /// Whether jobs wait and none was begun or finished for so long.
    pub fn is_stalled(&self, limit: Duration) -> bool {
        let state = self.shared.state.lock();
        !state.queue.is_empty() && state.progress.is_some_and(|progress| progress.elapsed() > limit)
    }

    /// Waits until nothing is queued or running; false if that takes longer than `limit`.
    pub fn drain(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while !state.queue.is_empty() || state.idle < state.threads {
            if self.shared.done.wait_until(&mut state, until).timed_out() {
                return state.queue.is_empty() && state.idle == state.threads;
            }
        }
        true
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // What jobs own is dropped outside the lock.
        drop(queue);
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            if let Some(job) = state.queue.pop_front() {
                state.progress = Some(Instant::now());
                drop(state);
                // A job that panics (the hook prints it) must not leave the count of threads too
                // high.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                state.progress = Some(Instant::now());
                continue;
            }
            state.idle += 1;
            self.done.notify_all();
            self.work.wait(&mut state);
            state.idle -= 1;
        }
        state.threads -= 1;
        drop(state);
        self.done.notify_all();
    }
}

/// Lets the calling thread run on all processors that the process began with. A thread inherits
/// those of the thread that starts it, which may serve a single processor's requests.
fn run_anywhere() {
    // SAFETY: bits, for which zeros are valid; the kernel writes, then reads, that many bytes. The
    // main thread has the process's number and is never confined.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(libc::getpid(), size_of_val(&set), &raw mut set) == 0 {
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs run and their results come back, and wedged threads hold up no others.
    #[test]
    fn jobs_beside_wedged_threads() {
        let workers = Workers::new("test".to_string(), 2, 3);
        let long = Duration::from_secs(60);
        assert_eq!(workers.call(long, || 5), Some(5));
        let panicked = workers.call(long, || std::panic::resume_unwind(Box::new("on purpose")));
        assert_eq!(panicked, None::<()>);
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        for _ in 0..2 {
            let blocked = Arc::clone(&blocked);
            let wedged =
                workers.call(Duration::from_millis(1), move || blocked.lock().recv().is_ok());
            assert_eq!(wedged, None);
        }
        // On a busy machine no thread may have taken the second one up when its caller gave up.
        while workers.waiting() > 0 {
            std::thread::yield_now();
        }
        // Both threads are stuck: what comes waits, and no more than three.
        let mut taken = 0;
        while workers.submit(Box::new(|| ())) {
            taken += 1;
        }
        assert_eq!(taken, 3);
        assert!(!workers.drain(Duration::from_millis(1)));
        assert!(workers.is_stalled(Duration::ZERO) && !workers.is_stalled(long));
        drop(release);
        assert!(workers.drain(long));
        assert_eq!(workers.call(long, || 6), Some(6));
    }
}
