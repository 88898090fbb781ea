//! Seats at the device or the rings: how many threads serve, and which takes over when one has to
//! wait.
//!
//! The kernel wakes threads that read the device in turn, so with many of them each finds its
//! caches cold; as many as there are cores do best. But a few threads are soon all waiting for a
//! disk. So there are spare threads, which sleep until a handler says that it is about to wait
//! ([`block_in_place`]): its seat goes to a spare thread, and it will look for a free one when it
//! is done. Handlers that do not wait never notice. Seats have numbers, because each ring has its
//! own; those at the device are all alike.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::transport::End;

/// The seats of one connection.
pub(crate) struct WorkerSlots {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: Vec<usize>,
    end: Option<End>,
}

/// A thread's place: seated or not.
pub(crate) struct WorkerSlot {
    seats: Arc<WorkerSlots>,
    seat: Cell<Option<usize>>,
    /// Called by the thread when it has given its seat away.
    left: Option<Box<dyn Fn()>>,
}

thread_local! {
    /// The place of a serving thread while it runs a handler.
    static PLACE: Cell<*const WorkerSlot> = const { Cell::new(std::ptr::null()) };
}

/// Runs `f`, which may wait for long (a disk, another machine), from within
/// [`FileSystem::handle`](crate::FileSystem::handle), and lets a spare thread serve other requests
/// meanwhile. Costs a few microseconds; outside of serving threads it just runs `f`.
///
/// Also for what starts threads: over io_uring a handler runs on its ring's processors only, which
/// a thread inherits from the thread that starts it; within `f` it may run on all again.
pub fn block_in_place<T>(f: impl FnOnce() -> T) -> T {
    let place = PLACE.get();
    if !place.is_null() {
        // SAFETY: `WorkerSlot::with` sets the pointer to a reference that outlives the handler, and
        // takes it back after.
        unsafe { (*place).leave() };
    }
    f()
}

impl WorkerSlots {
    pub(crate) fn new(count: usize) -> Arc<WorkerSlots> {
        Arc::new(WorkerSlots {
            state: Mutex::new(State { free: (0..count).collect(), end: None }),
            changed: Condvar::new(),
        })
    }

    /// The connection has ended: threads that wait for a seat give up.
    pub(crate) fn close(&self, end: End) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }
}

impl WorkerSlot {
    /// Not seated yet.
    pub(crate) fn new(seats: Arc<WorkerSlots>) -> WorkerSlot {
        WorkerSlot { seats, seat: Cell::new(None), left: None }
    }

    /// The same; whenever the thread has given a seat away it calls `left`.
    pub(crate) fn with_leaving(seats: Arc<WorkerSlots>, left: impl Fn() + 'static) -> WorkerSlot {
        WorkerSlot { seats, seat: Cell::new(None), left: Some(Box::new(left)) }
    }

    /// Makes sure of a seat, waiting for one if need be, and tells which; `Err` when the connection
    /// has ended instead.
    #[inline]
    pub(crate) fn sit(&self) -> Result<usize, End> {
        match self.seat.get() {
            Some(seat) => Ok(seat),
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Result<usize, End> {
        let mut state = self.seats.state.lock();
        loop {
            if let Some(end) = state.end {
                return Err(end);
            }
            if let Some(seat) = state.free.pop() {
                self.seat.set(Some(seat));
                return Ok(seat);
            }
            self.seats.changed.wait(&mut state);
        }
    }

    /// Whether it still has its seat.
    #[inline]
    pub(crate) fn is_seated(&self) -> bool {
        self.seat.get().is_some()
    }

    /// How the connection has ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.seats.state.lock().end
    }

    /// Runs a handler that may give the seat away.
    #[inline]
    pub(crate) fn with(&self, handler: impl FnOnce()) {
        PLACE.set(self);
        handler();
        PLACE.set(std::ptr::null());
    }

    fn leave(&self) {
        if let Some(seat) = self.seat.take() {
            self.seats.state.lock().free.push(seat);
            self.seats.changed.notify_one();
            if let Some(left) = &self.left {
                left();
            }
        }
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_change_hands() {
        let seats = WorkerSlots::new(1);
        let (first, second) = (WorkerSlot::new(seats.clone()), WorkerSlot::new(seats.clone()));
        first.sit().unwrap();
        first.with(|| {
            assert_eq!(block_in_place(|| second.sit()), Ok(0));
            assert!(!first.is_seated());
            assert_eq!(block_in_place(|| 5), 5, "without a seat to give");
        });
        drop(second);
        first.sit().unwrap();
        assert_eq!(block_in_place(|| 6), 6, "not in a handler");
        assert_eq!((first.is_seated(), first.end()), (true, None));
        seats.close(End::Aborted);
        first.sit().unwrap();
        assert_eq!(WorkerSlot::new(seats).sit(), Err(End::Aborted));
    }

    #[test]
    fn leaving_is_told_once_for_each_seat() {
        let left = std::rc::Rc::new(Cell::new(0));
        let count = left.clone();
        let place =
            WorkerSlot::with_leaving(WorkerSlots::new(1), move || count.set(count.get() + 1));
        block_in_place(|| ());
        for round in 1..3 {
            place.sit().unwrap();
            place.with(|| block_in_place(|| block_in_place(|| assert_eq!(left.get(), round))));
        }
        drop(place);
        assert_eq!(left.get(), 2);
    }
}
