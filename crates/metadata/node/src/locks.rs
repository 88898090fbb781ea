//! Rows that are lent to transactions over several nodes, and so locked here.
//!
//! A transaction reads (shared) or may write (exclusive) single rows and whole ranges,
//! `(table, id)`. A request that meets a lock that excludes it is told so at once: transactions
//! give up and begin again later, requests of this node are parked by their `kestrel_cluster`. No
//! holder of a lock waits for another one, so there is no deadlock.
//!
//! Locks change only with every worker's state of the node held, so a batch sees the same ones from
//! beginning to end. While there are none, looking costs one load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;
use parking_lot::Mutex;

/// A transaction over several nodes; one attempt of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId {
    /// The node that leads it, its home.
    pub node: NodeId,
    /// Which start of that node.
    pub epoch: u64,
    /// Counts the node's transactions since.
    pub number: u64,
}

/// What a lock allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLockMode {
    /// Reading, beside other readers.
    Shared,
    /// Reading and writing.
    Exclusive,
}

#[derive(Debug, Default)]
struct Lock {
    writer: Option<TxnId>,
    readers: BTreeSet<TxnId>,
}

impl Lock {
    /// Whether others than `txn` exclude it.
    fn excludes(&self, txn: TxnId, mode: RowLockMode) -> bool {
        self.writer.is_some_and(|writer| writer != txn)
            || mode == RowLockMode::Exclusive && self.readers.iter().any(|reader| *reader != txn)
    }

    fn take(&mut self, txn: TxnId, mode: RowLockMode) {
        match mode {
            RowLockMode::Shared => {
                self.readers.insert(txn);
            }
            RowLockMode::Exclusive => self.writer = Some(txn),
        }
    }

    /// Whether nothing is left of it without `txn`.
    fn give(&mut self, txn: TxnId) -> bool {
        self.readers.remove(&txn);
        self.writer.take_if(|writer| *writer == txn);
        self.writer.is_none() && self.readers.is_empty()
    }
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Key, Lock>,
    ranges: BTreeMap<(Table, u64), Lock>,
    held: BTreeMap<TxnId, TxnLocks>,
}

/// What a transaction has locked; some of it perhaps repeatedly.
#[derive(Debug, Default)]
struct TxnLocks {
    keys: Vec<Key>,
    ranges: Vec<(Table, u64)>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct LockTable {
    any: AtomicUsize,
    state: Mutex<State>,
}

impl State {
    fn row_excludes(&self, txn: TxnId, key: &Key, mode: RowLockMode) -> bool {
        self.rows.get(key).is_some_and(|lock| lock.excludes(txn, mode))
            || self.ranges.get(&(key.table, key.id)).is_some_and(|lock| lock.excludes(txn, mode))
    }

    fn range_excludes(&self, txn: TxnId, range: (Table, u64), mode: RowLockMode) -> bool {
        let (table, id) = range;
        self.ranges.get(&range).is_some_and(|lock| lock.excludes(txn, mode))
            || self
                .rows
                .range(Key::new(table, id, b"")..)
                .take_while(|(key, _)| (key.table, key.id) == range)
                .any(|(_, lock)| lock.excludes(txn, mode))
    }
}

/// Stands for requests of the node itself, which hold no locks.
const NOBODY: TxnId = TxnId { node: NodeId::MAX, epoch: 0, number: 0 };

impl LockTable {
    /// Whether anything is locked.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire) > 0
    }

    /// Locks all of these, or nothing if one of them is excluded. With every worker's state held.
    pub fn take(
        &self,
        txn: TxnId,
        keys: &[Key],
        ranges: &[(Table, u64)],
        mode: RowLockMode,
    ) -> bool {
        let mut state = self.state.lock();
        let excluded = keys.iter().any(|key| state.row_excludes(txn, key, mode))
            || ranges.iter().any(|range| state.range_excludes(txn, *range, mode));
        if excluded {
            return false;
        }
        for key in keys {
            state.rows.entry(key.clone()).or_default().take(txn, mode);
        }
        for range in ranges {
            state.ranges.entry(*range).or_default().take(txn, mode);
        }
        let held = state.held.entry(txn).or_default();
        held.keys.extend_from_slice(keys);
        held.ranges.extend_from_slice(ranges);
        self.any.store(state.rows.len() + state.ranges.len(), Ordering::Release);
        true
    }

