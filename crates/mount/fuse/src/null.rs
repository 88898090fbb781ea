//! The null file system: what FUSE itself costs.
//!
//! | file | |
//! | --- | --- |
//! | `nodes` | files and directories of the null file system |
//!
//! It does as little as a file system can: names live in hash maps, files are a size and nothing
//! more, reads return one fill byte, writes are forgotten. Everything around it is the real thing:
//! the same transport, parser, replies and negotiated features as the mount, with nothing cached by
//! the kernel. So its rates are the limit for any file system on this layer, against which
//! benchmarks compare.
//!
//! Creating, looking up, opening, reading, writing, renaming (also with RENAME_NOREPLACE and
//! RENAME_EXCHANGE), hard links, unlinking and listing work as POSIX has them; owners, modes and
//! times are made up, symbolic links, device nodes and extended attributes are refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::abi::ROOT_ID;
use crate::attr::{Attr, Entry, OpenFlags, Opened, Statfs, Timestamp};
use crate::config::Config;
use crate::dirents::{Dirents, FileKind};
use crate::error::Result;
use crate::mount::{Mount, MountOptions};
use crate::reply::Reply;
use crate::request::{Forgets, Operation, Request, SetTime, Setattr};
use crate::session::{FileSystem, Session};
use crate::transport::End;

mod nodes;

use nodes::{NullInode, NullInodes};

/// How the null file system behaves.
#[derive(Clone, Debug, Default)]
pub struct NullOptions {
    /// Size that new files have at once, without being written.
    pub file_bytes: u64,
    /// What reads return.
    pub fill: u8,
    /// No page cache: every read and write is a request.
    pub direct_io: bool,
    /// Take part in every close. Otherwise the kernel learns at the first one that there is nothing
    /// to flush and spares the request from then on, which no file system with delayed writes can
    /// allow itself.
    pub flush: bool,
    /// The kernel keeps pages from one open to the next, so that a file read again costs what it
    /// would with pass-through.
    pub keep_pages: bool,
}

/// Mounts the null file system on `dir` and serves it until it is unmounted. `ready` is called once
/// it works.
pub fn run(
    dir: &Path,
    options: NullOptions,
    mount: &MountOptions,
    config: &Config,
    ready: impl FnOnce(&Session),
) -> Result<End> {
    let session = start(dir, options, mount, config)?;
    ready(&session);
    session.join()
}

/// As [`run`], in the background.
pub fn start(
    dir: &Path,
    options: NullOptions,
    mount: &MountOptions,
    config: &Config,
) -> Result<Session> {
    Session::start(Mount::new(dir, mount)?, NullFs::new(options), config)
}

/// The file system.
pub struct NullFs {
    nodes: NullInodes,
    options: NullOptions,
    /// What reads return, as much as one READ may request.
    content: Box<[u8]>,
    /// Directories being listed: what they held when they were read from the start.
    listings: Mutex<HashMap<u64, Vec<Listed>>>,
    next_listing: AtomicU64,
}

/// One name of a listing.
struct Listed {
    name: Box<[u8]>,
    node: u64,
    directory: bool,
}

/// No READ is larger: page limits of the protocol allow at most this.
const READ_BYTES_MAX: usize = 16 << 20;

/// Modes of everything.
const DIR_MODE: u32 = libc::S_IFDIR | 0o777;
const FILE_MODE: u32 = libc::S_IFREG | 0o666;

impl NullFs {
    /// An empty one.
    pub fn new(options: NullOptions) -> NullFs {
        let content = vec![options.fill; READ_BYTES_MAX].into_boxed_slice();
        NullFs {
            nodes: NullInodes::new(),
            options,
            content,
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
        }
    }

    fn attr(&self, id: u64, node: &NullInode) -> Attr {
        let size = node.size.load(Ordering::Relaxed);
        let directory = node.is_directory();
        let time = Timestamp { sec: 1_600_000_000, nsec: 0 };
        Attr {
            ino: id,
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            mode: if directory { DIR_MODE } else { FILE_MODE },
            nlink: if directory { 2 } else { node.links.load(Ordering::Relaxed) },
            blksize: 4096,
            ..Attr::default()
        }
    }

