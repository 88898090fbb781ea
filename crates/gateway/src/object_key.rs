//! Keys of objects as paths of the volume, and what of a key no path can be.

use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::name::{NAME_MAX, PathRef};
use s3s::{S3ErrorCode, S3Result};

use crate::error::{KEY_IS_NO_PATH, refused};

/// Name of the directory, in the root of what an access key gives, that has the gateway's own
/// files. No bucket and no key has this name.
pub const OWN_DIR: &str = ".kestrel-s3";

/// Names in a volume's root that are no objects where the whole volume is a bucket.
const RESERVED: [&str; 3] = [OWN_DIR, ".trash", ".snap"];

/// Longest key, bytes: S3's limit.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key that a path of the volume can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectKey {
    text: String,
}

impl ObjectKey {
    /// Checks a key.
    ///
    /// # Errors
    /// If it is empty or longer than S3 allows, has an empty name, `.`, `..` or NUL in it, a name
    /// of more than 255 bytes, or is one of the gateway's own.
    pub fn parse(text: &str) -> S3Result<Self> {
        let path = text.strip_suffix('/').unwrap_or(text);
        if text.len() > KEY_BYTES_MAX {
            return Err(refused(S3ErrorCode::KeyTooLongError, "a key has at most 1024 bytes"));
        }
        for name in path.split('/') {
            let why = match name {
                "" => "the key has an empty name: it begins with a slash, or has // in it",
                "." | ".." => "the key has . or .. as a name, which paths cannot have",
                _ if name.len() > NAME_MAX => {
                    let why = "a name between two slashes of a key has at most 255 bytes";
                    return Err(refused(S3ErrorCode::KeyTooLongError, why));
                }
                _ if name.contains('\0') => "the key has a NUL byte",
                _ => continue,
            };
            return Err(refused(KEY_IS_NO_PATH, why));
        }
        let first = path.split('/').next().unwrap_or_default();
        if RESERVED.contains(&first) {
            return Err(refused(
                KEY_IS_NO_PATH,
                format!("keys that begin with {first}/ are the volume's own"),
            ));
        }
        Ok(Self { text: text.into() })
    }

    /// The key.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it stands for a directory that is an object itself.
    pub fn is_directory(&self) -> bool {
        self.text.ends_with('/')
    }

    /// Its path from the bucket's directory.
    pub fn path(&self) -> &str {
        self.text.strip_suffix('/').unwrap_or(&self.text)
    }

    /// Its place below the bucket's directory.
    ///
    /// # Errors
    /// None for a key that was checked.
    pub fn place(&self, bucket: InodeId) -> FsResult<PathRef> {
        PathRef::from_path(bucket, self.path().as_bytes())
    }

    /// The paths of the directories that it lies in, from the bucket's on: `a`, `a/b` of `a/b/c`.
    pub fn parents(&self) -> impl DoubleEndedIterator<Item = &str> {
        let path = self.path();
        path.match_indices('/').map(|(at, _)| &path[..at])
    }
}

/// Whether a name in the root of a volume that is a bucket as a whole is no object.
pub fn is_reserved(name: &[u8]) -> bool {
    RESERVED.iter().any(|reserved| reserved.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that paths can be are taken as they are.
    #[test]
    fn keys_that_are_paths() {
        for key in ["a", "a/b", "a/", "a b/ü", ".hidden/..x", &"n".repeat(255)] {
            assert_eq!(ObjectKey::parse(key).unwrap().as_str(), key);
        }
        let key = ObjectKey::parse("a/b/c/").unwrap();
        assert!(key.is_directory());
        assert_eq!(key.parents().collect::<Vec<_>>(), ["a", "a/b"]);
    }

    /// Keys that no path can be are refused, with a reason.
    #[test]
    fn keys_that_are_no_paths() {
        let long = "n".repeat(256);
        let longer = "n/".repeat(600);
        for key in
            ["", "/", "/a", "a//b", "a//", ".", "..", "a/../b", "./a", "a\0b", &long, &longer]
        {
            assert!(ObjectKey::parse(key).is_err(), "{key:?}");
        }
        assert!(ObjectKey::parse(".kestrel-s3/tmp/x").is_err());
        assert!(ObjectKey::parse(".trash").is_err());
    }
}
