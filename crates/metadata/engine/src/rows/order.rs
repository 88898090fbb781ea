//! Ordered rows of one group. Lazy: a new row is only noted; rows are sorted in when order is
//! needed (a scan, a flush, an eviction) or when many have gathered, so that filling a directory
//! costs no comparisons.
//!
//! Rows that left the index (dead) stay until `sort_in`, because finding them would need a search.

use super::chunk::{self, Chunk};
use super::row::RowPtr;

/// Rows of a chunk, at most. Chunks are the leaves of a tree of two levels.
const CHUNK_MAX: usize = 512;
/// Unsorted rows before they are sorted in, where there are none sorted yet.
const FIRST_PENDING_MAX: usize = 4096;
/// New unsorted rows before they are sorted in: bounds the pause. (A scan may have to sort
/// [`SMALL`] more that were replaced.)
const PENDING_MAX: usize = 1024;

/// Groups up to this many live rows collect dead rows and sweep them out together; in larger ones
/// that would take too long. A client's answers are as many.
const SMALL: usize = 4096;

/// The ordered rows.
#[derive(Default)]
pub(super) struct Order {
    /// Ascending.
    chunks: Vec<Chunk>,
    pending: Vec<RowPtr>,
    /// Rows that left the index, in chunks or pending.
    dead: usize,
    /// Rows, dead ones included.
    len: usize,
}

fn free(row: RowPtr) {
    // SAFETY: called for dead rows as they leave the order, which has the last pointer to them.
    unsafe { row.free() };
}

/// Half full chunks of sorted rows.
fn pieces(rows: &[RowPtr]) -> impl Iterator<Item = Chunk> + '_ {
    rows.chunks(CHUNK_MAX / 2).map(|piece| Chunk::new(piece.to_vec()))
}

impl Order {
    /// Rows in the index.
    pub fn live(&self) -> usize {
        self.len - self.dead
    }

    /// Notes a row with a key that no live row of the order has.
    pub fn push(&mut self, row: RowPtr) {
        self.pending.push(row);
        self.len += 1;
        let limit = if self.chunks.is_empty() { FIRST_PENDING_MAX } else { PENDING_MAX };
        if self.pending.len() >= limit {
            self.sort_in();
        }
    }

    /// Puts `new` where `old`, which just left the index, was. Frees `old`, perhaps later.
    pub fn replace(&mut self, old: RowPtr, new: RowPtr) {
        if self.live() > SMALL {
            self.sort_in();
            let chunk = self.chunk_of(0, old.suffix());
            let chunk = &mut self.chunks[chunk];
            let at = chunk.below(old.suffix(), false);
            debug_assert!(chunk.rows()[at] == old);
            chunk.replace(at, new);
            free(old);
            return;
        }
        old.set_dead();
        self.dead += 1;
        self.pending.push(new);
        self.len += 1;
        // Keeps the dead below the living, and no sooner, so that freeing them is paid for by what
        // killed them.
        if self.dead > self.len / 2 + 16 {
            self.sort_in();
        }
    }

    /// Offers live rows above `after` to `out`, about `limit` of them; frees those for which it
    /// answers true (it took them out of the index). Returns the last suffix offered if there are
    /// more. Sorts new rows in.
    pub fn extract(
        &mut self,
        after: Option<&[u8]>,
        limit: usize,
        out: &mut dyn FnMut(RowPtr) -> bool,
    ) -> Option<Box<[u8]>> {
        self.sort_in();
        if self.chunks.is_empty() {
            return None;
        }
        // The first chunk with a row above `after`: each call makes progress.
        let first = after.map_or(0, |suffix| {
            let chunk = self.chunk_of(0, suffix);
            let last = self.chunks[chunk].rows().last();
            chunk + usize::from(last.is_some_and(|row| row.suffix() <= suffix))
        });
        if first == self.chunks.len() {
            return None;
        }
        let end = (first + limit.div_ceil(CHUNK_MAX).max(1)).min(self.chunks.len());
        let next = (end < self.chunks.len())
            .then(|| self.chunks[end - 1].rows().last().map(|row| row.suffix().into()))
            .flatten();
        let mut gone = false;
        let rows = self.chunks[first..end].iter().map(Chunk::rows);
        let mut kept: Vec<RowPtr> = Vec::with_capacity(rows.clone().map(<[_]>::len).sum());
        for row in rows.flatten() {
            let wanted = after.is_none_or(|suffix| row.suffix() > suffix);
            if wanted && !row.is_dead() && out(*row) {
                gone = true;
                self.len -= 1;
                free(*row);
            } else {
                kept.push(*row);
            }
        }
        if gone {
            // One piece where the rest fits one, so that thinned-out ranges do not keep tiny
            // chunks.
            self.chunks.splice(first..end, pieces(&kept));
        }
        next
    }

