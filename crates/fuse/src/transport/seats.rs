//! Seats at the device: how many threads serve, and who takes over when one has to wait.
//!
//! The kernel wakes threads that read the device in turn, so with many of them each finds its caches cold; as many as
//! there are cores do best. But a few threads are soon all waiting for a disk. So there are spare threads, which sleep
//! until a handler says that it is about to wait ([`block_in_place`]): its seat goes to a spare thread, and it will
//! look for a free one when it is done. Handlers that do not wait never notice.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::transport::End;

/// The seats of one connection.
pub(crate) struct Seats {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: usize,
    end: Option<End>,
}

/// A thread's place: seated or not.
pub(crate) struct Place {
    seats: Arc<Seats>,
    seated: Cell<bool>,
}

thread_local! {
    /// The place of a serving thread while it runs a handler.
    static PLACE: Cell<*const Place> = const { Cell::new(std::ptr::null()) };
}

/// Runs `f`, which may wait for long (a disk, another machine), from within
/// [`FileSystem::handle`](crate::FileSystem::handle), and lets a spare thread serve other requests meanwhile. Costs a
/// few microseconds; outside of serving threads it just runs `f`.
pub fn block_in_place<T>(f: impl FnOnce() -> T) -> T {
    let place = PLACE.get();
    if !place.is_null() {
        // SAFETY: `Place::with` sets the pointer to a reference that outlives the handler, and takes it back after.
        unsafe { (*place).leave() };
    }
    f()
}

impl Seats {
    pub(crate) fn new(count: usize) -> Arc<Seats> {
        Arc::new(Seats { state: Mutex::new(State { free: count, end: None }), changed: Condvar::new() })
    }

    /// The connection has ended: those who wait for a seat go home.
    pub(crate) fn close(&self, end: End) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }
}

impl Place {
    /// Not seated yet.
    pub(crate) fn new(seats: Arc<Seats>) -> Place {
        Place { seats, seated: Cell::new(false) }
    }

    /// Makes sure of a seat, waiting for one if need be; `Err` when the connection has ended instead.
    #[inline]
    pub(crate) fn sit(&self) -> Result<(), End> {
        if self.seated.get() { Ok(()) } else { self.wait() }
    }

    #[cold]
    fn wait(&self) -> Result<(), End> {
        let mut state = self.seats.state.lock();
        loop {
            if let Some(end) = state.end {
                return Err(end);
            }
            if state.free > 0 {
                state.free -= 1;
                self.seated.set(true);
                return Ok(());
            }
            self.seats.changed.wait(&mut state);
        }
    }

    /// Runs a handler that may give the seat away.
    #[inline]
    pub(crate) fn with(&self, handler: impl FnOnce()) {
        PLACE.set(self);
        handler();
        PLACE.set(std::ptr::null());
    }

    fn leave(&self) {
        if self.seated.replace(false) {
            self.seats.state.lock().free += 1;
            self.seats.changed.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_change_hands() {
        let seats = Seats::new(1);
        let (first, second) = (Place::new(seats.clone()), Place::new(seats.clone()));
        first.sit().unwrap();
        first.with(|| {
            assert_eq!(block_in_place(|| second.sit()), Ok(()));
            assert_eq!(block_in_place(|| 5), 5, "without a seat to give");
        });
        drop(second);
        first.sit().unwrap();
        assert_eq!(block_in_place(|| 6), 6, "not in a handler");
        assert!(first.seated.get());
        seats.close(End::Aborted);
        first.sit().unwrap();
        assert_eq!(Place::new(seats).sit(), Err(End::Aborted));
    }
}
