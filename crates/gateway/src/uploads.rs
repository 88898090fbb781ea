//! Uploads in parts: a directory for each upload, a file for each part, and an object that refers
//! to the parts' bytes.
//!
//! ```text
//! /.kestrel-s3/uploads/BUCKET/ID/        extended attribute user.s3.upload: key, headers, tags
//! /.kestrel-s3/uploads/BUCKET/ID/00007   part 7, extended attribute user.s3.object: ETag
//! ```
//!
//! Completing one copies the parts by reference into a file without a name, which then becomes the
//! object; bytes are copied only of parts that are kept in their inode (a few KiB).

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_client::fs::OpenedEntry;
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Op, OpenFlags};
use md5::{Digest, Md5};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::account::{Account, OWN_DIR_MODE, is_absent, optional, random_word};
use crate::attributes::{OBJECT_XATTR, ObjectAttributes, Tags, UPLOAD_XATTR};
use crate::conditions::Conditions;
use crate::error::{failed, refused};
use crate::object::OpenFile;
use crate::object_key::{OWN_DIR, ObjectKey};
use crate::writer::{ObjectInfo, ObjectWriter, Target};

/// Directory, in the gateway's own, of uploads.
const UPLOADS: &str = "uploads";

/// Highest number of a part: S3's limit.
pub const PART_NUMBER_MAX: i32 = 10_000;

/// Smallest part but the last one, bytes: S3's limit.
const PART_BYTES_MIN: u64 = 5 << 20;

/// What an upload is of, in [`UPLOAD_XATTR`].
#[derive(Debug, Clone, Serialize, Deserialize)]
struct UploadRecord {
    key: String,
    /// When it was begun, nanoseconds since 1970.
    begun: Nanos,
    attributes: ObjectAttributes,
    tags: Tags,
}

/// An upload that has begun.
pub struct Upload {
    dir: InodeId,
    record: UploadRecord,
}

/// A part that is there.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its number.
    pub number: i32,
    /// Bytes.
    pub size: u64,
    /// Its ETag.
    pub etag: String,
    /// Its checksums by algorithm, in base64.
    pub checksums: BTreeMap<String, String>,
    /// When it came, nanoseconds since 1970.
    pub mtime: Nanos,
}

/// A part that an object is to have.
#[derive(Debug, Clone)]
pub struct WantedPart {
    /// Its number.
    pub number: i32,
    /// Its ETag.
    pub etag: String,
    /// Checksums that it must have, by algorithm, in base64.
    pub checksums: BTreeMap<String, String>,
}

/// An upload in a listing, by key and number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedUpload {
    /// The key.
    pub key: String,
    /// Its number.
    pub id: String,
    /// When it was begun, nanoseconds since 1970.
    pub begun: Nanos,
}

fn no_upload() -> s3s::S3Error {
    refused(S3ErrorCode::NoSuchUpload, "there is no such upload; it may be completed or aborted")
}

fn part_name(number: i32) -> FsResult<Name> {
    Name::new(format!("{number:05}").as_bytes())
}

/// The ETag of an object of parts with these ETags: the MD5 of their MD5s, and how many there are.
pub fn etag_of_parts<'a>(etags: impl Iterator<Item = &'a str>) -> String {
    let (mut md5, mut count) = (Md5::new(), 0);
    for etag in etags {
        match from_hex(etag) {
            Some(bytes) => md5.update(bytes),
            // Of a part that was copied from bytes of which the MD5 is not known.
            None => md5.update(etag.as_bytes()),
        }
        count += 1;
    }
    format!("{}-{count}", to_hex(&md5.finalize()))
}

