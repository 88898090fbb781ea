//! What a salvage could not recover, by path.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use kestrel_engine::embedded::salvage::{Lost, LostRows};
use kestrel_engine::{Engine, EngineError};
use kestrel_types::key::{Key, Table};

use crate::check::CheckError;
use crate::check::name::name_files_of;
use crate::check::path;
use crate::rows::{DirId, get, readable};

/// Something that could not be recovered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostPath {
    /// The file or directory that this concerns; `-` if it cannot be found out.
    pub path: String,
    /// What is lost of it.
    pub detail: String,
    /// The damaged file, and where in it.
    pub place: String,
}

/// Names what was lost, over the rows that were recovered. One loss may concern several paths; what
/// concerns none (sums, counters, sessions of clients) is left out, as a repair makes it anew.
///
/// # Errors
/// Those of the engine.
pub fn name_lost(engine: &dyn Engine, lost: &[Lost]) -> Result<Vec<LostPath>, CheckError> {
    let mut named = BTreeSet::new();
    for Lost { place, rows } in lost {
        let mut add = |path: String, detail: String| {
            named.insert(LostPath { path, detail, place: place.clone() });
        };
        match rows {
            LostRows::Unknown => add("-".into(), "what it held is not known".into()),
            LostRows::Changed(keys) => {
                let of_files: Vec<&Key> = keys.iter().filter(|key| is_of_a_file(key)).collect();
                let paths = name_files_of(engine, &of_files)?;
                for (key, path) in of_files.into_iter().zip(paths) {
                    add(path, format!("its last change ({}) is lost", what_of(key.table)));
                }
            }
            LostRows::Between(after, before) => match (after, before) {
                (Some(after), Some(before))
                    if (after.table, after.id) == (before.table, before.id) =>
                {
                    within(engine, after, before, &mut add)?;
                }
                _ => {
                    let end = |key: &Option<Key>, none: &str| -> Result<String, CheckError> {
                        let Some(key) = key else { return Ok(none.into()) };
                        Ok(format!("{} of {}", what_of(key.table), name_of(engine, key)?))
                    };
                    let from = end(after, "the beginning of the table")?;
                    let to = end(before, "the end of the table")?;
                    let path =
                        match after.as_ref().or(before.as_ref()).filter(|key| is_of_a_file(key)) {
                            Some(key) => name_of(engine, key)?,
                            None => "-".into(),
                        };
                    add(path, format!("what lay between {from} and {to} is lost"));
                }
            },
        }
    }
    Ok(named.into_iter().collect())
}

/// Rows of one directory or file between two keys.
fn within(
    engine: &dyn Engine,
    after: &Key,
    before: &Key,
    add: &mut dyn FnMut(String, String),
) -> Result<(), CheckError> {
    if !is_of_a_file(after) {
        return Ok(());
    }
    if after.table != Table::Entry {
        add(name_of(engine, after)?, format!("some of its {} are lost", what_of(after.table)));
        return Ok(());
    }
    let dir = match path(engine, after.id, b"") {
        dir if dir.is_empty() => "/".to_string(),
        dir => dir,
    };
    let [first, last] = [after, before].map(|key| readable(&key.suffix));
    add(dir, format!("its entries between {first:?} and {last:?} are lost"));
    // Directories among them are named in other rows.
    for name in subdirectories(engine, after.id)? {
        let is_between = *after.suffix < *name && *name < *before.suffix;
        if is_between && get(engine, Key::new(Table::Entry, after.id, &name))?.is_none() {
            let detail = "its record is lost; what is in it goes to /lost+found".into();
            add(path(engine, after.id, &name), detail);
        }
    }
    Ok(())
}

/// Names of the subdirectories of a directory.
fn subdirectories(engine: &dyn Engine, dir: u64) -> Result<Vec<Box<[u8]>>, EngineError> {
    let mut children = Vec::new();
    engine.scan(Table::Subdir, dir, None, &mut |child, _, _| {
        if let Ok(child) = <[u8; 8]>::try_from(child) {
            children.push(u64::from_be_bytes(child));
        }
        ControlFlow::Continue(())
    })?;
    let mut names = Vec::new();
    for child in children {
        let place = get(engine, Key::new(Table::DirId, child, &[]))?;
        names.extend(place.and_then(|bytes| DirId::decode(&bytes).ok()).map(|place| place.name));
    }
    Ok(names)
}

fn name_of(engine: &dyn Engine, key: &Key) -> Result<String, CheckError> {
    Ok(name_files_of(engine, &[key])?.pop().unwrap_or_else(|| "-".into()))
}

/// Whether a row belongs to a file or a directory.
fn is_of_a_file(key: &Key) -> bool {
    use Table::{
        Chunk, Clone, DirId, DirStat, Entry, Feed, History, Link, Moved, ObjStat, Quota, Reap,
        Subdir, Sweep, System, Txn, Xattr,
    };
    match key.table {
        Entry | Link | Chunk | Xattr | History | Clone => true,
        // Made anew from the others, or of no one file.
        DirStat | DirId | Subdir | System | ObjStat | Reap | Moved | Txn | Sweep | Quota | Feed => {
            false
        }
    }
}

/// What a row is to the owner of the file.
fn what_of(table: Table) -> &'static str {
    match table {
        Table::Entry => "name and attributes",
        Table::Link => "attributes",
        Table::Chunk => "extents",
        Table::Xattr => "extended attributes",
        Table::History => "what it was at a snapshot",
        Table::Clone => "names that a clone has yet to get",
        _ => "other records",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::put;
    use kestrel_engine::BatchKind;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};

    /// Losses are reported by the paths of the files, and a directory that is named in other rows
    /// by its own.
    #[test]
    fn lost_rows_by_path() {
        let engine = MemoryEngine::new(SyncWhen::Asked);
        let place = |parent, name: &[u8]| DirId { parent, name: name.into() }.encode();
        let rows = vec![
            put(Table::DirId, 9, &[], place(1, b"home")),
            put(Table::DirId, 10, &[], place(9, b"photos")),
            put(Table::Subdir, 9, &10u64.to_be_bytes(), Box::new([])),
        ];
        engine.commit(BatchKind::Growing, rows).unwrap();
        let key = |name: &[u8]| Key::new(Table::Entry, 9, name);
        let lost = [
            Lost {
                place: "a".into(),
                rows: LostRows::Changed(vec![key(b"x"), Key::new(Table::Reap, 1, b"")]),
            },
            Lost { place: "b".into(), rows: LostRows::Between(Some(key(b"n")), Some(key(b"q"))) },
            Lost { place: "c".into(), rows: LostRows::Unknown },
        ];
        let named: Vec<(String, String)> = name_lost(&engine, &lost)
            .unwrap()
            .into_iter()
            .map(|lost| (lost.path, lost.place))
            .collect();
        let expected = [("-", "c"), ("/home", "b"), ("/home/photos", "b"), ("/home/x", "a")];
        assert_eq!(named, expected.map(|(path, place)| (path.to_string(), place.to_string())));
    }
}
