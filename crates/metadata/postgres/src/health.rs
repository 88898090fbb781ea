//! How long the database has not answered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Of one engine. A caller with a question that must be answered notes it; with no question open,
/// the shard is checked every second.
pub struct DatabaseHealth {
    begun: Instant,
    /// An answer is waited for, or there is no connection to send a question on.
    waits: AtomicBool,
    /// The last answer, or when waiting began, nanoseconds after `begun`.
    since: AtomicU64,
    /// No question will be sent any more.
    over: AtomicBool,
}

impl Default for DatabaseHealth {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            waits: AtomicBool::new(false),
            since: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }
}

impl DatabaseHealth {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// An answer is waited for from now on, if none was.
    pub fn begins(&self) {
        if !self.waits.load(Ordering::SeqCst) {
            self.since.fetch_max(self.now(), Ordering::SeqCst);
            self.waits.store(true, Ordering::SeqCst);
        }
    }

    /// The database has answered something, on any connection.
    pub fn answered(&self) {
        if !self.over.load(Ordering::SeqCst) {
            self.since.fetch_max(self.now(), Ordering::SeqCst);
        }
    }

    /// Answers of the database from now on are of no use to the engine, which has failed: all the
    /// rest is silence.
    pub fn ends(&self) {
        self.begins();
        self.over.store(true, Ordering::SeqCst);
    }

    /// Nothing is waited for any more.
    pub fn rests(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// [`kestrel_engine::Engine::silence`].
    pub fn silence(&self) -> Duration {
        if !self.waits.load(Ordering::SeqCst) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.now().saturating_sub(self.since.load(Ordering::SeqCst)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_open_questions_only() {
        let health = DatabaseHealth::default();
        let pause = || std::thread::sleep(Duration::from_millis(30));
        pause();
        assert_eq!(health.silence(), Duration::ZERO);
        health.begins();
        let soon = health.silence();
        pause();
        health.begins();
        let late = health.silence();
        assert!(late >= soon + Duration::from_millis(30), "{late:?}");
        health.answered();
        assert!(health.silence() < late);
        health.rests();
        assert_eq!(health.silence(), Duration::ZERO);
        health.ends();
        pause();
        health.answered();
        assert!(health.silence() >= Duration::from_millis(30));
    }
}
