//! What an operation sees and may do: rows, directories, session state; the end of its reading and its changes.
//!
//! An operation is a pure function of a [`View`]: it does no I/O, reads no clock and takes no lock that outlives a look-up.
//! It has two halves, divided by [`View::begin`]:
//!
//! 1. **Read and check.** Anything it needs that is not here yet ends the run with [`Stop::Need`]; it runs again from its
//!    start when the rows are there. Every error is found in this half.
//! 2. **Change.** Nothing here can fail for a reason other than a damaged row, and then the journal undoes all of it.
//!
//! In a *dry* run `begin` stops the operation: that is how a batch finds out what to fetch, and why the first half must
//! change nothing.
//!
//! **Who may write what.** The entry of a name and its shares belong to the worker that the placement hash of
//! `(parent, name)` gives; a row of table `link` to that of the inode's number. Records of directories, names of hard-linked
//! files and of open files change only in *exclusive* batches, which hold every worker's role. So whoever holds any role
//! may read all of them.

use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::codec::{DecodeError, Reader};
use kestrel_types::entry::Entry;
use kestrel_types::error::FsError;
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::{InodeRef, NAME_MAX, Place};
use kestrel_types::placement::{hash_entry, hash_inode, place_of};
use kestrel_types::request::{Creds, Outcome};
use kestrel_types::stat::{DirStat, ObjStat};

use crate::effects::{Effects, OpenUndo};
use crate::ids::Block;
use crate::perm::{self, Dentry, EXEC, Guard};
use crate::replica::Replica;
use crate::rows::{CellId, Rows, Value, number_of, share_suffix};
use crate::session::{Condemned, MovedTable, OpenState, OpenTable};
use crate::tally::Tally;

/// Size that a directory shows.
pub const DIR_SIZE: u64 = 4096;

/// Most names of one file, as on ext4. Subdirectories of a directory are not limited.
pub const LINK_MAX: u32 = 65_000;

/// What all workers of a node share.
pub struct Core {
    /// Dentries.
    pub replica: Replica,
    /// Open files.
    pub opens: OpenTable,
    /// Renamed files.
    pub moved: MovedTable,
    /// Objects being deleted.
    pub condemned: Condemned,
    /// Workers that run.
    pub workers: usize,
    /// Shares that rows may have: the most workers this volume ever had.
    pub shares: usize,
    /// Time between the last reference to an object and its deletion.
    pub grace: Nanos,
}

impl Core {
    /// Worker that owns an entry.
    #[inline]
    pub fn home_of_name(&self, parent: InodeId, name: &[u8]) -> usize {
        place_of(hash_entry(parent, name), self.workers)
    }

    /// Worker that owns what is found by number.
    #[inline]
    pub fn home_of_inode(&self, ino: InodeId) -> usize {
        place_of(hash_inode(ino), self.workers)
    }
}

/// Where a request that names an inode is looked for; changes when it has to go to another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Where the request says.
    AsAsked,
    /// At this name, where it was renamed to.
    Name(InodeId, Box<[u8]>),
    /// By number, in table `link`.
    Number,
}

/// Why an operation did not come to an answer.
#[derive(Debug)]
pub enum Stop {
    /// Rows are wanted: fetch and run again.
    Need,
    /// It changes what only exclusive batches may: run it there.
    Exclusive,
    /// It belongs to another worker.
    Forward(usize, Route),
    /// It failed.
    Fail(FsError),
    /// It ended otherwise.
    Out(Box<Outcome>),
}

/// Result of an operation or a part of one.
pub type Run<T> = Result<T, Stop>;

/// An error with a fixed reason.
pub const fn fail(errno: i32, reason: &'static str) -> Stop {
    Stop::Fail(FsError::new(errno, reason))
}

fn damaged(what: &str, why: &DecodeError) -> Stop {
    Stop::Fail(FsError::because(libc::EIO, format!("metadata: damaged row: {what}: {why}; run kestrel fsck")))
}

