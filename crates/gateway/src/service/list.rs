//! Buckets, and listings of their objects.

use std::fmt::Write as _;

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::{GatewayService, blocking, etag, no_extras, timestamp};
use crate::error::refused;
use crate::listing::{ListPage, ListRequest, ListedObject, PAGE_KEYS_MAX, Position};

/// Most buckets of a page.
const BUCKETS_MAX: usize = 10_000;

/// Lists buckets.
pub async fn list_buckets(
    gateway: &GatewayService,
    request: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    let count = input.max_buckets.map_or(BUCKETS_MAX, |count| count.clamp(1, 10_000) as usize);
    let (prefix, after) = (input.prefix.clone().unwrap_or_default(), input.continuation_token);
    let (buckets, more) =
        blocking(move || account.list_buckets(&prefix, after.as_deref(), count)).await?;
    let next = buckets.last().filter(|_| more).map(|bucket| bucket.name.clone());
    let bucket = |bucket: crate::buckets::ListedBucket| Bucket {
        creation_date: Some(timestamp(bucket.created)),
        name: Some(bucket.name),
        ..Bucket::default()
    };
    let owner = Owner { id: Some("kestrel".into()), display_name: Some("kestrel".into()) };
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets.into_iter().map(bucket).collect()),
        continuation_token: next,
        owner: Some(owner),
        prefix: input.prefix,
    }))
}

/// Makes a bucket.
pub async fn create_bucket(
    gateway: &GatewayService,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let bucket = request.input.bucket;
    if request.input.object_lock_enabled_for_bucket == Some(true) {
        return Err(refused(S3ErrorCode::NotImplemented, "there is no object lock"));
    }
    let location = Some(format!("/{bucket}"));
    blocking(move || account.make_bucket(&bucket)).await?;
    Ok(S3Response::new(CreateBucketOutput { location }))
}

/// Removes an empty bucket.
pub async fn delete_bucket(
    gateway: &GatewayService,
    request: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    let account = gateway.account(&request).await?;
    let bucket = request.input.bucket;
    blocking(move || account.remove_bucket(&bucket)).await?;
    Ok(S3Response::with_status(DeleteBucketOutput {}, http::StatusCode::NO_CONTENT))
}

/// Whether there is a bucket.
pub async fn head_bucket(
    gateway: &GatewayService,
    request: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    let account = gateway.account(&request).await?;
    let bucket = request.input.bucket;
    blocking(move || account.bucket(&bucket)).await?;
    let bucket_region = gateway.region.parse().ok();
    Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
}

/// The region of a bucket.
pub async fn get_bucket_location(
    gateway: &GatewayService,
    request: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    let account = gateway.account(&request).await?;
    let bucket = request.input.bucket;
    blocking(move || account.bucket(&bucket)).await?;
    // S3's first region has no name here.
    let named = (gateway.region != super::REGION_DEFAULT).then(|| gateway.region.clone());
    let location_constraint = named.map(BucketLocationConstraint::from);
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}

/// Buckets have no versions.
pub async fn get_bucket_versioning(
    gateway: &GatewayService,
    request: S3Request<GetBucketVersioningInput>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    let account = gateway.account(&request).await?;
    let bucket = request.input.bucket;
    blocking(move || account.bucket(&bucket)).await?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

/// How many keys a page is to have at most.
fn count(max_keys: Option<i32>) -> S3Result<usize> {
    match max_keys {
        None => Ok(PAGE_KEYS_MAX),
        Some(count) => usize::try_from(count)
            .map(|count| count.min(PAGE_KEYS_MAX))
            .map_err(|_| refused(S3ErrorCode::InvalidArgument, "max-keys is below zero")),
    }
}

/// Texts as they are, or with what XML cannot hold as in URLs.
struct Encoding(bool);

impl Encoding {
    fn of(wanted: Option<&EncodingType>) -> S3Result<Self> {
        match wanted.map(EncodingType::as_str) {
            None | Some("") => Ok(Self(false)),
            Some(EncodingType::URL) => Ok(Self(true)),
            Some(_) => Err(refused(S3ErrorCode::InvalidArgument, "encoding-type can be url")),
        }
    }

    fn text(&self, text: String) -> String {
        if !self.0 {
            return text;
        }
        let mut out = String::with_capacity(text.len());
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    out.push(byte.into());
                }
                // Writing to a string does not fail.
                _ => drop(write!(out, "%{byte:02X}")),
            }
        }
        out
    }

    fn objects(&self, objects: Vec<ListedObject>, owner: bool) -> Vec<Object> {
        let object = |object: ListedObject| Object {
            e_tag: etag(object.etag),
            key: Some(self.text(object.key)),
            last_modified: Some(timestamp(object.mtime)),
            owner: owner.then(|| Owner {
                id: Some("kestrel".into()),
                display_name: Some("kestrel".into()),
            }),
            size: i64::try_from(object.size).ok(),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Object::default()
        };
        objects.into_iter().map(object).collect()
    }

    fn prefixes(&self, prefixes: Vec<String>) -> Vec<CommonPrefix> {
        let prefix = |prefix| CommonPrefix { prefix: Some(self.text(prefix)) };
        prefixes.into_iter().map(prefix).collect()
    }
}

