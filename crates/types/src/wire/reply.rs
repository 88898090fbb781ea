//! Answers to operations. Nodes also record them in this form, for retries after a restart.

use super::basic::{self, WireWriter, flags, inode, list};
use super::op::{expected, put_expected};
use super::{feed, quota};
use crate::codec::{DecodeError, Reader};
use crate::extent::Extent;
use crate::inode::Inode;
use crate::name::Name;
use crate::quota::QUOTAS_MAX;
use crate::removal::{KeptBecause, RemovalPage};
use crate::request::{Answer, DirEntry, Outcome, Reply, Usage};
use crate::snapshot::{HOLDS_MAX, SNAPSHOTS_MAX, SnapshotInfo};
use crate::snapshot_changes::{ChangedDir, ChangedName, DirMoment, SnapshotChanges, SnapshotUsage};

// First byte of an answer. Numbers are never given to another one.
const DONE: u8 = 1;
const INODE: u8 = 2;
const OPENED: u8 = 3;
const REMOVED: u8 = 4;
/// Without the directories: in rows that programs before version 2 of the protocol recorded.
const RENAMED_V1: u8 = 5;
const BYTES: u8 = 6;
const ENTRIES: u8 = 7;
const CHUNKS: u8 = 8;
const OBJECTS: u8 = 9;
const USAGE: u8 = 10;
const ENTRY: u8 = 11;
const OPENED_AT: u8 = 12;
const RENAMED: u8 = 13;
const LOCATED: u8 = 14;
const ENTRIES_PLUS: u8 = 15;
const SNAPSHOTS: u8 = 16;
const SNAPSHOT_CHANGES: u8 = 17;
const SNAPSHOT_USAGE: u8 = 18;
const CLONE_PROGRESS: u8 = 19;
const QUOTAS: u8 = 22;
const FEED: u8 = 23;
const REMOVAL_PAGE: u8 = 24;

// First byte of another outcome.
const FAILED: u8 = 0x80;
const NEED_GROUPS: u8 = 0x81;
const CONFLICT: u8 = 0x82;
const SYMLINK: u8 = 0x83;
const MISDIRECTED: u8 = 0x84;

/// Appends the bytes of a reply, as they are in a Reply frame. A reason above its limit is cut.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    put_reply(reply, &mut WireWriter::new(out));
}

/// Reads what [`encode_reply`] wrote, and leaves what follows.
///
/// # Errors
/// If the bytes are truncated, out of bounds, or of a newer version.
pub fn decode_reply(reader: &mut Reader<'_>) -> Result<Reply, DecodeError> {
    reply(reader)
}

pub(super) fn put_reply(reply: &Reply, w: &mut WireWriter<'_>) {
    match reply {
        Ok(answer) => put_answer(answer, w),
        Err(outcome) => put_outcome(outcome, w),
    }
}

