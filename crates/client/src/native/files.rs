//! [`NativeFile`]: open files.

use std::sync::Arc;

use parking_lot::Mutex;

use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{FILE_SIZE_MAX, Inode, Kind};
use kestrel_types::name::PathRef;
use kestrel_types::perm::with_umask;
use kestrel_types::request::{OpenFlags, SetAttr};

use super::names::umask;
use super::waiting::{wait, wait_or};
use super::{Gone, NativeCalls};
use crate::fs::{CopyRange, Creation, FileHandle, Fs, Opened, OpenedEntry, Seek, WriteAt};

/// Most bytes that are read or written with one request to the client.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// How often an open begins again because what it found was replaced meanwhile.
const ATTEMPTS: u32 = 4;

/// How a file is opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenHow {
    /// Reading, writing, truncating, appending.
    pub flags: OpenFlags,
    /// It is made if it is not there.
    pub create: bool,
    /// With `create`: it must not be there.
    pub exclusive: bool,
    /// Permission bits of a new file, before the umask.
    pub mode: u16,
}

impl OpenHow {
    /// To be read.
    pub const READ: Self = Self {
        flags: OpenFlags {
            read: true,
            write: false,
            exec: false,
            truncate: false,
            kill_suid: false,
            append: false,
        },
        create: false,
        exclusive: false,
        mode: 0,
    };

    /// To be written from the start: what was there is gone.
    pub const fn create(mode: u16) -> Self {
        let flags = OpenFlags { read: false, write: true, truncate: true, ..Self::READ.flags };
        Self { flags, create: true, exclusive: false, mode }
    }

    /// What the flags of open(2) say; those that mean nothing here are ignored.
    ///
    /// # Errors
    /// `EINVAL` if it is neither read nor written.
    pub fn from_flags(flags: i32, mode: u16) -> FsResult<Self> {
        let (read, write) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return Err(FsError::new(libc::EINVAL, "a file is opened to read or to write")),
        };
        let has = |flag| flags & flag != 0;
        let open = OpenFlags {
            read,
            write,
            truncate: has(libc::O_TRUNC),
            append: has(libc::O_APPEND),
            ..OpenFlags::default()
        };
        let (create, exclusive) = (has(libc::O_CREAT), has(libc::O_EXCL));
        Ok(Self { flags: open, create, exclusive: create && exclusive, mode })
    }

    fn is_change(&self) -> bool {
        self.flags.write || self.flags.truncate || self.create
    }
}

/// An open file. [`NativeCalls::close`] tells whether all that was written is stored; dropped, it
/// is closed as well.
pub struct NativeFile {
    open: Option<(Arc<Fs>, Arc<FileHandle>)>,
    /// Where the next read or write without an offset begins.
    position: Mutex<u64>,
    append: bool,
    pid: u32,
}

/// From where a new position is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekFrom {
    /// The start of the file.
    Start(u64),
    /// The present position.
    Current(i64),
    /// The end of the file.
    End(i64),
    /// The next byte from this offset on that is data.
    Data(u64),
    /// The next byte from this offset on that is in a hole.
    Hole(u64),
}

impl NativeFile {
    fn new(fs: &Arc<Fs>, opened: Opened, append: bool) -> Self {
        Self {
            open: Some((fs.clone(), opened.handle)),
            position: Mutex::new(0),
            append,
            pid: std::process::id(),
        }
    }

    /// What is open, if it can be used.
    pub(super) fn parts(&self) -> FsResult<(&Arc<Fs>, &Arc<FileHandle>)> {
        match &self.open {
            Some((fs, handle)) if self.pid == std::process::id() => Ok((fs, handle)),
            _ => Err(FsError::new(libc::EBADF, "the file is closed, or the parent process's")),
        }
    }

    /// Inode number.
    ///
    /// # Errors
    /// `EBADF` if it is closed.
    pub fn ino(&self) -> FsResult<InodeId> {
        Ok(self.parts()?.1.ino())
    }

    /// Whether it was opened to be read.
    pub fn is_readable(&self) -> bool {
        self.open.as_ref().is_some_and(|(_, handle)| handle.readable())
    }

    /// Whether it was opened to be written.
    pub fn is_writable(&self) -> bool {
        self.open.as_ref().is_some_and(|(_, handle)| handle.writable())
    }

    /// Whether every write goes to the end.
    pub fn appends(&self) -> bool {
        self.append
    }
}

impl std::fmt::Debug for NativeFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let handle = self.open.as_ref().map(|(_, handle)| handle);
        f.debug_struct("NativeFile").field("handle", &handle).finish_non_exhaustive()
    }
}

impl Drop for NativeFile {
    fn drop(&mut self) {
        let Some((fs, handle)) = self.open.take() else { return };
        if self.pid == std::process::id() {
            give_back(&fs, handle);
        } else {
            // The parent's: not even the counts are touched.
            std::mem::forget((fs, handle));
        }
    }
}

/// Closes a handle without waiting.
fn give_back(fs: &Arc<Fs>, handle: Arc<FileHandle>) {
    let (again, ino) = (fs.clone(), handle.ino());
    fs.release(handle, Box::new(move |_| again.forget(ino, 1)));
}

