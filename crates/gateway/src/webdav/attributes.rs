//! Attributes of files and directories, as clients of WebDAV see them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dav_server::fs::{DavMetaData, FsResult as DavResult};
use kestrel_types::clock::Nanos;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};

/// Attributes of a file or directory.
#[derive(Debug, Clone)]
pub struct DavAttributes {
    ino: InodeId,
    kind: Kind,
    mode: u16,
    size: u64,
    data_change: u64,
    mtime: Nanos,
    ctime: Nanos,
    atime: Nanos,
}

impl DavAttributes {
    /// Of an inode.
    pub fn of(inode: &Inode) -> Self {
        Self {
            ino: inode.ino,
            kind: inode.kind,
            mode: inode.mode,
            size: if inode.kind == Kind::File { inode.size } else { 0 },
            data_change: inode.data_change,
            mtime: inode.mtime,
            ctime: inode.ctime,
            atime: inode.atime,
        }
    }
}

fn system_time(at: Nanos) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(at.max(0).unsigned_abs())
}

impl DavMetaData for DavAttributes {
    fn len(&self) -> u64 {
        self.size
    }

    fn modified(&self) -> DavResult<SystemTime> {
        Ok(system_time(self.mtime))
    }

    fn accessed(&self) -> DavResult<SystemTime> {
        Ok(system_time(self.atime))
    }

    fn status_changed(&self) -> DavResult<SystemTime> {
        Ok(system_time(self.ctime))
    }

    fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    fn is_symlink(&self) -> bool {
        // Nothing else has bytes to send either.
        !matches!(self.kind, Kind::Dir | Kind::File)
    }

    fn executable(&self) -> DavResult<bool> {
        Ok(self.mode & 0o111 != 0)
    }

    fn etag(&self) -> Option<String> {
        Some(format!("{:x}-{:x}", self.ino, self.data_change))
    }
}
