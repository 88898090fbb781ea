//! Shares: what each worker knows of a directory or an object, so that nobody contends on one
//! record.

use crate::clock::Nanos;
use crate::codec::{DecodeError, Reader};

/// One worker's share of a directory (table `dirstat`). A directory's figures are the sums over its
/// shares, its times the newest of the shares and of the directory's own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirStat {
    /// Entries added less entries removed.
    pub children: i64,
    /// Subdirectories among them.
    pub subdirs: i64,
    /// Bytes (sizes) of the files among them; a hard-linked file counts at each of its names with
    /// the size 0, since its inode belongs to no directory.
    pub bytes: i64,
    /// Newest change of the directory's content made by this worker, nanoseconds; 0 if none since
    /// the times were last set.
    pub mtime: Nanos,
    /// Newest commit timestamp of this share.
    pub change: u64,
}

/// Version of both encodings in this module.
const VERSION: u8 = 1;

impl DirStat {
    /// The record's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(41);
        out.push(VERSION);
        for value in [self.children, self.subdirs, self.bytes, self.mtime] {
            out.extend_from_slice(&value.to_be_bytes());
        }
        out.extend_from_slice(&self.change.to_be_bytes());
        out.into_boxed_slice()
    }

    /// Reads what [`DirStat::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, too many or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(DecodeError("directory share of an unknown format version"));
        }
        let stat = Self {
            children: reader.i64()?,
            subdirs: reader.i64()?,
            bytes: reader.i64()?,
            mtime: reader.i64()?,
            change: reader.u64()?,
        };
        reader.end()?;
        Ok(stat)
    }

    /// Adds another share: sums, and the newest times.
    pub fn merge(&mut self, other: &DirStat) {
        self.children = self.children.wrapping_add(other.children);
        self.subdirs = self.subdirs.wrapping_add(other.subdirs);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.mtime = self.mtime.max(other.mtime);
        self.change = self.change.max(other.change);
    }
}

/// One worker's share of an object (table `objstat`): bytes of it that metadata refers to. When the
/// sum over the shares is zero nothing refers to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjStat {
    /// References added less references released, logical bytes.
    pub referenced: i64,
}

impl ObjStat {
    /// The record's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.referenced.to_be_bytes());
        out.into_boxed_slice()
    }

    /// Reads what [`ObjStat::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, too many or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return Err(DecodeError("object share of an unknown format version"));
        }
        let stat = Self { referenced: reader.i64()? };
        reader.end()?;
        Ok(stat)
    }
}
