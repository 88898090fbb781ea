//! What questions name: directories, names in them, snapshots.

use kestrel_types::ids::InodeId;
use kestrel_types::name::Name;
use kestrel_types::snapshot::{SnapshotId, SnapshotInfo};
use serde_json::Value;

use super::calls::{SnapshotCalls, told};
use crate::ask::path_bytes;

/// How the `.snap` of a directory shows a snapshot.
pub fn shown_name(one: &SnapshotInfo, dir: InodeId) -> Vec<u8> {
    match dir == one.dir {
        true => one.name.as_bytes().to_vec(),
        false => [b"_", one.name.as_bytes(), format!("_{}", one.dir).as_bytes()].concat(),
    }
}

/// The name in a field of a question.
///
/// # Errors
/// If there is none, or it is no name.
pub fn name_of(question: &Value, field: &str) -> Result<Name, String> {
    let bytes = path_bytes(&question[field]);
    let bytes = bytes.ok_or_else(|| format!("the question has no {field}"))?;
    Name::new(&bytes).map_err(|why| format!("{}: {}", String::from_utf8_lossy(&bytes), why.reason))
}

/// The name in `after` behind which a page begins; `None` at the start.
///
/// # Errors
/// If it is no name.
pub fn after_of(question: &Value) -> Result<Option<Name>, String> {
    match question["after"] {
        Value::Null => Ok(None),
        _ => name_of(question, "after").map(Some),
    }
}

/// The directory that a question names by number or by path.
///
/// # Errors
/// If it names none, or there is none.
pub fn directory(calls: &SnapshotCalls<'_>, question: &Value) -> Result<InodeId, String> {
    match (question["dir"].as_u64(), path_bytes(&question["path"])) {
        (Some(dir), _) => Ok(dir),
        (None, Some(path)) => calls.directory(&path).map_err(|why| why.reason.to_string()),
        (None, None) => Err("the question names no directory".into()),
    }
}

/// The snapshot that the `.snap` of a directory shows with this name.
///
/// # Errors
/// If there is none.
pub fn snapshot_of(
    calls: &SnapshotCalls<'_>,
    dir: InodeId,
    shown: &Name,
) -> Result<SnapshotId, String> {
    find_snapshot(calls, dir, shown, |_| true).map(|one| one.id)
}

/// The same, all of it, if it is one of those that are `wanted`.
///
/// # Errors
/// If there is none.
pub fn find_snapshot(
    calls: &SnapshotCalls<'_>,
    dir: InodeId,
    shown: &Name,
    wanted: impl Fn(&SnapshotInfo) -> bool,
) -> Result<SnapshotInfo, String> {
    let found = calls.list(Some(dir), true).map_err(|why| told(&why))?;
    let is_it = |one: &SnapshotInfo| wanted(one) && *shown_name(one, dir) == *shown.as_bytes();
    found.into_iter().find(is_it).ok_or_else(|| {
        let name = String::from_utf8_lossy(shown.as_bytes());
        format!("there is no snapshot {name}; `kestrel snapshot list` shows those that there are")
    })
}
