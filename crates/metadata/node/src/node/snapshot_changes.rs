//! SnapshotChanges: what may differ between two moments of a tree ([`crate::history::changes`]).
//! SnapshotUsage: what a snapshot holds ([`crate::history::usage`]).
//!
//! The caller is told of directories that it may list, at both moments, and all directories between
//! these and the tree's root with them, as a walk through both trees would have to list them.
//!
//! | file | what it has |
//! | --- | --- |
//! | `snapshot_changes/told.rs` | the same by rows of several nodes, as far as they have told |

pub mod told;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kestrel_engine::Engine;
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds, Outcome, Reply};
use kestrel_types::snapshot::SnapshotId;
use kestrel_types::snapshot_changes::{
    ChangedDir, ChangedName, DirMoment, HistoryCursor, SnapshotChanges, SnapshotUsage,
};
use kestrel_types::stat::DirStat;

use super::Node;
use super::dir_place::dir_place;
use super::snapshots::{DEPTH_MAX, NO_SUCH_SNAPSHOT};
use crate::history::at::SnapshotEngine;
use crate::history::changes::{
    self, ChangeSource, Cursor, Found, Group, GroupsPage, LocatedPage, Moments, NamesPage,
};
use crate::history::known::KnownSnapshots;
use crate::history::{damaged, usage};
use crate::ops::{locate, usage as figures};
use crate::perm::{self, EXEC, READ};
use crate::stop::{Stop, engine_error};
use crate::view::{View, guard_of};
use told::{
    ChangesLack, ChangesPart, ChangesQuestion, ChangesWanted, MomentRows, RowsWanted, ToldChanges,
    ToldEngine, ToldRows,
};

/// At so many bytes of names and paths a page ends.
const PAGE_BYTES: usize = 1 << 20;

/// A cursor that is of another listing, or of a node that has left.
pub const BAD_CURSOR: FsError =
    FsError::new(libc::EINVAL, "the listing does not go on there: begin it again");

/// The two moments, and the tree.
pub struct Compared {
    /// The tree's root.
    pub dir: InodeId,
    /// The older moment.
    pub older: SnapshotId,
    /// The newer one; `None`: now.
    pub newer: Option<SnapshotId>,
    /// A page ends at so many names.
    pub limit: usize,
}

/// What the rows of one engine tell.
struct OwnChanges<'a> {
    /// The rows of now.
    present: &'a dyn Engine,
    /// The rows of the newer moment.
    newer: &'a dyn Engine,
    /// The snapshots.
    snapshots: &'a KnownSnapshots,
    /// The moments.
    moments: Moments,
}

impl ChangeSource for OwnChanges<'_> {
    fn groups(&self, from: (InodeId, Found, &[u8]), limit: usize) -> FsResult<GroupsPage> {
        changes::groups(self.present, self.snapshots, self.moments, from, limit)
            .map_err(engine_error)
    }

    fn grown(&self, dir: InodeId, after: Option<&Name>, limit: usize) -> FsResult<NamesPage> {
        changes::grown(self.present, self.snapshots, (dir, after), self.moments, limit)
            .map_err(engine_error)
    }

    fn located(&self, files: &[InodeId], after: Option<&(InodeId, Name)>) -> FsResult<LocatedPage> {
        match locate::run(self.newer, (files, after), &|_, _| true)? {
            Answer::Located { found, next } => Ok((found, next)),
            _ => Ok((Vec::new(), None)),
        }
    }
}

/// How far two moments have been compared by what nodes have told.
pub enum ComparedTold {
    /// This is not known yet.
    Lacks(ChangesLack),
    /// The reply.
    Ended(Reply),
}

/// A directory: the one above, its name there, and its inode without figures.
type PlacedDir = (InodeId, Box<[u8]>, Box<Inode>);

/// A directory and how many names it has.
type CountedDir = (DirMoment, i64);

/// A tree at a moment.
struct TreeMoment<'a> {
    engine: Arc<dyn Engine>,
    root: InodeId,
    creds: &'a Creds,
    /// Directories above one another, with their paths; `None`: not in the tree.
    known: HashMap<InodeId, Option<Arc<[u8]>>>,
}

/// A page under way.
struct ChangesPage<'a> {
    older: TreeMoment<'a>,
    newer: TreeMoment<'a>,
    source: &'a dyn ChangeSource,
    limit: usize,
    told: SnapshotChanges,
    bytes: usize,
}

