//! Objects as files below a directory.
//!
//! | file | |
//! | --- | --- |
//! | `files` | open object files and their bounded cache |
//! | `dirty` | which objects are written but not durable, and making them so |
//! | `headroom` | room that file data leaves to the metadata on the same disk |
//! | `sys` | system calls that std does not offer |
//!
//! `DIR/<pp>/<oooooooooooooooo>` (see [`super::key`]; `DIR` stands for `objects`). Files are
//! created under their final name (`O_EXCL`) and written in place: there is no temporary name and
//! no rename, because nothing refers to an object before it was written, so a partial file after a
//! crash is unreferenced garbage that listing finds. A sealed file never changes, so descriptors
//! are shared freely; they are kept in a bounded cache.
//!
//! Why not a library's local store: `docs/decisions/0002-local-block-store.md`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use kestrel_types::ids::ObjectId;

use super::key;
use super::{AppendStore, Appender, BlockStore, LIST_PAGE_MAX, ObjectInfo, Page, Usage, total_len};
use crate::error::{Error, Result};

mod dirty;
mod files;
mod headroom;
mod sys;

use dirty::Dirty;
use files::{FileCache, ObjectFile};
use headroom::Headroom;

/// Files kept open for reading unless configured otherwise.
pub const FILES_OPEN_DEFAULT: usize = 512;

/// Settings of a [`LocalStore`].
#[derive(Debug, Clone, Copy)]
pub struct LocalConfig {
    /// Most descriptors kept in the cache. Unsynced objects hold at most `dirty::FILES_MAX` more.
    pub files_open_max: usize,
    /// Bytes of the disk that are left free: writes that would eat into them fail with `ENOSPC`.
    pub reserve_bytes: u64,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self { files_open_max: FILES_OPEN_DEFAULT, reserve_bytes: 0 }
    }
}

/// A directory as block store.
pub struct LocalStore {
    root: Arc<File>,
    path: PathBuf,
    cache: FileCache,
    dirty: Arc<Dirty>,
    headroom: Arc<Headroom>,
    written: Arc<AtomicI64>,
}

