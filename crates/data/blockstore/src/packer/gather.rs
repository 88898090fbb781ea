//! When an upload of small payloads begins: a decision without I/O and without a clock of its own.
//!
//! A lone store is due at once, and while an upload is under way the next round gathers behind it.
//! Between the two lies the moment when an upload has just ended: its owners are about to store
//! their next files, and the stores that wait already would leave without them, so that two crowds
//! would take turns, each with half the files and twice the wait. So a round that expects others
//! waits for them, as long as that pays: one more moment costs every waiting store that moment, and
//! saves each store that arrives within it a whole upload. With `n` stores waiting and uploads that
//! take `t`, waiting on is right while stores keep arriving less than about `t / n` apart (an
//! optimal stopping rule; group commits of databases wait for a fixed time instead, as PostgreSQL's
//! `commit_delay`). Owners that do not come back end this: after some vain waits in a row the next
//! uploads do without.
//!
//! On a machine that is busy with something else, the owners arrive as the scheduler lets them:
//! late, and with long pauses between them. Uploads take longer there too. So a gathering may last
//! as long as an upload (up to a second), it waits through a pause that is like the longest of
//! late, and it takes the number of owners from several uploads.

use std::time::{Duration, Instant};

/// Smallest pause between two arrivals that ends a gathering, as a part of an upload: threads that
/// return together are scheduled one after the other.
const PAUSE_PART: u32 = 6;

/// Longest such pause, unless longer ones were seen between arrivals.
const PAUSE_MAX: Duration = Duration::from_millis(25);

/// Longest gathering, and never longer than an upload.
const GATHER_MAX: Duration = Duration::from_secs(1);

/// What of the expected owners is forgotten with each upload that has fewer: one part of so many.
const FORGET_PART: usize = 8;

/// Vain waits in a row after which waiting stops for a while.
const VAIN_MAX: u32 = 3;

/// Uploads for which it stops.
const REST_UPLOADS: u32 = 32;

/// What to do with what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Upload it.
    Now,
    /// Look again then, or when more has arrived.
    At(Instant),
    /// Look again when an upload has ended or more has arrived.
    Later,
}

/// The state of the decision.
#[derive(Debug)]
pub(super) struct Gather {
    /// Waiting bytes that are worth another upload beside those under way.
    parallel_bytes: u64,
    under_way: usize,
    /// How long uploads take: moving average.
    upload_time: Duration,
    /// When the last upload ended.
    ended: Option<Instant>,
    /// Stores that may be waiting soon: those of the last upload that come back, and those that
    /// waited when it ended; not much fewer than after the uploads before.
    expected: usize,
    /// Of these, how many waited when it ended.
    left_behind: usize,
    last_arrival: Option<Instant>,
    /// The longest pause between arrivals of late that was no longer than an upload; it shrinks
    /// with each upload.
    gap: Duration,
    vain: u32,
    rest: u32,
}

impl Gather {
    pub fn new(parallel_bytes: u64) -> Self {
        Self {
            parallel_bytes,
            under_way: 0,
            upload_time: Duration::ZERO,
            ended: None,
            expected: 0,
            left_behind: 0,
            last_arrival: None,
            gap: Duration::ZERO,
            vain: 0,
            rest: 0,
        }
    }

    /// Something small arrived.
    pub fn arrived(&mut self, now: Instant) {
        if let Some(before) = self.last_arrival.max(self.ended) {
            let gap = now.saturating_duration_since(before);
            if gap <= self.upload_time {
                self.gap = self.gap.max(gap);
            }
        }
        self.last_arrival = Some(now);
    }

    /// Whether `waiting` stores (at least one) with `bytes` are to be uploaded.
    pub fn due(&self, now: Instant, waiting: usize, bytes: u64) -> Due {
        if self.under_way > 0 {
            return if bytes >= self.parallel_bytes { Due::Now } else { Due::Later };
        }
        let Some(ended) = self.ended.filter(|_| self.rest == 0 && waiting < self.expected) else {
            return Due::Now;
        };
        let worth = 2 * self.upload_time / u32::try_from(waiting).unwrap_or(u32::MAX).max(1);
        let pause = worth.max(self.upload_time / PAUSE_PART).min(PAUSE_MAX);
        let pause = pause.max((2 * self.gap).min(self.upload_time / 2));
        let last = self.last_arrival.map_or(ended, |arrival| arrival.max(ended));
        let until = (last + pause).min(ended + self.upload_time.min(GATHER_MAX));
        if now >= until { Due::Now } else { Due::At(until) }
    }

    /// An upload of `members` stores begins.
    pub fn begin(&mut self, members: usize) {
        if self.under_way == 0 && self.ended.is_some() {
            let waited = self.rest == 0 && self.left_behind < self.expected;
            if self.rest > 0 {
                self.rest -= 1;
            } else if waited && members > self.left_behind {
                self.vain = 0;
            } else if waited && self.left_behind > 0 {
                self.vain += 1;
                if self.vain >= VAIN_MAX {
                    (self.vain, self.rest) = (0, REST_UPLOADS);
                }
            }
            // Each end is waited for once.
            self.ended = None;
        }
        self.gap = 3 * self.gap / 4;
        self.under_way += 1;
    }

