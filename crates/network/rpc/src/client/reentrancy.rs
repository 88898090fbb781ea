//! Which threads run completions at present: the calls submitted on them are not written at once.

use std::cell::Cell;
use std::ptr;

use super::Shared;

/// Stands for a connection that no thread has.
static NOBODY: u8 = 0;

/// Has the present thread, for as long as it lives, never wait until there is room to write: it
/// submits calls on behalf of other threads.
pub fn ask_for_others() {
    ON.set(ptr::from_ref(&NOBODY).cast());
}

thread_local! {
    /// The connection that this thread runs completions of.
    static ON: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// A connection, from the point of view of the present thread.
pub(super) struct ReentrancyGuard(*const Shared);

impl ReentrancyGuard {
    pub fn of(shared: &Shared) -> Self {
        Self(ptr::from_ref(shared))
    }

    /// Whether this thread runs the connection's completions.
    pub fn is_on(&self) -> bool {
        ON.get() == self.0
    }

    /// Whether this thread runs completions of another connection: it must not wait here until
    /// there is room to write, since the node there waits for it, and that node may be the one that
    /// makes room.
    pub fn is_elsewhere(&self) -> bool {
        !ON.get().is_null() && !self.is_on()
    }

    /// Marks the present thread, which does nothing else as long as it lives.
    pub fn take(&self) {
        ON.set(self.0);
    }
}
