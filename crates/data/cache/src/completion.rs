//! Callbacks of reads of a cache disk that no thread waits for: run by the thread that reads or,
//! should the disk not answer in time, by a thread that does nothing else. Exactly once.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use kestrel_blockstore::store::Then;
use parking_lot::{Condvar, Mutex};

/// A callback that is to be called once.
pub(crate) struct ReadCompletion(Mutex<Option<Then>>);

impl ReadCompletion {
    /// Whether it has not been called yet.
    pub fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Takes the callback over, if no other thread has.
    pub fn take(&self) -> Option<Then> {
        self.0.lock().take()
    }

    /// Calls it; false if another thread has.
    pub fn keep(&self, is_here: bool) -> bool {
        let then = self.take();
        let is_ours = then.is_some();
        if let Some(then) = then {
            then(is_here);
        }
        is_ours
    }
}

#[derive(Default)]
struct State {
    /// In order of when they are due.
    open: VecDeque<(Instant, Arc<ReadCompletion>)>,
    /// The thread waits for the next promise, not for one to be due.
    is_idle: bool,
    closed: bool,
}

/// The promises of a disk.
#[derive(Default)]
pub(crate) struct ReadCompletions {
    state: Mutex<State>,
    came: Condvar,
}

impl ReadCompletions {
    /// Makes a completion of `then`, to be called at the latest at `due`, which must not be before
    /// that of any completion made earlier.
    pub fn make(&self, due: Instant, then: Then) -> Arc<ReadCompletion> {
        let completion = Arc::new(ReadCompletion(Mutex::new(Some(then))));
        let mut state = self.state.lock();
        state.forget_kept();
        // Two threads may come in another order than they looked at the clock.
        let due = state.open.back().map_or(due, |(last, _)| due.max(*last));
        state.open.push_back((due, Arc::clone(&completion)));
        let is_idle = state.is_idle;
        drop(state);
        if is_idle {
            self.came.notify_one();
        }
        completion
    }

    /// Starts the thread. It calls `late` for each promise that it has to keep, before it does, and
    /// ends after [`ReadCompletions::close`].
    pub fn start(
        self: &Arc<Self>,
        name: String,
        late: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let completions = Arc::clone(self);
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                while let Some(completion) = completions.next_late() {
                    if let Some(then) = completion.take() {
                        // One that panics (the hook prints it) must not leave the others without an
                        // answer.
                        let _ = catch_unwind(AssertUnwindSafe(|| {
                            late();
                            then(false);
                        }));
                    }
                }
            })
            .map(drop)
    }

    /// Waits for a completion to be due that has not been called. None: closed, and there is none
    /// left.
    fn next_late(&self) -> Option<Arc<ReadCompletion>> {
        let mut state = self.state.lock();
        loop {
            state.forget_kept();
            match state.open.front().map(|(due, _)| *due) {
                Some(due) if state.closed || due <= Instant::now() => {
                    return state.open.pop_front().map(|(_, completion)| completion);
                }
                Some(due) => {
                    self.came.wait_until(&mut state, due);
                }
                None if state.closed => return None,
                None => {
                    state.is_idle = true;
                    self.came.wait(&mut state);
                    state.is_idle = false;
                }
            }
        }
    }

    /// Runs at once the callbacks that have not run yet, and ends the thread.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.came.notify_all();
    }
}

impl State {
    fn forget_kept(&mut self) {
        while self.open.front().is_some_and(|(_, completion)| !completion.is_open()) {
            self.open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Each promise is completed once: in time, when it is due, or at the end.
    #[test]
    fn completions_called_due_or_closed() {
        let completions = Arc::<ReadCompletions>::default();
        let late = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&late);
        completions
            .start("test".to_string(), move || {
                counted.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        let (sender, called) = mpsc::channel();
        let then = |number: u32| -> Then {
            let sender = sender.clone();
            Box::new(move |is_here| sender.send((number, is_here)).unwrap())
        };
        let far = Instant::now() + Duration::from_secs(3600);
        let kept = completions.make(Instant::now(), then(1));
        // Either of the two calls is first; the callback is called once.
        let by_us = kept.keep(true);
        assert_eq!(called.recv().unwrap(), (1, by_us));
        completions.make(Instant::now() + Duration::from_millis(5), then(2));
        assert_eq!(called.recv().unwrap(), (2, false));
        let in_time = completions.make(far, then(3));
        assert!(
            in_time.is_open() && in_time.keep(true) && !in_time.is_open() && !in_time.keep(false)
        );
        assert_eq!(called.recv().unwrap(), (3, true));
        assert!(completions.make(far, then(4)).take().is_some());
        completions.make(far, then(5));
        completions.close();
        assert_eq!(called.recv().unwrap(), (5, false));
        drop(sender);
        assert_eq!(late.load(Ordering::SeqCst), 2 + usize::from(!by_us));
        assert!(called.recv().is_err());
    }
}
