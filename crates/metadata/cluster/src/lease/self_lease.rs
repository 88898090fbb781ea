//! The self lease of a member: which of its starts speaks for it where leases are granted.
//!
//! A store that others can claim ([`kestrel_engine::Engine::is_shared`]) may be taken over while
//! the process that had it goes on and does not know. Leases rest on this, that two majorities have
//! a member in common; a member that runs twice could give each of them what the other must not
//! have. So a start grants nothing, holds nothing for a fence, and does not count itself, unless it
//! *has the self lease*.
//!
//! **Having it.** Each [`RENEW`] a start commits a record that changes nothing. Commits carry the
//! engine's epoch, so when one of them gets through no other process had claimed the store by the
//! time at which it was made: from that time on the start has the self lease for [`SELF_LEASE`].
//! One that is not *sole* (no earlier start can be running) does not have it before
//! [`SELF_LEASE_PAST`] is over since its own claim.
//!
//! **No two have it at a time.** What an earlier start committed was made before the later one
//! claimed, so its self lease has ended by [`SELF_LEASE`] after that, and [`SELF_LEASE_PAST`] is
//! longer by as much as clocks may disagree. What it had promised until then nobody remembers: a
//! later start keeps the longest promise it may have made since ([`SelfLease::forgets`]). That of a
//! store that nobody else can claim is its holder's for ever.
//!
//! **A store that is full** takes no commits, and is this start's nevertheless: it is asked
//! ([`kestrel_engine::Engine::confirmations`]), or else nobody could even read.
//!
//! It is longer than a lease, because commits wait for those before them: a store that is slow for
//! a moment is not lost.

use kestrel_engine::BatchKind;
use kestrel_meta::ids::counter_row;
use kestrel_meta::lease::{FOREVER, NEVER};
use kestrel_types::clock::Nanos;

use super::{LEASE, PROMISE, RENEW};
use crate::{ClusterNode, Deferred};

/// How long a start has the self lease after a commit that got through was made.
pub const SELF_LEASE: Nanos = 2 * LEASE;

/// When the self lease of earlier starts has ended, after a claim.
pub const SELF_LEASE_PAST: Nanos = SELF_LEASE + SELF_LEASE / 8;

/// See the module's header.
pub(crate) struct SelfLease {
    from: Nanos,
    until: Nanos,
    /// When the newest of its commits was made.
    asked: Nanos,
    /// That is under way.
    waits: bool,
    /// How often a full store had confirmed that it is this start's, and when that was looked at.
    counted: (u64, Nanos),
}

impl SelfLease {
    /// That of a start which claimed its store then, and has made a durable commit since.
    pub fn new(shared: bool, exclusive: bool, claimed: Nanos) -> Self {
        let from = if shared && !exclusive { claimed + SELF_LEASE_PAST } else { claimed };
        let until = if shared { claimed + SELF_LEASE } else { FOREVER };
        Self { from, until, asked: claimed, waits: false, counted: (0, claimed) }
    }

    /// Whether the start has it.
    pub fn is_held(&self, now: Nanos) -> bool {
        self.from <= now && now < self.until
    }

    /// As what its own vote for a lease counts: as one that was asked for then.
    pub fn votes(&self, now: Nanos) -> Option<Nanos> {
        // `until` is not before anything that was added to it.
        self.is_held(now).then(|| now.min(self.until - LEASE))
    }

    /// From when on nothing counts any more that earlier starts have promised.
    pub fn forgets(&self) -> Nanos {
        self.from + PROMISE
    }

    /// A commit that was made then has got through.
    pub fn confirmed(&mut self, made: Nanos) {
        self.waits = false;
        self.extend(made);
    }

    /// A full store has confirmed so often that it is this start's.
    pub fn count(&mut self, count: u64, now: Nanos) {
        let (before, looked) = self.counted;
        // The first of two that came after a look may have been asked for before it, the second was
        // not.
        if count.saturating_sub(before) >= 2 {
            self.extend(looked);
            self.counted = (count, now);
        }
    }

    fn extend(&mut self, asked: Nanos) {
        if self.until != NEVER {
            self.until = self.until.max(asked + SELF_LEASE);
        }
    }

    /// It has none any more.
    pub fn end(&mut self) {
        self.until = NEVER;
    }
}

impl ClusterNode {
    /// Asks the store whether it is still this start's.
    pub(crate) fn tick_self_lease(&mut self) {
        let (now, shared) = (self.time(), self.cluster().is_shared());
        let confirmations = self.node.engine().confirmations();
        let self_lease = &mut self.leases.self_lease;
        self_lease.count(confirmations, now);
        if !shared
            || self_lease.waits
            || self_lease.until == NEVER
            || now < self_lease.asked + RENEW
        {
            return;
        }
        (self_lease.asked, self_lease.waits) = (now, true);
        match self.commit(BatchKind::Freeing, vec![counter_row("epoch", self.epoch)]) {
            Ok(position) => self.when_durable(position, Deferred::Confirmed(now)),
            Err(why) if self.has_lost_store(&why) => {}
            Err(why) => {
                log::warn!("what tells that the store is this node's: {why}");
                self.leases.self_lease.waits = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_has_it_while_its_commits_get_through() {
        let mut self_lease = SelfLease::new(true, true, 5);
        assert!(
            self_lease.is_held(5)
                && self_lease.is_held(4 + SELF_LEASE)
                && !self_lease.is_held(5 + SELF_LEASE)
        );
        assert_eq!(self_lease.votes(6), Some(6));
        assert_eq!(
            self_lease.votes(4 + SELF_LEASE),
            Some(5 + SELF_LEASE - LEASE),
            "its vote ends with it"
        );
        self_lease.confirmed(10);
        assert!(self_lease.is_held(9 + SELF_LEASE) && !self_lease.is_held(10 + SELF_LEASE));
        self_lease.end();
        self_lease.confirmed(20);
        assert!(!self_lease.is_held(20));
    }

    /// A full store confirms the start's right to answer only by a request that was made after a
    /// look.
    #[test]
    fn confirmation_by_a_full_store() {
        let mut self_lease = SelfLease::new(true, true, 0);
        self_lease.count(2, 100);
        assert!(!self_lease.is_held(SELF_LEASE), "it may have been asked for at the claim");
        self_lease.count(3, 200);
        assert!(!self_lease.is_held(SELF_LEASE));
        self_lease.count(4, 300);
        assert!(self_lease.is_held(99 + SELF_LEASE) && !self_lease.is_held(100 + SELF_LEASE));
        self_lease.count(6, 400);
        assert!(self_lease.is_held(299 + SELF_LEASE) && !self_lease.is_held(300 + SELF_LEASE));
    }

    /// A start that is not the only one waits until earlier starts cannot have the right to answer.
    #[test]
    fn start_after_one_that_may_still_answer() {
        let (claimed, mut earlier) = (1000, SelfLease::new(true, true, 0));
        earlier.confirmed(claimed);
        let mut self_lease = SelfLease::new(true, false, claimed);
        self_lease.confirmed(claimed + SELF_LEASE_PAST);
        let begins = claimed + SELF_LEASE_PAST;
        assert!(
            !self_lease.is_held(begins - 1)
                && self_lease.is_held(begins)
                && !earlier.is_held(claimed + SELF_LEASE)
        );
        assert_eq!(self_lease.forgets(), begins + PROMISE);
        let own = SelfLease::new(false, false, 7);
        assert!(own.is_held(7) && own.is_held(1 << 60));
        assert_eq!((own.votes(9), own.forgets()), (Some(9), 7 + PROMISE));
    }
}