fn put_answer(answer: &Answer, w: &mut WireWriter<'_>) {
    match answer {
        Answer::Done => w.u8(DONE),
        Answer::Inode(inode) => {
            w.u8(INODE);
            w.inode(inode);
        }
        Answer::Entry { parent, inode } => {
            w.u8(ENTRY);
            w.varint(*parent);
            w.inode(inode);
        }
        Answer::Opened { inode, created, parent } => {
            w.u8(if parent.is_some() { OPENED_AT } else { OPENED });
            parent.iter().for_each(|parent| w.varint(*parent));
            w.u8(u8::from(*created));
            w.inode(inode);
        }
        Answer::Removed(inode) => {
            w.u8(REMOVED);
            w.inode(inode);
        }
        Answer::Renamed { moved, other, from, to } => {
            w.u8(RENAMED);
            [moved, from, to].into_iter().for_each(|ino| w.varint(*ino));
            w.u8(u8::from(other.is_some()));
            other.iter().for_each(|inode| w.inode(inode));
        }
        Answer::Bytes(bytes) => {
            w.u8(BYTES);
            w.string(bytes);
        }
        Answer::Entries { entries, parent, end } => {
            w.u8(ENTRIES);
            w.u8(u8::from(*end));
            w.varint(*parent);
            w.list(entries, put_entry);
        }
        Answer::EntriesPlus { entries, end } => {
            w.u8(ENTRIES_PLUS);
            w.u8(u8::from(*end));
            w.list(entries, |w, (name, inode)| {
                w.name(name);
                w.inode(inode);
            });
        }
        Answer::RemovalPage(page) => put_removal_page(page, w),
        Answer::Chunks { chunks, end } => {
            w.u8(CHUNKS);
            w.u8(u8::from(*end));
            w.list(chunks, |w, (chunk, extents)| {
                w.varint(*chunk);
                w.list(extents, WireWriter::extent);
            });
        }
        Answer::Located { found, next } => {
            w.u8(LOCATED);
            w.list(found, |w, (dir, entry)| {
                w.varint(*dir);
                put_entry(w, entry);
            });
            w.name_after(next.as_ref());
        }
        Answer::Objects { first, count } => {
            w.u8(OBJECTS);
            w.varint(*first);
            w.varint(u64::from(*count));
        }
        Answer::Usage(Usage { files, dirs, bytes }) => {
            w.u8(USAGE);
            [files, dirs, bytes].into_iter().for_each(|number| w.varint(*number));
        }
        Answer::Snapshots(snapshots) => {
            w.u8(SNAPSHOTS);
            w.list(snapshots, put_snapshot);
        }
        Answer::SnapshotChanges(changes) => {
            w.u8(SNAPSHOT_CHANGES);
            w.list(&changes.dirs, put_changed_dir);
            w.list(&changes.files, |w, ino| w.varint(*ino));
            put_expected(changes.newer, w);
            w.cursor(changes.next.as_ref());
        }
        Answer::SnapshotUsage(SnapshotUsage { rows, bytes, next }) => {
            w.u8(SNAPSHOT_USAGE);
            [rows, bytes].into_iter().for_each(|number| w.varint(*number));
            w.cursor(next.as_ref());
        }
        Answer::CloneProgress { names, done } => {
            w.u8(CLONE_PROGRESS);
            w.varint(*names);
            w.u8(u8::from(*done));
        }
        Answer::Quotas(quotas) => {
            w.u8(QUOTAS);
            w.list(quotas, quota::put_info);
        }
        Answer::Feed(page) => {
            w.u8(FEED);
            feed::put_page(page, w);
        }
    }
}

fn put_entry(w: &mut WireWriter<'_>, entry: &DirEntry) {
    w.varint(entry.ino);
    w.u8(entry.kind as u8);
    w.name(&entry.name);
}

fn put_removal_page(page: &RemovalPage, w: &mut WireWriter<'_>) {
    let RemovalPage { files, bytes, dirs, links, kept, last, end } = page;
    w.u8(REMOVAL_PAGE);
    w.u8(u8::from(*end) | u8::from(last.is_some()) << 1 | u8::from(kept.is_some()) << 2);
    [files, bytes].into_iter().for_each(|number| w.varint(*number));
    w.list(dirs, |w, (name, ino)| {
        w.name(name);
        w.varint(*ino);
    });
    w.list(links, |w, name| w.name(name));
    last.iter().for_each(|name| w.name(name));
    if let Some((name, why)) = kept {
        w.name(name);
        w.u8(*why as u8);
    }
}

fn put_snapshot(w: &mut WireWriter<'_>, snapshot: &SnapshotInfo) {
    // A client hears of no snapshot that is being made or is hidden.
    let SnapshotInfo { id, dir, name, created, removing, cutting: _, hidden: _, holds, clones: _ } =
        snapshot;
    w.varint(*id);
    w.varint(*dir);
    w.name(name);
    w.fixed(created.to_be_bytes());
    w.u8(u8::from(*removing));
    w.limit(holds.len(), HOLDS_MAX, "the number of holds of a snapshot");
    w.list(holds, |w, tag| w.name(tag));
}

