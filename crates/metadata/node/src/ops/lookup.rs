//! Lookup: finds an entry.
//!
//! POSIX path resolution: search permission is needed on every directory of the path (`EACCES`),
//! each must exist (`ENOENT`) and be a directory (`ENOTDIR`). A symbolic link in mid-path goes back
//! to the client. Changes nothing; one fetch.

use kestrel_types::name::PathRef;
use kestrel_types::request::{Answer, Creds};

use crate::stop::{Run, fail};
use crate::view::View;

/// Runs the operation.
pub fn run(view: &mut View<'_>, creds: &Creds, place: &PathRef) -> Run<Answer> {
    let spot = view.spot(creds, place, false)?;
    view.want_shown(&spot, place.name.as_bytes());
    match view.shown_at(&spot)? {
        Some(inode) => Ok(Answer::Entry { parent: spot.dir.ino, inode }),
        None => Err(fail(libc::ENOENT, "no such entry")),
    }
}
