//! One arm for each operation of the kernel.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use kestrel_client::fs::{
    Content, CopyRange, Creation, DirHandle, Done, Fallocate, FileHandle, Fs, Listed, NewNode, Opened, Seek,
    Sink,
};
use kestrel_fuse::{self as fuse, Dirents, FileKind, FileSystem, Operation, Reply, Request};
use kestrel_types::error::FsResult;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{NAME_MAX, Name};
use kestrel_types::request::{RenameFlags, Usage, XattrFlags};

use crate::convert;
use crate::handles::Handles;
use crate::patience::{Patience, is_dying};

/// Block size that `statfs` counts in.
const STATFS_BLOCK: u32 = 4096;

/// Inodes that `statfs` reports free; numbers have 64 bits, so it is the disk that ends first.
const INODES_FREE: u64 = 1 << 40;

/// A file system behind a mount.
pub struct Mounted {
    fs: Arc<Fs>,
    files: Arc<Handles<FileHandle>>,
    dirs: Arc<Handles<DirHandle>>,
    attr_ttl: Duration,
    entry_ttl: Duration,
    /// Looks after callers that may have to wait long: with a block store across a network.
    patience: Option<Arc<Patience>>,
}

impl Mounted {
    pub fn new(fs: Arc<Fs>, attr_ttl: Duration, entry_ttl: Duration) -> Self {
        let patience = fs.store().is_remote().then(Patience::start);
        Self { fs, files: Arc::default(), dirs: Arc::default(), attr_ttl, entry_ttl, patience }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(patience) = &self.patience {
            patience.stop();
        }
    }
}

