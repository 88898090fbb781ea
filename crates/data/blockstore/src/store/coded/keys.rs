//! Keys that objects are encrypted with.
//!
//! A volume has data keys. Each object has a key of its own, made from a data key, 32 random bytes
//! in the object's head, the volume and the object's number: HKDF-SHA-256 (RFC 5869). Nonces of
//! AES-256-GCM (NIST SP 800-38D) are numbers of chunks and so unique under a key that encrypts one
//! object once, however many objects a volume writes with one data key, and whether or not an
//! object number is used again: there is nothing to count. (The construction is that of Tink's
//! AES-GCM-HKDF.)
//!
//! Keys are wiped when they are dropped, as far as that can be done: copies that the compiler left
//! in registers or on the stack are not.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::{Zeroize, Zeroizing};

use crate::error::{Error, Result};
use crate::object::VolumeId;

/// Bytes of a data key.
pub const DATA_KEY_BYTES: usize = 32;

/// Bytes that encryption adds to a chunk.
pub(crate) const TAG_BYTES: usize = 16;

/// Random bytes in an object's head that its key is made from.
pub(crate) const SALT_BYTES: usize = 32;

/// What an object's key is made for: HKDF's `info`, followed by volume and object.
const OBJECT_KEY_INFO: &[u8] = b"kestrelfs object key 1";

/// The same of an object with a name, followed by volume and name.
const NAMED_KEY_INFO: &[u8] = b"kestrelfs named object key 1";

/// Random bytes for a key of an object; `object` is for the error, where it has a number.
///
/// # Errors
/// `Io` if the system has no randomness.
pub(crate) fn random_salt(object: Option<ObjectId>) -> Result<[u8; SALT_BYTES]> {
    let mut salt = [0; SALT_BYTES];
    SystemRandom::new().fill(&mut salt).map_err(|_| {
        let source = std::io::Error::other("the system gave no random bytes");
        Error::from_io("encrypting", object, source)
    })?;
    Ok(salt)
}

/// A data key, wiped when dropped.
pub struct DataKey(Zeroizing<[u8; DATA_KEY_BYTES]>);

impl DataKey {
    /// A key of these bytes.
    pub fn new(bytes: Zeroizing<[u8; DATA_KEY_BYTES]>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(…)")
    }
}

#[derive(Debug)]
struct Ring {
    keys: Vec<(u32, DataKey)>,
    write: Option<u32>,
    is_plain_allowed: bool,
}

/// The data keys of a volume. Clones share them.
#[derive(Debug, Clone)]
pub struct Keys {
    ring: Arc<Ring>,
}

impl Keys {
    /// These keys by number; `write` is the one new objects are encrypted with, none if they are
    /// not. Unless `is_plain_allowed`, objects that are not encrypted are refused, so that an
    /// attacker that can write to the store cannot slip one in.
    ///
    /// # Errors
    /// `Invalid` if `write` names no key, if numbers repeat or are zero, or if objects that are not
    /// encrypted are refused but would be written.
    pub fn new(
        keys: Vec<(u32, DataKey)>,
        write: Option<u32>,
        is_plain_allowed: bool,
    ) -> Result<Self> {
        let mut numbers: Vec<u32> = keys.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) || numbers.contains(&0) {
            return Err(Error::Invalid { what: "numbers of data keys repeat or are zero" });
        }
        if write.is_some_and(|write| !numbers.contains(&write)) {
            return Err(Error::Invalid { what: "the data key to write with is missing" });
        }
        if write.is_none() && !is_plain_allowed {
            return Err(Error::Invalid {
                what: "objects would be written that are refused when they are read",
            });
        }
        Ok(Self { ring: Arc::new(Ring { keys, write, is_plain_allowed }) })
    }

    /// Number of the key that new objects are encrypted with.
    pub fn write_key(&self) -> Option<u32> {
        self.ring.write
    }

    /// Whether objects that are not encrypted may be read.
    pub fn is_plain_allowed(&self) -> bool {
        self.ring.is_plain_allowed
    }

    /// The key of one object; none if the volume has no data key of this number.
    pub(super) fn object_key(
        &self,
        number: u32,
        salt: &[u8; SALT_BYTES],
        volume: &VolumeId,
        object: ObjectId,
    ) -> Option<ObjectKey> {
        self.key_for(number, salt, &[OBJECT_KEY_INFO, volume, &object.to_be_bytes()])
    }

    /// The key of one object with a name; none as there.
    pub(crate) fn named_key(
        &self,
        number: u32,
        salt: &[u8; SALT_BYTES],
        volume: &VolumeId,
        name: &str,
    ) -> Option<ObjectKey> {
        self.key_for(number, salt, &[NAMED_KEY_INFO, volume, name.as_bytes()])
    }

    fn key_for(&self, number: u32, salt: &[u8; SALT_BYTES], info: &[&[u8]]) -> Option<ObjectKey> {
        let (_, data_key) = self.ring.keys.iter().find(|(id, _)| *id == number)?;
        let prk = Salt::new(HKDF_SHA256, salt).extract(&*data_key.0);
        // Fails only for outputs longer than 255 hashes; a key is one.
        let key = prk.expand(info, &AES_256_GCM).map(UnboundKey::from).ok()?;
        Some(ObjectKey(Box::new(MaybeUninit::new(LessSafeKey::new(key)))))
    }
}

