//! Answers to questions of `kestrel trash`: acts of [`super::answer`]. Users other than root see
//! and handle what belongs to them.
//!
//! | act | further fields | answer |
//! | --- | --- | --- |
//! | `trash-list` | `after` | a page: `entries`, `last`, `end` |
//! | `trash-paths` | `dirs`: numbers | a list of places, see [`Trail`] |
//! | `trash-restore` | `items` with `item`, `to`, `name`; `replace` | see [`restore`] |
//! | `trash-remove` | `items` | how many of them are removed |

use std::collections::HashMap;

use kestrel_client::fs::{into_inode, unanswered};
use kestrel_types::error::{FsError, FsResult};
use kestrel_types::ids::{InodeId, ROOT};
use kestrel_types::inode::{Inode, Kind};
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::perm::{EXEC, WRITE};
use kestrel_types::request::{Op, RenameFlags};
use kestrel_types::trash::KeptName;
use serde_json::{Value, json};

use super::calls::SnapshotCalls;
use super::named::{after_of, name_of};
use super::paths::{DEPTH_MAX, name_in, parent_of};
use super::removals::may_leave;
use crate::ask::{path_bytes, path_value};
use crate::logger::{utc, utc_of_seconds};

/// Entries of one page.
const PAGE_ENTRIES: usize = 1024;

/// Answers a question.
///
/// # Errors
/// In words.
pub fn answer(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let fail = in_words;
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
        "type": inode.kind.word(),
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

/// Finds where directories are.
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

    /// Where a directory is; `None` if it is nowhere, or that would take too long to find.
    fn of(&mut self, dir: InodeId) -> FsResult<Option<Trail>> {
        let root = SnapshotCalls::as_root(self.calls.fs());
        let (mut at, mut passed) = (dir, Vec::new());
        let mut trail = loop {
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            if passed.len() > DEPTH_MAX {
                break None;
            }
            let Some(above) = parent_of(&root, at)? else { break None };
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
                Some(_) => name_in(&root, above, at)?,
                None => None,
            };
            trail = trail.zip(name).map(|(trail, name)| trail.below(name.as_bytes()));
            self.known.insert(at, trail.clone());
        }
        Ok(trail)
    }
}

/// Something in the trash that the caller may handle.
struct Item {
    name: KeptName,
    place: PathRef,
    inode: Inode,
}

/// How something ends that a question names; in words where it is not done.
type Ended<T> = Result<T, String>;

const NOT_KEPT: &str = "it is not in the trash any more";

fn in_words(why: FsError) -> String {
    why.reason.to_string()
}

/// What a question calls items, one by one.
fn items_of(calls: &SnapshotCalls<'_>, names: &[Vec<u8>]) -> FsResult<Vec<Ended<Item>>> {
    let Some(dir) = calls.fs().kept_dir()? else {
        return Ok(names.iter().map(|_| Err(NOT_KEPT.into())).collect());
    };
    let places: Vec<Option<(KeptName, PathRef)>> = names
        .iter()
        .map(|name| Some((KeptName::decode(name)?, PathRef::new(dir, Name::new(name).ok()?))))
        .collect();
    let ops = places.iter().flatten().map(|(_, place)| Op::Lookup(place.clone())).collect();
    let mut found = SnapshotCalls::as_root(calls.fs()).ask_many(None, ops).into_iter();
    let items = places.into_iter().map(|place| {
        let (name, place) = place.ok_or("the question names nothing that is in the trash")?;
        match found.next().unwrap_or_else(|| Err(unanswered())).and_then(into_inode) {
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => Err(NOT_KEPT.into()),
            Err(why) => Err(in_words(why)),
            Ok(inode) if !calls.owns(&inode) => Err("it belongs to another user".into()),
            Ok(inode) => Ok(Item { name, place, inode }),
        }
    });
    Ok(items.collect())
}

/// A directory that something is restored to.
#[derive(Clone)]
enum Destination {
    Open,
    Gone,
    Closed(String),
}

fn destination(calls: &SnapshotCalls<'_>, dir: InodeId) -> FsResult<Destination> {
    Ok(match calls.ask(None, Op::Access(InodeRef::by_id(dir), WRITE | EXEC)) {
        Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => Destination::Gone,
        Err(why) => {
            Destination::Closed(format!("the directory that it goes to: {}", in_words(why)))
        }
        Ok(_) if calls.fs().is_in_trash(dir)? => Destination::Gone,
        Ok(_) => Destination::Open,
    })
}

