//! Operations that are submitted, and their completions.
//!
//! What the client answers by a callback needs no thread (`submit`); the rest runs on the threads
//! of the queue, which are started as they are needed.
//!
//! # Invariants
//!
//! - Each operation has one [`Ticket`], and completes once: also if it panics.
//! - Memory of the program is not touched behind the completion.
//! - The event descriptor is readable if and only if there is a completion to take, as seen with
//!   the state locked.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kestrel_client::native::NativeVolume;
use parking_lot::{Condvar, Mutex};

use crate::boundary::{CallError, CallResult, guarded, tell};
use crate::files;
use crate::handles::{self, Handled};
use crate::structs::kestrel_completion;
use crate::volume::{OpenVolume, Use};

/// `KESTREL_OP_OPEN`: the result of an operation that opens a file is its handle.
pub const OPEN: u32 = 5;

/// Most threads of a queue.
const THREADS_MAX: usize = 16;

/// Most operations that a queue is opened for.
const DEPTH_MAX: u32 = 1 << 16;

/// A queue of completions.
pub struct Queue {
    /// The volume that operations are about; none in tests alone.
    pub volume: Option<Arc<OpenVolume>>,
    depth: usize,
    event: Option<OwnedFd>,
    state: Mutex<QueueState>,
    /// There is work, or there will be none any more.
    work: Condvar,
    /// There is a completion, or none will come any more.
    completed: Condvar,
}

#[derive(Default)]
struct QueueState {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    /// Submitted and not completed.
    running: usize,
    completions: VecDeque<Completed>,
    ended: bool,
}

type Work = Box<dyn FnOnce() + Send>;

