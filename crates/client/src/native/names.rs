//! Operations on names and attributes. A path that leads to a symbolic link means what the link
//! leads to, except where names are made, moved or removed, and with `follow` false.

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::NAME_MAX;
use kestrel_types::perm::with_umask;
use kestrel_types::request::{RenameFlags, SetAttr, SetTime, XattrFlags};

use super::waiting::{wait, wait_or};
use super::walk::{FoundPath, split, target_of};
use super::{NativeCalls, NativeVolume};
use crate::fs::Done;

/// Block size that room is counted in, bytes.
const ROOM_BLOCK: u64 = 4096;

/// Times to set; none: it stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
}

/// What statvfs(3) tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsRoom {
    /// Unit of the blocks, bytes.
    pub block_bytes: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Files and directories.
    pub files: u64,
    /// Longest name, bytes.
    pub name_max: u64,
}

/// An inode that the client knows by number, until this is dropped.
pub(super) struct Remembered<'a> {
    volume: &'a NativeVolume,
    pub inode: Inode,
}

impl Drop for Remembered<'_> {
    fn drop(&mut self) {
        if let Ok(fs) = self.volume.fs() {
            fs.forget(self.inode.ino, 1);
        }
    }
}

/// The umask of this thread's process.
pub fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u16::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

impl<'a> NativeCalls<'a> {
    /// Refuses to change anything of a volume that is opened to be read.
    pub(super) fn check_writable(&self) -> FsResult<()> {
        match self.volume.is_read_only() {
            true => Err(FsError::new(libc::EROFS, "the volume is opened to be read only")),
            false => Ok(()),
        }
    }

