//! Objects that are there: find, open, read their attributes and tags, remove.

use std::sync::Arc;

use kestrel_client::Fs;
use kestrel_client::fs::{FileHandle, OpenedEntry};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Op, OpenFlags, XattrFlags};
use s3s::{S3ErrorCode, S3Result};
use tokio::sync::oneshot;

use crate::account::{Account, FoundEntry, is_absent};
use crate::attributes::{
    OBJECT_XATTR, ObjectAttributes, TAGS_XATTR, Tags, decode_tags, encode_tags,
};
use crate::conditions::Conditions;
use crate::error::{failed, refused};
use crate::object_key::ObjectKey;

/// An object.
#[derive(Debug, Clone)]
pub struct Object {
    /// Its file, or its directory.
    pub inode: Inode,
    /// What is kept of it.
    pub attributes: ObjectAttributes,
    /// Its ETag.
    pub etag: String,
    /// Where it was found; none of one that is open.
    at: Option<InodeRef>,
}

impl Object {
    fn new(inode: Inode, value: Option<Box<[u8]>>, at: Option<InodeRef>) -> Self {
        let attributes = value.map(|bytes| ObjectAttributes::decode(&bytes)).unwrap_or_default();
        let etag = attributes.etag_of(&inode);
        Self { inode, attributes, etag, at }
    }

    /// Bytes; a directory has none.
    pub fn size(&self) -> u64 {
        if self.inode.kind == Kind::Dir { 0 } else { self.inode.size }
    }
}

/// A file that is open; closed when dropped.
pub struct OpenFile {
    fs: Arc<Fs>,
    /// Its handle.
    pub handle: Arc<FileHandle>,
    /// How often the client library has told its number.
    told: u64,
}

impl OpenFile {
    /// Takes over what was opened, of which the number was told once.
    pub fn new(fs: Arc<Fs>, handle: Arc<FileHandle>) -> Self {
        Self { fs, handle, told: 1 }
    }

    /// Its number was told once more.
    pub fn told_again(&mut self) {
        self.told += 1;
    }

    /// Reads bytes: fewer than wanted only at the end of the file.
    pub fn read(
        &self,
        at: u64,
        len: usize,
    ) -> impl Future<Output = FsResult<Vec<u8>>> + Send + Sync + use<> {
        let (send, receive) = oneshot::channel();
        // A client that has gone waits for nothing.
        self.fs.read(&self.handle, at, len, Box::new(move |bytes| drop(send.send(bytes))));
        async move {
            let dropped =
                |_| Err(FsError::new(libc::EIO, "the read was dropped without an answer"));
            receive.await.unwrap_or_else(dropped)
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.fs.release(self.handle.clone(), Box::new(drop));
        self.fs.forget(self.handle.ino(), self.told);
    }
}

fn no_object() -> s3s::S3Error {
    refused(S3ErrorCode::NoSuchKey, "there is no such object")
}

impl Account {
    /// What is at a key, if it is an object.
    ///
    /// # Errors
    /// The metadata's.
    pub fn find(&self, bucket: InodeId, key: &ObjectKey) -> FsResult<Option<Object>> {
        let Some(found) = self.look_up(key.place(bucket)?)? else { return Ok(None) };
        let wanted = if key.is_directory() { Kind::Dir } else { Kind::File };
        if found.inode.kind != wanted {
            return Ok(None);
        }
        let value = self.xattr(&found, OBJECT_XATTR)?;
        if value.is_none() && key.is_directory() {
            return Ok(None);
        }
        Ok(Some(Object::new(found.inode, value, Some(found.at))))
    }

    /// The object of a key.
    ///
    /// # Errors
    /// `NoSuchBucket`, `NoSuchKey`; what else the metadata says.
    pub fn object(&self, bucket: &str, key: &ObjectKey) -> S3Result<Object> {
        let bucket = self.bucket(bucket)?;
        self.find(bucket, key).map_err(failed)?.ok_or_else(no_object)
    }

    /// Opens the object of a key for reading; a directory has nothing to read.
    ///
    /// # Errors
    /// As [`Account::object`].
    pub fn open(&self, bucket: &str, key: &ObjectKey) -> S3Result<(Object, Option<OpenFile>)> {
        if key.is_directory() {
            return Ok((self.object(bucket, key)?, None));
        }
        let dir = self.bucket(bucket)?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let place = key.place(dir).map_err(failed)?;
        let opened = match self.call(|fs, done| fs.open_at(self.caller, place, flags, done)) {
            Ok(OpenedEntry::File(opened)) => opened,
            Ok(OpenedEntry::Directory(_)) => return Err(no_object()),
            Err(error) if is_absent(&error) || error.errno == libc::ELOOP => {
                return Err(no_object());
            }
            Err(error) => return Err(failed(error)),
        };
        let file = OpenFile::new(self.fs.clone(), opened.handle);
        if opened.inode.kind != Kind::File {
            return Err(no_object());
        }
        let value = self.xattr_of_open(&opened.inode, OBJECT_XATTR).map_err(failed)?;
        Ok((Object::new(opened.inode, value, None), Some(file)))
    }

