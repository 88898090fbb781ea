//! The volume key: wraps data keys.

use std::path::Path;

use kestrel_blockstore::store::coded::{DATA_KEY_BYTES, DataKey};
use kestrel_types::clock::Nanos;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::file::{self, VOLUME_KEY_BYTES};
use crate::descriptor::WrappedKey;
use crate::error::VolumeError;
use kestrel_types::hex::{from_hex, to_hex};

/// Bytes of the authentication tag.
const TAG_BYTES: usize = 16;

/// Bytes of a wrapped data key: nonce, key, tag.
const WRAPPED_BYTES: usize = NONCE_LEN + DATA_KEY_BYTES + TAG_BYTES;

/// What data keys are authenticated with, followed by the volume and the key's number.
const WRAP_CONTEXT: &[u8] = b"kestrelfs data key 1";

/// What the fingerprint is the HMAC-SHA-256 of.
const FINGERPRINT_CONTEXT: &[u8] = b"kestrelfs volume key 1";

/// Bytes of the HMAC that make a fingerprint: enough to tell keys apart, and no help to find one.
const FINGERPRINT_BYTES: usize = 16;

/// A volume key. Wiped when dropped.
///
/// It wraps each data key with a random nonce of 96 bits. A key that wraps a million data keys,
/// those of all volumes that share it, repeats a nonce with a chance of 2^-57.
#[derive(Clone)]
pub struct VolumeKey(Zeroizing<[u8; VOLUME_KEY_BYTES]>);

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeKey({})", self.fingerprint())
    }
}

impl VolumeKey {
    /// Makes a key and writes it to a new file.
    ///
    /// # Errors
    /// If the file exists or cannot be written, or the system has no randomness.
    pub fn create(path: &Path) -> Result<Self, VolumeError> {
        let mut key = Zeroizing::new([0; VOLUME_KEY_BYTES]);
        random(&mut *key)?;
        file::create(path, &key)?;
        Ok(Self(key))
    }

    /// Reads the key in a file.
    ///
    /// # Errors
    /// If the file is not there, is open to others, or holds no key.
    pub fn read(path: &Path) -> Result<Self, VolumeError> {
        file::read(path).map(Self)
    }

    /// What the key may be known by: 32 hexadecimal digits that say nothing else about it.
    pub fn fingerprint(&self) -> String {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), FINGERPRINT_CONTEXT);
        to_hex(&tag.as_ref()[..FINGERPRINT_BYTES])
    }

    /// A new data key for a volume, wrapped.
    pub(super) fn new_data_key(
        &self,
        volume: &[u8; 16],
        id: u32,
        created: Nanos,
    ) -> Result<WrappedKey, VolumeError> {
        let mut key = Zeroizing::new([0; DATA_KEY_BYTES]);
        random(&mut *key)?;
        self.wrap(volume, id, created, &key)
    }

    /// A data key, encrypted.
    pub(super) fn wrap(
        &self,
        volume: &[u8; 16],
        id: u32,
        created: Nanos,
        key: &[u8; DATA_KEY_BYTES],
    ) -> Result<WrappedKey, VolumeError> {
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce)?;
        // In plain only within `out`, which ends up encrypted.
        let mut out = [&nonce[..], key, &[0; TAG_BYTES]].concat();
        let sealed = self.aead()?.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(context(volume, id)),
            &mut out[NONCE_LEN..NONCE_LEN + DATA_KEY_BYTES],
        );
        let tag =
            sealed.map_err(|_| VolumeError::Key("a data key could not be encrypted".into()))?;
        out[NONCE_LEN + DATA_KEY_BYTES..].copy_from_slice(tag.as_ref());
        Ok(WrappedKey { id, created, wrapped: to_hex(&out) })
    }

    /// A data key, decrypted.
    pub(super) fn unwrap_bytes(
        &self,
        volume: &[u8; 16],
        wrapped: &WrappedKey,
    ) -> Result<Zeroizing<[u8; DATA_KEY_BYTES]>, VolumeError> {
        let altered = || {
            VolumeError::Key(format!(
                "data key {} of the volume does not open with the volume's key: kestrel.json was \
                 altered; restore it from a copy \
                 or from the first line of a dump",
                wrapped.id
            ))
        };
        let mut bytes = Zeroizing::new(wrapped_bytes(&wrapped.wrapped).ok_or_else(altered)?);
        let (nonce, sealed) = bytes.split_first_chunk_mut::<NONCE_LEN>().ok_or_else(altered)?;
        let opened = self.aead()?.open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            Aad::from(context(volume, wrapped.id)),
            sealed,
        );
        let mut key = Zeroizing::new([0; DATA_KEY_BYTES]);
        // The length was checked with the digits: what is left is a key.
        key.copy_from_slice(opened.map_err(|_| altered())?);
        Ok(key)
    }

    /// A data key, ready for use.
    pub(super) fn unwrap(
        &self,
        volume: &[u8; 16],
        wrapped: &WrappedKey,
    ) -> Result<DataKey, VolumeError> {
        self.unwrap_bytes(volume, wrapped).map(DataKey::new)
    }

    fn aead(&self) -> Result<LessSafeKey, VolumeError> {
        // Fails only for keys of another length.
        let key = UnboundKey::new(&AES_256_GCM, &*self.0);
        key.map(LessSafeKey::new)
            .map_err(|_| VolumeError::Key("the volume key has the wrong length".into()))
    }
}

