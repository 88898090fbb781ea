//! The shortcut of walks: a LOOKUP of which the walk hint tells that an open follows opens at once,
//! and the OPEN that follows is answered with that. How a LOOKUP is answered is planned in
//! [`crate::paths`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kestrel_client::fs::{self, Caller};
use kestrel_fuse::{Operation, Reply, Request};
use kestrel_types::error::FsResult;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::Name;
use kestrel_types::request::OpenFlags;

use crate::core::Core;
use crate::paths::{Counters, LookupPlan, PreparedOpen, Purpose, Waiting};

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

    /// Answers a LOOKUP as planned.
    pub(crate) fn planned(
        self: &Arc<Self>,
        caller: Caller,
        at: (u64, Name),
        plan: LookupPlan,
        reply: Reply,
    ) {
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
                let entry = paths.directory(at.0, &at.1, &inode);
                self.kept_dirs.note(entry.nodeid, &inode);
                (entry, PreparedOpen::Directory(inode.ino))
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
    pub(crate) fn waiting(
        &self,
        caller: Caller,
        node: u64,
        flags: OpenFlags,
    ) -> Option<PreparedOpen> {
        let paths = self.naming.paths()?;
        let waiting = paths.waiting(caller.pid)?;
        if !waiting.answers(node, caller, flags) {
            waiting.give_back(&self.fs);
            return None;
        }
        Counters::count(&paths.counters().opens);
        Some(waiting.found)
    }
}
