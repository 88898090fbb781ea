//! What would be given back if a snapshot went now: what a [removal](super::removal) would do with
//! its history rows, without doing it.

use kestrel_engine::{Engine, EngineError};
use kestrel_types::extent::Released;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{SnapshotId, decode_history, references, was_there};
use kestrel_types::snapshot_changes::{HistoryCursor, SnapshotUsage};

use super::known::KnownSnapshots;
use super::removal::{Version, follows, row_histories};

/// History rows that a page looks at, or more if they are all of one row.
const PAGE_ROWS: usize = 4096;

/// Where a page begins: a key of table `history`; `None` if the bytes are none.
pub fn decode_cursor(bytes: &[u8]) -> Option<Key> {
    let (id, suffix) = bytes.split_first_chunk::<8>()?;
    Some(Key::new(Table::History, u64::from_be_bytes(*id), suffix))
}

fn encode_cursor(key: &Key) -> HistoryCursor {
    [&key.id.to_be_bytes()[..], &key.suffix].concat().into()
}

/// What goes with the snapshot `at` of the next history rows, from this key on. Bytes count that
/// neither the next older nor the next newer version of the same row refers to; another file, or
/// the same under another name, may refer to them all the same.
///
/// # Errors
/// The engine's.
pub fn page(
    engine: &dyn Engine,
    snapshots: &KnownSnapshots,
    at: SnapshotId,
    from: Option<&Key>,
) -> Result<SnapshotUsage, EngineError> {
    let _gate = snapshots.gate.read();
    let list = snapshots.list();
    let live = list.iter().filter(|known| !known.info.removing).map(|known| known.info.id);
    let live: Vec<SnapshotId> = live.collect();
    let (groups, next) = row_histories(engine, from, PAGE_ROWS)?;
    let mut usage = SnapshotUsage { next: next.as_ref().map(encode_cursor), ..Default::default() };
    for (of, versions) in &groups {
        if let Some(index) = versions.iter().position(|version| version.at == at) {
            add(engine, (of.borrow(), versions, index), &live, &mut usage)?;
        }
    }
    Ok(usage)
}

/// Adds what goes of one row's version.
fn add(
    engine: &dyn Engine,
    (of, versions, index): (KeyRef<'_>, &[Version], usize),
    live: &[SnapshotId],
    usage: &mut SnapshotUsage,
) -> Result<(), EngineError> {
    // What is damaged stays for as long as an older snapshot may need it.
    let Ok(old) = decode_history(&versions[index].value) else { return Ok(()) };
    let at = versions[index].at;
    let is_live = |version: &&Version| live.binary_search(&version.at).is_ok();
    let older = live[..live.partition_point(|id| *id < at)].last().copied();
    // Of what stays, or moves to the older snapshot.
    let before = versions[..index]
        .iter()
        .rev()
        .find(|version| is_live(version) || older.is_some_and(|older| version.at > older));
    let older = older.filter(|older| before.is_none_or(|before| before.at < *older));
    if let Some(older) = older {
        if old.is_some_and(|old| was_there(of.table, old, older)) {
            return Ok(());
        }
        // That it was not there is written in its place.
        let is_needed = follows(engine, of, versions.get(index + 1), older)?;
        usage.rows += u64::from(!is_needed);
    } else {
        usage.rows += 1;
    }
    let released = old.map_or(Vec::new(), |old| references(of.table, old));
    if released.is_empty() {
        return Ok(());
    }
    let mut others = before.map_or(Vec::new(), |before| of_version(of, before));
    match versions[index + 1..].iter().find(is_live) {
        Some(next) => others.extend(of_version(of, next)),
        None => engine.get_many(&[of], &mut |_, row| {
            others.extend(row.value.map_or(Vec::new(), |row| references(of.table, row)));
        })?,
    }
    let is_alone = |range| others.iter().all(|other| other.range != range);
    let alone = released.iter().filter(|released| is_alone(released.range));
    usage.bytes += alone.map(|released| u64::from(released.bytes)).sum::<u64>();
    Ok(())
}

/// What a version of a row refers to.
fn of_version(of: KeyRef<'_>, version: &Version) -> Vec<Released> {
    let row = decode_history(&version.value).ok().flatten();
    row.map_or(Vec::new(), |row| references(of.table, row))
}
