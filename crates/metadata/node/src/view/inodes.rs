//! Inodes: what a name or a number stands for, and where its record lies.

use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::placement::{COUNTERS_MAX, id_in, slot_of_id};

use super::View;
use crate::perm::{Dentry, Guard, guard_mode};
use crate::rows::{CellId, Value};
use crate::stop::{Route, Run, Stop, damaged, engine_error, fail};

/// A place in the tree: the directory, and the cells of the entry and of its worker's share of the
/// directory.
#[derive(Debug, Clone)]
pub struct Spot {
    /// The directory.
    pub dir: Dentry,
    /// [`hash_entry`](kestrel_types::placement::hash_entry) of the directory and the name.
    pub hash: u64,
    /// Worker that owns the entry.
    pub home: usize,
    /// The entry.
    pub entry: CellId,
    /// The share.
    pub share: CellId,
}

/// Where the dry run of an operation found its place by the namespace replica alone: as long as the
/// batch changes no directory it is still there when the operation runs.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Which of the request's places it is: looked at for nothing but whether it is the same.
    pub(super) place: *const PathRef,
    pub(super) change: bool,
    pub(super) spot: Spot,
    /// Newest position of a change that decided it.
    pub(super) changed_at: Position,
}

/// What a caller wants with an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeUse {
    /// Look at it.
    Read,
    /// Count an open.
    Open,
    /// Change its record.
    Write,
    /// Count opens of before a restart; with every worker's state held.
    Claim,
}

/// Where an inode's record lies.
#[derive(Debug, Clone, Copy)]
pub enum At {
    /// Under a name; the worker that owns it and the directory that counts its bytes in a share.
    Name {
        /// The record.
        cell: CellId,
        /// Its worker.
        home: usize,
        /// The directory.
        parent: InodeId,
    },
    /// Under a name, and it is a directory.
    Dir(CellId),
    /// In table `link`.
    Link {
        /// The record.
        cell: CellId,
        /// Its worker.
        home: usize,
    },
}

impl At {
    /// Worker that counts in its shares what the inode refers to.
    pub fn home(&self) -> usize {
        match self {
            At::Name { home, .. } | At::Link { home, .. } => *home,
            At::Dir(_) => 0,
        }
    }
}

/// An inode and where its record lies.
#[derive(Debug, Clone)]
pub struct LocatedInode {
    /// The record; a directory's without the figures of its shares.
    pub inode: Inode,
    /// Where it lies.
    pub at: At,
}

impl LocatedInode {
    /// What decides about permissions on it.
    pub fn guard(&self) -> Guard {
        guard_of(&self.inode)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.inode.kind == Kind::Dir
    }
}

/// What decides about permissions on an inode.
pub fn guard_of(inode: &Inode) -> Guard {
    let mode = guard_mode(inode.mode, inode.flags);
    let dir = inode.kind == Kind::Dir;
    Guard { mode, uid: inode.uid, gid: inode.gid, dir, acls: inode.acls.clone() }
}

