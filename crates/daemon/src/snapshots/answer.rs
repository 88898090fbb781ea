//! Answers questions about snapshots: `{"verb": "snapshot", "act": …, "creds": …}`, for the verb
//! `kestrel snapshot`. A process that serves the volume or mounts it answers over its control
//! socket; of a volume that no process serves, and of one that is served elsewhere, the verb asks
//! this module in its own process.
//!
//! | act | further fields | answer |
//! | --- | --- | --- |
//! | `create`, `remove` | directory, `name` | the snapshot; `null` |
//! | `rename` | directory, `name`, `to` | `null` |
//! | `hold`, `release` | directory, `name`, `tag` | `null` |
//! | `list` | directory, `ancestors`, or none for the volume | `{"snapshots": […]}` |
//! | `schedule` | directory; `set`: text or `null` | `{"schedule": text or null, …}` |
//! | `page` | `at`, `dir`, `after` | a part of a directory, for `kestrel snapshot diff` |
//! | `ls` | directory, `snapshot`, `below`; `after`, `limit`, `long` | [`super::listing`] |
//! | `ranges` | `before`, `after`: `at`, `ino`, `dir`, `name` | ranges of a file that differ |
//! | `changes` | `dir`, `older`, `newer`, `files`, `after` | a page: [`super::changes`] |
//! | `removal` | `at`, `after` | rows and bytes that removing a snapshot would give back |
//! | `usage` | `at`, `dir` | files, directories and bytes of the tree |
//! | `clone` | directory, `snapshot` or `null`, `to`: a directory, `name` | `{"dir": number}` |
//! | `feed` | directory, `from`, `limit` | a page of a change feed: [`super::feed`] |
//! | `clone-step` | directory | `{"names": count, "done": …}`, for `kestrel clone --eager` |
//!
//! `version-publish` and others of that name are [`super::versions`], `quota-set` and others of
//! that name are [`super::quotas`], `rm-take` and others of that name
//! [`super::removals`].
//!
//! A directory is `dir`, an inode number, or `path`, from the root. Names are strings, or lists of
//! bytes if they are not UTF-8.

use std::sync::Arc;

use kestrel_client::Fs;
use kestrel_client::fs::unexpected;
use kestrel_client::storage::Storage;
use kestrel_engine::Engine;
use kestrel_types::error::FsError;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::name::{InodeRef, PathRef};
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use serde_json::{Value, json};

use super::calls::{SnapshotCalls, clone_told, creds_of, told};
use super::content::{FileAt, changed_ranges};
use super::listing::{self, Detail};
use super::named::{after_of, directory, name_of, shown_name, snapshot_of};
use super::paths::DirPaths;
use super::record;
use super::schedule::SnapshotSchedule;
use super::trees::summary;
use super::{changes, feed, quotas, removals, trash, versions};
use crate::ask::path_value;
use crate::logger::utc;

/// Entries of a directory in one answer.
const PAGE_ENTRIES: usize = 2048;

/// The volume that questions are about.
pub struct SnapshotEndpoint<'a> {
    /// Its file system.
    pub fs: &'a Arc<Fs>,
    /// Its rows, where this process has them: the paths of directories are in them.
    pub engine: Option<&'a dyn Engine>,
    /// Where its data is, and its published versions.
    pub storage: &'a Storage,
}

/// Whether an act changes something.
pub fn changes(question: &Value) -> bool {
    match question["act"].as_str() {
        Some("list" | "page" | "ls" | "changes" | "removal" | "ranges" | "usage") => false,
        Some("feed") => false,
        Some("quota-get" | "quota-list" | "rm-find" | "rm-check" | "rm-left") => false,
        Some("quota-check") => question["repair"] == true,
        Some("schedule") => question.get("set").is_some(),
        _ => true,
    }
}