    /// Whether the order is up to date, so that [`Order::from`] may be used.
    pub fn is_sorted(&self) -> bool {
        self.pending.is_empty()
    }

    /// Sorts in what is new and frees what is dead.
    pub fn sort_in(&mut self) {
        if self.dead > 0 {
            self.free_dead();
        }
        let mut pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        chunk::sort(&mut pending);
        if self.chunks.is_empty() {
            self.chunks = pieces(&pending).collect();
            return;
        }
        let mut chunk = 0;
        for row in pending {
            chunk = self.chunk_of(chunk, row.suffix());
            let at = self.chunks[chunk].insert(row);
            let len = self.chunks[chunk].rows().len();
            if len > CHUNK_MAX {
                // Appending at the end leaves full chunks behind, not half empty ones.
                let upper = self.chunks[chunk].split_off(if at + 1 == len {
                    CHUNK_MAX
                } else {
                    CHUNK_MAX / 2
                });
                self.chunks.insert(chunk + 1, upper);
            }
        }
    }

    /// Frees the dead.
    fn free_dead(&mut self) {
        let mut freed = 0;
        let mut free_dead = |rows: &mut Vec<RowPtr>| {
            let before = rows.len();
            rows.retain(|row| {
                let dead = row.is_dead();
                if dead {
                    free(*row);
                }
                !dead
            });
            freed += before - rows.len();
        };
        free_dead(&mut self.pending);
        let mut rows: Vec<RowPtr> =
            std::mem::take(&mut self.chunks).into_iter().flat_map(Chunk::into_rows).collect();
        free_dead(&mut rows);
        self.chunks = pieces(&rows).collect();
        self.len -= freed;
        self.dead -= freed;
        debug_assert_eq!(self.dead, 0);
    }

    /// The last chunk at or after `from` with a first row at or below `suffix`; `from` if there is
    /// none.
    fn chunk_of(&self, from: usize, suffix: &[u8]) -> usize {
        let reaches = |chunk: usize| {
            self.chunks.get(chunk).is_some_and(|chunk| chunk.starts_at_or_below(suffix))
        };
        // Gallop, because callers come in ascending order.
        let mut step = 1;
        while reaches(from + step) {
            step *= 2;
        }
        let low = from + step / 2;
        let high = (from + step).min(self.chunks.len());
        let between = &self.chunks[low + 1..high.max(low + 1)];
        let within = between.partition_point(|chunk| chunk.starts_at_or_below(suffix));
        low + within
    }

    /// Live rows from the first one above `after` (or all) on, in order. Only on a settled order.
    pub fn from<'a>(&'a self, after: Option<&[u8]>) -> impl Iterator<Item = RowPtr> + 'a {
        debug_assert!(self.is_sorted());
        let (chunk, at) = match after {
            Some(suffix) if !self.chunks.is_empty() => {
                let chunk = self.chunk_of(0, suffix);
                (chunk, self.chunks[chunk].below(suffix, true))
            }
            _ => (0, 0),
        };
        let rest = self.chunks.get(chunk + 1..).unwrap_or_default();
        let first = self.chunks.get(chunk).map_or([].as_slice(), |chunk| &chunk.rows()[at..]);
        chunk::ahead(first)
            .chain(rest.iter().flat_map(|chunk| chunk::ahead(chunk.rows())))
            .filter(|row| !row.is_dead())
    }

    /// All rows, dead ones included, in no order.
    pub fn all(&self) -> impl Iterator<Item = RowPtr> {
        self.pending.iter().chain(self.chunks.iter().flat_map(Chunk::rows)).copied()
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        self.all().for_each(free);
    }
}

#[cfg(test)]
mod tests {
    use kestrel_types::key::{KeyRef, Table};

