//! The model's snapshots: each is a copy of the whole tree.
//!
//! A snapshot that was made unheard has a number above [`UNSEEN`] until a listing shows its own.
//! Reading one swaps its tree for the present one while the model judges the reply.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;

use kestrel_types::ids::ROOT;
use kestrel_types::inode::Kind;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds, Op, Reply, Usage};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo, is_snapshot_name};

use crate::target;

use super::oracle::Shown;
use super::{MISFIT, MaybeReply, Model, ModelInode, Run, UNSEEN, code, rename_inode};

/// Files and directories by number.
type Nodes = BTreeMap<u64, Arc<ModelInode>>;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelSnapshot {
    /// Its number; above all real ones if no reply has shown that.
    pub id: SnapshotId,
    /// The directory that it is of.
    pub dir: u64,
    /// Its name.
    pub name: Name,
    /// Tags that keep it.
    pub holds: BTreeSet<Vec<u8>>,
    tree: FrozenTree,
}

/// The tree of a snapshot. Its hash is that of a digest, or each state of a search would hash all
/// trees again.
#[derive(Debug, Clone)]
struct FrozenTree {
    nodes: Arc<Nodes>,
    digest: u64,
}

impl FrozenTree {
    fn new(nodes: Nodes) -> Self {
        let mut hasher = DefaultHasher::new();
        nodes.hash(&mut hasher);
        Self { nodes: Arc::new(nodes), digest: hasher.finish() }
    }
}

impl PartialEq for FrozenTree {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
            && (Arc::ptr_eq(&self.nodes, &other.nodes) || self.nodes == other.nodes)
    }
}

impl Eq for FrozenTree {}

impl Hash for FrozenTree {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl ModelSnapshot {
    /// The files and directories of then.
    pub fn nodes(&self) -> &BTreeMap<u64, Arc<ModelInode>> {
        &self.tree.nodes
    }

    pub(super) fn has_number(&self, ino: u64) -> bool {
        self.tree.nodes.contains_key(&ino)
    }

    pub(super) fn rename_inode(&mut self, unseen: u64, seen: u64) {
        if self.dir == unseen {
            self.dir = seen;
        }
        if self.has_number(unseen) {
            let mut nodes = (*self.tree.nodes).clone();
            rename_inode(&mut nodes, unseen, seen);
            self.tree = FrozenTree::new(nodes);
        }
    }

    /// Whether a directory was below this snapshot's when it was made.
    fn had_below(&self, dir: u64) -> bool {
        let mut at = dir;
        while let Some(node) = self.tree.nodes.get(&at).filter(|_| at != ROOT) {
            at = node.parent;
            if at == self.dir {
                return true;
            }
        }
        false
    }
}

/// Whether an operation may be executed at a snapshot.
fn reads(op: &Op) -> bool {
    match op {
        Op::Open(_, flags) | Op::OpenAt(_, flags) => !flags.write && !flags.truncate,
        Op::Access(_, mask) => mask & 2 == 0,
        Op::AllocObjects(_) | Op::Sync | Op::At(..) | Op::SnapshotList { .. } => false,
        op => !op.is_numbered(),
    }
}

impl Model {
    /// All snapshots that may be read.
    pub(super) fn pasts(&self) -> impl Iterator<Item = &ModelSnapshot> {
        self.snapshots.iter().chain(&self.removed)
    }

    /// A snapshot that may be read, and that a reply has shown.
    pub fn past(&self, id: SnapshotId) -> Option<&ModelSnapshot> {
        self.pasts().find(|past| past.id == id)
    }

    /// Judges the reply to an operation at a snapshot.
    pub(super) fn judge_at(
        &mut self,
        creds: &Creds,
        (id, op): (SnapshotId, &Op),
        reply: &Reply,
    ) -> Result<(), String> {
        if let Some(late) = self.removed.iter().position(|past| past.id == id)
            && code(reply) != libc::ESTALE
        {
            let past = self.removed.remove(late);
            self.snapshots.push(past);
            let judged = self.judge_at(creds, (id, op), reply);
            let past = self.snapshots.pop().unwrap();
            self.removed.insert(late, past);
            return judged;
        }
        let index = self.snapshots.iter().position(|past| past.id == id);
        let refused = if !reads(op) {
            Some(libc::EROFS)
        } else if index.is_none() {
            Some(libc::ESTALE)
        } else {
            None
        };
        let got = code(reply);
        match (refused, index) {
            (Some(errno), _) if errno == got => Ok(()),
            (Some(errno), _) => {
                Err(format!("expected error {errno} at snapshot {id}, got {got} {reply:?}"))
            }
            (None, Some(index)) => {
                self.swap_past(index);
                let judged = match self.is_lost(op) {
                    Some(true) if got == libc::ESTALE => Ok(()),
                    Some(true) => Err(format!("expected an unknown file, got {got} {reply:?}")),
                    Some(false) if got == libc::ESTALE => Ok(()),
                    _ => self.judge(creds, op, reply),
                };
                self.swap_past(index);
                judged.map_err(|why| format!("at snapshot {id}: {why}"))
            }
            (None, None) => Ok(()),
        }
    }