impl SnapshotEndpoint<'_> {
    /// Answers one question.
    ///
    /// # Errors
    /// In words, with what to do.
    pub fn answer(&self, question: &Value) -> Result<Value, String> {
        self.answer_telling(question, &mut |_| true)
    }

    /// The same; `tell` tells how far a publication has come.
    ///
    /// # Errors
    /// As there.
    pub fn answer_telling(
        &self,
        question: &Value,
        tell: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, String> {
        let calls = SnapshotCalls::new(self.fs, creds_of(&question["creds"])?);
        let act = question["act"].as_str().ok_or("the question does not say what is to be done")?;
        let dir = || directory(&calls, question);
        let name = |field: &str| name_of(question, field);
        match act {
            "create" => {
                let made = calls.create(dir()?, name("name")?).map_err(|why| told(&why))?;
                Ok(describe(&made, Some(made.dir), &DirPaths::new(self.engine, &calls)))
            }
            "remove" => calls.remove(dir()?, name("name")?).map_err(|why| told(&why)).map(done),
            "rename" => {
                let (from, to) = (name("name")?, name("to")?);
                calls.rename(dir()?, from, to).map_err(|why| told(&why)).map(done)
            }
            "hold" | "release" => {
                let (name, tag) = (name("name")?, name("tag")?);
                let held = calls.hold(dir()?, name, tag, act == "hold");
                held.map_err(|why| hold_told(&why, act)).map(done)
            }
            "list" => self.list(&calls, question),
            "schedule" => self.schedule(&calls, dir()?, question),
            "page" => page(&calls, question),
            "ls" => listing::answer(&calls, question),
            "changes" => changes::changes(&calls, question),
            "removal" => changes::removal(&calls, question),
            "ranges" => ranges(&calls, question),
            "usage" => usage(&calls, question),
            "clone" => clone_dir(&calls, question),
            "clone-step" => {
                let step = calls.clone_step(dir()?).map_err(|why| told(&why))?;
                Ok(json!({ "names": step.names, "done": step.done }))
            }
            "feed" => feed::answer(&calls, question, dir()?),
            _ if act.starts_with("version-") => {
                versions::answer(&calls, self.storage, question, tell)
            }
            _ if act.starts_with("rm-") => removals::answer(&calls, question),
            _ if act.starts_with("trash-") => trash::answer(&calls, question),
            _ if act.starts_with("quota-") => {
                let paths = DirPaths::new(self.engine, &calls);
                quotas::answer(&calls, &|dir| paths.path_of(dir), question, dir)
            }
            other => Err(format!(
                "the serving process does not know snapshot {other:?}; it may be older than this \
                 program"
            )),
        }
    }

    fn list(&self, calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
        let is_of_dir = question["dir"].is_u64() || !question["path"].is_null();
        let dir = is_of_dir.then(|| directory(calls, question)).transpose()?;
        let found = calls.list(dir, question["ancestors"] == true).map_err(|why| told(&why))?;
        let paths = DirPaths::new(self.engine, calls);
        let found: Vec<Value> = found.iter().map(|one| describe(one, dir, &paths)).collect();
        Ok(json!({ "dir": dir, "snapshots": found }))
    }

    /// Shows the schedule of a directory, or sets it for its owner.
    fn schedule(
        &self,
        calls: &SnapshotCalls<'_>,
        dir: InodeId,
        question: &Value,
    ) -> Result<Value, String> {
        let root = SnapshotCalls::as_root(self.fs);
        let inode = calls.getattr(None, InodeRef::by_id(dir)).map_err(|why| told(&why))?;
        if inode.kind != Kind::Dir {
            return Err("not a directory; only directories have snapshots".into());
        }
        if let Some(set) = question.get("set") {
            if !calls.owns(&inode) {
                return Err("only the directory's owner and root may set its schedule".into());
            }
            let schedule = set.as_str().map(SnapshotSchedule::parse).transpose()?;
            record::write(&root, dir, schedule.as_ref()).map_err(|why| told(&why))?;
        }
        let text = record::read(&root, dir).map_err(|why| told(&why))?;
        let damaged = text.as_deref().and_then(|text| SnapshotSchedule::parse(text).err());
        Ok(json!({ "dir": dir, "schedule": text, "damaged": damaged }))
    }
}

