//! When a failed attempt is made again. Pure: what time it is and what was thrown comes from the
//! caller.
//!
//! Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015): the
//! n-th wait is uniform between zero and a bound that doubles from attempt to attempt. Stores that
//! answer that they get too many requests are left alone for longer, and `Retry-After` is honoured.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bound of the first wait.
const FIRST: Duration = Duration::from_millis(50);

/// Bound of the first wait after the store asked for fewer requests.
const FIRST_THROTTLED: Duration = Duration::from_millis(400);

/// Largest bound of a wait, also of one in `Retry-After`.
const LONGEST: Duration = Duration::from_secs(5);

/// What a body is at least allowed to move at before its attempt is given up, bytes a second.
pub(crate) const BYTES_PER_SECOND_MIN: u64 = 512 << 10;

/// How long to wait before attempt number `attempt + 1`, `attempt` attempts having failed. `random`
/// is uniform.
pub(crate) fn wait(
    attempt: u32,
    throttled: bool,
    retry_after: Option<Duration>,
    random: u64,
) -> Duration {
    let first = if throttled { FIRST_THROTTLED } else { FIRST };
    let bound = first.saturating_mul(1 << (attempt.saturating_sub(1)).min(16)).min(LONGEST);
    let jittered = bound.mul_f64((random >> 11) as f64 / (1u64 << 53) as f64);
    jittered.max(retry_after.unwrap_or(Duration::ZERO).min(LONGEST))
}

/// Longest time for one attempt that moves `bytes`.
pub(crate) fn attempt_limit(base: Duration, bytes: u64) -> Duration {
    base + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

/// Random numbers for jitter: SplitMix64 (Steele, Lea, Flood, 2014), shared by all threads.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    /// Seeded differently in every process and store, so that clients that failed together do not
    /// come back together.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(0u8)))
    }

    /// The next number.
    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut x = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        let most = |attempt, throttled| wait(attempt, throttled, None, u64::MAX);
        assert!(most(1, false) <= FIRST && most(1, false) > FIRST / 2);
        assert!(most(3, false) > 3 * FIRST);
        assert!(most(1, true) > 4 * most(1, false));
        for attempt in 1..200 {
            assert!(most(attempt, true) <= LONGEST);
            assert_eq!(wait(attempt, false, None, 0), Duration::ZERO);
        }
    }

    #[test]
    fn retry_after_within_bounds() {
        assert_eq!(wait(1, true, Some(Duration::from_secs(2)), 0), Duration::from_secs(2));
        assert_eq!(wait(1, true, Some(Duration::from_secs(3600)), 0), LONGEST);
    }

    #[test]
    fn jitter_is_spread() {
        let jitter = Jitter::new();
        let low = (0..1000).filter(|_| wait(1, false, None, jitter.next()) < FIRST / 2).count();
        assert!((400..600).contains(&low), "{low}");
    }

    #[test]
    fn large_bodies_get_more_time() {
        let base = Duration::from_secs(15);
        assert_eq!(attempt_limit(base, 100), base);
        assert_eq!(attempt_limit(base, 16 << 20), base + Duration::from_secs(32));
    }
}