impl LocalStore {
    /// Makes an empty store in a new or empty directory and opens it.
    pub fn create(path: &Path, config: LocalConfig) -> Result<Self> {
        let failed = |source| Error::from_io("creating the block store", None, source);
        match std::fs::create_dir(path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(source));
            }
            _ => {}
        }
        if std::fs::read_dir(path).map_err(failed)?.next().is_some() {
            return Err(failed(io::Error::from_raw_os_error(libc::ENOTEMPTY)));
        }
        if let Some(parent) = path.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        Self::open(path, config)
    }

    /// Opens the store in an existing directory. Bytes that a process wrote before it was killed
    /// may be unsynced: the first [`BlockStore::sync`] makes them durable too.
    pub fn open(path: &Path, config: LocalConfig) -> Result<Self> {
        let root = sys::open_dir(path)
            .map_err(|source| Error::from_io("opening the block store", None, source))?;
        let root = Arc::new(root);
        Ok(Self {
            cache: FileCache::new(config.files_open_max),
            dirty: Arc::new(Dirty::new(Arc::clone(&root))),
            headroom: Arc::new(Headroom::new(Arc::clone(&root), config.reserve_bytes)),
            root,
            path: path.to_path_buf(),
            written: Arc::new(AtomicI64::new(0)),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new file for an object, open for reading and writing and in the cache.
    fn create_file(&self, object: ObjectId) -> Result<Arc<ObjectFile>> {
        let name = files::name(object);
        let failed = |source| Error::from_io("creating", Some(object), source);
        self.dirty.make_room()?;
        let file = match sys::create_at(self.root.as_fd(), &name) {
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => {
                sys::mkdir_at(self.root.as_fd(), &files::dir_name(key::prefix(object)))
                    .map_err(failed)?;
                sys::create_at(self.root.as_fd(), &name)
            }
            Err(source) if is_out_of_descriptors(&source) => {
                self.cache.clear();
                sys::create_at(self.root.as_fd(), &name)
            }
            other => other,
        };
        let file = Arc::new(ObjectFile::new(object, file.map_err(failed)?));
        self.dirty.created(&file);
        self.cache.insert(&file);
        Ok(file)
    }

    /// The object's file, from the cache or opened.
    fn file(&self, object: ObjectId) -> Result<Arc<ObjectFile>> {
        if let Some(file) = self.cache.get(object) {
            return Ok(file);
        }
        let name = files::name(object);
        let opened = match sys::open_at(self.root.as_fd(), &name) {
            Err(source) if is_out_of_descriptors(&source) => {
                self.cache.clear();
                sys::open_at(self.root.as_fd(), &name)
            }
            other => other,
        };
        let file = opened.map_err(|source| Error::from_io("opening", Some(object), source))?;
        let file = Arc::new(ObjectFile::new(object, file));
        self.cache.insert(&file);
        Ok(file)
    }

    /// The object's file if it is open or can be opened without waiting for the disk.
    fn file_nowait(&self, object: ObjectId) -> Result<Option<Arc<ObjectFile>>> {
        if let Some(file) = self.cache.get(object) {
            return Ok(Some(file));
        }
        match sys::open_at_cached(self.root.as_fd(), &files::name(object)) {
            Ok(file) => {
                let file = Arc::new(ObjectFile::new(object, file));
                self.cache.insert(&file);
                Ok(Some(file))
            }
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => {
                Err(Error::NotFound { object })
            }
            // EAGAIN: not cached. Anything else: let the blocking path find out.
            Err(_) => Ok(None),
        }
    }

    /// Takes a copy of another store's object. It gets its name when it is whole and durable. An
    /// equal one that is here already is such a copy. The object cannot be appended to as long as
    /// what this returns is held.
    ///
    /// # Errors
    /// `InUse` while a process appends to it; `NotFound` if the other store does not have it; also
    /// where the file system cannot keep files without names (`O_TMPFILE`).
    pub(super) fn take_copy(&self, object: ObjectId, from: &LocalStore) -> Result<File> {
        let failed = |source| Error::from_io("copying to another tier", Some(object), source);
        // Not one from the cache: a lock belongs to a description, which the appender may share.
        let source = sys::open_at(from.root.as_fd(), &files::name(object)).map_err(failed)?;
        match sys::lock_alone(&source) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                return Err(Error::InUse { object });
            }
            locked => locked.map_err(failed)?,
        }
        let len = source.metadata().map_err(failed)?.len();
        self.headroom.check(usize::try_from(len).unwrap_or(usize::MAX)).map_err(failed)?;
        let dir = files::dir_name(key::prefix(object));
        sys::mkdir_at(self.root.as_fd(), &dir).map_err(failed)?;
        let dir = sys::open_at(self.root.as_fd(), &dir).map_err(failed)?;
        let copy = sys::create_unnamed_in(dir.as_fd()).map_err(failed)?;
        io::copy(&mut &source, &mut &copy).map_err(failed)?;
        copy.sync_all().map_err(failed)?;
        match sys::link_at(&copy, self.root.as_fd(), &files::name(object)) {
            Err(why) if why.raw_os_error() == Some(libc::EEXIST) => {
                let there = sys::open_at(self.root.as_fd(), &files::name(object));
                if !there.and_then(|there| sys::is_same(&source, &there)).map_err(failed)? {
                    let what = "another object of this number is in the other tier";
                    return Err(Error::Corrupt { object, offset: 0, what });
                }
            }
            linked => linked.map_err(failed)?,
        }
        dir.sync_all().and_then(|()| self.root.sync_all()).map_err(failed)?;
        self.written.fetch_add(len as i64, Ordering::Relaxed);
        Ok(source)
    }

    fn forget(&self, object: ObjectId) {
        self.cache.remove(object);
        self.dirty.forget(object);
    }

    /// Names directly in the store's directory that are no prefix directories.
    fn unknown_names(&self) -> io::Result<Vec<String>> {
        let mut unknown = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = key::parse_prefix(&name).is_some() && entry.file_type()?.is_dir();
            let others = [key::MARKER, key::DUMPS, key::VERSIONS, key::ARCHIVE, key::TIER_MARKER];
            if !is_ours && !others.contains(&&*name) {
                unknown.push(format!("{}/{name}", key::ROOT));
            }
        }
        unknown.truncate(LIST_PAGE_MAX);
        Ok(unknown)
    }

    /// Names in one prefix directory after `after`, sorted, at most `limit` of them.
    fn list_dir(
        &self,
        prefix: u8,
        after: Option<&str>,
        limit: usize,
        page: &mut Page,
    ) -> io::Result<bool> {
        let dir = self.path.join(files::dir_name(prefix).to_string_lossy().as_ref());
        let entries = match std::fs::read_dir(&dir) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(true),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let full = format!("{}/{prefix:02x}/{name}", key::ROOT);
            if after.is_none_or(|after| full.as_str() > after) {
                names.push((full, name));
            }
        }
        names.sort_unstable();
        let whole = names.len() <= limit;
        for (full, name) in names.into_iter().take(limit) {
            match std::fs::symlink_metadata(dir.join(&name)) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(source),
                Ok(found) => match key::parse(&full).filter(|_| found.is_file()) {
                    None => page.unknown.push(full.clone()),
                    Some(object) => {
                        page.objects.push(ObjectInfo {
                            object,
                            size: found.len(),
                            modified: sys::modified(&found),
                        });
                    }
                },
            }
            page.next = Some(full);
        }
        Ok(whole)
    }
}