/// What an open file is not.
fn wrong_kind(kind: Kind) -> FsError {
    match kind {
        Kind::Dir => FsError::new(libc::EISDIR, "it is a directory"),
        _ => FsError::new(libc::EOPNOTSUPP, "it is no regular file; open it through a mount"),
    }
}

impl<'a> NativeCalls<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(&self, path: &[u8], how: OpenHow) -> FsResult<NativeFile> {
        if how.is_change() {
            self.check_writable()?;
        }
        if path.ends_with(b"/") && how.is_change() {
            return Err(wrong_kind(Kind::Dir));
        }
        let kill_suid = how.flags.truncate && self.volume.caller().uid != 0;
        let how = OpenHow { flags: OpenFlags { kill_suid, ..how.flags }, ..how };
        let opened = if how.create {
            self.open_or_create(path, how)?
        } else if how.flags.truncate || path.ends_with(b"/") {
            self.open_found(path, how.flags)?
        } else {
            match self.at_place(path, |place| self.open_at(place, how.flags)) {
                // A link at the end, or the root.
                Err(error) if matches!(error.errno, libc::ELOOP | libc::EBUSY | libc::EINVAL) => {
                    self.open_found(path, how.flags)?
                }
                opened => opened?,
            }
        };
        let fs = self.volume.fs()?;
        if opened.inode.kind != Kind::File {
            let kind = opened.inode.kind;
            give_back(fs, opened.handle);
            return Err(wrong_kind(kind));
        }
        Ok(NativeFile::new(fs, opened, how.flags.append))
    }

    fn open_or_create(&self, path: &[u8], how: OpenHow) -> FsResult<Opened> {
        let create = |place: PathRef| {
            let (fs, caller) = (self.volume.fs()?, self.volume.caller());
            let mode = with_umask(how.mode, umask());
            let how = Creation { mode, flags: how.flags, exclusive: how.exclusive };
            self.opened(|done| fs.create(caller, place, how, done))
        };
        let mut result = match super::walk::split(path) {
            Err(error) if error.errno == libc::EBUSY => return Err(wrong_kind(Kind::Dir)),
            _ => self.at_place(path, create),
        };
        for _ in 0..ATTEMPTS {
            match result {
                Err(error) if error.errno == libc::ELOOP && !how.exclusive => {
                    result = create(self.final_place(path)?);
                }
                result => return result,
            }
        }
        result
    }

    /// Opens what a path leads to, by number.
    fn open_found(&self, path: &[u8], flags: OpenFlags) -> FsResult<Opened> {
        let found = self.walk(path, true)?;
        if found.inode.kind != Kind::File {
            return Err(wrong_kind(found.inode.kind));
        }
        let known = self.remember(found)?;
        let (fs, caller, ino) = (self.volume.fs()?, self.volume.caller(), known.inode.ino);
        let opened = self.opened(|done| fs.open(caller, ino, flags, done))?;
        // The open file is known once more, until it is closed.
        std::mem::forget(known);
        Ok(opened)
    }

    fn open_at(&self, place: PathRef, flags: OpenFlags) -> FsResult<Opened> {
        let (fs, caller) = (self.volume.fs()?, self.volume.caller());
        let late = fs.clone();
        let undo = move |entry| match entry {
            OpenedEntry::File(opened) => give_back(&late, opened.handle),
            OpenedEntry::Directory(_) => {}
        };
        match wait_or(self.gone, undo, |done| fs.open_at(caller, place, flags, done))? {
            OpenedEntry::File(opened) => Ok(opened),
            OpenedEntry::Directory(_) => Err(wrong_kind(Kind::Dir)),
        }
    }

    /// Waits for an open; what comes late is closed.
    fn opened(&self, call: impl FnOnce(crate::fs::Done<Opened>)) -> FsResult<Opened> {
        let late = self.volume.fs()?.clone();
        wait_or(self.gone, move |opened: Opened| give_back(&late, opened.handle), call)
    }

    /// Attributes of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn file_stat(&self, file: &NativeFile) -> FsResult<Inode> {
        let (fs, handle) = file.parts()?;
        let caller = self.volume.caller();
        wait(self.gone, |done| fs.getattr(caller, handle.ino(), done))
    }

    /// Reads into `out` from `offset`; how many bytes, fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read_at(&self, file: &NativeFile, offset: u64, out: &mut [u8]) -> FsResult<usize> {
        let (fs, handle) = file.parts()?;
        let mut filled = 0;
        while filled < out.len() {
            let at = offset.saturating_add(filled as u64);
            let len = (out.len() - filled).min(PIECE_BYTES);
            let content = wait(self.gone, |done| fs.read_content(handle, (at, len), false, done))?;
            let before = filled;
            for piece in content.pieces() {
                let piece = &piece[..piece.len().min(out.len() - filled)];
                out[filled..filled + piece.len()].copy_from_slice(piece);
                filled += piece.len();
            }
            if filled - before < len {
                break;
            }
        }
        Ok(filled)
    }

    /// Writes bytes at `offset`, or at the end of a file that appends. Answers the offset after
    /// them.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn write_at(&self, file: &NativeFile, offset: u64, data: &[u8]) -> FsResult<u64> {
        let (fs, handle) = file.parts()?;
        let caller = self.volume.caller();
        let unprivileged = (caller.uid != 0).then_some(caller);
        let gone: Gone<'_> = self.gone;
        let mut end = offset;
        let mut pieces = data.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let at = match file.append {
                true => WriteAt::End { unfinished: pieces.peek().is_some() },
                false => WriteAt::Offset(end),
            };
            let begin = fs.write_unless(handle, at, piece, unprivileged, gone)?;
            end = begin.saturating_add(piece.len() as u64);
        }
        Ok(end)
    }

    /// Reads from the position on, and moves it.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn read(&self, file: &NativeFile, out: &mut [u8]) -> FsResult<usize> {
        file.parts()?;
        let mut position = file.position.lock();
        let len = self.read_at(file, *position, out)?;
        *position += len as u64;
        Ok(len)
    }

    /// Writes at the position, and moves it to the end of what was written.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write(&self, file: &NativeFile, data: &[u8]) -> FsResult<()> {
        file.parts()?;
        let mut position = file.position.lock();
        *position = self.write_at(file, *position, data)?;
        Ok(())
    }

    /// Moves the position; where it is then.
    ///
    /// # Errors
    /// `EINVAL` if that is before the start; `ENXIO` if there is no such byte.
    pub fn seek(&self, file: &NativeFile, to: SeekFrom) -> FsResult<u64> {
        let (fs, handle) = file.parts()?;
        let mut position = file.position.lock();
        let moved = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.file_stat(file)?.size.checked_add_signed(by),
            SeekFrom::Data(at) => {
                Some(wait(self.gone, |done| fs.seek(handle, at, Seek::Data, done))?)
            }
            SeekFrom::Hole(at) => {
                Some(wait(self.gone, |done| fs.seek(handle, at, Seek::Hole, done))?)
            }
        };
        let moved = moved.filter(|moved| *moved <= FILE_SIZE_MAX);
        *position = moved.ok_or(FsError::new(libc::EINVAL, "no offset of a file"))?;
        Ok(*position)
    }

    /// Sets the size of an open file.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn file_truncate(&self, file: &NativeFile, size: u64) -> FsResult<()> {
        let (fs, handle) = file.parts()?;
        if !handle.writable() || size > FILE_SIZE_MAX {
            let errno = if handle.writable() { libc::EFBIG } else { libc::EINVAL };
            return Err(FsError::new(errno, "the size of the file cannot be set to that"));
        }
        let caller = self.volume.caller();
        let kill_suid = caller.uid != 0;
        let set =
            SetAttr { size: Some(size), through_handle: true, kill_suid, ..SetAttr::default() };
        wait(self.gone, |done| fs.setattr(caller, handle.ino(), set, done)).map(drop)
    }

    /// Copies bytes between open files, by reference where they are many. How many were copied:
    /// fewer than wanted only at the end of the source.
    ///
    /// # Errors
    /// Those of copy_file_range(2).
    pub fn copy_range(
        &self,
        (from, from_offset): (&NativeFile, u64),
        (to, to_offset): (&NativeFile, u64),
        len: u64,
    ) -> FsResult<u64> {
        let ((fs, from), (other, to)) = (from.parts()?, to.parts()?);
        if !Arc::ptr_eq(fs, other) {
            return Err(FsError::new(libc::EXDEV, "the files are those of two volumes"));
        }
        let caller = self.volume.caller();
        let mut copied = 0;
        while copied < len {
            let copy = CopyRange {
                from: from.clone(),
                from_offset: from_offset.saturating_add(copied),
                to: to.clone(),
                to_offset: to_offset.saturating_add(copied),
                len: len - copied,
                unprivileged: (caller.uid != 0).then_some(caller),
            };
            match wait(self.gone, |done| fs.copy_range(copy, done))? {
                0 => break,
                some => copied += some,
            }
        }
        Ok(copied)
    }

    /// Commits what was written to a file: other clients see it.
    ///
    /// # Errors
    /// Those of storing it.
    pub fn flush(&self, file: &NativeFile) -> FsResult<()> {
        let (fs, handle) = file.parts()?;
        wait(self.gone, |done| fs.flush(handle, done))
    }

    /// The same, and makes it durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn fsync(&self, file: &NativeFile) -> FsResult<()> {
        let (fs, handle) = file.parts()?;
        wait(self.gone, |done| fs.fsync(handle, done))
    }

    /// Commits what was written to a file, and closes it.
    ///
    /// # Errors
    /// Those of storing it. It is closed all the same.
    pub fn close(&self, mut file: NativeFile) -> FsResult<()> {
        file.parts()?;
        let Some((fs, handle)) = file.open.take() else { return Ok(()) };
        let flushed = match handle.flushes() {
            true => wait(self.gone, |done| fs.flush(&handle, done)),
            false => Ok(()),
        };
        give_back(&fs, handle);
        flushed
    }
}
