//! What metadata nodes say to each other: who a connection comes from, and then envelopes, whose bytes are the members' own matter
//! (`kestrel_meta::member`).

use std::fmt;

use super::basic::Writer;
use super::session::{MAGIC, versions};
use super::{HELLO_BYTES_MAX, Versions, WireError};
use crate::codec::{DecodeError, Reader};
use crate::placement::NodeId;

/// Refused: the directory of the node that dials is not the one that this cluster knows.
pub const REFUSED_BIRTH: i32 = libc::EKEYREJECTED;

/// Refused: an old copy of the directory was started.
pub const REFUSED_OLD: i32 = libc::EKEYEXPIRED;

/// Refused: another process is this start of the node.
pub const REFUSED_TWICE: i32 = libc::ENOTUNIQ;

/// Errno of a refusal: the node has left the cluster.
pub const REFUSED_LEFT: i32 = libc::EKEYREVOKED;

/// Whether a node that is refused with this must not go on: what it would serve is not what its cluster has.
pub fn is_refused_for_good(errno: i32) -> bool {
    [REFUSED_BIRTH, REFUSED_OLD, REFUSED_TWICE, REFUSED_LEFT].contains(&errno)
}

/// What the nodes of a cluster know and nobody else: 16 random bytes. Never shown.
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

/// First message of a connection that another node of the cluster has dialed. Answer: nothing, or Refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Versions offered.
    pub versions: Versions,
    /// The volume.
    pub volume: [u8; 16],
    /// Who dials.
    pub from: NodeId,
    /// Whom it means to have reached.
    pub to: NodeId,
    /// Version of its table of placement.
    pub table: u64,
    /// The cluster's.
    pub secret: PeerSecret,
    /// The word that its directory was born with.
    pub birth: u64,
    /// Counts the starts of that directory.
    pub epoch: u64,
    /// Random, of the process: tells two starts of copies apart.
    pub start: u64,
}

pub(super) fn put_hello(hello: &PeerHello, w: &mut Writer<'_>) {
    w.fixed(MAGIC);
    w.fixed(hello.versions.min.to_be_bytes());
    w.fixed(hello.versions.max.to_be_bytes());
    w.fixed(hello.volume);
    w.fixed(hello.from.to_be_bytes());
    w.fixed(hello.to.to_be_bytes());
    w.fixed(hello.table.to_be_bytes());
    w.fixed(hello.secret.0);
    w.fixed(hello.birth.to_be_bytes());
    w.fixed(hello.epoch.to_be_bytes());
    w.fixed(hello.start.to_be_bytes());
    const { assert!(4 + 4 + 16 + 4 + 4 + 8 + 16 + 3 * 8 <= HELLO_BYTES_MAX) };
}

pub(super) fn hello(r: &mut Reader<'_>) -> Result<PeerHello, WireError> {
    let versions = versions(r)?;
    let volume = number(r)?;
    let (from, to, table) = (r.u32()?, r.u32()?, r.u64()?);
    let secret = PeerSecret(number(r)?);
    let (birth, epoch, start) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(PeerHello { versions, volume, from, to, table, secret, birth, epoch, start })
}

fn number(r: &mut Reader<'_>) -> Result<[u8; 16], DecodeError> {
    let mut number = [0; 16];
    number.copy_from_slice(r.bytes(16)?);
    Ok(number)
}