    /// The answer that counts as a lookup.
    fn entry(&self, id: u64, node: &NullInode) -> Entry {
        let nodeid = id;
        Entry {
            nodeid,
            generation: node.generation(),
            attr: self.attr(id, node),
            ..Entry::default()
        }
    }

    fn opened(&self) -> Opened {
        let flags = if self.options.direct_io {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else if self.options.keep_pages {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::default()
        };
        Opened { fh: 0, flags, ..Opened::default() }
    }

    fn lookup(&self, parent: u64, name: &OsStr) -> Answer<Entry> {
        let children = self.nodes.get(parent)?.children.lock();
        let id =
            *children.as_ref().ok_or(libc::ENOTDIR)?.get(name.as_bytes()).ok_or(libc::ENOENT)?;
        // The parent's lock keeps the name, and so the node, until the reference is counted.
        let node = self.nodes.get(id)?;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        Ok(self.entry(id, node))
    }

    /// CREATE, MKNOD, MKDIR. With `may_exist` an existing file is as good.
    fn create(&self, parent: u64, name: &OsStr, directory: bool, may_exist: bool) -> Answer<Entry> {
        let mut children = self.nodes.get(parent)?.live_children()?;
        match children.as_mut().ok_or(libc::ENOTDIR)?.entry(name.as_bytes().into()) {
            Slot::Occupied(slot) if may_exist => {
                let node = self.nodes.get(*slot.get())?;
                node.lookups.fetch_add(1, Ordering::Relaxed);
                Ok(self.entry(*slot.get(), node))
            }
            Slot::Occupied(_) => Err(libc::EEXIST),
            Slot::Vacant(slot) => {
                let (id, node) = self.nodes.create(directory, self.options.file_bytes)?;
                slot.insert(id);
                Ok(self.entry(id, node))
            }
        }
    }

    fn remove(&self, parent: u64, name: &OsStr, directory: bool) -> Answer<()> {
        let mut children = self.nodes.get(parent)?.children.lock();
        let children = children.as_mut().ok_or(libc::ENOTDIR)?;
        let id = *children.get(name.as_bytes()).ok_or(libc::ENOENT)?;
        let node = self.nodes.get(id)?;
        node.check_replaceable(directory)?;
        children.remove(name.as_bytes());
        self.nodes.unlink(id);
        Ok(())
    }

    fn link(&self, target: u64, parent: u64, name: &OsStr) -> Answer<Entry> {
        let node = self.nodes.get(target)?;
        if node.is_directory() {
            return Err(libc::EPERM);
        }
        let mut children = self.nodes.get(parent)?.live_children()?;
        match children.as_mut().ok_or(libc::ENOTDIR)?.entry(name.as_bytes().into()) {
            Slot::Occupied(_) => Err(libc::EEXIST),
            Slot::Vacant(slot) => {
                node.links.fetch_add(1, Ordering::Relaxed);
                node.lookups.fetch_add(1, Ordering::Relaxed);
                slot.insert(target);
                Ok(self.entry(target, node))
            }
        }
    }

    /// The kernel holds the locks of both directories and has ruled out loops.
    fn rename(&self, from: u64, name: &OsStr, to: u64, new_name: &OsStr, flags: u32) -> Answer<()> {
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(libc::EINVAL);
        }
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let (source, target) = (self.nodes.get(from)?, self.nodes.get(to)?);
        // In the order of ids, as every caller does that takes two.
        let (mut source, mut target) = if from == to {
            (source.children.lock(), None)
        } else if from < to {
            let source = source.children.lock();
            (source, Some(target.live_children()?))
        } else {
            let target = target.live_children()?;
            (source.children.lock(), Some(target))
        };
        let source = source.as_mut().ok_or(libc::ENOTDIR)?;
        let target = match &mut target {
            Some(target) => Some(target.as_mut().ok_or(libc::ENOTDIR)?),
            None => None,
        };
        let moved = *source.get(name).ok_or(libc::ENOENT)?;
        let replaced = target.as_deref().unwrap_or(source).get(new_name).copied();
        match replaced {
            Some(_) if flags & libc::RENAME_NOREPLACE != 0 => return Err(libc::EEXIST),
            None if flags & libc::RENAME_EXCHANGE != 0 => return Err(libc::ENOENT),
            // Two names of one file: nothing happens, by POSIX.
            Some(other) if other == moved => return Ok(()),
            Some(other) if flags & libc::RENAME_EXCHANGE != 0 => {
                source.insert(name.into(), other);
            }
            Some(other) => {
                self.nodes.get(other)?.check_replaceable(self.nodes.get(moved)?.is_directory())?;
                source.remove(name);
                self.nodes.unlink(other);
            }
            None => {
                source.remove(name);
            }
        }
        target.unwrap_or(source).insert(new_name.into(), moved);
        Ok(())
    }

