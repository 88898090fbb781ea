//! The rows of a volume as they were at a snapshot: an engine that cannot be changed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use kestrel_engine::{BatchKind, Engine, EngineError, Layer, Mutation, Row, VisitRow};
use kestrel_types::ids::Position;
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::{NodeId, WORKERS_MAX};
use kestrel_types::snapshot::{
    SnapshotId, decode_history, decode_history_key, history_key, history_prefix, is_versioned,
    was_there,
};
use kestrel_types::stat::DirStat;

use super::known::KnownSnapshots;
use super::{damaged, first_from};
use crate::owners::share_holder_of;

/// Why a snapshot is read no more.
pub const GONE: &str = "the snapshot has been removed";

/// Present rows that one step of a scan reads.
const PAGE_ROWS: usize = 512;

/// History rows that one step of a scan reads, or more if they are all of one row.
const PAGE_HISTORY: usize = 2048;

/// With so many snapshots from the one that is read on, or fewer, their history rows are looked up
/// by their keys, all rows at once.
const LOOKUPS_MAX: usize = 8;

/// A row: suffix and value.
type Found = (Box<[u8]>, Box<[u8]>);

/// History of rows, and the suffix up to which it is complete, if there is more.
type HistoryPage = (Vec<Found>, Option<Box<[u8]>>);

/// See the module's header. Of a directory's shares each node has one here, that of its worker 0,
/// with the sum of all that bear the node's number: how many those may be differs from node to node
/// and changes. A node alone has number 0.
pub struct SnapshotEngine {
    below: Arc<dyn Engine>,
    snapshots: Arc<KnownSnapshots>,
    at: SnapshotId,
}

/// What one step of a scan found.
struct Page {
    rows: Vec<Found>,
    /// Suffix after which the next step goes on.
    next: Option<Box<[u8]>>,
}

impl SnapshotEngine {
    /// The rows of `below` as they were.
    pub fn new(below: Arc<dyn Engine>, snapshots: Arc<KnownSnapshots>, at: SnapshotId) -> Self {
        Self { below, snapshots, at }
    }

    /// Fails once the snapshot is being removed: history that only it needs may be gone. With the
    /// gate held.
    fn check(&self) -> Result<(), EngineError> {
        match self.snapshots.get(self.at) {
            Some(_) => Ok(()),
            None => Err(EngineError::Refused(GONE.into())),
        }
    }

    /// What a row was, by its history row or else by what it is.
    fn then(
        &self,
        table: Table,
        history: Option<Box<[u8]>>,
        present: Option<Box<[u8]>>,
    ) -> Result<Option<Box<[u8]>>, EngineError> {
        let row = match history {
            None => present,
            Some(history) => {
                decode_history(&history).map_err(|why| damaged("history", &why))?.map(Into::into)
            }
        };
        Ok(row.filter(|row| was_there(table, row, self.at)))
    }

