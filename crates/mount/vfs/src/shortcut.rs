//! The operations in which the shortcut goes a way of its own: LOOKUP, the opens that follow it,
//! ACCESS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kestrel_client::fs::{self, Caller, Done, Fs, Opened, Protected};
use kestrel_fuse::{Operation, Reply, Request};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::OpenFlags;
use kestrel_walkhint::Lookup;

use crate::core::{Core, How};
use crate::paths::{
    Counters, LookupPlan, NodeTarget, PreparedOpen, Purpose, SEARCH_ALL, Waiting, WalkUse, is_path,
};

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
    /// A thread that asks for something does not go on with what it asked before.
    pub fn notice(&self, request: &Request<'_>) {
        let Some(paths) = self.naming.paths() else { return };
        match request.op {
            // These two come when they will; a program to be executed has its attributes looked at
            // before it is opened.
            Operation::Forget(_) | Operation::Interrupt { .. } | Operation::Getattr { .. } => {}
            Operation::Open { .. } | Operation::Opendir { .. } => {}
            _ => paths.asks_for_something_else(request.pid),
        }
    }

    /// Whether this is a walk by which the hints are measured.
    pub fn is_probe(&self, dir: u64, name: &OsStr) -> bool {
        dir == ROOT && self.naming.paths().is_some_and(|paths| paths.is_probe(name.as_bytes()))
    }

    /// LOOKUP.
    pub fn lookup(
        self: &Arc<Self>,
        caller: Caller,
        (unique, dir): (u64, u64),
        name: &OsStr,
        reply: Reply,
    ) {
        match name.as_bytes() {
            b"." => return self.lookup_handle(caller.pid, dir, reply),
            b".." => return self.lookup_above(caller, dir, reply),
            _ => {}
        }
        let Some(paths) = self.naming.paths() else {
            // Without walk hints an open may follow, which a listing must not answer.
            return self.placed(caller, (dir, name), reply, |place, name, reply| {
                self.fs.lookup(caller, place, self.entry(caller.pid, (dir, name), reply));
            });
        };
        self.named(caller, (dir, name), reply, |name, reply| {
            let lookup = Lookup { unique, tid: caller.pid, nodeid: dir };
            let plan = paths.plan(caller, lookup, &name);
            self.planned(caller, (dir, name), plan, reply);
        });
    }

    /// Answers a LOOKUP as planned.
    fn planned(self: &Arc<Self>, caller: Caller, at: (u64, Name), plan: LookupPlan, reply: Reply) {
        match plan {
            LookupPlan::Probe(errno) => reply.error(errno),
            LookupPlan::Fake(entry) => reply.entry(&entry),
            LookupPlan::LeaveToCreate => reply.error(libc::ENOENT),
            LookupPlan::Gone => reply.error(libc::ESTALE),
            LookupPlan::Ask { place, purpose, then } => {
                self.ask(caller, place, at, (purpose, then), reply)
            }
            LookupPlan::Open { place, flags, directory, then } => {
                let (core, again) = (self.clone(), place.clone());
                let answer =
                    move |reply: Reply, found: FsResult<fs::OpenedEntry>| match found {
                        // A link, which the kernel follows, or what is no directory where one is
                        // wanted.
                        Err(error)
                            if error.errno == libc::ELOOP
                                || directory && error.errno == libc::EACCES =>
                        {
                            core.ask(caller, again, at, (Purpose::Fresh, then), reply);
                        }
                        Ok(fs::OpenedEntry::File(opened)) => {
                            match then.protected(caller, &opened.inode) {
                                Some(protected) => {
                                    let again = core.clone();
                                    core.check_protected(at.0, protected, move |checked| {
                                        match checked {
                                            Ok(()) => again.found(
                                                caller,
                                                at,
                                                flags,
                                                Ok(fs::OpenedEntry::File(opened)),
                                                reply,
                                            ),
                                            Err(error) => {
                                                again.undo_created(opened);
                                                reply.error(error.errno);
                                            }
                                        }
                                    });
                                }
                                None => core.found(
                                    caller,
                                    at,
                                    flags,
                                    Ok(fs::OpenedEntry::File(opened)),
                                    reply,
                                ),
                            }
                        }
                        found => core.found(caller, at, flags, found, reply),
                    };
                let core = self.clone();
                let undo = move |found| {
                    if let Ok(fs::OpenedEntry::File(opened)) = found {
                        core.undo_created(opened);
                    }
                };
                let done = self.told(caller.pid, reply, answer, undo);
                self.fs.open_at(caller, place, flags, done);
            }
        }
    }

    /// Looks a name up for real. What should be `ESTALE` is left to the call that makes the name,
    /// if one does.
    fn ask(
        self: &Arc<Self>,
        caller: Caller,
        place: PathRef,
        at: (u64, Name),
        (purpose, then): (Purpose, WalkUse),
        reply: Reply,
    ) {
        let done = self.listed_entry(caller, at.clone(), purpose == Purpose::Keep, reply);
        let core = self.clone();
        let dir = at.0;
        let noted = move |found: FsResult<(Inode, bool)>| {
            if let Err(error) = &found {
                core.not_found(&at, error);
            }
            done(found.map_err(|error| match error.errno {
                libc::ESTALE if purpose == Purpose::Create => {
                    FsError::new(libc::ENOENT, "left to the call that makes it")
                }
                _ => error,
            }));
        };
        let core = self.clone();
        let looked_up = move |found: FsResult<(Inode, bool)>| {
            let protected =
                found.as_ref().ok().and_then(|(inode, _)| then.protected(caller, inode));
            match (found, protected) {
                (Ok((inode, listed)), Some(protected)) => {
                    let again = core.clone();
                    core.check_protected(dir, protected, move |checked| {
                        let checked = checked.map(|()| (inode.clone(), listed));
                        noted(checked.inspect_err(|_| again.fs.forget(inode.ino, 1)));
                    });
                }
                (found, _) => noted(found),
            }
        };
        if purpose == Purpose::Look {
            return self.fs.lookup_listed(caller, place, Box::new(looked_up));
        }
        let asked = move |found: FsResult<Inode>| looked_up(found.map(|inode| (inode, false)));
        self.fs.lookup(caller, place, Box::new(asked));
    }

    /// Checks what was found in a directory and belongs to somebody else.
    fn check_protected(
        self: &Arc<Self>,
        dir: u64,
        protected: Protected,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let checked = move |dir: FsResult<Inode>| done(dir.and_then(|dir| protected.check(&dir)));
        self.inode(Caller::ROOT, dir, Box::new(checked));
    }

    /// A name led to nothing.
    fn not_found(&self, at: &(u64, Name), error: &FsError) {
        let Some(paths) = self.naming.paths() else { return };
        match error.errno {
            libc::ENOENT => paths.absent(at.0, &at.1),
            libc::ESTALE => Counters::count(&paths.counters().stale),
            _ => {}
        }
    }

    /// Answers a LOOKUP that was an open, and lets what is open wait for the OPEN.
    fn found(
        self: &Arc<Self>,
        caller: Caller,
        at: (u64, Name),
        flags: OpenFlags,
        found: FsResult<fs::OpenedEntry>,
        reply: Reply,
    ) {
        let Some(paths) = self.naming.paths() else { return reply.error(libc::EIO) };
        let (entry, found) = match found {
            Err(error) => {
                self.not_found(&at, &error);
                return reply.error(error.errno);
            }
            Ok(fs::OpenedEntry::Directory(inode)) => {
                (paths.directory(at.0, &at.1, &inode), PreparedOpen::Directory(inode.ino))
            }
            Ok(fs::OpenedEntry::File(opened)) => {
                (paths.entry(Some((at.0, &at.1)), &opened.inode), PreparedOpen::File(opened))
            }
        };
        match &found {
            // The kernel opens devices and the like itself.
            PreparedOpen::File(opened) if opened.inode.kind != Kind::File => {
                self.fs.abandon(opened.handle.clone(), Box::new(drop));
            }
            _ => paths.wait(Waiting { node: entry.nodeid, caller, flags, found }),
        }
        reply.entry(&entry);
    }

    /// What waits for this OPEN or OPENDIR, if it is what was foreseen.
    fn waiting(&self, caller: Caller, node: u64, flags: OpenFlags) -> Option<PreparedOpen> {
        let paths = self.naming.paths()?;
        let waiting = paths.waiting(caller.pid)?;
        if !waiting.answers(node, caller, flags) {
            waiting.give_back(&self.fs);
            return None;
        }
        Counters::count(&paths.counters().opens);
        Some(waiting.found)
    }

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

    /// OPENDIR.
    pub fn opendir(self: &Arc<Self>, caller: Caller, node: u64, flags: u32, reply: Reply) {
        let keeps_access_time = flags as i32 & libc::O_NOATIME != 0;
        if node == ROOT && self.locking.as_ref().is_some_and(|locking| locking.is_own(caller.pid)) {
            return self.opened_directory(node, ROOT, keeps_access_time, reply);
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

    /// Opens the directory at a path node's place, that is, checks what `flags` say and learns its
    /// number.
    fn reach(
        self: &Arc<Self>,
        caller: Caller,
        node: u64,
        place: PathRef,
        flags: OpenFlags,
        done: Done<InodeId>,
    ) {
        let core = self.clone();
        let reached = move |found: FsResult<fs::OpenedEntry>| {
            done(match found {
                Ok(fs::OpenedEntry::Directory(inode)) => core.saw(node, &inode),
                Ok(fs::OpenedEntry::File(opened)) => {
                    core.undo_created(opened);
                    Err(core.mistaken(node))
                }
                Err(error) if error.errno == libc::ELOOP => Err(core.mistaken(node)),
                Err(error) => Err(error),
            });
        };
        self.fs.open_at(caller, place, flags, Box::new(reached));
    }

    /// What the kernel holds for a directory is none any more.
    fn mistaken(&self, node: u64) -> FsError {
        if let Some(paths) = self.naming.paths() {
            paths.no_directory(node);
        }
        FsError::new(libc::ESTALE, "it is no directory any more")
    }

    fn opened_directory(&self, node: u64, ino: InodeId, keeps_access_time: bool, reply: Reply) {
        if let Some(paths) = self.naming.paths()
            && !paths.hold(node, ino, false)
        {
            return reply.error(libc::ESTALE);
        }
        let handle = Fs::open_directory(ino);
        if keeps_access_time {
            handle.keep_access_time();
        }
        reply.opened(self.give_directory_number(handle));
    }

    /// ACCESS, which is also chdir(2): a process that may search a directory may work in it from
    /// now on.
    pub fn access(self: &Arc<Self>, caller: Caller, node: u64, mask: u32, reply: Reply) {
        let paths =
            self.naming.paths().filter(|_| is_path(node) && mask & libc::X_OK as u32 != 0).cloned();
        let done = self.asked(caller.pid, reply, move |reply: Reply, ino| match paths {
            Some(paths) if !paths.hold(node, ino, true) => reply.error(libc::ESTALE),
            _ => reply.empty(),
        });
        let reads = mask & libc::W_OK as u32 == 0;
        match self.naming.target(node) {
            NodeTarget::Inode(ino) => {
                self.fs.access(
                    caller,
                    ino,
                    mask,
                    Box::new(move |allowed| done(allowed.map(|()| ino))),
                );
            }
            NodeTarget::At(place) if reads => {
                let [read, exec] = [libc::R_OK, libc::X_OK].map(|bit| mask & bit as u32 != 0);
                let flags = OpenFlags { read, exec, ..OpenFlags::default() };
                self.reach(caller, node, place, flags, done);
            }
            NodeTarget::At(place) => {
                let core = self.clone();
                let found = Box::new(move |found: FsResult<InodeId>| match found {
                    Ok(ino) => {
                        core.fs.access(
                            caller,
                            ino,
                            mask,
                            Box::new(move |allowed| done(allowed.map(|()| ino))),
                        );
                    }
                    Err(error) => done(Err(error)),
                });
                self.find(caller, node, place, found);
            }
            NodeTarget::Gone => done(Err(FsError::new(libc::ESTALE, "the directory is gone"))),
        }
    }

    /// GETATTR and STATX: the attributes of what a node stands for.
    pub fn inode(self: &Arc<Self>, caller: Caller, node: u64, done: Done<Inode>) {
        if !is_path(node) {
            return self.fs.getattr(caller, node, done);
        }
        let core = self.clone();
        // Noted before they are told.
        let seen = move |found: FsResult<Inode>| {
            done(found.and_then(|inode| core.saw(node, &inode).map(|_| inode)));
        };
        self.naming.target(node).attributes(&self.fs, caller, Box::new(seen));
    }

    /// Answers an UNLINK or RMDIR, and takes the name out of the table if it is gone.
    pub fn removing(
        self: &Arc<Self>,
        pid: u32,
        at: (u64, Name),
        reply: Reply,
    ) -> Done<Option<Box<Inode>>> {
        let (core, done) = (self.clone(), self.empty(pid, reply));
        Box::new(move |removed| {
            done(removed.map(|gone| core.naming.removed(at.0, &at.1, gone)));
        })
    }

    /// Has `act` carry a RENAME out, moves the nodes if it was done, and answers.
    pub fn rename(
        self: &Arc<Self>,
        pid: u32,
        (from, to): ((u64, Name), (u64, Name)),
        exchange: bool,
        reply: Reply,
        act: impl FnOnce(&Arc<Self>, Done<Option<Box<Inode>>>) + Send + 'static,
    ) {
        let done = self.empty(pid, reply);
        let Some(paths) = self.naming.paths() else {
            return act(self, Box::new(move |renamed: FsResult<_>| done(renamed.map(drop))));
        };
        let leaving = paths.leaving((from.0, &from.1), (to.0, &to.1), exchange);
        let (after, left) = (paths.clone(), leaving.clone());
        let done = move |renamed: FsResult<_>| {
            let when =
                renamed.map(|gone| after.renamed((from.0, &from.1), (to.0, &to.1), exchange, gone));
            after.recalled(&left);
            match when {
                Ok(when) => after.tell(when, move || done(Ok(()))),
                Err(error) => done(Err(error)),
            }
        };
        let core = self.clone();
        paths.recall(&leaving, move || act(&core, Box::new(done)));
    }

    /// Has `act` carry a SETATTR of a node out that sets `mode`, and answers.
    pub fn change(
        self: &Arc<Self>,
        node: u64,
        mode: Option<u16>,
        done: Done<Inode>,
        act: impl FnOnce(&Arc<Self>, Done<Inode>) + Send + 'static,
    ) {
        let Some(paths) = self.naming.paths().filter(|_| is_path(node) || node == ROOT) else {
            return act(self, done);
        };
        let closes = mode.is_some_and(|mode| u32::from(mode) & SEARCH_ALL != SEARCH_ALL);
        let closing = if closes { vec![node] } else { Vec::new() };
        let (after, closed) = (paths.clone(), closing.clone());
        let done = move |changed: FsResult<Inode>| {
            let when = changed.as_ref().ok().and_then(|inode| after.changed(node, inode));
            after.recalled(&closed);
            after.tell(when, move || done(changed));
        };
        let core = self.clone();
        paths.recall(&closing, move || act(&core, Box::new(done)));
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
}