    /// Whether a file that an operation names by number cannot be found. In a snapshot it is found
    /// by the name that it had then, or by its number alone if it had several names. `Some(false)`
    /// if it may have had.
    fn is_lost(&self, op: &Op) -> Option<bool> {
        let file = target(op)?;
        let node = self.nodes.get(&file.ino).filter(|node| node.kind != Kind::Dir)?;
        if self.leads(file) { None } else { Some(!node.linked) }
    }

    /// Swaps the tree of a snapshot for the present one, or back. What is learned of numbers
    /// meanwhile is learned of both.
    fn swap_past(&mut self, index: usize) {
        self.in_past = !self.in_past;
        let tree = &mut self.snapshots[index].tree;
        let past = (*tree.nodes).clone();
        let nodes = mem::replace(&mut self.nodes, past);
        *tree = FrozenTree::new(nodes);
    }

    /// Runs SnapshotCreate; the place of the snapshot among all.
    pub(super) fn make_snapshot(
        &mut self,
        creds: &Creds,
        dir: u64,
        name: &Name,
        reply: MaybeReply<'_>,
    ) -> Run<Shown> {
        if !is_snapshot_name(name) {
            return Err(libc::EINVAL);
        }
        let node = self.nodes.get(&dir).ok_or(libc::ENOENT)?;
        if node.kind != Kind::Dir {
            return Err(libc::ENOTDIR);
        }
        if ![0, node.uid].contains(&creds.uid) {
            return Err(libc::EPERM);
        }
        if self.snapshot_of(dir, name).is_some() {
            return Err(libc::EEXIST);
        }
        let id = match reply {
            Some(Ok(Answer::Snapshots(made))) if made.len() == 1 => made[0].id,
            Some(_) => return Err(MISFIT),
            None => {
                self.unseen += 1;
                UNSEEN + self.unseen
            }
        };
        // Files without names, which somebody has open, are no part of it.
        let mut nodes = self.nodes.clone();
        nodes.retain(|_, node| node.kind == Kind::Dir || node.nlink + node.outside > 0);
        let tree = FrozenTree::new(nodes);
        let (name, holds) = (name.clone(), BTreeSet::new());
        self.snapshots.push(ModelSnapshot { id, dir, name, holds, tree });
        if !self.are_ascending() {
            return Err(MISFIT);
        }
        Ok(Shown::Snapshots(vec![self.snapshots.len() - 1]))
    }

    /// Whether the numbers that are known have the order in which the snapshots were made.
    fn are_ascending(&self) -> bool {
        let known = self.snapshots.iter().map(|past| past.id).filter(|id| *id < UNSEEN);
        known.is_sorted_by(|a, b| a < b)
    }

    fn snapshot_of(&self, dir: u64, name: &Name) -> Option<usize> {
        self.snapshots.iter().position(|past| (past.dir, &past.name) == (dir, name))
    }

    /// A snapshot that the caller may change.
    fn snapshot_to_change(&self, creds: &Creds, dir: u64, name: &Name) -> Run<usize> {
        let index = self.snapshot_of(dir, name).ok_or(libc::ENOENT)?;
        let owner = self.nodes.get(&dir).map(|node| node.uid);
        if creds.uid == 0 || owner == Some(creds.uid) { Ok(index) } else { Err(libc::EPERM) }
    }

    pub(super) fn rename_snapshot(
        &mut self,
        creds: &Creds,
        (dir, from): (u64, &Name),
        to: &Name,
    ) -> Run<()> {
        if !is_snapshot_name(to) {
            return Err(libc::EINVAL);
        }
        let index = self.snapshot_to_change(creds, dir, from)?;
        if from != to && self.snapshot_of(dir, to).is_some() {
            return Err(libc::EEXIST);
        }
        self.snapshots[index].name = to.clone();
        Ok(())
    }

