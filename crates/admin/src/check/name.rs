//! Names of the files that rows belong to, for people.

use std::collections::HashMap;

use kestrel_engine::Engine;
use kestrel_types::entry::Entry;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{SnapshotId, decode_history_key};

use super::CheckError;
use crate::rows::Rows;

/// The path of the file of each row, in order. What lies under a number (chunks, files with several
/// names) is found by a walk over the entries, its first name counts; a file without a name is
/// `#number`. What it was at a snapshot has the path of now.
pub fn name_files_of(engine: &dyn Engine, rows: &[&Key]) -> Result<Vec<String>, CheckError> {
    let by_number = rows.iter().filter(|row| of(row).0.table != Table::Entry);
    let mut names: HashMap<InodeId, Option<String>> = by_number.map(|row| (row.id, None)).collect();
    let mut missing = names.len();
    let mut entries = Rows::from(engine, Table::Entry, 0, &[]);
    while missing > 0
        && let Some(row) = entries.next()
    {
        let (key, value) = row?;
        let ino = Entry::decode(&value).ok().map(|entry| entry.ino());
        if let Some(name @ None) = ino.and_then(|ino| names.get_mut(&ino)) {
            *name = Some(super::path(engine, key.id, &key.suffix));
            missing -= 1;
        }
    }
    let name_of = |row: &&Key| {
        let (of, snapshot) = of(row);
        let name = match of.table {
            Table::Entry => super::path(engine, of.id, of.suffix),
            _ => names.get(&of.id).cloned().flatten().unwrap_or_else(|| format!("#{}", of.id)),
        };
        match snapshot {
            None => name,
            Some(snapshot) => format!("{name} (at snapshot {snapshot})"),
        }
    };
    Ok(rows.iter().map(name_of).collect())
}

/// The row that a row is about, and the snapshot if it says what that was at one.
fn of(row: &Key) -> (KeyRef<'_>, Option<SnapshotId>) {
    match decode_history_key(row.borrow()) {
        Some((of, snapshot)) => (of, Some(snapshot)),
        None => (row.borrow(), None),
    }
}
