//! Rows of a volume that several nodes share: those that are not to be had here, and those that
//! were lent from elsewhere.

use std::collections::BTreeMap;

use kestrel_types::key::{Key, KeyRef, Table, number_of};
use rustc_hash::FxHashMap;

use super::scan::Scanned;
use super::{BatchRows, CellId, Value, is_full};
use crate::locks::{LockTable, RowLockMode};
use crate::owners::MapView;
use crate::stop::{Run, Stop};
use crate::sums::LeasedShares;

/// Why a row is not to be had by a request of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowBlocked {
    /// It is another node's.
    Away,
    /// It is lent to a transaction.
    Locked,
}

impl RowBlocked {
    fn stop(self) -> Stop {
        match self {
            RowBlocked::Away => Stop::Away,
            RowBlocked::Locked => Stop::Locked,
        }
    }
}

/// Rows of `(table, id)` in the order of their suffixes, from after one on, so many at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Table.
    pub table: Table,
    /// Id.
    pub id: u64,
    /// Suffix to begin after.
    pub after: Option<Box<[u8]>>,
    /// Most rows.
    pub rows_max: u32,
}

/// Suffixes and values of the rows of a range.
pub type SpanRows = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// What a transaction over several nodes has been lent so far. Whatever it lacks it asks for and is
/// run again.
#[derive(Debug, Default)]
pub struct TxnRows {
    /// Rows that were asked for, there or not.
    pub rows: FxHashMap<Key, Option<Box<[u8]>>>,
    /// Ranges that were asked for: suffixes and values of what is there.
    pub spans: BTreeMap<Span, SpanRows>,
}

/// What a transaction lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Single rows.
    pub keys: Vec<Key>,
    /// Ranges.
    pub spans: Vec<Span>,
}

/// What a request of one of several nodes may have: rows that the node owns and nobody has locked.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// The placement map.
    pub table: &'a MapView,
    /// What is lent.
    pub locks: &'a LockTable,
    /// Directories with shares that other nodes were told.
    pub leased: &'a LeasedShares,
    /// Nothing changes at present.
    pub stopped: bool,
}

impl Scope<'_> {
    fn bar(&self, key: KeyRef<'_>, mode: RowLockMode) -> Option<RowBlocked> {
        if !self.table.owns(key.table, key.id, key.suffix) {
            return Some(RowBlocked::Away);
        }
        let locked =
            self.table.is_leaving(key.table, key.id, key.suffix) || self.locks.bars(key, mode);
        locked.then_some(RowBlocked::Locked)
    }
}

impl BatchRows {
    /// Bars what is wanted and not to be had here.
    pub(super) fn bar(&mut self, scope: Scope<'_>) {
        let (cells, suffixes) = (&mut self.cells, &self.suffixes);
        self.wanted.retain(|number| {
            let cell = &mut cells[*number as usize];
            let suffix = &suffixes[cell.suffix as usize..][..usize::from(cell.suffix_len)];
            let bar = scope.bar(KeyRef::new(cell.table, cell.id, suffix), RowLockMode::Shared);
            if let Some(bar) = bar {
                cell.value = Value::Barred(bar);
            }
            bar.is_none()
        });
        let barred = &mut self.barred;
        self.wanted_scans.retain(|(table, id, _)| {
            // What is scanned has its home at its id.
            let bar = if scope.table.home_of(*id) != scope.table.me {
                Some(RowBlocked::Away)
            } else {
                let locked =
                    scope.table.is_leaving_home(*id) || scope.locks.bars_range((*table, *id));
                locked.then_some(RowBlocked::Locked)
            };
            if let Some(bar) = bar {
                barred.insert((*table, *id), bar);
            }
            bar.is_none()
        });
    }

    /// What becomes of an operation that needs a cell that has not been fetched.
    #[cold]
    pub fn why_not_here(&self, cell: CellId) -> Stop {
        match &self.cells[cell as usize].value {
            Value::Barred(bar) => bar.stop(),
            _ => Stop::Need,
        }
    }

    /// Whether a range is not to be had here.
    pub(super) fn is_barred(&self, table: Table, id: u64) -> bool {
        !self.barred.is_empty() && self.barred.contains_key(&(table, id))
    }

    /// Stops if a range is not to be had here.
    pub fn is_group_here(&self, table: Table, id: u64) -> Run<()> {
        self.barred.get(&(table, id)).map_or(Ok(()), |bar| Err(bar.stop()))
    }

    /// Whether the operation that just ran has changed rows that a request of this node must not
    /// change, and what becomes of it then.
    #[inline]
    pub fn trespass(&self, scope: Scope<'_>) -> Option<Stop> {
        let Scope { table, locks, leased, stopped } = scope;
        if stopped && !self.journal.is_empty() {
            return Some(Stop::Stopped);
        }
        self.journal.iter().find_map(|undo| {
            let cell = &self.cells[undo.cell as usize];
            let suffix = self.suffix_of(cell);
            if !table.owns(cell.table, cell.id, suffix) {
                return Some(Stop::Away);
            }
            let locked = table.is_leaving(cell.table, cell.id, suffix)
                || locks.bars(KeyRef::new(cell.table, cell.id, suffix), RowLockMode::Exclusive);
            if !locked && cell.table == Table::DirStat && leased.bars(cell.id) {
                return Some(Stop::Leased(cell.id));
            }
            locked.then_some(Stop::Locked)
        })
    }

    /// Gives what was wanted from what was lent, of the chunks of a file at most `most`; what is
    /// still missing.
    pub fn supply(&mut self, lent: &TxnRows, most: usize) -> Missing {
        let mut missing = Missing::default();
        for (table, id, first) in std::mem::take(&mut self.wanted_scans) {
            let after = first.checked_sub(1).map(|before| before.to_be_bytes()[..].into());
            let span = Span { table, id, after, rows_max: u32::MAX };
            let Some(rows) = lent.spans.get(&span) else {
                missing.spans.push(span);
                continue;
            };
            let (mut found, mut bytes, mut left_out): (Vec<Scanned>, _, _) = (Vec::new(), 0, None);
            for (suffix, value) in rows {
                bytes += value.len();
                if table == Table::Chunk && is_full(most, found.len(), bytes) {
                    left_out = Some(number_of(suffix));
                    break;
                }
                let (start, len) = self.keep_value(value);
                found.push((suffix.to_vec(), start, len, 0));
            }
            self.take_scan(table, id, first, &found, left_out, 0);
        }
        for number in std::mem::take(&mut self.wanted) {
            let cell = &self.cells[number as usize];
            let key = Key::new(cell.table, cell.id, self.suffix_of(cell));
            match lent.rows.get(&key) {
                None => {
                    missing.keys.push(key);
                    self.wanted.push(number);
                }
                Some(value) => {
                    let value = value.as_ref().map(|value| self.keep_value(value));
                    let cell = &mut self.cells[number as usize];
                    cell.stored = value.is_some();
                    cell.value = value.map_or(Value::Absent, |(start, len)| Value::Raw(start, len));
                }
            }
        }
        missing
    }

    fn keep_value(&mut self, value: &[u8]) -> (u32, u32) {
        let start = self.values.len() as u32;
        self.values.extend_from_slice(value);
        (start, value.len() as u32)
    }
}
