//! History: what rows were at snapshots (`docs/design/metadata.md`, "History").
//!
//! | file | what it has |
//! | --- | --- |
//! | `history/known.rs` | the snapshots that there are |
//! | `history/at.rs` | the rows as they were at a snapshot |
//! | `history/removal.rs` | what becomes of history when a snapshot goes |
//! | `history/usage.rs` | what would be given back if a snapshot went now |
//! | `history/changes.rs` | what may differ between two moments |
//!
//! [`HistoryLayer`] lies between a node and its engine. While there are snapshots, the newest of
//! them T, a commit that changes a row adds the old value under (row, T), in the same batch, unless
//! there is such a row already: it was changed since T. That value is the row's at T, and at every
//! earlier moment back to the change before. So **reading at a snapshot S** is this: of the row's
//! history rows the one with the lowest T that is at least S, and if there is none the present row;
//! and an inode with a change above S was not there at S.
//!
//! *What need not be written.* A row that reads at T as "not there" both before and after the
//! change leaves no history: files that are made and removed between two snapshots cost nothing,
//! nor does making a file. Where one of the two reads as there, the old value is written, or, if
//! that was not there, that it was not. By this rule a read at any live snapshot says the same
//! before and after every commit: for T that is the rule itself, and at an earlier snapshot
//! whatever was not there at T by its own stamp was not there either.
//!
//! *Snapshots in removal* ([`removal`]) have rows that earlier snapshots need. The rule holds with
//! them as long as a commit writes (row, T) only if no history row of that row has T or more.
//!
//! **Readers and commits.** An engine may show a batch in part while it is being applied. A reader
//! at a snapshot must not see the new row without the history row, so both are read with
//! [`KnownSnapshots::gate`] held, as commits that write history hold it, alone.
//!
//! **References.** A history row holds the references of its value. They are counted in a share of
//! their own, [`KnownSnapshots::share`], which all workers write here, one at a time.
//!
//! **Of several nodes** each has history of its own rows, with snapshots that are of one instant at
//! all of them (`kestrel_cluster`). Rows that get another owner take their history with them:
//! [`commit_moved`] writes and deletes both beside the layer, as no row changes by that.

pub mod at;
pub mod changes;
pub mod known;
pub mod removal;
pub mod usage;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Engine, EngineError, Layer, Mutation};
use kestrel_types::codec::DecodeError;
use kestrel_types::ids::{ObjectId, Position};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::snapshot::{
    SnapshotId, decode_history, decode_history_key, encode_history, history_key, history_prefix,
    is_versioned, references, was_there,
};
use kestrel_types::stat::ObjStat;

use known::KnownSnapshots;

/// See the module's header.
pub struct HistoryLayer {
    below: Arc<dyn Engine>,
    snapshots: Arc<KnownSnapshots>,
}

/// Old value of a row that a batch changes, if it is to be kept: `None` if there was none.
struct Kept<'a> {
    of: KeyRef<'a>,
    old: Option<Box<[u8]>>,
}

impl HistoryLayer {
    /// Keeps history in `below` for these snapshots.
    pub fn new(below: Arc<dyn Engine>, snapshots: Arc<KnownSnapshots>) -> Self {
        Self { below, snapshots }
    }

    #[cold]
    fn commit_with_history(
        &self,
        newest: SnapshotId,
        kind: BatchKind,
        mutations: Vec<Mutation>,
    ) -> Result<Position, EngineError> {
        // The rows are the committing worker's own: nobody else changes them meanwhile.
        let mut kept = self.changed(newest, &mutations)?;
        if kept.is_empty() {
            return self.below.commit(kind, mutations);
        }
        let _alone = self.snapshots.gate.write();
        self.without_known(newest, &mut kept)?;
        let mut rows = Vec::with_capacity(kept.len());
        let mut added = BTreeMap::new();
        for Kept { of, old } in kept {
            let value = Some(encode_history(old.as_deref()));
            rows.push(Mutation { key: history_key(of, newest), value });
            for released in old.iter().flat_map(|old| references(of.table, old)) {
                *added.entry(released.range.object).or_default() += i64::from(released.bytes);
            }
        }
        rows.extend(booked(&*self.below, self.snapshots.share, &added)?);
        rows.extend(mutations);
        self.below.commit(kind, rows)
    }

    /// Rows that a batch changes and that were there at `newest` before or are after it.
    fn changed<'a>(
        &self,
        newest: SnapshotId,
        mutations: &'a [Mutation],
    ) -> Result<Vec<Kept<'a>>, EngineError> {
        // Of several changes of one row the last one wins.
        let mut last: BTreeMap<KeyRef<'a>, Option<&'a [u8]>> = BTreeMap::new();
        for Mutation { key, value } in mutations.iter().filter(|row| is_versioned(row.key.table)) {
            last.insert(key.borrow(), value.as_deref());
        }
        let (keys, new): (Vec<_>, Vec<_>) = last.into_iter().unzip();
        let mut kept = Vec::new();
        self.below.get_many(&keys, &mut |index, row| {
            let (of, old, new) = (keys[index], row.value, new[index]);
            if old == new {
                return;
            }
            let there = |row: &&[u8]| was_there(of.table, row, newest);
            let old = old.filter(there);
            if old.is_some() || new.is_some_and(|new| there(&new)) {
                kept.push(Kept { of, old: old.map(Into::into) });
            }
        })?;
        Ok(kept)
    }

    /// Leaves out what history has already. With the gate held.
    fn without_known(
        &self,
        newest: SnapshotId,
        kept: &mut Vec<Kept<'_>>,
    ) -> Result<(), EngineError> {
        let mut known = vec![false; kept.len()];
        if self.snapshots.has_removed_above(newest) {
            for (row, known) in kept.iter().zip(&mut known) {
                *known = first_from(&*self.below, row.of, newest)?.is_some();
            }
        } else {
            let keys: Vec<Key> = kept.iter().map(|row| history_key(row.of, newest)).collect();
            let keys: Vec<KeyRef<'_>> = keys.iter().map(Key::borrow).collect();
            self.below.get_many(&keys, &mut |index, row| known[index] = row.value.is_some())?;
        }
        let mut known = known.into_iter();
        kept.retain(|_| !known.next().unwrap_or(false));
        Ok(())
    }
}