impl Account {
    /// The place of an upload's directory.
    fn upload_place(&self, bucket: &str, id: &str) -> S3Result<PathRef> {
        let plain = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !plain {
            return Err(no_upload());
        }
        let path = format!("{OWN_DIR}/{UPLOADS}/{bucket}/{id}");
        PathRef::from_path(ROOT, path.as_bytes()).map_err(failed)
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`; the metadata's.
    pub fn begin_upload(&self, to: &Target, info: ObjectInfo) -> S3Result<String> {
        self.may_write()?;
        self.bucket(&to.bucket)?;
        info.attributes.check()?;
        let begun = self.fs.now();
        let record = UploadRecord {
            key: to.key.as_str().into(),
            begun,
            attributes: info.attributes,
            tags: info.tags,
        };
        let value = serde_json::to_vec(&record).unwrap_or_default();
        let made = self.own_dir(&[UPLOADS, &to.bucket]).and_then(|dir| {
            let id = random_word()?;
            let place = PathRef::new(dir, Name::new(id.as_bytes())?);
            let dir = self.make_dir(place, OWN_DIR_MODE)?;
            self.set_xattr(dir, UPLOAD_XATTR, value.into())?;
            self.call(|fs, done| fs.sync(done))?;
            Ok(id)
        });
        made.map_err(failed)
    }

    /// The upload of this number, if it is of this key.
    ///
    /// # Errors
    /// `NoSuchUpload`; the metadata's.
    pub fn upload(&self, to: &Target, id: &str) -> S3Result<Upload> {
        let place = self.upload_place(&to.bucket, id)?;
        let dir = self.look_up(place).map_err(failed)?.ok_or_else(no_upload)?;
        let value = self.xattr(&dir, UPLOAD_XATTR).map_err(failed)?.ok_or_else(no_upload)?;
        let record: UploadRecord = serde_json::from_slice(&value).map_err(|_| no_upload())?;
        match record.key == to.key.as_str() {
            true => Ok(Upload { dir: dir.inode.ino, record }),
            false => Err(no_upload()),
        }
    }

    /// Makes what was written a part of an upload, instead of one of the same number.
    ///
    /// # Errors
    /// `NoSuchUpload`; the metadata's.
    pub fn commit_part(
        &self,
        (to, id): (&Target, &str),
        number: i32,
        writer: ObjectWriter,
        (etag, checksums): (String, BTreeMap<String, String>),
    ) -> S3Result<()> {
        let upload = self.upload(to, id)?;
        let place = PathRef::new(upload.dir, part_name(number).map_err(failed)?);
        let mut info = ObjectInfo::default();
        info.attributes.checksums = checksums;
        writer.commit_own(place, etag, info)
    }

    /// The parts of an upload by number, those after `after`, at most so many, and whether more
    /// follow.
    ///
    /// # Errors
    /// The metadata's.
    pub fn parts(&self, upload: &Upload, after: i32, count: usize) -> S3Result<(Vec<Part>, bool)> {
        self.read_parts(upload, after, count).map_err(failed)
    }

    fn read_parts(&self, upload: &Upload, after: i32, count: usize) -> FsResult<(Vec<Part>, bool)> {
        let mut from = if after > 0 { Some(part_name(after)?) } else { None };
        let mut parts = Vec::new();
        loop {
            let (entries, end) = self.names(upload.dir, from)?;
            from = entries.last().map(|entry| entry.name.clone());
            let mut files: Vec<(i32, InodeRef)> = Vec::with_capacity(entries.len());
            for entry in entries.into_iter().filter(|entry| entry.kind == Kind::File) {
                let text = std::str::from_utf8(entry.name.as_bytes());
                if let Some(number) = text.ok().and_then(|text| text.parse().ok()) {
                    let seen = Some((upload.dir, entry.name));
                    files.push((number, InodeRef { ino: entry.ino, seen }));
                }
            }
            let of = |(_, file): &(i32, InodeRef)| Op::GetAttr(file.clone());
            let inodes = self.ask_many(files.iter().map(of).collect());
            let of = |(_, file): &(i32, InodeRef)| Op::GetXattr(file.clone(), OBJECT_XATTR.into());
            let values = self.ask_many(files.iter().map(of).collect());
            for (((number, _), inode), value) in files.into_iter().zip(inodes).zip(values) {
                let inode = match inode.and_then(kestrel_client::fs::into_inode) {
                    Ok(inode) => inode,
                    Err(error) if is_absent(&error) => continue,
                    Err(error) => return Err(error),
                };
                let attributes = optional(value)?.map(|value| ObjectAttributes::decode(&value));
                let attributes = attributes.unwrap_or_default();
                let etag = attributes.etag_of(&inode);
                if parts.len() == count {
                    return Ok((parts, true));
                }
                let (size, mtime, checksums) = (inode.size, inode.mtime, attributes.checksums);
                parts.push(Part { number, size, etag, checksums, mtime });
            }
            if end || from.is_none() {
                return Ok((parts, false));
            }
        }
    }

    /// Makes an object of parts, which are named by number and ETag, and ends the upload. A request
    /// that is sent again when the upload is gone and the object is what it would make is answered
    /// alike.
    ///
    /// # Errors
    /// `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`, `PreconditionFailed`;
    /// as for any object.
    pub fn complete_upload(
        self: &Arc<Self>,
        (to, id): (&Target, &str),
        wanted: &[WantedPart],
        demands: &Conditions,
    ) -> S3Result<String> {
        self.may_write()?;
        if wanted.is_empty() {
            return Err(refused(S3ErrorCode::MalformedXML, "an object has at least one part"));
        }
        let etag = etag_of_parts(wanted.iter().map(|part| part.etag.as_str()));
        let upload = match self.upload(to, id) {
            Err(error) if error.code() == &S3ErrorCode::NoSuchUpload => {
                let bucket = self.bucket(&to.bucket)?;
                let present = self.find(bucket, &to.key).map_err(failed)?;
                return match present {
                    Some(object) if object.etag == etag => Ok(etag),
                    _ => Err(error),
                };
            }
            upload => upload?,
        };
        let parts = self.check_parts(&upload, wanted)?;
        let mut writer = ObjectWriter::begin(self, &to.bucket, &to.key)?;
        for part in &parts {
            let file = self.open_part(&upload, part.number)?;
            writer.append(&file, 0, part.size)?;
        }
        let info = ObjectInfo {
            attributes: upload.record.attributes.clone(),
            tags: upload.record.tags.clone(),
        };
        kestrel_types::crash::point("gateway.joined");
        writer.commit(to, etag.clone(), info, demands)?;
        self.remove_upload(to, id)?;
        Ok(etag)
    }

    /// The parts that are to be joined.
    fn check_parts(&self, upload: &Upload, wanted: &[WantedPart]) -> S3Result<Vec<Part>> {
        if !wanted.is_sorted_by(|one, two| one.number < two.number) {
            return Err(refused(S3ErrorCode::InvalidPartOrder, "parts go by ascending number"));
        }
        let (there, _) = self.parts(upload, 0, PART_NUMBER_MAX as usize + 1)?;
        let mut there: BTreeMap<i32, Part> =
            there.into_iter().map(|part| (part.number, part)).collect();
        let mut parts = Vec::with_capacity(wanted.len());
        for WantedPart { number, etag, checksums } in wanted {
            let is_it = |part: &Part| {
                let has =
                    |(name, value): (&String, &String)| part.checksums.get(name) == Some(value);
                part.etag == *etag && checksums.iter().all(has)
            };
            let part = there.remove(number).filter(is_it).ok_or_else(|| {
                let why = format!("part {number} is not there, or has another ETag or checksum");
                refused(S3ErrorCode::InvalidPart, why)
            })?;
            parts.push(part);
        }
        let inner = parts.len().saturating_sub(1);
        if parts.iter().take(inner).any(|part| part.size < PART_BYTES_MIN) {
            let why = "all parts but the last one have at least 5 MiB";
            return Err(refused(S3ErrorCode::EntityTooSmall, why));
        }
        Ok(parts)
    }

    fn open_part(&self, upload: &Upload, number: i32) -> S3Result<OpenFile> {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let place = PathRef::new(upload.dir, part_name(number).map_err(failed)?);
        match self.call(|fs, done| fs.open_at(self.caller, place, flags, done)) {
            Ok(OpenedEntry::File(opened)) => Ok(OpenFile::new(self.fs.clone(), opened.handle)),
            Ok(OpenedEntry::Directory(_)) => Err(no_upload()),
            Err(error) if is_absent(&error) => Err(no_upload()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes an upload and its parts.
    ///
    /// # Errors
    /// `NoSuchUpload`; the metadata's.
    pub fn abort_upload(&self, to: &Target, id: &str) -> S3Result<()> {
        self.may_write()?;
        self.upload(to, id)?;
        self.remove_upload(to, id)
    }

    fn remove_upload(&self, to: &Target, id: &str) -> S3Result<()> {
        let place = self.upload_place(&to.bucket, id)?;
        let Some(dir) = self.look_up(place.clone()).map_err(failed)? else { return Ok(()) };
        self.remove_files(dir.inode.ino)
            .and_then(|()| match self.ask(Op::RmDir(place, Some(dir.inode.ino))) {
                // A part that came meanwhile: the next request that ends the upload takes it.
                Err(error) if error.errno == libc::ENOTEMPTY || is_absent(&error) => Ok(()),
                removed => removed.map(drop),
            })
            .map_err(failed)
    }

    fn remove_files(&self, dir: InodeId) -> FsResult<()> {
        loop {
            let (entries, _) = self.names(dir, None)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let place = PathRef::new(dir, entry.name);
                match self.call(|fs, done| fs.unlink(self.caller, place, done)) {
                    Err(error) if !is_absent(&error) => return Err(error),
                    _ => {}
                }
            }
        }
    }

    /// The uploads of a bucket of which the key begins with `prefix`, by key and number, those
    /// after `after`, at most so many, and whether more follow.
    ///
    /// # Errors
    /// `NoSuchBucket`; the metadata's.
    pub fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, &str)>,
        count: usize,
    ) -> S3Result<(Vec<ListedUpload>, bool)> {
        self.bucket(bucket)?;
        self.read_uploads(bucket, prefix, after, count)
    }

    fn read_uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, &str)>,
        count: usize,
    ) -> S3Result<(Vec<ListedUpload>, bool)> {
        let path = format!("{OWN_DIR}/{UPLOADS}/{bucket}");
        let place = PathRef::from_path(ROOT, path.as_bytes()).map_err(failed)?;
        let Some(dir) = self.look_up(place).map_err(failed)? else { return Ok(Default::default()) };
        // Directories are by number, the answer is by key: the first so many of all are kept.
        let mut first = std::collections::BTreeSet::new();
        let mut from = None;
        loop {
            let (entries, end) = self.names(dir.inode.ino, from).map_err(failed)?;
            from = entries.last().map(|entry| entry.name.clone());
            let ask = |entry: &kestrel_types::request::DirEntry| {
                Op::GetXattr(InodeRef::by_id(entry.ino), UPLOAD_XATTR.into())
            };
            let values = self.ask_many(entries.iter().map(ask).collect());
            for (entry, value) in entries.iter().zip(values) {
                let Some(value) = optional(value).map_err(failed)? else { continue };
                let Ok(record) = serde_json::from_slice::<UploadRecord>(&value) else { continue };
                let id = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
                let is_after = after.is_none_or(|(key, mark)| match mark {
                    "" => record.key.as_str() > key,
                    mark => (record.key.as_str(), id.as_str()) > (key, mark),
                });
                if record.key.starts_with(prefix) && is_after {
                    first.insert(ListedUpload { key: record.key, id, begun: record.begun });
                    if first.len() > count + 1 {
                        first.pop_last();
                    }
                }
            }
            if end || from.is_none() {
                let more = first.len() > count;
                return Ok((first.into_iter().take(count).collect(), more));
            }
        }
    }

    /// Removes the uploads into a bucket that was removed.
    ///
    /// # Errors
    /// The metadata's.
    pub fn remove_uploads_of_removed(&self, bucket: &str) -> S3Result<()> {
        loop {
            let (uploads, _) = self.read_uploads(bucket, "", None, 1000)?;
            if uploads.is_empty() {
                break;
            }
            for upload in uploads {
                let key = ObjectKey::parse(&upload.key)?;
                self.remove_upload(&Target { bucket: bucket.into(), key }, &upload.id)?;
            }
        }
        let path = format!("{OWN_DIR}/{UPLOADS}/{bucket}");
        let place = PathRef::from_path(ROOT, path.as_bytes()).map_err(failed)?;
        match self.ask(Op::RmDir(place, None)) {
            Err(error) if !is_absent(&error) && error.errno != libc::ENOTEMPTY => {
                Err(failed(error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ETag of an object of parts is what S3 makes of it.
    #[test]
    fn etag_as_s3_has_it() {
        // Two empty parts: the MD5 of twice d41d8cd98f00b204e9800998ecf8427e.
        let empty = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(
            etag_of_parts([empty, empty].into_iter()),
            format!("{}-2", to_hex(&Md5::digest(from_hex(empty).unwrap().repeat(2))))
        );
    }
}
