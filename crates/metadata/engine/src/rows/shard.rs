//! One shard of the rows in memory: everything of the groups that hash to it, under one lock.

use std::collections::HashMap;

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use rustc_hash::FxBuildHasher;

use super::hash::Hasher;
use super::index::Index;
use super::order::Order;
use super::row::RowPtr;

/// Bytes that a row costs beside its allocation: its slot in the index, its place in the order.
const ROW_OVERHEAD: usize = 24;
/// Bytes that a group costs.
const GROUP_OVERHEAD: usize = 64;

/// What names a group.
pub(crate) type GroupKey = (Table, u64);

/// The rows of one `(table, id)` that are in memory.
struct Group {
    rows: Rows,
    /// Every row that exists is in memory: absent rows need no look at the sorted runs.
    complete: bool,
    /// In the shard's list of groups that have, or had, dirty rows.
    listed: bool,
}

enum Rows {
    None,
    /// Most groups of most tables have one row: no order needed.
    One(RowPtr),
    Many(Box<Order>),
}

/// Bytes in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub bytes: usize,
    pub dirty: usize,
    pub rows: usize,
}

/// What a lookup found.
pub(super) enum RowLookup {
    Row(RowPtr),
    /// There is no such row.
    Nothing,
    /// Not in memory, perhaps in the sorted runs.
    Unknown,
}

/// What becomes of a row in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowAction {
    Keep,
    /// The sorted runs have its newest version now: keep it as a clean row.
    Clean,
    /// A tombstone that the sorted runs have, or do not need: drop it. The notes about the group
    /// stay true.
    Forget,
    /// A clean row: drop it. The group is not complete any more.
    Evict,
}

/// A shard.
pub(super) struct Shard {
    index: Index,
    groups: HashMap<GroupKey, Group, FxBuildHasher>,
    /// Groups with dirty rows, each once.
    dirty: Vec<GroupKey>,
    pub usage: Usage,
    /// Counts times that rows left memory. While it stands still, every key committed since is
    /// still in memory.
    pub removals: u64,
}

fn cost(row: RowPtr) -> usize {
    row.bytes() + ROW_OVERHEAD
}

impl Shard {
    pub fn new() -> Self {
        Self {
            index: Index::new(),
            groups: HashMap::default(),
            dirty: Vec::new(),
            usage: Usage::default(),
            removals: 0,
        }
    }

    /// Loads what [`Shard::get`] will touch first.
    pub fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Loads what [`Shard::get`] will touch next.
    pub fn prefetch_row(&self, hash: u64) {
        self.index.prefetch_row(hash);
    }

    /// Looks a row up.
    pub fn get(&self, hash: u64, key: KeyRef<'_>) -> RowLookup {
        match self.index.find(hash, key) {
            Some(row) => {
                row.touch();
                RowLookup::Row(row)
            }
            None if self.is_complete((key.table, key.id)) => RowLookup::Nothing,
            None => RowLookup::Unknown,
        }
    }

    /// Whether every row of the group is in memory.
    pub fn is_complete(&self, group: GroupKey) -> bool {
        self.groups.get(&group).is_some_and(|group| group.complete)
    }

