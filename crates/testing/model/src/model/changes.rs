//! What may differ between two snapshots, as nodes tell it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_types::inode::{Inode, Kind};
use kestrel_types::request::{Answer, Reply};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{ChangedDir, ChangedName, SnapshotChanges};

use super::{Model, ModelInode, UNSEEN, code};

/// Files and directories by number.
type Nodes = BTreeMap<u64, Arc<ModelInode>>;

/// The trees of a directory at two moments.
struct Trees<'a> {
    older: &'a Nodes,
    newer: &'a Nodes,
    /// Directories that are in the tree at both.
    both: BTreeSet<u64>,
}

impl Model {
    /// Judges the reply to SnapshotChanges of a directory. A caller that is not the superuser may
    /// be refused some directory. What one node tells of the present is of no moment.
    pub(super) fn judge_changes(
        &self,
        (is_root, dir): (bool, u64),
        (older, newer): (SnapshotId, Option<SnapshotId>),
        reply: &Reply,
    ) -> Result<(), String> {
        let Some(newer) = newer else { return Ok(()) };
        let wrong = |expected: &str| {
            let got = code(reply);
            Err(format!("changes from {older} to {newer}: expected {expected}, got {got}"))
        };
        let may_be_gone = |id| self.snapshots.iter().all(|past| past.id != id);
        let moments = self.past(older).zip(self.past(newer));
        match (reply, code(reply), moments) {
            (_, libc::EINVAL, _) if newer <= older => Ok(()),
            (_, libc::ESTALE, _) if may_be_gone(older) || may_be_gone(newer) => Ok(()),
            (_, _, None) => wrong("ESTALE"),
            (_, libc::EACCES, _) if !is_root => Ok(()),
            (reply, got, Some((was, is))) => {
                let trees = Trees::of(was.nodes(), is.nodes(), dir);
                match (reply, trees) {
                    (Ok(Answer::SnapshotChanges(page)), Some(trees)) => {
                        trees.judge(page).or_else(|why| wrong(&why))
                    }
                    (_, None) if got == libc::ENOENT => Ok(()),
                    (_, None) => wrong("ENOENT"),
                    (_, Some(_)) => wrong("changes"),
                }
            }
        }
    }
}

/// Directories from one on.
fn dirs_of(nodes: &Nodes, top: u64) -> Option<BTreeSet<u64>> {
    nodes.get(&top).filter(|node| node.kind == Kind::Dir)?;
    let (mut found, mut left) = (BTreeSet::new(), vec![top]);
    while let Some(dir) = left.pop() {
        found.insert(dir);
        let below = nodes[&dir].children.values();
        left.extend(below.filter(|child| nodes[child].kind == Kind::Dir));
    }
    Some(found)
}

/// Whether an inode was told as it was; what no reply has shown is not compared.
fn fits(nodes: &Nodes, ino: Option<u64>, told: Option<&Inode>) -> bool {
    match (ino, told) {
        (None, told) => told.is_none(),
        (Some(ino), Some(told)) if ino < UNSEEN => {
            let node = &nodes[&ino];
            let of_file = node.kind == Kind::Dir || node.size == told.size;
            (ino, node.kind, node.mode, node.uid, node.gid)
                == (told.ino, told.kind, told.mode, told.uid, told.gid)
                && of_file
        }
        (Some(_), told) => told.is_some(),
    }
}

impl<'a> Trees<'a> {
    fn of(older: &'a Nodes, newer: &'a Nodes, dir: u64) -> Option<Self> {
        let (was, is) = (dirs_of(older, dir)?, dirs_of(newer, dir)?);
        Some(Self { older, newer, both: was.intersection(&is).copied().collect() })
    }

    /// Whether what is told is true, and has all that differs if there is no other page.
    fn judge(&self, page: &SnapshotChanges) -> Result<(), String> {
        let mut told: BTreeMap<u64, Vec<&ChangedName>> = BTreeMap::new();
        for ChangedDir { dir, names, .. } in &page.dirs {
            told.entry(*dir).or_default().extend(names);
        }
        let may_be = |dir: &u64| {
            self.both.contains(dir) || self.both.last().is_some_and(|last| *last >= UNSEEN)
        };
        if let Some(dir) = told.keys().find(|dir| !may_be(dir)) {
            return Err(format!("nothing of {dir}, which is not in both trees"));
        }
        for dir in self.both.iter().filter(|dir| **dir < UNSEEN) {
            let (was, is) = (&self.older[dir], &self.newer[dir]);
            let changed = told.get(dir);
            let names: BTreeMap<&[u8], &ChangedName> = changed
                .iter()
                .flat_map(|names| names.iter())
                .map(|name| (name.name.as_bytes(), *name))
                .collect();
            for (name, told) in &names {
                let older = was.children.get(*name).copied();
                let newer = is.children.get(*name).copied();
                if !fits(self.older, older, told.older.as_deref())
                    || !fits(self.newer, newer, told.newer.as_deref())
                {
                    return Err(format!("{name:?} of {dir} as {older:?} and {newer:?}"));
                }
            }
            if page.next.is_some() {
                continue;
            }
            if changed.is_none() && (was.parent, was.mode) != (is.parent, is.mode) {
                return Err(format!("{dir}, which has changed or was moved"));
            }
            for name in was.children.keys().chain(is.children.keys()) {
                let (older, newer) = (was.children.get(name), is.children.get(name));
                if !names.contains_key(&name[..]) && self.must_be_told(older, newer, &page.files) {
                    return Err(format!("{name:?} of {dir}: {older:?} and {newer:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a name has changed, or its file, which is not among those that are told by number.
    fn must_be_told(&self, older: Option<&u64>, newer: Option<&u64>, files: &[u64]) -> bool {
        let (Some(older), Some(newer)) = (older, newer) else { return true };
        let (was, is) = (&self.older[older], &self.newer[newer]);
        if older != newer {
            // Both may be the same, which one reply has shown and the other has not.
            return *older < UNSEEN && *newer < UNSEEN;
        }
        let attributes = |node: &ModelInode| (node.mode, node.uid, node.gid, node.size);
        was.kind != Kind::Dir
            && attributes(was) != attributes(is)
            && !(is.linked && files.contains(newer))
    }
}
