//! CloneDir: makes a directory with the tree of another one, in O(1) ([`crate::clones`]).
//!
//! Order of errors: the walk to the clone's place; a name that is
//! taken `EEXIST`; an immutable tree there `EPERM`; no permission there `EACCES`; no such
//! snapshot `ESTALE`; no such source `ENOENT`, what is no directory `ENOTDIR`; another user's
//! source `EPERM`; the present of a directory below itself `EINVAL`; too many `ENOSPC`.
//!
//! The clone has owner, mode, flags, times, policy and extended attributes of its source; `ctime`
//! is now. A user that owns a directory owns, by that, what becomes of all below it, as for a
//! rename; other users could keep what its owner takes back from them.
//!
//! Exclusive: with every worker's state held, what is changed before is in a clone of the present,
//! and what is changed after it is not. Its batch ends with it ([`crate::pipeline`]).

use std::num::NonZeroU64;

use kestrel_types::clone::{CLONES_MAX, CloneInfo, PendingDir};
use kestrel_types::entry::Entry;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, Table};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::policy::{Policy, PolicyRecord};
use kestrel_types::request::{Answer, Creds};
use kestrel_types::snapshot::{SNAPSHOTS_MAX, SnapshotId, SnapshotInfo};
use kestrel_types::stat::DirStat;

use super::make;
use super::snapshot::{self, NewSnapshot, TOO_MANY};
use crate::clones::SourceDir;
use crate::history::at::GONE;
use crate::perm::{self, Dentry};
use crate::rows::Value;
use crate::stop::{Run, Stop, fail};
use crate::view::{Spot, View, encode_dir_id, guard_of, home_at};

/// Runs CloneDir.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    source: InodeId,
    at: Option<SnapshotId>,
    place: &PathRef,
) -> Run<Answer> {
    snapshot::begin(view)?;
    let spot = view.spot(creds, place, true)?;
    make::check(view, creds, &spot)?;
    view.check_clone_quotas(spot.dir.ino)?;
    let known = at.map(|at| at_snapshot(view, at)).transpose()?;
    let found = find(view, source, at)?;
    if !perm::owns(creds, found.inode.uid) {
        return Err(fail(
            libc::EPERM,
            "the directory is another user's: `cp -a --reflink` copies what may be read",
        ));
    }
    if at.is_none() && view.is_above(source, spot.dir.ino)? {
        return Err(fail(
            libc::EINVAL,
            "a directory cannot be cloned into itself: name another place, or a snapshot",
        ));
    }
    if view.core.snapshots.clones().len() >= CLONES_MAX {
        return Err(fail(libc::ENOSPC, "1024 clones are not finished yet: wait for some"));
    }
    let known = match known {
        Some(known) => known,
        None if view.core.cluster.is_some() => {
            if view.core.snapshots.list().len() >= SNAPSHOTS_MAX {
                return Err(Stop::Fail(TOO_MANY));
            }
            // All nodes make the snapshot at one instant, and it is cloned then.
            return Err(Stop::Cut);
        }
        None => snapshot_of(view, source)?,
    };
    let ino = view.new_ino(spot.dir.ino, place.name.as_bytes())?;
    let clone = CloneInfo {
        id: ino,
        stamp: view.stamp,
        dir: ino,
        source,
        snapshot: known.id,
        created: view.now,
        uid: creds.uid,
    };
    let snapshot = NewSnapshot::prepare(view, known.with_clone(clone))?;
    view.begin()?;
    snapshot.apply(view);
    write(view, (&spot, place.name.as_bytes()), &clone, found)
}

/// The snapshot that a clone of the present stands on.
fn snapshot_of(view: &View<'_>, dir: InodeId) -> Run<SnapshotInfo> {
    let name = Name::new(b"clone").map_err(Stop::Fail)?;
    let (id, created) = (view.stamp, view.now);
    let (removing, cutting, hidden) = (false, false, true);
    let (holds, clones) = (Vec::new(), Vec::new());
    Ok(SnapshotInfo { id, dir, name, created, removing, cutting, hidden, holds, clones })
}

/// A snapshot that may be cloned. Of several nodes the hidden one, too, that was made for this: no
/// clone needs it yet.
fn at_snapshot(view: &View<'_>, at: SnapshotId) -> Run<SnapshotInfo> {
    let known = view.core.snapshots.get(at);
    let known = known.filter(|known| {
        let made_for_this = || {
            let info = &known.info;
            view.core.cluster.is_some() && info.hidden && !info.cutting && info.clones.is_empty()
        };
        known.info.is_shown() || made_for_this()
    });
    known.map(|known| known.info.clone()).ok_or(fail(libc::ESTALE, GONE))
}

