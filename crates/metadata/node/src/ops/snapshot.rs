//! SnapshotCreate, SnapshotRename, SnapshotRemove, SnapshotHold: records of snapshots.
//!
//! Order of errors: a name that no snapshot may have
//! `EINVAL`; no such directory `ENOENT`, what is none `ENOTDIR`; no such snapshot `ENOENT`; another
//! user's directory `EPERM`; a name that is taken `EEXIST`; held `EBUSY`; too many `ENOSPC`. Of a
//! directory that was removed only the superuser changes the snapshots.
//!
//! Exclusive: with every worker's state held, each batch before this one has a lower timestamp and
//! is part of the snapshot, and each later one has a higher one and is not. Operations before it in
//! its batch are part of it, too; it is the last one ([`crate::pipeline`]). No row of the tree
//! changes.
//!
//! Of several nodes SnapshotCreate only checks here: [`Stop::Cut`] says that nothing is in the way,
//! and `kestrel_cluster` makes the snapshot at all nodes. While it does, the others wait.

use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::key::Table;
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Creds};
use kestrel_types::snapshot::{HOLDS_MAX, SNAPSHOTS_MAX, SnapshotInfo, is_snapshot_name};

use crate::ids::{system_key, with_history};
use crate::owners::MapView;
use crate::perm;
use crate::rows::{CellId, Value};
use crate::stop::{Run, Stop, fail};
use crate::view::{Core, View};

/// The volume has as many snapshots as it may have.
pub const TOO_MANY: FsError =
    FsError::new(libc::ENOSPC, "a volume has at most 65536 snapshots: remove some");

/// Runs SnapshotCreate.
pub fn create(view: &mut View<'_>, creds: &Creds, dir: InodeId, name: &Name) -> Run<Answer> {
    begin(view)?;
    check_name(name)?;
    check_owner(view, creds, dir)?;
    check_free(view.core, dir, name)?;
    if view.core.snapshots.list().len() >= SNAPSHOTS_MAX {
        return Err(Stop::Fail(TOO_MANY));
    }
    if view.core.cluster.is_some() {
        return Err(Stop::Cut);
    }
    let info = SnapshotInfo {
        id: view.stamp,
        dir,
        name: name.clone(),
        created: view.now,
        removing: false,
        cutting: false,
        hidden: false,
        holds: Vec::new(),
        clones: Vec::new(),
    };
    let new = NewSnapshot::prepare(view, info.clone())?;
    view.begin()?;
    new.apply(view);
    Ok(Answer::Snapshots(vec![info]))
}

/// A snapshot that is made, or gets a clone.
pub struct NewSnapshot {
    info: SnapshotInfo,
    record: CellId,
    /// The row by which programs that know no history refuse the volume, if it has to change.
    shares: Option<(CellId, Box<[u8]>)>,
}

impl NewSnapshot {
    /// Reads what is needed.
    pub fn prepare(view: &mut View<'_>, info: SnapshotInfo) -> Run<Self> {
        let list = view.core.snapshots.list();
        let is_new = list.binary_search_by_key(&info.id, |known| known.info.id).is_err();
        if is_new && list.len() >= SNAPSHOTS_MAX {
            return Err(Stop::Fail(TOO_MANY));
        }
        let shares = system_key("shares");
        let shares = view.rows.cell(shares.table, shares.id, shares.suffix);
        let newer = view.bytes(shares)?.and_then(|row| with_history(row, true));
        let record = record_cell(view, &info);
        Ok(Self { info, record, shares: newer.map(|newer| (shares, newer)) })
    }

    /// Writes it.
    pub fn apply(self, view: &mut View<'_>) {
        let Self { info, record, shares } = self;
        if let Some((cell, newer)) = shares {
            view.put(cell, Value::Bytes(newer));
        }
        put(view, record, info);
    }
}

/// Runs SnapshotRename.
pub fn rename(
    view: &mut View<'_>,
    creds: &Creds,
    from: (InodeId, &Name),
    to: &Name,
) -> Run<Answer> {
    begin(view)?;
    check_name(to)?;
    let mut info = find(view, creds, from)?;
    if info.name == *to {
        return Ok(Answer::Done);
    }
    check_free(view.core, info.dir, to)?;
    info.name = to.clone();
    change(view, info)
}

