//! Time comes in through this trait, so that tests and the simulator decide what time it is.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A point in time or a duration in nanoseconds; points count from the Unix epoch and may lie
/// before it.
pub type Nanos = i64;

/// Nanoseconds in a second.
pub const SECOND: Nanos = 1_000_000_000;

/// Nanoseconds in a millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// Source of wall-clock time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn now(&self) -> Nanos;
}

/// The machine's real-time clock, at the kernel's tick resolution where that is cheaper.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one home of the wall clock")]
    fn now(&self) -> Nanos {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_nanos()).unwrap_or(i64::MAX),
        }
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn new(now: Nanos) -> Self {
        Self(AtomicI64::new(now))
    }

    /// Moves the clock forward by `by` nanoseconds.
    pub fn advance(&self, by: Nanos) {
        self.0.fetch_add(by, Ordering::SeqCst);
    }

    /// Puts the clock to `now`, be that before what it was.
    pub fn set(&self, now: Nanos) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::SeqCst)
    }
}

/// Bits of a timestamp that count changes within one millisecond-sized tick.
const LOGICAL_BITS: u32 = 20;

/// A hybrid logical clock (Kulkarni et al., 2014): close to wall time, strictly increasing, even
/// when the wall clock jumps back. A timestamp is `microseconds / 1.048576 << 20`-like: nanoseconds
/// with the low 20 bits as a counter.
#[derive(Debug, Default)]
pub struct HybridClock(AtomicU64);

impl HybridClock {
    /// A clock that will only issue timestamps above `last`, the newest one a volume has recorded.
    pub fn after(last: u64) -> Self {
        Self(AtomicU64::new(last))
    }

    /// Another node has issued this timestamp: the next one here is above it.
    pub fn observe(&self, seen: u64) {
        self.0.fetch_max(seen, Ordering::AcqRel);
    }

    /// The newest timestamp issued or observed.
    pub fn last(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The next timestamp, at or above `now` and above every one issued before.
    pub fn tick(&self, now: Nanos) -> u64 {
        let wall = (now.max(0) as u64) >> LOGICAL_BITS << LOGICAL_BITS;
        let mut last = self.0.load(Ordering::Relaxed);
        loop {
            let next = wall.max(last + 1);
            match self.0.compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(seen) => last = seen,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_clock_never_repeats_or_goes_back() {
        let clock = HybridClock::after(5);
        let a = clock.tick(10 * SECOND);
        let b = clock.tick(10 * SECOND);
        let c = clock.tick(3 * SECOND);
        assert!(a < b && b < c);
        assert!(clock.tick(20 * SECOND) >= (20 * SECOND as u64) >> LOGICAL_BITS << LOGICAL_BITS);
    }
}
