//! Names: look up, create, remove, rename, link, open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use kestrel_data::ReadAhead;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, Place};
use kestrel_types::request::{Answer, Op, OpenFlags, RenameFlags};

use super::{Caller, Done, FileHandle, Fs, Opened, into_bytes, unexpected};
use crate::known::Pages;

/// What mknod(2) makes.
#[derive(Debug, Clone, Copy)]
pub struct NewNode {
    /// Type; not a directory or symbolic link.
    pub kind: Kind,
    /// Permission bits, after the umask.
    pub mode: u16,
    /// Device number, of devices.
    pub rdev: u32,
}

/// How open(2) with `O_CREAT` or `O_TMPFILE` creates and opens.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    /// Permission bits of a new file, after the umask.
    pub mode: u16,
    /// What the file is opened for.
    pub flags: OpenFlags,
    /// `O_EXCL`: the file must be new; one without a name never gets one.
    pub exclusive: bool,
}

impl Fs {
    /// Finds an entry; the kernel will know its inode.
    pub fn lookup(self: &Arc<Self>, caller: Caller, dir: InodeId, name: Name, done: Done<Inode>) {
        let op = Op::Lookup(Place::new(dir, name.clone()));
        self.ask_entry(caller, dir, name, op, done);
    }

    /// The directory above a directory; the kernel will know its inode.
    pub fn parent(self: &Arc<Self>, caller: Caller, dir: InodeId, done: Done<Inode>) {
        let fs = self.clone();
        self.ask(caller, Op::Parent(dir), move |answer| {
            done(answer.and_then(super::into_inode).map(|inode| fs.introduce(inode, None)));
        });
    }

    /// Creates a special file, or a regular one without opening it.
    pub fn mknod(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: Name,
        node: NewNode,
        done: Done<Inode>,
    ) {
        let NewNode { kind, mode, rdev } = node;
        let op = Op::MkNod { place: Place::new(dir, name.clone()), kind, mode, rdev };
        self.ask_entry(caller, dir, name, op, done);
    }

    /// Creates a directory.
    pub fn mkdir(self: &Arc<Self>, caller: Caller, dir: InodeId, name: Name, mode: u16, done: Done<Inode>) {
        let op = Op::MkDir(Place::new(dir, name.clone()), mode);
        self.ask_entry(caller, dir, name, op, done);
    }

    /// Creates a symbolic link.
    pub fn symlink(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: Name,
        target: &[u8],
        done: Done<Inode>,
    ) {
        let op = Op::Symlink(Place::new(dir, name.clone()), target.into());
        self.ask_entry(caller, dir, name, op, done);
    }

    /// Target of a symbolic link.
    pub fn readlink(self: &Arc<Self>, caller: Caller, ino: InodeId, done: Done<Box<[u8]>>) {
        let fs = self.clone();
        self.ask(caller, Op::ReadLink(self.known.reference(ino)), move |answer| {
            done(answer.and_then(into_bytes).or_else(|error| fs.removed_link(ino, error)))
        });
    }

    /// Gives a file another name.
    pub fn link(self: &Arc<Self>, caller: Caller, ino: InodeId, dir: InodeId, name: Name, done: Done<Inode>) {
        let op = Op::Link(self.known.reference(ino), Place::new(dir, name.clone()));
        self.ask_entry(caller, dir, name, op, done);
    }

    /// Removes a name of something that is not a directory. Open files live on until their last handle is closed.
    pub fn unlink(self: &Arc<Self>, caller: Caller, dir: InodeId, name: Name, done: Done<()>) {
        let fs = self.clone();
        self.ask(caller, Op::Unlink(Place::new(dir, name)), move |answer| done(fs.removed(answer)));
    }

    /// Removes an empty directory.
    pub fn rmdir(self: &Arc<Self>, caller: Caller, dir: InodeId, name: Name, done: Done<()>) {
        let fs = self.clone();
        self.ask(caller, Op::RmDir(Place::new(dir, name)), move |answer| done(fs.removed(answer)));
    }

