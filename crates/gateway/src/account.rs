//! What an access key gives: a file system, the user that acts on it, and where its buckets are.

use std::sync::Arc;

use kestrel_client::Fs;
use kestrel_client::fs::{Caller, Done, plain, unanswered, wait};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Answer, Creds, Op, Outcome, XattrFlags};
use parking_lot::{Mutex, MutexGuard};
use ring::rand::{SecureRandom, SystemRandom};
use s3s::{S3ErrorCode, S3Result};

use crate::attributes::OBJECT_XATTR;
use crate::error::{failed, refused};
use crate::object_key::{OWN_DIR, ObjectKey};

/// Mode of objects' files.
pub const FILE_MODE: u32 = 0o644;

/// Mode of buckets, and of directories that keys bring.
pub const DIR_MODE: u32 = 0o755;

/// Mode of the gateway's own directories.
pub const OWN_DIR_MODE: u32 = 0o700;

/// Locks for conditional writes. Keys that share one wait for each other.
const KEY_LOCKS: usize = 64;

/// Where buckets are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Buckets {
    /// Each directory in the root is one.
    Directories,
    /// The whole volume is the one of this name.
    Whole(String),
}

/// What a look-up found.
#[derive(Debug, Clone)]
pub struct FoundEntry {
    /// What it is.
    pub inode: Inode,
    /// Where, by which the metadata finds it again: of a file its number alone is not enough.
    pub at: InodeRef,
}

/// What an access key gives.
pub struct Account {
    /// The file system.
    pub fs: Arc<Fs>,
    /// The user that acts.
    pub caller: Caller,
    /// Where buckets are.
    pub buckets: Buckets,
    creds: Creds,
    read_only: bool,
    locks: Vec<Mutex<()>>,
}

