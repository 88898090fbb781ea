//! Names: look up, create, remove, rename, link, open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use kestrel_blockstore::ReadAhead;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, Op, OpenFlags, RenameFlags};

use super::handles::Progress;
use super::storing::options_of;
use super::{Caller, Done, FileHandle, Fs, Opened, into_bytes, unexpected};
use crate::inode_table::PageCacheAction;

/// What mknod(2) makes.
#[derive(Debug, Clone, Copy)]
pub struct NewNode {
    /// Type; not a directory or symbolic link.
    pub kind: Kind,
    /// Permission bits and umask ([`kestrel_types::perm::with_umask`]).
    pub mode: u32,
    /// Device number, of devices.
    pub rdev: u32,
}

/// How open(2) with `O_CREAT` or `O_TMPFILE` creates and opens.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    /// Permission bits and umask of a new file ([`kestrel_types::perm::with_umask`]).
    pub mode: u32,
    /// What the file is opened for.
    pub flags: OpenFlags,
    /// `O_EXCL`: the file must be new; one without a name never gets one.
    pub exclusive: bool,
}

/// What [`Fs::open_at`] found.
#[derive(Debug)]
pub enum OpenedEntry {
    /// A file, open now.
    File(Opened),
    /// A directory; the kernel does not know its number from this.
    Directory(Inode),
}

impl Fs {
    /// Finds an entry; the kernel will know its inode.
    pub fn lookup(self: &Arc<Self>, caller: Caller, place: PathRef, done: Done<Inode>) {
        let name = place.name.clone();
        self.ask_entry(caller, name, Op::Lookup(place), done);
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
        place: PathRef,
        node: NewNode,
        done: Done<Inode>,
    ) {
        let NewNode { kind, mode, rdev } = node;
        let name = place.name.clone();
        self.ask_entry(caller, name, Op::MkNod { place, kind, mode, rdev }, done);
    }

    /// Creates a directory with these permission bits and umask
    /// ([`kestrel_types::perm::with_umask`]).
    pub fn mkdir(self: &Arc<Self>, caller: Caller, place: PathRef, mode: u32, done: Done<Inode>) {
        let name = place.name.clone();
        self.ask_entry(caller, name, Op::MkDir(place, mode), done);
    }

    /// Creates a symbolic link.
    pub fn symlink(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        target: &[u8],
        done: Done<Inode>,
    ) {
        let name = place.name.clone();
        self.ask_entry(caller, name, Op::Symlink(place, target.into()), done);
    }

    /// Target of a symbolic link.
    pub fn readlink(self: &Arc<Self>, caller: Caller, ino: InodeId, done: Done<Box<[u8]>>) {
        let fs = self.clone();
        self.ask(caller, Op::ReadLink(self.known.reference(ino)), move |answer| {
            done(answer.and_then(into_bytes).or_else(|error| fs.removed_link(ino, error)))
        });
    }

    /// Gives a file another name.
    pub fn link(self: &Arc<Self>, caller: Caller, ino: InodeId, place: PathRef, done: Done<Inode>) {
        let name = place.name.clone();
        self.ask_entry(caller, name, Op::Link(self.known.reference(ino), place), done);
    }

    /// Removes a name of something that is not a directory, which is told. Open files live on until
    /// their last handle is closed.
    pub fn unlink(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        done: Done<Option<Box<Inode>>>,
    ) {
        let fs = self.clone();
        self.ask(caller, Op::Unlink(place), move |answer| done(fs.removed(answer)));
    }

    /// Removes an empty directory, which is told; if a number is given, that one or none
    /// (`ESTALE`).
    pub fn rmdir(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        expected: Option<InodeId>,
        done: Done<Option<Box<Inode>>>,
    ) {
        let fs = self.clone();
        self.ask(caller, Op::RmDir(place, expected), move |answer| done(fs.removed(answer)));
    }

    /// Renames or exchanges. What was replaced is told.
    pub fn rename(
        self: &Arc<Self>,
        caller: Caller,
        from: PathRef,
        to: PathRef,
        flags: RenameFlags,
        done: Done<Option<Box<Inode>>>,
    ) {
        let (old, new) = (from.name.clone(), to.name.clone());
        let fs = self.clone();
        self.ask(caller, Op::Rename(from, to, flags), move |answer| {
            done(answer.and_then(|answer| match answer {
                Answer::Renamed { moved, other, from, to } => {
                    fs.known.moved(moved, to, &new);
                    match other {
                        Some(other) if flags.exchange => {
                            fs.known.moved(other.ino, from, &old);
                            Ok(None)
                        }
                        Some(other) => Ok(Some(fs.lost_a_name(other))),
                        None => Ok(None),
                    }
                }
                other => Err(unexpected(&other)),
            }));
        });
    }

