//! What can go wrong with stored data. Many causes inside, few kinds for callers; the errno is
//! decided at the edge.

use std::fmt;
use std::io;
use std::sync::Arc;

use kestrel_types::ids::ObjectId;
use kestrel_types::tier::Tier;

/// Result of a data-plane call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a data-plane call failed. Clones share their source, so that each caller that a failure hit
/// gets it.
#[derive(Debug, Clone)]
pub enum Error {
    /// The object is not in the store.
    NotFound {
        /// The object.
        object: ObjectId,
    },
    /// The store already holds an object of this number; objects are never overwritten.
    Exists {
        /// The object.
        object: ObjectId,
    },
    /// What the store returned is not what was written.
    Corrupt {
        /// The object.
        object: ObjectId,
        /// Byte of the object where the check failed.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The object cannot be decoded: there is no key for it, it takes a newer program, or it is not
    /// encrypted where all are. That is no proof of damage.
    Coding {
        /// The object.
        object: ObjectId,
        /// Why, and what to do about it.
        why: Arc<str>,
    },
    /// What the store returned for an object with a name is not what was written.
    CorruptNamed {
        /// The object's name.
        name: Arc<str>,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The same as [`Error::Coding`] of an object with a name.
    CodingNamed {
        /// The object's name.
        name: Arc<str>,
        /// Why, and what to do about it.
        why: Arc<str>,
    },
    /// The object is in an archive and has to be restored before it is read.
    Archived {
        /// The object.
        object: ObjectId,
    },
    /// A process still writes to the object.
    InUse {
        /// The object.
        object: ObjectId,
    },
    /// The store does not have this tier.
    NoTier {
        /// The tier.
        tier: Tier,
        /// What the store said.
        why: Arc<str>,
    },
    /// The store is full, or a quota of it.
    NoSpace {
        /// What was being done.
        during: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The store failed.
    Io {
        /// What was being done.
        during: &'static str,
        /// The object, where one was concerned.
        object: Option<ObjectId>,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The store answered with an error, or did not answer, after all that could be tried again
    /// was.
    Remote {
        /// What was being done.
        during: &'static str,
        /// The object, where one was concerned.
        object: Option<ObjectId>,
        /// Why, and what to do about it.
        why: Arc<str>,
    },
    /// An earlier sync failed: which unsynced bytes reached the disk cannot be found out, so no
    /// later sync may succeed.
    SyncLost {
        /// The failure that caused it.
        cause: Box<Error>,
    },
    /// The time allowed for the call ran out.
    Deadline {
        /// What was being done.
        during: &'static str,
    },
    /// The pool or packer is shutting down.
    Closed {
        /// What was being done.
        during: &'static str,
    },
    /// The call is for something that cannot be: a limit of the format, or bytes outside a range.
    Invalid {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The object is missing.
    NotFound,
    /// Stored bytes are damaged.
    Corrupt,
    /// The object has to be restored from an archive.
    Archived,
    /// No space left; succeeds again after something was deleted.
    NoSpace,
    /// Everything else that failed.
    Io,
    /// Too late.
    Deadline,
}

impl Error {
    /// Wraps a system error.
    pub fn from_io(during: &'static str, object: Option<ObjectId>, source: io::Error) -> Self {
        match (source.raw_os_error(), object) {
            (Some(libc::ENOENT), Some(object)) => Self::NotFound { object },
            (Some(libc::EEXIST), Some(object)) => Self::Exists { object },
            (Some(libc::ENOSPC | libc::EDQUOT), _) => {
                Self::NoSpace { during, source: Arc::new(source) }
            }
            _ => Self::Io { during, object, source: Arc::new(source) },
        }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Corrupt { .. } | Self::CorruptNamed { .. } => ErrorKind::Corrupt,
            Self::Archived { .. } => ErrorKind::Archived,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::Deadline { .. } => ErrorKind::Deadline,
            Self::SyncLost { cause } => match cause.kind() {
                ErrorKind::NoSpace => ErrorKind::NoSpace,
                _ => ErrorKind::Io,
            },
            Self::Exists { .. }
            | Self::Coding { .. }
            | Self::CodingNamed { .. }
            | Self::InUse { .. }
            | Self::NoTier { .. }
            | Self::Io { .. }
            | Self::Remote { .. }
            | Self::Closed { .. }
            | Self::Invalid { .. } => ErrorKind::Io,
        }
    }

    /// What is wrong with the object, for a report that names the object and its files: without
    /// the object, and without the advice to make such a report.
    pub fn damage(&self) -> String {
        match self {
            Self::NotFound { .. } => "missing in the block store".into(),
            Self::Corrupt { offset, what, .. } => format!("damaged at byte {offset}: {what}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { object } => {
                write!(
                    f,
                    "object {object:016x} is missing in the block store; `kestrel fsck` tells \
                     which files need it"
                )
            }
            Self::Exists { object } => {
                write!(f, "object {object:016x} already exists: never overwritten")
            }
            Self::Corrupt { object, offset, what } => {
                write!(
                    f,
                    "object {object:016x} is damaged at byte {offset}: {what}; `kestrel fsck \
                     --data` lists the files"
                )
            }
            Self::Coding { object, why } => write!(f, "object {object:016x}: {why}"),
            Self::CorruptNamed { name, what } => write!(f, "{name}: {what}"),
            Self::CodingNamed { name, why } => write!(f, "{name}: {why}"),
            Self::Archived { object } => {
                write!(
                    f,
                    "object {object:016x} is in an archive; `kestrel tier restore FILE` asks for \
                     it, `kestrel tier status FILE` tells when it is there"
                )
            }
            Self::InUse { object } => {
                write!(f, "object {object:016x} is still written to; try again in a minute")
            }
            Self::NoTier { tier, why } => {
                write!(f, "the store has no tier {tier} ({why}); choose another")
            }
            Self::NoSpace { during, source } => {
                write!(f, "{during}: {source}; free space in the block store")
            }
            Self::Io { during, object: Some(object), source } => {
                write!(f, "{during} of object {object:016x}: {source}; check the store's disk")
            }
            Self::Io { during, object: None, source } => {
                write!(f, "{during}: {source}; check the store's disk")
            }
            Self::Remote { during, object: Some(object), why } => {
                write!(f, "{during} of object {object:016x}: {why}")
            }
            Self::Remote { during, object: None, why } => write!(f, "{during}: {why}"),
            Self::SyncLost { cause } => {
                write!(
                    f,
                    "an earlier sync failed ({cause}): remount to find out what reached the disk"
                )
            }
            Self::Deadline { during } => {
                write!(f, "{during}: out of time; the store is slow or gone")
            }
            Self::Closed { during } => write!(f, "{during}: shutting down"),
            Self::Invalid { what } => write!(f, "invalid request: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoSpace { source, .. } | Self::Io { source, .. } => Some(source.as_ref()),
            Self::SyncLost { cause } => Some(cause.as_ref()),
            _ => None,
        }
    }
}
