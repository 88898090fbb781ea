//! Tokens: what a client has, and how it proves that without saying it.
//!
//! ```text
//! key      = HMAC-SHA-256(secret, "kestrel token 1")        only a holder of the token has it
//! verifier = SHA-256(key)                                   what nodes have on record
//! proof    = key ⊕ HMAC-SHA-256(verifier, nonce ‖ context)  what is sent, once
//! ```
//!
//! A gateway for S3 that has the token checks signatures by another secret that comes from it:
//!
//! ```text
//! S3 secret = the first 20 bytes of HMAC-SHA-256(secret, "kestrel s3 secret 1"), in hexadecimal
//! ```
//!
//! That is the scheme of SCRAM (RFC 5802) without its iterations, which make guessing passwords
//! slow: the secret is 32 random bytes. An attacker that reads the records of a node cannot make a
//! proof; one that hears a proof cannot make another one; only one that has done both could. The
//! context is the Hello that the proof is for, and what each side takes the connection to run over:
//! an attacker in between, a client within this machine at one end and over TLS at the other,
//! cannot hand a proof on.

use std::fmt;

use kestrel_types::security::Security;
use kestrel_types::token::TokenId;
use kestrel_types::wire::{ClientId, Hello};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

/// How the text of a token begins: what it is, and the version of the text.
const PREFIX: &str = "kestrel-token:1:";

/// What the key of a token is made for.
const LABEL: &[u8] = b"kestrel token 1";

/// What the secret of its access key of S3 is made for.
const S3_LABEL: &[u8] = b"kestrel s3 secret 1";

/// How the access keys of tokens begin.
const S3_PREFIX: &str = "KET";

/// Bytes of a secret of S3: as many as those of AWS have, in another alphabet.
const S3_SECRET_BYTES: usize = 20;

/// The number of the token of nodes.
pub const OF_NODES: TokenId = TokenId(*b"of nodes");

/// Longest text of a token, bytes: for reading it from a file.
pub const TEXT_MAX: usize = 256;

/// A token as a client has it.
#[derive(Clone)]
pub struct Token {
    /// Its number.
    pub id: TokenId,
    secret: [u8; 32],
    /// What the certificates of the volume's nodes are verified by, as the volume's authority calls
    /// it; none if it has none.
    pub authority: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What stands for a token in the records of nodes.
pub type Verifier = [u8; 32];

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(authority: Option<String>) -> Result<Self, &'static str> {
        let (mut id, mut secret) = (TokenId([0; 8]), [0; 32]);
        let random = SystemRandom::new();
        let drawn = random.fill(&mut id.0).and_then(|()| random.fill(&mut secret));
        drawn.map_err(|_| "the system gives no random numbers")?;
        Ok(Self { id, secret, authority })
    }

    /// The one that the nodes of a cluster with this secret show each other where they are clients
    /// of each other. On no record: nodes know it.
    pub fn of_nodes(secret: &[u8], authority: Option<String>) -> Self {
        Self {
            id: OF_NODES,
            secret: sign(&hash(secret), &[b"kestrel token of nodes 1"]),
            authority,
        }
    }

    /// Reads what [`Token::reveal`] wrote.
    ///
    /// # Errors
    /// The message says what is wrong, and nothing of the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let rest = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or("it is no token: one begins with kestrel-token:1:")?;
        let mut parts = rest.splitn(3, ':');
        let mut part = || parts.next().ok_or("it is no whole token: copy all of it");
        let (id, secret, authority) = (part()?, part()?, part()?);
        let id = TokenId::parse(id).ok_or("its number is none")?;
        let secret = unhex(secret).ok_or("its secret is none: copy all of it")?;
        if authority.is_empty() || authority.chars().any(char::is_whitespace) {
            return Err("what it says of the volume's authority is nothing: copy all of it");
        }
        let authority = (authority != "-").then(|| authority.to_string());
        Ok(Self { id, secret, authority })
    }

    /// The whole token as text, its secret included.
    pub fn reveal(&self) -> String {
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{}:{secret}:{}", self.id, self.authority.as_deref().unwrap_or("-"))
    }

    /// Its access key of S3: its number.
    pub fn s3_access_key(&self) -> String {
        format!("{S3_PREFIX}{}", self.id.to_string().to_uppercase())
    }

    /// The secret of this access key. Neither the token nor what verifies it can be made from it.
    pub fn s3_secret(&self) -> String {
        let whole = sign(&self.secret, &[S3_LABEL]);
        kestrel_types::hex::to_hex(&whole[..S3_SECRET_BYTES])
    }

    fn key(&self) -> [u8; 32] {
        sign(&self.secret, &[LABEL])
    }

    /// What nodes check its proofs by.
    pub fn verifier(&self) -> Verifier {
        hash(&self.key())
    }

    /// Proves that this client has it, to the server that has sent this nonce in answer to this
    /// Hello over such a connection.
    pub fn prove(&self, nonce: &[u8; 32], hello: &Hello, over: &Security) -> [u8; 32] {
        let key = self.key();
        let mut proof = mask(&hash(&key), nonce, hello, over);
        proof.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        proof
    }
}