/// A place in the tree: the directory, and the cells of the entry and of its worker's share of the directory.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    /// The directory.
    pub dir: Dentry,
    /// Worker that owns the entry.
    pub home: usize,
    /// The entry.
    pub entry: CellId,
    /// The share.
    pub share: CellId,
}

/// What a caller wants with an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Look at it.
    Read,
    /// Count an open.
    Open,
    /// Change its record.
    Write,
}

/// Where an inode's record lies.
#[derive(Debug, Clone, Copy)]
pub enum At {
    /// Under a name; the worker that owns it and the directory whose share counts its bytes.
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
    /// Worker whose shares count what the inode refers to.
    pub fn home(&self) -> usize {
        match self {
            At::Name { home, .. } | At::Link { home, .. } => *home,
            At::Dir(_) => 0,
        }
    }
}

/// An inode and where its record lies.
#[derive(Debug, Clone)]
pub struct Found {
    /// The record; a directory's without the figures of its shares.
    pub inode: Inode,
    /// Where it lies.
    pub at: At,
}

impl Found {
    /// What decides who may do what with it.
    pub fn guard(&self) -> Guard {
        guard_of(&self.inode)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.inode.kind == Kind::Dir
    }
}

/// What decides who may do what with an inode.
pub fn guard_of(inode: &Inode) -> Guard {
    Guard { mode: inode.mode, uid: inode.uid, gid: inode.gid, dir: inode.kind == Kind::Dir }
}

/// See the module's header.
pub struct View<'a> {
    /// Rows of the batch.
    pub rows: &'a mut Rows,
    /// What all workers share.
    pub core: &'a Core,
    /// What happens besides.
    pub effects: &'a mut Effects,
    /// Inode numbers to give out.
    pub ids: &'a mut Block,
    /// The worker whose role is held, or `core.workers` if all are.
    pub worker: usize,
    /// The time.
    pub now: Nanos,
    /// Commit timestamp of this batch.
    pub stamp: u64,
    /// Stop at [`View::begin`].
    pub dry: bool,
    /// Where to look for the inode that the request names.
    pub route: &'a Route,
    /// Newest position that must be durable before the answer may leave in mode `commit`.
    pub wait: Position,
    /// It saw what an earlier operation of this batch changed.
    pub depends: bool,
}

