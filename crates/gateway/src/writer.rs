//! Bytes that come for an object: into a file without a name, which gets its name when all are
//! there.
//!
//! Nobody sees an object before it is whole. A gateway that is killed leaves a file without a name,
//! which the volume removes by itself. Only an object that replaces another one has a hidden name
//! for a moment ([`Account::remove_leftovers`]): a link does not replace.

use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::{CopyRange, Creation};
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Kind;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Op, OpenFlags, RenameFlags};
use md5::{Digest, Md5};
use s3s::{S3ErrorCode, S3Result};

use crate::account::{Account, DIR_MODE, FILE_MODE, is_absent, random_word};
use crate::attributes::{
    EtagRecord, OBJECT_XATTR, ObjectAttributes, TAGS_XATTR, Tags, encode_tags,
};
use crate::conditions::Conditions;
use crate::error::{failed, refused};
use crate::object::OpenFile;
use crate::object_key::{OWN_DIR, ObjectKey};

/// How often a name is tried that other requests change meanwhile.
const TRIES: usize = 16;

/// Directory, in the gateway's own, of files that are about to replace others.
const REPLACING: &str = "replacing";

/// How old a file there is before it counts as left by a gateway that was killed.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// Names of a page of a directory.
const PAGE: usize = 1000;

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
    file: OpenFile,
    md5: Md5,
    size: u64,
}

impl ObjectWriter {
    /// Begins an object.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`; the metadata's.
    pub fn begin(account: &Arc<Account>, bucket: &str, key: &ObjectKey) -> S3Result<Self> {
        account.may_write()?;
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let how = Creation { mode: FILE_MODE, flags, exclusive: false };
        for _ in 0..TRIES {
            let dir = nearest_dir(account, account.bucket(bucket)?, key)?;
            let opened = account.call(|fs, done| fs.tmpfile(account.caller, dir, how, done));
            match opened {
                Ok(opened) => {
                    let file = OpenFile::new(account.fs.clone(), opened.handle);
                    return Ok(Self { account: account.clone(), file, md5: Md5::new(), size: 0 });
                }
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
        self.account.fs.write(&self.file.handle, self.size, bytes, false).map_err(failed)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Appends bytes of another file, by reference where the volume can. They are not part of the
    /// MD5.
    ///
    /// # Errors
    /// The client library's.
    pub fn append(&mut self, from: &OpenFile, offset: u64, len: u64) -> S3Result<()> {
        let mut copied = 0;
        while copied < len {
            let copy = CopyRange {
                from: from.handle.clone(),
                from_offset: offset + copied,
                to: self.file.handle.clone(),
                to_offset: self.size,
                len: len - copied,
                unprivileged: None,
            };
            let count = self.account.call(|fs, done| fs.copy_range(copy, done)).map_err(failed)?;
            if count == 0 {
                let why = "the source became shorter while it was copied";
                return Err(refused(S3ErrorCode::InternalError, why));
            }
            copied += count;
            self.size += count;
        }
        Ok(())
    }

    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The MD5 of the bytes that were written.
    pub fn md5(&self) -> [u8; 16] {
        self.md5.clone().finalize().into()
    }

    /// Gives the file what is kept of it.
    fn seal(&self, etag: String, mut info: ObjectInfo) -> FsResult<()> {
        let account = &self.account;
        let ino = self.file.handle.ino();
        account.call(|fs, done| fs.flush(&self.file.handle, done))?;
        let inode = account.call(|fs, done| fs.getattr(account.caller, ino, done))?;
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
        let mut named = Named { account: &account, hidden: None };
        for _ in 0..TRIES {
            let place = to.key.place(bucket).map_err(failed)?;
            let put = named.put(&mut self.file, place, demands.is_create_only());
            match put {
                Ok(()) => return self.make_durable().map_err(failed),
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
        let account = self.account.clone();
        let mut named = Named { account: &account, hidden: None };
        named.put(&mut self.file, place, false).map_err(failed)?;
        self.make_durable().map_err(failed)
    }

    fn make_durable(&self) -> FsResult<()> {
        self.account.call(|fs, done| fs.fsync(&self.file.handle, done))
    }
}

fn ignore_absent(error: FsError) -> FsResult<()> {
    if error.errno == libc::ENOENT { Ok(()) } else { Err(error) }
}

/// The names of a file that is to get one.
struct Named<'a> {
    account: &'a Account,
    /// The hidden name that it has.
    hidden: Option<PathRef>,
}

impl Named<'_> {
    /// Gives the file this name; another file of that name is replaced, unless it must be new.
    fn put(&mut self, file: &mut OpenFile, place: PathRef, is_new: bool) -> FsResult<()> {
        if self.hidden.is_none() {
            match self.link(file, place.clone()) {
                Err(error) if error.errno == libc::EEXIST && !is_new => {}
                linked => return linked,
            }
            let dir = self.account.own_dir(&[REPLACING])?;
            let hidden = PathRef::new(dir, Name::new(random_word()?.as_bytes())?);
            self.link(file, hidden.clone())?;
            self.hidden = Some(hidden);
        }
        let Some(hidden) = self.hidden.clone() else { return Ok(()) };
        kestrel_types::crash::point("gateway.replace");
        let caller = self.account.caller;
        self.account
            .call(|fs, done| fs.rename(caller, hidden, place, RenameFlags::default(), done))?;
        self.hidden = None;
        Ok(())
    }

    fn link(&self, file: &mut OpenFile, place: PathRef) -> FsResult<()> {
        let (caller, ino) = (self.account.caller, file.handle.ino());
        self.account.call(|fs, done| fs.link(caller, ino, place, done))?;
        file.told_again();
        Ok(())
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            let caller = self.account.caller;
            // What cannot be removed now is a leftover.
            let _ = self.account.call(|fs, done| fs.unlink(caller, hidden, done));
        }
    }
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

    /// Removes the files that gateways left which were killed while they replaced an object.
    ///
    /// # Errors
    /// The metadata's.
    pub fn remove_leftovers(&self, now: Nanos, age: Duration) -> FsResult<usize> {
        let path = format!("{OWN_DIR}/{REPLACING}");
        let Some(dir) = self.look_up(PathRef::from_path(ROOT, path.as_bytes())?)? else {
            return Ok(0);
        };
        let (mut after, mut removed) = (None, 0);
        loop {
            let (entries, end) = self.names(dir.inode.ino, after)?;
            after = entries.last().map(|entry| entry.name.clone());
            for entry in entries {
                let place = PathRef::new(dir.inode.ino, entry.name);
                let Some(found) = self.look_up(place.clone())? else { continue };
                let old = now.saturating_sub(found.inode.ctime);
                if old >= age.as_nanos().try_into().unwrap_or(Nanos::MAX) {
                    match self.call(|fs, done| fs.unlink(self.caller, place, done)) {
                        Ok(_) => removed += 1,
                        Err(error) if is_absent(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            if end || after.is_none() {
                return Ok(removed);
            }
        }
    }

    /// The age from which a hidden file counts as left behind.
    pub const LEFTOVER_AGE: Duration = LEFTOVER_AGE;

    /// A page of a directory by name, and whether nothing follows.
    ///
    /// # Errors
    /// The metadata's.
    pub fn names(
        &self,
        dir: InodeId,
        after: Option<Name>,
    ) -> FsResult<(Vec<kestrel_types::request::DirEntry>, bool)> {
        match self.ask(Op::ReadDir { dir, after, limit: PAGE, check: true })? {
            Answer::Entries { entries, end, .. } => Ok((entries, end)),
            other => Err(kestrel_client::fs::unexpected(&other)),
        }
    }
}
