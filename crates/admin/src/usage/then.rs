//! What the directories of a tree held at a snapshot, and how much they have grown since.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use kestrel_engine::Engine;
use kestrel_types::codec::DecodeError;
use kestrel_types::ids::InodeId;
use kestrel_types::key::{KeyRef, Table, number_of};
use kestrel_types::snapshot::{SnapshotId, decode_history, decode_history_key, history_prefix};
use kestrel_types::stat::DirStat;

use super::{DirFigures, DirPart, TreeUsage};
use crate::info::InfoError;

/// Growth of what lies in a directory directly; negative if it has shrunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirGrowth {
    /// Bytes of its files.
    pub bytes: i64,
    /// Its files.
    pub files: i64,
}

impl DirGrowth {
    fn between(then: &DirFigures, now: &DirFigures) -> Self {
        let less = |now: u64, then: u64| now.wrapping_sub(then).cast_signed();
        Self { bytes: less(now.bytes, then.bytes), files: less(now.files, then.files) }
    }
}

/// As [`super::read_parts`], at a snapshot.
///
/// # Errors
/// Those of the engine; damaged rows.
pub fn read_parts_then(
    engine: &dyn Engine,
    dirs: &[InodeId],
    at: SnapshotId,
) -> Result<Vec<DirPart>, InfoError> {
    let part = |dir: &InodeId| {
        let mut stat = DirStat::default();
        for row in rows_then(engine, Table::DirStat, *dir, at)?.values() {
            stat.merge(&DirStat::decode(row)?);
        }
        let below = rows_then(engine, Table::Subdir, *dir, at)?;
        Ok(DirPart { stat, below: below.keys().map(|suffix| number_of(suffix)).collect() })
    };
    dirs.iter().map(part).collect()
}

/// Rows by their suffixes.
type RowsThen = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The rows of `(table, id)` at a snapshot, for tables of which a row that is there now was there,
/// unless its history says otherwise.
fn rows_then(
    engine: &dyn Engine,
    table: Table,
    id: u64,
    at: SnapshotId,
) -> Result<RowsThen, InfoError> {
    let mut rows = RowsThen::new();
    // First what is there now: a change meanwhile leaves history, which counts.
    engine.scan(table, id, None, &mut |suffix, row, _| {
        rows.insert(suffix.into(), row.into());
        ControlFlow::Continue(())
    })?;
    let (mut last, mut damage): (Option<Box<[u8]>>, Option<DecodeError>) = (None, None);
    let from = history_prefix(table, b"");
    engine.scan(Table::History, id, Some(&from), &mut |suffix, value, _| {
        let key = decode_history_key(KeyRef::new(Table::History, id, suffix));
        let Some((of, snapshot)) = key.filter(|(of, _)| of.table == table) else {
            // Rows of another table follow.
            return ControlFlow::Break(());
        };
        // The history of a row is in the order of snapshots: the first one from `at` on counts.
        if snapshot < at || last.as_deref() == Some(of.suffix) {
            return ControlFlow::Continue(());
        }
        last = Some(of.suffix.into());
        match decode_history(value) {
            Ok(Some(old)) => rows.insert(of.suffix.into(), old.into()),
            Ok(None) => rows.remove(of.suffix),
            Err(why) => {
                damage = Some(why);
                return ControlFlow::Break(());
            }
        };
        ControlFlow::Continue(())
    })?;
    damage.map_or(Ok(rows), |why| Err(why.into()))
}

impl TreeUsage {
    /// Has each directory know how much it has grown since `then`, an earlier moment of the tree. A
    /// directory that was not there had nothing.
    pub fn compare(&mut self, then: &TreeUsage) {
        let before: HashMap<InodeId, &DirFigures> =
            then.dirs.iter().map(|found| (found.dir, &found.own)).collect();
        for found in &mut self.dirs {
            let then = before.get(&found.dir).copied().copied().unwrap_or_default();
            found.growth = Some(DirGrowth::between(&then, &found.own));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::put;
    use crate::usage::{RankBy, Selection, read_parts};
    use kestrel_engine::BatchKind;
    use kestrel_engine::memory::{MemoryEngine, SyncWhen};
    use kestrel_types::snapshot::{encode_history, history_key};

    const AT: SnapshotId = 100;

    fn stat(files: i64, subdirs: i64, bytes: i64) -> Box<[u8]> {
        DirStat { children: files + subdirs, subdirs, bytes, mtime: 1, change: 1 }.encode()
    }

    /// A directory of which one share has changed since, one that has not, one that is new, and
    /// one that has gone.
    #[test]
    fn growth_since_a_snapshot() {
        let engine = MemoryEngine::new(SyncWhen::Told);
        let history = |table, id, suffix: &[u8], at, old: Option<&[u8]>| {
            let key = history_key(KeyRef::new(table, id, suffix), at);
            put(Table::History, id, &key.suffix, encode_history(old))
        };
        let child = |dir: InodeId| dir.to_be_bytes();
        let rows = vec![
            put(Table::DirStat, 20, &[0, 0], stat(9, 3, 900)),
            put(Table::DirStat, 20, &[0, 1], stat(1, 0, 10)),
            // Before and behind the moment: the first one from it on counts.
            history(Table::DirStat, 20, &[0, 0], AT - 1, Some(&stat(1, 1, 1))),
            history(Table::DirStat, 20, &[0, 0], AT, Some(&stat(2, 2, 200))),
            history(Table::DirStat, 20, &[0, 0], AT + 9, Some(&stat(5, 2, 500))),
            put(Table::Subdir, 20, &child(21), Box::default()),
            put(Table::Subdir, 20, &child(22), Box::default()),
            history(Table::Subdir, 20, &child(22), AT, None),
            history(Table::Subdir, 20, &child(23), AT + 9, Some(b"")),
            put(Table::DirStat, 21, &[0, 0], stat(7, 0, 70)),
            put(Table::DirStat, 22, &[0, 0], stat(3, 0, 30)),
            put(Table::DirStat, 23, &[0, 0], stat(4, 0, 40)),
        ];
        engine.commit(BatchKind::Growing, rows).unwrap();
        let read_then = &mut |dirs: &[InodeId]| read_parts_then(&engine, dirs, AT);
        let then = TreeUsage::walk(20, read_then).unwrap();
        assert_eq!((then.top().tree.files, then.top().tree.bytes), (3 + 7 + 4, 210 + 70 + 40));
        let mut now = TreeUsage::walk(20, &mut |dirs| read_parts(&engine, dirs)).unwrap();
        now.compare(&then);
        let found = now.select(Selection::Top(9, RankBy::Growth));
        let found: Vec<_> = found.iter().map(|found| (found.dir, found.growth.unwrap())).collect();
        let growth = |bytes, files| DirGrowth { bytes, files };
        assert_eq!(found, [(20, growth(700, 7)), (22, growth(30, 3)), (21, growth(0, 0))]);
    }
}