    /// Has the client know what a path leads to, by number.
    pub(super) fn remember(&self, found: FoundPath) -> FsResult<Remembered<'a>> {
        let place = found.place.as_ref().map(|(dir, name)| (*dir, name));
        let inode = self.volume.fs()?.remember(found.inode, place);
        Ok(Remembered { volume: self.volume, inode })
    }

    /// Attributes. With `follow` not of a symbolic link.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn stat(&self, path: &[u8], follow: bool) -> FsResult<Inode> {
        let mut inode = self.walk(path, follow)?.inode;
        self.volume.fs()?.show_written(&mut inode);
        Ok(inode)
    }

    /// Checks permissions as access(2) does; `mask` of `R_OK | W_OK | X_OK`, or 0.
    ///
    /// # Errors
    /// Those of access(2).
    pub fn access(&self, path: &[u8], mask: u32) -> FsResult<()> {
        let known = self.remember(self.walk(path, true)?)?;
        if mask & libc::W_OK as u32 != 0 {
            self.check_writable()?;
        }
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        wait(self.gone, |done| fs.access(caller, known.inode.ino, mask, done))
    }

    /// Makes a directory, with the permission bits that the umask leaves.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn mkdir(&self, path: &[u8], mode: u16) -> FsResult<()> {
        self.check_writable()?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        let mode = with_umask(mode, umask());
        let root_exists = |error: FsError| match error.errno {
            libc::EBUSY => FsError::new(libc::EEXIST, "it is the root of the volume"),
            _ => error,
        };
        split(path).map_err(root_exists)?;
        self.at_place(path, |place| self.make(|done| fs.mkdir(caller, place, mode, done)))
    }

    /// Makes a directory and those above it. With `exist_ok` the directory may be there already.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn make_dirs(&self, path: &[u8], mode: u16, exist_ok: bool) -> FsResult<()> {
        match self.mkdir(path, mode) {
            Err(error) if error.errno == libc::ENOENT => {
                let (dir, _) = split(path)?;
                if dir.iter().all(|byte| *byte == b'/') {
                    return Err(error);
                }
                self.make_dirs(dir, 0o777, true)?;
                self.make_dirs(path, mode, exist_ok)
            }
            Err(error) if error.errno == libc::EEXIST && exist_ok => {
                match self.stat(path, true)?.kind {
                    Kind::Dir => Ok(()),
                    _ => Err(error),
                }
            }
            result => result,
        }
    }

    /// Removes a name of something that is no directory.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn unlink(&self, path: &[u8]) -> FsResult<()> {
        self.check_writable()?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        self.at_place(path, |place| {
            wait(self.gone, |done| fs.unlink(caller, place, done)).map(drop)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn rmdir(&self, path: &[u8]) -> FsResult<()> {
        self.check_writable()?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        self.at_place(path, |place| {
            wait(self.gone, |done| fs.rmdir(caller, place, None, done)).map(drop)
        })
    }

    /// Renames, and replaces what is there, as rename(2) does.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> FsResult<()> {
        self.check_writable()?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        self.at_place(from, |from| {
            self.at_place(to, |to| {
                let from = from.clone();
                wait(self.gone, |done| fs.rename(caller, from, to, flags, done)).map(drop)
            })
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> FsResult<()> {
        self.check_writable()?;
        super::walk::check(target)?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        self.at_place(path, |place| self.make(|done| fs.symlink(caller, place, target, done)))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn readlink(&self, path: &[u8]) -> FsResult<Vec<u8>> {
        let found = self.walk(path, false)?;
        match found.inode.kind {
            Kind::Symlink => target_of(&found.inode).map(<[u8]>::to_vec),
            _ => Err(FsError::new(libc::EINVAL, "it is no symbolic link")),
        }
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link(&self, path: &[u8], other: &[u8]) -> FsResult<()> {
        self.check_writable()?;
        let known = self.remember(self.walk(path, false)?)?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        let ino = known.inode.ino;
        self.at_place(other, |place| self.make(|done| fs.link(caller, ino, place, done)))
    }

    /// Waits for something that is made, which the client need not know afterwards.
    fn make(&self, call: impl FnOnce(Done<Inode>)) -> FsResult<()> {
        let fs = self.volume.fs()?;
        let late = fs.clone();
        let made = wait_or(self.gone, move |made: Inode| late.forget(made.ino, 1), call)?;
        fs.forget(made.ino, 1);
        Ok(())
    }

    fn set_attributes(&self, path: &[u8], follow: bool, set: SetAttr) -> FsResult<()> {
        self.check_writable()?;
        let known = self.remember(self.walk(path, follow)?)?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        wait(self.gone, |done| fs.setattr(caller, known.inode.ino, set, done)).map(drop)
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn chmod(&self, path: &[u8], mode: u16, follow: bool) -> FsResult<()> {
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        self.set_attributes(path, follow, set)
    }

    /// Sets owner and group, as far as they are given.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn chown(
        &self,
        path: &[u8],
        (uid, gid): (Option<u32>, Option<u32>),
        follow: bool,
    ) -> FsResult<()> {
        self.set_attributes(path, follow, SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Sets times.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn set_times(&self, path: &[u8], times: Times, follow: bool) -> FsResult<()> {
        let Times { atime, mtime } = times;
        self.set_attributes(path, follow, SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Sets the size of a file.
    ///
    /// # Errors
    /// Those of truncate(2).
    pub fn truncate(&self, path: &[u8], size: u64) -> FsResult<()> {
        let kill_suid = self.volume.caller().uid != 0;
        let set = SetAttr { size: Some(size), kill_suid, ..SetAttr::default() };
        self.set_attributes(path, true, set)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn getxattr(&self, path: &[u8], name: &[u8], follow: bool) -> FsResult<Vec<u8>> {
        let known = self.remember(self.walk(path, follow)?)?;
        let (fs, caller, name) = (self.volume.fs()?, self.volume.caller(), name.into());
        let value = wait(self.gone, |done| fs.getxattr(caller, known.inode.ino, name, done))?;
        Ok(value.into_vec())
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub fn listxattr(&self, path: &[u8], follow: bool) -> FsResult<Vec<Vec<u8>>> {
        let known = self.remember(self.walk(path, follow)?)?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        let names = wait(self.gone, |done| fs.listxattr(caller, known.inode.ino, done))?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of setxattr(2).
    pub fn setxattr(
        &self,
        path: &[u8],
        (name, value): (&[u8], &[u8]),
        flags: XattrFlags,
        follow: bool,
    ) -> FsResult<()> {
        self.check_writable()?;
        let known = self.remember(self.walk(path, follow)?)?;
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        let (name, value) = (name.into(), value.into());
        wait(self.gone, |done| fs.setxattr(caller, known.inode.ino, name, value, flags, done))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub fn removexattr(&self, path: &[u8], name: &[u8], follow: bool) -> FsResult<()> {
        self.check_writable()?;
        let known = self.remember(self.walk(path, follow)?)?;
        let (fs, caller, name) = (self.volume.fs()?, self.volume.caller(), name.into());
        wait(self.gone, |done| fs.removexattr(caller, known.inode.ino, name, done))
    }

    /// How much room the volume has. Quotas of directories are not counted.
    ///
    /// # Errors
    /// Those of the node.
    pub fn room(&self) -> FsResult<FsRoom> {
        let fs = self.volume.fs()?;
        let used = wait(self.gone, |done| fs.usage(done))?;
        let room = fs.store().usage().unwrap_or_default();
        let blocks = |bytes: u64| bytes / ROOM_BLOCK;
        let blocks_free = blocks(room.free.unwrap_or(u64::MAX >> 1));
        Ok(FsRoom {
            block_bytes: ROOM_BLOCK,
            blocks: room.capacity.map_or(blocks_free + blocks(used.bytes), blocks),
            blocks_free,
            files: used.files + used.dirs,
            name_max: NAME_MAX as u64,
        })
    }

    /// Makes everything that is committed durable.
    ///
    /// # Errors
    /// Those of the node and of the block store.
    pub fn sync(&self) -> FsResult<()> {
        let fs = self.volume.fs()?;
        wait(self.gone, |done| fs.sync(done))
    }
}