    /// An upload of `members` stores ended after `took`, while `waiting` others wait.
    pub fn end(&mut self, now: Instant, members: usize, took: Duration, waiting: usize) {
        self.under_way -= 1;
        self.upload_time =
            if self.upload_time.is_zero() { took } else { (3 * self.upload_time + took) / 4 };
        self.ended = Some(now);
        self.expected =
            (members + waiting).max(self.expected - self.expected.div_ceil(FORGET_PART));
        self.left_behind = waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MIB: u64 = 1 << 20;

    fn upload(gather: &mut Gather, now: &mut Instant, members: usize, waiting_at_end: usize) {
        gather.begin(members);
        *now += 20 * MS;
        gather.end(*now, members, 20 * MS, waiting_at_end);
    }

    #[test]
    fn a_lone_store_never_waits() {
        let (mut gather, mut now) = (Gather::new(8 * MIB), Instant::now());
        for pause in [0, 1, 30, 1000, 0] {
            now += pause * MS;
            gather.arrived(now);
            assert_eq!(gather.due(now, 1, 100), Due::Now);
            upload(&mut gather, &mut now, 1, 0);
        }
    }

    #[test]
    fn pause_for_returning_owners() {
        let (mut gather, mut now) = (Gather::new(8 * MIB), Instant::now());
        gather.arrived(now);
        assert_eq!(gather.due(now, 1, 100), Due::Now);
        upload(&mut gather, &mut now, 63, 1);
        assert!(matches!(gather.due(now, 1, 100), Due::At(_)));
        for waiting in 2..64 {
            now += MS / 5;
            gather.arrived(now);
            assert!(matches!(gather.due(now, waiting, 100), Due::At(_)), "{waiting}");
        }
        assert_eq!(gather.due(now, 64, 100), Due::Now, "all are here");
        upload(&mut gather, &mut now, 64, 0);
        // One of them does not come back: its absence costs the others a pause, not a full upload.
        for _ in 1..64 {
            now += MS / 5;
            gather.arrived(now);
        }
        let Due::At(until) = gather.due(now, 63, 100) else { panic!("waits for the last one") };
        assert!(until - now <= 4 * MS, "{:?}", until - now);
        assert_eq!(gather.due(until, 63, 100), Due::Now);
    }

    #[test]
    fn vain_waits_end_and_are_tried_again_later() {
        let (mut gather, mut now) = (Gather::new(8 * MIB), Instant::now());
        upload(&mut gather, &mut now, 1, 1);
        let mut waits = 0;
        for _ in 0..70 {
            gather.arrived(now);
            if let Due::At(until) = gather.due(now, 1, 100) {
                waits += 1;
                now = until;
            }
            upload(&mut gather, &mut now, 1, 1);
        }
        assert_eq!(waits, 6, "three, then a rest, then three");
    }

    /// On a busy machine owners come back late and in bursts. A gathering waits for the next burst
    /// where the pause between two is short beside an upload.
    #[test]
    fn bursts_of_owners_on_a_busy_machine() {
        let (mut gather, mut now) = (Gather::new(8 * MIB), Instant::now());
        let mut members = Vec::new();
        for _ in 0..20 {
            gather.begin(64);
            now += 300 * MS;
            gather.end(now, 64, 300 * MS, 0);
            // Eight bursts of eight, 60 ms apart; what is due in between is uploaded.
            let (mut waiting, mut due) = (0, None);
            for _ in 0..8 {
                now += 60 * MS;
                if waiting > 0 && due.is_none_or(|until| until <= now) {
                    break;
                }
                for _ in 0..8 {
                    gather.arrived(now);
                    waiting += 1;
                }
                due = match gather.due(now, waiting, 100) {
                    Due::At(until) => Some(until),
                    Due::Now | Due::Later => None,
                };
            }
            members.push(waiting);
        }
        // The first upload is early: the pauses are not measured yet. Each later one has half the
        // owners.
        assert!(members[1..].iter().all(|&members| members >= 32), "{members:?}");
    }

    /// One upload with few owners does not make the gathering forget how many there are; many do.
    #[test]
    fn owners_expected_after_a_small_upload() {
        let (mut gather, mut now) = (Gather::new(8 * MIB), Instant::now());
        upload(&mut gather, &mut now, 64, 0);
        upload(&mut gather, &mut now, 2, 0);
        gather.arrived(now);
        assert!(matches!(gather.due(now, 10, 100), Due::At(_)));
        for _ in 0..40 {
            upload(&mut gather, &mut now, 1, 0);
        }
        gather.arrived(now);
        assert_eq!(gather.due(now, 1, 100), Due::Now);
    }

    #[test]
    fn beside_others_only_when_it_pays() {
        let (mut gather, now) = (Gather::new(8 * MIB), Instant::now());
        gather.begin(1);
        assert_eq!(gather.due(now, 1000, 8 * MIB - 1), Due::Later);
        assert_eq!(gather.due(now, 2, 8 * MIB), Due::Now);
    }
}
