//! The time after a start in which clients of the start before reclaim what they held.
//!
//! Until it ends the node cannot tell what is open or locked, so it keeps every orphan, no object
//! is collected, and new locks wait. It ends when every client that had a session is either back
//! for good or gone, at the latest after its length.
//!
//! *Back for good* means: it has reclaimed everything **and** its retries have been executed. A
//! file that a client created just before the crash is not among what it reclaims if the answer has
//! not reached it; the retry of that Create finds the recorded answer, and the file must not have
//! been deleted in between. So a client that has reclaimed everything when the period is over, and
//! may have retries under way, has a lease more: by then it has sent something that comes after
//! them, or its session has ended.
//!
//! **Another process may have been the node until now** ([`crate::backend::Backend::may_answer`]),
//! and have clients that have not noticed. It answers nothing any more when this one has its first
//! lease, so a client of it sent its last answered message before that; it counts its locks as lost
//! a lease after it sent that. Therefore the period begins with this node's first lease, and is not
//! shorter than a client's: no client gets a lock that another one still relies on.
//!
//! **A client's lease is that of the start it was welcomed by**, which may have been longer than
//! this one's. It is on record (row `lease`) before any client is welcomed, and the longest of two
//! starts stays there until the period between them has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_types::clock::Nanos;
use kestrel_types::wire::ClientId;

use super::{Server, ServerShared};
use crate::session::{Phase, Session};

/// See the module's header.
pub(crate) struct Grace {
    length: Nanos,
    /// None before it has begun.
    until: Option<Nanos>,
    awaited: BTreeSet<ClientId>,
}

impl Grace {
    /// One of this length that has not begun.
    pub fn of(length: Nanos) -> Self {
        Self { length, until: None, awaited: BTreeSet::new() }
    }

    /// Clients can claim what they held from now on, if they could not before.
    pub fn begin(&mut self, now: Nanos) {
        self.until.get_or_insert(now.saturating_add(self.length));
    }

    /// For so long they could not.
    pub fn put_off(&mut self, by: Nanos) {
        self.until = self.until.map(|until| until.saturating_add(by));
    }

    /// This client had a session.
    pub fn awaits(&mut self, client: ClientId) {
        self.awaited.insert(client);
    }

    pub fn is_over(&self, now: Nanos) -> bool {
        self.awaited.is_empty() || self.until.is_some_and(|until| now >= until)
    }

    /// Whether a client that has reclaimed may still send a call again, as its answer may not have
    /// reached it.
    fn is_patient(&self, now: Nanos, lease: Nanos) -> bool {
        self.until.is_some_and(|until| now < until.saturating_add(lease))
    }

    pub fn left(&self, now: Nanos) -> Nanos {
        self.until.map_or(self.length, |until| (until - now).max(0))
    }
}

impl ServerShared {
    /// Whether a client is back for good, or gone.
    fn is_back_or_gone(&self, client: ClientId) -> bool {
        let session = self.directory.lock().get(&client).cloned();
        let Some(session) = session else { return true };
        let state = session.state.lock();
        match state.phase {
            Phase::Live => state.retries_in && state.window.retries_running() == 0,
            Phase::Reclaiming => false,
            Phase::Expired | Phase::Ended => true,
        }
    }
}

impl Server {
    /// Ends the grace period if it is time.
    pub(super) fn check_grace(&self, now: Nanos) {
        let awaited: Vec<ClientId> = match &*self.shared.grace.lock() {
            Some(grace) => grace.awaited.iter().copied().collect(),
            None => return,
        };
        let retries_in: Vec<_> =
            awaited.iter().filter(|client| self.shared.is_back_or_gone(**client)).collect();
        let (late, patient) = {
            let mut slot = self.shared.grace.lock();
            let Some(grace) = slot.as_mut() else { return };
            for client in retries_in {
                grace.awaited.remove(client);
            }
            if !grace.is_over(now) {
                return;
            }
            (grace.awaited.clone(), grace.is_patient(now, self.shared.config.lease))
        };
        let late: Vec<Arc<Session>> = {
            let directory = self.shared.directory.lock();
            late.iter().filter_map(|client| directory.get(client).cloned()).collect()
        };
        for session in self.all_sessions() {
            session.state.lock().may_claim_locks = false;
        }
        let mut retries_may_come = false;
        for session in late {
            // A client that has reclaimed keeps what it has; the rest is given up.
            let phase = session.state.lock().phase;
            match phase {
                Phase::Reclaiming => self.expire(&session, now),
                Phase::Live => retries_may_come = true,
                Phase::Expired | Phase::Ended => {}
            }
        }
        if retries_may_come && patient {
            return;
        }
        if let Err(why) = self.backend.node().end_grace() {
            log::error!("the grace period does not end: {why}");
            return;
        }
        *self.shared.grace.lock() = None;
        self.shared.lock_service.lock().end_grace();
        self.record_lease();
    }

    /// No client relies on a lease of an earlier start any more: this one's is on record from now
    /// on. If it cannot be, the next start waits longer than it must.
    pub(super) fn record_lease(&self) {
        let (node, lease) = (self.backend.node(), self.shared.config.lease);
        let retries_in = node.lease_on_record().and_then(|before| match before == Some(lease) {
            true => Ok(()),
            false => node.record_lease(lease),
        });
        if let Err(why) = retries_in {
            log::warn!("the lease of this start is not on record: {why}");
        }
    }
}
