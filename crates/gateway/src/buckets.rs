//! Buckets: directories in the root.

use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::Op;
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{S3ErrorCode, S3Result};

use crate::account::{Account, Buckets, DIR_MODE, is_absent};
use crate::error::{failed, refused};
use crate::walk::{KeyWalk, Step};

/// Whether a bucket can have this name.
pub fn is_bucket_name(name: &str) -> bool {
    AwsNameValidation::new().validate_bucket_name(name)
}

/// A bucket in a listing.
#[derive(Debug, Clone)]
pub struct ListedBucket {
    /// Its name.
    pub name: String,
    /// When it was made, nanoseconds since 1970.
    pub created: i64,
}

impl Account {
    /// The buckets by name, those after `after` that begin with `prefix`, at most so many, and
    /// whether more follow. Directories with names that S3 does not allow are none.
    ///
    /// # Errors
    /// The metadata's.
    pub fn list_buckets(
        &self,
        prefix: &str,
        after: Option<&str>,
        count: usize,
    ) -> S3Result<(Vec<ListedBucket>, bool)> {
        if let Buckets::Whole(name) = &self.buckets {
            let inode = self
                .ask(Op::GetAttr(kestrel_types::name::InodeRef::by_id(ROOT)))
                .and_then(kestrel_client::fs::into_inode)
                .map_err(failed)?;
            let is_wanted = name.starts_with(prefix) && after.is_none_or(|after| &**name > after);
            let bucket = ListedBucket { name: name.clone(), created: inode.btime };
            return Ok((is_wanted.then_some(bucket).into_iter().collect(), false));
        }
        let mut from =
            after.map(|after| Name::new(after.as_bytes())).transpose().map_err(failed)?;
        let mut buckets = Vec::new();
        loop {
            let (entries, end) = self.names(ROOT, from).map_err(failed)?;
            from = entries.last().map(|entry| entry.name.clone());
            for entry in entries.iter().filter(|entry| entry.kind == Kind::Dir) {
                let Ok(name) = std::str::from_utf8(entry.name.as_bytes()) else { continue };
                if !name.starts_with(prefix) || !is_bucket_name(name) {
                    continue;
                }
                if buckets.len() == count {
                    return Ok((buckets, true));
                }
                let place = PathRef::new(ROOT, entry.name.clone());
                if let Some(found) = self.look_up(place).map_err(failed)? {
                    let created = found.inode.btime;
                    buckets.push(ListedBucket { name: name.into(), created });
                }
            }
            if end || from.is_none() {
                return Ok((buckets, false));
            }
        }
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// `BucketAlreadyOwnedByYou`; `AccessDenied` where the whole volume is a bucket.
    pub fn make_bucket(&self, name: &str) -> S3Result<()> {
        self.may_write()?;
        let exists = || {
            refused(S3ErrorCode::BucketAlreadyOwnedByYou, "the bucket is there, and it is yours")
        };
        if let Buckets::Whole(bucket) = &self.buckets {
            return Err(match bucket == name {
                true => exists(),
                false => refused(
                    S3ErrorCode::AccessDenied,
                    "the whole volume is one bucket, another one",
                ),
            });
        }
        let place = PathRef::new(ROOT, Name::new(name.as_bytes()).map_err(failed)?);
        match self.ask(Op::MkDir(place, DIR_MODE)) {
            Ok(_) => self.call(|fs, done| fs.sync(done)).map_err(failed),
            Err(error) if error.errno == libc::EEXIST => Err(exists()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes a bucket without objects, with its empty directories and unfinished uploads.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty`; `AccessDenied` where the whole volume is a bucket.
    pub fn remove_bucket(&self, name: &str) -> S3Result<()> {
        self.may_write()?;
        let dir = self.bucket(name)?;
        if dir == ROOT {
            let why = "the whole volume is this bucket; it cannot be removed";
            return Err(refused(S3ErrorCode::AccessDenied, why));
        }
        self.remove_empty_dirs(dir).map_err(failed)?;
        let place = PathRef::new(ROOT, Name::new(name.as_bytes()).map_err(failed)?);
        match self.ask(Op::RmDir(place, Some(dir))) {
            Ok(_) => {}
            Err(error) if error.errno == libc::ENOTEMPTY => {
                let why = "the bucket has objects, or files that are none";
                return Err(refused(S3ErrorCode::BucketNotEmpty, why));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        // The uploads of a bucket that is gone lead nowhere.
        self.remove_uploads_of_removed(name)
    }

    /// Removes directories without objects, unless there is an object.
    fn remove_empty_dirs(&self, bucket: u64) -> kestrel_types::error::FsResult<()> {
        let mut walk = KeyWalk::new(self, bucket, b"", None, false)?;
        let mut dirs = Vec::new();
        while let Some(step) = walk.advance()? {
            match step {
                Step::Object(_) => return Ok(()),
                Step::Directory(dir) => {
                    walk.enter(&dir)?;
                    dirs.push(dir);
                }
            }
        }
        while let Some(dir) = dirs.pop() {
            let path = dir.key.strip_suffix(b"/").unwrap_or(&dir.key);
            let place = PathRef::from_path(bucket, path)?;
            match self.ask(Op::RmDir(place, Some(dir.ino))) {
                Err(error) if error.errno == libc::ENOTEMPTY || is_absent(&error) => {}
                removed => drop(removed?),
            }
        }
        Ok(())
    }
}
