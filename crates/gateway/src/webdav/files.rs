//! The operations of WebDAV, as the protocol library asks for them. Each takes the path of a file
//! or directory from the root of what the access key gives. Symbolic links are not shown: they may
//! lead out of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use dav_server::davpath::DavPath;
use dav_server::fs::{
    DavDirEntry, DavFile, DavMetaData, DavProp, FsFuture, FsStream, GuardedFileSystem, OpenOptions,
    ReadDirMeta,
};
use futures_util::stream;
use http::StatusCode;
use kestrel_client::fs::OpenedEntry;
use kestrel_types::clock::Nanos;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{
    Answer, DirEntry, Op, OpenFlags, RenameFlags, SetAttr, SetTime, XattrFlags,
};

use super::attributes::DavAttributes;
use super::open_file::{DavOpenFile, keep_attributes};
use super::properties::{PROPERTIES_XATTR, Properties};
use super::request::{DavRequest, blocking, dav_error, on_thread};
use crate::account::{Account, DIR_MODE, FoundEntry, is_absent};
use crate::new_file::NewFile;
use crate::object::OpenFile;
use crate::object_key::is_reserved;

/// A name in a directory.
struct DavEntry {
    name: Name,
    inode: Inode,
    /// Path of the directory, with a slash behind it.
    dir: Arc<[u8]>,
    request: DavRequest,
}

impl DavDirEntry for DavEntry {
    fn name(&self) -> Vec<u8> {
        self.name.as_bytes().to_vec()
    }

    fn metadata(&'_ self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        let mut plain = self.request.plain_entry.lock();
        plain.clear();
        if !self.inode.xattrs {
            plain.extend_from_slice(&self.dir);
            plain.extend_from_slice(self.name.as_bytes());
        }
        drop(plain);
        let attributes: Box<dyn DavMetaData> = Box::new(DavAttributes::of(&self.inode));
        Box::pin(std::future::ready(Ok(attributes)))
    }
}

/// The names of a path.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// The place of a path; none of the root.
fn place(path: &DavPath) -> FsResult<Option<PathRef>> {
    let bytes = path.as_bytes();
    match names(bytes).next() {
        None => Ok(None),
        Some(first) if is_reserved(first) => {
            Err(FsError::new(libc::EACCES, "the directory is the volume's own"))
        }
        Some(_) => PathRef::from_path(ROOT, bytes).map(Some),
    }
}

/// The place of what is made, moved or removed, which the root cannot be.
fn place_of_entry(path: &DavPath) -> FsResult<PathRef> {
    let root = || FsError::new(libc::EBUSY, "it is the root of the volume");
    place(path)?.ok_or_else(root)
}

fn is_same(one: &DavPath, other: &DavPath) -> bool {
    names(one.as_bytes()).eq(names(other.as_bytes()))
}

fn absent() -> FsError {
    FsError::new(libc::ENOENT, "there is no such file or directory")
}

impl Account {
    /// The directory in which a path is.
    fn dir_of(&self, path: &DavPath) -> FsResult<InodeId> {
        let found = self.at(&path.parent())?;
        if found.inode.kind == Kind::Dir { Ok(found.inode.ino) } else { Err(absent()) }
    }

    /// What is at a path.
    fn at(&self, path: &DavPath) -> FsResult<FoundEntry> {
        match place(path)? {
            Some(place) => self.look_up(place)?.ok_or_else(absent),
            None => {
                let at = InodeRef::by_id(ROOT);
                match self.ask(Op::GetAttr(at.clone()))? {
                    Answer::Inode(inode) => Ok(FoundEntry { inode: *inode, at }),
                    other => Err(kestrel_client::fs::unexpected(&other)),
                }
            }
        }
    }

    /// What is at a path, if clients see it.
    fn shown_at(&self, path: &DavPath) -> FsResult<FoundEntry> {
        let found = self.at(path)?;
        match found.inode.kind {
            Kind::Dir | Kind::File => Ok(found),
            _ => Err(absent()),
        }
    }

    fn open_place(&self, place: PathRef, flags: OpenFlags) -> FsResult<(OpenFile, Inode)> {
        let opened = self.call(|fs, done| fs.open_at(self.caller, place, flags, done))?;
        let OpenedEntry::File(opened) = opened else {
            return Err(FsError::new(libc::EISDIR, "it is a directory"));
        };
        let file = OpenFile::new(self.fs.clone(), opened.handle);
        match opened.inode.kind {
            Kind::File => Ok((file, opened.inode)),
            _ => Err(absent()),
        }
    }

    fn properties(&self, of: &FoundEntry) -> FsResult<Properties> {
        let value = self.xattr(of, PROPERTIES_XATTR)?;
        Ok(value.map(|bytes| Properties::decode(&bytes)).unwrap_or_default())
    }

