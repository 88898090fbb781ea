//! Bytes that come for an object: into a file without a name, which gets its name when all are
//! there.
//!
//! Nobody sees an object before it is whole ([`NewFile`]).

use std::sync::Arc;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use md5::{Digest, Md5};
use s3s::{S3ErrorCode, S3Result};

use crate::account::{Account, DIR_MODE, is_absent};
use crate::attributes::{
    EtagRecord, OBJECT_XATTR, ObjectAttributes, TAGS_XATTR, Tags, encode_tags,
};
use crate::conditions::Conditions;
use crate::error::{failed, refused};
use crate::new_file::NewFile;
use crate::object::OpenFile;
use crate::object_key::ObjectKey;

/// How often a name is tried that other requests change meanwhile.
const TRIES: usize = 16;

/// Where an object shall be.
#[derive(Debug, Clone)]
pub struct Target {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: ObjectKey,
}

/// What an object is given besides its bytes.
#[derive(Debug, Clone, Default)]
pub struct ObjectInfo {
    /// Headers, user metadata, checksums.
    pub attributes: ObjectAttributes,
    /// Tags.
    pub tags: Tags,
}

/// The directory of a key, or the nearest one that there is, so that its policies hold for the
/// bytes.
fn nearest_dir(account: &Account, bucket: InodeId, key: &ObjectKey) -> S3Result<InodeId> {
    for path in key.parents().rev() {
        let place = PathRef::from_path(bucket, path.as_bytes()).map_err(failed)?;
        match account.look_up(place).map_err(failed)? {
            Some(found) if found.inode.kind == Kind::Dir => return Ok(found.inode.ino),
            Some(_) => return Err(crate::error::parent_is_object()),
            None => {}
        }
    }
    Ok(bucket)
}

fn dirs_removed() -> s3s::S3Error {
    refused(S3ErrorCode::SlowDown, "other requests remove the directories of the key")
}

/// An object that is being written.
pub struct ObjectWriter {
    account: Arc<Account>,
    file: NewFile,
    md5: Md5,
}

impl ObjectWriter {
    /// Begins an object.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`; the metadata's.
    pub fn begin(account: &Arc<Account>, bucket: &str, key: &ObjectKey) -> S3Result<Self> {
        account.may_write()?;
        for _ in 0..TRIES {
            let dir = nearest_dir(account, account.bucket(bucket)?, key)?;
            match NewFile::begin(account, dir) {
                Ok(file) => return Ok(Self { account: account.clone(), file, md5: Md5::new() }),
                // Another request has removed the directory meanwhile.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(dirs_removed())
    }

    /// Appends bytes. Waits for the block store if it does not keep up.
    ///
    /// # Errors
    /// The client library's.
    pub fn write(&mut self, bytes: &[u8]) -> S3Result<()> {
        self.md5.update(bytes);
        self.file.write(bytes).map_err(failed)
    }

    /// Appends bytes of another file, by reference where the volume can. They are not part of the
    /// MD5.
    ///
    /// # Errors
    /// The client library's.
    pub fn append(&mut self, from: &OpenFile, offset: u64, len: u64) -> S3Result<()> {
        if self.file.append(from, offset, len).map_err(failed)? < len {
            let why = "the source became shorter while it was copied";
            return Err(refused(S3ErrorCode::InternalError, why));
        }
        Ok(())
    }

    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.file.size()
    }

    /// The MD5 of the bytes that were written.
    pub fn md5(&self) -> [u8; 16] {
        self.md5.clone().finalize().into()
    }

    /// Gives the file what is kept of it.
    fn seal(&self, etag: String, mut info: ObjectInfo) -> FsResult<()> {
        let (account, ino) = (&self.account, self.file.ino());
        let inode = self.file.flush()?;
        info.attributes.etag =
            Some(EtagRecord { value: etag, size: inode.size, mtime: inode.mtime });
        account.set_xattr(ino, OBJECT_XATTR, info.attributes.encode())?;
        if !info.tags.is_empty() {
            account.set_xattr(ino, TAGS_XATTR, encode_tags(&info.tags))?;
        }
        Ok(())
    }

    /// Makes it the object of its key, whole and at once, and durable.
    ///
    /// # Errors
    /// `PreconditionFailed`; `ObjectParentIsFile`, `ExistingObjectIsDirectory`; the metadata's.
    pub fn commit(
        mut self,
        to: &Target,
        etag: String,
        info: ObjectInfo,
        demands: &Conditions,
    ) -> S3Result<()> {
        self.seal(etag, info).map_err(failed)?;
        let account = self.account.clone();
        let _lock = (!demands.is_none()).then(|| account.lock_key(&to.bucket, to.key.as_str()));
        let bucket = account.bucket(&to.bucket)?;
        if !demands.is_none() {
            let present = account.find(bucket, &to.key).map_err(failed)?;
            demands.check_write(present.as_ref().map(|object| &*object.etag))?;
        }
        for _ in 0..TRIES {
            let place = to.key.place(bucket).map_err(failed)?;
            match self.file.put(place, demands.is_create_only()) {
                Ok(()) => return self.file.make_durable().map_err(failed),
                Err(error) if error.errno == libc::EEXIST && demands.is_create_only() => {
                    let why = "a condition of the request does not hold";
                    return Err(refused(S3ErrorCode::PreconditionFailed, why));
                }
                Err(error) if error.errno == libc::ENOENT => {
                    account.bucket(&to.bucket)?;
                    account.make_parents(bucket, &to.key).or_else(ignore_absent).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(dirs_removed())
    }

    /// Makes it the file at a place of the gateway's own, and durable.
    ///
    /// # Errors
    /// The metadata's.
    pub fn commit_own(mut self, place: PathRef, etag: String, info: ObjectInfo) -> S3Result<()> {
        self.seal(etag, info).map_err(failed)?;
        self.file.put(place, false).map_err(failed)?;
        self.file.make_durable().map_err(failed)
    }
}

fn ignore_absent(error: FsError) -> FsResult<()> {
    if error.errno == libc::ENOENT { Ok(()) } else { Err(error) }
}

impl Account {
    /// Makes a directory an object.
    ///
    /// # Errors
    /// As [`ObjectWriter::commit`].
    pub fn put_directory(
        &self,
        to: &Target,
        etag: String,
        mut info: ObjectInfo,
        demands: &Conditions,
    ) -> S3Result<()> {
        self.may_write()?;
        let _lock = self.lock_key(&to.bucket, to.key.as_str());
        let bucket = self.bucket(&to.bucket)?;
        let present = self.find(bucket, &to.key).map_err(failed)?;
        demands.check_write(present.as_ref().map(|object| &*object.etag))?;
        self.make_parents(bucket, &to.key).map_err(failed)?;
        let place = to.key.place(bucket).map_err(failed)?;
        let ino = self.make_dir(place, DIR_MODE).map_err(failed)?;
        info.attributes.etag = Some(EtagRecord { value: etag, size: 0, mtime: 0 });
        self.set_xattr(ino, OBJECT_XATTR, info.attributes.encode()).map_err(failed)?;
        if !info.tags.is_empty() {
            self.set_xattr(ino, TAGS_XATTR, encode_tags(&info.tags)).map_err(failed)?;
        }
        self.call(|fs, done| fs.sync(done)).map_err(failed)
    }
}
