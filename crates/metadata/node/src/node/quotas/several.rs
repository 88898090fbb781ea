//! Quotas of a node that is one of several: it is told which there are, counts what it commits, and
//! has a part of each limit (`kestrel_cluster`, `quotas`).

use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Mutation};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, Table};
use kestrel_types::quota::{
    OverSince, QuotaRecord, QuotaRow, QuotaSubject, QuotaUsage, decode_home, encode_home,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::Node;
use super::count::{QuotaRows, damaged, home_row, parent_of};
use super::stored_quotas;
use crate::rows::Counted;
use crate::stop::engine_error;

/// What a node has counted towards a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaPart {
    /// The quota.
    pub of: QuotaSubject,
    /// By the node's rows: of a directory, what is below no other one with a quota.
    pub own: QuotaUsage,
    /// With what counts towards quotas further down, and what is reserved.
    pub used: QuotaUsage,
    /// Since when usage is above the soft limits, if the node knows that.
    pub since: OverSince,
}

/// What nodes are asked to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaCount {
    /// Rows of table `link`; else those of table `entry`.
    pub files: bool,
    /// What users, groups and the volume own is added up: of these.
    pub owners: Vec<QuotaSubject>,
}

/// A file in table `link`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedFile {
    /// The file.
    pub ino: InodeId,
    /// Its size.
    pub bytes: i64,
    /// The directory of the quota that counts it.
    pub home: Option<InodeId>,
}

/// What a node has counted in some of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountedPage {
    /// Sums of users, groups and the volume.
    pub owners: Vec<(QuotaSubject, QuotaUsage)>,
    /// Directories with names of files in table `link`, and those files.
    pub names: Vec<(InodeId, InodeId)>,
    /// Files in table `link`.
    pub files: Vec<CountedFile>,
    /// The last row that was looked at; `None`: all were.
    pub last: Option<Key>,
}

impl Node {
    /// From now on the volume has these quotas, and the node has used all of its parts of them.
    /// `homes`: the files that these directories' quotas count, or none does. `beside`: rows that
    /// go with that. With every worker's state held.
    ///
    /// # Errors
    /// Damaged rows; the engine's.
    pub fn set_quotas(
        &self,
        records: &[QuotaRecord],
        homes: &[(InodeId, Option<InodeId>)],
        beside: Vec<Mutation>,
    ) -> FsResult<Position> {
        let known = QuotaRows::read(&*self.engine)?;
        let mut rows = beside;
        for QuotaRecord { of, limits, above } in records {
            if known.limits.get(of) != Some(limits) {
                let key = QuotaRow::Record(*of).key();
                rows.push(Mutation { key, value: Some(limits.encode()) });
            }
            if known.above.get(of) != above.as_ref() {
                let key = QuotaRow::Above(*of).key();
                rows.push(Mutation { key, value: above.map(encode_home) });
            }
        }
        let stays: FxHashSet<QuotaSubject> = records.iter().map(|record| record.of).collect();
        let gone = known.limits.keys().chain(known.shares.keys()).filter(|of| !stays.contains(of));
        let gone: FxHashSet<QuotaSubject> = gone.copied().collect();
        let gone: Vec<QuotaSubject> = gone.into_iter().collect();
        rows.extend(known.without(&gone));
        rows.extend(homes.iter().map(home_row));
        let position = self.engine.commit(BatchKind::Growing, rows).map_err(engine_error)?;
        self.committed_at(position);
        self.reload_quotas()?;
        Ok(position)
    }

