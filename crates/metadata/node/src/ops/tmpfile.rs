//! TmpFile: `open(O_TMPFILE)`: a file without a name, open.
//!
//! Needs write and search permission of the directory, and takes the directory's group if that is
//! set-group-id. It lies in table `link` with no name. Link gives it one unless it was opened
//! `O_EXCL`. The last release, or a crash, deletes it. Of several nodes its home is that of the
//! directory, which leads the request.

use kestrel_types::ids::InodeId;
use kestrel_types::request::{Answer, Creds};

use super::make::{self, New};
use crate::perm::{self, EXEC, WRITE};
use crate::rows::Value;
use crate::session::OpenState;
use crate::stop::Run;
use crate::view::View;

/// Runs the operation.
pub fn run(
    view: &mut View<'_>,
    creds: &Creds,
    dir: InodeId,
    mode: u32,
    exclusive: bool,
) -> Run<Answer> {
    let dir = view.dir(dir)?;
    view.check_names_change(&dir)?;
    View::check_not_removed(&dir)?;
    perm::check(creds, &dir.guard, WRITE | EXEC)?;
    view.begin()?;
    let mut inode = make::inode(view, creds, &dir, b"", New::file(mode))?;
    inode.nlink = 0;
    let cell = view.link_cell(inode.ino);
    view.put(cell, Value::Inode(inode.clone()));
    view.effects.unnamed = Some((inode.ino, dir.ino));
    if !exclusive {
        view.set_linkable(inode.ino);
    }
    view.set_open(inode.ino, OpenState { count: 1, orphan: true, linkable: !exclusive });
    Ok(Answer::Opened { inode: Box::new(inode), created: true, parent: None })
}
