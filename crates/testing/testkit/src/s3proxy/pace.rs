//! A limit on bytes a second that all connections share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Hands out time: each piece of a body waits until the pieces before it have had theirs.
#[derive(Default)]
pub struct Pace {
    /// When the next byte may pass.
    free: Mutex<Option<Instant>>,
}

impl Pace {
    /// Waits until `bytes` may pass at `rate` bytes a second; 0 is no limit.
    pub fn wait(&self, bytes: usize, rate: u64) {
        if rate > 0 {
            std::thread::sleep(self.reserve(bytes, rate, Instant::now()));
        }
    }

    /// Takes the time that `bytes` need; how long until they have passed.
    fn reserve(&self, bytes: usize, rate: u64, now: Instant) -> Duration {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // What was not used is gone: no burst after a rest.
        let begin = free.map_or(now, |free| free.max(now));
        let end = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free = Some(end);
        end - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_queue_and_rest_is_not_saved() {
        let (pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.reserve(500, 1000, now), Duration::from_millis(500));
        assert_eq!(pace.reserve(500, 1000, now), Duration::from_millis(1000));
        let later = now + Duration::from_secs(10);
        assert_eq!(pace.reserve(100, 1000, later), Duration::from_millis(100));
    }
}
