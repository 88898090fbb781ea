//! A volume's certificate authority: a key made from the volume's secret, so that every node has
//! the same one, and certificates made in memory.
//!
//! Ed25519 signatures are no more random than the rest of the certificate is: all nodes make the
//! same bytes.

use std::fmt;
use std::str::FromStr;

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::security::PeerName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SerialNumber,
};
use ring::hkdf::{HKDF_SHA256, Salt};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, TrustAnchor, UnixTime};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use zeroize::Zeroizing;

use super::{TlsError, failed, names};

/// What the key is made for; another key from the same secret has another label.
const LABEL: &[&[u8]] = &[b"kestrelfs certificate authority 1"];

/// What precedes the seed of an Ed25519 key in PKCS #8 (RFC 8410, version 1).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// When the authority begins and ends, seconds since 1970: 2020, and the last second that
/// certificates know.
const VALID: (i64, i64) = (1_577_836_800, 253_402_300_799);

/// What authorities are called.
const AUTHORITY: &str = "KestrelFS volume authority";

/// A certificate is valid from so long before it was made: clocks differ.
pub(super) const BACKDATED: Nanos = 24 * 3600 * SECOND;

/// SHA-256 of an authority's public key, as certificates have it (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

const SHA256: &str = "sha256:";

impl Fingerprint {
    /// That of the key in a certificate; none if it is none.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let hash =
            ring::digest::digest(&ring::digest::SHA256, &certificate.subject_public_key_info());
        Some(Self(hash.as_ref().try_into().ok()?))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHA256)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        let bad = || {
            TlsError(format!(
                "{text:?} is no fingerprint: {SHA256} and 64 hexadecimal digits; `kestrel cluster \
                 ca DIR` shows that of a volume"
            ))
        };
        let digits = text.strip_prefix(SHA256).ok_or_else(bad)?;
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

/// See the module's header. Has no `Debug`: a process that has its key can speak as any node of the
/// volume.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
    anchor: TrustAnchor<'static>,
    fingerprint: Fingerprint,
}

impl Authority {
    /// The authority of the volume with this secret.
    ///
    /// # Errors
    /// If the system has no randomness, or the libraries differ about what a key is.
    pub fn derive(secret: &[u8; 16]) -> Result<Self, TlsError> {
        let bad = |why: &dyn fmt::Display| failed("the volume's certificate authority", why);
        let mut key = Zeroizing::new([0; PKCS8_HEAD.len() + 32]);
        key[..PKCS8_HEAD.len()].copy_from_slice(&PKCS8_HEAD);
        let made = Salt::new(HKDF_SHA256, b"kestrelfs").extract(secret);
        let seed = made
            .expand(LABEL, HKDF_SHA256)
            .and_then(|made| made.fill(&mut key[PKCS8_HEAD.len()..]));
        seed.map_err(|why| bad(&why))?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(&key[..]),
            &PKCS_ED25519,
        );
        let key = key.map_err(|why| bad(&why))?;
        let mut params = params(VALID.0, VALID.1).map_err(|why| bad(&why))?;
        params.distinguished_name.push(DnType::CommonName, AUTHORITY);
        params.serial_number = Some(SerialNumber::from(1));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).map_err(|why| bad(&why))?;
        let anchor =
            anchor_from_trusted_cert(certificate.der()).map_err(|why| bad(&why))?.to_owned();
        let fingerprint =
            Fingerprint::of(certificate.der()).ok_or_else(|| bad(&"it has no key"))?;
        Ok(Self { issuer: Issuer::new(params, key), certificate, anchor, fingerprint })
    }

    /// Whether a certificate is marked as that of the authority of some volume.
    pub(super) fn has_made(certificate: &CertificateDer<'_>) -> bool {
        let named = anchor_from_trusted_cert(certificate).map(|anchor| anchor.subject.to_vec());
        named.is_ok_and(|subject| subject.ends_with(AUTHORITY.as_bytes()))
    }

    /// What clients know it by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Its certificate, in the form of files. Not secret.
    pub fn certificate_pem(&self) -> String {
        self.certificate.pem()
    }

    /// Its certificate.
    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// A certificate for a client, with its key, in the form of a file: a process that has it is
    /// that client until then. Names have at most 63 bytes: small letters, digits and hyphens.
    ///
    /// # Errors
    /// If the name is none, or the system has no randomness.
    pub fn issue(
        &self,
        client: &str,
        now: Nanos,
        until: Nanos,
    ) -> Result<Zeroizing<String>, TlsError> {
        let (certificate, key) = self.sign(&PeerName::Client(client.to_string()), now, until)?;
        let key_pem = Zeroizing::new(key.serialize_pem());
        Ok(Zeroizing::new(format!("{}{}", certificate.pem(), *key_pem)))
    }

    /// A certificate with a new key, to be shown in handshakes.
    pub(super) fn certify(
        &self,
        name: &PeerName,
        now: Nanos,
        until: Nanos,
    ) -> Result<CertifiedKey, TlsError> {
        let (certificate, key) = self.sign(name, now, until)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = any_supported_type(&key).map_err(|why| failed("a new key", why))?;
        Ok(CertifiedKey::new(vec![certificate.der().clone(), self.certificate().clone()], key))
    }

    fn sign(
        &self,
        name: &PeerName,
        now: Nanos,
        until: Nanos,
    ) -> Result<(rcgen::Certificate, KeyPair), TlsError> {
        let bad = |why: &dyn fmt::Display| failed("a certificate of the volume's authority", why);
        let dns =
            names::of(name).ok_or_else(|| bad(&format!("{name:?} cannot be named in one")))?;
        let mut params =
            params((now - BACKDATED) / SECOND, until / SECOND).map_err(|why| bad(&why))?;
        params.distinguished_name.push(DnType::CommonName, &dns);
        let dns = dns.try_into().map_err(|why| bad(&why))?;
        params.subject_alt_names = vec![rcgen::SanType::DnsName(dns)];
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // What a client has must not do for a server.
        params.extended_key_usages = match name {
            PeerName::Node(_) => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            PeerName::Client(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|why| bad(&why))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|why| bad(&why))?;
        Ok((certificate, key))
    }

    /// The client that a certificate names, if it is one of this authority's.
    pub(super) fn name_of_client(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Option<PeerName> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let algorithms = super::provider().signature_verification_algorithms;
        certificate
            .verify_for_usage(
                algorithms.all,
                std::slice::from_ref(&self.anchor),
                &[],
                now,
                KeyUsage::client_auth(),
                None,
                None,
            )
            .ok()?;
        certificate.valid_dns_names().find_map(names::read)
    }
}

/// What all certificates have in common.
fn params(from_s: i64, until_s: i64) -> Result<CertificateParams, time::error::ComponentRange> {
    let mut params = CertificateParams::default();
    params.not_before = OffsetDateTime::from_unix_timestamp(from_s)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(until_s)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}
