//! Two moments of a volume of several nodes, as far as these have told the rows
//! ([`crate::history::changes`]).
//!
//! A page of changes is judged by what was told so far: a row that was not is noted, and taken for
//! absent. If any is noted in the end, what came out does not count, and the nodes are asked for
//! all of them. Both moments are snapshots, so what a node has told stays true.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Engine, EngineError, Layer, Mutation, Row, VisitRow};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsResult;
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::HistoryCursor;
use kestrel_types::stat::DirStat;
use parking_lot::Mutex;

use crate::history::changes::{
    ChangeSource, Cursor, Found, Group, GroupsPage, LocatedPage, NamesPage,
};
use crate::view::decode_dir_id;

/// Most directories of which new names are asked for at once.
pub const GROWN_MAX: usize = 32;

/// Rows of a moment that are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowsWanted {
    /// Single rows of the tables `entry`, `link` and `dirid`.
    pub keys: BTreeSet<Key>,
    /// Directories of which all shares are added up.
    pub dirs: BTreeSet<InodeId>,
}

impl RowsWanted {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.dirs.is_empty()
    }
}

/// Rows of a moment that a node has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MomentRows {
    /// Rows that the node owns, without the content of files.
    pub rows: Vec<(Key, Option<Box<[u8]>>)>,
    /// What the node's shares of directories come to.
    pub shares: Vec<(InodeId, DirStat)>,
}

/// What nodes are asked of two moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesQuestion {
    /// Two snapshots, the older one first.
    pub moments: (SnapshotId, SnapshotId),
    /// What of them.
    pub wanted: ChangesWanted,
}

/// See [`ChangesQuestion`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangesWanted {
    /// A page of history, from this cursor on, with at most so many names.
    Groups(HistoryCursor, usize),
    /// Of each of these directories a page of names that are new in it, behind a name; with at
    /// most so many names each.
    Grown(Vec<(InodeId, Option<Name>)>, usize),
    /// Rows at the older moment, and at the newer one.
    Rows(RowsWanted, RowsWanted),
}

/// What a node tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangesPart {
    /// A page of its history.
    Groups(Vec<Group>, Option<HistoryCursor>),
    /// A page of names of each directory, in the order of the question.
    Grown(Vec<NamesPage>),
    /// Rows at both moments.
    Rows(MomentRows, MomentRows),
}

/// What is to be known before two moments can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangesLack {
    /// All nodes are asked this.
    Asked(ChangesWanted),
    /// These files are looked for by name at the newer moment.
    Located(Vec<InodeId>, Option<(InodeId, Name)>),
}

/// Rows of a moment that were told.
pub struct ToldRows {
    /// The root of the tree: nothing above it is needed.
    root: InodeId,
    rows: Mutex<BTreeMap<Key, Option<Box<[u8]>>>>,
    shares: Mutex<BTreeMap<InodeId, DirStat>>,
    lacks: Mutex<RowsWanted>,
}

impl ToldRows {
    fn new(root: InodeId) -> Self {
        let (rows, shares, lacks) = Default::default();
        Self { root, rows, shares, lacks }
    }

    /// Takes what all nodes have told of what was asked for. A row that none has told is not there.
    fn take(&self, wanted: &RowsWanted, parts: Vec<MomentRows>) {
        let (mut rows, mut shares) = (self.rows.lock(), self.shares.lock());
        for key in &wanted.keys {
            rows.insert(key.clone(), None);
        }
        for dir in &wanted.dirs {
            shares.insert(*dir, DirStat::default());
        }
        for part in parts {
            for (key, row) in part.rows {
                if let Some(row) = row
                    && wanted.keys.contains(&key)
                {
                    rows.insert(key, Some(row));
                }
            }
            for (dir, share) in part.shares {
                if let Some(sum) = shares.get_mut(&dir).filter(|_| wanted.dirs.contains(&dir)) {
                    sum.merge(&share);
                }
            }
        }
        // What these rows lead to is needed as well, and asked for at once.
        let mut lacks = self.lacks.lock();
        for key in &wanted.keys {
            let Some(Some(row)) = rows.get(key) else { continue };
            for next in led_to(self.root, key, row) {
                if !rows.contains_key(&next) {
                    lacks.keys.insert(next);
                }
            }
        }
    }
}

