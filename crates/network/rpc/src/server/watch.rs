//! Cuts off peers that take too long, and calls the handler's ticks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::channel::Channel;
use super::{Shared, count};

/// Rounds within the shortest time limit: limits are kept to a quarter of it.
const ROUNDS: u32 = 4;

/// Bounds of the time between two rounds, and between two ticks of the handler.
const PERIOD: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Looks at all connections once a round.
pub(super) async fn run(shared: Arc<Shared>) {
    let config = &shared.config;
    let shortest = config.greeting.min(config.silent).min(config.stalled);
    let period = (shortest / ROUNDS).clamp(PERIOD.0, PERIOD.1);
    let rounds = |limit: Duration| limit.as_nanos().div_ceil(period.as_nanos()) as u64;
    let limits = Limits {
        greeting: rounds(config.greeting),
        silent: rounds(config.silent),
        stalled: rounds(config.stalled),
    };
    loop {
        tokio::time::sleep(period).await;
        let now = shared.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let late: Vec<_> = {
            let channels = shared.channels.lock();
            channels
                .values()
                .filter_map(|channel| Some((limits.broken(channel, now)?, channel.clone())))
                .collect()
        };
        for (why, channel) in late {
            count(&shared.counters.cut_off, 1);
            channel.abort(why);
        }
    }
}

/// Time limits in rounds.
struct Limits {
    greeting: u64,
    silent: u64,
    stalled: u64,
}

impl Limits {
    /// Which limit a connection has broken. A round that has only begun does not count.
    fn broken(&self, channel: &Channel, now: u64) -> Option<&'static str> {
        let since = |round: u64| now.saturating_sub(round + 1);
        let of = |round: &std::sync::atomic::AtomicU64| since(round.load(Ordering::Relaxed));
        if channel.unsent.load(Ordering::Relaxed) && of(&channel.moved) >= self.stalled {
            return Some("it takes nothing of what is sent to it");
        }
        if channel.paused.load(Ordering::Relaxed) {
            return None;
        }
        let last_received = of(&channel.last_received);
        if !channel.greeted.load(Ordering::Relaxed) {
            return (last_received >= self.greeting).then_some("it said no Hello");
        }
        (last_received >= self.silent).then_some("it is silent")
    }
}

/// Calls the handler's tick, as often as it wants to be called.
pub(super) async fn tick(shared: Arc<Shared>) {
    loop {
        let pause = shared.handler.tick().clamp(PERIOD.0, PERIOD.1);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_frames_and_bytes_taken_are_signs_of_life() {
        let limits = Limits { greeting: 2, silent: 5, stalled: 3 };
        let channel = Channel::new("peer".into(), 10);
        let at = |now| limits.broken(&channel, now);
        assert_eq!((at(12), at(13)), (None, Some("it said no Hello")));
        channel.greeted.store(true, Ordering::Relaxed);
        assert_eq!((at(15), at(16)), (None, Some("it is silent")));
        channel.last_received.store(20, Ordering::Relaxed);
        assert_eq!((at(25), at(26)), (None, Some("it is silent")));
        // Not to be read is not to be silent, but what is sent has to be taken.
        channel.paused.store(true, Ordering::Relaxed);
        assert_eq!(at(1000), None);
        channel.unsent.store(true, Ordering::Relaxed);
        channel.moved.store(996, Ordering::Relaxed);
        assert_eq!((at(999), at(1000)), (None, Some("it takes nothing of what is sent to it")));
    }
}
