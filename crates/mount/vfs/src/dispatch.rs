//! One arm for each operation of the kernel.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kestrel_client::fs::{
    CopyRange, Creation, Done, EntrySink, Fallocate, FileHandle, Fs, Hole, Listed, NewNode,
    ReadBytes, Seek, WriteAt,
};
use kestrel_fuse::{
    self as fuse, Dirents, FileKind, FileSystem, Negotiated, Notifier, Operation, Reply, Request,
};
use kestrel_types::acl::XATTR_ACCESS;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::perm;
use kestrel_types::request::{RenameFlags, XattrFlags};

use crate::convert;
use crate::core::Core;
use crate::direct;
use crate::interruptible::is_dying;
use crate::passthrough::VolumeChange;
use crate::snapshots::is_snapshot;

/// Unit of the kernel's cache, at least.
const PAGE_BYTES: u64 = 4096;

/// A file system behind a mount.
pub struct Mounted(pub Arc<Core>);

impl FileSystem for Mounted {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> Result<(), i32> {
        // Only once.
        let _ = self.0.notifier.set(notifier.clone());
        if let Some(locking) = &self.0.locking {
            locking.start(&self.0.fs, notifier.clone());
        }
        if let Some(paths) = self.0.naming.paths() {
            paths.begin(notifier.clone(), negotiated.prunes);
        }
        self.0.direct.start(notifier);
        self.0.passthrough.start(&self.0.fs, negotiated, notifier);
        Ok(())
    }