impl Account {
    /// A user (and group) of a file system.
    pub fn new(fs: Arc<Fs>, owner: (u32, u32), buckets: Buckets, read_only: bool) -> Self {
        let (uid, gid) = owner;
        Self {
            fs,
            caller: Caller { uid, gid, pid: 0 },
            buckets,
            creds: Creds { uid, gid, groups: Some(Arc::from([])) },
            read_only,
            locks: (0..KEY_LOCKS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The same for a key that may only read.
    pub fn read_only(&self) -> Self {
        let owner = (self.caller.uid, self.caller.gid);
        Self::new(self.fs.clone(), owner, self.buckets.clone(), true)
    }

    /// Whether something may be changed.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub fn may_write(&self) -> S3Result<()> {
        match self.read_only {
            true => Err(refused(S3ErrorCode::AccessDenied, "this access key may only read")),
            false => Ok(()),
        }
    }

    /// Asks the metadata.
    ///
    /// # Errors
    /// What it says; a symbolic link in the middle of a path leads nowhere (`ENOENT`).
    pub fn ask(&self, op: Op) -> FsResult<Answer> {
        let reply = self.fs.replies(&self.creds, vec![op]).pop();
        answer(reply.unwrap_or(Err(Outcome::Failed(unanswered()))))
    }

    /// Asks several questions at once; the answers come in their order.
    pub fn ask_many(&self, ops: Vec<Op>) -> Vec<FsResult<Answer>> {
        self.fs.replies(&self.creds, ops).into_iter().map(answer).collect()
    }

    /// A call of the client library, waited for.
    ///
    /// # Errors
    /// The call's.
    pub fn call<T: Send + 'static>(&self, call: impl FnOnce(&Arc<Fs>, Done<T>)) -> FsResult<T> {
        wait(|done| call(&self.fs, done))
    }

    /// What is at a place; none if nothing is.
    ///
    /// # Errors
    /// The metadata's.
    pub fn look_up(&self, place: PathRef) -> FsResult<Option<FoundEntry>> {
        let name = place.name.clone();
        match self.ask(Op::Lookup(place)) {
            Ok(Answer::Entry { inode, parent }) => {
                let at = InodeRef { ino: inode.ino, seen: Some((parent, name)) };
                Ok(Some(FoundEntry { inode: *inode, at }))
            }
            Ok(other) => Err(kestrel_client::fs::unexpected(&other)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directory of a bucket.
    ///
    /// # Errors
    /// `NoSuchBucket`; the metadata's.
    pub fn bucket(&self, name: &str) -> S3Result<InodeId> {
        let absent = || refused(S3ErrorCode::NoSuchBucket, "there is no such bucket");
        match &self.buckets {
            Buckets::Whole(bucket) => {
                if bucket == name {
                    Ok(ROOT)
                } else {
                    Err(absent())
                }
            }
            Buckets::Directories => {
                let place = PathRef::new(ROOT, Name::new(name.as_bytes()).map_err(failed)?);
                let found = self.look_up(place).map_err(failed)?;
                let found = found.filter(|found| found.inode.kind == Kind::Dir);
                found.map(|found| found.inode.ino).ok_or_else(absent)
            }
        }
    }

    /// Value of an extended attribute; none if there is none.
    ///
    /// # Errors
    /// The metadata's.
    pub fn xattr(&self, of: &FoundEntry, name: &[u8]) -> FsResult<Option<Box<[u8]>>> {
        if !of.inode.xattrs {
            return Ok(None);
        }
        optional(self.ask(Op::GetXattr(of.at.clone(), name.into())))
    }

    /// Value of an extended attribute of a file that is open here; none if there is none.
    ///
    /// # Errors
    /// The metadata's.
    pub fn xattr_of_open(&self, inode: &Inode, name: &[u8]) -> FsResult<Option<Box<[u8]>>> {
        if !inode.xattrs {
            return Ok(None);
        }
        let (ino, name) = (inode.ino, name.into());
        let value = self.call(|fs, done| fs.getxattr(self.caller, ino, name, done));
        optional(value.map(Answer::Bytes))
    }

    /// Sets an extended attribute of a directory, or of a file that is open here.
    ///
    /// # Errors
    /// The metadata's.
    pub fn set_xattr(&self, ino: InodeId, name: &[u8], value: Box<[u8]>) -> FsResult<()> {
        let name = name.into();
        self.call(|fs, done| {
            fs.setxattr(self.caller, ino, name, value, XattrFlags::default(), done);
        })
    }

    /// Whether a directory is an object itself.
    ///
    /// # Errors
    /// The metadata's.
    pub fn is_marked(&self, dir: &FoundEntry) -> FsResult<bool> {
        Ok(self.xattr(dir, OBJECT_XATTR)?.is_some())
    }

    /// Makes the directories that a key lies in, as far as they are not there.
    ///
    /// # Errors
    /// `ENOTDIR` if a name on the way is no directory; the metadata's.
    pub fn make_parents(&self, bucket: InodeId, key: &ObjectKey) -> FsResult<()> {
        for path in key.parents() {
            self.make_dir(PathRef::from_path(bucket, path.as_bytes())?, DIR_MODE)?;
        }
        Ok(())
    }

    /// Makes a directory unless it is there.
    ///
    /// # Errors
    /// `ENOTDIR` if something else is there; the metadata's.
    pub fn make_dir(&self, place: PathRef, mode: u32) -> FsResult<InodeId> {
        match self.ask(Op::MkDir(place.clone(), mode)) {
            Ok(Answer::Entry { inode, .. }) => Ok(inode.ino),
            Ok(other) => Err(kestrel_client::fs::unexpected(&other)),
            Err(error) if error.errno == libc::EEXIST => match self.look_up(place)? {
                Some(found) if found.inode.kind == Kind::Dir => Ok(found.inode.ino),
                Some(_) => Err(FsError::new(libc::ENOTDIR, "a name of the path is an object")),
                None => Err(FsError::new(libc::ENOENT, "it was removed meanwhile")),
            },
            Err(error) => Err(error),
        }
    }

    /// The gateway's own directory at this path below [`OWN_DIR`], made if it is not there.
    ///
    /// # Errors
    /// The metadata's.
    pub fn own_dir(&self, path: &[&str]) -> FsResult<InodeId> {
        let whole = format!("{OWN_DIR}/{}", path.join("/"));
        if let Some(found) = self.look_up(PathRef::from_path(ROOT, whole.as_bytes())?)? {
            return Ok(found.inode.ino);
        }
        let mut dir = self.make_dir(PathRef::from_path(ROOT, OWN_DIR.as_bytes())?, OWN_DIR_MODE)?;
        for name in path {
            dir = self.make_dir(PathRef::new(dir, Name::new(name.as_bytes())?), OWN_DIR_MODE)?;
        }
        Ok(dir)
    }

    /// The lock of a key, for a write that looks before.
    pub fn lock_key(&self, bucket: &str, key: &str) -> MutexGuard<'_, ()> {
        use std::hash::{Hash, Hasher};
        let mut hasher = rustc_hash::FxHasher::default();
        (bucket, key).hash(&mut hasher);
        let at = hasher.finish() as usize % self.locks.len();
        self.locks[at].lock()
    }
}

fn answer(reply: kestrel_types::request::Reply) -> FsResult<Answer> {
    match reply {
        // Links may lead out of the bucket.
        Err(Outcome::Symlink { .. }) => {
            Err(FsError::new(libc::ENOENT, "a symbolic link is in the path"))
        }
        reply => plain(reply),
    }
}

/// The value of an extended attribute, or none.
///
/// # Errors
/// Any other failure.
pub fn optional(answer: FsResult<Answer>) -> FsResult<Option<Box<[u8]>>> {
    match answer {
        Ok(Answer::Bytes(bytes)) => Ok(Some(bytes)),
        Ok(other) => Err(kestrel_client::fs::unexpected(&other)),
        Err(error) if error.errno == libc::ENODATA || is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error says that nothing is at a path.
pub fn is_absent(error: &FsError) -> bool {
    matches!(error.errno, libc::ENOENT | libc::ENOTDIR | libc::ESTALE)
}

/// A word that nothing else has: 32 hexadecimal digits.
///
/// # Errors
/// If the system gives no random numbers.
pub fn random_word() -> FsResult<String> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| FsError::new(libc::EIO, "the system gives no random numbers"))?;
    Ok(kestrel_types::hex::to_hex(&bytes))
}