/// Whether a proof is one of the token with this verifier.
pub fn is_proof(
    verifier: &Verifier,
    nonce: &[u8; 32],
    hello: &Hello,
    over: &Security,
    proof: &[u8; 32],
) -> bool {
    let mut key = mask(verifier, nonce, hello, over);
    key.iter_mut().zip(proof).for_each(|(byte, proof)| *byte ^= proof);
    // A hash of what was sent is compared, so the time that it takes gives nothing away about the
    // verifier.
    hash(&key) == *verifier
}

/// A nonce.
///
/// # Errors
/// If the system has no random numbers.
pub fn nonce() -> Result<[u8; 32], &'static str> {
    let mut nonce = [0; 32];
    SystemRandom::new().fill(&mut nonce).map_err(|_| "the system gives no random numbers")?;
    Ok(nonce)
}

fn mask(verifier: &Verifier, nonce: &[u8; 32], hello: &Hello, over: &Security) -> [u8; 32] {
    // Pinned: both sides say it.
    let over = match over {
        Security::Plain => 0,
        Security::Loopback => 1,
        Security::Tls { .. } => 2,
    };
    let Hello { client: ClientId(client), incarnation, volume, token, .. } = hello;
    let token = token.map_or([0; 8], |token| token.0);
    sign(verifier, &[nonce, client, &incarnation.to_be_bytes(), &token, &[over], volume.as_bytes()])
}

fn sign(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; 32];
    out.copy_from_slice(context.sign().as_ref());
    out
}

/// SHA-256.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use kestrel_types::wire::Versions;

    use super::*;

    const LOOPBACK: Security = Security::Loopback;
    const FAR: Security = Security::Tls { peer: None };

    fn hello(token: &Token) -> Hello {
        Hello {
            versions: Versions::OURS,
            volume: "v".into(),
            client: ClientId([7; 16]),
            incarnation: 3,
            who: "test".into(),
            established: false,
            token: Some(token.id),
        }
    }

    #[test]
    fn a_proof_is_good_for_one_nonce_and_one_hello() {
        let (token, other) = (Token::new(None).unwrap(), Token::new(None).unwrap());
        let (verifier, hello) = (token.verifier(), hello(&token));
        let nonce = nonce().unwrap();
        let proof = token.prove(&nonce, &hello, &LOOPBACK);
        assert!(is_proof(&verifier, &nonce, &hello, &LOOPBACK, &proof));
        assert!(!is_proof(&verifier, &[1; 32], &hello, &LOOPBACK, &proof));
        assert!(!is_proof(
            &verifier,
            &nonce,
            &Hello { incarnation: 4, ..hello.clone() },
            &LOOPBACK,
            &proof
        ));
        assert!(!is_proof(
            &verifier,
            &nonce,
            &Hello { volume: "w".into(), ..hello.clone() },
            &LOOPBACK,
            &proof
        ));
        assert!(!is_proof(&verifier, &nonce, &hello, &FAR, &proof));
        assert!(is_proof(&verifier, &nonce, &hello, &FAR, &token.prove(&nonce, &hello, &FAR)));
        assert!(!is_proof(&other.verifier(), &nonce, &hello, &LOOPBACK, &proof));
        assert!(!is_proof(
            &verifier,
            &nonce,
            &hello,
            &LOOPBACK,
            &other.prove(&nonce, &hello, &LOOPBACK)
        ));
        assert!(!is_proof(&verifier, &nonce, &hello, &LOOPBACK, &[0; 32]));
    }

    /// Token texts read back, and errors about them do not show the secret.
    #[test]
    fn token_text_round_trip_and_errors() {
        for authority in [None, Some("sha256:00ff".to_string())] {
            let token = Token::new(authority.clone()).unwrap();
            let text = token.reveal();
            let read = Token::parse(&format!(" {text}\n")).unwrap();
            assert_eq!(
                (read.id, read.verifier(), &read.authority),
                (token.id, token.verifier(), &authority)
            );
            assert!(text.len() <= TEXT_MAX);
            let shown = format!("{token:?}");
            assert!(!shown.contains(text.split(':').nth(3).unwrap()), "{shown}");
            for cut in 0..text.len() - authority.map_or(1, |name| name.len()) {
                assert!(Token::parse(&text[..cut]).is_err(), "{cut}");
            }
        }
        assert!(Token::parse("kestrel-token:2:0000000000000000:00:-").is_err());
    }
}
