//! The intake of a session's requests: closed to hand the connection over to another process.
//!
//! A thread that waits for a request sits in `read(2)`, and a signal brings it out: the kernel
//! gives a request to a reader whole or not at all, so none is lost. Before each read a thread
//! looks whether the intake is closed, having said that it is about to read; so the thread that
//! closes sees it, or it sees that the intake is closed.
//!
//! What was read is either answered, by whatever thread, or another process gets it again
//! ([`Notifier::resend`](crate::Notifier::resend)). So that no request is answered twice, a silent
//! session answers none any more ([`Intake::silence`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What brings a thread out of `read(2)`. Nothing else uses it.
const WAKE_SIGNAL: i32 = libc::SIGUSR2;

/// Time between two looks whether all threads have stopped.
const LOOK: Duration = Duration::from_micros(200);

/// What a serving thread does.
const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const HANDLING: u8 = 2;

/// A serving thread. On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Seat {
    state: AtomicU8,
    /// `pthread_t`; 0 before it has begun.
    thread: AtomicU64,
    /// Requests read by it that have no answer yet.
    unanswered: AtomicI64,
}

/// Between a session's threads and the thread that hands it over.
pub(crate) struct Gate {
    seats: Vec<Seat>,
    closed: AtomicBool,
    silent: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

extern "C" fn wake(_signal: i32) {}

impl Gate {
    /// For this many threads.
    pub(crate) fn new(threads: usize) -> Arc<Gate> {
        // SAFETY: all zeros is a valid sigaction: no flags, so that read(2) ends, and no mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = wake as extern "C" fn(i32) as usize;
        // SAFETY: `action` is valid, and its handler does nothing.
        unsafe { libc::sigaction(WAKE_SIGNAL, &raw const action, std::ptr::null_mut()) };
        Arc::new(Gate {
            seats: (0..threads).map(|_| Seat::default()).collect(),
            closed: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// A thread is about to read; waits while the intake is closed.
    #[inline]
    pub(crate) fn enter(&self, thread: usize) {
        let seat = &self.seats[thread];
        seat.state.store(RECEIVING, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            self.wait(seat);
        }
    }

    #[cold]
    fn wait(&self, seat: &Seat) {
        let mut lock = self.lock.lock();
        while self.closed.load(Ordering::SeqCst) {
            seat.state.store(IDLE, Ordering::SeqCst);
            self.changed.wait(&mut lock);
            seat.state.store(RECEIVING, Ordering::SeqCst);
        }
    }

    /// It has read a request.
    #[inline]
    pub(crate) fn received(&self, thread: usize, is_answered: bool) {
        let seat = &self.seats[thread];
        if is_answered {
            self.owed(thread);
        }
        seat.state.store(HANDLING, Ordering::SeqCst);
    }

    /// It has handled it, or there was none.
    #[inline]
    pub(crate) fn leave(&self, thread: usize) {
        self.seats[thread].state.store(IDLE, Ordering::SeqCst);
    }

    /// A thread begins to serve.
    pub(crate) fn begin(&self, thread: usize) {
        // SAFETY: no preconditions.
        let this = unsafe { libc::pthread_self() };
        self.seats[thread].thread.store(this as u64, Ordering::SeqCst);
    }

    /// A thread ends: its number may be another thread's soon.
    pub(crate) fn end(&self, thread: usize) {
        let _ordered = self.lock.lock();
        self.seats[thread].thread.store(0, Ordering::SeqCst);
        self.leave(thread);
    }

    /// Whether answers are of no use any more.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    /// A request that this thread has read is owed an answer.
    pub(crate) fn owed(&self, thread: usize) {
        self.seats[thread].unanswered.fetch_add(1, Ordering::SeqCst);
    }

    /// A request that this thread has read was answered, or is set aside.
    #[inline]
    pub(crate) fn answered(&self, thread: usize) {
        self.seats[thread].unanswered.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Stops a session's requests and lets them go on, from any thread; clones are cheap.
#[derive(Clone)]
pub struct Intake(pub(crate) Arc<Gate>);

impl Intake {
    /// Takes no further request, and waits until every handler has returned. If that takes longer
    /// than `limit`, requests are taken again, and the answer is false.
    pub fn close(&self, limit: Duration) -> bool {
        let gate = &self.0;
        let end = Instant::now() + limit;
        gate.closed.store(true, Ordering::SeqCst);
        loop {
            let mut busy = false;
            {
                // No thread ends meanwhile.
                let _ordered = gate.lock.lock();
                for seat in &gate.seats {
                    let state = seat.state.load(Ordering::SeqCst);
                    busy |= state != IDLE;
                    let thread = seat.thread.load(Ordering::SeqCst);
                    if state == RECEIVING && thread != 0 {
                        // SAFETY: the thread has not ended: it takes its number back before,
                        // under the lock.
                        unsafe { libc::pthread_kill(thread as libc::pthread_t, WAKE_SIGNAL) };
                    }
                }
            }
            if !busy {
                return true;
            }
            if Instant::now() >= end {
                self.open();
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes requests again.
    pub fn open(&self) {
        let _ordered = self.0.lock.lock();
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.changed.notify_all();
    }

    /// Requests that were read, have no answer yet and are not set aside
    /// ([`Reply::set_aside`](crate::Reply::set_aside)).
    pub fn unanswered(&self) -> usize {
        let sum: i64 = self.0.seats.iter().map(|seat| seat.unanswered.load(Ordering::SeqCst)).sum();
        usize::try_from(sum).unwrap_or(0)
    }

    /// Waits until no request is [unanswered](Intake::unanswered); false if that takes longer than
    /// `limit`.
    pub fn wait_for_answers(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.unanswered() > 0 {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Answers nothing any more, for good: whichever process takes the connection over gets these
    /// requests again.
    pub fn silence(&self) {
        self.0.silent.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed intake holds a thread that comes to read, and lets it go on when it opens.
    #[test]
    fn closed_intake() {
        let gate = Gate::new(2);
        let intake = Intake(gate.clone());
        gate.received(0, true);
        assert!(!intake.close(Duration::from_millis(5)), "one is being handled");
        gate.leave(0);
        assert!(intake.close(Duration::from_secs(5)));
        assert_eq!(intake.unanswered(), 1);
        assert!(!intake.wait_for_answers(Duration::from_millis(1)));
        let other = gate.clone();
        let thread = std::thread::spawn(move || {
            other.begin(1);
            other.enter(1);
            other.received(1, false);
            other.leave(1);
            other.end(1);
        });
        std::thread::sleep(Duration::from_millis(5));
        assert!(!thread.is_finished());
        intake.open();
        thread.join().expect("it goes on");
        gate.answered(0);
        assert!(intake.wait_for_answers(Duration::ZERO));
        assert!(!gate.is_silent());
        intake.silence();
        assert!(gate.is_silent());
    }
}
