//! Steps about snapshots, clones and policies.

use std::sync::Arc;

use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::policy::{PolicyField, XATTR_PREFIX};
use kestrel_types::request::{Creds, Done, Op, OpenFlags, Reply, Request, XattrFlags};
use kestrel_types::snapshot::SnapshotId;
use parking_lot::Mutex;

use super::super::errno;
use super::{NAMES, Raw, World, name};

const SNAPSHOT_NAMES: [&str; 4] = ["s", "t", "u", "_v"];

/// Clones of clones would grow without end: none is made in a tree with more inodes.
const CLONED_MAX: usize = 120;

fn snapshot_name(dice: u8) -> Name {
    name(SNAPSHOT_NAMES[usize::from(dice) % SNAPSHOT_NAMES.len()])
}

/// Whether an operation makes, changes, lists or reads snapshots, or makes a clone.
pub fn is_of_snapshots(op: &Op) -> bool {
    matches!(
        op,
        Op::At(..)
            | Op::SnapshotCreate { .. }
            | Op::SnapshotRename { .. }
            | Op::SnapshotRemove { .. }
            | Op::SnapshotHold { .. }
            | Op::SnapshotList { .. }
            | Op::CloneDir { .. }
    )
}

impl World {
    /// A snapshot is made, changed or listed.
    pub(super) fn snapshot_op(&self, raw: Raw) -> Op {
        let all = &self.model.snapshots;
        let make = |dir| Op::SnapshotCreate { dir, name: snapshot_name(raw.c) };
        let Some(past) = all.get(usize::from(raw.a) % all.len().max(1)) else {
            return make(ROOT);
        };
        let (dir, name) = match raw.b % 8 {
            0 => (self.dir(raw.b), snapshot_name(raw.c)),
            _ => (past.dir, past.name.clone()),
        };
        match raw.d % 16 {
            0..=2 => make(self.dir(raw.b)),
            3 | 4 => Op::SnapshotRemove { dir, name },
            5..=7 => Op::SnapshotRename { dir, from: name, to: snapshot_name(raw.c) },
            8..=10 => Op::SnapshotHold { dir, name, tag: snapshot_name(raw.c), hold: true },
            11..=13 => {
                // The tag that is there, if one is.
                let tag = past.holds.first().map(|tag| Name::new(tag).unwrap());
                let tag = tag.unwrap_or_else(|| snapshot_name(raw.c));
                Op::SnapshotHold { dir, name, tag, hold: false }
            }
            14 => Op::SnapshotList { dir: None, ancestors: false },
            _ => Op::SnapshotList { dir: Some(self.dir(raw.b)), ancestors: raw.c % 2 == 0 },
        }
    }

    /// Something is read at a snapshot.
    pub(super) fn past_op(&self, raw: Raw) -> Op {
        let all = &self.model.snapshots;
        let past = all.get(usize::from(raw.c / 16) % all.len().max(1));
        let id = past.map_or(1, |past| past.id);
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        let inode = self.inode(raw.a, raw.b);
        let dir = self.dir(raw.a);
        let op = match raw.c % 16 {
            0..=3 => Op::ReadDir { dir, after: None, limit: 4096, check: true },
            4 | 5 => Op::Lookup(PathRef::new(dir, name(NAMES[usize::from(raw.b) % 4]))),
            6 => Op::GetAttr(inode),
            7 if raw.d % 2 == 0 => Op::RemovalCheck { dir, after: None, limit: 4096 },
            7 => Op::ReadDirPlus { dir, after: None, limit: 4096 },
            8 => Op::Open(inode, read),
            9 => Op::ListXattr(inode),
            10 => Op::GetXattr(inode, b"user.x"[..].into()),
            11 => Op::Chunks { ino: inode.ino, first: 0, last: 10 },
            12 => Op::TreeUsage(dir),
            13 => Op::Access(inode, u32::from(raw.d % 8)),
            14 => Op::ReadLink(inode),
            _ => Op::Unlink(self.place(raw.a, raw.b)),
        };
        Op::At(id, Box::new(op))
    }

    /// A clone is made, of the present or of a snapshot, mostly at a place that is free.
    pub(super) fn clone_op(&self, raw: Raw) -> Op {
        let all = &self.model.snapshots;
        let past = all.get(usize::from(raw.c / 8) % all.len().max(1));
        let at = past.filter(|_| raw.c % 8 < 4).map(|past| past.id);
        let place = match raw.b % 4 {
            0 => self.place(raw.b, raw.d),
            _ => PathRef::new(ROOT, name(NAMES[usize::from(raw.d) % 4])),
        };
        // The present root would be cloned into itself.
        let full = self.such(raw.a, raw.c, |node| node.children.values().len() > 0);
        let source = if full.ino == ROOT && at.is_none() { self.dir(raw.d) } else { full.ino };
        if self.model.nodes.len() > CLONED_MAX {
            return Op::Lookup(place);
        }
        match raw.who % 32 {
            0 => Op::CloneDir { source: self.inode(raw.a, raw.c).ino, at, place },
            1 => Op::CloneDir { source, at: Some(1), place },
            _ => Op::CloneDir { source, at, place },
        }
    }