impl Layer for HistoryLayer {
    fn below(&self) -> &dyn Engine {
        &*self.below
    }

    /// A handle of the engine below, on which a node of its own is opened.
    fn claim(self: Arc<Self>) -> Result<Arc<dyn Engine>, EngineError> {
        self.below.clone().claim()
    }

    #[inline]
    fn commit(&self, kind: BatchKind, mutations: Vec<Mutation>) -> Result<Position, EngineError> {
        match self.snapshots.newest() {
            None => self.below.commit(kind, mutations),
            Some(newest) => self.commit_with_history(newest, kind, mutations),
        }
    }
}

/// Of a row's history rows the one with the lowest snapshot that is at least `from`: its value.
fn first_from(
    engine: &dyn Engine,
    of: KeyRef<'_>,
    from: SnapshotId,
) -> Result<Option<Box<[u8]>>, EngineError> {
    let prefix = history_prefix(of.table, of.suffix);
    let after = [&prefix[..], &from.saturating_sub(1).to_be_bytes()].concat();
    let mut found = None;
    engine.scan(Table::History, of.id, Some(&after), &mut |suffix, row, _| {
        let at = suffix.strip_prefix(&prefix[..]);
        if at.is_some_and(|at| at.len() == 8) {
            found = Some(row.into());
        }
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Rows by which history refers to so many bytes more of objects, or fewer. With the gate held.
fn booked(
    engine: &dyn Engine,
    share: u16,
    changes: &BTreeMap<ObjectId, i64>,
) -> Result<Vec<Mutation>, EngineError> {
    let share = share.to_be_bytes();
    let keys: Vec<KeyRef<'_>> =
        changes.keys().map(|object| KeyRef::new(Table::ObjStat, *object, &share)).collect();
    let mut shares = vec![Ok(ObjStat::default()); keys.len()];
    engine.get_many(&keys, &mut |index, row| {
        if let Some(row) = row.value {
            shares[index] = ObjStat::decode(row);
        }
    })?;
    let mut rows = Vec::with_capacity(keys.len());
    for ((key, stat), change) in keys.iter().zip(shares).zip(changes.values()) {
        let referenced = stat.map_err(|why| damaged("objstat", &why))?.referenced + change;
        // The shares of workers stay for as long as the object does.
        let value = (referenced != 0).then(|| ObjStat { referenced }.encode());
        rows.push(Mutation { key: Key::new(key.table, key.id, &share), value });
    }
    Ok(rows)
}

/// Commits rows that get another owner, or have got one: to `below`, the engine under the layer,
/// so that nothing is noted as a change of a row. What rows of table `history` refer to is counted
/// here from now on, or not any more; `due` makes the row by which an object is looked at that may
/// have lost its last reference.
///
/// # Errors
/// The engine's: nothing has happened.
pub fn commit_moved(
    below: &dyn Engine,
    snapshots: &KnownSnapshots,
    kind: BatchKind,
    mut rows: Vec<Mutation>,
    due: &dyn Fn(ObjectId) -> Mutation,
) -> Result<Position, EngineError> {
    let history: Vec<&Mutation> =
        rows.iter().filter(|row| row.key.table == Table::History).collect();
    if history.is_empty() {
        return below.commit(kind, rows);
    }
    let _alone = snapshots.gate.write();
    let mut changes: BTreeMap<ObjectId, i64> = BTreeMap::new();
    let mut count = |key: KeyRef<'_>, value: &[u8], sign: i64| {
        let of = decode_history_key(key).map(|(of, _)| of.table);
        // What cannot be read refers to nothing that is known.
        let (Some(of), Ok(Some(old))) = (of, decode_history(value)) else { return };
        for released in references(of, old) {
            *changes.entry(released.range.object).or_default() += sign * i64::from(released.bytes);
        }
    };
    let keys: Vec<KeyRef<'_>> = history.iter().map(|row| row.key.borrow()).collect();
    below.get_many(&keys, &mut |index, row| {
        row.value.iter().for_each(|value| count(keys[index], value, -1));
    })?;
    for row in history {
        row.value.iter().for_each(|value| count(row.key.borrow(), value, 1));
    }
    changes.retain(|_, bytes| *bytes != 0);
    let booked = booked(below, snapshots.share, &changes)?;
    rows.extend(booked);
    rows.extend(changes.iter().filter(|(_, bytes)| **bytes < 0).map(|(object, _)| due(*object)));
    below.commit(kind, rows)
}

pub(crate) fn damaged(what: &str, why: &DecodeError) -> EngineError {
    EngineError::Corrupt(format!("metadata: damaged row: {what}: {why}; run kestrel fsck"))
}
