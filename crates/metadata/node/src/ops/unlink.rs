//! Unlink: removes an entry that is not a directory.
//!
//! Order of errors as Linux: `ENOENT`, `EACCES` (write and search permission of the directory),
//! `EPERM` (sticky, or the directory or the entry is immutable or append only), `EISDIR`. Changes
//! the directory's times and, if names are left, the file's ctime.
//!
//! The common case, a file with one name that is not open: entry, share, and what its content
//! refers to, in one worker's batch. A file that is open moves to table `link` with no names until
//! its last release; one with several names counts down there. Both touch a row of another worker,
//! so they are exclusive. After a restart of a node that serves clients across a network every file
//! counts as open until they have claimed what is ([`crate::session::Reclaiming`]). Of several
//! nodes a file that was renamed or linked may be open at any: it becomes one without a name, and
//! its home asks them ([`crate::session::Orphans`]).

use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds};

use super::relocate::keep;
use crate::content::Removal;
use crate::perm::{self, EXEC, WRITE};
use crate::rows::Value;
use crate::session::OpenState;
use crate::stop::{Run, fail};
use crate::view::{At, InodeUse, LocatedInode, Spot, View};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, place: &PathRef) -> Run<Answer> {
    let spot = view.spot(creds, place, true)?;
    let found =
        view.at_spot(&spot, InodeUse::Write)?.ok_or_else(|| fail(libc::ENOENT, "no such entry"))?;
    check_removal(creds, &spot, &found)?;
    let policy = view.check_names_change(&spot.dir)?;
    if found.is_dir() {
        return Err(fail(libc::EISDIR, "unlink does not remove directories"));
    }
    let name = place.name.as_bytes();
    if let Some(kept) = view.kept_place(policy, (&spot.dir, name), &found)? {
        view.begin()?;
        view.put(spot.entry, Value::Absent);
        return Ok(Answer::Removed(Box::new(keep(view, &spot, found, kept)?)));
    }
    let detach = Detach::prepare(view, found)?;
    view.begin()?;
    view.put(spot.entry, Value::Absent);
    view.change_dir(spot.share, -1, 0, -detach.bytes_here(), true)?;
    Ok(Answer::Removed(Box::new(detach.apply(view)?)))
}

/// Fails unless the caller may take this entry out of its directory.
pub fn check_removal(creds: &Creds, spot: &Spot, found: &LocatedInode) -> Run<()> {
    perm::check(creds, &spot.dir.guard, WRITE | EXEC)?;
    perm::check_changeable(spot.dir.guard.flags())?;
    perm::check_sticky(creds, &spot.dir.guard, found.inode.uid)?;
    perm::check_changeable(found.inode.flags)
}

/// A file that loses one of its names. The entry itself is the caller's to remove or replace.
pub struct Detach {
    found: LocatedInode,
    /// Present if the file goes with the name.
    removal: Option<Removal>,
    open: OpenState,
    /// If it is open, then at this node.
    only_here: bool,
}

impl Detach {
    /// Reads what is needed.
    pub fn prepare(view: &mut View<'_>, found: LocatedInode) -> Run<Self> {
        let open = view.open_state(found.inode.ino);
        let linked = matches!(found.at, At::Link { .. });
        let only_here = view.is_only_here(&found)?;
        let unknown = view.core.reclaiming.lasts() || !only_here;
        let may_be_open = open.count > 0 || unknown && found.inode.kind != Kind::Symlink;
        if linked || may_be_open {
            view.need_exclusive()?;
        }
        let last = !linked || found.inode.nlink <= 1;
        let removal = if last && !may_be_open {
            Some(Removal::prepare(view, &found.inode, found.at.home())?)
        } else {
            None
        };
        Ok(Self { found, removal, open, only_here })
    }

    /// Bytes that the directory's share counts for this name.
    pub fn bytes_here(&self) -> i64 {
        match self.found.at {
            At::Link { .. } => 0,
            _ => self.found.inode.size.cast_signed(),
        }
    }

    /// Does it; the inode with the names it has left.
    pub fn apply(self, view: &mut View<'_>) -> Run<Inode> {
        let LocatedInode { mut inode, at } = self.found;
        let (ino, size) = (inode.ino, inode.size.cast_signed());
        inode.nlink = if matches!(at, At::Link { .. }) { inode.nlink.saturating_sub(1) } else { 0 };
        inode.ctime = view.now;
        inode.change = view.stamp;
        if let Some(removal) = self.removal {
            removal.apply(view)?;
            if let At::Link { cell, .. } = at {
                view.put(cell, Value::Absent);
                view.effects.count_bytes(-size);
            }
            view.move_away(ino);
            return Ok(inode);
        }
        if inode.nlink == 0 {
            // A transaction of several nodes leaves it to the file's home, which asks the members
            // whether they have it open.
            let alone = view.no_dirs.is_none() && self.only_here;
            if self.open.count > 0 && alone {
                view.set_open(ino, OpenState { orphan: true, linkable: false, ..self.open });
            } else if view.core.cluster.is_none() {
                view.core.reclaiming.keep(ino);
            }
            view.move_away(ino);
        }
        let cell = match at {
            At::Link { cell, .. } => cell,
            At::Name { .. } | At::Dir(_) => {
                view.effects.count_bytes(size);
                view.link_cell(ino)
            }
        };
        view.put(cell, Value::Inode(inode.clone()));
        Ok(inode)
    }
}