/// A completion, and why it is one of a failure.
type Completed = (kestrel_completion, Option<(&'static str, CallError)>);

/// An operation that is under way.
pub struct Ticket {
    queue: Arc<Queue>,
    /// It completes before its use of the volume ends.
    used: Use,
    name: &'static str,
    operation: u32,
    user: u64,
    completed: bool,
}

impl Ticket {
    /// Completes the operation.
    pub fn complete(mut self, result: CallResult<i64>) {
        self.push(result);
    }

    /// The use of the volume.
    pub fn used(&self) -> &Use {
        &self.used
    }

    fn push(&mut self, result: CallResult<i64>) {
        self.completed = true;
        let (result, why) = match result {
            Ok(value) => (value, None),
            Err(why) => (-i64::from(why.errno), Some((self.name, why))),
        };
        let Self { operation, user, .. } = *self;
        let completion = kestrel_completion { user, result, operation, ..Default::default() };
        let mut state = self.queue.state.lock();
        state.running -= 1;
        state.completions.push_back((completion, why));
        if state.completions.len() == 1 {
            self.queue.signal();
        }
        self.queue.completed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.completed {
            let why = "the operation was dropped without an answer";
            self.push(Err(CallError::new(libc::EIO, why)));
        }
    }
}

impl Handled for Queue {
    fn kind() -> &'static str {
        "queue"
    }

    fn volume(&self) -> Option<usize> {
        self.volume.as_ref().map(|volume| volume.number())
    }

    fn end(&self, _: &NativeVolume) -> CallResult<()> {
        Queue::end(self);
        Ok(())
    }
}

impl Queue {
    fn new(volume: Option<Arc<OpenVolume>>, depth: usize, event: Option<OwnedFd>) -> Self {
        let (state, work, completed) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self { volume, depth, event, state, work, completed }
    }

    /// A queue of no volume.
    #[cfg(test)]
    pub fn alone(depth: usize) -> Self {
        Self::new(None, depth, None)
    }

    /// Makes the event descriptor readable.
    fn signal(&self) {
        if let Some(event) = &self.event {
            let one = 1u64;
            // SAFETY: eight bytes of this frame. It cannot fail: the counter is 0.
            unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Makes it unreadable.
    fn unsignal(&self) {
        if let Some(event) = &self.event {
            let mut count = 0u64;
            // SAFETY: eight bytes of this frame. It does not wait.
            unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// `EBADF` if queue or volume are closed, `EAGAIN` if there are as many operations as the queue
    /// was opened for.
    pub fn begin(
        self: &Arc<Self>,
        (name, operation): (&'static str, u32),
        user: u64,
    ) -> CallResult<Ticket> {
        let closed = CallError::new(libc::EBADF, "the queue is closed");
        let used = self.volume.as_ref().ok_or(closed.clone())?.enter()?;
        let mut state = self.state.lock();
        if state.ended {
            return Err(closed);
        }
        if state.running + state.completions.len() >= self.depth {
            let why = "the queue is full: take completions, then submit again";
            return Err(CallError::new(libc::EAGAIN, why));
        }
        state.running += 1;
        drop(state);
        Ok(Ticket { queue: self.clone(), used, name, operation, user, completed: false })
    }

    /// Has a thread of the queue do something.
    pub fn run(self: &Arc<Self>, work: Work) {
        let mut state = self.state.lock();
        state.work.push_back(work);
        if state.idle >= state.work.len() || state.threads == THREADS_MAX {
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let own = self.clone();
        let thread = std::thread::Builder::new().name("kestrel-queue".into());
        if thread.spawn(move || own.serve()).is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            // With other threads there, it is their work.
            let work = if state.threads == 0 { state.work.pop_back() } else { None };
            drop(state);
            if let Some(work) = work {
                work();
            }
        }
    }

    /// What a thread of the queue does.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.state.lock();
            } else if state.ended {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }

    /// Takes what has completed, `max` at most; waits for the first one until the deadline.
    fn take(&self, max: usize, until: Option<Instant>) -> CallResult<Vec<Completed>> {
        let mut state = self.state.lock();
        while state.completions.is_empty() {
            if state.ended {
                return Err(CallError::new(libc::EBADF, "the queue was closed meanwhile"));
            }
            let is_late = match until {
                Some(until) => self.completed.wait_until(&mut state, until).timed_out(),
                None => {
                    self.completed.wait(&mut state);
                    false
                }
            };
            if is_late && state.completions.is_empty() {
                return Ok(Vec::new());
            }
        }
        let count = max.min(state.completions.len());
        let taken = state.completions.drain(..count).collect();
        if state.completions.is_empty() {
            self.unsignal();
        }
        Ok(taken)
    }

    /// Has no operation begin any more, and waits for those that are under way. Files of opens that
    /// nobody has taken are closed.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        while state.running > 0 {
            self.completed.wait(&mut state);
        }
        let left = std::mem::take(&mut state.completions);
        self.unsignal();
        drop(state);
        self.work.notify_all();
        self.completed.notify_all();
        for (completion, _) in left {
            if completion.operation == OPEN && completion.result > 0 {
                // Nothing was written to it. If the volume is being closed, that closes it.
                let _ = files::close(completion.result);
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_queue_open(volume: i64, depth: u32) -> i64 {
    guarded("kestrel_queue_open", || {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(CallError::new(libc::EINVAL, "a queue is for 1 to 65536 operations"));
        }
        let volume = handles::get::<OpenVolume>(volume)?;
        let _used = volume.enter()?;
        // SAFETY: it takes numbers alone.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            let why = std::io::Error::last_os_error();
            let errno = why.raw_os_error().unwrap_or(libc::EIO);
            let why = format!("an event descriptor: {why}; raise the limit on open files").into();
            return Err(CallError { errno, about: Vec::new(), why });
        }
        // SAFETY: it was opened here, and has no other owner.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        handles::add(Arc::new(Queue::new(Some(volume.clone()), depth as usize, Some(event))))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_queue_fd(queue: i64) -> c_int {
    guarded("kestrel_queue_fd", || {
        let queue = handles::get::<Queue>(queue)?;
        Ok(queue.event.as_ref().map_or(-libc::EBADF, AsRawFd::as_raw_fd))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kestrel_queue_take(
    queue: i64,
    out: *mut kestrel_completion,
    max: usize,
    timeout_ms: i64,
) -> i64 {
    guarded("kestrel_queue_take", || {
        if out.is_null() || max == 0 {
            let errno = if max == 0 { libc::EINVAL } else { libc::EFAULT };
            return Err(CallError::new(errno, "there is no room for a completion"));
        }
        let queue = handles::get::<Queue>(queue)?;
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // A limit beyond what the clock has is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let taken = queue.take(max, until)?;
        let mut has_told = false;
        for (at, (completion, why)) in taken.iter().enumerate() {
            if let Some((name, why)) = why.as_ref().filter(|_| !has_told) {
                tell(name, why);
                has_told = true;
            }
            // SAFETY: kestrel.h says that there is room for `max`.
            unsafe { out.add(at).write(*completion) };
        }
        Ok(taken.len() as i64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn kestrel_queue_close(queue: i64) -> c_int {
    guarded("kestrel_queue_close", || {
        handles::take::<Queue>(queue)?.end();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Work is done by threads that are started as they are needed, and that end with the queue.
    #[test]
    fn threads_of_a_queue() {
        let queue = Arc::new(Queue::alone(8));
        let (send, receive) = channel();
        for number in 0..100 {
            let send = send.clone();
            queue.run(Box::new(move || send.send(number).unwrap()));
        }
        drop(send);
        assert_eq!(receive.iter().sum::<i32>(), 4950);
        assert!(queue.state.lock().threads <= THREADS_MAX);
        queue.end();
        assert_eq!(queue.take(1, None).unwrap_err().errno, libc::EBADF);
        while queue.state.lock().threads > 0 {
            std::thread::yield_now();
        }
    }

    /// Without completions a take waits as long as it is told.
    #[test]
    fn take_from_an_empty_queue() {
        let queue = Queue::alone(1);
        let until = Instant::now() + Duration::from_millis(5);
        assert!(queue.take(1, Some(until)).unwrap().is_empty() && Instant::now() >= until);
    }
}
