//! When to stop using a cache disk, and when to try it again: a state machine without I/O, which
//! gets the time from its caller.
//!
//! A disk that fails several times in a row, takes too long on average, or does not answer at all
//! is put out of service. It is tried again after a second, with no reader waiting for it; each
//! time that fails the next trial is twice as far away, up to five minutes. A disk that works for a
//! minute after a trial has its record cleared.

use kestrel_types::clock::{Nanos, SECOND};

/// Failures in a row that put a disk out of service.
const FAILURES_MAX: u32 = 3;

/// Time until the first trial, and the most it grows to.
const PAUSE_MIN: Nanos = SECOND;
const PAUSE_MAX: Nanos = 300 * SECOND;

/// In service for so long, a disk is forgiven what was before.
const FORGIVEN_AFTER: Nanos = 60 * SECOND;

/// Weight of a new sample in the average: one in so many.
const SAMPLE_SHARE: Nanos = 8;

/// Samples before the average is believed.
const SAMPLES_MIN: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InService { since: Nanos },
    Out { until: Nanos },
}

/// The record of one disk.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: State,
    /// The pause of the next fall.
    pause: Nanos,
    failures: u32,
    /// Exponentially weighted moving average of how long calls take.
    average: Nanos,
    samples: u32,
    slow: Nanos,
}

impl Breaker {
    /// A disk in service, too slow if calls take longer than `slow` on average.
    pub fn new(slow: Nanos, now: Nanos) -> Self {
        let state = State::InService { since: now };
        Self { state, pause: PAUSE_MIN, failures: 0, average: 0, samples: 0, slow }
    }

    /// Whether the disk may be used.
    pub fn is_in_service(&self) -> bool {
        matches!(self.state, State::InService { .. })
    }

    /// Whether the disk is out of service and to be tried now.
    pub fn is_trial_due(&self, now: Nanos) -> bool {
        // A clock that was set back must not keep the disk out for ever.
        matches!(self.state, State::Out { until } if now >= until || until - now > PAUSE_MAX)
    }

    /// A call took this long and worked.
    pub fn worked(&mut self, took: Nanos, now: Nanos) {
        let State::InService { since } = self.state else { return };
        self.failures = 0;
        self.average += (took - self.average) / SAMPLE_SHARE;
        self.samples = self.samples.saturating_add(1);
        if self.samples >= SAMPLES_MIN && self.average > self.slow {
            self.fall(now);
        } else if now - since > FORGIVEN_AFTER {
            self.pause = PAUSE_MIN;
        }
    }

    /// A call failed.
    pub fn failed(&mut self, now: Nanos) {
        self.failures += 1;
        if self.is_in_service() && self.failures >= FAILURES_MAX {
            self.fall(now);
        }
    }

    /// A call was not answered in time.
    pub fn unanswered(&mut self, now: Nanos) {
        if self.is_in_service() {
            self.fall(now);
        }
    }

    /// How a trial ended.
    pub fn tried(&mut self, worked: bool, now: Nanos) {
        if worked {
            self.state = State::InService { since: now };
            (self.failures, self.average, self.samples) = (0, 0, 0);
        } else {
            self.fall(now);
        }
    }

    fn fall(&mut self, now: Nanos) {
        self.state = State::Out { until: now + self.pause };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = SECOND / 1000;

    #[test]
    fn failures_in_a_row_open_it_and_a_trial_closes_it() {
        let mut breaker = Breaker::new(100 * MS, 0);
        for now in 0..10 {
            breaker.failed(now);
            breaker.failed(now);
            breaker.worked(MS, now);
        }
        assert!(breaker.is_in_service());
        (0..3).for_each(|_| breaker.failed(0));
        assert!(!breaker.is_in_service() && !breaker.is_trial_due(PAUSE_MIN - 1));
        assert!(breaker.is_trial_due(PAUSE_MIN));
        breaker.tried(true, PAUSE_MIN);
        assert!(breaker.is_in_service() && !breaker.is_trial_due(i64::MAX));
    }

    #[test]
    fn pauses_double_and_are_forgiven() {
        let mut breaker = Breaker::new(100 * MS, 0);
        breaker.unanswered(0);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let begun = now;
            while !breaker.is_trial_due(now) {
                now += SECOND;
            }
            pauses.push((now - begun) / SECOND);
            breaker.tried(false, now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        now += PAUSE_MAX;
        breaker.tried(true, now);
        breaker.worked(MS, now + FORGIVEN_AFTER + 1);
        breaker.unanswered(now + FORGIVEN_AFTER + 1);
        assert!(breaker.is_trial_due(now + FORGIVEN_AFTER + 1 + PAUSE_MIN));
    }

    /// A slow disk is taken out of service, and a single slow call does not matter.
    #[test]
    fn slow_disk_and_single_slow_call() {
        let mut breaker = Breaker::new(100 * MS, 0);
        for now in 0..200 {
            breaker.worked(if now % 50 == 0 { 300 * MS } else { MS }, now);
        }
        assert!(breaker.is_in_service());
        for now in 200..240 {
            breaker.worked(200 * MS, now);
        }
        assert!(!breaker.is_in_service());
    }

    #[test]
    fn a_clock_set_back_does_not_keep_it_out() {
        let mut breaker = Breaker::new(100 * MS, 1_000_000 * SECOND);
        breaker.unanswered(1_000_000 * SECOND);
        assert!(!breaker.is_trial_due(1_000_000 * SECOND));
        assert!(breaker.is_trial_due(5 * SECOND));
    }
}
