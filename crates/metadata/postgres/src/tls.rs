//! TLS to the database (`sslmode=verify-full`): its certificate is to be of an authority that is
//! trusted, and to name the host of the URL.
//!
//! The authorities are those of the system, or those in the file that the URL names. There is no
//! mode that encrypts and does not verify the server: an attacker that can listen can mostly
//! answer, too.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// The trusted authorities. Read when the first connection is made, as a descriptor is read on
/// machines that never make one.
#[derive(Clone, Default)]
pub struct Tls {
    /// File with the authorities' certificates (PEM); none: those of the system.
    pub authorities: Option<PathBuf>,
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Tls {
    /// By the authorities in this file, or those of the system.
    pub fn new(authorities: Option<PathBuf>) -> Self {
        Self { authorities, config: Arc::default() }
    }

    /// What makes connections.
    ///
    /// # Errors
    /// In words, if there are no authorities.
    pub fn connector(&self) -> Result<Connector, String> {
        if let Some(config) = self.config.get() {
            return Ok(Connector { config: config.clone() });
        }
        let roots = match &self.authorities {
            Some(file) => authorities_in(file)?,
            None => authorities_of_system()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|why| format!("TLS to PostgreSQL: {why}"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Connector { config: self.config.get_or_init(|| Arc::new(config)).clone() })
    }
}

fn authorities_in(file: &Path) -> Result<RootCertStore, String> {
    let bad = |why: &dyn std::fmt::Display| {
        format!(
            "{}: it does not hold certificates of authorities in PEM form: {why}",
            file.display()
        )
    };
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut roots = RootCertStore::empty();
    for certificate in read.map_err(|why| bad(&why))? {
        roots.add(certificate).map_err(|why| bad(&why))?;
    }
    if roots.is_empty() {
        return Err(bad(&"there is none in it"));
    }
    Ok(roots)
}

fn authorities_of_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(found.certs);
    if good == 0 {
        return Err(
            "this system has no root certificates to check the database's by; install the package \
             ca-certificates, or name the file \
             with your authority's by sslrootcert"
                .into(),
        );
    }
    Ok(roots)
}

/// Makes connections with TLS.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
}

/// One connection to be.
pub struct Handshake {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

impl<S> MakeTlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        Ok(Handshake { config: self.config.clone(), host: ServerName::try_from(host.to_string())? })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = TlsConnector::from(self.config).connect(self.host, stream);
        connecting.map(|done| done.map(Encrypted)).boxed()
    }
}

/// A connection with TLS.
pub struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate was checked: there is no third party in between.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
