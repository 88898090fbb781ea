//! Files that are read or written by a request.

use std::fmt;
use std::io::SeekFrom;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use dav_server::fs::{DavFile, DavMetaData, FsError as DavError, FsFuture, FsResult as DavResult};
use kestrel_client::fs::WriteAt;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::{FILE_SIZE_MAX, Inode};
use kestrel_types::name::PathRef;
use kestrel_types::request::SetAttr;

use super::attributes::DavAttributes;
use super::properties::PROPERTIES_XATTR;
use super::request::{DavRequest, blocking, dav_error};
use crate::account::{Account, FoundEntry};
use crate::new_file::NewFile;
use crate::object::OpenFile;

/// Bytes of a file that are read and sent at a time.
pub const PIECE_BYTES: usize = 256 << 10;

/// What is done with a file.
enum Use {
    /// It is read.
    Read(OpenFile),
    /// It gets a new content.
    New(Box<NewContent>),
    /// A part of a file that is there is written.
    Part { file: OpenFile, at: WriteAt },
}

/// A new content, which gets the name when it is whole.
struct NewContent {
    file: NewFile,
    place: PathRef,
    /// No file may be there.
    is_new: bool,
    /// The file that it replaces.
    replaced: Option<FoundEntry>,
    /// Bytes that are to come, if the client told that.
    size: Option<u64>,
}

/// A file that a request reads or writes.
pub struct DavOpenFile {
    request: DavRequest,
    /// What is done with it; none while that happens, and after a failure.
    open: Option<Use>,
    inode: Inode,
    position: u64,
}

impl fmt::Debug for DavOpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DavOpenFile").field("ino", &self.inode.ino).finish_non_exhaustive()
    }
}

impl DavOpenFile {
    /// A file to read.
    pub fn read(request: &DavRequest, file: OpenFile, inode: Inode) -> Self {
        Self { request: request.clone(), open: Some(Use::Read(file)), inode, position: 0 }
    }

    /// A file of which a part is to be written.
    pub fn part(request: &DavRequest, file: OpenFile, inode: Inode, append: bool) -> Self {
        let at = match append {
            true => WriteAt::End { unfinished: false },
            false => WriteAt::Offset(0),
        };
        let open = Some(Use::Part { file, at });
        Self { request: request.clone(), open, inode, position: 0 }
    }

    /// A new content for a place.
    ///
    /// # Errors
    /// The metadata's.
    pub fn new(
        request: &DavRequest,
        (file, place): (NewFile, PathRef),
        replaced: Option<FoundEntry>,
        (is_new, size): (bool, Option<u64>),
    ) -> FsResult<Self> {
        let inode = file.flush()?;
        let open = Some(Use::New(Box::new(NewContent { file, place, is_new, replaced, size })));
        Ok(Self { request: request.clone(), open, inode, position: 0 })
    }

    async fn write(&mut self, bytes: Bytes) -> DavResult<()> {
        let Some(mut open) = self.open.take() else { return Err(DavError::GeneralFailure) };
        let account = self.request.account.clone();
        let (open, written) = blocking(move || {
            let written = write(&account, &mut open, &bytes);
            Ok((open, written))
        })
        .await?;
        written.map_err(|error| dav_error(&error))?;
        self.open = Some(open);
        Ok(())
    }
}

fn write(account: &Arc<Account>, open: &mut Use, bytes: &[u8]) -> FsResult<()> {
    match open {
        Use::New(new) => new.file.write(bytes),
        Use::Part { file, at } => {
            let end = account.fs.write_unless(&file.handle, *at, bytes, None, &|| false)?;
            if let WriteAt::Offset(at) = at {
                *at = end + bytes.len() as u64;
            }
            Ok(())
        }
        Use::Read(_) => Err(FsError::new(libc::EBADF, "the file is open to be read")),
    }
}

/// What of a file's attributes stays when another file takes its place.
pub fn keep_attributes(account: &Arc<Account>, file: &NewFile, old: &FoundEntry) -> FsResult<()> {
    let (ino, mode) = (file.ino(), Some(old.inode.mode & 0o777));
    let set = SetAttr { mode, ..SetAttr::default() };
    account.call(|fs, done| fs.setattr(account.caller, ino, set, done))?;
    if let Some(properties) = account.xattr(old, PROPERTIES_XATTR)? {
        account.set_xattr(ino, PROPERTIES_XATTR, properties)?;
    }
    Ok(())
}

/// Ends the writing; what the file is then.
fn finish(account: &Arc<Account>, open: &mut Use) -> FsResult<Inode> {
    match open {
        Use::New(new) => {
            let NewContent { file, place, is_new, replaced, size } = &mut **new;
            if size.is_some_and(|size| size != file.size()) {
                let why = "other bytes came than the client had told; the file is as it was";
                return Err(FsError::new(libc::EINVAL, why));
            }
            file.flush()?;
            if let Some(old) = replaced {
                keep_attributes(account, file, old)?;
            }
            file.put(place.clone(), *is_new)?;
            file.make_durable()?;
            file.flush()
        }
        Use::Part { file, .. } => {
            account.call(|fs, done| fs.fsync(&file.handle, done))?;
            account.call(|fs, done| fs.getattr(account.caller, file.handle.ino(), done))
        }
        Use::Read(file) => {
            account.call(|fs, done| fs.getattr(account.caller, file.handle.ino(), done))
        }
    }
}

impl DavFile for DavOpenFile {
    fn metadata(&'_ mut self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        let attributes: Box<dyn DavMetaData> = Box::new(DavAttributes::of(&self.inode));
        Box::pin(std::future::ready(Ok(attributes)))
    }

    fn write_buf(&'_ mut self, mut buf: Box<dyn Buf + Send>) -> FsFuture<'_, ()> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        Box::pin(self.write(bytes))
    }

    fn write_bytes(&'_ mut self, buf: Bytes) -> FsFuture<'_, ()> {
        Box::pin(self.write(buf))
    }

    fn read_bytes(&'_ mut self, count: usize) -> FsFuture<'_, Bytes> {
        Box::pin(async move {
            let Some(Use::Read(file)) = &self.open else { return Err(DavError::GeneralFailure) };
            let read = file.read(self.position, count.min(PIECE_BYTES)).await;
            let read = read.and_then(|bytes| match bytes.is_empty() && count > 0 {
                // The protocol library would send zeros.
                true => Err(FsError::new(libc::EIO, "the file became shorter while it was read")),
                false => Ok(bytes),
            });
            let bytes = read.map_err(|error| {
                self.request.fail(&error);
                dav_error(&error)
            })?;
            self.position += bytes.len() as u64;
            Ok(Bytes::from(bytes))
        })
    }

    fn seek(&'_ mut self, pos: SeekFrom) -> FsFuture<'_, u64> {
        let to = match pos {
            SeekFrom::Start(to) => Some(to),
            SeekFrom::End(by) => self.inode.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let moved = match to.filter(|to| *to <= FILE_SIZE_MAX) {
            Some(to) => {
                self.position = to;
                if let Some(Use::Part { at: WriteAt::Offset(at), .. }) = &mut self.open {
                    *at = to;
                }
                Ok(to)
            }
            None => Err(DavError::TooLarge),
        };
        Box::pin(std::future::ready(moved))
    }

    fn flush(&'_ mut self) -> FsFuture<'_, ()> {
        Box::pin(async move {
            let Some(mut open) = self.open.take() else { return Err(DavError::GeneralFailure) };
            let account = self.request.account.clone();
            self.inode = blocking(move || finish(&account, &mut open)).await?;
            Ok(())
        })
    }
}