fn put_changed_dir(w: &mut WireWriter<'_>, changed: &ChangedDir) {
    let ChangedDir { dir, older, newer, names } = changed;
    w.varint(*dir);
    for DirMoment { parent, path, inode } in [older, newer] {
        w.varint(*parent);
        w.string(path);
        w.inode(inode);
    }
    w.list(names, |w, ChangedName { name, older, newer }| {
        w.name(name);
        w.u8(u8::from(older.is_some()) | u8::from(newer.is_some()) << 1);
        older.iter().chain(newer).for_each(|inode| w.inode(inode));
    });
}

fn put_outcome(outcome: &Outcome, w: &mut WireWriter<'_>) {
    match outcome {
        Outcome::Failed(error) => {
            w.u8(FAILED);
            w.error(error.errno, &error.reason);
        }
        Outcome::NeedGroups => w.u8(NEED_GROUPS),
        Outcome::Conflict(inode) => {
            w.u8(CONFLICT);
            w.inode(inode);
        }
        Outcome::Symlink { resolved, dir, target } => {
            w.u8(SYMLINK);
            w.varint(*resolved as u64);
            w.varint(*dir);
            w.string(target);
        }
        Outcome::Misdirected { table } => {
            w.u8(MISDIRECTED);
            w.varint(*table);
        }
    }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Result<Reply, DecodeError> {
    Ok(Ok(match r.u8()? {
        DONE => Answer::Done,
        INODE => Answer::Inode(inode(r)?),
        ENTRY => Answer::Entry { parent: r.varint()?, inode: inode(r)? },
        tag @ (OPENED | OPENED_AT) => {
            let parent = if tag == OPENED_AT { Some(r.varint()?) } else { None };
            let created = basic::boolean(r)?;
            Answer::Opened { inode: inode(r)?, created, parent }
        }
        REMOVED => Answer::Removed(inode(r)?),
        tag @ (RENAMED | RENAMED_V1) => {
            let moved = r.varint()?;
            let (from, to) = if tag == RENAMED { (r.varint()?, r.varint()?) } else { (0, 0) };
            let other = if basic::boolean(r)? { Some(inode(r)?) } else { None };
            Answer::Renamed { moved, other, from, to }
        }
        BYTES => Answer::Bytes(basic::bytes(r)?),
        ENTRIES => {
            let (flags, parent) = (flags(r, 1)?, r.varint()?);
            Answer::Entries { entries: list(r, usize::MAX, 4, entry)?, parent, end: flags & 1 != 0 }
        }
        ENTRIES_PLUS => {
            let flags = flags(r, 1)?;
            Answer::EntriesPlus {
                entries: list(r, usize::MAX, 4, entry_plus)?,
                end: flags & 1 != 0,
            }
        }
        REMOVAL_PAGE => Answer::RemovalPage(Box::new(removal_page(r)?)),
        CHUNKS => {
            let end = basic::boolean(r)?;
            Answer::Chunks { chunks: list(r, usize::MAX, 2, chunk)?, end }
        }
        LOCATED => {
            let found = list(r, usize::MAX, 5, |r| Ok((r.varint()?, entry(r)?)))?;
            Answer::Located { found, next: basic::name_after(r)? }
        }
        OBJECTS => Answer::Objects { first: r.varint()?, count: r.varint32()? },
        USAGE => Answer::Usage(Usage { files: r.varint()?, dirs: r.varint()?, bytes: r.varint()? }),
        SNAPSHOTS => Answer::Snapshots(list(r, SNAPSHOTS_MAX, 14, snapshot)?),
        SNAPSHOT_CHANGES => Answer::SnapshotChanges(Box::new(SnapshotChanges {
            dirs: list(r, usize::MAX, 6, changed_dir)?,
            files: list(r, usize::MAX, 1, Reader::varint)?,
            newer: expected(r)?,
            next: basic::cursor(r)?,
        })),
        SNAPSHOT_USAGE => Answer::SnapshotUsage(SnapshotUsage {
            rows: r.varint()?,
            bytes: r.varint()?,
            next: basic::cursor(r)?,
        }),
        CLONE_PROGRESS => Answer::CloneProgress { names: r.varint()?, done: basic::boolean(r)? },
        QUOTAS => Answer::Quotas(list(r, QUOTAS_MAX, 36, quota::info)?),
        FEED => Answer::Feed(Box::new(feed::page(r)?)),
        FAILED => return Ok(Err(Outcome::Failed(basic::error(r)?))),
        NEED_GROUPS => return Ok(Err(Outcome::NeedGroups)),
        CONFLICT => return Ok(Err(Outcome::Conflict(inode(r)?))),
        SYMLINK => {
            let (resolved, dir, target) = (basic::size(r)?, r.varint()?, basic::bytes(r)?);
            return Ok(Err(Outcome::Symlink { resolved, dir, target }));
        }
        MISDIRECTED => return Ok(Err(Outcome::Misdirected { table: r.varint()? })),
        _ => return Err(DecodeError("unknown answer")),
    }))
}

fn entry(r: &mut Reader<'_>) -> Result<DirEntry, DecodeError> {
    let (ino, kind) = (r.varint()?, basic::kind(r)?);
    Ok(DirEntry { name: basic::name(r)?, ino, kind })
}

fn removal_page(r: &mut Reader<'_>) -> Result<RemovalPage, DecodeError> {
    let flags = flags(r, 7)?;
    let (files, bytes) = (r.varint()?, r.varint()?);
    let dirs = list(r, usize::MAX, 3, |r| Ok((basic::name(r)?, r.varint()?)))?;
    let links = list(r, usize::MAX, 2, basic::name)?;
    let last = if flags & 2 != 0 { Some(basic::name(r)?) } else { None };
    let kept = match flags & 4 {
        0 => None,
        _ => {
            let (name, why) = (basic::name(r)?, KeptBecause::from_u8(r.u8()?));
            Some((name, why.ok_or(DecodeError("unknown reason to keep a file"))?))
        }
    };
    Ok(RemovalPage { files, bytes, dirs, links, kept, last, end: flags & 1 != 0 })
}

fn snapshot(r: &mut Reader<'_>) -> Result<SnapshotInfo, DecodeError> {
    Ok(SnapshotInfo {
        id: r.varint()?,
        dir: r.varint()?,
        name: basic::name(r)?,
        created: r.i64()?,
        removing: basic::boolean(r)?,
        cutting: false,
        hidden: false,
        holds: list(r, HOLDS_MAX, 2, basic::name)?,
        clones: Vec::new(),
    })
}

fn changed_dir(r: &mut Reader<'_>) -> Result<ChangedDir, DecodeError> {
    let moment = |r: &mut Reader<'_>| {
        Ok(DirMoment { parent: r.varint()?, path: basic::bytes(r)?, inode: inode(r)? })
    };
    Ok(ChangedDir {
        dir: r.varint()?,
        older: moment(r)?,
        newer: moment(r)?,
        names: list(r, usize::MAX, 3, changed_name)?,
    })
}

fn changed_name(r: &mut Reader<'_>) -> Result<ChangedName, DecodeError> {
    let (name, flags) = (basic::name(r)?, flags(r, 3)?);
    let mut inode = |bit: u8| (flags & bit != 0).then(|| inode(r)).transpose();
    Ok(ChangedName { name, older: inode(1)?, newer: inode(2)? })
}

fn entry_plus(r: &mut Reader<'_>) -> Result<(Name, Box<Inode>), DecodeError> {
    Ok((basic::name(r)?, inode(r)?))
}

fn chunk(r: &mut Reader<'_>) -> Result<(u64, Vec<Extent>), DecodeError> {
    Ok((r.varint()?, basic::extents(r)?))
}
