//! How objects of a volume are coded: compression, and the data keys, wrapped
//! (`docs/encryption.md`).

use kestrel_blockstore::store::coded::Compression;
use serde::{Deserialize, Serialize};

use crate::error::VolumeError;

/// Most data keys of a volume: the descriptor must stay below its bound, and every rotation adds
/// one.
pub const DATA_KEYS_MAX: usize = 128;

/// The one cipher there is.
const CIPHER: &str = "aes-256-gcm";

/// How objects are coded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodingSettings {
    /// How new objects are compressed.
    #[serde(with = "text")]
    pub compression: Compression,
    /// Data keys and what they are used for, if any object was ever to be encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

/// Encryption at rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    /// Always `aes-256-gcm`.
    pub cipher: String,
    /// Whether new objects are encrypted.
    pub active: bool,
    /// Whether objects that are not encrypted are refused: true if the volume was formatted with
    /// encryption and it was never turned off.
    pub required: bool,
    /// The same of metadata in a bucket. Volumes that were formatted before metadata was encrypted
    /// do not have it. Not for clients.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata_required: bool,
    /// Fingerprint of the volume key that wraps the data keys.
    pub volume_key: String,
    /// The data keys, by number; the last one encrypts.
    pub keys: Vec<WrappedKey>,
}

/// A data key, encrypted with the volume key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKey {
    /// Its number, from 1 on; never used again within the volume.
    pub id: u32,
    /// When it was made, nanoseconds since the epoch.
    pub created: i64,
    /// Nonce, encrypted key and tag: 60 bytes in hexadecimal.
    pub wrapped: String,
}

impl Encryption {
    /// Encryption with these keys, on from the first object on.
    pub(crate) fn new(volume_key: String, keys: Vec<WrappedKey>, required: bool) -> Self {
        let (cipher, metadata_required) = (CIPHER.into(), false);
        Self { cipher, active: true, required, metadata_required, volume_key, keys }
    }

    /// Whether a new object would be refused when it is read, and other contradictions.
    pub(super) fn check(&self) -> Result<(), VolumeError> {
        let bad = |what: String| Err(VolumeError::Invalid(what));
        if self.cipher != CIPHER {
            return bad(format!(
                "the volume is encrypted with {:?}, which this version does not know; use a newer \
                 kestrel",
                self.cipher
            ));
        }
        if (self.required || self.metadata_required) && !self.active {
            return bad("encryption is required and turned off at once".into());
        }
        let ascending = self.keys.windows(2).all(|pair| pair[0].id < pair[1].id);
        if self.keys.is_empty() || self.keys[0].id == 0 || !ascending {
            return bad("the volume's data keys are missing or not in order".into());
        }
        if self.keys.len() > DATA_KEYS_MAX {
            return bad(format!("the volume has more than {DATA_KEYS_MAX} data keys"));
        }
        Ok(())
    }
}

/// Settings as the text that people write.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = String>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|why| {
            D::Error::custom(format!("{why}; or use a newer kestrel, which may know it"))
        })
    }
}
