//! Answers to questions of `kestrel rm -r`. That command walks the tree to be removed: first to see
//! whether the caller may remove all of it, then, where the name cannot go at once, to remove it.
//!
//! | act | further fields | answer |
//! | --- | --- | --- |
//! | `rm-find` | directory, `name` | `{"dir", "ino", "type"}`, or `{"refused"}` |
//! | `rm-check` | `dirs`: a list of `{"dir", "after", "sticky"}` | a list, see [`check`] |
//! | `rm-file` | directory, `name` | `null`: it is removed |
//! | `rm-take` | directory, `name`, `tree` | `{"background"}`, `{"kept": TIME}`, or `{"why"}` |
//! | `rm-step` | directory, `name`, `tree` | `{"files", "dirs", "done", "failed", "why"}` |
//! | `rm-left` | `tree` | `{"files", "dirs"}`, or `null` once it is gone |

use std::time::{Duration, Instant};

use kestrel_client::fs::tree_removal::{TakenTree, TreeRemoval};
use kestrel_client::fs::{into_inode, unanswered, unexpected};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, InodeFlags, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::perm::{EXEC, READ, STICKY, WRITE};
use kestrel_types::removal::{KeptBecause, RemovalPage};
use kestrel_types::request::{Answer, Op, READDIR_ENTRIES_MAX};
use kestrel_types::trash::TRASH;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::named::{after_of, directory, name_of};
use crate::ask::path_value;
use crate::logger::utc_of_seconds;

/// Most directories in one question.
pub const DIRS_AT_ONCE: usize = 32;

const HAS_FLAGS: &str = "it is immutable or append only (chattr -i, -a)";

const IS_STICKY: &str = "its directory is sticky, and it belongs to somebody else";

/// How long one question about a removal in place is worked on.
const STEP_TIME: Duration = Duration::from_secs(1);

/// Names that are removed at once in place.
const STEP_NAMES: usize = 1024;

/// Answers a question.
///
/// # Errors
/// In words.
pub fn answer(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let fail = |why: FsError| why.reason.to_string();
    let tree = || question["tree"].as_u64().ok_or("the question names no tree");
    let place = || -> Result<PathRef, String> {
        Ok(PathRef::new(directory(calls, question)?, name_of(question, "name")?))
    };
    match question["act"].as_str() {
        Some("rm-find") => find(calls, &place()?),
        Some("rm-check") => check(calls, question),
        Some("rm-file") => calls.ask(None, Op::Unlink(place()?)).map(|_| Value::Null).map_err(fail),
        Some("rm-take") => {
            let place = place()?;
            may_leave(calls, &place).map_err(fail)??;
            let fs = calls.fs();
            let taken = match fs.keep_tree(&place, tree()?).map_err(fail)? {
                Some(taken) => taken,
                None => fs.take_tree(&place, tree()?).map_err(fail)?,
            };
            Ok(match taken {
                TakenTree::Background => json!({ "background": true }),
                TakenTree::Kept { expiry } => json!({ "kept": utc_of_seconds(expiry) }),
                TakenTree::InPlace(why) => json!({ "background": false, "why": why.reason }),
            })
        }
        Some("rm-step") => Ok(step(calls, place()?, tree()?)),
        Some("rm-left") => {
            let left = calls.fs().left_of_tree(tree()?).map_err(fail)?;
            let told = |(files, dirs)| json!({ "files": files, "dirs": dirs });
            Ok(left.map_or(Value::Null, told))
        }
        _ => Err("the serving process does not know this part of a removal".into()),
    }
}

/// What is at a place.
fn find(calls: &SnapshotCalls<'_>, place: &PathRef) -> Result<Value, String> {
    if place.base == ROOT && place.name.as_bytes() == TRASH {
        return Ok(
            json!({ "refused": "it holds what is being removed, and goes when that is gone" }),
        );
    }
    match may_leave(calls, place) {
        Err(FsError { errno: libc::ENOENT, .. }) => Ok(json!({ "missing": true })),
        Err(why) => Err(why.reason.to_string()),
        Ok(Err(why)) => Ok(json!({ "refused": why })),
        Ok(Ok(found)) => Ok(json!({
            "dir": place.base, "ino": found.ino, "type": found.kind.word(), "bytes": found.size,
        })),
    }
}

/// What is at a place, or why the caller may not take it out of its directory.
pub(super) fn may_leave(
    calls: &SnapshotCalls<'_>,
    place: &PathRef,
) -> FsResult<Result<Inode, String>> {
    let dir = InodeRef::by_id(place.base);
    let ops =
        vec![Op::Lookup(place.clone()), Op::GetAttr(dir.clone()), Op::Access(dir, WRITE | EXEC)];
    let mut answers = calls.ask_many(None, ops).into_iter();
    let mut next = || answers.next().unwrap_or_else(|| Err(unanswered()));
    let (found, above, access) =
        (next().and_then(into_inode)?, next().and_then(into_inode)?, next());
    if let Err(why) = access {
        return Ok(Err(format!("the directory it is in: {}", why.reason)));
    }
    let sticky = is_guarded(calls, &above);
    Ok(stays(calls, &found, sticky).map_or(Ok(found), |why| Err(why.into())))
}

/// Whether the caller may take out of a directory only what the caller owns.
fn is_guarded(calls: &SnapshotCalls<'_>, dir: &Inode) -> bool {
    dir.mode & STICKY != 0 && !calls.owns(dir)
}