fn done<T>(_: T) -> Value {
    Value::Null
}

/// [`told`] for tags: what is there or not is the tag, or the snapshot.
fn hold_told(why: &FsError, act: &str) -> String {
    match (why.errno, act) {
        (libc::EEXIST, _) => "a tag of this name holds the snapshot already".into(),
        (libc::ENOENT, _) => format!(
            "{}; `kestrel snapshot info` shows a snapshot's tags, `kestrel snapshot list` the \
             snapshots",
            why.reason
        ),
        _ => told(why),
    }
}

/// A snapshot for programs; the `.snap` of `dir` shows it.
fn describe(one: &SnapshotInfo, dir: Option<InodeId>, paths: &DirPaths<'_>) -> Value {
    let shown = shown_name(one, dir.unwrap_or(one.dir));
    let path = paths.path_of(one.dir);
    json!({
        "id": one.id,
        "dir": one.dir,
        "path": path.map(|path| path_value(&path)),
        "name": path_value(one.name.as_bytes()),
        "shown": path_value(&shown),
        "created": utc(one.created),
        "created_ns": one.created,
        "removing": one.removing,
        "holds": one.holds.iter().map(|tag| path_value(tag.as_bytes())).collect::<Vec<_>>(),
    })
}

fn at(question: &Value) -> Option<SnapshotId> {
    question["at"].as_u64()
}

/// A part of a directory at a moment: itself, if this is its first part, and entries with what they
/// are compared by.
fn page(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let fail = |why: FsError| told(&why);
    let at = at(question);
    let dir = question["dir"].as_u64().ok_or("the question names no directory")?;
    let after = after_of(question)?;
    let own = match after {
        None => Some(calls.getattr(at, InodeRef::by_id(dir)).map_err(fail)?),
        Some(_) => None,
    };
    let page = listing::read(calls, at, dir, (after, PAGE_ENTRIES), Detail::Files).map_err(fail)?;
    let last = page.last.map(|name| path_value(name.as_bytes()));
    let entries = page.entries.iter().map(|(entry, inode)| {
        let name = path_value(entry.name.as_bytes());
        json!([name, entry.ino, entry.kind as u8, inode.as_ref().map(summary)])
    });
    let entries: Vec<Value> = entries.collect();
    let own = own.as_ref().map(summary);
    Ok(json!({ "own": own, "entries": entries, "last": last, "end": page.end }))
}

fn ranges(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let file = |side: &str| -> Result<FileAt, String> {
        let file = &question[side];
        let number = |field: &str| {
            file[field].as_u64().ok_or_else(|| format!("the question has no {field} in {side}"))
        };
        let (ino, dir, name) = (number("ino")?, number("dir")?, name_of(file, "name")?);
        Ok((at(file), InodeRef { ino, seen: Some((dir, name)) }))
    };
    let ranges = changed_ranges(calls, &file("before")?, &file("after")?);
    Ok(json!(ranges.map_err(|why| told(&why))?))
}

/// Makes a clone of a directory, of a snapshot if the question names one as `.snap` does.
fn clone_dir(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let source = directory(calls, question)?;
    let at = match question["snapshot"] {
        Value::Null => None,
        _ => Some(snapshot_of(calls, source, &name_of(question, "snapshot")?)?),
    };
    let parent = directory(calls, &question["to"])?;
    let place = PathRef::new(parent, name_of(question, "name")?);
    let made = calls.clone_dir((source, at), place).map_err(|why| clone_told(&why))?;
    Ok(json!({ "dir": made.ino }))
}

fn usage(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let dir = question["dir"].as_u64().ok_or("the question names no directory")?;
    match calls.ask(at(question), Op::TreeUsage(dir)).map_err(|why| told(&why))? {
        Answer::Usage(usage) => Ok(json!({
            "files": usage.files, "directories": usage.dirs, "bytes": usage.bytes,
        })),
        other => Err(told(&unexpected(&other))),
    }
}
