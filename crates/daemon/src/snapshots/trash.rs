//! Answers to questions of `kestrel trash`: acts of [`super::answer`]. Users other than root see
//! and handle what belongs to them.
//!
//! | act | further fields | answer |
//! | --- | --- | --- |
//! | `trash-list` | `after` | a page: `entries`, `last`, `end` |
//! | `trash-paths` | `dirs`: numbers | a list of places, see [`Trail`] |
//! | `trash-restore` | `item`, `dir`, `name`, `replace` | `restored`, `gone` or `taken` |
//! | `trash-remove` | `items` | how many of them are removed |

use std::collections::HashMap;

use kestrel_client::fs::{into_inode, unexpected};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::perm::{EXEC, WRITE};
use kestrel_types::request::{Answer, Op, RenameFlags};
use kestrel_types::trash::KeptName;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::listing::word_of;
use super::named::{after_of, name_of};
use super::removals::may_leave;
use crate::ask::{path_bytes, path_value};
use crate::logger::{utc, utc_of_seconds};

/// Entries of one page.
const PAGE_ENTRIES: usize = 1024;

/// Most names of a directory that are read to find one of them.
const NAMES_READ_MAX: usize = 256 * 1024;

/// Names that are read at once.
const NAMES_AT_ONCE: usize = 4096;

/// Directories above each other where more would be damage.
const DEPTH_MAX: usize = 4096;

/// Answers a question.
///
/// # Errors
/// In words.
pub fn answer(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let fail = |why: FsError| why.reason.to_string();
    match question["act"].as_str() {
        Some("trash-list") => list(calls, after_of(question)?).map_err(fail),
        Some("trash-paths") => {
            let mut trails = Trails::new(calls).map_err(fail)?;
            let dirs = question["dirs"].as_array().into_iter().flatten();
            let trails = dirs.map(|dir| match dir.as_u64() {
                Some(dir) => trails.of(dir).map(|trail| trail.map_or(Value::Null, Trail::value)),
                None => Ok(Value::Null),
            });
            trails.collect::<FsResult<_>>().map(Value::Array).map_err(fail)
        }
        Some("trash-restore") => restore(calls, question),
        Some("trash-remove") => remove(calls, question),
        _ => Err("the serving process does not know this of the trash; it may be older than this \
                  program"
            .into()),
    }
}

/// A page of what is kept and belongs to the caller.
fn list(calls: &SnapshotCalls<'_>, after: Option<Name>) -> FsResult<Value> {
    let page = calls.fs().kept_page(after, PAGE_ENTRIES)?;
    let own = page.items.iter().filter(|(_, inode)| calls.owns(inode));
    let entries: Vec<Value> = own.map(|(name, inode)| described(name, inode)).collect();
    let last = page.last.map(|name| path_value(name.as_bytes()));
    Ok(json!({ "entries": entries, "last": last, "end": page.end }))
}

fn described(name: &KeptName, inode: &Inode) -> Value {
    json!({
        "item": path_value(&name.encode()),
        "name": path_value(&name.name),
        "cut": name.is_cut,
        "parent": name.parent,
        "inode": inode.ino,
        "type": word_of(inode.kind),
        "uid": inode.uid,
        "bytes": if inode.kind == Kind::File { inode.size } else { 0 },
        "removed_ns": inode.ctime,
        "removed": utc(inode.ctime),
        "expires": utc_of_seconds(name.expiry),
    })
}

/// Where a directory is: names below the root, or below something that is in the trash.
#[derive(Debug, Clone)]
struct Trail {
    /// The inode of what is in the trash.
    item: Option<InodeId>,
    /// Names, each after a slash.
    path: Vec<u8>,
}

impl Trail {
    fn value(self) -> Value {
        json!({ "item": self.item, "path": path_value(&self.path) })
    }

    fn below(&self, name: &[u8]) -> Self {
        Self { item: self.item, path: [&*self.path, b"/", name].concat() }
    }
}

/// Finds where directories are. No row that a client may read leads from the number of a directory
/// to its name, so the directory above is read.
struct Trails<'a, 'c> {
    calls: &'a SnapshotCalls<'c>,
    kept: Option<InodeId>,
    known: HashMap<InodeId, Option<Trail>>,
}

impl<'a, 'c> Trails<'a, 'c> {
    fn new(calls: &'a SnapshotCalls<'c>) -> FsResult<Self> {
        let root = Trail { item: None, path: Vec::new() };
        let known = HashMap::from([(ROOT, Some(root))]);
        Ok(Self { calls, kept: calls.fs().kept_dir()?, known })
    }

    fn ask(&self, op: Op) -> FsResult<Answer> {
        SnapshotCalls::as_root(self.calls.fs()).ask(None, op)
    }

