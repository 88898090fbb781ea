//! When messages are sent that no caller waits for: with the next message, or by the ticker after a
//! time.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use kestrel_types::clock::Nanos;

/// How long a message that no caller waits for may wait for another one to go with.
pub const DEFERRED_MAX: Duration = Duration::from_millis(50);

/// Since when something has been waiting, and whether the ticker is awake for it.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Nanoseconds since the client started, and one more; 0 if nothing waits.
    since: AtomicI64,
    /// The ticker looks again in time.
    ticking: AtomicBool,
}

impl Deferred {
    /// Something waits from `now` on. True if the ticker is to be woken.
    pub fn begin(&self, now: Nanos) -> bool {
        let _ = self.since.compare_exchange(0, now.max(0) + 1, Ordering::SeqCst, Ordering::SeqCst);
        !self.ticking.swap(true, Ordering::SeqCst)
    }

    /// All of it was taken to be written.
    pub fn end(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::SeqCst);
        }
    }

    /// For the ticker: whether it is to write at `now`, and when it has to look again, if at all.
    pub fn poll(&self, now: Nanos) -> (bool, Option<Nanos>) {
        let longest = DEFERRED_MAX.as_nanos() as Nanos;
        let mut since = self.since.load(Ordering::SeqCst);
        if since == 0 {
            self.ticking.store(false, Ordering::SeqCst);
            // A thread that has begun meanwhile may have found the ticker awake and not woken it.
            since = self.since.load(Ordering::SeqCst);
            if since == 0 {
                return (false, None);
            }
            self.ticking.store(true, Ordering::SeqCst);
        }
        let due = since + longest;
        if due <= now { (true, Some(now + longest)) } else { (false, Some(due)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_ticker_writes_what_has_waited() {
        let deferred = Deferred::default();
        assert_eq!(deferred.poll(0), (false, None));
        assert!(deferred.begin(MS), "the ticker does not know yet");
        assert!(!deferred.begin(9 * MS));
        let (writes, next) = deferred.poll(10 * MS);
        assert!(!writes && next.is_some_and(|next| next > 50 * MS && next < 52 * MS));
        assert!(deferred.poll(52 * MS).0);
    }

    #[test]
    fn what_went_with_a_message_is_forgotten() {
        let deferred = Deferred::default();
        assert!(deferred.begin(0));
        deferred.end();
        assert!(!deferred.begin(40 * MS), "the ticker will look anyway");
        let (writes, next) = deferred.poll(51 * MS);
        assert!(!writes && next.is_some_and(|next| next > 89 * MS));
        deferred.end();
        assert_eq!(deferred.poll(91 * MS), (false, None));
        assert!(deferred.begin(92 * MS), "it sleeps as long as it likes");
    }
}
