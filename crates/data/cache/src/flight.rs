//! One request for what several readers want: single flight, and neighbours gathered.
//!
//! **Rules.** A reader that misses pages looks at the object's flights under its lock. It joins
//! those that bring some of its pages already. For the others it begins a flight as its leader, and
//! makes the request on its own thread. At most [`GETS_MAX`] flights of an object are under way at
//! a time; the next one waits, and a reader of pages near those of a waiting flight is added to it.
//! So a lone reader never waits, and many readers of one pack share requests the more the slower
//! the store is, without a timer.
//!
//! **No deadlock.** A thread first makes the requests of its own flights, one after another, and
//! only then waits for flights of others; a waiting flight starts when one that is under way ends.
//! A thread that dies ends its flights as failed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kestrel_blockstore::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::page::{self, PAGE_BYTES};

/// Requests under way for one object before those that come are gathered.
pub(crate) const GETS_MAX: usize = 4;

/// Pages between two wanted ones that are fetched along rather than making two requests: 256 KiB.
pub(crate) const GAP_PAGES: u32 = (256 * 1024 / PAGE_BYTES) as u32;

/// Most pages that gathering makes one request for: 4 MiB.
pub(crate) const GATHER_PAGES_MAX: u32 = (4 * 1024 * 1024 / PAGE_BYTES) as u32;

/// Bytes of an object that came from the store.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The pages that were requested.
    pub requested: Range<u32>,
    /// Their bytes; fewer if the object ends there.
    pub bytes: Vec<u8>,
}

impl Fetched {
    /// The data of a page, as far as the object goes; none if it was not requested or lies behind
    /// the object's end.
    pub fn page(&self, page: u32) -> Option<&[u8]> {
        let at = page::page_at(page.checked_sub(self.requested.start)?) as usize;
        let end = self.bytes.len().min(at + PAGE_BYTES as usize);
        self.bytes.get(at..end)
    }

    /// The pages that have data.
    pub fn pages(&self) -> Range<u32> {
        self.requested.start
            ..self.requested.start + (self.bytes.len() as u64).div_ceil(PAGE_BYTES) as u32
    }

    /// Bytes of data of a page.
    pub fn page_len(&self, page: u32) -> usize {
        self.page(page).map_or(0, <[u8]>::len)
    }

    /// Whether the object ends within this page.
    pub fn is_short(&self, page: u32) -> bool {
        self.page_len(page) < PAGE_BYTES as usize
    }
}

#[derive(Debug, Clone)]
enum Phase {
    /// Waits for its turn.
    Waiting,
    /// The request may be made, or is.
    Running,
    Finished(Arc<Fetched>),
    Failed(Error),
}

/// What became of the bytes on the cache disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Written,
    Dropped,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Flight {
    phase: Mutex<(Phase, Option<Kept>)>,
    changed: Condvar,
    /// Its bytes turned out to be wrong: they must be neither served nor stay on the cache disk.
    stale: AtomicBool,
}

impl Flight {
    fn new(is_waiting: bool) -> Arc<Self> {
        let phase = if is_waiting { Phase::Waiting } else { Phase::Running };
        let stale = AtomicBool::new(false);
        Arc::new(Self { phase: Mutex::new((phase, None)), changed: Condvar::new(), stale })
    }

    /// Waits until the request may be made.
    pub fn wait_for_turn(&self) {
        let mut phase = self.phase.lock();
        while matches!(phase.0, Phase::Waiting) {
            self.changed.wait(&mut phase);
        }
    }

    /// Waits for what it brings.
    ///
    /// # Errors
    /// That of the request.
    pub fn wait(&self) -> Result<Arc<Fetched>> {
        let mut phase = self.phase.lock();
        loop {
            match &phase.0 {
                Phase::Waiting | Phase::Running => self.changed.wait(&mut phase),
                Phase::Finished(fetched) => return Ok(Arc::clone(fetched)),
                Phase::Failed(error) => return Err(error.clone()),
            }
        }
    }

    /// What it brought, if it is here.
    pub fn finished(&self) -> Option<Arc<Fetched>> {
        match &self.phase.lock().0 {
            Phase::Finished(fetched) => Some(Arc::clone(fetched)),
            _ => None,
        }
    }

