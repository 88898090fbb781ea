//! Threads that want the same head at the same time read it once.

use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use super::heads::ObjectCoding;
use crate::error::Result;

/// A head that is being read.
#[derive(Default)]
struct Flight {
    state: Mutex<State>,
    finished: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Running,
    /// What everybody gets. None if the thread that read it died of it: everybody for himself,
    /// then.
    Finished(Option<Result<ObjectCoding>>),
}

/// Heads that are being read now: at most one for each thread that reads.
#[derive(Default)]
pub(super) struct Flights {
    running: Mutex<FxHashMap<ObjectId, Arc<Flight>>>,
}

/// The right to read a head, and the duty to say what came of it.
pub(super) struct FlightLeader<'a> {
    flights: &'a Flights,
    object: ObjectId,
    flight: Arc<Flight>,
    result: Option<Result<ObjectCoding>>,
}

/// The thread that reads the head.
pub(super) enum FlightRole<'a> {
    /// The caller.
    Leader(FlightLeader<'a>),
    /// Another thread did meanwhile.
    Joiner(Result<ObjectCoding>),
}

impl Flights {
    /// Waits for the thread that reads this head, if there is one; otherwise the caller does. Waits
    /// no longer than that thread waits for the store, and it began before.
    pub fn lead_or_join(&self, object: ObjectId) -> FlightRole<'_> {
        loop {
            let mut running = self.running.lock();
            let Some(flight) = running.get(&object).cloned() else {
                let flight = Arc::new(Flight::default());
                running.insert(object, flight.clone());
                return FlightRole::Leader(FlightLeader {
                    flights: self,
                    object,
                    flight,
                    result: None,
                });
            };
            drop(running);
            let mut state = flight.state.lock();
            while matches!(*state, State::Running) {
                flight.finished.wait(&mut state);
            }
            if let State::Finished(Some(result)) = &*state {
                return FlightRole::Joiner(result.clone());
            }
        }
    }
}

impl FlightLeader<'_> {
    /// Every waiting thread gets this.
    pub fn finish(mut self, result: Result<ObjectCoding>) {
        self.result = Some(result);
    }
}

impl Drop for FlightLeader<'_> {
    fn drop(&mut self) {
        self.flights.running.lock().remove(&self.object);
        *self.flight.state.lock() = State::Finished(self.result.take());
        self.flight.finished.notify_all();
    }
}
