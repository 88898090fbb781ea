//! RemovalCheck: a page of a directory of a tree that is to be removed. It looks at each file's
//! owner and flags where the row is, and tells of directories alone: `kestrel rm -r` of many files
//! moves none of their names.

use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::{Entry, RemovedEntry};
use kestrel_types::error::FsResult;
use kestrel_types::ids::Position;
use kestrel_types::inode::Kind;
use kestrel_types::name::Name;
use kestrel_types::removal::{KeptBecause, RemovalPage};
use kestrel_types::request::{Answer, Creds, READDIR_ENTRIES_MAX};

use super::readdir::{damaged, visit_page};
use crate::perm::{self, Dentry, EXEC, READ, WRITE};
use crate::rows::SpanRows;
use crate::stop::{Run, Stop};

/// Whether the caller may list the directory and take out of it what no flag or owner keeps.
pub fn check(creds: &Creds, dir: &Dentry) -> Run<()> {
    perm::check(creds, &dir.guard, READ | WRITE | EXEC)
}

/// Reads a page; and the position to wait for before it may be shown in mode `commit`.
pub fn run(
    engine: &dyn Engine,
    creds: &Creds,
    dir: &Dentry,
    after: Option<&Name>,
    limit: usize,
) -> FsResult<(Answer, Position)> {
    let mut page = Page::new(creds, dir);
    let (wait, end) = visit_page(engine, dir.ino, after, limit, |name, row| page.add(name, row))?;
    page.told.end = end;
    Ok((page.answer(), wait))
}

/// The page, from what all nodes said.
pub fn merged(creds: &Creds, dir: &Dentry, rows: &SpanRows, limit: usize) -> Run<Answer> {
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let mut page = Page::new(creds, dir);
    page.told.end = rows.len() <= limit;
    for (name, row) in rows.iter().take(limit) {
        let added = page.add(name, row).map_err(|why| Stop::Fail(damaged(dir.ino, &why)))?;
        if added.is_break() {
            page.told.end = false;
            break;
        }
    }
    Ok(page.answer())
}

/// A page under way.
struct Page<'a> {
    creds: &'a Creds,
    dir: &'a Dentry,
    told: RemovalPage,
    last: Option<Box<[u8]>>,
}

impl<'a> Page<'a> {
    fn new(creds: &'a Creds, dir: &'a Dentry) -> Self {
        Self { creds, dir, told: RemovalPage::default(), last: None }
    }

    /// Adds an entry; breaks at a file that must stay.
    fn add(&mut self, name: &[u8], row: &[u8]) -> Result<ControlFlow<()>, DecodeError> {
        let valid = || Name::new(name).map_err(|_| DecodeError("not a valid name"));
        let RemovedEntry { ino, kind, file } = Entry::peek_removed(row)?;
        match (kind, file) {
            (Kind::Dir, _) => self.told.dirs.push((valid()?, ino)),
            (_, None) => self.told.links.push(valid()?),
            (_, Some((uid, size, flags))) => {
                let kept = match perm::check_sticky(self.creds, &self.dir.guard, uid) {
                    _ if perm::check_changeable(flags).is_err() => Some(KeptBecause::Flags),
                    Err(_) => Some(KeptBecause::Sticky),
                    Ok(()) => None,
                };
                if let Some(why) = kept {
                    self.told.kept = Some((valid()?, why));
                }
                self.told.files += 1;
                let bytes = if kind == Kind::File { size } else { 0 };
                self.told.bytes = self.told.bytes.saturating_add(bytes);
            }
        }
        match &mut self.last {
            Some(last) if last.len() == name.len() => last.copy_from_slice(name),
            last => *last = Some(name.into()),
        }
        Ok(match self.told.kept {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    }

    fn answer(mut self) -> Answer {
        // Names that come from rows have been checked when they were made.
        self.told.last = self.last.and_then(|last| Name::new(&last).ok());
        Answer::RemovalPage(Box::new(self.told))
    }
}