impl Node {
    /// Executes [`kestrel_types::Op::SnapshotChanges`]. `wait` becomes the position that the answer
    /// waits for.
    pub(super) fn snapshot_changes(
        &self,
        creds: &Creds,
        compared: &Compared,
        (files, after): (&[InodeId], Option<&HistoryCursor>),
        wait: &mut Position,
    ) -> Reply {
        let Compared { older, newer, .. } = *compared;
        self.check_moments((older, newer))?;
        let then = |at| -> Arc<dyn Engine> {
            let snapshots = self.core.snapshots.clone();
            Arc::new(SnapshotEngine::new(self.engine.clone(), snapshots, at))
        };
        let engines = (then(older), newer.map_or_else(|| self.engine.clone(), then));
        let source = OwnChanges {
            present: &*self.engine,
            newer: &*engines.1.clone(),
            snapshots: &self.core.snapshots,
            moments: (older, newer),
        };
        if newer.is_none() {
            *wait = self.committed.load(Ordering::Relaxed);
        }
        page_of((creds, compared), engines, &source, (files, after))
    }

    /// Executes [`kestrel_types::Op::SnapshotChanges`] by what the nodes of a volume have told, as
    /// far as that goes. Both moments are snapshots.
    pub fn compare_told(
        &self,
        creds: &Creds,
        compared: &Compared,
        (files, after): (&[InodeId], Option<&HistoryCursor>),
        told: &ToldChanges,
    ) -> ComparedTold {
        if let Err(why) = self.check_moments((compared.older, compared.newer)) {
            return ComparedTold::Ended(Err(why.into()));
        }
        let engine = |rows: &Arc<ToldRows>| -> Arc<dyn Engine> {
            Arc::new(ToldEngine::new(self.engine.clone(), rows.clone()))
        };
        let engines = (engine(&told.older), engine(&told.newer));
        let reply = page_of((creds, compared), engines, told, (files, after));
        match told.take_lacks() {
            Some(lacks) => ComparedTold::Lacks(lacks),
            None => ComparedTold::Ended(reply),
        }
    }

    /// What this node tells another one that compares two moments.
    ///
    /// # Errors
    /// `ESTALE` if there is no such snapshot; `EINVAL` for a cursor of something else; the
    /// engine's.
    pub fn tell_changes(&self, asked: &ChangesQuestion) -> FsResult<ChangesPart> {
        let (older, newer) = asked.moments;
        self.check_moments((older, Some(newer)))?;
        let newer_rows =
            SnapshotEngine::new(self.engine.clone(), self.core.snapshots.clone(), newer);
        let source = OwnChanges {
            present: &*self.engine,
            newer: &newer_rows,
            snapshots: &self.core.snapshots,
            moments: (older, Some(newer)),
        };
        match &asked.wanted {
            ChangesWanted::Groups(from, limit) => {
                let Some(Cursor::History { id, found, suffix }) = Cursor::decode(from) else {
                    return Err(BAD_CURSOR);
                };
                let (groups, next) = source.groups((id, found, &suffix), *limit)?;
                Ok(ChangesPart::Groups(groups, next.map(|next| next.encode())))
            }
            ChangesWanted::Grown(places, limit) => {
                let page = |(dir, after): &(InodeId, Option<Name>)| {
                    source.grown(*dir, after.as_ref(), *limit)
                };
                let pages: FsResult<Vec<NamesPage>> = places.iter().map(page).collect();
                Ok(ChangesPart::Grown(pages?))
            }
            ChangesWanted::Rows(older_rows, newer_rows) => {
                let rows = |at, wanted: &RowsWanted| self.node_at(at)?.tell_moment_rows(wanted);
                Ok(ChangesPart::Rows(rows(older, older_rows)?, rows(newer, newer_rows)?))
            }
        }
    }

