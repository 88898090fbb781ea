//! Create: `open(O_CREAT)`, one request whether the file exists or not. MkNod: an empty or special
//! file, not opened.
//!
//! - The file exists: with `exclusive` `EEXIST`; a directory `EISDIR`, a symbolic link `ELOOP`;
//!   else it is opened as [`super::open`] does. No permission of the directory but search is needed
//!   then.
//! - It does not: write permission of the directory is needed. The mode restricts later opens, not
//!   this one.
//! - Group and set-group-id as [`crate::perm::inherit`].
//!
//! Touches the entry and one share of the directory: one fetch, two rows.

use kestrel_types::inode::Kind;
use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds, OpenFlags};

use super::make::{self, New};
use super::open;
use crate::stop::{Run, fail};
use crate::view::View;

/// Runs Create.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    place: &PathRef,
    mode: u32,
    flags: &OpenFlags,
    exclusive: bool,
) -> Run<Answer> {
    let spot = view.spot(creds, place, true)?;
    if let Some(kind) = view.entry(spot.entry)?.map(|entry| entry.kind()) {
        return match kind {
            _ if exclusive => Err(fail(libc::EEXIST, "the file exists")),
            Kind::Dir => Err(fail(libc::EISDIR, "a directory has this name")),
            _ => {
                let found = view.at_spot(&spot, open::use_for(flags))?;
                let found = found.ok_or_else(|| fail(libc::ENOENT, "no such entry"))?;
                if open::is_change(&found, flags) {
                    view.check_names_change(&spot.dir)?;
                }
                open::existing(view, creds, found, flags, Some(spot.dir.ino))
            }
        };
    }
    make::check(view, creds, &spot)?;
    view.begin()?;
    let inode = make::inode(view, creds, &spot.dir, place.name.as_bytes(), New::file(mode))?;
    make::insert(view, &spot, &inode)?;
    view.count_open(inode.ino);
    Ok(Answer::Opened { inode: Box::new(inode), created: true, parent: Some(spot.dir.ino) })
}

/// Runs MkNod. Devices need the superuser (`EPERM`), but for the character device 0, which means
/// "whited out".
pub fn mknod(
    view: &mut View<'_>,
    creds: &Creds,
    place: &PathRef,
    kind: Kind,
    mode: u32,
    rdev: u32,
) -> Run<Answer> {
    match kind {
        Kind::Dir => return Err(fail(libc::EPERM, "mknod does not make directories")),
        Kind::Symlink => return Err(fail(libc::EINVAL, "mknod does not make symbolic links")),
        _ => {}
    }
    let spot = view.spot(creds, place, true)?;
    make::check(view, creds, &spot)?;
    let device = matches!(kind, Kind::Char | Kind::Block);
    if device && creds.uid != 0 && !(kind == Kind::Char && rdev == 0) {
        return Err(fail(libc::EPERM, "only the superuser makes devices"));
    }
    view.begin()?;
    let new = New { kind, rdev: if device { rdev } else { 0 }, ..New::file(mode) };
    let inode = make::inode(view, creds, &spot.dir, place.name.as_bytes(), new)?;
    make::insert(view, &spot, &inode)?;
    Ok(Answer::Entry { parent: spot.dir.ino, inode: Box::new(inode) })
}
