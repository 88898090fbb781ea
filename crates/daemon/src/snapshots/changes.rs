//! What nodes tell of changes between two moments, and of what a snapshot holds, as JSON for
//! [`super::trees`] and `kestrel snapshot info`.
//!
//! A page of changes is `{"dirs": [[dir, before, after, names]], "files": […], "newer": …, "next":
//! …}`. `newer` is the number of the snapshot that the next questions are about, or null for now.
//! `before` and `after` are `[path, directory above, summary]`. `names` is a list of
//! `[name, old, new]`, and `old` and `new` are null or `[inode, type, summary]`. `next` is null at
//! the end, or what the next question takes for `after`.

use kestrel_client::fs::unexpected;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Inode;
use kestrel_types::request::{Answer, Op};
use kestrel_types::snapshot_changes::{ChangedDir, ChangedName, DirMoment, HistoryCursor};
use serde_json::{Value, json};

use super::calls::{SnapshotCalls, told};
use super::trees::summary;
use crate::ask::path_value;

/// Names in one page.
const PAGE_NAMES: usize = 1024;

/// Where a question goes on.
fn cursor(question: &Value) -> Result<Option<HistoryCursor>, String> {
    match question["after"].as_str() {
        None => Ok(None),
        Some(text) => {
            let bytes = from_hex(text).ok_or("the question goes on at no place")?;
            Ok(Some(bytes.into()))
        }
    }
}

fn next(cursor: Option<&HistoryCursor>) -> Value {
    cursor.map_or(Value::Null, |cursor| to_hex(cursor).into())
}

/// Answers `changes`: of `dir` between the snapshots `older` and `newer`, or now; of `files` their
/// names.
///
/// # Errors
/// In words.
pub fn changes(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let number = |field: &str| {
        question[field].as_u64().ok_or_else(|| format!("the question has no {field}"))
    };
    if question["newer"].is_null() && question["after"].is_null() {
        calls.flush_all();
    }
    let files = question["files"].as_array().into_iter().flatten();
    let files: Option<Vec<InodeId>> = files.map(Value::as_u64).collect();
    let op = Op::SnapshotChanges {
        dir: number("dir")?,
        older: number("older")?,
        newer: question["newer"].as_u64(),
        files: files.ok_or("the question names files by something else than numbers")?,
        limit: PAGE_NAMES,
        after: cursor(question)?,
    };
    match calls.ask(None, op) {
        Ok(Answer::SnapshotChanges(changes)) => Ok(json!({
            "dirs": changes.dirs.iter().map(dir_value).collect::<Vec<_>>(),
            "files": changes.files,
            "newer": changes.newer,
            "next": next(changes.next.as_ref()),
        })),
        Ok(other) => Err(told(&unexpected(&other))),
        Err(why) => Err(told(&why)),
    }
}

fn dir_value(changed: &ChangedDir) -> Value {
    let ChangedDir { dir, older, newer, names } = changed;
    let moment = |DirMoment { parent, path, inode }: &DirMoment| {
        json!([path_value(path), parent, summary(inode)])
    };
    let names: Vec<Value> = names.iter().map(name_value).collect();
    json!([dir, moment(older), moment(newer), names])
}

fn name_value(ChangedName { name, older, newer }: &ChangedName) -> Value {
    let inode = |inode: &Option<Box<Inode>>| match inode {
        Some(inode) => json!([inode.ino, inode.kind as u8, summary(inode)]),
        None => Value::Null,
    };
    json!([path_value(name.as_bytes()), inode(older), inode(newer)])
}

/// Answers `removal`: rows and bytes that removing the snapshot `at` would give back, in parts.
///
/// # Errors
/// In words.
pub fn removal(calls: &SnapshotCalls<'_>, question: &Value) -> Result<Value, String> {
    let snapshot = question["at"].as_u64().ok_or("the question names no snapshot")?;
    match calls.ask(None, Op::SnapshotUsage { snapshot, after: cursor(question)? }) {
        Ok(Answer::SnapshotUsage(usage)) => Ok(json!({
            "rows": usage.rows, "bytes": usage.bytes, "next": next(usage.next.as_ref()),
        })),
        Ok(other) => Err(told(&unexpected(&other))),
        Err(why) => Err(told(&why)),
    }
}