    /// The tags of an object.
    ///
    /// # Errors
    /// As [`Account::object`].
    pub fn tags(&self, bucket: &str, key: &ObjectKey) -> S3Result<Tags> {
        let object = self.object(bucket, key)?;
        self.tags_of(&object).map_err(failed)
    }

    /// The tags of an object that was found.
    ///
    /// # Errors
    /// The metadata's.
    pub fn tags_of(&self, object: &Object) -> FsResult<Tags> {
        let bytes = match &object.at {
            Some(at) => {
                let (inode, at) = (object.inode.clone(), at.clone());
                self.xattr(&FoundEntry { inode, at }, TAGS_XATTR)?
            }
            None => self.xattr_of_open(&object.inode, TAGS_XATTR)?,
        };
        Ok(bytes.map(|bytes| decode_tags(&bytes)).unwrap_or_default())
    }

    /// Gives an object these tags instead of those that it has.
    ///
    /// # Errors
    /// As [`Account::object`].
    pub fn set_tags(&self, bucket: &str, key: &ObjectKey, tags: &Tags) -> S3Result<()> {
        self.may_write()?;
        let object = self.object(bucket, key)?;
        let at = object.at.ok_or_else(no_object)?;
        let op = match tags.is_empty() {
            true => Op::RemoveXattr(at, TAGS_XATTR.into()),
            false => {
                let value = encode_tags(tags);
                Op::SetXattr(at, TAGS_XATTR.into(), value, XattrFlags::default())
            }
        };
        match self.ask(op).and_then(|_| self.call(|fs, done| fs.sync(done))) {
            Err(error) if error.errno != libc::ENODATA => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Removes an object, and the directories that it leaves empty: to S3 they are not there. That
    /// there is none is no failure.
    ///
    /// # Errors
    /// `PreconditionFailed`; the metadata's.
    pub fn delete(&self, bucket: &str, key: &ObjectKey, demands: &Conditions) -> S3Result<()> {
        self.may_write()?;
        let dir = self.bucket(bucket)?;
        let _lock = (!demands.is_none()).then(|| self.lock_key(bucket, key.as_str()));
        let found = self.find(dir, key).map_err(failed)?;
        demands.check_write(found.as_ref().map(|object| &*object.etag))?;
        let Some(object) = found else { return Ok(()) };
        let place = key.place(dir).map_err(failed)?;
        let removed = match key.is_directory() {
            true => self.unmark(place, &object),
            false => self.call(|fs, done| fs.unlink(self.caller, place, done)).map(drop),
        };
        match removed {
            Err(error) if !is_absent(&error) => return Err(failed(error)),
            _ => {}
        }
        self.remove_empty_parents(dir, key).map_err(failed)
    }

    /// A directory is no object any more; it goes if nothing is in it.
    fn unmark(&self, place: PathRef, object: &Object) -> FsResult<()> {
        match self.call(|fs, done| fs.rmdir(self.caller, place, None, done)) {
            Err(FsError { errno: libc::ENOTEMPTY, .. }) => {
                let (ino, name) = (object.inode.ino, OBJECT_XATTR.into());
                self.call(|fs, done| fs.removexattr(self.caller, ino, name, done))
            }
            removed => removed.map(drop),
        }
    }

    /// Removes the directories of a key from the innermost outwards, as long as they are empty and
    /// no objects themselves.
    fn remove_empty_parents(&self, bucket: InodeId, key: &ObjectKey) -> FsResult<()> {
        for path in key.parents().rev() {
            let place = PathRef::from_path(bucket, path.as_bytes())?;
            let Some(dir) = self.look_up(place.clone())? else { continue };
            if self.is_marked(&dir)? {
                return Ok(());
            }
            match self.ask(Op::RmDir(place, Some(dir.inode.ino))) {
                Ok(_) => {}
                Err(error) if is_absent(&error) => {}
                // Another object is in it, or it is another user's: it stays.
                Err(error)
                    if matches!(
                        error.errno,
                        libc::ENOTEMPTY | libc::EACCES | libc::EPERM | libc::EBUSY
                    ) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
