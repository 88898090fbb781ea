//! Bodies that come: written as they come, with the checksums that the client gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::HeaderMap;
use kestrel_types::hex::to_hex;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::{Checksum, StreamingBlob};
use s3s::{S3ErrorCode, S3Result, TrailingHeaders};

use super::blocking;
use crate::account::Account;
use crate::body::BodyError;
use crate::error::refused;
use crate::writer::{ObjectWriter, Target};

/// Bytes that are kept before they are written.
const PIECE_BYTES: usize = 256 << 10;

/// Algorithms of checksums, as headers name them.
const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];

/// What the client says of a body.
#[derive(Default)]
pub struct Expected {
    /// Bytes.
    length: Option<u64>,
    /// Its MD5, in base64.
    md5: Option<String>,
    /// Checksums by algorithm, in base64.
    checksums: BTreeMap<&'static str, String>,
    /// Algorithms of which the checksum comes after the body, or is wanted.
    more: Vec<&'static str>,
    trailers: Option<TrailingHeaders>,
}

impl Expected {
    /// What the headers of a request say.
    pub fn of(headers: &HeaderMap, trailers: Option<TrailingHeaders>) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|text| text.parse().ok());
        let mut expected = Self {
            length: number("x-amz-decoded-content-length").or_else(|| number("content-length")),
            md5: text("content-md5").map(String::from),
            trailers,
            ..Self::default()
        };
        let wanted = text("x-amz-sdk-checksum-algorithm").unwrap_or_default();
        for name in ALGORITHMS {
            let header = format!("x-amz-checksum-{name}");
            if let Some(value) = text(&header) {
                expected.checksums.insert(name, value.to_string());
            } else if wanted.eq_ignore_ascii_case(name)
                || headers.get_all("x-amz-trailer").iter().any(|trailer| {
                    trailer
                        .as_bytes()
                        .split(|byte| *byte == b',')
                        .any(|trailer| trailer.trim_ascii().eq_ignore_ascii_case(header.as_bytes()))
                })
            {
                expected.more.push(name);
            }
        }
        expected
    }

    fn hasher(&self) -> ChecksumHasher {
        let has = |name| self.checksums.contains_key(name) || self.more.contains(&name);
        ChecksumHasher {
            crc32: has("crc32").then(Crc32::new),
            crc32c: has("crc32c").then(Crc32c::new),
            crc64nvme: has("crc64nvme").then(Crc64Nvme::new),
            sha1: has("sha1").then(Sha1::new),
            sha256: has("sha256").then(Sha256::new),
        }
    }

    /// Compares with what came.
    fn check(&self, size: u64, md5: &[u8; 16], found: &Checksums) -> S3Result<()> {
        if self.length.is_some_and(|length| length != size) {
            return Err(refused(S3ErrorCode::IncompleteBody, "the body has another length"));
        }
        if let Some(wanted) = &self.md5 {
            if wanted.len() != 24 {
                return Err(refused(S3ErrorCode::InvalidDigest, "Content-MD5 is no MD5"));
            }
            if *wanted != base64(md5) {
                return Err(refused(S3ErrorCode::BadDigest, "the body has another MD5"));
            }
        }
        let after = self.trailers.as_ref().and_then(TrailingHeaders::take);
        for (name, value) in found {
            let trailer = after.as_ref().and_then(|trailers| {
                trailers.get(format!("x-amz-checksum-{name}")).and_then(|text| text.to_str().ok())
            });
            let wanted = self.checksums.get(name.as_str()).map(String::as_str).or(trailer);
            if wanted.is_some_and(|wanted| wanted.trim() != value) {
                let why = format!("the body has another checksum ({name})");
                return Err(refused(S3ErrorCode::BadDigest, why));
            }
        }
        Ok(())
    }
}

