//! Ending the threads of a test, also when it fails.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag that threads poll when it is dropped. A test makes one before it starts threads that
/// run until they are told to stop: an assertion that fails drops it, so that a scope does not wait
/// for those threads for ever.
pub struct StopOnDrop<'a>(&'a AtomicBool);

impl<'a> StopOnDrop<'a> {
    /// Will set `flag`, which the threads read.
    pub fn new(flag: &'a AtomicBool) -> Self {
        Self(flag)
    }
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failed assertion inside a scope ends the scope's threads: without the guard this test
    /// would not end.
    #[test]
    fn scope_ends_after_panic() {
        let stop = AtomicBool::new(false);
        let result = std::panic::catch_unwind(|| {
            std::thread::scope(|scope| {
                let _stopper = StopOnDrop::new(&stop);
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
                panic!("an assertion fails");
            });
        });
        assert!(result.is_err());
    }
}
