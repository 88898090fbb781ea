//! TLS of the listening side.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use kestrel_types::placement::NodeId;
use kestrel_types::security::{PeerName, Security};
use rustls::RootCertStore;
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::authority::Authority;
use super::own::{Own, OwnFiles, Shown, certificates};
use super::{PROTOCOL, TlsError, TlsMode, failed, provider};

/// How a server encrypts, and which peers may prove what.
pub struct ServerTls {
    mode: TlsMode,
    authority: Arc<Authority>,
    acceptor: TlsAcceptor,
}

impl ServerTls {
    /// That of node `me` (0 of a volume of one node). With `files`, clients that do not ask for the
    /// volume's own authority are shown these; with `clients_of`, a file of certificates, only
    /// clients are let in that have a certificate of one of them or of the volume's authority.
    ///
    /// # Errors
    /// If the certificates cannot be used.
    pub fn new(
        authority: Arc<Authority>,
        me: NodeId,
        mode: TlsMode,
        files: Option<OwnFiles>,
        clients_of: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        roots
            .add(authority.certificate().clone())
            .map_err(|why| failed("the volume's authority", why))?;
        for certificate in clients_of.map_or(Ok(Vec::new()), certificates)? {
            roots.add(certificate).map_err(|why| failed("an authority of clients", why))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier =
            if clients_of.is_some() { verifier } else { verifier.allow_unauthenticated() };
        let verifier = verifier.build().map_err(|why| failed("authorities of clients", why))?;
        let shown = Shown { own: Own::new(authority.clone(), PeerName::Node(me))?, files };
        let builder = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| failed("TLS", why))?;
        let mut config =
            builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(shown));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Connections last: every one is verified anew.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { mode, authority, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Whether a connection from there must be encrypted.
    pub(crate) fn wants(&self, other: IpAddr) -> bool {
        self.mode.wants(other)
    }

    /// The handshake; how long it may take is for the caller to decide.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Security)> {
        let stream = self.acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let peer = shown.and_then(|shown| self.authority.name_of_client(shown, UnixTime::now()));
        Ok((stream, Security::Tls { peer }))
    }
}

/// TLS 1.2 and 1.3 for clients of HTTP that go by the authority of an operator's certificate.
///
/// # Errors
/// If TLS cannot be set up.
pub fn https_config(files: OwnFiles) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let builder = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|why| failed("TLS", why))?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(files));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTls({})", self.mode)
    }
}
