//! ReadDir: a page of a directory's entries, in the order of their names. ReadDirPlus: attributes
//! of the files among them.
//!
//! The cookie is the last name given, so a listing is stable under concurrent creates, renames and
//! unlinks: an entry that is there all the time appears exactly once, others at most once
//! (`telldir`/`seekdir` build on this in the client). Reads the engine without a worker's state, a
//! page may be large; each entry is as some batch left it.

use std::ops::ControlFlow;

use kestrel_types::codec::DecodeError;
use kestrel_types::entry::Entry;
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, Position};
use kestrel_types::inode::{Data, Inode, Kind};
use kestrel_types::key::Table;
use kestrel_types::name::Name;
use kestrel_types::policy::Policy;
use kestrel_types::request::{Answer, Creds, DirEntry, READDIR_ENTRIES_MAX};

use crate::perm::{self, Dentry, EXEC, READ};
use crate::rows::{Span, SpanRows};
use crate::stop::{Run, Stop, engine_error};
use kestrel_engine::Engine;

/// Longest encoding of ACLs of an entry in a page of attributes, bytes: 4096 entries with the
/// longest names fit a frame.
const ACLS_LISTED_MAX: usize = 256;

/// A page of rows, the position to wait for before it may be shown in mode `commit`, and whether
/// nothing follows.
type Page<T> = (Vec<T>, Position, bool);

/// Reads a page; and the position to wait for before it may be shown in mode `commit`.
pub fn run(
    engine: &dyn Engine,
    dir: InodeId,
    parent: InodeId,
    after: Option<&Name>,
    limit: usize,
) -> FsResult<(Answer, Position)> {
    let (entries, wait, end) = page(engine, dir, after, limit, entry)?;
    Ok((Answer::Entries { entries, parent, end }, wait))
}

/// The same for [`Op::ReadDirPlus`](kestrel_types::request::Op::ReadDirPlus).
pub fn run_plus(
    engine: &dyn Engine,
    dir: InodeId,
    after: Option<&Name>,
    limit: usize,
) -> FsResult<(Answer, Position)> {
    let (entries, wait, end) = page(engine, dir, after, limit, entry_plus)?;
    Ok((Answer::EntriesPlus { entries: entries.into_iter().flatten().collect(), end }, wait))
}

/// Has a page of attributes say what counts for the names in it.
pub fn tell_policy(answer: &mut Answer, policy: Policy) {
    let policy = policy.told();
    if let Answer::EntriesPlus { entries, .. } = answer {
        entries.iter_mut().for_each(|(_, inode)| inode.effective = policy);
    }
}

/// Reads a page of rows, each of them with `read`.
fn page<T>(
    engine: &dyn Engine,
    dir: InodeId,
    after: Option<&Name>,
    limit: usize,
    read: fn(&[u8], &[u8]) -> Result<T, DecodeError>,
) -> FsResult<Page<T>> {
    let mut entries = Vec::with_capacity(limit.clamp(1, READDIR_ENTRIES_MAX).min(256));
    let (wait, end) = visit_page(engine, dir, after, limit, |name, row| {
        entries.push(read(name, row)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((entries, wait, end))
}

/// Shows the rows of a page to `visit`, until that breaks. The position to wait for before the page
/// may be shown in mode `commit`, and whether nothing follows.
pub(super) fn visit_page(
    engine: &dyn Engine,
    dir: InodeId,
    after: Option<&Name>,
    limit: usize,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, DecodeError>,
) -> FsResult<(Position, bool)> {
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let (mut count, mut end, mut wait) = (0, true, 0);
    let mut damage = None;
    let deleted_at = engine
        .scan(Table::Entry, dir, after.map(Name::as_bytes), &mut |name, row, changed_at| {
            if count == limit {
                end = false;
                return ControlFlow::Break(());
            }
            count += 1;
            wait = wait.max(changed_at);
            match visit(name, row) {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                Ok(ControlFlow::Break(())) => {
                    end = false;
                    ControlFlow::Break(())
                }
                Err(why) => {
                    damage = Some(why);
                    ControlFlow::Break(())
                }
            }
        })
        .map_err(engine_error)?;
    match damage {
        Some(why) => Err(damaged(dir, &why)),
        None => Ok((wait.max(deleted_at), end)),
    }
}

/// Whether the caller may list the directory.
pub fn check(creds: &Creds, dir: &Dentry, check: bool) -> Run<()> {
    if check { perm::check(creds, &dir.guard, READ) } else { Ok(()) }
}

/// Whether the caller may list the directory and look at what is in it.
pub fn check_plus(creds: &Creds, dir: &Dentry) -> Run<()> {
    perm::check(creds, &dir.guard, READ | EXEC)
}

/// What every one of several nodes is asked for: one entry more than wanted, so that it shows
/// whether something follows.
pub fn span(dir: InodeId, after: Option<&Name>, limit: usize) -> Span {
    let rows_max = limit.clamp(1, READDIR_ENTRIES_MAX) as u32 + 1;
    Span { table: Table::Entry, id: dir, after: after.map(|name| name.as_bytes().into()), rows_max }
}

/// The page, from what all nodes said.
pub fn merged(dir: Dentry, rows: &SpanRows, limit: usize) -> Run<Answer> {
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let entries: Result<Vec<_>, _> =
        rows.iter().take(limit).map(|(name, row)| entry(name, row)).collect();
    let entries = entries.map_err(|why| Stop::Fail(damaged(dir.ino, &why)))?;
    Ok(Answer::Entries { entries, parent: dir.parent, end: rows.len() <= limit })
}

/// The page of attributes, from what all nodes said.
pub fn merged_plus(dir: InodeId, rows: &SpanRows, limit: usize) -> Run<Answer> {
    let limit = limit.clamp(1, READDIR_ENTRIES_MAX);
    let entries =
        rows.iter().take(limit).filter_map(|(name, row)| entry_plus(name, row).transpose());
    let entries: Result<Vec<_>, _> = entries.collect();
    let entries = entries.map_err(|why| Stop::Fail(damaged(dir, &why)))?;
    Ok(Answer::EntriesPlus { entries, end: rows.len() <= limit })
}

pub(super) fn damaged(dir: InodeId, why: &DecodeError) -> FsError {
    let text = format!("metadata: damaged entry in directory {dir}: {why}; run kestrel fsck");
    FsError::because(libc::EIO, text)
}

fn entry(name: &[u8], row: &[u8]) -> Result<DirEntry, DecodeError> {
    let (ino, kind) = Entry::peek(row)?;
    let name = Name::new(name).map_err(|_| DecodeError("not a valid name"))?;
    Ok(DirEntry { name, ino, kind })
}

/// What [`Op::ReadDirPlus`](kestrel_types::request::Op::ReadDirPlus) tells of an entry, if
/// anything: its row holds the inode of a file.
fn entry_plus(name: &[u8], row: &[u8]) -> Result<Option<(Name, Box<Inode>)>, DecodeError> {
    let Entry::Inode(mut inode) = Entry::decode(row)? else { return Ok(None) };
    let acls_bytes = inode.acls.as_ref().map_or(0, |acls| acls.encode().len());
    if inode.kind == Kind::Dir || acls_bytes > ACLS_LISTED_MAX {
        return Ok(None);
    }
    if inode.data != Data::None {
        inode.data = Data::Chunked;
    }
    let name = Name::new(name).map_err(|_| DecodeError("not a valid name"))?;
    Ok(Some((name, Box::new(inode))))
}
