//! Clones of a volume that several nodes share.
//!
//! The home of a directory without names has the row that says where they come from, and leads what
//! gives it names: a transaction for each batch, by the rows that all nodes have of the source at
//! the snapshot, and one by which the directory has no base any more ([`crate::clones`]).
//!
//! Each of these locks a share of the directory at every node. So no node relies on what it was
//! told of the names before. And the last one is not decided before all nodes have the rows of the
//! others: reads at a snapshot, which lock nothing, find all names where there is no base.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use kestrel_engine::Mutation;
use kestrel_types::clone::{CloneId, CloneInfo, CloneRow, ClonedLink, PendingDir};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::request::Answer;
use kestrel_types::snapshot::SnapshotId;

use super::super::Node;
use super::super::multi_node::{Ended, Ran};
use super::super::snapshots::NOT_THERE;
use super::ending::without;
use super::names::{Limits, NAMES_MAX, Next, Part};
use super::rows::{NoRows, ReadRows, ToldRows, dir_record, source_dir};
use super::{damaged, get};
use crate::lease::LeaseView;
use crate::owners::MapView;
use crate::rows::{Missing, TxnRows, share_suffix};
use crate::stop::engine_error;
use crate::view::home_at;

/// Bytes of rows after which a batch takes no further name: nodes send them in messages.
const BYTES_MAX: usize = 1 << 20;

/// What a transaction gives a clone.
#[derive(Debug, Clone)]
pub struct CloneJob {
    /// The clone.
    pub clone: CloneInfo,
    /// What of it.
    pub part: ClonePart,
}

/// A part of what a clone lacks.
#[derive(Debug, Clone)]
pub enum ClonePart {
    /// The next names of a directory; so many at most.
    Names(InodeId, PendingDir, usize),
    /// A directory has all names.
    Ends(InodeId),
    /// A file counts names that have not come into being, by its number at the snapshot.
    Link(InodeId),
}

/// What a directory lacks.
#[derive(Debug, Clone)]
pub enum DirLacks {
    /// Names of this clone, from there.
    Names(CloneInfo, PendingDir),
    /// Names of a clone that this node has not been told of yet.
    Unknown,
    /// Nothing, or this node is not its home.
    Nothing,
}

/// What clones lack of which this node has rows.
#[derive(Debug, Default)]
pub struct ClonesLack {
    /// Directories that lack names.
    pub dirs: Vec<InodeId>,
    /// Files with several names, by their numbers at the snapshot.
    pub links: Vec<(CloneId, InodeId)>,
}

/// What rows of a snapshot that were told come to.
#[derive(Debug)]
pub enum SourceRead {
    /// More are needed.
    Lacks(Missing),
    /// This directory lacks names itself, and needs them first.
    Based(InodeId),
    /// That is all. So many inodes may be made.
    Whole(u64),
}

impl Node {
    /// What a directory lacks that has this node as its home.
    ///
    /// # Errors
    /// The engine's; `EIO` for damaged rows.
    pub fn dir_lacks(&self, dir: InodeId) -> FsResult<DirLacks> {
        let clones = self.core.snapshots.clones();
        if let Some((clone, pending)) = self.pending_of(&clones, dir)? {
            return Ok(DirLacks::Names(clone, pending));
        }
        for id in self.clone_ids()? {
            if get(&*self.engine, PendingDir::key(id, dir).borrow())?.is_some() {
                return Ok(DirLacks::Unknown);
            }
        }
        Ok(DirLacks::Nothing)
    }

    /// Clones of which this node has rows.
    fn clone_ids(&self) -> FsResult<Vec<CloneId>> {
        let (mut ids, mut from) = (Vec::new(), 0);
        loop {
            let mut next = None;
            let start = KeyRef::new(Table::Clone, from, b"");
            let visited = self.engine.scan_table(Table::Clone, Some(start), &mut |key, _| {
                next = Some(key.id);
                ControlFlow::Break(())
            });
            visited.map_err(engine_error)?;
            match next {
                Some(id) => {
                    ids.push(id);
                    from = id + 1;
                }
                None => return Ok(ids),
            }
        }
    }

