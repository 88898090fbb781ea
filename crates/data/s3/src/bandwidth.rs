//! A limit of bytes a second, as a token bucket kept by its theoretical arrival time (the generic
//! cell rate algorithm, ITU-T I.371): one number instead of a count and a time. Pure: the caller
//! brings the time and does the waiting.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How much may pass at once after a quiet time, as time at the limited rate.
const BURST: Duration = Duration::from_millis(100);

/// The limit's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth {
    bytes_per_second: NonZeroU64,
    /// When everything let through so far would have passed at exactly the limited rate.
    passed_by: Instant,
}

impl Bandwidth {
    /// A limit that nothing has used yet.
    pub(crate) fn new(bytes_per_second: NonZeroU64, now: Instant) -> Self {
        Self { bytes_per_second, passed_by: now }
    }

    /// Books `bytes` and answers how long to wait before they may pass. Bookings are served in
    /// order.
    pub(crate) fn book(&mut self, bytes: u64, now: Instant) -> Duration {
        let begin = self.passed_by.max(now.checked_sub(BURST).unwrap_or(now));
        self.passed_by =
            begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1 << 20;

    fn limit(now: Instant) -> Bandwidth {
        Bandwidth::new(NonZeroU64::new(RATE).unwrap(), now)
    }

    #[test]
    fn the_rate_is_kept_over_time() {
        let start = Instant::now();
        let mut limit = limit(start);
        let mut now = start;
        for _ in 0..100 {
            now += limit.book(RATE / 4, now);
        }
        // The last of 100 quarter seconds begins after 99 of them, less the burst.
        let taken = now - start;
        assert!(
            taken >= Duration::from_millis(24_500) && taken <= Duration::from_millis(24_800),
            "{taken:?}"
        );
    }

    #[test]
    fn quiet_time_is_not_saved_up_beyond_the_burst() {
        let start = Instant::now();
        let mut limit = limit(start);
        let later = start + Duration::from_secs(3600);
        assert_eq!(limit.book(RATE, later), Duration::ZERO);
        assert_eq!(limit.book(1, later), Duration::from_millis(900));
    }

    /// One booking that is larger than the burst passes, and the next one waits for it.
    #[test]
    fn booking_larger_than_the_burst() {
        let start = Instant::now();
        let mut limit = limit(start);
        assert_eq!(limit.book(10 * RATE, start), Duration::ZERO);
        assert!(limit.book(1, start) > Duration::from_secs(9));
    }
}
