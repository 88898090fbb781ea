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
use kestrel_fuse::{
    self as fuse, Dirents, FileKind, FileSystem, Negotiated, Notifier, Operation, Reply, Request,
};
use kestrel_types::error::FsResult;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{NAME_MAX, Name};
use kestrel_types::request::{RenameFlags, Usage, XattrFlags};

use crate::convert;
use crate::handles::Handles;
use crate::locking::Locking;
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
    /// Looks after callers that may have to wait long: with a block store or metadata across a network.
    patience: Option<Arc<Patience>>,
    /// All callers may, because the metadata is across a network.
    all_wait: bool,
    /// Locks that other clients see, if the volume has such.
    locking: Option<Arc<Locking>>,
}

impl Mounted {
    pub fn new(fs: Arc<Fs>, attr_ttl: Duration, entry_ttl: Duration) -> Self {
        let all_wait = fs.is_remote();
        let locking = fs.has_locks().then(Arc::<Locking>::default);
        let patience = (all_wait || fs.store().is_remote()).then(Patience::start);
        Self {
            fs,
            files: Arc::default(),
            dirs: Arc::default(),
            attr_ttl,
            entry_ttl,
            patience,
            all_wait,
            locking,
        }
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
    fn init(&self, _: &Negotiated, notifier: &Notifier) -> Result<(), i32> {
        if let Some(locking) = &self.locking {
            locking.start(&self.fs, notifier.clone());
        }
        Ok(())
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (caller, node, pid) = (convert::caller(&request), request.nodeid, request.pid);
        let fs = &self.fs;
        match request.op {
            Operation::Lookup { name } => self.named(name, reply, |name, reply| {
                fs.lookup(caller, node, name, self.entry(pid, reply));
            }),
            Operation::Forget(forgets) => forgets.for_each(|(ino, count)| fs.forget(ino, count)),
            Operation::Getattr { .. } => fs.getattr(caller, node, self.attr(pid, reply)),
            Operation::Setattr(set) => {
                let handle = set.fh.and_then(|fh| self.files.get(fh));
                let through = handle.is_some_and(|handle| handle.writable());
                let ttl = self.attr_ttl;
                let done = self.patient(pid, reply, move |reply, inode: Inode| {
                    reply.attr(&convert::attr(&inode), ttl);
                });
                fs.setattr(caller, node, convert::setattr(&set, through), done);
            }
            Operation::Statx { .. } => {
                let done = self.asked(pid, reply, |reply, inode: Inode| reply.statx(&convert::statx(&inode)));
                fs.getattr(caller, node, done);
            }
            Operation::Access { mask } => fs.access(caller, node, mask, self.empty(pid, reply)),
            Operation::Readlink => fs.readlink(caller, node, self.bytes(pid, reply)),
            Operation::Symlink { name, target } => self.named(name, reply, |name, reply| {
                fs.symlink(caller, node, name, target.as_bytes(), self.entry(pid, reply));
            }),
            Operation::Mknod { name, mode, rdev, .. } => self.named(name, reply, |name, reply| {
                let Some(kind) = Kind::from_mode(mode) else { return reply.error(libc::EINVAL) };
                let new = NewNode { kind, mode: permissions(mode), rdev };
                fs.mknod(caller, node, name, new, self.entry(pid, reply));
            }),
            Operation::Mkdir { name, mode, .. } => self.named(name, reply, |name, reply| {
                fs.mkdir(caller, node, name, permissions(mode), self.entry(pid, reply));
            }),
            Operation::Unlink { name } => self.named(name, reply, |name, reply| {
                fs.unlink(caller, node, name, self.empty(pid, reply));
            }),
            Operation::Rmdir { name } => self.named(name, reply, |name, reply| {
                fs.rmdir(caller, node, name, self.empty(pid, reply));
            }),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let Some(flags) = rename_flags(flags) else { return reply.error(libc::EINVAL) };
                match (Name::new(name.as_bytes()), Name::new(new_name.as_bytes())) {
                    (Ok(name), Ok(new_name)) => {
                        fs.rename(
                            caller,
                            (node, name),
                            (new_parent, new_name),
                            flags,
                            self.empty(pid, reply),
                        );
                    }
                    (Err(error), _) | (_, Err(error)) => reply.error(error.errno),
                }
            }
            Operation::Link { target, new_name } => self.named(new_name, reply, |name, reply| {
                fs.link(caller, target, node, name, self.entry(pid, reply));
            }),
            Operation::Create { name, mode, flags, kill_suidgid, .. } => {
                self.named(name, reply, |name, reply| {
                    fs.create(
                        caller,
                        node,
                        name,
                        creation(mode, flags, kill_suidgid),
                        self.created(pid, reply),
                    );
                })
            }
            Operation::Tmpfile { mode, flags, .. } => {
                fs.tmpfile(caller, node, creation(mode, flags, false), self.created(pid, reply));
            }
            Operation::Open { flags, kill_suidgid } => {
                fs.open(caller, node, convert::open_flags(flags, kill_suidgid), self.opened(pid, reply));
            }
            Operation::Read { fh, offset, size, .. } => self.file(fh, reply, |file, reply| {
                let answer = |reply: Reply, content: Content| reply.data_vectored(&content.pieces());
                fs.read_content(&file, offset, size as usize, self.patient(pid, reply, answer));
            }),
            Operation::Write(write) => self.file(write.fh, reply, |file, reply| {
                let len = write.data.len();
                let gone = || is_dying(pid);
                let writer = write.kill_suidgid.then_some(caller);
                let write = || fs.write_unless(&file, write.offset, write.data, writer, &gone);
                // A writer that is faster than the store waits; it must not keep a thread from serving others meanwhile.
                let written = if fs.has_room(len) { write() } else { fuse::block_in_place(write) };
                match written {
                    Ok(()) => reply.written(len as u32),
                    Err(error) => reply.error(error.errno),
                }
            }),
            Operation::Flush { fh, lock_owner } => self.file(fh, reply, |file, reply| {
                let done = self.patient(pid, reply, |reply, ()| reply.empty());
                match self.locking {
                    Some(_) => fs.flush_of_owner(&file, lock_owner, done),
                    None => fs.flush(&file, done),
                }
            }),
            Operation::Fsync { fh, .. } => self.file(fh, reply, |file, reply| {
                fs.fsync(&file, self.patient(pid, reply, |reply, ()| reply.empty()));
            }),
            Operation::Fsyncdir { .. } | Operation::Syncfs => {
                fs.sync(self.patient(pid, reply, |reply, ()| reply.empty()));
            }
            Operation::Release { fh, flock_owner, .. } => match self.files.remove(fh) {
                Some(file) if self.locking.is_some() => {
                    fs.release_of_owner(file, flock_owner, self.empty(pid, reply));
                }
                Some(file) => fs.release(file, self.empty(pid, reply)),
                None => reply.error(libc::EBADF),
            },
            Operation::Fallocate { fh, offset, length, mode } => {
                self.file(fh, reply, |file, reply| match convert::hole(mode) {
                    Some((hole, keep_size)) => {
                        let unprivileged = (caller.uid != 0).then_some(caller);
                        let what = Fallocate { hole, offset, len: length, keep_size, unprivileged };
                        let done = self.patient(pid, reply, |reply, ()| reply.empty());
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
                fs.seek(&file, offset, seek, self.patient(pid, reply, Reply::lseek));
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
                            unprivileged: (caller.uid != 0).then_some(caller),
                        };
                        fs.copy_range(copy, self.patient(pid, reply, Reply::copied));
                    }
                    _ => reply.error(libc::EBADF),
                }
            }
            Operation::Opendir { .. } => {
                let dirs = self.dirs.clone();
                fs.opendir(
                    caller,
                    node,
                    self.asked(pid, reply, move |reply, handle: Arc<DirHandle>| {
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
                        self.asked(pid, reply, |reply, buffer: Buffer| reply.dirents(buffer.0)),
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
                    self.asked(pid, reply, move |reply, value: Box<[u8]>| reply.xattr(size, &value)),
                );
            }
            Operation::Listxattr { size } => {
                fs.listxattr(
                    caller,
                    node,
                    self.asked(pid, reply, move |reply, names: Box<[u8]>| reply.xattr(size, &names)),
                );
            }
            Operation::Setxattr { name, value, flags, .. } => {
                let flags = XattrFlags {
                    create: flags as i32 & libc::XATTR_CREATE != 0,
                    replace: flags as i32 & libc::XATTR_REPLACE != 0,
                };
                fs.setxattr(caller, node, name.as_bytes(), value, flags, self.empty(pid, reply));
            }
            Operation::Removexattr { name } => {
                fs.removexattr(caller, node, name.as_bytes(), self.empty(pid, reply))
            }
            Operation::Statfs => self.statfs(pid, reply),
            Operation::Ioctl(_) => reply.error(libc::ENOTTY),
            Operation::Getlk(lock) => {
                self.file(lock.fh, reply, |file, reply| self.get_lock(&file, lock, reply))
            }
            Operation::Setlk { lock, wait } => self.file(lock.fh, reply, |file, reply| {
                self.set_lock(&file, lock, wait, (pid, request.unique), reply);
            }),
            // Only waits for locks end with a signal: every other operation has a deadline of its own.
            Operation::Interrupt { unique } => {
                if let Some(locking) = &self.locking {
                    locking.interrupted(fs, unique);
                }
            }
            Operation::Destroy => reply.empty(),
            // Never asked for: the kernel lists without attributes, and polls regular files itself.
            _ => reply.error(libc::ENOSYS),
        }
    }
}

impl Mounted {
    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.fs
    }

    pub(crate) fn locking(&self) -> Option<&Arc<Locking>> {
        self.locking.as_ref()
    }

    fn named(&self, name: &OsStr, reply: Reply, act: impl FnOnce(Name, Reply)) {
        match Name::new(name.as_bytes()) {
            Ok(name) => act(name, reply),
            Err(error) => reply.error(error.errno),
        }
    }

    /// Answers as [`with`] does, for what may have to wait for the block store: a caller that is killed meanwhile is let go.
    pub(crate) fn patient<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        self.patient_or_undo(pid, reply, answer, drop)
    }

