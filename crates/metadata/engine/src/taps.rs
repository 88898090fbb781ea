//! Copies of every committed batch for callers of [`super::Engine::tap`].

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use parking_lot::Mutex;

use super::{Mutation, Tap};

/// The taps of one engine.
#[derive(Default)]
pub(crate) struct Taps {
    count: AtomicUsize,
    taps: Mutex<(u64, Vec<(u64, Tap)>)>,
}

impl Taps {
    /// Adds a tap and returns its number.
    pub fn add(&self, tap: Tap) -> u64 {
        let mut taps = self.taps.lock();
        taps.0 += 1;
        let number = taps.0;
        taps.1.push((number, tap));
        self.count.store(taps.1.len(), Ordering::SeqCst);
        // Pairs with the fence in `send`: a batch that did not see this tap is found by what the
        // caller reads next.
        fence(Ordering::SeqCst);
        number
    }

    /// Removes a tap.
    pub fn remove(&self, number: u64) {
        let mut taps = self.taps.lock();
        taps.1.retain(|(other, _)| *other != number);
        self.count.store(taps.1.len(), Ordering::SeqCst);
    }

    /// Shows a batch to every tap. The caller serialises calls in commit order.
    pub fn send(&self, mutations: &[Mutation]) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for (_, tap) in &mut self.taps.lock().1 {
            tap(mutations);
        }
    }
}
