//! Clones at a node: names for directories that lack them, and the end of a clone
//! ([`crate::clones`] has the rules).
//!
//! | file | what it has |
//! | --- | --- |
//! | `clones/names.rs` | the rows of the next names of a directory |
//! | `clones/rows.rs` | where these come from: rows of this node, or told by others |
//! | `clones/spread.rs` | the same where several nodes share the volume |
//! | `clones/ending.rs` | what follows when all directories of a clone have their names |
//! | `clones/figures.rs` | the figures of a tree in which directories lack names |
//!
//! Everything that writes runs with every worker's state held, a bounded part at a time; other
//! requests are served between two parts. A crash leaves a part wholly or not at all, and the row
//! of the directory says where to go on.

mod ending;
mod figures;
mod names;
mod rows;
mod spread;

pub use spread::{CloneJob, ClonePart, ClonesLack, DirLacks, SourceRead};

use kestrel_engine::{BatchKind, Engine, Mutation};
use kestrel_types::clone::{CloneInfo, CloneRow, PendingDir};
use kestrel_types::crash;
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::request::{Answer, Creds, Reply};
use kestrel_types::snapshot::SnapshotId;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::Node;
use super::snapshots::NOT_THERE;
use crate::history::at::SnapshotEngine;
use crate::perm;
use crate::stop::engine_error;
use names::{BYTES_MAX, Limits, NAMES_MAX, Next, Part};
use rows::{EngineRows, dir_record, source_dir};

/// A step that a client asks for ends with so many parts, or names.
const STEP_PARTS: usize = 64;
const STEP_NAMES: u64 = 4096;

/// Directories of clones in each other's sources: as deep as a chain of clones can be.
const CHAIN_MAX: usize = 2 * kestrel_types::clone::CLONES_MAX;

/// A directory of a clone without all its names.
struct Based {
    dir: InodeId,
    clone: CloneInfo,
    pending: PendingDir,
    /// Key and value of its record.
    entry: Key,
    inode: Inode,
}

fn damaged(what: impl std::fmt::Display) -> FsError {
    FsError::because(libc::EIO, format!("metadata: damaged clone: {what}; run kestrel fsck"))
}

/// The value of a row.
fn get(engine: &dyn Engine, key: KeyRef<'_>) -> FsResult<Option<Box<[u8]>>> {
    let mut value = None;
    let read = engine.get_many(&[key], &mut |_, row| value = row.value.map(Into::into));
    read.map_err(engine_error)?;
    Ok(value)
}

impl Node {
    /// The rows as they were at a snapshot.
    fn rows_at(&self, snapshot: SnapshotId) -> SnapshotEngine {
        SnapshotEngine::new(self.engine.clone(), self.core.snapshots.clone(), snapshot)
    }

    /// Reads a directory at a snapshot for a request that clones it.
    pub(super) fn read_source_of(&self, dir: InodeId, at: SnapshotId) -> FsResult<()> {
        let then = self.rows_at(at);
        let mut then = self.rows_of(&then);
        let (_, inode) = dir_record(&mut then, dir)?.ok_or(NOT_THERE)?;
        self.core.clones.keep_source(at, source_dir(&mut then, inode, None)?);
        Ok(())
    }