    /// Opens a file, creating it if need be; the kernel will know its inode.
    ///
    /// To truncate one that turns out to exist takes a second request: what was written to it here
    /// is committed first, and one that is being executed here is left alone (`ETXTBSY`). So is one
    /// that is protected from the caller ([`super::Protected`]).
    pub fn create(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        how: Creation,
        done: Done<Opened>,
    ) {
        let Creation { mode, flags, exclusive } = how;
        let name = place.name.clone();
        let first = OpenFlags { truncate: false, kill_suid: false, ..flags };
        let op = Op::Create { place, mode, flags: first, exclusive };
        let fs = self.clone();
        self.ask(caller, op, move |answer| {
            let existed_in = match &answer {
                Ok(Answer::Opened { created: false, parent, .. }) => *parent,
                _ => None,
            };
            match (
                answer.and_then(|answer| fs.opened(answer, first, Some(&name), true)),
                existed_in,
            ) {
                (Ok(opened), Some(dir)) => fs.opened_existing(caller, dir, opened, flags, done),
                (Ok(opened), None) => fs.show_opened(opened, done),
                (Err(error), _) => done(Err(error)),
            }
        });
    }

    /// Goes on with what was to be created and is there already.
    fn opened_existing(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        opened: Opened,
        flags: OpenFlags,
        done: Done<Opened>,
    ) {
        let fs = self.clone();
        let inode = opened.inode.clone();
        let checked = move |checked: FsResult<()>| match checked {
            Ok(()) if flags.truncate => fs.truncate_opened(caller, opened, flags, done),
            Ok(()) => fs.show_opened(opened, done),
            Err(error) => {
                // The kernel never learns of it.
                fs.forget(opened.inode.ino, 1);
                fs.abandon(opened.handle, Box::new(move |_| done(Err(error))));
            }
        };
        self.check_protected(caller, dir, &inode, Box::new(checked));
    }

    /// Opens once more what was opened to be truncated, which that open was not told.
    fn truncate_opened(
        self: &Arc<Self>,
        caller: Caller,
        first: Opened,
        flags: OpenFlags,
        done: Done<Opened>,
    ) {
        let ino = first.inode.ino;
        if first.inode.kind != Kind::File {
            return done(Ok(first));
        }
        let fs = self.clone();
        let opened: Done<Opened> = Box::new(move |opened| {
            if opened.is_err() {
                // The kernel never learns of it.
                fs.forget(ino, 1);
                fs.abandon(first.handle, Box::new(drop));
            } else {
                // The second open drops all pages that the first was to drop.
                fs.release(first.handle, Box::new(drop));
            }
            done(opened);
        });
        if self.files.get(ino).is_some_and(|file| file.lock().executing > 0) {
            return opened(Err(FsError::new(libc::ETXTBSY, "the file is being executed")));
        }
        self.open(caller, ino, flags, opened);
    }

    /// Finds an entry and opens what it stands for, which the kernel will know; a directory is only
    /// found. A symbolic link is `ELOOP`. Not to truncate.
    pub fn open_at(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        flags: OpenFlags,
        done: Done<OpenedEntry>,
    ) {
        let fs = self.clone();
        let name = place.name.clone();
        self.ask(caller, Op::OpenAt(place, flags), move |answer| match answer {
            Ok(Answer::Opened { inode, .. }) if inode.kind == Kind::Dir => {
                done(Ok(OpenedEntry::Directory(*inode)))
            }
            answer => match answer.and_then(|answer| fs.opened(answer, flags, Some(&name), true)) {
                Ok(opened) => fs.show_opened(
                    opened,
                    Box::new(move |opened| done(opened.map(OpenedEntry::File))),
                ),
                Err(error) => done(Err(error)),
            },
        });
    }

    /// Attributes of the directory at a place, of which the kernel will not know by number;
    /// `ESTALE` if something else is there.
    pub fn find_directory(self: &Arc<Self>, caller: Caller, place: PathRef, done: Done<Inode>) {
        self.ask(caller, Op::Lookup(place), move |answer| {
            done(answer.and_then(super::into_inode).and_then(|inode| match inode.kind {
                Kind::Dir => Ok(inode),
                _ => Err(FsError::new(libc::ESTALE, "it is no directory any more")),
            }));
        });
    }

    /// The kernel will know a directory by number, until it is forgotten: should it be removed, its
    /// last attributes stay.
    pub fn remember_directory(&self, ino: InodeId) {
        self.known.learned(ino, Kind::Dir, None);
    }

    /// The same for one that has just been removed.
    pub fn remember_removed(&self, inode: Box<Inode>) {
        self.known.learned(inode.ino, inode.kind, None);
        self.known.removed(&inode);
    }

    /// Creates and opens a file without a name; the kernel will know its inode.
    pub fn tmpfile(
        self: &Arc<Self>,
        caller: Caller,
        dir: InodeId,
        how: Creation,
        done: Done<Opened>,
    ) {
        let Creation { mode, flags, exclusive } = how;
        let fs = self.clone();
        self.ask(caller, Op::TmpFile { dir, mode, exclusive }, move |answer| {
            done(answer.and_then(|answer| fs.opened(answer, flags, None, true)));
        });
    }

