//! Moving an entry to another place: what rename does, and removals that keep what they remove.

use kestrel_types::entry::Entry;
use kestrel_types::inode::Inode;
use kestrel_types::key::Table;
use kestrel_types::policy::PolicyRecord;

use crate::rows::Value;
use crate::stop::Run;
use crate::view::{At, KeptPlace, LocatedInode, Spot, View, encode_dir_id};

/// Moves what is at `spot` to the trash; what it is there. The entry at `spot` is the caller's to
/// remove or replace.
pub fn keep(
    view: &mut View<'_>,
    spot: &Spot,
    mut found: LocatedInode,
    kept: KeptPlace,
) -> Run<Inode> {
    leave(view, spot, &found)?;
    view.effects.kept = Some(found.inode.ino);
    if found.is_dir() {
        let record = view.own_policy(&found.inode)?;
        found.inode.set_policy(PolicyRecord { removed: true, ..record });
    }
    let now = Inode { ctime: view.now, change: view.stamp, ..found.inode.clone() };
    put_at(view, &kept.spot, &kept.name, found)?;
    Ok(now)
}

fn bytes_here(found: &LocatedInode) -> i64 {
    match found.at {
        At::Name { .. } => found.inode.size.cast_signed(),
        At::Dir(_) | At::Link { .. } => 0,
    }
}

/// Takes what is at `spot` out of the directory's figures. The entry stays for the file that takes
/// the place.
pub fn leave(view: &mut View<'_>, spot: &Spot, found: &LocatedInode) -> Run<()> {
    let dir = found.is_dir();
    view.change_dir(spot.share, -1, -i64::from(dir), -bytes_here(found), true)?;
    if dir {
        let subdir = view.rows.cell(Table::Subdir, spot.dir.ino, &found.inode.ino.to_be_bytes());
        view.put(subdir, Value::Absent);
    }
    Ok(())
}

/// Puts what came from elsewhere at `spot`. A directory that came out of the trash is as it was.
pub fn arrive(view: &mut View<'_>, spot: &Spot, name: &[u8], mut found: LocatedInode) -> Run<()> {
    if found.is_dir() {
        let record = view.own_policy(&found.inode)?;
        if record.removed {
            found.inode.set_policy(PolicyRecord { removed: false, ..record });
            view.effects.kept = Some(found.inode.ino);
        }
    }
    put_at(view, spot, name, found)
}

fn put_at(view: &mut View<'_>, spot: &Spot, name: &[u8], mut found: LocatedInode) -> Run<()> {
    let ino = found.inode.ino;
    let dir = found.is_dir();
    view.change_dir(spot.share, 1, i64::from(dir), bytes_here(&found), true)?;
    found.inode.ctime = view.now;
    found.inode.change = view.stamp;
    if dir {
        let dir_id = view.rows.cell(Table::DirId, ino, b"");
        view.put(dir_id, Value::Bytes(encode_dir_id(spot.dir.ino, name)));
        let subdir = view.rows.cell(Table::Subdir, spot.dir.ino, &ino.to_be_bytes());
        view.put(subdir, Value::Bytes(Box::default()));
        view.effects.dirs_changed.insert(ino);
    }
    match found.at {
        At::Link { cell, .. } => {
            let kind = found.inode.kind;
            view.put(cell, Value::Inode(found.inode));
            view.put(spot.entry, Value::Entry(Entry::Link { ino, kind }));
        }
        At::Name { .. } => {
            view.move_to(ino, spot.dir.ino, name);
            view.put(spot.entry, Value::Entry(Entry::Inode(found.inode)));
        }
        At::Dir(_) => view.put(spot.entry, Value::Entry(Entry::Inode(found.inode))),
    }
    Ok(())
}
