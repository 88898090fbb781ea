//! RemovalCheck: a page of a directory of a tree that is to be removed. It looks at each file's
//! owner and flags where the row is, and tells of directories alone: `kestrel rm -r` of many files
//! moves none of their names.

use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::codec::DecodeError;
use kestrel_types::entry::{Entry, RemovedEntry};
use kestrel_types::error::FsResult;
use kestrel_types::ids::Position;
use kestrel_types::inode::{InodeFlags, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::Name;
use kestrel_types::removal::{KeptBecause, RemovalPage};
use kestrel_types::request::{Answer, Creds, READDIR_ENTRIES_MAX};

use super::readdir::damaged;
use crate::perm::{self, Dentry, EXEC, READ, WRITE};
use crate::rows::SpanRows;
use crate::stop::{Run, Stop, engine_error};

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
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let (mut page, mut count, mut wait) = (Page::new(creds, dir), 0, 0);
    page.told.end = true;
    let mut damage = None;
    let after = after.map(Name::as_bytes);
    let read = engine.scan(Table::Entry, dir.ino, after, &mut |name, row, changed_at| {
        if count == limit || page.told.kept.is_some() {
            page.told.end = false;
            return ControlFlow::Break(());
        }
        count += 1;
        wait = wait.max(changed_at);
        if let Err(why) = page.add(name, row) {
            damage = Some(why);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    let deleted_at = read.map_err(engine_error)?;
    match damage {
        Some(why) => Err(damaged(dir.ino, &why)),
        None => Ok((page.answer(), wait.max(deleted_at))),
    }
}

/// The page, from what all nodes said.
pub fn merged(creds: &Creds, dir: &Dentry, rows: &SpanRows, limit: usize) -> Run<Answer> {
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let mut page = Page::new(creds, dir);
    page.told.end = rows.len() <= limit;
    for (name, row) in rows.iter().take(limit) {
        page.add(name, row).map_err(|why| Stop::Fail(damaged(dir.ino, &why)))?;
        if page.told.kept.is_some() {
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

    fn add(&mut self, name: &[u8], row: &[u8]) -> Result<(), DecodeError> {
        let valid = || Name::new(name).map_err(|_| DecodeError("not a valid name"));
        let RemovedEntry { ino, kind, file } = Entry::peek_removed(row)?;
        match (kind, file) {
            (Kind::Dir, _) => self.told.dirs.push((valid()?, ino)),
            (_, None) => self.told.links.push(valid()?),
            (_, Some((uid, size, flags))) => {
                let is_fixed = flags.has(InodeFlags::IMMUTABLE) || flags.has(InodeFlags::APPEND);
                let kept = match perm::check_sticky(self.creds, &self.dir.guard, uid) {
                    _ if is_fixed => Some(KeptBecause::Flags),
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
        Ok(())
    }

    fn answer(mut self) -> Answer {
        // Names that come from rows have been checked when they were made.
        self.told.last = self.last.and_then(|last| Name::new(&last).ok());
        Answer::RemovalPage(Box::new(self.told))
    }
}
