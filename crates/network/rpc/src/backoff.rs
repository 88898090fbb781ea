//! When to try again: exponential backoff with jitter, from a seed.

use kestrel_types::clock::{Nanos, SECOND};

/// Pause after the first failure, nanoseconds; it doubles with each further one.
pub const PAUSE_MIN: Nanos = SECOND / 20;

/// Longest pause, nanoseconds.
pub const PAUSE_MAX: Nanos = 5 * SECOND;

/// Decides how long to wait after failures in a row.
///
/// A pause is drawn evenly from the upper half of its range ("equal jitter"): clients that lost the
/// same node do not come back all at once, and none comes back at once.
#[derive(Debug, Clone)]
pub struct Backoff {
    state: u64,
    pause: Nanos,
    pause_max: Nanos,
}

impl Backoff {
    /// Begins without failures. Clients take different seeds.
    pub fn new(seed: u64) -> Self {
        Self::up_to(seed, PAUSE_MAX)
    }

    /// As [`Backoff::new`], with another longest pause.
    pub fn up_to(seed: u64, pause_max: Nanos) -> Self {
        Self { state: seed, pause: PAUSE_MIN, pause_max }
    }

    /// An attempt failed: when to make the next one.
    pub fn failed(&mut self, now: Nanos) -> Nanos {
        let half = self.pause / 2;
        let jitter = (self.draw() % half.max(1).cast_unsigned()).cast_signed();
        self.pause = (self.pause * 2).min(self.pause_max);
        now.saturating_add(half + jitter)
    }

    /// An attempt succeeded.
    pub fn served(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit_and_start_over() {
        let mut backoff = Backoff::new(7);
        let mut range = PAUSE_MIN;
        for _ in 0..12 {
            let pause = backoff.failed(0);
            assert!((range / 2..range).contains(&pause), "{pause} of {range}");
            range = (range * 2).min(PAUSE_MAX);
        }
        backoff.served();
        assert!(backoff.failed(0) < PAUSE_MIN);
        assert_ne!(Backoff::new(1).failed(0), Backoff::new(2).failed(0));
    }
}