    /// A page of a directory, with attributes.
    fn dav_page(&self, dir: InodeId, after: Option<Name>) -> FsResult<DavPage> {
        let (entries, end) = self.names(dir, after)?;
        let last = entries.last().filter(|_| !end).map(|entry| entry.name.clone());
        let shown = |entry: &DirEntry| dir != ROOT || !is_reserved(entry.name.as_bytes());
        let entries: Vec<DirEntry> = entries.into_iter().filter(shown).collect();
        let look = |entry: &DirEntry| Op::Lookup(PathRef::new(dir, entry.name.clone()));
        let found = self.ask_many(entries.iter().map(look).collect());
        let mut page = VecDeque::with_capacity(entries.len());
        for (entry, found) in entries.into_iter().zip(found) {
            match found {
                Ok(Answer::Entry { inode, .. }) => {
                    page.push_back((entry.name, *inode));
                }
                Ok(other) => return Err(kestrel_client::fs::unexpected(&other)),
                // It was removed meanwhile.
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(DavPage { entries: page, last })
    }

    fn copy_file(self: &Arc<Self>, from: &DavPath, to: &DavPath) -> FsResult<()> {
        let dir = self.dir_of(to)?;
        let (from, to) = (place_of_entry(from)?, place_of_entry(to)?);
        let old = self.look_up(from.clone())?.ok_or_else(absent)?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let (source, inode) = self.open_place(from, flags)?;
        let mut file = NewFile::begin(self, dir)?;
        file.append(&source, 0, inode.size)?;
        file.flush()?;
        keep_attributes(self, &file, &old)?;
        file.put(to, false)?;
        file.make_durable()
    }

    fn set_time(&self, path: &DavPath, set: SetAttr) -> FsResult<()> {
        let found = self.at(path)?;
        self.ask(Op::SetAttr(found.at, set)).map(drop)
    }
}

/// Names in a directory with what they stand for, and the last one if others follow.
struct DavPage {
    entries: VecDeque<(Name, Inode)>,
    last: Option<Name>,
}

/// What goes on with a listing.
struct ListingState {
    dir: InodeId,
    ready: VecDeque<(Name, Inode)>,
    /// Path of the directory, with a slash behind it.
    path: Arc<[u8]>,
    /// After which name it goes on; none: nothing follows.
    next: Option<Option<Name>>,
}

/// The file system that the protocol library sees.
#[derive(Debug, Clone, Copy)]
pub struct DavFiles;

impl DavFiles {
    /// Opens a file as a request wants it.
    fn open_file(request: &DavRequest, path: &DavPath, how: &OpenOptions) -> FsResult<DavOpenFile> {
        let (account, place) = (&request.account, place_of_entry(path)?);
        if !how.write {
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let (file, inode) = account.open_place(place, flags)?;
            return Ok(DavOpenFile::read(request, file, inode));
        }
        let found = account.look_up(place.clone())?;
        match &found {
            Some(found) if found.inode.kind == Kind::Dir => {
                return Err(FsError::new(libc::EISDIR, "it is a directory"));
            }
            Some(_) if how.create_new => {
                return Err(FsError::new(libc::EEXIST, "there is a file already"));
            }
            None if !how.create => return Err(absent()),
            _ => {}
        }
        let is_there = found.as_ref().is_some_and(|found| found.inode.kind == Kind::File);
        if is_there && !how.truncate {
            let flags = OpenFlags { write: true, append: how.append, ..OpenFlags::default() };
            let (file, inode) = account.open_place(place, flags)?;
            return Ok(DavOpenFile::part(request, file, inode, how.append));
        }
        if is_there {
            // A new file takes its place: for that the user must be allowed to write this one.
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            account.open_place(place.clone(), flags)?;
        }
        if !how.truncate {
            // What a lock, or a part of a file, makes: it is there at once.
            let mut file = NewFile::begin(account, account.dir_of(path)?)?;
            match file.put(place.clone(), true) {
                Err(error) if error.errno == libc::EEXIST && !how.create_new => {}
                put => put?,
            }
            drop(file);
            let flags = OpenFlags { write: true, append: how.append, ..OpenFlags::default() };
            let (file, inode) = account.open_place(place, flags)?;
            return Ok(DavOpenFile::part(request, file, inode, how.append));
        }
        let file = NewFile::begin(account, account.dir_of(path)?)?;
        let replaced = found.filter(|_| is_there);
        DavOpenFile::new(request, (file, place), replaced, (how.create_new, how.size))
    }
}

impl GuardedFileSystem<DavRequest> for DavFiles {
    fn open<'a>(
        &'a self,
        path: &'a DavPath,
        options: OpenOptions,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Box<dyn DavFile>> {
        Box::pin(async move {
            let (path, request) = (path.clone(), request.clone());
            let open = move || Self::open_file(&request, &path, &options);
            let file: Box<dyn DavFile> = Box::new(blocking(open).await?);
            Ok(file)
        })
    }

    fn read_dir<'a>(
        &'a self,
        path: &'a DavPath,
        _meta: ReadDirMeta,
        request: &'a DavRequest,
    ) -> FsFuture<'a, FsStream<Box<dyn DavDirEntry>>> {
        Box::pin(async move {
            let (of, account) = (path.clone(), request.account.clone());
            let found = blocking(move || account.shown_at(&of)).await;
            let found = found.inspect_err(|error| {
                let why = format!("a directory cannot be listed: {error}");
                request.fail(&FsError::because(libc::EIO, why));
            })?;
            let mut path = path.as_bytes().to_vec();
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            let begin = ListingState {
                dir: found.inode.ino,
                ready: VecDeque::new(),
                path: path.into(),
                next: Some(None),
            };
            let request = request.clone();
            let entries = stream::try_unfold((request, begin), |(request, mut state)| async move {
                while state.ready.is_empty()
                    && let Some(after) = state.next.take()
                {
                    let (account, dir) = (request.account.clone(), state.dir);
                    let page = on_thread(move || account.dav_page(dir, after)).await;
                    let page = page.map_err(|error| {
                        request.fail(&error);
                        dav_error(&error)
                    })?;
                    state.ready = page.entries;
                    state.next = page.last.map(Some);
                }
                let entry = state.ready.pop_front().map(|(name, inode)| {
                    let (dir, request) = (state.path.clone(), request.clone());
                    Box::new(DavEntry { name, inode, dir, request }) as Box<dyn DavDirEntry>
                });
                Ok(entry.map(|entry| (entry, (request, state))))
            });
            let entries: FsStream<Box<dyn DavDirEntry>> = Box::pin(entries);
            Ok(entries)
        })
    }

