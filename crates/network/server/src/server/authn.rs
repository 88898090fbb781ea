//! Admission: whether a client has to show a token, and whether it has the one it names.

use std::sync::Arc;

use kestrel_rpc::token;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::security::{PeerName, Security};
use kestrel_types::token::TokenId;
use kestrel_types::wire::Hello;

use super::Server;
use crate::config::Access;
use crate::grant::Grant;

const NEEDED: FsError = FsError::new(
    libc::EACCES,
    "clients of this node show a token: `kestrel token create` makes one on the server; give it \
     with --token-file or \
     KESTREL_TOKEN_FILE",
);
const NOT_IN_CLEAR: FsError = FsError::new(
    libc::EACCES,
    "a token is not shown over a connection that others can read: connect with TLS, or from this \
     machine",
);
const NOT_PROVED: FsError = FsError::new(
    libc::EACCES,
    "the token is not the one that this volume has under its number: copy all of it",
);

/// What a Hello comes to.
pub(crate) enum AuthnOutcome {
    /// The client is let in, and may do this, or all if there is nothing.
    Enter(Option<Arc<Grant>>),
    /// It has to answer this first.
    Prove([u8; 32]),
}

impl Server {
    /// Judges a Hello by what it came over.
    ///
    /// # Errors
    /// What the client is refused with.
    pub(crate) fn authenticate(
        &self,
        hello: &Hello,
        security: &Security,
    ) -> FsResult<AuthnOutcome> {
        if hello.token.is_some() {
            if !security.is_private() {
                return Err(NOT_IN_CLEAR);
            }
            let nonce = token::nonce().map_err(|why| FsError::new(libc::EAGAIN, why))?;
            return Ok(AuthnOutcome::Prove(nonce));
        }
        if let Security::Tls { peer: Some(PeerName::Client(name)) } = security {
            let id = TokenId::parse(name).ok_or(NOT_PROVED)?;
            return self
                .tokens
                .grant(id, self.clock.now())
                .map(|grant| AuthnOutcome::Enter(Some(grant)));
        }
        match self.shared.config.access {
            Access::Open => Ok(AuthnOutcome::Enter(None)),
            Access::Auto if *security == Security::Loopback => Ok(AuthnOutcome::Enter(None)),
            Access::Auto | Access::Tokens => Err(NEEDED),
        }
    }

    /// Judges the answer of a client that had to prove that it has its token, over such a
    /// connection. No client is let in without a proof that was checked: a record that comes later
    /// is for the next connection.
    ///
    /// # Errors
    /// What the client is refused with.
    pub(crate) fn proved(
        &self,
        hello: &Hello,
        nonce: &[u8; 32],
        over: &Security,
        proof: &[u8; 32],
    ) -> FsResult<Arc<Grant>> {
        let id = hello.token.ok_or(NEEDED)?;
        let granted = self.tokens.grant(id, self.clock.now());
        let Some(record) = self.tokens.record(id) else { return granted.and(Err(NOT_PROVED)) };
        if !token::is_proof(&record.verifier, nonce, hello, over, proof) {
            return Err(NOT_PROVED);
        }
        granted
    }
}