    /// Whether a directory lacks names and has this node as its home.
    pub(in super::super) fn lacks_names(&self, dir: InodeId) -> FsResult<bool> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let is_home = table.is_none_or(|table| table.home_of(dir) == table.me);
        Ok(is_home && !matches!(self.dir_lacks(dir)?, DirLacks::Nothing))
    }

    /// Whether this node knows clones that are not finished, or has rows of such.
    pub(in super::super) fn has_clones(&self) -> FsResult<bool> {
        Ok(self.core.snapshots.has_clones() || !self.clone_ids()?.is_empty())
    }

    /// Clones of which this node has rows of directories, and those of which it has only rows of
    /// files.
    ///
    /// # Errors
    /// The engine's.
    pub fn clone_states(&self) -> FsResult<(Vec<CloneId>, Vec<CloneId>)> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let (mut pending, mut links) = (Vec::new(), Vec::new());
        for id in self.clone_ids()? {
            let mut first = None;
            let visited = self.engine.scan(Table::Clone, id, None, &mut |suffix, _, _| {
                if table.as_ref().is_some_and(|table| !table.owns(Table::Clone, id, suffix)) {
                    return ControlFlow::Continue(());
                }
                first = CloneRow::of(suffix);
                ControlFlow::Break(())
            });
            visited.map_err(engine_error)?;
            match first {
                Some(CloneRow::Pending(_)) => pending.push(id),
                Some(CloneRow::Link(_)) => links.push(id),
                None => {}
            }
        }
        Ok((pending, links))
    }

    /// What clones lack that has this node as its home: of each clone so many directories at most,
    /// and if there are none so many files.
    ///
    /// # Errors
    /// The engine's.
    pub fn clones_lack(&self, most: usize) -> FsResult<ClonesLack> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let owns = |id, suffix: &[u8]| {
            table.as_ref().is_none_or(|table| table.owns(Table::Clone, id, suffix))
        };
        let mut lack = ClonesLack::default();
        for id in self.clone_ids()? {
            let (mut dirs, mut links) = (Vec::new(), Vec::new());
            let visited = self.engine.scan(Table::Clone, id, None, &mut |suffix, _, _| {
                match CloneRow::of(suffix).filter(|_| owns(id, suffix)) {
                    Some(CloneRow::Pending(dir)) => dirs.push(dir),
                    // Rows of directories come first.
                    Some(CloneRow::Link(old)) if dirs.is_empty() => links.push((id, old)),
                    Some(CloneRow::Link(_)) => return ControlFlow::Break(()),
                    None => {}
                }
                match dirs.len().max(links.len()) < most {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
            visited.map_err(engine_error)?;
            lack.dirs.extend(dirs);
            lack.links.extend(links);
        }
        Ok(lack)
    }

    /// What the rows that were told come to, of a directory that is cloned at a snapshot. It is
    /// kept for the request if that is all.
    ///
    /// # Errors
    /// `ENOENT` if it was not there; `EIO` for damaged rows.
    pub fn read_source_dir(
        &self,
        (dir, at): (InodeId, SnapshotId),
        told: &TxnRows,
    ) -> FsResult<Option<Missing>> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let mut then = ToldRows::new(told);
        let found = dir_record(&mut then, dir)?;
        let source = match found {
            Some((_, inode)) => Some(source_dir(&mut then, inode, table.as_deref())?),
            None => None,
        };
        if then.lacks() {
            return Ok(Some(then.missing));
        }
        self.core.clones.keep_source(at, source.ok_or(NOT_THERE)?);
        Ok(None)
    }

    /// What the rows that were told come to, of those at the snapshot that a directory's next names
    /// are made of.
    ///
    /// # Errors
    /// `EIO` for damaged rows.
    pub fn read_clone_source(
        &self,
        clone: &CloneInfo,
        (dir, pending, most): (InodeId, &PendingDir, usize),
        told: &TxnRows,
    ) -> FsResult<SourceRead> {
        let mut then = ToldRows::new(told);
        if pending.after.is_none() && pending.file.is_none() {
            let record = dir_record(&mut then, pending.source)?;
            if then.lacks() {
                return Ok(SourceRead::Lacks(then.missing));
            }
            let source = pending.source;
            let (_, record) = record.ok_or_else(|| damaged(format!("no source {source}")))?;
            let policy = record.policy().map_err(|why| damaged(format!("{source}: {why}")))?;
            if policy.base.is_some() {
                return Ok(SourceRead::Based(source));
            }
        }
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let mut made = 0;
        let numbers = &mut |count| {
            made = count;
            Ok(0)
        };
        let next = Next { clone, dir, pending };
        let mut none = NoRows;
        let part = Part::of(
            &next,
            &mut then,
            &mut none,
            (table.as_deref(), numbers),
            self.clone_limits(most),
        );
        let part = part.map(drop);
        if then.lacks() {
            return Ok(SourceRead::Lacks(then.missing));
        }
        part.map(|()| SourceRead::Whole(made))
    }

    fn clone_limits(&self, most: usize) -> Limits {
        let names = most.clamp(1, NAMES_MAX);
        Limits { names, bytes: BYTES_MAX, scan_rows: self.core.scan_rows }
    }

    /// The first of so many numbers of which inode numbers are made.
    ///
    /// # Errors
    /// The engine's.
    pub fn counters(&self, count: u64) -> FsResult<u64> {
        self.inodes.take(&*self.engine, count).map_err(engine_error)
    }

    /// Runs a part of a clone as a transaction, on the rows that were lent for it: `then` are those
    /// of the snapshot. Its answer says how many names come into being, and whether nothing is left
    /// of the part. `counter`: what numbers of new inodes are made of.
    ///
    /// # Errors
    /// The engine's; `EIO` for damaged rows.
    pub fn transact_clone(
        &self,
        job: &CloneJob,
        (then, lent): (&TxnRows, &TxnRows),
        counter: u64,
    ) -> FsResult<Ran> {
        let cluster = self.core.cluster.as_ref();
        let lease_view =
            cluster.map_or_else(|| LeaseView::of(None, false), |cluster| cluster.lease_view());
        if !lease_view.may_begin() {
            return Ok(Ran::Unleased);
        }
        if cluster.is_some_and(|cluster| cluster.is_stopped()) {
            return Ok(Ran::Stopped);
        }
        let table = cluster.map(|cluster| cluster.table());
        let mut now = ToldRows::new(lent);
        let ended = match &job.part {
            ClonePart::Names(dir, pending, most) => {
                let table = table.as_deref();
                let (next, most) = (Next { clone: &job.clone, dir: *dir, pending }, *most);
                self.next_names(&next, most, (&mut ToldRows::new(then), &mut now), table, counter)
            }
            ClonePart::Ends(dir) => ends(&job.clone, *dir, &mut now, table.as_deref()),
            ClonePart::Link(old) => self.end_link(&job.clone, *old, &mut now),
        };
        match now.lacks() {
            true => Ok(Ran::Lacks(now.missing)),
            false => {
                let mut ended = ended?;
                // Where a quota counts there are no clones.
                ended.charges.version = self.core.quotas.table().version;
                Ok(Ran::Ended(Box::new(ended)))
            }
        }
    }

    fn next_names(
        &self,
        next: &Next<'_>,
        most: usize,
        (then, now): (&mut ToldRows<'_>, &mut ToldRows<'_>),
        table: Option<&MapView>,
        counter: u64,
    ) -> FsResult<Ended> {
        let Next { clone, dir, pending } = *next;
        let row = now.get(PendingDir::key(clone.id, dir))?;
        let shares = lock_shares(dir, now, table)?;
        let row = row.map(|row| PendingDir::decode(&row)).transpose();
        let row = row.map_err(|why| damaged(format!("{dir}: {why}")))?;
        if !now.lacks() && row.as_ref() != Some(pending) {
            // Another transaction has given it names.
            return Ok(progress(0, false));
        }
        let numbers = &mut |_| Ok(counter);
        let limits = self.clone_limits(most);
        match Part::of(next, then, now, (table, numbers), limits)? {
            None => Ok(progress(0, true)),
            Some(mut part) => {
                let mut rows = std::mem::take(&mut part.rows);
                // Where something else changes, its share of the directory stays locked until that
                // is so, whatever becomes of the node meanwhile.
                let owner = |key: &Key| table.map(|map| map.owner(key.table, key.id, &key.suffix));
                let owners: BTreeSet<_> = rows.iter().map(|row| owner(&row.key)).collect();
                rows.extend(shares.into_iter().filter(|row| owners.contains(&owner(&row.key))));
                let ended = progress(part.names, part.is_last);
                Ok(Ended { mutations: rows, referred: part.objects(), ..ended })
            }
        }
    }

    /// A file does not count names any more that have not come into being.
    fn end_link(&self, clone: &CloneInfo, old: InodeId, now: &mut ToldRows<'_>) -> FsResult<Ended> {
        let key = ClonedLink::key(clone.id, old);
        let Some(row) = now.get(key.clone())? else { return Ok(progress(0, true)) };
        let link = ClonedLink::decode(&row).map_err(|why| damaged(format!("file {old}: {why}")))?;
        let mut mutations = vec![Mutation { key, value: None }];
        let outside = link.total.saturating_sub(link.names);
        if outside > 0 {
            let key = Key::new(Table::Link, link.ino, b"");
            if let Some(row) = now.get(key.clone())? {
                let stamp =
                    self.stamps.tick(&*self.engine, self.clock.now()).map_err(engine_error)?;
                let inode = without(link.ino, &row, outside, stamp)?;
                mutations.push(Mutation { key, value: Some(encoded(&inode)) });
            }
        }
        Ok(Ended { mutations, below: false, ..progress(0, true) })
    }
}

