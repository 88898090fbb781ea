//! Rows of several sorted runs in order, shown where they lie in the blocks of tables: for a
//! process that reads all rows of a range once, and allocates nothing for each.
//!
//! The cursor with the least key shows its rows up to the least key of the others. Where few runs
//! have rows in the same range these stretches are long, and a row costs one comparison. A block is
//! shown as a whole if no other run has rows in its range, so that it may be copied as it is.

use std::sync::Arc;

use kestrel_engine::EngineError;

use crate::table::{Block, TableHead};
use crate::tree::{ReadAhead, Run, Tree};

/// Bytes that all cursors of a merge have read ahead, about, and least and most of one request.
const AHEAD_BYTES: u64 = 64 << 20;
const REQUEST_BYTES_MIN: u64 = 256 << 10;
const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// What is done with the rows of a merge.
pub trait RowSink<E> {
    /// The next row; `None`: it is stored as deleted.
    ///
    /// # Errors
    /// What ends the merge.
    fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), E>;

    /// All rows of a block, which are next, and the block as it is stored in its table.
    ///
    /// # Errors
    /// What ends the merge.
    fn block(&mut self, block: &Block, stored: &[u8]) -> Result<(), E>;
}

/// A row: a block, and its number there.
type Position = (Arc<Block>, usize);

/// Rows of one run.
struct RunCursor<'a> {
    tree: &'a Tree,
    run: Arc<Run>,
    /// Of the next block.
    table: usize,
    block: usize,
    index: Option<Arc<TableHead>>,
    read_ahead: ReadAhead,
    /// The block of the row that is next.
    current: Arc<Block>,
    row: usize,
    /// Rows of that block that are in the range.
    end: usize,
}

/// Rows of several runs. Of those with one key that of the first run is shown.
pub struct RunMerge<'a> {
    to: &'a [u8],
    cursors: Vec<RunCursor<'a>>,
    /// Cursors that have a row, by its key and their numbers.
    order: Vec<usize>,
}

