//! A bound on bytes in use, such as dirty buffers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// How often it is checked whether the callers of waiting calls still wait.
const GONE_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Default)]
struct State {
    used: u64,
    /// Bytes given back since the budget was made.
    given_back: u64,
    /// How often a caller had to wait.
    waits: u64,
    /// Tickets: the caller that waits longest goes first, so that large requests are not starved by
    /// small ones.
    next_ticket: u64,
    /// Tickets that wait, in order.
    waiting: std::collections::VecDeque<u64>,
}

struct Shared {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Hands out bytes up to a limit. A request above the limit is granted when nothing else is in use,
/// so that it cannot wait for ever: at most `limit`, or one request, is in use at any time.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

/// Bytes granted; given back when dropped.
pub struct Grant {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared { limit, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// The limit, bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes granted now.
    pub fn used(&self) -> u64 {
        self.0.state.lock().used
    }

    fn grant(&self, bytes: u64) -> Grant {
        Grant { shared: Arc::clone(&self.0), bytes }
    }

    /// Grants at once or not at all. Never overtakes waiting callers.
    pub fn try_acquire(&self, bytes: u64) -> Option<Grant> {
        let mut state = self.0.state.lock();
        if !state.waiting.is_empty() || !self.0.fits(&state, bytes) {
            return None;
        }
        state.used += bytes;
        Some(self.grant(bytes))
    }

    /// Whether [`Budget::try_acquire`] would grant now.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.0.state.lock();
        state.waiting.is_empty() && self.0.fits(&state, bytes)
    }

    /// Whether a caller waits for room.
    pub fn is_waited_for(&self) -> bool {
        !self.0.state.lock().waiting.is_empty()
    }

    /// How often a caller had to wait, since the budget was made.
    pub fn waits(&self) -> u64 {
        self.0.state.lock().waits
    }

    /// Waits for its turn and for room, not beyond the deadline.
    ///
    /// # Errors
    /// `Deadline`.
    pub fn acquire(&self, bytes: u64, deadline: Option<Instant>) -> Result<Grant> {
        self.wait(bytes, deadline, None, None)
    }

    /// Waits for its turn and for room as long as bytes are given back, that is, until none were
    /// for the time of `timeout`: of many callers that wait for a slow store, the last one does not
    /// fail as if the store hung. Gives up soon after `gone` answers true; it is called again and
    /// again.
    ///
    /// # Errors
    /// `Deadline`, also when given up.
    pub fn acquire_unless(
        &self,
        bytes: u64,
        timeout: Duration,
        gone: &dyn Fn() -> bool,
    ) -> Result<Grant> {
        self.wait(bytes, Some(Instant::now() + timeout), Some(timeout), Some(gone))
    }

    fn wait(
        &self,
        bytes: u64,
        mut deadline: Option<Instant>,
        timeout: Option<Duration>,
        gone: Option<&dyn Fn() -> bool>,
    ) -> Result<Grant> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        let mut given_back = state.given_back;
        let mut waits = false;
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(ticket);
        loop {
            if state.waiting.front() == Some(&ticket) && shared.fits(&state, bytes) {
                state.waiting.pop_front();
                state.used += bytes;
                shared.changed.notify_all();
                return Ok(self.grant(bytes));
            }
            state.waits += u64::from(!std::mem::replace(&mut waits, true));
            if let Some(timeout) = timeout.filter(|_| state.given_back != given_back) {
                given_back = state.given_back;
                deadline = Some(Instant::now() + timeout);
            }
            let poll_at = gone.map(|_| Instant::now() + GONE_INTERVAL);
            let timed_out = match deadline.into_iter().chain(poll_at).min() {
                None => {
                    shared.changed.wait(&mut state);
                    false
                }
                Some(until) => shared.changed.wait_until(&mut state, until).timed_out(),
            };
            let goes_on = timeout.is_some() && state.given_back != given_back;
            let late = !goes_on && deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if timed_out && (late || gone.is_some_and(|gone| gone())) {
                state.waiting.retain(|other| *other != ticket);
                shared.changed.notify_all();
                return Err(Error::Deadline { during: "waiting for buffer space" });
            }
        }
    }
}

impl Shared {
    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.used == 0 || state.used.saturating_add(bytes) <= self.limit
    }
}

impl Grant {
    /// Bytes granted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Moves up to `bytes` of the grant into one of its own.
    pub fn split(&mut self, bytes: u64) -> Grant {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Grant { shared: Arc::clone(&self.shared), bytes }
    }