    fn handle(&self, request: Request<'_>, reply: Reply) {
        let core = &self.0;
        let (caller, node, pid) = (convert::caller(&request), request.nodeid, request.pid);
        let fs = &core.fs;
        core.notice(&request);
        if is_snapshot(node) {
            return core.snapshot_request(request, reply);
        }
        core.kept_dirs.notice(node, &request.op);
        match request.op {
            Operation::Lookup { name } => core.lookup(caller, (request.unique, node), name, reply),
            Operation::Forget(forgets) => {
                forgets.for_each(|(node, count)| core.forget(node, count))
            }
            Operation::Getattr { .. } => core.inode(caller, node, core.attr(pid, reply)),
            Operation::Setattr(set) => {
                let handle = set.fh.and_then(|fh| core.files.get(fh));
                let set = convert::setattr(&set, handle.is_some_and(|handle| handle.writable()));
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    let trust = core.trust;
                    let done = core.patient(pid, reply, move |reply, inode: Inode| {
                        reply.attr(&convert::attr(&inode), trust.attributes(&inode));
                    });
                    let done = match set.size {
                        Some(_) => core.following(
                            ino,
                            |inode: &Inode| VolumeChange::Size(inode.size),
                            done,
                        ),
                        None => done,
                    };
                    core.change(node, set.mode, done, move |core, done| {
                        core.fs.setattr(caller, ino, set, done)
                    });
                });
            }
            Operation::Statx { .. } => {
                let trust = core.trust;
                let done = core.asked(pid, reply, move |reply, inode: Inode| {
                    reply.statx(&convert::statx(&inode, trust.attributes(&inode)));
                });
                core.inode(caller, node, done);
            }
            Operation::Access { mask } => core.access(caller, node, mask, reply),
            Operation::Readlink => core.numbered(caller, node, reply, move |core, ino, reply| {
                core.fs.link_accessed(ino);
                core.fs.readlink(caller, ino, core.bytes(pid, reply));
            }),
            Operation::Symlink { name, target } => {
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    fs.symlink(
                        caller,
                        place,
                        target.as_bytes(),
                        core.entry(pid, (node, name), reply),
                    );
                })
            }
            Operation::Mknod { name, mode, rdev, umask } => {
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    let Some(kind) = Kind::from_mode(mode) else {
                        return reply.error(libc::EINVAL);
                    };
                    let new = NewNode { kind, mode: permissions(mode, umask), rdev };
                    fs.mknod(caller, place, new, core.entry(pid, (node, name), reply));
                })
            }
            Operation::Mkdir { name, mode, umask } => {
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    fs.mkdir(
                        caller,
                        place,
                        permissions(mode, umask),
                        core.entry(pid, (node, name), reply),
                    );
                })
            }
            Operation::Unlink { name } => {
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    fs.unlink(caller, place, core.removing(pid, (node, name), reply));
                })
            }
            Operation::Rmdir { name } => {
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    let expected = core.expected(pid, node, &name);
                    fs.rmdir(caller, place, expected, core.removing(pid, (node, name), reply));
                })
            }
            Operation::Rename { new_parent, .. } if is_snapshot(new_parent) => {
                reply.error(libc::EXDEV)
            }
            Operation::Link { target, .. } if is_snapshot(target) => reply.error(libc::EXDEV),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let Some(flags) = rename_flags(flags) else { return reply.error(libc::EINVAL) };
                core.placed(caller, (node, name), reply, |from, name, reply| {
                    core.placed(caller, (new_parent, new_name), reply, |to, new_name, reply| {
                        let replaced = core.expected(pid, new_parent, &new_name);
                        let flags = RenameFlags { replaced, ..flags };
                        let names = ((node, name), (new_parent, new_name));
                        core.rename(pid, names, flags.exchange, reply, move |core, done| {
                            core.fs.rename(caller, from, to, flags, done);
                        });
                    });
                });
            }
            Operation::Link { target, new_name } => {
                core.placed(caller, (node, new_name), reply, |place, name, reply| {
                    fs.link(caller, target, place, core.entry(pid, (node, name), reply));
                })
            }
            Operation::Create { name, mode, umask, flags, kill_suidgid, .. } => {
                if core.is_probe(node, name) {
                    return reply.error(libc::EPERM);
                }
                core.placed(caller, (node, name), reply, |place, name, reply| {
                    let how = creation((mode, umask), flags, kill_suidgid);
                    fs.create(
                        caller,
                        place,
                        how,
                        core.creating(pid, (node, name), core.how(flags), reply),
                    );
                });
            }
            Operation::Tmpfile { mode, umask, flags } => {
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    let how = creation((mode, umask), flags, false);
                    let opened = core.created(pid, None, core.how(flags), reply);
                    core.fs.tmpfile(caller, ino, how, opened);
                });
            }
            Operation::Open { flags, kill_suidgid } => {
                let how = core.how(flags);
                core.open(caller, node, (convert::open_flags(flags, kill_suidgid), how), reply);
            }
            Operation::Read { fh, offset, size, lock_owner, flags, .. } => {
                core.file(fh, reply, |file, reply| {
                    fs.file_accessed(&file);
                    if !direct::is_direct(lock_owner) {
                        // Before the read is planned: a direct write that is done after that finds
                        // this noted.
                        file.note_read_through_pages();
                    }
                    if let Some(live) = core.live(file.ino()) {
                        return live.answer(offset, size as usize, reply);
                    }
                    let nonblock = convert::is_nonblock(flags);
                    core.read(pid, (fs, &file), (offset, size as usize), nonblock, reply);
                })
            }
            Operation::Write(write) => core.file(write.fh, reply, |file, reply| {
                let len = write.data.len();
                let gone = || is_dying(pid);
                let writer = write.kill_suidgid.then_some(caller);
                let (offset, data) = (write.offset, write.data);
                let direct = direct::is_direct(write.lock_owner);
                // The kernel decides by the size that it knows where the end is, which others may
                // have changed.
                let appends = write.flags as i32 & libc::O_APPEND != 0 && !write.cached;
                let at = match &core.locking {
                    Some(_) if appends => WriteAt::End {
                        unfinished: !file.is_uncached() && is_part_of_write(offset, len),
                    },
                    _ => WriteAt::Offset(offset),
                };
                let waits = match at {
                    WriteAt::Offset(offset) => {
                        core.locking.is_some() && file.waits_for_appended(offset)
                    }
                    WriteAt::End { .. } => false,
                };
                let write = || fs.write_unless(&file, at, data, writer, &gone);
                // A writer that is faster than the store waits; it must not keep a thread from
                // serving others meanwhile.
                let written = match core.live(file.ino()) {
                    Some(live) => fuse::block_in_place(|| live.write(offset, data, write)),
                    None if fs.has_room(len) && !waits => write(),
                    None => fuse::block_in_place(write),
                };
                match written {
                    Ok(found) => core.written(&file, (offset, found), (len, direct), reply),
                    Err(error) => reply.error(error.errno),
                }
            }),
            Operation::Flush { fh, lock_owner } => core.file(fh, reply, |file, reply| {
                let done = core.flushed(pid, file.ino(), reply);
                core.collected(file.ino(), done, move |core, done| match core.locking {
                    Some(_) => core.fs.flush_of_owner(&file, lock_owner, done),
                    None => core.fs.flush(&file, done),
                });
            }),
            Operation::Fsync { fh, .. } => core.file(fh, reply, |file, reply| {
                let done = core.flushed(pid, file.ino(), reply);
                core.collected(file.ino(), done, move |core, done| core.fs.fsync(&file, done));
            }),
            Operation::Fsyncdir { .. } | Operation::Syncfs => {
                fs.sync(core.patient(pid, reply, |reply, ()| reply.empty()));
            }
            Operation::Release { fh, flock_owner, .. } => match core.take_file(fh) {
                Some(file) => {
                    let done = match file.writable() {
                        true => core.closed(file.ino(), pid, reply),
                        false => core.empty(pid, reply),
                    };
                    match core.locking.is_some() {
                        true => fs.release_of_owner(file, flock_owner, done),
                        false => fs.release(file, done),
                    }
                }
                None => reply.error(libc::EBADF),
            },
            Operation::Fallocate { fh, offset, length, mode } => {
                core.file(fh, reply, |file, reply| match convert::hole(mode) {
                    Some((hole, keep_size)) => {
                        let unprivileged = (caller.uid != 0).then_some(caller);
                        let what = Fallocate { hole, offset, len: length, keep_size, unprivileged };
                        let done = core.patient(pid, reply, |reply, ()| reply.empty());
                        core.collected(file.ino(), done, move |core, done| {
                            // Room alone changes no byte.
                            let len = if hole == Hole::Allocate { 0 } else { length };
                            let change = move |(): &()| VolumeChange::Part { offset, len };
                            core.fs.fallocate(
                                &file,
                                what,
                                core.following(file.ino(), change, done),
                            );
                        });
                    }
                    None => reply.error(libc::EOPNOTSUPP),
                })
            }
            Operation::Lseek { fh, offset, whence } => core.file(fh, reply, |file, reply| {
                let Some(seek) = Seek::from_whence(whence) else {
                    return reply.error(libc::EINVAL);
                };
                let done = core.patient(pid, reply, Reply::lseek);
                core.collected(file.ino(), done, move |core, done| {
                    core.fs.seek(&file, offset, seek, done)
                });
            }),
            Operation::CopyFileRange { fh_in, offset_in, fh_out, offset_out, length, .. } => {
                match (core.files.get(fh_in), core.files.get(fh_out)) {
                    (Some(from), Some(to)) => {
                        core.read_unseen(&from);
                        let copy = CopyRange {
                            from,
                            from_offset: offset_in,
                            to,
                            to_offset: offset_out,
                            len: length,
                            unprivileged: (caller.uid != 0).then_some(caller),
                        };
                        let done = core.patient(pid, reply, Reply::copied);
                        core.collected(copy.from.ino(), done, move |core, done| {
                            let change = move |len: &u64| VolumeChange::Part {
                                offset: offset_out,
                                len: *len,
                            };
                            let done = core.following(copy.to.ino(), change, done);
                            core.fs.copy_range(copy, done);
                        });
                    }
                    _ => reply.error(libc::EBADF),
                }
            }
            Operation::Opendir { flags } => core.opendir(caller, node, flags, reply),
            Operation::Readdir { fh, offset, size } => match core.dirs.get(fh) {
                Some(dir) => {
                    if !dir.keeps_access_time() {
                        fs.directory_accessed(dir.ino());
                    }
                    let buffer = Buffer(Dirents::plain(size));
                    fs.readdir(
                        caller,
                        dir,
                        offset,
                        buffer,
                        core.asked(pid, reply, |reply, buffer: Buffer| reply.dirents(buffer.0)),
                    );
                }
                None => reply.error(libc::EBADF),
            },
            Operation::Releasedir { fh, .. } => {
                if let Some(dir) = core.dirs.remove(fh) {
                    fs.closedir(&dir);
                    core.naming.paths().iter().for_each(|paths| paths.closed(node));
                }
                reply.empty();
            }
            Operation::Getxattr { name, size } => {
                let name = name.as_bytes().into();
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    let answer = move |reply: Reply, value: Box<[u8]>| reply.xattr(size, &value);
                    core.fs.getxattr(caller, ino, name, core.asked(pid, reply, answer));
                });
            }
            Operation::Listxattr { size } => {
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    let answer = move |reply: Reply, names: Box<[u8]>| reply.xattr(size, &names);
                    core.fs.listxattr(caller, ino, core.asked(pid, reply, answer));
                })
            }
            Operation::Setxattr { name, value, flags, .. } => {
                let flags = XattrFlags {
                    create: flags as i32 & libc::XATTR_CREATE != 0,
                    replace: flags as i32 & libc::XATTR_REPLACE != 0,
                };
                let is_access = name.as_bytes() == XATTR_ACCESS;
                let (name, value) = (name.as_bytes().into(), value.into());
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    core.change_acl(node, is_access, core.empty(pid, reply), move |core, done| {
                        core.fs.setxattr(caller, ino, name, value, flags, done);
                    });
                });
            }
            Operation::Removexattr { name } => {
                let is_access = name.as_bytes() == XATTR_ACCESS;
                let name = name.as_bytes().into();
                core.numbered(caller, node, reply, move |core, ino, reply| {
                    core.change_acl(node, is_access, core.empty(pid, reply), move |core, done| {
                        core.fs.removexattr(caller, ino, name, done);
                    });
                });
            }
            Operation::Statfs => core.numbered(caller, node, reply, move |core, ino, reply| {
                core.statfs_of(pid, ino, reply);
            }),
            Operation::Ioctl(ioctl) => core.ioctl(caller, node, ioctl, reply),
            Operation::Getlk(lock) => {
                core.file(lock.fh, reply, |file, reply| core.get_lock(&file, lock, reply))
            }
            Operation::Setlk { lock, wait } => core.file(lock.fh, reply, |file, reply| {
                core.set_lock(&file, lock, wait, (pid, request.unique), reply);
            }),
            // Only waits for locks end with a signal: every other operation has a deadline of its
            // own.
            Operation::Interrupt { unique } => {
                if let Some(locking) = &core.locking {
                    locking.interrupted(fs, unique);
                }
            }
            Operation::Destroy => reply.empty(),
            // Never asked for: the kernel lists without attributes, and polls regular files itself.
            _ => reply.error(libc::ENOSYS),
        }
    }

    fn destroy(&self) {
        self.0.passthrough.finish();
        if let Some(paths) = self.0.naming.paths() {
            paths.stop();
        }
    }
}

