//! The clients of a process that serves a volume over the network: their names, and what they do.

use std::net::SocketAddr;

use kestrel_server::listen::ClockedServer;
use kestrel_types::clock::SECOND;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Sessions told of in a status; all are counted.
const SESSIONS_TOLD_MAX: usize = 1000;

/// The clients that are served, and where.
pub struct Clients {
    /// Name of the volume.
    pub name: String,
    /// Where clients connect.
    pub address: SocketAddr,
    /// The server.
    pub door: ClockedServer,
    /// The sockets, until they are closed.
    pub sockets: Mutex<Option<kestrel_rpc::server::Serving>>,
}

impl Clients {
    /// What `kestrel status` tells of them.
    pub fn status(&self) -> Value {
        let now = self.door.now();
        let server = self.door.server();
        let (stats, sessions) = (server.stats(now), server.sessions(now));
        let told = sessions.iter().take(SESSIONS_TOLD_MAX).map(|session| {
            json!({
                "client": session.client.to_string(),
                "who": session.who,
                "peer": session.peer,
                "state": session.state,
                "since": crate::logger::utc(session.since),
                "lease_left_seconds": session.lease_left as f64 / SECOND as f64,
                "connections": session.incarnation,
                "opens": session.opens,
                "locks": session.locks,
            })
        });
        json!({
            "name": self.name,
            "address": self.address.to_string(),
            "sessions_total": stats.sessions,
            "connected": stats.connected,
            "opens": stats.opens,
            "locks": stats.lock_ranges,
            "grace_left_seconds": stats.grace_left as f64 / SECOND as f64,
            "sessions": told.collect::<Vec<_>>(),
        })
    }

    /// How many have a session that is alive.
    pub fn sessions(&self) -> u64 {
        self.door.server().stats(self.door.now()).sessions
    }

    /// Their figures, by the names of metrics.
    pub fn stats(&self, tell: &mut dyn FnMut(&'static str, u64)) {
        let stats = self.door.server().stats(self.door.now());
        let totals = stats.totals;
        for (name, value) in [
            ("server_sessions", stats.sessions),
            ("server_connected", stats.connected),
            ("server_opens", stats.opens),
            ("server_lock_ranges", stats.lock_ranges),
            ("server_lock_waits", stats.lock_waits),
            ("server_calls", totals.calls),
            ("server_batches", totals.batches),
            ("server_retries", totals.retries),
            ("server_retries_answered", totals.retries_answered),
            ("server_welcomes", totals.welcomes),
            ("server_refused", totals.refused),
            ("server_superseded", totals.superseded),
            ("server_sessions_begun", totals.sessions_begun),
            ("server_sessions_ended", totals.sessions_ended),
            ("server_sessions_expired", totals.sessions_expired),
            ("server_sessions_reclaimed", totals.sessions_reclaimed),
            ("server_opens_reclaimed", totals.opens_reclaimed),
            ("server_opens_lost", totals.opens_lost),
            ("server_locks_reclaimed", totals.locks_reclaimed),
            ("server_locks_lost", totals.locks_lost),
            ("server_calls_refused", totals.calls_refused),
        ] {
            tell(name, value);
        }
        let Some(wire) = self.sockets.lock().as_ref().map(kestrel_rpc::server::Serving::stats)
        else {
            return;
        };
        for (name, value) in [
            ("server_connections", wire.connections),
            ("server_accepted", wire.accepted),
            ("server_malformed", wire.malformed),
            ("server_cut_off", wire.cut_off),
            ("server_encrypted", wire.encrypted),
            ("server_not_encrypted", wire.not_encrypted),
            ("server_unwanted", wire.unwanted),
            ("server_received_bytes", wire.bytes_in),
            ("server_sent_bytes", wire.bytes_out),
            ("server_writes", wire.writes),
        ] {
            tell(name, value);
        }
    }
}