fn context(volume: &[u8; 16], id: u32) -> Vec<u8> {
    [WRAP_CONTEXT, volume, &id.to_be_bytes()].concat()
}

fn random(out: &mut [u8]) -> Result<(), VolumeError> {
    let filled = SystemRandom::new().fill(out);
    filled.map_err(|_| VolumeError::Io("the system gave no random bytes for a key".into()))
}

/// The bytes of a wrapped key; none unless they are [`WRAPPED_BYTES`].
fn wrapped_bytes(text: &str) -> Option<Vec<u8>> {
    if text.len() == 2 * WRAPPED_BYTES { from_hex(text) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrapped key opens only with its volume, its number and its wrapping key.
    #[test]
    fn wrapped_key_binding() {
        let key = VolumeKey(Zeroizing::new([1; 32]));
        let wrapped = key.wrap(&[2; 16], 3, 4, &[5; 32]).unwrap();
        assert_eq!(*key.unwrap_bytes(&[2; 16], &wrapped).unwrap(), [5; 32]);
        assert_ne!(
            wrapped.wrapped,
            key.wrap(&[2; 16], 3, 4, &[5; 32]).unwrap().wrapped,
            "another nonce"
        );
        assert!(key.unwrap_bytes(&[9; 16], &wrapped).is_err());
        assert!(key.unwrap_bytes(&[2; 16], &WrappedKey { id: 4, ..wrapped.clone() }).is_err());
        assert!(VolumeKey(Zeroizing::new([9; 32])).unwrap_bytes(&[2; 16], &wrapped).is_err());
        for at in 0..wrapped.wrapped.len() {
            let mut text = wrapped.wrapped.clone().into_bytes();
            text[at] = if text[at] == b'0' { b'1' } else { b'0' };
            let bad = WrappedKey { wrapped: String::from_utf8(text).unwrap(), ..wrapped.clone() };
            assert!(key.unwrap_bytes(&[2; 16], &bad).is_err(), "digit {at}");
        }
        for text in ["", "00", &"zz".repeat(60), &"é".repeat(60)] {
            assert!(
                key.unwrap_bytes(&[2; 16], &WrappedKey { wrapped: text.into(), ..wrapped.clone() })
                    .is_err()
            );
        }
    }

    #[test]
    fn the_formats_are_pinned() {
        // Made with Python's `cryptography` and `hmac`.
        let key = VolumeKey(Zeroizing::new([1; 32]));
        assert_eq!(key.fingerprint(), "4092198db6e61b6cf691089be63e0581");
        let wrapped = WrappedKey {
            id: 3,
            created: 0,
            wrapped: "07070707070707070707070788f6efa10aabb4a41c9f0135a3c562cfa2ac\
                      84dc616e0a5c0e2736b8e31157a81ef0d99468c8245c0a9a683dc7d99602"
                .into(),
        };
        assert_eq!(*key.unwrap_bytes(&[2; 16], &wrapped).unwrap(), [5; 32]);
    }
}
