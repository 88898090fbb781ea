//! The secret of a volume, from which the certificates of its nodes are made. Of a cluster it is in
//! its section, and what nodes know each other by as well; a volume that one node has gets one when
//! it is first served to other machines.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use kestrel_rpc::tls::Authority;
use serde::{Deserialize, Serialize};

use super::Descriptor;
use crate::error::VolumeError;
use kestrel_types::hex::{from_hex, to_hex};

/// Bytes of the word by which the nodes of a cluster know each other.
pub const SECRET_BYTES: usize = 16;

/// See the module's header; hexadecimal. A process that knows it can speak as the volume's server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeSecret(String);

impl VolumeSecret {
    fn new() -> Result<Self, VolumeError> {
        Ok(Self(to_hex(&random::<SECRET_BYTES>()?)))
    }

    pub(super) fn bytes(&self) -> Result<[u8; SECRET_BYTES], VolumeError> {
        let bytes = from_hex(&self.0).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| {
            VolumeError::Invalid(
                "the secret of the volume does not have 32 hexadecimal digits".into(),
            )
        })
    }
}

impl fmt::Debug for VolumeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeSecret(..)")
    }
}

/// Random bytes.
///
/// # Errors
/// If the system has none.
pub fn random<const N: usize>() -> Result<[u8; N], VolumeError> {
    let (source, mut bytes) = (Path::new("/dev/urandom"), [0; N]);
    File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| VolumeError::io("read", source, error))?;
    Ok(bytes)
}

/// The certificate authority of a volume with this secret.
///
/// # Errors
/// If the system has no randomness.
pub fn authority_of(secret: &[u8; SECRET_BYTES]) -> Result<Authority, VolumeError> {
    Authority::derive(secret).map_err(|why| VolumeError::Invalid(why.to_string()))
}

impl Descriptor {
    /// The volume's certificate authority; none if it has no secret yet.
    ///
    /// # Errors
    /// If the secret is none, or the system has no randomness.
    pub fn authority(&self) -> Result<Option<Arc<Authority>>, VolumeError> {
        let secret = match (&self.cluster, &self.secret) {
            (Some(section), _) => section.secret()?,
            (None, Some(secret)) => secret.bytes()?,
            (None, None) => return Ok(None),
        };
        authority_of(&secret).map(|authority| Some(Arc::new(authority)))
    }

    /// The certificate authority of the volume, or node, at `dir`, which gets a secret if it has
    /// none. The descriptor is changed as by [`Descriptor::update`].
    ///
    /// # Errors
    /// As those of [`Descriptor::update`] and [`Descriptor::authority`].
    pub fn authority_at(dir: &Path) -> Result<Arc<Authority>, VolumeError> {
        let present = Self::read(dir)?;
        if let Some(authority) = present.authority()? {
            return Ok(authority);
        }
        let changed = Self::update(dir, |descriptor| {
            // Another process may have been quicker.
            if descriptor.secret.is_none() {
                descriptor.secret = Some(VolumeSecret::new()?);
            }
            Ok(())
        })?;
        let made = changed.authority()?;
        made.ok_or_else(|| VolumeError::Invalid(format!("{}: it has got no secret", dir.display())))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::settings;
    use super::super::{Descriptor, FILE_NAME};
    use super::*;

    #[test]
    fn a_volume_gets_a_secret_once_and_shows_it_to_nobody() {
        let dir = tempfile::tempdir().unwrap();
        Descriptor::new(settings(), 5).unwrap().write(dir.path()).unwrap();
        assert!(Descriptor::read(dir.path()).unwrap().authority().unwrap().is_none());
        let made = Descriptor::authority_at(dir.path()).unwrap().fingerprint();
        assert_eq!(Descriptor::authority_at(dir.path()).unwrap().fingerprint(), made);
        let read = Descriptor::read(dir.path()).unwrap();
        assert_eq!(read.authority().unwrap().unwrap().fingerprint(), made);
        let digits = read.secret.as_ref().unwrap().0.clone();
        assert!(!format!("{read:?}").contains(&digits));
        for shown in [read.for_clients().unwrap(), read.of_one().unwrap()] {
            assert_eq!(shown.secret, None);
            let json = serde_json::to_value(&shown).unwrap();
            assert!(!json.to_string().contains(&digits));
            assert!(Descriptor::from_offer(json, Path::new("server")).is_ok());
        }
        let mode = std::fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A server that shows one is none of ours.
        let shown = serde_json::to_value(&read).unwrap();
        assert!(Descriptor::from_offer(shown, Path::new("server")).is_err());
    }
}
