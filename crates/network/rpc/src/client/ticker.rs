//! The thread that watches the clock: deadlines, pings, silence.

use std::time::Duration;

use super::reentrancy::ReentrancyGuard;
use super::{Life, Shared};
use crate::session::ConnectionHealth;

/// Shortest and longest time between two ticks. A call submitted in between may have a deadline
/// before the next tick, which is then missed by no more than this, and no more than a quarter of
/// the deadline.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Time for the node to close after Bye.
const FAREWELL: Duration = Duration::from_secs(1);

/// Until the connection is closed.
pub(super) fn run(shared: &Shared) {
    ReentrancyGuard::of(shared).take();
    let longest = (shared.config.deadline / 4).clamp(PAUSE.0, PAUSE.1);
    let mut ended = Vec::new();
    loop {
        let oldest_open_object = shared.holder.oldest_open_object();
        let (health, next, output, overdue) = {
            let mut link = shared.link.lock();
            let now = shared.note_time();
            let health = link.tick(now, oldest_open_object);
            link.take_completions(&mut ended);
            (health, link.next_tick(), link.has_output(), link.is_overdue(now))
        };
        if overdue {
            shared.holder.overdue();
        }
        if health == ConnectionHealth::Lost {
            log::debug!("net: the metadata server is silent; connecting again");
            shared.writer.cut();
        }
        shared.complete(&mut ended);
        let (deferred, next_poll) = shared.deferred.poll(shared.now());
        if output || deferred {
            shared.writer.offer();
        }
        // Also what other threads had to leave: the socket had no room, or they had written enough.
        shared.write_some();
        // While the socket has no room it is tried again soon: the thread that left the bytes here
        // does not come back.
        let longest = if shared.writer.is_stuck() { PAUSE.0 } else { longest };
        let next = next_poll.map_or(next, |at| at.min(next));
        let pause = Duration::from_nanos((next - shared.now()).max(0).cast_unsigned())
            .clamp(PAUSE.0, longest);
        let mut life = shared.life.lock();
        if *life == Life::Open && !shared.writer.take_handed_over() {
            shared.changed.wait_for(&mut life, pause);
        }
        if *life != Life::Open {
            break;
        }
    }
    // Bye was sent: the node closes, or is not waited for.
    let mut life = shared.life.lock();
    if *life == Life::Closing {
        shared.changed.wait_for(&mut life, FAREWELL);
    }
    drop(life);
    shared.writer.cut();
}
