//! What becomes of history when a snapshot goes.
//!
//! A history row (row, T) of a snapshot that is being removed may be what an earlier one needs. Let
//! S be the newest snapshot below T that stays. If the row has a history row from S on, below T,
//! that says what it was at S, and (row, T) goes. Else the value of (row, T) is that of S, too, and
//! it moves to (row, S); or, if it is an inode that was made after S, the row was not there, and
//! that it was not is written, unless what follows says the same. What goes releases its
//! references.
//!
//! One pass over table `history` does this for all snapshots that are being removed when it begins;
//! then their records go, or, at one of several nodes, wait until all nodes are so far. It is done
//! in steps, and from the start again after a restart: what a
//! step has done stays right.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::crash;
use kestrel_types::ids::{ObjectId, Position};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{
    SnapshotId, decode_history, decode_history_key, encode_history, history_key, references,
    was_there,
};

use super::booked;
use super::known::KnownSnapshots;

/// History rows that one step looks at, or more if they are all of one row.
const STEP_ROWS: usize = 512;

/// Where a removal is.
#[derive(Debug, Default)]
pub struct Pass {
    /// Snapshots that go with it; none between two passes.
    pub going: Vec<SnapshotId>,
    /// The first row that has not been looked at.
    from: Option<Key>,
}

/// A history row.
pub struct Version {
    /// Its snapshot.
    pub at: SnapshotId,
    /// Its value.
    pub value: Box<[u8]>,
}

/// Rows with all their history, and the key after them, if there are more.
pub type RowHistories = (Vec<(Key, Vec<Version>)>, Option<Key>);

/// What a step changes.
#[derive(Default)]
struct Changes {
    rows: Vec<Mutation>,
    /// References, by object.
    references: BTreeMap<ObjectId, i64>,
}

impl Pass {
    /// Begins one, if something is being removed that is not `cleared`, and none is under way.
    pub fn begin(&mut self, snapshots: &KnownSnapshots, cleared: &BTreeSet<SnapshotId>) {
        if self.going.is_empty() {
            let list = snapshots.list();
            let removed = list.iter().filter(|known| known.info.removing);
            let removed = removed.map(|known| known.info.id);
            self.going = removed.filter(|id| !cleared.contains(id)).collect();
            self.from = None;
        }
    }

    /// Does one step, with [`KnownSnapshots::gate`] held alone; whether it was the last one. `due`
    /// makes the row by which an object is looked at that may have lost its last reference. The
    /// position of what was committed, or 0.
    ///
    /// # Errors
    /// The engine's; the step can be tried again.
    pub fn step(
        &mut self,
        engine: &dyn Engine,
        snapshots: &KnownSnapshots,
        due: &dyn Fn(ObjectId) -> Mutation,
    ) -> Result<(bool, Position), EngineError> {
        let list = snapshots.list();
        let live = list.iter().filter(|known| !known.info.removing);
        let live: Vec<SnapshotId> = live.map(|known| known.info.id).collect();
        let (groups, next) = row_histories(engine, self.from.as_ref(), STEP_ROWS)?;
        let mut changes = Changes::default();
        for (of, versions) in &groups {
            thin_out(engine, (of.borrow(), versions), &live, &mut changes)?;
        }
        let mut position = 0;
        if !changes.rows.is_empty() {
            changes.references.retain(|_, bytes| *bytes != 0);
            changes.rows.extend(booked(engine, snapshots.share, &changes.references)?);
            changes.rows.extend(changes.references.keys().map(|object| due(*object)));
            crash::point("snapshot.remove.before-step");
            position = engine.commit(BatchKind::Freeing, changes.rows)?;
            crash::point("snapshot.remove.step");
        }
        let ends = next.is_none();
        self.from = next;
        Ok((ends, position))
    }
}

/// The next rows with all their history, from this key on: of so many history rows, or more if they
/// are all of one row. And the key after them, if there are more.
///
/// # Errors
/// The engine's.
pub fn row_histories(
    engine: &dyn Engine,
    from: Option<&Key>,
    rows_max: usize,
) -> Result<RowHistories, EngineError> {
    let (mut groups, mut seen, mut next) = (Vec::new(), 0, None);
    engine.scan_table(Table::History, from.map(Key::borrow), &mut |key, value| {
        // A key that no row has is for `kestrel fsck`.
        let Some((of, at)) = decode_history_key(key) else { return ControlFlow::Continue(()) };
        let same = groups.last().is_some_and(|(last, _): &(Key, _)| last.borrow() == of);
        if !same && seen >= rows_max {
            next = Some(key.to_owned());
            return ControlFlow::Break(());
        }
        if !same {
            groups.push((of.to_owned(), Vec::new()));
        }
        if let Some((_, versions)) = groups.last_mut() {
            versions.push(Version { at, value: value.into() });
        }
        seen += 1;
        ControlFlow::Continue(())
    })?;
    Ok((groups, next))
}

/// What becomes of the history of one row.
fn thin_out(
    engine: &dyn Engine,
    (of, versions): (KeyRef<'_>, &[Version]),
    live: &[SnapshotId],
    changes: &mut Changes,
) -> Result<(), EngineError> {
    // Of what stays, the newest snapshot so far.
    let mut stays = None;
    for (index, Version { at, value }) in versions.iter().enumerate() {
        let below = live.partition_point(|id| id < at);
        if live.get(below) == Some(at) {
            stays = Some(*at);
            continue;
        }
        changes.rows.push(Mutation { key: history_key(of, *at), value: None });
        let earlier = below.checked_sub(1).map(|below| live[below]);
        let earlier = earlier.filter(|earlier| stays.is_none_or(|stays| stays < *earlier));
        let Ok(old) = decode_history(value) else {
            // A reader is to hear that it is damaged.
            if let Some(earlier) = earlier {
                let key = history_key(of, earlier);
                changes.rows.push(Mutation { key, value: Some(value.clone()) });
                stays = Some(earlier);
            }
            continue;
        };
        let kept = match earlier {
            None => None,
            Some(earlier) => {
                let then = old.filter(|old| was_there(of.table, old, earlier));
                let needed =
                    then.is_some() || follows(engine, of, versions.get(index + 1), earlier)?;
                needed.then_some((earlier, then))
            }
        };
        if let Some((earlier, then)) = kept {
            let value = Some(encode_history(then));
            changes.rows.push(Mutation { key: history_key(of, earlier), value });
            stays = Some(earlier);
        }
        if kept.is_none_or(|(_, then)| then.is_none()) {
            for released in old.iter().flat_map(|old| references(of.table, old)) {
                *changes.references.entry(released.range.object).or_default() -=
                    i64::from(released.bytes);
            }
        }
    }
    Ok(())
}

/// Whether what follows a history row, another one or the present row, says of a row that it was
/// there at a snapshot.
///
/// # Errors
/// The engine's.
pub fn follows(
    engine: &dyn Engine,
    of: KeyRef<'_>,
    next: Option<&Version>,
    at: SnapshotId,
) -> Result<bool, EngineError> {
    if let Some(next) = next {
        let row = decode_history(&next.value);
        return Ok(row.is_ok_and(|row| row.is_some_and(|row| was_there(of.table, row, at))));
    }
    let mut there = false;
    engine.get_many(&[of], &mut |_, row| {
        there = row.value.is_some_and(|row| was_there(of.table, row, at));
    })?;
    Ok(there)
}
