//! Rows in memory: every row that the sorted runs do not have yet (dirty), and as many others
//! (clean) as fit.
//!
//! | file | what it has |
//! | --- | --- |
//! | `rows/shard.rs` | the groups under one lock |
//! | `rows/index.rs` | the hash index of a shard |
//! | `rows/order.rs` | the rows of one group in order, sorted when order is needed |
//! | `rows/chunk.rs` | a sorted piece of that order |
//! | `rows/row.rs` | one row: a single allocation |
//! | `rows/hash.rs` | the hash of keys, with random seeds |
//!
//! A row belongs to the group `(table, id)`; a group lives in one shard; a shard has one lock. No
//! thread waits for anything while holding a shard's lock, except readers that hold several at
//! once: they take them in ascending order, and writers hold one, so there is no cycle.

mod chunk;
mod hash;
mod index;
mod order;
mod row;
mod shard;

use std::sync::atomic::{AtomicUsize, Ordering};

use kestrel_types::ids::Position;
use kestrel_types::key::{KeyRef, Table};
use parking_lot::{RwLock, RwLockReadGuard};

use hash::Hasher;
use row::RowPtr;
pub(super) use shard::GroupKey;
use shard::{RowAction, RowLookup, Shard, Usage};

use super::Row;

/// Shards. A power of two; more than cores, so that threads seldom meet.
const SHARDS: usize = 64;
/// Keys looked up together, so that their cache misses overlap.
const WINDOW: usize = 32;
/// Rows decided about under one lock.
const DECIDE_BATCH: usize = 1024;

/// A key that is not in memory but may be in the sorted runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Miss {
    /// Index in the list of keys that were requested.
    pub index: usize,
    hash: u64,
    shard: usize,
    /// The shard's removals when memory was searched.
    removals: u64,
}

/// Shard, index in the list of keys, and hash of a key.
type Item = (u32, u32, u64);

/// Suffix and value.
pub(super) type WholeRow = (Box<[u8]>, Box<[u8]>);

/// The rows.
pub(super) struct MemoryRows {
    shards: Box<[RwLock<Shard>]>,
    hasher: Hasher,
    bytes: AtomicUsize,
    dirty: AtomicUsize,
    rows: AtomicUsize,
}

/// Rows copied out of memory, in order.
#[derive(Default)]
pub(super) struct Copied {
    bytes: Vec<u8>,
    rows: Vec<CopiedRow>,
}

#[derive(Clone, Copy)]
struct CopiedRow {
    group: GroupKey,
    at: usize,
    suffix_len: u16,
    /// `None`: a tombstone.
    value_len: Option<u32>,
    position: Position,
}

impl Copied {
    fn push(&mut self, row: RowPtr) {
        let key = row.key();
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key.suffix);
        self.bytes.extend_from_slice(row.value().unwrap_or_default());
        self.rows.push(CopiedRow {
            group: (key.table, key.id),
            at,
            suffix_len: key.suffix.len() as u16,
            value_len: row.value().map(|value| value.len() as u32),
            position: row.position(),
        });
    }

    /// Rows copied.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Key, value (`None`: deleted) and position of a row.
    pub fn get(&self, index: usize) -> Option<(KeyRef<'_>, Option<&[u8]>, Position)> {
        let row = self.rows.get(index)?;
        let (suffix, rest) = self.bytes[row.at..].split_at(usize::from(row.suffix_len));
        let key = KeyRef { table: row.group.0, id: row.group.1, suffix };
        Some((key, row.value_len.map(|len| &rest[..len as usize]), row.position))
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = (KeyRef<'_>, Option<&[u8]>, Position)> {
        (0..self.rows.len()).filter_map(|index| self.get(index))
    }

    /// The last row.
    pub fn last(&self) -> Option<(KeyRef<'_>, Option<&[u8]>, Position)> {
        self.get(self.rows.len().checked_sub(1)?)
    }

    /// Forgets all rows, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }
}

