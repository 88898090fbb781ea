//! The rows of quotas, and what counts towards quotas by the names and inodes of a volume.

use std::ops::ControlFlow;

use kestrel_engine::{Engine, Mutation};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::Inode;
use kestrel_types::key::{Table, number_of};
use kestrel_types::quota::{
    OverSince, QuotaLimits, QuotaRow, QuotaSubject, QuotaUsage, decode_home, encode_home,
};
use kestrel_types::stat::DirStat;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::dir_place::dir_place;
use crate::ops::usage;
use crate::rows::Counted;
use crate::stop::engine_error;
use crate::view::decode_dir_id;

pub(super) fn damaged(table: &str, why: &DecodeError) -> FsError {
    FsError::because(libc::EIO, format!("metadata: damaged {table} row: {why}; run kestrel fsck"))
}

/// The rows of table `quota`.
#[derive(Default)]
pub(super) struct QuotaRows {
    pub(super) limits: FxHashMap<QuotaSubject, QuotaLimits>,
    pub(super) shares: FxHashMap<QuotaSubject, Vec<(u16, QuotaUsage)>>,
    pub(super) since: FxHashMap<QuotaSubject, OverSince>,
    pub(super) above: FxHashMap<QuotaSubject, InodeId>,
    /// By file in table `link`: the directory of the quota that counts its bytes.
    pub(super) homes: FxHashMap<InodeId, InodeId>,
}

/// Looks at a row: its id, suffix and value.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8], &[u8]) -> Result<(), DecodeError>;

/// Reads a table's rows as far as they can be read.
pub(super) fn read_table(
    engine: &dyn Engine,
    (table, name): (Table, &str),
    visit: Visit<'_>,
) -> FsResult<()> {
    let mut failed = None;
    let visited =
        engine.scan_table(table, None, &mut |key, row| match visit(key.id, key.suffix, row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                failed = Some(damaged(name, &why));
                ControlFlow::Break(())
            }
        });
    visited.map_err(engine_error)?;
    failed.map_or(Ok(()), Err)
}