    /// Takes the quotas and what was counted from the rows, as they may have become others'. With
    /// every worker's state held.
    ///
    /// # Errors
    /// Damaged rows; the engine's.
    pub fn reload_quotas(&self) -> FsResult<()> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let new = stored_quotas(&*self.engine, self.core.workers, table.as_deref())?;
        if self.core.quotas.in_use() || !new.is_empty() {
            self.core.quotas.replace(new);
        }
        Ok(())
    }

    /// The row by which the node's share of a quota changes by this.
    pub fn corrected_share(&self, of: QuotaSubject, change: QuotaUsage) -> FsResult<Mutation> {
        let (worker, cluster) = (self.core.workers, self.core.cluster.as_ref());
        let number = self.core.own_share(worker);
        debug_assert!(cluster.is_some(), "a node that is alone counts in memory");
        let key = QuotaRow::Share(of, number as u16).key();
        let mut before = Ok(QuotaUsage::default());
        let read = self.engine.get_many(&[key.borrow()], &mut |_, row| {
            before = row.value.map_or(Ok(QuotaUsage::default()), QuotaUsage::decode);
        });
        read.map_err(engine_error)?;
        let share = before.map_err(|why| damaged("quota", &why))?.plus(change);
        Ok(Mutation { key, value: Some(share.encode()) })
    }

    /// What this node has counted towards quotas: these, or all.
    pub fn quota_parts(&self, of: Option<&[QuotaSubject]>) -> Vec<QuotaPart> {
        let table = self.core.quotas.table();
        let part = |of: &QuotaSubject| {
            let quota = table.all.get(of)?;
            let (own, info) = (quota.counters.own(), quota.info());
            Some(QuotaPart { of: *of, own, used: info.used, since: info.since })
        };
        match of {
            Some(of) => of.iter().filter_map(part).collect(),
            None => table.all.keys().filter_map(part).collect(),
        }
    }

    /// The directories above these, of those that are there and have this node as their home.
    ///
    /// # Errors
    /// Damaged rows; the engine's.
    pub fn parents_of(&self, dirs: &[InodeId]) -> FsResult<Vec<(InodeId, InodeId)>> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let is_own =
            |dir: InodeId| table.as_ref().is_none_or(|table| table.home_of(dir) == table.me);
        let mut found = Vec::new();
        for dir in dirs.iter().copied().filter(|dir| *dir != ROOT && is_own(*dir)) {
            found.extend(parent_of(&*self.engine, dir)?.map(|parent| (dir, parent)));
        }
        Ok(found)
    }

    /// Counts some of this node's rows, after this one. Nothing changes meanwhile.
    ///
    /// # Errors
    /// Damaged rows; the engine's.
    pub fn count_page(&self, asked: &QuotaCount, after: Option<&Key>) -> FsResult<CountedPage> {
        let table = self.strangers_table();
        let owners: FxHashSet<QuotaSubject> = asked.owners.iter().copied().collect();
        let (mut sums, mut page) = (FxHashMap::default(), CountedPage::default());
        let mut add = |counted: &Counted| {
            let Some((uid, gid)) = counted.owner else { return };
            let change = QuotaUsage { files: 1, bytes: counted.bytes };
            for of in [QuotaSubject::User(uid), QuotaSubject::Group(gid), QuotaSubject::Volume] {
                if owners.contains(&of) {
                    let sum: &mut QuotaUsage = sums.entry(of).or_default();
                    *sum = sum.plus(change);
                }
            }
        };
        let kind = if asked.files { Table::Link } else { Table::Entry };
        let (mut left, mut failed) = (self.core.scan_rows.saturating_mul(4).max(1), None);
        let visited = self.engine.scan_table(kind, after.map(Key::borrow), &mut |key, row| {
            if after.is_some_and(|after| after.borrow() == key) {
                return ControlFlow::Continue(());
            }
            left -= 1;
            let is_strange =
                table.as_ref().is_some_and(|table| !table.owns(key.table, key.id, key.suffix));
            if !is_strange
                && let Err(why) = count_row(&mut add, &mut page, (key.table, key.id), row)
            {
                failed = Some(why);
                return ControlFlow::Break(());
            }
            if left == 0 {
                page.last = Some(key.to_owned());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
        if let Some(why) = failed {
            return Err(damaged(if asked.files { "link" } else { "entry" }, &why));
        }
        self.find_homes(&mut page.files)?;
        page.owners = sums.into_iter().collect();
        page.owners.sort_by_key(|(of, _)| *of);
        Ok(page)
    }

    fn find_homes(&self, files: &mut [CountedFile]) -> FsResult<()> {
        let keys: Vec<Key> = files.iter().map(|file| QuotaRow::Home(file.ino).key()).collect();
        let keys: Vec<_> = keys.iter().map(Key::borrow).collect();
        let mut failed: Option<FsError> = None;
        let read = self.engine.get_many(&keys, &mut |index, row| match row
            .value
            .map(decode_home)
            .transpose()
        {
            Ok(home) => files[index].home = home,
            Err(why) => failed = Some(damaged("quota", &why)),
        });
        read.map_err(engine_error)?;
        failed.map_or(Ok(()), Err)
    }
}

/// Counts one row of table `entry` or `link`.
fn count_row(
    add: &mut impl FnMut(&Counted),
    page: &mut CountedPage,
    (table, id): (Table, u64),
    row: &[u8],
) -> Result<(), DecodeError> {
    if table == Table::Link {
        let inode = Inode::decode(&mut Reader::new(row))?;
        let counted = Counted::of_inode(&inode);
        add(&counted);
        page.files.push(CountedFile { ino: inode.ino, bytes: counted.bytes, home: None });
        return Ok(());
    }
    // The root is no name of a directory.
    if id != 0 {
        let counted = Counted::of_entry(&Entry::decode(row)?);
        add(&counted);
        if counted.owner.is_none() {
            page.names.push((id, counted.ino));
        }
    }
    Ok(())
}