impl FileSystem for Mounted {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (caller, node) = (convert::caller(&request), request.nodeid);
        let fs = &self.fs;
        match request.op {
            Operation::Lookup { name } => self.named(name, reply, |name, reply| {
                fs.lookup(caller, node, name, self.entry(reply));
            }),
            Operation::Forget(forgets) => forgets.for_each(|(ino, count)| fs.forget(ino, count)),
            Operation::Getattr { .. } => fs.getattr(caller, node, self.attr(reply)),
            Operation::Setattr(set) => {
                let handle = set.fh.and_then(|fh| self.files.get(fh));
                let through = handle.is_some_and(|handle| handle.writable());
                let ttl = self.attr_ttl;
                let done = self.patient(request.pid, reply, move |reply, inode: Inode| {
                    reply.attr(&convert::attr(&inode), ttl);
                });
                fs.setattr(caller, node, convert::setattr(&set, through), done);
            }
            Operation::Statx { .. } => fs.getattr(
                caller,
                node,
                Box::new(|inode| match inode {
                    Ok(inode) => reply.statx(&convert::statx(&inode)),
                    Err(error) => reply.error(error.errno),
                }),
            ),
            Operation::Access { mask } => fs.access(caller, node, mask, empty(reply)),
            Operation::Readlink => fs.readlink(caller, node, bytes(reply)),
            Operation::Symlink { name, target } => self.named(name, reply, |name, reply| {
                fs.symlink(caller, node, name, target.as_bytes(), self.entry(reply));
            }),
            Operation::Mknod { name, mode, rdev, .. } => self.named(name, reply, |name, reply| {
                let Some(kind) = Kind::from_mode(mode) else { return reply.error(libc::EINVAL) };
                let new = NewNode { kind, mode: permissions(mode), rdev };
                fs.mknod(caller, node, name, new, self.entry(reply));
            }),
            Operation::Mkdir { name, mode, .. } => self.named(name, reply, |name, reply| {
                fs.mkdir(caller, node, name, permissions(mode), self.entry(reply));
            }),
            Operation::Unlink { name } => self.named(name, reply, |name, reply| {
                fs.unlink(caller, node, name, empty(reply));
            }),
            Operation::Rmdir { name } => self.named(name, reply, |name, reply| {
                fs.rmdir(caller, node, name, empty(reply));
            }),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let Some(flags) = rename_flags(flags) else { return reply.error(libc::EINVAL) };
                match (Name::new(name.as_bytes()), Name::new(new_name.as_bytes())) {
                    (Ok(name), Ok(new_name)) => {
                        fs.rename(caller, (node, name), (new_parent, new_name), flags, empty(reply));
                    }
                    (Err(error), _) | (_, Err(error)) => reply.error(error.errno),
                }
            }
            Operation::Link { target, new_name } => self.named(new_name, reply, |name, reply| {
                fs.link(caller, target, node, name, self.entry(reply));
            }),
            Operation::Create { name, mode, flags, kill_suidgid, .. } => {
                self.named(name, reply, |name, reply| {
                    fs.create(caller, node, name, creation(mode, flags, kill_suidgid), self.created(reply));
                })
            }
            Operation::Tmpfile { mode, flags, .. } => {
                fs.tmpfile(caller, node, creation(mode, flags, false), self.created(reply));
            }
            Operation::Open { flags, kill_suidgid } => {
                fs.open(caller, node, convert::open_flags(flags, kill_suidgid), self.opened(reply));
            }
            Operation::Read { fh, offset, size, .. } => self.file(fh, reply, |file, reply| {
                let answer = |reply: Reply, content: Content| reply.data_vectored(&content.pieces());
                fs.read_content(&file, offset, size as usize, self.patient(request.pid, reply, answer));
            }),
            Operation::Write(write) => self.file(write.fh, reply, |file, reply| {
                let len = write.data.len();
                let gone = || is_dying(request.pid);
                let write = || fs.write_unless(&file, write.offset, write.data, write.kill_suidgid, &gone);
                // A writer that is faster than the store waits; it must not keep a thread from serving others meanwhile.
                let written = if fs.has_room(len) { write() } else { fuse::block_in_place(write) };
                match written {
                    Ok(()) => reply.written(len as u32),
                    Err(error) => reply.error(error.errno),
                }
            }),
            Operation::Flush { fh, .. } => self.file(fh, reply, |file, reply| {
                fs.flush(&file, self.patient(request.pid, reply, |reply, ()| reply.empty()));
            }),
            Operation::Fsync { fh, .. } => self.file(fh, reply, |file, reply| {
                fs.fsync(&file, self.patient(request.pid, reply, |reply, ()| reply.empty()));
            }),
            Operation::Fsyncdir { .. } | Operation::Syncfs => {
                fs.sync(self.patient(request.pid, reply, |reply, ()| reply.empty()));
            }
            Operation::Release { fh, .. } => match self.files.remove(fh) {
                Some(file) => fs.release(file, empty(reply)),
                None => reply.error(libc::EBADF),
            },
            Operation::Fallocate { fh, offset, length, mode } => {
                self.file(fh, reply, |file, reply| match convert::hole(mode) {
                    Some((hole, keep_size)) => {
                        let kill_suid = caller.uid != 0;
                        let what = Fallocate { hole, offset, len: length, keep_size, kill_suid };
                        let done = self.patient(request.pid, reply, |reply, ()| reply.empty());
                        fs.fallocate(&file, what, done)
                    }
                    None => reply.error(libc::EOPNOTSUPP),
                })
            }
            Operation::Lseek { fh, offset, whence } => self.file(fh, reply, |file, reply| {
                let seek = match whence as i32 {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return reply.error(libc::EINVAL),
                };
                fs.seek(&file, offset, seek, self.patient(request.pid, reply, Reply::lseek));
            }),
            Operation::CopyFileRange { fh_in, offset_in, fh_out, offset_out, length, .. } => {
                match (self.files.get(fh_in), self.files.get(fh_out)) {
                    (Some(from), Some(to)) => {
                        let copy = CopyRange {
                            from,
                            from_offset: offset_in,
                            to,
                            to_offset: offset_out,
                            len: length,
                        };
                        fs.copy_range(copy, self.patient(request.pid, reply, Reply::copied));
                    }
                    _ => reply.error(libc::EBADF),
                }
            }
            Operation::Opendir { .. } => {
                let dirs = self.dirs.clone();
                fs.opendir(
                    caller,
                    node,
                    with(reply, move |reply, handle: Arc<DirHandle>| {
                        let fh = dirs.insert(handle);
                        reply.opened(fuse::Opened { fh, flags: fuse::OpenFlags::default() });
                    }),
                );
            }
            Operation::Readdir { fh, offset, size } => match self.dirs.get(fh) {
                Some(dir) => {
                    let buffer = Buffer(Dirents::plain(size));
                    fs.readdir(
                        dir,
                        offset,
                        buffer,
                        with(reply, |reply, buffer: Buffer| reply.dirents(buffer.0)),
                    );
                }
                None => reply.error(libc::EBADF),
            },
            Operation::Releasedir { fh, .. } => {
                self.dirs.remove(fh);
                reply.empty();
            }
            Operation::Getxattr { name, size } => {
                fs.getxattr(
                    caller,
                    node,
                    name.as_bytes(),
                    with(reply, move |reply, value: Box<[u8]>| reply.xattr(size, &value)),
                );
            }
            Operation::Listxattr { size } => {
                fs.listxattr(
                    caller,
                    node,
                    with(reply, move |reply, names: Box<[u8]>| reply.xattr(size, &names)),
                );
            }
            Operation::Setxattr { name, value, flags, .. } => {
                let flags = XattrFlags {
                    create: flags as i32 & libc::XATTR_CREATE != 0,
                    replace: flags as i32 & libc::XATTR_REPLACE != 0,
                };
                fs.setxattr(caller, node, name.as_bytes(), value, flags, empty(reply));
            }
            Operation::Removexattr { name } => fs.removexattr(caller, node, name.as_bytes(), empty(reply)),
            Operation::Statfs => self.statfs(reply),
            Operation::Ioctl(_) => reply.error(libc::ENOTTY),
            Operation::Interrupt { .. } => {} // every operation has a deadline of its own
            Operation::Destroy => reply.empty(),
            // Never asked for: the kernel keeps locks, lists without attributes, and polls regular files itself.
            _ => reply.error(libc::ENOSYS),
        }
    }
}

