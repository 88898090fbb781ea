//! What happens when time passes: leases end, answers of vanished clients are forgotten, the grace period ends.

use std::sync::Arc;

use kestrel_types::clock::{Nanos, SECOND};

use super::Server;
use crate::session::{Claims, Phase, Session};

/// Longest time between two ticks.
const TICK_MAX: Nanos = SECOND;

impl Server {
    /// How often [`Server::tick`] wants to be called.
    pub fn tick_interval(&self) -> Nanos {
        (self.shared.config.lease / 20).min(TICK_MAX)
    }

    /// Time has passed. A gap much longer than [`Server::tick_interval`] means that this process did not run; clients could not
    /// be heard of meanwhile, so it does not count against them.
    pub fn tick(self: &Arc<Self>, now: Nanos) {
        let gap = {
            let mut ticked = self.ticked.lock();
            let gap = now.saturating_sub(*ticked);
            *ticked = now.max(*ticked);
            gap
        };
        let lease = self.shared.config.lease;
        let missed = if gap > lease / 4 { gap } else { 0 };
        for session in self.all_sessions() {
            if missed > 0 {
                session.hear(session.heard().saturating_add(missed).min(now));
            }
            self.look_at(&session, now);
        }
        self.look_at_grace(now);
        self.release_abandoned();
    }

    fn look_at(self: &Arc<Self>, session: &Arc<Session>, now: Nanos) {
        let state = session.state.lock();
        let silent = now.saturating_sub(session.heard());
        let (phase, gone) = (state.phase, now.saturating_sub(state.expired_at));
        let (awaited, idle) = (state.incarnation == 0 && state.may_claim_locks, state.window.running() == 0);
        let parked = !state.claims.parked.is_empty();
        drop(state);
        match phase {
            // A client that has not come back after a restart has the whole grace period.
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
        if !self.give_up(session, Phase::Expired, now) {
            return;
        }
        if let Err(why) = self.backend.node().end_session(session.client, self.clock.now()) {
            log::warn!("client {}: the end of its session is not recorded: {why}", session.client);
        }
    }

    /// The client has said farewell.
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
        let line = state.line.take();
        let holder = state.holder;
        self.shared.releases.lock().extend(opens);
        self.shared.objects.lock().end(holder);
        self.shared.desk.lock().end_session(holder);
        drop(state);
        if let Some(line) = line {
            line.outbox.close(match phase {
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
        // With the directory held, so that a session of the same client that begins now is recorded after this.
        if let Err(why) = self.backend.node().forget_client(session.client) {
            log::warn!("client {}: its records are not deleted: {why}", session.client);
        }
    }
}