/// A listing on its way to the kernel.
struct Buffer(Dirents);

impl EntrySink for Buffer {
    fn entry(&mut self, entry: Listed<'_>) -> ControlFlow<()> {
        let kind = FileKind::from_mode(entry.kind.mode_bits());
        match self.0.push(OsStr::from_bytes(entry.name), entry.ino, kind, entry.next) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

impl Core {
    /// Answers a READ of an open file of `fs`.
    pub(crate) fn read(
        &self,
        pid: u32,
        (fs, file): (&Arc<Fs>, &FileHandle),
        (offset, size): (u64, usize),
        nonblock: bool,
        reply: Reply,
    ) {
        let gone = || is_dying(pid);
        let room = match fs.try_read_room(size) {
            Some(room) => Ok(room),
            None => fuse::block_in_place(|| fs.read_room(size, &gone)),
        };
        let room = match room {
            Ok(room) => room,
            Err(error) => return reply.error(error.errno),
        };
        let answer = move |reply: Reply, content: ReadBytes| {
            reply.data_vectored(&content.pieces());
            drop((content, room));
        };
        fs.read_content(file, (offset, size), nonblock, self.patient(pid, reply, answer));
    }

    /// Answers what has flushed a file: the kernel has put what was appended where it belongs.
    fn flushed(&self, pid: u32, ino: InodeId, reply: Reply) -> Done<()> {
        let locking = self.locking.clone();
        self.patient(pid, reply, move |reply, ()| match locking {
            Some(locking) => locking.when_heard(ino, Box::new(move || reply.empty())),
            None => reply.empty(),
        })
    }

    /// Answers a WRITE to `offset` of which the bytes are at `found`.
    fn written(
        &self,
        file: &FileHandle,
        (offset, found): (u64, u64),
        (len, direct): (usize, bool),
        reply: Reply,
    ) {
        let written = (offset.min(found), found + len as u64);
        match &self.locking {
            // The kernel may read what is around it at this moment, and extends the file over that
            // when it hears the answer.
            Some(locking) if file.is_uncached() && (file.may_be_cached() || found != offset) => {
                locking.appended(file.ino(), written, Box::new(move || reply.written(len as u32)));
            }
            Some(locking) if found != offset => {
                reply.written(len as u32);
                // After the answer: until then the kernel may hold the pages where it put the
                // bytes.
                locking.appended(file.ino(), written, Box::new(|| {}));
            }
            _ if direct && file.is_read_through_pages() => {
                self.direct.answer(file.ino(), found, len as u32, reply);
            }
            _ => reply.written(len as u32),
        }
    }
}

/// Whether an appended piece may be the first part of a write. The kernel sends what comes to lie
/// in a page that it has not cached by itself if that is not the whole page.
fn is_part_of_write(offset: u64, len: usize) -> bool {
    let page = PAGE_BYTES - offset % PAGE_BYTES;
    page != PAGE_BYTES && len as u64 == page
}

fn creation((mode, umask): (u32, u32), flags: u32, kill_suid: bool) -> Creation {
    Creation {
        mode: permissions(mode, umask),
        flags: convert::open_flags(flags, kill_suid),
        exclusive: flags as i32 & libc::O_EXCL != 0,
    }
}

fn permissions(mode: u32, umask: u32) -> u32 {
    perm::with_umask((mode & 0o7777) as u16, (umask & 0o777) as u16)
}

fn rename_flags(flags: u32) -> Option<RenameFlags> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
    (flags & !known == 0).then_some(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        replaced: None,
    })
}
