//! What a connection begins with: the Hello of a client, which a client with a token proves, or the
//! Hello of another node, which the node proves.

use std::sync::Arc;

use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::wire::{Hello, PeerHello, ToClient, ToServer};

use super::{Connection, SECOND_HELLO, Stage, UNPROVED};
use crate::grant::Grant;
use crate::server::{AcceptedPeer, AuthnOutcome, PeerClaim};
use crate::session::SessionConn;

impl Connection {
    /// Takes the messages of the handshake, as far as they have come.
    ///
    /// # Errors
    /// What the peer is refused with.
    pub(super) fn shake_hands(
        &mut self,
        messages: &mut impl Iterator<Item = ToServer>,
        now: Nanos,
    ) -> FsResult<()> {
        if let Stage::Silent = self.stage
            && let Some(message) = messages.next()
        {
            self.take_hello(message, now)?;
        }
        if let Stage::Challenged(hello, nonce) = &self.stage
            && let Some(message) = messages.next()
        {
            self.stage = Stage::Peer(self.take_peer_proof(message, hello, nonce)?);
        }
        if let Stage::Proving(hello, nonce) = &self.stage
            && let Some(message) = messages.next()
        {
            let (hello, nonce) = (Hello::clone(hello), *nonce);
            self.take_proof(message, hello, &nonce, now)?;
        }
        Ok(())
    }

    /// The first message. A client without a token is let in; another client, and a node, get a
    /// challenge.
    fn take_hello(&mut self, message: ToServer, now: Nanos) -> FsResult<()> {
        match message {
            ToServer::Hello(hello) => {
                self.who = hello.who.as_str().into();
                self.token = hello.token;
                match self.server.authenticate(&hello, &self.security)? {
                    AuthnOutcome::Enter(grant) => self.enter(hello, grant, now)?,
                    AuthnOutcome::Prove(nonce) => {
                        let challenge = ToClient::Challenge(nonce);
                        self.server.shared.send(&*self.outbox, self.checksum, &challenge);
                        self.stage = Stage::Proving(Box::new(hello), nonce);
                    }
                }
            }
            ToServer::PeerHello(hello) => {
                let challenge = self.server.challenge_peer(&hello)?;
                self.stage = Stage::Challenged(Box::new(hello), challenge.nonce);
                let challenge = ToClient::PeerChallenge(challenge);
                self.server.shared.send(&*self.outbox, self.checksum, &challenge);
            }
            _ => return Err(SECOND_HELLO),
        }
        Ok(())
    }

    /// A node's answer to the challenge.
    fn take_peer_proof(
        &self,
        message: ToServer,
        hello: &PeerHello,
        nonce: &[u8; 16],
    ) -> FsResult<AcceptedPeer> {
        let ToServer::PeerProof(proof) = message else { return Err(SECOND_HELLO) };
        let claim = PeerClaim { hello, nonce, proof: &proof, security: &self.security };
        self.server.accept_peer(&claim, &self.outbox, &self.peer)
    }

    /// A client's answer to the challenge.
    fn take_proof(
        &mut self,
        message: ToServer,
        hello: Hello,
        nonce: &[u8; 32],
        now: Nanos,
    ) -> FsResult<()> {
        let ToServer::Proof(proof) = message else { return Err(UNPROVED) };
        let grant = self.server.proved(&hello, nonce, &self.security, &proof)?;
        self.enter(hello, Some(grant), now)
    }

    /// Lets a client in.
    fn enter(&mut self, hello: Hello, grant: Option<Arc<Grant>>, now: Nanos) -> FsResult<()> {
        let conn = SessionConn {
            outbox: self.outbox.clone(),
            checksum: self.checksum,
            security: self.security.clone(),
            peer: self.peer.clone(),
        };
        self.token = grant.as_ref().map(|grant| grant.record.id);
        let incarnation = hello.incarnation;
        let session = self.server.greet(hello, conn, grant, now)?;
        self.stage = Stage::Serving(session, incarnation);
        Ok(())
    }
}
