//! A sorted piece of an [`super::order::Order`]: the leaves of a tree of two levels.
//!
//! Comparing two rows means loading both. So a large chunk keeps, beside the pointers, the 8 bytes
//! of each suffix that follow what all its suffixes have in common; only equal ones are compared in
//! full.

use std::cmp::Ordering;

use super::row::RowPtr;

/// Chunks up to this many rows do without heads: they cost as much memory as the pointers.
const BARE_MAX: usize = 128;
/// Rows loaded in advance.
const AHEAD: usize = 8;
/// Bytes of the first suffix that a chunk keeps, for the search among chunks.
const FRONT: usize = 16;

/// The rows. Never empty.
pub(super) struct Chunk {
    /// The first bytes of the first row's suffix, padded with zeros.
    front: [u8; FRONT],
    /// Bytes that all suffixes have in common.
    skip: usize,
    /// Of each row, the bytes after `skip`; empty in a small chunk.
    heads: Vec<u64>,
    rows: Vec<RowPtr>,
}

fn front(suffix: &[u8]) -> [u8; FRONT] {
    let mut front = [0; FRONT];
    let len = suffix.len().min(FRONT);
    front[..len].copy_from_slice(&suffix[..len]);
    front
}

fn head(suffix: &[u8], skip: usize) -> u64 {
    let rest = suffix.get(skip..).unwrap_or_default();
    let mut head = [0; 8];
    let len = rest.len().min(8);
    head[..len].copy_from_slice(&rest[..len]);
    u64::from_be_bytes(head)
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The rows, each loaded a little before its turn: walking them is waiting for memory otherwise.
pub(super) fn ahead(rows: &[RowPtr]) -> impl Iterator<Item = RowPtr> + '_ {
    rows.iter().enumerate().map(|(index, row)| {
        if let Some(later) = rows.get(index + AHEAD) {
            later.prefetch();
        }
        *row
    })
}

/// Sorts rows by suffix.
pub(super) fn sort(rows: &mut [RowPtr]) {
    let Some(first) = rows.first() else { return };
    let first = first.suffix();
    let skip =
        ahead(rows).fold(first.len(), |skip, row| skip.min(common(&first[..skip], row.suffix())));
    let mut heads: Vec<(u64, RowPtr)> =
        rows.iter().map(|row| (head(row.suffix(), skip), *row)).collect();
    heads.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.suffix().cmp(b.1.suffix())));
    for (row, (_, sorted)) in rows.iter_mut().zip(heads) {
        *row = sorted;
    }
}

impl Chunk {
    /// Takes sorted rows, at least one.
    pub fn new(rows: Vec<RowPtr>) -> Self {
        let mut chunk = Self { front: front(rows[0].suffix()), skip: 0, heads: Vec::new(), rows };
        chunk.rebuild();
        chunk
    }

    fn rebuild(&mut self) {
        self.heads.clear();
        let [first, .., last] = self.rows.as_slice() else { return };
        self.skip = common(first.suffix(), last.suffix());
        if self.rows.len() > BARE_MAX {
            self.heads.extend(self.rows.iter().map(|row| head(row.suffix(), self.skip)));
        }
    }

    /// The rows, sorted.
    pub fn rows(&self) -> &[RowPtr] {
        &self.rows
    }

    /// Whether the first row lies at or below `suffix`.
    pub fn starts_at_or_below(&self, suffix: &[u8]) -> bool {
        match self.front.cmp(&front(suffix)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.rows[0].suffix() <= suffix,
        }
    }

    /// How many rows lie below `suffix`; with `or_at`, also one that is equal.
    pub fn below(&self, suffix: &[u8], or_at: bool) -> usize {
        let below = |row: &RowPtr| match row.suffix().cmp(suffix) {
            Ordering::Less => true,
            Ordering::Equal => or_at,
            Ordering::Greater => false,
        };
        if self.heads.is_empty() {
            return self.rows.partition_point(below);
        }
        let shared = &self.rows[0].suffix()[..self.skip];
        match suffix[..self.skip.min(suffix.len())].cmp(shared) {
            Ordering::Less => 0,
            Ordering::Greater => self.rows.len(),
            Ordering::Equal => {
                let wanted = head(suffix, self.skip);
                let low = self.heads.partition_point(|head| *head < wanted);
                let high = low + self.heads[low..].partition_point(|head| *head == wanted);
                low + self.rows[low..high].partition_point(below)
            }
        }
    }

    /// Adds a row and returns where it is.
    pub fn insert(&mut self, row: RowPtr) -> usize {
        let at = self.below(row.suffix(), false);
        self.rows.insert(at, row);
        if at == 0 {
            self.front = front(row.suffix());
        }
        let neighbour = self.rows[usize::from(at == 0)].suffix();
        if !self.heads.is_empty() && common(neighbour, row.suffix()) >= self.skip {
            self.heads.insert(at, head(row.suffix(), self.skip));
        } else if !self.heads.is_empty() || self.rows.len() > BARE_MAX {
            self.rebuild();
        }
        at
    }

    /// Puts another row with the same suffix at `at`.
    pub fn replace(&mut self, at: usize, row: RowPtr) {
        self.rows[at] = row;
    }

    /// Splits off the rows from `at` on; both parts keep at least one.
    pub fn split_off(&mut self, at: usize) -> Self {
        let upper = Self::new(self.rows.split_off(at));
        self.rebuild();
        upper
    }

    /// Takes the chunk apart.
    pub fn into_rows(self) -> Vec<RowPtr> {
        self.rows
    }
}
