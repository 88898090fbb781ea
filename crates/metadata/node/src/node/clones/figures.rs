//! The figures of a tree in which directories of clones lack names: those of their sources, which
//! no walk makes come into being.

use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::clone::{CloneInfo, PendingDir};
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, KeyRef, Table, number_of};
use kestrel_types::request::Usage;
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::stat::DirStat;

use super::super::Node;
use super::damaged;
use crate::ops::usage;
use crate::stop::engine_error;

/// How often a tree is looked at again of which a clone ended meanwhile.
const ATTEMPTS: usize = 8;

/// A directory to be counted: at which moment, and whether itself or only what is below it.
struct ToCount {
    at: Option<SnapshotId>,
    dir: InodeId,
    itself: bool,
}

impl Node {
    /// [`usage::tree`], now or at a snapshot.
    pub(in super::super) fn tree_usage(
        &self,
        at: Option<SnapshotId>,
        dir: InodeId,
    ) -> FsResult<Usage> {
        for _ in 1..ATTEMPTS {
            match self.count_tree(at, dir) {
                // The clone of a directory on the way has ended, and its snapshot has gone.
                Err(why) if why.errno == libc::ESTALE => {}
                other => return other,
            }
        }
        self.count_tree(at, dir)
    }

    fn count_tree(&self, at: Option<SnapshotId>, dir: InodeId) -> FsResult<Usage> {
        let clones = self.core.snapshots.clones();
        let (mut sum, mut dirs) = (DirStat::default(), 0u64);
        let mut left = vec![ToCount { at, dir, itself: true }];
        while let Some(ToCount { at, dir, itself }) = left.pop() {
            let then = at.map(|at| self.rows_at(at));
            let engine: &dyn Engine = match &then {
                Some(then) => then,
                None => &*self.engine,
            };
            if itself {
                usage::add_shares(engine, dir, &|_| true, &mut sum)?;
                dirs += 1;
            }
            // A directory that lacks names lacks them at each moment at which it is there.
            if let Some((clone, pending)) = self.pending_of(&clones, dir)? {
                if pending.after.is_none() && pending.file.is_none() {
                    let (at, dir) = (Some(clone.snapshot), pending.source);
                    left.push(ToCount { at, dir, itself: false });
                    continue;
                }
                self.give_all_names(dir)?;
            }
            let visited = engine.scan(Table::Subdir, dir, None, &mut |child, _, _| {
                left.push(ToCount { at, dir: number_of(child), itself: true });
                ControlFlow::Continue(())
            });
            visited.map_err(engine_error)?;
        }
        Ok(usage::usage(&sum, dirs.saturating_sub(1)))
    }

    /// What a directory lacks, if it is one of these clones.
    pub(super) fn pending_of(
        &self,
        clones: &[CloneInfo],
        dir: InodeId,
    ) -> FsResult<Option<(CloneInfo, PendingDir)>> {
        if clones.is_empty() {
            return Ok(None);
        }
        let keys: Vec<Key> = clones.iter().map(|clone| PendingDir::key(clone.id, dir)).collect();
        let keys: Vec<KeyRef<'_>> = keys.iter().map(Key::borrow).collect();
        let mut found = None;
        let read = self.engine.get_many(&keys, &mut |index, row| {
            if let Some(row) = row.value {
                found = Some((clones[index], PendingDir::decode(row)));
            }
        });
        read.map_err(engine_error)?;
        found
            .map(|(clone, pending)| Ok((clone, pending?)))
            .transpose()
            .map_err(|why: kestrel_types::codec::DecodeError| damaged(format!("{dir}: {why}")))
    }
}