impl View<'_> {
    /// Whether every role is held.
    #[inline]
    pub fn exclusive(&self) -> bool {
        self.worker == self.core.workers
    }

    /// Stops until every role is held.
    pub fn need_exclusive(&self) -> Run<()> {
        if self.exclusive() { Ok(()) } else { Err(Stop::Exclusive) }
    }

    /// Stops if rows are wanted that are not here.
    #[inline]
    pub fn ready(&self) -> Run<()> {
        if self.rows.lacks() { Err(Stop::Need) } else { Ok(()) }
    }

    /// Ends the reading half. Exactly once in every operation that changes anything.
    #[inline]
    pub fn begin(&self) -> Run<()> {
        if self.dry { Err(Stop::Need) } else { self.ready() }
    }

    #[inline]
    fn note(&mut self, cell: CellId) {
        let (dirty, changed_at) = self.rows.provenance(cell);
        self.depends |= dirty;
        self.wait = self.wait.max(changed_at);
    }

    /// Stops unless this cell is here.
    #[inline]
    fn fetched(&mut self, cell: CellId) -> Run<()> {
        if self.rows.is_wanted(cell) {
            return Err(Stop::Need);
        }
        self.note(cell);
        Ok(())
    }

    // --- rows -----------------------------------------------------------------------------------------------------

    /// The cell of an entry.
    #[inline]
    pub fn entry_cell(&mut self, parent: InodeId, name: &[u8]) -> CellId {
        self.rows.cell(Table::Entry, parent, name)
    }

    /// The cell of an inode in table `link`.
    pub fn link_cell(&mut self, ino: InodeId) -> CellId {
        self.rows.cell(Table::Link, ino, b"")
    }

    /// The cell of a worker's share of a directory.
    #[inline]
    pub fn share_cell(&mut self, dir: InodeId, home: usize) -> CellId {
        self.rows.cell(Table::DirStat, dir, &share_suffix(home))
    }

    /// An entry.
    #[inline]
    pub fn entry(&mut self, cell: CellId) -> Run<Option<&Entry>> {
        self.fetched(cell)?;
        self.rows.entry(cell).map_err(|why| damaged("entry", &why))
    }

    /// An inode in table `link`.
    pub fn link(&mut self, cell: CellId) -> Run<Option<&Inode>> {
        self.fetched(cell)?;
        self.rows.inode(cell).map_err(|why| damaged("link", &why))
    }

    /// A share of a directory.
    #[inline]
    pub fn share(&mut self, cell: CellId) -> Run<DirStat> {
        self.fetched(cell)?;
        self.rows.dir_stat(cell).map_err(|why| damaged("dirstat", &why))
    }

    /// Extents of a chunk.
    pub fn extents(&mut self, cell: CellId) -> Run<&kestrel_types::extent::ExtentList> {
        self.fetched(cell)?;
        self.rows.extents(cell).map_err(|why| damaged("chunk", &why))
    }

    /// Bytes of a row.
    pub fn bytes(&mut self, cell: CellId) -> Run<Option<&[u8]>> {
        self.fetched(cell)?;
        Ok(self.rows.bytes(cell))
    }

    /// Changes a row.
    #[inline]
    pub fn put(&mut self, cell: CellId, value: Value) {
        debug_assert!(!self.dry, "a change before the end of the reading half");
        self.rows.put(cell, value);
    }

    // --- directories ----------------------------------------------------------------------------------------------

    /// Parent and name of a directory: where its record lies.
    fn dir_place(&mut self, ino: InodeId) -> Run<Option<(InodeId, Box<[u8]>)>> {
        if !self.effects.dirs_changed.contains(&ino) {
            if ino == ROOT {
                return Ok(Some((0, Box::default())));
            }
            if let Some(place) = self.core.replica.place(ino) {
                return Ok(Some(place));
            }
        }
        let cell = self.rows.cell(Table::DirId, ino, b"");
        let Some(bytes) = self.bytes(cell)? else { return Ok(None) };
        let (parent, name) = decode_dir_id(bytes).map_err(|why| damaged("dirid", &why))?;
        Ok(Some((parent, name.into())))
    }

    /// A directory by number.
    #[inline]
    pub fn find_dir(&mut self, ino: InodeId) -> Run<Option<Dentry>> {
        if self.effects.dirs_changed.is_empty() || !self.effects.dirs_changed.contains(&ino) {
            if let Some((dir, changed_at)) = self.core.replica.get(ino) {
                self.wait = self.wait.max(changed_at);
                return Ok(Some(dir));
            }
        }
        self.fetch_dir(ino)
    }

    #[cold]
    fn fetch_dir(&mut self, ino: InodeId) -> Run<Option<Dentry>> {
        let Some((parent, name)) = self.dir_place(ino)? else { return Ok(None) };
        let cell = self.entry_cell(parent, &name);
        let Some(Entry::Inode(inode)) = self.entry(cell)? else {
            return Err(damaged("dirid", &DecodeError("names no directory")));
        };
        if inode.ino != ino || inode.kind != Kind::Dir {
            return Err(damaged("dirid", &DecodeError("names another inode")));
        }
        let parent = if ino == ROOT { ROOT } else { parent };
        let dir = Dentry { ino, parent, guard: guard_of(inode) };
        let (dirty, changed_at) = self.rows.provenance(cell);
        if !dirty && !self.effects.dirs_changed.contains(&ino) {
            self.core.replica.insert(dir, &name, changed_at);
        }
        Ok(Some(dir))
    }

    /// A directory that an operation works in; `ENOENT` if it has been removed.
    #[inline]
    pub fn dir(&mut self, ino: InodeId) -> Run<Dentry> {
        match self.find_dir(ino)? {
            Some(dir) => Ok(dir),
            None => Err(fail(libc::ENOENT, "the directory has been removed")),
        }
    }

    /// Walks to a place. Search permission is checked on every directory on the way, the last one included. With `change`
    /// the caller is going to change the entry: it must own it.
    #[inline]
    pub fn spot(&mut self, creds: &Creds, place: &Place, change: bool) -> Run<Spot> {
        let mut dir = self.dir(place.base)?;
        perm::check(creds, dir.guard, EXEC)?;
        for (walked, name) in place.dirs.iter().enumerate() {
            let child = self.walk(dir, name.as_bytes(), walked)?;
            dir = self.dir(child)?;
            perm::check(creds, dir.guard, EXEC)?;
        }
        let name = place.name.as_bytes();
        let home = self.core.home_of_name(dir.ino, name);
        if change && home != self.worker && !self.exclusive() {
            return Err(Stop::Forward(home, Route::AsAsked));
        }
        let entry = self.entry_cell(dir.ino, name);
        let share = if change { self.share_cell(dir.ino, home) } else { entry };
        Ok(Spot { dir, home, entry, share })
    }

    /// One step of a path.
    fn walk(&mut self, dir: Dentry, name: &[u8], walked: usize) -> Run<InodeId> {
        if self.effects.dirs_changed.is_empty() {
            if let Some(child) = self.core.replica.find(dir.ino, name) {
                return Ok(child);
            }
        }
        let cell = self.entry_cell(dir.ino, name);
        match self.entry(cell)? {
            None => Err(fail(libc::ENOENT, "a directory of the path does not exist")),
            Some(Entry::Inode(inode)) if inode.kind == Kind::Dir => Ok(inode.ino),
            Some(Entry::Inode(Inode { kind: Kind::Symlink, data: Data::Inline(target), .. })) => {
                let target = target.clone();
                Err(Stop::Out(Box::new(Outcome::Symlink { resolved: walked, dir: dir.ino, target })))
            }
            Some(Entry::Link { ino, kind: Kind::Symlink }) => {
                let ino = *ino;
                let cell = self.link_cell(ino);
                match self.link(cell)? {
                    Some(Inode { data: Data::Inline(target), .. }) => {
                        let target = target.clone();
                        Err(Stop::Out(Box::new(Outcome::Symlink { resolved: walked, dir: dir.ino, target })))
                    }
                    _ => Err(damaged("link", &DecodeError("a symbolic link without target"))),
                }
            }
            Some(_) => Err(fail(libc::ENOTDIR, "a component of the path is not a directory")),
        }
    }

    /// Asks for all shares of a directory.
    pub fn want_figures(&mut self, dir: InodeId) {
        for home in 0..self.core.shares {
            self.share_cell(dir, home);
        }
    }

    /// Figures of a directory: the sum of its shares.
    pub fn figures(&mut self, dir: InodeId) -> Run<DirStat> {
        self.want_figures(dir);
        let mut sum = DirStat::default();
        for home in 0..self.core.shares {
            let cell = self.share_cell(dir, home);
            sum.merge(&self.share(cell)?);
        }
        Ok(sum)
    }

    /// A directory's inode as it is shown: with its figures.
    pub fn shown_dir(&mut self, mut inode: Inode) -> Run<Inode> {
        let stat = self.figures(inode.ino)?;
        inode.nlink = u32::try_from(2 + stat.subdirs.max(0)).unwrap_or(u32::MAX);
        inode.size = DIR_SIZE;
        // A share without a time has not changed since the times were set explicitly: those count, be they in the future.
        if stat.mtime != 0 {
            inode.mtime = stat.mtime;
        }
        inode.ctime = inode.ctime.max(stat.mtime);
        inode.change = inode.change.max(stat.change);
        Ok(inode)
    }

    /// An inode as it is shown.
    #[inline]
    pub fn shown(&mut self, found: Found) -> Run<Inode> {
        if found.inode.kind == Kind::Dir { self.shown_dir(found.inode) } else { Ok(found.inode) }
    }

    /// Changes a worker's share of a directory. `touch`: the directory's content changed, so its times do.
    pub fn change_dir(&mut self, share: CellId, children: i64, subdirs: i64, bytes: i64, touch: bool) -> Run<()> {
        let mut stat = self.share(share)?;
        stat.children += children;
        stat.subdirs += subdirs;
        stat.bytes += bytes;
        if touch {
            stat.mtime = stat.mtime.max(self.now);
        }
        stat.change = self.stamp;
        self.put(share, Value::DirStat(stat));
        self.effects.usage[0] += children - subdirs;
        self.effects.usage[1] += subdirs;
        self.effects.usage[2] += bytes;
        Ok(())
    }

    // --- inodes ---------------------------------------------------------------------------------------------------

    /// What an entry stands for; `None` if there is no such name. A directory comes without its figures.
    #[inline]
    pub fn at_spot(&mut self, spot: &Spot, using: Use) -> Run<Option<Found>> {
        if using == Use::Write && matches!(self.entry(spot.entry)?, Some(Entry::Link { .. })) {
            self.need_exclusive()?;
        }
        self.at_name(spot.entry, spot.dir.ino, spot.home, using)
    }

    fn at_name(&mut self, cell: CellId, parent: InodeId, home: usize, using: Use) -> Run<Option<Found>> {
        match self.entry(cell)? {
            None => Ok(None),
            Some(Entry::Inode(inode)) if inode.kind == Kind::Dir => {
                Ok(Some(Found { inode: inode.clone(), at: At::Dir(cell) }))
            }
            Some(Entry::Inode(inode)) => {
                Ok(Some(Found { inode: inode.clone(), at: At::Name { cell, home, parent } }))
            }
            Some(Entry::Link { ino, .. }) => {
                let ino = *ino;
                match self.at_number(ino, using)? {
                    Some(found) => Ok(Some(found)),
                    None => Err(damaged("link", &DecodeError("missing for a name that refers to it"))),
                }
            }
        }
    }

    /// An inode in table `link`.
    fn at_number(&mut self, ino: InodeId, using: Use) -> Run<Option<Found>> {
        let cell = self.link_cell(ino);
        let Some(inode) = self.link(cell)? else { return Ok(None) };
        let inode = inode.clone();
        let home = self.core.home_of_inode(ino);
        // A file without names may go away at its last release, which runs at its own worker.
        let owner_only = using == Use::Write || using == Use::Open && inode.nlink == 0;
        if owner_only && home != self.worker && !self.exclusive() {
            return Err(Stop::Forward(home, Route::Number));
        }
        Ok(Some(Found { inode, at: At::Link { cell, home } }))
    }

    /// An inode that a request names. `ESTALE` if it does not exist any more.
    #[inline]
    pub fn find(&mut self, inode: &InodeRef, using: Use) -> Run<Found> {
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
        if using == Use::Write && matches!(found.at, At::Dir(_)) {
            self.need_exclusive()?;
        }
        Ok(found)
    }

    fn find_at(&mut self, ino: InodeId, parent: InodeId, name: &[u8], using: Use) -> Run<Option<Found>> {
        let cell = self.entry_cell(parent, name);
        if self.entry(cell)?.is_none_or(|entry| entry.ino() != ino) {
            return Ok(None);
        }
        let home = self.core.home_of_name(parent, name);
        let found = self.at_name(cell, parent, home, using)?;
        let named = matches!(found, Some(Found { at: At::Name { .. }, .. }));
        if named && using != Use::Read && home != self.worker && !self.exclusive() {
            return Err(Stop::Forward(home, Route::Name(parent, name.into())));
        }
        Ok(found)
    }

    fn find_by_number(&mut self, ino: InodeId, using: Use) -> Run<Found> {
        if let Some((parent, name)) = self.moved(ino) {
            if let Some(found) = self.find_at(ino, parent, &name, using)? {
                return Ok(found);
            }
        }
        if let Some(found) = self.find_dir_record(ino)? {
            return Ok(found);
        }
        self.at_number(ino, using)?.ok_or(fail(libc::ESTALE, "the file does not exist any more"))
    }

    fn find_dir_record(&mut self, ino: InodeId) -> Run<Option<Found>> {
        // Ask for the other possibility at the same time, so that either costs one fetch.
        if ino != ROOT && self.core.replica.get(ino).is_none() {
            self.link_cell(ino);
        } else {
            self.want_figures(ino);
        }
        let Some((parent, name)) = self.dir_place(ino)? else { return Ok(None) };
        let cell = self.entry_cell(parent, &name);
        match self.entry(cell)? {
            Some(Entry::Inode(inode)) if inode.ino == ino && inode.kind == Kind::Dir => {
                Ok(Some(Found { inode: inode.clone(), at: At::Dir(cell) }))
            }
            _ => Err(damaged("dirid", &DecodeError("names another inode"))),
        }
    }

    /// A directory's record by number.
    pub fn dir_record(&mut self, ino: InodeId) -> Run<Found> {
        self.find_dir_record(ino)?.ok_or(fail(libc::ESTALE, "the directory does not exist any more"))
    }

    fn moved(&self, ino: InodeId) -> Option<(InodeId, Box<[u8]>)> {
        let here = self.effects.moved.iter().rev().find(|(moved, _)| *moved == ino);
        match here {
            Some((_, place)) => place.clone(),
            None => self.core.moved.get(ino),
        }
    }

    /// The share that counts a file's bytes, if one does. Ask before [`View::begin`].
    pub fn bytes_share(&mut self, at: &At) -> Option<CellId> {
        match at {
            At::Name { home, parent, .. } => Some(self.share_cell(*parent, *home)),
            At::Dir(_) | At::Link { .. } => None,
        }
    }

    /// Writes an inode back. If its size changed from `old_size`, `share` is what [`View::bytes_share`] gave.
    pub fn put_inode(&mut self, at: &At, inode: Inode, old_size: u64, share: Option<CellId>) -> Run<()> {
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
                self.effects.usage[2] += growth;
                self.put(*cell, Value::Inode(inode));
            }
        }
        Ok(())
    }

    /// A number for a new inode.
    pub fn new_ino(&mut self) -> Run<InodeId> {
        self.ids.take().ok_or(fail(libc::ENOSPC, "metadata: no inode number could be reserved"))
    }

    // --- open files -----------------------------------------------------------------------------------------------

    /// How a file is open.
    pub fn open_state(&self, ino: InodeId) -> OpenState {
        self.core.opens.get(ino)
    }

    /// Counts an open.
    pub fn count_open(&mut self, ino: InodeId) {
        self.core.opens.open(ino);
        self.effects.opens.push(OpenUndo::Opened(ino));
    }

    /// Counts a release.
    pub fn count_release(&mut self, ino: InodeId) {
        let before = self.core.opens.get(ino);
        if self.core.opens.release(ino).is_some() {
            self.effects.opens.push(OpenUndo::Released(ino, before));
        }
    }

    /// Changes how a file is open. Only with every role held, or for an inode that nobody knows yet.
    pub fn set_open(&mut self, ino: InodeId, state: OpenState) {
        self.effects.opens.push(OpenUndo::Set(ino, self.core.opens.get(ino)));
        self.core.opens.set(ino, state);
    }

    // --- references to objects ------------------------------------------------------------------------------------

    /// Asks for the shares that a tally is going to change. Before [`View::begin`].
    pub fn want_objects(&mut self, tally: &mut Tally, home: usize) -> Run<()> {
        tally.merge();
        for (object, bytes) in tally.items() {
            if *bytes > 0 && self.core.condemned.contains(*object) {
                return Err(fail(libc::EIO, "the object is being deleted: write the data again"));
            }
            self.rows.cell(Table::ObjStat, *object, &share_suffix(home));
            if *bytes < 0 {
                for share in 0..self.core.shares {
                    self.rows.cell(Table::ObjStat, *object, &share_suffix(share));
                }
            }
        }
        Ok(())
    }

    /// Books a tally to a worker's shares, and has objects looked at that may have lost their last reference.
    ///
    /// The worker sees other shares as they were when the batch fetched them, so it may miss that a sum became zero. When a
    /// sum is zero, some share is not above zero; the rule below makes the worker that brought it there, or the last one
    /// to release anything, write a `reap` row, and the reaper adds the shares up after the grace period.
    pub fn book(&mut self, tally: &Tally, home: usize) -> Run<()> {
        for (object, bytes) in tally.items() {
            let own = self.rows.cell(Table::ObjStat, *object, &share_suffix(home));
            self.fetched(own)?;
            let mut stat = self.rows.obj_stat(own).map_err(|why| damaged("objstat", &why))?;
            stat.referenced += bytes;
            self.put(own, Value::ObjStat(stat));
            if *bytes > 0 {
                continue;
            }
            let (mut sum, mut below) = (0, stat.referenced <= 0);
            for share in 0..self.core.shares {
                let cell = self.rows.cell(Table::ObjStat, *object, &share_suffix(share));
                let ObjStat { referenced } = self.rows.obj_stat(cell).map_err(|why| damaged("objstat", &why))?;
                sum += referenced;
                below |= referenced < 0;
            }
            if sum == 0 || below {
                let due = ((self.now + self.core.grace).max(0) / SECOND + 1).cast_unsigned();
                let cell = self.rows.cell(Table::Reap, due, &object.to_be_bytes());
                self.put(cell, Value::Bytes(Box::default()));
            }
        }
        Ok(())
    }

    /// Cells of the chunks of a file that exist, from chunk `first` on, in order.
    pub fn chunks_from(&mut self, ino: InodeId, first: u64) -> Run<Vec<(u64, CellId)>> {
        self.rows.want_all(Table::Chunk, ino, first);
        self.ready()?;
        let mut chunks = Vec::new();
        for cell in self.rows.group(Table::Chunk, ino) {
            let number = number_of(self.rows.suffix(cell));
            if number >= first && self.rows.exists(cell) {
                chunks.push((number, cell));
            }
        }
        Ok(chunks)
    }

    /// Cells of the extended attributes of an inode, in the order of their names.
    pub fn xattrs(&mut self, ino: InodeId) -> Run<Vec<CellId>> {
        self.rows.want_all(Table::Xattr, ino, 0);
        self.ready()?;
        let mut cells = self.rows.group(Table::Xattr, ino);
        cells.retain(|cell| self.rows.exists(*cell));
        for cell in &cells {
            self.note(*cell);
        }
        Ok(cells)
    }
}

/// Version of a row of table `dirid`.
const DIR_ID_VERSION: u8 = 1;

/// A row of table `dirid`.
pub fn encode_dir_id(parent: InodeId, name: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(9 + name.len());
    out.push(DIR_ID_VERSION);
    out.extend_from_slice(&parent.to_be_bytes());
    out.extend_from_slice(name);
    out.into_boxed_slice()
}

/// Reads what [`encode_dir_id`] wrote. The root's name is empty and its parent 0.
pub fn decode_dir_id(bytes: &[u8]) -> Result<(InodeId, &[u8]), DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != DIR_ID_VERSION {
        return Err(DecodeError("directory place of an unknown format version"));
    }
    let parent = reader.u64()?;
    let name = reader.rest();
    if name.len() > NAME_MAX || name.is_empty() != (parent == 0) {
        return Err(DecodeError("name out of bounds"));
    }
    Ok((parent, name))
}
