//! Threads that must not wait long: one that has the member of a node waits for rows while
//! everybody waits for the member, its clock included.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static HURRIED: Cell<bool> = const { Cell::new(false) };
}

/// As long as this is there, reads of this thread in a store that lies elsewhere fail soon if that
/// does not answer, and may be tried again.
pub struct LatencyHint {
    before: bool,
    /// It is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl LatencyHint {
    /// Begins.
    #[inline]
    pub fn begin() -> Self {
        Self { before: HURRIED.replace(true), _not_send: PhantomData }
    }

    /// Whether this thread is in a hurry.
    #[inline]
    pub fn is_on() -> bool {
        HURRIED.get()
    }
}

impl Drop for LatencyHint {
    #[inline]
    fn drop(&mut self) {
        HURRIED.set(self.before);
    }
}
