//! The operations of S3, each in terms of what the other modules do.
//!
//! | file | |
//! | --- | --- |
//! | `service/read.rs` | get and head objects, their attributes |
//! | `service/write.rs` | put, copy and delete objects |
//! | `service/receive.rs` | bodies that come, with their checksums |
//! | `service/parts.rs` | uploads in parts |
//! | `service/list.rs` | buckets and listings |
//! | `service/tags.rs` | tags |
//!
//! What waits for metadata or for room runs on threads for that ([`blocking`]); the threads of
//! connections only move bytes.

/// The answer to a request that stored bytes: the protocol library has a type for each of them.
macro_rules! stored {
    ($output:ident, $md5:ident, $sums:ident) => {{
        let get = |name: &str| $sums.get(name).cloned();
        $output {
            e_tag: etag($md5),
            checksum_crc32: get("crc32"),
            checksum_crc32c: get("crc32c"),
            checksum_crc64nvme: get("crc64nvme"),
            checksum_sha1: get("sha1"),
            checksum_sha256: get("sha256"),
            ..$output::default()
        }
    }};
}

mod list;
mod parts;
mod read;
mod receive;
mod tags;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use s3s::access::{S3Access, S3AccessContext};
use s3s::dto::*;
use s3s::{S3, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access_keys::Keyring;
use crate::account::Account;
use crate::attributes::{ObjectAttributes, tags_of_header};
use crate::error::refused;
use crate::metrics::GatewayMetrics;
use crate::object_key::ObjectKey;
use crate::writer::{ObjectInfo, Target};

/// The region that buckets say they are in unless another one is given.
pub const REGION_DEFAULT: &str = "us-east-1";

/// The gateway's operations.
pub struct GatewayService {
    keyring: Arc<Keyring>,
    region: String,
}

impl GatewayService {
    /// For these access keys.
    pub fn new(keyring: Arc<Keyring>, region: String) -> Self {
        Self { keyring, region }
    }

    /// What the access key of a request gives.
    async fn account<T>(&self, request: &S3Request<T>) -> S3Result<Arc<Account>> {
        let Some(credentials) = &request.credentials else {
            return Err(refused(S3ErrorCode::AccessDenied, "the request has no signature"));
        };
        let (keyring, id) = (self.keyring.clone(), credentials.access_key.clone());
        if let Some(account) = keyring.account_at_hand(&id) {
            return Ok(account);
        }
        blocking(move || keyring.account(&id)).await
    }
}

/// Counts operations, and refuses what has no signature.
pub struct CountedAccess(pub Arc<GatewayMetrics>);

#[async_trait::async_trait]
impl S3Access for CountedAccess {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if cx.credentials().is_none() {
            return Err(refused(
                S3ErrorCode::AccessDenied,
                "the request has no signature; every request needs an access key",
            ));
        }
        self.0.operation(cx.s3_op().name());
        Ok(())
    }
}

/// Runs what may wait on a thread for that.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    match tokio::task::spawn_blocking(run).await {
        Ok(result) => result,
        Err(why) => {
            log::error!("gateway: a request failed: {why}");
            Err(refused(S3ErrorCode::InternalError, "the request could not be carried out"))
        }
    }
}

fn target(bucket: String, key: &str) -> S3Result<Target> {
    Ok(Target { bucket, key: ObjectKey::parse(key)? })
}

/// A time as S3 has it, of nanoseconds since 1970.
fn timestamp(nanos: i64) -> Timestamp {
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(nanos.into());
    time.unwrap_or(time::OffsetDateTime::UNIX_EPOCH).into()
}

fn etag(value: String) -> Option<ETag> {
    Some(ETag::Strong(value))
}

/// There are no versions.
fn only_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(refused(S3ErrorCode::NoSuchVersion, "objects have no versions here")),
    }
}

/// What a request wants of an object that there is not: it is better refused than forgotten.
fn no_extras(headers: &HeaderMap) -> S3Result<()> {
    let not = |why: &'static str| Err(refused(S3ErrorCode::NotImplemented, why));
    for name in headers.keys().map(http::HeaderName::as_str) {
        if name.starts_with("x-amz-server-side-encryption-customer-") {
            return not("keys of customers are not kept; encrypt the volume instead");
        }
        if name.starts_with("x-amz-object-lock-") {
            return not("there is no object lock; use snapshots with holds");
        }
        if name == "x-amz-write-offset-bytes" {
            return not("objects are not appended to; append to the file on a mount");
        }
        if name.starts_with("x-amz-grant-") {
            return Err(no_acls());
        }
    }
    match headers.get("x-amz-acl").map(|value| value.as_bytes()) {
        None | Some(b"private" | b"bucket-owner-full-control" | b"") => Ok(()),
        Some(_) => Err(no_acls()),
    }
}

fn no_acls() -> s3s::S3Error {
    refused(
        S3ErrorCode::AccessControlListNotSupported,
        "there are no ACLs here; the access key decides what may be done",
    )
}

/// Headers that are kept of an object, in small letters.
const KEPT_HEADERS: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];

/// What a request gives an object besides its bytes.
fn object_info(
    headers: &HeaderMap,
    metadata: Option<Metadata>,
    tagging: Option<&str>,
) -> S3Result<ObjectInfo> {
    let mut kept = BTreeMap::new();
    for name in KEPT_HEADERS {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        let value = match name {
            // How the body came says nothing about the object.
            "content-encoding" => value
                .split(',')
                .map(str::trim)
                .filter(|coding| !coding.is_empty() && *coding != "aws-chunked")
                .collect::<Vec<_>>()
                .join(","),
            _ => value.to_string(),
        };
        if !value.is_empty() {
            kept.insert(name.to_string(), value);
        }
    }
    let attributes = ObjectAttributes {
        headers: kept,
        metadata: metadata.into_iter().flatten().collect(),
        ..ObjectAttributes::default()
    };
    attributes.check()?;
    let tags = tagging.map(tags_of_header).transpose()?.unwrap_or_default();
    Ok(ObjectInfo { attributes, tags })
}

/// Has each operation done by the function of its name in the module that is named.
macro_rules! operations {
    ($($module:ident::$name:ident($input:ty) -> $output:ty;)*) => {
        #[async_trait::async_trait]
        impl S3 for GatewayService {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                $module::$name(self, request).await
            })*
        }
    };
}

operations! {
    list::list_buckets(ListBucketsInput) -> ListBucketsOutput;
    list::create_bucket(CreateBucketInput) -> CreateBucketOutput;
    list::delete_bucket(DeleteBucketInput) -> DeleteBucketOutput;
    list::head_bucket(HeadBucketInput) -> HeadBucketOutput;
    list::get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput;
    list::get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput;
    list::list_objects(ListObjectsInput) -> ListObjectsOutput;
    list::list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output;
    read::get_object(GetObjectInput) -> GetObjectOutput;
    read::head_object(HeadObjectInput) -> HeadObjectOutput;
    read::get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput;
    write::put_object(PutObjectInput) -> PutObjectOutput;
    write::post_object(PostObjectInput) -> PostObjectOutput;
    write::copy_object(CopyObjectInput) -> CopyObjectOutput;
    write::delete_object(DeleteObjectInput) -> DeleteObjectOutput;
    write::delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput;
    tags::get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput;
    tags::put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput;
    tags::delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput;
    parts::create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput;
    parts::upload_part(UploadPartInput) -> UploadPartOutput;
    parts::upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput;
    parts::complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput;
    parts::abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput;
    parts::list_parts(ListPartsInput) -> ListPartsOutput;
    parts::list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput;
}
