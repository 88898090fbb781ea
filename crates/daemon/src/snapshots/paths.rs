//! Present paths of directories that are known by number.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kestrel_admin::rows::{self, DirId};
use kestrel_client::fs::into_inode;
use kestrel_engine::Engine;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::key::{Key, Table};
use kestrel_types::request::{Answer, Op, READDIR_ENTRIES_MAX};

use super::calls::SnapshotCalls;

/// Most directories above one, when its path is told.
const DEPTH_MAX: usize = 4096;

/// Most pages of a directory that are read to find a name in it.
const PAGES_MAX: usize = 64;

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

    /// Nothing but the listing of the directory above tells a name.
    fn by_requests(&self, dir: InodeId) -> Option<Place> {
        let parent = self.calls.ask(None, Op::Parent(dir)).and_then(into_inode).ok()?.ino;
        let mut after = None;
        for _ in 0..PAGES_MAX {
            let op = Op::ReadDir { dir: parent, after, limit: READDIR_ENTRIES_MAX, check: true };
            let Ok(Answer::Entries { entries, end, .. }) = self.calls.ask(None, op) else { break };
            if let Some(entry) = entries.iter().find(|entry| entry.ino == dir) {
                return Some((parent, entry.name.as_bytes().into()));
            }
            if end {
                break;
            }
            after = entries.last().map(|entry| entry.name.clone());
        }
        None
    }
}
