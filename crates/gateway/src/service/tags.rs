//! Tags of objects.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::{GatewayService, blocking, only_version, target};
use crate::attributes::{Tags, check_tags};
use crate::error::refused;

/// Gets the tags of an object.
pub async fn get_object_tagging(
    gateway: &GatewayService,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    let tags = blocking(move || account.tags(&of.bucket, &of.key)).await?;
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    let tag_set = tags.into_iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

/// Gives an object other tags.
pub async fn put_object_tagging(
    gateway: &GatewayService,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    let pair = |tag: Tag| Some((tag.key?, tag.value?));
    let tags: Option<Tags> = input.tagging.tag_set.into_iter().map(pair).collect();
    let tags =
        tags.ok_or_else(|| refused(S3ErrorCode::MalformedXML, "a tag has a key and a value"))?;
    check_tags(&tags)?;
    blocking(move || account.set_tags(&of.bucket, &of.key, &tags)).await?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

/// Takes an object's tags away.
pub async fn delete_object_tagging(
    gateway: &GatewayService,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let of = target(input.bucket, &input.key)?;
    blocking(move || account.set_tags(&of.bucket, &of.key, &Tags::new())).await?;
    let output = DeleteObjectTaggingOutput::default();
    Ok(S3Response::with_status(output, http::StatusCode::NO_CONTENT))
}
