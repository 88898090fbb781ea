//! What metadata nodes say to each other: which node a connection comes from, and then envelopes;
//! their bytes are the members' own matter (`kestrel_cluster`).

use std::fmt;

use super::basic::{WireWriter, text};
use super::session::{MAGIC, versions};
use super::{HELLO_BYTES_MAX, Versions, WireError};
use crate::codec::{DecodeError, Reader};
use crate::placement::NodeId;
use crate::placement::slot_map::ADDRESS_MAX;

/// Refused: the directory of the node that dials is not the one that this cluster knows.
pub const REFUSED_NODE_UUID: i32 = libc::EKEYREJECTED;

/// Refused: an old copy of the directory was started.
pub const REFUSED_OLD: i32 = libc::EKEYEXPIRED;

/// Refused: another process is this start of the node.
pub const REFUSED_TWICE: i32 = libc::ENOTUNIQ;

/// Errno of a refusal: the node has left the cluster.
pub const REFUSED_LEFT: i32 = libc::EKEYREVOKED;

/// Whether a node that is refused with this must not go on: what it would serve is not what its
/// cluster has.
pub fn is_refused_for_good(errno: i32) -> bool {
    [REFUSED_NODE_UUID, REFUSED_OLD, REFUSED_TWICE, REFUSED_LEFT].contains(&errno)
}

/// What the nodes of a cluster know and nobody else: 16 random bytes. Never shown, and never sent.
#[derive(Clone, Copy)]
pub struct PeerSecret(pub [u8; 16]);

impl PartialEq for PeerSecret {
    /// Takes the same time wherever they differ.
    fn eq(&self, other: &Self) -> bool {
        let differ = self.0.iter().zip(&other.0).fold(0, |differ, (one, two)| differ | (one ^ two));
        std::hint::black_box(differ) == 0
    }
}

impl Eq for PeerSecret {}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret(..)")
    }
}

/// First message of a connection that another node of the cluster has dialed. Answer:
/// [`PeerChallenge`], or Refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Versions offered.
    pub versions: Versions,
    /// The volume.
    pub volume: [u8; 16],
    /// The node that dials.
    pub from: NodeId,
    /// The node that it means to have reached.
    pub to: NodeId,
    /// Version of its placement map.
    pub table: u64,
    /// Random, of this connection: what the other side proves itself by.
    pub nonce: [u8; 16],
    /// The word that its directory was born with.
    pub node_uuid: u64,
    /// Counts the starts of that directory.
    pub epoch: u64,
    /// Random, of the process: tells two starts of copies apart.
    pub start: u64,
    /// Where others reach this start, `host:port`; 1 to 255 bytes.
    pub address: String,
}

pub(super) fn put_hello(hello: &PeerHello, w: &mut WireWriter<'_>) {
    w.fixed(MAGIC);
    w.fixed(hello.versions.min.to_be_bytes());
    w.fixed(hello.versions.max.to_be_bytes());
    w.fixed(hello.volume);
    w.fixed(hello.from.to_be_bytes());
    w.fixed(hello.to.to_be_bytes());
    w.fixed(hello.table.to_be_bytes());
    w.fixed(hello.nonce);
    w.fixed(hello.node_uuid.to_be_bytes());
    w.fixed(hello.epoch.to_be_bytes());
    w.fixed(hello.start.to_be_bytes());
    w.bounded(hello.address.as_bytes(), ADDRESS_MAX, "the address of a node");
    const { assert!(4 + 4 + 16 + 4 + 4 + 8 + 16 + 3 * 8 + 2 + ADDRESS_MAX <= HELLO_BYTES_MAX) };
}

pub(super) fn hello(r: &mut Reader<'_>) -> Result<PeerHello, WireError> {
    let versions = versions(r)?;
    let volume = number(r)?;
    let (from, to, table) = (r.u32()?, r.u32()?, r.u64()?);
    let nonce = number(r)?;
    let (node_uuid, epoch, start) = (r.u64()?, r.u64()?, r.u64()?);
    let address = text(r, ADDRESS_MAX)?.to_string();
    if address.is_empty() {
        return Err(DecodeError("a node without an address").into());
    }
    Ok(PeerHello { versions, volume, from, to, table, nonce, node_uuid, epoch, start, address })
}

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// The answer to a [`PeerHello`]: the node that was dialed knows the cluster's secret, and wants
/// the same proof from the node that has dialed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerChallenge {
    /// Random, of this connection.
    pub nonce: [u8; 16],
    /// That it knows the secret ([`PeerHello::transcript`]).
    pub proof: [u8; PROOF_BYTES],
}

/// Which side of a connection between nodes proves that it knows the secret. What one has said is
/// of no use to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Prover {
    /// The node that has dialed.
    Dialed = 1,
    /// The node that it has reached.
    Reached = 2,
}

impl PeerHello {
    /// What a proof is an HMAC-SHA256 of, with the cluster's secret as its key: which side proves,
    /// everything that the Hello says, and the nonce of the node that was reached.
    pub fn transcript(&self, prover: Prover, nonce: &[u8; 16]) -> Vec<u8> {
        let mut bytes = b"kestrelfs peer proof 1".to_vec();
        bytes.push(prover as u8);
        bytes.extend_from_slice(nonce);
        put_hello(self, &mut WireWriter::new(&mut bytes));
        bytes
    }
}

pub(super) fn put_challenge(challenge: &PeerChallenge, w: &mut WireWriter<'_>) {
    w.fixed(challenge.nonce);
    w.fixed(challenge.proof);
}

pub(super) fn challenge(r: &mut Reader<'_>) -> Result<PeerChallenge, DecodeError> {
    Ok(PeerChallenge { nonce: number(r)?, proof: number(r)? })
}

pub(super) fn number<const N: usize>(r: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
    let mut number = [0; N];
    number.copy_from_slice(r.bytes(N)?);
    Ok(number)
}
