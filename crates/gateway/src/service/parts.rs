//! Uploads in parts.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::receive::{Expected, receive};
use super::write::copy_source;
use super::{GatewayService, blocking, etag, no_extras, object_info, target, timestamp};
use crate::conditions::Conditions;
use crate::error::refused;
use crate::uploads::{PART_NUMBER_MAX, WantedPart};
use crate::writer::ObjectWriter;

/// Most parts, and uploads, of a page: S3's limit.
const PAGE_MAX: usize = 1000;

fn check_number(number: i32) -> S3Result<i32> {
    match number {
        1..=PART_NUMBER_MAX => Ok(number),
        _ => Err(refused(S3ErrorCode::InvalidArgument, "part numbers are 1 to 10000")),
    }
}

fn page(count: Option<i32>) -> usize {
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(PAGE_MAX).min(PAGE_MAX)
}

/// Begins an upload.
pub async fn create_multipart_upload(
    gateway: &GatewayService,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    let info = object_info(&request.headers, input.metadata, input.tagging.as_deref())?;
    let to = target(input.bucket.clone(), &input.key)?;
    if to.key.is_directory() {
        let why = "a key that ends with a slash is a directory, which has no parts";
        return Err(refused(S3ErrorCode::InvalidRequest, why));
    }
    let id = blocking(move || account.begin_upload(&to, info)).await?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id),
        ..CreateMultipartUploadOutput::default()
    }))
}

/// Takes a part.
pub async fn upload_part(
    gateway: &GatewayService,
    request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let expected = Expected::of(&request.headers, request.trailing_headers.clone());
    let input = request.input;
    let number = check_number(input.part_number)?;
    let (to, id) = (target(input.bucket, &input.key)?, input.upload_id);
    {
        // An upload that is not there is told before the bytes come.
        let (account, to, id) = (account.clone(), to.clone(), id.clone());
        blocking(move || account.upload(&to, &id).map(drop)).await?;
    }
    let received = receive(&account, &to, input.body, expected).await?;
    let (sums, md5) = (received.checksums.clone(), received.md5.clone());
    blocking(move || {
        let told = (received.md5, received.checksums);
        account.commit_part((&to, &id), number, received.writer, told)
    })
    .await?;
    Ok(S3Response::new(stored!(UploadPartOutput, md5, sums)))
}

/// Makes a part of an object, or of a range of it.
pub async fn upload_part_copy(
    gateway: &GatewayService,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    let number = check_number(input.part_number)?;
    let (to, id) = (target(input.bucket, &input.key)?, input.upload_id);
    let (from_bucket, from_key) = copy_source(&input.copy_source)?;
    let range = input.copy_source_range.as_deref().map(Range::parse).transpose();
    let range = range.ok().filter(|range| {
        !matches!(range, Some(Range::Suffix { .. } | Range::Int { last: None, .. }))
    });
    let range = range.ok_or_else(|| {
        refused(S3ErrorCode::InvalidArgument, "x-amz-copy-source-range has the form bytes=0-9")
    })?;
    let source = Conditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let result = blocking(move || {
        account.upload(&to, &id)?;
        let (object, file) = account.open(&from_bucket, &from_key)?;
        source.check_source(&object.etag, object.inode.mtime)?;
        let size = object.size();
        let window = match range {
            None => 0..size,
            Some(Range::Int { last: Some(last), .. }) if last >= size => {
                let why = "the source has no such bytes";
                return Err(refused(S3ErrorCode::InvalidArgument, why));
            }
            Some(range) => range.check(size).map_err(|_| {
                refused(S3ErrorCode::InvalidArgument, "the source has no such bytes")
            })?,
        };
        let mut writer = ObjectWriter::begin(&account, &to.bucket, &to.key)?;
        if let Some(file) = &file {
            writer.append(file, window.start, window.end - window.start)?;
        }
        // The MD5 of bytes that are not read is known only of a whole object.
        let is_whole = window.end - window.start == size;
        let name = match is_whole && !object.etag.contains('-') {
            true => object.etag.clone(),
            false => crate::account::random_word().map_err(crate::error::failed)?,
        };
        let now = account.fs.now();
        account.commit_part((&to, &id), number, writer, (name.clone(), Default::default()))?;
        Ok(CopyPartResult {
            e_tag: etag(name),
            last_modified: Some(timestamp(now)),
            ..CopyPartResult::default()
        })
    });
    let copy_part_result = Some(result.await?);
    Ok(S3Response::new(UploadPartCopyOutput { copy_part_result, ..Default::default() }))
}

