//! Walking the files at or below a path, over the rows of a volume that may be in use: what is
//! renamed meanwhile may be missed or come twice.

use std::ops::ControlFlow;

use kestrel_engine::{Engine, EngineError};
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::key::{Key, Table};

use crate::info::{InfoError, find, find_dir};
use crate::rows::get_all;

/// Entries of a directory read at a time.
const PAGE_ENTRIES: usize = 1024;

/// A file that a walk comes by.
#[derive(Debug, Clone)]
pub struct File {
    /// Its record.
    pub inode: Inode,
    /// The directory and the name that led to it.
    pub place: (InodeId, Box<[u8]>),
}

/// Visits every file (not: directory) at or below `path`, `/` between names, until `visit` breaks.
/// Each name of a file with several comes by itself. Memory: one number a directory that is still
/// to be read, and a page of entries.
///
/// # Errors
/// If there is nothing at the path, or the rows cannot be read. Entries below that cannot be
/// decoded are passed over.
pub fn walk(
    engine: &dyn Engine,
    path: &[u8],
    visit: &mut dyn FnMut(File) -> ControlFlow<()>,
) -> Result<(), InfoError> {
    let mut dir = ROOT;
    let mut names = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .peekable();
    while let Some(name) = names.next() {
        let inode = find(engine, dir, name)?;
        if inode.kind != Kind::Dir {
            if names.peek().is_some() {
                return Err(InfoError::NotFound);
            }
            let _ = visit(File { inode, place: (dir, name.into()) });
            return Ok(());
        }
        dir = inode.ino;
    }
    walk_below(engine, dir, visit)
}

/// The same of the files below a directory.
///
/// # Errors
/// As [`walk`].
pub fn walk_below(
    engine: &dyn Engine,
    dir: InodeId,
    visit: &mut dyn FnMut(File) -> ControlFlow<()>,
) -> Result<(), InfoError> {
    find_dir(engine, dir)?;
    let mut todo = vec![dir];
    while let Some(dir) = todo.pop() {
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let page = page(engine, dir, after.as_deref())?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let full = page.len() == PAGE_ENTRIES;
            if files_of(engine, dir, page, &mut todo, visit)?.is_break() {
                return Ok(());
            }
            if !full {
                break;
            }
        }
    }
    Ok(())
}

type Page = Vec<(Box<[u8]>, Entry)>;

fn page(engine: &dyn Engine, dir: InodeId, after: Option<&[u8]>) -> Result<Page, EngineError> {
    let mut page = Vec::new();
    engine.scan(Table::Entry, dir, after, &mut |name, value, _| {
        if let Ok(entry) = Entry::decode(value) {
            page.push((name.into(), entry));
        }
        if page.len() < PAGE_ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(page)
}

fn files_of(
    engine: &dyn Engine,
    dir: InodeId,
    page: Page,
    todo: &mut Vec<InodeId>,
    visit: &mut dyn FnMut(File) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, EngineError> {
    let linked = |entry: &Entry| matches!(entry, Entry::Link { .. });
    let links: Vec<Key> = page
        .iter()
        .filter(|(_, entry)| linked(entry))
        .map(|(_, entry)| Key::new(Table::Link, entry.ino(), &[]))
        .collect();
    let mut records = get_all(engine, &links)?.into_iter();
    for (name, entry) in page {
        let inode = match entry {
            Entry::Inode(inode) if inode.kind == Kind::Dir => {
                todo.push(inode.ino);
                continue;
            }
            Entry::Inode(inode) => Some(inode),
            Entry::Link { .. } => {
                let record = records.next().flatten();
                record.and_then(|bytes| Inode::decode(&mut Reader::new(&bytes)).ok())
            }
        };
        if let Some(inode) = inode
            && visit(File { inode, place: (dir, name) }).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