    use super::*;

    fn row(number: u32) -> RowPtr {
        RowPtr::new(KeyRef::new(Table::Entry, 1, &number.to_be_bytes()), Some(b"v"), 1, false)
    }

    fn numbers(order: &Order, after: Option<u32>) -> Vec<u32> {
        let after = after.map(u32::to_be_bytes);
        order
            .from(after.as_ref().map(<[u8; 4]>::as_slice))
            .map(|row| u32::from_be_bytes(row.suffix().try_into().unwrap()))
            .collect()
    }

    /// Rows come out in order, in any order of insertion.
    #[test]
    fn order_of_inserted_rows() {
        let mut order = Order::default();
        let mut state = 1u32;
        let mut expected = std::collections::BTreeSet::new();
        for _ in 0..30_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if expected.insert(state) {
                order.push(row(state));
            }
        }
        order.sort_in();
        assert_eq!(numbers(&order, None), expected.iter().copied().collect::<Vec<_>>());
        for after in [0, 1 << 20, 1 << 30, u32::MAX - 7, u32::MAX] {
            let want: Vec<u32> = expected.range(after..).copied().filter(|n| *n > after).collect();
            assert_eq!(numbers(&order, Some(after)), want);
        }
        let mut after: Option<Box<[u8]>> = None;
        loop {
            after = order.extract(after.as_deref(), 100, &mut |row| row.suffix()[3] % 2 == 0);
            if after.is_none() {
                break;
            }
        }
        expected.retain(|number| number % 2 != 0);
        assert_eq!(numbers(&order, None), expected.iter().copied().collect::<Vec<_>>());
        assert_eq!(order.live(), expected.len());
    }

    /// Names of all lengths, many with long common prefixes, zeros and one another as prefixes.
    #[test]
    fn awkward_names_are_ordered_as_bytes() {
        let mut order = Order::default();
        let mut state = 7u64;
        let mut expected = std::collections::BTreeSet::new();
        for round in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (state >> 59) as usize;
            let mut name =
                vec![if state >> 20 & 3 == 0 { b'x' } else { b'a' }; (state >> 40) as usize % 30];
            name.extend((0..len).map(|index| (state >> index) as u8 & 1));
            if expected.insert(name.clone()) {
                order.push(RowPtr::new(KeyRef::new(Table::Entry, 1, &name), Some(b"v"), 1, false));
            }
            if round % 3000 == 0 {
                order.sort_in();
            }
        }
        order.sort_in();
        let found: Vec<_> = order.from(None).map(|row| row.suffix().to_vec()).collect();
        assert_eq!(found, expected.iter().cloned().collect::<Vec<_>>());
        for after in expected.iter().step_by(97) {
            let next = order.from(Some(after)).next().map(|row| row.suffix().to_vec());
            assert_eq!(next.as_ref(), expected.range(after.clone()..).nth(1));
        }
    }

    #[test]
    fn replaced_rows_are_seen_once() {
        let mut order = Order::default();
        let mut now: Vec<RowPtr> = (0..10).map(row).collect();
        now.iter().for_each(|row| order.push(*row));
        for round in 0..100 {
            let at = round % 10;
            let new = row(at as u32);
            order.replace(now[at], new);
            now[at] = new;
        }
        order.sort_in();
        assert_eq!(numbers(&order, None), (0..10).collect::<Vec<_>>());
        assert_eq!(order.live(), 10);
    }

    /// Rows that are replaced again and again cost as much whether their group is just below the
    /// limit or far from it.
    #[test]
    fn a_full_group_is_swept_when_as_many_are_dead() {
        let mut order = Order::default();
        let mut now: Vec<RowPtr> = (0..SMALL as u32).map(row).collect();
        now.iter().for_each(|row| order.push(*row));
        for round in 0..3 * SMALL {
            let at = round % SMALL;
            let (new, dead) = (row(at as u32), order.dead);
            order.replace(now[at], new);
            now[at] = new;
            assert!(order.dead == dead + 1 || dead >= SMALL, "swept with {dead} dead");
            assert!(order.dead <= SMALL + 32 && order.live() == SMALL);
        }
        order.sort_in();
        assert_eq!(numbers(&order, None), (0..SMALL as u32).collect::<Vec<_>>());
    }
}