/// The rows to which one leads: from a directory's place to its entry and the place of the
/// directory above, from a name to its file.
fn led_to(root: InodeId, key: &Key, row: &[u8]) -> Vec<Key> {
    match key.table {
        Table::DirId => match decode_dir_id(row) {
            Ok((parent, name)) => {
                let entry = Key::new(Table::Entry, parent, name);
                let is_end = key.id == root || parent == root || parent == ROOT || parent == 0;
                let above = (!is_end).then(|| Key::new(Table::DirId, parent, b""));
                [Some(entry), above].into_iter().flatten().collect()
            }
            Err(_) => Vec::new(),
        },
        Table::Entry => match Entry::decode(row) {
            Ok(Entry::Link { ino, .. }) => vec![Key::new(Table::Link, ino, b"")],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The rows of a moment that were told, as an engine that cannot be changed. It notes what it
/// lacks.
pub(crate) struct ToldEngine {
    below: Arc<dyn Engine>,
    rows: Arc<ToldRows>,
}

impl ToldEngine {
    /// These rows; what is no row is asked of `below`.
    pub fn new(below: Arc<dyn Engine>, rows: Arc<ToldRows>) -> Self {
        Self { below, rows }
    }
}

impl Layer for ToldEngine {
    fn below(&self) -> &dyn Engine {
        &*self.below
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        let rows = self.rows.rows.lock();
        for (index, key) in keys.iter().enumerate() {
            let key = KeyRef::to_owned(*key);
            let row = rows.get(&key);
            if row.is_none() {
                self.rows.lacks.lock().keys.insert(key);
            }
            let value = row.and_then(|row| row.as_deref());
            visit(index, Row { value, changed_at: 0 });
        }
        Ok(())
    }

    /// Of a directory's shares there is one, with the sum of all.
    fn scan(
        &self,
        table: Table,
        id: u64,
        _: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        if table != Table::DirStat {
            return Err(EngineError::Refused("metadata: no node was asked for such rows".into()));
        }
        match self.rows.shares.lock().get(&id) {
            Some(sum) if *sum == DirStat::default() => {}
            Some(sum) => {
                let _ = visit(&[0, 0], &sum.encode(), 0);
            }
            None => {
                self.rows.lacks.lock().dirs.insert(id);
            }
        }
        Ok(0)
    }

    fn scan_table(
        &self,
        _: Table,
        _: Option<KeyRef<'_>>,
        _: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        Err(EngineError::Refused("metadata: no node was asked for such rows".into()))
    }

    fn hint_new(&self, _: Table, _: u64) {}

    fn commit(&self, _: BatchKind, _: Vec<Mutation>) -> Result<Position, EngineError> {
        Err(EngineError::Refused("metadata: a snapshot cannot be changed".into()))
    }
}

/// What nodes have told of two moments.
pub struct ToldChanges {
    pub(crate) older: Arc<ToldRows>,
    pub(crate) newer: Arc<ToldRows>,
    groups: Option<GroupsPage>,
    grown: BTreeMap<(InodeId, Option<Name>), NamesPage>,
    located: Option<LocatedPage>,
    lacks: Mutex<Option<ChangesLack>>,
}

impl ToldChanges {
    /// Nothing yet, of the tree below a directory.
    pub fn new(root: InodeId) -> Self {
        Self {
            older: Arc::new(ToldRows::new(root)),
            newer: Arc::new(ToldRows::new(root)),
            groups: None,
            grown: BTreeMap::new(),
            located: None,
            lacks: Mutex::default(),
        }
    }

    /// What the last comparison lacked.
    pub(crate) fn take_lacks(&self) -> Option<ChangesLack> {
        let lacks = self.lacks.lock().take();
        let rows = [&self.older, &self.newer].map(|rows| std::mem::take(&mut *rows.lacks.lock()));
        let [older, newer] = rows;
        // With all rows it may turn out that the rest is not needed.
        match older.is_empty() && newer.is_empty() {
            true => lacks,
            false => Some(ChangesLack::Asked(ChangesWanted::Rows(older, newer))),
        }
    }

    /// Takes what all nodes have answered to what was asked.
    pub fn take(&mut self, wanted: &ChangesWanted, parts: Vec<ChangesPart>) {
        match wanted {
            ChangesWanted::Rows(older, newer) => {
                let (mut then, mut later) = (Vec::new(), Vec::new());
                for part in parts {
                    if let ChangesPart::Rows(one, other) = part {
                        then.push(one);
                        later.push(other);
                    }
                }
                self.older.take(older, then);
                self.newer.take(newer, later);
            }
            ChangesWanted::Groups(..) => {
                let pages = parts.into_iter().filter_map(|part| match part {
                    ChangesPart::Groups(groups, next) => {
                        Some((groups, next.and_then(|next| Cursor::decode(&next))))
                    }
                    _ => None,
                });
                self.groups = Some(merged_groups(pages.collect()));
            }
            ChangesWanted::Grown(from, _) => {
                let mut pages: Vec<Vec<NamesPage>> = vec![Vec::new(); from.len()];
                for part in parts {
                    let ChangesPart::Grown(of_dirs) = part else { continue };
                    pages.iter_mut().zip(of_dirs).for_each(|(pages, page)| pages.push(page));
                }
                for (place, pages) in from.iter().zip(pages) {
                    self.grown.insert(place.clone(), merged_names(pages));
                }
            }
        }
    }

    /// Takes which files were found.
    pub fn take_located(&mut self, found: LocatedPage) {
        self.located = Some(found);
    }

    fn lack<T: Default>(&self, lack: ChangesLack) -> T {
        self.lacks.lock().get_or_insert(lack);
        T::default()
    }
}

impl ChangeSource for ToldChanges {
    fn groups(
        &self,
        (id, found, suffix): (InodeId, Found, &[u8]),
        limit: usize,
    ) -> FsResult<GroupsPage> {
        Ok(self.groups.clone().unwrap_or_else(|| {
            let from = Cursor::History { id, found, suffix: suffix.into() }.encode();
            self.lack(ChangesLack::Asked(ChangesWanted::Groups(from, limit)))
        }))
    }

    fn grown(&self, dir: InodeId, after: Option<&Name>, limit: usize) -> FsResult<NamesPage> {
        let place = (dir, after.cloned());
        if let Some(known) = self.grown.get(&place) {
            return Ok(known.clone());
        }
        let none = || ChangesLack::Asked(ChangesWanted::Grown(Vec::new(), limit));
        let mut lacks = self.lacks.lock();
        if let ChangesLack::Asked(ChangesWanted::Grown(places, _)) = lacks.get_or_insert_with(none)
            && places.len() < GROWN_MAX
        {
            places.push(place);
        }
        Ok(NamesPage::default())
    }

    fn located(&self, files: &[InodeId], after: Option<&(InodeId, Name)>) -> FsResult<LocatedPage> {
        let lack = || self.lack(ChangesLack::Located(files.to_vec(), after.cloned()));
        Ok(self.located.clone().unwrap_or_else(lack))
    }
}

/// One page of the pages of all nodes: up to the place where the first of them ends.
fn merged_groups(pages: Vec<GroupsPage>) -> GroupsPage {
    let place = |cursor: &Cursor| match cursor {
        Cursor::History { id, suffix, .. } => Some((*id, suffix.clone())),
        _ => None,
    };
    let end = pages.iter().filter_map(|(_, next)| place(next.as_ref()?)).min();
    let mut merged: BTreeMap<InodeId, Group> = BTreeMap::new();
    for group in pages.into_iter().flat_map(|(groups, _)| groups) {
        if end.as_ref().is_some_and(|(id, _)| group.id > *id) {
            continue;
        }
        let known =
            merged.entry(group.id).or_insert_with(|| Group { id: group.id, ..Group::default() });
        known.names.extend(group.names);
        known.found.is_dir |= group.found.is_dir;
        known.found.has_gone |= group.found.has_gone;
        known.is_link |= group.is_link;
    }
    let mut groups: Vec<Group> = merged.into_values().collect();
    for group in &mut groups {
        group.names.sort_unstable();
        group.names.dedup();
        group.is_complete = end.as_ref().is_none_or(|(id, _)| *id != group.id);
    }
    let next = end.map(|(id, suffix)| {
        let found = groups.last().filter(|group| group.id == id).map(|group| group.found);
        Cursor::History { id, found: found.unwrap_or_default(), suffix }
    });
    (groups, next)
}

/// The same of names that are new in a directory.
fn merged_names(pages: Vec<NamesPage>) -> NamesPage {
    let end = pages.iter().filter_map(|(_, next)| next.clone()).min();
    let mut names: Vec<Name> = pages.into_iter().flat_map(|(names, _)| names).collect();
    names.retain(|name| end.as_ref().is_none_or(|end| name <= end));
    names.sort_unstable();
    names.dedup();
    (names, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: InodeId, names: &[&str]) -> Group {
        let names = names.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect();
        Group { id, names, is_complete: true, ..Group::default() }
    }

    fn cursor(id: InodeId, suffix: &[u8]) -> Option<Cursor> {
        Some(Cursor::History { id, found: Found::default(), suffix: suffix.into() })
    }

    /// A page of all nodes ends where the first node's ends, and tells of no number behind that; a
    /// number of which more may follow is not complete.
    #[test]
    fn merged_history() {
        let one = (vec![group(3, &["b"]), group(9, &["x"])], None);
        let other = (vec![group(2, &[]), group(3, &["a", "b"])], cursor(3, b"c"));
        let (groups, next) = merged_groups(vec![one, other]);
        assert_eq!(groups.iter().map(|group| group.id).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(groups[1].names.len(), 2);
        assert!(groups[0].is_complete && !groups[1].is_complete);
        assert_eq!(next, cursor(3, b"c"));
    }

    /// Names of a directory come in order, up to where a node has told all.
    #[test]
    fn merged_new_names() {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let one = (vec![name("b"), name("z")], None);
        let other = (vec![name("a")], Some(name("c")));
        let (names, next) = merged_names(vec![one, other]);
        assert_eq!((names, next), (vec![name("a"), name("b")], Some(name("c"))));
    }
}
