//! RmDir: removes an empty directory.
//!
//! Order of errors as Linux: `ENOENT`, `EACCES`, `EPERM` (sticky), `ENOTDIR`, `ESTALE` (another one
//! than expected), `ENOTEMPTY`. Exclusive: with every worker's state held nobody can be creating in
//! it, and the sum of its shares says exactly whether it is empty. Deletes entry, `dirid`,
//! `subdir`, all shares and its extended attributes in one batch, so that after a crash it is there
//! or not, never half. The dentry leaves the replica before the state are let go.

use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::Table;
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds};

use super::relocate::keep;
use super::unlink::check_removal;

use crate::rows::{CellId, Value};
use crate::stop::{Run, fail};
use crate::view::{InodeUse, View};

/// Runs the operation.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    place: &PathRef,
    expected: Option<InodeId>,
) -> Run<Answer> {
    view.need_exclusive()?;
    let spot = view.spot(creds, place, true)?;
    let found =
        view.at_spot(&spot, InodeUse::Write)?.ok_or_else(|| fail(libc::ENOENT, "no such entry"))?;
    check_removal(creds, &spot, &found)?;
    let policy = view.check_names_change(&spot.dir)?;
    if !found.is_dir() {
        return Err(fail(libc::ENOTDIR, "rmdir removes directories only"));
    }
    let removal = DirRemoval::prepare(view, &found.inode, expected)?;
    let name = place.name.as_bytes();
    if let Some(kept) = view.kept_place(policy, (&spot.dir, name), &found)? {
        view.begin()?;
        view.put(spot.entry, Value::Absent);
        keep(view, &spot, found, kept)?;
        return Ok(Answer::Removed(Box::new(removal.gone(view))));
    }
    view.begin()?;
    view.put(spot.entry, Value::Absent);
    view.change_dir(spot.share, -1, -1, 0, true)?;
    Ok(Answer::Removed(Box::new(removal.apply(view, spot.dir.ino))))
}

/// A directory that goes. Its entry is the caller's to remove or replace.
pub struct DirRemoval {
    /// As it is shown.
    inode: Inode,
    xattrs: Vec<CellId>,
}

impl DirRemoval {
    /// Reads what is needed; `ESTALE` if another one is expected, `ENOTEMPTY` if it has entries.
    pub fn prepare(view: &mut View<'_>, inode: &Inode, expected: Option<InodeId>) -> Run<Self> {
        if expected.is_some_and(|expected| expected != inode.ino) {
            return Err(fail(libc::ESTALE, "another directory has the name now"));
        }
        if view.figures(inode.ino)?.children != 0 {
            return Err(fail(libc::ENOTEMPTY, "the directory is not empty"));
        }
        let xattrs = if inode.xattrs { view.xattrs(inode.ino)? } else { Vec::new() };
        let inode = view.shown_dir(inode.clone())?;
        Ok(Self { inode, xattrs })
    }

    /// Deletes everything of it; what it was, without names.
    pub fn apply(self, view: &mut View<'_>, parent: u64) -> Inode {
        let ino = self.inode.ino;
        let dir_id = view.rows.cell(Table::DirId, ino, b"");
        let subdir = view.rows.cell(Table::Subdir, parent, &ino.to_be_bytes());
        for cell in self.xattrs.iter().copied().chain([dir_id, subdir]) {
            view.put(cell, Value::Absent);
        }
        for number in 0..view.shares_in_all() {
            let cell = view.share_cell(ino, view.share_home(number));
            view.put(cell, Value::Absent);
        }
        view.effects.dirs_changed.insert(ino);
        self.gone(view)
    }

    /// What it was, without names.
    pub fn gone(self, view: &View<'_>) -> Inode {
        Inode { nlink: 0, ctime: view.now, change: view.stamp, ..self.inode }
    }
}
