//! What happens when time passes: leases end, answers of vanished clients are forgotten, the grace
//! period ends.
//!
//! Not while the node may not answer ([`crate::backend::Backend::may_answer`]): sessions are
//! another process's then, perhaps, and what one gives up no client may get from this one. Messages
//! of clients are not taken then, which does not count against them.

use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};

use kestrel_cluster::lease::PROMISE;

use super::Server;
use crate::session::{Claims, Phase, Session};

/// Longest time between two ticks.
const TICK_MAX: Nanos = SECOND;

/// For so long a node that may not answer keeps its clients: when that is over another one may have
/// taken its place.
const MUTE_MAX: Nanos = PROMISE;

impl Server {
    /// How often [`Server::tick`] wants to be called.
    pub fn tick_interval(&self) -> Nanos {
        (self.shared.config.lease / 20).min(TICK_MAX)
    }

    /// Time has passed. A gap much longer than [`Server::tick_interval`] means that this process
    /// did not run; messages of clients could not be taken meanwhile, so it does not count against
    /// them.
    pub fn tick(self: &Arc<Self>, now: Nanos) {
        let gap = {
            let mut ticked = self.ticked.lock();
            let gap = now.saturating_sub(*ticked);
            *ticked = now.max(*ticked);
            gap
        };
        self.tokens.tick(self.clock.now(), now);
        self.log_refused_more();
        let lease = self.shared.config.lease;
        let mute = !self.backend.may_answer();
        let missed = if gap > lease / 4 || mute { gap } else { 0 };
        for session in self.all_sessions() {
            if missed > 0 {
                session.note_message(session.last_message().saturating_add(missed).min(now));
            }
            if !mute {
                self.check_session(&session, now);
            }
        }
        if mute {
            return self.stay_mute(gap, now);
        }
        *self.mute.lock() = None;
        if let Some(grace) = &mut *self.shared.grace.lock() {
            grace.begin(now);
        }
        self.check_grace(now);
        self.release_abandoned();
    }

    /// It may not answer, as it may not have been able to for `gap`. If that lasts its clients are
    /// to look for a node that may: their connections end.
    fn stay_mute(&self, gap: Nanos, now: Nanos) {
        if let Some(grace) = &mut *self.shared.grace.lock() {
            grace.put_off(gap);
        }
        let since = *self.mute.lock().get_or_insert(now);
        let lasted = now - since;
        if lasted < MUTE_MAX {
            return;
        }
        if lasted - gap < MUTE_MAX {
            // The member may be waiting for its store, and say nothing itself before that answers.
            log::warn!(
                "this node answers nobody: it has had no lease for {:.1} s, because most nodes of \
                 the cluster, or its metadata, do not answer; the connections of its clients end, \
                 so that they look for a process that serves in its place",
                lasted as f64 / SECOND as f64
            );
        }
        for session in self.all_sessions() {
            let conn = session.state.lock().conn.as_ref().map(|conn| conn.outbox.clone());
            if let Some(outbox) = conn {
                outbox.close(
                    "the node answers nobody at present, and another process may serve in \
                            its place",
                );
            }
        }
    }

    fn check_session(self: &Arc<Self>, session: &Arc<Session>, now: Nanos) {
        let mut state = session.state.lock();
        let ended = state.grant.as_ref().and_then(|grant| Some(grant.why_ended(grant.ended()?)));
        if let Some(why) = ended.filter(|_| state.is_alive()) {
            let conn = state.conn.take();
            drop(state);
            if let Some(conn) = conn {
                self.shared.refuse(&*conn.outbox, conn.checksum, why);
            }
            return self.expire(session, now);
        }
        let silent = now.saturating_sub(session.last_message());
        let (phase, gone) = (state.phase, now.saturating_sub(state.expired_at));
        let back = state.incarnation > 0 && phase != Phase::Reclaiming;
        let (awaited, idle) = (!back && state.may_claim_locks, state.window.running() == 0);
        let parked = !state.claims.parked.is_empty();
        drop(state);
        match phase {
            // A client that has not come back for good after a restart has the whole grace period:
            // this start's lease may not have reached it.
            Phase::Live | Phase::Reclaiming if silent > self.shared.config.lease && !awaited => {
                self.shared.counts.sessions_expired.add(1);
                self.expire(session, now);
            }
            Phase::Live | Phase::Reclaiming if parked => self.go_on_reclaiming(session),
            Phase::Live | Phase::Reclaiming => {}
            Phase::Expired | Phase::Ended => {
                if idle && (phase == Phase::Ended || gone > self.shared.config.keep_expired) {
                    self.forget(session);
                }
            }
        }
    }

    /// Gives a session up: opens and locks go, what became of its calls is kept.
    pub(super) fn expire(&self, session: &Arc<Session>, now: Nanos) {
        if !self.give_up(session, Phase::Expired, now) || self.shared.config.immutable {
            return;
        }
        if let Err(why) = self.backend.node().end_session(session.client, self.clock.now()) {
            log::warn!("client {}: the end of its session is not recorded: {why}", session.client);
        }
    }

    /// The client has said Bye.
    pub(crate) fn end(&self, session: &Arc<Session>, now: Nanos) {
        if !self.give_up(session, Phase::Ended, now) {
            return;
        }
        self.shared.counts.sessions_ended.add(1);
        let idle = session.state.lock().window.running() == 0;
        if idle {
            self.forget(session);
        }
        self.release_abandoned();
    }

    /// Takes from a session what it holds. False if it had been given up before.
    fn give_up(&self, session: &Arc<Session>, phase: Phase, now: Nanos) -> bool {
        let mut state = session.state.lock();
        if !state.is_alive() {
            return false;
        }
        state.phase = phase;
        state.expired_at = now;
        state.claims = Claims::default();
        state.may_claim_locks = false;
        state.window.forget_opens();
        let opens = state.opens.take_all();
        let conn = state.conn.take();
        let holder = state.holder;
        self.shared.releases.lock().extend(opens);
        self.shared.objects.lock().end(holder);
        self.shared.lock_service.lock().end_session(holder);
        drop(state);
        if let Some(conn) = conn {
            conn.outbox.close(match phase {
                Phase::Ended => "the client said farewell",
                _ => "the client was not heard of for the lease",
            });
        }
        true
    }

    /// Nothing of the client is kept any more.
    fn forget(&self, session: &Arc<Session>) {
        let mut directory = self.shared.directory.lock();
        // It may just have come back.
        let mut state = session.state.lock();
        if state.is_alive() || state.window.running() > 0 {
            return;
        }
        state.phase = Phase::Ended;
        drop(state);
        directory.remove(&session.client);
        if self.shared.config.immutable {
            return;
        }
        // With the directory held, so that a session of the same client that begins now is recorded
        // after this.
        if let Err(why) = self.backend.node().forget_client(session.client) {
            log::warn!("client {}: its records are not deleted: {why}", session.client);
        }
    }
}
