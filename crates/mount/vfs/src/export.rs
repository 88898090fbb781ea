//! File handles (`name_to_handle_at(2)`, `open_by_handle_at(2)`, NFS): the kernel keeps a node's
//! number and generation in them, and asks for a node that it has forgotten by LOOKUP of `.` in it,
//! and of `..` for the directory above one.

use std::sync::Arc;

use kestrel_client::fs::{Caller, Done};
use kestrel_fuse::Reply;
use kestrel_types::inode::Inode;

use crate::core::Core;
use crate::naming::Naming;
use crate::paths::is_path;

impl Core {
    /// LOOKUP of `.`: a node by its number.
    pub(crate) fn lookup_handle(self: &Arc<Self>, pid: u32, node: u64, reply: Reply) {
        let ino = match &self.naming {
            Naming::Numbers => Some(node),
            Naming::Paths(paths) if is_path(node) => paths.directory_of(node),
            Naming::Paths(_) => Some(node),
        };
        match ino {
            Some(ino) => self.fs.lookup_number(ino, self.numbered_entry(pid, Some(node), reply)),
            None => reply.error(libc::ESTALE),
        }
    }

    /// LOOKUP of `..`: the directory above one.
    pub(crate) fn lookup_above(self: &Arc<Self>, caller: Caller, node: u64, reply: Reply) {
        self.numbered(caller, node, reply, move |core, ino, reply| {
            // The kernel connects a directory to the tree; the caller's rights are looked at when
            // it is used.
            core.fs.parent(Caller::ROOT, ino, core.numbered_entry(caller.pid, None, reply));
        });
    }

    /// Tells of an inode that was asked for by number.
    fn numbered_entry(
        self: &Arc<Self>,
        pid: u32,
        wanted: Option<u64>,
        reply: Reply,
    ) -> Done<Inode> {
        let (core, fs) = (self.clone(), self.fs.clone());
        let answer = move |reply: Reply, inode: Inode| {
            let entry = match &core.naming {
                Naming::Numbers => Some(core.naming.entry(None, &inode, &core.trust)),
                Naming::Paths(paths) => paths.numbered_entry(wanted, &inode),
            };
            match entry {
                Some(entry) => reply.entry(&entry),
                None => reply.error(libc::ESTALE),
            }
        };
        // A search for a file takes as long as reading all names does.
        self.patient_or_undo(pid, reply, answer, move |inode| fs.forget(inode.ino, 1))
    }
}
