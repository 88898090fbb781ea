//! Certificates: that of a process, made in memory and renewed while it runs, and those of an
//! operator, read from files whenever they change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kestrel_types::clock::{Clock, Nanos, SECOND, SystemClock};
use kestrel_types::security::PeerName;
use parking_lot::Mutex;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::Authority;
use super::{TlsError, failed, names};

/// How long a certificate is valid.
const VALID: Nanos = 7 * 24 * 3600 * SECOND;

/// How old it may be before there is another one.
const RENEWED: Nanos = 24 * 3600 * SECOND;

/// Time between two looks whether files have changed.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The certificate of this process: a new key and a new date whenever it is a day old.
pub(super) struct Own {
    authority: Arc<Authority>,
    name: PeerName,
    present: Mutex<(Nanos, Arc<CertifiedKey>)>,
}

impl Own {
    pub fn new(authority: Arc<Authority>, name: PeerName) -> Result<Self, TlsError> {
        let now = SystemClock.now();
        let present = Mutex::new((now, Arc::new(authority.certify(&name, now, now + VALID)?)));
        Ok(Self { authority, name, present })
    }

    fn present(&self) -> Arc<CertifiedKey> {
        let now = SystemClock.now();
        let mut present = self.present.lock();
        if !(0..RENEWED).contains(&(now - present.0)) {
            match self.authority.certify(&self.name, now, now + VALID) {
                Ok(next) => *present = (now, Arc::new(next)),
                Err(why) => log::warn!("net: {why}; the present one is used for some days more"),
            }
        }
        present.1.clone()
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({:?})", self.name)
    }
}

impl ResolvesClientCert for Own {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.present())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The stamp by which a change of a file is noticed.
type Stamp = Option<(SystemTime, u64)>;

/// A certificate and its key in an operator's files. Read again when they have changed: no signal
/// is needed.
pub struct OwnFiles {
    certificate: PathBuf,
    key: PathBuf,
    present: Mutex<Present>,
}

struct Present {
    stamps: [Stamp; 2],
    checked: Instant,
    certified: Arc<CertifiedKey>,
}

impl OwnFiles {
    /// Reads them: the certificate, with those that lead to its authority, and the key. They may be
    /// one file.
    ///
    /// # Errors
    /// If they cannot be read, do not belong together, or the key is in a file that others than its
    /// owner, and the group that root gave it to, can read.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let stamps = [certificate, key].map(stamp);
        let present = Present {
            stamps,
            checked: Instant::now(),
            certified: Arc::new(read(certificate, key)?),
        };
        Ok(Self { certificate: certificate.into(), key: key.into(), present: Mutex::new(present) })
    }

    fn present(&self) -> Arc<CertifiedKey> {
        let mut present = self.present.lock();
        if present.checked.elapsed() >= CHECK_EVERY {
            present.checked = Instant::now();
            let stamps = [&self.certificate, &self.key].map(|path| stamp(path));
            if stamps != present.stamps {
                match read(&self.certificate, &self.key) {
                    Ok(certified) => {
                        present.certified = Arc::new(certified);
                        log::info!(
                            "net: the certificate {} was read again",
                            self.certificate.display()
                        );
                    }
                    // One file may be there before the other: the last good certificate is kept,
                    // and this is logged once for each change.
                    Err(why) => log::warn!("net: {why}; the certificate of before is used"),
                }
                present.stamps = stamps;
            }
        }
        present.certified.clone()
    }
}

impl fmt::Debug for OwnFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnFiles({})", self.certificate.display())
    }
}

impl ResolvesClientCert for OwnFiles {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.present())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for OwnFiles {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.present())
    }
}

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(certificate)?;
    let private = private_key(key).map_err(|why| failed(&key.display().to_string(), why))?;
    let private =
        any_supported_type(&private).map_err(|why| failed(&key.display().to_string(), why))?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(_) => Err(TlsError(format!(
            "{}: it is the certificate of another key than {}",
            certificate.display(),
            key.display()
        ))),
    }
}

/// The key in a file that is not for others' eyes. A group may read what is root's, as Debian has
/// it for keys of services.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bad = |why: &dyn fmt::Display| format!("no private key: {why}");
    let file = fs::File::open(path).map_err(|why| bad(&why))?;
    let about = file.metadata().map_err(|why| bad(&why))?;
    let forbidden = if about.uid() == 0 { 0o027 } else { 0o077 };
    if about.mode() & forbidden != 0 {
        return Err(format!(
            "it holds a private key, and its mode {:04o} lets others at it; `chmod 600` it, and \
             have the certificate replaced if they may \
             have read it",
            about.mode() & 0o7777
        ));
    }
    PrivateKeyDer::from_pem_reader(file).map_err(|why| bad(&why))
}

/// The certificates in a file; at least one.
///
/// # Errors
/// If it cannot be read, or has none.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |why: &dyn fmt::Display| {
        failed(&path.display().to_string(), format!("no certificate: {why}"))
    };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|why| bad(&why))?;
    if read.is_empty() { Err(bad(&"there is none in the file")) } else { Ok(read) }
}

/// What a server shows: its own certificate of the volume's authority to peers that name it, the
/// operator's to others.
#[derive(Debug)]
pub(super) struct Shown {
    pub own: Own,
    pub files: Option<OwnFiles>,
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_ours = hello.server_name().is_some_and(|name| name.ends_with(names::DOMAIN));
        match &self.files {
            Some(files) if !is_ours => Some(files.present()),
            _ => Some(self.own.present()),
        }
    }
}
