//! A call for a look at the member: a note that there is something, and a thread to wake.
//!
//! **Nothing is forgotten.** A thread that has something queues it, *then* notes that
//! ([`Wakeup::note`]), *then* tries the member's lock or wakes the thread, which tries it. The
//! thread that holds the lock takes the note away, *then* looks at the queues, and after letting
//! the lock go looks for a note again. If that look came before the note, the lock was let go
//! before it, so the other's attempt succeeds or meets a new holder, which will look.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

thread_local! {
    /// Address of the wakeup of the member that this thread serves, or 0.
    static BUSY: Cell<usize> = const { Cell::new(0) };
}

/// See the module's header.
#[derive(Default)]
pub struct Wakeup {
    noted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Quiet,
    Rung,
    Closed,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// There may be something to do.
    Up,
    /// The host is closed.
    Closed,
}

impl Wakeup {
    /// There is something to look at: notes it and wakes the thread, unless this one will look by
    /// itself.
    pub fn ring(&self) {
        self.note();
        if !self.is_mine() {
            self.wake();
        }
    }

    /// Whether this thread serves the member.
    pub(super) fn is_mine(&self) -> bool {
        BUSY.get() == self.address()
    }

    /// There is something to look at.
    pub(super) fn note(&self) {
        self.noted.store(true, Ordering::SeqCst);
    }

    /// Somebody looks now.
    pub(super) fn look(&self) {
        self.noted.store(false, Ordering::SeqCst);
    }

    pub(super) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::SeqCst)
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        if *state == State::Quiet {
            *state = State::Rung;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The thread shall end.
    pub(super) fn close(&self) {
        *self.state.lock() = State::Closed;
        self.changed.notify_one();
    }

    /// Waits until somebody wakes the thread, at most so long.
    pub(super) fn wait(&self, limit: Duration) -> Woken {
        let mut state = self.state.lock();
        if *state == State::Quiet {
            self.changed.wait_for(&mut state, limit);
        }
        if *state == State::Closed {
            return Woken::Closed;
        }
        *state = State::Quiet;
        Woken::Up
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// This thread serves a member, until this is dropped.
pub(super) struct Busy;

impl Busy {
    /// None if it does already, this one or another.
    pub fn on(wakeup: &Wakeup) -> Option<Self> {
        if BUSY.get() != 0 {
            return None;
        }
        BUSY.set(wakeup.address());
        Some(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(0);
    }
}
