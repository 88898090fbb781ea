//! Locate: files by number alone, for file handles.
//!
//! A file's record lies under its directory and name, and no row leads from its number there. A
//! handle that outlived the client's memory of the name is found by reading names, a page at a
//! time, so that no request takes long. Where files were is a hint: the client asks for each one
//! there, and a file that was renamed meanwhile is found by its number once it is open or moved, or
//! by another handle's search.

use std::ops::ControlFlow;

use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::key::{KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, DirEntry, LOCATE_MAX};

use crate::stop::engine_error;
use kestrel_engine::Engine;

/// Names read for one request.
const NAMES_MAX: usize = 16 * 1024;

/// What is looked for: files, and the directory and name after which reading goes on.
pub type Search<'a> = (&'a [InodeId], Option<&'a (InodeId, Name)>);

/// Looks for files among the next names of this node that are `own`.
///
/// # Errors
/// `EINVAL` if there are too many files; what the engine says.
pub fn run(
    engine: &dyn Engine,
    (files, after): Search<'_>,
    own: &dyn Fn(InodeId, &[u8]) -> bool,
) -> FsResult<Answer> {
    if files.len() > LOCATE_MAX {
        return Err(FsError::new(libc::EINVAL, "too many files are looked for at once"));
    }
    let mut wanted = files.to_vec();
    wanted.sort_unstable();
    let (mut found, mut next, mut read) = (Vec::new(), None, 0);
    let from = after.map(|(dir, name)| KeyRef::new(Table::Entry, *dir, name.as_bytes()));
    let visited = engine.scan_table(Table::Entry, from, &mut |key, row| {
        // Where reading goes on was read before.
        if after.is_some_and(|(dir, name)| (key.id, key.suffix) == (*dir, name.as_bytes())) {
            return ControlFlow::Continue(());
        }
        // The root lies under no name; damaged rows are for `kestrel fsck`.
        let (Ok(name), Ok((ino, kind))) = (Name::new(key.suffix), Entry::peek(row)) else {
            return ControlFlow::Continue(());
        };
        read += 1;
        if wanted.binary_search(&ino).is_ok() && own(key.id, key.suffix) {
            found.push((key.id, DirEntry { name: name.clone(), ino, kind }));
        }
        if read < NAMES_MAX && found.len() < LOCATE_MAX {
            return ControlFlow::Continue(());
        }
        next = Some((key.id, name));
        ControlFlow::Break(())
    });
    visited.map_err(engine_error)?;
    Ok(Answer::Located { found, next })
}
