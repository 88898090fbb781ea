//! Directories: walking to a place, figures from shares.

use std::ptr;

use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, Position, ROOT};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::PathRef;
use kestrel_types::placement::hash_entry;
use kestrel_types::request::{Creds, Outcome};
use kestrel_types::stat::DirStat;

use super::{DIR_SIZE, LocatedInode, Planned, Spot, View, decode_dir_id, guard_of};
use crate::owners::DIR_RENAMES;
use crate::perm::{self, Dentry, EXEC};
use crate::rows::{CellId, Value};
use crate::stop::{Route, Run, Stop, Want, damaged, fail};

/// Stops unless a directory has all its names: one of a clone may lack some.
#[inline]
fn has_names(dir: &Dentry) -> Run<()> {
    match dir.policy.base {
        None => Ok(()),
        Some(_) => Err(Stop::Based(dir.ino)),
    }
}

impl View<'_> {
    /// Stops unless a directory has all its names.
    pub fn need_dir_names(&self, dir: &Dentry) -> Run<()> {
        has_names(dir)
    }

    /// Something was found in the replica: stops unless that counts.
    #[inline]
    pub(super) fn leased(&self) -> Run<()> {
        if self.lease_view.is_held() { Ok(()) } else { Err(Stop::Unleased) }
    }

    /// Parent and name of a directory: where its record lies.
    pub(super) fn dir_place(&mut self, ino: InodeId) -> Run<Option<(InodeId, Box<[u8]>)>> {
        if ino == ROOT {
            return Ok(Some((0, Box::default())));
        }
        if !self.effects.dirs_changed.contains(&ino)
            && let Some(place) = self.core.replica.place(ino)
        {
            self.leased()?;
            return Ok(Some(place));
        }
        let cell = self.rows.cell(Table::DirId, ino, b"");
        let Some(bytes) = self.bytes(cell)? else { return Ok(None) };
        let (parent, name) = decode_dir_id(bytes).map_err(|why| damaged("dirid", &why))?;
        Ok(Some((parent, name.into())))
    }

    /// A directory by number.
    #[inline]
    pub fn find_dir(&mut self, ino: InodeId) -> Run<Option<Dentry>> {
        if (self.effects.dirs_changed.is_empty() || !self.effects.dirs_changed.contains(&ino))
            && let Some((dir, changed_at)) = self.core.replica.get(ino)
        {
            self.leased()?;
            self.wait = self.wait.max(changed_at);
            return Ok(Some(dir));
        }
        self.fetch_dir(ino)
    }

    #[cold]
    fn fetch_dir(&mut self, ino: InodeId) -> Run<Option<Dentry>> {
        self.read_dir(ino).map_err(|stop| self.or_dentry(stop, || Want::Id(ino)))
    }

    fn read_dir(&mut self, ino: InodeId) -> Run<Option<Dentry>> {
        let Some((parent, name)) = self.dir_place(ino)? else { return Ok(None) };
        let cell = self.entry_cell(parent, &name);
        let Some(inode) = self.dir_at(ino, cell)? else { return Ok(None) };
        let parent = if ino == ROOT { ROOT } else { parent };
        let policy = inode.policy().map_err(|why| damaged("policy", &why))?;
        let dir = Dentry { ino, parent, guard: guard_of(inode), policy };
        let (dirty, changed_at) = self.rows.provenance(cell);
        // Rows that were lent are another node's to keep: see `kestrel_cluster`.
        if !dirty && self.no_dirs.is_none() && !self.effects.dirs_changed.contains(&ino) {
            self.core.replica.insert(dir.clone(), &name, changed_at);
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

    /// Walks to a place. Search permission is checked on every directory on the way, the last one
    /// included. With `change` the caller is going to change the entry: it must own it.
    #[inline]
    pub fn spot(&mut self, creds: &Creds, place: &PathRef, change: bool) -> Run<Spot> {
        let is_planned =
            |planned: &mut Planned| ptr::eq(planned.place, place) && planned.change == change;
        if !self.dry
            && self.effects.dirs_changed.is_empty()
            && let Some(planned) = self.planned.take_if(is_planned)
        {
            self.wait = self.wait.max(planned.changed_at);
            self.leased()?;
            return Ok(planned.spot);
        }
        let (dir, known) = self.reach(creds, place)?;
        let spot = self.spot_in(dir, place.name.as_bytes(), change)?;
        if let Some(changed_at) = known {
            *self.planned = Some(Planned { place, change, spot: spot.clone(), changed_at });
        }
        Ok(spot)
    }

    /// The place of a name in a directory that is known. `change` as in [`View::spot`].
    #[inline]
    pub(super) fn spot_in(&mut self, dir: Dentry, name: &[u8], change: bool) -> Run<Spot> {
        let hash = hash_entry(dir.ino, name);
        let home = self.home_of_hashed(dir.ino, name, hash);
        if change && !self.holds(home) {
            return Err(self.forward(home, Route::AsAsked));
        }
        let entry = self.rows.cell_hashed(Table::Entry, dir.ino, name, hash);
        let share = if change { self.share_cell(dir.ino, home) } else { entry };
        Ok(Spot { dir, hash, home, entry, share })
    }

    /// The directory of a place, search permission checked on every one on the way; and, if the
    /// replica alone decided that, the newest position of a change that did.
    #[inline]
    fn reach(&mut self, creds: &Creds, place: &PathRef) -> Run<(Dentry, Option<Position>)> {
        if !self.effects.dirs_changed.is_empty() {
            return self.walk_all(creds, place).map(|dir| (dir, None));
        }
        let (forgotten, is_path) = (self.core.replica.forgotten(), !place.dirs.is_empty());
        if is_path && let Some((dir, changed_at)) = self.walks.find(forgotten, creds, place) {
            self.leased()?;
            self.wait = self.wait.max(changed_at);
            return Ok((dir, Some(changed_at)));
        }
        let before = std::mem::take(&mut self.wait);
        let walked = self.walk_known(creds, place);
        let changed_at = self.wait;
        self.wait = changed_at.max(before);
        match walked? {
            Some(dir) => {
                if is_path {
                    self.walks.keep(forgotten, creds, place, (dir.clone(), changed_at));
                }
                Ok((dir, Some(changed_at)))
            }
            None => self.walk_all(creds, place).map(|dir| (dir, None)),
        }
    }

    /// As [`View::walk_all`], if the replica knows every directory on the way.
    fn walk_known(&mut self, creds: &Creds, place: &PathRef) -> Run<Option<Dentry>> {
        let mut next = self.core.replica.get(place.base);
        let mut names = place.dirs.iter();
        loop {
            let Some((dir, changed_at)) = next else { return Ok(None) };
            self.leased()?;
            self.wait = self.wait.max(changed_at);
            perm::check(creds, &dir.guard, EXEC)?;
            has_names(&dir)?;
            let Some(name) = names.next() else { return Ok(Some(dir)) };
            next = self.core.replica.find_dir(dir.ino, name);
        }
    }

    fn walk_all(&mut self, creds: &Creds, place: &PathRef) -> Run<Dentry> {
        let mut dir = self.dir(place.base)?;
        perm::check(creds, &dir.guard, EXEC)?;
        has_names(&dir)?;
        for (walked, name) in place.dirs.iter().enumerate() {
            dir = self.walk(dir, name, walked)?;
            perm::check(creds, &dir.guard, EXEC)?;
            has_names(&dir)?;
        }
        Ok(dir)
    }

    /// Whether `above` is `dir` or one of the directories above it.
    pub fn is_above(&mut self, above: InodeId, mut dir: InodeId) -> Run<bool> {
        loop {
            if dir == above {
                return Ok(true);
            }
            if dir == ROOT {
                return Ok(false);
            }
            dir = self.dir(dir)?.parent;
        }
    }

    /// Stops unless the entry belongs to this worker.
    #[inline]
    pub fn need_home(&self, spot: &Spot) -> Run<()> {
        if self.holds(spot.home) {
            return Ok(());
        }
        Err(self.forward(spot.home, Route::AsAsked))
    }

    /// One step of a path.
    pub(super) fn walk(&mut self, dir: Dentry, name: &[u8], walked: usize) -> Run<Dentry> {
        if self.effects.dirs_changed.is_empty()
            && let Some((child, changed_at)) = self.core.replica.find_dir(dir.ino, name)
        {
            self.leased()?;
            self.wait = self.wait.max(changed_at);
            return Ok(child);
        }
        let cell = self.entry_cell(dir.ino, name);
        if let Err(stop) = self.fetched(cell) {
            return Err(self.or_dentry(stop, || Want::Name(dir.ino, name.into())));
        }
        match self.entry(cell)? {
            None => Err(fail(libc::ENOENT, "a directory of the path does not exist")),
            Some(Entry::Inode(inode)) if inode.kind == Kind::Dir => {
                let ino = inode.ino;
                self.dir(ino)
            }
            Some(Entry::Inode(Inode {
                kind: Kind::Symlink, data: Data::Inline(target), ..
            })) => {
                let target = target.clone();
                Err(Stop::Out(Box::new(Outcome::Symlink {
                    resolved: walked,
                    dir: dir.ino,
                    target,
                })))
            }
            Some(Entry::Link { ino, kind: Kind::Symlink }) => {
                let ino = *ino;
                let cell = self.link_cell(ino);
                match self.link(cell)? {
                    Some(Inode { data: Data::Inline(target), .. }) => {
                        let target = target.clone();
                        Err(Stop::Out(Box::new(Outcome::Symlink {
                            resolved: walked,
                            dir: dir.ino,
                            target,
                        })))
                    }
                    _ => Err(damaged("link", &DecodeError("a symbolic link without target"))),
                }
            }
            Some(_) => Err(fail(libc::ENOTDIR, "a component of the path is not a directory")),
        }
    }

    /// Asks for what showing a directory needs of its shares: all that are to be had here.
    pub fn want_figures(&mut self, dir: InodeId) {
        self.want_shares(dir, self.needs_sum());
    }

    fn want_shares(&mut self, dir: InodeId, own: bool) {
        for number in 0..self.shares_in_all() {
            if !own || self.is_own_share(number) {
                self.share_cell(dir, self.share_home(number));
            }
        }
    }

    /// Whether what other nodes' shares come to is not read as rows: they have some, and this is no
    /// transaction, which borrows them.
    fn needs_sum(&self) -> bool {
        let others = self.core.cluster.as_ref().is_some_and(|cluster| cluster.sums.has_others());
        others && self.no_dirs.is_none()
    }

    /// In a dry run: asks for the figures of what is at `spot` if the replica knows it for a
    /// directory, so that they are fetched together with its entry.
    #[inline]
    pub fn want_shown(&mut self, spot: &Spot, name: &[u8]) {
        if self.dry
            && let Some(dir) = self.core.replica.find_number(spot.dir.ino, name, spot.hash)
        {
            self.want_figures(dir);
        }
    }

    /// Figures of a directory: the sum of its shares.
    pub fn figures(&mut self, dir: InodeId) -> Run<DirStat> {
        self.sum_of(dir, false)
    }

    /// The same, or the sum of the node's own shares.
    fn sum_of(&mut self, dir: InodeId, own: bool) -> Run<DirStat> {
        // First asks for all of them, so that they are fetched together.
        self.want_shares(dir, own);
        let mut sum = DirStat::default();
        for number in 0..self.shares_in_all() {
            if !own || self.is_own_share(number) {
                let cell = self.share_cell(dir, self.share_home(number));
                sum.merge(&self.share(cell)?);
            }
        }
        Ok(sum)
    }

    /// Figures of a directory for an operation that only shows them: other nodes' shares need not
    /// be borrowed.
    fn figures_shown(&mut self, dir: InodeId) -> Run<DirStat> {
        if !self.needs_sum() {
            return self.figures(dir);
        }
        let mut sum = self.sum_of(dir, true)?;
        // After the node's own rows were read: then all of it was true at the moment at which this
        // looks at the time.
        let others = self.core.cluster.as_ref().and_then(|cluster| cluster.sum_of_others(dir));
        sum.merge(&others.ok_or(Stop::Sum(dir))?);
        Ok(sum)
    }

    /// A directory's inode as it is shown: with its figures.
    pub fn shown_dir(&mut self, inode: Inode) -> Run<Inode> {
        let stat = self.figures(inode.ino)?;
        Ok(Self::with_figures(inode, &stat))
    }

    /// A directory's inode with its figures.
    pub fn with_figures(mut inode: Inode, stat: &DirStat) -> Inode {
        inode.nlink = u32::try_from(2 + stat.subdirs.max(0)).unwrap_or(u32::MAX);
        inode.size = DIR_SIZE;
        // A share without a time has not changed since the times were set explicitly: those count,
        // be they in the future.
        if stat.mtime != 0 {
            inode.mtime = stat.mtime;
        }
        inode.ctime = inode.ctime.max(stat.mtime);
        inode.change = inode.change.max(stat.change);
        inode
    }

    /// An inode as it is shown.
    #[inline]
    pub fn shown(&mut self, found: LocatedInode) -> Run<Inode> {
        if found.inode.kind != Kind::Dir {
            return Ok(found.inode);
        }
        let stat = self.figures_shown(found.inode.ino)?;
        Ok(Self::with_figures(found.inode, &stat))
    }

    /// Of several nodes no other one may move a directory to another parent at the same time: two
    /// such moves could form a cycle.
    pub fn lock_dir_renames(&mut self) -> Run<()> {
        if self.core.cluster.is_some() {
            let cell = self.rows.cell(Table::System, 0, DIR_RENAMES);
            self.fetched(cell)?;
        }
        Ok(())
    }

    /// Changes a worker's share of a directory. `touch`: the directory's content changed, so its
    /// times do.
    pub fn change_dir(
        &mut self,
        share: CellId,
        children: i64,
        subdirs: i64,
        bytes: i64,
        touch: bool,
    ) -> Run<()> {
        let mut stat = self.share(share)?;
        stat.children += children;
        stat.subdirs += subdirs;
        stat.bytes = stat.bytes.wrapping_add(bytes);
        if touch {
            stat.mtime = stat.mtime.max(self.now);
        }
        stat.change = self.stamp;
        self.put(share, Value::DirStat(stat));
        self.effects.usage[0] += children - subdirs;
        self.effects.usage[1] += subdirs;
        self.effects.count_bytes(bytes);
        Ok(())
    }
}