    /// No row of the group exists.
    pub fn hint_new(&mut self, group: GroupKey) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.groups.entry(group) {
            entry.insert(Group { rows: Rows::None, complete: true, listed: false });
            self.usage.bytes += GROUP_OVERHEAD;
        }
    }

    /// Changes a row as in the batch at `position`, unless a later batch already changed it.
    ///
    /// Batches may arrive out of order: a row keeps the position of its last change (deletions as
    /// tombstones) until the sorted runs have it, and runs only get rows up to a position below
    /// which every batch has arrived.
    pub fn put(
        &mut self,
        hasher: &Hasher,
        hash: u64,
        key: KeyRef<'_>,
        value: Option<&[u8]>,
        position: Position,
    ) {
        if let Some(old) = self.index.find(hash, key) {
            if old.position() > position {
                return;
            }
            old.touch();
            let (was_dirty, before) = (old.position() > 0, cost(old));
            if was_dirty {
                self.usage.dirty -= before;
            }
            if old.replace(value, position) {
                self.usage.dirty += before;
            } else {
                let new = RowPtr::new(key, value, position, old.is_new());
                self.usage.bytes = self.usage.bytes + cost(new) - before;
                self.usage.dirty += cost(new);
                self.index.replace(hash, old, new);
                self.swap(old, new);
            }
            if !was_dirty {
                self.list((key.table, key.id));
            }
            return;
        }
        let is_new = self.is_complete((key.table, key.id));
        let row = RowPtr::new(key, value, position, is_new);
        self.usage.dirty += cost(row);
        self.add(hasher, hash, row);
        self.list((key.table, key.id));
    }

    /// Adds a row read from the sorted runs, unless the key is in memory.
    pub fn cache(&mut self, hasher: &Hasher, hash: u64, key: KeyRef<'_>, value: &[u8]) {
        if self.index.find(hash, key).is_none() {
            self.add(hasher, hash, RowPtr::new(key, Some(value), 0, false));
        }
    }

    /// Every row of the group is in memory now.
    pub fn set_complete(&mut self, key: GroupKey) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.complete = true;
        } else {
            self.hint_new(key);
        }
    }

    fn add(&mut self, hasher: &Hasher, hash: u64, row: RowPtr) {
        self.index.insert(hash, row, hasher);
        self.usage.bytes += cost(row);
        self.usage.rows += 1;
        let key = row.key();
        let group = self.groups.entry((key.table, key.id)).or_insert_with(|| {
            self.usage.bytes += GROUP_OVERHEAD;
            Group { rows: Rows::None, complete: false, listed: false }
        });
        match &mut group.rows {
            rows @ Rows::None => *rows = Rows::One(row),
            Rows::One(first) => {
                let mut order = Order::default();
                order.push(*first);
                order.push(row);
                group.rows = Rows::Many(Box::new(order));
            }
            Rows::Many(order) => order.push(row),
        }
    }

    fn swap(&mut self, old: RowPtr, new: RowPtr) {
        let key = new.key();
        // The group exists: `old` was in it.
        if let Some(group) = self.groups.get_mut(&(key.table, key.id)) {
            match &mut group.rows {
                Rows::Many(order) => order.replace(old, new),
                rows => {
                    *rows = Rows::One(new);
                    // SAFETY: the index and the group both point to `new` now.
                    unsafe { old.free() };
                }
            }
        }
    }

    fn list(&mut self, key: GroupKey) {
        if let Some(group) = self.groups.get_mut(&key)
            && !group.listed
        {
            group.listed = true;
            self.dirty.push(key);
        }
    }

    /// Takes the list of groups that have dirty rows; those that get new ones from now on are
    /// listed again.
    pub fn take_dirty(&mut self) -> Vec<GroupKey> {
        for key in &self.dirty {
            if let Some(group) = self.groups.get_mut(key) {
                group.listed = false;
            }
        }
        std::mem::take(&mut self.dirty)
    }

    /// Puts a group back on the list (its flush failed).
    pub fn relist(&mut self, key: GroupKey) {
        self.list(key);
    }

    /// Whether [`Shard::read`] must wait for [`Shard::sort_in`].
    pub fn is_sorted(&self, key: GroupKey) -> bool {
        !matches!(self.groups.get(&key),
            Some(Group { rows: Rows::Many(order), .. }) if !order.is_sorted())
    }

    /// Sorts the group's rows.
    pub fn sort_in(&mut self, key: GroupKey) {
        if let Some(Group { rows: Rows::Many(order), .. }) = self.groups.get_mut(&key) {
            order.sort_in();
        }
    }

    /// Shows rows of a sorted group above `after`, tombstones too, in order, until `visit` answers
    /// false.
    pub fn read(&self, key: GroupKey, after: Option<&[u8]>, visit: &mut dyn FnMut(RowPtr) -> bool) {
        match self.groups.get(&key).map(|group| &group.rows) {
            None | Some(Rows::None) => {}
            Some(Rows::One(row)) => {
                if after.is_none_or(|suffix| row.suffix() > suffix) {
                    visit(*row);
                }
            }
            Some(Rows::Many(order)) => {
                let _ = order.from(after).all(visit);
            }
        }
    }

    /// Offers rows of the group above `after`, about `limit` of them, to `decide`, and does with
    /// each what it returns. Returns where to go on.
    pub fn decide(
        &mut self,
        hasher: &Hasher,
        key: GroupKey,
        after: Option<&[u8]>,
        limit: usize,
        decide: &mut dyn FnMut(RowPtr) -> RowAction,
    ) -> Option<Box<[u8]>> {
        let Self { index, groups, usage, removals, .. } = self;
        let group = groups.get_mut(&key)?;
        let (mut forgotten, mut evicted) = (false, false);
        let mut leaves = |row: RowPtr| {
            match decide(row) {
                RowAction::Keep => return false,
                RowAction::Clean => {
                    usage.dirty -= cost(row);
                    row.set_clean();
                    return false;
                }
                RowAction::Forget => forgotten = true,
                RowAction::Evict => evicted = true,
            }
            index.remove(hasher.key(row.key()), row.key());
            usage.bytes -= cost(row);
            usage.rows -= 1;
            if row.position() > 0 {
                usage.dirty -= cost(row);
            }
            true
        };
        let next = match &mut group.rows {
            Rows::None => None,
            Rows::One(row) => {
                let row = *row;
                if after.is_none_or(|suffix| row.suffix() > suffix) && leaves(row) {
                    group.rows = Rows::None;
                    // SAFETY: neither index nor group point to it any more.
                    unsafe { row.free() };
                }
                None
            }
            Rows::Many(order) => {
                let next = order.extract(after, limit, &mut leaves);
                if order.live() == 0 {
                    group.rows = Rows::None;
                }
                next
            }
        };
        if evicted {
            group.complete = false;
        }
        if forgotten || evicted {
            *removals += 1;
        }
        if matches!(group.rows, Rows::None) && !group.complete && !group.listed {
            groups.remove(&key);
            usage.bytes -= GROUP_OVERHEAD;
        }
        next
    }

    /// Forgets a group of which there is nothing but the knowledge that it has no rows.
    pub fn forget_empty(&mut self, key: GroupKey) {
        if let Some(Group { rows: Rows::None, listed: false, .. }) = self.groups.get(&key) {
            self.groups.remove(&key);
            self.usage.bytes -= GROUP_OVERHEAD;
            self.removals += 1;
        }
    }

    /// All groups.
    pub fn group_keys(&self) -> Vec<GroupKey> {
        self.groups.keys().copied().collect()
    }

    /// Ids of the groups of a table, at or above `from`.
    pub fn ids(&self, table: Table, from: u64, out: &mut Vec<u64>) {
        out.extend(
            self.groups.keys().filter(|key| key.0 == table && key.1 >= from).map(|key| key.1),
        );
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        for (_, group) in self.groups.drain() {
            if let Rows::One(row) = group.rows {
                // SAFETY: the index is not used any more. Orders free their rows themselves.
                unsafe { row.free() };
            }
        }
    }
}