    fn rows_of<'a>(&self, engine: &'a dyn Engine) -> EngineRows<'a> {
        EngineRows { engine, scan_rows: self.core.scan_rows }
    }

    /// A directory if it lacks names.
    fn based(&self, dir: InodeId) -> FsResult<Option<Based>> {
        let Some((entry, inode)) = dir_record(&mut self.rows_of(&*self.engine), dir)? else {
            return Ok(None);
        };
        let policy = inode.policy().map_err(|why| damaged(format!("policy of {dir}: {why}")))?;
        let Some(id) = policy.base else { return Ok(None) };
        let clone = self.core.snapshots.clone_of(id.get());
        let clone = clone.ok_or_else(|| damaged(format!("no clone {id} for directory {dir}")))?;
        let row = get(&*self.engine, PendingDir::key(clone.id, dir).borrow())?;
        let row = row.ok_or_else(|| damaged(format!("no source for directory {dir}")))?;
        let pending = PendingDir::decode(&row).map_err(|why| damaged(format!("{dir}: {why}")))?;
        Ok(Some(Based { dir, clone, pending, entry, inode }))
    }

    /// Does a part of what a directory lacks; how many names came into being. With every worker's
    /// state held.
    ///
    /// # Errors
    /// The engine's; `EIO` for damaged rows.
    pub(super) fn give_names(&self, dir: InodeId) -> FsResult<u64> {
        if self.closed.load(Ordering::Relaxed) {
            self.reopen();
        }
        let mut at = dir;
        for _ in 0..CHAIN_MAX {
            let Some(based) = self.based(at)? else {
                // A dentry that says otherwise is old.
                self.core.replica.remove(at);
                return Ok(0);
            };
            let then = self.rows_at(based.clone.snapshot);
            let source = based.pending.source;
            let Some((_, record)) = dir_record(&mut self.rows_of(&then), source)? else {
                return Err(damaged(format!("no source {source} for directory {at}")));
            };
            let policy = record.policy().map_err(|why| damaged(format!("{source}: {why}")))?;
            if policy.base.is_none() {
                return self.give_names_from(&based, &then);
            }
            // It was cloned while it lacked names itself, and lacks them still.
            at = source;
        }
        Err(damaged(format!("sources of directory {dir} form a circle")))
    }

    fn give_names_from(&self, based: &Based, then: &SnapshotEngine) -> FsResult<u64> {
        let mut given = 0;
        let Based { dir, clone, pending, .. } = based;
        let next = Next { clone, dir: *dir, pending };
        let take = &mut |count| self.inodes.take(&*self.engine, count).map_err(engine_error);
        let scan_rows = self.core.scan_rows;
        let limits = Limits { names: NAMES_MAX, bytes: BYTES_MAX, scan_rows };
        let (mut then, mut now) = (self.rows_of(then), self.rows_of(&*self.engine));
        let part = Part::of(&next, &mut then, &mut now, (None, take), limits)?;
        if let Some(Part { rows, usage, names, is_last, .. }) = part {
            crash::point("clone.names.before");
            self.commit_below(rows)?;
            crash::point("clone.names.committed");
            self.add_usage(usage);
            if !is_last {
                return Ok(names);
            }
            given = names;
        }
        self.has_all_names(based)?;
        Ok(given)
    }

    /// A directory has no base any more. By itself, after all names: a thread that reads the
    /// rows meanwhile finds the names when the base has gone.
    fn has_all_names(&self, based: &Based) -> FsResult<()> {
        let Based { dir, clone, entry, inode, .. } = based;
        let mut inode = inode.clone();
        let mut policy = inode.policy().map_err(|why| damaged(format!("{dir}: {why}")))?;
        policy.base = None;
        inode.set_policy(policy);
        let rows = vec![
            Mutation { key: entry.clone(), value: Some(Entry::Inode(inode).encode()) },
            Mutation { key: PendingDir::key(clone.id, *dir), value: None },
        ];
        crash::point("clone.dir.before-end");
        self.commit_below(rows)?;
        crash::point("clone.dir.ended");
        self.core.replica.remove(*dir);
        Ok(())
    }

    /// Commits rows below the history layer.
    fn commit_below(&self, rows: Vec<Mutation>) -> FsResult<Position> {
        let position = self.below.commit(BatchKind::Growing, rows).map_err(|why| {
            let why = engine_error(why);
            match why.errno {
                libc::ENOSPC => FsError::new(
                    libc::ENOSPC,
                    "no space for the names of a clone's directory: remove something elsewhere",
                ),
                _ => why,
            }
        })?;
        self.committed_at(position);
        Ok(position)
    }

    /// Gives a directory all its names, a part at a time. With no worker's state held.
    ///
    /// # Errors
    /// As [`Node::give_names`].
    pub(super) fn give_all_names(&self, dir: InodeId) -> FsResult<()> {
        loop {
            let _all = self.hold_all();
            if self.based(dir)?.is_none() {
                self.core.replica.remove(dir);
                return Ok(());
            }
            self.give_names(dir)?;
        }
    }

    /// Does a part of what a clone lacks; `None` if it lacks nothing any more and has ended.
    fn clone_part(&self, clone: &CloneInfo) -> FsResult<Option<u64>> {
        let mut orphans = Vec::new();
        let done = {
            let _all = self.hold_all();
            match self.first_pending(clone)? {
                Some(dir) => Some(self.give_names(dir)?),
                None => self.end_clone(clone, &mut orphans)?,
            }
        };
        self.delete_orphans_soon(orphans);
        Ok(done)
    }

    /// A directory of a clone that lacks names.
    fn first_pending(&self, clone: &CloneInfo) -> FsResult<Option<InodeId>> {
        let mut found = None;
        let visited = self.engine.scan(Table::Clone, clone.id, None, &mut |suffix, _, _| {
            if let Some(CloneRow::Pending(dir)) = CloneRow::of(suffix) {
                found = Some(dir);
            }
            ControlFlow::Break(())
        });
        visited.map_err(engine_error)?;
        Ok(found)
    }

    /// Does a part of what clones lack, if there are any that are not finished; false if not. For
    /// something that calls it now and then, until it is false. Other requests are served between
    /// two calls. Of several nodes `kestrel_cluster` does that.
    ///
    /// # Errors
    /// The engine's. Nothing is lost: the next call tries again.
    pub fn tidy_clones(&self) -> FsResult<bool> {
        if self.core.cluster.is_some() {
            return Ok(false);
        }
        let Some(clone) = self.core.snapshots.clones().first().copied() else { return Ok(false) };
        self.clone_part(&clone)?;
        Ok(true)
    }

    /// Executes CloneStep: a part of the clone that made a directory.
    pub(super) fn clone_step(&self, creds: &Creds, dir: InodeId) -> Reply {
        let clones = self.core.snapshots.clones();
        let Some(clone) = clones.iter().find(|clone| clone.dir == dir).copied() else {
            return Ok(Answer::CloneProgress { names: 0, done: true });
        };
        if !perm::owns(creds, clone.uid) {
            let why = "the clone is another user's: it is finished in the background";
            return Err(FsError::new(libc::EPERM, why).into());
        }
        let mut names = 0;
        for _ in 0..STEP_PARTS {
            match self.clone_part(&clone)? {
                None => return Ok(Answer::CloneProgress { names, done: true }),
                Some(more) => names += more,
            }
            if names >= STEP_NAMES {
                break;
            }
        }
        Ok(Answer::CloneProgress { names, done: false })
    }
}