    pub(super) fn remove_snapshot(&mut self, creds: &Creds, dir: u64, name: &Name) -> Run<()> {
        let index = self.snapshot_to_change(creds, dir, name)?;
        if !self.snapshots[index].holds.is_empty() {
            return Err(libc::EBUSY);
        }
        let past = self.snapshots.remove(index);
        if self.late_reads {
            self.removed.push(past);
        }
        Ok(())
    }

    pub(super) fn hold_snapshot(
        &mut self,
        creds: &Creds,
        (dir, name): (u64, &Name),
        tag: &Name,
        hold: bool,
    ) -> Run<()> {
        let index = self.snapshot_to_change(creds, dir, name)?;
        let holds = &mut self.snapshots[index].holds;
        match (holds.contains(tag.as_bytes()), hold) {
            (true, true) => return Err(libc::EEXIST),
            (false, false) => return Err(libc::ENOENT),
            (false, true) => holds.insert(tag.as_bytes().to_vec()),
            (true, false) => holds.remove(tag.as_bytes()),
        };
        Ok(())
    }

    /// Runs SnapshotList.
    pub(super) fn list_snapshots(
        &self,
        creds: &Creds,
        dir: Option<u64>,
        ancestors: bool,
    ) -> Run<Shown> {
        let Some(dir) = dir else {
            let all = (0..self.snapshots.len()).collect();
            return if creds.uid == 0 { Ok(Shown::Snapshots(all)) } else { Err(libc::EPERM) };
        };
        if self.nodes.get(&dir).is_none_or(|node| node.kind != Kind::Dir) {
            return Err(libc::ENOENT);
        }
        let is_shown = |past: &ModelSnapshot| {
            let above = past.dir != dir && self.above(past.dir, dir);
            past.dir == dir || ancestors && above && past.had_below(dir)
        };
        let all = self.snapshots.iter().enumerate();
        Ok(Shown::Snapshots(all.filter(|(_, past)| is_shown(past)).map(|(at, _)| at).collect()))
    }

    /// Compares a listing of snapshots. The reply to a listing of all has those in removal, too.
    pub(super) fn same_snapshots(
        &mut self,
        shown: &[usize],
        real: &[SnapshotInfo],
    ) -> Result<(), String> {
        let real: Vec<&SnapshotInfo> = real.iter().filter(|info| !info.removing).collect();
        let wrong = |model: &Self| {
            let expected: Vec<_> =
                shown.iter().map(|index| model.snapshots[*index].brief()).collect();
            Err(format!("expected snapshots {expected:?}, got {real:?}"))
        };
        if real.len() != shown.len() {
            return wrong(self);
        }
        for (index, info) in shown.iter().zip(&real) {
            let dir = self.show(self.snapshots[*index].dir, info.dir);
            let past = &self.snapshots[*index];
            let holds: Vec<&[u8]> = info.holds.iter().map(Name::as_bytes).collect();
            let fits = (dir, &past.name) == (info.dir, &info.name)
                && past.holds.iter().map(Vec::as_slice).eq(holds)
                && (past.id == info.id || past.id >= UNSEEN);
            if !fits {
                return wrong(self);
            }
            self.snapshots[*index].id = info.id;
        }
        if self.are_ascending() { Ok(()) } else { wrong(self) }
    }

    /// The figures of the tree of a directory, and whether its bytes are known: those of files that
    /// have had several names are not counted, once they are kept by number.
    pub(super) fn usage_of(&self, dir: u64) -> Run<(Usage, bool)> {
        let is_dir = self.nodes.get(&dir).is_some_and(|node| node.kind == Kind::Dir);
        if !is_dir {
            return Err(libc::ENOENT);
        }
        let (mut usage, mut is_known, mut dirs) = (Usage::default(), true, vec![dir]);
        while let Some(dir) = dirs.pop() {
            for child in self.nodes[&dir].children.values() {
                let node = &self.nodes[child];
                if node.kind == Kind::Dir {
                    usage.dirs += 1;
                    dirs.push(*child);
                } else {
                    usage.files += 1;
                    usage.bytes += node.size;
                    is_known &= !node.linked;
                }
            }
        }
        Ok((usage, is_known))
    }
}

impl ModelSnapshot {
    fn brief(&self) -> (SnapshotId, u64, &Name, &BTreeSet<Vec<u8>>) {
        (self.id, self.dir, &self.name, &self.holds)
    }
}