    /// A policy is set, unset or looked at. Few are of immutable trees, and they go soon, or
    /// nothing could change.
    pub(super) fn policy_op(&self, raw: Raw) -> Op {
        // Of the trash: `tests/trash.rs`.
        let fields = [PolicyField::Consistency, PolicyField::Compression];
        let field = fields[usize::from(raw.b) % fields.len()];
        let key = |name: &str| [XATTR_PREFIX, name.as_bytes()].concat().into_boxed_slice();
        let values = field.values().split(", ").flat_map(|some| some.split(" or "));
        let values: Vec<&str> = values.collect();
        let value = values[usize::from(raw.c) % values.len()];
        let kept = self.model.nodes.iter().find(|(_, node)| node.policy.is_immutable());
        if let Some((dir, _)) = kept.filter(|_| raw.d % 4 != 0) {
            return Op::RemoveXattr(InodeRef::by_id(*dir), key("consistency"));
        }
        let inode = InodeRef::by_id(self.dir(raw.a));
        let own = key(field.name());
        match raw.d % 8 {
            0..=3 if value != "immutable" || inode.ino != ROOT => {
                let flags = XattrFlags { create: raw.c % 8 == 0, replace: raw.c % 8 == 1 };
                Op::SetXattr(inode, own, value.as_bytes().into(), flags)
            }
            4 => Op::GetXattr(inode, key("policy")),
            5 => Op::GetXattr(inode, own),
            _ => Op::RemoveXattr(inode, own),
        }
    }

    /// One step of what follows the removal of snapshots, and now and then one of what a clone
    /// lacks, which a fault may fail.
    pub(super) fn tidy(&self) {
        if self.trace.len() % 8 == 0 {
            let tidied = self.fixture().node.tidy_clones();
            assert!(self.faults || tidied.is_ok(), "{tidied:?}");
        }
        let tidied = self.fixture().node.tidy_history();
        assert!(self.faults || tidied.is_ok(), "{tidied:?}");
    }

    /// Compares the tree of each snapshot, and removes them one after the other, in an order that
    /// differs; no history is left then.
    pub(super) fn finish_snapshots(&mut self) -> Result<(), String> {
        while let Some(last) = self.model.snapshots.len().checked_sub(1) {
            for index in 0..=last {
                self.compare_past(self.model.snapshots[index].id)?;
            }
            let past = self.model.snapshots[self.known.len() % (last + 1)].clone();
            let (dir, name) = (past.dir, past.name.clone());
            for tag in &past.holds {
                let (name, tag) = (name.clone(), Name::new(tag).unwrap());
                self.change(Op::SnapshotHold { dir, name, tag, hold: false })?;
            }
            self.change(Op::SnapshotRemove { dir, name })?;
            self.tidy_all();
        }
        self.tidy_all();
        Ok(())
    }

    fn tidy_all(&self) {
        // Faults that were injected and not met yet fail a step, which can be tried again.
        while self.fixture().node.tidy_clones().unwrap_or(true) {}
        while self.fixture().node.tidy_history().unwrap_or(true) {}
        self.fixture().node.engine().sync().unwrap();
    }

    /// Runs a request by itself, at a node that may answer after a sync alone.
    fn change(&mut self, op: Op) -> Result<(), String> {
        let root = Creds::root();
        loop {
            let heard: Arc<Mutex<Option<Reply>>> = Arc::default();
            let sink = heard.clone();
            let done: Done = Box::new(move |reply| *sink.lock() = Some(reply));
            self.fixture().node.submit(Request { creds: root.clone(), op: op.clone() }, done);
            self.fixture().node.engine().sync().unwrap();
            let reply = heard.lock().take().ok_or("no reply after the sync")?;
            if ![libc::EIO, libc::ENOSPC].contains(&errno(&reply)) {
                return self.judge(&root, &op, &reply);
            }
        }
    }

    /// Looks at everything there was at a snapshot.
    fn compare_past(&mut self, id: SnapshotId) -> Result<(), String> {
        let root = Creds::root();
        let at = |op: Op| Op::At(id, Box::new(op));
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            self.single(&root, at(Op::GetAttr(InodeRef::by_id(dir))))?;
            let list = Op::ReadDir { dir, after: None, limit: 4096, check: false };
            self.single(&root, at(list))?;
            self.single(&root, at(Op::TreeUsage(dir)))?;
            let nodes = self.model.past(id).unwrap().nodes().clone();
            for (name, ino) in &nodes[&dir].children {
                let name = Name::new(name).unwrap();
                self.single(&root, at(Op::Lookup(PathRef::new(dir, name.clone()))))?;
                let seen = InodeRef { ino: *ino, seen: Some((dir, name)) };
                self.single(&root, at(Op::ListXattr(seen)))?;
                self.single(&root, at(Op::Chunks { ino: *ino, first: 0, last: 10 }))?;
                dirs.extend((nodes[ino].kind == Kind::Dir).then_some(*ino));
            }
        }
        self.single(&root, Op::SnapshotList { dir: None, ancestors: false })
    }
}