    /// The same; what comes when nobody wants it any more is given to `undo`.
    pub(crate) fn patient_or_undo<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Done<T> {
        let Some(patience) = &self.patience else { return with(reply, answer) };
        let ticket = patience.watch(pid, reply);
        Box::new(move |result: FsResult<T>| match (ticket.take(), result) {
            (Some(reply), Ok(value)) => answer(reply, value),
            (Some(reply), Err(error)) => reply.error(error.errno),
            (None, Ok(value)) => undo(value),
            (None, Err(_)) => {}
        })
    }

    /// Answers what only has to wait for metadata.
    fn asked<T: 'static>(
        &self,
        pid: u32,
        reply: Reply,
        answer: impl FnOnce(Reply, T) + Send + 'static,
    ) -> Done<T> {
        if self.all_wait { self.patient(pid, reply, answer) } else { with(reply, answer) }
    }

    fn empty(&self, pid: u32, reply: Reply) -> Done<()> {
        self.asked(pid, reply, |reply, ()| reply.empty())
    }

    fn bytes<T: AsRef<[u8]> + 'static>(&self, pid: u32, reply: Reply) -> Done<T> {
        self.asked(pid, reply, |reply, bytes: T| reply.data(bytes.as_ref()))
    }

    fn file(&self, fh: u64, reply: Reply, act: impl FnOnce(Arc<FileHandle>, Reply)) {
        match self.files.get(fh) {
            Some(file) => act(file, reply),
            None => reply.error(libc::EBADF),
        }
    }

    fn entry(&self, pid: u32, reply: Reply) -> Done<Inode> {
        let (attr_ttl, entry_ttl) = (self.attr_ttl, self.entry_ttl);
        let answer = move |reply: Reply, inode| reply.entry(&convert::entry(&inode, attr_ttl, entry_ttl));
        if !self.all_wait {
            return with(reply, answer);
        }
        let fs = self.fs.clone();
        // The kernel never learned of it.
        self.patient_or_undo(pid, reply, answer, move |inode| fs.forget(inode.ino, 1))
    }

    fn attr(&self, pid: u32, reply: Reply) -> Done<Inode> {
        let ttl = self.attr_ttl;
        self.asked(pid, reply, move |reply, inode| reply.attr(&convert::attr(&inode), ttl))
    }

    fn created(&self, pid: u32, reply: Reply) -> Done<Opened> {
        let (files, attr_ttl, entry_ttl) = (self.files.clone(), self.attr_ttl, self.entry_ttl);
        let answer = move |reply: Reply, opened: Opened| {
            let entry = convert::entry(&opened.inode, attr_ttl, entry_ttl);
            reply.created(&entry, give_number(&files, opened));
        };
        if !self.all_wait {
            return with(reply, answer);
        }
        let fs = self.fs.clone();
        self.patient_or_undo(pid, reply, answer, move |opened| {
            fs.forget(opened.inode.ino, 1);
            fs.release(opened.handle, Box::new(drop));
        })
    }

    fn opened(&self, pid: u32, reply: Reply) -> Done<Opened> {
        let files = self.files.clone();
        let answer = move |reply: Reply, opened| reply.opened(give_number(&files, opened));
        if !self.all_wait {
            return with(reply, answer);
        }
        let fs = self.fs.clone();
        self.patient_or_undo(pid, reply, answer, move |opened| fs.release(opened.handle, Box::new(drop)))
    }

    fn statfs(&self, pid: u32, reply: Reply) {
        let store = self.fs.store().clone();
        self.fs.usage(self.asked(pid, reply, move |reply, used: Usage| {
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

/// Numbers a handle. Where nothing has to be done when a descriptor is closed, the kernel need not tell.
fn give_number(files: &Handles<FileHandle>, opened: Opened) -> fuse::Opened {
    let mut flags = fuse::OpenFlags::default();
    if opened.keep_cache {
        flags |= fuse::OpenFlags::KEEP_CACHE;
    }
    if !opened.handle.flushes() {
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
