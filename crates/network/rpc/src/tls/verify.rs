//! A client, or a node that dials, verifies that it has reached a node of the volume, by the
//! authority that it trusts.

use std::sync::Arc;

use kestrel_types::security::PeerName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::{Fingerprint, TlsError, names};

/// Verifies servers by the fingerprint of their volume's authority: they show its certificate with
/// their own.
#[derive(Debug)]
pub(super) struct ByFingerprint {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ByFingerprint {
    pub fn new(fingerprint: Fingerprint) -> Arc<Self> {
        Arc::new(Self {
            fingerprint,
            algorithms: super::provider().signature_verification_algorithms,
        })
    }

    /// The node that a certificate names, verified.
    fn node(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerName, Error> {
        let authority =
            others.iter().find(|other| Fingerprint::of(other) == Some(self.fingerprint));
        let authority = authority.ok_or_else(|| {
            let shown = others.last().and_then(Fingerprint::of);
            let shown = shown.map_or("none".to_string(), |shown| shown.to_string());
            other(format!(
                "its authority is {shown}, not {}: it is another volume's, or somebody else",
                self.fingerprint
            ))
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, self.algorithms.all)?;
        let bad = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        let named = EndEntityCert::try_from(certificate).map_err(bad)?;
        let named = named.valid_dns_names().find_map(names::read);
        named
            .filter(|named| matches!(named, PeerName::Node(_)))
            .ok_or_else(|| other("its certificate is that of no node".into()))
    }
}

fn other(why: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(TlsError(why)))))
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        wanted: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = self.node(certificate, others, now)?;
        let wanted = wanted.to_str();
        if wanted != names::ANY_NODE && names::of(&found).as_deref() != Some(&*wanted) {
            return Err(other(format!("it is {found:?} of this volume, which is not {wanted}")));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The node that a certificate names that was verified in a handshake.
pub(crate) fn name_of_server(certificates: Option<&[CertificateDer<'_>]>) -> Option<PeerName> {
    let certificate = EndEntityCert::try_from(certificates?.first()?).ok()?;
    certificate.valid_dns_names().find_map(names::read)
}
