//! OPEN, OPENDIR, and the answer to CREATE.

use std::sync::Arc;

use kestrel_client::fs::{self, Caller, Done, Fs, Opened};
use kestrel_fuse::Reply;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::OpenFlags;

use crate::core::{Core, How};
use crate::paths::{NodeTarget, PreparedOpen};

/// How a directory is opened to be listed.
const LIST: OpenFlags = OpenFlags {
    read: true,
    write: false,
    exec: false,
    truncate: false,
    kill_suid: false,
    append: false,
};

impl Core {
    /// OPEN.
    pub fn open(
        self: &Arc<Self>,
        caller: Caller,
        node: u64,
        (flags, how): (OpenFlags, How),
        reply: Reply,
    ) {
        if let Some(PreparedOpen::File(opened)) = self.waiting(caller, node, flags) {
            return self.opened(caller.pid, how, reply)(Ok(opened));
        }
        self.numbered(caller, node, reply, move |core, ino, reply| {
            let (fs, done) = (core.fs.clone(), core.opened(caller.pid, how, reply));
            let opened = move |opened: FsResult<Opened>| {
                if opened.as_ref().is_err_and(|error| error.errno == libc::ESTALE) {
                    // The kernel looks again.
                    fs.forget_listed();
                }
                done(opened);
            };
            core.fs.open(caller, ino, flags, Box::new(opened));
        });
    }

    /// Answers a CREATE. A symbolic link in its way is one that the lookup before has left to it:
    /// the kernel walks again.
    pub fn creating(
        self: &Arc<Self>,
        pid: u32,
        at: (u64, Name),
        how: How,
        reply: Reply,
    ) -> Done<Opened> {
        let done = self.created(pid, Some(at), how, reply);
        if self.naming.paths().is_none() {
            return done;
        }
        Box::new(move |opened| {
            done(opened.map_err(|error| match error.errno {
                libc::ELOOP => FsError::new(libc::ESTALE, "a symbolic link is there"),
                _ => error,
            }));
        })
    }

    /// OPENDIR.
    pub fn opendir(self: &Arc<Self>, caller: Caller, node: u64, flags: u32, reply: Reply) {
        let keeps_access_time = flags as i32 & libc::O_NOATIME != 0;
        if node == ROOT && self.locking.as_ref().is_some_and(|locking| locking.is_own(caller.pid)) {
            return self.opened_directory(node, ROOT, keeps_access_time, reply);
        }
        if let Some(ino) = self.kept_dirs.find(node) {
            return self.opened_directory(node, ino, keeps_access_time, reply);
        }
        if let Some(PreparedOpen::Directory(ino)) = self.waiting(caller, node, LIST) {
            return self.opened_directory(node, ino, keeps_access_time, reply);
        }
        let core = self.clone();
        let open =
            move |reply: Reply, ino| core.opened_directory(node, ino, keeps_access_time, reply);
        match self.naming.target(node) {
            NodeTarget::Inode(ino) => {
                let done = self.asked(caller.pid, reply, move |reply, ()| open(reply, ino));
                self.fs.access(caller, ino, libc::R_OK as u32, done);
            }
            NodeTarget::At(place) => {
                self.reach(caller, node, place, LIST, self.asked(caller.pid, reply, open))
            }
            NodeTarget::Gone => reply.error(libc::ESTALE),
        }
    }

    fn opened_directory(&self, node: u64, ino: InodeId, keeps_access_time: bool, reply: Reply) {
        if let Some(paths) = self.naming.paths()
            && !paths.hold(node, ino, false)
        {
            return reply.error(libc::ESTALE);
        }
        let handle = Fs::open_directory(ino);
        let kept = self.kept_dirs.find(node) == Some(ino);
        if keeps_access_time {
            handle.keep_access_time();
        }
        reply.opened(self.give_directory_number(handle, kept));
    }

    /// Opens the directory at a path node's place, that is, checks what `flags` say and learns its
    /// number.
    pub(crate) fn reach(
        self: &Arc<Self>,
        caller: Caller,
        node: u64,
        place: PathRef,
        flags: OpenFlags,
        done: Done<InodeId>,
    ) {
        let core = self.clone();
        let reached = move |found: FsResult<fs::OpenedEntry>| {
            done(core.reached(node, found).map(|inode| inode.ino));
        };
        self.fs.open_at(caller, place, flags, Box::new(reached));
    }

    /// The directory at a path node's place, as an open of it has found it.
    pub(crate) fn reached(&self, node: u64, found: FsResult<fs::OpenedEntry>) -> FsResult<Inode> {
        match found {
            Ok(fs::OpenedEntry::Directory(inode)) => self.saw(node, &inode).map(|_| inode),
            Ok(fs::OpenedEntry::File(opened)) => {
                self.undo_created(opened);
                Err(self.mistaken(node))
            }
            Err(error) if error.errno == libc::ELOOP => Err(self.mistaken(node)),
            Err(error) => Err(error),
        }
    }

    /// What the kernel holds for a directory is none any more.
    fn mistaken(&self, node: u64) -> FsError {
        if let Some(paths) = self.naming.paths() {
            paths.no_directory(node);
        }
        FsError::new(libc::ESTALE, "it is no directory any more")
    }
}