    /// Renames or exchanges.
    pub fn rename(
        self: &Arc<Self>,
        caller: Caller,
        from: (InodeId, Name),
        to: (InodeId, Name),
        flags: RenameFlags,
        done: Done<()>,
    ) {
        let op = Op::Rename(Place::new(from.0, from.1.clone()), Place::new(to.0, to.1.clone()), flags);
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::Renamed { moved, other } => {
                    fs.known.moved(moved, to.0, &to.1);
                    match other {
                        Some(other) if flags.exchange => fs.known.moved(other.ino, from.0, &from.1),
                        Some(other) => fs.known.removed(other),
                        None => {}
                    }
                    Ok(())
                }
                other => Err(unexpected(&other)),
            }));
        });
    }

    /// Opens a file, creating it if need be; the kernel will know its inode.
    pub fn create(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        name: Name,
        how: Creation,
        done: Done<Opened>,
    ) {
        let Creation { mode, flags, exclusive } = how;
        let op = Op::Create { place: Place::new(dir, name.clone()), mode, flags, exclusive };
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            done(answer.and_then(|answer| fs.opened(answer, flags, Some((dir, &name)), true)));
        });
    }

    /// Creates and opens a file without a name; the kernel will know its inode.
    pub fn tmpfile(self: &Arc<Self>, caller: Caller, dir: InodeId, how: Creation, done: Done<Opened>) {
        let Creation { mode, flags, exclusive } = how;
        let fs = self.clone();
        self.ask(caller, Op::TmpFile { dir, mode, exclusive }, move |answer| {
            done(answer.and_then(|answer| fs.opened(answer, flags, None, true)));
        });
    }

    /// Opens a file the kernel knows.
    pub fn open(self: &Arc<Self>, caller: Caller, ino: InodeId, flags: OpenFlags, done: Done<Opened>) {
        if flags.truncate && !flags.write && self.files.get(ino).is_some_and(|file| file.lock().executing > 0)
        {
            // The kernel keeps writers off a running program before it asks us, but this way of truncating only afterwards.
            return done(Err(FsError::new(libc::ETXTBSY, "the file is being executed")));
        }
        let fs = self.clone();
        let op = Op::Open(self.known.reference(ino), flags);
        if flags.truncate && self.files.get(ino).is_some_and(|file| file.lock().is_dirty()) {
            // What was written before must be committed first, or it would reappear after the truncation.
            self.flush_ino(
                ino,
                Box::new(move |flushed| {
                    if flushed.is_err() {
                        fs.discard(ino);
                    }
                    fs.open_now(caller, op, flags, done);
                }),
            );
            return;
        }
        fs.open_now(caller, op, flags, done);
    }

    fn open_now(self: &Arc<Self>, caller: Caller, op: Op, flags: OpenFlags, done: Done<Opened>) {
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            done(answer.and_then(|answer| fs.opened(answer, flags, None, false)))
        });
    }

    fn opened(
        &self,
        answer: Answer,
        flags: OpenFlags,
        place: Option<(InodeId, &Name)>,
        introduce: bool,
    ) -> FsResult<Opened> {
        let Answer::Opened { inode, .. } = answer else { return Err(unexpected(&answer)) };
        let mut inode = *inode;
        if introduce {
            self.known.learned(inode.ino, inode.kind, place);
        }
        let pages = self.known.opened_as(inode.ino, inode.data_change);
        let file = self.files.attach(inode.clone());
        self.files.overlay(&mut inode);
        file.lock().executing += u32::from(flags.exec);
        let handle = FileHandle {
            file,
            read: flags.read || flags.exec,
            write: flags.write,
            exec: flags.exec,
            readahead: Mutex::new(ReadAhead::new(self.config.readahead)),
            locks: self.has_locks(),
            number: self.next_handle.fetch_add(1, Ordering::Relaxed),
            losses: self.locks.losses(),
            drops_pages: AtomicBool::new(pages == Pages::Drop),
        };
        Ok(Opened { inode, handle: Arc::new(handle), keep_cache: pages == Pages::Keep })
    }

    /// Closes a handle. What is still unwritten is stored first; errors can no longer reach the application and are logged.
    pub fn release(self: &Arc<Self>, handle: Arc<FileHandle>, done: Done<()>) {
        self.heard_of(&handle);
        let fs = self.clone();
        let ino = handle.ino();
        let finish = move |result: FsResult<()>| {
            if let Err(error) = &result {
                log::error!("inode {ino}: written bytes could not be stored: {error}");
            }
            handle.file.lock().executing -= u32::from(handle.exec);
            if fs.files.detach(&handle.file) {
                fs.known.closed(&handle.file.lock().inode);
                fs.locks.file_closed(ino);
            }
            fs.ask(Caller::ROOT, Op::Release(ino), move |answer| done(answer.map(|_| ()).and(result)));
        };
        match self.files.get(ino).is_some_and(|file| file.lock().is_dirty()) {
            true => self.flush_ino(ino, Box::new(finish)),
            false => finish(Ok(())),
        }
    }
}
