//! The lease of a node that is one of several, as its batches look at it: until when what its
//! namespace replica says is true. How it comes by one: `kestrel_cluster`.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use kestrel_types::clock::{Nanos, SECOND};

/// Says what time it is now, by a clock that goes on while the machine sleeps.
pub type Now = dyn Fn() -> Nanos + Send + Sync;

/// How long a lease lasts.
pub const LEASE: Nanos = 2 * SECOND;

/// How long a promise lasts: longer than the lease by as much as clocks may disagree.
pub const PROMISE: Nanos = LEASE + LEASE / 8;

/// The lease of a node that has no others: it needs none.
pub const FOREVER: Nanos = Nanos::MAX;

/// That of a node that has none.
pub const NEVER: Nanos = Nanos::MIN;

/// See the module's header.
pub struct Lease {
    until: AtomicI64,
    /// The newest time that the member was told, for one that has no clock.
    told: AtomicI64,
    clock: OnceLock<Box<Now>>,
}

impl Default for Lease {
    fn default() -> Self {
        Self { until: AtomicI64::new(NEVER), told: AtomicI64::new(NEVER), clock: OnceLock::new() }
    }
}

impl Lease {
    /// What time it is now: not when the member was told last, if there is a clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.clock.get().map_or_else(|| self.told.load(Ordering::Acquire), |clock| clock())
    }

    /// Whether it holds at this moment.
    #[inline]
    pub fn is_held(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == FOREVER || self.now() < until
    }

    /// It ends then. A node that had none has emptied its replica before, with every worker's state
    /// held.
    pub fn set(&self, until: Nanos) {
        self.until.store(until, Ordering::Release);
    }

    /// The time is read there from now on.
    pub fn set_clock(&self, clock: Box<Now>) {
        // A member is given one once, when it is opened.
        let _ = self.clock.set(clock);
    }

    /// It is that late.
    pub fn tell(&self, now: Nanos) {
        self.told.fetch_max(now, Ordering::Release);
    }
}

/// The lease as one batch, or one run of a transaction, sees it: it is looked at once, when
/// something was found in the replica first. The replica's contents change only with every worker's
/// state held, so all that the batch finds there was true at that moment.
///
/// A member with a store that others can claim looks at it before each batch, whatever that finds,
/// and again when all is read: what was read was true at that second moment, also what came from
/// the store itself.
pub struct LeaseView<'a> {
    lease: Option<&'a Lease>,
    /// Nothing is answered without it.
    always: bool,
    held: Cell<Option<bool>>,
}

impl<'a> LeaseView<'a> {
    /// None: there are no others, and nothing to look at. `always`: nothing at all is answered
    /// without it.
    pub fn of(lease: Option<&'a Lease>, always: bool) -> Self {
        Self { lease, always, held: Cell::new(None) }
    }

    /// Whether a batch may begin. The caller holds a worker's state.
    #[inline]
    pub fn may_begin(&self) -> bool {
        !self.always || self.is_held()
    }

    /// Whether what it has read may be answered: a second look. The caller still holds the state.
    #[inline]
    pub fn may_end(&self) -> bool {
        !self.always || self.lease.is_none_or(Lease::is_held)
    }

    /// Whether nothing at all is answered without it.
    pub fn is_always_asked(&self) -> bool {
        self.always
    }

    /// Whether what the replica says counts. The caller holds a worker's state.
    #[inline]
    pub fn is_held(&self) -> bool {
        let Some(lease) = self.lease else { return true };
        self.held.get().unwrap_or_else(|| {
            let held = lease.is_held();
            self.held.set(Some(held));
            held
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_looks_once() {
        let lease = Lease::default();
        lease.tell(5);
        assert!(!lease.is_held() && !LeaseView::of(Some(&lease), false).is_held());
        lease.set(7);
        let lease_view = LeaseView::of(Some(&lease), false);
        assert!(lease_view.is_held());
        lease.tell(7);
        lease.tell(6);
        assert!(
            !lease.is_held()
                && lease_view.is_held()
                && !LeaseView::of(Some(&lease), false).is_held()
        );
        lease.set(FOREVER);
        assert!(lease.is_held() && LeaseView::of(None, false).is_held());
    }

    /// A batch that always needs the lease looks at it before and after.
    #[test]
    fn lease_checks_around_a_batch() {
        let lease = Lease::default();
        lease.tell(5);
        let (strict, easy) =
            (LeaseView::of(Some(&lease), true), LeaseView::of(Some(&lease), false));
        assert!(!strict.may_begin() && !strict.may_end() && easy.may_begin() && easy.may_end());
        lease.set(7);
        let strict = LeaseView::of(Some(&lease), true);
        assert!(strict.may_begin() && strict.may_end());
        lease.tell(7);
        assert!(
            strict.may_begin() && !strict.may_end(),
            "it looks once before, and once more after"
        );
    }
}