    /// Rows of this node, which reads a snapshot, and what its shares of directories come to.
    fn tell_moment_rows(&self, wanted: &RowsWanted) -> FsResult<MomentRows> {
        let table = self.core.cluster.as_ref().map(|cluster| cluster.table());
        let own = |table_of, id, suffix: &[u8]| {
            table.as_ref().is_none_or(|table| table.owns(table_of, id, suffix))
        };
        let keys: Vec<&Key> =
            wanted.keys.iter().filter(|key| own(key.table, key.id, &key.suffix)).collect();
        let borrowed: Vec<KeyRef<'_>> = keys.iter().map(|key| key.borrow()).collect();
        let mut told = MomentRows::default();
        let mut damage = None;
        let read = self.engine.get_many(&borrowed, &mut |index, row| {
            let key = keys[index];
            match row.value.map(|row| changes::row_without_content(key.table, row)).transpose() {
                Ok(row) => told.rows.push((key.clone(), row)),
                Err(why) => damage = Some(damaged("entry", &why)),
            }
        });
        read.and(damage.map_or(Ok(()), Err)).map_err(engine_error)?;
        for dir in &wanted.dirs {
            let mut sum = DirStat::default();
            let is_own = |share: &[u8]| own(Table::DirStat, *dir, share);
            figures::add_shares(&*self.engine, *dir, &is_own, &mut sum)?;
            told.shares.push((*dir, sum));
        }
        Ok(told)
    }

    /// What removing a snapshot would give back of the history that this node has, from a cursor
    /// on: a part.
    ///
    /// # Errors
    /// `ESTALE` if there is no such snapshot, `EINVAL` for a cursor of something else; the
    /// engine's.
    pub fn snapshot_usage(
        &self,
        snapshot: SnapshotId,
        after: Option<&HistoryCursor>,
    ) -> FsResult<SnapshotUsage> {
        self.need_snapshot(snapshot)?;
        let from = match after {
            None => None,
            Some(bytes) => Some(usage::decode_cursor(bytes).ok_or(BAD_CURSOR)?),
        };
        let page = usage::page(&*self.engine, &self.core.snapshots, snapshot, from.as_ref());
        page.map_err(engine_error)
    }

    fn check_moments(&self, (older, newer): Moments) -> FsResult<()> {
        if newer.is_some_and(|newer| newer <= older) {
            return Err(FsError::new(libc::EINVAL, "the newer snapshot is not newer"));
        }
        [older].into_iter().chain(newer).try_for_each(|snapshot| self.need_snapshot(snapshot))
    }

    fn need_snapshot(&self, snapshot: SnapshotId) -> FsResult<()> {
        let known = self.core.snapshots.get(snapshot);
        let is_readable = known.is_some_and(|known| self.is_readable(&known));
        if is_readable { Ok(()) } else { Err(NO_SUCH_SNAPSHOT) }
    }
}

/// A page of what may differ, by the rows of both moments.
fn page_of(
    (creds, compared): (&Creds, &Compared),
    (older, newer): (Arc<dyn Engine>, Arc<dyn Engine>),
    source: &dyn ChangeSource,
    (files, after): (&[InodeId], Option<&HistoryCursor>),
) -> Reply {
    let Compared { dir, limit, .. } = *compared;
    let tree = |engine| TreeMoment { engine, root: dir, creds, known: HashMap::new() };
    let mut page = ChangesPage {
        older: tree(older),
        newer: tree(newer),
        source,
        limit,
        told: SnapshotChanges { newer: compared.newer, ..SnapshotChanges::default() },
        bytes: 0,
    };
    page.older.check_root()?;
    page.newer.check_root()?;
    let cursor = match after {
        None => None,
        Some(bytes) => Some(Cursor::decode(bytes).ok_or(BAD_CURSOR)?),
    };
    match (files, cursor) {
        ([], None) => {
            // Its attributes are in a directory that is not in the tree.
            page.add_dir(dir)?;
            page.add_changes(Cursor::start())?;
        }
        ([], Some(cursor)) => page.add_changes(cursor)?,
        (_, None) => page.add_files(files, None)?,
        (_, Some(Cursor::Files(dir, name))) => page.add_files(files, Some((dir, name)))?,
        _ => return Err(BAD_CURSOR.into()),
    }
    Ok(Answer::SnapshotChanges(Box::new(page.told)))
}

