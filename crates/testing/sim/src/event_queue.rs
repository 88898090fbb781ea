//! The virtual clock and what is planned to happen on it: what every kind of run has in common.
//!
//! Events happen one at a time, in the order of their times; equal times in the order in which they
//! were planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kestrel_engine::Engine;
use kestrel_types::clock::{ManualClock, Nanos, SECOND};
use kestrel_types::ids::InodeId;

use crate::check;
use crate::history::History;
use crate::linear::{self, Linearity};
use crate::network::MS;
use crate::run::{Failure, RunStats};

/// An event and its time; ordered by time, then by number.
struct Planned<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// See the module's header.
pub(crate) struct EventQueue<E> {
    /// Virtual time since the beginning.
    pub now: Nanos,
    /// The wall clock of the world.
    pub clock: Arc<ManualClock>,
    /// Why the run has failed, if it has.
    pub failure: Option<Failure>,
    events: BinaryHeap<Reverse<Planned<E>>>,
    numbers: u64,
    trace: bool,
}

impl<E> EventQueue<E> {
    /// Nothing is planned yet. `trace`: say what happens.
    pub fn new(trace: bool) -> Self {
        let clock = Arc::new(ManualClock::new(1_000_000 * SECOND));
        Self { now: 0, clock, failure: None, events: BinaryHeap::new(), numbers: 0, trace }
    }

    /// The next event up to `until`; it is its time then.
    fn next(&mut self, until: Nanos) -> Option<E> {
        self.events.peek().filter(|Reverse(next)| next.at <= until)?;
        let Reverse(Planned { at, event, .. }) = self.events.pop()?;
        self.clock.advance(at - self.now);
        self.now = at;
        Some(event)
    }
}

/// A run: it has an event queue and executes its events.
pub(crate) trait Scene: Sized {
    type Event;

    fn queue(&self) -> &EventQueue<Self::Event>;
    fn queue_mut(&mut self) -> &mut EventQueue<Self::Event>;

    /// An event happens.
    fn happen(&mut self, event: Self::Event);

    fn say(&self, what: impl FnOnce() -> String) {
        let queue = self.queue();
        if queue.trace {
            println!("{:>12.3} ms  {}", queue.now as f64 / MS as f64, what());
        }
    }

    fn fail(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(|| format!("FAILURE: {why}"));
        self.queue_mut().failure.get_or_insert(Failure(why));
    }

    fn plan_at(&mut self, at: Nanos, event: Self::Event) {
        let queue = self.queue_mut();
        queue.numbers += 1;
        queue.events.push(Reverse(Planned { at: at.max(queue.now), number: queue.numbers, event }));
    }

    fn plan_in(&mut self, after: Nanos, event: Self::Event) {
        self.plan_at(self.queue().now.saturating_add(after), event);
    }

    /// Executes events until `until`, or until `done` is true.
    fn run_until(&mut self, until: Nanos, done: impl Fn(&Self) -> bool) {
        while self.queue().failure.is_none() && !done(self) {
            let Some(event) = self.queue_mut().next(until) else { break };
            self.happen(event);
        }
    }

    /// Sums a run up: its calls, and whether there is an order of it in which the model answers the
    /// same. `one_clock`: as of [`linear::check`].
    fn judge(&mut self, history: &History, one_clock: bool, stats: RunStats) -> RunStats {
        let records = &history.records;
        let unheard = records.iter().filter(|record| record.answered.is_none()).count();
        let mut stats = RunStats { calls: records.len(), unheard, time: self.queue().now, ..stats };
        if self.queue().failure.is_none() {
            match linear::check(records, one_clock) {
                Linearity::Linearizable => stats.undecided = false,
                Linearity::Undecided => stats.undecided = true,
                Linearity::Violated(why) => self.fail(format!("not linearizable: {why}")),
            }
        }
        stats
    }

    /// The invariants of a volume, over its raw rows; what was found if they hold.
    fn check_volume(&mut self, engine: &dyn Engine) -> Option<check::Found> {
        let none: &dyn Fn(InodeId) -> bool = &|_| false;
        let checked = catch_unwind(AssertUnwindSafe(|| check::check(engine, none)));
        match checked {
            Ok(found) => Some(found),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| {
                    panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned())
                });
                self.fail(format!("the volume is damaged: {why}"));
                None
            }
        }
    }
}
