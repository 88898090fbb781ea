//! The rows of a volume of one node, made of those that several share: what a dump holds, of one
//! node or of several.
//!
//! What several nodes have each for itself becomes one: shares of a directory or an object are
//! added up, counters begin above all that is in use. What only nodes of one cluster need (`moved`,
//! `txn`) is in no dump. Inode and object numbers stay.
//!
//! | file | what it has |
//! | --- | --- |
//! | `merge/history.rs` | what directories' figures were at snapshots |

pub(crate) mod history;

use std::collections::BTreeMap;

use kestrel_engine::{BatchKind, Engine, EngineError, Mutation};
use kestrel_types::clock::{Nanos, SECOND};
use kestrel_types::entry::Entry;
use kestrel_types::ids::{FIRST_INODE, FIRST_OBJECT, InodeId, ObjectId};
use kestrel_types::key::{Key, Table};
use kestrel_types::placement::{NodeId, is_history_share, maker_of_id, maker_of_object};
use kestrel_types::snapshot::{
    HISTORY_SHARE, RECORD_PREFIX, SnapshotInfo, decode_history, decode_history_key,
};
use kestrel_types::stat::{DirStat, ObjStat};

use crate::info::InfoError;
use crate::references::{Seen, of_row};
use crate::rows::{
    INODES, OBJECTS, Row, Rows, SHARES, delete, encode_ceiling, encode_shares_with_history, put,
};

/// Changes committed together.
const BATCH: usize = 4096;

/// The highest numbers in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Highest {
    /// Of all inodes and all objects.
    pub inode: InodeId,
    /// See above.
    pub object: ObjectId,
    /// The counters of which nodes made numbers, inodes' and objects'.
    pub counters: BTreeMap<NodeId, [u64; 2]>,
}

impl Highest {
    /// Counts the numbers in a row.
    pub fn add(&mut self, key: &Key, value: &[u8]) {
        match key.table {
            Table::Entry => {
                Entry::peek(value).ok().into_iter().for_each(|(ino, _)| self.inode(ino))
            }
            Table::Link | Table::Chunk | Table::DirId => self.inode(key.id),
            Table::ObjStat => self.object(key.id),
            Table::History => self.then(key, value),
            _ => {}
        }
        of_row(key, value, &mut |seen| {
            if let Seen::Reference(reference) = seen {
                self.object(reference.range.object);
            }
        });
    }

    /// What was there at a snapshot, and may be there no more.
    fn then(&mut self, key: &Key, value: &[u8]) {
        let Some((of, _)) = decode_history_key(key.borrow()) else { return };
        match (of.table, decode_history(value)) {
            (Table::Entry, Ok(Some(old))) => {
                Entry::peek(old).ok().into_iter().for_each(|(ino, _)| self.inode(ino));
            }
            (Table::Link | Table::Chunk | Table::DirId, _) => self.inode(of.id),
            _ => {}
        }
    }

    fn inode(&mut self, ino: InodeId) {
        self.inode = self.inode.max(ino);
        let (counter, maker) = maker_of_id(ino);
        let highest = &mut self.counters.entry(maker).or_default()[0];
        *highest = counter.max(*highest);
    }

    /// An object that is in use.
    pub fn object(&mut self, object: ObjectId) {
        self.object = self.object.max(object);
        let (counter, maker) = maker_of_object(object);
        let highest = &mut self.counters.entry(maker).or_default()[1];
        *highest = counter.max(*highest);
    }
}

