//! Present paths of directories that are known by number.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kestrel_admin::rows::{self, DirId};
use kestrel_client::fs::{into_inode, unexpected};
use kestrel_engine::Engine;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{Key, Table};
use kestrel_types::name::Name;
use kestrel_types::request::{Answer, Op, READDIR_ENTRIES_MAX};

use super::calls::SnapshotCalls;

/// Directories above each other where more would be damage.
pub(super) const DEPTH_MAX: usize = 4096;

/// Most names of a directory that are read to find one of them.
const NAMES_READ_MAX: usize = 256 * 1024;

/// The directory above, and the name in it.
type Place = (InodeId, Box<[u8]>);

/// Finds paths: in rows, if this process has them, else by requests of the caller, which need read
/// permission for the directories above.
pub struct DirPaths<'a> {
    engine: Option<&'a dyn Engine>,
    calls: &'a SnapshotCalls<'a>,
    known: RefCell<BTreeMap<InodeId, Option<Place>>>,
}

impl<'a> DirPaths<'a> {
    /// Of the volume of `calls`; `engine` has its rows, or some of them.
    pub fn new(engine: Option<&'a dyn Engine>, calls: &'a SnapshotCalls<'a>) -> Self {
        Self { engine, calls, known: RefCell::default() }
    }

    /// The present path of a directory from the root on, if it has one and it can be told.
    pub fn path_of(&self, mut dir: InodeId) -> Option<Vec<u8>> {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        while dir != ROOT {
            let (parent, name) = self.place_of(dir)?;
            names.push(name);
            dir = parent;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let parts = names.iter().rev().flat_map(|name| [b"/", &**name]);
        let path: Vec<u8> = parts.flatten().copied().collect();
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    fn place_of(&self, dir: InodeId) -> Option<Place> {
        if let Some(known) = self.known.borrow().get(&dir) {
            return known.clone();
        }
        let found = self.in_rows(dir).or_else(|| self.by_requests(dir));
        self.known.borrow_mut().insert(dir, found.clone());
        found
    }

    fn in_rows(&self, dir: InodeId) -> Option<Place> {
        let row = rows::get(self.engine?, Key::new(Table::DirId, dir, b"")).ok()??;
        let DirId { parent, name } = DirId::decode(&row).ok()?;
        Some((parent, name))
    }

    fn by_requests(&self, dir: InodeId) -> Option<Place> {
        let parent = parent_of(self.calls, dir).ok()??;
        let name = name_in(self.calls, parent, dir).ok()??;
        Some((parent, name.as_bytes().into()))
    }
}

/// The directory above a directory; none if it is no more.
pub(super) fn parent_of(calls: &SnapshotCalls<'_>, dir: InodeId) -> FsResult<Option<InodeId>> {
    match calls.ask(None, Op::Parent(dir)).and_then(into_inode) {
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => Ok(None),
        above => above.map(|above| Some(above.ino)),
    }
}

/// The name of a directory in the one above; none if it is not there, or that would take too long
/// to find. No row that a client may read leads from the number of a directory to its name, so the
/// directory above is read.
pub(super) fn name_in(
    calls: &SnapshotCalls<'_>,
    above: InodeId,
    dir: InodeId,
) -> FsResult<Option<Name>> {
    let (mut after, mut read) = (None, 0);
    while read < NAMES_READ_MAX {
        let op = Op::ReadDir { dir: above, after, limit: READDIR_ENTRIES_MAX, check: true };
        let (entries, end) = match calls.ask(None, op) {
            Ok(Answer::Entries { entries, end, .. }) => (entries, end),
            Ok(other) => return Err(unexpected(&other)),
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => return Ok(None),
            Err(why) => return Err(why),
        };
        read += entries.len();
        after = entries.last().map(|entry| entry.name.clone());
        if let Some(found) = entries.into_iter().find(|entry| entry.ino == dir) {
            return Ok(Some(found.name));
        }
        if end || after.is_none() {
            break;
        }
    }
    Ok(None)
}