    fn setattr(&self, id: u64, change: &Setattr) -> Answer<Attr> {
        let node = self.nodes.get(id)?;
        if let Some(size) = change.size {
            node.size.store(size, Ordering::Relaxed);
        }
        let mut attr = self.attr(id, node);
        // Nothing but the size is kept; tools that check expect to see what they set.
        attr.mode = change.mode.map_or(attr.mode, |mode| attr.mode & libc::S_IFMT | mode & 0o7777);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        let time = |old, new| if let Some(SetTime::At(time)) = new { time } else { old };
        attr.atime = time(attr.atime, change.atime);
        attr.mtime = time(attr.mtime, change.mtime);
        Ok(attr)
    }

    fn open(&self, id: u64, flags: u32) -> Answer<Opened> {
        if flags as i32 & libc::O_TRUNC != 0 {
            self.nodes.get(id)?.size.store(0, Ordering::Relaxed);
        }
        Ok(self.opened())
    }

    fn read(&self, id: u64, offset: u64, size: u32) -> Answer<&[u8]> {
        let end = self.nodes.get(id)?.size.load(Ordering::Relaxed);
        let bytes = end.saturating_sub(offset).min(u64::from(size)).min(READ_BYTES_MAX as u64);
        Ok(&self.content[..bytes as usize])
    }

    fn grow(&self, id: u64, end: u64) -> Answer<()> {
        self.nodes.get(id)?.size.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    fn readdir(&self, id: u64, listing: u64, offset: u64, mut dirents: Dirents) -> Answer<Dirents> {
        let mut listings = self.listings.lock();
        let listed = listings.get_mut(&listing).ok_or(libc::EBADF)?;
        if offset == 0 {
            let children = self.nodes.get(id)?.children.lock();
            let children = children.as_ref().ok_or(libc::ENOTDIR)?;
            listed.clear();
            let directory = |node| self.nodes.get(node).is_ok_and(NullInode::is_directory);
            listed.extend(children.iter().map(|(name, node)| Listed {
                name: name.clone(),
                node: *node,
                directory: directory(*node),
            }));
        }
        let dots = [(".", id), ("..", ROOT_ID)];
        let all = dots.iter().map(|(name, node)| (OsStr::new(*name), *node, true)).chain(
            listed
                .iter()
                .map(|listed| (OsStr::from_bytes(&listed.name), listed.node, listed.directory)),
        );
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, node, directory)) in all.enumerate().skip(skip) {
            let kind = if directory { FileKind::Directory } else { FileKind::Regular };
            let cookie = at as u64 + 1;
            let fits = if dirents.is_plus() {
                // Listed only: the kernel looks up what it needs.
                let mode = if directory { DIR_MODE } else { FILE_MODE };
                let attr = Attr { ino: node, mode, ..Attr::default() };
                dirents.push_plus(name, &Entry { attr, ..Entry::default() }, cookie)
            } else {
                dirents.push(name, node, kind, cookie)
            };
            if !fits {
                break;
            }
        }
        Ok(dirents)
    }

    fn opendir(&self) -> Opened {
        let fh = self.next_listing.fetch_add(1, Ordering::Relaxed);
        self.listings.lock().insert(fh, Vec::new());
        Opened { fh, ..Opened::default() }
    }

    fn forget(&self, forgets: Forgets<'_>) {
        for (id, count) in forgets {
            self.nodes.forget(id, count);
        }
    }
}

/// Result with an errno.
type Answer<T> = std::result::Result<T, i32>;

