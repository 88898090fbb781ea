//! MkDir: creates a directory.
//!
//! `EEXIST` before `EACCES`. A set-group-id directory passes its group and the bit on.
//! Subdirectories are not limited in number. Touches the entry, one share of the parent, `dirid`
//! and `subdir`: one fetch, four rows, one worker. Nobody else can know the new directory before
//! the batch has committed, so its dentry needs no invalidation.

use kestrel_types::entry::Entry;
use kestrel_types::inode::{Data, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::PathRef;
use kestrel_types::policy::PolicyRecord;
use kestrel_types::request::{Answer, Creds};

use super::make::{self, New};
use crate::perm::Dentry;
use crate::rows::Value;
use crate::stop::Run;
use crate::view::{DIR_SIZE, View, encode_dir_id, guard_of};

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, place: &PathRef, mode: u32) -> Run<Answer> {
    let spot = view.spot(creds, place, true)?;
    make::check(view, creds, &spot)?;
    view.begin()?;
    let new = New { kind: Kind::Dir, mode, rdev: 0, data: Data::None };
    let mut inode = make::inode(view, creds, &spot.dir, place.name.as_bytes(), new)?;
    let (parent, name) = (spot.dir.ino, place.name.as_bytes());
    view.change_dir(spot.share, 1, 1, 0, true)?;
    view.put(spot.entry, Value::Entry(Entry::Inode(inode.clone())));
    let dir_id = view.rows.cell(Table::DirId, inode.ino, b"");
    view.put(dir_id, Value::Bytes(encode_dir_id(parent, name)));
    let subdir = view.rows.cell(Table::Subdir, parent, &inode.ino.to_be_bytes());
    view.put(subdir, Value::Bytes(Box::default()));
    let policy = PolicyRecord::default();
    let dentry = Dentry { ino: inode.ino, parent, guard: guard_of(&inode), policy };
    view.effects.dirs_made.push((dentry, name.into()));
    inode.nlink = 2;
    inode.size = DIR_SIZE;
    Ok(Answer::Entry { parent, inode: Box::new(inode) })
}
