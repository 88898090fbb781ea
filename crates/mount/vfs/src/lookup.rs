//! LOOKUP: an entry of a directory, by its name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use kestrel_client::fs::{Caller, Protected};
use kestrel_fuse::{Entry, Reply};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::inode::Inode;
use kestrel_types::name::{Name, PathRef};
use kestrel_walkhint::Lookup;

use crate::core::Core;
use crate::paths::{Counters, Purpose, WalkUse};
use crate::snapshots::FOREVER;

impl Core {
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
            _ if self.is_snapshot_dir(name) => {
                return self.look_up_snapshot_dir(caller, dir, reply);
            }
            _ => {}
        }
        let Some(paths) = self.naming.paths() else {
            if self.trust.immutable {
                return self.look_up_forever(caller, (dir, name), reply);
            }
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

    /// LOOKUP where nothing changes: that a name is absent stays true, too.
    fn look_up_forever(self: &Arc<Self>, caller: Caller, (dir, name): (u64, &OsStr), reply: Reply) {
        self.placed(caller, (dir, name), reply, |place, name, reply| {
            let (core, fs) = (self.clone(), self.fs.clone());
            let answer = move |reply: Reply, found: FsResult<(Inode, bool)>| match found {
                Ok((inode, _)) => {
                    reply.entry(&core.naming.entry(Some((dir, &name)), &inode, &core.trust));
                }
                Err(error) if error.errno == libc::ENOENT => {
                    reply.entry(&Entry { entry_ttl: FOREVER, ..Entry::default() });
                }
                Err(error) => reply.error(error.errno),
            };
            // The kernel never learned of it.
            let undo = move |found: FsResult<(Inode, bool)>| {
                if let Ok((inode, _)) = found {
                    fs.forget(inode.ino, 1);
                }
            };
            self.fs.lookup_listed(caller, place, self.told(caller.pid, reply, answer, undo));
        });
    }

    /// Looks a name up for real. What should be `ESTALE` is left to the call that makes the name,
    /// if one does.
    pub(crate) fn ask(
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
    pub(crate) fn check_protected(
        self: &Arc<Self>,
        dir: u64,
        protected: Protected,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let checked = move |dir: FsResult<Inode>| done(dir.and_then(|dir| protected.check(&dir)));
        self.inode(Caller::ROOT, dir, Box::new(checked));
    }

    /// A name led to nothing.
    pub(crate) fn not_found(&self, at: &(u64, Name), error: &FsError) {
        let Some(paths) = self.naming.paths() else { return };
        match error.errno {
            libc::ENOENT => paths.absent(at.0, &at.1),
            libc::ESTALE => Counters::count(&paths.counters().stale),
            _ => {}
        }
    }
}