/// Why something cannot be taken out of its directory, whatever permissions that has.
fn stays(calls: &SnapshotCalls<'_>, inode: &Inode, is_guarded: bool) -> Option<&'static str> {
    if inode.flags.has(InodeFlags::IMMUTABLE) || inode.flags.has(InodeFlags::APPEND) {
        return Some(HAS_FLAGS);
    }
    if is_guarded && !calls.owns(inode) {
        return Some(IS_STICKY);
    }
    None
}

/// A directory as a question names it.
struct CheckedDir {
    ino: InodeId,
    after: Option<Name>,
    is_guarded: bool,
}

/// Answers `rm-check`: a page of each directory, with `files` and `bytes` of it, `subdirs` as
/// `[name, number]`, the name `last` and whether it is the `end`; `sticky` for the question about
/// the directories in it. `refused` says why something stays, `name` which entry if it is one.
/// A directory that is gone is empty.
fn check(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let mut dirs = Vec::new();
    for one in question["dirs"].as_array().into_iter().flatten().take(DIRS_AT_ONCE) {
        let ino = one["dir"].as_u64().ok_or("the question names no directory")?;
        dirs.push(CheckedDir { ino, after: after_of(one)?, is_guarded: one["sticky"] == true });
    }
    let ops = dirs.iter().flat_map(|CheckedDir { ino, after, .. }| {
        let (dir, after, limit) = (*ino, after.clone(), READDIR_ENTRIES_MAX);
        [
            Op::GetAttr(InodeRef::by_id(dir)),
            // Policies may refuse what permissions allow.
            Op::Access(InodeRef::by_id(dir), READ | WRITE | EXEC),
            Op::RemovalCheck { dir, after, limit },
        ]
    });
    let mut answers = calls.ask_many(None, ops.collect()).into_iter();
    let mut pages = Vec::with_capacity(dirs.len());
    for dir in &dirs {
        let mut next = || answers.next().unwrap_or_else(|| Err(unanswered()));
        let page = checked_page(calls, dir, [next(), next(), next()]);
        pages.push(page.map_err(|why| why.reason.to_string())?);
    }
    Ok(Value::Array(pages))
}

fn checked_page(
    calls: &SnapshotCalls<'_>,
    dir: &CheckedDir,
    [own, access, page]: [FsResult<Answer>; 3],
) -> FsResult<Value> {
    let nothing = json!({ "files": 0, "bytes": 0, "subdirs": [], "end": true });
    let own = match own.and_then(into_inode) {
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => return Ok(nothing),
        own => own?,
    };
    if let Some(why) = stays(calls, &own, dir.is_guarded) {
        return Ok(json!({ "refused": why }));
    }
    let page = match page {
        Ok(Answer::RemovalPage(page)) => *page,
        Ok(other) => return Err(unexpected(&other)),
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => return Ok(nothing),
        Err(why) if why.errno == libc::EACCES && is_empty(calls, dir.ino)? => return Ok(nothing),
        Err(why) => return Ok(json!({ "refused": why.reason })),
    };
    let RemovalPage { mut files, mut bytes, dirs, links, kept, last, end } = page;
    if last.is_none() {
        return Ok(nothing);
    }
    if let Err(why) = access {
        return Ok(json!({ "refused": why.reason }));
    }
    if let Some((name, why)) = kept {
        let why = match why {
            KeptBecause::Flags => HAS_FLAGS,
            KeptBecause::Sticky => IS_STICKY,
        };
        return Ok(json!({ "refused": why, "name": path_value(name.as_bytes()) }));
    }
    let sticky = is_guarded(calls, &own);
    let lookups = links.iter().map(|name| Op::Lookup(PathRef::new(dir.ino, name.clone())));
    for (name, found) in links.iter().zip(calls.ask_many(None, lookups.collect())) {
        let inode = match found.and_then(into_inode) {
            // Gone since it was listed.
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => continue,
            found => found?,
        };
        if let Some(why) = stays(calls, &inode, sticky) {
            return Ok(json!({ "refused": why, "name": path_value(name.as_bytes()) }));
        }
        files += 1;
        bytes = bytes.saturating_add(if inode.kind == Kind::File { inode.size } else { 0 });
    }
    let subdirs: Vec<Value> =
        dirs.iter().map(|(name, ino)| json!([path_value(name.as_bytes()), ino])).collect();
    Ok(json!({
        "files": files, "bytes": bytes, "subdirs": subdirs,
        "last": last.map(|last| path_value(last.as_bytes())), "end": end, "sticky": sticky,
    }))
}

/// Whether a directory has no names, for one that the caller may not list.
fn is_empty(calls: &SnapshotCalls<'_>, dir: InodeId) -> FsResult<bool> {
    let op = Op::ReadDir { dir, after: None, limit: 1, check: false };
    match calls.ask(None, op)? {
        Answer::Entries { entries, .. } => Ok(entries.is_empty()),
        other => Err(unexpected(&other)),
    }
}

/// Removes a part of a tree where it is, as the caller.
fn step(calls: &SnapshotCalls<'_>, place: PathRef, tree: InodeId) -> Value {
    let begun = Instant::now();
    let mut removal = TreeRemoval::new(calls.creds().clone(), place, tree);
    while !removal.is_done() && removal.failed().is_none() && begun.elapsed() < STEP_TIME {
        removal.step(calls.fs(), STEP_NAMES);
    }
    let removed = removal.removed();
    json!({
        "files": removed.files,
        "dirs": removed.dirs,
        "done": removal.is_done(),
        "failed": removal.failed().map(|failed| path_value(&failed.path)),
        "why": removal.failed().map(|failed| failed.error.reason.clone()),
    })
}
