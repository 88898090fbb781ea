//! Proofs between nodes that each has the cluster's secret, which is never sent.
//!
//! Each side signs the same Hello with both sides' random numbers, so nothing of one connection is
//! of use in another, and no proof of one side is a proof of the other. Over TLS the certificates
//! have proved the same already, and the node's number besides; in clear (within a machine, or
//! where TLS is switched off by name) this is what keeps other processes out.

use kestrel_types::wire::{PROOF_BYTES, PeerHello, PeerSecret, Prover};
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use ring::rand::{SecureRandom, SystemRandom};

/// A random number for one connection; none if the system has no randomness.
pub fn nonce() -> Option<[u8; 16]> {
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).ok()?;
    Some(nonce)
}

/// The proof that this side has the secret. `nonce` is that of the node that was reached.
pub fn prove(
    secret: &PeerSecret,
    prover: Prover,
    hello: &PeerHello,
    nonce: &[u8; 16],
) -> [u8; PROOF_BYTES] {
    let tag = sign(&key(secret), &hello.transcript(prover, nonce));
    let mut proof = [0; PROOF_BYTES];
    proof.copy_from_slice(tag.as_ref());
    proof
}

/// Whether the other side has the secret. Takes the same time wherever the proof differs.
pub fn holds(
    secret: &PeerSecret,
    prover: Prover,
    hello: &PeerHello,
    nonce: &[u8; 16],
    proof: &[u8; PROOF_BYTES],
) -> bool {
    verify(&key(secret), &hello.transcript(prover, nonce), proof).is_ok()
}

fn key(secret: &PeerSecret) -> Key {
    Key::new(HMAC_SHA256, &secret.0)
}

#[cfg(test)]
mod tests {
    use kestrel_types::wire::Versions;

    use super::*;

    #[test]
    fn a_proof_is_of_one_side_of_one_connection() {
        let hello = PeerHello {
            versions: Versions::OURS,
            volume: [1; 16],
            from: 1,
            to: 2,
            table: 1,
            nonce: [3; 16],
            node_uuid: 4,
            epoch: 5,
            start: 6,
            address: "a:1".into(),
        };
        let secret = PeerSecret([7; 16]);
        let proof = prove(&secret, Prover::Dialed, &hello, &[8; 16]);
        let holds = |secret: [u8; 16], prover, hello: &PeerHello, nonce: [u8; 16]| {
            super::holds(&PeerSecret(secret), prover, hello, &nonce, &proof)
        };
        assert!(holds([7; 16], Prover::Dialed, &hello, [8; 16]));
        assert!(!holds([6; 16], Prover::Dialed, &hello, [8; 16]), "another secret");
        assert!(!holds([7; 16], Prover::Reached, &hello, [8; 16]), "the other side's");
        assert!(!holds([7; 16], Prover::Dialed, &hello, [9; 16]), "a replay to the node");
        assert!(!holds(
            [7; 16],
            Prover::Dialed,
            &PeerHello { nonce: [4; 16], ..hello.clone() },
            [8; 16]
        ));
        assert!(
            !holds([7; 16], Prover::Dialed, &PeerHello { epoch: 6, ..hello.clone() }, [8; 16]),
            "changed on the way"
        );
        let elsewhere = PeerHello { address: "b:1".into(), ..hello.clone() };
        assert!(!holds([7; 16], Prover::Dialed, &elsewhere, [8; 16]), "another address");
        assert_ne!(nonce(), nonce());
    }
}