/// Runs SnapshotRemove.
pub fn remove(view: &mut View<'_>, creds: &Creds, of: (InodeId, &Name)) -> Run<Answer> {
    begin(view)?;
    let mut info = find(view, creds, of)?;
    if let Some(tag) = info.holds.first() {
        let tag = String::from_utf8_lossy(tag.as_bytes());
        return Err(Stop::Fail(FsError::because(
            libc::EBUSY,
            format!("the snapshot is held by {tag:?}: release it first"),
        )));
    }
    match !info.clones.is_empty() {
        // It goes when they are finished.
        true => info.hidden = true,
        false => info.removing = true,
    }
    change(view, info)
}

/// Runs SnapshotHold.
pub fn hold(
    view: &mut View<'_>,
    creds: &Creds,
    of: (InodeId, &Name),
    tag: &Name,
    hold: bool,
) -> Run<Answer> {
    begin(view)?;
    let mut info = find(view, creds, of)?;
    match (info.holds.binary_search_by(|held| held.as_bytes().cmp(tag.as_bytes())), hold) {
        (Ok(_), true) => return Err(fail(libc::EEXIST, "the tag holds the snapshot already")),
        (Err(_), false) => return Err(fail(libc::ENOENT, "no such tag holds the snapshot")),
        (Err(_), true) if info.holds.len() >= HOLDS_MAX => {
            return Err(fail(libc::ENOSPC, "a snapshot is held by at most 64 tags"));
        }
        (Err(index), true) => info.holds.insert(index, tag.clone()),
        (Ok(index), false) => {
            info.holds.remove(index);
        }
    }
    change(view, info)
}

/// What all changes of snapshots begin with. One of them a batch: each sees what those before it
/// have done, and has a timestamp of its own. A refusal, too, tells what snapshots there are.
pub(super) fn begin(view: &mut View<'_>) -> Run<()> {
    view.need_exclusive()?;
    view.wait = view.wait.max(view.core.snapshots.changed_at());
    // The next leader of snapshots knows what this one had on record when it was frozen.
    let hands_over = |table: &MapView| {
        let next = table.leaving.as_ref().and_then(|next| next.snapshot_leader());
        next.is_some_and(|next| next.id != table.me)
    };
    if view.core.snapshots.is_cutting() || view.table.is_some_and(hands_over) {
        return Err(Stop::Stopped);
    }
    Ok(())
}

fn check_name(name: &Name) -> Run<()> {
    if is_snapshot_name(name) {
        return Ok(());
    }
    Err(fail(libc::EINVAL, "a snapshot's name has no @ and does not begin with _"))
}

fn check_free(core: &Core, dir: InodeId, name: &Name) -> Run<()> {
    match core.snapshots.find(dir, name) {
        None => Ok(()),
        Some(_) => Err(fail(libc::EEXIST, "the directory has a snapshot of this name")),
    }
}

/// Fails unless the caller owns the directory. The dentry says so: a row of a busy directory would
/// have to be locked, of several nodes.
fn check_owner(view: &mut View<'_>, creds: &Creds, dir: InodeId) -> Run<()> {
    let link = view.link_cell(dir);
    match view.dir(dir) {
        Ok(found) if perm::owns(creds, found.guard.uid) => Ok(()),
        Ok(_) => Err(fail(libc::EPERM, "the directory is another user's")),
        Err(Stop::Fail(why)) if why.errno == libc::ENOENT => match view.link(link)? {
            Some(_) => Err(fail(libc::ENOTDIR, "only directories have snapshots")),
            None => Err(fail(libc::ENOENT, "no such directory")),
        },
        Err(stop) => Err(stop),
    }
}

/// A snapshot that the caller may change.
fn find(view: &mut View<'_>, creds: &Creds, (dir, name): (InodeId, &Name)) -> Run<SnapshotInfo> {
    let found = view.core.snapshots.find(dir, name);
    let found =
        found.ok_or_else(|| fail(libc::ENOENT, "the directory has no snapshot of this name"))?;
    if creds.uid != 0 {
        check_owner(view, creds, dir).map_err(|stop| match stop {
            Stop::Fail(why) if why.errno == libc::ENOENT => {
                fail(libc::EPERM, "the directory has been removed: ask the superuser")
            }
            other => other,
        })?;
    }
    Ok(found.info.clone())
}

fn record_cell(view: &mut View<'_>, info: &SnapshotInfo) -> CellId {
    let key = info.key();
    view.rows.cell(Table::System, key.id, &key.suffix)
}

fn change(view: &mut View<'_>, info: SnapshotInfo) -> Run<Answer> {
    let cell = record_cell(view, &info);
    view.begin()?;
    put(view, cell, info);
    Ok(Answer::Done)
}

fn put(view: &mut View<'_>, cell: CellId, info: SnapshotInfo) {
    view.put(cell, Value::Bytes(info.encode()));
    view.effects.snapshots.push(info);
}
