//! The clients of a served volume. A client has a session at each node, and is shown once.

use serde_json::Value;

/// What all sessions of one client tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSummary {
    /// What it is, on which machine, and its process.
    pub name: String,
    /// The address that it connects from; none if it is not connected.
    pub host: Option<String>,
    /// Since when its first session is there.
    pub since: String,
    /// Its sessions, one at each node.
    pub sessions: usize,
    /// Those that are connected.
    pub connected: usize,
    /// Those that reclaim what they held before the server's restart.
    pub reclaiming: usize,
    pub opens: u64,
    pub locks: u64,
    /// Until the first of its leases ends, seconds.
    pub lease_seconds: u64,
}

impl ClientSummary {
    fn of(session: &Value) -> Self {
        let number = |name: &str| session[name].as_u64().unwrap_or(0);
        let without_port = |peer| str::rsplit_once(peer, ':').map_or(peer, |(host, _)| host);
        let host = session["peer"].as_str().map(without_port);
        Self {
            name: session["who"].as_str().unwrap_or("a client without a name").into(),
            host: host.map(String::from),
            since: session["since"].as_str().unwrap_or_default().into(),
            sessions: 1,
            connected: usize::from(host.is_some()),
            reclaiming: usize::from(session["state"] == "reclaiming"),
            opens: number("opens"),
            locks: number("locks"),
            lease_seconds: session["lease_left_seconds"].as_f64().unwrap_or(0.0) as u64,
        }
    }

    /// Whether `other` is a session of the same client. Machines may have the same name, so the
    /// address counts where it is known.
    fn is(&self, other: &Self) -> bool {
        let same_host = self.host == other.host || self.host.is_none() || other.host.is_none();
        self.name == other.name && same_host
    }

    fn add(&mut self, other: Self) {
        self.host = self.host.take().or(other.host);
        self.since = std::mem::take(&mut self.since).min(other.since);
        self.sessions += other.sessions;
        self.connected += other.connected;
        self.reclaiming += other.reclaiming;
        self.opens += other.opens;
        self.locks += other.locks;
        self.lease_seconds = self.lease_seconds.min(other.lease_seconds);
    }

    /// How it stands with the client, if not as always.
    pub fn state(&self) -> Option<String> {
        match (self.connected, self.reclaiming) {
            (0, _) => Some(format!("not connected, its lease ends in {} s", self.lease_seconds)),
            (_, 1..) => Some("reclaims what it held before the server's restart".into()),
            (connected, 0) if connected < self.sessions => {
                Some(format!("connected to {connected} of {} nodes", self.sessions))
            }
            _ => None,
        }
    }
}

/// The clients that these sessions belong to, in order of their names.
pub fn clients(sessions: &[Value]) -> Vec<ClientSummary> {
    let mut all: Vec<ClientSummary> = Vec::new();
    for session in sessions.iter().map(ClientSummary::of) {
        match all.iter_mut().find(|client| client.is(&session)) {
            Some(client) => client.add(session),
            None => all.push(session),
        }
    }
    all.sort_by(|one, other| (&one.name, &one.host).cmp(&(&other.name, &other.host)));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(who: &str, peer: Option<&str>, opens: u64) -> Value {
        json!({
            "who": who, "peer": peer, "state": "live", "since": format!("2026-01-0{opens}"),
            "opens": opens, "locks": 1,
            "lease_left_seconds": 7.9,
        })
    }

    /// Sessions at several nodes are one client, and those of two machines two.
    #[test]
    fn one_client_of_many_sessions() {
        let sessions = [
            session("mount /b", Some("10.0.0.9:50"), 2),
            session("mount /a", Some("10.0.0.8:41"), 1),
            session("mount /a", Some("10.0.0.8:42"), 2),
            session("mount /a", Some("10.0.0.7:43"), 4),
            session("mount /a", Some("10.0.0.8:44"), 3),
        ];
        let found = clients(&sessions);
        let names: Vec<_> = found
            .iter()
            .map(|client| (&*client.name, client.sessions, client.opens, client.locks))
            .collect();
        assert_eq!(names, [("mount /a", 1, 4, 1), ("mount /a", 3, 6, 3), ("mount /b", 1, 2, 1)]);
        assert_eq!((found[1].host.as_deref(), &*found[1].since), (Some("10.0.0.8"), "2026-01-01"));
        assert!(found.iter().all(|client| client.state().is_none()));
    }

    /// What is not as always is said of a client, in one phrase.
    #[test]
    fn state_of_a_client() {
        let connected = session("a", Some("[::1]:41"), 1);
        let silent = session("a", None, 2);
        let [client] = &clients(&[connected.clone(), silent.clone()])[..] else {
            panic!("one client")
        };
        assert_eq!(client.state().as_deref(), Some("connected to 1 of 2 nodes"));
        let alone = &clients(&[silent])[0];
        assert_eq!(alone.state().as_deref(), Some("not connected, its lease ends in 7 s"));
        let mut reclaiming = connected;
        reclaiming["state"] = "reclaiming".into();
        assert!(clients(&[reclaiming])[0].state().unwrap().contains("reclaims"));
    }
}
