//! A file that gets its name when all of its bytes are there.
//!
//! A gateway that is killed leaves a file without a name, which the volume removes by itself. Only
//! a file that replaces another one has a hidden name for a moment ([`Account::remove_leftovers`]):
//! a link does not replace.

use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::{CopyRange, Creation};
use kestrel_types::clock::Nanos;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, DirEntry, Op, OpenFlags, RenameFlags};

use crate::account::{Account, FILE_MODE, is_absent, random_word};
use crate::object::OpenFile;
use crate::object_key::OWN_DIR;

/// Directory, in the gateway's own, of files that are about to replace others.
const REPLACING: &str = "replacing";

/// How old a file there is before it counts as left by a gateway that was killed.
const LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// Names of a page of a directory.
const PAGE: usize = 1000;

/// A file that has no name yet.
pub struct NewFile {
    account: Arc<Account>,
    file: OpenFile,
    size: u64,
    /// The hidden name that it has before it replaces another file.
    hidden: Option<PathRef>,
}

impl NewFile {
    /// Begins a file; its bytes are kept by the policies of `dir`.
    ///
    /// # Errors
    /// The metadata's.
    pub fn begin(account: &Arc<Account>, dir: InodeId) -> FsResult<Self> {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let how = Creation { mode: FILE_MODE, flags, exclusive: false };
        let opened = account.call(|fs, done| fs.tmpfile(account.caller, dir, how, done))?;
        let file = OpenFile::new(account.fs.clone(), opened.handle);
        Ok(Self { account: account.clone(), file, size: 0, hidden: None })
    }

    /// Its number.
    pub fn ino(&self) -> InodeId {
        self.file.handle.ino()
    }

    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends bytes. Waits for the block store if it does not keep up.
    ///
    /// # Errors
    /// The client library's.
    pub fn write(&mut self, bytes: &[u8]) -> FsResult<()> {
        self.account.fs.write(&self.file.handle, self.size, bytes, false)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Appends bytes of another file, by reference where the volume can; how many: fewer than
    /// wanted only at the end of the source.
    ///
    /// # Errors
    /// The client library's.
    pub fn append(&mut self, from: &OpenFile, offset: u64, len: u64) -> FsResult<u64> {
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
            match self.account.call(|fs, done| fs.copy_range(copy, done))? {
                0 => break,
                count => (copied, self.size) = (copied + count, self.size + count),
            }
        }
        Ok(copied)
    }

    /// Commits the bytes; what the file is then.
    ///
    /// # Errors
    /// The client library's.
    pub fn flush(&self) -> FsResult<Inode> {
        let account = &self.account;
        account.call(|fs, done| fs.flush(&self.file.handle, done))?;
        account.call(|fs, done| fs.getattr(account.caller, self.ino(), done))
    }

    /// Gives the file this name; another file of that name is replaced, unless it must be new.
    ///
    /// # Errors
    /// `EEXIST` if it must be new and is not, `EISDIR` of a directory; the metadata's.
    pub fn put(&mut self, place: PathRef, is_new: bool) -> FsResult<()> {
        if self.hidden.is_none() {
            match self.link(place.clone()) {
                Err(error) if error.errno == libc::EEXIST && !is_new => {}
                linked => return linked,
            }
            let dir = self.account.own_dir(&[REPLACING])?;
            let hidden = PathRef::new(dir, Name::new(random_word()?.as_bytes())?);
            self.link(hidden.clone())?;
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

    fn link(&mut self, place: PathRef) -> FsResult<()> {
        let (caller, ino) = (self.account.caller, self.ino());
        self.account.call(|fs, done| fs.link(caller, ino, place, done))?;
        self.file.told_again();
        Ok(())
    }

    /// Makes it durable, with its name.
    ///
    /// # Errors
    /// The client library's.
    pub fn make_durable(&self) -> FsResult<()> {
        self.account.call(|fs, done| fs.fsync(&self.file.handle, done))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take() {
            let caller = self.account.caller;
            // What cannot be removed now is a leftover.
            let _ = self.account.call(|fs, done| fs.unlink(caller, hidden, done));
        }
    }
}

impl Account {
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
    pub fn names(&self, dir: InodeId, after: Option<Name>) -> FsResult<(Vec<DirEntry>, bool)> {
        match self.ask(Op::ReadDir { dir, after, limit: PAGE, check: true })? {
            Answer::Entries { entries, end, .. } => Ok((entries, end)),
            other => Err(kestrel_client::fs::unexpected(&other)),
        }
    }
}
