//! Threads that bring answers of servers: what they call back must not wait.

use std::cell::Cell;

thread_local! {
    /// This thread is calling back with an answer of a server.
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread brings an answer from a server. It is the one that reads them all then, or
/// the one that ends calls at their deadline, and must wait for neither a server nor a disk.
pub fn is_answering() -> bool {
    ANSWERING.get()
}

/// Calls back with an answer of a server.
pub(crate) fn answering(call: impl FnOnce()) {
    let before = ANSWERING.replace(true);
    call();
    ANSWERING.set(before);
}