/// Which piece of an object a nonce is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoncePart {
    Head,
    Chunk(u32),
}

impl NoncePart {
    fn nonce(self) -> Nonce {
        let number = match self {
            Self::Head => u64::MAX,
            Self::Chunk(index) => u64::from(index),
        };
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The key of one object.
///
/// Always initialized. `ring` does not wipe its keys, so their memory is wiped here, after they
/// were dropped.
pub(crate) struct ObjectKey(Box<MaybeUninit<LessSafeKey>>);

impl ObjectKey {
    fn key(&self) -> &LessSafeKey {
        // SAFETY: made initialized in `Keys::key_for`, the only place that makes one, and
        // dropped in `drop` only.
        unsafe { self.0.assume_init_ref() }
    }

    /// Encrypts `bytes` in place; the tag. Each piece of an object must be sealed once only.
    ///
    /// # Errors
    /// `Invalid` if they are too long for the cipher, which is 64 GiB.
    pub fn seal(&self, piece: NoncePart, aad: &[u8], bytes: &mut [u8]) -> Result<[u8; TAG_BYTES]> {
        let sealed = self.key().seal_in_place_separate_tag(piece.nonce(), Aad::from(aad), bytes);
        let tag = sealed.map_err(|_| Error::Invalid {
            what: "too much data for one piece of an encrypted object",
        })?;
        let mut out = [0; TAG_BYTES];
        out.copy_from_slice(tag.as_ref());
        Ok(out)
    }

    /// Decrypts `bytes`, which end in the tag, in place; what they were before they were sealed.
    /// None if they are not what was sealed.
    pub fn open<'a>(
        &self,
        piece: NoncePart,
        aad: &[u8],
        bytes: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.key().open_in_place(piece.nonce(), Aad::from(aad), bytes).ok()
    }
}

impl Drop for ObjectKey {
    fn drop(&mut self) {
        // SAFETY: initialized, as in `key`, and not used again: what follows only writes to the
        // memory.
        unsafe { self.0.assume_init_drop() };
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[(u32, u8)]) -> Keys {
        let keys =
            keys.iter().map(|(number, byte)| (*number, DataKey::new(Zeroizing::new([*byte; 32]))));
        Keys::new(keys.collect(), None, true).unwrap()
    }

    /// Each input of an object's key changes the key, and so does each piece.
    #[test]
    fn inputs_of_object_keys_and_nonces() {
        let (one, other) = (keys(&[(1, 7)]), keys(&[(1, 8)]));
        let key = |keys: &Keys, salt: u8, volume: u8, object| {
            keys.object_key(1, &[salt; SALT_BYTES], &[volume; 16], object).unwrap()
        };
        let sealed = |key: &ObjectKey, piece, aad: &[u8]| {
            let mut bytes = b"some bytes".to_vec();
            let tag = key.seal(piece, aad, &mut bytes).unwrap();
            [&bytes[..], &tag].concat()
        };
        let right = key(&one, 2, 3, 4);
        let bytes = sealed(&right, NoncePart::Chunk(5), b"x");
        let opens =
            |key: &ObjectKey, piece, aad: &[u8]| key.open(piece, aad, &mut bytes.clone()).is_some();
        assert!(opens(&right, NoncePart::Chunk(5), b"x"));
        assert!(opens(&key(&one, 2, 3, 4), NoncePart::Chunk(5), b"x"));
        for wrong in
            [key(&other, 2, 3, 4), key(&one, 9, 3, 4), key(&one, 2, 9, 4), key(&one, 2, 3, 9)]
        {
            assert!(!opens(&wrong, NoncePart::Chunk(5), b"x"));
        }
        assert!(!opens(&right, NoncePart::Chunk(6), b"x"));
        assert!(!opens(&right, NoncePart::Head, b"x"));
        assert!(!opens(&right, NoncePart::Chunk(5), b"y"));
        assert!(one.object_key(2, &[2; SALT_BYTES], &[3; 16], 4).is_none());
    }

    /// Invalid key rings are refused, and keys are never printed.
    #[test]
    fn invalid_key_rings() {
        let key = |number| (number, DataKey::new(Zeroizing::new([42; 32])));
        assert!(Keys::new(vec![key(1), key(1)], None, true).is_err());
        assert!(Keys::new(vec![key(0)], None, true).is_err());
        assert!(Keys::new(vec![key(1)], Some(2), true).is_err());
        assert!(Keys::new(vec![key(1)], None, false).is_err());
        let ring = Keys::new(vec![key(1), key(2)], Some(2), false).unwrap();
        assert_eq!((ring.write_key(), ring.is_plain_allowed()), (Some(2), false));
        assert!(!format!("{ring:?}").contains("42"));
    }
}