/// Changes the rows in `engine`, put together of those of several nodes, to those of one. An object
/// that nothing refers to is scheduled for deletion at `now`.
///
/// # Errors
/// Those of the engine; damaged shares.
pub fn make(engine: &dyn Engine, now: Nanos) -> Result<(), InfoError> {
    history::add_up_history(engine)?;
    let mut batch = Batch { engine, changes: Vec::new() };
    let has_snapshots = end_cuts(engine, &mut batch)?;
    for row in Rows::new(engine, Table::Reap) {
        batch.add(delete(&row?.0))?;
    }
    add_up(engine, Table::DirStat, &mut |dir, rows| {
        let mut total = DirStat::default();
        for (key, value) in rows {
            total.merge(&DirStat::decode(value)?);
            batch.add(delete(key))?;
        }
        Ok(batch.add(put(Table::DirStat, dir, &history::ONE_SHARE, total.encode()))?)
    })?;
    let seconds = (now.max(0) / SECOND).cast_unsigned();
    add_up(engine, Table::ObjStat, &mut |object, rows| {
        let (mut total, mut history) = (ObjStat::default(), ObjStat::default());
        for (key, value) in rows {
            let sum = if is_history_share(&key.suffix) { &mut history } else { &mut total };
            sum.referenced = sum.referenced.saturating_add(ObjStat::decode(value)?.referenced);
            batch.add(delete(key))?;
        }
        if total.referenced.saturating_add(history.referenced) <= 0 {
            batch.add(put(Table::Reap, seconds, &object.to_be_bytes(), Box::default()))?;
        }
        if history.referenced != 0 {
            let share = HISTORY_SHARE.to_be_bytes();
            batch.add(put(Table::ObjStat, object, &share, history.encode()))?;
        }
        Ok(batch.add(put(Table::ObjStat, object, &history::ONE_SHARE, total.encode()))?)
    })?;
    let mut highest = Highest::default();
    let numbered =
        [Table::Entry, Table::Link, Table::Chunk, Table::DirId, Table::ObjStat, Table::History];
    for table in numbered {
        for row in Rows::new(engine, table) {
            let (key, value) = row?;
            highest.add(&key, &value);
        }
    }
    let counters = [
        (INODES, highest.inode.saturating_add(1).max(FIRST_INODE)),
        (OBJECTS, highest.object.saturating_add(1).max(FIRST_OBJECT)),
    ];
    for (name, value) in counters {
        batch.add(put(Table::System, 0, name, encode_ceiling(value)))?;
    }
    let shares = if has_snapshots { encode_shares_with_history(1) } else { encode_ceiling(1) };
    batch.add(put(Table::System, 0, SHARES, shares))?;
    Ok(batch.send()?)
}

/// No member ends a cut or a comparison that was under way: what was kept for the snapshot is given
/// back. Whether there are snapshots, or such.
fn end_cuts(engine: &dyn Engine, batch: &mut Batch<'_>) -> Result<bool, InfoError> {
    let mut found = false;
    for row in Rows::from(engine, Table::System, 0, RECORD_PREFIX) {
        let (key, value) = row?;
        let Some(record) = SnapshotInfo::decode(&key.suffix, &value) else { break };
        found = true;
        if let Ok(info) = record
            && (info.cutting || info.hidden && info.clones.is_empty())
        {
            let ended = SnapshotInfo { removing: true, cutting: false, ..info };
            batch.add(Mutation { key, value: Some(ended.encode()) })?;
        }
    }
    Ok(found)
}

/// Gets an id, and all its rows.
pub(crate) type VisitId<'a> = dyn FnMut(u64, &[Row]) -> Result<(), InfoError> + 'a;

/// Shows the rows of each id of a table together.
pub(crate) fn add_up(
    engine: &dyn Engine,
    table: Table,
    visit: &mut VisitId<'_>,
) -> Result<(), InfoError> {
    let mut rows = Rows::new(engine, table);
    let mut together: Vec<Row> = Vec::new();
    loop {
        let row = rows.next().transpose()?;
        if let Some(id) = together.first().map(|(key, _)| key.id)
            && row.as_ref().is_none_or(|(key, _)| key.id != id)
        {
            visit(id, &together)?;
            together.clear();
        }
        match row {
            Some(row) => together.push(row),
            None => return Ok(()),
        }
    }
}

struct Batch<'a> {
    engine: &'a dyn Engine,
    changes: Vec<Mutation>,
}

impl Batch<'_> {
    fn add(&mut self, change: Mutation) -> Result<(), EngineError> {
        self.changes.push(change);
        if self.changes.len() >= BATCH { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), EngineError> {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            Ok(())
        } else {
            self.engine.commit(BatchKind::Growing, changes).map(drop)
        }
    }
}