fn encoded(inode: &Inode) -> Box<[u8]> {
    let mut row = Vec::with_capacity(80);
    inode.encode_into(&mut row);
    row.into()
}

/// Locks a share of each node of a directory. The same shares as rows.
fn lock_shares(
    dir: InodeId,
    now: &mut ToldRows<'_>,
    table: Option<&MapView>,
) -> FsResult<Vec<Mutation>> {
    let mut shares = Vec::new();
    for at in 0..table.map_or(0, MapView::share_holders) {
        let holder = table.map_or(0, |table| home_at(table.share_holder(at), 0));
        let key = Key::new(Table::DirStat, dir, &share_suffix(holder));
        shares.push(Mutation { value: now.get(key.clone())?, key });
    }
    Ok(shares)
}

/// A directory has no base any more. All nodes have the rows of all its names by now: as long as
/// one has not, a share of the directory is locked there.
fn ends(
    clone: &CloneInfo,
    dir: InodeId,
    now: &mut ToldRows<'_>,
    table: Option<&MapView>,
) -> FsResult<Ended> {
    lock_shares(dir, now, table)?;
    let pending = PendingDir::key(clone.id, dir);
    let is_pending = now.get(pending.clone())?.is_some();
    let Some((key, mut inode)) = dir_record(now, dir)? else {
        return match now.lacks() || !is_pending {
            true => Ok(progress(0, true)),
            false => Err(damaged(format!("no directory {dir}"))),
        };
    };
    if !is_pending {
        return Ok(progress(0, true));
    }
    let mut policy = inode.policy().map_err(|why| damaged(format!("{dir}: {why}")))?;
    policy.base = None;
    inode.set_policy(policy);
    let mutations = vec![
        Mutation { key, value: Some(Entry::Inode(inode).encode()) },
        Mutation { key: pending, value: None },
    ];
    Ok(Ended { mutations, dirs: vec![dir], ..progress(0, true) })
}

/// A transaction that changes nothing, yet.
fn progress(names: u64, done: bool) -> Ended {
    let reply = Ok(Answer::CloneProgress { names, done });
    Ended { reply, below: true, ..Ended::nothing() }
}
