//! The model's clones: a clone is a copy of a tree, made at once.
//!
//! What is below the clone has numbers that no reply has shown yet ([`UNSEEN`]). Of a file with
//! several names a node takes off those outside the cloned tree when the clone has ended, which the
//! model does not see: until then and after that both counts are right ([`ModelInode::outside`]).
//! A file of a clone without a name may be found by its number until then.

use std::collections::BTreeMap;
use std::sync::Arc;

use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::perm::{CAPABILITY, SET_GID, SET_UID};
use kestrel_types::request::{Creds, Op, Reply};
use kestrel_types::snapshot::SnapshotId;

use super::{EXEC, MaybeReply, Model, ModelInode, Run, UNSEEN, WRITE, code};
use crate::target;

/// Files and directories by number.
type Nodes = BTreeMap<u64, Arc<ModelInode>>;

impl Model {
    /// Runs CloneDir; the number of the clone.
    pub(super) fn clone_dir(
        &mut self,
        creds: &Creds,
        (source, at): (u64, Option<SnapshotId>),
        place: &PathRef,
        reply: MaybeReply<'_>,
    ) -> Run<u64> {
        let (parent, there) = self.walk(creds, place)?;
        if there.is_some() {
            return Err(libc::EEXIST);
        }
        self.names_change(parent)?;
        self.allowed(creds, parent, WRITE | EXEC)?;
        let nodes = match at {
            None => &self.nodes,
            Some(at) => {
                let mut known = self.snapshots.iter();
                known.find(|past| past.id == at).ok_or(libc::ESTALE)?.nodes()
            }
        };
        let top = nodes.get(&source).filter(|top| top.kind == Kind::Dir);
        let top = top.ok_or_else(|| {
            // A node finds a file by its number alone if its record lies apart from its names; one
            // that was removed as long as clients may claim that they have it open.
            let is_found = reply.is_some_and(|reply| code(reply) == libc::ENOTDIR);
            if is_found { libc::ENOTDIR } else { libc::ENOENT }
        })?;
        if ![0, top.uid].contains(&creds.uid) {
            return Err(libc::EPERM);
        }
        if at.is_none() && self.above(source, parent) {
            return Err(libc::EINVAL);
        }
        let copied = copies(nodes, source, creds);
        let (ino, data_change) = self.numbers(reply)?;
        let mut numbers = BTreeMap::from([(source, ino)]);
        for old in copied.keys().filter(|old| **old != source) {
            self.unseen += 1;
            numbers.insert(*old, UNSEEN + self.unseen);
        }
        for (old, mut node) in copied {
            node.ctime = self.now;
            node.data_change = if old == source { data_change } else { 0 };
            node.parent = numbers.get(&node.parent).copied().unwrap_or(parent);
            node.children.values_mut().for_each(|child| *child = numbers[child]);
            self.nodes.insert(numbers[&old], Arc::new(node));
        }
        // Of a clone in its own source's parent the old parent is no part of the copy.
        self.node_mut(ino).parent = parent;
        self.node_mut(parent).children.insert(place.name.as_bytes().to_vec(), ino);
        self.node_mut(parent).nlink += 1;
        self.touch_dir(parent);
        Ok(ino)
    }

    /// Whether a request names a file of a clone that has no name, and that its reply says is gone.
    pub(super) fn has_ended(&self, op: &Op, reply: &Reply) -> Option<u64> {
        let node = |ino: &u64| self.nodes.get(ino).filter(|node| node.is_left_over());
        let file = target(op).map(|file| file.ino).filter(|ino| node(ino).is_some());
        file.filter(|_| code(reply) == libc::ESTALE)
    }
}

impl ModelInode {
    /// Whether a file has no name, is not open, and may be there until its clone has ended.
    pub(super) fn is_left_over(&self) -> bool {
        self.kind != Kind::Dir && (self.nlink, self.opens) == (0, 0) && self.outside > 0
    }

    /// Whether a reply may say that there are so many names.
    pub(super) fn may_have_names(&self, names: u32) -> bool {
        (self.nlink..=self.nlink + self.outside).contains(&names)
    }
}

/// How many names everything in the tree of a directory has in it; the directory itself none.
fn names_below(nodes: &Nodes, dir: u64) -> BTreeMap<u64, u32> {
    let mut names = BTreeMap::new();
    let mut dirs: Vec<u64> = nodes.get(&dir).map(|_| dir).into_iter().collect();
    while let Some(dir) = dirs.pop() {
        for child in nodes[&dir].children.values() {
            *names.entry(*child).or_insert(0) += 1;
            if nodes[child].kind == Kind::Dir {
                dirs.push(*child);
            }
        }
    }
    names
}

/// The tree of a directory as its clone has it, under the old numbers.
fn copies(nodes: &Nodes, dir: u64, creds: &Creds) -> BTreeMap<u64, ModelInode> {
    let mut names = names_below(nodes, dir);
    names.insert(dir, 0);
    let mut copies = BTreeMap::new();
    for (ino, names) in names {
        let mut node = (*nodes[&ino]).clone();
        (node.opens, node.linkable) = (0, false);
        if node.kind != Kind::Dir {
            node.outside += node.nlink - names;
            node.nlink = names;
        }
        if node.kind == Kind::File && creds.uid != 0 && creds.uid != node.uid {
            node.mode &= !(SET_UID | SET_GID);
            node.xattrs.remove(CAPABILITY);
        }
        copies.insert(ino, node);
    }
    copies
}