impl Mounted {
    fn named(&self, name: &OsStr, reply: Reply, act: impl FnOnce(Name, Reply)) {
        match Name::new(name.as_bytes()) {
            Ok(name) => act(name, reply),
            Err(error) => reply.error(error.errno),
        }
    }

    /// Answers as [`with`] does, for what may have to wait for the block store: a caller that is killed meanwhile is let go.
    fn patient<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        let Some(patience) = &self.patience else { return with(reply, answer) };
        let ticket = patience.watch(pid, reply);
        Box::new(move |result: FsResult<T>| {
            let Some(reply) = ticket.take() else { return };
            match result {
                Ok(value) => answer(reply, value),
                Err(error) => reply.error(error.errno),
            }
        })
    }

    fn file(&self, fh: u64, reply: Reply, act: impl FnOnce(Arc<FileHandle>, Reply)) {
        match self.files.get(fh) {
            Some(file) => act(file, reply),
            None => reply.error(libc::EBADF),
        }
    }

    fn entry(&self, reply: Reply) -> Done<Inode> {
        let (attr_ttl, entry_ttl) = (self.attr_ttl, self.entry_ttl);
        with(reply, move |reply, inode| reply.entry(&convert::entry(&inode, attr_ttl, entry_ttl)))
    }

    fn attr(&self, reply: Reply) -> Done<Inode> {
        let ttl = self.attr_ttl;
        with(reply, move |reply, inode| reply.attr(&convert::attr(&inode), ttl))
    }

    fn created(&self, reply: Reply) -> Done<Opened> {
        let (files, attr_ttl, entry_ttl) = (self.files.clone(), self.attr_ttl, self.entry_ttl);
        with(reply, move |reply, opened: Opened| {
            let entry = convert::entry(&opened.inode, attr_ttl, entry_ttl);
            reply.created(&entry, give_number(&files, opened));
        })
    }

    fn opened(&self, reply: Reply) -> Done<Opened> {
        let files = self.files.clone();
        with(reply, move |reply, opened| reply.opened(give_number(&files, opened)))
    }

    fn statfs(&self, reply: Reply) {
        let store = self.fs.store().clone();
        self.fs.usage(with(reply, move |reply, used: Usage| {
            let room = store.usage().unwrap_or_default();
            let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
            let free = blocks(room.free.unwrap_or(u64::MAX >> 1));
            let total = room.capacity.map_or(free + blocks(used.bytes), blocks);
            let inodes = used.files + used.dirs;
            reply.statfs(&fuse::Statfs {
                blocks: total,
                bfree: free,
                bavail: free,
                files: inodes + INODES_FREE,
                ffree: INODES_FREE,
                bsize: STATFS_BLOCK,
                frsize: STATFS_BLOCK,
                namelen: NAME_MAX as u32,
            });
        }));
    }
}

/// Numbers a handle. A file opened only for reading has nothing to flush when it is closed.
fn give_number(files: &Handles<FileHandle>, opened: Opened) -> fuse::Opened {
    let mut flags = fuse::OpenFlags::default();
    if opened.keep_cache {
        flags |= fuse::OpenFlags::KEEP_CACHE;
    }
    if !opened.handle.writable() {
        flags |= fuse::OpenFlags::NOFLUSH;
    }
    fuse::Opened { fh: files.insert(opened.handle), flags }
}

/// A listing on its way to the kernel.
struct Buffer(Dirents);

impl Sink for Buffer {
    fn entry(&mut self, entry: Listed<'_>) -> ControlFlow<()> {
        let kind = FileKind::from_mode(entry.kind.mode_bits());
        match self.0.push(OsStr::from_bytes(entry.name), entry.ino, kind, entry.next) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// Answers with a value, or with the error's errno.
fn with<T: 'static>(reply: Reply, answer: impl FnOnce(Reply, T) + Send + 'static) -> Done<T> {
    Box::new(move |result: FsResult<T>| match result {
        Ok(value) => answer(reply, value),
        Err(error) => reply.error(error.errno),
    })
}

fn empty(reply: Reply) -> Done<()> {
    with(reply, |reply, ()| reply.empty())
}

fn bytes<T: AsRef<[u8]> + 'static>(reply: Reply) -> Done<T> {
    with(reply, |reply, bytes: T| reply.data(bytes.as_ref()))
}

fn creation(mode: u32, flags: u32, kill_suid: bool) -> Creation {
    Creation {
        mode: permissions(mode),
        flags: convert::open_flags(flags, kill_suid),
        exclusive: flags as i32 & libc::O_EXCL != 0,
    }
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn rename_flags(flags: u32) -> Option<RenameFlags> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
    (flags & !known == 0).then_some(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
    })
}
