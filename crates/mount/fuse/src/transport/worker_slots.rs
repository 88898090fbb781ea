//! Worker slots at the device or the rings: how many threads serve, and which takes over when one
//! has to wait.
//!
//! The kernel wakes threads that read the device in turn, so with many of them each finds its
//! caches cold; as many as there are cores do best. But a few threads are soon all waiting for a
//! disk. So there are spare threads, which sleep until a handler says that it is about to wait
//! ([`block_in_place`]): its slot goes to a spare thread, and it acquires a free one when it is
//! done. Handlers that do not wait never notice. Slots have numbers, because each ring has its own;
//! those at the device are all alike.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::transport::End;

/// The slots of one connection.
pub(crate) struct WorkerSlots {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: Vec<usize>,
    end: Option<End>,
}

/// A thread's worker slot, or its lack of one.
pub(crate) struct WorkerSlot {
    slots: Arc<WorkerSlots>,
    slot: Cell<Option<usize>>,
    /// Called by the thread when it has given its slot away.
    left: Option<Box<dyn Fn()>>,
}

thread_local! {
    /// The slot of a serving thread while it runs a handler.
    static CURRENT: Cell<*const WorkerSlot> = const { Cell::new(std::ptr::null()) };
}

/// Runs `f`, which may wait for long (a disk, another machine), from within
/// [`FileSystem::handle`](crate::FileSystem::handle), and lets a spare thread serve other requests
/// meanwhile. Costs a few microseconds; outside of serving threads it just runs `f`.
///
/// Also for what starts threads: over io_uring a handler runs on its ring's processors only, which
/// a thread inherits from the thread that starts it; within `f` it may run on all again.
pub fn block_in_place<T>(f: impl FnOnce() -> T) -> T {
    let worker = CURRENT.get();
    if !worker.is_null() {
        // SAFETY: `WorkerSlot::with` sets the pointer to a reference that outlives the handler, and
        // takes it back after.
        unsafe { (*worker).leave() };
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

    /// The connection has ended: threads that wait for a slot give up.
    pub(crate) fn close(&self, end: End) {
        self.state.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }
}

impl WorkerSlot {
    /// Without a slot yet.
    pub(crate) fn new(slots: Arc<WorkerSlots>) -> WorkerSlot {
        WorkerSlot { slots, slot: Cell::new(None), left: None }
    }

    /// With a callback: when the thread has given a slot away it calls `left`.
    pub(crate) fn with_leaving(slots: Arc<WorkerSlots>, left: impl Fn() + 'static) -> WorkerSlot {
        WorkerSlot { slots, slot: Cell::new(None), left: Some(Box::new(left)) }
    }

    /// Acquires a slot, waiting for one if need be, and answers its number; `Err` when the
    /// connection has ended instead.
    #[inline]
    pub(crate) fn acquire(&self) -> Result<usize, End> {
        match self.slot.get() {
            Some(slot) => Ok(slot),
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Result<usize, End> {
        let mut state = self.slots.state.lock();
        loop {
            if let Some(end) = state.end {
                return Err(end);
            }
            if let Some(slot) = state.free.pop() {
                self.slot.set(Some(slot));
                return Ok(slot);
            }
            self.slots.changed.wait(&mut state);
        }
    }

    /// Whether it still has its slot.
    #[inline]
    pub(crate) fn is_acquired(&self) -> bool {
        self.slot.get().is_some()
    }

    /// How the connection has ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.slots.state.lock().end
    }

    /// Runs a handler that may give the slot away.
    #[inline]
    pub(crate) fn with(&self, handler: impl FnOnce()) {
        CURRENT.set(self);
        handler();
        CURRENT.set(std::ptr::null());
    }

    fn leave(&self) {
        if let Some(slot) = self.slot.take() {
            self.slots.state.lock().free.push(slot);
            self.slots.changed.notify_one();
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
    fn slots_change_hands() {
        let slots = WorkerSlots::new(1);
        let (first, second) = (WorkerSlot::new(slots.clone()), WorkerSlot::new(slots.clone()));
        first.acquire().unwrap();
        first.with(|| {
            assert_eq!(block_in_place(|| second.acquire()), Ok(0));
            assert!(!first.is_acquired());
            assert_eq!(block_in_place(|| 5), 5, "without a slot to give");
        });
        drop(second);
        first.acquire().unwrap();
        assert_eq!(block_in_place(|| 6), 6, "not in a handler");
        assert_eq!((first.is_acquired(), first.end()), (true, None));
        slots.close(End::Aborted);
        first.acquire().unwrap();
        assert_eq!(WorkerSlot::new(slots).acquire(), Err(End::Aborted));
    }

    #[test]
    fn callback_for_each_slot_given_away() {
        let left = std::rc::Rc::new(Cell::new(0));
        let count = left.clone();
        let worker =
            WorkerSlot::with_leaving(WorkerSlots::new(1), move || count.set(count.get() + 1));
        block_in_place(|| ());
        for round in 1..3 {
            worker.acquire().unwrap();
            worker.with(|| block_in_place(|| block_in_place(|| assert_eq!(left.get(), round))));
        }
        drop(worker);
        assert_eq!(left.get(), 2);
    }
}
