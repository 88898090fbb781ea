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
use crate::linear::{self, Verdict};
use crate::network::MS;
use crate::world::{Failure, RunStats};

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

/// A run: whatever has an agenda and knows what its events do.
pub(crate) trait Scene: Sized {
    type Event;

    fn agenda(&self) -> &EventQueue<Self::Event>;
    fn agenda_mut(&mut self) -> &mut EventQueue<Self::Event>;

    /// An event happens.
    fn happen(&mut self, event: Self::Event);

    fn say(&self, what: impl FnOnce() -> String) {
        let agenda = self.agenda();
        if agenda.trace {
            println!("{:>12.3} ms  {}", agenda.now as f64 / MS as f64, what());
        }
    }

    fn fail(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(|| format!("FAILURE: {why}"));
        self.agenda_mut().failure.get_or_insert(Failure(why));
    }

    fn plan_at(&mut self, at: Nanos, event: Self::Event) {
        let agenda = self.agenda_mut();
        agenda.numbers += 1;
        agenda.events.push(Reverse(Planned {
            at: at.max(agenda.now),
            number: agenda.numbers,
            event,
        }));
    }

    fn plan_in(&mut self, after: Nanos, event: Self::Event) {
        self.plan_at(self.agenda().now.saturating_add(after), event);
    }

    /// Lets everything happen until `until`, or until `done` says so.
    fn run_until(&mut self, until: Nanos, done: impl Fn(&Self) -> bool) {
        while self.agenda().failure.is_none() && !done(self) {
            let Some(event) = self.agenda_mut().next(until) else { break };
            self.happen(event);
        }
    }

    /// Sums a run up: what was asked, and whether there is an order of it in which the model
    /// answers the same.
    fn judge(&mut self, history: &History, tally: RunStats) -> RunStats {
        let records = &history.records;
        let unheard = records.iter().filter(|record| record.heard.is_none()).count();
        let mut tally =
            RunStats { calls: records.len(), unheard, time: self.agenda().now, ..tally };
        if self.agenda().failure.is_none() {
            match linear::check(records) {
                Verdict::Linearizable => tally.undecided = false,
                Verdict::Undecided => tally.undecided = true,
                Verdict::Violated(why) => self.fail(format!("not linearizable: {why}")),
            }
        }
        tally
    }

    /// The invariants of a volume, over its raw rows.
    fn check_volume(&mut self, engine: &dyn Engine) {
        let none: &dyn Fn(InodeId) -> bool = &|_| false;
        let checked = catch_unwind(AssertUnwindSafe(|| check::check(engine, none)));
        if let Err(panic) = checked {
            let why = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| {
                panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned())
            });
            self.fail(format!("the volume is damaged: {why}"));
        }
    }
}
