//! Symlink: creates a symbolic link.
//!
//! The target is any 1 to 4095 bytes but NUL (`ENOENT` if empty, `ENAMETOOLONG` above); it lies in
//! the entry. Mode 0777, which nobody checks. One fetch, two rows.

use kestrel_types::inode::{Data, Kind};
use kestrel_types::name::{PATH_MAX, PathRef};
use kestrel_types::request::{Answer, Creds};

use super::make::{self, New};
use crate::stop::{Run, fail};
use crate::view::View;

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, place: &PathRef, target: &[u8]) -> Run<Answer> {
    if target.is_empty() {
        return Err(fail(libc::ENOENT, "a symbolic link needs a target"));
    }
    if target.len() > PATH_MAX {
        return Err(fail(libc::ENAMETOOLONG, "a target has at most 4095 bytes"));
    }
    if target.contains(&0) {
        return Err(fail(libc::EINVAL, "a target contains no NUL"));
    }
    let spot = view.spot(creds, place, true)?;
    make::check(view, creds, &spot)?;
    view.begin()?;
    let new = New { kind: Kind::Symlink, mode: 0o777, rdev: 0, data: Data::Inline(target.into()) };
    let inode = make::inode(view, creds, &spot.dir, place.name.as_bytes(), new)?;
    make::insert(view, &spot, &inode)?;
    Ok(Answer::Entry { parent: spot.dir.ino, inode: Box::new(inode) })
}
