//! A few threads for what may block: cold reads, uploads, compaction.
//!
//! The queue is bounded; a full one is the caller's to see. Every job that was taken in is called
//! exactly once: to run, or to learn that its deadline has passed. Jobs that panic take neither
//! thread nor pool down.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Why a job is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// To do its work.
    Run,
    /// Its deadline passed while it waited in the queue: to report that.
    Late,
}

/// Work for the pool.
pub type Job = Box<dyn FnOnce(Turn) + Send>;

struct Queued {
    deadline: Option<Instant>,
    job: Job,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    queue_max: usize,
    /// Signalled when a job came in or the pool closes.
    work: Condvar,
    /// Signalled when a job was taken out.
    room: Condvar,
}

/// Threads and their queue. Dropping it runs what is queued and joins the threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts `threads` threads named `name-0`, `name-1`, … with room for `queue_max` waiting jobs.
    ///
    /// # Errors
    /// `Io` if the system refuses a thread.
    pub fn new(name: &str, threads: usize, queue_max: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            queue_max: queue_max.max(1),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let pool = Self { shared, threads: Mutex::default() };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || shared.work())
                .map_err(|source| Error::from_io("starting a thread", None, source))?;
            pool.threads.lock().push(thread);
        }
        Ok(pool)
    }

    /// Jobs that wait.
    pub fn queued(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// Queues a job, or gives it back if the queue is full or the pool closed.
    pub fn try_submit(&self, deadline: Option<Instant>, job: Job) -> std::result::Result<(), Job> {
        let mut state = self.shared.state.lock();
        if state.closed || state.queue.len() >= self.shared.queue_max {
            return Err(job);
        }
        state.queue.push_back(Queued { deadline, job });
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Queues a job, waiting for room until its deadline.
    ///
    /// # Errors
    /// `Deadline` or `Closed`: the job was not taken and is dropped.
    pub fn submit(&self, deadline: Option<Instant>, job: Job) -> Result<()> {
        let mut state = self.shared.state.lock();
        while !state.closed && state.queue.len() >= self.shared.queue_max {
            match deadline {
                None => self.shared.room.wait(&mut state),
                Some(deadline) => {
                    if self.shared.room.wait_until(&mut state, deadline).timed_out() {
                        return Err(Error::Deadline { during: "waiting for an I/O thread" });
                    }
                }
            }
        }
        if state.closed {
            return Err(Error::Closed { during: "handing work to an I/O thread" });
        }
        state.queue.push_back(Queued { deadline, job });
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Runs `work` on the pool and waits for its result, not beyond the deadline: then the caller
    /// goes on and the result is thrown away when it comes.
    ///
    /// # Errors
    /// `Deadline`, `Closed`, and `Closed` if `work` panicked.
    pub fn call<T: Send + 'static>(
        &self,
        deadline: Option<Instant>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let job = move |turn| {
            if turn == Turn::Run {
                // The caller may have given up.
                let _ = sender.send(work());
            }
        };
        self.submit(deadline, Box::new(job))?;
        let late = Error::Deadline { during: "waiting for an I/O thread" };
        match deadline {
            None => {
                receiver.recv().map_err(|_| Error::Closed { during: "working on an I/O thread" })
            }
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                receiver.recv_timeout(left).map_err(|error| match error {
                    mpsc::RecvTimeoutError::Timeout => late,
                    mpsc::RecvTimeoutError::Disconnected if Instant::now() >= deadline => late,
                    mpsc::RecvTimeoutError::Disconnected => {
                        Error::Closed { during: "working on an I/O thread" }
                    }
                })
            }
        }
    }

    /// Takes no more jobs, runs those queued and joins the threads. A thread of the pool itself may
    /// call it: it is then not joined.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // A panic was printed by the hook; jobs' panics are caught before they get here.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work(&self) {
        while let Some(Queued { deadline, job }) = self.next() {
            self.room.notify_one();
            let turn = if deadline.is_some_and(|at| Instant::now() >= at) {
                Turn::Late
            } else {
                Turn::Run
            };
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| job(turn)));
        }
    }

    fn next(&self) -> Option<Queued> {
        let mut state = self.state.lock();
        loop {
            if let Some(queued) = state.queue.pop_front() {
                return Some(queued);
            }
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Each job runs once, also after a panic and while the pool closes.
    #[test]
    fn pool_jobs_after_panic_and_at_close() {
        let pool = Pool::new("test", 3, 1000).unwrap();
        let runs = Arc::new(AtomicUsize::new(0));
        for i in 0..500 {
            let runs = Arc::clone(&runs);
            let job = move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                if i % 100 == 0 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
            };
            assert!(pool.try_submit(None, Box::new(job)).is_ok());
        }
        pool.close();
        assert_eq!(runs.load(Ordering::SeqCst), 500);
        assert!(pool.try_submit(None, Box::new(|_| ())).is_err());
        assert!(matches!(pool.submit(None, Box::new(|_| ())), Err(Error::Closed { .. })));
    }

    #[test]
    fn full_queue_and_deadlines() {
        let pool = Pool::new("test", 1, 1).unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        pool.submit(None, Box::new(move |_| blocked.recv().unwrap_or_default())).unwrap();
        while pool.queued() > 0 {
            std::thread::yield_now();
        }
        let soon = Instant::now() + Duration::from_millis(20);
        let (sender, late) = mpsc::channel();
        pool.submit(Some(soon), Box::new(move |turn| sender.send(turn).unwrap())).unwrap();
        assert!(pool.try_submit(None, Box::new(|_| ())).is_err());
        assert!(matches!(pool.submit(Some(soon), Box::new(|_| ())), Err(Error::Deadline { .. })));
        drop(release);
        assert_eq!(late.recv().unwrap(), Turn::Late);
        assert_eq!(pool.call(None, || 5).unwrap(), 5);
        let soon = Instant::now() + Duration::from_millis(10);
        let slow = pool.call(Some(soon), || std::thread::sleep(Duration::from_millis(100)));
        assert!(matches!(slow, Err(Error::Deadline { .. })));
    }
}