    /// Waits until its bytes are on the cache disk or it is clear that they will not be; none if
    /// that takes too long.
    pub fn wait_kept(&self, until: Instant) -> Option<Kept> {
        let mut phase = self.phase.lock();
        while phase.1.is_none() && !matches!(phase.0, Phase::Failed(_)) {
            if self.changed.wait_until(&mut phase, until).timed_out() {
                break;
            }
        }
        phase.1
    }

    fn change(&self, change: impl FnOnce(&mut (Phase, Option<Kept>))) {
        change(&mut self.phase.lock());
        self.changed.notify_all();
    }

    /// Wakes its waiting readers, with the outcome.
    pub fn kept(&self, kept: Kept) {
        self.change(|phase| phase.1 = Some(kept));
    }

    /// Its bytes are wrong.
    pub fn mark_stale(&self) {
        self.stale.store(true, Ordering::SeqCst);
    }

    /// Whether its bytes are wrong.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::SeqCst)
    }
}

/// A flight of an object, and the pages it brings.
#[derive(Debug)]
struct PageFlight {
    pages: Range<u32>,
    flight: Arc<Flight>,
    is_waiting: bool,
}

/// The flights of one object: under way, waiting, and finished with bytes that are not on the cache
/// disk yet.
#[derive(Debug, Default)]
pub(crate) struct ObjectFlights {
    flights: Vec<PageFlight>,
    running: usize,
}

impl ObjectFlights {
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// The flight that brings, or has brought, a page.
    pub fn of(&self, page: u32) -> Option<&Arc<Flight>> {
        let serves = |entry: &&PageFlight| entry.pages.contains(&page) && !entry.flight.is_stale();
        self.flights.iter().find(serves).map(|entry| &entry.flight)
    }

    /// Adds pages to a flight that waits and brings pages near them.
    pub fn gather(&mut self, pages: &Range<u32>) -> Option<Arc<Flight>> {
        let entry = self.flights.iter_mut().filter(|entry| entry.is_waiting).find(|entry| {
            let (start, end) = (entry.pages.start.min(pages.start), entry.pages.end.max(pages.end));
            let is_near = pages.start <= entry.pages.end + GAP_PAGES
                && entry.pages.start <= pages.end + GAP_PAGES;
            is_near && end - start <= GATHER_PAGES_MAX
        })?;
        entry.pages = entry.pages.start.min(pages.start)..entry.pages.end.max(pages.end);
        Some(Arc::clone(&entry.flight))
    }

    /// Adds a flight. The caller must wait for its turn, request its [`ObjectFlights::pages`] and
    /// [`ObjectFlights::finish`] it.
    pub fn take(&mut self, pages: Range<u32>) -> Arc<Flight> {
        let is_waiting = self.running >= GETS_MAX;
        self.running += usize::from(!is_waiting);
        let flight = Flight::new(is_waiting);
        self.flights.push(PageFlight { pages, flight: Arc::clone(&flight), is_waiting });
        flight
    }

    /// The pages of a flight. They may grow until its turn has come.
    pub fn pages(&self, flight: &Arc<Flight>) -> Range<u32> {
        let entry = self.flights.iter().find(|entry| Arc::ptr_eq(&entry.flight, flight));
        entry.map_or(0..0, |entry| entry.pages.clone())
    }

    /// Notes the end of a request and starts the next flight. The bytes stay until
    /// [`ObjectFlights::leave`].
    pub fn finish(&mut self, flight: &Arc<Flight>, result: Result<Arc<Fetched>>) {
        let Some(at) = self.flights.iter().position(|entry| Arc::ptr_eq(&entry.flight, flight))
        else {
            return;
        };
        if self.flights[at].is_waiting {
            // Given up before its turn.
            self.flights[at].is_waiting = false;
        } else {
            self.running -= 1;
        }
        let phase = match result {
            Ok(fetched) => Phase::Finished(fetched),
            Err(error) => {
                self.flights.remove(at);
                Phase::Failed(error)
            }
        };
        flight.change(|old| old.0 = phase);
        if self.running < GETS_MAX
            && let Some(next) = self.flights.iter_mut().find(|entry| entry.is_waiting)
        {
            next.is_waiting = false;
            self.running += 1;
            next.flight.change(|old| old.0 = Phase::Running);
        }
    }

