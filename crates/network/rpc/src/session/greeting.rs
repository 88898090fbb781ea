//! The greeting: Hello, the challenge of a client that has a token, Welcome or refusal.

use kestrel_types::clock::Nanos;
use kestrel_types::wire::{Hello, Refused, SessionState, ToServer, Versions, Welcome};

use super::{Broken, Link, LinkEvent, Stage};

/// Shortest lease that makes sense, nanoseconds; a node that grants less is taken to grant this.
const LEASE_MIN: Nanos = kestrel_types::clock::SECOND / 100;

impl<D> Link<D> {
    /// Sends Hello; the node answers with a challenge, a Welcome or a refusal.
    pub(super) fn greet(&mut self, now: Nanos) {
        let hello = Hello {
            versions: Versions::OURS,
            volume: self.config.volume.clone(),
            client: self.config.client,
            incarnation: self.incarnation,
            who: self.config.who.clone(),
            established: self.established,
            token: self.config.token.as_ref().map(|token| token.id),
        };
        self.say(&ToServer::Hello(hello.clone()));
        let hello = hello.token.is_some().then(|| Box::new(hello));
        self.stage = Stage::Greeting { since: now, hello };
    }

    /// Proves that this client has the token, once a connection, and never where a third party
    /// could read it.
    pub(super) fn challenged(&mut self, nonce: &[u8; 32]) -> Result<(), Broken> {
        if !self.security.is_private() {
            let reason =
                "a token is not shown over a connection that others can read: connect with TLS"
                    .into();
            return Err(self.refused(Refused { errno: libc::EACCES, reason }));
        }
        let (Stage::Greeting { hello, .. }, Some(token)) = (&mut self.stage, &self.config.token)
        else {
            return Ok(());
        };
        if let Some(hello) = hello.take() {
            let proof = token.prove(nonce, &hello, &self.security);
            self.say(&ToServer::Proof(proof));
        }
        Ok(())
    }

    /// Takes the Welcome: the driver checks that it is from the node that is meant.
    pub(super) fn welcomed(&mut self, welcome: Welcome, greeted: Nanos) -> Result<(), Broken> {
        if !(Versions::OURS.min..=Versions::OURS.max).contains(&welcome.version) {
            return Err(Broken(format!(
                "the metadata server chose version {} of the protocol",
                welcome.version
            )));
        }
        self.lease = Nanos::from(welcome.lease_ms).saturating_mul(1_000_000).max(LEASE_MIN);
        let (session, map_version) = (welcome.session, welcome.table);
        self.stage = Stage::Welcomed { since: self.last_received, greeted, session, map_version };
        self.events.push_back(LinkEvent::Welcomed(welcome));
        Ok(())
    }

    /// The node that answered the Hello is the one that is meant: what is owed to it is sent.
    /// Ignored at other times.
    pub fn accept(&mut self) {
        let Stage::Welcomed { session, greeted, map_version, .. } = self.stage else { return };
        self.proven = greeted;
        self.mention(map_version);
        self.stats.welcomes += 1;
        let lost = match session {
            SessionState::New => self.established.then_some(session),
            SessionState::Known => None,
            SessionState::Restarted | SessionState::Expired => Some(session),
        };
        if let Some(lost) = lost {
            self.forget(lost);
        }
        self.established = true;
        // A reclaim without an answer is not over, and what it has to mend does not become less.
        self.lost = lost.into_iter().chain(self.lost).max_by_key(|lost| severity(*lost));
        if let Some(lost) = self.lost {
            self.stats.reclaims += 1;
            self.stage = Stage::Reclaiming { parts: None };
            self.events.push_back(LinkEvent::ReclaimWanted { lost });
        } else {
            self.serve(false);
        }
    }

    /// The node does not serve this client, and will not later either, so no call waits for that.
    pub(super) fn refused(&mut self, refused: Refused) -> Broken {
        let why = format!("refused: {}", refused.reason);
        if refused.errno == libc::EACCES {
            self.fail_all(
                |_| true,
                libc::EACCES,
                "the metadata server does not let this client in: its log, and this client's, \
                 say why",
            );
        }
        self.events.push_back(LinkEvent::Refused(refused));
        Broken(why)
    }
}

/// How much a client has lost.
fn severity(session: SessionState) -> u8 {
    match session {
        SessionState::Known => 0,
        SessionState::Restarted => 1,
        SessionState::Expired => 2,
        SessionState::New => 3,
    }
}