/// Makes an object of parts.
pub async fn complete_multipart_upload(
    gateway: &GatewayService,
    request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    no_extras(&request.headers)?;
    let account = gateway.account(&request).await?;
    let input = request.input;
    let to = target(input.bucket.clone(), &input.key)?;
    let id = input.upload_id;
    let demands = Conditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        ..Conditions::default()
    };
    let of_whole = [
        input.checksum_crc32,
        input.checksum_crc32c,
        input.checksum_crc64nvme,
        input.checksum_sha1,
        input.checksum_sha256,
    ];
    if of_whole.iter().any(Option::is_some) {
        let why = "a checksum of all parts together is not checked here; leave it out";
        return Err(refused(S3ErrorCode::NotImplemented, why));
    }
    let part = |part: CompletedPart| {
        let checksums = [
            ("crc32", part.checksum_crc32),
            ("crc32c", part.checksum_crc32c),
            ("crc64nvme", part.checksum_crc64nvme),
            ("sha1", part.checksum_sha1),
            ("sha256", part.checksum_sha256),
        ];
        let given = checksums.into_iter();
        Some(WantedPart {
            number: part.part_number?,
            etag: part.e_tag?.into_value(),
            checksums: given.filter_map(|(name, sum)| Some((name.into(), sum?))).collect(),
        })
    };
    let wanted = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    let wanted: Option<Vec<_>> = wanted.into_iter().map(part).collect();
    let wanted = wanted
        .ok_or_else(|| refused(S3ErrorCode::MalformedXML, "a part has a number and an ETag"))?;
    let made = blocking(move || account.complete_upload((&to, &id), &wanted, &demands)).await?;
    Ok(S3Response::new(CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: etag(made),
        ..CompleteMultipartUploadOutput::default()
    }))
}

/// Gives an upload up.
pub async fn abort_multipart_upload(
    gateway: &GatewayService,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    let to = target(input.bucket, &input.key)?;
    blocking(move || account.abort_upload(&to, &input.upload_id)).await?;
    let output = AbortMultipartUploadOutput::default();
    Ok(S3Response::with_status(output, http::StatusCode::NO_CONTENT))
}

/// Lists the parts of an upload.
pub async fn list_parts(
    gateway: &GatewayService,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    let to = target(input.bucket.clone(), &input.key)?;
    let (id, count) = (input.upload_id.clone(), page(input.max_parts));
    let after = input.part_number_marker.unwrap_or_default();
    let (parts, more) = blocking(move || {
        let upload = account.upload(&to, &id)?;
        account.parts(&upload, after, count)
    })
    .await?;
    let next = parts.last().filter(|_| more).map(|part| part.number);
    let part = |part: crate::uploads::Part| Part {
        checksum_crc32: part.checksums.get("crc32").cloned(),
        checksum_crc32c: part.checksums.get("crc32c").cloned(),
        checksum_crc64nvme: part.checksums.get("crc64nvme").cloned(),
        checksum_sha1: part.checksums.get("sha1").cloned(),
        checksum_sha256: part.checksums.get("sha256").cloned(),
        e_tag: etag(part.etag),
        last_modified: Some(timestamp(part.mtime)),
        part_number: Some(part.number),
        size: i64::try_from(part.size).ok(),
    };
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        is_truncated: Some(more),
        max_parts: i32::try_from(count).ok(),
        part_number_marker: Some(after),
        next_part_number_marker: next,
        parts: Some(parts.into_iter().map(part).collect()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        ..ListPartsOutput::default()
    }))
}

/// Lists the uploads into a bucket.
pub async fn list_multipart_uploads(
    gateway: &GatewayService,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let account = gateway.account(&request).await?;
    let input = request.input;
    if input.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()) {
        let why = "uploads are not grouped; list them without a delimiter";
        return Err(refused(S3ErrorCode::NotImplemented, why));
    }
    let count = page(input.max_uploads);
    let (bucket, prefix) = (input.bucket.clone(), input.prefix.clone().unwrap_or_default());
    let (key_marker, id_marker) = (input.key_marker.clone(), input.upload_id_marker.clone());
    let (uploads, more) = blocking(move || {
        let mark = id_marker.unwrap_or_default();
        let after = key_marker.as_deref().filter(|key| !key.is_empty()).map(|key| (key, &*mark));
        account.uploads(&bucket, &prefix, after, count)
    })
    .await?;
    let last = uploads.last().filter(|_| more).cloned();
    let upload = |upload: crate::uploads::ListedUpload| MultipartUpload {
        initiated: Some(timestamp(upload.begun)),
        key: Some(upload.key),
        upload_id: Some(upload.id),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        ..MultipartUpload::default()
    };
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        is_truncated: Some(more),
        key_marker: Some(input.key_marker.unwrap_or_default()),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        max_uploads: i32::try_from(count).ok(),
        next_key_marker: last.as_ref().map(|upload| upload.key.clone()),
        next_upload_id_marker: last.map(|upload| upload.id),
        prefix: input.prefix,
        uploads: Some(uploads.into_iter().map(upload).collect()),
        ..ListMultipartUploadsOutput::default()
    }))
}
