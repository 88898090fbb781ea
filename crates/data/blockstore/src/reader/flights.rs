//! Frames on their way from the store, so that no other reader fetches them a second time
//! meanwhile.
//!
//! A reader of frames that other readers are fetching waits until the fetch has ended, then finds
//! them in the cache. If the store failed, all waiting readers fail with it: trying again one after
//! the other would make the last one wait for as many deadlines as there are readers. Damage is not
//! shared: each reader verifies for itself.

use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use kestrel_types::range::Range;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};

/// The range a frame belongs to: object and offset in it.
type RangeId = (ObjectId, u32);

/// One fetch: frames `first..=last` of a range.
struct Fetch {
    first: u32,
    last: u32,
    /// How it ended, once it has.
    ended: Mutex<Option<Result<()>>>,
    finished: Condvar,
}

/// The fetches under way.
#[derive(Default)]
pub(super) struct Flights(Mutex<FxHashMap<RangeId, Vec<Arc<Fetch>>>>);

/// The right to fetch some frames. Dropped without [`Flight::finish`], it ends as if nothing had
/// happened.
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    range_id: RangeId,
    fetch: Arc<Fetch>,
    outcome: Result<()>,
}

impl Flights {
    /// Waits until no reader fetches any of these frames, then lets the caller fetch them.
    ///
    /// # Errors
    /// Why another fetch of some of them failed.
    pub fn begin(&self, range: Range, (first, last): (u32, u32)) -> Result<Flight<'_>> {
        let range_id = (range.object, range.offset);
        loop {
            let mut all = self.0.lock();
            let there = all.entry(range_id).or_default();
            let Some(other) = there.iter().find(|other| other.first <= last && first <= other.last)
            else {
                let fetch = Arc::new(Fetch {
                    first,
                    last,
                    ended: Mutex::new(None),
                    finished: Condvar::new(),
                });
                there.push(fetch.clone());
                return Ok(Flight { flights: self, range_id, fetch, outcome: Ok(()) });
            };
            let other = Arc::clone(other);
            drop(all);
            let mut ended = other.ended.lock();
            while ended.is_none() {
                other.finished.wait(&mut ended);
            }
            if let Some(Err(error)) = &*ended {
                return Err(error.clone());
            }
        }
    }
}

impl Flight<'_> {
    /// Ends it; waiting readers fail too if the store did.
    pub fn finish<T>(mut self, result: &Result<T>) {
        self.outcome = match result {
            Err(error) if !matches!(error, Error::Corrupt { .. }) => Err(error.clone()),
            _ => Ok(()),
        };
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut all = self.flights.0.lock();
        if let Some(there) = all.get_mut(&self.range_id) {
            there.retain(|fetch| !Arc::ptr_eq(fetch, &self.fetch));
            if there.is_empty() {
                all.remove(&self.range_id);
            }
        }
        drop(all);
        *self.fetch.ended.lock() = Some(std::mem::replace(&mut self.outcome, Ok(())));
        self.fetch.finished.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const RANGE: Range = Range { object: 1, offset: 48, len: 1 << 22 };

    /// Fetches of neighbouring frames run at the same time, and fetches of the same frames one
    /// after the other.
    #[test]
    fn single_flight_by_frames() {
        let flights = Flights::default();
        let (under_way, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let side = flights.begin(RANGE, (10, 20)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (flights, under_way, most) = (&flights, &under_way, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let flight = flights.begin(RANGE, (thread % 4, 5)).unwrap();
                        most.fetch_max(
                            under_way.fetch_add(1, Ordering::SeqCst) + 1,
                            Ordering::SeqCst,
                        );
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        flight.finish(&Ok(()));
                    }
                });
            }
        });
        drop(side);
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert!(flights.0.lock().is_empty());
    }

    #[test]
    fn a_failure_of_the_store_is_everybodys_damage_is_not() {
        let flights = Flights::default();
        let dead = Err(Error::Deadline { during: "a test" });
        let damaged = Err(Error::Corrupt { object: 1, offset: 0, what: "a test" });
        for (outcome, fails) in [(dead, true), (damaged, false)] {
            let outcome: Result<()> = outcome;
            let flight = flights.begin(RANGE, (0, 3)).unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| flights.begin(RANGE, (3, 9)).is_err());
                // Late or not, the other one learns of the end: it may only come after it.
                std::thread::sleep(Duration::from_millis(30));
                let late = waits.is_finished();
                flight.finish(&outcome);
                assert!(!late);
                assert_eq!(waits.join().unwrap(), fails);
            });
        }
    }
}
