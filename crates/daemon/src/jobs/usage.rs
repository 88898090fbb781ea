//! `kestrel du`: `{"verb": "du", "dir" or "path": …, "depth": n or "top": n, "by": …}`, for growth
//! with `since`, the number of a snapshot.
//!
//! The answer has the `total` of the tree and the directories that were asked for, `dirs`, each
//! with its `path` below the top, the figures of its tree, and those of itself (`…_here`).
//! `unfinished_clones` of the volume may have directories that the figures lack.
//!
//! `{"verb": "du", "dir" or "path": …, "owners": "user" or "group"}` asks for the sums of the files
//! below by owner: `owners`, the largest first.

use kestrel_admin::info::{InfoError, find_dir, find_path};
use kestrel_admin::usage::owners::{OwnerKind, by_owner};
use kestrel_admin::usage::then::read_parts_then;
use kestrel_admin::usage::{
    DirPart, DirUsage, RankBy, Selection, TreeUsage, read_parts, unfinished_clones,
};
use kestrel_engine::Engine;
use kestrel_types::ids::InodeId;
use kestrel_types::inode::Kind;
use kestrel_types::snapshot::SnapshotId;
use serde_json::{Value, json};

use crate::ask::{path_bytes, path_value};
use crate::nodes::engine::NodesEngine;
use crate::nodes::{ClusterNodes, tree_parts};

/// Most directories in one answer: about 200 bytes each.
pub const SHOWN_MAX: usize = 1_000_000;

/// Answers a question about a volume of which `engine` has all rows.
///
/// # Errors
/// In words.
pub fn answer(engine: &dyn Engine, question: &Value) -> Result<Value, String> {
    if let Some(kind) = owner_kind(question)? {
        return owners(engine, question, kind);
    }
    found(engine, question, &|dirs, since| match since {
        None => read_parts(engine, dirs),
        Some(at) => read_parts_then(engine, dirs, at),
    })
}

/// Answers a question about a volume that several nodes share.
///
/// # Errors
/// In words.
pub fn answer_of_nodes(nodes: &dyn ClusterNodes, question: &Value) -> Result<Value, String> {
    let engine = NodesEngine::new(nodes)?;
    if let Some(kind) = owner_kind(question)? {
        return owners(&engine, question, kind);
    }
    found(&engine, question, &|dirs, since| tree_parts(nodes, dirs, since))
}

fn owner_kind(question: &Value) -> Result<Option<OwnerKind>, String> {
    match question["owners"].as_str() {
        None => Ok(None),
        Some("user") => Ok(Some(OwnerKind::User)),
        Some("group") => Ok(Some(OwnerKind::Group)),
        Some(other) => Err(format!("files are not added up by {other:?}")),
    }
}

fn owners(engine: &dyn Engine, question: &Value, kind: OwnerKind) -> Result<Value, String> {
    let top = directory(engine, question)?;
    let found = by_owner(engine, top, kind).map_err(|why| why.to_string())?;
    let mut rows: Vec<_> = found.into_iter().collect();
    rows.sort_by_key(|(id, figures)| (std::cmp::Reverse(figures.bytes), *id));
    let told = rows
        .iter()
        .map(|(id, figures)| json!({ "id": id, "files": figures.files, "bytes": figures.bytes }));
    Ok(json!({ "owners": told.collect::<Vec<_>>() }))
}

/// Reads parts of directories, of now or at a snapshot.
type ReadPartsAt<'a> =
    dyn Fn(&[InodeId], Option<SnapshotId>) -> Result<Vec<DirPart>, InfoError> + 'a;

fn found(engine: &dyn Engine, question: &Value, read: &ReadPartsAt<'_>) -> Result<Value, String> {
    let selection = selection(question)?;
    let top = directory(engine, question)?;
    let words = |why: InfoError| why.to_string();
    let mut tree = TreeUsage::walk(top, &mut |dirs| read(dirs, None)).map_err(words)?;
    if let Selection::Top(_, RankBy::Growth) = selection {
        let since = question["since"].as_u64().ok_or("the question does not say since when")?;
        let then = TreeUsage::walk(top, &mut |dirs| read(dirs, Some(since)));
        tree.compare(&then.map_err(words)?);
    }
    let chosen = tree.select(selection);
    if chosen.len() > SHOWN_MAX {
        return Err(format!(
            "{} directories are so deep or less: ask for fewer with --depth or --top",
            chosen.len()
        ));
    }
    let paths = tree.paths(engine, &chosen).map_err(words)?;
    let dirs = chosen.iter().zip(paths);
    let dirs: Vec<Value> = dirs.filter_map(|(found, path)| Some(describe(found, &path?))).collect();
    Ok(json!({
        "total": describe(tree.top(), b""),
        "dirs": dirs,
        "unfinished_clones": unfinished_clones(engine).map_err(words)?,
    }))
}

fn describe(found: &DirUsage, path: &[u8]) -> Value {
    let mut told = json!({
        "path": path_value(path),
        "dir": found.dir,
        "depth": found.depth,
        "bytes": found.tree.bytes,
        "files": found.tree.files,
        "directories": found.tree.dirs,
        "changed_ns": found.tree.changed,
        "bytes_here": found.own.bytes,
        "files_here": found.own.files,
        "changed_here_ns": found.own.changed,
    });
    if let Some(growth) = found.growth {
        told["growth_bytes_here"] = growth.bytes.into();
        told["growth_files_here"] = growth.files.into();
    }
    told
}

fn selection(question: &Value) -> Result<Selection, String> {
    let number = |name: &str| question[name].as_u64();
    if let Some(count) = number("top") {
        let by = match question["by"].as_str() {
            None | Some("bytes") => RankBy::Bytes,
            Some("files") => RankBy::Files,
            Some("changed") => RankBy::Changed,
            Some("growth") => RankBy::Growth,
            Some(other) => return Err(format!("directories are not ranked by {other:?}")),
        };
        return Ok(Selection::Top(usize::try_from(count).unwrap_or(usize::MAX), by));
    }
    let depth = number("depth").ok_or("the question says neither how deep nor how many")?;
    Ok(Selection::Depth(u32::try_from(depth).unwrap_or(u32::MAX)))
}

fn directory(engine: &dyn Engine, question: &Value) -> Result<InodeId, String> {
    let found = match (question["dir"].as_u64(), path_bytes(&question["path"])) {
        (Some(dir), _) => find_dir(engine, dir),
        (None, Some(path)) => find_path(engine, &path),
        (None, None) => return Err("the question names no directory".into()),
    };
    let inode = found.map_err(|why| why.to_string())?;
    match inode.kind {
        Kind::Dir => Ok(inode.ino),
        _ => Err("not a directory; `kestrel info` tells of a file".into()),
    }
}