impl FileSystem for NullFs {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        /// Answers success with a method of the reply, or the error.
        macro_rules! answer {
            ($answer:expr, |$value:pat_param| $call:expr) => {
                match $answer {
                    Ok($value) => $call,
                    Err(errno) => reply.error(errno),
                }
            };
        }
        let id = request.nodeid;
        match request.op {
            Operation::Lookup { name } => {
                answer!(self.lookup(id, name), |entry| reply.entry(&entry))
            }
            Operation::Forget(forgets) => self.forget(forgets),
            Operation::Getattr { .. } => {
                answer!(self.nodes.get(id), |node| {
                    reply.attr(&self.attr(id, node), Duration::ZERO)
                })
            }
            Operation::Setattr(change) => {
                answer!(self.setattr(id, &change), |attr| reply.attr(&attr, Duration::ZERO))
            }
            Operation::Mknod { name, mode, .. } if mode & libc::S_IFMT == libc::S_IFREG => {
                answer!(self.create(id, name, false, false), |entry| reply.entry(&entry))
            }
            Operation::Mkdir { name, .. } => {
                answer!(self.create(id, name, true, false), |entry| reply.entry(&entry))
            }
            Operation::Create { name, flags, .. } => {
                let exclusive = flags as i32 & libc::O_EXCL != 0;
                let opened = self.create(id, name, false, !exclusive).and_then(|mut entry| {
                    let opened = self.open(entry.nodeid, flags & !(libc::O_CREAT as u32))?;
                    if flags as i32 & libc::O_TRUNC != 0 {
                        entry.attr.size = 0;
                    }
                    Ok((entry, opened))
                });
                answer!(opened, |(entry, opened)| reply.created(&entry, opened))
            }
            Operation::Unlink { name } => answer!(self.remove(id, name, false), |()| reply.empty()),
            Operation::Rmdir { name } => answer!(self.remove(id, name, true), |()| reply.empty()),
            Operation::Rename { name, new_parent, new_name, flags } => {
                answer!(self.rename(id, name, new_parent, new_name, flags), |()| reply.empty())
            }
            Operation::Link { target, new_name } => {
                answer!(self.link(target, id, new_name), |entry| reply.entry(&entry))
            }
            Operation::Open { flags, .. } => {
                answer!(self.open(id, flags), |opened| reply.opened(opened))
            }
            Operation::Read { offset, size, .. } => {
                answer!(self.read(id, offset, size), |data| reply.data(data))
            }
            Operation::Write(write) => {
                let end = write.offset.saturating_add(write.data.len() as u64);
                answer!(self.grow(id, end), |()| reply.written(write.data.len() as u32))
            }
            Operation::Fallocate { offset, length, mode, .. } => match mode as i32 {
                0 => answer!(self.grow(id, offset.saturating_add(length)), |()| reply.empty()),
                libc::FALLOC_FL_KEEP_SIZE => reply.empty(),
                _ => reply.error(libc::EOPNOTSUPP),
            },
            Operation::Opendir { .. } => reply.opened(self.opendir()),
            Operation::Readdir { fh, offset, size } => {
                answer!(self.readdir(id, fh, offset, Dirents::plain(size)), |dirents| reply
                    .dirents(dirents))
            }
            Operation::Readdirplus { fh, offset, size } => {
                answer!(self.readdir(id, fh, offset, Dirents::plus(size)), |dirents| reply
                    .dirents(dirents))
            }
            Operation::Releasedir { fh, .. } => {
                self.listings.lock().remove(&fh);
                reply.empty();
            }
            Operation::Flush { .. } if !self.options.flush => reply.error(libc::ENOSYS),
            Operation::Release { .. }
            | Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Fsyncdir { .. }
            | Operation::Access { .. } => reply.empty(),
            Operation::Statfs => reply.statfs(&Statfs {
                blocks: 1 << 30,
                bfree: 1 << 30,
                bavail: 1 << 30,
                files: 1 << 40,
                ffree: 1 << 40,
                bsize: 4096,
                frsize: 4096,
                namelen: 255,
            }),
            Operation::Interrupt { .. } => {}
            Operation::Symlink { .. } | Operation::Mknod { .. } | Operation::Tmpfile { .. } => {
                reply.error(libc::EOPNOTSUPP)
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests;