/// The directory that is cloned.
fn find(view: &mut View<'_>, dir: InodeId, at: Option<SnapshotId>) -> Run<SourceDir> {
    let Some(at) = at else { return present(view, dir) };
    match view.core.clones.source(dir, at) {
        Some(source) => Ok((*source).clone()),
        None => Err(Stop::CloneSource(dir, at)),
    }
}

fn present(view: &mut View<'_>, dir: InodeId) -> Run<SourceDir> {
    let link = view.link_cell(dir);
    let found = match view.dir_record(dir) {
        Ok(found) => found,
        Err(Stop::Fail(why)) if why.errno == libc::ESTALE => {
            return Err(match view.link(link)? {
                Some(_) => fail(libc::ENOTDIR, "only directories are cloned: copy the file"),
                None => fail(libc::ENOENT, "no such directory"),
            });
        }
        Err(stop) => return Err(stop),
    };
    let stat = view.figures(dir)?;
    let cells = if found.inode.xattrs { view.xattrs(dir)? } else { Vec::new() };
    let mut xattrs = Vec::with_capacity(cells.len());
    for cell in cells {
        if let Some(value) = view.rows.bytes(cell).map(Into::into) {
            xattrs.push((view.rows.suffix(cell).into(), value));
        }
    }
    Ok(SourceDir { inode: found.inode, stat, xattrs })
}

/// What a based directory's record and share are, by those of its source. It has no change feed of
/// its own: one begins when the policy is set, which is recorded with it.
pub fn based(
    source: &SourceDir,
    ino: InodeId,
    clone: &CloneInfo,
) -> Run<(Inode, PolicyRecord, DirStat)> {
    let SourceDir { inode, stat, .. } = source;
    let said = inode.policy().map_err(|why| crate::stop::damaged("policy", &why))?;
    let own = Policy { feed: said.own.feed.filter(|kept| kept.hours() == 0), ..said.own };
    let policy = PolicyRecord { own, base: NonZeroU64::new(clone.id), ..PolicyRecord::default() };
    let mut new = Inode { ino, ctime: clone.created, ..inode.clone() };
    (new.change, new.data_change) = (clone.stamp, clone.stamp);
    new.set_policy(policy);
    Ok((new, policy, DirStat { change: clone.stamp, ..*stat }))
}

fn write(
    view: &mut View<'_>,
    (spot, name): (&Spot, &[u8]),
    clone: &CloneInfo,
    source: SourceDir,
) -> Run<Answer> {
    let (parent, ino) = (spot.dir.ino, clone.dir);
    let (inode, policy, stat) = based(&source, ino, clone)?;
    view.change_dir(spot.share, 1, 1, 0, true)?;
    view.put(spot.entry, Value::Entry(Entry::Inode(inode.clone())));
    let home = view.table.map_or(0, |table| home_at(table.home_of(ino), 0));
    let share = view.share_cell(ino, home);
    view.put(share, Value::DirStat(stat));
    let pending = PendingDir { source: source.inode.ino, after: None, file: None };
    let mut rows: Vec<(Key, Box<[u8]>)> = vec![
        (Key::new(Table::DirId, ino, b""), encode_dir_id(parent, name)),
        (Key::new(Table::Subdir, parent, &ino.to_be_bytes()), Box::default()),
        (PendingDir::key(clone.id, ino), pending.encode()),
    ];
    let xattrs = source.xattrs.into_iter();
    rows.extend(xattrs.map(|(name, value)| (Key::new(Table::Xattr, ino, &name), value)));
    for (key, value) in rows {
        let cell = view.rows.cell(key.table, key.id, &key.suffix);
        view.put(cell, Value::Bytes(value));
    }
    view.effects.usage[0] += stat.children - stat.subdirs;
    view.effects.usage[1] += stat.subdirs;
    view.effects.count_bytes(stat.bytes);
    let dentry = Dentry { ino, parent, guard: guard_of(&inode), policy };
    view.effects.dirs_made.push((dentry, name.into()));
    let inode = View::with_figures(inode, &stat);
    Ok(Answer::Entry { parent, inode: Box::new(inode) })
}
