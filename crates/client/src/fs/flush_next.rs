//! One flush of a file after the other, for callers that ask while it is being flushed.
//!
//! An embedded volume commits on the stack of the thread that starts a flush. If the next flush of
//! the file began there as well, the stack would hold as many flushes as there are threads that ask
//! at the right moment: it begins when that one has left the stack.

use std::cell::RefCell;
use std::sync::Arc;

use super::Fs;
use crate::file::OpenFile;

/// Files to flush again.
type Due = Vec<(Arc<Fs>, Arc<OpenFile>)>;

thread_local! {
    /// While a file is being flushed again on this thread's stack: those for which that is due.
    static DUE: RefCell<Option<Due>> = const { RefCell::new(None) };
}

impl Fs {
    /// Flushes a file again if somebody waits for that, or commits what is stored of it if that is
    /// worth it. Called without its lock.
    pub(super) fn flush_next(self: &Arc<Self>, file: &Arc<OpenFile>) {
        let mut next = (self.clone(), file.clone());
        if DUE.with_borrow_mut(|due| due.as_mut().map(|due| due.push(next.clone())).is_some()) {
            return;
        }
        DUE.set(Some(Vec::new()));
        loop {
            let (fs, file) = next;
            let state = file.lock();
            if !state.flushing && !state.waiters.is_empty() {
                fs.start_flush(&file, state);
            } else if !state.flushing && fs.is_worth_a_commit(&state) {
                fs.commit_early(&file, state);
            }
            match DUE.with_borrow_mut(|due| due.as_mut().and_then(Vec::pop)) {
                Some(due) => next = due,
                None => return DUE.set(None),
            }
        }
    }
}