impl MemoryRows {
    /// No rows.
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::new())).collect(),
            hasher: Hasher::random(),
            bytes: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            rows: AtomicUsize::new(0),
        }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of dirty rows.
    pub fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Rows, tombstones included.
    pub fn len(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    fn shard_of(&self, group: GroupKey) -> usize {
        self.hasher.group(group.0, group.1) as usize % SHARDS
    }

    /// Changes a shard and accounts for it.
    fn change<R>(&self, shard: usize, change: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = self.shards[shard].write();
        let before = shard.usage;
        let result = change(&mut shard);
        let after = shard.usage;
        drop(shard);
        self.account(before, after);
        result
    }

    fn account(&self, before: Usage, after: Usage) {
        // Wrapping: a difference below zero adds as its complement.
        self.bytes.fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        self.dirty.fetch_add(after.dirty.wrapping_sub(before.dirty), Ordering::Relaxed);
        self.rows.fetch_add(after.rows.wrapping_sub(before.rows), Ordering::Relaxed);
    }

    /// Shard, hash and index of every key, by shard and then by index.
    fn by_shard<'a>(&self, keys: impl Iterator<Item = KeyRef<'a>>) -> Vec<Item> {
        let mut order: Vec<_> = keys
            .enumerate()
            .map(|(index, key)| {
                (self.shard_of((key.table, key.id)) as u32, index as u32, self.hasher.key(key))
            })
            .collect();
        order.sort_unstable_by_key(|(shard, index, _)| (*shard, *index));
        order
    }

    /// Applies the batch at `position`; `change` names its `len` changes. Later changes of one key
    /// win.
    pub fn apply<'a>(
        &self,
        position: Position,
        len: usize,
        change: impl Fn(usize) -> (KeyRef<'a>, Option<&'a [u8]>),
    ) {
        let order = self.by_shard((0..len).map(|index| change(index).0));
        for run in order.chunk_by(|a, b| a.0 == b.0) {
            self.change(run[0].0 as usize, |shard| {
                for (_, _, hash) in run {
                    shard.prefetch(*hash);
                }
                for (_, index, hash) in run {
                    let (key, value) = change(*index as usize);
                    shard.put(&self.hasher, *hash, key, value, position);
                }
            });
        }
    }

    /// Looks keys up, showing those that memory can answer; the others go to `misses`.
    pub fn get_many(
        &self,
        keys: &[KeyRef<'_>],
        durable: Position,
        visit: &mut dyn FnMut(usize, Row<'_>),
        misses: &mut Vec<Miss>,
    ) {
        if let [key] = keys {
            let shard = self.shard_of((key.table, key.id));
            let hash = self.hasher.key(*key);
            let guard = self.shards[shard].read();
            return Self::answer(&guard, (shard as u32, 0, hash), *key, durable, visit, misses);
        }
        let order = self.by_shard(keys.iter().copied());
        let mut guards: Vec<(u32, RwLockReadGuard<'_, Shard>)> = Vec::with_capacity(WINDOW);
        for window in order.chunks(WINDOW) {
            for (shard, _, hash) in window {
                if guards.last().is_none_or(|(locked, _)| locked != shard) {
                    guards.push((*shard, self.shards[*shard as usize].read()));
                }
                if let Some((_, guard)) = guards.last() {
                    guard.prefetch(*hash);
                }
            }
            let each = |guards: &[(u32, RwLockReadGuard<'_, Shard>)],
                        what: &mut dyn FnMut(&Shard, Item)| {
                let mut held = 0;
                for item in window {
                    while guards[held].0 != item.0 {
                        held += 1;
                    }
                    what(&guards[held].1, *item);
                }
            };
            each(&guards, &mut |shard, (_, _, hash)| shard.prefetch_row(hash));
            each(&guards, &mut |shard, item| {
                Self::answer(shard, item, keys[item.1 as usize], durable, visit, misses);
            });
            guards.clear();
        }
    }

    fn answer(
        shard: &Shard,
        (number, index, hash): Item,
        key: KeyRef<'_>,
        durable: Position,
        visit: &mut dyn FnMut(usize, Row<'_>),
        misses: &mut Vec<Miss>,
    ) {
        let index = index as usize;
        match shard.get(hash, key) {
            RowLookup::Row(row) => {
                visit(
                    index,
                    Row { value: row.value(), changed_at: not_durable(row.position(), durable) },
                );
            }
            RowLookup::Nothing => visit(index, Row { value: None, changed_at: 0 }),
            RowLookup::Unknown => {
                misses.push(Miss { index, hash, shard: number as usize, removals: shard.removals });
            }
        }
    }

    /// Keeps a row that was read from the sorted runs after `miss`.
    ///
    /// Never hides a newer version: if the key was committed since the miss, it is still in memory,
    /// unless rows left the shard since, and then nothing is kept.
    pub fn cache(&self, miss: Miss, key: KeyRef<'_>, value: &[u8]) {
        self.change(miss.shard, |shard| {
            if shard.removals == miss.removals {
                shard.cache(&self.hasher, miss.hash, key, value);
            }
        });
    }

    /// No row of the group exists.
    pub fn hint_new(&self, group: GroupKey) {
        self.change(self.shard_of(group), |shard| shard.hint_new(group));
    }

    /// Copies up to `limit` rows of a group, tombstones included, above `after`. Returns whether
    /// the group is complete and the removals of its shard.
    pub fn copy_group(
        &self,
        group: GroupKey,
        after: Option<&[u8]>,
        limit: usize,
        out: &mut Copied,
    ) -> (bool, u64) {
        let number = self.shard_of(group);
        let mut copy = |shard: &Shard| {
            let mut left = limit;
            if left > 0 {
                shard.read(group, after, &mut |row| {
                    out.push(row);
                    left -= 1;
                    left > 0
                });
            }
            (shard.is_complete(group), shard.removals)
        };
        {
            let shard = self.shards[number].read();
            if shard.is_sorted(group) {
                return copy(&shard);
            }
        }
        self.change(number, |shard| {
            shard.sort_in(group);
            copy(shard)
        })
    }

    /// Sum of all shards' removals.
    pub fn removals(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().removals).sum()
    }

    /// Makes a group complete with rows read from the sorted runs, if nothing left its shard since
    /// `removals`.
    pub fn complete(&self, group: GroupKey, removals: u64, rows: &[WholeRow]) {
        self.change(self.shard_of(group), |shard| {
            if shard.removals != removals {
                return;
            }
            for (suffix, value) in rows {
                let key = KeyRef { table: group.0, id: group.1, suffix };
                shard.cache(&self.hasher, self.hasher.key(key), key, value);
            }
            shard.set_complete(group);
        });
    }

    /// Ids of the groups of `table` in memory from `from` on, ascending.
    pub fn ids(&self, table: Table, from: u64) -> Vec<u64> {
        let mut ids = Vec::new();
        for shard in &self.shards {
            shard.read().ids(table, from, &mut ids);
        }
        ids.sort_unstable();
        ids
    }

    /// Takes the list of groups with dirty rows, in key order.
    pub fn take_dirty(&self) -> Vec<GroupKey> {
        let mut groups: Vec<_> =
            self.shards.iter().flat_map(|shard| shard.write().take_dirty()).collect();
        groups.sort_unstable();
        groups
    }

    /// Undoes `take_dirty` for a flush that failed.
    pub fn relist(&self, groups: &[GroupKey]) {
        for group in groups {
            self.change(self.shard_of(*group), |shard| shard.relist(*group));
        }
    }

    /// Copies rows of a group with their last change in `1..=upto` and that the sorted runs need to
    /// know of: about `DECIDE_BATCH` rows above `after`. Returns where to go on.
    pub fn copy_dirty(
        &self,
        group: GroupKey,
        after: Option<&[u8]>,
        upto: Position,
        out: &mut Copied,
    ) -> Option<Box<[u8]>> {
        self.change(self.shard_of(group), |shard| {
            shard.decide(&self.hasher, group, after, DECIDE_BATCH, &mut |row| {
                let wanted = (1..=upto).contains(&row.position());
                // A row made and deleted in memory never was in the runs.
                if wanted && !(row.is_new() && row.value().is_none()) {
                    out.push(row);
                    row.set_old();
                }
                RowAction::Keep
            })
        })
    }

    /// Marks rows of a group clean if their last change lies in `1..=upto`: the sorted runs have
    /// them. Tombstones go.
    pub fn clean(&self, group: GroupKey, upto: Position) {
        let mut dirty_left = false;
        let mut after: Option<Box<[u8]>> = None;
        loop {
            after = self.change(self.shard_of(group), |shard| {
                let next =
                    shard.decide(&self.hasher, group, after.as_deref(), DECIDE_BATCH, &mut |row| {
                        match row.position() {
                            0 => RowAction::Keep,
                            position if position > upto => {
                                dirty_left = true;
                                RowAction::Keep
                            }
                            _ if row.value().is_none() => RowAction::Forget,
                            _ => RowAction::Clean,
                        }
                    });
                if next.is_none() && dirty_left {
                    shard.relist(group);
                }
                next
            });
            if after.is_none() {
                return;
            }
        }
    }

    /// Evicts clean rows that were not used since the last pass, until at most `target` bytes are
    /// left or `passes` over all rows were made. `hand` remembers the shard.
    pub fn evict(&self, target: usize, passes: usize, hand: &mut usize) {
        for _ in 0..passes * SHARDS {
            *hand = (*hand + 1) % SHARDS;
            let groups = self.shards[*hand].read().group_keys();
            for group in groups {
                if self.bytes() <= target {
                    return;
                }
                self.evict_group(*hand, group);
            }
        }
    }

    fn evict_group(&self, shard: usize, group: GroupKey) {
        let mut after: Option<Box<[u8]>> = None;
        loop {
            after = self.change(shard, |shard| {
                let next =
                    shard.decide(&self.hasher, group, after.as_deref(), DECIDE_BATCH, &mut |row| {
                        if row.was_touched() || row.position() > 0 {
                            RowAction::Keep
                        } else {
                            RowAction::Evict
                        }
                    });
                shard.forget_empty(group);
                next
            });
            if after.is_none() {
                return;
            }
        }
    }
}

/// A row's position as readers see it.
pub(super) fn not_durable(position: Position, durable: Position) -> Position {
    if position > durable { position } else { 0 }
}
