//! GETATTR, STATX, SETATTR and ACCESS, of nodes that may be paths.

use std::sync::Arc;

use kestrel_client::fs::{Caller, Done};
use kestrel_fuse::Reply;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::request::OpenFlags;

use crate::core::Core;
use crate::paths::{NodeTarget, SEARCH_ALL, is_path};

impl Core {
    /// GETATTR and STATX: the attributes of what a node stands for.
    pub fn inode(self: &Arc<Self>, caller: Caller, node: u64, done: Done<Inode>) {
        if let Some(inode) = self.kept_dirs.attributes(node) {
            return done(Ok(inode));
        }
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

    /// Has `act` carry out a SETXATTR or REMOVEXATTR of a node, and answers. The access ACL of a
    /// directory says as its mode does which users may search it.
    pub fn change_acl(
        self: &Arc<Self>,
        node: u64,
        is_access: bool,
        done: Done<()>,
        act: impl FnOnce(&Arc<Self>, Done<()>) + Send + 'static,
    ) {
        let is_dir = is_path(node) || node == ROOT;
        let Some(paths) = self.naming.paths().filter(|_| is_access && is_dir) else {
            return act(self, done);
        };
        let (core, after) = (self.clone(), paths.clone());
        let done = move |changed: FsResult<()>| {
            let shown = move |shown: FsResult<Inode>| {
                let when = shown.ok().and_then(|inode| after.changed(node, &inode));
                after.recalled(&[node]);
                after.tell(when, move || done(changed));
            };
            core.naming.target(node).attributes(&core.fs, Caller::ROOT, Box::new(shown));
        };
        let core = self.clone();
        paths.recall(&[node], move || act(&core, Box::new(done)));
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
}
