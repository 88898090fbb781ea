//! The time after a start in which clients of before say what they held.
//!
//! Until it ends nobody knows what is open or locked, so the node keeps every file without a name, nothing is reaped, and new
//! locks wait. It ends when every client that had a session is either back for good or gone, at the latest after its length.
//!
//! *Back for good* means: it has reclaimed everything **and** its retries have been executed. A file that a client created just
//! before the crash is not among what it reclaims if it has not heard of it; the retry of that Create finds the recorded
//! answer, and the file must not have been deleted in between.

use std::collections::BTreeSet;
use std::sync::Arc;

use kestrel_types::clock::Nanos;
use kestrel_types::wire::ClientId;

use super::{Server, Shared};
use crate::session::{Phase, Session};

/// See the module's header.
pub(crate) struct Grace {
    until: Nanos,
    awaited: BTreeSet<ClientId>,
}

impl Grace {
    pub fn until(until: Nanos) -> Self {
        Self { until, awaited: BTreeSet::new() }
    }

    /// This client had a session.
    pub fn awaits(&mut self, client: ClientId) {
        self.awaited.insert(client);
    }

    pub fn is_over(&self, now: Nanos) -> bool {
        self.awaited.is_empty() || now >= self.until
    }

    pub fn left(&self, now: Nanos) -> Nanos {
        (self.until - now).max(0)
    }
}

impl Shared {
    /// Whether a client is back for good, or gone.
    fn is_settled(&self, client: ClientId) -> bool {
        let session = self.directory.lock().get(&client).cloned();
        let Some(session) = session else { return true };
        let state = session.state.lock();
        match state.phase {
            Phase::Live => state.settled && state.window.retries_running() == 0,
            Phase::Reclaiming => false,
            Phase::Expired | Phase::Ended => true,
        }
    }
}

impl Server {
    /// Ends the grace period if it is time.
    pub(super) fn look_at_grace(&self, now: Nanos) {
        let awaited: Vec<ClientId> = match &*self.shared.grace.lock() {
            Some(grace) => grace.awaited.iter().copied().collect(),
            None => return,
        };
        let settled: Vec<_> = awaited.iter().filter(|client| self.shared.is_settled(**client)).collect();
        let late = {
            let mut slot = self.shared.grace.lock();
            let Some(grace) = slot.as_mut() else { return };
            for client in settled {
                grace.awaited.remove(client);
            }
            if !grace.is_over(now) {
                return;
            }
            grace.awaited.clone()
        };
        let late: Vec<Arc<Session>> = {
            let directory = self.shared.directory.lock();
            late.iter().filter_map(|client| directory.get(client).cloned()).collect()
        };
        for session in self.all_sessions() {
            session.state.lock().may_claim_locks = false;
        }
        for session in late {
            // Who is in the middle of it, or has reclaimed and is quiet, keeps what it has; the rest is given up.
            if session.state.lock().phase == Phase::Reclaiming {
                self.expire(&session, now);
            }
        }
        if let Err(why) = self.backend.node().end_grace() {
            log::error!("the grace period does not end: {why}");
            return;
        }
        *self.shared.grace.lock() = None;
        self.shared.desk.lock().end_grace();
    }
}
