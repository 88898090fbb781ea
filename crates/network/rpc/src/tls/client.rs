//! TLS of the dialing side.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use kestrel_types::placement::NodeId;
use kestrel_types::security::PeerName;
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;

use super::authority::{Authority, Fingerprint};
use super::own::{Own, OwnFiles, certificates};
use super::verify::ByFingerprint;
use super::{PROTOCOL, TlsError, TlsMode, failed, names, provider};

/// How a client recognizes the server.
#[derive(Clone, PartialEq, Eq)]
pub enum Trust {
    /// Every node of the volume with this authority.
    Authority(Fingerprint),
    /// By a certificate of one of these, for the name or address that was dialed.
    Roots(Vec<CertificateDer<'static>>),
}

impl Trust {
    /// The contents of a file: the certificate of a volume's authority, as `kestrel cluster ca`
    /// prints it, or an operator's authorities.
    ///
    /// # Errors
    /// If it cannot be read, or has no certificates.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let read = certificates(path)?;
        if let [one] = &*read
            && Authority::has_made(one)
            && let Some(fingerprint) = Fingerprint::of(one)
        {
            return Ok(Self::Authority(fingerprint));
        }
        Ok(Self::Roots(read))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority(fingerprint) => write!(f, "{fingerprint}"),
            Self::Roots(roots) => write!(f, "{} authorities", roots.len()),
        }
    }
}

/// What name the server's certificate has to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// That which was dialed.
    AsDialed,
    /// That of any node of the volume.
    AnyNode,
    /// That of this node.
    Node(NodeId),
}

/// How the dialing side encrypts, and what it trusts.
#[derive(Clone)]
pub struct ClientTls {
    mode: TlsMode,
    named: Named,
    /// None: no authority is trusted, so nothing leaves this machine but in clear by
    /// [`TlsMode::Off`].
    config: Option<Arc<rustls::ClientConfig>>,
}

impl Default for ClientTls {
    /// Without trust: connections within this machine only.
    fn default() -> Self {
        Self { mode: TlsMode::Auto, named: Named::AsDialed, config: None }
    }
}

impl ClientTls {
    /// That of a client, which shows `own` if it has one.
    ///
    /// # Errors
    /// If what it trusts makes no sense.
    pub fn new(
        mode: TlsMode,
        trust: Option<&Trust>,
        own: Option<OwnFiles>,
    ) -> Result<Self, TlsError> {
        let Some(trust) = trust else { return Ok(Self { mode, ..Self::default() }) };
        let (named, verifier): (_, Arc<dyn ServerCertVerifier>) = match trust {
            Trust::Authority(fingerprint) => (Named::AnyNode, ByFingerprint::new(*fingerprint)),
            Trust::Roots(certificates) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates {
                    roots.add(certificate.clone()).map_err(|why| failed("an authority", why))?;
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
                (Named::AsDialed, verifier.build().map_err(|why| failed("authorities", why))?)
            }
        };
        let builder = builder(verifier)?;
        let config = match own {
            Some(files) => builder.with_client_cert_resolver(Arc::new(files)),
            None => builder.with_no_client_auth(),
        };
        Ok(Self { mode, named, config: Some(finish(config)) })
    }

    /// That of node `me`, which dials other nodes of its volume.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn of_node(
        authority: &Arc<Authority>,
        me: NodeId,
        mode: TlsMode,
    ) -> Result<Self, TlsError> {
        let own = Own::new(authority.clone(), PeerName::Node(me))?;
        let config = builder(ByFingerprint::new(authority.fingerprint()))?;
        let config = config.with_client_cert_resolver(Arc::new(own));
        Ok(Self { mode, named: Named::AnyNode, config: Some(finish(config)) })
    }

    /// The same, to reach this node of the volume and no other.
    pub fn to_node(&self, node: NodeId) -> Self {
        Self { named: Named::Node(node), ..self.clone() }
    }

    /// What to encrypt a connection to there with; none: it is in clear. `dialed` is the name or
    /// address that was dialed first.
    ///
    /// # Errors
    /// If it must be encrypted, and no authority is trusted.
    pub(crate) fn choose(&self, other: IpAddr, dialed: &str) -> Result<Option<Chosen>, TlsError> {
        if !self.mode.wants(other) {
            return Ok(None);
        }
        let config = self.config.clone().ok_or_else(|| {
            TlsError(format!(
                "{other} is another machine, or TLS is asked for, and nothing says by what to know \
                 the volume's server: add \
                 ?ca=sha256:… to the URL (`kestrel cluster ca DIR` shows it on the server), or \
                 ?ca=FILE with a certificate; or \
                 ?tls=off on a network that nobody else can read or change"
            ))
        })?;
        let name = match self.named {
            Named::AsDialed => host_of(dialed).to_string(),
            Named::AnyNode => names::ANY_NODE.to_string(),
            Named::Node(node) => names::of_node(node),
        };
        let name = ServerName::try_from(name).map_err(|why| failed(dialed, why))?;
        Ok(Some(Chosen { config, name, is_volume: self.named != Named::AsDialed }))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({}, {:?})", self.mode, self.named)
    }
}

/// What a connection is to be encrypted with.
pub(crate) struct Chosen {
    pub config: Arc<rustls::ClientConfig>,
    pub name: ServerName<'static>,
    /// The server shows a certificate of the volume's authority.
    pub is_volume: bool,
}

type Builder = rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>;

fn builder(verifier: Arc<dyn ServerCertVerifier>) -> Result<Builder, TlsError> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|why| failed("TLS", why))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
}

fn finish(mut config: rustls::ClientConfig) -> Arc<rustls::ClientConfig> {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Connections last: every one is verified anew.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// The host of `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
