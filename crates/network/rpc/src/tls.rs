//! Connections that no third party can read or change: TLS 1.3, and which side trusts which.
//!
//! | file | |
//! | --- | --- |
//! | `authority` | a volume's certificate authority, made from the volume's secret |
//! | `names` | names in certificates of a volume's authority |
//! | `own` | certificates: of a process, made in memory; of an operator, read from files |
//! | `client` | TLS of the dialing side |
//! | `verify` | how the dialing side verifies that it has reached a node of the volume |
//! | `server` | TLS of the listening side |
//!
//! **Trust of nodes.** Every volume has an [`Authority`] of its own, made from a secret that its
//! nodes have: nothing has to be handed out, renewed or revoked. Each process makes its own
//! certificate in memory when it starts. Nodes verify each other by it.
//!
//! **Trust of clients.** A client trusts the authority with the [`Fingerprint`] that it has, or the
//! authorities by which an operator has signed the server's own certificate. With neither, a client
//! does not connect to another machine: encryption with an unknown peer keeps no attacker out.
//!
//! **Nothing falls back.** Which connections are encrypted is decided by addresses and settings
//! alone ([`TlsMode`]), never by what the other side sends: an attacker between the two cannot make
//! them use less.

mod authority;
mod client;
mod names;
mod own;
mod server;
mod verify;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use kestrel_types::security::is_loopback;
use rustls::crypto::CryptoProvider;

pub use authority::{Authority, Fingerprint};
pub(crate) use client::Chosen;
pub use client::{ClientTls, Trust};
pub use own::OwnFiles;
pub use server::{ServerTls, https_config};
pub(crate) use verify::name_of_server;

/// What both sides say they speak over TLS, so that no other protocol's server or client is taken
/// for ours.
const PROTOCOL: &[u8] = b"kestrel";

/// Which connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Those that leave this machine.
    #[default]
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

impl TlsMode {
    /// Whether a connection with this address is.
    pub fn wants(self, other: IpAddr) -> bool {
        match self {
            Self::Auto => !is_loopback(other),
            Self::On => true,
            Self::Off => false,
        }
    }
}

impl FromStr for TlsMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text:?}: auto, on or off")),
        }
    }
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Why certificates or keys cannot be used. Never contains anything of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsError(pub String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

fn failed(what: &str, why: impl fmt::Display) -> TlsError {
    TlsError(format!("{what}: {why}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