impl QuotaRows {
    pub(super) fn read(engine: &dyn Engine) -> FsResult<Self> {
        let mut rows = Self::default();
        read_table(engine, (Table::Quota, "quota"), &mut |id, suffix, row| {
            match QuotaRow::of(id, suffix).ok_or(DecodeError("unknown key"))? {
                QuotaRow::Record(of) => {
                    rows.limits.insert(of, QuotaLimits::decode(row)?);
                }
                QuotaRow::Share(of, worker) => {
                    let share = (worker, QuotaUsage::decode(row)?);
                    rows.shares.entry(of).or_default().push(share);
                }
                QuotaRow::Since(of) => {
                    rows.since.insert(of, OverSince::decode(row)?);
                }
                QuotaRow::Above(of) => {
                    rows.above.insert(of, decode_home(row)?);
                }
                QuotaRow::Home(ino) => {
                    rows.homes.insert(ino, decode_home(row)?);
                }
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// The removal of all rows of these quotas.
    pub(super) fn without(&self, gone: &[QuotaSubject]) -> impl Iterator<Item = Mutation> {
        let rows = gone.iter().flat_map(|of| self.keys_of(*of));
        rows.map(|row| Mutation { key: row.key(), value: None })
    }

    /// All rows of a quota.
    fn keys_of(&self, of: QuotaSubject) -> impl Iterator<Item = QuotaRow> {
        let shares = self.shares.get(&of).into_iter().flatten();
        let shares = shares.map(move |(worker, _)| QuotaRow::Share(of, *worker));
        let above = matches!(of, QuotaSubject::Dir(_)).then_some(QuotaRow::Above(of));
        [QuotaRow::Record(of), QuotaRow::Since(of)].into_iter().chain(above).chain(shares)
    }
}

/// The directory above; `None` of the root, and of one that is no more.
pub(super) fn parent_of(engine: &dyn Engine, dir: InodeId) -> FsResult<Option<InodeId>> {
    if dir == ROOT {
        return Ok(None);
    }
    Ok(dir_place(engine, dir)?.map(|(parent, _)| parent))
}

/// What counts towards quotas, by the names and inodes of a volume.
struct Count<'a> {
    subjects: &'a FxHashSet<QuotaSubject>,
    parents: FxHashMap<InodeId, InodeId>,
    /// The nearest directory with a quota, from each one up.
    nearest: FxHashMap<InodeId, Option<InodeId>>,
    own: FxHashMap<QuotaSubject, QuotaUsage>,
    /// Of names of files in table `link`: what their directories are under.
    links: FxHashMap<InodeId, Vec<Option<InodeId>>>,
}

impl Count<'_> {
    fn add(&mut self, of: QuotaSubject, files: i64, bytes: i64) {
        if self.subjects.contains(&of) {
            let sum = self.own.entry(of).or_default();
            *sum = sum.plus(QuotaUsage { files, bytes });
        }
    }

    fn add_owner(&mut self, counted: &Counted) {
        let Some((uid, gid)) = counted.owner else { return };
        for of in [QuotaSubject::User(uid), QuotaSubject::Group(gid), QuotaSubject::Volume] {
            self.add(of, 1, counted.bytes);
        }
    }

    fn nearest(&mut self, dir: InodeId) -> Option<InodeId> {
        let mut walked = Vec::new();
        let mut at = dir;
        let found = loop {
            if let Some(known) = self.nearest.get(&at) {
                break *known;
            }
            walked.push(at);
            if self.subjects.contains(&QuotaSubject::Dir(at)) {
                break Some(at);
            }
            match self.parents.get(&at) {
                // Damaged rows could lead in a circle.
                Some(parent) if at != ROOT && walked.len() <= self.parents.len() => at = *parent,
                _ => break None,
            }
        };
        self.nearest.extend(walked.into_iter().map(|dir| (dir, found)));
        found
    }

    fn entry(&mut self, dir: InodeId, entry: &Entry) {
        if dir == 0 {
            return;
        }
        let counted = Counted::of_entry(entry);
        let under = self.nearest(dir);
        if let Some(under) = under {
            self.add(QuotaSubject::Dir(under), 1, counted.bytes);
        }
        self.add_owner(&counted);
        if counted.owner.is_none() {
            let names = self.links.entry(counted.ino).or_default();
            if !names.contains(&under) {
                names.push(under);
            }
        }
    }

    /// Counts a file in table `link`; its home, which is kept if it can be.
    fn link(&mut self, inode: &Inode, home: Option<InodeId>, rehome: bool) -> Option<InodeId> {
        let counted = Counted::of_inode(inode);
        self.add_owner(&counted);
        let names = self.links.get(&inode.ino).map_or(&[][..], Vec::as_slice);
        let has_quota = |home: &InodeId| self.subjects.contains(&QuotaSubject::Dir(*home));
        let home = home_by_names(home.filter(has_quota), names, rehome);
        if let Some(home) = home {
            self.add(QuotaSubject::Dir(home), 0, counted.bytes);
        }
        home
    }
}

/// The directory of the quota that is to count a file in table `link`: the one that has done so, if
/// it has a quota still, unless the file is to be below it (`rehome`) and no name of it is.
/// `names`: the quotas that its names are under.
pub fn home_by_names(
    home: Option<InodeId>,
    names: &[Option<InodeId>],
    rehome: bool,
) -> Option<InodeId> {
    match home {
        Some(home) if !rehome || names.is_empty() || names.contains(&Some(home)) => Some(home),
        home => names.iter().flatten().next().copied().or(home),
    }
}

/// What [`count`] found.
pub(super) struct QuotaCounts {
    pub(super) own: FxHashMap<QuotaSubject, QuotaUsage>,
    /// Homes that have to change.
    pub(super) homes: Vec<(InodeId, Option<InodeId>)>,
}

/// How the homes of files in table `link` change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rehome {
    /// They stay, but for those that are no directory with a quota.
    Never,
    /// Files without a name below their home get one above a name of theirs.
    ByNames,
}

/// Counts all names and inodes of the volume.
pub(super) fn count(
    engine: &dyn Engine,
    subjects: &FxHashSet<QuotaSubject>,
    homes: &FxHashMap<InodeId, InodeId>,
    rehome: Rehome,
) -> FsResult<QuotaCounts> {
    let mut count = Count {
        subjects,
        parents: FxHashMap::default(),
        nearest: FxHashMap::default(),
        own: FxHashMap::default(),
        links: FxHashMap::default(),
    };
    if subjects.iter().any(|of| matches!(of, QuotaSubject::Dir(_))) {
        read_table(engine, (Table::DirId, "dirid"), &mut |dir, _, row| {
            count.parents.insert(dir, decode_dir_id(row)?.0);
            Ok(())
        })?;
    }
    read_table(engine, (Table::Entry, "entry"), &mut |dir, _, row| {
        count.entry(dir, &Entry::decode(row)?);
        Ok(())
    })?;
    let mut changed = Vec::new();
    read_table(engine, (Table::Link, "link"), &mut |ino, _, row| {
        let inode = Inode::decode(&mut Reader::new(row))?;
        let before = homes.get(&ino).copied();
        let after = count.link(&inode, before, matches!(rehome, Rehome::ByNames));
        if after != before {
            changed.push((ino, after));
        }
        Ok(())
    })?;
    Ok(QuotaCounts { own: count.own, homes: changed })
}

/// What differs between the rows of quotas and the names and inodes of a volume.
#[derive(Debug, Default)]
pub struct QuotaDifferences {
    /// By quota: what its rows say, and what was counted. Of a directory, without what is below
    /// another one with a quota.
    pub usage: Vec<(QuotaSubject, QuotaUsage, QuotaUsage)>,
    /// Files in table `link` that are charged to no quota that there is, or to none though they
    /// should be.
    pub homes: Vec<InodeId>,
    /// The rows that put it right.
    pub rows: Vec<Mutation>,
}

/// Compares the rows of quotas of a volume at rest with what there is. What differs is booked to
/// the share with this number.
///
/// # Errors
/// Damaged rows, of quotas and of names and inodes; the engine's.
pub fn compare_quotas(engine: &dyn Engine, share: u16) -> FsResult<QuotaDifferences> {
    let rows = QuotaRows::read(engine)?;
    let mut found = QuotaDifferences::default();
    if rows.limits.is_empty() {
        return Ok(found);
    }
    let subjects = rows.limits.keys().copied().collect();
    let counts = count(engine, &subjects, &rows.homes, Rehome::Never)?;
    for of in subjects {
        let shares = rows.shares.get(&of).map_or(&[][..], Vec::as_slice);
        let says = shares.iter().fold(QuotaUsage::default(), |sum, (_, share)| sum.plus(*share));
        let counted = counts.own.get(&of).copied().unwrap_or_default();
        if says != counted {
            let booked = shares.iter().find(|(number, _)| *number == share);
            let booked = booked.map_or(QuotaUsage::default(), |(_, booked)| *booked);
            let value = Some(booked.plus(counted.minus(says)).encode());
            found.rows.push(Mutation { key: QuotaRow::Share(of, share).key(), value });
            found.usage.push((of, says, counted));
        }
    }
    found.rows.extend(counts.homes.iter().map(home_row));
    found.homes.extend(counts.homes.iter().map(|(ino, _)| *ino));
    Ok(found)
}

pub(super) fn home_row((ino, home): &(InodeId, Option<InodeId>)) -> Mutation {
    Mutation { key: QuotaRow::Home(*ino).key(), value: home.map(encode_home) }
}

/// The sum of the entries below a directory that are below no other directory with a quota, by the
/// shares of the directories: no file is looked at. `None` if there are files in table `link`:
/// nothing leads from these to their names.
pub(super) fn count_tree(
    engine: &dyn Engine,
    subjects: &FxHashSet<QuotaSubject>,
    top: InodeId,
) -> FsResult<Option<QuotaUsage>> {
    let mut is_any = false;
    let visited = engine.scan_table(Table::Link, None, &mut |_, _| {
        is_any = true;
        ControlFlow::Break(())
    });
    visited.map_err(engine_error)?;
    if is_any {
        return Ok(None);
    }
    let (mut sum, mut left) = (DirStat::default(), vec![top]);
    while let Some(dir) = left.pop() {
        usage::add_shares(engine, dir, &|_| true, &mut sum)?;
        let visited = engine.scan(Table::Subdir, dir, None, &mut |child, _, _| {
            let child = number_of(child);
            if !subjects.contains(&QuotaSubject::Dir(child)) {
                left.push(child);
            }
            ControlFlow::Continue(())
        });
        visited.map_err(engine_error)?;
    }
    Ok(Some(QuotaUsage { files: sum.children, bytes: sum.bytes }))
}
