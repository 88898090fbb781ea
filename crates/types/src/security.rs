//! How far a connection can be trusted: what both of its ends decide by.

use std::net::{IpAddr, SocketAddr};

use crate::placement::NodeId;
use crate::wire::Checksum;

/// The identity that the other side has proved, by a certificate of the volume's authority.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PeerName {
    /// A node of the cluster.
    Node(NodeId),
    /// A client, by the name in its certificate: the id of the token that it was made for.
    Client(String),
}

/// What a connection runs over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Security {
    /// Within this machine: an attacker that could listen or meddle there may do all that this
    /// process may.
    Loopback,
    /// In clear over a network. Nothing secret may be said, and nothing that is heard is certain.
    Plain,
    /// Encrypted. A client has always verified the server.
    Tls {
        /// The identity that the other side has proved; none if it has shown no certificate, or one
        /// that names nobody (an operator's own).
        peer: Option<PeerName>,
    },
}

impl Security {
    /// That of a connection without TLS to (or from) this address.
    pub fn without_tls(other: SocketAddr) -> Self {
        if is_loopback(other.ip()) { Self::Loopback } else { Self::Plain }
    }

    /// Whether frames need checksums: not within a machine, which does not damage bytes, nor where
    /// the encryption has its own.
    pub fn checksum(&self) -> Checksum {
        match self {
            Self::Loopback | Self::Tls { .. } => Checksum::Off,
            Self::Plain => Checksum::Crc32c,
        }
    }

    /// Whether nobody between the two ends can read what is said.
    pub fn is_private(&self) -> bool {
        *self != Self::Plain
    }
}

/// Whether the address is within this machine, be it written as one of IPv4 or of IPv6.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known_in_every_spelling() {
        for (address, security) in [
            ("127.0.0.1:9440", Security::Loopback),
            ("127.8.0.1:9440", Security::Loopback),
            ("[::1]:9440", Security::Loopback),
            ("[::ffff:127.0.0.1]:9440", Security::Loopback),
            ("[::ffff:10.0.0.1]:9440", Security::Plain),
            ("10.0.0.1:9440", Security::Plain),
            ("0.0.0.0:9440", Security::Plain),
            ("[fe80::1]:9440", Security::Plain),
        ] {
            assert_eq!(Security::without_tls(address.parse().unwrap()), security, "{address}");
        }
    }
}
