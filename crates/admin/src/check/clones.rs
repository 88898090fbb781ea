//! Clones that are not finished: their records, and the rows of table `clone`.

use std::collections::{BTreeMap, BTreeSet};

use kestrel_engine::EngineError;
use kestrel_types::clone::{CloneId, CloneInfo, CloneRow, ClonedLink, PendingDir, RECORD_PREFIX};
use kestrel_types::entry::Entry;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, Table};

use super::{Check, World};
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::rows::{Rows, delete, put, readable};

/// What clones still need.
#[derive(Default)]
pub struct Clones {
    /// Those that records tell of.
    known: BTreeSet<CloneId>,
    /// Directories that lack names, by clone.
    pending: BTreeMap<InodeId, CloneId>,
    /// New files of which a part of the extents has been copied: they have no names yet.
    partial: BTreeSet<InodeId>,
    /// By new file: names that it counts, and that have not come into being.
    missing: BTreeMap<InodeId, u32>,
}

impl Clones {
    /// The record of a snapshot tells of these.
    pub fn know(&mut self, clones: &[CloneInfo]) {
        self.known.extend(clones.iter().map(|clone| clone.id));
    }

    /// Whether a directory lacks names, so that its sums are not those of its entries.
    pub fn lacks_names(&self, dir: InodeId) -> bool {
        self.pending.contains_key(&dir)
    }

    /// Whether there are directories that lack names.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether a file without a record is being copied.
    pub fn is_copied(&self, ino: InodeId) -> bool {
        self.partial.contains(&ino)
    }

    /// Names that a file counts, and that have not come into being.
    pub fn missing_names(&self, ino: InodeId) -> u32 {
        self.missing.get(&ino).copied().unwrap_or(0)
    }
}

/// Reads the records and rows. Those that nobody can use are removed.
pub fn records(check: &mut Check<'_>) -> Result<(), EngineError> {
    for row in Rows::from(check.engine, Table::System, 0, RECORD_PREFIX) {
        let (key, value) = row?;
        let why = match CloneInfo::decode_own_record(&key.suffix, &value) {
            None => break,
            Some(Ok(info)) if check.snapshots.binary_search(&info.snapshot).is_ok() => {
                check.clones.known.insert(info.id);
                continue;
            }
            Some(Ok(info)) => format!("its snapshot {} is not there", info.snapshot),
            Some(Err(why)) => why.to_string(),
        };
        let finding = Finding::new(FindingKind::CloneWrong, readable(&key.suffix), why);
        check.found(finding.with(Stage::Numbers, "removed", Act::Rows(vec![delete(&key)])));
    }
    for row in check.rows(Table::Clone) {
        let (key, value) = row?;
        check.row("checking clones");
        if let Err(why) = note(&mut check.clones, &key, &value) {
            let path = format!("clone {} {}", key.id, readable(&key.suffix));
            let finding = Finding::new(FindingKind::CloneWrong, path, why);
            check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
        }
    }
    Ok(())
}

fn note(clones: &mut Clones, key: &Key, value: &[u8]) -> Result<(), String> {
    if !clones.known.contains(&key.id) {
        return Err("there is no record of the clone".into());
    }
    match CloneRow::of(&key.suffix).ok_or("a row that no clone has")? {
        CloneRow::Pending(dir) => {
            let pending = PendingDir::decode(value).map_err(|why| why.to_string())?;
            clones.pending.insert(dir, key.id);
            clones.partial.extend(pending.file.map(|file| file.ino));
        }
        CloneRow::Link(_) => {
            let link = ClonedLink::decode(value).map_err(|why| why.to_string())?;
            clones.missing.insert(link.ino, link.total.saturating_sub(link.names));
        }
    }
    Ok(())
}

/// Looks at a directory's record: one that says that it lacks names, and of which nobody knows
/// where they come from, keeps those that it has.
pub fn directory(check: &mut Check<'_>, world: &mut World, key: &Key, inode: &Inode) {
    let Ok(mut policy) = inode.policy() else { return };
    let Some(base) = policy.base else { return };
    if check.clones.pending.get(&inode.ino) == Some(&base.get()) {
        world.based.insert(inode.ino);
        return;
    }
    policy.base = None;
    let mut right = inode.clone();
    right.set_policy(policy);
    let rows = vec![put(key.table, key.id, &key.suffix, Entry::Inode(right).encode())];
    let detail = format!("it lacks names of clone {base}, and nothing says where they come from");
    let path = check.path(key.id, &key.suffix);
    let finding = Finding::new(FindingKind::CloneWrong, path, detail);
    check.found(finding.with(Stage::Derived, "it keeps the names that it has", Act::Rows(rows)));
}

/// Looks for rows about directories that lack no names.
pub fn check(check: &mut Check<'_>, world: &World) {
    let pending: Vec<(InodeId, CloneId)> =
        check.clones.pending.iter().map(|(dir, clone)| (*dir, *clone)).collect();
    for (dir, clone) in pending {
        if world.based.contains(dir) || world.unjudged.contains(dir) {
            continue;
        }
        let detail = format!("clone {clone} has a row for it, and it lacks no names");
        let path = check.dir_path(dir);
        let finding = Finding::new(FindingKind::CloneWrong, path, detail);
        let rows = vec![delete(&PendingDir::key(clone, dir))];
        check.found(finding.with(Stage::Derived, "removed", Act::Rows(rows)));
        check.clones.pending.remove(&dir);
    }
}