    /// Gives up everything that a transaction has locked. With every worker's state held.
    pub fn release(&self, txn: TxnId) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let TxnLocks { keys, ranges } = state.held.remove(&txn).unwrap_or_default();
        for key in keys {
            if let Some(lock) = state.rows.get_mut(&key)
                && lock.give(txn)
            {
                state.rows.remove(&key);
            }
        }
        for range in ranges {
            if let Some(lock) = state.ranges.get_mut(&range)
                && lock.give(txn)
            {
                state.ranges.remove(&range);
            }
        }
        self.any.store(state.rows.len() + state.ranges.len(), Ordering::Release);
    }

    /// Whether any of these is locked, by any transaction.
    pub fn holds_any(&self, keys: &[Key], ranges: &[(Table, u64)]) -> bool {
        if !self.any() {
            return false;
        }
        let state = self.state.lock();
        keys.iter().any(|key| state.row_excludes(NOBODY, key, RowLockMode::Exclusive))
            || ranges
                .iter()
                .any(|range| state.range_excludes(NOBODY, *range, RowLockMode::Exclusive))
    }

    /// Whether some row is locked that `row` holds for, or some range that `range` does.
    pub fn touches(&self, row: impl Fn(&Key) -> bool, range: impl Fn(Table, u64) -> bool) -> bool {
        let state = self.state.lock();
        state.rows.keys().any(row) || state.ranges.keys().any(|(table, id)| range(*table, *id))
    }

    /// Whether a lock keeps requests of the node from a row.
    #[inline]
    pub fn bars(&self, key: KeyRef<'_>, mode: RowLockMode) -> bool {
        self.any() && self.state.lock().row_excludes(NOBODY, &key.to_owned(), mode)
    }

    /// Whether a lock keeps requests of the node from reading a range.
    pub fn bars_range(&self, range: (Table, u64)) -> bool {
        self.any() && self.state.lock().range_excludes(NOBODY, range, RowLockMode::Shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(number: u64) -> TxnId {
        TxnId { node: 1, epoch: 1, number }
    }

    #[test]
    fn readers_share_and_writers_exclude() {
        let locks = LockTable::default();
        let (a, b) = (Key::new(Table::Entry, 1, b"a"), Key::new(Table::Entry, 1, b"b"));
        assert!(locks.take(txn(1), std::slice::from_ref(&a), &[], RowLockMode::Shared));
        assert!(locks.take(txn(2), std::slice::from_ref(&a), &[], RowLockMode::Shared));
        assert!(!locks.take(txn(3), &[b.clone(), a.clone()], &[], RowLockMode::Exclusive));
        assert!(
            !locks.bars(b.borrow(), RowLockMode::Exclusive),
            "nothing of a lock that was refused stays"
        );
        assert!(
            !locks.bars(a.borrow(), RowLockMode::Shared)
                && locks.bars(a.borrow(), RowLockMode::Exclusive)
        );
        locks.release(txn(1));
        assert!(
            locks.take(txn(2), std::slice::from_ref(&a), &[], RowLockMode::Exclusive),
            "its own reading is no obstacle"
        );
        assert!(locks.bars(a.borrow(), RowLockMode::Shared));
        locks.release(txn(2));
        assert!(!locks.any());
        locks.release(txn(2));
    }

    #[test]
    fn ranges_and_rows_in_them_exclude_each_other() {
        let locks = LockTable::default();
        let row = Key::new(Table::Entry, 7, b"x");
        assert!(locks.take(txn(1), &[], &[(Table::Entry, 7)], RowLockMode::Shared));
        assert!(!locks.take(txn(2), std::slice::from_ref(&row), &[], RowLockMode::Exclusive));
        assert!(locks.take(
            txn(2),
            &[Key::new(Table::Entry, 8, b"x")],
            &[],
            RowLockMode::Exclusive
        ));
        assert!(
            locks.bars(row.borrow(), RowLockMode::Exclusive)
                && !locks.bars_range((Table::Entry, 7))
        );
        assert!(locks.bars_range((Table::Entry, 8)));
        locks.release(txn(1));
        assert!(locks.take(txn(3), std::slice::from_ref(&row), &[], RowLockMode::Exclusive));
        assert!(!locks.take(txn(4), &[], &[(Table::Entry, 7)], RowLockMode::Shared));
    }
}
