//! What S3 keeps of an object besides its bytes, in extended attributes of its file.

use std::collections::BTreeMap;

use http::StatusCode;
use kestrel_types::inode::{Inode, Kind};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::error::{own, refused};

/// Extended attribute with [`ObjectAttributes`]. A directory that has it is an object itself.
pub const OBJECT_XATTR: &[u8] = b"user.s3.object";

/// Extended attribute with an object's tags.
pub const TAGS_XATTR: &[u8] = b"user.s3.tags";

/// Extended attribute with what an upload in parts is of.
pub const UPLOAD_XATTR: &[u8] = b"user.s3.upload";

/// Most bytes of user metadata of an object, names and values: S3's limit.
const METADATA_BYTES_MAX: usize = 2048;

/// Most tags of an object, and longest key and value of one, characters: S3's limits.
const TAGS_MAX: usize = 10;
const TAG_KEY_MAX: usize = 128;
const TAG_VALUE_MAX: usize = 256;

/// Most bytes of headers that are kept of an object.
const HEADERS_BYTES_MAX: usize = 8192;

/// The ETag of a content. It holds as long as the file has this size and was last written at this
/// time: programs that write to the file by its path know nothing of ETags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtagRecord {
    /// The ETag, without quotes.
    pub value: String,
    /// Bytes.
    pub size: u64,
    /// Last change of the content, nanoseconds since 1970.
    pub mtime: i64,
}

/// What is kept of an object in [`OBJECT_XATTR`], as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectAttributes {
    /// Its ETag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<EtagRecord>,
    /// Headers that it is answered with (`content-type` and others, in small letters).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// User metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Checksums of the content by algorithm (`crc32`), in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checksums: BTreeMap<String, String>,
}

impl ObjectAttributes {
    /// Reads what [`ObjectAttributes::encode`] wrote. An attribute that something else wrote says
    /// nothing.
    pub fn decode(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// The value of the attribute.
    pub fn encode(&self) -> Box<[u8]> {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Checks S3's limits.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub fn check(&self) -> S3Result<()> {
        let bytes = |map: &BTreeMap<String, String>| -> usize {
            map.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        if bytes(&self.metadata) > METADATA_BYTES_MAX || bytes(&self.headers) > HEADERS_BYTES_MAX {
            return Err(refused(
                S3ErrorCode::MetadataTooLarge,
                "user metadata has at most 2 KiB, headers that are kept at most 8 KiB",
            ));
        }
        Ok(())
    }

    /// The ETag of a file with these attributes: the one on record if it is of this content.
    pub fn etag_of(&self, inode: &Inode) -> String {
        match &self.etag {
            Some(record) if self.is_of(inode) => record.value.clone(),
            _ => derived_etag(inode),
        }
    }

    /// Whether what is on record of the content is of this content.
    pub fn is_of(&self, inode: &Inode) -> bool {
        // A directory has no content; its times are those of its entries.
        self.etag.as_ref().is_some_and(|record| {
            inode.kind == Kind::Dir || (record.size == inode.size && record.mtime == inode.mtime)
        })
    }
}

/// The ETag of a content that did not come through S3. Its form is that of an upload in parts, so
/// that no client takes it for an MD5.
pub fn derived_etag(inode: &Inode) -> String {
    format!("{:016x}{:016x}-0", inode.mtime, inode.ino ^ inode.size.rotate_left(40))
}

/// An object's tags.
pub type Tags = Vec<(String, String)>;

/// Reads the value of [`TAGS_XATTR`].
pub fn decode_tags(bytes: &[u8]) -> Tags {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// The value of [`TAGS_XATTR`].
pub fn encode_tags(tags: &Tags) -> Box<[u8]> {
    serde_json::to_vec(tags).unwrap_or_default().into()
}

/// Checks S3's limits of tags.
///
/// # Errors
/// `InvalidTag`; `BadRequest` for too many.
pub fn check_tags(tags: &Tags) -> S3Result<()> {
    if tags.len() > TAGS_MAX {
        return Err(own("BadRequest", StatusCode::BAD_REQUEST, "an object has at most 10 tags"));
    }
    for (at, (key, value)) in tags.iter().enumerate() {
        let length = |text: &str| text.chars().count();
        if key.is_empty() || length(key) > TAG_KEY_MAX || length(value) > TAG_VALUE_MAX {
            return Err(refused(
                S3ErrorCode::InvalidTag,
                "a tag has a key of 1 to 128 and a value of at most 256 characters",
            ));
        }
        if tags.iter().take(at).any(|(other, _)| other == key) {
            return Err(refused(S3ErrorCode::InvalidTag, "two tags have the same key"));
        }
    }
    Ok(())
}

/// Reads tags as the header `x-amz-tagging` has them: `a=1&b=2`, encoded as in URLs.
///
/// # Errors
/// As [`check_tags`].
pub fn tags_of_header(text: &str) -> S3Result<Tags> {
    let tags: Tags = text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescape(key)?, unescape(value)?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| refused(S3ErrorCode::InvalidArgument, "x-amz-tagging cannot be read"))?;
    check_tags(&tags)?;
    Ok(tags)
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
        out.push(match byte {
            b'+' => b' ',
            b'%' => (digit(bytes.next())? * 16 + digit(bytes.next())?) as u8,
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tags of a header are read as S3 encodes them, within S3's limits.
    #[test]
    fn tags_from_a_header() {
        let tags = tags_of_header("a=1&b%20c=x+y&d").unwrap();
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        assert_eq!(tags, [pair("a", "1"), pair("b c", "x y"), pair("d", "")]);
        assert!(tags_of_header("a=1&a=2").is_err());
        assert!(tags_of_header("a=%zz").is_err());
        let many: Vec<String> = (0..11).map(|n| format!("k{n}=v")).collect();
        assert!(tags_of_header(&many.join("&")).is_err());
    }

    /// An attribute that another program wrote says nothing, and is no failure.
    #[test]
    fn foreign_attribute() {
        assert_eq!(ObjectAttributes::decode(b"\xff{"), ObjectAttributes::default());
        let kept = ObjectAttributes {
            metadata: BTreeMap::from([("a".into(), "b".into())]),
            ..ObjectAttributes::default()
        };
        assert_eq!(ObjectAttributes::decode(&kept.encode()), kept);
    }
}