/// A marker stands for all of a common prefix if it is one.
fn marker(text: Option<&str>, prefix: &str, delimiter: Option<&str>) -> Option<Position> {
    let text = text.filter(|text| !text.is_empty())?;
    let is_common = delimiter.filter(|delimiter| !delimiter.is_empty()).is_some_and(|delimiter| {
        let rest = text.strip_prefix(prefix).unwrap_or_default();
        rest.find(delimiter).is_some_and(|at| at + delimiter.len() == rest.len())
    });
    let text = text.to_string();
    Some(if is_common { Position::Prefix(text) } else { Position::Key(text) })
}

/// Lists objects, version 1.
pub async fn list_objects(
    gateway: &GatewayService,
    request: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    let encoding = Encoding::of(input.encoding_type.as_ref())?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let after = marker(input.marker.as_deref(), &prefix, input.delimiter.as_deref());
    let count = count(input.max_keys)?;
    let wanted = ListRequest { prefix, delimiter: input.delimiter.clone(), after, count };
    let bucket = input.bucket.clone();
    let page: ListPage = blocking(move || account.list(&bucket, &wanted)).await?;
    // S3 tells the next marker only where it is not the last key.
    let next = page.next.as_ref().filter(|_| input.delimiter.is_some());
    Ok(S3Response::new(ListObjectsOutput {
        is_truncated: Some(page.next.is_some()),
        next_marker: next.map(|next| encoding.text(next.text().into())),
        contents: Some(encoding.objects(page.objects, true)),
        common_prefixes: Some(encoding.prefixes(page.prefixes)),
        name: Some(input.bucket),
        marker: Some(encoding.text(input.marker.unwrap_or_default())),
        prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
        delimiter: input.delimiter.map(|text| encoding.text(text)),
        max_keys: i32::try_from(count).ok(),
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

/// Lists objects, version 2.
pub async fn list_objects_v2(
    gateway: &GatewayService,
    request: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    let encoding = Encoding::of(input.encoding_type.as_ref())?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let after = match &input.continuation_token {
        Some(token) => Some(Position::parse(token).ok_or_else(|| {
            refused(S3ErrorCode::InvalidArgument, "the continuation token is none of this gateway")
        })?),
        None => marker(input.start_after.as_deref(), &prefix, None),
    };
    let count = count(input.max_keys)?;
    let wanted = ListRequest { prefix, delimiter: input.delimiter.clone(), after, count };
    let bucket = input.bucket.clone();
    let page = blocking(move || account.list(&bucket, &wanted)).await?;
    let key_count = page.objects.len() + page.prefixes.len();
    let owner = input.fetch_owner.unwrap_or_default();
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.text(input.prefix.unwrap_or_default())),
        max_keys: i32::try_from(count).ok(),
        key_count: i32::try_from(key_count).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.as_ref().map(Position::token),
        contents: Some(encoding.objects(page.objects, owner)),
        common_prefixes: Some(encoding.prefixes(page.prefixes)),
        delimiter: input.delimiter.map(|text| encoding.text(text)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|text| encoding.text(text)),
        request_charged: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A marker that is a common prefix stands for all of it.
    #[test]
    fn markers_of_common_prefixes() {
        let prefix = |text: &str| Some(Position::Prefix(text.into()));
        let key = |text: &str| Some(Position::Key(text.into()));
        assert_eq!(marker(Some("a/"), "", Some("/")), prefix("a/"));
        assert_eq!(marker(Some("a/b"), "", Some("/")), key("a/b"));
        assert_eq!(marker(Some("a/b/"), "", Some("/")), key("a/b/"));
        assert_eq!(marker(Some("a/b/"), "a/", Some("/")), prefix("a/b/"));
        assert_eq!(marker(Some("a/"), "", None), key("a/"));
        assert_eq!(marker(Some(""), "", Some("/")), None);
    }
}
