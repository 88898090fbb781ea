//! Pages of the names of a directory, of now or of a snapshot, from any name on.

use kestrel_client::fs::{into_inode, unexpected};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{Name, PathRef};
use kestrel_types::request::{Answer, DirEntry, Op, READDIR_ENTRIES_MAX};
use kestrel_types::snapshot::SnapshotId;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::named::{after_of, directory, name_of, snapshot_of};
use crate::ask::{path_bytes, path_value};

/// Most entries with attributes in one answer: each directory among them is a request.
const DETAILED_ENTRIES_MAX: usize = 1024;

/// Which entries of a page have attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// None.
    Names,
    /// All but directories.
    Files,
    /// All.
    All,
}

/// A page of a directory.
pub struct ListingPage {
    /// Its entries by name, with their attributes as far as they are wanted.
    pub entries: Vec<(DirEntry, Option<Inode>)>,
    /// Its last name, also if that entry is gone again.
    pub last: Option<Name>,
    /// Nothing follows.
    pub end: bool,
}

/// Reads at most `limit` entries behind the name `after`. Takes read permission for the directory,
/// and search permission for attributes.
///
/// # Errors
/// Those of the requests.
pub fn read(
    calls: &SnapshotCalls<'_>,
    at: Option<SnapshotId>,
    dir: InodeId,
    (after, limit): (Option<Name>, usize),
    detail: Detail,
) -> FsResult<ListingPage> {
    let mut ops = vec![Op::ReadDir { dir, after: after.clone(), limit, check: true }];
    if detail != Detail::Names {
        ops.push(Op::ReadDirPlus { dir, after, limit });
    }
    let mut answers = calls.ask_many(at, ops).into_iter();
    let (entries, end) = match answers.next().unwrap_or(Ok(Answer::Done))? {
        Answer::Entries { entries, end, .. } => (entries, end),
        other => return Err(unexpected(&other)),
    };
    let last = entries.last().map(|entry| entry.name.clone());
    if detail == Detail::Names {
        let entries = entries.into_iter().map(|entry| (entry, None)).collect();
        return Ok(ListingPage { entries, last, end });
    }
    let inodes = match answers.next().unwrap_or(Ok(Answer::Done))? {
        Answer::EntriesPlus { entries, .. } => entries,
        other => return Err(unexpected(&other)),
    };
    let entries = with_attributes(calls, (at, dir), (entries, inodes), detail)?;
    Ok(ListingPage { entries, last, end })
}

/// Joins entries and attributes, asks for those that are missing, and leaves out what is gone.
fn with_attributes(
    calls: &SnapshotCalls<'_>,
    (at, dir): (Option<SnapshotId>, InodeId),
    (entries, inodes): (Vec<DirEntry>, Vec<(Name, Box<Inode>)>),
    detail: Detail,
) -> FsResult<Vec<(DirEntry, Option<Inode>)>> {
    let mut inodes = inodes.into_iter().peekable();
    let mut found: Vec<Option<Inode>> = Vec::with_capacity(entries.len());
    let (mut missing, mut asked) = (Vec::new(), Vec::new());
    let is_wanted = |kind| kind != Kind::Dir || detail == Detail::All;
    for (number, entry) in entries.iter().enumerate() {
        while inodes.next_if(|(name, _)| *name < entry.name).is_some() {}
        let inode = inodes.next_if(|(name, inode)| *name == entry.name && inode.ino == entry.ino);
        if inode.is_none() && is_wanted(entry.kind) {
            missing.push(Op::Lookup(PathRef::new(dir, entry.name.clone())));
            asked.push(number);
        }
        found.push(inode.map(|(_, inode)| *inode));
    }
    for (number, answer) in asked.into_iter().zip(calls.ask_many(at, missing)) {
        match answer.and_then(into_inode) {
            Ok(inode) => found[number] = Some(inode),
            // Gone since it was listed.
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {}
            Err(why) => return Err(why),
        }
    }
    let joined = entries.into_iter().zip(found);
    Ok(joined.filter(|(entry, inode)| !is_wanted(entry.kind) || inode.is_some()).collect())
}

/// Answers `ls`: a page of a directory. The answer names the directory and the snapshot by number,
/// so that the next question can; then a rename of a directory above does not end the listing.
///
/// # Errors
/// In words, with what to do.
pub fn answer(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let (at, dir) = place_of(calls, question)?;
    let after = after_of(question)?;
    let (detail, most) = match question["long"] == true {
        true => (Detail::All, DETAILED_ENTRIES_MAX),
        false => (Detail::Names, READDIR_ENTRIES_MAX),
    };
    let wanted = question["limit"].as_u64().and_then(|limit| usize::try_from(limit).ok());
    let limit = wanted.unwrap_or(most).clamp(1, most);
    let page = read(calls, at, dir, (after, limit), detail).map_err(|why| told(&why))?;
    let entries: Vec<Value> =
        page.entries.iter().map(|(entry, inode)| described(entry, inode.as_ref())).collect();
    let last = page.last.map(|name| path_value(name.as_bytes()));
    Ok(json!({ "dir": dir, "at": at, "entries": entries, "last": last, "end": page.end }))
}

/// The directory that a question is about, and the snapshot that it is of.
fn place_of(
    calls: &SnapshotCalls<'_>,
    question: &Value,
) -> Result<(Option<SnapshotId>, InodeId), String> {
    let dir = directory(calls, question)?;
    if let Some(at) = question["at"].as_u64() {
        return Ok((Some(at), dir));
    }
    if question["snapshot"].is_null() {
        return Ok((None, dir));
    }
    let at = Some(snapshot_of(calls, dir, &name_of(question, "snapshot")?)?);
    let below = path_bytes(&question["below"]).unwrap_or_default();
    if below.split(|byte| *byte == b'/').all(<[u8]>::is_empty) {
        return Ok((at, dir));
    }
    let place = PathRef::from_path(dir, &below).map_err(|why| why.reason.to_string())?;
    let inode = calls.ask(at, Op::Lookup(place)).and_then(into_inode);
    match inode.map_err(|why| told(&why))? {
        Inode { kind: Kind::Dir, ino, .. } => Ok((at, ino)),
        _ => Err("not a directory; `kestrel info` tells of a file".into()),
    }
}

/// An entry for programs.
fn described(entry: &DirEntry, inode: Option<&Inode>) -> Value {
    let mut one = json!({
        "name": path_value(entry.name.as_bytes()),
        "inode": entry.ino,
        "type": entry.kind.word(),
    });
    if let Some(inode) = inode {
        one["mode"] = inode.mode.into();
        one["links"] = inode.nlink.into();
        one["uid"] = inode.uid.into();
        one["gid"] = inode.gid.into();
        one["bytes"] = inode.size.into();
        one["mtime_ns"] = inode.mtime.into();
    }
    one
}

fn told(why: &FsError) -> String {
    match why.errno {
        libc::ENOENT | libc::ESTALE => {
            "there is no such directory, or it has been removed; list the directory above it".into()
        }
        libc::EACCES => format!("{}; listing takes read permission for the directory", why.reason),
        _ => why.reason.to_string(),
    }
}
