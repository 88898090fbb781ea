//! Time passes: deadlines, pings, silence.

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::error::FsError;
use kestrel_types::ids::ObjectId;

use super::calls::{CallOwner, Sent};
use super::{CallId, GREETING_MAX, Link, Stage};

/// A node that leaves calls unanswered for this long gets a Ping, which it answers at once.
const QUIET: Nanos = SECOND;

/// After so long without an answer to that, something is wrong with it, or with the way there.
const ANSWER_MAX: Nanos = SECOND / 2;

/// How the connection is, at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionHealth {
    /// There is none, or nothing is wrong with it.
    Fine,
    /// The node has been silent for too long: close it and call [`Link::disconnected`].
    Lost,
}

impl<D> Link<D> {
    /// When [`Link::tick`] should be called next, at the latest.
    pub fn next_tick(&self) -> Nanos {
        let connection = match self.stage {
            Stage::Greeting { since, .. } | Stage::Welcomed { since, .. } => {
                since.saturating_add(GREETING_MAX)
            }
            Stage::Reclaiming { .. } | Stage::Up => self
                .pinged
                .saturating_add(self.ping_every())
                .min(self.last_received.saturating_add(self.silence_max())),
            Stage::Down | Stage::Ended => Nanos::MAX,
        };
        // What is overdue has been noticed.
        let overdue =
            Some(self.overdue_from()).filter(|from| self.established && *from > self.looked);
        connection.min(self.earliest).min(overdue.unwrap_or(Nanos::MAX))
    }

    /// Ends calls that have waited long enough, and keeps the session alive. `oldest_open_object`:
    /// objects below it that this client allocated are referenced or abandoned; `u64::MAX` if it
    /// has none open.
    pub fn tick(&mut self, now: Nanos, oldest_open_object: ObjectId) -> ConnectionHealth {
        (self.oldest_open_object, self.looked) = (oldest_open_object, now);
        if now >= self.earliest {
            self.give_up(now);
        }
        match self.stage {
            Stage::Greeting { since, .. } | Stage::Welcomed { since, .. }
                if now >= since.saturating_add(GREETING_MAX) =>
            {
                return ConnectionHealth::Lost;
            }
            Stage::Reclaiming { .. } | Stage::Up => {
                if now >= self.last_received.saturating_add(self.silence_max()) {
                    return ConnectionHealth::Lost;
                }
                let quiet = self.last_received.max(self.pinged).saturating_add(QUIET);
                if now >= self.pinged.saturating_add(self.ping_every())
                    || (self.in_flight[0] > 0 && now >= quiet)
                {
                    self.pinged = now;
                    // Nothing stands between a reclaim and the last retry, see `Link::retrying`.
                    if matches!(self.stage, Stage::Up) && self.retrying == 0 {
                        self.ping(now);
                    }
                }
            }
            _ => {}
        }
        ConnectionHealth::Fine
    }

    /// Time of the last message of the node; none while it seems well: a connection serves calls,
    /// and every Ping is answered.
    pub fn missing_since(&self, now: Nanos) -> Option<Nanos> {
        if !matches!(self.stage, Stage::Up) {
            return self.silent_since.or(Some(self.last_received));
        }
        let ping = self.pings.front().copied()?;
        (now >= ping.max(self.last_received).saturating_add(ANSWER_MAX))
            .then_some(self.last_received)
    }

    /// The lease lasts as long as the node receives messages of this client: three Pings within
    /// one.
    fn ping_every(&self) -> Nanos {
        self.lease / 3
    }

    /// A ping is answered at once, so after two of them without an answer the connection is dead,
    /// and there is a third of the lease left to come back.
    fn silence_max(&self) -> Nanos {
        self.lease / 3 * 2
    }

    fn give_up(&mut self, now: Nanos) {
        let silent_since = self.silent_since;
        let mut earliest = Nanos::MAX;
        let due = self.calls.ids(|pending| {
            let limit = pending.limit(silent_since);
            if limit > now {
                earliest = earliest.min(limit);
            }
            limit <= now
        });
        self.earliest = earliest;
        for id in due {
            self.give_up_one(id, now);
        }
        self.pump();
    }

    fn give_up_one(&mut self, id: CallId, now: Nanos) {
        let outage = self.silent_since.map(|since| (now - since) / SECOND);
        let Some(pending) = self.calls.get_mut(id) else { return };
        let outcome = match pending.sent {
            Sent::Never => "nothing was done",
            Sent::Before | Sent::Now => "whether it was done is unknown",
        };
        let server = &self.config.server;
        let reason = match outage {
            Some(seconds) => format!(
                "the metadata server {server} has not answered for {seconds} s; {outcome}: try \
                 again when it is back"
            ),
            None => format!(
                "the metadata server {server} was too slow for the call's deadline; {outcome}: try \
                 again"
            ),
        };
        let error = FsError::because(libc::EIO, reason);
        if pending.sent == Sent::Never || !pending.is_pursued() {
            self.end(id, Err(error));
            return;
        }
        // It goes on without its asker.
        let owner = std::mem::replace(&mut pending.owner, CallOwner::GivenUp);
        pending.cancelled |= pending.waits();
        let cancel = pending.cancelled && pending.sent == Sent::Now;
        if cancel {
            self.say_cancel(id);
        }
        if let CallOwner::Requester(done) = owner {
            self.stats.failed += 1;
            self.completions.push(super::FinishedCall {
                id,
                done,
                result: Err(error),
                misdirected: None,
            });
        }
    }
}