    fn metadata<'a>(
        &'a self,
        path: &'a DavPath,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Box<dyn DavMetaData>> {
        attributes(path, request, Account::shown_at)
    }

    fn symlink_metadata<'a>(
        &'a self,
        path: &'a DavPath,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Box<dyn DavMetaData>> {
        attributes(path, request, Account::at)
    }

    fn create_dir<'a>(&'a self, path: &'a DavPath, request: &'a DavRequest) -> FsFuture<'a, ()> {
        let (of, request) = (path.clone(), request.clone());
        Box::pin(blocking(move || {
            let (account, place) = (&request.account, place_of_entry(&of)?);
            let make = || account.ask(Op::MkDir(place.clone(), DIR_MODE)).map(drop);
            match make() {
                // A file at the destination of a COPY was left for this moment.
                Err(error)
                    if error.errno == libc::EEXIST
                        && request.destination.as_ref().is_some_and(|to| is_same(to, &of))
                        && account.at(&of)?.inode.kind != Kind::Dir =>
                {
                    account.call(|fs, done| fs.unlink(account.caller, place.clone(), done))?;
                    make()
                }
                made => made,
            }
        }))
    }

    fn remove_dir<'a>(&'a self, path: &'a DavPath, request: &'a DavRequest) -> FsFuture<'a, ()> {
        on_path(path, request, |account, path| {
            let place = place_of_entry(path)?;
            account.call(|fs, done| fs.rmdir(account.caller, place, None, done)).map(drop)
        })
    }

    fn remove_file<'a>(&'a self, path: &'a DavPath, request: &'a DavRequest) -> FsFuture<'a, ()> {
        if request.destination.as_ref().is_some_and(|to| is_same(to, path)) {
            return Box::pin(std::future::ready(Ok(())));
        }
        on_path(path, request, |account, path| {
            let place = place_of_entry(path)?;
            account.call(|fs, done| fs.unlink(account.caller, place, done)).map(drop)
        })
    }

    fn rename<'a>(
        &'a self,
        from: &'a DavPath,
        to: &'a DavPath,
        request: &'a DavRequest,
    ) -> FsFuture<'a, ()> {
        let to = to.clone();
        on_path(from, request, move |account, from| {
            let (from, to) = (place_of_entry(from)?, place_of_entry(&to)?);
            let caller = account.caller;
            let rename = || {
                let (from, to) = (from.clone(), to.clone());
                let flags = RenameFlags::default();
                account.call(|fs, done| fs.rename(caller, from, to, flags, done)).map(drop)
            };
            match rename() {
                // A directory does not take the place of a file by itself.
                Err(error) if error.errno == libc::ENOTDIR => {
                    account.call(|fs, done| fs.unlink(caller, to.clone(), done))?;
                    rename()
                }
                renamed => renamed,
            }
        })
    }

    fn copy<'a>(
        &'a self,
        from: &'a DavPath,
        to: &'a DavPath,
        request: &'a DavRequest,
    ) -> FsFuture<'a, ()> {
        let to = to.clone();
        on_path(from, request, move |account, from| account.copy_file(from, &to))
    }

    fn set_accessed<'a>(
        &'a self,
        path: &'a DavPath,
        tm: SystemTime,
        request: &DavRequest,
    ) -> FsFuture<'a, ()> {
        let set = SetAttr { atime: Some(SetTime::At(nanos(tm))), ..SetAttr::default() };
        on_path(path, request, move |account, path| account.set_time(path, set))
    }

    fn set_modified<'a>(
        &'a self,
        path: &'a DavPath,
        tm: SystemTime,
        request: &'a DavRequest,
    ) -> FsFuture<'a, ()> {
        let set = SetAttr { mtime: Some(SetTime::At(nanos(tm))), ..SetAttr::default() };
        on_path(path, request, move |account, path| account.set_time(path, set))
    }

    fn have_props<'a>(
        &'a self,
        path: &'a DavPath,
        request: &'a DavRequest,
    ) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        let path = path.as_bytes().strip_suffix(b"/").unwrap_or(path.as_bytes());
        Box::pin(std::future::ready(path != &request.plain_entry.lock()[..]))
    }

    fn patch_props<'a>(
        &'a self,
        path: &'a DavPath,
        patch: Vec<(bool, DavProp)>,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Vec<(StatusCode, DavProp)>> {
        on_path(path, request, move |account, path| {
            // Two clients that set properties of one file wait for each other.
            let _lock = account.lock_key("", &String::from_utf8_lossy(path.as_bytes()));
            let found = account.shown_at(path)?;
            let mut properties = account.properties(&found)?;
            let mut told = Vec::with_capacity(patch.len());
            for (is_set, property) in patch {
                let named = DavProp { xml: None, ..property.clone() };
                match is_set {
                    true => properties.set(property)?,
                    false => properties.remove(&property),
                }
                told.push((StatusCode::OK, named));
            }
            let name = PROPERTIES_XATTR.into();
            let op = match properties.encode()? {
                Some(value) => Op::SetXattr(found.at, name, value, XattrFlags::default()),
                None => Op::RemoveXattr(found.at, name),
            };
            match account.ask(op) {
                Err(error) if error.errno != libc::ENODATA => Err(error),
                _ => Ok(told),
            }
        })
    }

    fn get_props<'a>(
        &'a self,
        path: &'a DavPath,
        do_content: bool,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Vec<DavProp>> {
        on_path(path, request, move |account, path| {
            Ok(account.properties(&account.shown_at(path)?)?.all(do_content))
        })
    }

    fn get_prop<'a>(
        &'a self,
        path: &'a DavPath,
        prop: DavProp,
        request: &'a DavRequest,
    ) -> FsFuture<'a, Vec<u8>> {
        on_path(path, request, move |account, path| {
            account.properties(&account.shown_at(path)?)?.get(&prop).ok_or_else(absent)
        })
    }

    fn get_quota<'a>(&'a self, request: &'a DavRequest) -> FsFuture<'a, (u64, Option<u64>)> {
        let account = request.account.clone();
        Box::pin(blocking(move || {
            let used = account.call(|fs, done| fs.usage(done))?.bytes;
            let free = account.fs.store().usage().unwrap_or_default().free;
            Ok((used, free.map(|free| used.saturating_add(free))))
        }))
    }
}

/// Does something with what is at a path, on a thread that may wait.
fn on_path<'a, T: Send + 'static>(
    path: &DavPath,
    request: &DavRequest,
    act: impl FnOnce(&Arc<Account>, &DavPath) -> FsResult<T> + Send + 'static,
) -> FsFuture<'a, T> {
    let (path, account) = (path.clone(), request.account.clone());
    Box::pin(blocking(move || act(&account, &path)))
}

/// Attributes of what is at a path.
fn attributes<'a>(
    path: &DavPath,
    request: &DavRequest,
    find: fn(&Account, &DavPath) -> FsResult<FoundEntry>,
) -> FsFuture<'a, Box<dyn DavMetaData>> {
    on_path(path, request, move |account, path| {
        let attributes: Box<dyn DavMetaData> =
            Box::new(DavAttributes::of(&find(account, path)?.inode));
        Ok(attributes)
    })
}

fn nanos(time: SystemTime) -> Nanos {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Nanos::try_from(since.as_nanos()).unwrap_or(Nanos::MAX)
}