fn is_out_of_descriptors(source: &io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl BlockStore for LocalStore {
    fn put(&self, object: ObjectId, parts: &[IoSlice<'_>]) -> Result<()> {
        let checked = self.headroom.check(total_len(parts));
        checked.map_err(|source| Error::from_io("writing", Some(object), source))?;
        let file = self.create_file(object)?;
        if let Err(source) = sys::write_all_at(&file.file, parts, 0) {
            self.forget(object);
            // Best effort: what stays behind is unreferenced.
            let _ = sys::unlink_at(self.root.as_fd(), &files::name(object));
            return Err(Error::from_io("writing", Some(object), source));
        }
        self.written.fetch_add(total_len(parts) as i64, Ordering::Relaxed);
        self.dirty.wrote(&file);
        Ok(())
    }

    fn appends(&self) -> Option<&dyn AppendStore> {
        Some(self)
    }

    fn read(&self, object: ObjectId, offset: u64, parts: &mut [IoSliceMut<'_>]) -> Result<()> {
        let file = self.file(object)?;
        match sys::read_exact_at(&file.file, parts, offset) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Corrupt {
                object,
                offset,
                what: "the object is shorter than what was stored",
            }),
            Err(source) => Err(Error::from_io("reading", Some(object), source)),
        }
    }

    fn try_read_nowait(
        &self,
        object: ObjectId,
        offset: u64,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<Option<()>> {
        let Some(file) = self.file_nowait(object)? else { return Ok(None) };
        match sys::try_read_exact_at(&file.file, parts, offset) {
            Ok(done) => Ok(done.then_some(())),
            Err(source) => Err(Error::from_io("reading", Some(object), source)),
        }
    }

    fn prefetch(&self, object: ObjectId, offset: u64, len: u64) -> bool {
        if let Ok(file) = self.file(object) {
            sys::will_need(&file.file, offset, len);
        }
        true
    }

    fn size(&self, object: ObjectId) -> Result<u64> {
        let found = self.file(object)?.file.metadata();
        let found = found.map_err(|source| Error::from_io("sizing", Some(object), source))?;
        if found.nlink() == 0 {
            // Removed by another process: this process could still read it, the next one could not.
            self.forget(object);
            return Err(Error::NotFound { object });
        }
        Ok(found.len())
    }

    fn delete(&self, object: ObjectId) -> Result<bool> {
        let size = match self.size(object) {
            Ok(size) => size,
            Err(Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.forget(object);
        match sys::unlink_at(self.root.as_fd(), &files::name(object)) {
            Ok(()) => {
                self.written.fetch_sub(size as i64, Ordering::Relaxed);
                Ok(true)
            }
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(source) => Err(Error::from_io("deleting", Some(object), source)),
        }
    }

    fn sync(&self) -> Result<()> {
        self.dirty.sync_all()
    }

    fn sync_objects(&self, objects: &[ObjectId]) -> Result<()> {
        self.dirty.sync_objects(objects)
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Page> {
        let limit = limit.clamp(1, LIST_PAGE_MAX);
        // The cursor is a key or a prefix of one; both compare as text with every key of the store.
        let first = match after
            .and_then(|after| after.strip_prefix(key::ROOT)?.strip_prefix('/')?.get(..2))
        {
            Some(digits) => {
                key::parse_prefix(digits).ok_or(Error::Invalid { what: "listing cursor" })?
            }
            None if after.is_some() => return Err(Error::Invalid { what: "listing cursor" }),
            None => 0,
        };
        let mut page = Page::default();
        if after.is_none() {
            page.unknown = self
                .unknown_names()
                .map_err(|source| Error::from_io("listing the block store", None, source))?;
        }
        let unknown = page.unknown.len();
        for prefix in first..=u8::MAX {
            let room = (limit + unknown).saturating_sub(page.objects.len() + page.unknown.len());
            let whole = self
                .list_dir(prefix, after, room, &mut page)
                .map_err(|source| Error::from_io("listing the block store", None, source))?;
            if !whole {
                return Ok(page);
            }
        }
        page.next = None;
        Ok(page)
    }

    fn usage(&self) -> Result<Usage> {
        let (capacity, free) = sys::room(&self.root)
            .map_err(|source| Error::from_io("asking for room in the store", None, source))?;
        Ok(Usage {
            capacity: Some(capacity),
            free: Some(free),
            written: self.written.load(Ordering::Relaxed),
        })
    }
}

impl AppendStore for LocalStore {
    fn create(&self, object: ObjectId) -> Result<Box<dyn Appender>> {
        let file = self.create_file(object)?;
        // So that no process moves it away meanwhile. Where files cannot be locked none can.
        let _ = sys::lock_shared(&file.file);
        Ok(Box::new(LocalAppender {
            file,
            len: 0,
            dirty: Arc::clone(&self.dirty),
            headroom: Arc::clone(&self.headroom),
            written: Arc::clone(&self.written),
        }))
    }
}

/// An open pack.
struct LocalAppender {
    file: Arc<ObjectFile>,
    len: u64,
    dirty: Arc<Dirty>,
    headroom: Arc<Headroom>,
    written: Arc<AtomicI64>,
}

impl Drop for LocalAppender {
    fn drop(&mut self) {
        // The cache may keep the file open.
        let _ = sys::unlock(&self.file.file);
    }
}

impl Appender for LocalAppender {
    fn len(&self) -> u64 {
        self.len
    }

    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<u64> {
        let at = self.len;
        self.headroom
            .check(total_len(parts))
            .and_then(|()| sys::write_all_at(&self.file.file, parts, at))
            .map_err(|source| {
                // Best effort: gives the space of a half-written round back. What was there before
                // stays.
                let _ = self.file.file.set_len(at);
                Error::from_io("appending", Some(self.file.object), source)
            })?;
        let len = total_len(parts) as u64;
        self.len += len;
        self.written.fetch_add(len as i64, Ordering::Relaxed);
        self.dirty.wrote(&self.file);
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
