//! Get and head objects.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::stream;
use kestrel_types::error::FsError;
use kestrel_types::inode::Kind;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::{GatewayService, blocking, etag, no_extras, only_version, target, timestamp};
use crate::conditions::Conditions;
use crate::error::{own, refused};
use crate::object::{Object, OpenFile};

/// Bytes that are read at a time, and wait for the client.
const PIECE_BYTES: u64 = 256 << 10;

/// The type of objects that were put without one.
const TYPE_DEFAULT: &str = "binary/octet-stream";

/// The type of directories that are objects.
const TYPE_OF_DIRECTORIES: &str = "application/x-directory";

fn type_default(object: &Object) -> Option<String> {
    let is_dir = object.inode.kind == Kind::Dir;
    Some(if is_dir { TYPE_OF_DIRECTORIES } else { TYPE_DEFAULT }.into())
}

/// What is wanted of an object.
struct Wanted {
    demands: Conditions,
    range: Option<Range>,
    part: Option<i32>,
}

/// A part of an object.
struct Window {
    from: u64,
    to: u64,
    /// The header that says so, of a part.
    header: Option<String>,
}

impl Window {
    fn is_whole(&self, object: &Object) -> bool {
        self.from == 0 && self.to == object.size()
    }
}

impl Wanted {
    fn check(&self, object: &Object) -> S3Result<Window> {
        if let Err(error) = self.demands.check_read(&object.etag, object.inode.mtime) {
            return Err(with_etag(error, object));
        }
        if self.part.is_some_and(|part| part != 1) || (self.part == Some(1) && is_of_parts(object))
        {
            let why = "parts of an object are not kept apart; ask for a range of bytes";
            return Err(refused(S3ErrorCode::NotImplemented, why));
        }
        let size = object.size();
        let Some(range) = &self.range else {
            return Ok(Window { from: 0, to: size, header: None });
        };
        if size == 0 && matches!(range, Range::Suffix { length } if *length > 0) {
            return Ok(Window { from: 0, to: 0, header: None });
        }
        let Ok(part) = range.check(size) else {
            let mut error = own(
                "InvalidRange",
                http::StatusCode::RANGE_NOT_SATISFIABLE,
                "the object has no such bytes",
            );
            if let Ok(value) = http::HeaderValue::from_str(&format!("bytes */{size}")) {
                error.set_headers(http::HeaderMap::from_iter([(
                    http::header::CONTENT_RANGE,
                    value,
                )]));
            }
            return Err(error);
        };
        let header = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        Ok(Window { from: part.start, to: part.end, header: Some(header) })
    }
}

/// An answer that nothing has changed says what is there.
fn with_etag(mut error: s3s::S3Error, object: &Object) -> s3s::S3Error {
    if let Ok(value) = http::HeaderValue::from_str(&format!("\"{}\"", object.etag)) {
        error.set_headers(http::HeaderMap::from_iter([(http::header::ETAG, value)]));
    }
    error
}

fn is_of_parts(object: &Object) -> bool {
    object.etag.contains('-') && !object.etag.ends_with("-0")
}

/// Headers of an answer, some of which a request may set.
struct Headers {
    kept: BTreeMap<String, String>,
}

impl Headers {
    fn take(&mut self, name: &str, instead: Option<String>) -> Option<String> {
        let kept = self.kept.remove(name);
        instead.or(kept)
    }

    fn expires(&mut self, instead: Option<Timestamp>) -> Option<Timestamp> {
        let kept = self.kept.remove("expires");
        let parse = |text: String| Timestamp::parse(TimestampFormat::HttpDate, &text).ok();
        instead.or_else(|| kept.and_then(parse))
    }
}

fn status(window: &Window) -> Option<http::StatusCode> {
    window.header.as_ref().map(|_| http::StatusCode::PARTIAL_CONTENT)
}