    /// Adds another grant of the same budget to this one; one of another budget is left alone and
    /// given back.
    pub fn merge(&mut self, mut other: Grant) {
        if Arc::ptr_eq(&self.shared, &other.shared) {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut state = self.shared.state.lock();
            state.used -= self.bytes;
            state.given_back += self.bytes;
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_limit_holds_under_contention() {
        let budget = Budget::new(100);
        let (in_use, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (budget, in_use, most) = (&budget, &in_use, &most);
                scope.spawn(move || {
                    for i in 0..200 {
                        let grant = budget.acquire(1 + (thread * 7 + i) % 60, None).unwrap();
                        let now = in_use.fetch_add(grant.bytes(), Ordering::SeqCst) + grant.bytes();
                        most.fetch_max(now, Ordering::SeqCst);
                        in_use.fetch_sub(grant.bytes(), Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 100);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn deadlines_large_requests_and_splits() {
        let budget = Budget::new(10);
        let mut grant = budget.acquire(25, None).unwrap();
        assert!(budget.try_acquire(1).is_none());
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(matches!(budget.acquire(1, Some(soon)), Err(Error::Deadline { .. })));
        let part = grant.split(20);
        drop(grant);
        assert_eq!(budget.used(), 20);
        drop(part);
        let mut grant = budget.try_acquire(4).unwrap();
        grant.merge(budget.try_acquire(6).unwrap());
        assert_eq!((grant.bytes(), budget.used()), (10, 10));
        drop(grant);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn wait_given_up_by_its_caller() {
        let budget = Budget::new(10);
        let grant = budget.acquire(10, None).unwrap();
        assert!(!budget.has_room(1));
        let polls = AtomicU64::new(0);
        let gone = || polls.fetch_add(1, Ordering::SeqCst) > 0;
        let far = Duration::from_secs(3600);
        assert!(matches!(budget.acquire_unless(1, far, &gone), Err(Error::Deadline { .. })));
        assert_eq!(polls.load(Ordering::SeqCst), 2);
        drop(grant);
        assert!(budget.has_room(10) && budget.acquire_unless(10, far, &gone).is_ok());
    }

    /// Many that wait for a slow store are all served, though the last one waits longer than its
    /// timeout, and one that waits for a store that gives nothing back fails.
    #[test]
    fn timeout_restarts_with_each_return() {
        let budget = Budget::new(4);
        let held = budget.acquire(4, None).unwrap();
        let hangs = budget.acquire_unless(1, Duration::from_millis(20), &|| false);
        assert!(matches!(hangs, Err(Error::Deadline { .. })));
        let timeout = Duration::from_millis(300);
        let (mut held, mut longest) = (held, Duration::ZERO);
        let all_came = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.acquire_unless(4, timeout, &|| false).is_ok());
            while !budget.is_waited_for() && !waiter.is_finished() {
                std::thread::yield_now();
            }
            // A byte at a time: never enough for the waiter until the last.
            while held.bytes() > 0 {
                let since = Instant::now();
                std::thread::sleep(timeout / 3);
                drop(held.split(1));
                longest = longest.max(since.elapsed());
            }
            waiter.join().unwrap()
        });
        // On a machine that is too busy to give them back in time the test proves nothing.
        assert!(all_came || longest >= timeout, "{longest:?}");
        assert_eq!((budget.used(), budget.waits()), (0, 2));
    }

    /// Writers that hold what they have until it is stored, and storers that need no room, all get
    /// on, at each limit.
    #[test]
    fn writers_get_on_below_their_sum() {
        for limit in [1, 7, 64] {
            let budget = Budget::new(limit);
            let (send, stored) = std::sync::mpsc::channel::<Grant>();
            let done = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(move || stored.iter().for_each(drop));
                for writer in 0..8 {
                    let (send, budget, done) = (send.clone(), &budget, &done);
                    scope.spawn(move || {
                        for round in 0..200u64 {
                            let bytes = 1 + (round * 7 + writer) % 20;
                            let grant =
                                budget.acquire_unless(bytes, Duration::from_secs(3600), &|| false);
                            send.send(grant.unwrap()).unwrap();
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
                drop(send);
            });
            assert_eq!((done.load(Ordering::SeqCst), budget.used()), (1600, 0));
        }
    }

    #[test]
    fn order_of_waiting_callers() {
        let budget = Budget::new(10);
        let grant = budget.acquire(5, None).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.acquire(10, None).unwrap().bytes());
            while budget.0.state.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            assert!(budget.try_acquire(1).is_none());
            drop(grant);
            assert_eq!(waiter.join().unwrap(), 10);
        });
    }
}