impl<'a> RunCursor<'a> {
    /// A cursor before the first row from a key on.
    fn seek(
        (tree, run): (&'a Tree, Arc<Run>),
        (from, to): (&[u8], &[u8]),
        request_bytes: u64,
    ) -> Result<Option<Self>, EngineError> {
        let mut cursor = Self {
            tree,
            table: run.partition_point(|table| table.record.last.as_slice() < from),
            run,
            block: 0,
            index: None,
            read_ahead: ReadAhead::whole(request_bytes),
            current: Arc::default(),
            row: 0,
            end: 0,
        };
        if cursor.is_over(to) {
            return Ok(None);
        }
        if let Some(table) = cursor.run.get(cursor.table) {
            let index = tree.index(table)?;
            cursor.block = index.block_of(from).unwrap_or(0);
            cursor.index = Some(index);
        }
        while cursor.next_block(to)? {
            cursor.row = cursor.current.from(from);
            if cursor.row < cursor.end {
                return Ok(Some(cursor));
            }
        }
        Ok(None)
    }

    /// Whether the next block cannot have a row below this key.
    fn is_over(&self, to: &[u8]) -> bool {
        self.run.get(self.table).is_none_or(|table| table.record.first.as_slice() >= to)
    }

    /// Goes on to the next block; `false`: no row below `to` is left.
    fn next_block(&mut self, to: &[u8]) -> Result<bool, EngineError> {
        loop {
            let Some(table) = self.run.get(self.table).filter(|_| !self.is_over(to)) else {
                return Ok(false);
            };
            let index = match &self.index {
                Some(index) => index.clone(),
                None => self.tree.index(table)?,
            };
            if self.block >= index.blocks() {
                (self.table, self.block, self.index) = (self.table + 1, 0, None);
                continue;
            }
            let ahead = &mut self.read_ahead;
            self.current = self.tree.block_ahead(table, &index, self.block, ahead, to)?;
            self.index = Some(index);
            self.block += 1;
            self.row = 0;
            let rows = self.current.rows();
            let last = self.current.key(rows.wrapping_sub(1));
            self.end =
                if last.is_some_and(|last| last < to) { rows } else { self.current.from(to) };
            if rows > 0 {
                return Ok(self.end > 0);
            }
        }
    }

    /// The next row.
    fn position(&self) -> Position {
        (self.current.clone(), self.row)
    }

    /// The key of the next row.
    fn key(&self) -> &[u8] {
        self.current.key(self.row).unwrap_or_default()
    }

    /// Goes on by one row; `false`: none is left.
    fn step(&mut self, to: &[u8]) -> Result<bool, EngineError> {
        self.row += 1;
        Ok(self.row < self.end || self.next_block(to)?)
    }

    /// Shows rows up to a key; `false`: none is left.
    fn visit_below<E: From<EngineError>>(
        &mut self,
        bound: &[u8],
        to: &[u8],
        sink: &mut impl RowSink<E>,
    ) -> Result<bool, E> {
        loop {
            let is_whole = self.row == 0 && self.end == self.current.rows();
            if let Some(last) = self.current.key(self.end.wrapping_sub(1)).filter(|_| is_whole)
                && last < bound
                && let Some(stored) = self.read_ahead.stored()
            {
                sink.block(&self.current, stored)?;
                self.row = self.end;
            }
            while self.row < self.end {
                let Some((key, value)) = self.current.row(self.row) else { break };
                if key >= bound {
                    return Ok(true);
                }
                sink.row(key, value)?;
                self.row += 1;
            }
            if !self.next_block(to)? {
                return Ok(false);
            }
        }
    }
}

impl<'a> RunMerge<'a> {
    /// Rows from one key on up to another one, which is not among them. The newest run is the first
    /// one.
    ///
    /// # Errors
    /// The store's, and `Corrupt`.
    pub fn new(
        runs: Vec<(&'a Tree, Arc<Run>)>,
        (from, to): (&[u8], &'a [u8]),
    ) -> Result<Self, EngineError> {
        let bytes = AHEAD_BYTES / (runs.len() as u64).max(1);
        let bytes = bytes.clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX);
        let mut cursors = Vec::with_capacity(runs.len());
        for run in runs {
            cursors.extend(RunCursor::seek(run, (from, to), bytes)?);
        }
        let mut merge = Self { to, order: Vec::with_capacity(cursors.len()), cursors };
        for cursor in 0..merge.cursors.len() {
            merge.queue(cursor);
        }
        Ok(merge)
    }

    /// Puts a cursor where its row belongs.
    fn queue(&mut self, cursor: usize) {
        let place = (self.cursors[cursor].key(), cursor);
        let is_before = |other: &usize| (self.cursors[*other].key(), *other) < place;
        let at = self.order.partition_point(is_before);
        self.order.insert(at, cursor);
    }

    /// Shows all rows, deleted ones among them.
    ///
    /// # Errors
    /// The store's, `Corrupt`, and those of the sink.
    pub fn visit<E: From<EngineError>>(&mut self, sink: &mut impl RowSink<E>) -> Result<(), E> {
        let to = self.to;
        while !self.order.is_empty() {
            let least = self.order.remove(0);
            let next = self.order.first().map(|next| self.cursors[*next].position());
            let bound = next.as_ref().and_then(|(block, row)| block.key(*row)).unwrap_or(to);
            let cursor = &mut self.cursors[least];
            let is_left = match cursor.current.row(cursor.row) {
                Some((key, value)) if key == bound => {
                    sink.row(key, value)?;
                    // Rows of other runs with the same key are older.
                    while let Some(same) = self.take_at(bound) {
                        if self.cursors[same].step(to)? {
                            self.queue(same);
                        }
                    }
                    self.cursors[least].step(to)?
                }
                _ => cursor.visit_below(bound, to, sink)?,
            };
            if is_left {
                self.queue(least);
            }
        }
        Ok(())
    }

    /// Takes the next cursor, if its row has this key.
    fn take_at(&mut self, key: &[u8]) -> Option<usize> {
        let next = self.order.first().filter(|next| self.cursors[**next].key() == key);
        next.is_some().then(|| self.order.remove(0))
    }
}