/// Checksums are told to those that ask, of the whole object.
fn checksums(object: &Object, mode: Option<&ChecksumMode>, window: &Window) -> Checksum {
    let is_wanted = mode.is_some_and(|mode| mode.as_str() == "ENABLED")
        && window.is_whole(object)
        && object.attributes.is_of(&object.inode);
    let get = |name: &str| object.attributes.checksums.get(name).cloned().filter(|_| is_wanted);
    let any = is_wanted && !object.attributes.checksums.is_empty();
    Checksum {
        checksum_crc32: get("crc32"),
        checksum_crc32c: get("crc32c"),
        checksum_crc64nvme: get("crc64nvme"),
        checksum_sha1: get("sha1"),
        checksum_sha256: get("sha256"),
        checksum_type: any.then(|| ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
    }
}

/// What a request for an object wants: the protocol library has a type for each of them.
macro_rules! wanted {
    ($input:ident) => {
        Wanted {
            demands: Conditions {
                if_match: $input.if_match,
                if_none_match: $input.if_none_match,
                if_modified_since: $input.if_modified_since,
                if_unmodified_since: $input.if_unmodified_since,
            },
            range: $input.range,
            part: $input.part_number,
        }
    };
}

/// The answer to such a request, without the bytes.
macro_rules! described {
    ($output:ident, $input:ident, $object:ident, $window:ident) => {{
        let sums = checksums(&$object, $input.checksum_mode.as_ref(), &$window);
        let mut headers = Headers { kept: $object.attributes.headers.clone() };
        $output {
            accept_ranges: Some("bytes".into()),
            cache_control: headers.take("cache-control", $input.response_cache_control),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            content_disposition: headers
                .take("content-disposition", $input.response_content_disposition),
            content_encoding: headers.take("content-encoding", $input.response_content_encoding),
            content_language: headers.take("content-language", $input.response_content_language),
            content_length: i64::try_from($window.to - $window.from).ok(),
            content_range: $window.header.clone(),
            content_type: headers
                .take("content-type", $input.response_content_type)
                .or_else(|| type_default(&$object)),
            e_tag: etag($object.etag.clone()),
            expires: headers.expires($input.response_expires),
            last_modified: Some(timestamp($object.inode.mtime)),
            metadata: Some($object.attributes.metadata.into_iter().collect()),
            ..$output::default()
        }
    }};
}

/// Gets an object, or a range of it.
pub async fn get_object(
    gateway: &GatewayService,
    request: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    let wanted = wanted!(input);
    let (object, file, window, tags) = blocking(move || {
        let (object, file) = account.open(&of.bucket, &of.key)?;
        let window = wanted.check(&object)?;
        let tags = account.tags_of(&object).map_err(crate::error::failed)?;
        Ok((object, file, window, tags.len()))
    })
    .await?;
    let body = file.map(|file| body(file, window.from, window.to));
    let tag_count = i32::try_from(tags).ok().filter(|count| *count > 0);
    let described = described!(GetObjectOutput, input, object, window);
    let output = GetObjectOutput { body, tag_count, ..described };
    let mut response = S3Response::new(output);
    response.status = status(&window);
    Ok(response)
}

/// The bytes of a file, as the client takes them. One that became shorter meanwhile ends the
/// connection: its length was told.
fn body(file: OpenFile, from: u64, to: u64) -> StreamingBlob {
    let pieces = stream::try_unfold((file, from), move |(file, at)| async move {
        if at >= to {
            return Ok(None);
        }
        let wanted = (to - at).min(PIECE_BYTES);
        let bytes = file.read(at, wanted as usize).await?;
        if bytes.is_empty() {
            return Err(FsError::new(libc::EIO, "the file became shorter while it was read"));
        }
        let next = at + bytes.len() as u64;
        Ok(Some((Bytes::from(bytes), (file, next))))
    });
    StreamingBlob::wrap(pieces)
}

/// Tells of an object.
pub async fn head_object(
    gateway: &GatewayService,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    let wanted = wanted!(input);
    let (object, window, tags) = blocking(move || {
        let object = account.object(&of.bucket, &of.key)?;
        let window = wanted.check(&object)?;
        let tags = account.tags_of(&object).map_err(crate::error::failed)?;
        Ok((object, window, tags.len()))
    })
    .await?;
    let output = described!(HeadObjectOutput, input, object, window);
    let mut response = S3Response::new(output);
    if tags > 0 {
        // The protocol library has no field for it here.
        response.headers.insert("x-amz-tagging-count", http::HeaderValue::from(tags));
    }
    Ok(response)
}

/// Tells some attributes of an object.
pub async fn get_object_attributes(
    gateway: &GatewayService,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    let object = blocking(move || account.object(&of.bucket, &of.key)).await?;
    let wants = |name: &str| input.object_attributes.iter().any(|wanted| wanted.as_str() == name);
    let whole = Window { from: 0, to: object.size(), header: None };
    let mode = ChecksumMode::from_static(ChecksumMode::ENABLED);
    let checksum = wants("Checksum").then(|| checksums(&object, Some(&mode), &whole));
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum: checksum.filter(|_| !object.attributes.checksums.is_empty()),
        e_tag: etag(object.etag.clone()).filter(|_| wants("ETag")),
        last_modified: Some(timestamp(object.inode.mtime)),
        object_size: i64::try_from(object.size()).ok().filter(|_| wants("ObjectSize")),
        storage_class: wants("StorageClass")
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        ..GetObjectAttributesOutput::default()
    }))
}