    /// Opens a file the kernel knows.
    pub fn open(
        self: &Arc<Self>,
        caller: Caller,
        ino: InodeId,
        flags: OpenFlags,
        done: Done<Opened>,
    ) {
        if flags.truncate
            && !flags.write
            && self.files.get(ino).is_some_and(|file| file.lock().executing > 0)
        {
            // The kernel keeps writers off a running program before it asks us, but this way of
            // truncating only afterwards.
            return done(Err(FsError::new(libc::ETXTBSY, "the file is being executed")));
        }
        let fs = self.clone();
        let op = Op::Open(self.known.reference(ino), flags);
        if flags.truncate && self.files.get(ino).is_some_and(|file| file.lock().is_dirty()) {
            // What was written before must be committed first, or it would reappear after the
            // truncation.
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
            match answer.and_then(|answer| fs.opened(answer, flags, None, false)) {
                Ok(opened) => fs.show_opened(opened, done),
                Err(error) => done(Err(error)),
            }
        });
    }

    /// Answers an open when the file shows all that was committed before.
    fn show_opened(self: &Arc<Self>, mut opened: Opened, done: Done<Opened>) {
        let (fs, ino) = (self.clone(), opened.inode.ino);
        let show = move || {
            fs.files.overlay(&mut opened.inode);
            done(Ok(opened));
        };
        self.when_placed(ino, Box::new(show));
    }

    fn opened(
        &self,
        answer: Answer,
        flags: OpenFlags,
        name: Option<&Name>,
        introduce: bool,
    ) -> FsResult<Opened> {
        let Answer::Opened { inode, parent, .. } = answer else { return Err(unexpected(&answer)) };
        let mut inode = *inode;
        self.learn_compression(&inode);
        let put_options = options_of(inode.effective);
        if introduce {
            self.known.learned(inode.ino, inode.kind, parent.zip(name));
            self.known.told_as(inode.ino, inode.data_change);
        }
        let pages = self.known.opened_as(inode.ino, inode.data_change);
        let file = self.files.attach(inode.clone());
        self.files.overlay(&mut inode);
        let mut state = file.lock();
        state.executing += u32::from(flags.exec);
        state.readers += u32::from(flags.read || flags.exec);
        state.writers += u32::from(flags.write);
        if flags.write {
            state.put_options = put_options;
        }
        state.was_read |= flags.read || flags.exec;
        drop(state);
        let handle = FileHandle {
            file,
            read: flags.read || flags.exec,
            write: flags.write,
            exec: flags.exec,
            readahead: Mutex::new(ReadAhead::new(self.config.readahead)),
            locks: self.has_locks(),
            number: self.next_handle.fetch_add(1, Ordering::Relaxed),
            losses: self.locks.losses(),
            drops_pages: AtomicBool::new(pages == PageCacheAction::Drop),
            progress: Progress::default(),
            uncached: AtomicBool::new(false),
            keeps_access_time: AtomicBool::new(false),
        };
        let keep_cache = pages == PageCacheAction::Keep;
        Ok(Opened { inode, handle: Arc::new(handle), keep_cache, truncated: flags.truncate })
    }

    /// Closes a handle that the kernel never hears of: it has dropped no pages for it.
    pub fn abandon(self: &Arc<Self>, handle: Arc<FileHandle>, done: Done<()>) {
        let drops = handle.drops_pages.swap(false, Ordering::Relaxed);
        self.known.open_abandoned(handle.ino(), drops);
        self.release(handle, done);
    }

    /// Closes a handle. What is still unwritten is stored first; errors can no longer reach the
    /// application and are logged.
    pub fn release(self: &Arc<Self>, handle: Arc<FileHandle>, done: Done<()>) {
        self.heard_of(&handle);
        self.finished(&handle);
        let fs = self.clone();
        let ino = handle.ino();
        let finish = move |result: FsResult<()>| {
            if let Err(error) = &result {
                log::error!("inode {ino}: written bytes could not be stored: {error}");
            }
            let mut state = handle.file.lock();
            state.executing -= u32::from(handle.exec);
            state.readers -= u32::from(handle.read);
            state.writers -= u32::from(handle.write);
            drop(state);
            if fs.files.detach(&handle.file) {
                fs.known.closed(&handle.file.lock().inode);
                fs.locks.file_closed(ino);
            }
            fs.ask(Caller::ROOT, Op::Release(ino), move |answer| {
                done(answer.map(|_| ()).and(result))
            });
        };
        match self.files.get(ino).is_some_and(|file| file.lock().is_dirty()) {
            true => self.flush_ino(ino, Box::new(finish)),
            false => finish(Ok(())),
        }
    }
}
