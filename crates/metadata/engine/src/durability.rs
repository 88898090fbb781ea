//! Callbacks that wait for a log position to become durable.

use std::sync::atomic::{AtomicU64, Ordering};

use kestrel_types::ids::Position;
use parking_lot::Mutex;

use super::{EngineError, OnDurable};

/// Callbacks that wait for a position, called together after the sync that covers them (group
/// commit).
///
/// Invariant: a callback is called exactly once, never while a lock of this module is held.
#[derive(Default)]
pub(crate) struct Waiters {
    durable: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failed: Option<EngineError>,
    waiting: Vec<(Position, OnDurable)>,
}

impl Waiters {
    /// Newest durable position.
    pub fn durable(&self) -> Position {
        self.durable.load(Ordering::Acquire)
    }

    /// Queues `done` for `position`, or calls it now. True if it was queued, so that the caller
    /// requests a sync.
    pub fn wait(&self, position: Position, done: OnDurable) -> bool {
        let mut state = self.state.lock();
        let result = match &state.failed {
            _ if position <= self.durable() => Ok(()),
            Some(why) => Err(why.clone()),
            None => {
                state.waiting.push((position, done));
                return true;
            }
        };
        drop(state);
        done(result);
        false
    }

    /// Everything up to `position` is durable.
    pub fn advance(&self, position: Position) {
        let mut state = self.state.lock();
        let durable = self.durable.fetch_max(position, Ordering::AcqRel).max(position);
        let ready: Vec<_> =
            state.waiting.extract_if(.., |(wanted, _)| *wanted <= durable).collect();
        drop(state);
        for (_, done) in ready {
            done(Ok(()));
        }
    }

    /// Nothing more will ever become durable.
    pub fn fail(&self, why: EngineError) {
        let mut state = self.state.lock();
        let why = state.failed.get_or_insert(why).clone();
        let lost = std::mem::take(&mut state.waiting);
        drop(state);
        for (_, done) in lost {
            done(Err(why.clone()));
        }
    }
}