impl TreeMoment<'_> {
    /// Fails unless the tree is there and its root may be listed.
    fn check_root(&mut self) -> Result<(), Outcome> {
        match self.dir_at_place(self.root)? {
            Some((_, _, inode)) => self.check(&inode),
            None => Err(FsError::new(libc::ENOENT, "the directory is not there then").into()),
        }
    }

    fn check(&self, dir: &Inode) -> Result<(), Outcome> {
        perm::check(self.creds, &guard_of(dir), READ | EXEC).map_err(Stop::without_rows)
    }

    /// The directory above, the name in it, and the inode without figures.
    fn dir_at_place(&self, dir: InodeId) -> FsResult<Option<PlacedDir>> {
        let Some((parent, name)) = dir_place(&*self.engine, dir)? else { return Ok(None) };
        let mut found = Ok(None);
        let key = KeyRef::new(Table::Entry, parent, &name);
        let read = self.engine.get_many(&[key], &mut |_, row| {
            found = row.value.map(Entry::decode).transpose();
        });
        read.map_err(engine_error)?;
        match found {
            Ok(Some(Entry::Inode(mut inode))) if inode.ino == dir && inode.kind == Kind::Dir => {
                inode.data = Data::None;
                Ok(Some((parent, name, Box::new(inode))))
            }
            // At present: it has been moved since.
            Ok(_) => Ok(None),
            Err(why) => Err(FsError::because(
                libc::EIO,
                format!("metadata: damaged entry of directory {dir}: {why}; run kestrel fsck"),
            )),
        }
    }

    /// The path of a directory from the root, if it is in the tree. Fails if the caller may not
    /// list it, or a directory between.
    fn path(&mut self, dir: InodeId) -> Result<Option<Arc<[u8]>>, Outcome> {
        let (mut below, mut at) = (Vec::new(), dir);
        let mut path = loop {
            if at == self.root {
                break Some(Arc::from([]));
            }
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            let Some((parent, name)) = dir_place(&*self.engine, at)? else { break None };
            below.push((at, name));
            if parent == 0 || below.len() > DEPTH_MAX {
                break None;
            }
            at = parent;
        };
        while let Some((at, name)) = below.pop() {
            if let Some(above) = path {
                if self.creds.uid != 0 {
                    match self.dir_at_place(at)? {
                        Some((_, _, inode)) => self.check(&inode)?,
                        None => return Ok(None),
                    }
                }
                path = Some(match &*above {
                    [] => Arc::from(&*name),
                    above => [above, b"/", &*name].concat().into(),
                });
            }
            self.known.insert(at, path.clone());
        }
        Ok(path)
    }

    /// A directory of the tree, with its figures and how many names it has.
    fn dir(&mut self, dir: InodeId) -> Result<Option<CountedDir>, Outcome> {
        let Some(path) = self.path(dir)? else { return Ok(None) };
        let Some((parent, _, inode)) = self.dir_at_place(dir)? else { return Ok(None) };
        let mut figures = DirStat::default();
        figures::add_shares(&*self.engine, dir, &|_| true, &mut figures)?;
        let parent = if dir == self.root { 0 } else { parent };
        let inode = Box::new(View::with_figures(*inode, &figures));
        Ok(Some((DirMoment { parent, path: (&*path).into(), inode }, figures.children)))
    }
}