/// Checksums by algorithm, in base64.
pub type Checksums = BTreeMap<String, String>;

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn by_name(checksum: Checksum) -> Checksums {
    let named = [
        ("crc32", checksum.checksum_crc32),
        ("crc32c", checksum.checksum_crc32c),
        ("crc64nvme", checksum.checksum_crc64nvme),
        ("sha1", checksum.checksum_sha1),
        ("sha256", checksum.checksum_sha256),
    ];
    named.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}

/// A body that was written.
pub struct Received {
    /// The file that has it.
    pub writer: ObjectWriter,
    /// Its checksums.
    pub checksums: Checksums,
    /// Its MD5, in hexadecimal.
    pub md5: String,
}

/// What is being written.
struct Receiving {
    writer: ObjectWriter,
    hasher: ChecksumHasher,
}

impl Receiving {
    fn take(mut self, piece: Bytes) -> S3Result<Self> {
        self.hasher.update(&piece);
        self.writer.write(&piece)?;
        Ok(self)
    }

    fn end(self, expected: &Expected) -> S3Result<Received> {
        let md5 = self.writer.md5();
        let checksums = by_name(self.hasher.finalize());
        expected.check(self.writer.size(), &md5, &checksums)?;
        Ok(Received { writer: self.writer, checksums, md5: to_hex(&md5) })
    }
}

/// A body as pieces of a size that is worth a write.
struct Pieces {
    body: Option<StreamingBlob>,
}

impl Pieces {
    /// The next piece; a short one is the last.
    async fn next(&mut self) -> S3Result<Bytes> {
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES {
            let Some(body) = &mut self.body else { break };
            match body.next().await {
                Some(Ok(bytes)) if piece.is_empty() && bytes.len() >= PIECE_BYTES => {
                    return Ok(bytes);
                }
                Some(Ok(bytes)) => piece.extend_from_slice(&bytes),
                Some(Err(why)) => return Err(broken(&*why)),
                None => self.body = None,
            }
        }
        Ok(piece.freeze())
    }

    fn is_ended(&self) -> bool {
        self.body.is_none()
    }
}

/// Why a body ends early, as S3 says it.
fn broken(why: &(dyn std::error::Error + 'static)) -> s3s::S3Error {
    let mut cause = Some(why);
    while let Some(error) = cause {
        match error.downcast_ref::<BodyError>() {
            Some(BodyError::Idle) => {
                return refused(S3ErrorCode::RequestTimeout, error.to_string());
            }
            Some(BodyError::Chunks(why)) => return refused(S3ErrorCode::InvalidRequest, *why),
            Some(BodyError::Connection(_)) => break,
            None => cause = error.source(),
        }
    }
    let text = why.to_string();
    let code = match &text {
        text if text.contains("SignatureMismatch") => S3ErrorCode::SignatureDoesNotMatch,
        text if text.contains("hecksum") => S3ErrorCode::BadDigest,
        _ => S3ErrorCode::IncompleteBody,
    };
    refused(code, format!("the body: {text}"))
}

/// Writes a body that comes for an object.
///
/// # Errors
/// `IncompleteBody`, `BadDigest`, `RequestTimeout`; as for any object.
pub async fn receive(
    account: &Arc<Account>,
    to: &Target,
    body: Option<StreamingBlob>,
    expected: Expected,
) -> S3Result<Received> {
    let mut pieces = Pieces { body };
    // Small objects are written at one go.
    let first = pieces.next().await?;
    let (account, to) = (account.clone(), to.clone());
    let hasher = expected.hasher();
    let begin = move || {
        let writer = ObjectWriter::begin(&account, &to.bucket, &to.key)?;
        let receiving = Receiving { writer, hasher };
        if first.is_empty() { Ok(receiving) } else { receiving.take(first) }
    };
    if pieces.is_ended() {
        return blocking(move || begin()?.end(&expected)).await;
    }
    let mut receiving = blocking(begin).await?;
    while !pieces.is_ended() {
        let piece = pieces.next().await?;
        if !piece.is_empty() {
            receiving = blocking(move || receiving.take(piece)).await?;
        }
    }
    blocking(move || receiving.end(&expected)).await
}
