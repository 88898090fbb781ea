//! What is in a snapshot. Everything can be read; what would change something is `EROFS`.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kestrel_client::fs::{Caller, Done, EntrySink, Fs, Listed, Opened, Seek};
use kestrel_fuse::{self as fuse, Dirents, Entry, FileKind, Operation, Reply, Request};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};

use super::nodes::{SnapshotInode, View};
use super::{FOREVER, OpenDir, OpenSnapshotFile, Snapshots};
use crate::convert;
use crate::core::{Core, keep_listing};
use crate::flags;

impl Core {
    /// A request about something in a snapshot.
    pub(super) fn in_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        inode: SnapshotInode,
        request: Request<'_>,
        reply: Reply,
    ) {
        if inode.ino == inode.root {
            return self.in_snapshot_root(caller, inode, request, reply);
        }
        self.in_snapshot_inode(caller, inode, request, reply);
    }

    /// The same about the root of a snapshot. What `ls -l` of `.snap` asks is answered without a
    /// file system at the snapshot.
    fn in_snapshot_root(
        self: &Arc<Self>,
        caller: Caller,
        inode: SnapshotInode,
        request: Request<'_>,
        reply: Reply,
    ) {
        let (at, pid) = ((inode.view.at, inode.ino), caller.pid);
        match request.op {
            Operation::Getattr { .. } => {
                self.fs.getattr_at(caller, at, self.snapshot_attr(pid, &inode.view, reply));
            }
            Operation::Getxattr { name, size } => {
                let answer = move |reply: Reply, value: Box<[u8]>| reply.xattr(size, &value);
                let done = self.asked(pid, reply, answer);
                self.fs.getxattr_at(caller, at, name.as_bytes().into(), done);
            }
            Operation::Listxattr { size } => {
                let answer = move |reply: Reply, names: Box<[u8]>| reply.xattr(size, &names);
                self.fs.listxattr_at(caller, at, self.asked(pid, reply, answer));
            }
            _ => self.in_snapshot_inode(caller, inode, request, reply),
        }
    }

    fn in_snapshot_inode(
        self: &Arc<Self>,
        caller: Caller,
        inode: SnapshotInode,
        request: Request<'_>,
        reply: Reply,
    ) {
        let (fs, ino, pid) = (inode.view.fs().clone(), inode.ino, caller.pid);
        match request.op {
            Operation::Lookup { name } => self.look_in_snapshot(caller, inode, name, reply),
            Operation::Getattr { .. } => {
                fs.getattr(caller, ino, self.snapshot_attr(pid, &inode.view, reply));
            }
            Operation::Statx { .. } => {
                let view = inode.view.clone();
                let done = self.asked(pid, reply, move |reply, inode: Inode| {
                    let mut statx = convert::statx(&inode, FOREVER);
                    statx.attr.ino = view.shown(inode.ino);
                    reply.statx(&statx);
                });
                fs.getattr(caller, ino, done);
            }
            Operation::Access { mask } if mask & libc::W_OK as u32 != 0 => {
                reply.error(libc::EROFS);
            }
            Operation::Access { mask } => fs.access(caller, ino, mask, self.empty(pid, reply)),
            Operation::Readlink => fs.readlink(caller, ino, self.bytes(pid, reply)),
            Operation::Open { flags, kill_suidgid } => {
                let flags = convert::open_flags(flags, kill_suidgid);
                if flags.write || flags.truncate {
                    return reply.error(libc::EROFS);
                }
                fs.open(caller, ino, flags, self.opened_in_snapshot(pid, &inode.view, reply));
            }
            Operation::Read { fh, offset, size, flags, .. } => match self.snapshot_file(fh) {
                Some(open) => {
                    let file = (open.view.fs(), &*open.file);
                    self.read(
                        pid,
                        file,
                        (offset, size as usize),
                        convert::is_nonblock(flags),
                        reply,
                    );
                }
                None => reply.error(libc::EBADF),
            },
            Operation::Lseek { fh, offset, whence } => match self.snapshot_file(fh) {
                Some(open) => {
                    let Some(seek) = Seek::from_whence(whence) else {
                        return reply.error(libc::EINVAL);
                    };
                    fs.seek(&open.file, offset, seek, self.patient(pid, reply, Reply::lseek));
                }
                None => reply.error(libc::EBADF),
            },
            // The kernel copies pages then: a copy by reference takes its source from live files.
            Operation::CopyFileRange { .. } => reply.error(libc::EOPNOTSUPP),
            Operation::Opendir { .. } => self.opendir_in_snapshot(caller, inode, reply),
            Operation::Readdir { fh, offset, size } => {
                self.list_snapshot(caller, fh, (offset, size), reply);
            }
            Operation::Getxattr { name, size } => {
                let answer = move |reply: Reply, value: Box<[u8]>| reply.xattr(size, &value);
                fs.getxattr(caller, ino, name.as_bytes().into(), self.asked(pid, reply, answer));
            }
            Operation::Listxattr { size } => {
                let answer = move |reply: Reply, names: Box<[u8]>| reply.xattr(size, &names);
                fs.listxattr(caller, ino, self.asked(pid, reply, answer));
            }
            Operation::Ioctl(ioctl) => match flags::is_read(ioctl.cmd) {
                Some(true) => {
                    fs.getattr(caller, ino, self.asked(pid, reply, flags::answer(&ioctl)));
                }
                Some(false) => reply.error(libc::EROFS),
                None => reply.error(libc::ENOTTY),
            },
            Operation::Getlk(lock) => {
                reply.lock(&fuse::Lock { kind: libc::F_UNLCK as u32, pid: 0, ..lock });
            }
            // Nobody writes, so no lock conflicts with one to read.
            Operation::Setlk { lock, .. } => match lock.kind == libc::F_WRLCK as u32 {
                true => reply.error(libc::EROFS),
                false => reply.empty(),
            },
            Operation::Statfs => self.statfs(pid, reply),
            Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Fsyncdir { .. }
            | Operation::Syncfs => reply.empty(),
            Operation::Rename { new_parent, .. } if !super::is_snapshot(new_parent) => {
                reply.error(libc::EXDEV);
            }
            Operation::Link { target, .. } if !super::is_snapshot(target) => {
                reply.error(libc::EXDEV);
            }
            op if changes(&op) => reply.error(libc::EROFS),
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn snapshot_file(&self, fh: u64) -> Option<Arc<OpenSnapshotFile>> {
        self.snapshots.as_ref()?.files.get(fh)
    }

    fn look_in_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        dir: SnapshotInode,
        name: &OsStr,
        reply: Reply,
    ) {
        let Some(snapshots) = self.snapshots.clone() else { return reply.error(libc::ESTALE) };
        let name = match name.as_bytes() {
            // A file handle of a node that the kernel has dropped meanwhile: found by a path again.
            b"." | b".." => return reply.error(libc::ESTALE),
            name => match Name::new(name) {
                Ok(name) => name,
                Err(error) => return reply.error(error.errno),
            },
        };
        let (fs, place) = (dir.view.fs().clone(), PathRef::new(dir.ino, name));
        let done = self.found_in_snapshot(caller.pid, &snapshots, dir, reply);
        fs.lookup_listed(caller, place, done);
    }

    /// Tells of what was found in a directory of a snapshot. That a name is absent stays true, too.
    fn found_in_snapshot(
        self: &Arc<Self>,
        pid: u32,
        snapshots: &Arc<Snapshots>,
        dir: SnapshotInode,
        reply: Reply,
    ) -> Done<(Inode, bool)> {
        let (snapshots, view) = (snapshots.clone(), dir.view.clone());
        let answer = move |reply: Reply, found: FsResult<(Inode, bool)>| match found {
            Ok((inode, _)) => {
                reply.entry(&snapshots.entry((&dir.view, dir.root), Some(&dir), &inode));
            }
            Err(error) if error.errno == libc::ENOENT && dir.is_public => {
                reply.entry(&Entry { entry_ttl: FOREVER, ..Entry::default() });
            }
            Err(error) => reply.error(error.errno),
        };
        // The kernel never learned of it.
        self.told(pid, reply, answer, move |found| {
            if let Ok((inode, _)) = found {
                view.fs().forget(inode.ino, 1);
            }
        })
    }

    /// Tells of the attributes of something in a snapshot.
    pub(super) fn snapshot_attr(&self, pid: u32, view: &Arc<View>, reply: Reply) -> Done<Inode> {
        let view = view.clone();
        self.asked(pid, reply, move |reply, inode: Inode| {
            let mut attr = convert::attr(&inode);
            attr.ino = view.shown(inode.ino);
            reply.attr(&attr, FOREVER);
        })
    }

    fn opened_in_snapshot(
        self: &Arc<Self>,
        pid: u32,
        view: &Arc<View>,
        reply: Reply,
    ) -> Done<Opened> {
        let (core, view, fs) = (self.clone(), view.clone(), view.fs().clone());
        let answer = move |reply: Reply, opened: Opened| {
            let Some(snapshots) = &core.snapshots else { return reply.error(libc::ESTALE) };
            let open = OpenSnapshotFile { view, file: opened.handle };
            let fh = snapshots.files.insert(Arc::new(open));
            let flags = fuse::OpenFlags::KEEP_CACHE | fuse::OpenFlags::NOFLUSH;
            reply.opened(fuse::Opened { fh, flags, ..fuse::Opened::default() });
        };
        self.patient_or_undo(pid, reply, answer, move |opened: Opened| {
            fs.abandon(opened.handle, Box::new(drop));
        })
    }

    pub(super) fn release_in_snapshot(&self, caller: Caller, fh: u64, reply: Reply) {
        match self.snapshots.as_ref().and_then(|snapshots| snapshots.files.remove(fh)) {
            Some(open) => {
                open.view.fs().release(open.file.clone(), self.empty(caller.pid, reply));
            }
            None => reply.error(libc::EBADF),
        }
    }

    fn opendir_in_snapshot(self: &Arc<Self>, caller: Caller, dir: SnapshotInode, reply: Reply) {
        let (core, view, ino) = (self.clone(), dir.view.clone(), dir.ino);
        let answer = move |reply: Reply, ()| {
            let Some(snapshots) = &core.snapshots else { return reply.error(libc::ESTALE) };
            let handle = Fs::open_directory(ino);
            let flags = keep_listing(&handle);
            let fh = snapshots.dirs.insert(Arc::new(OpenDir::Inside(view, handle)));
            reply.opened(fuse::Opened { fh, flags, ..fuse::Opened::default() });
        };
        let done = self.asked(caller.pid, reply, answer);
        dir.view.fs().access(caller, ino, libc::R_OK as u32, done);
    }

    fn list_snapshot(
        self: &Arc<Self>,
        caller: Caller,
        fh: u64,
        (offset, size): (u64, u32),
        reply: Reply,
    ) {
        let open = self.snapshots.as_ref().and_then(|snapshots| snapshots.dirs.get(fh));
        let Some(OpenDir::Inside(view, dir)) = open.as_deref() else {
            return reply.error(libc::EBADF);
        };
        let buffer = Buffer(Dirents::plain(size), view.clone());
        let answer = |reply: Reply, buffer: Buffer| reply.dirents(buffer.0);
        let done = self.asked(caller.pid, reply, answer);
        view.fs().readdir(caller, dir.clone(), offset, buffer, done);
    }
}

/// Whether an operation changes something.
fn changes(op: &Operation<'_>) -> bool {
    matches!(
        op,
        Operation::Setattr(_)
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
            | Operation::Tmpfile { .. }
            | Operation::Write(_)
            | Operation::Fallocate { .. }
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
    )
}

/// A listing of a snapshot on its way to the kernel.
struct Buffer(Dirents, Arc<View>);

impl EntrySink for Buffer {
    fn entry(&mut self, entry: Listed<'_>) -> ControlFlow<()> {
        let kind = FileKind::from_mode(entry.kind.mode_bits());
        let ino = self.1.shown(entry.ino);
        match self.0.push(OsStr::from_bytes(entry.name), ino, kind, entry.next) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// There is nothing by that name.
pub(super) fn absent() -> FsError {
    FsError::new(libc::ENOENT, "no such snapshot")
}