impl ChangesPage<'_> {
    /// Adds changes from `cursor` on, until the page is full.
    fn add_changes(&mut self, cursor: Cursor) -> Result<(), Outcome> {
        let start = match cursor {
            Cursor::History { .. } => cursor,
            Cursor::Grown(dir, after) => {
                if !self.add_grown(dir, Some(&after))? {
                    return Ok(());
                }
                match Cursor::behind(dir) {
                    Some(behind) => behind,
                    None => return Ok(()),
                }
            }
            Cursor::Files(..) => return Err(BAD_CURSOR.into()),
        };
        let Cursor::History { id, found, suffix } = &start else { return Ok(()) };
        let (groups, mut next) = self.source.groups((*id, *found, suffix), self.limit)?;
        for (number, group) in groups.into_iter().enumerate() {
            if self.bytes >= PAGE_BYTES && number > 0 {
                let (id, found, suffix) = (group.id, Default::default(), Box::default());
                self.told.next = Some(Cursor::History { id, found, suffix }.encode());
                return Ok(());
            }
            let (id, is_last) = (group.id, !group.is_complete);
            let Some(has_gone) = self.add_group(group)? else { return Ok(()) };
            // Whether a name has gone goes along to the rest of its directory.
            if let Some(Cursor::History { id: same, found, .. }) = &mut next
                && is_last
                && *same == id
            {
                found.has_gone |= has_gone;
            }
        }
        self.told.next = next.map(|cursor| cursor.encode());
        Ok(())
    }

    /// Adds what history says of a number. Whether a name has gone; `None` if the page is full.
    fn add_group(&mut self, group: Group) -> Result<Option<bool>, Outcome> {
        let Group { id, names, found, is_link, is_complete } = group;
        if is_link {
            let older = changes::link(&*self.older.engine, id).map_err(engine_error)?;
            let newer = changes::link(&*self.newer.engine, id).map_err(engine_error)?;
            if older.zip(newer).is_some_and(|(was, is)| changes::has_changed(&was, &is)) {
                self.told.files.push(id);
            }
        }
        if names.is_empty() && found == Found::default() {
            return Ok(Some(false));
        }
        let Some(((older, were), (newer, are))) = self.both(id)? else { return Ok(Some(false)) };
        let pairs = self.pairs(id, names)?;
        let gone = |pair: &ChangedName| pair.older.is_some() && pair.newer.is_none();
        let has_gone = found.has_gone || pairs.iter().any(gone);
        self.add_dirs(&pairs)?;
        self.push(ChangedDir { dir: id, older, newer, names: pairs });
        let has_grown = is_complete && (has_gone || were != are);
        if has_grown && !self.add_grown(id, None)? {
            return Ok(None);
        }
        Ok(Some(has_gone))
    }

    /// A directory at both moments, if the tree has it at both.
    fn both(&mut self, dir: InodeId) -> Result<Option<(CountedDir, CountedDir)>, Outcome> {
        let Some(older) = self.older.dir(dir)? else { return Ok(None) };
        Ok(self.newer.dir(dir)?.map(|newer| (older, newer)))
    }

    fn pairs(&self, dir: InodeId, names: Vec<Name>) -> FsResult<Vec<ChangedName>> {
        let older = changes::inodes(&*self.older.engine, dir, &names).map_err(engine_error)?;
        let newer = changes::inodes(&*self.newer.engine, dir, &names).map_err(engine_error)?;
        Ok(changes::pairs(names, older, newer))
    }

    /// Adds the directories among names that have them at both moments: their attributes may have
    /// changed.
    fn add_dirs(&mut self, pairs: &[ChangedName]) -> Result<(), Outcome> {
        for pair in pairs {
            if let (Some(older), Some(newer)) = (&pair.older, &pair.newer)
                && older.ino == newer.ino
                && newer.kind == Kind::Dir
            {
                self.add_dir(newer.ino)?;
            }
        }
        Ok(())
    }

    /// Adds a directory without names.
    fn add_dir(&mut self, dir: InodeId) -> Result<(), Outcome> {
        if let Some(((older, _), (newer, _))) = self.both(dir)? {
            self.push(ChangedDir { dir, older, newer, names: Vec::new() });
        }
        Ok(())
    }

    /// Adds names that are new in a directory, from a name on; whether there are no more.
    fn add_grown(&mut self, dir: InodeId, after: Option<&Name>) -> Result<bool, Outcome> {
        let (names, next) = self.source.grown(dir, after, self.limit)?;
        let is_end = next.is_none();
        self.told.next = next.map(|name| Cursor::Grown(dir, name).encode());
        let mut pairs = self.pairs(dir, names)?;
        // What was there before leaves history, by which it is told.
        pairs.retain(|pair| pair.older.is_none());
        if !pairs.is_empty()
            && let Some(((older, _), (newer, _))) = self.both(dir)?
        {
            self.push(ChangedDir { dir, older, newer, names: pairs });
        }
        Ok(is_end)
    }

    /// Adds names of files, from a name of a directory on.
    fn add_files(
        &mut self,
        files: &[InodeId],
        after: Option<(InodeId, Name)>,
    ) -> Result<(), Outcome> {
        let (found, next) = self.source.located(files, after.as_ref())?;
        self.told.next = next.map(|(dir, name)| Cursor::Files(dir, name).encode());
        let mut by_dir: BTreeMap<InodeId, Vec<Name>> = BTreeMap::new();
        for (dir, entry) in found {
            by_dir.entry(dir).or_default().push(entry.name);
        }
        for (dir, names) in by_dir {
            if let Some(((older, _), (newer, _))) = self.both(dir)? {
                let names = self.pairs(dir, names)?;
                self.push(ChangedDir { dir, older, newer, names });
            }
        }
        Ok(())
    }

    fn push(&mut self, dir: ChangedDir) {
        let names: usize = dir.names.iter().map(|pair| pair.name.as_bytes().len()).sum();
        self.bytes += names + dir.older.path.len() + dir.newer.path.len();
        self.told.dirs.push(dir);
    }
}
