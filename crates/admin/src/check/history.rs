//! Snapshots: their records, and the rows of table `history`.

use std::collections::BTreeSet;

use kestrel_engine::EngineError;
use kestrel_types::codec::Reader;
use kestrel_types::entry::Entry;
use kestrel_types::extent::ExtentList;
use kestrel_types::ids::ROOT;
use kestrel_types::inode::Inode;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::name::Name;
use kestrel_types::snapshot::{
    RECORD_PREFIX, SnapshotId, SnapshotInfo, decode_history, decode_history_key,
};
use kestrel_types::stat::DirStat;

use super::Check;
use super::name::name_files_of;
use crate::check::CheckError;
use crate::finding::{Act, Finding, FindingKind, Stage};
use crate::references::decode_all;
use crate::rows::{
    DirId, Rows, SHARES, decode_ceiling, decode_xattr, delete, encode_ceiling,
    encode_shares_with_history, get, readable,
};

/// Snapshots without a record that are put right at a time.
const DANGLING_MAX: usize = 1000;

/// Reads the records of snapshots. Where one is damaged, or rows are there of a snapshot without
/// one, nobody can read the snapshot: it is made one that is being removed.
pub fn records(check: &mut Check<'_>) -> Result<(), EngineError> {
    for row in Rows::from(check.engine, Table::System, 0, RECORD_PREFIX) {
        let (key, value) = row?;
        match SnapshotInfo::decode(&key.suffix, &value) {
            None => break,
            Some(Ok(info)) => {
                check.snapshots.push(info.id);
                check.clones.know(&info.clones);
            }
            Some(Err(why)) => {
                let rows = vec![removed_record(&key.suffix)];
                let name = readable(&key.suffix);
                let finding = Finding::new(FindingKind::SystemWrong, name, why.to_string());
                let says = "made one of a snapshot that is being removed";
                check.found(finding.with(Stage::Numbers, says, Act::Rows(rows)));
            }
        }
    }
    marked(check)
}

/// What becomes of a record of this name that is damaged: one of a snapshot that is being removed,
/// or none if the name says no number.
pub(crate) fn removed_record(name: &[u8]) -> kestrel_engine::Mutation {
    match number_of(name).and_then(removed) {
        Some(info) => kestrel_engine::Mutation { key: info.key(), value: Some(info.encode()) },
        None => delete(&Key::new(Table::System, 0, name)),
    }
}

/// The number in the name of a record.
fn number_of(suffix: &[u8]) -> Option<SnapshotId> {
    let digits = std::str::from_utf8(suffix.strip_prefix(RECORD_PREFIX)?).ok()?;
    u64::from_str_radix(digits, 16).ok().filter(|id| *id != 0)
}

/// The record of a snapshot of which nothing is known, which is being removed.
fn removed(id: SnapshotId) -> Option<SnapshotInfo> {
    let name = Name::new(b"lost").ok()?;
    Some(SnapshotInfo {
        id,
        dir: ROOT,
        name,
        created: 0,
        removing: true,
        cutting: false,
        hidden: false,
        holds: Vec::new(),
        clones: Vec::new(),
    })
}

/// Where there are snapshots, a record that all programs read says so to those that do not know
/// them.
fn marked(check: &mut Check<'_>) -> Result<(), EngineError> {
    let key = Key::new(Table::System, 0, SHARES);
    let (Some(stored), false) = (get(check.engine, key.clone())?, check.snapshots.is_empty())
    else {
        return Ok(());
    };
    if let Ok(shares) = decode_ceiling(&stored)
        && *stored == *encode_ceiling(shares)
    {
        let detail = "it does not keep programs away that know no snapshots";
        let finding = Finding::new(FindingKind::SystemWrong, readable(SHARES), detail);
        let value = Some(encode_shares_with_history(shares));
        let rows = vec![kestrel_engine::Mutation { key, value }];
        check.found(finding.with(Stage::Numbers, "written anew", Act::Rows(rows)));
    }
    Ok(())
}

/// Checks the rows of table `history`.
pub fn rows(check: &mut Check<'_>) -> Result<(), CheckError> {
    let mut dangling: BTreeSet<SnapshotId> = BTreeSet::new();
    let mut damaged: Vec<(Key, String)> = Vec::new();
    for row in check.rows(Table::History) {
        let (key, value) = row?;
        check.row("checking history");
        let Some((of, at)) = decode_history_key(key.borrow()) else {
            let path = format!("history #{}", key.id);
            let finding = Finding::new(FindingKind::RowUnknown, path, "not the history of a row");
            check.found(finding.with(Stage::Derived, "removed", Act::Rows(vec![delete(&key)])));
            continue;
        };
        if check.snapshots.binary_search(&at).is_err() && dangling.len() < DANGLING_MAX {
            dangling.insert(at);
        }
        let why = match decode_history(&value) {
            Ok(None) => continue,
            Ok(Some(old)) if is_row(of, old) => continue,
            Ok(Some(old)) => {
                format!("{} bytes of table {:?} cannot be decoded", old.len(), of.table)
            }
            Err(why) => why.to_string(),
        };
        damaged.push((key, why));
    }
    for at in dangling {
        let rows = removed(at)
            .map(|info| kestrel_engine::Mutation { key: info.key(), value: Some(info.encode()) });
        let path = format!("snapshot {at}");
        let detail = "there is history of it, and no record";
        let finding = Finding::new(FindingKind::HistoryDangling, path, detail);
        let act = Act::Rows(rows.into_iter().collect());
        check.found(finding.with(Stage::Derived, "its removal goes on", act));
    }
    let keys: Vec<&Key> = damaged.iter().map(|(key, _)| key).collect();
    for (path, (_, why)) in name_files_of(check.engine, &keys)?.into_iter().zip(&damaged) {
        let detail = format!("{why}; reading it there fails");
        check.found(Finding::new(FindingKind::HistoryDamaged, path, detail));
    }
    Ok(())
}

/// Whether a row's value can be read.
fn is_row(of: KeyRef<'_>, value: &[u8]) -> bool {
    match of.table {
        Table::Entry => Entry::decode(value).is_ok(),
        Table::Link => decode_all(value, Inode::decode).is_some(),
        Table::Chunk => decode_all(value, ExtentList::decode).is_some(),
        Table::DirStat => DirStat::decode(value).is_ok(),
        Table::DirId => DirId::decode(value).is_ok(),
        Table::Xattr => decode_xattr(value).is_ok(),
        Table::Subdir | Table::Sweep => Reader::new(value).end().is_ok(),
        _ => false,
    }
}