    /// Where a directory is; `None` if it is nowhere, or that would take too long to find.
    fn of(&mut self, dir: InodeId) -> FsResult<Option<Trail>> {
        let (mut at, mut passed) = (dir, Vec::new());
        let mut trail = loop {
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            if passed.len() > DEPTH_MAX {
                break None;
            }
            let above = match self.ask(Op::Parent(at)).and_then(into_inode) {
                Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => break None,
                above => above?.ino,
            };
            if Some(above) == self.kept {
                let here = Trail { item: Some(at), path: Vec::new() };
                self.known.insert(at, Some(here.clone()));
                break Some(here);
            }
            passed.push((at, above));
            at = above;
        };
        while let Some((at, above)) = passed.pop() {
            let name = match trail {
                Some(_) => self.name_in(above, at)?,
                None => None,
            };
            trail = trail.zip(name).map(|(trail, name)| trail.below(name.as_bytes()));
            self.known.insert(at, trail.clone());
        }
        Ok(trail)
    }

    /// The name of a directory in the one above.
    fn name_in(&self, above: InodeId, dir: InodeId) -> FsResult<Option<Name>> {
        let (mut after, mut read) = (None, 0);
        while read < NAMES_READ_MAX {
            let op = Op::ReadDir { dir: above, after, limit: NAMES_AT_ONCE, check: false };
            let (entries, end) = match self.ask(op) {
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
                return Ok(None);
            }
        }
        Ok(None)
    }
}

/// Something in the trash that the caller may handle.
struct Item {
    name: KeptName,
    place: PathRef,
    inode: Inode,
}

/// What a question calls an item; `None` if it is not in the trash (any more).
fn item_of(calls: &SnapshotCalls<'_>, name: &[u8]) -> Result<Option<Item>, String> {
    let fail = |why: FsError| why.reason.to_string();
    let kept = KeptName::decode(name).ok_or("the question names nothing that is in the trash")?;
    let Some(dir) = calls.fs().kept_dir().map_err(fail)? else { return Ok(None) };
    let place = PathRef::new(dir, Name::new(name).map_err(fail)?);
    let looked_up = Op::Lookup(place.clone());
    let found = SnapshotCalls::as_root(calls.fs()).ask(None, looked_up).and_then(into_inode);
    match found {
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => Ok(None),
        Err(why) => Err(fail(why)),
        Ok(inode) if !calls.owns(&inode) => Err("it belongs to another user".into()),
        Ok(inode) => Ok(Some(Item { name: kept, place, inode })),
    }
}

/// Answers `trash-restore`: an item gets a name again, by default the one it had in the directory
/// that it was in. `gone`: there is no such directory (any more).
fn restore(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let fail = |why: FsError| why.reason.to_string();
    let name = path_bytes(&question["item"]).ok_or("the question names no item")?;
    let item = item_of(calls, &name)?.ok_or("it is not in the trash any more")?;
    let name = match (question["name"].is_null(), item.name.is_cut) {
        (false, _) => name_of(question, "name")?,
        (true, false) => Name::new(&item.name.name).map_err(fail)?,
        (true, true) => {
            return Err(
                "the trash has only the beginning of its name: give it one with --to".into()
            );
        }
    };
    let dir = question["to"].as_u64().unwrap_or(item.name.parent);
    match calls.ask(None, Op::Access(InodeRef::by_id(dir), WRITE | EXEC)) {
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {
            return Ok(json!({ "gone": true }));
        }
        Err(why) => return Err(format!("the directory that it goes to: {}", why.reason)),
        Ok(_) if calls.fs().is_in_trash(dir).map_err(fail)? => return Ok(json!({ "gone": true })),
        Ok(_) => {}
    }
    let place = PathRef::new(dir, name);
    let is_replacing = question["replace"] == true;
    if is_replacing {
        match may_leave(calls, &place) {
            Ok(Ok(_)) | Err(FsError { errno: libc::ENOENT, .. }) => {}
            Ok(Err(why)) => return Err(format!("what has the name now stays: {why}")),
            Err(why) => return Err(fail(why)),
        }
    }
    let flags = RenameFlags { no_replace: !is_replacing, ..RenameFlags::default() };
    // Only the superuser can reach into the trash; what the caller may do was looked at.
    let rename = Op::Rename(item.place, place, flags);
    match SnapshotCalls::as_root(calls.fs()).ask(None, rename) {
        Ok(_) => Ok(json!({ "restored": item.inode.ino })),
        Err(FsError { errno: libc::EEXIST, .. }) => Ok(json!({ "taken": true })),
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => Ok(json!({ "gone": true })),
        Err(why) => Err(fail(why)),
    }
}

/// Answers `trash-remove`.
fn remove(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let mut removed = 0_u64;
    for name in question["items"].as_array().into_iter().flatten().take(PAGE_ENTRIES) {
        let name = path_bytes(name).ok_or("the question names no item")?;
        let Some(item) = item_of(calls, &name)? else { continue };
        match calls.fs().remove_kept(&item.place, &item.inode) {
            Ok(()) => removed += 1,
            // Somebody else was faster.
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {}
            Err(why) => return Err(why.reason.to_string()),
        }
    }
    Ok(json!(removed))
}