    /// Removes a finished flight: its bytes are on the cache disk, or will not be.
    pub fn leave(&mut self, flight: &Arc<Flight>) {
        self.flights.retain(|entry| !Arc::ptr_eq(&entry.flight, flight));
    }

    /// Marks flights that bring any of these pages as wrong.
    pub fn mark_stale(&self, pages: &Range<u32>) {
        let overlaps =
            |entry: &&PageFlight| entry.pages.start < pages.end && pages.start < entry.pages.end;
        self.flights.iter().filter(overlaps).for_each(|entry| entry.flight.mark_stale());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages_of(flights: &ObjectFlights, flight: &Arc<Flight>) -> Range<u32> {
        flights.pages(flight)
    }

    fn bytes(pages: Range<u32>) -> Result<Arc<Fetched>> {
        let bytes = vec![1; pages.len() * PAGE_BYTES as usize];
        Ok(Arc::new(Fetched { requested: pages, bytes }))
    }

    #[test]
    fn few_fly_the_rest_gathers_and_is_called_in_turn() {
        let mut flights = ObjectFlights::default();
        let running: Vec<_> = (0..4).map(|i| flights.take(i * 100..i * 100 + 2)).collect();
        let waiting = flights.take(1000..1002);
        assert!(flights.gather(&(50..52)).is_none());
        assert!(flights.gather(&(1005..1007)).is_some_and(|flight| Arc::ptr_eq(&flight, &waiting)));
        assert!(flights.gather(&(990..991)).is_none());
        assert!(flights.gather(&(1000..1000 + GATHER_PAGES_MAX + 1)).is_none());
        assert_eq!(pages_of(&flights, &waiting), 1000..1007);
        assert!(flights.of(1006).is_some() && flights.of(1007).is_none());
        flights.finish(&running[0], bytes(0..2));
        waiting.wait_for_turn();
        assert!(flights.gather(&(1007..1008)).is_none());
        assert_eq!(running[0].wait().unwrap().page(1).map(<[u8]>::len), Some(PAGE_BYTES as usize));
        assert!(flights.of(0).is_some());
        flights.leave(&running[0]);
        assert!(flights.of(0).is_none());
        flights.finish(&waiting, Err(Error::NotFound { object: 1 }));
        assert!(waiting.wait().is_err() && flights.of(1000).is_none());
    }

    #[test]
    fn a_flight_given_up_before_its_turn_keeps_the_count() {
        let mut flights = ObjectFlights::default();
        let running: Vec<_> = (0..4).map(|i| flights.take(i * 100..i * 100 + 2)).collect();
        let (first, second) = (flights.take(1000..1001), flights.take(2000..2001));
        flights.finish(&first, Err(Error::NotFound { object: 1 }));
        assert!(second.finished().is_none() && flights.running == 4);
        running
            .iter()
            .for_each(|flight| flights.finish(flight, Err(Error::NotFound { object: 1 })));
        second.wait_for_turn();
        flights.finish(&second, bytes(2000..2001));
        assert_eq!(flights.running, 0);
    }

    #[test]
    fn stale_flights_serve_nobody() {
        let mut flights = ObjectFlights::default();
        let flight = flights.take(10..20);
        flights.finish(&flight, bytes(10..20));
        flights.mark_stale(&(20..30));
        assert!(flights.of(12).is_some());
        flights.mark_stale(&(19..30));
        assert!(flights.of(12).is_none() && flight.is_stale());
    }

    #[test]
    fn a_short_answer_ends_the_object() {
        let fetched = Fetched { requested: 2..5, bytes: vec![7; PAGE_BYTES as usize + 10] };
        assert_eq!(fetched.pages(), 2..4);
        assert_eq!(fetched.page(3).map(<[u8]>::len), Some(10));
        assert_eq!((fetched.page(1), fetched.page(4)), (None, None));
        let fetched = Fetched { requested: 2..3, bytes: Vec::new() };
        assert_eq!((fetched.pages(), fetched.page(2).map(<[u8]>::len)), (2..2, Some(0)));
    }
}