/// The name that an item gets. What is left of a name that was cut only where the caller says so,
/// by naming a directory for it.
fn name_for(item: &Item, wanted: &Value) -> Ended<Name> {
    if !wanted["name"].is_null() {
        return name_of(wanted, "name");
    }
    if item.name.is_cut && wanted["to"].is_null() {
        return Err("the trash has only the beginning of its name; --to restores that".into());
    }
    Name::new(&item.name.name).map_err(in_words)
}

/// Answers `trash-restore`: items get names again, by default those they had in the directories
/// that they were in. None of them is in another one. `gone`: there is no such directory (any
/// more). `taken`: something else has the name.
fn restore(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let wanted = question["items"].as_array().map_or(&[][..], Vec::as_slice);
    let wanted = &wanted[..wanted.len().min(PAGE_ENTRIES)];
    let names = wanted.iter().map(|one| path_bytes(&one["item"]).unwrap_or_default());
    let items = items_of(calls, &names.collect::<Vec<_>>()).map_err(in_words)?;
    let is_replacing = question["replace"] == true;
    let mut destinations: HashMap<InodeId, Destination> = HashMap::new();
    let (mut ended, mut ops) = (Vec::with_capacity(wanted.len()), Vec::new());
    for (item, wanted) in items.into_iter().zip(wanted) {
        let place = item.and_then(|item| {
            let dir = wanted["to"].as_u64().unwrap_or(item.name.parent);
            let found = match destinations.get(&dir) {
                Some(found) => found.clone(),
                None => {
                    let found = destination(calls, dir).map_err(in_words)?;
                    destinations.entry(dir).or_insert(found).clone()
                }
            };
            match found {
                Destination::Gone => return Ok(None),
                Destination::Closed(why) => return Err(why),
                Destination::Open => {}
            }
            let place = PathRef::new(dir, name_for(&item, wanted)?);
            if is_replacing {
                match may_leave(calls, &place) {
                    Ok(Ok(_)) | Err(FsError { errno: libc::ENOENT, .. }) => {}
                    Ok(Err(why)) => return Err(format!("what has the name now stays: {why}")),
                    Err(why) => return Err(in_words(why)),
                }
            }
            Ok(Some((item, place)))
        });
        let flags = RenameFlags { no_replace: !is_replacing, ..RenameFlags::default() };
        ended.push(match place {
            Ok(Some((item, place))) => {
                // Only the superuser can reach into the trash; what the caller may do was looked
                // at.
                ops.push(Op::Rename(item.place, place, flags));
                None
            }
            Ok(None) => Some(json!({ "gone": true })),
            Err(why) => Some(json!({ "why": why })),
        });
    }
    let mut renamed = SnapshotCalls::as_root(calls.fs()).ask_many(None, ops).into_iter();
    let ended = ended.into_iter().map(|ended| {
        ended.unwrap_or_else(|| match renamed.next().unwrap_or_else(|| Err(unanswered())) {
            Ok(_) => json!({ "restored": true }),
            Err(FsError { errno: libc::EEXIST, .. }) => json!({ "taken": true }),
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => json!({ "gone": true }),
            Err(why) => json!({ "why": in_words(why) }),
        })
    });
    Ok(ended.collect())
}

/// Answers `trash-remove`.
fn remove(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let names = question["items"].as_array().into_iter().flatten().take(PAGE_ENTRIES);
    let names: Vec<Vec<u8>> = names.map(|name| path_bytes(name).unwrap_or_default()).collect();
    let mut removed = 0_u64;
    for item in items_of(calls, &names).map_err(in_words)? {
        let item = match item {
            Ok(item) => item,
            // Somebody else was faster.
            Err(why) if why == NOT_KEPT => continue,
            Err(why) => return Err(why),
        };
        match calls.fs().remove_kept(&item.place, &item.inode) {
            Ok(()) => removed += 1,
            Err(FsError { errno: libc::ENOENT | libc::ESTALE, .. }) => {}
            Err(why) => return Err(in_words(why)),
        }
    }
    Ok(json!(removed))
}
