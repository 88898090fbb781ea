//! Put, copy and delete objects.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::receive::{Expected, Received, receive};
use super::{
    GatewayService, blocking, etag, no_extras, object_info, only_version, target, timestamp,
};
use crate::account::Account;
use crate::conditions::Conditions;
use crate::error::{failed, refused};
use crate::object_key::ObjectKey;
use crate::writer::{ObjectInfo, ObjectWriter, Target};

/// Most keys of one request that removes objects: S3's limit.
const DELETE_KEYS_MAX: usize = 1000;

/// Puts an object.
pub async fn put_object(
    gateway: &GatewayService,
    request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let expected = Expected::of(&request.headers, request.trailing_headers.clone());
    let input = request.input;
    let mut info = object_info(&request.headers, input.metadata, input.tagging.as_deref())?;
    let to = target(input.bucket, &input.key)?;
    let demands = Conditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        ..Conditions::default()
    };
    if !demands.is_none() {
        // What cannot succeed is refused before its bytes come.
        let (account, to, demands) = (account.clone(), to.clone(), demands.clone());
        blocking(move || {
            let bucket = account.bucket(&to.bucket)?;
            let present = account.find(bucket, &to.key).map_err(failed)?;
            demands.check_write(present.as_ref().map(|object| &*object.etag))
        })
        .await?;
    }
    let received = receive(&account, &to, input.body, expected).await?;
    info.attributes.checksums = received.checksums.clone();
    let (checksums, md5) = (received.checksums.clone(), received.md5.clone());
    blocking(move || commit(&account, &to, received, info, &demands)).await?;
    Ok(S3Response::new(stored!(PutObjectOutput, md5, checksums)))
}

fn commit(
    account: &Arc<Account>,
    to: &Target,
    received: Received,
    info: ObjectInfo,
    demands: &Conditions,
) -> S3Result<()> {
    let Received { writer, md5, .. } = received;
    if !to.key.is_directory() {
        return writer.commit(to, md5, info, demands);
    }
    if writer.size() > 0 {
        return Err(crate::error::directory_with_bytes());
    }
    account.put_directory(to, md5, info, demands)
}

/// Forms of browsers are not taken.
pub async fn post_object(
    _gateway: &GatewayService,
    _request: S3Request<PostObjectInput>,
) -> S3Result<S3Response<PostObjectOutput>> {
    Err(refused(S3ErrorCode::NotImplemented, "forms of browsers are not taken; use a signed PUT"))
}

/// The object that a copy is of.
pub fn copy_source(source: &CopySource) -> S3Result<(String, ObjectKey)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            only_version(version_id.as_deref())?;
            Ok((bucket.to_string(), ObjectKey::parse(key)?))
        }
        _ => Err(refused(S3ErrorCode::NotImplemented, "there are no access points")),
    }
}

/// Copies an object.
pub async fn copy_object(
    gateway: &GatewayService,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    let to = target(input.bucket, &input.key)?;
    let (from_bucket, from_key) = copy_source(&input.copy_source)?;
    let replaces = |directive: Option<&str>| directive == Some("REPLACE");
    let new_info = replaces(input.metadata_directive.as_ref().map(|text| text.as_str()))
        .then(|| object_info(&request.headers, input.metadata, None))
        .transpose()?;
    let new_tags = replaces(input.tagging_directive.as_ref().map(|text| text.as_str()))
        .then(|| crate::attributes::tags_of_header(input.tagging.as_deref().unwrap_or_default()))
        .transpose()?;
    if from_bucket == to.bucket && from_key == to.key && new_info.is_none() && new_tags.is_none() {
        let why = "an object is copied to itself only with other metadata or tags";
        return Err(refused(S3ErrorCode::InvalidRequest, why));
    }
    let source = Conditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let result = blocking(move || {
        let (object, file) = account.open(&from_bucket, &from_key)?;
        source.check_source(&object.etag, object.inode.mtime)?;
        let tags = match new_tags {
            Some(tags) => tags,
            None => account.tags_of(&object).map_err(failed)?,
        };
        let attributes = match new_info {
            Some(new) => new.attributes,
            None => object.attributes.clone(),
        };
        let mut info = ObjectInfo { attributes, tags };
        // The bytes are the same.
        info.attributes.checksums = match object.attributes.is_of(&object.inode) {
            true => object.attributes.checksums.clone(),
            false => Default::default(),
        };
        let mut writer = ObjectWriter::begin(&account, &to.bucket, &to.key)?;
        if let Some(file) = &file {
            writer.append(file, 0, object.size())?;
        }
        let (now, sums) = (account.fs.now(), info.attributes.checksums.clone());
        let any = Conditions::default();
        match to.key.is_directory() {
            true if writer.size() > 0 => return Err(crate::error::directory_with_bytes()),
            true => account.put_directory(&to, object.etag.clone(), info, &any)?,
            false => writer.commit(&to, object.etag.clone(), info, &any)?,
        }
        let get = |name: &str| sums.get(name).cloned();
        Ok(CopyObjectResult {
            checksum_crc32: get("crc32"),
            checksum_crc32c: get("crc32c"),
            checksum_crc64nvme: get("crc64nvme"),
            checksum_sha1: get("sha1"),
            checksum_sha256: get("sha256"),
            e_tag: etag(object.etag),
            last_modified: Some(timestamp(now)),
            ..CopyObjectResult::default()
        })
    });
    let result = Some(result.await?);
    Ok(S3Response::new(CopyObjectOutput { copy_object_result: result, ..Default::default() }))
}

/// Deletes an object.
pub async fn delete_object(
    gateway: &GatewayService,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let to = target(input.bucket, &input.key)?;
    let demands = Conditions { if_match: input.if_match, ..Conditions::default() };
    blocking(move || account.delete(&to.bucket, &to.key, &demands)).await?;
    Ok(S3Response::with_status(DeleteObjectOutput::default(), http::StatusCode::NO_CONTENT))
}

/// Deletes several objects, each of which may fail.
pub async fn delete_objects(
    gateway: &GatewayService,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let account = gateway.account(&request).await?;
    let DeleteObjectsInput { bucket, delete, .. } = request.input;
    if delete.objects.is_empty() || delete.objects.len() > DELETE_KEYS_MAX {
        return Err(refused(S3ErrorCode::MalformedXML, "1 to 1000 keys in a request"));
    }
    let quiet = delete.quiet.unwrap_or_default();
    let output = blocking(move || {
        account.bucket(&bucket)?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for wanted in delete.objects {
            let demands = Conditions {
                if_match: wanted.e_tag.map(ETagCondition::ETag),
                ..Conditions::default()
            };
            let done = only_version(wanted.version_id.as_deref())
                .and_then(|()| ObjectKey::parse(&wanted.key))
                .and_then(|key| account.delete(&bucket, &key, &demands));
            match done {
                Ok(()) if quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(wanted.key), ..<_>::default() }),
                Err(why) => errors.push(Error {
                    code: Some(why.code().as_str().to_string()),
                    message: why.message().map(String::from),
                    key: Some(wanted.key),
                    ..Error::default()
                }),
            }
        }
        Ok(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        })
    });
    Ok(S3Response::new(output.await?))
}