    /// The rows of these keys, all of versioned tables.
    fn read(&self, keys: &[KeyRef<'_>]) -> Result<Vec<Option<Box<[u8]>>>, EngineError> {
        let _gate = self.snapshots.gate.read();
        self.check()?;
        let mut present: Vec<Option<Box<[u8]>>> = vec![None; keys.len()];
        self.below.get_many(keys, &mut |index, row| present[index] = row.value.map(Into::into))?;
        let ids = self.snapshots.ids_from(self.at);
        let mut history: Vec<Option<Box<[u8]>>> = vec![None; keys.len()];
        if ids.len() <= LOOKUPS_MAX {
            let all: Vec<Key> =
                keys.iter().flat_map(|key| ids.iter().map(|id| history_key(*key, *id))).collect();
            let all: Vec<KeyRef<'_>> = all.iter().map(Key::borrow).collect();
            // By key the lowest snapshot that has one.
            let mut lowest = vec![usize::MAX; keys.len()];
            self.below.get_many(&all, &mut |index, row| {
                let (key, snapshot) = (index / ids.len(), index % ids.len());
                if let Some(row) = row.value
                    && snapshot < lowest[key]
                {
                    (lowest[key], history[key]) = (snapshot, Some(row.into()));
                }
            })?;
        } else {
            for (key, found) in keys.iter().zip(&mut history) {
                *found = first_from(&*self.below, *key, self.at)?;
            }
        }
        let rows = keys.iter().zip(history).zip(present);
        rows.map(|((key, history), present)| self.then(key.table, history, present)).collect()
    }

    /// The one share of a directory that a node has, if it had any.
    fn share(&self, dir: u64, holder: NodeId) -> Result<Option<Box<[u8]>>, EngineError> {
        let (mut sum, mut damage) = (None, None);
        let mut visit = |share: &[u8], row: &[u8], _| match DirStat::decode(row) {
            _ if share_holder_of(share) != holder => ControlFlow::Continue(()),
            Ok(stat) => {
                sum.get_or_insert(DirStat::default()).merge(&stat);
                ControlFlow::Continue(())
            }
            Err(why) => {
                damage = Some(damaged("dirstat", &why));
                ControlFlow::Break(())
            }
        };
        self.scan_then(Table::DirStat, dir, None, &mut visit)?;
        damage.map_or(Ok(sum.map(|sum| sum.encode())), Err)
    }

    fn scan_then(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), EngineError> {
        let mut after: Option<Box<[u8]>> = after.map(Into::into);
        loop {
            let Page { rows, next } = self.page(table, id, after.as_deref())?;
            for (suffix, row) in &rows {
                if visit(suffix, row, 0).is_break() {
                    return Ok(());
                }
            }
            if next.is_none() {
                return Ok(());
            }
            after = next;
        }
    }

    /// The next rows of `(table, id)`: the present ones up to some suffix, and the history rows up
    /// to there.
    fn page(&self, table: Table, id: u64, after: Option<&[u8]>) -> Result<Page, EngineError> {
        let _gate = self.snapshots.gate.read();
        self.check()?;
        let mut present: BTreeMap<Box<[u8]>, Box<[u8]>> = BTreeMap::new();
        self.below.scan(table, id, after, &mut |suffix, row, _| {
            present.insert(suffix.into(), row.into());
            match present.len() < PAGE_ROWS {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        let is_full = present.len() == PAGE_ROWS;
        let last = present.last_key_value().filter(|_| is_full).map(|(suffix, _)| suffix.clone());
        let (history, cut) = self.history_page(table, id, after, last.as_deref())?;
        let bound = cut.or(last);
        let mut rows = Vec::with_capacity(present.len());
        let mut history = history.into_iter().peekable();
        let mut show = |suffix: Box<[u8]>, history, present| {
            let row = self.then(table, history, present)?;
            rows.extend(row.map(|row| (suffix, row)));
            Ok::<(), EngineError>(())
        };
        for (suffix, row) in present {
            if bound.as_ref().is_some_and(|bound| suffix > *bound) {
                break;
            }
            while let Some((before, old)) = history.next_if(|(before, _)| *before < suffix) {
                show(before, Some(old), None)?;
            }
            let old = history.next_if(|(same, _)| *same == suffix).map(|(_, old)| old);
            show(suffix, old, Some(row))?;
        }
        for (suffix, old) in history {
            show(suffix, Some(old), None)?;
        }
        Ok(Page { rows, next: bound })
    }

    /// Of the rows after `after` up to `last` those that have history: suffix and history value.
    /// And the suffix up to which that is complete, if there was too much.
    fn history_page(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        last: Option<&[u8]>,
    ) -> Result<HistoryPage, EngineError> {
        let from = match after {
            None => vec![table as u8],
            Some(after) => [&history_prefix(table, after)[..], &[0xff; 8]].concat(),
        };
        let (mut found, mut seen, mut cut): (Vec<Found>, usize, Option<Box<[u8]>>) =
            (Vec::new(), 0, None);
        // The row that history is being read of.
        let mut current: Box<[u8]> = Box::default();
        let mut damage = None;
        self.below.scan(Table::History, id, Some(&from), &mut |suffix, value, _| {
            if suffix.first() != Some(&(table as u8)) {
                return ControlFlow::Break(());
            }
            let Some((of, at)) = decode_history_key(KeyRef::new(Table::History, id, suffix)) else {
                damage = Some(super::DecodeError("a key that no row has"));
                return ControlFlow::Break(());
            };
            if last.is_some_and(|last| of.suffix > last) {
                return ControlFlow::Break(());
            }
            let is_new = seen == 0 || *current != *of.suffix;
            if is_new && seen >= PAGE_HISTORY {
                cut = Some(current.clone());
                return ControlFlow::Break(());
            }
            if is_new {
                current = of.suffix.into();
            }
            seen += 1;
            let is_found = found.last().is_some_and(|(suffix, _)| **suffix == *of.suffix);
            if at >= self.at && !is_found {
                found.push((of.suffix.into(), value.into()));
            }
            ControlFlow::Continue(())
        })?;
        match damage {
            Some(why) => Err(damaged("history", &why)),
            None => Ok((found, cut)),
        }
    }

    /// The lowest id from this one on that has rows of the table or history of such.
    fn next_id(&self, table: Table, from: u64) -> Result<Option<u64>, EngineError> {
        let mut present = None;
        let at = Some(KeyRef::new(table, from, b""));
        self.below.scan_table(table, at, &mut |key, _| {
            present = Some(key.id);
            ControlFlow::Break(())
        })?;
        let (mut from, mut history) = (from, None);
        let suffix = [table as u8];
        while history.is_none() {
            let mut next = None;
            let at = Some(KeyRef::new(Table::History, from, &suffix));
            self.below.scan_table(Table::History, at, &mut |key, _| {
                next = Some((key.id, key.suffix.first().copied()));
                ControlFlow::Break(())
            })?;
            // Behind what another row has of this id, or of one without history of the table.
            let Some((id, first)) = next else { break };
            match first.cmp(&Some(table as u8)) {
                std::cmp::Ordering::Equal => history = Some(id),
                std::cmp::Ordering::Less => from = id,
                std::cmp::Ordering::Greater if id == u64::MAX => break,
                std::cmp::Ordering::Greater => from = id + 1,
            }
        }
        Ok(match (present, history) {
            (Some(present), Some(history)) => Some(present.min(history)),
            (present, history) => present.or(history),
        })
    }
}

/// Whether a share is that of a node's worker 0.
fn is_first_share(suffix: &[u8]) -> bool {
    <[u8; 2]>::try_from(suffix)
        .is_ok_and(|share| usize::from(u16::from_be_bytes(share)).is_multiple_of(WORKERS_MAX))
}

impl Layer for SnapshotEngine {
    fn below(&self) -> &dyn Engine {
        &*self.below
    }

    fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        visit: &mut dyn FnMut(usize, Row<'_>),
    ) -> Result<(), EngineError> {
        let is_plain = |key: &KeyRef<'_>| is_versioned(key.table) && key.table != Table::DirStat;
        let plain: Vec<KeyRef<'_>> = keys.iter().copied().filter(is_plain).collect();
        let mut read = self.read(&plain)?.into_iter();
        for (index, key) in keys.iter().enumerate() {
            let value = match key.table {
                _ if is_plain(key) => read.next().flatten(),
                Table::DirStat if is_first_share(key.suffix) => {
                    self.share(key.id, share_holder_of(key.suffix))?
                }
                _ => None,
            };
            visit(index, Row { value: value.as_deref(), changed_at: 0 });
        }
        Ok(())
    }

    fn scan(
        &self,
        table: Table,
        id: u64,
        after: Option<&[u8]>,
        visit: &mut VisitRow<'_>,
    ) -> Result<Position, EngineError> {
        if is_versioned(table) {
            self.scan_then(table, id, after, visit)?;
        }
        Ok(0)
    }

    fn scan_table(
        &self,
        table: Table,
        from: Option<KeyRef<'_>>,
        visit: &mut dyn FnMut(KeyRef<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        if !is_versioned(table) {
            return Ok(());
        }
        let start = from.unwrap_or(KeyRef::new(table, 0, b""));
        let mut id = start.id;
        while let Some(next) = self.next_id(table, id)? {
            let mut end = ControlFlow::Continue(());
            // The first row itself, and what comes after it.
            let after = (next == start.id && !start.suffix.is_empty()).then_some(start.suffix);
            if after.is_some()
                && let Some(row) = self.read(&[start])?.pop().flatten()
            {
                end = visit(start, &row);
            }
            if end.is_continue() {
                self.scan_then(table, next, after, &mut |suffix, row, _| {
                    end = visit(KeyRef::new(table, next, suffix), row);
                    end
                })?;
            }
            match next.checked_add(1) {
                Some(after) if end.is_continue() => id = after,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn hint_new(&self, _: Table, _: u64) {}

    fn commit(&self, _: BatchKind, _: Vec<Mutation>) -> Result<Position, EngineError> {
        Err(EngineError::Refused("metadata: a snapshot cannot be changed".into()))
    }
}