impl View<'_> {
    /// What an entry stands for; `None` if there is no such name. A directory comes without its
    /// figures.
    #[inline]
    pub fn at_spot(&mut self, spot: &Spot, using: InodeUse) -> Run<Option<LocatedInode>> {
        if using == InodeUse::Write && matches!(self.entry(spot.entry)?, Some(Entry::Link { .. })) {
            self.need_exclusive()?;
        }
        self.at_name(spot.entry, spot.dir.ino, spot.home, using)
    }

    /// What a place shows; `None` if there is no such name.
    #[inline]
    pub fn shown_at(&mut self, spot: &Spot) -> Run<Option<Box<Inode>>> {
        match self.file_in(spot.entry)? {
            Some(inode) => Ok(Some(inode)),
            None => self.shown_apart(spot),
        }
    }

    /// The same of what is no file with one name.
    #[inline(never)]
    fn shown_apart(&mut self, spot: &Spot) -> Run<Option<Box<Inode>>> {
        let Some(found) = self.at_spot(spot, InodeUse::Read)? else { return Ok(None) };
        Ok(Some(Box::new(self.shown(found)?)))
    }

    /// The inode of an entry, in the box of the answer at once, which saves copies of it; `None` if
    /// it is no file, or one in table `link`.
    #[inline]
    pub fn file_in(&mut self, cell: CellId) -> Run<Option<Box<Inode>>> {
        match self.entry(cell)? {
            Some(Entry::Inode(inode)) if inode.kind != Kind::Dir => {
                Ok(Some(Box::new(inode.clone())))
            }
            _ => Ok(None),
        }
    }

    /// The same of the file that a request names, if it still has the name that the client knows.
    #[inline]
    pub fn seen_file(&mut self, asked: &InodeRef) -> Run<Option<Box<Inode>>> {
        let (Route::AsAsked, Some((parent, name))) = (self.route, &asked.seen) else {
            return Ok(None);
        };
        let cell = self.entry_cell(*parent, name.as_bytes());
        Ok(self.file_in(cell)?.filter(|inode| inode.ino == asked.ino))
    }

    fn at_name(
        &mut self,
        cell: CellId,
        parent: InodeId,
        home: usize,
        using: InodeUse,
    ) -> Run<Option<LocatedInode>> {
        match self.entry(cell)? {
            None => Ok(None),
            Some(Entry::Inode(inode)) if inode.kind == Kind::Dir => {
                let inode = inode.clone();
                if using == InodeUse::Write {
                    self.need_names(&inode)?;
                }
                Ok(Some(LocatedInode { inode, at: At::Dir(cell) }))
            }
            Some(Entry::Inode(inode)) => {
                Ok(Some(LocatedInode { inode: inode.clone(), at: At::Name { cell, home, parent } }))
            }
            Some(Entry::Link { ino, .. }) => {
                let ino = *ino;
                match self.at_number(ino, using)? {
                    Some(found) => Ok(Some(found)),
                    // Of a clone that is newer than the snapshot (`crate::clones`).
                    None if self.core.is_snapshot => Ok(None),
                    None => {
                        Err(damaged("link", &DecodeError("missing for a name that refers to it")))
                    }
                }
            }
        }
    }

    /// Stops unless a directory has all its names. Its record must not change before: history
    /// would show it with a base that has gone ([`crate::clones`]).
    fn need_names(&self, dir: &Inode) -> Run<()> {
        match self.own_policy(dir)?.base {
            None => Ok(()),
            Some(_) => Err(Stop::Based(dir.ino)),
        }
    }

    /// An inode in table `link`.
    fn at_number(&mut self, ino: InodeId, using: InodeUse) -> Run<Option<LocatedInode>> {
        let cell = self.link_cell(ino);
        let Some(inode) = self.link(cell)? else { return Ok(None) };
        let inode = inode.clone();
        let home = self.home_of_inode(ino);
        // A file without names may go away at its last release, which runs at its own worker.
        let owner_only = using == InodeUse::Write || using == InodeUse::Open && inode.nlink == 0;
        if owner_only && !self.holds(home) {
            return Err(self.forward(home, Route::Number));
        }
        if inode.nlink == 0 && !self.shows_orphans(ino, using) {
            return Ok(None);
        }
        Ok(Some(LocatedInode { inode, at: At::Link { cell, home } }))
    }

    /// Whether a file without names is to be had.
    pub fn shows_orphans(&self, ino: InodeId, using: InodeUse) -> bool {
        match (self.table, using) {
            (_, InodeUse::Claim) => true,
            // If it is not open it is kept in case a client claims it; nobody else can know it.
            (None, _) => self.open_state(ino).count > 0,
            // Others may have it open. Once they have said that they do not, nobody but its home
            // may count an open of it.
            (Some(table), InodeUse::Open) => table.home_of(ino) == table.me,
            (Some(_), InodeUse::Read | InodeUse::Write) => true,
        }
    }

    /// An inode that a request names. `ESTALE` if it does not exist any more.
    #[inline]
    pub fn find(&mut self, inode: &InodeRef, using: InodeUse) -> Run<LocatedInode> {
        let found = match self.route {
            Route::AsAsked => match &inode.seen {
                Some((parent, name)) => self.find_at(inode.ino, *parent, name.as_bytes(), using)?,
                None => None,
            },
            Route::Name(parent, name) => self.find_at(inode.ino, *parent, name, using)?,
            Route::Number => None,
        };
        let found = match found {
            Some(found) => found,
            None => self.find_by_number(inode.ino, using)?,
        };
        if using == InodeUse::Write && matches!(found.at, At::Dir(_)) {
            self.need_exclusive()?;
            self.need_names(&found.inode)?;
        }
        Ok(found)
    }

    fn find_at(
        &mut self,
        ino: InodeId,
        parent: InodeId,
        name: &[u8],
        using: InodeUse,
    ) -> Run<Option<LocatedInode>> {
        let cell = self.entry_cell(parent, name);
        if self.entry(cell)?.is_none_or(|entry| entry.ino() != ino) {
            return Ok(None);
        }
        let home = self.home_of_name(parent, name);
        let found = self.at_name(cell, parent, home, using)?;
        let named = matches!(found, Some(LocatedInode { at: At::Name { .. }, .. }));
        if named && using != InodeUse::Read && !self.holds(home) {
            return Err(self.forward(home, Route::Name(parent, name.into())));
        }
        Ok(found)
    }

    fn find_by_number(&mut self, ino: InodeId, using: InodeUse) -> Run<LocatedInode> {
        if let Some((parent, name)) = self.moved(ino)?
            && let Some(found) = self.find_at(ino, parent, &name, using)?
        {
            return Ok(found);
        }
        if let Some(found) = self.find_dir_record(ino)? {
            return Ok(found);
        }
        self.at_number(ino, using)?
            .ok_or_else(|| fail(libc::ESTALE, "the file does not exist any more"))
    }

    fn find_dir_record(&mut self, ino: InodeId) -> Run<Option<LocatedInode>> {
        // Ask for the other possibility at the same time, so that either costs one fetch.
        if ino != ROOT && self.core.replica.get(ino).is_none() {
            self.link_cell(ino);
        } else {
            self.want_figures(ino);
        }
        let Some((parent, name)) = self.dir_place(ino)? else { return Ok(None) };
        let cell = self.entry_cell(parent, &name);
        let found = self.dir_at(ino, cell)?;
        Ok(found.map(|inode| LocatedInode { inode: inode.clone(), at: At::Dir(cell) }))
    }

    /// The inode of a directory at the place that its row in table `dirid` names. `None` at a
    /// snapshot that is older than the clone that the directory belongs to (`crate::clones`).
    pub(super) fn dir_at(&mut self, ino: InodeId, cell: CellId) -> Run<Option<&Inode>> {
        let is_snapshot = self.core.is_snapshot;
        match self.entry(cell)? {
            Some(Entry::Inode(inode)) if inode.ino == ino && inode.kind == Kind::Dir => {
                Ok(Some(inode))
            }
            None if is_snapshot => Ok(None),
            _ => Err(damaged("dirid", &DecodeError("names another inode"))),
        }
    }

    /// A directory's record by number.
    pub fn dir_record(&mut self, ino: InodeId) -> Run<LocatedInode> {
        self.find_dir_record(ino)?
            .ok_or_else(|| fail(libc::ESTALE, "the directory does not exist any more"))
    }

    /// The share that counts a file's bytes, if one does. Ask before [`View::begin`].
    pub fn bytes_share(&mut self, at: &At) -> Option<CellId> {
        match at {
            At::Name { home, parent, .. } => Some(self.share_cell(*parent, *home)),
            At::Dir(_) | At::Link { .. } => None,
        }
    }

    /// Writes an inode back. If its size changed from `old_size`, `share` is what
    /// [`View::bytes_share`] gave.
    pub fn put_inode(
        &mut self,
        at: &At,
        inode: Inode,
        old_size: u64,
        share: Option<CellId>,
    ) -> Run<()> {
        let growth = inode.size.cast_signed() - old_size.cast_signed();
        match at {
            At::Name { cell, .. } | At::Dir(cell) => {
                if let (Some(share), true) = (share, growth != 0) {
                    self.change_dir(share, 0, 0, growth, false)?;
                }
                if inode.kind == Kind::Dir {
                    self.effects.dirs_changed.insert(inode.ino);
                }
                self.put(*cell, Value::Entry(Entry::Inode(inode)));
            }
            At::Link { cell, .. } => {
                self.effects.count_bytes(growth);
                self.put(*cell, Value::Inode(inode));
            }
        }
        Ok(())
    }

    /// A number for a new inode with this name. Without a name it gets the home of the directory.
    pub fn new_ino(&mut self, parent: InodeId, name: &[u8]) -> Run<InodeId> {
        let counter = self.ids.take().map_err(|why| Stop::Fail(engine_error(why)))?;
        match self.table {
            None => Ok(counter),
            Some(table) if counter < COUNTERS_MAX => {
                let slot = if name.is_empty() {
                    slot_of_id(parent)
                } else {
                    table.placement.slot_of(parent, name)
                };
                Ok(id_in(counter, table.me, slot))
            }
            Some(_) => Err(fail(libc::ENOSPC, "metadata: no inode numbers are left")),
        }
    }
}
